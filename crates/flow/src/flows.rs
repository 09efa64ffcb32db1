//! Flows under way, and which of them use each resource.

use railnet_core::Time;

/// A flow, from its start to its end. Ids of flows that have ended are used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u32);

/// How much of a flow crosses a resource.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Usage {
    /// The resource, by its place among the capacities.
    pub resource: u32,
    /// The part of the flow's bytes that crosses it, above 0; more than 1 where each byte crosses it several times, as one of a
    /// coflow does that stands for the transfers of many connections at one rate.
    pub fraction: f32,
}

impl Usage {
    /// All of the flow crosses it.
    pub const fn whole(resource: u32) -> Self {
        Self { resource, fraction: 1.0 }
    }
}

/// A resource on the path of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    pub(crate) resource: u32,
    /// Where the flow is among the members of the resource.
    slot: u32,
    /// Bytes over the resource for each byte of one flow of the bundle, times the flows of the bundle.
    pub(crate) weight: f64,
}

/// A bundle of equal flows.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) legs: Box<[Leg]>,
    /// Bytes that each flow of the bundle moves in all.
    pub(crate) size: f64,
    /// Bytes that each had to move at `since`.
    pub(crate) left: f64,
    /// Bytes a picosecond, of each.
    pub(crate) rate: f64,
    /// When `left` was true.
    pub(crate) since: Time,
    /// The resource that limits it.
    pub(crate) bottleneck: u32,
    /// Counts changes of its end, so that old entries of the calendar are told from the current one.
    pub(crate) version: u64,
}

impl Flow {
    /// Bytes that each flow of the bundle has to move at a moment after its last change of rate.
    pub(crate) fn left_at(&self, now: Time) -> f64 {
        (self.left - self.rate * (now - self.since).as_ps() as f64).max(0.0)
    }
}

/// No resource.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// All flows under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows {
    slab: Vec<Option<Flow>>,
    free: Vec<u32>,
    /// The flows on each resource, with the place of the resource on their paths.
    members: Vec<Vec<(u32, u32)>>,
    count: usize,
}

impl Flows {
    pub(crate) fn new(resources: usize) -> Self {
        Self { members: vec![Vec::new(); resources], ..Self::default() }
    }

    pub(crate) fn add_resource(&mut self) {
        self.members.push(Vec::new());
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// As many as ids were ever used at once.
    pub(crate) fn ids(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn get(&self, flow: u32) -> Option<&Flow> {
        self.slab.get(flow as usize)?.as_ref()
    }

    pub(crate) fn of(&self, flow: u32) -> &Flow {
        self.get(flow).expect("members of resources are under way")
    }

    pub(crate) fn of_mut(&mut self, flow: u32) -> &mut Flow {
        self.slab[flow as usize].as_mut().expect("members of resources are under way")
    }

    /// The flows that use a resource.
    pub(crate) fn on(&self, resource: u32) -> impl Iterator<Item = (u32, f64)> {
        let members = self.members[resource as usize].iter();
        members.map(|(flow, leg)| (*flow, self.of(*flow).legs[*leg as usize].weight))
    }

    pub(crate) fn insert(&mut self, path: &[Usage], bytes: f64, count: u32, now: Time) -> u32 {
        let id = self.free.pop().unwrap_or(self.slab.len() as u32);
        let legs = (0..).zip(path).map(|(place, usage)| {
            let members = &mut self.members[usage.resource as usize];
            members.push((id, place));
            let weight = f64::from(usage.fraction) * f64::from(count);
            Leg { resource: usage.resource, slot: members.len() as u32 - 1, weight }
        });
        let flow = Flow {
            legs: legs.collect(),
            size: bytes,
            left: bytes,
            rate: 0.0,
            since: now,
            bottleneck: UNLIMITED,
            version: 0,
        };
        if id as usize == self.slab.len() {
            self.slab.push(Some(flow));
        } else {
            self.slab[id as usize] = Some(flow);
        }
        self.count += 1;
        id
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Flow> {
        let flow = self.slab.get_mut(id as usize)?.take()?;
        for leg in &flow.legs {
            let members = &mut self.members[leg.resource as usize];
            members.swap_remove(leg.slot as usize);
            // Who was last has taken the free place.
            if let Some((moved, place)) = members.get(leg.slot as usize).copied()
                && let Some(moved) = &mut self.slab[moved as usize]
            {
                moved.legs[place as usize].slot = leg.slot;
            }
        }
        self.free.push(id);
        self.count -= 1;
        Some(flow)
    }
}
