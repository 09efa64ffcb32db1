//! Looking ahead in a large network, whose packets and queue pairs are more than a cache holds.
//!
//! One by one, each is waited for when it is needed. A processor that looks at many which do not depend on each other
//! waits for all of them at once. So what a moment will need is looked at before the moment comes. Nothing changes by it.

use railnet_core::event::Sink;
use railnet_topology::Vertex;

use crate::engine::{Event, LARGE};
use crate::network::Network;

/// Fewer packets than this are not worth a look.
const FEW: usize = 3;

impl<S: Sink> Network<S> {
    /// Looks at the packets that a switch will deal with in its turn.
    pub(crate) fn look_ahead_at(&self, switch: u32) {
        let (Some(windows), true) = (&self.windows, self.host_count >= LARGE) else { return };
        let mut seen = 0;
        for event in windows.ahead() {
            if let Event::Arrive { packet, .. } = event {
                seen ^= self.packets.facts[*packet as usize].bytes;
            }
        }
        for egress in &self.switches[switch as usize].ports {
            for queue in &self.channels[*egress as usize].queues {
                seen ^= queue
                    .iter(&self.packets)
                    .next()
                    .map_or(0, |first| self.packets.facts[first as usize].bytes);
            }
        }
        std::hint::black_box(seen);
    }

    /// Looks at the packets that come to hosts in the next few nanoseconds, and at the queue pairs that they are for.
    #[inline]
    pub(crate) fn look_ahead_at_hosts(&mut self) {
        if self.host_count >= LARGE && self.calendar.is_fresh() {
            self.look_at_hosts();
        }
    }

    fn look_at_hosts(&mut self) {
        let Self { calendar, packets, channels, hosts, coming, .. } = self;
        coming.clear();
        coming.extend(calendar.fresh().filter_map(|event| match *event {
            Event::Arrive { channel, packet } => Some((channel, packet)),
            _ => None,
        }));
        if coming.len() < FEW {
            return;
        }
        // Each look needs what the one before it has brought.
        let mut seen = 0;
        for (channel, packet) in &*coming {
            seen ^= packets.facts[*packet as usize].bytes ^ channels[*channel as usize].reverse;
        }
        for (_, packet) in &*coming {
            seen ^= packets.headers(*packet).map_or(0, |contents| contents.payload.length());
        }
        for (channel, packet) in &*coming {
            if let Vertex::Host(host) = channels[*channel as usize].to
                && let Some(contents) = packets.headers(*packet)
            {
                seen ^= hosts[host as usize].nic.look_at(contents.headers.bth.destination);
            }
        }
        std::hint::black_box(seen);
    }
}
