//! Priority flow control (IEEE 802.1Qbb): which port sends XOFF and XON, and what a port that receives them does.

use railnet_core::Span;
use railnet_core::event::Sink;

use crate::engine::event::{Event, rank};
use crate::model::channel::Channel;
use crate::model::config::FlowControl;
use crate::model::packet::{Flag, Flags, PacketIndex, PacketMetadata};
use crate::model::queue::{NO_INGRESS, QueuedPacket};
use crate::network::Network;

/// Bytes of a pause frame on the wire, preamble and gap included.
const PAUSE_BYTES: u16 = 84;
/// The longest pause a frame can ask for, in units of 512 bit times (IEEE 802.3 31B.2).
const PAUSE_QUANTA: u64 = 65_535;

impl<S: Sink> Network<S> {
    pub(crate) fn check_xoff(&mut self, switch: u32, ingress: u32, priority: usize) {
        let channel = &mut self.fabric.channels[ingress as usize];
        if self.fabric.config.flow_control != FlowControl::Pfc || channel.lossless & 1 << priority == 0 {
            return;
        }
        let is_xoff_sent = channel.xoff & 1 << priority != 0;
        let usage = &self.fabric.usage[ingress as usize];
        if !is_xoff_sent && self.fabric.switches[switch as usize].buffer.exceeds_xoff(usage, priority) {
            channel.xoff |= 1 << priority;
            self.fabric.switches[switch as usize].xoff_count += 1;
            self.send_pause(ingress, priority, PAUSE_QUANTA as u32);
        }
    }

    /// Sends a pause frame to the sender of `ingress`: XOFF for so many quanta, or XON for 0.
    pub(crate) fn send_pause(&mut self, ingress: u32, priority: usize, quanta: u32) {
        let back = self.fabric.channels[ingress as usize].reverse;
        self.catch_up_port(back);
        let metadata = PacketMetadata {
            bytes: PAUSE_BYTES,
            target: 1 << priority,
            hash: quanta,
            priority: 7,
            flags: Flags::NONE.with(Flag::Pause, true),
            ..PacketMetadata::NONE
        };
        let packet = self.fabric.packets.take(metadata);
        *self.fabric.packets.headers.get_mut(packet) = None;
        let frame = QueuedPacket::new(packet, &metadata, NO_INGRESS, 7);
        self.fabric.channels[back as usize].push_pause_frame(&mut self.fabric.pool, frame);
        self.send_next(back);
        if quanta > 0 {
            let span = pause_span(&self.fabric.channels[ingress as usize], quanta);
            let Channel { sender, from, .. } = self.fabric.channels[back as usize];
            let event = Event::PauseRefresh { channel: ingress, priority: priority as u8 };
            self.schedule_at(from, self.now + span / 2, rank::PAUSE, sender, event);
        }
    }

    /// Transmits a pause frame that waits in front of a free channel, ahead of all packets.
    #[cold]
    pub(crate) fn send_pause_frame(&mut self, egress: u32) {
        if let Some(frame) = self.fabric.channels[egress as usize].pop_pause_frame(&mut self.fabric.pool) {
            self.start(egress, frame);
            self.schedule_transmit(egress);
        }
    }

    pub(crate) fn refresh_pause(&mut self, ingress: u32, priority: u8) {
        if self.fabric.channels[ingress as usize].xoff & 1 << priority != 0 {
            self.send_pause(ingress, usize::from(priority), PAUSE_QUANTA as u32);
        }
    }

    /// A pause frame comes out of a channel.
    #[cold]
    pub(crate) fn receive_pause(&mut self, channel: u32, packet: PacketIndex) {
        let is_damaged = self.fabric.packets.metadata[packet as usize].is(Flag::Corrupt);
        let (priorities, quanta) = self.fabric.read_pause(packet);
        self.fabric.packets.release(packet);
        // A corrupted one fails the frame check sequence and is dropped.
        if !is_damaged {
            let egress = self.fabric.channels[channel as usize].reverse;
            self.apply_pause(egress, priorities, quanta);
        }
    }

    /// The sender of a channel received XOFF or XON.
    pub(crate) fn apply_pause(&mut self, egress: u32, priorities: u8, quanta: u32) {
        self.catch_up_port(egress);
        let now = self.now;
        // A port obeys for the priorities that it would itself send pause frames for.
        let port = self.fabric.channels[egress as usize].reverse;
        let priorities = priorities & self.fabric.channels[port as usize].lossless;
        if priorities == 0 {
            return;
        }
        let channel = &mut self.fabric.channels[egress as usize];
        channel.counters.pauses += u64::from(quanta > 0);
        let until = now + pause_span(channel, quanta);
        for priority in (0..8).filter(|priority| priorities & 1 << priority != 0) {
            channel.pause_until[priority] = until;
        }
        let (sender, from, before) = (channel.sender, channel.from, channel.paused);
        let paused = if quanta > 0 { channel.paused | priorities } else { channel.paused & !priorities };
        channel.set_paused(now, paused);
        self.emit_pauses(egress, before);
        if quanta > 0 {
            self.schedule_at(from, until, rank::PAUSE, sender, Event::PauseExpiry { channel: egress });
        } else {
            self.resume(egress);
        }
    }

    pub(crate) fn expire_pause(&mut self, egress: u32) {
        self.catch_up_port(egress);
        let now = self.now;
        let channel = &mut self.fabric.channels[egress as usize];
        let over = (0..8).filter(|&priority| channel.pause_until[priority] <= now);
        let over = over.fold(0u8, |bits, priority| bits | 1 << priority);
        let (before, paused) = (channel.paused, channel.paused & !over);
        if paused != before {
            channel.set_paused(now, paused);
            self.emit_pauses(egress, before);
            self.resume(egress);
        }
    }

    /// A host sends XOFF to its switch and never XON: each pause is refreshed before it expires.
    pub(crate) fn begin_pause_storm(&mut self, host: u32) {
        let egress = self.endpoints.hosts[host as usize].egress;
        let from_switch = self.fabric.channels[egress as usize].reverse;
        let lossless = self.fabric.config.lossless;
        for priority in (0..8).filter(|priority| lossless & 1 << priority != 0) {
            self.fabric.channels[from_switch as usize].xoff |= 1 << priority;
            self.send_pause(from_switch, priority, PAUSE_QUANTA as u32);
        }
    }

    /// A host in a pause storm sends XON.
    pub(crate) fn end_pause_storm(&mut self, host: u32) {
        let egress = self.endpoints.hosts[host as usize].egress;
        let from_switch = self.fabric.channels[egress as usize].reverse;
        let xoff = std::mem::take(&mut self.fabric.channels[from_switch as usize].xoff);
        for priority in (0..8).filter(|priority| xoff & 1 << priority != 0) {
            self.send_pause(from_switch, priority, 0);
        }
    }
}

fn pause_span(channel: &Channel, quanta: u32) -> Span {
    channel.serialize(64) * u64::from(quanta)
}
