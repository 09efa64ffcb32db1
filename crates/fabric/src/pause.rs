//! Priority flow control: who tells whom to stop, and who obeys.

use railnet_core::Span;
use railnet_core::event::Sink;

use crate::channel::Channel;
use crate::config::FlowControl;
use crate::event::{Event, rank};
use crate::network::Network;
use crate::packet::{Facts, Flag, Flags, PacketIndex};
use crate::waiting::{NO_INGRESS, Waiting};

/// Bytes of a pause frame on the wire, preamble and gap included.
const PAUSE_BYTES: u16 = 84;
/// The longest pause a frame can ask for, in units of 512 bit times (IEEE 802.3 31B.2).
const PAUSE_QUANTA: u64 = 65_535;

impl<S: Sink> Network<S> {
    pub(crate) fn check_stop(&mut self, switch: u32, ingress: u32, priority: usize) {
        let channel = &mut self.channels[ingress as usize];
        if self.config.flow_control != FlowControl::Pfc || channel.lossless & 1 << priority == 0 {
            return;
        }
        let is_told = channel.told_to_stop & 1 << priority != 0;
        let held = &self.held[ingress as usize];
        if !is_told && self.switches[switch as usize].should_stop(held, priority) {
            channel.told_to_stop |= 1 << priority;
            self.switches[switch as usize].stopped += 1;
            self.send_pause(ingress, priority, PAUSE_QUANTA as u32);
        }
    }

    /// Sends a pause frame to the sender of `ingress`; a pause of 0 ends one.
    pub(crate) fn send_pause(&mut self, ingress: u32, priority: usize, quanta: u32) {
        let back = self.channels[ingress as usize].reverse;
        self.wake_before_now(back);
        let facts = Facts {
            bytes: PAUSE_BYTES,
            target: 1 << priority,
            hash: quanta,
            priority: 7,
            flags: Flags::NONE.with(Flag::Pause, true),
            ..Facts::NOTHING
        };
        let packet = self.packets.take(facts);
        *self.packets.contents.get_mut(packet) = None;
        let waiting = Waiting::new(packet, &facts, NO_INGRESS, 7);
        self.channels[back as usize].push_urgent(&mut self.room, waiting);
        self.send_next(back);
        if quanta > 0 {
            let span = pause_span(&self.channels[ingress as usize], quanta);
            let Channel { sender, from, .. } = self.channels[back as usize];
            let event = Event::PauseAgain { channel: ingress, priority: priority as u8 };
            self.schedule_at(from, self.now + span / 2, rank::PAUSE, sender, event);
        }
    }

    pub(crate) fn pause_again(&mut self, ingress: u32, priority: u8) {
        if self.channels[ingress as usize].told_to_stop & 1 << priority != 0 {
            self.send_pause(ingress, usize::from(priority), PAUSE_QUANTA as u32);
        }
    }

    /// A pause frame comes out of a channel.
    #[cold]
    pub(crate) fn take_pause(&mut self, channel: u32, packet: PacketIndex) {
        let is_damaged = self.packets.facts[packet as usize].is(Flag::Corrupt);
        let (priorities, quanta) = self.read_pause(packet);
        self.packets.release(packet);
        // A damaged one fails the check sequence of its frame, and nobody hears of it.
        if !is_damaged {
            let egress = self.channels[channel as usize].reverse;
            self.obey_pause(egress, priorities, quanta);
        }
    }

    /// The sender of a channel was told to stop, or to go on.
    pub(crate) fn obey_pause(&mut self, egress: u32, priorities: u8, quanta: u32) {
        self.wake_before_now(egress);
        let now = self.now;
        // A port obeys for the priorities that it would itself send pauses for.
        let port = self.channels[egress as usize].reverse;
        let priorities = priorities & self.channels[port as usize].lossless;
        if priorities == 0 {
            return;
        }
        let channel = &mut self.channels[egress as usize];
        channel.counters.pauses += u64::from(quanta > 0);
        let until = now + pause_span(channel, quanta);
        for priority in (0..8).filter(|priority| priorities & 1 << priority != 0) {
            channel.pause_until[priority] = until;
        }
        let (sender, from, before) = (channel.sender, channel.from, channel.paused);
        let paused = if quanta > 0 { channel.paused | priorities } else { channel.paused & !priorities };
        channel.set_paused(now, paused);
        self.note_pauses(egress, before);
        if quanta > 0 {
            self.schedule_at(from, until, rank::PAUSE, sender, Event::PauseEnd { channel: egress });
        } else {
            self.resume(egress);
        }
    }

    pub(crate) fn pause_end(&mut self, egress: u32) {
        self.wake_before_now(egress);
        let now = self.now;
        let channel = &mut self.channels[egress as usize];
        let over = (0..8).filter(|&priority| channel.pause_until[priority] <= now);
        let over = over.fold(0u8, |bits, priority| bits | 1 << priority);
        let (before, paused) = (channel.paused, channel.paused & !over);
        if paused != before {
            channel.set_paused(now, paused);
            self.note_pauses(egress, before);
            self.resume(egress);
        }
    }

    /// A host that stops its switch and does not let go: each pause is told again before it runs out.
    pub(crate) fn pause_for_ever(&mut self, host: u32) {
        let egress = self.egress_of(host);
        let from_switch = self.channels[egress as usize].reverse;
        let lossless = self.config.lossless;
        for priority in (0..8).filter(|priority| lossless & 1 << priority != 0) {
            self.channels[from_switch as usize].told_to_stop |= 1 << priority;
            self.send_pause(from_switch, priority, PAUSE_QUANTA as u32);
        }
    }

    /// A host that stopped its switch lets it go on.
    pub(crate) fn let_go(&mut self, host: u32) {
        let egress = self.egress_of(host);
        let from_switch = self.channels[egress as usize].reverse;
        let told = std::mem::take(&mut self.channels[from_switch as usize].told_to_stop);
        for priority in (0..8).filter(|priority| told & 1 << priority != 0) {
            self.send_pause(from_switch, priority, 0);
        }
    }
}

fn pause_span(channel: &Channel, quanta: u32) -> Span {
    channel.serialize(64) * u64::from(quanta)
}
