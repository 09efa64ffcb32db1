//! The life of a job on one screen: plain words on the left, the number that matters, the reason on the right.

use std::collections::BTreeMap;
use std::io::Write;

use railnet_core::{Bytes, Span};
use railnet_job::graph::{Job, What};
use railnet_job::parallel::Scope;
use railnet_job::plan::least_memory;
use railnet_job::run::Breakdown;
use railnet_sim::{FlowLevel, JobResult, JobsOutcome, LinkResult, Outcome, SaidResult, Trouble};

use crate::careful;
use crate::sim::problem::File;
use crate::sim::report::{Window, taken, utilisation};
use crate::words::{self, bytes, count, grouped, magnitude, percent, spread, time};

/// A resource that is busy for this part of a call bounds it.
const BOUND: f64 = 0.5;
/// Blocks for a whole step.
const BAR: f64 = 30.0;
/// Steps that are shown one by one.
const STEPS_SHOWN: usize = 3;
/// Kinds of communication on the first screen.
const SAID_SHOWN: usize = 5;
/// Links that are named for how busy they were, with `--verbose`.
const LINKS_SHOWN: usize = 5;
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
    for text in careful::lines(&file.scenario.without_effect()) {
        writeln!(out, "  Careful: {text}")?;
    }
    for text in careful::caveats_of_jobs(outcome) {
        writeln!(out, "  Careful: {text}")?;
    }
    if outcome.is_partial {
        writeln!(out, "\nPARTIAL: stopped before its end; this is what was known by then")?;
    }
    for job in &outcome.jobs {
        writeln!(out)?;
        story(job, outcome.jobs.len() > 1, out)?;
        steps(job, out)?;
        writeln!(out)?;
        answer(job, verbose, out)?;
    }
    for job in &outcome.jobs {
        bottlenecks(job, out)?;
    }
    if let Some(seen) = outcome.jobs.iter().find_map(|job| job.first.flow_level.as_ref()) {
        flow_level(seen, out)?;
    }
    if let Some(network) = &outcome.network {
        fabric(network, &outcome.jobs, verbose, out)?;
        let memo = outcome.memo;
        let hits = format!(
            "{} of {}, identical to others and without contention",
            grouped(memo.hits),
            count(memo.calls, "collective", "collectives")
        );
        line(out, "Memoised", &hits)?;
    }
    line(out, "Wall time", &format!("{wall_s:.2} s"))?;
    line(out, "Digest", &outcome.digest.to_string())?;
    Ok(())
}

/// What of the interconnect bounds communication, where formulas say so.
fn bottlenecks(job: &JobResult, out: &mut dyn Write) -> std::io::Result<()> {
    let bounding = job.first.bottlenecks.iter().filter(|one| one.busy >= BOUND);
    for (number, one) in bounding.enumerate() {
        let text = format!("{}, busy {} of {} traffic", one.resource, percent(one.busy), one.scope.name());
        line(out, if number == 0 { "Bottleneck" } else { "" }, &text)?;
    }
    Ok(())
}

/// What a run at flow fidelity says of itself.
fn flow_level(seen: &FlowLevel, out: &mut dyn Write) -> std::io::Result<()> {
    if let Some((link, busy)) = &seen.busiest {
        line(out, "Busiest link", &format!("{link}, {} of the time", percent(*busy)))?;
    }
    let coflows = count(seen.coflows as u64, "coflow", "coflows");
    line(out, "Symmetry", &format!("{} run, for {coflows} in all", grouped(seen.run as u64)))
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
    let submit = format!(
        "{}, {}, node{:02}:29500",
        words::servers(cluster, &resolved.job.gpu.name),
        count(u64::from(placed.ranks()), "rank", "ranks"),
        placed.first_node + 1
    );
    tell(out, "Submit", &submit)?;
    let ranks = grouped(u64::from(placed.ranks()));
    let meet = time(job.start.meet);
    tell(
        out,
        "Meet",
        &format!("{ranks} of {ranks} ranks at the rendezvous, {meet} after the first (a model)"),
    )?;
    tell(out, "Connect", &connected(job))?;
    tell(out, "Step", &trained(&resolved.job))?;
    if let Some(warning) = placed.straddling() {
        tell(out, "Careful", &warning)?;
    }
    writeln!(out)
}

fn connected(job: &JobResult) -> String {
    let found = &job.connections;
    if found.communicators == 0 {
        return "inside one node: no queue pairs".to_owned();
    }
    format!(
        "{} across nodes, the largest {} over {}; {}, {} of buffers, {} (a model)",
        count(found.communicators, "communicator", "communicators"),
        count(u64::from(found.channels), "channel", "channels"),
        count(u64::from(found.ranks), "GPU", "GPUs"),
        count(found.queue_pairs, "queue pair", "queue pairs"),
        bytes(found.buffers.as_u64()),
        time(job.start.connect)
    )
}

/// What is trained, and how it is spread.
fn trained(job: &Job) -> String {
    if let Some(trace) = &job.trace {
        if let Some(recorded) = &trace.recorded {
            return super::recorded::ran(recorded);
        }
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
    let over = if job.steps.is_empty() { "not over after " } else { "" };
    writeln!(
        out,
        "  step 1   {over}{}   compute {}   exposed communication {} ({})   GPUs busy {}",
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
    // Of a part of a step nobody knows how much of its tokens it was, and a trace has none.
    if placed.resolved.job.trace.is_none() && !job.steps.is_empty() {
        line(out, "Speed", &model)?;
    }
    let mut rows: Vec<&SaidResult> = job.first.said.iter().filter(|row| row.said.count > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.said.bytes));
    let shown = if verbose { rows.len() } else { SAID_SHOWN };
    for (index, row) in rows.iter().take(shown).enumerate() {
        line(out, if index == 0 { "Traffic per step" } else { "" }, &spoken(row))?;
    }
    for (index, row) in rows.iter().take(shown).filter(|row| has_tail(row)).enumerate() {
        line(out, if index == 0 { "Tails" } else { "" }, &tail(row))?;
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
    let completion = format!(
        "{}, of which {} before the first step",
        time(job.completion()),
        time(job.start.meet + job.start.connect)
    );
    line(out, "Submit to end", &completion)?;
    line(out, "Waiting costs", &format!("{} GPU-hours a day", grouped(idle.round() as u64)))?;
    for fault in &job.faults {
        for (index, text) in priced(fault, placed.ranks()).iter().enumerate() {
            line(out, if index == 0 { "Fault" } else { "" }, text)?;
        }
    }
    if placed.resolved.job.trace.is_some() {
        return super::recorded::print(job, verbose, out);
    }
    let memory = &placed.resolved.memory;
    let held = format!(
        "{} of {} a GPU: parameters {}, gradients {}, optimiser {}, activations {}",
        gigabytes(memory.total()),
        gigabytes(least_memory(&placed.resolved.job)),
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
        What::Push => "gradients".to_owned(),
        What::Pull => "parameters".to_owned(),
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

/// What is taken for a tail: more than a tenth longer than the median.
const TAIL: f64 = 1.1;

/// Whether some of a kind kept a rank noticeably longer than others do.
fn has_tail(row: &SaidResult) -> bool {
    row.said.worst.total.as_secs_f64() > TAIL * row.said.median.as_secs_f64()
}

/// Why one of a kind took longest.
fn tail(row: &SaidResult) -> String {
    let (said, worst) = (&row.said, &row.said.worst);
    let what = match said.what {
        What::Collective(collective) => collective.name(),
        _ => "message",
    };
    let more = worst.total - said.median;
    let why = match (worst.last, row.trouble) {
        (Some(last), _) if worst.waited * 2 > more => {
            format!("{} of it waiting for rank {}, which came late", time(worst.waited), last.0)
        }
        (_, Some(trouble)) if trouble != Trouble::default() => troubled(&trouble),
        (_, Some(_)) => "no rank came late, and nothing was marked, paused or lost".to_owned(),
        _ => "no rank came late".to_owned(),
    };
    format!("{} {what}: rank {} was {} in one; {why}", said.scope.name(), worst.rank.0, time(worst.total))
}

/// What went wrong in the network.
fn troubled(trouble: &Trouble) -> String {
    let parts = [
        (trouble.resent, "packet sent again", "packets sent again"),
        (trouble.lost, "packet lost", "packets lost"),
        (trouble.pauses, "pause", "pauses"),
        (trouble.marks, "ECN mark", "ECN marks"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, one, many)| count(*number, one, many))
        .collect();
    format!("the network: {} while it ran", parts.join(", "))
}

fn slowest(job: &JobResult) -> String {
    match &job.first.outcome.straggler {
        None => "none: all are alike".to_owned(),
        Some(one) => {
            let (who, whom, each, whose) = match one.alike {
                1 => (one.rank.0.to_string(), "it", "it", "its"),
                alike => {
                    let others = format!("{} and {} like it", one.rank.0, grouped(u64::from(alike - 1)));
                    (others, "them", "each", "their")
                }
            };
            let why = if one.behind > Span::ZERO {
                format!("{each} computes {} longer than the others", time(one.behind))
            } else {
                format!("{whose} communication ends last")
            };
            format!("{who}: others wait {} for {whom}, all together; {why}", time(one.delay))
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
fn fabric(network: &Outcome, jobs: &[JobResult], verbose: bool, out: &mut dyn Write) -> std::io::Result<()> {
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
    let window = Window::whole(network);
    let mut busiest: Vec<&LinkResult> = network.links.iter().collect();
    busiest.sort_by(|a, b| utilisation(b, window).total_cmp(&utilisation(a, window)));
    for (index, link) in busiest.iter().take(if verbose { LINKS_SHOWN } else { 1 }).enumerate() {
        let mut text = format!("{} → {}, {}", link.from, link.to, percent(utilisation(link, window)));
        for why in [users(jobs, link), held_up(link)].into_iter().flatten() {
            text.push_str(": ");
            text.push_str(&why);
        }
        line(out, if index == 0 { "Busiest link" } else { "" }, &text)?;
    }
    let inside = network.lanes.iter().max_by_key(|lane| (taken(lane, window) * 1e6) as u64);
    if let Some(lane) = inside {
        line(out, "Busiest in a server", &format!("{}, {}", lane.name, percent(taken(lane, window))))?;
    }
    Ok(())
}

/// Whose traffic a link carries, where a port is at one of its ends.
fn users(jobs: &[JobResult], link: &LinkResult) -> Option<String> {
    let mut scopes: BTreeMap<&'static str, u64> = BTreeMap::new();
    for port in jobs.iter().flat_map(|job| &job.ports) {
        let bytes = match () {
            () if port.port == link.from => port.sent,
            () if port.port == link.to => port.received,
            () => continue,
        };
        *scopes.entry(port.scope.name()).or_default() += bytes;
    }
    let all = scopes.values().sum::<u64>().max(1) as f64;
    let mut scopes: Vec<(&str, u64)> = scopes.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    scopes.sort_by_key(|(name, bytes)| (std::cmp::Reverse(*bytes), *name));
    let named: Vec<String> = scopes
        .iter()
        .take(2)
        .map(|(name, bytes)| format!("{name} {}", percent(*bytes as f64 / all)))
        .collect();
    (!named.is_empty()).then(|| named.join(", "))
}

/// What held a link up.
fn held_up(link: &LinkResult) -> Option<String> {
    let counters = &link.counters;
    let lost = counters.drops + counters.losses;
    let found = Trouble { marks: counters.marks, pauses: counters.pauses, lost, resent: 0 };
    (found != Trouble::default()).then(|| {
        let parts = [(found.marks, "marks"), (found.pauses, "pauses"), (found.lost, "lost")];
        let parts = parts.iter().filter(|(number, _)| *number > 0);
        parts.map(|(number, name)| format!("{} {name}", grouped(*number))).collect::<Vec<_>>().join(", ")
    })
}

fn part(span: Span, whole: Span) -> f64 {
    span.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn gigabytes(amount: Bytes) -> String {
    format!("{:.1} GB", amount.as_u64() as f64 / 1e9)
}
