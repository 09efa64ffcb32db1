//! Partitions: one network, run by several threads.
//!
//! LPs reach each other through links only, and no epoch is longer than the lookahead, so all LPs may run an epoch at the
//! same time. Each partition is a whole network that runs some of the LPs; what those send to LPs of other partitions are
//! cross-partition messages, exchanged between epochs. The order of an event depends on its sender alone, so neither the
//! number of partitions nor their shape changes a run.

use railnet_core::event::Sink;
use railnet_core::{Component, Order, Time};
use railnet_nic::Transmit;
use railnet_nic::frame::WireForm;
use railnet_topology::Vertex;

use crate::application::Application;
use crate::engine::calendar::{Entry, Key};
use crate::engine::event::{Event, PackedEvent};
use crate::model::packet::{Flag, PacketArena, PacketIndex, PacketMetadata};
use crate::network::Network;

/// The LPs that a network runs, and its messages to other partitions.
#[derive(Debug)]
pub(crate) struct Partition {
    index: u32,
    /// The partition of each LP.
    pub(crate) owners: Vec<u32>,
    /// By partition.
    outgoing: Vec<Messages>,
    /// The time of the first event in them.
    pub(crate) earliest_sent: Time,
    /// Messages of other partitions, and buffers of earlier ones.
    incoming: Vec<Messages>,
}

/// Cross-partition messages: events of LPs of another partition.
#[derive(Debug, Default)]
struct Messages {
    events: Vec<CrossPartitionEvent>,
    /// The packets of arrivals among the events, in the same order.
    packets: Vec<Packet>,
}

#[derive(Debug)]
struct CrossPartitionEvent {
    lp: u32,
    entry: Entry<PackedEvent>,
}

/// A packet between partitions.
#[derive(Debug)]
struct Packet {
    metadata: PacketMetadata,
    headers: Option<Transmit>,
    bytes: Vec<u8>,
}

impl PacketArena {
    fn take_out(&mut self, index: PacketIndex) -> Packet {
        let metadata = self.metadata[index as usize];
        let headers = self.headers.get_mut(index).take();
        let bytes = match metadata.is(Flag::HasBytes) {
            true => std::mem::take(&mut self.bytes[index as usize]),
            false => Vec::new(),
        };
        self.release(index);
        Packet { metadata, headers, bytes }
    }
}

impl<S: Sink> Network<S> {
    /// Whether several threads could run it: switches and host groups are LPs, no frames are shown, and no faults are ahead.
    pub fn can_be_partitioned(&self, count: u32) -> bool {
        let groups = self.scheduler.epochs.as_ref().map_or(0, |epochs| epochs.groups().count());
        let is_fast =
            self.fabric.form == WireForm::Values && !self.fabric.shows_frames && !self.has_faults_ahead();
        count > 1 && groups >= count && self.fabric.switches.len() as u32 >= count && is_fast
    }

    /// From now on it runs only the LPs of one of `count` partitions. Call it before the first event. The others are
    /// networks that were made in the same way.
    pub fn assign_partition(&mut self, index: u32, count: u32) {
        let Some(epochs) = &self.scheduler.epochs else { return };
        let (switches, groups) = (self.fabric.switches.len() as u32, epochs.groups().count());
        // Switches of a tier follow each other, and often one tier has most events.
        let of_switches = (0..switches).map(|switch| switch % count);
        let of_groups = (0..groups).map(|group| group * count / groups);
        self.scheduler.partition = Some(Box::new(Partition {
            index,
            owners: of_switches.chain(of_groups).collect(),
            outgoing: (0..count).map(|_| Messages::default()).collect(),
            earliest_sent: Time::NEVER,
            incoming: Vec::new(),
        }));
        self.assign_lps();
    }

    /// The partition that runs a host or switch.
    pub fn partition_of(&self, vertex: Vertex) -> u32 {
        self.scheduler.partition_of(vertex)
    }

    /// The partition that emits the events of a component.
    pub fn partition_of_component(&self, component: Component) -> u32 {
        let Component(number) = component;
        match number.checked_sub(self.topology.host_count) {
            None => self.partition_of(Vertex::Host(number)),
            Some(switch) if (switch as usize) < self.fabric.switches.len() => {
                self.partition_of(Vertex::Switch(switch))
            }
            Some(_) => 0,
        }
    }

    /// Schedules an event of an LP in another partition.
    pub(crate) fn send_to_partition(&mut self, owner: u32, order: &Order, lp: u32, event: Event) {
        let packet = match event {
            Event::Arrive { packet, .. } => Some(self.fabric.packets.take_out(packet)),
            _ => None,
        };
        let Some(partition) = &mut self.scheduler.partition else { return };
        debug_assert!(
            self.scheduler.epochs.as_ref().is_none_or(|epochs| order.time > epochs.end()),
            "one partition reached another within the lookahead"
        );
        partition.earliest_sent = partition.earliest_sent.min(order.time);
        let Messages { events, packets } = &mut partition.outgoing[owner as usize];
        packets.extend(packet);
        events.push(CrossPartitionEvent {
            lp,
            entry: Entry { key: Key::new(order), event: PackedEvent::new(event) },
        });
    }

    /// Exchanges the messages of two partitions, between epochs.
    pub fn exchange_messages(&mut self, other: &mut Self) {
        let (Some(one), Some(two)) = (&mut self.scheduler.partition, &mut other.scheduler.partition) else {
            return;
        };
        one.send(two);
        two.send(one);
    }

    /// When the next event may be, of this partition or of others through its messages.
    pub fn next_epoch(&self) -> Option<Time> {
        self.scheduler.next_time()
    }

    /// Begins the epochs from the one of `at` to the one that ends at `end`, once all messages were exchanged.
    pub fn begin_epochs(&mut self, at: Time, end: Time) {
        let (Some(epochs), Some(partition)) = (&mut self.scheduler.epochs, &mut self.scheduler.partition)
        else {
            return;
        };
        epochs.begin_epochs(at, end);
        partition.earliest_sent = Time::NEVER;
        for Messages { events, packets } in &mut partition.incoming {
            let mut packets = packets.drain(..);
            for CrossPartitionEvent { lp, entry } in events.drain(..) {
                // Packets have the order of their events.
                if let Some((channel, _)) = entry.event.arrival()
                    && let Some(Packet { metadata, headers, bytes }) = packets.next()
                {
                    let packet = self.fabric.packets.take(metadata);
                    *self.fabric.packets.headers.get_mut(packet) = headers;
                    if !bytes.is_empty() {
                        *self.fabric.packets.bytes_of(packet) = bytes;
                    }
                    let tie_break = self.fabric.channels[channel as usize].tie_break;
                    epochs.arrive(lp, entry.key.time(), tie_break, channel, packet);
                } else {
                    epochs.put(lp, entry);
                }
            }
        }
    }

    /// Runs its hosts through the active epochs until `limit`.
    pub fn run_hosts(&mut self, application: &mut impl Application<S>, limit: Time) {
        self.notify(application);
        self.run_groups_and_calls(application, limit);
    }

    /// Runs its switches through the active epochs until `limit`.
    pub fn run_switches(&mut self, limit: Time) {
        self.run_switches_until(limit);
    }

    /// Merges what another partition has run, at the end: all that can be asked about hosts, switches and links.
    pub fn merge(&mut self, mut other: Self) {
        let owner = other.scheduler.partition.as_ref().map_or(0, |partition| partition.index);
        self.scheduler.events += other.scheduler.events;
        for host in 0..self.topology.host_count {
            if self.partition_of(Vertex::Host(host)) == owner {
                std::mem::swap(
                    &mut self.endpoints.hosts[host as usize],
                    &mut other.endpoints.hosts[host as usize],
                );
            }
        }
        for switch in 0..self.fabric.switches.len() {
            if self.partition_of(Vertex::Switch(switch as u32)) == owner {
                std::mem::swap(&mut self.fabric.switches[switch], &mut other.fabric.switches[switch]);
            }
        }
        for (index, theirs) in other.fabric.channels.into_iter().enumerate() {
            let [sends, receives] = [theirs.from, theirs.to].map(|vertex| self.partition_of(vertex) == owner);
            if receives {
                self.fabric.usage[index] = std::mem::take(&mut other.fabric.usage[index]);
            }
            let ours = &mut self.fabric.channels[index];
            match (sends, receives) {
                (true, true) => *ours = theirs,
                (true, false) => {
                    let receiver = std::mem::replace(ours, theirs);
                    ours.take_receiver_of(&receiver);
                }
                (false, true) => ours.take_receiver_of(&theirs),
                (false, false) => {}
            }
        }
    }
}

impl Partition {
    /// The partition that runs an LP, if it is another one.
    #[inline]
    pub(crate) fn remote_owner(&self, lp: u32) -> Option<u32> {
        let owner = self.owners[lp as usize];
        (owner != self.index).then_some(owner)
    }

    /// Whether messages to or from this partition are under way.
    pub(crate) fn has_messages(&self) -> bool {
        self.outgoing.iter().chain(&self.incoming).any(|messages| !messages.events.is_empty())
    }

    /// Moves the messages for another partition there, in return for a buffer.
    fn send(&mut self, other: &mut Self) {
        let is_room = |messages: &Messages| messages.events.is_empty();
        let space = other.incoming.iter().position(is_room).map(|space| other.incoming.swap_remove(space));
        let messages = std::mem::replace(&mut self.outgoing[other.index as usize], space.unwrap_or_default());
        other.incoming.push(messages);
    }
}
