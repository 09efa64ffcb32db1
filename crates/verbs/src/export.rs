//! The symbols of the shared object, each under its versions in rdma-core.
//!
//! Every symbol is a jump to the function behind it. One function may stand under several names and versions, and the
//! linker's version script (`rdma-core.map`) has only to know the versions.
#![expect(unsafe_code, reason = "symbols of a C library, and a datum among them")]

use std::arch::global_asm;

use libc::{c_int, c_void};

use crate::{address, buffer, cma, completion, context, errors, memory, names, queue_pair, receive};

/// `exports!("@@", "VERSION", symbol = function, …)`: `@@` where programs that are linked now get this version, `@` where only
/// older programs ask for it.
macro_rules! exports {
    ($at:literal, $version:literal, $($symbol:ident = $function:path,)*) => {
        $(global_asm!(
            ".pushsection .text.railnet_exports, \"ax\", @progbits",
            concat!(".globl railnet.", stringify!($symbol), ".", $version),
            concat!(".type railnet.", stringify!($symbol), ".", $version, ", @function"),
            concat!("railnet.", stringify!($symbol), ".", $version, ":"),
            "jmp {function}",
            concat!(".symver railnet.", stringify!($symbol), ".", $version, ", ", stringify!($symbol), $at, $version, ", remove"),
            ".popsection",
            function = sym $function,
        );)*
    };
}

/// What rdma-core's libraries of drivers take from `libibverbs`. Programs that are linked with one of them (UCX, libfabric) must
/// be able to start; no such driver finds a device.
macro_rules! private_exports {
    ($version:literal, $register_driver:ident) => {
        exports!(
            "@",
            $version,
            $register_driver = nothing,
            __ioctl_final_num_attrs = unsupported,
            __verbs_log = nothing,
            _verbs_init_and_alloc_context = unsupported_pointer,
            execute_ioctl = unsupported,
            ibv_cmd_advise_mr = unsupported,
            ibv_cmd_alloc_dm = unsupported,
            ibv_cmd_alloc_mw = unsupported,
            ibv_cmd_alloc_pd = unsupported,
            ibv_cmd_attach_mcast = unsupported,
            ibv_cmd_close_xrcd = unsupported,
            ibv_cmd_create_ah = unsupported,
            ibv_cmd_create_counters = unsupported,
            ibv_cmd_create_cq = unsupported,
            ibv_cmd_create_cq_ex = unsupported,
            ibv_cmd_create_flow = unsupported,
            ibv_cmd_create_flow_action_esp = unsupported,
            ibv_cmd_create_qp = unsupported,
            ibv_cmd_create_qp_ex = unsupported,
            ibv_cmd_create_qp_ex2 = unsupported,
            ibv_cmd_create_rwq_ind_table = unsupported,
            ibv_cmd_create_srq = unsupported,
            ibv_cmd_create_srq_ex = unsupported,
            ibv_cmd_create_wq = unsupported,
            ibv_cmd_dealloc_mw = unsupported,
            ibv_cmd_dealloc_pd = unsupported,
            ibv_cmd_dereg_mr = unsupported,
            ibv_cmd_destroy_ah = unsupported,
            ibv_cmd_destroy_counters = unsupported,
            ibv_cmd_destroy_cq = unsupported,
            ibv_cmd_destroy_flow = unsupported,
            ibv_cmd_destroy_flow_action = unsupported,
            ibv_cmd_destroy_qp = unsupported,
            ibv_cmd_destroy_rwq_ind_table = unsupported,
            ibv_cmd_destroy_srq = unsupported,
            ibv_cmd_destroy_wq = unsupported,
            ibv_cmd_detach_mcast = unsupported,
            ibv_cmd_free_dm = unsupported,
            ibv_cmd_get_context = unsupported,
            ibv_cmd_modify_cq = unsupported,
            ibv_cmd_modify_flow_action_esp = unsupported,
            ibv_cmd_modify_qp = unsupported,
            ibv_cmd_modify_qp_ex = unsupported,
            ibv_cmd_modify_srq = unsupported,
            ibv_cmd_modify_wq = unsupported,
            ibv_cmd_open_qp = unsupported,
            ibv_cmd_open_xrcd = unsupported,
            ibv_cmd_poll_cq = unsupported,
            ibv_cmd_post_recv = unsupported,
            ibv_cmd_post_send = unsupported,
            ibv_cmd_post_srq_recv = unsupported,
            ibv_cmd_query_context = unsupported,
            ibv_cmd_query_device_any = unsupported,
            ibv_cmd_query_mr = unsupported,
            ibv_cmd_query_port = unsupported,
            ibv_cmd_query_qp = unsupported,
            ibv_cmd_query_srq = unsupported,
            ibv_cmd_read_counters = unsupported,
            ibv_cmd_reg_dm_mr = unsupported,
            ibv_cmd_reg_dmabuf_mr = unsupported,
            ibv_cmd_reg_mr = unsupported,
            ibv_cmd_req_notify_cq = unsupported,
            ibv_cmd_rereg_mr = unsupported,
            ibv_cmd_resize_cq = unsupported,
            ibv_query_gid_type = context::query_gid_type,
            ibv_read_ibdev_sysfs_file = unsupported,
            verbs_init_cq = nothing,
            verbs_open_device = unsupported_pointer,
            verbs_set_ops = nothing,
            verbs_uninit_context = nothing,
        );
        global_asm!(
            ".pushsection .bss.railnet_exports, \"aw\", @nobits",
            concat!(".globl railnet.disassociate.", $version),
            concat!(".type railnet.disassociate.", $version, ", @object"),
            concat!(".size railnet.disassociate.", $version, ", 1"),
            concat!("railnet.disassociate.", $version, ": .zero 1"),
            concat!(
                ".symver railnet.disassociate.",
                $version,
                ", verbs_allow_disassociate_destroy@",
                $version,
                ", remove"
            ),
            ".popsection",
        );
    };
}

/// What cannot exist here, of functions that return a number.
extern "C" fn unsupported() -> c_int {
    errors::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// What cannot exist here, of functions that return a pointer.
extern "C" fn unsupported_pointer() -> *mut c_void {
    errors::null(libc::EOPNOTSUPP)
}

/// The same, where -1 and `errno` tell it.
extern "C" fn refused() -> c_int {
    errors::set(libc::EOPNOTSUPP);
    -1
}

/// Functions that return nothing.
extern "C" fn nothing() {}

exports!(
    "@@",
    "IBVERBS_1.0",
    ibv_copy_path_rec_from_kern = nothing,
    ibv_copy_path_rec_to_kern = nothing,
    ibv_copy_qp_attr_from_kern = nothing,
    ibv_create_comp_channel = completion::create_channel,
    ibv_destroy_comp_channel = completion::destroy_channel,
    ibv_get_sysfs_path = names::sysfs_path,
    ibv_rate_to_mult = names::rate_to_multiple,
    ibv_read_sysfs_file = names::read_sysfs_file,
    mult_to_ibv_rate = names::multiple_to_rate,
);
exports!(
    "@",
    "IBVERBS_1.0",
    ibv_ack_async_event = context::ack_async_event,
    ibv_ack_cq_events = completion::ack_events,
    ibv_alloc_pd = memory::alloc_domain,
    ibv_attach_mcast = unsupported,
    ibv_close_device = context::close_device,
    ibv_create_ah = address::create,
    ibv_create_cq = completion::create,
    ibv_create_qp = queue_pair::create,
    ibv_create_srq = receive::create,
    ibv_dealloc_pd = memory::dealloc_domain,
    ibv_dereg_mr = memory::deregister_region,
    ibv_destroy_ah = address::destroy,
    ibv_destroy_cq = completion::destroy,
    ibv_destroy_qp = queue_pair::destroy,
    ibv_destroy_srq = receive::destroy,
    ibv_detach_mcast = unsupported,
    ibv_free_device_list = context::free_device_list,
    ibv_get_async_event = context::get_async_event,
    ibv_get_cq_event = completion::get_event,
    ibv_get_device_guid = context::get_device_guid,
    ibv_get_device_list = context::get_device_list,
    ibv_get_device_name = context::get_device_name,
    ibv_modify_qp = queue_pair::modify,
    ibv_modify_srq = receive::modify,
    ibv_open_device = context::open_device,
    ibv_query_device = context::query_device,
    ibv_query_gid = context::query_gid,
    ibv_query_pkey = context::query_pkey,
    ibv_query_port = context::query_port,
    ibv_query_qp = queue_pair::query,
    ibv_query_srq = receive::query,
    ibv_reg_mr = memory::register_region,
    ibv_resize_cq = completion::resize,
);
exports!(
    "@@",
    "IBVERBS_1.1",
    ibv_ack_async_event = context::ack_async_event,
    ibv_ack_cq_events = completion::ack_events,
    ibv_alloc_pd = memory::alloc_domain,
    ibv_attach_mcast = unsupported,
    ibv_close_device = context::close_device,
    ibv_copy_ah_attr_from_kern = nothing,
    ibv_create_ah = address::create,
    ibv_create_ah_from_wc = address::create_from_wc,
    ibv_create_cq = completion::create,
    ibv_create_qp = queue_pair::create,
    ibv_create_srq = receive::create,
    ibv_dealloc_pd = memory::dealloc_domain,
    ibv_dereg_mr = memory::deregister_region,
    ibv_destroy_ah = address::destroy,
    ibv_destroy_cq = completion::destroy,
    ibv_destroy_qp = queue_pair::destroy,
    ibv_destroy_srq = receive::destroy,
    ibv_detach_mcast = unsupported,
    ibv_dofork_range = context::do_fork_range,
    ibv_dontfork_range = context::do_fork_range,
    ibv_event_type_str = names::event_type,
    ibv_fork_init = context::fork_init,
    ibv_free_device_list = context::free_device_list,
    ibv_get_async_event = context::get_async_event,
    ibv_get_cq_event = completion::get_event,
    ibv_get_device_guid = context::get_device_guid,
    ibv_get_device_list = context::get_device_list,
    ibv_get_device_name = context::get_device_name,
    ibv_init_ah_from_wc = address::init_from_wc,
    ibv_modify_qp = queue_pair::modify,
    ibv_modify_srq = receive::modify,
    ibv_node_type_str = names::node_type,
    ibv_open_device = context::open_device,
    ibv_port_state_str = names::port_state,
    ibv_query_device = context::query_device,
    ibv_query_gid = context::query_gid,
    ibv_query_pkey = context::query_pkey,
    ibv_query_port = context::query_port,
    ibv_query_qp = queue_pair::query,
    ibv_query_srq = receive::query,
    ibv_rate_to_mbps = names::rate_to_mbps,
    ibv_reg_mr = memory::register_region,
    ibv_rereg_mr = memory::reregister_region,
    ibv_resize_cq = completion::resize,
    ibv_resolve_eth_l2_from_gid = unsupported,
    ibv_wc_status_str = names::completion_status,
    mbps_to_ibv_rate = names::mbps_to_rate,
);
exports!("@", "IBVERBS_1.1", ibv_register_driver = nothing,);
exports!("@@", "IBVERBS_1.5", ibv_get_pkey_index = context::get_pkey_index,);
exports!("@@", "IBVERBS_1.6", ibv_qp_to_qp_ex = queue_pair::to_extended,);
exports!("@@", "IBVERBS_1.7", ibv_reg_mr_iova = memory::register_region_iova,);
exports!("@@", "IBVERBS_1.8", ibv_reg_mr_iova2 = memory::register_region_iova2,);
exports!("@@", "IBVERBS_1.9", ibv_get_device_index = context::get_device_index,);
exports!(
    "@@",
    "IBVERBS_1.10",
    ibv_import_device = unsupported_pointer,
    ibv_import_mr = unsupported_pointer,
    ibv_import_pd = unsupported_pointer,
    ibv_query_ece = queue_pair::query_ece,
    ibv_set_ece = queue_pair::set_ece,
    ibv_unimport_mr = nothing,
    ibv_unimport_pd = nothing,
);
exports!(
    "@@",
    "IBVERBS_1.11",
    _ibv_query_gid_ex = context::query_gid_ex,
    _ibv_query_gid_table = context::query_gid_table,
);
exports!("@@", "IBVERBS_1.12", ibv_reg_dmabuf_mr = memory::register_dmabuf,);
exports!(
    "@@",
    "IBVERBS_1.13",
    ibv_import_dm = unsupported_pointer,
    ibv_is_fork_initialized = context::is_fork_initialized,
    ibv_unimport_dm = nothing,
);
exports!("@@", "IBVERBS_1.14", ibv_query_qp_data_in_order = queue_pair::query_data_in_order,);
exports!(
    "@@",
    "IBVERBS_1.15",
    ibv_alloc_dmah = unsupported_pointer,
    ibv_dealloc_dmah = unsupported,
    ibv_reg_mr_ex = buffer::register_extended,
);
exports!(
    "@@",
    "IBVERBS_1.16",
    ibv_dm_export_dmabuf_fd = refused,
    ibv_query_port_speed = context::query_port_speed,
);
exports!(
    "@@",
    "IBVERBS_1.17",
    ibv_alloc_buf = buffer::allocate,
    ibv_free_buf = buffer::free,
    ibv_reg_buf_mr = buffer::register,
);
exports!(
    "@@",
    "IBVERBS_1.18",
    _ibv_query_comp_cntr_caps = unsupported,
    ibv_create_comp_cntr = unsupported_pointer,
    ibv_destroy_comp_cntr = unsupported,
    ibv_export_buf_dmabuf_fd = refused,
    ibv_inc_comp_cntr = unsupported,
    ibv_inc_err_comp_cntr = unsupported,
    ibv_qp_attach_comp_cntr = unsupported,
    ibv_read_comp_cntr = unsupported,
    ibv_read_err_comp_cntr = unsupported,
    ibv_set_comp_cntr = unsupported,
    ibv_set_err_comp_cntr = unsupported,
);
private_exports!("IBVERBS_PRIVATE_25", verbs_register_driver_25);
private_exports!("IBVERBS_PRIVATE_34", verbs_register_driver_34);
private_exports!("IBVERBS_PRIVATE_59", verbs_register_driver_59);
private_exports!("IBVERBS_PRIVATE_60", verbs_register_driver_60);
private_exports!("IBVERBS_PRIVATE_61", verbs_register_driver_61);
private_exports!("IBVERBS_PRIVATE_62", verbs_register_driver_62);
private_exports!("IBVERBS_PRIVATE_63", verbs_register_driver_63);
private_exports!("IBVERBS_PRIVATE_64", verbs_register_driver_64);
private_exports!("IBVERBS_PRIVATE_65", verbs_register_driver_65);

exports!(
    "@@",
    "RDMACM_1.0",
    raccept = crate::rsocket::accept,
    rbind = crate::rsocket::bind,
    rclose = crate::rsocket::close,
    rconnect = crate::rsocket::connect,
    rdma_accept = cma::connect::accept,
    rdma_ack_cm_event = cma::event::ack_event,
    rdma_bind_addr = cma::resolve::bind_addr,
    rdma_connect = cma::connect::connect,
    rdma_create_ep = cma::endpoint::create,
    rdma_create_event_channel = cma::event::create_channel,
    rdma_create_id = cma::identifier::create,
    rdma_create_qp = cma::queue_pair::create,
    rdma_create_qp_ex = cma::queue_pair::create_extended,
    rdma_create_srq = cma::queue_pair::create_shared,
    rdma_create_srq_ex = cma::queue_pair::create_shared_extended,
    rdma_destroy_ep = cma::endpoint::destroy,
    rdma_destroy_event_channel = cma::event::destroy_channel,
    rdma_destroy_id = cma::identifier::destroy,
    rdma_destroy_qp = cma::queue_pair::destroy,
    rdma_destroy_srq = cma::queue_pair::destroy_shared,
    rdma_disconnect = cma::connect::disconnect,
    rdma_event_str = cma::event::event_name,
    rdma_free_devices = cma::device::free_devices,
    rdma_freeaddrinfo = cma::address_info::free,
    rdma_get_cm_event = cma::event::get_event,
    rdma_get_devices = cma::device::get_devices,
    rdma_get_dst_port = cma::identifier::target_port,
    rdma_get_request = cma::endpoint::get_request,
    rdma_get_src_port = cma::identifier::source_port,
    rdma_getaddrinfo = cma::address_info::get,
    rdma_join_multicast = refused,
    rdma_leave_multicast = refused,
    rdma_listen = cma::resolve::listen,
    rdma_migrate_id = cma::identifier::migrate,
    rdma_notify = cma::connect::notify,
    rdma_reject = cma::connect::reject,
    rdma_resolve_addr = cma::resolve::resolve_addr,
    rdma_resolve_route = cma::resolve::resolve_route,
    rdma_set_option = cma::identifier::set_option,
    rfcntl = crate::rsocket::control,
    rgetpeername = crate::rsocket::peer_name,
    rgetsockname = crate::rsocket::own_name,
    rgetsockopt = crate::rsocket::get_option,
    riomap = crate::rsocket::map,
    riounmap = crate::rsocket::unmap,
    riowrite = crate::rsocket::write_mapped,
    rlisten = crate::rsocket::listen,
    rpoll = crate::rsocket::poll,
    rread = crate::rsocket::read,
    rreadv = refused,
    rrecv = crate::rsocket::receive,
    rrecvfrom = refused,
    rrecvmsg = refused,
    rselect = refused,
    rsend = crate::rsocket::send,
    rsendmsg = refused,
    rsendto = refused,
    rsetsockopt = crate::rsocket::set_option,
    rshutdown = crate::rsocket::shut_down,
    rsocket = crate::rsocket::open,
    rwrite = crate::rsocket::write,
    rwritev = refused,
);
exports!("@@", "RDMACM_1.1", rdma_join_multicast_ex = refused,);
exports!(
    "@@",
    "RDMACM_1.2",
    rdma_establish = cma::connect::establish,
    rdma_init_qp_attr = cma::connect::init_qp_attr,
);
exports!(
    "@@",
    "RDMACM_1.3",
    rdma_get_remote_ece = cma::connect::get_remote_ece,
    rdma_reject_ece = cma::connect::reject_ece,
    rdma_set_local_ece = cma::connect::set_local_ece,
);
exports!(
    "@@",
    "RDMACM_1.4",
    rdma_query_addrinfo = refused,
    rdma_resolve_addrinfo = refused,
    rdma_write_cm_event = refused,
);
exports!("@@", "RDMACM_1.5", repoll_create = refused, repoll_ctl = refused, repoll_wait = refused,);
