//! Event channels, and what the manager's events mean for an application.

use std::sync::Arc;

use libc::{c_char, c_int};
use railnet_nic::cm::Event;
use railnet_wire::mad::CmaHeader;

use super::connect::{self, REQUEST_PRIVATE_MAX, SIDR_REQUEST_PRIVATE_MAX};
use super::identifier::{CmId, Identifier, open_events};
use super::{call, identifier};
use crate::abi::*;
use crate::channel::{Channel, OfSubject, Subject};
use crate::errors::{guard, null, of_io};
use crate::object;

/// Events that wait for the application.
pub(crate) type CmEvents = Channel<Queued>;

/// An event that the application did not take yet.
pub(crate) struct Queued {
    pub(super) identifier: Arc<Identifier>,
    pub(super) what: What,
}

/// What happened to an identifier.
pub(crate) enum What {
    AddressResolved,
    /// With the number of the error.
    AddressError(c_int),
    RouteResolved,
    /// A peer asked this listener for a connection, which has the identifier.
    Requested(Arc<Identifier>, Event),
    /// An event of its connection.
    Happened(Event),
}

impl OfSubject for Queued {
    fn subject(&self) -> &Arc<Subject> {
        &self.identifier.subject
    }
}

/// An event channel.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) c: rdma_event_channel,
    pub(super) events: Arc<CmEvents>,
}

/// An event that the application took.
#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) c: rdma_cm_event,
    subject: Arc<Subject>,
    /// What `c` points to.
    private: Box<[u8]>,
}

pub(super) fn open_channel() -> Result<*mut rdma_event_channel, c_int> {
    let events = open_events()?;
    let c = rdma_event_channel { fd: events.raw() };
    Ok(object::publish(Box::new(EventChannel { c, events })))
}

pub(super) fn close_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        object::retire::<EventChannel, _>(channel);
    }
}

pub(crate) extern "C" fn create_channel() -> *mut rdma_event_channel {
    guard(std::ptr::null_mut(), || open_channel().unwrap_or_else(null))
}

pub(crate) extern "C" fn destroy_channel(channel: *mut rdma_event_channel) {
    guard((), || close_channel(channel));
}

pub(crate) extern "C" fn get_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    call(|| {
        let out = object::write(event)?;
        *out = next(channel)?;
        Ok(())
    })
}

/// Whether an event waits.
pub(crate) fn is_waiting(channel: *mut rdma_event_channel) -> bool {
    object::of::<EventChannel, _>(channel).is_ok_and(|channel| !channel.events.is_empty())
}

/// The next event of a channel. Bringing queue pairs up happens here, in the application's thread.
pub(crate) fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, c_int> {
    let events = object::of::<EventChannel, _>(channel)?.events.clone();
    loop {
        let Queued { identifier, what } = events.next().map_err(|error| of_io(&error))?;
        let subject = identifier.subject.clone();
        match translate(&identifier, what) {
            Some(told) => return Ok(told.publish(subject)),
            // It is of no interest to the application.
            None => subject.acknowledge(1),
        }
    }
}

/// What an application is told.
struct Told {
    id: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    kind: c_int,
    status: c_int,
    param: rdma_event_param,
    private: Box<[u8]>,
}

impl Told {
    fn new(id: *mut rdma_cm_id, kind: c_int, status: c_int) -> Self {
        Self {
            id,
            listener: std::ptr::null_mut(),
            kind,
            status,
            param: rdma_event_param { ud: no_datagram() },
            private: Box::default(),
        }
    }

    /// With the parameters of a connection.
    fn with(mut self, param: rdma_conn_param, private: &[u8]) -> Self {
        (self.param.conn, self.private) = (param, private.into());
        self
    }

    /// With those of a datagram service.
    fn with_datagram(mut self, param: rdma_ud_param, private: &[u8]) -> Self {
        (self.param.ud, self.private) = (param, private.into());
        self
    }

    fn publish(mut self, subject: Arc<Subject>) -> *mut rdma_cm_event {
        if !self.private.is_empty() {
            // Both kinds of parameters begin with the private data and its length.
            self.param.conn.private_data = self.private.as_ptr().cast();
            self.param.conn.private_data_len = self.private.len() as u8;
        }
        let Self { id, listener, kind, status, param, private } = self;
        let c = rdma_cm_event { id, listen_id: listener, event: kind, status, param };
        object::publish(Box::new(CmEvent { c, subject, private }))
    }
}

fn no_datagram() -> rdma_ud_param {
    rdma_ud_param {
        private_data: std::ptr::null(),
        private_data_len: 0,
        _pad: [0; 7],
        ah_attr: object::zeroed(),
        qp_num: 0,
        qkey: 0,
    }
}

/// An event as the application is told it; `None` where it is not.
fn translate(identifier: &Arc<Identifier>, what: What) -> Option<Told> {
    let id = identifier.inner().c as *mut rdma_cm_id;
    let event = match what {
        What::AddressResolved => return Some(Told::new(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0)),
        What::AddressError(number) => return Some(Told::new(id, RDMA_CM_EVENT_ADDR_ERROR, -number)),
        What::RouteResolved => return Some(Told::new(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0)),
        What::Requested(new, event) => return requested(identifier, id, &new, event),
        What::Happened(event) => event,
    };
    let told = |kind, status| Some(Told::new(id, kind, status));
    match event {
        Event::Replied { offer, .. } => {
            let param = connect::param_of(&offer);
            let has_queue_pair = object::read(id).is_ok_and(|c| !c.qp.is_null());
            let (kind, status) = match has_queue_pair.then(|| connect::finish(id)) {
                None => (RDMA_CM_EVENT_CONNECT_RESPONSE, 0),
                Some(Ok(())) => (RDMA_CM_EVENT_ESTABLISHED, 0),
                Some(Err(number)) => (RDMA_CM_EVENT_CONNECT_ERROR, -number),
            };
            Some(Told::new(id, kind, status).with(param, &offer.private))
        }
        Event::Established(_) => told(RDMA_CM_EVENT_ESTABLISHED, 0),
        Event::Rejected { .. } | Event::Disconnected(_) if identifier.inner().has_failed => None,
        Event::Rejected { reason, private, .. } => {
            connect::fail_queue_pair(id);
            let told = Told::new(id, RDMA_CM_EVENT_REJECTED, c_int::from(reason.0));
            Some(told.with(connect::no_param(), &private))
        }
        Event::Unreachable(_) => told(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        Event::Disconnected(_) => told(RDMA_CM_EVENT_DISCONNECTED, 0),
        Event::TimeWaitOver(_) => told(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        Event::Resolved { status: 0, queue_pair, queue_key, private, connection } => {
            let ah_attr = connect::address_of(identifier, connection).unwrap_or_else(|_| object::zeroed());
            let param =
                rdma_ud_param { ah_attr, qp_num: queue_pair.value(), qkey: queue_key, ..no_datagram() };
            Some(Told::new(id, RDMA_CM_EVENT_ESTABLISHED, 0).with_datagram(param, &private))
        }
        Event::Resolved { status, private, .. } => {
            let told = Told::new(id, RDMA_CM_EVENT_UNREACHABLE, c_int::from(status));
            Some(told.with_datagram(no_datagram(), &private))
        }
        _ => None,
    }
}

/// A request: the application gets to see its identifier.
fn requested(
    listener: &Arc<Identifier>,
    listening: *mut rdma_cm_id,
    new: &Arc<Identifier>,
    event: Event,
) -> Option<Told> {
    let is_synchronous = {
        let mut inner = listener.inner();
        inner.pending = inner.pending.saturating_sub(1);
        inner.is_synchronous
    };
    let c = object::read(listening).ok()?;
    let id = CmId::publish(new, c.channel, c.context);
    let shown = CmId::show_address(id).and_then(|()| CmId::show_route(id));
    let shown = shown.and_then(|()| match is_synchronous {
        true => identifier::migrate_to(id, std::ptr::null_mut()),
        false => Ok(()),
    });
    if shown.is_err() {
        identifier::destroy(id);
        return None;
    }
    let mut told = Told::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    told.listener = listening;
    // The header in front is this library's.
    let of_user =
        |private: &[u8], max| private[CmaHeader::LENGTH..].iter().copied().take(max).collect::<Vec<_>>();
    Some(match event {
        Event::Requested { offer, .. } => {
            told.with(connect::param_of(&offer), &of_user(&offer.private, REQUEST_PRIVATE_MAX))
        }
        Event::Resolving { private, connection, .. } => {
            let ah_attr = connect::address_of(new, connection).unwrap_or_else(|_| object::zeroed());
            let param = rdma_ud_param { ah_attr, ..no_datagram() };
            told.with_datagram(param, &of_user(&private, SIDR_REQUEST_PRIVATE_MAX))
        }
        _ => return None,
    })
}

pub(crate) extern "C" fn ack_event(event: *mut rdma_cm_event) -> c_int {
    call(|| acknowledge(event))
}

pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<(), c_int> {
    let subject = object::of::<CmEvent, _>(event)?.subject.clone();
    object::retire::<CmEvent, _>(event);
    subject.acknowledge(1);
    Ok(())
}

pub(crate) extern "C" fn event_name(event: c_int) -> *const c_char {
    let name = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
