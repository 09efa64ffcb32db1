//! Packets that a switch takes in during its turn, port by port.
//!
//! What a port does concerns no other port while there is memory for all that comes and nobody waits to be told of free memory
//! ([`ports`](crate::engine::transmit)). Where that is certain for a whole turn before it begins, and nothing but packets comes, they are set
//! down in front of the ports that they leave by, in any order, and then each port goes through all that it has to take and to send
//! at once. Otherwise the turn goes in the order of time.

use railnet_core::event::Sink;
use railnet_core::{Span, Time};
use railnet_topology::Vertex;

use crate::engine::arrivals::OFFSET_SHIFT;
use crate::engine::epoch::{Epochs, Outlet};
use crate::engine::event::CHANNELS_MAX;
use crate::engine::transmit::{EventBuffer, cause};
use crate::model::buffer::IngressUsage;
use crate::model::channel::{Channel, NO_LOCAL_LP};
use crate::model::config::{FlowControl, MarksAt, Routing, SwitchConfig};
use crate::model::ecn::Marker;
use crate::model::packet::{Flag, PacketMetadata};
use crate::model::queue::{QueuePool, QueuedPacket};
use crate::model::switch::Switch;
use crate::network::Network;
use crate::observe::emit::{component, marked};

/// A packet that joins the queue of a port.
#[derive(Clone, Copy, Debug)]
struct BinnedPacket {
    /// As that of its [`Arrival`](crate::engine::arrivals::Arrival).
    key: u64,
    waiting: QueuedPacket,
}

/// Packets set down in front of the ports of the switch whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct PortBins {
    /// By port.
    joining: Vec<Vec<BinnedPacket>>,
    /// Ports that have any, so many, and what was of use before.
    ports: Vec<u16>,
    ports_used: usize,
    /// Room to put packets in order.
    spare: Vec<BinnedPacket>,
}

impl BinnedPacket {
    /// When, in picoseconds from the beginning of the turn.
    #[inline]
    fn offset(self) -> Span {
        Span::from_ps(self.key >> OFFSET_SHIFT)
    }

    /// Where the channel that it came by stands among all.
    #[inline]
    fn tie_break(self) -> u32 {
        self.key as u32
    }
}

impl PortBins {
    /// For switches with so many ports.
    pub(crate) fn new(ports: usize) -> Self {
        Self { joining: vec![Vec::new(); ports], ports: vec![0; ports + 1], ports_used: 0, spare: Vec::new() }
    }

    #[inline]
    fn pop_port(&mut self) -> Option<u16> {
        self.ports_used = self.ports_used.checked_sub(1)?;
        Some(self.ports[self.ports_used])
    }

    /// Takes all packets up again.
    fn clear(&mut self) {
        while let Some(port) = self.pop_port() {
            self.joining[usize::from(port)].clear();
        }
    }

    #[inline]
    fn push(&mut self, port: u16, joining: BinnedPacket) {
        let list = &mut self.joining[usize::from(port)];
        // Whether it is the first there cannot be foreseen, so there is no branch for it.
        self.ports[self.ports_used] = port;
        self.ports_used += usize::from(list.is_empty());
        list.push(joining);
    }
}

/// Whether the port that a packet leaves by depends on nothing but the packet, and what it finds there on no other port.
pub(crate) fn is_eligible(config: &SwitchConfig) -> bool {
    config.flow_control != FlowControl::Credits && config.routing == Routing::Ecmp
}

impl<S: Sink> Network<S> {
    /// Sets down all packets that come to a switch in its turn, which is over at `limit`, where it is certain that there is memory for
    /// all of them and that nobody will be told to stop. Otherwise nothing is done.
    pub(crate) fn bin_arrivals(&mut self, switch: u32, limit: Time) -> bool {
        let Self { epochs, packets, switches, usage, routes, batch, .. } = self;
        let Some(epochs) = epochs else { return false };
        let state = &mut switches[switch as usize];
        if !self.can_bin
            || !self.all_links_up
            || state.needs_order()
            || epochs.has_other_events()
            || limit < epochs.end_of_stride()
        {
            return false;
        }
        let arrivals = epochs.active_arrivals();
        let routes = routes.of(switch);
        // Bytes above the reserves, all and most of one port and priority.
        let (mut used, mut most) = (state.buffer.used, 0);
        let mut count = 0;
        for arrival in arrivals {
            let metadata = &mut packets.metadata[arrival.packet as usize];
            if metadata.is(Flag::Pause) {
                break;
            }
            let ports = routes.next_hops(metadata.target);
            if ports.is_empty() {
                break;
            }
            let priority = usize::from(metadata.priority & 7);
            let waiting = QueuedPacket::new(arrival.packet, metadata, arrival.channel, priority);
            let shared = &mut usage[arrival.channel as usize].shared[priority];
            let before = shared.saturating_sub(state.buffer.reserve);
            *shared += waiting.bytes();
            let after = shared.saturating_sub(state.buffer.reserve);
            used += u64::from(after - before);
            most = most.max(after);
            metadata.hops += 1;
            batch.push(state.paths.by_hash(ports, metadata.hash), BinnedPacket { key: arrival.key, waiting });
            count += 1;
        }
        if count == arrivals.len() && state.buffer.is_below_xoff(used, most.into()) {
            state.buffer.used = used;
            self.events += count as u64;
            epochs.clear_arrivals();
            return true;
        }
        for arrival in &arrivals[..count] {
            let metadata = &mut packets.metadata[arrival.packet as usize];
            metadata.hops -= 1;
            usage[arrival.channel as usize].shared[usize::from(metadata.priority & 7)] -=
                u32::from(metadata.bytes);
        }
        batch.clear();
        false
    }

    /// Has each port take what was set down in front of it and send what it should have sent before `until`. Returns when the last
    /// packet was sent by a port that was woken for it.
    pub(crate) fn run_bins(&mut self, switch: u32, until: Time) -> Time {
        let now = self.now;
        let began = self.epochs.as_ref().map_or(Time::ZERO, Epochs::began);
        let mut last = Time::ZERO;
        while let Some(port) = self.batch.pop_port() {
            let mut joining = std::mem::take(&mut self.batch.joining[usize::from(port)]);
            sort(&mut joining, &mut self.batch.spare);
            let egress = self.switches[switch as usize].ports[usize::from(port)];
            if self.is_fast(&self.channels[egress as usize]) {
                last = last.max(self.run_port(switch, egress, &joining, until));
            } else {
                for joining in &joining {
                    self.now = began + joining.offset();
                    self.event_buffer.cause = cause::arrived(joining.tie_break());
                    self.enqueue(switch, egress, joining.waiting);
                }
            }
            joining.clear();
            self.batch.joining[usize::from(port)] = joining;
        }
        (self.now, self.event_buffer.cause) = (now, cause::EVENT);
        last
    }

    /// Has a port send what it should have sent before `until`. Returns when the last packet was.
    pub(crate) fn run_port_until(&mut self, switch: u32, egress: u32, until: Time) -> Time {
        let channel = &self.channels[egress as usize];
        match self.is_fast(channel) && !self.switches[switch as usize].needs_order() {
            true => self.run_port(switch, egress, &[], until),
            false => self.transmit_until(egress, until),
        }
    }

    /// Whether a port does nothing but send what is first.
    fn is_fast(&self, channel: &Channel) -> bool {
        !self.needs_slow_path
            && !self.packets.has_telemetry
            && !channel.needs_slow_path()
            && channel.receiver_lp != NO_LOCAL_LP
            && !channel.has_pause_frame
            && channel.paused == 0
            && channel.is_ready_planned == (channel.occupied != 0)
            && self.config.marks_at == MarksAt::Departure
    }

    fn run_port(&mut self, switch: u32, egress: u32, joining: &[BinnedPacket], until: Time) -> Time {
        let nodes = (self.host_count, self.switches.len() as u32);
        let Self { epochs, packets, channels, switches, usage, pool, markers, event_buffer, .. } = self;
        let Some(epochs) = epochs else { return Time::ZERO };
        let began = epochs.began();
        let channel = &mut channels[egress as usize];
        let mut port = Port {
            egress,
            state: &mut switches[switch as usize],
            usage,
            pool,
            outlet: epochs.outlet(channel.receiver_lp),
            channel,
            marker: &mut markers[egress as usize],
            marks_above: if self.config.marks { self.marks_above } else { u64::MAX },
            metadata: &mut packets.metadata,
            event_buffer,
            nodes,
        };
        let mut last = Time::ZERO;
        let mut joining = joining.iter();
        loop {
            let next = joining.next();
            let time = next.map_or(until, |next| began + next.offset());
            while port.channel.occupied != 0 && port.channel.busy_until < time {
                last = port.channel.busy_until;
                self.events += 1;
                port.send_first::<S>(last, cause::transmit(egress));
            }
            let Some(joining) = next else { break };
            let is_free = port.channel.busy_until <= time;
            if is_free && port.channel.occupied == 0 {
                let counters = &mut port.channel.counters;
                counters.queue_max = counters.queue_max.max(joining.waiting.bytes().into());
                port.send(joining.waiting, time);
                continue;
            }
            port.queue(joining.waiting);
            if is_free {
                // It becomes free at this very moment.
                port.send_first::<S>(time, cause::arrived(joining.tie_break()));
            }
        }
        let Port { channel, state, .. } = port;
        channel.is_ready_planned = channel.occupied != 0;
        if channel.is_ready_planned && !channel.is_listed {
            channel.is_listed = true;
            state.ready_list.push(egress);
        }
        last
    }
}

/// Puts packets that join a queue in order. They are few and came by several channels, so which of two is first cannot be foreseen:
/// up to sixteen are compared in an order that is always the same (K. E. Batcher, Sorting networks and their applications, 1968),
/// without a branch.
fn sort(joining: &mut Vec<BinnedPacket>, spare: &mut Vec<BinnedPacket>) {
    let count = joining.len();
    if count <= 1 {
        return;
    }
    if count > 16 {
        joining.sort_by_key(|joining| joining.key);
        return;
    }
    // Keys with their places in the lowest bits: no channel stands so far back that it would need them.
    const { assert!(CHANNELS_MAX <= 1 << (OFFSET_SHIFT - PLACE_BITS)) };
    let mut keys = [u64::MAX; 16];
    for (place, (key, joining)) in keys.iter_mut().zip(&*joining).enumerate() {
        let offset = joining.key >> OFFSET_SHIFT << OFFSET_SHIFT;
        *key = offset | u64::from(joining.tie_break()) << PLACE_BITS | place as u64;
    }
    let [low, high] = keys.as_chunks_mut::<8>().0 else { return };
    sort_eight(low);
    if count > 8 {
        sort_eight(high);
        merge_eights(&mut keys);
    }
    spare.clear();
    spare.extend(keys[..count].iter().map(|key| joining[(*key & PLACE_MASK) as usize]));
    std::mem::swap(joining, spare);
}

const PLACE_BITS: u32 = 4;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

#[inline]
fn exchange<const COUNT: usize>(keys: &mut [u64; COUNT], one: usize, other: usize) {
    let (a, b) = (keys[one], keys[other]);
    (keys[one], keys[other]) = (a.min(b), a.max(b));
}

#[inline]
fn sort_eight(keys: &mut [u64; 8]) {
    for (one, other) in [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (1, 2), (5, 6)] {
        exchange(keys, one, other);
    }
    for (one, other) in [(0, 4), (1, 5), (2, 6), (3, 7), (2, 4), (3, 5), (1, 2), (3, 4), (5, 6)] {
        exchange(keys, one, other);
    }
}

/// Puts two times eight that are in order in order together.
#[inline]
fn merge_eights(keys: &mut [u64; 16]) {
    for step in 0..8 {
        exchange(keys, step, step + 8);
    }
    for step in 4..8 {
        exchange(keys, step, step + 4);
    }
    for (one, other) in [(2, 4), (3, 5), (6, 8), (7, 9), (10, 12), (11, 13)] {
        exchange(keys, one, other);
    }
    for step in [1, 3, 5, 7, 9, 11, 13] {
        exchange(keys, step, step + 1);
    }
}

/// A port with all that it needs to take and send packets.
struct Port<'a> {
    egress: u32,
    channel: &'a mut Channel,
    state: &'a mut Switch,
    usage: &'a mut [IngressUsage],
    pool: &'a mut QueuePool,
    outlet: Outlet<'a>,
    marker: &'a mut Marker,
    /// Bytes below which it never marks.
    marks_above: u64,
    metadata: &'a mut [PacketMetadata],
    event_buffer: &'a mut EventBuffer,
    /// How many hosts and switches there are.
    nodes: (u32, u32),
}

#[allow(clippy::inline_always, reason = "they are called for each packet-hop, from one or two places")]
impl Port<'_> {
    /// A packet joins the end of its queue.
    #[inline(always)]
    fn queue(&mut self, waiting: QueuedPacket) {
        let priority = waiting.priority();
        let queue = &mut self.channel.queues[priority];
        queue.push(self.pool, waiting);
        self.channel.occupied |= 1 << priority;
        self.channel.counters.queue_max = self.channel.counters.queue_max.max(queue.bytes);
    }

    /// What comes first of all that waits leaves, marked if what is behind it in its queue says so.
    #[inline(always)]
    fn send_first<S: Sink>(&mut self, now: Time, cause: u64) {
        let priority = 7 - (self.channel.occupied | 1).leading_zeros() as usize;
        let queue = &mut self.channel.queues[priority];
        let waiting = queue.pop_front(self.pool);
        if queue.is_empty() {
            self.channel.occupied &= !(1 << priority);
        }
        let depth = queue.bytes;
        if depth > self.marks_above && waiting.can_be_marked() && self.marker.marks(depth) {
            self.mark::<S>(waiting, now, cause, depth);
        }
        self.send(waiting, now);
    }

    #[inline(never)]
    fn mark<S: Sink>(&mut self, waiting: QueuedPacket, now: Time, cause: u64, depth: u64) {
        let metadata = &mut self.metadata[waiting.packet() as usize];
        metadata.set(Flag::Marked);
        self.channel.counters.marks += 1;
        if S::ENABLED {
            let sender = component(Vertex::Host(metadata.source), self.nodes.0, self.nodes.1);
            self.event_buffer.cause = cause;
            self.event_buffer.take(now, self.channel.sender, &marked(sender, metadata, self.channel, depth));
        }
    }

    /// A packet leaves.
    #[inline(always)]
    fn send(&mut self, waiting: QueuedPacket, now: Time) {
        let bytes = waiting.bytes();
        self.state.buffer.release_shared(
            &mut self.usage[waiting.ingress() as usize],
            waiting.ingress_priority(),
            bytes,
        );
        let channel = &mut *self.channel;
        channel.busy_until = now + channel.serialize(bytes);
        channel.count(waiting);
        let at = channel.busy_until + channel.delay;
        self.outlet.arrive(channel.receiver_lp, at, channel.tie_break, self.egress, waiting.packet());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::packet::PacketMetadata;
    use proptest::prelude::*;

    proptest! {
        /// Against a sort that keeps what is equal in its order.
        #[test]
        fn packets_join_in_order(some in prop::collection::vec((0_u32..40, 0_u32..4), 0..30)) {
            let mut joining: Vec<_> = some.iter().enumerate().map(|(index, (offset, tie_break))| {
                let tie_break = (CHANNELS_MAX as u32 - 1) * (tie_break & 1) + (tie_break >> 1);
                let tie_break = tie_break.min(CHANNELS_MAX as u32 - 1);
                let key = u64::from(u32::MAX - offset) << OFFSET_SHIFT | u64::from(tie_break);
                BinnedPacket { key, waiting: QueuedPacket::new(index as u32, &PacketMetadata::NONE, 0, 0) }
            }).collect();
            let mut sorted = joining.clone();
            sorted.sort_by_key(|joining| joining.key);
            sort(&mut joining, &mut Vec::new());
            let packets = |list: &[BinnedPacket]| list.iter().map(|one| one.waiting.packet()).collect::<Vec<_>>();
            prop_assert_eq!(packets(&joining), packets(&sorted));
        }
    }
}
