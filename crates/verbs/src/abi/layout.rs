//! Sizes and offsets, held against the headers that are installed: a C program that prints them is compiled and run.
//!
//! `RDMA_CORE_INCLUDE` names another directory of headers, such as that of a newer rdma-core. Fields that older headers do not
//! have are left out for them, and for nothing else.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use super::*;

/// A number that both languages have to agree on: an expression of C, and its value here.
struct Number {
    expression: String,
    value: usize,
}

/// `structure: field, field = "its.name.in.C";` for each structure.
macro_rules! layouts {
    ($($name:ident: $($($field:ident).+ $(= $c:literal)?),+;)*) => {{
        let mut numbers = Vec::new();
        $(
            let structure = stringify!($name);
            numbers.push(Number { expression: format!("sizeof(struct {structure})"), value: size_of::<$name>() });
            $(
                let renamed: &[&str] = &[$($c)?];
                let own = stringify!($($field).+).replace(' ', "");
                let field = renamed.first().map_or(own.as_str(), |name| name);
                numbers.push(Number {
                    expression: format!("offsetof(struct {structure}, {field})"),
                    value: offset_of!($name, $($field).+),
                });
            )+
        )*
        numbers
    }};
}

/// Structures and fields that headers before the newest do not have. What is at the end of a structure changes its size, too.
const NEWER: [&str; 5] = ["wr_atomic_write", "wr_flush", "active_speed_ex", "ibv_mr_init_attr", "reg_mr_ex"];

/// Structures that newer fields made longer.
const GROWN: [&str; 2] = ["ibv_qp_ex", "ibv_port_attr"];

/// Fields of the structure that grows downwards, by their distance from its last one.
fn distances() -> Vec<Number> {
    let last = offset_of!(verbs_context, context);
    let all = numbers().into_iter().filter(|one| one.expression.starts_with("offsetof(struct verbs_context"));
    let distance = |one: Number| Number {
        expression: format!("offsetof(struct verbs_context, context) - {}", one.expression),
        value: last - one.value,
    };
    all.map(distance).collect()
}

fn numbers() -> Vec<Number> {
    layouts! {
    ibv_device:
        node_type, transport_type, name, dev_name, dev_path, ibdev_path;
    ibv_pd:
        context, handle;
    ibv_mr:
        context, pd, addr, length, handle, lkey, rkey;
    ibv_mw:
        context, pd, rkey, handle, kind = "type";
    ibv_comp_channel:
        context, fd, refcnt;
    ibv_cq:
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed;
    ibv_srq:
        context, srq_context, pd, handle, mutex, cond, events_completed;
    ibv_qp:
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed;
    ibv_ah:
        context, pd, handle;
    ibv_mr_init_attr:
        length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf;
    ibv_async_event:
        element, event_type;
    ibv_gid_entry:
        gid, gid_index, port_num, gid_type, ndev_ifindex;
    ibv_ece:
        vendor_id, options, comp_mask;
    ibv_device_attr:
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
        max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
        max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
        max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt;
    ibv_device_attr_ex:
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex,
        phys_port_cnt_ex;
    ibv_port_attr:
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
        pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
        active_speed, phys_state, link_layer, flags, port_cap_flags2, active_speed_ex;
    ibv_global_route:
        dgid, flow_label, sgid_index, hop_limit, traffic_class;
    ibv_ah_attr:
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num;
    ibv_grh:
        version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid;
    ibv_srq_attr:
        max_wr, max_sge, srq_limit;
    ibv_srq_init_attr:
        srq_context, attr;
    ibv_srq_init_attr_ex:
        srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap;
    ibv_qp_cap:
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
    ibv_qp_init_attr:
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all;
    ibv_qp_init_attr_ex:
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
        max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags;
    ibv_qp_attr:
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
        ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
        max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
        rate_limit;
    ibv_cq_init_attr_ex:
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain;
    ibv_parent_domain_init_attr:
        pd, td, comp_mask, alloc, free, pd_context;
    ibv_values_ex:
        comp_mask, raw_clock;
    ibv_context:
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat, ops.alloc_mw, ops.bind_mw, ops.dealloc_mw,
        ops.poll_cq, ops.req_notify_cq, ops.post_srq_recv, ops.post_send, ops.post_recv;
    verbs_context:
        query_port, advise_mr, alloc_null_mr, counters = "read_counters", device_memory = "reg_dm_mr",
        flow_action = "modify_flow_action_esp", modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td,
        modify_cq, post_srq_ops, work_queues = "destroy_rwq_ind_table", query_rt_values, create_cq_ex,
        private = "priv", query_device_ex, flows = "ibv_destroy_flow", open_qp, create_qp_ex, get_srq_num,
        create_srq_ex, xrc_domains = "open_xrcd", sz, context;
    ibv_qp_ex:
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
        wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
        wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
        wr_start, wr_complete, wr_abort, wr_atomic_write, wr_flush;
    ibv_cq_ex:
        base = "context", comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
        read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
        read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns;
    ibv_sge:
        addr, length, lkey;
    ibv_recv_wr:
        wr_id, next, sg_list, num_sge;
    ibv_send_wr:
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn = "qp_type.xrc.remote_srqn",
        bind_mw, wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap,
        wr.atomic.rkey, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey, bind_mw.mw, bind_mw.rkey, bind_mw.bind_info;
    ibv_mw_bind_info:
        mr, addr, length, mw_access_flags;
    ibv_mw_bind:
        wr_id, send_flags, bind_info;
    ibv_data_buf:
        addr, length;
    ibv_wc:
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits;
    }
}

/// Runs a C program that prints the value of each expression; those that do not compile are named in the error.
fn print_in_c(numbers: &[&Number], folder: &Path) -> Result<Vec<usize>, String> {
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    source.push_str("#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n");
    for Number { expression, .. } in numbers {
        writeln!(source, "printf(\"%zu\\n\", {expression});").unwrap();
    }
    source.push_str("return 0; }\n");
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    if let Some(headers) = std::env::var_os("RDMA_CORE_INCLUDE") {
        compiler.arg("-I").arg(headers);
    }
    let output = compiler.arg("-o").args([&program, &file]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let printed = Command::new(&program).output().unwrap().stdout;
    Ok(String::from_utf8(printed).unwrap().lines().map(|line| line.parse().unwrap()).collect())
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
fn structures_are_laid_out_as_in_the_installed_headers() {
    let headers = std::env::var("RDMA_CORE_INCLUDE").unwrap_or_else(|_| "/usr/include".to_owned());
    let has_compiler = Command::new("cc").arg("--version").output().is_ok();
    if !has_compiler || !Path::new(&headers).join("rdma/rdma_cma.h").exists() {
        eprintln!("LEFT OUT: cc, libibverbs-dev and librdmacm-dev are needed to compare with their headers");
        return;
    }
    let folder = std::env::temp_dir().join(format!("railnet-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let all = numbers();
    let is_newer = |number: &&Number| NEWER.iter().any(|name| number.expression.contains(name));
    let (newer, known): (Vec<_>, Vec<_>) = all.iter().partition(is_newer);
    let printed = print_in_c(&known, &folder).unwrap_or_else(|error| panic!("{error}"));
    let compared = known.into_iter().zip(printed);
    let newer: Vec<_> =
        newer.into_iter().filter_map(|one| Some((one, print_in_c(&[one], &folder).ok()?[0]))).collect();
    // A structure of a header that is older than a field at its end is shorter.
    let has_newer_fields = newer.len() > 4;
    let mut compared_count = 0;
    for (number, in_c) in compared.chain(newer) {
        let Number { expression, value } = number;
        let structure = expression.trim_start_matches("sizeof(struct ").trim_end_matches(')');
        match structure {
            // It grows downwards: what counts is how far a field is from the end.
            _ if expression.contains("struct verbs_context") => continue,
            name if GROWN.contains(&name) && !has_newer_fields => {
                assert!(in_c <= *value, "{expression}: {in_c} in C, {value} here");
            }
            _ => assert_eq!(in_c, *value, "{expression}"),
        }
        compared_count += 1;
    }
    let distances = distances();
    let printed = print_in_c(&distances.iter().collect::<Vec<_>>(), &folder).unwrap();
    for (distance, in_c) in distances.iter().zip(printed) {
        assert_eq!(in_c, distance.value, "{}", distance.expression);
        compared_count += 1;
    }
    assert!(compared_count > 250, "only {compared_count} numbers were compared");
    std::fs::remove_dir_all(&folder).unwrap();
}
