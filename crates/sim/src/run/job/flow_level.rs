//! Steps of jobs at flow fidelity: the calls of all kinds of ranks are rates on the links, those of the groups that a kind stands for
//! included, and share them with whatever else is under way.

use std::collections::BTreeMap;

use railnet_coll::Collective;
use railnet_core::digest::Fold;
use railnet_core::{Bytes, DataType, Rank, Span, Time};
use railnet_job::graph::{StepGraph, What};
use railnet_job::parallel::{Group, Layout, Scope};
use railnet_job::run::analytic::{Asked, Begun, Carrier, ClusterCosts, Network, NoPrice, Price, StepRun};
use railnet_job::run::{Machine, Workers};

use crate::run::RunError;
use crate::run::flow_level::{CallNetwork, CallPlans};
use crate::scenario::{PlacedJob, ScenarioError};

/// What tells calls apart that cross the network differently: the scope, the representative of the first rank, the peer, what it is,
/// and how much.
type Key = (Scope, u32, u32, u8, Bytes, DataType);

/// The calls of a job, as a network carries them.
pub(super) struct JobCalls<'a, 'c> {
    pub(super) costs: &'c mut ClusterCosts<'a>,
    pub(super) placed: &'c PlacedJob,
    layout: &'c Layout,
    workers: Workers,
    /// The number of each call among those that are laid out; none of those that stay inside servers.
    known: BTreeMap<Key, Option<u32>>,
}

impl<'a, 'c> JobCalls<'a, 'c> {
    pub(super) fn new(
        costs: &'c mut ClusterCosts<'a>,
        placed: &'c PlacedJob,
        layout: &'c Layout,
        workers: Workers,
    ) -> Self {
        Self { costs, placed, layout, workers, known: BTreeMap::new() }
    }

    fn representative(&self, rank: Rank) -> Rank {
        self.workers.representative(self.layout, rank)
    }

    fn key(&self, asked: &Asked<'_>) -> Key {
        let said = asked.said;
        let (first, peer) = match asked.pair {
            Some([from, to]) => (from, to.0),
            None => (self.representative(asked.group.first), u32::MAX),
        };
        (said.scope, first.0, peer, kind(said.what), said.bytes, said.dtype)
    }

    /// The groups of a scope for which this one stands, itself included.
    fn groups(&self, group: &Group, scope: Scope) -> Vec<Group> {
        let wanted = self.representative(group.first);
        let mut seen = vec![false; self.layout.ranks() as usize];
        let mut found = Vec::new();
        for rank in 0..self.layout.ranks() {
            if seen[rank as usize] {
                continue;
            }
            let other = self.layout.group(Rank(rank), scope);
            for member in other.ranks() {
                seen[member.0 as usize] = true;
            }
            if other.levels == group.levels && self.representative(other.first) == wanted {
                found.push(other);
            }
        }
        found
    }

    /// The senders and receivers for which these two stand, themselves included.
    fn pairs(&self, [from, to]: [Rank; 2]) -> Vec<[Rank; 2]> {
        let apart = i64::from(to.0) - i64::from(from.0);
        let ranks = self.layout.ranks();
        let alike = (0..ranks).map(Rank).filter(|rank| self.representative(*rank) == from);
        let pairs = alike.filter_map(|rank| {
            let to = u32::try_from(i64::from(rank.0) + apart).ok().filter(|to| *to < ranks)?;
            Some([rank, Rank(to)])
        });
        pairs.collect()
    }
}

/// Lays out all calls of a job before its first step.
struct LayOut<'n, 'a, 'c> {
    plans: &'n mut CallPlans,
    calls: &'n mut JobCalls<'a, 'c>,
    job: u32,
    failure: Option<RunError>,
}

impl Carrier for LayOut<'_, '_, '_> {
    type Plan = Option<u32>;

    fn price(&mut self, asked: &Asked<'_>) -> Result<(Price, Option<u32>), NoPrice> {
        let calls = &mut *self.calls;
        let price = calls.costs.price(asked)?;
        let key = calls.key(asked);
        if let Some(known) = calls.known.get(&key) {
            return Ok((price, *known));
        }
        let (mut groups, mut pairs) = (Vec::new(), Vec::new());
        match asked.pair {
            Some(pair) => pairs = calls.pairs(pair),
            None => groups = calls.groups(asked.group, asked.said.scope),
        }
        let plan = calls.costs.call_plan(asked, &groups, &pairs)?;
        // Calls of one communicator have the same connections, whatever they are about.
        let connections = (asked.said.scope as u64) << 56 | u64::from(self.job) << 40;
        let placed = calls.placed;
        let home = |node| placed.home(node);
        let laid_out = plan.map(|plan| self.plans.lay_out(&plan, connections, home)).transpose();
        let number = laid_out.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            None
        });
        calls.known.insert(key, number);
        Ok((price, number))
    }

    fn begin(&mut self, _: Time, _: u32, _: &Begun<'_, Option<u32>>) {
        unreachable!("no call begins before all are laid out");
    }
}

/// A job's calls on the network that carries them.
struct OnNetwork<'n, 'a, 'c> {
    network: &'n mut CallNetwork,
    calls: &'n mut JobCalls<'a, 'c>,
    job: u32,
}

impl Carrier for OnNetwork<'_, '_, '_> {
    type Plan = Option<u32>;

    fn price(&mut self, asked: &Asked<'_>) -> Result<(Price, Option<u32>), NoPrice> {
        let price = self.calls.costs.price(asked)?;
        let known = self.calls.known.get(&self.calls.key(asked));
        Ok((price, *known.expect("all calls of a step were laid out before it")))
    }

    fn begin(&mut self, now: Time, slot: u32, begun: &Begun<'_, Option<u32>>) {
        let name = (self.job, slot);
        match begun.plan {
            Some(call) => self.network.begin(now, name, call),
            None => self.network.begin_inside(now, name, begun.price.time),
        }
    }
}

/// A job whose steps are run: the calls that it makes, and the graph of each step.
pub(super) struct JobSteps<'g, 'a, 'c> {
    pub(super) calls: JobCalls<'a, 'c>,
    pub(super) graphs: Vec<&'g StepGraph>,
}

/// What came of the steps of a job.
pub(super) struct Ran<'g> {
    /// How long each took.
    pub(super) steps: Vec<Span>,
    /// The first of them.
    pub(super) first: Machine<'g>,
}

/// A job on its way.
struct Running<'g> {
    step: StepRun<'g, Option<u32>>,
    began: Time,
    steps: Vec<Span>,
    first: Option<Machine<'g>>,
}

/// Runs the steps of jobs that share a network. Returns the network as well, with what its links carried.
pub(super) fn run<'g>(
    jobs: &mut [JobSteps<'g, '_, '_>],
    mut plans: CallPlans,
) -> Result<(Vec<Ran<'g>>, CallNetwork), RunError> {
    lay_out(jobs, &mut plans)?;
    let mut network = plans.settle();
    let mut running: Vec<Option<Running<'g>>> = Vec::new();
    for job in &*jobs {
        let first = job.graphs.first().map(|graph| Running {
            step: StepRun::new(graph, job.calls.workers.clone(), Time::ZERO),
            began: Time::ZERO,
            steps: Vec::new(),
            first: None,
        });
        running.push(first);
    }
    let (mut now, mut ended, mut done) = (Time::ZERO, Vec::new(), Vec::new());
    done.resize_with(jobs.len(), || None);
    loop {
        for (number, job) in (0..).zip(&mut *jobs) {
            while let Some(mut state) = running[number as usize].take() {
                let mut carrier = OnNetwork { network: &mut network, calls: &mut job.calls, job: number };
                state.step.enter(now, &mut carrier).map_err(|error| refused(&error))?;
                if !state.step.is_over() {
                    running[number as usize] = Some(state);
                    break;
                }
                let machine = state.step.finish().map_err(|error| refused(&error))?;
                state.steps.push(now.since(state.began));
                let first = state.first.unwrap_or(machine);
                match job.graphs.get(state.steps.len()) {
                    Some(graph) => {
                        let step = StepRun::new(graph, job.calls.workers.clone(), now);
                        running[number as usize] =
                            Some(Running { step, began: now, steps: state.steps, first: Some(first) });
                    }
                    None => done[number as usize] = Some(Ran { steps: state.steps, first }),
                }
            }
        }
        let computed = running.iter_mut().flatten().filter_map(|job| job.step.next_timeout());
        let Some(next) = computed.chain(network.next_event()).min() else { break };
        now = next;
        for job in running.iter_mut().flatten() {
            job.step.handle_timeout(now);
        }
        network.advance(now, &mut ended);
        for (job, slot) in ended.drain(..) {
            if let Some(job) = &mut running[job as usize] {
                job.step.end(now, slot);
            }
        }
    }
    // Where nothing happens any more and a step is not over, its graph stands still.
    for job in running.into_iter().flatten() {
        job.step.finish().map_err(|error| refused(&error))?;
    }
    Ok((done.into_iter().flatten().collect(), network))
}

/// Lays out the calls of all steps of all jobs.
fn lay_out(jobs: &mut [JobSteps<'_, '_, '_>], plans: &mut CallPlans) -> Result<(), RunError> {
    for (number, JobSteps { calls, graphs }) in (0..).zip(jobs) {
        let mut seen: Vec<&StepGraph> = Vec::new();
        for graph in &*graphs {
            if seen.iter().any(|other| std::ptr::eq(*other, *graph)) {
                continue;
            }
            seen.push(graph);
            let mut step = StepRun::new(graph, calls.workers.clone(), Time::ZERO);
            let mut carrier = LayOut { plans: &mut *plans, calls: &mut *calls, job: number, failure: None };
            step.prepare(&mut carrier).map_err(|error| refused(&error))?;
            if let Some(failure) = carrier.failure {
                return Err(failure);
            }
        }
    }
    Ok(())
}

fn refused(error: &NoPrice) -> RunError {
    RunError::Scenario(ScenarioError::new(error.to_string()))
}

/// Takes what links of the fabric carried into a digest.
pub(super) fn fold(network: &CallNetwork, digest: &mut Fold) {
    for bytes in network.carried() {
        digest.push(bytes.round() as u64);
    }
}

/// A number for each kind of operation.
const fn kind(what: What) -> u8 {
    match what {
        What::Collective(collective) => collective as u8,
        What::Push => Collective::ALL.len() as u8,
        What::Pull => Collective::ALL.len() as u8 + 1,
        What::Write => Collective::ALL.len() as u8 + 2,
        What::Send { .. } | What::Receive { .. } => Collective::ALL.len() as u8 + 3,
    }
}
