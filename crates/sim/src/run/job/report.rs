//! What came of jobs, whoever carried their communication.

use std::collections::BTreeMap;

use railnet_coll::{Algorithm, Protocol};
use railnet_core::digest::Fold;
use railnet_core::event::Sink;
use railnet_core::{Bytes, RunDigest, Span, Time};
use railnet_fabric::Network;
use railnet_job::graph::{Communication, Pass, StepGraph, What, Work};
use railnet_job::parallel::Scope;
use railnet_job::run::analytic::{Bottleneck, Caveat};
use railnet_job::run::{
    Life, LineTime, Machine, Outcome as StepOutcome, RankSpan, Said, critical_path, kind, lines, said,
};

use super::super::{FlowLevel, Outcome};
use super::memo::MemoCount;
use crate::scenario::{Fidelity, PlacedJob};

/// What came of the jobs of a scenario.
#[derive(Clone, Debug)]
pub struct JobsOutcome {
    /// How they were run.
    pub fidelity: Fidelity,
    /// The jobs, as the scenario lists them.
    pub jobs: Vec<JobResult>,
    /// What the fabric saw, where packets were sent.
    pub network: Option<Outcome>,
    /// How many collectives were carried out as packets, and how many were memoised.
    pub memo: MemoCount,
    /// It was stopped before its end: this is what was known by then.
    pub is_partial: bool,
    /// The same scenario and seed give the same.
    pub digest: RunDigest,
}

/// What came of a job.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// The job, and where it ran.
    pub placed: PlacedJob,
    /// Who is joined with whom across servers.
    pub connections: Connections,
    /// What came before the first step.
    pub start: Start,
    /// What went over the ports of the fabric, by scope; only with packets.
    pub ports: Vec<PortTraffic>,
    /// How long each step took that came to its end.
    pub steps: Vec<Span>,
    /// The first of them in full, or what was known of it when the run was stopped.
    pub first: StepResult,
    /// What each fault costs.
    pub faults: Vec<FaultPrice>,
    /// What became of it, where it failed on the way: the steps are those that it has without that.
    pub life: Option<Life>,
    /// What ranks did and when, where a watcher asked for it: of all of them, or of one of each kind without packets.
    pub timeline: Vec<RankSpan>,
}

impl JobResult {
    /// From submission to the end of the last step.
    pub fn completion(&self) -> Span {
        self.start.meet + self.start.connect + self.total()
    }

    /// From the start of the first step to its end.
    pub fn total(&self) -> Span {
        self.life.map_or_else(|| sum(&self.steps), |life| life.total)
    }
}

/// What a step was like.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// How long it took, and where the time went.
    pub outcome: StepOutcome,
    /// What was said in it, one row for each kind.
    pub said: Vec<SaidResult>,
    /// What decided how long it took, and for how long, the longest first.
    pub path: Vec<(&'static str, Span)>,
    /// The kinds of servers, where they are not all alike: who computes for how long, and who waits.
    pub kinds: Vec<KindResult>,
    /// The resource of the interconnect that bounds each kind of communication across servers, by formulas; nothing with packets,
    /// which have links that count.
    pub bottlenecks: Vec<Bottleneck>,
    /// Why packets may differ from formulas in the longest call of each scope; nothing with packets.
    pub caveats: Vec<(Scope, Caveat)>,
    /// What each line of a recorded script costs.
    pub lines: Vec<LineTime>,
    /// What a run at flow fidelity says of itself; nothing of others.
    pub flow_level: Option<FlowLevel>,
}

/// The ranks on one kind of server, on average.
#[derive(Clone, PartialEq, Debug)]
pub struct KindResult {
    /// Their GPU.
    pub gpu: String,
    /// How many ranks there are.
    pub ranks: u32,
    /// How long they compute.
    pub compute: Span,
    /// How long they wait for others to come.
    pub waiting: Span,
}

/// One kind of communication in a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SaidResult {
    /// What, how often, and how long it took.
    pub said: Said,
    /// Ranks of a group.
    pub ranks: u32,
    /// How the largest was run, where it is a collective.
    pub how: Option<How>,
    /// What went wrong in the network while the one ran that took longest from the moment when all had come; only with packets.
    pub trouble: Option<Trouble>,
}

/// What goes wrong in a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trouble {
    /// Packets with an ECN mark.
    pub marks: u64,
    /// Pause frames.
    pub pauses: u64,
    /// Packets dropped or lost.
    pub lost: u64,
    /// Packets sent again.
    pub resent: u64,
}

impl Trouble {
    /// What has gone wrong so far.
    pub(super) fn so_far<S: Sink>(network: &mut Network<S>) -> Self {
        network.synchronise_switches();
        let mut found = Self::default();
        for (_, _, _, counters) in network.channels() {
            found.marks += counters.marks;
            found.pauses += counters.pauses;
            found.lost += counters.drops + counters.losses;
        }
        for host in 0..network.host_count() {
            found.resent += network.nic(host).0.counters().resent;
        }
        found
    }

    pub(super) fn add(&mut self, other: Self) {
        self.marks += other.marks;
        self.pauses += other.pauses;
        self.lost += other.lost;
        self.resent += other.resent;
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            marks: self.marks - before.marks,
            pauses: self.pauses - before.pauses,
            lost: self.lost - before.lost,
            resent: self.resent - before.resent,
        }
    }
}

/// What a job sent from or to a port of the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortTraffic {
    /// The port, as links name it.
    pub port: String,
    /// Among whom.
    pub scope: Scope,
    /// Bytes of messages that left.
    pub sent: u64,
    /// Bytes of messages that came.
    pub received: u64,
}

/// From submission to the first step, by a stated model: a network for management that nobody simulates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// Until all ranks know of each other.
    pub meet: Span,
    /// Until queue pairs are ready.
    pub connect: Span,
}

/// There and back on the management network, with the kernels of both ends: assumed.
const ROUND_TRIP: Span = Span::from_us(200);
/// What rank 0 takes to accept a rank and to read what it says: assumed.
const GREETING: Span = Span::from_us(50);
/// To make a queue pair and to bring it to its peer's: the low end of the 1 to 10 ms and more that a verbs connection takes
/// (hundreds to thousands of times 10 µs, X. Wei et al., ATC '22, arXiv 2201.11578).
const QUEUE_PAIR: Span = Span::from_ms(1);

impl Start {
    /// Of so many ranks with so many queue pairs. Ranks connect to rank 0, which deals with one after the other, then addresses go
    /// once around a ring, as NCCL's bootstrap has it; each rank makes its queue pairs one after the other, with a round trip
    /// for each to tell its peer.
    pub(super) fn new(ranks: u32, queue_pairs: u64) -> Self {
        let ranks = u64::from(ranks).max(1);
        Self {
            meet: ROUND_TRIP * 2 + GREETING * ranks + ROUND_TRIP * (ranks - 1) / 2,
            connect: (QUEUE_PAIR + ROUND_TRIP) * queue_pairs.div_ceil(ranks),
        }
    }
}

/// How a collective is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Channels that share the data.
    pub channels: u32,
}

/// Who is joined with whom across servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Connections {
    /// Communicators that reach across servers.
    pub communicators: u64,
    /// Ranks of the largest of them.
    pub ranks: u32,
    /// Channels of that.
    pub channels: u32,
    /// Queue pairs of all NICs.
    pub queue_pairs: u64,
    /// Their buffers, at both ends.
    pub buffers: Bytes,
}

/// What a fault costs: the run without it is the measure.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultPrice {
    /// Which, in words.
    pub what: String,
    /// A step with it.
    pub with: Span,
    /// A step without it.
    pub without: Span,
    /// The whole job with it.
    pub total_with: Span,
    /// The whole job without it.
    pub total_without: Span,
    /// How the job got over it, where it failed.
    pub recovery: Option<RecoveryStory>,
}

impl FaultPrice {
    /// What the whole job takes longer.
    pub fn more(&self) -> Span {
        self.total_with - self.total_without
    }

    /// Hours of so many GPUs that go into it.
    pub fn gpu_hours(&self, gpus: u32) -> f64 {
        self.more().as_secs_f64() / 3_600.0 * f64::from(gpus)
    }
}

/// How a job got over a failure.
#[derive(Clone, PartialEq, Debug)]
pub struct RecoveryStory {
    /// What became of it.
    pub life: Life,
    /// How the others noticed.
    pub noticed: &'static str,
    /// Servers with which it went on.
    pub nodes: u32,
    /// Whether a spare took the place of the one that was lost.
    pub has_spare: bool,
}

/// All steps together.
pub(super) fn sum(steps: &[Span]) -> Span {
    steps.iter().fold(Span::ZERO, |sum, step| sum + *step)
}

/// What came of a step that has been run. `how` says how the largest of each kind was run.
pub(super) fn step(
    placed: &PlacedJob,
    machine: &Machine<'_>,
    how: impl FnMut(&Communication) -> Option<How>,
    troubles: &Troubles,
) -> StepResult {
    result(placed, machine, rows(machine, how, troubles))
}

/// What is known of a step that was stopped.
pub(super) fn part_of_step(
    placed: &PlacedJob,
    machine: &mut Machine<'_>,
    now: Time,
    how: impl FnMut(&Communication) -> Option<How>,
    troubles: &Troubles,
) -> StepResult {
    // What is under way counts as time, but says nothing about how long it takes.
    let said = rows(machine, how, troubles);
    machine.stop(now);
    result(placed, machine, said)
}

fn result(placed: &PlacedJob, machine: &Machine<'_>, said: Vec<SaidResult>) -> StepResult {
    let outcome = StepOutcome::of(&placed.resolved.job, machine);
    let (path, kinds) = (path(machine), kinds(placed, machine, &outcome));
    let lines = lines(machine);
    let (bottlenecks, caveats, flow_level) = (Vec::new(), Vec::new(), None);
    StepResult { outcome, said, path, kinds, bottlenecks, caveats, lines, flow_level }
}

/// What went wrong while the longest of each kind ran, and how long that took.
pub(super) type Troubles = BTreeMap<(Scope, u8, u8), (Span, Trouble)>;

fn rows(
    machine: &Machine<'_>,
    mut how: impl FnMut(&Communication) -> Option<How>,
    troubles: &Troubles,
) -> Vec<SaidResult> {
    let graph = machine.graph();
    let rows = said(machine).into_iter().map(|said| {
        let example = example(graph, &said);
        let group = graph.layout.group(railnet_core::Rank(0), said.scope).size();
        let ranks = if matches!(said.what, What::Collective(_)) { group } else { 2 };
        let trouble = troubles.get(&kind(said.scope, said.what)).map(|(_, trouble)| *trouble);
        SaidResult { said, ranks, how: example.as_ref().and_then(&mut how), trouble }
    });
    rows.collect()
}

/// What ranks on each kind of server do, where there are several.
fn kinds(placed: &PlacedJob, machine: &Machine<'_>, outcome: &StepOutcome) -> Vec<KindResult> {
    let job = &placed.resolved.job;
    if job.others.is_empty() {
        return Vec::new();
    }
    let mut found: BTreeMap<u32, (String, u32, u128, u128)> = BTreeMap::new();
    for (worker, parts) in machine.workers().iter().zip(&outcome.workers) {
        let other = job.others.iter().find(|other| other.ranks.contains(&worker.rank.0));
        let (kind, gpu) = other.map_or((0, &job.gpu), |other| (other.kind, &other.gpu));
        let of = found.entry(kind).or_insert_with(|| (gpu.name.clone(), 0, 0, 0));
        of.1 += worker.stands_for;
        of.2 += u128::from(parts.compute().as_ps()) * u128::from(worker.stands_for);
        of.3 += u128::from((parts.waiting + parts.bubble).as_ps()) * u128::from(worker.stands_for);
    }
    if found.len() < 2 {
        // The others have no ranks.
        return Vec::new();
    }
    let mean = |sum: u128, ranks: u32| Span::from_ps((sum / u128::from(ranks.max(1))) as u64);
    let rows = found.into_values().map(|(gpu, ranks, compute, waiting)| KindResult {
        gpu,
        ranks,
        compute: mean(compute, ranks),
        waiting: mean(waiting, ranks),
    });
    rows.collect()
}

/// The largest of a kind.
fn example(graph: &StepGraph, wanted: &Said) -> Option<Communication> {
    let operations = graph.programs.iter().flat_map(|program| &program.operations);
    let mut said = operations.filter_map(|operation| match &operation.work {
        Work::Communicate(said) => Some(*said),
        Work::Compute { .. } => None,
    });
    said.find(|said| said.scope == wanted.scope && said.what == wanted.what && said.bytes == wanted.largest)
}

fn path(machine: &Machine<'_>) -> Vec<(&'static str, Span)> {
    let mut parts: BTreeMap<&'static str, Span> = BTreeMap::new();
    for step in critical_path(machine) {
        let operation = machine.operation(step.ticket);
        let name = match &operation.work {
            Work::Communicate(said) => said.scope.name(),
            Work::Compute { .. } => pass_name(operation.pass),
        };
        *parts.entry(name).or_insert(Span::ZERO) += step.to.since(step.from);
    }
    let mut parts: Vec<_> = parts.into_iter().collect();
    parts.sort_by_key(|(name, span)| (std::cmp::Reverse(*span), *name));
    parts
}

/// What reports call a part of a step.
const fn pass_name(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "forward",
        Pass::Recompute => "recompute",
        Pass::Backward => "backward",
        Pass::Optimiser => "optimiser",
        Pass::Checkpoint => "checkpoint",
    }
}

/// Takes all that a step did, and when, into a digest.
pub(super) fn fold(machine: &Machine<'_>, fold: &mut Fold) {
    for worker in 0..machine.workers().len() as u32 {
        fold.push(u64::from(machine.workers()[worker as usize].rank.0));
        for record in machine.records(worker) {
            for time in [record.entered, record.begun, record.ended] {
                fold.push(time.as_ps());
            }
        }
    }
}

/// The scopes in which ranks of a job say anything to others.
pub(super) fn scopes(graph: &StepGraph) -> Vec<Scope> {
    let has = |scope: &Scope| graph.programs.iter().any(|program| program.volume(*scope).0 > 0);
    Scope::ALL.into_iter().filter(has).collect()
}
