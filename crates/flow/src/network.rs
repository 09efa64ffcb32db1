//! Flows that start and end in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Rate, Span, Time};

use crate::allocation::Allocator;
use crate::flows::{FlowId, Flows, Usage};

/// Picoseconds in a second.
const PS: f64 = 1e12;

/// Resources, the flows that share them, and when each flow ends.
///
/// Sans I/O: start flows, ask when the next one ends, advance to that moment, learn which ended, and start those that waited for
/// them. All that happens at one moment counts once.
///
/// # What a change reaches
///
/// When flows start or end, those that were limited by one of their resources are computed again, with the rates of all others as
/// they are. Then each resource that these use is looked at: where a flow that was left out is faster than one that is limited there,
/// or is limited there although there is room now, it is computed again too, until none is left. What comes out is the max-min fair
/// allocation of all flows, because every flow has a resource that is full and on which no flow is faster.
#[derive(Clone, Debug)]
pub struct FlowNetwork {
    now: Time,
    flows: Flows,
    allocator: Allocator,
    /// The ends of flows as they were computed: those with an old version are passed over.
    calendar: BinaryHeap<Reverse<(Time, u32, u64)>>,
    /// Bytes that have crossed each resource, of flows that have ended.
    carried: Vec<f64>,
    /// Ends that were computed: the version of the last one.
    versions: u64,
    /// Moments at which rates were computed again.
    recomputations: u64,
    /// Flows with a new rate; reused by every recomputation.
    changed: Vec<(u32, f64)>,
}

impl FlowNetwork {
    /// A network of resources with these capacities.
    pub fn new(capacities: &[Rate]) -> Self {
        let capacities: Vec<f64> = capacities.iter().map(|rate| rate.as_bps() as f64 / 8.0 / PS).collect();
        Self {
            now: Time::ZERO,
            flows: Flows::new(capacities.len()),
            carried: vec![0.0; capacities.len()],
            allocator: Allocator::new(capacities),
            calendar: BinaryHeap::new(),
            versions: 0,
            recomputations: 0,
            changed: Vec::new(),
        }
    }

    /// The present.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Bundles of flows under way.
    pub fn active(&self) -> usize {
        self.flows.len()
    }

    /// How often rates were computed again: once for each moment at which something changed.
    pub const fn recomputations(&self) -> u64 {
        self.recomputations
    }

    /// Has `count` equal flows start now, each moving so many bytes. A path names a resource once at most; a flow over none ends at once.
    pub fn start(&mut self, path: &[Usage], bytes: u64, count: u32) -> FlowId {
        let id = self.flows.insert(path, bytes as f64, count.max(1), self.now);
        self.versions += 1;
        self.flows.of_mut(id).version = self.versions;
        if path.is_empty() || bytes == 0 {
            self.calendar.push(Reverse((self.now, id, self.versions)));
        } else {
            self.allocator.add(id);
        }
        FlowId(id)
    }

    /// Ends a flow that is under way, wherever it is. Returns the bytes that each flow of the bundle had left.
    pub fn stop(&mut self, flow: FlowId) -> Option<f64> {
        let left = self.flows.get(flow.0)?.left_at(self.now);
        self.end(flow.0, left);
        Some(left)
    }

    /// Adds a resource, and returns its place among them.
    pub fn add_resource(&mut self, rate: Rate) -> u32 {
        self.carried.push(0.0);
        self.flows.add_resource();
        self.allocator.add_resource(rate.as_bps() as f64 / 8.0 / PS)
    }

    /// Gives a resource another capacity from now on.
    pub fn set_capacity(&mut self, resource: u32, rate: Rate) {
        self.allocator.set_capacity(resource, rate.as_bps() as f64 / 8.0 / PS);
    }

    /// When the next flow ends; nothing where none is under way, or none moves.
    pub fn next_end(&mut self) -> Option<Time> {
        self.settle();
        while let Some(Reverse((at, id, version))) = self.calendar.peek().copied() {
            if self.flows.get(id).is_some_and(|flow| flow.version == version) {
                return Some(at);
            }
            self.calendar.pop();
        }
        None
    }

    /// Moves on to `until`, which is no later than [`FlowNetwork::next_end`]; flows that end at that moment are added to `ended`, in the
    /// order of their ids.
    ///
    /// # Panics
    ///
    /// If a flow ends before `until`: it would be told too late for those that wait for it.
    pub fn advance(&mut self, until: Time, ended: &mut Vec<FlowId>) {
        let next = self.next_end();
        assert!(next.is_none_or(|next| next >= until), "flows end before {until}");
        self.now = self.now.max(until);
        while let Some(Reverse((at, id, version))) = self.calendar.peek().copied() {
            let is_current = self.flows.get(id).is_some_and(|flow| flow.version == version);
            if is_current && at > self.now {
                break;
            }
            self.calendar.pop();
            if is_current {
                self.end(id, 0.0);
                ended.push(FlowId(id));
            }
        }
    }

    /// Bytes a second that each flow of a bundle has now.
    pub fn rate(&mut self, flow: FlowId) -> f64 {
        self.settle();
        self.flows.get(flow.0).map_or(0.0, |flow| flow.rate * PS)
    }

    /// Bytes that have crossed a resource by now.
    pub fn carried(&self, resource: u32) -> f64 {
        let moving = self.flows.on(resource).map(|(id, weight)| {
            let flow = self.flows.of(id);
            (flow.size - flow.left_at(self.now)) * weight
        });
        self.carried[resource as usize] + moving.sum::<f64>()
    }

    fn end(&mut self, id: u32, left: f64) {
        let Some(flow) = self.flows.remove(id) else { return };
        for leg in &flow.legs {
            self.carried[leg.resource as usize] += (flow.size - left) * leg.weight;
        }
        self.allocator.remove(&flow);
    }

    /// Computes the rates that changes of this moment reach.
    fn settle(&mut self) {
        let Self { flows, allocator, calendar, changed, versions, now, .. } = self;
        if !allocator.is_stale() {
            return;
        }
        self.recomputations += 1;
        allocator.allocate(flows, changed);
        for (id, rate) in changed.drain(..) {
            let flow = flows.of_mut(id);
            (flow.left, flow.since, flow.rate) = (flow.left_at(*now), *now, rate);
            *versions += 1;
            flow.version = *versions;
            if rate > 0.0 {
                let takes = Span::from_ps((flow.left / rate).ceil() as u64);
                calendar.push(Reverse((*now + takes, id, *versions)));
            }
        }
    }
}
