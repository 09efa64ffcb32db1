//! The requester's timers: timeouts, going back to send again, giving up.

use railnet_core::event::{Event, RetryReason, Sink};
use railnet_core::{Psn, Span};

use super::{Requester, Shared};
use crate::completion::Status;
use crate::context::Context;
use crate::device::Device;
use crate::memory::Memory;
use crate::recovery::LossRecovery;

/// How often timeouts in a row double.
const BACKOFF_MAX: u8 = 5;

impl Requester {
    /// Starts again from `psn`, in the way of the loss recovery.
    pub(crate) fn go_back<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        reason: RetryReason,
    ) {
        if shared.recovery.is_selective() {
            self.repeat(shared, device, cx, psn, reason);
            return;
        }
        let mut at = self.work_of(device, psn);
        if !at.is_some() {
            return;
        }
        let work = device.sends.get(at);
        self.cursor = at;
        self.packet = match work.operation.reads() {
            true => work.received,
            false => psn.value().wrapping_sub(work.first.value()) & Psn::MASK,
        };
        while at.is_some() {
            let work = device.sends.get_mut(at);
            if !work.started {
                break;
            }
            if std::mem::take(&mut work.counted) {
                self.reads -= 1;
            }
            at = device.sends.next(at);
        }
        self.transmission = self.transmission.wrapping_add(1).max(1);
        self.since_request = 0;
        if let Some(samples) = &mut self.samples {
            samples.clear();
        }
        let queue_pair = shared.number;
        cx.emit(device.component, || Event::Retransmitting { queue_pair, from: psn, reason });
        self.arm_acknowledgement(shared, device, cx.now);
        shared.mark_data_ready(device);
    }

    /// The peer asked to wait for its receive, and that time is over.
    pub(super) fn handle_receiver_wait<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        // All of it may have been acknowledged meanwhile: then there is nothing to go back to.
        if self.is_waiting() {
            let from = self.unacked;
            self.go_back(shared, device, cx, from, RetryReason::ReceiverNotReady);
        }
        shared.mark_data_ready(device);
    }

    /// No acknowledgement came in time.
    pub(super) fn handle_timeout<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
    ) {
        if !self.is_waiting() {
            return;
        }
        device.counters.timeouts += 1;
        self.recovering = false;
        if !self.take_retry(device) {
            self.fail_request(shared, device, cx, Status::RetryExceeded);
            return;
        }
        let before = shared.control.rate();
        shared.control.on_timeout(&device.config.control, cx.now);
        shared.after_control(device, cx, before);
        if device.config.behaviour.spurious_timeout_wait != Span::ZERO {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        }
        let from = shared.recovery.on_timeout(self.unacked);
        self.go_back(shared, device, cx, from, RetryReason::Timeout);
    }

    /// Uses up a retry; `false` when none is left.
    pub(crate) fn take_retry(&mut self, device: &Device) -> bool {
        if self.retry_count == 7 && device.config.behaviour.retry_seven_is_infinite {
            return true;
        }
        if self.retries == 0 {
            return false;
        }
        self.retries -= 1;
        true
    }
}
