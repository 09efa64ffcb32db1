//! The responder: checks the peer's requests, carries them out and answers.

use std::collections::VecDeque;

use railnet_core::event::{Check, Event, Sink};
use railnet_core::{Psn, Time};
use railnet_wire::{AtomicEth, Extended, NakCode, Opcode, Position, Reth, Syndrome};

use super::answers::Response;
use super::completer::scatter;
use super::early::EarlyPackets;
use super::echo::Echo;
use super::requester::MESSAGE_MAX;
use super::{Failure, Service, Shared, State};
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
pub(super) struct Remembered {
    pub(super) first: Psn,
    pub(super) packets: u32,
    pub(super) what: Memorable,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Memorable {
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
    /// What the peer is told about the path of its packets. Made where there is something to tell.
    pub(super) echo: Option<Box<Echo>>,
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
pub(super) enum Executed {
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
            echo: None,
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

    /// The connection ends here. The requester's part of that comes first, and is up to [`super::QueuePair`].
    pub(super) fn fail(&mut self, shared: &mut Shared, keep_answers: bool) {
        self.early = None;
        shared.failure = Some(Failure::Responder { keep_answers });
    }

    /// Its part of the error state: receives come back flushed; answers that wait still go out when `keep_answers` is set.
    pub(super) fn enter_error<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        keep_answers: bool,
    ) {
        if let Some(taken) = self.release_taken() {
            let receive = device.receives.remove(taken);
            shared.flush_receive(device, cx, receive.work);
        }
        while let Some(receive) = device.receives.pop(&mut self.receives) {
            shared.flush_receive(device, cx, receive.work);
        }
        self.early = None;
        if keep_answers {
            // The rate limiter's clock went with the others; this sets it again where it is needed.
            shared.mark_data_ready(device);
        } else {
            device.responses.clear(&mut self.answers);
        }
        if shared.receive_source.is_some() {
            // IBTA 11.6.3.1: receives of a shared queue stay; this tells that the queue pair will take no more.
            device.events.push_back(AsyncEvent::LastReceiveTaken(shared.number));
        }
    }

    fn remember(&mut self, first: Psn, packets: u32, what: Memorable) {
        let limit = usize::from(self.reads_max.max(1));
        let list = self.remembered.get_or_insert_with(Box::default);
        if list.len() >= limit {
            list.pop_front();
        }
        list.push_back(Remembered { first, packets, what });
    }

    pub(super) fn recall(&self, psn: Psn) -> Option<Remembered> {
        let covers =
            |entry: &&Remembered| (psn.value().wrapping_sub(entry.first.value()) & Psn::MASK) < entry.packets;
        self.remembered.as_ref()?.iter().rev().find(covers).copied()
    }
}

impl Responder {
    /// A request of the peer.
    pub(crate) fn receive_request<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        use State::{ReadyToReceive, ReadyToSend, SendQueueDrain, SendQueueError};
        if !matches!(shared.state, ReadyToReceive | ReadyToSend | SendQueueDrain | SendQueueError) {
            return Err(DropReason::NotReady);
        }
        if shared.state == ReadyToReceive && !self.established {
            self.established = true;
            device.events.push_back(AsyncEvent::CommunicationEstablished(shared.number));
        }
        match shared.service {
            Service::ReliableConnection => self.receive_in_turn(shared, device, cx, packet),
            Service::UnreliableConnection => self.receive_unreliable(shared, device, cx, packet),
            Service::Datagram => self.receive_datagram(shared, device, cx, packet),
        }
    }

    pub(super) fn receive_reliable<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let bth = &packet.headers.bth;
        let psn = bth.psn;
        let ahead = psn.distance_from(self.expected);
        shared.note_check(device, cx, psn, Check::Sequence, ahead == 0);
        if ahead > 0 {
            match shared.recovery.on_gap(self.expected, psn) {
                Gap::Keep => {
                    self.keep_early(shared, device, cx.now, packet);
                    return Ok(());
                }
                Gap::Nak => {
                    device.counters.sequence_naks += 1;
                    self.answer_acknowledge(shared, device, self.expected, Syndrome::Nak(NakCode::Sequence));
                }
                Gap::Drop => {}
            }
            return Err(DropReason::OutOfSequence);
        }
        if ahead < 0 {
            return self.receive_duplicate(shared, device, packet);
        }
        self.receive_expected(shared, device, cx, packet);
        if self.early.is_some() {
            self.take_early(shared, device, cx, bth.ack_request);
        }
        Ok(())
    }

    /// The packet with the expected sequence number: carry it out and answer.
    pub(super) fn receive_expected<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) {
        let bth = &packet.headers.bth;
        let psn = bth.psn;
        shared.recovery.on_expected();
        match self.execute(shared, device, cx, packet) {
            Executed::Done => {
                self.expected = psn.plus(1);
                if bth.ack_request {
                    self.acknowledge_through(shared, device, psn);
                }
            }
            Executed::Answered => {}
            Executed::NotReady => {
                device.counters.rnr_naks += 1;
                if !device.config.behaviour.sequence_nak_after_rnr {
                    shared.recovery.on_not_ready();
                }
                let timer = self.min_rnr_timer;
                self.answer_acknowledge(shared, device, psn, Syndrome::RnrNak { timer });
            }
            Executed::Refused(refusal) => self.refuse(shared, device, cx, psn, &refusal),
            Executed::Spoiled => {
                self.answer_acknowledge(shared, device, psn, Syndrome::ACK);
                device.events.push_back(AsyncEvent::QueuePairRequestError(shared.number));
                self.fail(shared, true);
            }
        }
    }

    /// Ends the connection: a NAK for the peer, an error for the receive in use, and the error state.
    pub(super) fn refuse<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        refusal: &Refusal,
    ) {
        // Key, right and range are looked at in this order: those before the one that failed passed.
        let memory = [Check::Key, Check::Permission, Check::Range];
        if let Some(failed) = memory.iter().position(|&check| check == refusal.check) {
            for &check in &memory[..failed] {
                shared.note_check(device, cx, psn, check, true);
            }
        }
        shared.note_check(device, cx, psn, refusal.check, false);
        self.answer_acknowledge(shared, device, psn, Syndrome::Nak(refusal.code));
        if refusal.status != Status::Flushed
            && let Some(taken) = self.release_taken()
        {
            shared.end_receive(device, cx, taken, refusal.status);
        }
        device.events.push_back(match refusal.code {
            NakCode::RemoteAccess => AsyncEvent::QueuePairAccessError(shared.number),
            _ => AsyncEvent::QueuePairRequestError(shared.number),
        });
        self.fail(shared, true);
    }

    /// Carries out the request with the expected sequence number, or tells why not. The order of checks: opcode
    /// sequence, queue pair access, resources, length, key.
    pub(super) fn execute<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Executed {
        let opcode = packet.headers.bth.opcode;
        let psn = packet.headers.bth.psn;
        let in_order = match (&self.message, opcode.position().is_start()) {
            (Message::None, is_start) => is_start,
            (_, true) => false,
            (Message::Send { .. }, false) => opcode.is_send(),
            (Message::Write { .. }, false) => opcode.is_write(),
        };
        if !in_order {
            return Executed::Refused(Refusal::invalid(Check::OpcodeOrder));
        }
        shared.note_check(device, cx, psn, Check::OpcodeOrder, true);
        match packet.headers.extended {
            _ if opcode.is_send() => self.execute_send(shared, device, cx, packet),
            _ if opcode.is_write() => self.execute_write(shared, device, cx, packet),
            Extended::Reth(reth) if opcode == Opcode::RcReadRequest => {
                self.execute_read(shared, device, cx, psn, reth)
            }
            Extended::Atomic(atomic) => self.execute_atomic(shared, device, cx, psn, opcode, &atomic),
            _ => Executed::Refused(Refusal::invalid(Check::OpcodeOrder)),
        }
    }

    /// Takes a receive, if one is posted.
    pub(super) fn take_receive(&mut self, shared: &mut Shared, device: &mut Device) -> Option<Handle> {
        if let Some(kept) = self.kept.take() {
            return Some(kept);
        }
        let Some(shared) = shared.receive_source else {
            return device.receives.detach(&mut self.receives);
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
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Executed {
        let (position, psn) = (packet.headers.bth.opcode.position(), packet.headers.bth.psn);
        let length = packet.payload.length();
        let (receive, offset) = match self.message {
            Message::Send { receive, offset } => (receive, offset),
            _ => match self.take_receive(shared, device) {
                Some(receive) => (receive, 0),
                None => {
                    shared.note_check(device, cx, psn, Check::Resources, false);
                    return Executed::NotReady;
                }
            },
        };
        shared.note_check(device, cx, psn, Check::Resources, true);
        self.message = Message::Send { receive, offset };
        if !length_fits(position, length, shared.mtu.bytes()) {
            return Executed::Refused(Refusal::invalid(Check::Length));
        }
        let buffer = device.receives.get(receive);
        if u64::from(offset) + u64::from(length) > buffer.length() {
            let code = device.config.behaviour.receive_too_small_nak;
            let status =
                if code == NakCode::InvalidRequest { Status::LocalLength } else { Status::LocalOperation };
            return Executed::Refused(Refusal { code, status, check: Check::Length });
        }
        shared.note_check(device, cx, psn, Check::Length, true);
        match scatter(device, cx, &buffer.scatter, shared.domain, offset, packet.payload) {
            Ok(address) => {
                let queue_pair = shared.number;
                cx.emit_detail(device.component, || Event::DataPlaced { queue_pair, psn, address, length });
            }
            Err(fault) => {
                let (code, status) = (NakCode::RemoteOperational, Status::LocalProtection);
                return Executed::Refused(Refusal { code, status, check: fault.check() });
            }
        }
        self.message = Message::Send { receive, offset: offset + length };
        if position.is_end() {
            return self.finish_send(shared, device, cx, packet, receive, offset + length);
        }
        Executed::Done
    }

    fn finish_send<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
        receive: Handle,
        length: u32,
    ) -> Executed {
        let (mut immediate, mut invalidated) = (None, None);
        match packet.headers.extended {
            Extended::Immediate(value) => immediate = Some(value),
            Extended::Invalidate(key) => {
                if device.regions.invalidate(Key(key), shared.domain, shared.number).is_err() {
                    self.message = Message::None;
                    shared.end_receive(device, cx, receive, Status::RemoteInvalidRequest);
                    return Executed::Spoiled;
                }
                invalidated = Some(key);
            }
            _ => {}
        }
        self.message = Message::None;
        self.count_message();
        let completion = Completion {
            work: device.receives.remove(receive).work,
            kind: CompletionKind::Receive,
            queue_pair: shared.number,
            length,
            immediate,
            invalidated,
            has_grh: device.config.behaviour.grh_flag_always,
            ..Completion::EMPTY
        };
        device.complete(cx, shared.receive_queue, completion, packet.headers.bth.solicited);
        Executed::Done
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & Psn::MASK;
    }

    fn execute_write<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Executed {
        let (bth, length) = (&packet.headers.bth, packet.payload.length());
        let (position, psn) = (bth.opcode.position(), bth.psn);
        if !shared.access.allows(Access::REMOTE_WRITE) {
            return refuse_access(device);
        }
        shared.note_check(device, cx, psn, Check::QueuePairAccess, true);
        let (reth, immediate) = match packet.headers.extended {
            Extended::Reth(reth) => (Some(reth), None),
            Extended::RethImmediate(reth, value) => (Some(reth), Some(value)),
            Extended::Immediate(value) => (None, Some(value)),
            _ => (None, None),
        };
        let receive = match immediate {
            Some(_) => match self.take_receive(shared, device) {
                None => {
                    shared.note_check(device, cx, psn, Check::Resources, false);
                    return Executed::NotReady;
                }
                taken => {
                    shared.note_check(device, cx, psn, Check::Resources, true);
                    taken
                }
            },
            None => None,
        };
        if let Err(refusal) = self.place_write(shared, device, cx, packet, reth) {
            // The receive was taken for nothing: it is flushed with the others, first. One that an earlier broken
            // message left must not be forgotten.
            self.kept = receive.or(self.kept.take());
            return Executed::Refused(refusal);
        }
        if position.is_end() {
            let total = match std::mem::replace(&mut self.message, Message::None) {
                Message::Write { length, .. } => length,
                _ => length,
            };
            self.count_message();
            if let (Some(receive), Some(value)) = (receive, immediate) {
                let completion = Completion {
                    work: device.receives.remove(receive).work,
                    kind: CompletionKind::ReceiveWriteImmediate,
                    queue_pair: shared.number,
                    length: total,
                    immediate: Some(value),
                    has_grh: device.config.behaviour.grh_flag_always,
                    ..Completion::EMPTY
                };
                device.complete(cx, shared.receive_queue, completion, bth.solicited);
            }
        }
        Executed::Done
    }

    /// Checks a WRITE packet and puts its payload where it belongs.
    fn place_write<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
        reth: Option<Reth>,
    ) -> Result<(), Refusal> {
        let (position, psn) = (packet.headers.bth.opcode.position(), packet.headers.bth.psn);
        let length = packet.payload.length();
        let (address, key, left, total) = match (reth, self.message) {
            (Some(reth), _) => (reth.address, Key(reth.key), reth.length, reth.length),
            (None, Message::Write { address, key, left, length }) => (address, key, left, length),
            (None, _) => return Err(Refusal::invalid(Check::OpcodeOrder)),
        };
        let ends_rightly = if position.is_end() { length == left } else { length < left };
        if u64::from(total) > MESSAGE_MAX
            || !ends_rightly
            || !length_fits(position, length, shared.mtu.bytes())
        {
            return Err(Refusal::invalid(Check::Length));
        }
        shared.note_check(device, cx, psn, Check::Length, true);
        if position.is_start() && total > 0 {
            // The whole message is checked at its start; IBTA C9-88: one of no bytes is not checked at all.
            device
                .regions
                .remote(key, shared.domain, shared.number, address, u64::from(total), Access::REMOTE_WRITE)
                .map_err(|fault| Refusal::access(fault.check()))?;
            for check in [Check::Key, Check::Permission, Check::Range] {
                shared.note_check(device, cx, psn, check, true);
            }
        }
        if length > 0 {
            let (domain, number) = (shared.domain, shared.number);
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
        self.message =
            Message::Write { address: address + u64::from(length), key, left: left - length, length: total };
        Ok(())
    }

    /// Whether one more READ or atomic can be served.
    fn has_read_resource(&self, device: &Device) -> bool {
        let limit = u16::from(self.reads_max);
        limit > 0 && (self.reads < limit || !device.config.behaviour.refuse_excess_reads)
    }

    fn execute_read<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        reth: Reth,
    ) -> Executed {
        if !shared.access.allows(Access::REMOTE_READ) {
            return refuse_access(device);
        }
        shared.note_check(device, cx, psn, Check::QueuePairAccess, true);
        if !self.has_read_resource(device) {
            return Executed::Refused(Refusal::invalid(Check::Resources));
        }
        if u64::from(reth.length) > MESSAGE_MAX {
            return Executed::Refused(Refusal::invalid(Check::Length));
        }
        for check in [Check::Resources, Check::Length] {
            shared.note_check(device, cx, psn, check, true);
        }
        let (key, length) = (Key(reth.key), reth.length);
        if length > 0 {
            let (domain, number) = (shared.domain, shared.number);
            let found = device.regions.remote(
                key,
                domain,
                number,
                reth.address,
                u64::from(length),
                Access::REMOTE_READ,
            );
            if let Err(fault) = found {
                return Executed::Refused(Refusal::access(fault.check()));
            }
            for check in [Check::Key, Check::Permission, Check::Range] {
                shared.note_check(device, cx, psn, check, true);
            }
        }
        // IBTA C9-148: a READ counts as soon as it is taken up.
        self.count_message();
        let packets = shared.mtu.packets(length);
        self.remember(psn, packets, Memorable::Read { address: reth.address, key: reth.key, length });
        self.expected = psn.plus(packets);
        self.answer_read(shared, device, psn, reth, true, false);
        Executed::Answered
    }

    fn execute_atomic<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        opcode: Opcode,
        atomic: &AtomicEth,
    ) -> Executed {
        if !shared.access.allows(Access::REMOTE_ATOMIC) {
            return refuse_access(device);
        }
        if !self.has_read_resource(device) {
            return Executed::Refused(Refusal::invalid(Check::Resources));
        }
        if !atomic.address.is_multiple_of(8) {
            return Executed::Refused(Refusal::invalid(Check::Alignment));
        }
        for check in [Check::QueuePairAccess, Check::Resources, Check::Alignment] {
            shared.note_check(device, cx, psn, check, true);
        }
        let (key, domain, number) = (Key(atomic.key), shared.domain, shared.number);
        let place = match device.regions.remote(key, domain, number, atomic.address, 8, Access::REMOTE_ATOMIC)
        {
            Ok(place) => place,
            Err(fault) => return Executed::Refused(Refusal::access(fault.check())),
        };
        for check in [Check::Key, Check::Permission, Check::Range] {
            shared.note_check(device, cx, psn, check, true);
        }
        let original = cx.memory.update(place.space, atomic.address, |old| match opcode {
            Opcode::RcFetchAdd => old.wrapping_add(atomic.swap_or_add),
            _ if old == atomic.compare => atomic.swap_or_add,
            _ => old,
        });
        if cx.memory.take_fault() {
            return Executed::Refused(Refusal::access(Check::Range));
        }
        let address = atomic.address;
        cx.emit_detail(device.component, || Event::DataPlaced {
            queue_pair: number,
            psn,
            address,
            length: 8,
        });
        self.count_message();
        self.remember(psn, 1, Memorable::Atomic { original });
        self.expected = psn.plus(1);
        let msn = self.msn;
        self.answer(shared, device, Response::Atomic { psn, msn, original });
        Executed::Answered
    }

    /// Takes a buffer in.
    pub(crate) fn post_recv<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        if shared.receive_source.is_some() {
            return Err(PostError::HasSharedQueue(shared.number));
        }
        match shared.state {
            State::Reset => {
                let (queue_pair, state) = (shared.number, shared.state);
                return Err(PostError::State { queue_pair, state, queue: "receive" });
            }
            State::Error => {
                let completion = shared.flushed(request.work, CompletionKind::Receive);
                device.complete(cx, shared.receive_queue, completion, false);
                return Ok(());
            }
            _ => {}
        }
        if self.receives.len() >= shared.receive_depth {
            return Err(PostError::Full { depth: shared.receive_depth });
        }
        if request.scatter.len() > usize::from(shared.gather_max) {
            let (asked, limit) = (request.scatter.len(), u32::from(shared.gather_max));
            return Err(PostError::TooManyEntries { asked, limit });
        }
        let (queue_pair, work, length) = (Some(shared.number), request.work, request.length() as u32);
        cx.emit(device.component, || Event::ReceivePosted { queue_pair, work, length });
        device.receives.push(&mut self.receives, request);
        self.receive_was_posted(shared, device);
        Ok(())
    }
}

impl Shared {
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
}

/// The queue pair does not allow this kind of access.
fn refuse_access(device: &Device) -> Executed {
    let code = device.config.behaviour.access_flag_nak;
    Executed::Refused(Refusal { code, status: Status::Flushed, check: Check::QueuePairAccess })
}

/// Whether a packet at this place of a message may carry so many bytes.
fn length_fits(position: Position, length: u32, mtu: u32) -> bool {
    match position {
        Position::First | Position::Middle => length == mtu,
        Position::Last => length > 0 && length <= mtu,
        Position::Only => length <= mtu,
    }
}
