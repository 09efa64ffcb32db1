//! Binning: a switch sorts the arrivals of a whole stride by egress port, and then runs port after port.
//!
//! Ports share only the buffer accounting. Where all arrivals of a stride certainly fit and send no XOFF, and there is
//! nothing else to run, they are admitted unsorted and binned by egress port; then each port runs through all that it has to
//! enqueue and to transmit, on the fast path. Otherwise the switch runs its stride in the order of time. Releases are
//! deferred meanwhile, so the free space is conservative.

use std::marker::PhantomData;

use railnet_core::event::Sink;
use railnet_core::{Span, Time};

use crate::engine::arrivals::OFFSET_SHIFT;
use crate::engine::epoch::Epochs;
use crate::engine::event::CHANNELS_MAX;
use crate::engine::event_buffer::cause;
use crate::engine::scheduler::Scheduler;
use crate::model::buffer::BulkAdmission;
use crate::model::config::{FlowControl, MarksAt, Routing, SwitchConfig};
use crate::model::fabric::Fabric;
use crate::model::hop::{self, EgressPort, FastPath};
use crate::model::packet::Flag;
use crate::model::queue::QueuedPacket;
use crate::network::Network;

/// A packet in the bin of its egress port.
#[derive(Clone, Copy, Debug)]
struct BinnedPacket {
    /// As that of its [`Arrival`](crate::engine::arrivals::Arrival).
    key: u64,
    queued: QueuedPacket,
}

/// The bins of the active switch.
#[derive(Debug, Default)]
pub(crate) struct PortBins {
    /// By port.
    bins: Vec<Vec<BinnedPacket>>,
    /// Ports with packets in their bins, so many, and leftovers.
    ports: Vec<u16>,
    ports_used: usize,
    /// A buffer for sorting.
    spare: Vec<BinnedPacket>,
}

impl BinnedPacket {
    /// When it arrived, from the beginning of the stride.
    #[inline]
    fn offset(self) -> Span {
        Span::from_ps(self.key >> OFFSET_SHIFT)
    }

    /// The tie-break rank of the channel that it came by.
    #[inline]
    fn tie_break(self) -> u32 {
        self.key as u32
    }
}

impl PortBins {
    /// For switches with so many ports.
    pub(crate) fn new(ports: usize) -> Self {
        Self { bins: vec![Vec::new(); ports], ports: vec![0; ports + 1], ports_used: 0, spare: Vec::new() }
    }

    #[inline]
    fn pop_port(&mut self) -> Option<u16> {
        self.ports_used = self.ports_used.checked_sub(1)?;
        Some(self.ports[self.ports_used])
    }

    /// Takes all packets out again.
    fn clear(&mut self) {
        while let Some(port) = self.pop_port() {
            self.bins[usize::from(port)].clear();
        }
    }

    #[inline]
    fn push(&mut self, port: u16, packet: BinnedPacket) {
        let bin = &mut self.bins[usize::from(port)];
        // Whether it is the first there is unpredictable, so there is no branch for it.
        self.ports[self.ports_used] = port;
        self.ports_used += usize::from(bin.is_empty());
        bin.push(packet);
    }
}

/// Whether the egress port of a packet depends on nothing but the packet, and a port on no other port.
pub(crate) fn is_eligible(config: &SwitchConfig) -> bool {
    config.flow_control != FlowControl::Credits && config.routing == Routing::Ecmp
}

impl<S: Sink> Network<S> {
    /// Bins all arrivals of the active switch, whose stride ends at `limit`, if all of them certainly fit and send no XOFF.
    /// Otherwise nothing is done.
    pub(crate) fn bin_arrivals(&mut self, switch: u32, limit: Time) -> bool {
        let Fabric { packets, switches, usage, can_bin, all_links_up, .. } = &mut self.fabric;
        let Scheduler { epochs: Some(epochs), bins, events, .. } = &mut self.scheduler else { return false };
        let state = &mut switches[switch as usize];
        if !*can_bin
            || !*all_links_up
            || state.needs_order()
            || epochs.has_other_events()
            || limit < epochs.end_of_stride()
        {
            return false;
        }
        let arrivals = epochs.active_arrivals();
        let routes = self.topology.routes.of(switch);
        let mut admission = BulkAdmission::new(&state.buffer);
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
            let queued = QueuedPacket::new(arrival.packet, metadata, arrival.channel, priority);
            admission.add(&state.buffer, &mut usage[arrival.channel as usize], priority, queued.bytes());
            metadata.hops += 1;
            bins.push(state.paths.by_hash(ports, metadata.hash), BinnedPacket { key: arrival.key, queued });
            count += 1;
        }
        if count == arrivals.len() && admission.commit(&mut state.buffer) {
            *events += count as u64;
            epochs.clear_arrivals();
            return true;
        }
        for arrival in &arrivals[..count] {
            let metadata = &mut packets.metadata[arrival.packet as usize];
            metadata.hops -= 1;
            let priority = usize::from(metadata.priority & 7);
            usage[arrival.channel as usize].shared[priority] -= u32::from(metadata.bytes);
        }
        bins.clear();
        false
    }

    /// Runs each port with packets in its bin: it enqueues them and transmits what it should have before `until`. Returns
    /// when the last transmission was that no arrival caused.
    pub(crate) fn run_bins(&mut self, switch: u32, until: Time) -> Time {
        let now = self.now;
        let began = self.scheduler.epochs.as_ref().map_or(Time::ZERO, Epochs::began);
        let mut last = Time::ZERO;
        while let Some(port) = self.scheduler.bins.pop_port() {
            let mut bin = std::mem::take(&mut self.scheduler.bins.bins[usize::from(port)]);
            sort(&mut bin, &mut self.scheduler.bins.spare);
            let egress = self.fabric.switches[switch as usize].ports[usize::from(port)];
            if self.fabric.is_fast(&self.fabric.channels[egress as usize]) {
                last = last.max(self.run_port(switch, egress, &bin, until));
            } else {
                for packet in &bin {
                    self.now = began + packet.offset();
                    self.observers.event_buffer.cause = cause::arrived(packet.tie_break());
                    self.enqueue(switch, egress, packet.queued);
                }
            }
            bin.clear();
            self.scheduler.bins.bins[usize::from(port)] = bin;
        }
        (self.now, self.observers.event_buffer.cause) = (now, cause::EVENT);
        last
    }

    /// Has a port transmit what it should have before `until`. Returns when the last transmission was.
    pub(crate) fn run_port_until(&mut self, switch: u32, egress: u32, until: Time) -> Time {
        let channel = &self.fabric.channels[egress as usize];
        match self.fabric.is_fast(channel) && !self.fabric.switches[switch as usize].needs_order() {
            true => self.run_port(switch, egress, &[], until),
            false => self.transmit_until(egress, until),
        }
    }

    /// Runs a port on the fast path.
    fn run_port(&mut self, switch: u32, egress: u32, bin: &[BinnedPacket], until: Time) -> Time {
        let (nodes, marks_above) = (self.topology.nodes(), self.fabric.marks_above_at(MarksAt::Departure));
        let Fabric { packets, channels, switches, usage, pool, markers, .. } = &mut self.fabric;
        let Scheduler { epochs: Some(epochs), events, .. } = &mut self.scheduler else { return Time::ZERO };
        let began = epochs.began();
        let channel = &mut channels[egress as usize];
        let state = &mut switches[switch as usize];
        let mut path = FastPath {
            egress,
            outlet: epochs.outlet(channel.receiver_lp),
            port: EgressPort {
                channel,
                buffer: &mut state.buffer,
                usage,
                pool,
                marker: &mut markers[egress as usize],
                metadata: &mut packets.metadata,
            },
            event_buffer: &mut self.observers.event_buffer,
            marks_above,
            nodes,
            sink: PhantomData::<S>,
        };
        let mut last = Time::ZERO;
        let mut bin = bin.iter();
        loop {
            let next = bin.next();
            let time = next.map_or(until, |packet| began + packet.offset());
            let (count, at) = hop::transmit_due(&mut path, time, cause::transmit(egress));
            *events += count;
            last = last.max(at);
            let Some(packet) = next else { break };
            hop::enqueue(&mut path, packet.queued, time, cause::arrived(packet.tie_break()));
        }
        let EgressPort { channel, .. } = path.port;
        channel.is_ready_planned = channel.occupied != 0;
        if channel.is_ready_planned && !channel.is_listed {
            channel.is_listed = true;
            state.ready_list.push(egress);
        }
        last
    }
}

/// Sorts the packets of a bin by time. They are few and came by several channels, so which of two is first is unpredictable:
/// up to sixteen go through a sorting network, which has no branches (K. E. Batcher, "Sorting networks and their
/// applications", 1968).
fn sort(bin: &mut Vec<BinnedPacket>, spare: &mut Vec<BinnedPacket>) {
    let count = bin.len();
    if count <= 1 {
        return;
    }
    if count > 16 {
        bin.sort_by_key(|packet| packet.key);
        return;
    }
    // Keys with the index in the bin in their lowest bits: no tie-break rank is so large that it would need them.
    const { assert!(CHANNELS_MAX <= 1 << (OFFSET_SHIFT - INDEX_BITS)) };
    let mut keys = [u64::MAX; 16];
    for (index, (key, packet)) in keys.iter_mut().zip(&*bin).enumerate() {
        let offset = packet.key >> OFFSET_SHIFT << OFFSET_SHIFT;
        *key = offset | u64::from(packet.tie_break()) << INDEX_BITS | index as u64;
    }
    let [low, high] = keys.as_chunks_mut::<8>().0 else { return };
    sort_eight(low);
    if count > 8 {
        sort_eight(high);
        merge_eights(&mut keys);
    }
    spare.clear();
    spare.extend(keys[..count].iter().map(|key| bin[(*key & INDEX_MASK) as usize]));
    std::mem::swap(bin, spare);
}

const INDEX_BITS: u32 = 4;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

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

/// Merges two sorted halves.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::packet::PacketMetadata;
    use proptest::prelude::*;

    proptest! {
        /// Against a stable sort.
        #[test]
        fn bins_are_sorted(some in prop::collection::vec((0_u32..40, 0_u32..4), 0..30)) {
            let mut bin: Vec<_> = some.iter().enumerate().map(|(index, (offset, tie_break))| {
                let tie_break = (CHANNELS_MAX as u32 - 1) * (tie_break & 1) + (tie_break >> 1);
                let tie_break = tie_break.min(CHANNELS_MAX as u32 - 1);
                let key = u64::from(u32::MAX - offset) << OFFSET_SHIFT | u64::from(tie_break);
                BinnedPacket { key, queued: QueuedPacket::new(index as u32, &PacketMetadata::NONE, 0, 0) }
            }).collect();
            let mut sorted = bin.clone();
            sorted.sort_by_key(|packet| packet.key);
            sort(&mut bin, &mut Vec::new());
            let packets = |list: &[BinnedPacket]| list.iter().map(|one| one.queued.packet()).collect::<Vec<_>>();
            prop_assert_eq!(packets(&bin), packets(&sorted));
        }
    }
}
