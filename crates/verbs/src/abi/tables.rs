//! Tables of functions: what the inline functions of the header call.

use libc::{c_int, c_uint, c_void, pthread_mutex_t};

use super::{
    ibv_ah, ibv_cq, ibv_cq_init_attr_ex, ibv_data_buf, ibv_device, ibv_device_attr_ex, ibv_mw, ibv_mw_bind,
    ibv_mw_bind_info, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_values_ex, ibv_wc,
};

/// A slot that no program calls any more, or of which this library has nothing.
type Unused = *mut c_void;

#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_1: [Unused; 7],
    pub alloc_mw: Option<extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub bind_mw: Option<extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_2: Unused,
    pub poll_cq: Option<extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_3: [Unused; 7],
    pub post_srq_recv: Option<extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_4: [Unused; 4],
    pub post_send: Option<extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_5: [Unused; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

#[repr(C)]
pub struct verbs_context {
    pub query_port: Option<extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: Option<extern "C" fn(*mut ibv_pd, c_int, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: Unused,
    pub counters: [Unused; 4],
    pub device_memory: [Unused; 3],
    pub flow_action: [Unused; 3],
    pub modify_qp_rate_limit: Unused,
    pub alloc_parent_domain:
        Option<extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub dealloc_td: Option<extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td: Option<extern "C" fn(*mut ibv_context, *mut c_void) -> *mut ibv_td>,
    pub modify_cq: Option<extern "C" fn(*mut ibv_cq, *mut c_void) -> c_int>,
    pub post_srq_ops: Unused,
    pub work_queues: [Unused; 5],
    pub query_rt_values: Option<extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: Option<extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub private: Unused,
    pub query_device_ex:
        Option<extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int>,
    pub flows: [Unused; 4],
    pub open_qp: Unused,
    pub create_qp_ex: Option<extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Unused,
    pub create_srq_ex: Option<extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub xrc_domains: [Unused; 2],
    pub _placeholder: u64,
    pub sz: usize,
    pub context: ibv_context,
}

#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub wr_bind_mw: Option<extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Option<extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_rdma_read: Option<extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write: Option<extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write_imm: Option<extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_send: Option<extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_send_imm: Option<extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_inv: Option<extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_tso: Unused,
    pub wr_set_ud_addr: Option<extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Unused,
    pub wr_set_inline_data: Option<extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_set_sge_list: Option<extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub wr_start: Option<extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_complete: Option<extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Option<extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_atomic_write: Unused,
    pub wr_flush: Unused,
}

/// Its first fields are those of `ibv_cq`.
#[repr(C)]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int>,
    pub next_poll: Option<extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Option<extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub read_vendor_err: Option<extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_imm_data: Option<extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_qp_num: Option<extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
    pub read_slid: Option<extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_sl: Option<extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_dlid_path_bits: Option<extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_completion_ts: Option<extern "C" fn(*mut ibv_cq_ex) -> u64>,
    pub read_cvlan: Unused,
    pub read_flow_tag: Unused,
    pub read_tm_info: Unused,
    pub read_completion_wallclock_ns: Option<extern "C" fn(*mut ibv_cq_ex) -> u64>,
}

// The sizes of rdma-core 44 to 56.
const _: () = assert!(size_of::<ibv_context>() == 328 && size_of::<verbs_context>() == 648);
const _: () = assert!(size_of::<ibv_cq_ex>() == 288 && size_of::<ibv_qp_ex>() == 360);
