//! The manager of an address.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use railnet_core::{QueuePairNumber, Span, Time};
use railnet_wire::Gid;
use railnet_wire::mad::{
    ConnectionMad, DisconnectRequest, Message, MessageReceived, Reject, RejectReason, Reply, Request,
    ServiceId, SidrReply, SidrRequest,
};

use super::connection::{Call, Connection, Offer, Phase};
use super::messages::{self, ABOUT_NONE, ABOUT_REQUEST, REQUESTS_MAX};
use super::outbox::{Datagram, Outbox, Retry};
use super::{CmError, ConnectionId, Event};
use crate::{Attributes, Mtu, Path, State, ack_timeout};

/// How often a DREQ is sent: a peer that is gone keeps nobody long.
const DISCONNECTS_MAX: u32 = 5;

/// How long a connection that is over is remembered: packets and messages of it may still be on their way.
const TIME_WAIT: Span = Span::from_secs(2);

/// How long an answer is kept for a peer that asks again: longer than peers wait before they do (Linux 4.3 s).
const ANSWER_WAIT: Span = Span::from_secs(10);

/// How long requests for a service that was given up wait for somebody to listen on it anew, and how many of them: a server that
/// closes one listener and opens the next should not refuse the peers that it told to come (perftest measures its clock between
/// the two). Linux asks again only after 4.3 s.
const RELISTEN_WAIT: Span = Span::from_secs(4);
const WAITING_MAX: usize = 256;

/// Status of a SIDR_REP.
const SIDR_UNSUPPORTED: u8 = 1;
const SIDR_REJECTED: u8 = 2;

/// The communication manager of one address.
#[derive(Debug)]
pub struct Manager {
    gid: Gid,
    guid: u64,
    ids: Range<u32>,
    next_id: u32,
    transactions: u64,
    connections: BTreeMap<u32, Connection>,
    /// Passive ones, by the peer's address, its communication id, and whether it is a datagram's question.
    by_peer: BTreeMap<(Gid, u32, bool), u32>,
    services: BTreeSet<u64>,
    /// Services that were given up, and until when requests for them wait.
    given_up: BTreeMap<u64, Time>,
    /// Those requests: the service, the peer, and what came.
    waiting: Vec<(u64, Gid, Vec<u8>)>,
    outbox: Outbox,
    events: VecDeque<Event>,
}

impl Manager {
    /// A manager that gives its connections ids of a range, from a random one on: ids of a process that was here before must
    /// not mean new connections.
    pub fn new(gid: Gid, guid: u64, ids: Range<u32>, random: u64) -> Self {
        assert!(!ids.is_empty(), "a manager needs communication ids");
        let next_id = ids.start + (random % u64::from(ids.end - ids.start)) as u32;
        Self {
            gid,
            guid,
            ids,
            next_id,
            transactions: random,
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            services: BTreeSet::new(),
            given_up: BTreeMap::new(),
            waiting: Vec::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
        }
    }

    /// Takes requests for a service.
    pub fn listen(&mut self, now: Time, service: ServiceId) -> Result<(), CmError> {
        if !self.services.insert(service.0) {
            return Err(CmError::InUse);
        }
        self.given_up.remove(&service.0);
        self.take_waiting(now, service.0);
        Ok(())
    }

    /// Refuses them from now on; at first they wait a little for a new listener.
    pub fn unlisten(&mut self, now: Time, service: ServiceId) {
        if !self.services.remove(&service.0) {
            return;
        }
        // A server may turn from connections to datagrams on the same port.
        for service in service.same_port() {
            if !self.services.contains(&service.0) {
                self.given_up.insert(service.0, now + RELISTEN_WAIT);
            }
        }
    }

    /// Takes the requests for a service that waited.
    fn take_waiting(&mut self, now: Time, service: u64) {
        for (waits_for, from, bytes) in std::mem::take(&mut self.waiting) {
            match waits_for == service {
                true => self.receive(now, from, &bytes),
                false => self.waiting.push((waits_for, from, bytes)),
            }
        }
    }

    /// The communication id of this side that a datagram names, where it is about a connection.
    pub fn addressed_id(bytes: &[u8]) -> Option<ConnectionId> {
        let id = match ConnectionMad::parse(bytes).ok()?.message {
            Message::Reply(message) => message.remote_id,
            Message::ReadyToUse(message) => message.remote_id,
            Message::Reject(message) => message.remote_id,
            Message::MessageReceived(message) => message.remote_id,
            Message::DisconnectRequest(message) => message.remote_id,
            Message::DisconnectReply(message) => message.remote_id,
            Message::SidrReply(message) => message.request_id,
            _ => return None,
        };
        Some(ConnectionId(id))
    }

    /// Lets a request wait for a listener, where its service was given up just now.
    fn has_to_wait(&mut self, from: Gid, bytes: &[u8]) -> bool {
        // Services are given up seldom, and not forgotten before their time: the common case costs nothing.
        let asked = if self.given_up.is_empty() { None } else { Self::asked_service(bytes) };
        let Some(service) = asked.filter(|service| self.given_up.contains_key(&service.0)) else {
            return false;
        };
        let is_known = self.waiting.iter().any(|(_, peer, known)| *peer == from && known == bytes);
        if !is_known && self.waiting.len() < WAITING_MAX {
            self.waiting.push((service.0, from, bytes.to_vec()));
        }
        true
    }

    /// Whether a service is listened on.
    pub fn listens(&self, service: ServiceId) -> bool {
        self.services.contains(&service.0)
    }

    /// The service that a datagram asks for, where it is a request.
    pub fn asked_service(bytes: &[u8]) -> Option<ServiceId> {
        match ConnectionMad::parse(bytes).ok()?.message {
            Message::Request(request) => Some(request.service),
            Message::SidrRequest(request) => Some(request.service),
            _ => None,
        }
    }

    /// Asks a peer for a connection.
    pub fn connect(&mut self, now: Time, call: &Call) -> Result<ConnectionId, CmError> {
        let id = self.claim_id()?;
        let connection = Connection::new(call, Phase::Requesting, self.transaction());
        let request = connection.request(id, self.gid, self.guid)?;
        self.connections.insert(id.0, connection);
        self.begin(now, id, request, REQUESTS_MAX.into());
        Ok(id)
    }

    /// Asks a peer for the queue pair of a datagram service.
    pub fn resolve(
        &mut self,
        now: Time,
        target: Gid,
        service: ServiceId,
        private: &[u8],
    ) -> Result<ConnectionId, CmError> {
        let id = self.claim_id()?;
        let offer = Offer { private: private.to_vec(), ..Offer::default() };
        let call = Call { offer, ..datagram_call(target, service) };
        let connection = Connection::new(&call, Phase::Resolving, self.transaction());
        let request = connection.sidr_request(id)?;
        self.connections.insert(id.0, connection);
        self.begin(now, id, request, REQUESTS_MAX.into());
        Ok(id)
    }

    /// Accepts a connection that was requested. The queue pair should be ready to receive.
    pub fn accept(&mut self, now: Time, id: ConnectionId, offer: Offer) -> Result<(), CmError> {
        let guid = self.guid;
        let connection = self.in_phase(id, Phase::Requested)?;
        connection.own = offer;
        let reply = connection.reply(id, guid)?;
        connection.phase = Phase::Replied;
        self.begin(now, id, reply, REQUESTS_MAX.into());
        Ok(())
    }

    /// Refuses a connection that was requested, or one that the peer accepted.
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnectionId,
        reason: RejectReason,
        private: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id.0).ok_or(CmError::Unknown)?;
        match connection.phase {
            Phase::Requested | Phase::Answered => {
                let message = connection.reject(id, reason, private)?;
                self.answer_with(id, message);
            }
            Phase::Asked => {
                let message = connection.sidr_reply(SIDR_REJECTED, QueuePairNumber::new(0), 0, private)?;
                self.answer_with(id, message);
            }
            _ => return Err(CmError::State),
        }
        self.end(now, id);
        Ok(())
    }

    /// Tells the peer that this side is ready, once its REP came and the queue pair is up. On the passive side: data came,
    /// so the peer must be ready, whatever became of its message.
    pub fn establish(&mut self, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id.0).ok_or(CmError::Unknown)?;
        match connection.phase {
            Phase::Answered => {
                connection.phase = Phase::Established;
                let message = connection.ready_to_use(id);
                self.answer_with(id, message);
                Ok(())
            }
            Phase::Replied => {
                connection.phase = Phase::Established;
                self.stop(id);
                self.events.push_back(Event::Established(id));
                Ok(())
            }
            Phase::Established => Ok(()),
            _ => Err(CmError::State),
        }
    }

    /// Ends a connection.
    pub fn disconnect(&mut self, now: Time, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id.0).ok_or(CmError::Unknown)?;
        match connection.phase {
            Phase::Established | Phase::Replied | Phase::Answered => {
                connection.phase = Phase::Disconnecting;
                let request = connection.disconnect_request(id);
                self.stop(id);
                self.begin(now, id, request, DISCONNECTS_MAX);
                Ok(())
            }
            Phase::Disconnecting | Phase::Over(_) => Ok(()),
            _ => Err(CmError::State),
        }
    }

    /// Answers a question for a datagram's queue pair.
    pub fn answer(
        &mut self,
        now: Time,
        id: ConnectionId,
        queue_pair: QueuePairNumber,
        queue_key: u32,
        private: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.in_phase(id, Phase::Asked)?;
        let message = connection.sidr_reply(0, queue_pair, queue_key, private)?;
        self.answer_with(id, message);
        self.end(now, id);
        Ok(())
    }

    /// The application is done with a connection: it is ended as far as it is not, and no event tells of it any more.
    pub fn forget(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        connection.is_forgotten = true;
        match connection.phase {
            Phase::Requested | Phase::Answered | Phase::Asked => {
                let _ = self.reject(now, id, RejectReason::CONSUMER_DEFINED, &[]);
            }
            Phase::Requesting => {
                if let Ok(message) = connection.reject(id, RejectReason::TIMEOUT, &[]) {
                    self.answer_with(id, message);
                }
                self.end(now, id);
            }
            Phase::Replied | Phase::Established => {
                let _ = self.disconnect(now, id);
            }
            Phase::Resolving => self.end(now, id),
            Phase::Disconnecting | Phase::Over(_) => {}
        }
        self.events.retain(|event| event.connection() != id);
    }

    /// The connections that are up, each with its peer and the peer's queue pair.
    pub fn established(&self) -> impl Iterator<Item = (ConnectionId, Gid, QueuePairNumber)> + '_ {
        let is_up = |connection: &Connection| connection.phase == Phase::Established;
        let up = self.connections.iter().filter(move |(_, connection)| is_up(connection));
        up.map(|(id, connection)| (ConnectionId(*id), connection.remote, connection.peer.queue_pair))
    }

    /// The peer is gone without a word: its connection is over as if it had said so.
    pub fn lost(&mut self, now: Time, id: ConnectionId) {
        if self.connections.get(&id.0).is_some_and(|connection| connection.phase == Phase::Established) {
            self.finish(now, id, Event::Disconnected(id));
        }
    }

    /// What a connection says about its queue pair on the way to a state.
    pub fn attributes(&self, id: ConnectionId, to: State) -> Result<Attributes, CmError> {
        let connection = self.connections.get(&id.0).ok_or(CmError::Unknown)?;
        connection.attributes(to).ok_or(CmError::State)
    }

    /// The way to the peer of a connection.
    pub fn path(&self, id: ConnectionId) -> Result<Path, CmError> {
        self.connections.get(&id.0).map(Connection::path).ok_or(CmError::Unknown)
    }

    /// This side's part of a connection, for the application to change before it brings the queue pair up.
    pub fn offer_mut(&mut self, id: ConnectionId) -> Result<&mut Offer, CmError> {
        self.connections.get_mut(&id.0).map(|connection| &mut connection.own).ok_or(CmError::Unknown)
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.outbox.pop()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Manager::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.outbox.next_timeout().into_iter().chain(self.given_up.values().copied()).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((service, _)) = self.given_up.iter().find(|(_, until)| **until <= now) {
            let service = *service;
            self.given_up.remove(&service);
            self.take_waiting(now, service);
        }
        while let Some(id) = self.outbox.pop_due(now).map(ConnectionId) {
            let Some(connection) = self.connections.get_mut(&id.0) else { continue };
            if let Phase::Over(_) = connection.phase {
                let forgotten = connection.is_forgotten;
                self.remove(id);
                if !forgotten {
                    self.events.push_back(Event::TimeWaitOver(id));
                }
                continue;
            }
            let Some(retry) = connection.retry.take() else { continue };
            let whom = (id.0, connection.remote, connection.transaction);
            connection.retry = self.outbox.again(now, whom, retry);
            if connection.retry.is_none() {
                let event = match connection.phase {
                    Phase::Disconnecting => Event::Disconnected(id),
                    _ => Event::Unreachable(id),
                };
                self.finish(now, id, event);
            }
        }
    }

    /// Takes a datagram that came to QP1 from an address. What cannot be read is ignored, as the specification asks.
    pub fn receive(&mut self, now: Time, from: Gid, bytes: &[u8]) {
        if self.has_to_wait(from, bytes) {
            return;
        }
        let Ok(ConnectionMad { transaction, message }) = ConnectionMad::parse(bytes) else { return };
        match message {
            Message::Request(request) => self.on_request(from, transaction, &request),
            Message::Reply(reply) => self.on_reply(from, transaction, &reply),
            Message::ReadyToUse(ready) => {
                let id = ConnectionId(ready.remote_id);
                if self.of_peer(from, ready.remote_id, ready.local_id).is_some_and(is_replied) {
                    let _ = self.establish(id);
                }
            }
            Message::Reject(reject) => self.on_reject(now, from, &reject),
            Message::MessageReceived(more) => self.on_more_time(now, from, &more),
            Message::DisconnectRequest(request) => self.on_disconnect(now, from, transaction, &request),
            Message::DisconnectReply(reply) => {
                let connection = self.of_peer(from, reply.remote_id, reply.local_id);
                if connection.is_some_and(|connection| connection.phase == Phase::Disconnecting) {
                    let id = ConnectionId(reply.remote_id);
                    self.finish(now, id, Event::Disconnected(id));
                }
            }
            Message::SidrRequest(request) => self.on_sidr_request(from, transaction, &request),
            Message::SidrReply(reply) => self.on_sidr_reply(now, from, reply),
            _ => {}
        }
    }

    fn on_request(&mut self, from: Gid, transaction: u64, request: &Request) {
        if let Some(id) = self.by_peer.get(&(from, request.local_id, false)).copied().map(ConnectionId) {
            let connection = &self.connections[&id.0];
            let again = match (connection.phase, &connection.retry, &connection.answer) {
                (Phase::Requested, ..) => Some(connection.more_time(id)),
                (Phase::Replied, Some(retry), _) => Some(retry.message().clone()),
                (Phase::Over(_), _, answer) => answer.clone(),
                _ => None,
            };
            if let Some(message) = again {
                self.outbox.push(from, transaction, &message);
            }
            return;
        }
        let refuse = |outbox: &mut Outbox, reason| {
            let ids = (0, request.local_id);
            let message = messages::reject(ids, ABOUT_REQUEST, reason, &[]).expect("it fits: it is empty");
            outbox.push(from, transaction, &message);
        };
        if !self.services.contains(&request.service.0) {
            return refuse(&mut self.outbox, RejectReason::INVALID_SERVICE_ID);
        }
        let (Some(mtu), Ok(id)) = (messages::mtu_of(request.mtu), self.claim_id()) else {
            return refuse(&mut self.outbox, RejectReason::NO_RESOURCES);
        };
        let call = Call {
            target: from,
            service: request.service,
            is_unreliable: request.transport == 1,
            mtu,
            ack_timeout: request.primary.ack_timeout,
            traffic_class: request.primary.traffic_class,
            offer: Offer::default(),
        };
        let mut connection = Connection::new(&call, Phase::Requested, transaction);
        connection.remote_id = request.local_id;
        connection.peer = Offer::of_request(request);
        let offer = connection.peer.clone();
        self.connections.insert(id.0, connection);
        self.by_peer.insert((from, request.local_id, false), id.0);
        self.events.push_back(Event::Requested { connection: id, service: request.service, from, offer });
    }

    fn on_reply(&mut self, from: Gid, transaction: u64, reply: &Reply) {
        let id = ConnectionId(reply.remote_id);
        let Some(connection) = self.connections.get_mut(&id.0).filter(|one| one.remote == from) else {
            let ids = (reply.remote_id, reply.local_id);
            let message =
                messages::reject(ids, messages::ABOUT_REPLY, RejectReason::INVALID_COMMUNICATION_ID, &[]);
            self.outbox.push(from, transaction, &message.expect("it fits: it is empty"));
            return;
        };
        if connection.phase == Phase::Requesting {
            connection.phase = Phase::Answered;
            connection.remote_id = reply.local_id;
            connection.peer = Offer::of_reply(reply);
            let offer = connection.peer.clone();
            self.stop(id);
            self.events.push_back(Event::Replied { connection: id, offer });
        } else if connection.remote_id == reply.local_id
            && let Some(answer) = connection.answer.clone()
        {
            self.outbox.push(from, transaction, &answer);
        }
    }

    fn on_reject(&mut self, now: Time, from: Gid, reject: &Reject) {
        let about_us = self.connections.get(&reject.remote_id).filter(|one| one.remote == from);
        // A peer that refused a request may have named no id of its own.
        let Some(connection) = about_us.filter(|one| {
            one.phase == Phase::Requesting || reject.local_id == one.remote_id || reject.local_id == 0
        }) else {
            return;
        };
        if matches!(
            connection.phase,
            Phase::Requesting | Phase::Replied | Phase::Answered | Phase::Established
        ) && reject.about <= ABOUT_NONE
        {
            let id = ConnectionId(reject.remote_id);
            let private = reject.private.to_vec();
            self.finish(now, id, Event::Rejected { connection: id, reason: reject.reason, private });
        }
    }

    fn on_more_time(&mut self, now: Time, from: Gid, more: &MessageReceived) {
        let id = more.remote_id;
        let Some(connection) = self.connections.get_mut(&id).filter(|one| one.remote == from) else { return };
        if let (Some(retry), Some(wait)) = (&mut connection.retry, ack_timeout(more.service_timeout)) {
            self.outbox.put_off(id, retry, now + wait);
        }
    }

    fn on_disconnect(&mut self, now: Time, from: Gid, transaction: u64, request: &DisconnectRequest) {
        // Answered whether the connection is known or not: the peer wants to be rid of it.
        self.outbox.push(from, transaction, &messages::disconnect_reply(request));
        let connection = self.of_peer(from, request.remote_id, request.local_id);
        let is_up = |connection: &Connection| {
            matches!(
                connection.phase,
                Phase::Established | Phase::Replied | Phase::Answered | Phase::Disconnecting
            )
        };
        if connection.is_some_and(is_up) {
            let id = ConnectionId(request.remote_id);
            self.finish(now, id, Event::Disconnected(id));
        }
    }

    fn on_sidr_request(&mut self, from: Gid, transaction: u64, request: &SidrRequest) {
        if let Some(id) = self.by_peer.get(&(from, request.request_id, true)) {
            if let Some(answer) = self.connections[id].answer.clone() {
                self.outbox.push(from, transaction, &answer);
            }
            return;
        }
        let mut connection =
            Connection::new(&datagram_call(from, request.service), Phase::Asked, transaction);
        connection.remote_id = request.request_id;
        let known = self.services.contains(&request.service.0);
        let Some(id) = known.then(|| self.claim_id().ok()).flatten() else {
            let none = QueuePairNumber::new(0);
            let message =
                connection.sidr_reply(SIDR_UNSUPPORTED, none, 0, &[]).expect("it fits: it is empty");
            self.outbox.push(from, transaction, &message);
            return;
        };
        self.connections.insert(id.0, connection);
        self.by_peer.insert((from, request.request_id, true), id.0);
        let private = request.private.to_vec();
        self.events.push_back(Event::Resolving { connection: id, service: request.service, from, private });
    }

    fn on_sidr_reply(&mut self, now: Time, from: Gid, reply: SidrReply) {
        let asked = self.connections.get(&reply.request_id).filter(|one| one.remote == from);
        if asked.is_some_and(|one| one.phase == Phase::Resolving) {
            let id = ConnectionId(reply.request_id);
            let SidrReply { status, queue_pair, queue_key, private, .. } = reply;
            let private = private.to_vec();
            self.finish(now, id, Event::Resolved { connection: id, status, queue_pair, queue_key, private });
        }
    }

    /// The connection with these ids of both sides.
    fn of_peer(&self, from: Gid, id: u32, remote_id: u32) -> Option<&Connection> {
        self.connections.get(&id).filter(|one| one.remote == from && one.remote_id == remote_id)
    }

    fn in_phase(&mut self, id: ConnectionId, phase: Phase) -> Result<&mut Connection, CmError> {
        let connection = self.connections.get_mut(&id.0).ok_or(CmError::Unknown)?;
        if connection.phase == phase { Ok(connection) } else { Err(CmError::State) }
    }

    /// Sends a message until it is answered.
    fn begin(&mut self, now: Time, id: ConnectionId, message: Message, sent_max: u32) {
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        let whom = (id.0, connection.remote, connection.transaction);
        connection.retry = Some(self.outbox.begin(now, whom, message, sent_max));
    }

    fn stop(&mut self, id: ConnectionId) {
        let retry: Option<Retry> = self.connections.get_mut(&id.0).and_then(|one| one.retry.take());
        if let Some(retry) = retry {
            self.outbox.stop(id.0, &retry);
        }
    }

    /// Sends a message once, and again whenever the message that it answers comes again.
    fn answer_with(&mut self, id: ConnectionId, message: Message) {
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        self.outbox.push(connection.remote, connection.transaction, &message);
        connection.answer = Some(message);
    }

    /// A connection is over, and the application learns it.
    fn finish(&mut self, now: Time, id: ConnectionId, event: Event) {
        let forgotten = self.connections.get(&id.0).is_none_or(|one| one.is_forgotten);
        self.end(now, id);
        if !forgotten {
            self.events.push_back(event);
        }
    }

    fn end(&mut self, now: Time, id: ConnectionId) {
        self.stop(id);
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        let has_answer = !connection.is_active && connection.answer.is_some();
        let until = now + if has_answer { ANSWER_WAIT } else { TIME_WAIT };
        connection.phase = Phase::Over(until);
        self.outbox.set_timer(until, id.0);
    }

    fn remove(&mut self, id: ConnectionId) {
        self.stop(id);
        let Some(connection) = self.connections.remove(&id.0) else { return };
        if let Phase::Over(until) = connection.phase {
            self.outbox.clear_timer(until, id.0);
        }
        for of_datagram in [false, true] {
            let key = (connection.remote, connection.remote_id, of_datagram);
            if self.by_peer.get(&key) == Some(&id.0) {
                self.by_peer.remove(&key);
            }
        }
    }

    fn claim_id(&mut self) -> Result<ConnectionId, CmError> {
        if self.connections.len() >= (self.ids.end - self.ids.start) as usize {
            return Err(CmError::Exhausted);
        }
        loop {
            let id = self.next_id;
            self.next_id = if id + 1 < self.ids.end { id + 1 } else { self.ids.start };
            if id != 0 && !self.connections.contains_key(&id) {
                return Ok(ConnectionId(id));
            }
        }
    }

    fn transaction(&mut self) -> u64 {
        self.transactions = self.transactions.wrapping_add(1);
        self.transactions
    }
}

fn is_replied(connection: &Connection) -> bool {
    connection.phase == Phase::Replied
}

/// The parts of a call that a datagram's question has.
fn datagram_call(target: Gid, service: ServiceId) -> Call {
    Call {
        target,
        service,
        is_unreliable: true,
        mtu: Mtu::Mtu1024,
        ack_timeout: 0,
        traffic_class: 0,
        offer: Offer::default(),
    }
}

impl Event {
    /// The connection that it is about.
    pub const fn connection(&self) -> ConnectionId {
        match self {
            Self::Requested { connection, .. }
            | Self::Replied { connection, .. }
            | Self::Rejected { connection, .. }
            | Self::Resolving { connection, .. }
            | Self::Resolved { connection, .. }
            | Self::Established(connection)
            | Self::Unreachable(connection)
            | Self::Disconnected(connection)
            | Self::TimeWaitOver(connection) => *connection,
        }
    }
}
