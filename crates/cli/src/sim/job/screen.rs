//! The life of a job on one screen: plain words on the left, the number that matters, the reason on the right.

use std::io::Write;

use railnet_core::{Bytes, Span};
use railnet_job::graph::{Job, What};
use railnet_job::parallel::Scope;
use railnet_job::run::Breakdown;
use railnet_sim::{JobResult, JobsOutcome, LinkResult, Outcome, SaidResult};

use crate::sim::problem::File;
use crate::sim::report::{taken, utilisation};
use crate::words::{bytes, count, grouped, magnitude, percent, spread, time};

/// Blocks for a whole step.
const BAR: f64 = 30.0;
/// Steps that are shown one by one.
const STEPS_SHOWN: usize = 3;
/// Kinds of communication on the first screen.
const SAID_SHOWN: usize = 5;
/// Parts of the critical path.
const PATH_SHOWN: usize = 4;

pub(super) fn print(
    file: &File,
    outcome: &JobsOutcome,
    wall_s: f64,
    verbose: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    writeln!(
        out,
        "Railnet {} · {} · {} fidelity · seed {}",
        env!("CARGO_PKG_VERSION"),
        file.path,
        outcome.fidelity.name(),
        file.scenario.seed
    )?;
    for job in &outcome.jobs {
        writeln!(out)?;
        story(job, outcome.jobs.len() > 1, out)?;
        steps(job, out)?;
        writeln!(out)?;
        answer(job, verbose, out)?;
    }
    if let Some(network) = &outcome.network {
        fabric(network, out)?;
        let memo = outcome.memo;
        let taken = format!(
            "{} of {}, identical to others with nothing in their way",
            grouped(memo.taken),
            count(memo.calls, "collective", "collectives")
        );
        line(out, "Taken from memory", &taken)?;
    }
    line(out, "Wall time", &format!("{wall_s:.2} s"))?;
    line(out, "Digest", &outcome.digest.to_string())?;
    Ok(())
}

fn line(out: &mut dyn Write, what: &str, text: &str) -> std::io::Result<()> {
    writeln!(out, "  {what:<23}{text}")
}

/// From submission to the first step.
fn story(job: &JobResult, is_named: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let placed = &job.placed;
    let (resolved, cluster) = (&placed.resolved, &placed.cluster);
    let tell = |out: &mut dyn Write, what: &str, text: &str| writeln!(out, "  {what:<11}{text}");
    if is_named {
        tell(out, "Job", &resolved.name)?;
    }
    let nodes = count(u64::from(cluster.nodes), "node", "nodes");
    let submit = format!(
        "{nodes} × {} {}, {}, node{:02}:29500",
        cluster.gpus_per_node(),
        resolved.job.gpu.name,
        count(u64::from(placed.ranks()), "rank", "ranks"),
        placed.first_node + 1
    );
    tell(out, "Submit", &submit)?;
    let ranks = grouped(u64::from(placed.ranks()));
    tell(out, "Meet", &format!("{ranks} of {ranks} ranks at the rendezvous"))?;
    tell(out, "Connect", &connected(job))?;
    tell(out, "Step", &trained(&resolved.job))?;
    writeln!(out)
}

fn connected(job: &JobResult) -> String {
    let found = &job.connections;
    if found.communicators == 0 {
        return "inside one node: no queue pairs".to_owned();
    }
    format!(
        "{} across nodes, the largest {} over {}; {}, {} of buffers",
        count(found.communicators, "communicator", "communicators"),
        count(u64::from(found.channels), "channel", "channels"),
        count(u64::from(found.ranks), "GPU", "GPUs"),
        count(found.queue_pairs, "queue pair", "queue pairs"),
        bytes(found.buffers.as_u64())
    )
}

/// What is trained, and how it is spread.
fn trained(job: &Job) -> String {
    if let Some(trace) = &job.trace {
        let ignored: Vec<String> =
            trace.ignored.iter().map(|(name, count)| format!("{name} × {}", grouped(*count))).collect();
        let ignored =
            if ignored.is_empty() { String::new() } else { format!("; not used: {}", ignored.join(", ")) };
        let nodes = count(trace.nodes, "node", "nodes");
        return format!("{nodes} of traces, {} of them without time{ignored}", grouped(trace.idle));
    }
    let (model, training) = (&job.model, &job.training);
    format!(
        "{}, {} parameters, {}, {}; {} of {} tokens",
        model.name,
        magnitude(model.parameters() as f64),
        spread(&job.parallel),
        crate::words::kebab(&training.precision),
        count(training.global_batch, "sequence", "sequences"),
        grouped(model.sequence)
    )
}

fn steps(job: &JobResult, out: &mut dyn Write) -> std::io::Result<()> {
    let result = &job.first.outcome;
    let average = &result.average;
    let exposed = average.exposed_total();
    writeln!(
        out,
        "  step 1   {}   compute {}   exposed communication {} ({})   GPUs busy {}",
        time(result.step),
        time(average.compute()),
        time(exposed),
        percent(part(exposed, result.step)),
        percent(result.utilisation)
    )?;
    for (number, step) in job.steps.iter().enumerate().skip(1).take(STEPS_SHOWN - 1) {
        writeln!(out, "  step {:<3} {}", number + 1, time(*step))?;
    }
    if job.steps.len() > STEPS_SHOWN {
        let all = count(job.steps.len() as u64, "step", "steps");
        let longest = job.steps.iter().copied().max().unwrap_or_default();
        let again = if job.life.is_some() { ", with what the failure cost" } else { "" };
        writeln!(out, "  {all} in {}{again}, the longest {}", time(job.total()), time(longest))?;
    }
    Ok(())
}

fn answer(job: &JobResult, verbose: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let (placed, result) = (&job.placed, &job.first.outcome);
    for (index, (name, span)) in parts(&result.average).into_iter().enumerate() {
        let bar = "▇".repeat((part(span, result.step) * BAR).round() as usize);
        let text = format!("{name:<40} {:>8} {:>5}  {bar}", time(span), percent(part(span, result.step)));
        line(out, if index == 0 { "Where the time goes" } else { "" }, text.trim_end())?;
    }
    let model = format!(
        "{} tokens/s, {:.0} TFLOP/s a GPU, {} of its peak (MFU)",
        grouped(result.tokens.round() as u64),
        result.flops / 1e12,
        percent(result.mfu)
    );
    if placed.resolved.job.trace.is_none() {
        line(out, "Speed", &model)?;
    }
    let mut rows: Vec<&SaidResult> = job.first.said.iter().filter(|row| row.said.count > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.said.bytes));
    let shown = if verbose { rows.len() } else { SAID_SHOWN };
    for (index, row) in rows.iter().take(shown).enumerate() {
        line(out, if index == 0 { "Said in a step" } else { "" }, &spoken(row))?;
    }
    line(out, "Slowest rank", &slowest(job))?;
    for (index, kind) in job.first.kinds.iter().enumerate() {
        let text = format!(
            "{} with {} compute {} and wait {} for others",
            count(u64::from(kind.ranks), "rank", "ranks"),
            kind.gpu,
            time(kind.compute),
            time(kind.waiting)
        );
        line(out, if index == 0 { "Kinds of servers" } else { "" }, &text)?;
    }
    let path = job.first.path.iter().take(if verbose { usize::MAX } else { PATH_SHOWN });
    let path: Vec<String> = path.map(|(name, span)| format!("{name} {}", time(*span))).collect();
    line(out, "Critical path", &path.join(", "))?;
    let gpus = f64::from(placed.ranks());
    let idle = (1.0 - result.utilisation).max(0.0) * gpus * 24.0;
    line(out, "Waiting costs", &format!("{} GPU-hours a day", grouped(idle.round() as u64)))?;
    for fault in &job.faults {
        for (index, text) in priced(fault, placed.ranks()).iter().enumerate() {
            line(out, if index == 0 { "Fault" } else { "" }, text)?;
        }
    }
    if placed.resolved.job.trace.is_some() {
        return Ok(());
    }
    let memory = &placed.resolved.memory;
    let held = format!(
        "{} of {} a GPU: parameters {}, gradients {}, optimiser {}, activations {}",
        gigabytes(memory.total()),
        gigabytes(placed.resolved.job.gpu.memory),
        gigabytes(memory.parameters),
        gigabytes(memory.gradients),
        gigabytes(memory.optimiser),
        gigabytes(memory.activations)
    );
    line(out, "Memory", &held)
}

/// Where the time went, without what took none.
fn parts(average: &Breakdown) -> Vec<(String, Span)> {
    let computed = [
        ("forward", average.forward),
        ("forward again (recomputation)", average.recompute),
        ("backward", average.backward),
        ("optimiser", average.optimiser),
        ("sharing the GPU with communication", average.contention),
    ];
    let exposed = Scope::ALL.into_iter().map(|scope| {
        let name = format!("waiting for {} traffic", scope.name());
        (name, average.exposed[scope as usize])
    });
    let waits = [("pipeline bubble", average.bubble), ("waiting for ranks that come late", average.waiting)];
    let named = |(name, span): (&str, Span)| (name.to_owned(), span);
    let all = computed.into_iter().map(named).chain(exposed).chain(waits.into_iter().map(named));
    all.filter(|(_, span)| *span > Span::ZERO).collect()
}

fn spoken(row: &SaidResult) -> String {
    let said = &row.said;
    let what = match said.what {
        What::Collective(collective) => collective.name().to_owned(),
        What::Send { .. } => "sends to the next stage".to_owned(),
        What::Receive { .. } => "receives from a stage".to_owned(),
        What::Push => "gradients to servers".to_owned(),
        What::Pull => "parameters from servers".to_owned(),
        What::Write => "checkpoint".to_owned(),
    };
    let how = row
        .how
        .map_or(String::new(), |how| format!("  {}/{} × {}", how.algorithm, how.protocol, how.channels));
    let name = format!("{} {what}", said.scope.name());
    format!(
        "{name:<35} {:>5} × {:<9} {:>8} (p99 {}, max {}){how}",
        grouped(said.count),
        bytes(said.largest.as_u64()),
        time(said.median),
        time(said.late),
        time(said.longest)
    )
}

fn slowest(job: &JobResult) -> String {
    match &job.first.outcome.straggler {
        None => "none: all are alike".to_owned(),
        Some(one) => {
            let why = if one.behind > Span::ZERO {
                format!("it computes {} longer than the others", time(one.behind))
            } else {
                "its communication ends last".to_owned()
            };
            format!("{}: others wait {} for it, all together; {why}", one.rank.0, time(one.delay))
        }
    }
}

/// What a fault costs, one line for each thing to say.
fn priced(fault: &railnet_sim::FaultPrice, ranks: u32) -> Vec<String> {
    let Some(story) = &fault.recovery else {
        let more = fault.with - fault.without;
        let lost = part(more, fault.with) * f64::from(ranks) * 24.0;
        return vec![format!(
            "{} costs {} a step ({} instead of {}, +{}), {} GPU-hours a day",
            fault.what,
            time(more),
            time(fault.with),
            time(fault.without),
            percent(part(more, fault.without)),
            grouped(lost.round() as u64)
        )];
    };
    let life = &story.life;
    let from = match life.checkpoint {
        0 => "from the beginning: there is no checkpoint".to_owned(),
        step => format!("from the checkpoint of step {step}"),
    };
    let on = match story.has_spare {
        true => "a spare in its place".to_owned(),
        false => format!("{} left", count(u64::from(story.nodes), "node", "nodes")),
    };
    let mut parts = vec![
        format!("{} of work done again", time(life.lost)),
        format!("{} until {}", time(life.failure.notice), story.noticed),
        format!("{} to start again", time(life.failure.restart)),
    ];
    if life.failure.read > Span::ZERO {
        parts.push(format!("{} to read the checkpoint", time(life.failure.read)));
    }
    if life.slower > Span::ZERO {
        parts.push(format!("{} in longer steps", time(life.slower)));
    }
    vec![
        format!("{} in step {}; the job goes on {from}, {on}", fault.what, life.step),
        format!(
            "that costs {}: {}; {} GPU-hours",
            time(fault.more()),
            parts.join(", "),
            grouped(fault.gpu_hours(ranks).round() as u64)
        ),
    ]
}

/// What the fabric saw.
fn fabric(network: &Outcome, out: &mut dyn Write) -> std::io::Result<()> {
    let sum = |of: &dyn Fn(&LinkResult) -> u64| network.links.iter().map(of).sum::<u64>();
    let text = format!(
        "{} packet-hops, {} dropped, {} ECN marks, {} pauses, {} sent again",
        grouped(network.packet_hops),
        grouped(sum(&|link| link.counters.drops)),
        grouped(sum(&|link| link.counters.marks)),
        grouped(sum(&|link| link.counters.pauses)),
        grouped(network.resent)
    );
    line(out, "The network", &text)?;
    let end = network.completion;
    let busiest = network.links.iter().max_by_key(|link| (utilisation(link, end) * 1e6) as u64);
    if let Some(link) = busiest {
        let text = format!("{} → {}, {}", link.from, link.to, percent(utilisation(link, end)));
        line(out, "Busiest link", &text)?;
    }
    let inside = network.lanes.iter().max_by_key(|lane| (taken(lane, end) * 1e6) as u64);
    if let Some(lane) = inside {
        line(out, "Busiest in a server", &format!("{}, {}", lane.name, percent(taken(lane, end))))?;
    }
    Ok(())
}

fn part(span: Span, whole: Span) -> f64 {
    span.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn gigabytes(amount: Bytes) -> String {
    format!("{:.1} GB", amount.as_u64() as f64 / 1e9)
}
