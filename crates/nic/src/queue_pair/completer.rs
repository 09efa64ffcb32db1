//! The requester's ear: acknowledgements, NAKs and responses.

use railnet_core::event::{Event, RetryReason, Sink};
use railnet_core::{Bytes, Psn, Span};
use railnet_wire::{Aeth, Extended, NakCode, Opcode, Position, Syndrome, TelemetryBlock};

use super::{QueuePair, Requester, State};
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

impl QueuePair {
    /// An answer to one of this queue pair's requests.
    pub(crate) fn receive_response<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let result = self.receive_answer(device, cx, packet);
        let selective = packet.extension.and_then(|extension| extension.selective);
        let told = selective.filter(|_| self.recovery.is_selective());
        if told.is_some() || self.requester.scoreboard.is_some() {
            self.review(device, cx, told.as_ref());
            // What it acknowledges in one go may be old news, and what it tells of early packets new.
            return if told.is_some() { Ok(()) } else { result };
        }
        result
    }

    fn receive_answer<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let (headers, payload) = (packet.headers, packet.payload);
        if !matches!(self.state, State::ReadyToSend | State::SendQueueDrain) {
            return Err(DropReason::NotReady);
        }
        let psn = headers.bth.psn;
        if let Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) = headers.extended {
            self.take_credits(device, aeth);
        }
        if psn.is_before(self.requester.unacked) {
            return Err(DropReason::StaleResponse);
        }
        if !self.requester.was_sent(psn) {
            return Err(DropReason::UnsentResponse);
        }
        self.requester.hops = self.route.network.hop_limit.saturating_sub(packet.network.hop_limit);
        device.told = packet.extension.copied();
        match headers.extended {
            Extended::Aeth(aeth) if headers.bth.opcode == Opcode::RcAcknowledge => {
                self.receive_acknowledge(device, cx, psn, aeth.syndrome)
            }
            Extended::AtomicAck(_, original) => self.receive_atomic(device, cx, psn, original),
            _ => self.receive_read_response(device, cx, psn, headers.bth.opcode, payload),
        }
    }

    fn receive_acknowledge<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), DropReason> {
        match syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge(device, cx, psn);
            }
            Syndrome::RnrNak { timer } => self.receive_rnr(device, cx, psn, timer),
            Syndrome::Nak(NakCode::Sequence) => {
                if self.acknowledge(device, cx, psn.minus(1)) {
                    self.receive_sequence_nak(device, cx, psn);
                }
            }
            Syndrome::Nak(code) => {
                let status = match code {
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational => Status::RemoteOperation,
                    _ => Status::RemoteInvalidRequest,
                };
                if self.acknowledge(device, cx, psn.minus(1)) {
                    self.fail_request(device, cx, status);
                }
            }
            Syndrome::Reserved(_) => return Err(DropReason::NotServed),
        }
        Ok(())
    }

    fn receive_sequence_nak<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) {
        // One NAK for each gap: another one for the same place came twice on the way, or late.
        if self.requester.recovering {
            return;
        }
        if !self.take_retry(device) {
            self.fail_request(device, cx, Status::RetryExceeded);
            return;
        }
        self.requester.recovering = true;
        self.notice_loss(device, cx);
        let from = self.recovery.on_nak(psn);
        self.go_back(device, cx, from, RetryReason::SequenceNak);
    }

    fn receive_rnr<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        timer: u8,
    ) {
        let acknowledges = device.config.behaviour.rnr_nak_acknowledges;
        if acknowledges && !self.acknowledge(device, cx, psn.minus(1)) {
            return;
        }
        if self.deadlines.is_set(Timer::ReceiverNotReady) {
            return;
        }
        if self.requester.rnr_retry != 7 {
            // The work that fails is the one the NAK names: all before it arrived, and that is progress.
            if self.requester.rnr_retries == 0 && !self.acknowledge(device, cx, psn.minus(1)) {
                return;
            }
            if self.requester.rnr_retries == 0 {
                self.fail_request(device, cx, Status::RnrRetryExceeded);
                return;
            }
            self.requester.rnr_retries -= 1;
        }
        if let Some(board) = &mut self.requester.scoreboard {
            // It may have been kept, and been dropped when its turn came.
            board.forget(psn);
        }
        let tick = device.config.behaviour.rnr_tick.as_ps();
        let wait = Span::from_ps(rnr_wait(timer).as_ps().next_multiple_of(tick.max(1)));
        device.timers.set(&mut self.deadlines, self.slot, Timer::ReceiverNotReady, cx.now + wait);
        let (queue_pair, until) = (self.number, cx.now + wait);
        cx.emit(device.component, || Event::ReceiverWait { queue_pair, psn, until });
        self.deadlines.clear(Timer::Acknowledgement);
    }

    /// Everything up to `psn` arrived. `false` when that shows that a response before it was lost.
    fn acknowledge<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) -> bool {
        match self.acknowledge_through_work(device, cx, psn) {
            Some(missing) => {
                self.infer_loss(device, cx, missing, psn);
                false
            }
            None => self.state != State::Error,
        }
    }

    /// Completes all work up to `psn`, up to a READ or atomic whose answer is missing: tells where that is.
    pub(super) fn acknowledge_through_work<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) -> Option<Psn> {
        let before = self.requester.unacked;
        if psn.is_before(before) {
            return None;
        }
        let mut lost = None;
        loop {
            let front = self.requester.queue.front();
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
                self.requester.unacked = psn.plus(1);
                break;
            }
            self.requester.unacked = work.last().plus(1);
            if front == self.requester.cursor {
                self.requester.cursor = device.sends.next(front);
                self.requester.packet = 0;
            }
            self.complete_front(device, cx);
            if self.requester.unacked.is_after(psn) {
                break;
            }
        }
        self.after_progress(device, cx, before);
        lost
    }

    /// Something moved: retries start afresh, the clock too, and there may be more to send.
    fn after_progress<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        before: Psn,
    ) {
        let moved = self.requester.unacked.value().wrapping_sub(before.value()) & Psn::MASK;
        if moved == 0 {
            return;
        }
        self.skip_to_unacked(device);
        let requester = &mut self.requester;
        requester.retries = requester.retry_count;
        requester.rnr_retries = requester.rnr_retry;
        requester.recovering = false;
        requester.backoff = 0;
        if requester.is_owed() {
            self.arm_acknowledgement(device, cx.now);
        } else {
            self.deadlines.clear(Timer::Acknowledgement);
        }
        let unacked = self.requester.unacked;
        let known = match &mut self.requester.scoreboard {
            Some(board) => board.advance(unacked, cx.now, device.config.behaviour.spurious_timeout_wait),
            None => 0,
        };
        let samples = self.requester.samples.as_mut();
        let round_trip = samples.and_then(|samples| samples.take(unacked, cx.now));
        if !self.control.is_none() {
            // Those that were known to have arrived have been counted.
            let bytes = Bytes(u64::from(moved - known) * u64::from(self.mtu.bytes()));
            self.tell_control(device, cx, bytes, round_trip);
        }
        if self.requester.cursor.is_some() {
            self.mark_data_ready(device);
        }
        self.check_drained(device);
    }

    /// Tells congestion control what an answer told.
    pub(super) fn tell_control<M: Memory, S: Sink>(
        &mut self,
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
        let Requester { hops, unacked, sent, .. } = self.requester;
        let acknowledged = Acknowledged { bytes, round_trip, hops, unacked, sent, telemetry, congestion };
        let rate = self.control.rate();
        self.control.on_ack(&device.config.control, cx.now, &acknowledged);
        self.after_control(device, cx, rate);
    }

    /// After going back, an acknowledgement of the first transmission may overtake the second: what it covers need not
    /// be sent again.
    fn skip_to_unacked(&mut self, device: &mut Device) {
        let (cursor, unacked) = (self.requester.cursor, self.requester.unacked);
        if !cursor.is_some() || cursor != self.requester.queue.front() {
            return;
        }
        let work = device.sends.get(cursor);
        if work.started && !work.operation.reads() {
            let done = unacked.value().wrapping_sub(work.first.value()) & Psn::MASK;
            if done < work.packets && done > self.requester.packet {
                self.requester.packet = done;
            }
        }
    }

    /// A response is missing, as one to `evidence` shows: ask again, once.
    fn infer_loss<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        from: Psn,
        evidence: Psn,
    ) {
        if self.requester.recovering || self.deadlines.is_set(Timer::ReceiverNotReady) {
            return;
        }
        if self.recovery.is_selective() {
            self.miss_response(device, cx, from, evidence);
            return;
        }
        if !self.take_retry(device) {
            self.fail_request(device, cx, Status::RetryExceeded);
            return;
        }
        self.requester.recovering = true;
        self.notice_loss(device, cx);
        self.go_back(device, cx, from, RetryReason::ResponseLost);
    }

    pub(super) fn notice_loss<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        let before = self.control.rate();
        self.control.on_loss(&device.config.control, cx.now);
        self.after_control(device, cx, before);
    }

    /// The READ or atomic that a response belongs to: the oldest work, once all before it is acknowledged.
    fn answered<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
    ) -> Result<Handle, DropReason> {
        if psn != self.requester.unacked && !self.acknowledge(device, cx, psn.minus(1)) {
            return Err(DropReason::OutOfSequence);
        }
        let front = self.requester.queue.front();
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
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        opcode: Opcode,
        payload: Payload<'_>,
    ) -> Result<(), DropReason> {
        let front = self.answered(device, cx, psn)?;
        let work = device.sends.get(front);
        let offset = work.received * self.mtu.bytes();
        let expected = (work.length - offset).min(self.mtu.bytes());
        let is_last = work.received + 1 == work.packets;
        let fits = matches!(work.operation, Operation::Read(_))
            && payload.length() == expected
            && is_last == matches!(opcode.position(), Position::Last | Position::Only);
        if !fits {
            self.fail_request(device, cx, Status::BadResponse);
            return Ok(());
        }
        let queue_pair = self.number;
        let placed = scatter(device, cx, &work.gather, self.domain, offset, payload);
        match placed {
            Ok(address) => {
                let length = expected;
                cx.emit_detail(device.component, || Event::DataPlaced { queue_pair, psn, address, length });
            }
            Err(_) => {
                self.fail_request(device, cx, Status::LocalProtection);
                return Ok(());
            }
        }
        self.take_response(device, cx, front, psn, is_last);
        Ok(())
    }

    fn receive_atomic<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        original: u64,
    ) -> Result<(), DropReason> {
        let front = self.answered(device, cx, psn)?;
        let work = device.sends.get(front);
        if !work.operation.is_atomic() {
            self.fail_request(device, cx, Status::BadResponse);
            return Ok(());
        }
        // The value on the wire is a number; in memory it stands in the host's order.
        let bytes = original.to_le_bytes();
        match scatter(device, cx, &work.gather, self.domain, 0, Payload::Bytes(&bytes)) {
            Ok(address) => {
                let queue_pair = self.number;
                cx.emit_detail(device.component, || Event::DataPlaced {
                    queue_pair,
                    psn,
                    address,
                    length: 8,
                });
            }
            Err(_) => {
                self.fail_request(device, cx, Status::LocalProtection);
                return Ok(());
            }
        }
        self.take_response(device, cx, front, psn, true);
        Ok(())
    }

    /// A response was taken in: the READ or atomic moves on, or is done.
    fn take_response<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        front: Handle,
        psn: Psn,
        is_last: bool,
    ) {
        let before = self.requester.unacked;
        let waits = !is_last && self.is_lost(psn);
        self.requester.unacked = psn.plus(1);
        let work = device.sends.get_mut(front);
        work.received += 1;
        if self.requester.cursor == front {
            // It waits to be asked for again: ask for less, or not at all.
            self.requester.packet = work.received;
            if is_last {
                self.requester.cursor = device.sends.next(front);
                self.requester.packet = 0;
            }
        }
        if is_last {
            self.complete_front(device, cx);
        }
        self.after_progress(device, cx, before);
        if waits {
            self.lose_rest(psn.plus(1));
        } else if is_last {
            self.acknowledge_answered(device, cx);
        }
    }

    /// Learns how many receives the peer has. An answer that was overtaken cannot take a promise back.
    fn take_credits(&mut self, device: &mut Device, aeth: Aeth) {
        let Syndrome::Ack { credits } = aeth.syndrome else { return };
        if !device.config.behaviour.credits {
            return;
        }
        // 31: the peer does not use credits, so there is no limit.
        let credits = CREDITS.get(usize::from(credits)).copied().unwrap_or(Psn::WINDOW - 1);
        let limit = Psn::new(aeth.msn).plus(credits);
        if limit.is_after(Psn::new(self.requester.credit_limit)) {
            self.requester.credit_limit = limit.value();
            self.mark_data_ready(device);
        }
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
