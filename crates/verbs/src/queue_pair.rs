//! Queue pairs: creating, changing, asking, destroying.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::c_int;
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::{Access, Attributes, Mtu, Path, QueuePairConfig, Service, State as NicState};
use railnet_wire::{Gid, ROCE_PORT};

use crate::abi::*;
use crate::adapter::{Adapter, EventTarget};
use crate::channel::Subject;
use crate::completion::Queue;
use crate::context::Context;
use crate::errors::{guard, null, of_driver, of_verb, status};
use crate::memory::Domain;
use crate::object;
use crate::post::{self, Builder};
use crate::receive::SharedQueue;

/// A queue pair.
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) c: ibv_qp_ex,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) number: QueuePairNumber,
    pub(crate) service: Service,
    target: EventTarget,
    init: ibv_qp_init_attr,
    /// What the application set, for it to ask for.
    attributes: Mutex<ibv_qp_attr>,
    /// Made for `ibv_wr_*`.
    extended: bool,
    /// Somebody is between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) building: AtomicBool,
    builder: Mutex<Builder>,
}

impl QueuePair {
    pub(crate) fn builder(&self) -> MutexGuard<'_, Builder> {
        self.builder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send_depth(&self) -> u32 {
        self.init.cap.max_send_wr
    }

    fn attributes(&self) -> MutexGuard<'_, ibv_qp_attr> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn mtu_code(mtu: Mtu) -> c_int {
    Mtu::ALL.iter().position(|one| *one == mtu).map_or(0, |index| index as c_int + 1)
}

fn mtu_of(code: c_int) -> Result<Mtu, c_int> {
    let index = usize::try_from(code - 1).map_err(|_| libc::EINVAL)?;
    Mtu::ALL.get(index).copied().ok_or(libc::EINVAL)
}

fn make(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr, extended: bool) -> Result<*mut ibv_qp, c_int> {
    let domain = object::of::<Domain, _>(pd)?;
    let context = Context::of(object::read(pd)?.context)?;
    let service = match init.qp_type {
        IBV_QPT_RC => Service::ReliableConnection,
        IBV_QPT_UC => Service::UnreliableConnection,
        IBV_QPT_UD => Service::Datagram,
        _ => return Err(libc::EOPNOTSUPP),
    };
    let shared = object::maybe::<SharedQueue, _>(init.srq);
    let (send, receive) = (object::of::<Queue, _>(init.send_cq)?, object::of::<Queue, _>(init.recv_cq)?);
    if shared.is_some() {
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    let mut config = QueuePairConfig::new(service, send.queue);
    config.receive_queue = receive.queue;
    config.shared = shared.map(|shared| shared.queue);
    (config.send_depth, config.receive_depth) = (init.cap.max_send_wr, init.cap.max_recv_wr);
    config.gather_max = init.cap.max_send_sge.max(init.cap.max_recv_sge).max(1);
    // As on devices that keep inline data where a work request has its list: some programs rely on that room.
    init.cap.max_inline_data =
        init.cap.max_inline_data.max(init.cap.max_send_sge * size_of::<ibv_sge>() as u32);
    config.inline_max = init.cap.max_inline_data;
    config.signal_all = init.sq_sig_all != 0;
    let adapter = domain.adapter.clone();
    let mut state = adapter.state();
    let number = state.driver.nic_mut().create_qp(domain.domain, &config).map_err(|error| of_verb(&error))?;
    let mut c: ibv_qp_ex = object::zeroed();
    let base = &mut c.qp_base;
    (base.context, base.qp_context, base.pd) = (context.c(), init.qp_context, pd);
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.handle, base.qp_num, base.qp_type) = (number.value(), number.value(), init.qp_type);
    post::fill_table(&mut c);
    let mut attributes: ibv_qp_attr = object::zeroed();
    attributes.cap = init.cap;
    let mut created = Box::new(QueuePair {
        c,
        adapter: adapter.clone(),
        number,
        service,
        target: context.event_target(0),
        init: *init,
        attributes: Mutex::new(attributes),
        extended,
        building: AtomicBool::new(false),
        builder: Mutex::new(Builder::default()),
    });
    created.target = context.event_target(std::ptr::from_ref::<QueuePair>(&created) as usize);
    state.queue_pairs.insert(number, created.target.clone());
    Ok(object::publish(created))
}

pub(crate) extern "C" fn create(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guard(std::ptr::null_mut(), || {
        object::write(init).and_then(|init| make(pd, init, false)).unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn create_extended(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    guard(std::ptr::null_mut(), || {
        let made = (|| {
            let init = object::write(init)?;
            let has = |mask| init.comp_mask & mask != 0;
            if !has(IBV_QP_INIT_ATTR_PD) {
                return Err(libc::EINVAL);
            }
            let operations = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
            if init.comp_mask & !KNOWN != 0
                || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0
                || operations && init.send_ops_flags & !SEND_OPS_SUPPORTED != 0
            {
                return Err(libc::EOPNOTSUPP);
            }
            let mut base = ibv_qp_init_attr {
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
            };
            let made = make(init.pd, &mut base, operations)?;
            init.cap = base.cap;
            Ok(made)
        })();
        made.unwrap_or_else(null)
    })
}

pub(crate) extern "C" fn to_extended(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match object::of::<QueuePair, _>(qp) {
        Ok(queue_pair) if queue_pair.extended => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}

pub(crate) fn subject(qp: *mut ibv_qp) -> Result<Arc<Subject>, c_int> {
    Ok(object::of::<QueuePair, _>(qp)?.target.subject.clone())
}

pub(crate) extern "C" fn destroy(qp: *mut ibv_qp) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue_pair = object::of::<QueuePair, _>(qp)?;
            {
                let mut state = queue_pair.adapter.state();
                // What was posted and not sent, and acknowledgements that are owed, leave first.
                state.send();
                state.driver.destroy(queue_pair.number).map_err(|error| of_verb(&error))?;
                state.queue_pairs.remove(&queue_pair.number);
            }
            queue_pair.target.end()?;
            object::retire::<QueuePair, _>(qp);
            Ok(())
        })())
    })
}

fn state_of(number: c_int) -> Result<NicState, c_int> {
    use NicState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
    let all = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrain, SendQueueError, Error];
    all.into_iter().find(|state| *state as c_int == number).ok_or(libc::EINVAL)
}

/// The path of an address vector. RoCE needs the global route.
pub(crate) fn path_of(attr: &ibv_ah_attr) -> Result<Path, c_int> {
    if attr.is_global == 0 || attr.grh.sgid_index != 0 || attr.port_num > 1 {
        return Err(libc::EINVAL);
    }
    Ok(Path {
        source: 0,
        target: Gid(attr.grh.dgid.raw),
        flow_label: attr.grh.flow_label & 0xf_ffff,
        traffic_class: attr.grh.traffic_class,
        hop_limit: if attr.grh.hop_limit == 0 { 64 } else { attr.grh.hop_limit },
    })
}

/// Reads what the mask names, and remembers it.
fn attributes_of(attr: &ibv_qp_attr, mask: c_int, known: &mut ibv_qp_attr) -> Result<Attributes, c_int> {
    if mask & !(QP_ATTR_SUPPORTED | IBV_QP_DEST_QPN) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let has = |bit: c_int| mask & bit != 0;
    macro_rules! take {
        ($bit:ident, $($field:ident),+) => {
            has($bit).then(|| { $(known.$field = attr.$field;)+ })
        };
    }
    let mut out = Attributes {
        state: has(IBV_QP_STATE).then(|| state_of(attr.qp_state)).transpose()?,
        current_state: has(IBV_QP_CUR_STATE).then(|| state_of(attr.cur_qp_state)).transpose()?,
        ..Attributes::default()
    };
    out.notify_drained = has(IBV_QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0);
    out.access =
        take!(IBV_QP_ACCESS_FLAGS, qp_access_flags).map(|()| Access::from_bits(attr.qp_access_flags as u8));
    out.partition_index = take!(IBV_QP_PKEY_INDEX, pkey_index).map(|()| attr.pkey_index);
    out.port = take!(IBV_QP_PORT, port_num).map(|()| attr.port_num);
    out.queue_key = take!(IBV_QP_QKEY, qkey).map(|()| attr.qkey);
    out.path = take!(IBV_QP_AV, ah_attr).map(|()| path_of(&attr.ah_attr)).transpose()?;
    out.path_mtu = take!(IBV_QP_PATH_MTU, path_mtu).map(|()| mtu_of(attr.path_mtu)).transpose()?;
    out.timeout = take!(IBV_QP_TIMEOUT, timeout).map(|()| attr.timeout);
    out.retry_count = take!(IBV_QP_RETRY_CNT, retry_cnt).map(|()| attr.retry_cnt);
    out.rnr_retry = take!(IBV_QP_RNR_RETRY, rnr_retry).map(|()| attr.rnr_retry);
    out.receive_psn = take!(IBV_QP_RQ_PSN, rq_psn).map(|()| Psn::new(attr.rq_psn & Psn::MASK));
    out.send_psn = take!(IBV_QP_SQ_PSN, sq_psn).map(|()| Psn::new(attr.sq_psn & Psn::MASK));
    out.initiator_reads = take!(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic).map(|()| attr.max_rd_atomic);
    out.destination_reads =
        take!(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic).map(|()| attr.max_dest_rd_atomic);
    out.min_rnr_timer = take!(IBV_QP_MIN_RNR_TIMER, min_rnr_timer).map(|()| attr.min_rnr_timer);
    out.destination =
        take!(IBV_QP_DEST_QPN, dest_qp_num).map(|()| QueuePairNumber::new(attr.dest_qp_num & 0xff_ffff));
    Ok(out)
}

pub(crate) extern "C" fn modify(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue_pair = object::of::<QueuePair, _>(qp)?;
            let mut known = *queue_pair.attributes();
            let change = attributes_of(object::read(attr)?, mask, &mut known)?;
            let mut state = queue_pair.adapter.state();
            // What was posted before is not stopped by a change of state.
            state.send();
            let number = queue_pair.number;
            let (nic, mut cx) = state.driver.lend();
            nic.modify_qp(&mut cx, number, &change).map_err(|error| of_verb(&error))?;
            if let Some(path) = change.path
                && queue_pair.service != Service::Datagram
            {
                let peer = SocketAddr::new(path.target.to_ip(), ROCE_PORT);
                state.driver.route(number, peer, &path).map_err(|error| of_driver(&error))?;
            }
            if change.state == Some(NicState::Reset) {
                let cap = known.cap;
                known = object::zeroed();
                known.cap = cap;
            }
            *queue_pair.attributes() = known;
            if let Some(to) = change.state {
                object::write(qp)?.state = to as c_int;
            }
            state.deliver();
            Ok(())
        })())
    })
}

pub(crate) extern "C" fn query(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard(libc::EIO, || {
        status((|| {
            let queue_pair = object::of::<QueuePair, _>(qp)?;
            let info = {
                let state = queue_pair.adapter.state();
                state.driver.nic().query_qp(queue_pair.number).map_err(|error| of_verb(&error))?
            };
            let mut known = *queue_pair.attributes();
            (known.qp_state, known.cur_qp_state) = (info.state as c_int, info.state as c_int);
            known.path_mig_state = IBV_MIG_MIGRATED;
            known.path_mtu = mtu_code(info.mtu);
            (known.sq_psn, known.rq_psn) = (info.send_psn.value(), info.receive_psn.value());
            known.sq_draining = u8::from(info.state == NicState::SendQueueDrain && info.sends > 0);
            object::write(qp)?.state = info.state as c_int;
            *object::write(attr)? = known;
            *object::write(init)? = queue_pair.init;
            Ok(())
        })())
    })
}

/// Data of a WRITE arrives in order, also in memory.
pub(crate) extern "C" fn query_data_in_order(_qp: *mut ibv_qp, _operation: c_int, _flags: u32) -> c_int {
    1
}

pub(crate) extern "C" fn query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    guard(libc::EIO, || {
        status(object::write(ece).map(|ece| *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }))
    })
}

/// Enhanced connections are a matter of vendors; there is one choice here, to have none.
pub(crate) extern "C" fn set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    match object::read(ece) {
        Ok(ece) if ece.comp_mask != 0 => libc::EINVAL,
        Ok(ece) if ece.vendor_id != 0 => libc::EOPNOTSUPP,
        Ok(_) => 0,
        Err(number) => number,
    }
}
