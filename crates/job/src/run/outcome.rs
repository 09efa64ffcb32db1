//! What came of a step: how long it took, and where the time went.

use railnet_core::{Rank, Span, Time};

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
    /// Which.
    pub rank: Rank,
    /// How long others waited for it, all of them together.
    pub delay: Span,
    /// How much longer it computed than the others of its stage, on average.
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
        let count = machine.workers().len() as u32;
        let ended = (0..count).map(|worker| end(machine.records(worker))).max().unwrap_or(Time::ZERO);
        let step = ended.since(Time::ZERO);
        let workers: Vec<Breakdown> = (0..count).map(|worker| breakdown(machine, worker, ended)).collect();
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
            straggler: straggler(machine, &workers),
            average,
            workers,
        }
    }
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
fn breakdown(machine: &Machine<'_>, worker: u32, step_end: Time) -> Breakdown {
    let program = machine.program(worker);
    let records = machine.records(worker);
    let mut found = Breakdown::default();
    let mut free = Time::ZERO;
    for operation in &program.streams[Stream::Compute as usize] {
        let (what, record) = (&program.operations[*operation as usize], &records[*operation as usize]);
        gap(machine, worker, &what.after, free, record.begun, &mut found);
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
        gap(machine, worker, &[last], free, own_end.max(free), &mut found);
    }
    let rest = step_end.since(own_end.max(free));
    if machine.graph().stages() > 1 {
        found.bubble += rest;
    } else {
        found.waiting += rest;
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
fn gap(machine: &Machine<'_>, worker: u32, after: &[u32], from: Time, to: Time, found: &mut Breakdown) {
    let records = machine.records(worker);
    let mut to = to;
    let mut cause = after.iter().copied().max_by_key(|number| records[*number as usize].ended);
    while to > from {
        let Some(number) = cause else {
            found.waiting += to - from;
            return;
        };
        let record = &records[number as usize];
        let ticket = Ticket { worker, operation: number };
        let Work::Communicate(said) = &machine.operation(ticket).work else {
            found.waiting += to - from;
            return;
        };
        let entered = record.entered.clamp(from, to);
        let begun = record.begun.clamp(entered, to);
        found.exposed[said.scope as usize] += to.since(begun);
        let wait = begun.since(entered);
        let is_pipeline = matches!(said.scope, Scope::Pipeline | Scope::World | Scope::Embedding)
            && machine.graph().stages() > 1;
        if is_pipeline {
            found.bubble += wait;
        } else {
            found.waiting += wait;
        }
        to = entered;
        cause = super::path::cause(machine, ticket).map(|before| before.operation);
    }
}

/// The one that was last most often, by the time that others waited for it.
fn straggler(machine: &Machine<'_>, workers: &[Breakdown]) -> Option<Straggler> {
    let mut delays = vec![Span::ZERO; workers.len()];
    for worker in 0..workers.len() as u32 {
        for (number, record) in machine.records(worker).iter().enumerate() {
            let Some(last) = record.last else { continue };
            let operation = machine.operation(Ticket { worker, operation: number as u32 });
            let Work::Communicate(said) = &operation.work else { continue };
            // Stages wait for each other by design.
            let is_design = matches!(said.scope, Scope::Pipeline | Scope::World | Scope::Embedding);
            if !is_design || machine.graph().is_trace() {
                delays[last.worker as usize] += record.begun.since(record.entered);
            }
        }
    }
    let (slowest, delay) =
        delays.iter().enumerate().max_by_key(|(place, delay)| (**delay, usize::MAX - place))?;
    if *delay == Span::ZERO {
        return None;
    }
    let stage = machine.workers()[slowest].place.pipeline;
    let of_stage = machine.workers().iter().zip(workers).enumerate();
    let others: Vec<u64> = of_stage
        .filter(|(place, (worker, _))| {
            *place != slowest && (worker.place.pipeline == stage || machine.graph().is_trace())
        })
        .map(|(_, (_, one))| one.compute().as_ps())
        .collect();
    let mean = others.iter().sum::<u64>() / (others.len() as u64).max(1);
    let behind = workers[slowest].compute() - Span::from_ps(mean);
    Some(Straggler { rank: machine.workers()[slowest].rank, delay: *delay, behind })
}
