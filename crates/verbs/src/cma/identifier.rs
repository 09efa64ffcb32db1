//! Identifiers (`rdma_cm_id`): what a socket is to TCP.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_void};
use railnet_nic::cm::{ConnectionId, Event};
use railnet_wire::mad::{CmaHeader, ServiceId};

use super::event::{self, CmEvents, EventChannel, Queued, What};
use super::{call, device, management, socket_address};
use crate::abi::*;
use crate::adapter::{Adapter, State};
use crate::channel::{Channel, Subject};
use crate::errors::complain;
use crate::errors::{guard, of_io};
use crate::object;

/// An identifier as the application sees it.
#[repr(C)]
pub(crate) struct CmId {
    pub(crate) c: rdma_cm_id,
    pub(super) shared: Arc<Identifier>,
    /// The path that `route` of the C structure points to.
    path: ibv_sa_path_rec,
    /// Of `rdma_create_ep`: how a listener makes the queue pairs of its requests.
    pub(super) endpoint: Cell<Option<Endpoint>>,
}

/// An identifier: what connection management knows of it. It may exist before the application sees it, in an event that the
/// application did not take yet.
pub(crate) struct Identifier {
    /// Of its events.
    pub(super) subject: Arc<Subject>,
    pub(super) port_space: c_int,
    pub(super) queue_pair_type: c_int,
    inner: Mutex<Inner>,
}

/// How far an identifier is; what comes after a connection was asked for is known to the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// It asked for a connection.
    Connecting,
    /// A peer asked for a connection, which is not accepted yet.
    Requested,
    Accepted,
    /// Being destroyed; nothing else can be done with it.
    Destroyed,
}

pub(super) struct Inner {
    pub(super) phase: Phase,
    pub(super) events: Arc<CmEvents>,
    /// It has a channel of its own, and calls wait for their events.
    pub(super) is_synchronous: bool,
    /// The address of the C structure; 0 while the application does not have it.
    pub(super) c: usize,
    /// Of the address that it is bound to; several for the address that stands for all.
    pub(super) adapters: Vec<Arc<Adapter>>,
    /// Its port is kept from others.
    pub(super) is_reserved: bool,
    pub(super) connection: Option<ConnectionId>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) options: Options,
    /// Requests that listeners announced and the application did not take, and the most of them.
    pub(super) pending: u32,
    pub(super) backlog: u32,
    /// READs and atomics of the connection.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// The queue pair could not be brought up, and the application was told.
    pub(super) has_failed: bool,
    /// Private data of `rdma_create_ep` that goes before that of `rdma_connect`.
    pub(super) connect_data: Vec<u8>,
}

/// How a listening endpoint makes the queue pairs of its requests.
#[derive(Clone, Copy)]
pub(super) struct Endpoint {
    pub(super) domain: *mut ibv_pd,
    pub(super) init: Option<ibv_qp_init_attr>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) reuses_address: bool,
    pub(super) only_family: bool,
    pub(super) ack_timeout: Option<u8>,
}

impl Identifier {
    fn new(events: Arc<CmEvents>, port_space: c_int, queue_pair_type: c_int) -> Self {
        let inner = Inner {
            phase: Phase::Idle,
            events,
            is_synchronous: false,
            c: 0,
            adapters: Vec::new(),
            is_reserved: false,
            connection: None,
            local: None,
            peer: None,
            options: Options::default(),
            pending: 0,
            backlog: 0,
            responder_resources: 0,
            initiator_depth: 0,
            has_failed: false,
            connect_data: Vec::new(),
        };
        Self { subject: Subject::new(0), port_space, queue_pair_type, inner: Mutex::new(inner) }
    }

    /// An identifier for a request of a peer. `None` where the request does not say who connects.
    pub(super) fn for_request(listener: &Self, adapter: &Arc<Adapter>, event: &Event) -> Option<Arc<Self>> {
        let (service, private) = match event {
            Event::Requested { service, offer, .. } => (service, &offer.private),
            Event::Resolving { service, private, .. } => (service, private),
            _ => return None,
        };
        let header = CmaHeader::parse(private).ok()?;
        let (_, port) = service.as_ip()?;
        let (events, options) = {
            let inner = listener.inner();
            (inner.events.clone(), inner.options)
        };
        let new = Self::new(events, listener.port_space, listener.queue_pair_type);
        let mut inner = new.inner();
        inner.phase = Phase::Requested;
        inner.options = Options { reuses_address: false, ..options };
        inner.adapters = vec![adapter.clone()];
        inner.local = Some(SocketAddr::new(adapter.device.address, port));
        inner.peer = Some(SocketAddr::new(header.source, header.source_port));
        if let Event::Requested { offer, .. } = event {
            // Each side's wish is the other's limit.
            inner.responder_resources = offer.initiator_depth;
            inner.initiator_depth = offer.responder_resources;
        }
        drop(inner);
        Some(Arc::new(new))
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.queue_pair_type == IBV_QPT_UD
    }

    /// The service behind a port of its port space.
    pub(super) fn service(&self, port: u16) -> ServiceId {
        ServiceId::ip(self.port_space as u8, port)
    }

    /// Tells the application.
    pub(super) fn push(self: &Arc<Self>, what: What) {
        let mut inner = self.inner();
        if matches!(what, What::Requested(..)) {
            inner.pending += 1;
        }
        inner.events.push(Queued { identifier: self.clone(), what });
    }

    /// Whether another request may wait for the application.
    pub(super) fn has_room(&self) -> bool {
        let inner = self.inner();
        inner.pending < inner.backlog
    }

    /// The adapter and the connection that a call is about.
    pub(super) fn connection(&self) -> Result<(Arc<Adapter>, ConnectionId), c_int> {
        let inner = self.inner();
        let adapter = inner.adapters.first().cloned();
        adapter.zip(inner.connection).ok_or(libc::EINVAL)
    }

    /// Gives back what it has in connection management: its port, its connection, and what it was not told yet.
    fn end(self: &Arc<Self>) {
        let (adapters, connection, port, is_listening, events) = {
            let mut inner = self.inner();
            let is_listening = inner.phase == Phase::Listening;
            inner.phase = Phase::Destroyed;
            let port = inner.local.map_or(0, |local| local.port());
            let holds_port = is_listening || inner.is_reserved;
            inner.is_reserved = false;
            let adapters = std::mem::take(&mut inner.adapters);
            (
                adapters,
                inner.connection.take(),
                holds_port.then_some(port),
                is_listening,
                inner.events.clone(),
            )
        };
        for adapter in &adapters {
            let mut state = adapter.state();
            let State { driver, management, .. } = &mut *state;
            if let Some(port) = port {
                management.unlisten(driver, self.service(port), is_listening);
            }
            if let Some(connection) = connection {
                management.release(driver, connection);
            }
            adapter.after_management(&mut state);
        }
        for queued in events.withdraw(|queued| Arc::ptr_eq(&queued.identifier, self)) {
            if let What::Requested(new, _) = queued.what {
                new.end();
            }
        }
    }
}

impl CmId {
    /// The identifier that the application means.
    pub(super) fn of<'a>(id: *const rdma_cm_id) -> Result<&'a Self, c_int> {
        object::of(id)
    }

    /// Lets the application have an identifier.
    pub(super) fn publish(
        shared: &Arc<Identifier>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
    ) -> *mut rdma_cm_id {
        let mut c: rdma_cm_id = object::zeroed();
        (c.channel, c.context) = (channel, context);
        (c.ps, c.qp_type) = (shared.port_space, shared.queue_pair_type);
        let id: *mut rdma_cm_id = object::publish(Box::new(Self {
            c,
            shared: shared.clone(),
            path: object::zeroed(),
            endpoint: Cell::new(None),
        }));
        shared.inner().c = id as usize;
        id
    }

    /// Shows the application what the identifier is bound to.
    pub(super) fn show_address(id: *mut rdma_cm_id) -> Result<(), c_int> {
        let own = Self::of(id)?;
        let (local, peer) = {
            let inner = own.shared.inner();
            (inner.local, inner.peer)
        };
        let opened = local.map(|local| device::bound_to(local.ip()));
        let c = object::write(id)?;
        if let Some(opened) = opened.transpose()?.flatten() {
            (c.verbs, c.port_num) = (opened.context(), 1);
            if c.pd.is_null() {
                c.pd = opened.domain();
            }
        }
        let gid = |address: SocketAddr| ibv_gid { raw: railnet_wire::Gid::from_ip(address.ip()).0 };
        let address = &mut c.route.addr;
        if let Some(local) = local {
            (address.src_storage, address.ibaddr.sgid) = (socket_address::to_c(local), gid(local));
        }
        if let Some(peer) = peer {
            (address.dst_storage, address.ibaddr.dgid) = (socket_address::to_c(peer), gid(peer));
        }
        address.ibaddr.pkey = DEFAULT_PARTITION.to_be();
        Ok(())
    }

    /// Shows the application the path to the peer.
    pub(super) fn show_route(id: *mut rdma_cm_id) -> Result<(), c_int> {
        const EXACTLY: u8 = 2;
        let mtu = {
            let inner = Self::of(id)?.shared.inner();
            inner.adapters.first().map_or(0, |adapter| crate::queue_pair::mtu_code(adapter.device.mtu))
        };
        let path: *mut ibv_sa_path_rec = object::write(id.cast::<Self>()).map(|own| &raw mut own.path)?;
        let c = object::write(id)?;
        let mut record: ibv_sa_path_rec = object::zeroed();
        (record.sgid, record.dgid) = (c.route.addr.ibaddr.sgid, c.route.addr.ibaddr.dgid);
        (record.reversible, record.numb_path, record.hop_limit) = (1, 1, 64);
        record.pkey = DEFAULT_PARTITION.to_be();
        (record.mtu_selector, record.mtu) = (EXACTLY, mtu as u8);
        *object::write(path)? = record;
        (c.route.path_rec, c.route.num_paths) = (path, 1);
        Ok(())
    }
}

const DEFAULT_PARTITION: u16 = 0xffff;

/// The kind of queue pair that a port space has.
fn type_of(port_space: c_int) -> Result<c_int, c_int> {
    match port_space {
        RDMA_PS_TCP => Ok(IBV_QPT_RC),
        RDMA_PS_UDP | RDMA_PS_IPOIB => Ok(IBV_QPT_UD),
        // Service ids without addresses of IP: there is nothing here that would route them.
        RDMA_PS_IB => Err(libc::EOPNOTSUPP),
        _ => Err(libc::EINVAL),
    }
}

/// Makes an identifier; without a channel one whose calls wait.
pub(super) fn create_of_type(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: c_int,
    queue_pair_type: Option<c_int>,
) -> Result<*mut rdma_cm_id, c_int> {
    let usual = type_of(port_space)?;
    let queue_pair_type = queue_pair_type.unwrap_or(usual);
    if (queue_pair_type == IBV_QPT_UD) != (usual == IBV_QPT_UD) {
        return Err(libc::EINVAL);
    }
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { event::open_channel()? } else { channel };
    let events = object::of::<EventChannel, _>(channel)?.events.clone();
    let shared = Arc::new(Identifier::new(events, port_space, queue_pair_type));
    shared.inner().is_synchronous = is_synchronous;
    Ok(CmId::publish(&shared, channel, context))
}

pub(crate) extern "C" fn create(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    call(|| {
        let out = object::write(id)?;
        *out = create_of_type(channel, context, port_space, None)?;
        Ok(())
    })
}

/// Acknowledges the event that an identifier whose calls wait had last.
pub(super) fn acknowledge_last(id: *mut rdma_cm_id) -> Result<(), c_int> {
    let c = object::write(id)?;
    let last = std::mem::replace(&mut c.event, std::ptr::null_mut());
    if last.is_null() { Ok(()) } else { event::acknowledge(last) }
}

pub(crate) extern "C" fn destroy(id: *mut rdma_cm_id) -> c_int {
    call(|| {
        let shared = CmId::of(id)?.shared.clone();
        acknowledge_last(id)?;
        shared.end();
        if !shared.subject.wait_acknowledged() {
            complain("rdma_destroy_id: events were taken and not acknowledged (rdma_ack_cm_event)");
            return Err(libc::EBUSY);
        }
        if shared.inner().is_synchronous {
            event::close_channel(object::read(id)?.channel);
        }
        shared.inner().c = 0;
        object::retire::<CmId, _>(id);
        Ok(())
    })
}

pub(crate) extern "C" fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    call(|| migrate_to(id, channel))
}

/// Events of an identifier go to another channel from now on, also those that were not taken yet; without a channel to one of
/// its own.
pub(super) fn migrate_to(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), c_int> {
    let shared = CmId::of(id)?.shared.clone();
    let was_synchronous = shared.inner().is_synchronous;
    if was_synchronous && channel.is_null() {
        return Err(libc::EINVAL);
    }
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { event::open_channel()? } else { channel };
    let events = object::of::<EventChannel, _>(channel)?.events.clone();
    if was_synchronous {
        acknowledge_last(id)?;
    }
    {
        let mut inner = shared.inner();
        let old = std::mem::replace(&mut inner.events, events);
        if !Arc::ptr_eq(&old, &inner.events) {
            for queued in old.withdraw(|queued| Arc::ptr_eq(&queued.identifier, &shared)) {
                if let What::Requested(new, _) = &queued.what {
                    new.inner().events = inner.events.clone();
                }
                inner.events.push(queued);
            }
        }
        inner.is_synchronous = is_synchronous;
    }
    let c = object::write(id)?;
    let old = std::mem::replace(&mut c.channel, channel);
    if !shared.subject.wait_acknowledged() {
        complain("rdma_migrate_id: events were taken and not acknowledged (rdma_ack_cm_event)");
    }
    if was_synchronous {
        event::close_channel(old);
    }
    Ok(())
}

pub(crate) extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    call(|| {
        let shared = &CmId::of(id)?.shared;
        let of_size = |size: usize| if length == size { Ok(()) } else { Err(libc::EINVAL) };
        let byte = || of_size(1).and_then(|()| object::load(value.cast::<u8>()));
        let flag = || of_size(size_of::<c_int>()).and_then(|()| object::load(value.cast::<c_int>()));
        let mut inner = shared.inner();
        let is_new = matches!(inner.phase, Phase::Idle);
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => inner.options.traffic_class = byte()?,
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                let reuses = flag()? != 0;
                if !is_new && reuses != inner.options.reuses_address {
                    return Err(libc::EINVAL);
                }
                inner.options.reuses_address = reuses;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                let only = flag()? != 0;
                if !is_new {
                    return Err(libc::EINVAL);
                }
                inner.options.only_family = only;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                const CODE_MAX: u8 = 31;
                let code = byte()?;
                if code > CODE_MAX || shared.is_datagram() {
                    return Err(libc::EINVAL);
                }
                inner.options.ack_timeout = Some(code);
            }
            // Paths of subnet managers: routes are IP's here.
            (RDMA_OPTION_IB, _) => return Err(libc::EOPNOTSUPP),
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    })
}

fn port(id: *mut rdma_cm_id, address: impl FnOnce(&Inner) -> Option<SocketAddr>) -> u16 {
    guard(0, || {
        let port = CmId::of(id).ok().and_then(|own| address(&own.shared.inner()));
        port.map_or(0, |address| address.port()).to_be()
    })
}

/// In network byte order.
pub(crate) extern "C" fn source_port(id: *mut rdma_cm_id) -> u16 {
    port(id, |inner| inner.local)
}

/// In network byte order.
pub(crate) extern "C" fn target_port(id: *mut rdma_cm_id) -> u16 {
    port(id, |inner| inner.peer)
}

/// Opens a queue of events.
pub(super) fn open_events() -> Result<Arc<CmEvents>, c_int> {
    Ok(Arc::new(Channel::new().map_err(|error| of_io(&error))?))
}

/// Adapters of an address; of all devices for the address that stands for all.
pub(super) fn adapters_of(ip: IpAddr, only_family: bool) -> Result<Vec<Arc<Adapter>>, c_int> {
    let devices = match ip.is_unspecified() {
        true => device::all(|one| one.is_ipv4() == ip.is_ipv4() || ip.is_ipv6() && !only_family)?,
        false => device::bound_to(ip)?.into_iter().collect(),
    };
    devices.iter().map(device::Opened::adapter).collect()
}

/// Keeps a port of these adapters from others.
pub(super) fn reserve(adapters: &[Arc<Adapter>], service: ServiceId) -> Result<(), c_int> {
    for (index, adapter) in adapters.iter().enumerate() {
        let outcome = adapter.state().driver.reserve(service);
        if let Err(error) = outcome {
            for reserved in &adapters[..index] {
                reserved.state().driver.unlisten(service);
            }
            return Err(management::of_claim(&error));
        }
    }
    Ok(())
}
