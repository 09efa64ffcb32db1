//! Flows and resources that are alike, found by colour refinement.
//!
//! Two resources have one colour if their capacities are equal and flows of equal colours use them for equal fractions; two flows, if
//! their labels are equal and they use resources of equal colours for equal fractions. The coarsest such partition is found by
//! refining colours until none splits (the one-dimensional Weisfeiler-Leman algorithm, an equitable partition of the graph of flows and
//! resources). In it, flows of one colour that start together have the same max-min fair rates all the time and end together, so one
//! stands for all of them, and one resource for all of its colour: the result is that of all flows, to the rounding of sums.

use railnet_core::Rate;

use crate::flows::Usage;

/// Flows and resources, one for each colour.
#[derive(Clone, PartialEq, Debug)]
pub struct Quotient {
    /// The capacity of each kind of resource.
    pub capacities: Vec<Rate>,
    /// The kind of each resource; none of those that no flow uses.
    pub kind_of_resource: Vec<Option<u32>>,
    /// The kinds of flows, in the order in which each was first given.
    pub flows: Vec<FlowKind>,
}

/// Flows that are alike.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowKind {
    /// The first of them, by its place among the flows given.
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// The kinds of resources that all of them together use, each for the part of the bytes of one flow that crosses a resource of the
    /// kind.
    pub usage: Vec<Usage>,
}

/// Finds the flows and resources that are alike. Flows with different labels are not: a label says when a flow starts and how many bytes
/// it moves.
///
/// ```
/// use railnet_core::Rate;
/// use railnet_flow::{Usage, quotient};
///
/// // Two links, two flows over each: one link and one flow stand for all.
/// let paths: Vec<Vec<Usage>> = [0, 1, 0, 1].map(|link| vec![Usage::whole(link)]).into();
/// let found = quotient(&[Rate::gbps(80); 2], &[7; 4], &paths);
/// assert_eq!((found.capacities.len(), found.flows.len()), (1, 1));
/// assert_eq!(found.flows[0].count, 4);
/// // Each link carries two flows.
/// assert_eq!(found.flows[0].usage, [Usage { resource: 0, fraction: 2.0 }]);
/// ```
pub fn quotient(capacities: &[Rate], labels: &[u64], paths: &[Vec<Usage>]) -> Quotient {
    let mut resources: Vec<Colour> = capacities.iter().map(|rate| Colour::of(rate.as_bps())).collect();
    let mut flows: Vec<Colour> = labels.iter().map(|label| Colour::of(*label)).collect();
    let mut is_used = vec![false; resources.len()];
    for usage in paths.iter().flatten() {
        is_used[usage.resource as usize] = true;
    }
    let mut before = 0;
    loop {
        let mut sums = vec![Colour(0, 0); resources.len()];
        for (flow, path) in flows.iter().zip(paths) {
            for usage in path {
                sums[usage.resource as usize].add(flow.with(usage.fraction));
            }
        }
        for (colour, sum) in resources.iter_mut().zip(sums) {
            *colour = colour.and(sum);
        }
        for (colour, path) in flows.iter_mut().zip(paths) {
            let mut sum = Colour(0, 0);
            for usage in path {
                sum.add(resources[usage.resource as usize].with(usage.fraction));
            }
            *colour = colour.and(sum);
        }
        let used = resources.iter().zip(&is_used).filter(|(_, is_used)| **is_used);
        let count = distinct(used.map(|(colour, _)| *colour)).len() + distinct(flows.iter().copied()).len();
        if count == before {
            break;
        }
        before = count;
    }
    collect(capacities, &resources, &is_used, (&flows, paths))
}

fn collect(
    capacities: &[Rate],
    resources: &[Colour],
    is_used: &[bool],
    (flows, paths): (&[Colour], &[Vec<Usage>]),
) -> Quotient {
    let used = resources.iter().zip(is_used).filter(|(_, is_used)| **is_used);
    let kinds = distinct(used.map(|(colour, _)| *colour));
    let kind = |colour: &Colour| kinds.binary_search(colour).ok().map(|place| place as u32);
    let kind_of_resource: Vec<Option<u32>> = resources
        .iter()
        .zip(is_used)
        .map(|(colour, is_used)| if *is_used { kind(colour) } else { None })
        .collect();
    let mut counts = vec![0_u32; kinds.len()];
    let mut of_kind = vec![Rate::ZERO; kinds.len()];
    for (kind, capacity) in kind_of_resource.iter().zip(capacities) {
        if let Some(kind) = kind {
            counts[*kind as usize] += 1;
            of_kind[*kind as usize] = *capacity;
        }
    }
    let flow_kinds = distinct(flows.iter().copied());
    let mut found: Vec<Option<FlowKind>> = vec![None; flow_kinds.len()];
    for ((first, colour), path) in (0..).zip(flows).zip(paths) {
        let Ok(place) = flow_kinds.binary_search(colour) else { continue };
        let kind = found[place].get_or_insert_with(|| FlowKind { first, count: 0, usage: Vec::new() });
        kind.count += 1;
        if kind.first == first {
            kind.usage.clone_from(path);
        }
    }
    let mut kinds: Vec<FlowKind> = found.into_iter().flatten().collect();
    kinds.sort_by_key(|kind| kind.first);
    for kind in &mut kinds {
        // Every resource of a kind carries as much of these flows as any other.
        let mut sums: Vec<(u32, f64)> = Vec::new();
        for usage in &kind.usage {
            if let Some(resource) = kind_of_resource[usage.resource as usize] {
                sums.push((resource, f64::from(usage.fraction)));
            }
        }
        sums.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let of_resource = sums.chunk_by(|one, other| one.0 == other.0).map(|same| {
            let resource = same[0].0;
            let sum: f64 = same.iter().map(|(_, fraction)| fraction).sum();
            let each = sum * f64::from(kind.count) / f64::from(counts[resource as usize]);
            Usage { resource, fraction: each as f32 }
        });
        kind.usage = of_resource.collect();
    }
    Quotient { capacities: of_kind, kind_of_resource, flows: kinds }
}

/// What is known of a flow or a resource so far: 128 bits, so that different ones are not taken for equal by chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Colour(u64, u64);

impl Colour {
    fn of(value: u64) -> Self {
        Self(mix(value), mix(value ^ 0x9e37_79b9_7f4a_7c15))
    }

    /// A neighbour of this colour, with the fraction between the two.
    fn with(self, fraction: f32) -> Self {
        let fraction = u64::from(fraction.to_bits());
        Self(mix(self.0 ^ mix(fraction)), mix(self.1.wrapping_add(mix(!fraction))))
    }

    /// Adds a neighbour: their order does not matter.
    fn add(&mut self, neighbour: Self) {
        self.0 = self.0.wrapping_add(neighbour.0);
        self.1 = self.1.wrapping_add(neighbour.1);
    }

    /// The same, told apart by its neighbours.
    fn and(self, neighbours: Self) -> Self {
        Self(mix(self.0.rotate_left(17) ^ neighbours.0), mix(self.1.rotate_left(31) ^ neighbours.1))
    }
}

/// Mixes the bits of a number (the finaliser of splitmix64).
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Colours in order, each once.
fn distinct(colours: impl Iterator<Item = Colour>) -> Vec<Colour> {
    let mut all: Vec<Colour> = colours.collect();
    all.sort_unstable();
    all.dedup();
    all
}
