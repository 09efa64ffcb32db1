//! The requester's patience: timers, going back to send again, giving up.

use railnet_core::event::{Event, RetryReason, Sink};
use railnet_core::{Psn, Span};

use super::QueuePair;
use crate::completion::Status;
use crate::context::Context;
use crate::device::Device;
use crate::memory::Memory;
use crate::recovery::LossRecovery;
use crate::timer::Timer;

/// How often timeouts in a row double.
const BACKOFF_MAX: u8 = 5;

impl QueuePair {
    /// Starts again from `psn`, in the way of the loss recovery.
    pub(crate) fn go_back<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        reason: RetryReason,
    ) {
        if self.recovery.is_selective() {
            self.repeat(device, cx, psn, reason);
            return;
        }
        let mut at = self.work_of(device, psn);
        if !at.is_some() {
            return;
        }
        let work = device.sends.get(at);
        self.requester.cursor = at;
        self.requester.packet = match work.operation.reads() {
            true => work.received,
            false => psn.value().wrapping_sub(work.first.value()) & Psn::MASK,
        };
        while at.is_some() {
            let work = device.sends.get_mut(at);
            if !work.started {
                break;
            }
            if std::mem::take(&mut work.counted) {
                self.requester.reads -= 1;
            }
            at = device.sends.next(at);
        }
        self.requester.transmission = self.requester.transmission.wrapping_add(1).max(1);
        self.requester.since_request = 0;
        if let Some(samples) = &mut self.requester.samples {
            samples.clear();
        }
        let queue_pair = self.number;
        cx.emit(device.component, || Event::Retransmitting { queue_pair, from: psn, reason });
        self.arm_acknowledgement(device, cx.now);
        self.mark_data_ready(device);
    }

    /// One of this queue pair's timers came up.
    pub(crate) fn handle_timer<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        timer: Timer,
    ) {
        match timer {
            Timer::Acknowledgement => self.handle_timeout(device, cx),
            Timer::ReceiverNotReady => {
                // All of it may have been acknowledged meanwhile: then there is nothing to go back to.
                if self.requester.is_waiting() {
                    let from = self.requester.unacked;
                    self.go_back(device, cx, from, RetryReason::ReceiverNotReady);
                }
                self.mark_data_ready(device);
            }
            Timer::Pace => {
                self.deadlines.clear(Timer::CongestionControl);
                self.mark_data_ready(device);
            }
            Timer::Reordering => self.find_losses(device, cx),
            Timer::CongestionControl if self.is_idle(device) => {}
            Timer::CongestionControl => {
                let before = self.control.rate();
                self.control.handle_timer(&device.config.control, cx.now);
                self.after_control(device, cx, before);
            }
        }
    }

    fn handle_timeout<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        if !self.requester.is_waiting() {
            return;
        }
        device.counters.timeouts += 1;
        self.requester.recovering = false;
        if !self.take_retry(device) {
            self.fail_request(device, cx, Status::RetryExceeded);
            return;
        }
        let before = self.control.rate();
        self.control.on_timeout(&device.config.control, cx.now);
        self.after_control(device, cx, before);
        if device.config.behaviour.spurious_timeout_wait != Span::ZERO {
            self.requester.backoff = (self.requester.backoff + 1).min(BACKOFF_MAX);
        }
        let from = self.recovery.on_timeout(self.requester.unacked);
        self.go_back(device, cx, from, RetryReason::Timeout);
    }

    /// Uses up a retry; `false` when none is left.
    pub(crate) fn take_retry(&mut self, device: &Device) -> bool {
        if self.requester.retry_count == 7 && device.config.behaviour.retry_seven_is_infinite {
            return true;
        }
        if self.requester.retries == 0 {
            return false;
        }
        self.requester.retries -= 1;
        true
    }
}
