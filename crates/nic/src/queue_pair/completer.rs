//! What the requester receives: acknowledgements, NAKs and responses.

use railnet_core::event::{Event, RetryReason, Sink};
use railnet_core::{Bytes, Psn, Span};
use railnet_wire::{Aeth, Extended, NakCode, Opcode, Position, Syndrome, TelemetryBlock};

use super::{Requester, Shared, State};
use crate::completion::Status;
use crate::config::{CREDITS, rnr_wait};
use crate::context::Context;
use crate::control::Acknowledged;
use crate::device::Device;
use crate::error::DropReason;
use crate::memory::Memory;
use crate::packet::{Inbound, Payload};
use crate::pool::Handle;
use crate::recovery::LossRecovery;
use crate::region::{Access, AccessFault};
use crate::timer::Timer;
use crate::work::{Operation, Sge};

impl Requester {
    /// An answer to one of this queue pair's requests.
    pub(crate) fn receive_response<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let result = self.receive_answer(shared, device, cx, packet);
        let selective = packet.extension.and_then(|extension| extension.selective);
        let told = selective.filter(|_| shared.recovery.is_selective());
        if told.is_some() || self.scoreboard.is_some() {
            self.review(shared, device, cx, told.as_ref());
            // What it acknowledges in one go may be old news, and what it tells of early packets new.
            return if told.is_some() { Ok(()) } else { result };
        }
        result
    }

    fn receive_answer<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let (headers, payload) = (packet.headers, packet.payload);
        if !matches!(shared.state, State::ReadyToSend | State::SendQueueDrain) {
            return Err(DropReason::NotReady);
        }
        let psn = headers.bth.psn;
        if let Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) = headers.extended {
            self.take_credits(shared, device, aeth);
        }
        if psn.is_before(self.unacked) {
            return Err(DropReason::StaleResponse);
        }
        if !self.was_sent(psn) {
            return Err(DropReason::UnsentResponse);
        }
        self.hops = shared.route.network.hop_limit.saturating_sub(packet.network.hop_limit);
        device.told = packet.extension.copied();
        match headers.extended {
            Extended::Aeth(aeth) if headers.bth.opcode == Opcode::RcAcknowledge => {
                self.receive_acknowledge(shared, device, cx, psn, aeth.syndrome)
            }
            Extended::AtomicAck(_, original) => self.receive_atomic(shared, device, cx, psn, original),
            _ => self.receive_read_response(shared, device, cx, psn, headers.bth.opcode, payload),
        }
    }

    fn receive_acknowledge<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), DropReason> {
        match syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge(shared, device, cx, psn);
            }
            Syndrome::RnrNak { timer } => self.receive_rnr(shared, device, cx, psn, timer),
            Syndrome::Nak(NakCode::Sequence) => {
                if self.acknowledge(shared, device, cx, psn.minus(1)) {
                    self.receive_sequence_nak(shared, device, cx, psn);
                }
            }
            Syndrome::Nak(code) => {
                let status = match code {
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational => Status::RemoteOperation,
                    _ => Status::RemoteInvalidRequest,
                };
                if self.acknowledge(shared, device, cx, psn.minus(1)) {
                    self.fail_request(shared, device, cx, status);
                }
            }
            Syndrome::Reserved(_) => return Err(DropReason::NotServed),
        }
        Ok(())
    }

    fn receive_sequence_nak<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) {
        // One NAK for each gap: another one for the same place came twice on the way, or late.
        if self.recovering {
            return;
        }
        if !self.take_retry(device) {
            self.fail_request(shared, device, cx, Status::RetryExceeded);
            return;
        }
        self.recovering = true;
        shared.notice_loss(device, cx);
        let from = shared.recovery.on_nak(psn);
        self.go_back(shared, device, cx, from, RetryReason::SequenceNak);
    }

    fn receive_rnr<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        timer: u8,
    ) {
        let acknowledges = device.config.behaviour.rnr_nak_acknowledges;
        if acknowledges && !self.acknowledge(shared, device, cx, psn.minus(1)) {
            return;
        }
        if shared.deadlines.is_set(Timer::ReceiverNotReady) {
            return;
        }
        if self.rnr_retry != 7 {
            // The work that fails is the one the NAK names: all before it arrived, and that is progress.
            if self.rnr_retries == 0 && !self.acknowledge(shared, device, cx, psn.minus(1)) {
                return;
            }
            if self.rnr_retries == 0 {
                self.fail_request(shared, device, cx, Status::RnrRetryExceeded);
                return;
            }
            self.rnr_retries -= 1;
        }
        if let Some(board) = &mut self.scoreboard {
            // It may have been kept, and been dropped when its turn came.
            board.forget(psn);
        }
        let tick = device.config.behaviour.rnr_tick.as_ps();
        let wait = Span::from_ps(rnr_wait(timer).as_ps().next_multiple_of(tick.max(1)));
        device.timers.set(&mut shared.deadlines, shared.slot, Timer::ReceiverNotReady, cx.now + wait);
        let (queue_pair, until) = (shared.number, cx.now + wait);
        cx.emit(device.component, || Event::ReceiverWait { queue_pair, psn, until });
        shared.deadlines.clear(Timer::Acknowledgement);
    }

    /// Everything up to `psn` arrived. `false` when that shows that a response before it was lost.
    fn acknowledge<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) -> bool {
        match self.acknowledge_through_work(shared, device, cx, psn) {
            Some(missing) => {
                self.infer_loss(shared, device, cx, missing, psn);
                false
            }
            None => shared.state != State::Error,
        }
    }

    /// Completes all work up to `psn`, up to a READ or atomic whose answer is missing: tells where that is.
    pub(super) fn acknowledge_through_work<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) -> Option<Psn> {
        let before = self.unacked;
        if psn.is_before(before) {
            return None;
        }
        let mut lost = None;
        loop {
            let front = self.queue.front();
            if !front.is_some() {
                break;
            }
            let work = device.sends.get(front);
            if work.operation.is_local() || !work.started {
                break;
            }
            let into = psn.value().wrapping_sub(work.first.value()) & Psn::MASK;
            if work.operation.reads() {
                if into >= work.received && into < Psn::WINDOW {
                    lost = Some(work.first.plus(work.received));
                }
                break;
            }
            if into + 1 < work.packets {
                self.unacked = psn.plus(1);
                break;
            }
            self.unacked = work.last().plus(1);
            if front == self.cursor {
                self.cursor = device.sends.next(front);
                self.packet = 0;
            }
            self.complete_front(shared, device, cx);
            if self.unacked.is_after(psn) {
                break;
            }
        }
        self.after_progress(shared, device, cx, before);
        lost
    }

    /// Something moved: retries start afresh, the clock too, and there may be more to send.
    fn after_progress<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        before: Psn,
    ) {
        let moved = self.unacked.value().wrapping_sub(before.value()) & Psn::MASK;
        if moved == 0 {
            return;
        }
        self.skip_to_unacked(device);
        self.retries = self.retry_count;
        self.rnr_retries = self.rnr_retry;
        self.recovering = false;
        self.backoff = 0;
        if self.is_owed() {
            self.arm_acknowledgement(shared, device, cx.now);
        } else {
            shared.deadlines.clear(Timer::Acknowledgement);
        }
        let unacked = self.unacked;
        let known = match &mut self.scoreboard {
            Some(board) => board.advance(unacked, cx.now, device.config.behaviour.spurious_timeout_wait),
            None => 0,
        };
        let samples = self.samples.as_mut();
        let round_trip = samples.and_then(|samples| samples.take(unacked, cx.now));
        if !shared.control.is_none() {
            // Those that were known to have arrived have been counted.
            let bytes = Bytes(u64::from(moved - known) * u64::from(shared.mtu.bytes()));
            self.tell_control(shared, device, cx, bytes, round_trip);
        }
        if self.cursor.is_some() {
            shared.mark_data_ready(device);
        }
        self.check_drained(shared, device);
    }

    /// Tells congestion control what an answer told.
    pub(super) fn tell_control<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        bytes: Bytes,
        round_trip: Option<Span>,
    ) {
        let told = device.told.take();
        let telemetry = told.as_ref().and_then(|told| match &told.telemetry {
            TelemetryBlock::Echoed(telemetry) => Some(telemetry),
            _ => None,
        });
        let congestion = told.as_ref().and_then(|told| told.congestion);
        let Requester { hops, unacked, sent, .. } = *self;
        let acknowledged = Acknowledged { bytes, round_trip, hops, unacked, sent, telemetry, congestion };
        let rate = shared.control.rate();
        shared.control.on_ack(&device.config.control, cx.now, &acknowledged);
        shared.after_control(device, cx, rate);
    }

    /// After going back, an acknowledgement of the first transmission may overtake the second: what it covers need not
    /// be sent again.
    fn skip_to_unacked(&mut self, device: &mut Device) {
        let (cursor, unacked) = (self.cursor, self.unacked);
        if !cursor.is_some() || cursor != self.queue.front() {
            return;
        }
        let work = device.sends.get(cursor);
        if work.started && !work.operation.reads() {
            let done = unacked.value().wrapping_sub(work.first.value()) & Psn::MASK;
            if done < work.packets && done > self.packet {
                self.packet = done;
            }
        }
    }

    /// A response is missing, as one to `evidence` shows: ask again, once.
    fn infer_loss<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        from: Psn,
        evidence: Psn,
    ) {
        if self.recovering || shared.deadlines.is_set(Timer::ReceiverNotReady) {
            return;
        }
        if shared.recovery.is_selective() {
            self.miss_response(shared, device, cx, from, evidence);
            return;
        }
        if !self.take_retry(device) {
            self.fail_request(shared, device, cx, Status::RetryExceeded);
            return;
        }
        self.recovering = true;
        shared.notice_loss(device, cx);
        self.go_back(shared, device, cx, from, RetryReason::ResponseLost);
    }

    /// The READ or atomic that a response belongs to: the oldest work, once all before it is acknowledged.
    fn answered<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) -> Result<Handle, DropReason> {
        if psn != self.unacked && !self.acknowledge(shared, device, cx, psn.minus(1)) {
            return Err(DropReason::OutOfSequence);
        }
        let front = self.queue.front();
        if !front.is_some() {
            return Err(DropReason::UnsentResponse);
        }
        let work = device.sends.get(front);
        if !work.started || !work.operation.reads() || work.first.plus(work.received) != psn {
            return Err(DropReason::UnsentResponse);
        }
        Ok(front)
    }

    fn receive_read_response<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        opcode: Opcode,
        payload: Payload<'_>,
    ) -> Result<(), DropReason> {
        let front = self.answered(shared, device, cx, psn)?;
        let work = device.sends.get(front);
        let offset = work.received * shared.mtu.bytes();
        let expected = (work.length - offset).min(shared.mtu.bytes());
        let is_last = work.received + 1 == work.packets;
        let fits = matches!(work.operation, Operation::Read(_))
            && payload.length() == expected
            && is_last == matches!(opcode.position(), Position::Last | Position::Only);
        if !fits {
            self.fail_request(shared, device, cx, Status::BadResponse);
            return Ok(());
        }
        let queue_pair = shared.number;
        let placed = scatter(device, cx, &work.gather, shared.domain, offset, payload);
        match placed {
            Ok(address) => {
                let length = expected;
                cx.emit_detail(device.component, || Event::DataPlaced { queue_pair, psn, address, length });
            }
            Err(_) => {
                self.fail_request(shared, device, cx, Status::LocalProtection);
                return Ok(());
            }
        }
        self.take_response(shared, device, cx, front, psn, is_last);
        Ok(())
    }

    fn receive_atomic<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        original: u64,
    ) -> Result<(), DropReason> {
        let front = self.answered(shared, device, cx, psn)?;
        let work = device.sends.get(front);
        if !work.operation.is_atomic() {
            self.fail_request(shared, device, cx, Status::BadResponse);
            return Ok(());
        }
        // The value on the wire is a number; in memory it stands in the host's order.
        let bytes = original.to_le_bytes();
        match scatter(device, cx, &work.gather, shared.domain, 0, Payload::Bytes(&bytes)) {
            Ok(address) => {
                let queue_pair = shared.number;
                cx.emit_detail(device.component, || Event::DataPlaced {
                    queue_pair,
                    psn,
                    address,
                    length: 8,
                });
            }
            Err(_) => {
                self.fail_request(shared, device, cx, Status::LocalProtection);
                return Ok(());
            }
        }
        self.take_response(shared, device, cx, front, psn, true);
        Ok(())
    }

    /// A response was taken in: the READ or atomic moves on, or is done.
    fn take_response<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        front: Handle,
        psn: Psn,
        is_last: bool,
    ) {
        let before = self.unacked;
        let waits = !is_last && self.is_lost(psn);
        self.unacked = psn.plus(1);
        let work = device.sends.get_mut(front);
        work.received += 1;
        if self.cursor == front {
            // It waits to be asked for again: ask for less, or not at all.
            self.packet = work.received;
            if is_last {
                self.cursor = device.sends.next(front);
                self.packet = 0;
            }
        }
        if is_last {
            self.complete_front(shared, device, cx);
        }
        self.after_progress(shared, device, cx, before);
        if waits {
            self.lose_rest(psn.plus(1));
        } else if is_last {
            self.acknowledge_answered(shared, device, cx);
        }
    }

    /// Learns how many receives the peer has. An answer that was overtaken cannot take a promise back.
    fn take_credits(&mut self, shared: &mut Shared, device: &mut Device, aeth: Aeth) {
        let Syndrome::Ack { credits } = aeth.syndrome else { return };
        if !device.config.behaviour.credits {
            return;
        }
        // 31: the peer does not use credits, so there is no limit.
        let credits = CREDITS.get(usize::from(credits)).copied().unwrap_or(Psn::WINDOW - 1);
        let limit = Psn::new(aeth.msn).plus(credits);
        if limit.is_after(Psn::new(self.credit_limit)) {
            self.credit_limit = limit.value();
            shared.mark_data_ready(device);
        }
    }
}

impl Shared {
    pub(super) fn notice_loss<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        let before = self.control.rate();
        self.control.on_loss(&device.config.control, cx.now);
        self.after_control(device, cx, before);
    }
}

/// Writes a payload to `offset` of a scatter list and tells where it began.
pub(crate) fn scatter<M: Memory, S: Sink>(
    device: &Device,
    cx: &mut Context<'_, M, S>,
    list: &[Sge],
    domain: crate::region::ProtectionDomain,
    offset: u32,
    payload: Payload<'_>,
) -> Result<u64, AccessFault> {
    let (mut skip, mut from, length) = (u64::from(offset), 0, payload.length());
    let mut began = 0;
    for sge in list {
        if from == length {
            break;
        }
        if skip >= u64::from(sge.length) {
            skip -= u64::from(sge.length);
            continue;
        }
        let part = (sge.length - skip as u32).min(length - from);
        let address = sge.address + skip;
        let place = device.regions.local(sge.key, domain, address, u64::from(part), Access::LOCAL_WRITE)?;
        payload.place(cx.memory, place, address, from, part);
        if cx.memory.take_fault() {
            return Err(AccessFault::Range);
        }
        if from == 0 {
            began = address;
        }
        from += part;
        skip = 0;
    }
    Ok(began)
}
