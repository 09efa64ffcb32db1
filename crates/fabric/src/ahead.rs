//! Looking ahead in a large network, whose packets and queue pairs are more than a cache holds.
//!
//! One by one, each is waited for when it is needed. A processor that looks at many which do not depend on each other
//! waits for all of them at once. So what a moment will need is looked at before the moment comes. Nothing changes by it.

use railnet_core::event::Sink;
use railnet_nic::Transmit;
use railnet_topology::Vertex;

use crate::engine::LARGE;
use crate::event::Event;
use crate::network::{Host, Network};
use crate::packet::{PacketIndex, Packets};

/// With so many hosts what ports count is more than a cache holds, too.
const VAST: u32 = 256;
/// Ports of a switch that are looked at.
const PORTS_MAX: usize = 64;
/// Packets of a queue that are looked at: about as many as leave it in a switch's turn.
const DEEP: usize = 4;
/// Bytes of a packet that is as long as most are where there are many.
const FULL: u32 = 4_096;
/// Fewer packets than this are not worth a look.
const FEW: usize = 3;

impl<S: Sink> Network<S> {
    /// Looks at the packets that a switch will deal with in its turn.
    pub(crate) fn look_ahead_at(&self, switch: u32) {
        let (Some(windows), true) = (&self.windows, self.host_count >= LARGE) else { return };
        let mut seen = 0;
        for arrival in windows.ahead() {
            seen ^= self.packets.facts[arrival.packet as usize].hash;
        }
        // What ports need stays at hand for the rest of a switch's windows.
        if self.host_count >= VAST && windows.is_first_of_turn() {
            seen ^= self.look_at_ports(&self.switches[switch as usize].ports);
        }
        std::hint::black_box(seen);
    }

    /// Looks at what ports count, and where packets wait in front of them: the first of a queue and those behind it, of which about
    /// a row leaves in a switch's turn, and the last. Each look needs what the one before it has brought.
    fn look_at_ports(&self, ports: &[u32]) -> u32 {
        let (mut seen, mut behind) = (0, [0; PORTS_MAX]);
        for egress in ports {
            let channel = &self.channels[*egress as usize];
            seen ^= channel.look_at_sender() ^ self.held[channel.reverse as usize].shared[0];
        }
        for (behind, egress) in behind.iter_mut().zip(ports) {
            if let Some(queue) = self.channels[*egress as usize].long_queue() {
                let [after_first, after_last] = queue.look(&self.room);
                *behind = after_first;
                seen ^= after_last;
            }
        }
        for (row, _) in behind.iter().zip(ports) {
            seen ^= self.room.look(*row);
        }
        // Whoever is marked is told of by name.
        for egress in ports {
            let queue = self.channels[*egress as usize].long_queue();
            let Some(queue) = queue.filter(|queue| self.config.marks && queue.bytes > self.marks_above)
            else {
                continue;
            };
            let mut marks = self.markers[*egress as usize].foresee(queue.bytes);
            for waiting in queue.iter(&self.room).take(DEEP).filter(|waiting| waiting.may_be_marked()) {
                if marks.next() == Some(true) {
                    seen ^= self.packets.facts[waiting.packet() as usize].hash;
                    seen ^= self.channels[*egress as usize].counters.marks as u32;
                }
            }
        }
        seen
    }

    /// Looks at the packets that some islands will deal with in their turns, and at the queue pairs that come next there.
    pub(crate) fn look_ahead_at_some(&mut self, some: impl Iterator<Item = u32> + Clone) {
        let Self { windows, packets, channels, hosts, coming, host_count, .. } = self;
        let (Some(windows), true) = (windows, *host_count >= LARGE) else { return };
        coming.clear();
        let mut seen = 0;
        for island in some.clone() {
            let only_host = windows.islands().only_host(island);
            for arrival in windows.coming(windows.place_of_island(island)) {
                let host = only_host.or_else(|| channels[arrival.channel as usize].to.host());
                coming.extend(host.map(|host| (host, arrival.packet)));
            }
            for host in windows.islands().hosts(island) {
                let host = &hosts[*host as usize];
                seen ^= host.nic.look() ^ channels[host.egress as usize].look_at_sender();
            }
            seen ^= windows.look_at_wakes(island);
        }
        for island in some.clone() {
            for host in windows.islands().hosts(island) {
                seen ^= hosts[*host as usize].nic.look_for_sender();
            }
        }
        let span = windows.span_at_hand().as_ps();
        for island in some {
            for host in windows.islands().hosts(island) {
                let Host { nic, egress, .. } = &hosts[*host as usize];
                let takes = channels[*egress as usize].serialize(FULL).as_ps().max(1);
                nic.look_at_senders((span / takes) as u32);
            }
        }
        std::hint::black_box(seen ^ look_at_coming(packets, hosts, coming));
    }

    /// Looks at the packets that come to hosts in the next few nanoseconds and at the queue pairs that they are for, and at
    /// those that send next where a port is free again.
    #[inline]
    pub(crate) fn look_ahead_at_hosts(&mut self) {
        if self.host_count >= LARGE && self.calendar.is_fresh() {
            self.look_at_hosts();
        }
    }

    fn look_at_hosts(&mut self) {
        let Self { calendar, packets, channels, hosts, coming, .. } = self;
        coming.clear();
        let mut seen = 0;
        for event in calendar.fresh() {
            match event.event() {
                Event::Arrive { channel, packet } => {
                    if let Vertex::Host(host) = channels[channel as usize].to {
                        coming.push((host, packet));
                    }
                }
                Event::Wake { channel } => {
                    if let Vertex::Host(host) = channels[channel as usize].from {
                        hosts[host as usize].nic.look_at_senders(1);
                    }
                }
                _ => {}
            }
        }
        if coming.len() >= FEW {
            seen ^= look_at_coming(packets, hosts, coming);
        }
        std::hint::black_box(seen);
    }
}

/// Looks at packets that come to hosts, and at the queue pairs that they are for. Each look needs what the one before it has
/// brought.
fn look_at_coming(packets: &Packets, hosts: &[Host], coming: &[(u32, PacketIndex)]) -> u32 {
    let mut seen = 0;
    for (_, packet) in coming {
        seen ^= packets.facts[*packet as usize].hash;
    }
    for (_, packet) in coming {
        seen ^= packets.headers(*packet).map_or(0, look_at_contents);
    }
    for (host, packet) in coming {
        if let Some(contents) = packets.headers(*packet) {
            seen ^= hosts[*host as usize].nic.look_for(&contents.headers);
        }
    }
    for (host, packet) in coming {
        if let Some(contents) = packets.headers(*packet) {
            seen ^= hosts[*host as usize].nic.look_at(&contents.headers);
        }
    }
    seen
}

/// A field of every line of the cache that a packet's headers take.
fn look_at_contents(contents: &Transmit) -> u32 {
    let (network, bth) = (&contents.network, &contents.headers.bth);
    contents.payload.length()
        ^ u32::from(network.hop_limit)
        ^ bth.psn.value()
        ^ u32::from(network.target.0[15])
}
