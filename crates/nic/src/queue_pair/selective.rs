//! The requester under selective repeat: what arrived, what is missing, what is sent again.
//!
//! The cursor of new packets never goes back here. What is sent again is on the scoreboard, and goes first.

use std::ops::Range;

use railnet_core::event::{Event, RetryReason, Sink};
use railnet_core::{Bytes, Psn, Time};
use railnet_wire::SelectiveAck;

use super::{Requester, Shared, State};
use crate::completion::Status;
use crate::context::Context;
use crate::device::Device;
use crate::memory::Memory;
use crate::packet::Transmit;
use crate::pool::Handle;
use crate::recovery::{Scoreboard, Serial};
use crate::timer::Timer;

impl Requester {
    fn scoreboard(&mut self) -> &mut Scoreboard {
        let unacked = self.unacked;
        self.scoreboard.get_or_insert_with(|| Box::new(Scoreboard::new(unacked)))
    }

    /// How many of the packets between the oldest in doubt and a newer one the network holds.
    #[inline]
    pub(super) fn in_network(&self, in_flight: u32) -> u32 {
        let absent = self.scoreboard.as_ref().map_or(0, |board| board.absent());
        in_flight.saturating_sub(absent)
    }

    /// An answer was taken in: what it tells of packets that came early, and what that shows to be lost.
    pub(super) fn review<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        told: Option<&SelectiveAck>,
    ) {
        if !matches!(shared.state, State::ReadyToSend | State::SendQueueDrain) {
            return;
        }
        if let Some(told) = told
            && self.is_waiting()
        {
            let sent = self.sent;
            let wait = device.config.behaviour.spurious_timeout_wait;
            let news = self.scoreboard().note(told, sent, cx.now, wait);
            if news > 0 {
                self.after_arrivals(shared, device, cx, news);
            }
        }
        self.find_losses(shared, device, cx);
    }

    /// The peer has so many packets more: the clock starts afresh, and there may be room for others.
    fn after_arrivals<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        news: u32,
    ) {
        if shared.deadlines.is_set(Timer::Acknowledgement) {
            self.arm_acknowledgement(shared, device, cx.now);
        }
        // Now, and not when the gap before them is filled: that wait is not the network's.
        let measured = self.samples.as_mut().zip(self.scoreboard.as_ref());
        let round_trip =
            measured.and_then(|(samples, board)| samples.take_arrived(|psn| board.has_arrived(psn), cx.now));
        if !shared.control.is_none() {
            let bytes = Bytes(u64::from(news) * u64::from(shared.mtu.bytes()));
            self.tell_control(shared, device, cx, bytes, round_trip);
        }
        if self.cursor.is_some() {
            shared.mark_data_ready(device);
        }
    }

    /// Looks for packets that must be taken for lost by now.
    pub(super) fn find_losses<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        let Some(mut board) = self.scoreboard.take() else {
            return;
        };
        let mut found = Vec::new();
        // While the peer has no receive it drops what it expects: that is missing, and not lost.
        if self.is_waiting() && !shared.deadlines.is_set(Timer::ReceiverNotReady) {
            board.ripen(cx.now, device.config.recovery.reordering());
            board.lose_resent(&mut found);
            if let Some(range) = board.take_unchecked() {
                self.lose_requests(device, &mut board, range, &mut found);
            }
        }
        self.scoreboard = Some(board);
        if !found.is_empty() {
            self.take_losses(shared, device, cx, &found);
        }
        self.settle_scoreboard(shared, device);
    }

    /// Takes for lost those of `range` that were sent and have not arrived. A READ takes many sequence numbers, and only
    /// the first was sent.
    fn lose_requests(
        &self,
        device: &Device,
        board: &mut Scoreboard,
        range: Range<Serial>,
        found: &mut Vec<Serial>,
    ) {
        let mut at = self.queue.front();
        let mut start = board.serial_of_begun(device.sends.get(at).first);
        while at.is_some() && start < range.end {
            let work = device.sends.get(at);
            let end = start + Serial::from(work.packets);
            let mut lose = |serial| {
                if board.lose_first(serial) {
                    found.push(serial);
                }
            };
            if !work.operation.reads() {
                (start.max(range.start)..end.min(range.end)).for_each(lose);
            } else if range.contains(&start) {
                lose(start);
            }
            (start, at) = (end, device.sends.next(at));
        }
    }

    /// Packets were lost: each will be sent again by itself.
    fn take_losses<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        found: &[Serial],
    ) {
        let (queue_pair, sent) = (shared.number, self.sent);
        let board = self.scoreboard();
        let is_first = board.begin_episode(sent);
        // Nothing moves without the oldest: like a NAK for it, that uses up a retry.
        let needs_retry = found.contains(&board.oldest());
        let missing: Vec<Psn> = found.iter().map(|&serial| board.psn(serial)).collect();
        if needs_retry && !self.take_retry(device) {
            self.fail_request(shared, device, cx, Status::RetryExceeded);
            return;
        }
        if is_first {
            shared.notice_loss(device, cx);
        }
        for from in missing {
            let reason = RetryReason::Missing;
            cx.emit(device.component, || Event::Retransmitting { queue_pair, from, reason });
        }
        self.arm_acknowledgement(shared, device, cx.now);
    }

    /// Forgets a scoreboard that tells nothing; otherwise has the clock set and the queue pair in line as it needs.
    fn settle_scoreboard(&mut self, shared: &mut Shared, device: &mut Device) {
        let reordering = device.config.recovery.reordering();
        let Some(board) = &self.scoreboard else {
            return;
        };
        if board.is_over() || !self.is_waiting() {
            self.scoreboard = None;
            shared.deadlines.clear(Timer::Reordering);
            return;
        }
        let has_lost = board.next_lost().is_some();
        // While it waits for the peer's receive nothing is taken for lost.
        let waits = shared.deadlines.is_set(Timer::ReceiverNotReady);
        match board.next_due(reordering).filter(|_| !waits) {
            Some(due) => device.timers.set(&mut shared.deadlines, shared.slot, Timer::Reordering, due),
            None => shared.deadlines.clear(Timer::Reordering),
        }
        if has_lost {
            shared.mark_data_ready(device);
        }
    }

    /// Starts again without going back, for want of an answer or of a receive: with the oldest packet in doubt alone,
    /// even if it had arrived, for the peer may have dropped it. The answer to it tells what else is missing. Where the
    /// peer keeps nothing and says so by a NAK, with all that is missing.
    pub(super) fn repeat<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        from: Psn,
        reason: RetryReason,
    ) {
        let sent = self.sent;
        self.scoreboard().begin_episode(sent);
        if reason != RetryReason::SequenceNak {
            self.scoreboard().lose_oldest();
        } else if let Some(mut board) = self.scoreboard.take() {
            let all = board.serial(from)..board.serial(sent);
            board.lose(all.start);
            self.lose_requests(device, &mut board, all, &mut Vec::new());
            self.scoreboard = Some(board);
        }
        self.after_repeat(shared, device, cx, from, reason);
    }

    /// An answer to `evidence` shows that one to `missing` was lost. All READs and atomics from there on are asked for
    /// again: their answers come in order, or are of no use.
    pub(super) fn miss_response<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        missing: Psn,
        evidence: Psn,
    ) {
        let sent = self.sent;
        let board = self.scoreboard();
        board.note_answered(evidence);
        if !board.is_news(missing, evidence) {
            return;
        }
        let is_first = board.begin_episode(sent);
        if !self.take_retry(device) {
            self.fail_request(shared, device, cx, Status::RetryExceeded);
            return;
        }
        if is_first {
            shared.notice_loss(device, cx);
        }
        let mut at = self.queue.front();
        while at.is_some() {
            let work = device.sends.get(at);
            if !work.started && !work.operation.is_local() {
                break;
            }
            let (asks, psn) = (work.operation.reads(), work.first.plus(work.received));
            if asks {
                let board = self.scoreboard();
                board.lose(board.serial(psn));
            }
            at = device.sends.next(at);
        }
        self.after_repeat(shared, device, cx, missing, RetryReason::ResponseLost);
    }

    fn after_repeat<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        from: Psn,
        reason: RetryReason,
    ) {
        if let Some(samples) = &mut self.samples {
            samples.clear();
        }
        let queue_pair = shared.number;
        cx.emit(device.component, || Event::Retransmitting { queue_pair, from, reason });
        self.arm_acknowledgement(shared, device, cx.now);
        shared.mark_data_ready(device);
    }

    /// Whether this one waits to be sent again.
    pub(super) fn is_lost(&self, psn: Psn) -> bool {
        self.scoreboard.as_ref().is_some_and(|board| board.is_lost(psn))
    }

    /// A READ waited to be asked for again and some of its answer came: what is left is asked for from `psn` on.
    pub(super) fn lose_rest(&mut self, psn: Psn) {
        let board = self.scoreboard();
        board.lose(board.serial(psn));
    }

    /// A READ or atomic is done: what was carried out after it is, as far as the peer has told so already.
    pub(super) fn acknowledge_answered<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        if let Some(psn) = self.scoreboard.as_ref().and_then(|board| board.answered()) {
            // Answers to the READs after it that are missing were asked for again together with its own.
            let _ = self.acknowledge_through_work(shared, device, cx, psn);
        }
    }

    /// The next packet that is sent again, if there is one.
    #[cold]
    pub(super) fn resend_lost<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> Option<bool> {
        let psn = self.scoreboard.as_ref()?.next_lost()?;
        let handle = self.work_of(device, psn);
        let work = device.sends.get(handle);
        let packet = psn.value().wrapping_sub(work.first.value()) & Psn::MASK;
        debug_assert!(
            !work.operation.reads() || packet == work.received,
            "a READ is asked for where it stands"
        );
        Some(self.build_request::<true, _, _>(shared, device, cx, (handle, packet), out, slot))
    }

    /// The work in flight that a sequence number belongs to.
    pub(super) fn work_of(&self, device: &Device, psn: Psn) -> Handle {
        let mut at = self.queue.front();
        while at.is_some() {
            let work = device.sends.get(at);
            if psn.value().wrapping_sub(work.first.value()) & Psn::MASK < work.packets {
                break;
            }
            at = device.sends.next(at);
        }
        at
    }

    /// A packet is sent again.
    pub(super) fn note_resent<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &Context<'_, M, S>,
        psn: Psn,
        takes: u32,
    ) {
        device.counters.resent += 1;
        let sent = self.sent;
        // An answer that comes sooner than any did is to the first transmission.
        let shortest = self.samples.as_ref().and_then(|samples| samples.shortest());
        let answered_after = shortest.map_or(Time::NEVER, |shortest| cx.now + shortest);
        self.scoreboard().note_resent(psn, sent, answered_after);
        self.transmission = self.transmission.wrapping_add(1).max(1);
        self.ask_through(psn.plus(takes - 1));
        if let Some(samples) = &mut self.samples {
            samples.forget(psn);
        }
        if psn == self.unacked || !shared.deadlines.is_set(Timer::Acknowledgement) {
            self.arm_acknowledgement(shared, device, cx.now);
        }
    }
}
