//! How fast a queue pair may send: the rate limiter, and the clock of congestion control.

use railnet_core::event::{Event, Sink};
use railnet_core::{Bytes, Rate, Span, Time};

use super::Shared;
use crate::context::Context;
use crate::device::Device;
use crate::memory::Memory;
use crate::packet::reframed;
use crate::timer::Timer;

impl Shared {
    /// Charges the rate limiter, and lets the algorithm's byte counter run.
    pub(crate) fn pace<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        bytes: Bytes,
    ) {
        let bytes = reframed(bytes, device.config.framing);
        let before = self.control.rate();
        self.control.on_sent(&device.config.control, cx.now, bytes);
        self.after_control(device, cx, before);
        if let Some(rate) = self.control.rate() {
            self.send_after = self.send_after.max(cx.now) + rate.serialize(bytes);
        }
    }

    /// Congestion control may have moved: tell the rate, set its clock.
    pub(crate) fn after_control<M: Memory, S: Sink>(
        &mut self,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        before: Option<Rate>,
    ) {
        let (after, queue_pair) = (self.control.rate(), self.number);
        if after != before {
            let line = device.config.ports[usize::from(self.port)].rate;
            let rate = after.unwrap_or(line);
            self.rescale_pace(device, cx.now, before.unwrap_or(line), rate);
            cx.emit(device.component, || Event::RateChanged { queue_pair, rate });
        }
        self.set_clock(device);
    }

    /// The clock of congestion control runs only while the queue pair waits for the rate limiter, which each tick may let it
    /// go sooner: a cluster has many connections that once met congestion and are silent, or wait for their turn. Call this
    /// before its state is used: what was missed is made up for, each tick as if it had been seen in its time, and the rate is
    /// told as it is by now.
    #[inline]
    pub(crate) fn wake_clock<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        if self.control.next_timer() < cx.now {
            self.make_up_for_ticks(device, cx);
        }
    }

    #[cold]
    fn make_up_for_ticks<M: Memory, S: Sink>(&mut self, device: &mut Device, cx: &mut Context<'_, M, S>) {
        let line = device.config.ports[usize::from(self.port)].rate;
        let first = self.control.rate();
        loop {
            // What is due now has its own turn, after all else of this moment.
            let tick = self.control.next_timer();
            if tick >= cx.now {
                break;
            }
            let before = self.control.rate().unwrap_or(line);
            self.control.handle_timer(&device.config.control, tick);
            self.rescale_pace(device, tick, before, self.control.rate().unwrap_or(line));
        }
        let (last, queue_pair) = (self.control.rate(), self.number);
        if last != first {
            let rate = last.unwrap_or(line);
            cx.emit(device.component, || Event::RateChanged { queue_pair, rate });
        }
    }

    /// It waits for the rate limiter, and the clock of congestion control runs.
    pub(crate) fn wait_for_pace(&mut self, device: &mut Device) {
        device.timers.set(&mut self.deadlines, self.slot, Timer::Pace, self.send_after);
        self.set_clock(device);
    }

    fn set_clock(&mut self, device: &mut Device) {
        let next = self.control.next_timer();
        if next.is_set() && self.deadlines.is_set(Timer::Pace) {
            device.timers.set(&mut self.deadlines, self.slot, Timer::CongestionControl, next);
        } else {
            self.deadlines.clear(Timer::CongestionControl);
        }
    }

    /// What is owed to the rate limiter is bytes, not time: at another rate the wait is another. Without this a queue
    /// pair that was once cut to a crawl would wait for milliseconds although its rate came back long ago.
    fn rescale_pace(&mut self, device: &mut Device, now: Time, before: Rate, after: Rate) {
        if self.send_after <= now {
            return;
        }
        let left = u128::from(self.send_after.since(now).as_ps()) * u128::from(before.as_bps())
            / u128::from(after.as_bps().max(1));
        self.send_after = now + Span::from_ps(u64::try_from(left).unwrap_or(u64::MAX));
        if self.deadlines.is_set(Timer::Pace) {
            self.mark_data_ready(device);
        }
    }
}
