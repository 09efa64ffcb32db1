//! The max-min fair allocation, computed again where a change reaches.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::flows::{Flow, Flows, UNLIMITED};

/// Rates that differ by less are equal: sums of them differ in the last bits.
const SAME: f64 = 1e-9;
/// How often a part of the flows is grown before all that are joined by resources are taken.
const GROWTHS_MAX: u32 = 16;

/// What is known of a resource while rates are computed.
#[derive(Clone, Copy, Debug, Default)]
struct Resource {
    /// The computation that used it last.
    used_in: u64,
    /// Capacity that flows with a rate leave.
    room: f64,
    /// Weights of the flows on it without a rate, and how many these are.
    weight: f64,
    open: u32,
    /// The rate of the flows that it limits, if it limits any of those that are computed.
    level: f64,
}

/// What is known of a flow while rates are computed.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    /// The computation that it is part of.
    part_of: u64,
    /// Whether it has its rate.
    is_settled: bool,
    rate: f64,
    bottleneck: u32,
}

/// A resource and the rate at which it would be full.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Level {
    rate: f64,
    resource: u32,
}

impl Eq for Level {}

impl Ord for Level {
    /// The lowest level first; of equal ones the resource with the lowest number.
    fn cmp(&self, other: &Self) -> Ordering {
        other.rate.total_cmp(&self.rate).then(other.resource.cmp(&self.resource))
    }
}

impl PartialOrd for Level {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Computes rates.
#[derive(Clone, Debug)]
pub(crate) struct Allocator {
    capacities: Vec<f64>,
    resources: Vec<Resource>,
    candidates: Vec<Candidate>,
    /// Counts computations.
    epoch: u64,
    /// Resources whose flows have changed since rates were computed.
    stale: Vec<u32>,
    /// Flows that have started since.
    new: Vec<u32>,
    /// The flows that are computed.
    part: Vec<u32>,
    /// The resources that they use.
    touched: Vec<u32>,
    levels: BinaryHeap<Level>,
}

impl Allocator {
    pub(crate) fn new(capacities: Vec<f64>) -> Self {
        Self {
            resources: vec![Resource::default(); capacities.len()],
            capacities,
            candidates: Vec::new(),
            epoch: 0,
            stale: Vec::new(),
            new: Vec::new(),
            part: Vec::new(),
            touched: Vec::new(),
            levels: BinaryHeap::new(),
        }
    }

    pub(crate) fn add_resource(&mut self, capacity: f64) -> u32 {
        self.capacities.push(capacity);
        self.resources.push(Resource::default());
        self.capacities.len() as u32 - 1
    }

    /// Whether something has changed since rates were computed.
    pub(crate) fn is_stale(&self) -> bool {
        !self.stale.is_empty() || !self.new.is_empty()
    }

    pub(crate) fn add(&mut self, flow: u32) {
        self.new.push(flow);
    }

    pub(crate) fn remove(&mut self, flow: &Flow) {
        // Where it did not limit, no other flow becomes faster.
        self.stale.extend(flow.legs.iter().map(|leg| leg.resource));
    }

    pub(crate) fn set_capacity(&mut self, resource: u32, capacity: f64) {
        self.capacities[resource as usize] = capacity;
        self.stale.push(resource);
    }

    /// Computes the rates that changes since the last time reach; flows whose rate is another than before are added to `changed`.
    pub(crate) fn allocate(&mut self, flows: &mut Flows, changed: &mut Vec<(u32, f64)>) {
        self.epoch += 1;
        self.candidates.resize(flows.ids(), Candidate::default());
        self.part.clear();
        for flow in std::mem::take(&mut self.new) {
            // It may have been stopped at the moment it started.
            if let Some(state) = flows.get(flow) {
                self.stale.extend(state.legs.iter().map(|leg| leg.resource));
                self.take(flow);
            }
        }
        let mut stale = std::mem::take(&mut self.stale);
        for resource in stale.drain(..) {
            let limited = flows.on(resource).filter(|(id, _)| flows.of(*id).bottleneck == resource);
            for (id, _) in limited {
                self.take(id);
            }
            self.take_crowded(flows, resource);
        }
        self.stale = stale;
        let mut growths = 0;
        loop {
            self.fill(flows);
            growths += 1;
            if !self.grow(flows, growths > GROWTHS_MAX) {
                break;
            }
        }
        for id in &self.part {
            let candidate = self.candidates[*id as usize];
            let flow = flows.of_mut(*id);
            flow.bottleneck = candidate.bottleneck;
            if candidate.rate.to_bits() != flow.rate.to_bits() {
                changed.push((*id, candidate.rate));
            }
        }
    }

    /// Makes a flow one of those that are computed.
    fn take(&mut self, id: u32) {
        let candidate = &mut self.candidates[id as usize];
        if candidate.part_of != self.epoch {
            candidate.part_of = self.epoch;
            self.part.push(id);
        }
    }

    /// Where a resource has less capacity than its flows use, all of them are computed.
    fn take_crowded(&mut self, flows: &Flows, resource: u32) {
        let used: f64 = flows.on(resource).map(|(id, weight)| flows.of(id).rate * weight).sum();
        if used > self.capacities[resource as usize] * (1.0 + SAME) {
            for (id, _) in flows.on(resource) {
                self.take(id);
            }
        }
    }

    /// Progressive filling: the rates of all flows of the part rise together; where a resource is full, those on it keep theirs.
    fn fill(&mut self, flows: &Flows) {
        let Self { capacities, resources, candidates, epoch, part, touched, levels, .. } = self;
        for resource in touched.drain(..) {
            resources[resource as usize].used_in = 0;
        }
        for id in &*part {
            let candidate = &mut candidates[*id as usize];
            (candidate.is_settled, candidate.rate, candidate.bottleneck) = (false, f64::INFINITY, UNLIMITED);
            for leg in &flows.of(*id).legs {
                let resource = &mut resources[leg.resource as usize];
                if resource.used_in != *epoch {
                    let room = capacities[leg.resource as usize];
                    *resource =
                        Resource { used_in: *epoch, room, weight: 0.0, open: 0, level: f64::INFINITY };
                    touched.push(leg.resource);
                }
                resource.weight += leg.weight;
                resource.open += 1;
            }
        }
        levels.clear();
        for resource in &*touched {
            let known = flows.on(*resource).filter(|(id, _)| candidates[*id as usize].part_of != *epoch);
            let taken: f64 = known.map(|(id, weight)| flows.of(id).rate * weight).sum();
            let state = &mut resources[*resource as usize];
            state.room = (state.room - taken).max(0.0);
            levels.push(Level { rate: state.room / state.weight, resource: *resource });
        }
        while let Some(Level { rate, resource }) = levels.pop() {
            let state = &mut resources[resource as usize];
            if state.open == 0 {
                continue;
            }
            // Flows that were settled elsewhere have left room: the level can only have risen.
            let level = (state.room / state.weight).max(rate);
            if level > rate * (1.0 + SAME) {
                levels.push(Level { rate: level, resource });
                continue;
            }
            state.level = rate;
            for (id, _) in flows.on(resource) {
                let candidate = &mut candidates[id as usize];
                if candidate.part_of != *epoch || candidate.is_settled {
                    continue;
                }
                (candidate.is_settled, candidate.rate, candidate.bottleneck) = (true, rate, resource);
                for leg in &flows.of(id).legs {
                    let state = &mut resources[leg.resource as usize];
                    state.room = (state.room - rate * leg.weight).max(0.0);
                    state.weight -= leg.weight;
                    state.open -= 1;
                }
            }
        }
    }

    /// Takes flows that were left out and whose rate is not the fair one any more. Whether there were any.
    fn grow(&mut self, flows: &Flows, takes_all: bool) -> bool {
        let before = self.part.len();
        for place in 0..self.touched.len() {
            let resource = self.touched[place];
            let state = self.resources[resource as usize];
            let (mut used, mut fastest) = (0.0, 0.0_f64);
            for (id, weight) in flows.on(resource) {
                let rate = self.rate_of(flows, id);
                used += rate * weight;
                fastest = fastest.max(rate);
            }
            let is_full = used >= self.capacities[resource as usize] * (1.0 - SAME);
            for (id, _) in flows.on(resource) {
                if self.candidates[id as usize].part_of == self.epoch {
                    continue;
                }
                let flow = flows.of(id);
                let is_held_back =
                    flow.bottleneck == resource && (!is_full || flow.rate < fastest * (1.0 - SAME));
                // Only a resource that limits somebody has a level.
                let is_too_fast = state.level < flow.rate * (1.0 - SAME);
                if takes_all || is_held_back || is_too_fast {
                    self.take(id);
                }
            }
        }
        self.part.len() > before
    }

    fn rate_of(&self, flows: &Flows, id: u32) -> f64 {
        let candidate = &self.candidates[id as usize];
        if candidate.part_of == self.epoch { candidate.rate } else { flows.of(id).rate }
    }
}
