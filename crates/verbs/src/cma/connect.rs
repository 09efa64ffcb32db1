//! Connecting, accepting, refusing, disconnecting; and what a connection says about its queue pair.

use std::sync::Arc;

use libc::{c_int, c_void};
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::cm::{Call, ConnectionId, Offer};
use railnet_nic::{Attributes, Path, State as NicState};
use railnet_wire::Gid;
use railnet_wire::mad::{CmaHeader, RejectReason};

use super::endpoint::complete;
use super::identifier::{CmId, Identifier, Phase};
use super::management::of_manager;
use super::resolve::random;
use super::{call, checked};
use crate::abi::*;
use crate::adapter::{Adapter, State};
use crate::object;
use crate::queue_pair::{self, mtu_code};

/// Private data of an application in each message (IBTA 12.6, less the header of annex A11 in requests).
pub(super) const REQUEST_PRIVATE_MAX: usize = 92 - CmaHeader::LENGTH;
pub(super) const SIDR_REQUEST_PRIVATE_MAX: usize = 216 - CmaHeader::LENGTH;

/// What Linux sets on RoCE: 0.5 s.
const ACK_TIMEOUT: u8 = 17;

/// Retries of a connection whose application leaves them open.
const RETRIES: u8 = 7;

/// Retry counts have three bits.
const COUNT_MAX: u8 = 7;

/// READs and atomics in flight at most; the value that stands for it in `rdma_conn_param` is the largest.
fn reads_of(wanted: Option<u8>, max: u8) -> Result<u8, c_int> {
    match wanted {
        None | Some(RDMA_MAX_RESP_RES) => Ok(max),
        Some(count) if count > max => Err(libc::EINVAL),
        Some(count) => Ok(count),
    }
}

fn reads_max(adapter: &Adapter) -> u8 {
    let state = adapter.state();
    state.driver.nic().config().limits.reads
}

fn private_of(param: Option<&rdma_conn_param>) -> Result<Vec<u8>, c_int> {
    let Some(param) = param else { return Ok(Vec::new()) };
    let length = usize::from(param.private_data_len);
    Ok(object::array(param.private_data.cast::<u8>(), length)?.to_vec())
}

/// The queue pair's part of an offer: that of the identifier's, or what the application says of its own.
fn offer_of(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result<Offer, c_int> {
    let c = object::read(id)?;
    let (number, shared) = match (object::read(c.qp), param) {
        (Ok(qp), _) => (qp.qp_num, !qp.srq.is_null()),
        (Err(_), Some(param)) => (param.qp_num, param.srq != 0),
        (Err(number), None) => return Err(number),
    };
    Ok(Offer {
        queue_pair: QueuePairNumber::new(number & 0xff_ffff),
        psn: Psn::new(random() as u32 & Psn::MASK),
        retry_count: param.map_or(RETRIES, |param| param.retry_count).min(COUNT_MAX),
        rnr_retry: param.map_or(RETRIES, |param| param.rnr_retry_count).min(COUNT_MAX),
        uses_shared_receive_queue: shared,
        private: private_of(param)?,
        ..Offer::default()
    })
}

/// What a peer's offer is to an application: each side's wish is the other's limit.
pub(super) fn param_of(offer: &Offer) -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: offer.initiator_depth,
        initiator_depth: offer.responder_resources,
        flow_control: 1,
        retry_count: offer.retry_count,
        rnr_retry_count: offer.rnr_retry,
        srq: offer.uses_shared_receive_queue.into(),
        qp_num: offer.queue_pair.value(),
        ..no_param()
    }
}

pub(crate) const fn no_param() -> rdma_conn_param {
    rdma_conn_param {
        private_data: std::ptr::null(),
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

pub(crate) extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    call(|| {
        begin(id, object::maybe_read(param))?;
        complete(id)
    })
}

/// Asks the peer that was resolved for a connection, or for its datagram queue pair.
fn begin(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> Result<(), c_int> {
    let shared = &CmId::of(id)?.shared;
    let (adapter, local, peer, options, mut data) = {
        let inner = shared.inner();
        if inner.phase != Phase::RouteResolved {
            return Err(libc::EINVAL);
        }
        let adapter = inner.adapters.first().cloned().ok_or(libc::ENODEV)?;
        let ends = inner.local.zip(inner.peer).ok_or(libc::EINVAL)?;
        (adapter, ends.0, ends.1, inner.options, inner.connect_data.clone())
    };
    data.extend(private_of(param)?);
    let header = CmaHeader { source_port: local.port(), source: local.ip(), target: peer.ip() };
    let mut private = vec![0; CmaHeader::LENGTH];
    header.emit(&mut private);
    private.append(&mut data);
    let (target, service) = (Gid::from_ip(peer.ip()), shared.service(peer.port()));
    let offer = match shared.is_datagram() {
        true => Offer::default(),
        false => {
            let max = reads_max(&adapter);
            let responder_resources = reads_of(param.map(|param| param.responder_resources), max)?;
            let initiator_depth = reads_of(param.map(|param| param.initiator_depth), max)?;
            Offer { responder_resources, initiator_depth, private: private.clone(), ..offer_of(id, param)? }
        }
    };
    let is_unreliable = object::read(object::read(id)?.qp).map_or(shared.queue_pair_type, |qp| qp.qp_type);
    let call = Call {
        target,
        service,
        is_unreliable: is_unreliable == IBV_QPT_UC,
        mtu: adapter.device.mtu,
        ack_timeout: options.ack_timeout.unwrap_or(ACK_TIMEOUT),
        traffic_class: options.traffic_class,
        offer,
    };
    let mut state = adapter.state();
    let State { driver, management, .. } = &mut *state;
    let now = driver.now();
    let manager = management.manager();
    let begun = match shared.is_datagram() {
        true => manager.resolve(now, target, service, &private),
        false => manager.connect(now, &call),
    };
    management.adopt(begun.map_err(of_manager)?, shared);
    shared.inner().phase = Phase::Connecting;
    adapter.after_management(&mut state);
    Ok(())
}

pub(crate) extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    call(|| {
        let shared = CmId::of(id)?.shared.clone();
        if shared.inner().phase != Phase::Requested {
            return Err(libc::EINVAL);
        }
        let param = object::maybe_read(param);
        if shared.is_datagram() {
            return answer(id, &shared, param);
        }
        grant(id, &shared, param)?;
        complete(id)
    })
}

/// Answers a question for the queue pair of a datagram service. No event follows.
fn answer(
    id: *mut rdma_cm_id,
    shared: &Arc<Identifier>,
    param: Option<&rdma_conn_param>,
) -> Result<(), c_int> {
    let (adapter, connection) = shared.connection()?;
    let offer = offer_of(id, param)?;
    let mut state = adapter.state();
    let State { driver, management, .. } = &mut *state;
    let now = driver.now();
    let answered =
        management.manager().answer(now, connection, offer.queue_pair, RDMA_UDP_QKEY, &offer.private);
    answered.map_err(of_manager)?;
    shared.inner().phase = Phase::Accepted;
    adapter.after_management(&mut state);
    Ok(())
}

/// Accepts a connection: brings the identifier's queue pair up, where there is one, and tells the peer.
fn grant(
    id: *mut rdma_cm_id,
    shared: &Arc<Identifier>,
    param: Option<&rdma_conn_param>,
) -> Result<(), c_int> {
    let (adapter, connection) = shared.connection()?;
    let max = reads_max(&adapter);
    let (asked_responder, asked_initiator) = {
        let inner = shared.inner();
        (inner.responder_resources, inner.initiator_depth)
    };
    let granted = |wanted: Option<u8>, asked: u8| match wanted {
        None | Some(RDMA_MAX_RESP_RES) => Ok(asked.min(max)),
        some => reads_of(some, max),
    };
    let mut offer = offer_of(id, param)?;
    offer.responder_resources = granted(param.map(|param| param.responder_resources), asked_responder)?;
    offer.initiator_depth = granted(param.map(|param| param.initiator_depth), asked_initiator)?;
    {
        let mut state = adapter.state();
        let own = state.management.manager().offer_mut(connection).map_err(of_manager)?;
        // The application may have read the first sequence number already, to bring up a queue pair of its own.
        offer.psn = own.psn;
        *own = offer.clone();
    }
    let outcome = bring_up(id).and_then(|()| {
        let mut state = adapter.state();
        let State { driver, management, .. } = &mut *state;
        let now = driver.now();
        management.manager().accept(now, connection, offer).map_err(of_manager)?;
        shared.inner().phase = Phase::Accepted;
        adapter.after_management(&mut state);
        Ok(())
    });
    if outcome.is_err() {
        fail_queue_pair(id);
    }
    outcome
}

/// Brings the identifier's queue pair up, where there is one.
fn bring_up(id: *mut rdma_cm_id) -> Result<(), c_int> {
    let (shared, qp) = (&CmId::of(id)?.shared, object::read(id)?.qp);
    if qp.is_null() {
        return Ok(());
    }
    for to in [NicState::Init, NicState::ReadyToReceive, NicState::ReadyToSend] {
        let (mut attr, mask) = attributes(shared, to)?;
        checked(queue_pair::modify(qp, &raw mut attr, mask))?;
    }
    Ok(())
}

/// The peer accepted: brings the queue pair up and tells the peer. A connection that cannot be used is refused.
pub(super) fn finish(id: *mut rdma_cm_id) -> Result<(), c_int> {
    let shared = CmId::of(id)?.shared.clone();
    let (adapter, connection) = shared.connection()?;
    let outcome = bring_up(id);
    let mut state = adapter.state();
    let State { driver, management, .. } = &mut *state;
    let now = driver.now();
    let manager = management.manager();
    let outcome = match outcome {
        Ok(()) => manager.establish(connection).map_err(of_manager),
        Err(number) => {
            // It may be over already.
            let _ = manager.reject(now, connection, RejectReason::CONSUMER_DEFINED, &[]);
            Err(number)
        }
    };
    adapter.after_management(&mut state);
    drop(state);
    if outcome.is_err() {
        shared.inner().has_failed = true;
        fail_queue_pair(id);
    }
    outcome
}

/// Ends the work of the identifier's queue pair: it is flushed with errors.
pub(super) fn fail_queue_pair(id: *mut rdma_cm_id) {
    let Ok(c) = object::read(id) else { return };
    if !c.qp.is_null() && c.qp_type != IBV_QPT_UD {
        let mut attr: ibv_qp_attr = object::zeroed();
        attr.qp_state = NicState::Error as c_int;
        // It fails where the queue pair is in no state to have work.
        queue_pair::modify(c.qp, &raw mut attr, IBV_QP_STATE);
    }
}

pub(crate) extern "C" fn reject(id: *mut rdma_cm_id, private: *const c_void, length: u8) -> c_int {
    refuse(id, private, length, RejectReason::CONSUMER_DEFINED)
}

/// Refuses because of the vendor's options.
pub(crate) extern "C" fn reject_ece(id: *mut rdma_cm_id, private: *const c_void, length: u8) -> c_int {
    const VENDOR_OPTION_NOT_SUPPORTED: RejectReason = RejectReason(35);
    refuse(id, private, length, VENDOR_OPTION_NOT_SUPPORTED)
}

fn refuse(id: *mut rdma_cm_id, private: *const c_void, length: u8, reason: RejectReason) -> c_int {
    call(|| {
        let shared = &CmId::of(id)?.shared;
        let (adapter, connection) = shared.connection()?;
        let private = object::array(private.cast::<u8>(), length.into())?;
        let mut state = adapter.state();
        let State { driver, management, .. } = &mut *state;
        management.manager().reject(driver.now(), connection, reason, private).map_err(of_manager)?;
        adapter.after_management(&mut state);
        Ok(())
    })
}

/// The application brought a queue pair of its own up, after `RDMA_CM_EVENT_CONNECT_RESPONSE`.
pub(crate) extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    call(|| {
        let shared = &CmId::of(id)?.shared;
        if !object::read(id)?.qp.is_null() || shared.inner().phase != Phase::Connecting {
            return Err(libc::EINVAL);
        }
        tell_established(shared)
    })
}

fn tell_established(shared: &Identifier) -> Result<(), c_int> {
    let (adapter, connection) = shared.connection()?;
    let mut state = adapter.state();
    state.management.manager().establish(connection).map_err(of_manager)?;
    adapter.after_management(&mut state);
    Ok(())
}

/// An asynchronous event of the queue pair that connection management should know of: data came, so the peer is ready.
pub(crate) extern "C" fn notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    call(|| {
        let shared = &CmId::of(id)?.shared;
        let is_passive = shared.inner().phase == Phase::Accepted;
        match event {
            IBV_EVENT_COMM_EST if is_passive && !shared.is_datagram() => tell_established(shared),
            _ => Err(libc::EINVAL),
        }
    })
}

pub(crate) extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    call(|| {
        let shared = &CmId::of(id)?.shared;
        let (adapter, connection) = shared.connection()?;
        if shared.is_datagram() {
            return Err(libc::EINVAL);
        }
        {
            let mut state = adapter.state();
            // What was posted before is sent before the queue pair fails.
            state.send();
        }
        fail_queue_pair(id);
        {
            let mut state = adapter.state();
            let State { driver, management, .. } = &mut *state;
            // Unknown: it is over for so long that nothing is left of it.
            management.manager().disconnect(driver.now(), connection).map_err(|_| libc::EINVAL)?;
            adapter.after_management(&mut state);
        }
        complete(id)
    })
}

/// The way to the peer as an address vector.
fn to_address(path: &Path) -> ibv_ah_attr {
    let mut attr: ibv_ah_attr = object::zeroed();
    (attr.is_global, attr.port_num) = (1, 1);
    attr.grh.dgid.raw = path.target.0;
    attr.grh.flow_label = path.flow_label;
    (attr.grh.hop_limit, attr.grh.traffic_class) = (path.hop_limit, path.traffic_class);
    attr
}

/// The address vector of a connection's peer.
pub(super) fn address_of(identifier: &Identifier, connection: ConnectionId) -> Result<ibv_ah_attr, c_int> {
    let (adapter, traffic_class) = {
        let inner = identifier.inner();
        (inner.adapters.first().cloned().ok_or(libc::EINVAL)?, inner.options.traffic_class)
    };
    let path = adapter.state().management.manager().path(connection).map_err(of_manager)?;
    Ok(to_address(&Path { traffic_class, ..path }))
}

/// Attributes of the NIC as those of C, and their mask.
fn to_c(attributes: &Attributes) -> (ibv_qp_attr, c_int) {
    let (mut c, mut mask): (ibv_qp_attr, c_int) = (object::zeroed(), 0);
    macro_rules! put {
        ($($field:ident: $bit:ident = $value:expr;)*) => {
            $(if let Some(value) = $value {
                c.$field = value;
                mask |= $bit;
            })*
        };
    }
    put! {
        qp_state: IBV_QP_STATE = attributes.state.map(|state| state as c_int);
        pkey_index: IBV_QP_PKEY_INDEX = attributes.partition_index;
        port_num: IBV_QP_PORT = attributes.port;
        qkey: IBV_QP_QKEY = attributes.queue_key;
        qp_access_flags: IBV_QP_ACCESS_FLAGS = attributes.access.map(|access| access.bits().into());
        ah_attr: IBV_QP_AV = attributes.path.as_ref().map(to_address);
        path_mtu: IBV_QP_PATH_MTU = attributes.path_mtu.map(mtu_code);
        dest_qp_num: IBV_QP_DEST_QPN = attributes.destination.map(QueuePairNumber::value);
        rq_psn: IBV_QP_RQ_PSN = attributes.receive_psn.map(Psn::value);
        sq_psn: IBV_QP_SQ_PSN = attributes.send_psn.map(Psn::value);
        max_dest_rd_atomic: IBV_QP_MAX_DEST_RD_ATOMIC = attributes.destination_reads;
        max_rd_atomic: IBV_QP_MAX_QP_RD_ATOMIC = attributes.initiator_reads;
        min_rnr_timer: IBV_QP_MIN_RNR_TIMER = attributes.min_rnr_timer;
        timeout: IBV_QP_TIMEOUT = attributes.timeout;
        retry_cnt: IBV_QP_RETRY_CNT = attributes.retry_count;
        rnr_retry: IBV_QP_RNR_RETRY = attributes.rnr_retry;
    }
    (c, mask)
}

/// What an identifier says about its queue pair on the way to a state.
pub(super) fn attributes(shared: &Identifier, to: NicState) -> Result<(ibv_qp_attr, c_int), c_int> {
    if let (false, Ok((adapter, connection))) = (shared.is_datagram(), shared.connection()) {
        let mut state = adapter.state();
        let found = state.management.manager().attributes(connection, to).map_err(of_manager)?;
        return Ok(to_c(&found));
    }
    let none = Attributes { state: Some(to), ..Attributes::default() };
    let attributes = match to {
        NicState::Init => Attributes {
            partition_index: Some(0),
            port: Some(1),
            queue_key: shared.is_datagram().then_some(RDMA_UDP_QKEY),
            access: (!shared.is_datagram()).then_some(railnet_nic::Access::from_bits(0)),
            ..none
        },
        NicState::ReadyToReceive if shared.is_datagram() => none,
        NicState::ReadyToSend if shared.is_datagram() => Attributes { send_psn: Some(Psn::new(0)), ..none },
        _ => return Err(libc::EINVAL),
    };
    Ok(to_c(&attributes))
}

pub(crate) extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    call(|| {
        let shared = &CmId::of(id)?.shared;
        let (attr, mask) = (object::write(attr)?, object::write(mask)?);
        let all = [NicState::Init, NicState::ReadyToReceive, NicState::ReadyToSend];
        let to = all.into_iter().find(|state| *state as c_int == attr.qp_state).ok_or(libc::EINVAL)?;
        (*attr, *mask) = attributes(shared, to)?;
        Ok(())
    })
}

/// Enhanced connections are a matter of vendors; there is one choice here, to have none.
pub(crate) extern "C" fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    call(|| {
        CmId::of(id)?;
        checked(queue_pair::set_ece(std::ptr::null_mut(), ece))
    })
}

pub(crate) extern "C" fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    call(|| {
        CmId::of(id)?;
        checked(queue_pair::query_ece(std::ptr::null_mut(), ece))
    })
}
