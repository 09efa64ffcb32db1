//! What came of a step: how long it took, and where the time went.

use railnet_core::{Rank, Span, Time};

use super::late::{self, LateWait, Wait};
use super::machine::{Machine, Record, Ticket};
use crate::compute::step_flops;
use crate::graph::{Job, Pass, Stream, Work};
use crate::parallel::Scope;

/// Where the time of a rank went. All of it together is the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Breakdown {
    /// Computing forward.
    pub forward: Span,
    /// Computing again what was forgotten.
    pub recompute: Span,
    /// Computing backward.
    pub backward: Span,
    /// The optimiser.
    pub optimiser: Span,
    /// What computing took longer because communication ran on the same GPU.
    pub contention: Span,
    /// Waiting for communication that was under way, by scope.
    pub exposed: [Span; Scope::ALL.len()],
    /// Waiting for other stages of the pipeline.
    pub bubble: Span,
    /// Waiting for ranks that come late.
    pub waiting: Span,
}

impl Breakdown {
    /// Computing, as it would be on a GPU that does nothing else.
    pub fn compute(&self) -> Span {
        self.forward + self.recompute + self.backward + self.optimiser
    }

    /// All communication that was waited for.
    pub fn exposed_total(&self) -> Span {
        self.exposed.iter().fold(Span::ZERO, |sum, one| sum + *one)
    }

    /// Everything.
    pub fn total(&self) -> Span {
        self.compute() + self.contention + self.exposed_total() + self.bubble + self.waiting
    }
}

/// The rank for which the others wait longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Straggler {
    /// The rank.
    pub rank: Rank,
    /// How many ranks are like it, itself included: one where every rank is run.
    pub alike: u32,
    /// How long the GPUs of others had nothing to do because of it and those like it, summed over all ranks.
    pub delay: Span,
    /// How much longer it computed than the average of the others of its stage.
    pub behind: Span,
}

/// What came of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// How long the step took.
    pub step: Span,
    /// Where the time of an average rank went.
    pub average: Breakdown,
    /// Where that of each worker went.
    pub workers: Vec<Breakdown>,
    /// The part of the step in which an average GPU computed.
    pub utilisation: f64,
    /// Model FLOPs utilisation: operations that the model needs over those that the GPUs could have done.
    pub mfu: f64,
    /// Model FLOP/s of each GPU.
    pub flops: f64,
    /// Tokens per second.
    pub tokens: f64,
    /// The rank that others wait for, where they do.
    pub straggler: Option<Straggler>,
}

impl Outcome {
    /// What came of a step that has been run.
    pub fn of(job: &Job, machine: &Machine<'_>) -> Self {
        let ended = step_end(machine);
        let step = ended.since(Time::ZERO);
        let (workers, waits) = breakdowns(machine, ended);
        let average = average(machine, &workers);
        let seconds = step.as_secs_f64().max(f64::MIN_POSITIVE);
        let gpus = f64::from(machine.graph().layout.ranks());
        let flops = step_flops(&job.model, job.training.global_batch) / gpus / seconds;
        Self {
            step,
            utilisation: (average.compute() + average.contention).as_secs_f64() / seconds,
            mfu: flops / job.peak(),
            flops,
            tokens: job.tokens() as f64 / seconds,
            straggler: straggler(machine, &workers, &late::causes(machine, waits.late)),
            average,
            workers,
        }
    }
}

/// Waits of GPUs for late ranks in a step that is over, each with the worker that caused it.
pub(super) fn late_waits(machine: &Machine<'_>) -> Vec<LateWait> {
    late::causes(machine, breakdowns(machine, step_end(machine)).1.late)
}

/// For which communications GPUs waited in a step that is over, and how long: for those under way, and for those that others came late to.
pub(super) fn exposures(machine: &Machine<'_>) -> Vec<(Ticket, Span)> {
    breakdowns(machine, step_end(machine)).1.exposed
}

/// What GPUs waited for.
#[derive(Debug, Default)]
struct Waits {
    /// Late ranks.
    late: Vec<Wait>,
    /// Communications.
    exposed: Vec<(Ticket, Span)>,
}

fn step_end(machine: &Machine<'_>) -> Time {
    let count = machine.workers().len() as u32;
    (0..count).map(|worker| end(machine.records(worker))).max().unwrap_or(Time::ZERO)
}

/// Where the time of each worker went, and the communications in which a GPU waited for late ranks.
fn breakdowns(machine: &Machine<'_>, ended: Time) -> (Vec<Breakdown>, Waits) {
    let mut waits = Waits::default();
    let count = machine.workers().len() as u32;
    let ends_last = (0..count).find(|one| end(machine.records(*one)) == ended).unwrap_or(0);
    let whole = |worker| breakdown(machine, worker, (ended, ends_last), &mut waits);
    let workers = (0..count).map(whole).collect();
    (workers, waits)
}

fn end(records: &[Record]) -> Time {
    records.iter().map(|record| record.ended).max().unwrap_or(Time::ZERO)
}

fn average(machine: &Machine<'_>, workers: &[Breakdown]) -> Breakdown {
    let ranks: u128 = machine.workers().iter().map(|worker| u128::from(worker.stands_for)).sum();
    let mean = |part: &dyn Fn(&Breakdown) -> Span| {
        let parts = machine.workers().iter().zip(workers);
        let sum: u128 =
            parts.map(|(worker, one)| u128::from(worker.stands_for) * u128::from(part(one).as_ps())).sum();
        Span::from_ps((sum / ranks.max(1)) as u64)
    };
    let mut exposed = [Span::ZERO; Scope::ALL.len()];
    for (place, one) in exposed.iter_mut().enumerate() {
        *one = mean(&|part| part.exposed[place]);
    }
    Breakdown {
        forward: mean(&|part| part.forward),
        recompute: mean(&|part| part.recompute),
        backward: mean(&|part| part.backward),
        optimiser: mean(&|part| part.optimiser),
        contention: mean(&|part| part.contention),
        exposed,
        bubble: mean(&|part| part.bubble),
        waiting: mean(&|part| part.waiting),
    }
}

/// Goes through what a worker computed, and asks of each gap what it waited for.
fn breakdown(
    machine: &Machine<'_>,
    worker: u32,
    (step_end, ends_last): (Time, u32),
    waits: &mut Waits,
) -> Breakdown {
    let program = machine.program(worker);
    let records = machine.records(worker);
    let mut found = Breakdown::default();
    let mut free = Time::ZERO;
    for operation in &program.streams[Stream::Compute as usize] {
        let (what, record) = (&program.operations[*operation as usize], &records[*operation as usize]);
        gap(machine, (worker, &what.after), (free, record.begun), &mut found, waits);
        let took = record.ended.since(record.begun);
        let alone = alone(machine, Ticket { worker, operation: *operation }).min(took);
        found.contention += took - alone;
        match what.pass {
            Pass::Forward => found.forward += alone,
            Pass::Recompute => found.recompute += alone,
            Pass::Backward => found.backward += alone,
            Pass::Optimiser | Pass::Checkpoint => found.optimiser += alone,
        }
        free = record.ended;
    }
    // After the last of it: what is still said, then others.
    let own_end = end(records);
    let last = (0..records.len() as u32).max_by_key(|number| records[*number as usize].ended);
    if let Some(last) = last {
        gap(machine, (worker, &[last]), (free, own_end.max(free)), &mut found, waits);
    }
    let rest = step_end.since(own_end.max(free));
    if machine.graph().stages() > 1 {
        found.bubble += rest;
    } else {
        found.waiting += rest;
        if let Some(operation) = last.filter(|_| rest > Span::ZERO) {
            let ticket = Ticket { worker, operation };
            waits.late.push(Wait { until: step_end, ticket, last: ends_last, span: rest });
        }
    }
    found
}

/// What an operation takes on a GPU that does nothing else.
fn alone(machine: &Machine<'_>, ticket: Ticket) -> Span {
    let worker = machine.workers()[ticket.worker as usize];
    match machine.operation(ticket).work {
        Work::Compute { time, experts } => {
            let scaled = |span: Span, permille: u32| span * u64::from(permille) / 1_000;
            scaled(time + scaled(experts, worker.expert_permille), worker.permille)
        }
        Work::Communicate(_) => Span::ZERO,
    }
}

/// From `from` to `to` a GPU computed nothing, because of the last of these operations to end; before that was entered, because
/// of what it waited for, and so on.
fn gap(
    machine: &Machine<'_>,
    (worker, after): (u32, &[u32]),
    (from, mut to): (Time, Time),
    found: &mut Breakdown,
    waits: &mut Waits,
) {
    let records = machine.records(worker);
    let mut cause = after.iter().copied().max_by_key(|number| records[*number as usize].ended);
    while to > from {
        let Some(number) = cause else {
            found.waiting += to - from;
            return;
        };
        let record = &records[number as usize];
        let ticket = Ticket { worker, operation: number };
        let Work::Communicate(said) = &machine.operation(ticket).work else {
            // A stream beside the one that computes has the GPU.
            let begun = record.begun.clamp(from, to);
            found.contention += to - begun;
            to = begun;
            cause = super::path::cause(machine, ticket).map(|before| before.operation);
            continue;
        };
        let entered = record.entered.clamp(from, to);
        let begun = record.begun.clamp(entered, to);
        found.exposed[said.scope as usize] += to.since(begun);
        waits.exposed.push((ticket, to.since(entered)));
        let wait = begun.since(entered);
        let is_pipeline = matches!(said.scope, Scope::Pipeline | Scope::World | Scope::Embedding)
            && machine.graph().stages() > 1;
        if is_pipeline {
            found.bubble += wait;
        } else {
            found.waiting += wait;
            if let Some(last) = record.last.filter(|_| wait > Span::ZERO) {
                waits.late.push(Wait { until: begun, ticket, last: last.worker, span: wait });
            }
        }
        to = entered;
        cause = super::path::cause(machine, ticket).map(|before| before.operation);
    }
}

/// The rank for which GPUs of others waited longest.
fn straggler(machine: &Machine<'_>, workers: &[Breakdown], waits: &[LateWait]) -> Option<Straggler> {
    let delays = late::delays(machine, waits);
    let alike = |place: usize| machine.workers()[place].stands_for;
    let (slowest, delay) = delays
        .iter()
        .enumerate()
        .max_by_key(|(place, delay)| (**delay / u64::from(alike(*place).max(1)), usize::MAX - place))?;
    if *delay == Span::ZERO {
        return None;
    }
    let stage = machine.workers()[slowest].place.pipeline;
    let of_stage = machine.workers().iter().zip(workers).enumerate();
    let (mut ranks, mut sum) = (0_u128, 0_u128);
    for (place, (worker, one)) in of_stage {
        if worker.place.pipeline == stage || machine.graph().is_trace() {
            // Those that it stands for are like itself.
            let others = u128::from(worker.stands_for) * u128::from(place != slowest);
            ranks += others;
            sum += others * u128::from(one.compute().as_ps());
        }
    }
    let mean = (sum / ranks.max(1)) as u64;
    let behind = workers[slowest].compute() - Span::from_ps(mean);
    Some(Straggler { rank: machine.workers()[slowest].rank, alike: alike(slowest), delay: *delay, behind })
}
