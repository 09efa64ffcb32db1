//! The responder: checks the peer's requests, carries them out and answers.

use std::collections::VecDeque;

use railnet_core::event::{Check, Event, Sink};
use railnet_core::{Psn, Time};
use railnet_wire::{AtomicEth, Extended, NakCode, Opcode, Position, Reth, Syndrome};

use super::answers::Response;
use super::completer::scatter;
use super::early::EarlyPackets;
use super::requester::MESSAGE_MAX;
use super::{QueuePair, Service, State};
use crate::completion::{Completion, CompletionKind, Status};
use crate::context::Context;
use crate::device::{AsyncEvent, Device};
use crate::error::{DropReason, PostError};
use crate::memory::Memory;
use crate::packet::Inbound;
use crate::pool::{Chain, Handle};
use crate::recovery::{Gap, LossRecovery};
use crate::region::{Access, Key};
use crate::work::ReceiveRequest;

/// A message that has begun and not ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// Between messages.
    None,
    /// A SEND into `receive`.
    Send { receive: Handle, offset: u32 },
    /// A WRITE.
    Write { address: u64, key: Key, left: u32, length: u32 },
}

/// A READ or atomic that is remembered, in case its answer gets lost.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    first: Psn,
    packets: u32,
    what: Memorable,
}

#[derive(Clone, Copy, Debug)]
enum Memorable {
    Read { address: u64, key: u32, length: u32 },
    Atomic { original: u64 },
}

/// The serving half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// Receives of its own, oldest first.
    pub(crate) receives: Chain,
    /// Answers that wait.
    pub(crate) answers: Chain,
    pub(super) message: Message,
    /// A receive that was taken for an unreliable message which broke: the next message gets it.
    pub(super) kept: Option<Handle>,
    /// The sequence number to come.
    pub(crate) expected: Psn,
    /// Messages completed, 24 bits.
    pub(crate) msn: u32,
    /// Made at the first READ or atomic: most queue pairs never see one.
    #[allow(clippy::box_collection, reason = "an idle queue pair must be small")]
    remembered: Option<Box<VecDeque<Remembered>>>,
    /// What came before its turn.
    pub(super) early: Option<Box<EarlyPackets>>,
    /// READs whose responses are not all sent for the first time.
    pub(super) reads: u16,
    pub(crate) reads_max: u8,
    pub(crate) min_rnr_timer: u8,
    /// The last acknowledgement told that there are no receives.
    pub(super) starved: bool,
    pub(crate) established: bool,
    /// The rest of a broken unreliable message is to be dropped.
    pub(super) skipping: bool,
    /// A congestion notification waits.
    pub(crate) notification: bool,
    /// When the next congestion notification may be sent.
    pub(super) notify_after: Time,
}

/// Why a request ends the connection.
pub(super) struct Refusal {
    code: NakCode,
    /// How the receive it used, if any, ends.
    status: Status,
    pub(super) check: Check,
}

impl Refusal {
    fn invalid(check: Check) -> Self {
        Self { code: NakCode::InvalidRequest, status: Status::RemoteInvalidRequest, check }
    }

    pub(super) fn access(check: Check) -> Self {
        Self { code: NakCode::RemoteAccess, status: Status::Flushed, check }
    }
}

/// What came of a request.
pub(super) enum Verdict {
    /// Done; acknowledge it if asked.
    Done,
    /// Done; its answer is queued.
    Answered,
    /// No receive is posted.
    NotReady,
    /// The connection ends.
    Refused(Refusal),
    /// Done as far as the peer is told, but the connection ends here (IBTA class J).
    Spoiled,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            receives: Chain::EMPTY,
            answers: Chain::EMPTY,
            message: Message::None,
            kept: None,
            expected: Psn::new(0),
            msn: 0,
            remembered: None,
            early: None,
            reads: 0,
            reads_max: 0,
            min_rnr_timer: 0,
            starved: false,
            established: false,
            skipping: false,
            notification: false,
            notify_after: Time::ZERO,
        }
    }

    /// Bytes that are still to come of the WRITE that has begun, if one has.
    pub(crate) fn to_come(&self) -> u32 {
        match self.message {
            Message::Write { left, .. } => left,
            Message::None | Message::Send { .. } => 0,
        }
    }

    /// The receive that an unfinished message holds, given up.
    pub(crate) fn release_taken(&mut self) -> Option<Handle> {
        match std::mem::replace(&mut self.message, Message::None) {
            Message::Send { receive, .. } => Some(receive),
            _ => self.kept.take(),
        }
    }

    pub(super) fn forget_early(&mut self) {
        self.early = None;
    }

    fn remember(&mut self, first: Psn, packets: u32, what: Memorable) {
        let limit = usize::from(self.reads_max.max(1));
        let list = self.remembered.get_or_insert_with(Box::default);
        if list.len() >= limit {
            list.pop_front();
        }
        list.push_back(Remembered { first, packets, what });
    }

    fn recall(&self, psn: Psn) -> Option<Remembered> {
        let covers =
            |entry: &&Remembered| (psn.value().wrapping_sub(entry.first.value()) & Psn::MASK) < entry.packets;
        self.remembered.as_ref()?.iter().rev().find(covers).copied()
    }
}

impl QueuePair {
    /// A request of the peer.
    pub(crate) fn receive_request<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        use State::{ReadyToReceive, ReadyToSend, SendQueueDrain, SendQueueError};
        if !matches!(self.state, ReadyToReceive | ReadyToSend | SendQueueDrain | SendQueueError) {
            return Err(DropReason::NotReady);
        }
        if self.state == ReadyToReceive && !self.responder.established {
            self.responder.established = true;
            device.events.push_back(AsyncEvent::CommunicationEstablished(self.number));
        }
        match self.service {
            Service::ReliableConnection => self.receive_in_turn(device, cx, packet),
            Service::UnreliableConnection => self.receive_unreliable(device, cx, packet),
            Service::Datagram => self.receive_datagram(device, cx, packet),
        }
    }

    pub(super) fn receive_reliable<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let bth = &packet.headers.bth;
        let psn = bth.psn;
        let ahead = psn.distance_from(self.responder.expected);
        self.note_check(device, cx, psn, Check::Sequence, ahead == 0);
        if ahead > 0 {
            match self.recovery.on_gap(self.responder.expected, psn) {
                Gap::Keep => {
                    self.keep_early(device, cx.now, packet);
                    return Ok(());
                }
                Gap::Nak => {
                    device.counters.sequence_naks += 1;
                    self.answer_verdict(device, self.responder.expected, Syndrome::Nak(NakCode::Sequence));
                }
                Gap::Drop => {}
            }
            return Err(DropReason::OutOfSequence);
        }
        if ahead < 0 {
            return self.receive_duplicate(device, packet);
        }
        self.receive_expected(device, cx, packet);
        if self.responder.early.is_some() {
            self.take_early(device, cx, bth.ack_request);
        }
        Ok(())
    }

    /// The packet with the expected sequence number: carry it out and answer.
    pub(super) fn receive_expected<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) {
        let bth = &packet.headers.bth;
        let psn = bth.psn;
        self.recovery.on_expected();
        match self.execute(device, cx, packet) {
            Verdict::Done => {
                self.responder.expected = psn.plus(1);
                if bth.ack_request {
                    self.acknowledge_through(device, psn);
                }
            }
            Verdict::Answered => {}
            Verdict::NotReady => {
                device.counters.rnr_naks += 1;
                if !device.config.behaviour.sequence_nak_after_rnr {
                    self.recovery.on_not_ready();
                }
                let timer = self.responder.min_rnr_timer;
                self.answer_verdict(device, psn, Syndrome::RnrNak { timer });
            }
            Verdict::Refused(refusal) => self.refuse(device, cx, psn, &refusal),
            Verdict::Spoiled => {
                self.answer_verdict(device, psn, Syndrome::ACK);
                device.events.push_back(AsyncEvent::QueuePairRequestError(self.number));
                self.enter_error(device, cx, true);
            }
        }
    }

    /// Ends the connection: a NAK for the peer, an error for the receive in use, and the error state.
    pub(super) fn refuse<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        refusal: &Refusal,
    ) {
        // Key, right and range are looked at in this order: those before the one that failed passed.
        let memory = [Check::Key, Check::Permission, Check::Range];
        if let Some(failed) = memory.iter().position(|&check| check == refusal.check) {
            for &check in &memory[..failed] {
                self.note_check(device, cx, psn, check, true);
            }
        }
        self.note_check(device, cx, psn, refusal.check, false);
        self.answer_verdict(device, psn, Syndrome::Nak(refusal.code));
        if refusal.status != Status::Flushed
            && let Some(taken) = self.responder.release_taken()
        {
            self.end_receive(device, cx, taken, refusal.status);
        }
        device.events.push_back(match refusal.code {
            NakCode::RemoteAccess => AsyncEvent::QueuePairAccessError(self.number),
            _ => AsyncEvent::QueuePairRequestError(self.number),
        });
        self.enter_error(device, cx, true);
    }

    /// Completes a receive with an error.
    pub(super) fn end_receive<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        receive: Handle,
        status: Status,
    ) {
        let work = device.receives.remove(receive).work;
        let (kind, queue_pair) = (CompletionKind::Receive, self.number);
        let completion = Completion { work, status, kind, queue_pair, ..Completion::EMPTY };
        device.complete(cx, self.receive_queue, completion, false);
    }

    #[inline]
    fn note_check<M: Memory, S: Sink>(
        &self,
        device: &Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        check: Check,
        passed: bool,
    ) {
        let queue_pair = self.number;
        cx.emit_detail(device.component, || Event::Checked { queue_pair, psn, check, passed });
    }

    /// Carries out the request with the expected sequence number, or tells why not. The order of checks: opcode
    /// sequence, queue pair access, resources, length, key.
    pub(super) fn execute<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Verdict {
        let opcode = packet.headers.bth.opcode;
        let psn = packet.headers.bth.psn;
        let in_order = match (&self.responder.message, opcode.position().is_start()) {
            (Message::None, is_start) => is_start,
            (_, true) => false,
            (Message::Send { .. }, false) => opcode.is_send(),
            (Message::Write { .. }, false) => opcode.is_write(),
        };
        if !in_order {
            return Verdict::Refused(Refusal::invalid(Check::OpcodeOrder));
        }
        self.note_check(device, cx, psn, Check::OpcodeOrder, true);
        match packet.headers.extended {
            _ if opcode.is_send() => self.execute_send(device, cx, packet),
            _ if opcode.is_write() => self.execute_write(device, cx, packet),
            Extended::Reth(reth) if opcode == Opcode::RcReadRequest => {
                self.execute_read(device, cx, psn, reth)
            }
            Extended::Atomic(atomic) => self.execute_atomic(device, cx, psn, opcode, &atomic),
            _ => Verdict::Refused(Refusal::invalid(Check::OpcodeOrder)),
        }
    }

    /// Takes a receive, if one is posted.
    pub(super) fn take_receive(&mut self, device: &mut Device) -> Option<Handle> {
        if let Some(kept) = self.responder.kept.take() {
            return Some(kept);
        }
        let Some(shared) = self.shared else {
            return device.receives.detach(&mut self.responder.receives);
        };
        let queue = device.shared[shared.0 as usize].as_mut()?;
        let taken = device.receives.detach(&mut queue.receives)?;
        if queue.receives.len() < queue.limit {
            queue.limit = 0;
            device.events.push_back(AsyncEvent::SharedReceiveLimit(shared));
        }
        Some(taken)
    }

    fn execute_send<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Verdict {
        let (position, psn) = (packet.headers.bth.opcode.position(), packet.headers.bth.psn);
        let length = packet.payload.length();
        let (receive, offset) = match self.responder.message {
            Message::Send { receive, offset } => (receive, offset),
            _ => match self.take_receive(device) {
                Some(receive) => (receive, 0),
                None => {
                    self.note_check(device, cx, psn, Check::Resources, false);
                    return Verdict::NotReady;
                }
            },
        };
        self.note_check(device, cx, psn, Check::Resources, true);
        self.responder.message = Message::Send { receive, offset };
        if !length_fits(position, length, self.mtu.bytes()) {
            return Verdict::Refused(Refusal::invalid(Check::Length));
        }
        let buffer = device.receives.get(receive);
        if u64::from(offset) + u64::from(length) > buffer.length() {
            let code = device.config.behaviour.receive_too_small_nak;
            let status =
                if code == NakCode::InvalidRequest { Status::LocalLength } else { Status::LocalOperation };
            return Verdict::Refused(Refusal { code, status, check: Check::Length });
        }
        self.note_check(device, cx, psn, Check::Length, true);
        match scatter(device, cx, &buffer.scatter, self.domain, offset, packet.payload) {
            Ok(address) => {
                let queue_pair = self.number;
                cx.emit_detail(device.component, || Event::DataPlaced { queue_pair, psn, address, length });
            }
            Err(fault) => {
                let (code, status) = (NakCode::RemoteOperational, Status::LocalProtection);
                return Verdict::Refused(Refusal { code, status, check: fault.check() });
            }
        }
        self.responder.message = Message::Send { receive, offset: offset + length };
        if position.is_end() {
            return self.finish_send(device, cx, packet, receive, offset + length);
        }
        Verdict::Done
    }

    fn finish_send<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
        receive: Handle,
        length: u32,
    ) -> Verdict {
        let (mut immediate, mut invalidated) = (None, None);
        match packet.headers.extended {
            Extended::Immediate(value) => immediate = Some(value),
            Extended::Invalidate(key) => {
                if device.regions.invalidate(Key(key), self.domain, self.number).is_err() {
                    self.responder.message = Message::None;
                    self.end_receive(device, cx, receive, Status::RemoteInvalidRequest);
                    return Verdict::Spoiled;
                }
                invalidated = Some(key);
            }
            _ => {}
        }
        self.responder.message = Message::None;
        self.count_message();
        let completion = Completion {
            work: device.receives.remove(receive).work,
            kind: CompletionKind::Receive,
            queue_pair: self.number,
            length,
            immediate,
            invalidated,
            has_grh: device.config.behaviour.grh_flag_always,
            ..Completion::EMPTY
        };
        device.complete(cx, self.receive_queue, completion, packet.headers.bth.solicited);
        Verdict::Done
    }

    fn count_message(&mut self) {
        self.responder.msn = (self.responder.msn + 1) & Psn::MASK;
    }

    fn execute_write<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Verdict {
        let (bth, length) = (&packet.headers.bth, packet.payload.length());
        let (position, psn) = (bth.opcode.position(), bth.psn);
        if !self.access.allows(Access::REMOTE_WRITE) {
            return refuse_access(device);
        }
        self.note_check(device, cx, psn, Check::QueuePairAccess, true);
        let (reth, immediate) = match packet.headers.extended {
            Extended::Reth(reth) => (Some(reth), None),
            Extended::RethImmediate(reth, value) => (Some(reth), Some(value)),
            Extended::Immediate(value) => (None, Some(value)),
            _ => (None, None),
        };
        let receive = match immediate {
            Some(_) => match self.take_receive(device) {
                None => {
                    self.note_check(device, cx, psn, Check::Resources, false);
                    return Verdict::NotReady;
                }
                taken => {
                    self.note_check(device, cx, psn, Check::Resources, true);
                    taken
                }
            },
            None => None,
        };
        if let Err(refusal) = self.place_write(device, cx, packet, reth) {
            // The receive was taken for nothing: it is flushed with the others, first. One that an earlier broken
            // message left must not be forgotten.
            self.responder.kept = receive.or(self.responder.kept.take());
            return Verdict::Refused(refusal);
        }
        if position.is_end() {
            let total = match std::mem::replace(&mut self.responder.message, Message::None) {
                Message::Write { length, .. } => length,
                _ => length,
            };
            self.count_message();
            if let (Some(receive), Some(value)) = (receive, immediate) {
                let completion = Completion {
                    work: device.receives.remove(receive).work,
                    kind: CompletionKind::ReceiveWriteImmediate,
                    queue_pair: self.number,
                    length: total,
                    immediate: Some(value),
                    has_grh: device.config.behaviour.grh_flag_always,
                    ..Completion::EMPTY
                };
                device.complete(cx, self.receive_queue, completion, bth.solicited);
            }
        }
        Verdict::Done
    }

    /// Checks a WRITE packet and puts its payload where it belongs.
    fn place_write<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
        reth: Option<Reth>,
    ) -> Result<(), Refusal> {
        let (position, psn) = (packet.headers.bth.opcode.position(), packet.headers.bth.psn);
        let length = packet.payload.length();
        let (address, key, left, total) = match (reth, self.responder.message) {
            (Some(reth), _) => (reth.address, Key(reth.key), reth.length, reth.length),
            (None, Message::Write { address, key, left, length }) => (address, key, left, length),
            (None, _) => return Err(Refusal::invalid(Check::OpcodeOrder)),
        };
        let ends_rightly = if position.is_end() { length == left } else { length < left };
        if u64::from(total) > MESSAGE_MAX || !ends_rightly || !length_fits(position, length, self.mtu.bytes())
        {
            return Err(Refusal::invalid(Check::Length));
        }
        self.note_check(device, cx, psn, Check::Length, true);
        if position.is_start() && total > 0 {
            // The whole message is checked at its start; IBTA C9-88: one of no bytes is not checked at all.
            device
                .regions
                .remote(key, self.domain, self.number, address, u64::from(total), Access::REMOTE_WRITE)
                .map_err(|fault| Refusal::access(fault.check()))?;
            for check in [Check::Key, Check::Permission, Check::Range] {
                self.note_check(device, cx, psn, check, true);
            }
        }
        if length > 0 {
            let (domain, number) = (self.domain, self.number);
            let place = device
                .regions
                .remote(key, domain, number, address, u64::from(length), Access::REMOTE_WRITE)
                .map_err(|fault| Refusal::access(fault.check()))?;
            packet.payload.place(cx.memory, place, address, 0, length);
            if cx.memory.take_fault() {
                return Err(Refusal::access(Check::Range));
            }
            cx.emit_detail(device.component, || Event::DataPlaced {
                queue_pair: number,
                psn,
                address,
                length,
            });
        }
        self.responder.message =
            Message::Write { address: address + u64::from(length), key, left: left - length, length: total };
        Ok(())
    }

    /// Whether one more READ or atomic can be served.
    fn has_read_resource(&self, device: &Device) -> bool {
        let limit = u16::from(self.responder.reads_max);
        limit > 0 && (self.responder.reads < limit || !device.config.behaviour.refuse_excess_reads)
    }

    fn execute_read<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        reth: Reth,
    ) -> Verdict {
        if !self.access.allows(Access::REMOTE_READ) {
            return refuse_access(device);
        }
        self.note_check(device, cx, psn, Check::QueuePairAccess, true);
        if !self.has_read_resource(device) {
            return Verdict::Refused(Refusal::invalid(Check::Resources));
        }
        if u64::from(reth.length) > MESSAGE_MAX {
            return Verdict::Refused(Refusal::invalid(Check::Length));
        }
        for check in [Check::Resources, Check::Length] {
            self.note_check(device, cx, psn, check, true);
        }
        let (key, length) = (Key(reth.key), reth.length);
        if length > 0 {
            let (domain, number) = (self.domain, self.number);
            let found = device.regions.remote(
                key,
                domain,
                number,
                reth.address,
                u64::from(length),
                Access::REMOTE_READ,
            );
            if let Err(fault) = found {
                return Verdict::Refused(Refusal::access(fault.check()));
            }
            for check in [Check::Key, Check::Permission, Check::Range] {
                self.note_check(device, cx, psn, check, true);
            }
        }
        // IBTA C9-148: a READ counts as soon as it is taken up.
        self.count_message();
        let packets = self.mtu.packets(length);
        self.responder.remember(
            psn,
            packets,
            Memorable::Read { address: reth.address, key: reth.key, length },
        );
        self.responder.expected = psn.plus(packets);
        self.answer_read(device, psn, reth, true, false);
        Verdict::Answered
    }

    fn execute_atomic<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        opcode: Opcode,
        atomic: &AtomicEth,
    ) -> Verdict {
        if !self.access.allows(Access::REMOTE_ATOMIC) {
            return refuse_access(device);
        }
        if !self.has_read_resource(device) {
            return Verdict::Refused(Refusal::invalid(Check::Resources));
        }
        if !atomic.address.is_multiple_of(8) {
            return Verdict::Refused(Refusal::invalid(Check::Alignment));
        }
        for check in [Check::QueuePairAccess, Check::Resources, Check::Alignment] {
            self.note_check(device, cx, psn, check, true);
        }
        let (key, domain, number) = (Key(atomic.key), self.domain, self.number);
        let place = match device.regions.remote(key, domain, number, atomic.address, 8, Access::REMOTE_ATOMIC)
        {
            Ok(place) => place,
            Err(fault) => return Verdict::Refused(Refusal::access(fault.check())),
        };
        for check in [Check::Key, Check::Permission, Check::Range] {
            self.note_check(device, cx, psn, check, true);
        }
        let original = cx.memory.update(place.space, atomic.address, |old| match opcode {
            Opcode::RcFetchAdd => old.wrapping_add(atomic.swap_or_add),
            _ if old == atomic.compare => atomic.swap_or_add,
            _ => old,
        });
        if cx.memory.take_fault() {
            return Verdict::Refused(Refusal::access(Check::Range));
        }
        let address = atomic.address;
        cx.emit_detail(device.component, || Event::DataPlaced {
            queue_pair: number,
            psn,
            address,
            length: 8,
        });
        self.count_message();
        self.responder.remember(psn, 1, Memorable::Atomic { original });
        self.responder.expected = psn.plus(1);
        let msn = self.responder.msn;
        self.answer(device, Response::Atomic { psn, msn, original });
        Verdict::Answered
    }

    /// A request that was carried out before: its answer was lost, or is late.
    pub(super) fn receive_duplicate(
        &mut self,
        device: &mut Device,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let (opcode, psn) = (packet.headers.bth.opcode, packet.headers.bth.psn);
        if opcode.is_send() || opcode.is_write() {
            // IBTA C9-105: acknowledge what is newest, do not carry it out again.
            self.acknowledge_through(device, self.responder.expected.minus(1));
            return Ok(());
        }
        let found = self.responder.recall(psn).ok_or(DropReason::Forgotten)?;
        match (found.what, packet.headers.extended) {
            (Memorable::Atomic { original }, Extended::Atomic(_)) => {
                let msn = self.responder.msn;
                self.answer_again(device, Response::Atomic { psn, msn, original });
                Ok(())
            }
            (Memorable::Read { address, key, length }, Extended::Reth(reth)) => {
                let end = u128::from(reth.address) + u128::from(reth.length);
                let is_part = reth.key == key
                    && reth.address >= address
                    && end <= u128::from(address) + u128::from(length);
                if !is_part {
                    return Err(DropReason::Forgotten);
                }
                let starts = psn == found.first || device.config.behaviour.replay_starts_message;
                if !self.rewind_read(device, &found, psn, reth, starts) {
                    self.answer_read(device, psn, reth, starts, true);
                }
                Ok(())
            }
            _ => Err(DropReason::Forgotten),
        }
    }

    /// Where the answer to this READ is still being given, it starts again from `psn`: what would follow is of no use to
    /// a peer that misses that one. `false` when there is no such answer.
    fn rewind_read(
        &mut self,
        device: &mut Device,
        found: &Remembered,
        psn: Psn,
        reth: Reth,
        starts: bool,
    ) -> bool {
        let mut at = self.responder.answers.front();
        while at.is_some() {
            if let Response::Read { psn: next, address, key, left, starts: begins, .. } =
                device.responses.get_mut(at)
                && (next.value().wrapping_sub(found.first.value()) & Psn::MASK) < found.packets
            {
                if next.is_after(psn) {
                    (*next, *address, *key, *left, *begins) =
                        (psn, reth.address, Key(reth.key), reth.length, starts);
                }
                return true;
            }
            at = device.responses.next(at);
        }
        false
    }

    /// Takes a buffer in.
    pub(crate) fn post_recv<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        if self.shared.is_some() {
            return Err(PostError::HasSharedQueue(self.number));
        }
        match self.state {
            State::Reset => {
                let (queue_pair, state) = (self.number, self.state);
                return Err(PostError::State { queue_pair, state, queue: "receive" });
            }
            State::Error => {
                let completion = self.flushed(request.work, CompletionKind::Receive);
                device.complete(cx, self.receive_queue, completion, false);
                return Ok(());
            }
            _ => {}
        }
        if self.responder.receives.len() >= self.receive_depth {
            return Err(PostError::Full { depth: self.receive_depth });
        }
        if request.scatter.len() > usize::from(self.gather_max) {
            let (asked, limit) = (request.scatter.len(), u32::from(self.gather_max));
            return Err(PostError::TooManyEntries { asked, limit });
        }
        let (queue_pair, work, length) = (Some(self.number), request.work, request.length() as u32);
        cx.emit(device.component, || Event::ReceivePosted { queue_pair, work, length });
        device.receives.push(&mut self.responder.receives, request);
        self.receive_was_posted(device);
        Ok(())
    }
}

/// The queue pair does not allow this kind of access.
fn refuse_access(device: &Device) -> Verdict {
    let code = device.config.behaviour.access_flag_nak;
    Verdict::Refused(Refusal { code, status: Status::Flushed, check: Check::QueuePairAccess })
}

/// Whether a packet at this place of a message may carry so many bytes.
fn length_fits(position: Position, length: u32, mtu: u32) -> bool {
    match position {
        Position::First | Position::Middle => length == mtu,
        Position::Last => length > 0 && length <= mtu,
        Position::Only => length <= mtu,
    }
}
