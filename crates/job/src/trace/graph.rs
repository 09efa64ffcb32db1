//! From traces to programs and groups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType, Rank, Span};
use smallvec::SmallVec;

use super::{RankTrace, Recorded, TraceError, TraceNode, TraceWork};
use crate::compute::Gpu;
use crate::graph::{Communication, Operation, Pass, Program, Stream, What, Work};
use crate::parallel::{Group, Scope};

/// The kinds of groups that a trace may have besides that of all ranks: as many as there are ways to share out ranks.
const FAMILIES: [(Scope, Stream); 5] = [
    (Scope::Tensor, Stream::Tensor),
    (Scope::Data, Stream::Reduce),
    (Scope::Context, Stream::Context),
    (Scope::Expert, Stream::Expert),
    (Scope::ExpertData, Stream::Gather),
];

/// What all ranks do: a program for each, and who is in a group with whom.
#[derive(Clone, PartialEq, Debug)]
pub struct TraceGraph {
    /// What each rank does.
    pub programs: Vec<Program>,
    /// The groups, by the scope that stands for their kind.
    pub groups: Vec<(Scope, Vec<Group>)>,
    /// Nodes of all traces.
    pub nodes: u64,
    /// Nodes that take no time.
    pub idle: u64,
    /// Attributes that nobody reads, and how often they were there.
    pub ignored: BTreeMap<String, u64>,
    /// Where operations come from, where roles were recorded instead of every rank.
    pub recorded: Option<Arc<Recorded>>,
}

impl TraceGraph {
    /// The traces of all ranks, on these GPUs.
    pub fn new(traces: &[RankTrace], gpu: &Gpu) -> Result<Self, TraceError> {
        let named = named(traces);
        let groups = families(&named, traces.len() as u32)?;
        let mut scopes = BTreeMap::new();
        for (name, ranks) in &named {
            let family = groups.iter().find(|(_, list)| list.iter().any(|group| is_of(group, ranks)));
            let known = family.and_then(|(scope, _)| FAMILIES.iter().find(|(known, _)| known == scope));
            let scope = known.copied().unwrap_or((Scope::World, Stream::World));
            scopes.insert(name.as_str(), (scope, ranks.len() as u64));
        }
        let mut programs = Vec::new();
        for (rank, trace) in traces.iter().enumerate() {
            let builder = Builder { rank: rank as u32, ranks: traces.len() as u32, scopes: &scopes, gpu };
            programs.push(builder.program(trace)?);
        }
        let mut ignored = BTreeMap::new();
        for (name, count) in traces.iter().flat_map(|trace| &trace.ignored) {
            *ignored.entry(name.clone()).or_insert(0) += count;
        }
        let nodes = || traces.iter().flat_map(|trace| &trace.nodes);
        let idle = nodes().filter(|node| node.what == TraceWork::Nothing).count() as u64;
        Ok(Self { programs, groups, nodes: nodes().count() as u64, idle, ignored, recorded: None })
    }
}

/// The ranks of each process group: those that use it.
fn named(traces: &[RankTrace]) -> BTreeMap<String, BTreeSet<u32>> {
    let mut named: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (rank, trace) in traces.iter().enumerate() {
        for node in &trace.nodes {
            if let TraceWork::Collective { group: Some(group), .. } = &node.what {
                named.entry(group.clone()).or_default().insert(rank as u32);
            }
        }
    }
    named
}

fn is_of(group: &Group, ranks: &BTreeSet<u32>) -> bool {
    group.size() as usize == ranks.len() && group.ranks().all(|rank| ranks.contains(&rank.0))
}

/// Groups that do not overlap are of a kind; all ranks together are none.
fn families(
    named: &BTreeMap<String, BTreeSet<u32>>,
    all: u32,
) -> Result<Vec<(Scope, Vec<Group>)>, TraceError> {
    let mut families: Vec<Vec<Group>> = Vec::new();
    for (name, ranks) in named.iter().filter(|(_, ranks)| ranks.len() < all as usize) {
        let group = spaced(name, ranks)?;
        if families.iter().flatten().any(|known| known == &group) {
            continue;
        }
        let is_free = |family: &&mut Vec<Group>| {
            family.iter().all(|known| known.ranks().all(|rank| !ranks.contains(&rank.0)))
        };
        match families.iter_mut().find(is_free) {
            Some(family) => family.push(group),
            None => families.push(vec![group]),
        }
        if families.len() > FAMILIES.len() {
            return Err(TraceError::TooMany { group: name.clone(), families: FAMILIES.len() });
        }
    }
    // Neighbours share matrices as a rule, and those who are apart the batch: reports use the words of models.
    families.sort_by_key(|family| family[0].levels[0].1);
    let mut left: Vec<Scope> = FAMILIES.iter().map(|(scope, _)| *scope).collect();
    let scoped = families.into_iter().map(|family| {
        let is_apart = family[0].levels[0].1 > 1 && left[0] == Scope::Tensor && left.len() > 1;
        (left.remove(usize::from(is_apart)), family)
    });
    Ok(scoped.collect())
}

fn spaced(name: &str, ranks: &BTreeSet<u32>) -> Result<Group, TraceError> {
    let list: Vec<u32> = ranks.iter().copied().collect();
    let stride = list.get(1).map_or(1, |second| second - list[0]);
    if list.windows(2).any(|pair| pair[1] - pair[0] != stride) {
        let ranks: Vec<String> = list.iter().map(u32::to_string).collect();
        return Err(TraceError::Uneven { group: name.to_owned(), ranks: ranks.join(", ") });
    }
    let levels = [(list.len() as u32, stride)];
    Ok(Group { first: Rank(list[0]), levels: levels.into_iter().collect() })
}

/// Makes the program of a rank.
struct Builder<'a> {
    rank: u32,
    ranks: u32,
    /// The scope, the stream and the ranks of each process group.
    scopes: &'a BTreeMap<&'a str, ((Scope, Stream), u64)>,
    gpu: &'a Gpu,
}

impl Builder<'_> {
    fn program(&self, trace: &RankTrace) -> Result<Program, TraceError> {
        let order = self.order(trace)?;
        let mut operations: Vec<Operation> = Vec::new();
        // The operations that stand for a node: itself, or what it waits for where it takes no time.
        let mut stand_for: BTreeMap<u64, SmallVec<[u32; 2]>> = BTreeMap::new();
        for node in order {
            let mut after: SmallVec<[u32; 2]> =
                node.after.iter().flat_map(|before| stand_for[before].iter().copied()).collect();
            after.sort_unstable();
            after.dedup();
            let Some((stream, work)) = self.work(node)? else {
                stand_for.insert(node.id, after);
                continue;
            };
            let number = operations.len() as u32;
            operations.push(Operation {
                stream,
                work,
                after,
                pass: Pass::Forward,
                microbatch: 0,
                layer: None,
            });
            stand_for.insert(node.id, SmallVec::from_elem(number, 1));
        }
        Ok(Program::new(operations))
    }

    /// The nodes in an order in which they can run: of those that can, the one that began first.
    fn order<'t>(&self, trace: &'t RankTrace) -> Result<Vec<&'t TraceNode>, TraceError> {
        let rank = self.rank;
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        for (place, node) in trace.nodes.iter().enumerate() {
            if places.insert(node.id, place).is_some() {
                return Err(TraceError::Twice { rank, node: node.id });
            }
        }
        let mut missing: Vec<usize> = Vec::new();
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); trace.nodes.len()];
        for (place, node) in trace.nodes.iter().enumerate() {
            for before in &node.after {
                let Some(before) = places.get(before) else {
                    return Err(TraceError::Missing { rank, node: node.id, missing: *before });
                };
                dependents[*before].push(place);
            }
            missing.push(node.after.len());
        }
        let key = |place: usize| Reverse((trace.nodes[place].start, trace.nodes[place].id, place));
        let mut ready: BinaryHeap<_> =
            (0..missing.len()).filter(|place| missing[*place] == 0).map(key).collect();
        let mut order = Vec::new();
        while let Some(Reverse((.., place))) = ready.pop() {
            order.push(&trace.nodes[place]);
            for dependent in &dependents[place] {
                missing[*dependent] -= 1;
                if missing[*dependent] == 0 {
                    ready.push(key(*dependent));
                }
            }
        }
        match missing.iter().position(|left| *left > 0) {
            Some(place) => Err(TraceError::Circle { rank, node: trace.nodes[place].id }),
            None => Ok(order),
        }
    }

    fn work(&self, node: &TraceNode) -> Result<Option<(Stream, Work)>, TraceError> {
        let dtype = DataType::U8;
        let said = |stream: Stream, what: What, scope: Scope, bytes: Bytes| {
            Some((stream, Work::Communicate(Communication { what, scope, bytes, dtype })))
        };
        Ok(match &node.what {
            TraceWork::Nothing => None,
            TraceWork::Compute { time, operations, bytes } => {
                let seconds =
                    (*operations as f64 / self.gpu.sustained).max(bytes.as_u64() as f64 / self.gpu.bandwidth);
                let time = time.unwrap_or(Span::from_ps((seconds * 1e12).round() as u64));
                (time > Span::ZERO).then_some((Stream::Compute, Work::Compute { time, experts: Span::ZERO }))
            }
            TraceWork::Collective { collective, bytes, group } => {
                let all = ((Scope::World, Stream::World), u64::from(self.ranks));
                let named = group.as_deref().and_then(|group| self.scopes.get(group).copied());
                let ((scope, stream), ranks) = named.unwrap_or(all);
                let (collective, bytes) = self.collective(node, *collective, *bytes, ranks)?;
                said(stream, What::Collective(collective), scope, bytes)
            }
            TraceWork::Send { to, bytes } => {
                self.check_peer(node, *to)?;
                let stream = if *to > self.rank { Stream::SendForward } else { Stream::SendBackward };
                said(stream, What::Send { stage: *to }, Scope::Pipeline, *bytes)
            }
            TraceWork::Receive { from, bytes } => {
                self.check_peer(node, *from)?;
                let stream = if *from < self.rank { Stream::ReceiveForward } else { Stream::ReceiveBackward };
                said(stream, What::Receive { stage: *from }, Scope::Pipeline, *bytes)
            }
        })
    }

    fn check_peer(&self, node: &TraceNode, other: u32) -> Result<(), TraceError> {
        if other < self.ranks && other != self.rank {
            return Ok(());
        }
        Err(TraceError::NoSuchRank { rank: self.rank, node: node.id, other, last: self.ranks - 1 })
    }

    /// As jobs count bytes: those of the largest buffer.
    fn collective(
        &self,
        node: &TraceNode,
        collective: Collective,
        bytes: Bytes,
        ranks: u64,
    ) -> Result<(Collective, Bytes), TraceError> {
        match collective {
            Collective::AllGather => Ok((collective, bytes * ranks)),
            Collective::Barrier => Ok((Collective::AllReduce, Bytes(4))),
            Collective::Gather | Collective::Scatter | Collective::SendReceive => {
                Err(TraceError::NotRun { rank: self.rank, node: node.id, what: collective.name() })
            }
            _ => Ok((collective, bytes)),
        }
    }
}
