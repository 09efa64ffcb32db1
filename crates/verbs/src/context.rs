//! Devices and contexts: listing, opening, asking, and asynchronous events.

use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_char, c_int, c_uint, c_void};
use railnet_live::roce::{Device, QUEUE_PAIR_BITS, Settings, devices, interface_index};

use crate::abi::*;
use crate::adapter::{Adapter, EventTarget, Events};
use crate::channel::{Channel, Subject};
use crate::errors::complain;
use crate::errors::{guard, null, set, status};
use crate::object;
use crate::{completion, memory, post, queue_pair, receive};

/// A device as the application sees it. There is one for each address, for as long as the process lives.
#[repr(C)]
pub(crate) struct ListedDevice {
    pub(crate) c: ibv_device,
    device: Device,
}

/// Addresses of listed devices. Only the application reads them.
static LISTED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The listed devices, while a thread forks.
pub(crate) fn lock_listed() -> MutexGuard<'static, Vec<usize>> {
    LISTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) c: verbs_context,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) events: Arc<Events>,
    handles: AtomicU32,
}

impl Context {
    /// The context that the application means.
    pub(crate) fn of<'a>(context: *mut ibv_context) -> Result<&'a Self, c_int> {
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        let verbs = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        object::of(verbs)
    }

    pub(crate) fn c(&self) -> *mut ibv_context {
        (&raw const self.c.context).cast_mut()
    }

    /// A number for a new object.
    pub(crate) fn handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    /// Where the asynchronous events of a new object go.
    pub(crate) fn event_target(&self, token: usize) -> EventTarget {
        EventTarget { events: self.events.clone(), subject: Subject::new(token) }
    }
}

fn settings() -> Result<Settings, c_int> {
    Settings::from_env().map_err(|why| {
        complain(&why);
        libc::EINVAL
    })
}

fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (out, byte) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *out = byte as c_char;
    }
    out
}

/// The devices of this host, with their addresses.
pub(crate) fn addresses() -> Result<Vec<(IpAddr, *mut ibv_device)>, c_int> {
    let address =
        |pointer: *mut ibv_device| Ok((object::of::<ListedDevice, _>(pointer)?.device.address, pointer));
    list()?.into_iter().map(address).collect()
}

fn list() -> Result<Vec<*mut ibv_device>, c_int> {
    let devices = devices(&settings()?).map_err(|error| {
        complain(&error.to_string());
        crate::errors::of_io(&error)
    })?;
    let mut listed = lock_listed();
    let mut find = |device: Device| {
        let known = listed.iter().map(|&address| address as *mut ibv_device);
        let same = |pointer: &*mut ibv_device| {
            object::of::<ListedDevice, _>(*pointer).is_ok_and(|one| one.device == device)
        };
        known.into_iter().find(same).unwrap_or_else(|| {
            let c = ibv_device {
                _ops: [std::ptr::null_mut(); 2],
                node_type: IBV_NODE_CA,
                transport_type: IBV_TRANSPORT_IB,
                name: text(&device.name),
                dev_name: text(&format!("uverbs{}", device.index)),
                dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{}", device.index)),
                ibdev_path: text(&format!("/sys/class/infiniband/{}", device.name)),
            };
            let pointer = object::publish(Box::new(ListedDevice { c, device: device.clone() }));
            listed.push(pointer as usize);
            pointer
        })
    };
    Ok(devices.into_iter().map(&mut find).collect())
}

pub(crate) extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guard(std::ptr::null_mut(), || match list() {
        Ok(mut devices) => {
            if let Ok(count) = object::write(count) {
                *count = devices.len() as c_int;
            }
            devices.push(std::ptr::null_mut());
            object::to_c_array(&devices)
        }
        Err(number) => null(number),
    })
}

pub(crate) extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    object::free_c_array(list);
}

pub(crate) extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    object::read(device).map_or(std::ptr::null(), |device| device.name.as_ptr())
}

pub(crate) extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    object::of::<ListedDevice, _>(device).map_or(0, |device| device.device.guid())
}

pub(crate) extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    object::of::<ListedDevice, _>(device).map_or(-1, |device| device.device.index as c_int)
}

/// Opens a device by its address.
pub(crate) fn open(device: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
    let listed = object::of::<ListedDevice, _>(device)?;
    let adapter = Adapter::open(&listed.device, &settings()?)?;
    let events = Arc::new(Channel::new().map_err(|error| crate::errors::of_io(&error))?);
    let mut verbs: verbs_context = object::zeroed();
    verbs.sz = size_of::<verbs_context>();
    verbs.query_port = Some(query_port_of_size);
    verbs.advise_mr = Some(memory::advise);
    verbs.alloc_parent_domain = Some(memory::alloc_parent_domain);
    verbs.alloc_td = Some(memory::alloc_thread_domain);
    verbs.dealloc_td = Some(memory::dealloc_thread_domain);
    verbs.query_rt_values = Some(query_real_time_values);
    verbs.create_cq_ex = Some(completion::create_extended);
    verbs.query_device_ex = Some(query_device_ex);
    verbs.create_qp_ex = Some(queue_pair::create_extended);
    verbs.create_srq_ex = Some(receive::create_extended);
    let context = &mut verbs.context;
    context.device = device;
    // There is no command channel; programs may duplicate its descriptor nevertheless.
    (context.cmd_fd, context.async_fd) = (events.raw(), events.raw());
    context.num_comp_vectors = COMPLETION_VECTORS;
    context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    context.ops.alloc_mw = Some(memory::alloc_window);
    context.ops.bind_mw = Some(memory::bind_window);
    context.ops.dealloc_mw = Some(memory::dealloc_window);
    context.ops.poll_cq = Some(completion::poll);
    context.ops.req_notify_cq = Some(completion::request_notification);
    context.ops.post_srq_recv = Some(post::post_shared_receive);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_receive);
    let opened = Box::new(Context { c: verbs, adapter, events, handles: AtomicU32::new(1) });
    let pointer: *mut verbs_context = object::publish(opened);
    Ok(Context::of(pointer.wrapping_byte_add(offset_of!(verbs_context, context)).cast())?.c())
}

/// Completion vectors: interrupts, on hardware. Here any number does the same.
const COMPLETION_VECTORS: c_int = 8;

pub(crate) extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    guard(std::ptr::null_mut(), || open(device).unwrap_or_else(null))
}

pub(crate) extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    guard(-1, || match Context::of(context) {
        Ok(context) => {
            object::retire::<Context, verbs_context>((&raw const context.c).cast_mut());
            0
        }
        Err(number) => {
            set(number);
            -1
        }
    })
}

/// Of no vendor, as that of Soft-RoCE: programs take 0 for a device that did not answer.
const VENDOR: u32 = 0xff_ffff;

/// What the device can do.
fn attributes(adapter: &Adapter) -> ibv_device_attr {
    let state = adapter.state();
    let limits = state.driver.nic().config().limits;
    ibv_device_attr {
        fw_ver: text(env!("CARGO_PKG_VERSION")),
        node_guid: adapter.device.guid(),
        sys_image_guid: adapter.device.guid(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: (1 << QUEUE_PAIR_BITS) * 3 / 4,
        max_qp_wr: limits.queue_depth as c_int,
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_sge: limits.gather as c_int,
        max_sge_rd: limits.gather as c_int,
        max_cq: 1 << 20,
        max_cqe: limits.completions as c_int,
        max_mr: 1 << 23,
        max_pd: 1 << 20,
        max_qp_rd_atom: limits.reads.into(),
        max_ee_rd_atom: 0,
        max_res_rd_atom: c_int::from(limits.reads) << QUEUE_PAIR_BITS,
        max_qp_init_rd_atom: limits.reads.into(),
        max_ee_init_rd_atom: 0,
        atomic_cap: IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 1 << 23,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 1 << 20,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 1 << 20,
        max_srq_wr: limits.queue_depth as c_int,
        max_srq_sge: limits.gather as c_int,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

pub(crate) extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            *object::write(attr)? = attributes(&Context::of(context)?.adapter);
            Ok(())
        })())
    })
}

extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let mut extended: ibv_device_attr_ex = object::zeroed();
            extended.orig_attr = attributes(&Context::of(context)?.adapter);
            extended.device_cap_flags_ex = extended.orig_attr.device_cap_flags.into();
            extended.completion_timestamp_mask = u64::MAX;
            extended.hca_core_clock = 1_000_000;
            extended.phys_port_cnt_ex = extended.orig_attr.phys_port_cnt.into();
            object::copy_out(&extended, attr, size)
        })())
    })
}

/// The clock of completion timestamps: nanoseconds.
extern "C" fn query_real_time_values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    guard(libc::EIO, || {
        status(object::write(values).map(|values| {
            let now = completion::timestamp();
            values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
            values.raw_clock = [(now / 1_000_000_000) as i64, (now % 1_000_000_000) as i64];
        }))
    })
}

fn port_attributes(context: &Context, port: u8) -> Result<ibv_port_attr, c_int> {
    if port != 1 {
        return Err(libc::EINVAL);
    }
    let device = &context.adapter.device;
    let link = device.link();
    let mut attr: ibv_port_attr = object::zeroed();
    attr.state = IBV_PORT_ACTIVE;
    attr.max_mtu = queue_pair::mtu_code(railnet_nic::Mtu::Mtu4096);
    attr.active_mtu = queue_pair::mtu_code(device.mtu);
    attr.gid_tbl_len = 1;
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = 1 << 31;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = link.width;
    attr.active_speed = link.speed;
    attr.phys_state = PHYSICAL_LINK_UP;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr.flags = IBV_QPF_GRH_REQUIRED;
    Ok(attr)
}

const PHYSICAL_LINK_UP: u8 = 5;

extern "C" fn query_port_of_size(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    guard(libc::EIO, || {
        status((|| object::copy_out(&port_attributes(Context::of(context)?, port)?, attr, size))())
    })
}

/// The symbol, for programs whose structure ends before the flags.
pub(crate) extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    query_port_of_size(context, port, attr, offset_of!(ibv_port_attr, link_layer) + 2)
}

/// The rate of a port in units of 100 Mb/s.
pub(crate) extern "C" fn query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    const UNIT_MBPS: u64 = 100;
    guard(libc::EIO, || {
        status((|| {
            let context = Context::of(context)?;
            if port != 1 {
                return Err(libc::EINVAL);
            }
            *object::write(speed)? = u64::from(context.adapter.device.link().rate_mbps) / UNIT_MBPS;
            Ok(())
        })())
    })
}

/// Zero, or -1 and `errno`.
fn posix(outcome: Result<(), c_int>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(number) => {
            set(number);
            -1
        }
    }
}

pub(crate) extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    guard(-1, || {
        posix((|| {
            let context = Context::of(context)?;
            if port != 1 || index != 0 {
                return Err(libc::EINVAL);
            }
            object::write(gid)?.raw = context.adapter.device.gid().0;
            Ok(())
        })())
    })
}

fn gid_entry(context: &Context) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: context.adapter.device.gid().0 },
        gid_index: 0,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: interface_index(&context.adapter.device.interface),
    }
}

pub(crate) extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let context = Context::of(context)?;
            match (port, index, flags) {
                (1, 0, 0) => object::copy_out(&gid_entry(context), entry, size),
                (1, _, 0) => Err(libc::ENODATA),
                _ => Err(libc::EINVAL),
            }
        })())
    })
}

pub(crate) extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    guard(-(libc::EIO as isize), || {
        let found = (|| {
            let context = Context::of(context)?;
            if flags != 0 || room == 0 {
                return Err(libc::EINVAL);
            }
            object::copy_out(&gid_entry(context), entries, size)
        })();
        found.map_or_else(|number| -(number as isize), |()| 1)
    })
}

/// The type of a GID for rdma-core's own tools: 2 is RoCE v2 there.
pub(crate) extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    guard(-1, || {
        posix((|| {
            Context::of(context)?;
            if port != 1 || index != 0 {
                return Err(libc::EINVAL);
            }
            *object::write(kind)? = GID_TYPE_SYSFS_ROCE_V2;
            Ok(())
        })())
    })
}

const GID_TYPE_SYSFS_ROCE_V2: c_uint = 1;

const DEFAULT_PARTITION: u16 = 0xffff;

pub(crate) extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard(-1, || {
        posix((|| {
            Context::of(context)?;
            if port != 1 || index != 0 {
                return Err(libc::EINVAL);
            }
            *object::write(pkey)? = DEFAULT_PARTITION;
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    match (port, pkey) {
        (1, DEFAULT_PARTITION) => 0,
        _ => posix(Err(libc::EINVAL)),
    }
}

pub(crate) extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    guard(-1, || {
        posix((|| {
            let events = Context::of(context)?.events.clone();
            let (kind, subject) = events.next().map_err(|error| crate::errors::of_io(&error))?;
            // The application's object outlives the acknowledgement, and the object the subject.
            *object::write(event)? =
                ibv_async_event { element: subject.token as *mut c_void, event_type: kind };
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    guard((), || {
        let Ok(event) = object::read(event) else { return };
        let subject = match event.event_type {
            IBV_EVENT_CQ_ERR => completion::error_subject(event.element.cast()),
            IBV_EVENT_SRQ_LIMIT_REACHED => receive::subject(event.element.cast()),
            _ => queue_pair::subject(event.element.cast()),
        };
        if let Ok(subject) = subject {
            subject.acknowledge(1);
        }
    });
}

pub(crate) extern "C" fn fork_init() -> c_int {
    0
}

/// Memory is not pinned, so a fork needs no preparation.
pub(crate) extern "C" fn is_fork_initialized() -> c_int {
    const IBV_FORK_UNNEEDED: c_int = 2;
    IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn do_fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
