//! The requester: turns work requests into packets, and goes back to send again.

use railnet_core::event::{Check, Event, PacketId, Sink};
use railnet_core::{Psn, Time};

use super::echo::{TELEMETRY_ROOM, boxed};
use super::{Failure, Route, Service, Shared, State};
use crate::completion::{Completion, Status};
use crate::config::{Mtu, ack_timeout};
use crate::context::Context;
use crate::control::Samples;
use crate::device::{AsyncEvent, Device};
use crate::error::PostError;
use crate::memory::{Backing, GhostRuns, Memory, Segments};
use crate::packet::{OutboundPayload, Transmit, wire_bytes};
use crate::pool::{Chain, Handle};
use crate::recovery::Scoreboard;
use crate::region::{Access, AccessFault, ProtectionDomain, Regions};
use crate::timer::Timer;
use crate::work::{Operation, SendRequest, SendWork, Sge, total};

/// A message may be this long (IBTA 9.7.2): the length field of a RETH goes further, the transport does not.
pub(crate) const MESSAGE_MAX: u64 = 1 << 31;

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Posted and not completed, oldest first.
    pub(crate) queue: Chain,
    /// The work to send from next; everything before it is in flight.
    pub(crate) cursor: Handle,
    /// How many packets of it are sent.
    pub(crate) packet: u32,
    /// The first sequence number of the next work to be posted.
    pub(crate) next: Psn,
    /// The oldest sequence number in doubt.
    pub(crate) unacked: Psn,
    /// One past the newest sequence number that was ever sent.
    pub(crate) sent: Psn,
    /// The newest sequence number for which an acknowledgement was asked; before `unacked` when none is owed.
    requested: Psn,
    /// Messages posted, for credits.
    messages: u32,
    /// The newest message that the peer has a receive for.
    pub(crate) credit_limit: u32,
    /// Counts the times of going back: tells transmissions of a packet apart.
    pub(super) transmission: u16,
    /// Packets since an acknowledgement was last asked for.
    pub(super) since_request: u16,
    /// READs and atomics in flight.
    pub(crate) reads: u16,
    pub(crate) reads_max: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    /// Timeouts in a row: each doubles the next, where [`Behaviour::spurious_timeout_wait`](crate::Behaviour) is set.
    pub(super) backoff: u8,
    /// Sent again from the oldest packet in doubt, because of a NAK or of a response that is missing. What is still in
    /// flight will show the same loss again: it must not count again.
    pub(crate) recovering: bool,
    /// Routers that the last answer passed.
    pub(crate) hops: u8,
    /// Packets whose round trip is being measured.
    pub(crate) samples: Option<Box<Samples>>,
    /// Selective repeat: what is known beyond the oldest packet in doubt, while anything is.
    pub(crate) scoreboard: Option<Box<Scoreboard>>,
}

impl Requester {
    pub(crate) fn new() -> Self {
        Self {
            queue: Chain::EMPTY,
            cursor: Handle::NONE,
            packet: 0,
            next: Psn::new(0),
            unacked: Psn::new(0),
            sent: Psn::new(0),
            requested: Psn::new(Psn::MASK),
            messages: 0,
            credit_limit: 0,
            transmission: 0,
            since_request: 0,
            reads: 0,
            reads_max: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            retries: 0,
            rnr_retries: 0,
            backoff: 0,
            recovering: false,
            hops: 0,
            samples: None,
            scoreboard: None,
        }
    }

    pub(crate) fn start(&mut self, psn: Psn) {
        self.next = psn;
        self.unacked = psn;
        self.sent = psn;
        self.requested = psn.minus(1);
    }

    /// The queue was emptied: nothing is in flight any more.
    pub(crate) fn forget_all(&mut self) {
        self.cursor = Handle::NONE;
        self.packet = 0;
        self.unacked = self.next;
        self.sent = self.next;
        self.requested = self.next.minus(1);
        self.reads = 0;
        self.samples = None;
        self.scoreboard = None;
    }

    /// Whether a sequence number that is not acknowledged was sent before. A READ may take half of the space, so this
    /// compares distances from the oldest, not the numbers.
    pub(crate) fn was_sent(&self, psn: Psn) -> bool {
        let from_oldest = |psn: Psn| psn.value().wrapping_sub(self.unacked.value()) & Psn::MASK;
        from_oldest(psn) < from_oldest(self.sent)
    }

    /// Whether the responder owes an answer. Packets that asked for none are covered by a later one that does.
    pub(crate) fn is_owed(&self) -> bool {
        self.was_sent(self.requested)
    }

    /// A packet that was sent before asks for an answer that covers all up to `psn`.
    pub(super) fn ask_through(&mut self, psn: Psn) {
        let from_oldest = |psn: Psn| psn.value().wrapping_sub(self.unacked.value()) & Psn::MASK;
        if !self.is_owed() || from_oldest(psn) > from_oldest(self.requested) {
            self.requested = psn;
        }
    }

    /// Whether any packet waits for its acknowledgement.
    pub(crate) fn is_waiting(&self) -> bool {
        self.unacked != self.sent
    }
}

impl Requester {
    /// Takes work in.
    pub(crate) fn post_send<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        request: SendRequest,
        datagram: Option<Route>,
    ) -> Result<(), PostError> {
        match shared.state {
            State::Reset | State::Init | State::ReadyToReceive => {
                let (queue_pair, state) = (shared.number, shared.state);
                return Err(PostError::State { queue_pair, state, queue: "send" });
            }
            State::Error | State::SendQueueError => {
                let kind = request.operation.completion_kind();
                shared.complete_send(device, cx, shared.flushed(request.work, kind));
                return Ok(());
            }
            State::ReadyToSend | State::SendQueueDrain => {}
        }
        let length = self.check_request(shared, device, &request)?;
        let is_local = request.operation.is_local();
        let packets = match (is_local, shared.service) {
            (true, _) => 0,
            (false, Service::Datagram) => 1,
            (false, _) if request.operation.is_atomic() => 1,
            (false, _) => shared.mtu.packets(length),
        };
        if !is_local {
            self.messages = self.messages.wrapping_add(1);
        }
        let work = SendWork {
            work: request.work,
            operation: request.operation,
            gather: request.gather,
            inline: request.inline,
            datagram: datagram.zip(request.target).map(Box::new),
            label: request.label,
            length,
            packets,
            first: self.next,
            message: self.messages,
            received: 0,
            signaled: request.signaled || shared.signal_all,
            solicited: request.solicited,
            fence: request.fence,
            started: false,
            counted: false,
        };
        let (queue_pair, name, label) = (shared.number, work.work, work.label);
        self.next = self.next.plus(packets);
        let handle = device.sends.push(&mut self.queue, work);
        if !self.cursor.is_some() {
            self.cursor = handle;
            self.packet = 0;
        }
        cx.emit(device.component, || Event::WorkPosted { queue_pair, work: name, length, label });
        shared.mark_data_ready(device);
        Ok(())
    }

    /// The length of the message, or why it cannot be posted.
    fn check_request(
        &self,
        shared: &Shared,
        device: &Device,
        request: &SendRequest,
    ) -> Result<u32, PostError> {
        let not_possible = |reason| PostError::NotPossible { operation: request.operation.name(), reason };
        if self.queue.len() >= shared.send_depth {
            return Err(PostError::Full { depth: shared.send_depth });
        }
        if request.gather.len() > usize::from(shared.gather_max) {
            let (asked, limit) = (request.gather.len(), u32::from(shared.gather_max));
            return Err(PostError::TooManyEntries { asked, limit });
        }
        match (shared.service, &request.operation) {
            (Service::Datagram, Operation::Send | Operation::SendImmediate(_))
                if request.target.is_some() => {}
            (Service::Datagram, Operation::Send | Operation::SendImmediate(_)) => {
                return Err(not_possible("a datagram needs a target"));
            }
            (Service::Datagram, _) => return Err(not_possible("datagrams can only be sent")),
            (Service::UnreliableConnection, operation) if operation.reads() => {
                return Err(not_possible("an unreliable connection has no answers"));
            }
            (Service::UnreliableConnection, Operation::SendInvalidate(_)) => {
                return Err(not_possible("an unreliable connection cannot invalidate"));
            }
            _ => {}
        }
        let length = match &request.inline {
            Some(_) if request.operation.reads() => {
                return Err(not_possible("inline data cannot be an answer's place"));
            }
            Some(data) if data.len() > usize::from(shared.inline_max) => {
                let (length, limit) = (data.len(), u32::from(shared.inline_max));
                return Err(PostError::InlineTooLong { length, limit });
            }
            Some(data) => data.len() as u64,
            None => total(&request.gather),
        };
        let limit = match shared.service {
            Service::Datagram => u64::from(device.config.ports[usize::from(shared.port)].mtu.bytes()),
            _ => MESSAGE_MAX,
        };
        if length > limit {
            return Err(PostError::TooLong { length, limit });
        }
        if request.operation.is_atomic() && length != 8 {
            return Err(not_possible("the old value needs exactly 8 bytes"));
        }
        Ok(length as u32)
    }

    /// The next request packet, if one may go now.
    pub(crate) fn transmit_request<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        let sent = self.send_next(shared, device, cx, out, slot);
        // Held up behind packets that did not ask for an answer: the clock must find out about them.
        if !sent && self.is_waiting() && !shared.deadlines.is_set(Timer::Acknowledgement) {
            self.arm_acknowledgement(shared, device, cx.now);
        }
        sent
    }

    fn send_next<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        loop {
            if !matches!(shared.state, State::ReadyToSend | State::SendQueueDrain) {
                return false;
            }
            if shared.deadlines.is_set(Timer::ReceiverNotReady) {
                return false;
            }
            if self.scoreboard.is_some()
                && let Some(sent) = self.resend_lost(shared, device, cx, out, slot)
            {
                return sent;
            }
            let handle = self.cursor;
            if !handle.is_some() {
                return false;
            }
            let work = device.sends.get(handle);
            if !work.started {
                if shared.state == State::SendQueueDrain {
                    return false;
                }
                if work.operation.is_local() {
                    if handle != self.queue.front() {
                        return false;
                    }
                    self.execute_local(shared, device, cx);
                    continue;
                }
                if let Err(status) = shared.check_local_memory(device, cx, handle) {
                    self.fail_unsent(shared, device, cx, handle, status);
                    return false;
                }
            }
            if !self.may_send(shared, device, device.sends.get(handle)) {
                return false;
            }
            let packet = self.packet;
            return self.build_request::<false, _, _>(shared, device, cx, (handle, packet), out, slot);
        }
    }

    /// Whether the next packet of `work` may go: window, READ depth, fence, credits.
    #[inline]
    fn may_send(&self, shared: &Shared, device: &Device, work: &SendWork) -> bool {
        if !shared.is_reliable() {
            return true;
        }
        // Both are on the same side of each other, so the plain difference is right up to the whole space.
        let psn = work.first.plus(self.packet);
        let in_flight = psn.value().wrapping_sub(self.unacked.value()) & Psn::MASK;
        if in_flight >= device.unacked_max {
            return false;
        }
        if let Some(window) = shared.control.window()
            && u64::from(self.in_network(in_flight)) * u64::from(shared.mtu.bytes()) >= window.0
        {
            return false;
        }
        if work.fence && self.reads > 0 && !work.counted {
            return false;
        }
        if work.operation.reads() && !work.counted {
            // Its answers take the sequence numbers up to its end: all of them must fit the window.
            let takes = work.packets - self.packet;
            if self.reads >= u16::from(self.reads_max) || in_flight + takes > Psn::WINDOW {
                return false;
            }
        }
        if device.config.behaviour.credits && work.operation.consumes_receive() {
            // IBTA 9.7.7.2.4: without credit one packet may go, to find out, when nothing else is in doubt.
            return !self.is_beyond_credit(work) || in_flight == 0;
        }
        true
    }

    /// Whether the peer has not said that it has a receive for this message.
    fn is_beyond_credit(&self, work: &SendWork) -> bool {
        Psn::new(work.message).is_after(Psn::new(self.credit_limit))
    }

    /// Whether the work behind the cursor cannot start before all in front of it is acknowledged.
    pub(super) fn next_must_wait(&self, device: &Device) -> bool {
        let next = device.sends.next(self.cursor);
        if !next.is_some() {
            return true;
        }
        let work = device.sends.get(next);
        let uses_credits = device.config.behaviour.credits && work.operation.consumes_receive();
        work.operation.is_local() || uses_credits && self.is_beyond_credit(work)
    }

    /// A request that cannot be sent fails, in its turn.
    fn fail_unsent<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        handle: Handle,
        status: Status,
    ) {
        if shared.is_reliable() {
            // It fails in its turn: what was sent before it is answered first.
            if handle != self.queue.front() {
                return;
            }
            self.fail_request(shared, device, cx, status);
            return;
        }
        let work = device.sends.pop(&mut self.queue).expect("the cursor is at the front of a UC or UD queue");
        let kind = work.operation.completion_kind();
        shared.complete_send(
            device,
            cx,
            Completion { work: work.work, status, kind, queue_pair: shared.number, ..Completion::EMPTY },
        );
        shared.set_state(device, cx, State::SendQueueError);
        self.flush(shared, device, cx);
    }

    /// Work that never goes to the wire: done when all before it is.
    fn execute_local<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        let work = device.sends.get(self.queue.front());
        let done = match work.operation {
            Operation::BindWindow(bind) => {
                device.regions.bind(shared.domain, shared.number, &bind).map(|_| ())
            }
            Operation::LocalInvalidate(key) => device.regions.invalidate(key, shared.domain, shared.number),
            _ => unreachable!("only local work is executed locally"),
        };
        if done.is_err() {
            self.fail_request(shared, device, cx, Status::WindowBind);
            return;
        }
        self.cursor = device.sends.next(self.queue.front());
        self.packet = 0;
        self.complete_front(shared, device, cx);
    }

    /// Builds a packet: the one at the cursor, which moves on, or one that is sent `AGAIN` by itself. `false` when its
    /// memory is gone: the work has failed then.
    #[inline]
    pub(super) fn build_request<const AGAIN: bool, M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        (handle, packet): (Handle, u32),
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        let work = device.sends.get(handle);
        let (mtu, psn, label) = (shared.mtu, work.first.plus(packet), work.label);
        let offset = packet * mtu.bytes();
        let carries = if work.operation.reads() {
            0
        } else {
            (work.length - offset).min(max_payload(shared.service, mtu))
        };
        let ends = work.operation.reads() || packet + 1 == work.packets;
        let payload = match &work.inline {
            Some(data) => {
                out.extend_from_slice(&data[offset as usize..][..carries as usize]);
                OutboundPayload::Bytes(carries)
            }
            None => {
                match gather(&device.regions, cx.memory, &work.gather, shared.domain, offset, carries, out) {
                    Ok(payload) => payload,
                    Err(_) => {
                        self.fail_unsent(shared, device, cx, handle, Status::LocalProtection);
                        return false;
                    }
                }
            }
        };
        let mut headers = self.request_headers(shared, device, work, packet, ends);
        headers.bth.ack_request |= AGAIN;
        let route = work.datagram.as_ref().map_or(shared.route, |datagram| datagram.0);
        let (starts, name, packets) = (!work.started, work.work, work.packets);
        let read_from = if S::DETAIL { work.read_address(offset) } else { None };
        if starts {
            let (queue_pair, first) = (shared.number, psn);
            cx.emit(device.component, || Event::WorkStarted { queue_pair, work: name, first, packets });
        }
        if let Some(address) = read_from.filter(|_| carries > 0) {
            let (queue_pair, length) = (shared.number, carries);
            cx.emit_detail(device.component, || Event::DataGathered { queue_pair, psn, address, length });
        }
        let takes = if ends { packets - packet } else { 1 };
        if AGAIN {
            self.note_resent(shared, device, cx, psn, takes);
        } else {
            self.advance(shared, device, cx, handle, ends, headers.bth.ack_request);
        }
        let id = PacketId {
            queue_pair: shared.number,
            psn,
            transmission: if self.was_sent(psn) { self.transmission } else { 0 },
            opcode: headers.bth.opcode as u8,
        };
        if !AGAIN {
            self.note_sent(shared, device, cx, psn, takes, headers.bth.ack_request);
        }
        let gathers = shared.control.wants_telemetry() && carries > 0 && shared.is_reliable();
        if !shared.control.is_none() {
            let added = if gathers { TELEMETRY_ROOM.length() } else { 0 };
            shared.pace(device, cx, wire_bytes(&headers, added, carries));
        }
        let extension = if gathers { Some(boxed(slot, TELEMETRY_ROOM)) } else { None };
        *slot = Some(Transmit {
            network: route.network,
            headers,
            extension,
            payload,
            priority: route.priority,
            packet: id,
            label,
        });
        true
    }

    /// Moves the cursor past the packet that was just built.
    fn advance<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        handle: Handle,
        ends: bool,
        ack_request: bool,
    ) {
        let work = device.sends.get_mut(handle);
        work.started = true;
        if work.operation.reads() && !work.counted {
            work.counted = true;
            self.reads += 1;
        }
        self.since_request = if ack_request { 0 } else { self.since_request + 1 };
        self.packet += 1;
        if ends {
            self.cursor = device.sends.next(handle);
            self.packet = 0;
            if !shared.is_reliable() {
                self.complete_front(shared, device, cx);
            }
        }
    }

    /// Counts a packet that leaves and starts the clock of its acknowledgement.
    fn note_sent<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &Context<'_, M, S>,
        psn: Psn,
        takes: u32,
        ack_request: bool,
    ) {
        let after = psn.plus(takes);
        if !shared.is_reliable() {
            self.unacked = after;
            self.sent = after;
            return;
        }
        if self.was_sent(psn) {
            device.counters.resent += 1;
        } else if ack_request
            && takes == 1
            && (shared.control.wants_round_trips() || shared.recovery.is_selective())
        {
            // Only what is answered at once: waiting for a later packet to ask, or for all of a READ, is not delay.
            let in_flight = psn.value().wrapping_sub(self.unacked.value()) & Psn::MASK;
            let samples = self.samples.get_or_insert_with(|| Box::new(Samples::NONE));
            samples.note(psn, cx.now, in_flight);
        }
        if !self.was_sent(after.minus(1)) {
            self.sent = after;
        }
        // IBTA 9.7.6.1.3: the clock runs for packets that ask. At a low rate those in between would only run it out.
        if ack_request {
            self.requested = after.minus(1);
            if !shared.deadlines.is_set(Timer::Acknowledgement) {
                self.arm_acknowledgement(shared, device, cx.now);
            }
        }
    }

    pub(crate) fn arm_acknowledgement(&mut self, shared: &mut Shared, device: &mut Device, now: Time) {
        // While it waits for the peer's receive nothing is sent, so nothing can be late.
        if shared.deadlines.is_set(Timer::ReceiverNotReady) {
            return;
        }
        if let Some(span) = ack_timeout(self.timeout) {
            let span = span * (1 << self.backoff);
            device.timers.set(&mut shared.deadlines, shared.slot, Timer::Acknowledgement, now + span);
        }
    }

    /// The oldest work fails, and the queue pair with it.
    pub(crate) fn fail_request<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        status: Status,
    ) {
        if let Some(work) = device.sends.pop(&mut self.queue) {
            let kind = work.operation.completion_kind();
            let queue_pair = shared.number;
            let completion = Completion { work: work.work, status, kind, queue_pair, ..Completion::EMPTY };
            shared.complete_send(device, cx, completion);
        }
        if shared.state != State::Error {
            self.enter_error(shared, device, cx);
            shared.failure = Some(Failure::Requester);
        }
    }

    /// Its part of the error state: everything queued comes back flushed, in order.
    pub(super) fn enter_error<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        shared.set_state(device, cx, State::Error);
        shared.deadlines.clear_all();
        self.flush(shared, device, cx);
    }

    fn flush<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        while let Some(work) = device.sends.pop(&mut self.queue) {
            shared.complete_send(device, cx, shared.flushed(work.work, work.operation.completion_kind()));
        }
        self.forget_all();
        shared.deadlines.clear(Timer::Acknowledgement);
        shared.deadlines.clear(Timer::ReceiverNotReady);
    }

    /// The oldest work is done.
    pub(crate) fn complete_front<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        let work = device.sends.pop(&mut self.queue).expect("there is work at the front");
        if work.counted {
            self.reads -= 1;
        }
        if work.signaled {
            let (kind, length) = (work.operation.completion_kind(), work.length);
            let queue_pair = shared.number;
            let completion = Completion { work: work.work, kind, length, queue_pair, ..Completion::EMPTY };
            shared.complete_send(device, cx, completion);
        }
        self.check_drained(shared, device);
    }

    /// In the drained state, with nothing started left: say so once.
    pub(crate) fn check_drained(&mut self, shared: &mut Shared, device: &mut Device) {
        if shared.state != State::SendQueueDrain || !shared.notify_drained {
            return;
        }
        let front = self.queue.front();
        if !front.is_some() || !device.sends.get(front).started {
            shared.notify_drained = false;
            device.events.push_back(AsyncEvent::SendQueueDrained(shared.number));
        }
    }
}

impl Shared {
    /// Checks all local memory of a request before its first packet.
    fn check_local_memory<M: Memory, S: Sink>(
        &self,
        device: &Device,
        cx: &mut Context<'_, M, S>,
        handle: Handle,
    ) -> Result<(), Status> {
        let work = device.sends.get(handle);
        let needed = if work.operation.reads() { Access::LOCAL_WRITE } else { Access::NONE };
        let (queue_pair, psn) = (self.number, work.first);
        if work.inline.is_none() {
            for sge in work.gather.iter().filter(|sge| sge.length > 0) {
                let found =
                    device.regions.local(sge.key, self.domain, sge.address, u64::from(sge.length), needed);
                if let Err(fault) = found {
                    let check = fault.check();
                    cx.emit_detail(device.component, || Event::Checked {
                        queue_pair,
                        psn,
                        check,
                        passed: false,
                    });
                    return Err(Status::LocalProtection);
                }
            }
        }
        cx.emit_detail(device.component, || Event::Checked {
            queue_pair,
            psn,
            check: Check::Key,
            passed: true,
        });
        Ok(())
    }
}

fn max_payload(service: Service, mtu: Mtu) -> u32 {
    match service {
        // A datagram is one packet, as long as the port allows: the post checked that.
        Service::Datagram => u32::MAX,
        _ => mtu.bytes(),
    }
}

/// Reads `length` bytes from `offset` of a gather list, which mostly has one entry.
#[inline]
fn gather<M: Memory>(
    regions: &Regions,
    memory: &M,
    list: &[Sge],
    domain: ProtectionDomain,
    offset: u32,
    length: u32,
    out: &mut Vec<u8>,
) -> Result<OutboundPayload, AccessFault> {
    let [sge] = list else { return gather_many(regions, memory, list, domain, offset, length, out) };
    if length == 0 {
        return Ok(OutboundPayload::Bytes(0));
    }
    let address = sge.address + u64::from(offset);
    let place = regions.local(sge.key, domain, address, u64::from(length), Access::NONE)?;
    Ok(match place.backing {
        Backing::Ghost => {
            let mut runs = GhostRuns::new();
            memory.read_ghost(place.space, address, length, &mut runs);
            OutboundPayload::Ghost(runs)
        }
        Backing::Bytes => {
            memory.read(place.space, address, length as usize, out);
            if memory.take_fault() {
                return Err(AccessFault::Range);
            }
            OutboundPayload::Bytes(length)
        }
    })
}

/// As [`gather`], for any list. A packet with both real and ghost parts travels as bytes.
fn gather_many<M: Memory>(
    regions: &Regions,
    memory: &M,
    list: &[Sge],
    domain: ProtectionDomain,
    offset: u32,
    length: u32,
    out: &mut Vec<u8>,
) -> Result<OutboundPayload, AccessFault> {
    let (mut skip, mut left) = (u64::from(offset), length);
    let mut runs = GhostRuns::new();
    let mut is_ghost = false;
    for sge in list {
        if left == 0 {
            break;
        }
        if skip >= u64::from(sge.length) {
            skip -= u64::from(sge.length);
            continue;
        }
        let part = (sge.length - skip as u32).min(left);
        let address = sge.address + skip;
        let place = regions.local(sge.key, domain, address, u64::from(part), Access::NONE)?;
        if place.backing == Backing::Ghost && (is_ghost || left == length) {
            is_ghost = true;
            memory.read_ghost(place.space, address, part, &mut runs);
        } else {
            if std::mem::take(&mut is_ghost) {
                Segments::append_pattern(&runs, out);
            }
            memory.read(place.space, address, part as usize, out);
            if memory.take_fault() {
                return Err(AccessFault::Range);
            }
        }
        left -= part;
        skip = 0;
    }
    Ok(if is_ghost { OutboundPayload::Ghost(runs) } else { OutboundPayload::Bytes(length) })
}
