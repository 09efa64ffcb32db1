//! The scheduler: all events, and which of them this network runs.

use railnet_core::{Order, Span, Time};
use railnet_topology::Vertex;

use crate::engine::binning::PortBins;
use crate::engine::calendar::{Calendar, Sequences};
use crate::engine::colouring::TwoColouring;
use crate::engine::epoch::Epochs;
use crate::engine::event::{Event, PackedEvent};
use crate::engine::lookahead::Lookahead;
use crate::engine::partition::Partition;
use crate::model::packet::PacketIndex;

/// All events, and which of them this network runs.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// Events in the order of time: calls and faults, and all those of nodes that are no LPs.
    pub(crate) calendar: Calendar<PackedEvent>,
    /// Events of LPs. Without it the whole network is one LP, without lookahead: the calendar.
    pub(crate) epochs: Option<Epochs>,
    /// The LPs that this network runs, where others run the rest.
    pub(crate) partition: Option<Box<Partition>>,
    pub(crate) lookahead: Lookahead,
    pub(crate) colouring: Option<Box<TwoColouring>>,
    pub(crate) sequences: Sequences,
    /// Arrivals of the active switch, by egress port.
    pub(crate) bins: PortBins,
    /// Events run so far.
    pub(crate) events: u64,
    /// Those when hosts last ran an epoch.
    pub(crate) events_before: u64,
    /// Packets that arrive next, and at which host: a buffer for prefetching.
    pub(crate) coming: Vec<(u32, PacketIndex)>,
    /// Host groups that run before a call of the application: a buffer.
    pub(crate) ready_scratch: Vec<u32>,
}

impl Scheduler {
    /// For so many components, and switches with so many ports at most.
    pub(crate) fn new(components: usize, ports_max: usize) -> Self {
        Self {
            calendar: Calendar::new(),
            epochs: None,
            partition: None,
            lookahead: Lookahead::NONE,
            colouring: None,
            sequences: Sequences::new(components),
            bins: PortBins::new(ports_max),
            events: 0,
            events_before: 0,
            coming: Vec::new(),
            ready_scratch: Vec::new(),
        }
    }

    /// Schedules an event of a host or switch, or of one of its ports; returns the partition that runs it where that is
    /// another one.
    #[inline]
    pub(crate) fn schedule(&mut self, vertex: Vertex, order: &Order, event: Event) -> Option<(u32, u32)> {
        let Some(lp) = self.epochs.as_ref().and_then(|epochs| epochs.lp(vertex)) else {
            self.calendar.push(order, PackedEvent::new(event));
            return None;
        };
        if let Some(owner) = self.remote_owner(lp) {
            return Some((owner, lp));
        }
        if let Some(epochs) = &mut self.epochs {
            epochs.push(order, lp, PackedEvent::new(event));
        }
        None
    }

    /// The partition that runs an LP, if it is another one.
    #[inline]
    pub(crate) fn remote_owner(&self, lp: u32) -> Option<u32> {
        self.partition.as_ref().and_then(|partition| partition.remote_owner(lp))
    }

    /// When the next event may be, of this partition or of others through its messages.
    pub(crate) fn next_time(&self) -> Option<Time> {
        let own = self.epochs.as_ref().and_then(Epochs::next_time);
        let sent = self.partition.as_ref().map(|partition| partition.earliest_sent).filter(|at| at.is_set());
        self.calendar.next_time().into_iter().chain(own).chain(sent).min()
    }

    /// Whether there are no events.
    pub(crate) fn is_empty(&self) -> bool {
        self.calendar.is_empty() && self.epochs.as_ref().is_none_or(Epochs::is_empty)
    }

    /// Looks for a two-colouring, once host groups and the application's lookahead bound are known.
    pub(crate) fn find_two_colouring(
        &mut self,
        graph: &railnet_topology::FabricGraph,
        lookahead_bound: Span,
    ) {
        let epochs = self.epochs.as_ref().filter(|epochs| epochs.fits_twice_into(lookahead_bound));
        self.colouring = epochs.and_then(|epochs| TwoColouring::new(graph, epochs)).map(Box::new);
    }

    /// The epoch in which the application is called about all hosts.
    pub(crate) fn next_call(&self) -> u64 {
        let at = self.calendar.next_time().unwrap_or(Time::NEVER);
        self.epochs.as_ref().map_or(0, |epochs| epochs.epoch_of(at))
    }

    /// The partition that runs a host or switch.
    pub(crate) fn partition_of(&self, vertex: Vertex) -> u32 {
        let lp = self.epochs.as_ref().and_then(|epochs| epochs.lp(vertex));
        match (&self.partition, lp) {
            (Some(partition), Some(lp)) => partition.owners[lp as usize],
            _ => 0,
        }
    }
}
