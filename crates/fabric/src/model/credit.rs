//! Link-level credits, as InfiniBand has them: how much the receiver has room for.

use railnet_core::event::{Event as Observed, Sink};

use crate::engine::event::{Event, rank};
use crate::network::Network;

impl<S: Sink> Network<S> {
    /// Space at the end of a channel is free: its sender will hear of the credit.
    pub(crate) fn return_credit(&mut self, ingress: u32, priority: u8, bytes: u32) {
        let channel = &self.fabric.channels[ingress as usize];
        let (at, by) = (self.now + channel.delay, self.fabric.channels[channel.reverse as usize].sender);
        let event = Event::Credit { channel: ingress, priority, bytes };
        self.schedule_at(channel.from, at, rank::CREDIT, by, event);
    }

    /// The sender of a channel hears of credit.
    pub(crate) fn take_credit(&mut self, egress: u32, priority: u8, bytes: u32) {
        let priority = usize::from(priority & 7);
        self.fabric.channels[egress as usize].credits[priority] += bytes;
        if S::DETAIL {
            self.emit_credit_wait(egress, priority);
        }
        self.resume(egress);
    }

    /// Emits when a channel begins to wait for credit, and when it has some again. Which ones wait is kept only where a sink
    /// wants details.
    pub(crate) fn emit_credit_wait(&mut self, egress: u32, priority: usize) {
        let (waits, bit) = (self.fabric.is_held(egress, priority), 1 << priority);
        let recorded = &mut self.observers.credit_waits[egress as usize];
        if (*recorded & bit != 0) == waits {
            return;
        }
        *recorded ^= bit;
        let (port, priority) = (self.fabric.port_of(egress), priority as u8);
        let event = match waits {
            true => Observed::CreditAwaited { port, priority },
            false => Observed::CreditFound { port, priority },
        };
        self.emit_at_sender(egress, &event);
    }
}
