//! One screen of plain words: the bandwidth needed, the bandwidth available, what to do.

use std::io::Write;

use railnet_core::Span;
use railnet_job::graph::{Job, What};
use railnet_job::parallel::Scope;
use railnet_job::plan::{Bounce, Demand, Home, Plan, least_memory};

use super::{Answer, Subject, layouts};
use crate::careful;
use crate::words::{self, count, grouped, magnitude, percent, time};

/// Dimensions with less than this part of all bytes are in the long form only.
const SMALL: f64 = 1e-4;
/// What is waited for less than this part of a step counts as hidden.
const HIDDEN: f64 = 0.01;

pub(super) fn print(answer: &Answer, verbose: bool, best: usize, out: &mut dyn Write) -> anyhow::Result<()> {
    let plan = &answer.plan;
    headline(&answer.subject, out)?;
    line(out, "Step", &step(answer))?;
    line(out, "Memory", &memory(answer))?;
    for text in careful::lines(&answer.subject.inert) {
        line(out, "Careful", &text)?;
    }
    for text in careful::caveats(&plan.caveats) {
        line(out, "Careful", &text)?;
    }
    for note in &answer.subject.notes {
        line(out, "Note", note)?;
    }
    writeln!(out)?;
    let shown = shown(plan, verbose);
    if !shown.is_empty() {
        table(plan, &shown, out)?;
        writeln!(out)?;
    }
    verdicts(plan, &shown, out)?;
    if let Some(bounce) = &plan.bounce {
        line(out, "GPUDirect", &gpudirect(bounce, plan, answer.subject.gpudirect))?;
        if plan.carries.nics > 1 {
            line(out, "Rails", &rails(answer))?;
        }
    }
    if let Some(text) = buckets(answer) {
        line(out, "Buckets", &text)?;
    }
    for (number, home) in plan.homes.iter().enumerate() {
        line(out, if number == 0 { "Placement" } else { "" }, &belongs(home))?;
    }
    if let Some((order, step)) = plan.better_order {
        let axes = order.map(|axis| format!("\"{}\"", axis.name())).join(", ");
        let text = format!(
            "with `order = [{axes}]` a step takes {} instead of {}",
            time(step),
            time(plan.outcome.step)
        );
        line(out, "", &text)?;
    }
    writeln!(out)?;
    layouts::print(answer, verbose, best, out)?;
    Ok(())
}

/// What each parallel dimension sends in a step.
pub(super) fn dimensions(
    subject: &Subject,
    plan: &Plan,
    verbose: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    headline(subject, out)?;
    writeln!(out)?;
    let shown = shown(plan, verbose);
    if !shown.is_empty() {
        table(plan, &shown, out)?;
        writeln!(out)?;
    }
    verdicts(plan, &shown, out)
}

fn line(out: &mut dyn Write, what: &str, text: &str) -> std::io::Result<()> {
    writeln!(out, "  {what:<11}{text}")
}

fn headline(subject: &Subject, out: &mut dyn Write) -> std::io::Result<()> {
    let job = &subject.resolved.job;
    let cluster = &subject.cluster;
    writeln!(out, "Railnet {} · plan · {}\n", env!("CARGO_PKG_VERSION"), subject.title)?;
    let kind = if cluster.is_uneven() { &cluster.name } else { &cluster.host.name };
    line(out, "On", &format!("{} ({kind})", words::servers(cluster, &job.gpu.name)))?;
    let parameters = magnitude(job.model.parameters() as f64);
    let batch = count(job.training.global_batch, "sequence", "sequences");
    line(
        out,
        "Job",
        &format!(
            "{}, {parameters} parameters in {}, {}; {batch} of {} tokens a step",
            subject.resolved.name,
            words::kebab(&job.training.precision),
            words::spread(&job.parallel),
            grouped(job.model.sequence)
        ),
    )
}

fn step(answer: &Answer) -> String {
    let outcome = &answer.plan.outcome;
    let (compute, exposed) = (outcome.average.compute(), outcome.average.exposed_total());
    let told = match answer.by_itself {
        Some(itself) => format!(" as you say (this GPU would take {})", time(itself)),
        None => String::new(),
    };
    let bubble = match outcome.average.bubble {
        Span::ZERO => String::new(),
        bubble => format!(", pipeline bubble {}", time(bubble)),
    };
    let mfu = match answer.by_itself {
        Some(_) => String::new(),
        None => format!("; MFU {}", percent(outcome.mfu)),
    };
    format!(
        "{} by NCCL's cost model: compute {}{told}, waiting for communication {} ({}){bubble}{mfu}",
        time(outcome.step),
        time(compute),
        time(exposed),
        percent(part(exposed, outcome.step))
    )
}

fn memory(answer: &Answer) -> String {
    let (memory, job) = (&answer.plan.memory, &answer.subject.resolved.job);
    let parts = format!(
        "parameters {}, gradients {}, optimiser {}, activations {}",
        words::bytes(memory.parameters.as_u64()),
        words::bytes(memory.gradients.as_u64()),
        words::bytes(memory.optimiser.as_u64()),
        words::bytes(memory.activations.as_u64())
    );
    let (total, has) = (words::bytes(memory.total().as_u64()), words::bytes(least_memory(job).as_u64()));
    if memory.total() <= least_memory(job) {
        format!("{total} of {has} a GPU: {parts}")
    } else {
        format!("does not fit: {total} a GPU needed, {has} there; {parts}")
    }
}

/// Dimensions that matter.
fn shown(plan: &Plan, verbose: bool) -> Vec<&Demand> {
    let most = plan.demands.iter().map(|demand| demand.through_gpu).fold(0.0, f64::max);
    let matters = |demand: &&Demand| verbose || demand.through_gpu >= most * SMALL;
    plan.demands.iter().filter(matters).collect()
}

/// The bandwidth needed and the bandwidth available, by parallel dimension.
fn table(plan: &Plan, shown: &[&Demand], out: &mut dyn Write) -> std::io::Result<()> {
    let window = plan.outcome.average.compute();
    let seconds = window.as_secs_f64().max(f64::MIN_POSITIVE);
    let nics = f64::from(plan.carries.nics.max(1));
    let needed = format!("Bandwidth needed per GPU (in {})", time(window));
    let head = [
        "Traffic per step",
        "calls × largest",
        "bytes",
        "sent per GPU",
        "per node",
        &needed,
        "per node",
        "per NIC",
        "exposed",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    let or_none = |is_some: bool, text: String| if is_some { text } else { "–".to_owned() };
    for demand in shown {
        let leaves = demand.out_of_node > 0.0;
        rows.push([
            demand.scope.name().to_owned(),
            format!("{} × {}", grouped(demand.calls), words::bytes(demand.largest.as_u64())),
            words::bytes(demand.bytes.as_u64()),
            words::bytes(demand.through_gpu as u64),
            or_none(leaves, words::bytes(demand.out_of_node as u64)),
            speed(demand.through_gpu / seconds),
            or_none(leaves, speed(demand.out_of_node / seconds)),
            or_none(leaves, speed(demand.out_of_node / seconds / nics)),
            time(demand.exposed),
        ]);
    }
    let has_network = plan.demands.iter().any(|demand| demand.out_of_node > 0.0);
    let empty = String::new;
    rows.push([
        "Available".to_owned(),
        empty(),
        empty(),
        empty(),
        empty(),
        or_none(plan.carries.gpu > 0.0, speed(plan.carries.gpu)),
        or_none(has_network, speed(plan.carries.node())),
        or_none(has_network, speed(plan.carries.nic)),
        empty(),
    ]);
    words::columns(&rows, &[], out)
}

/// For each dimension whether it is hidden, and if not, why.
fn verdicts(plan: &Plan, shown: &[&Demand], out: &mut dyn Write) -> std::io::Result<()> {
    let worth = |demand: &&&Demand| demand.scope != Scope::World || demand.exposed > Span::ZERO;
    if shown.is_empty() {
        return line(out, "Verdict", "no traffic: one GPU needs no network");
    }
    for (number, demand) in shown.iter().filter(worth).enumerate() {
        line(out, if number == 0 { "Verdict" } else { "" }, &verdict(plan, demand))?;
    }
    Ok(())
}

fn verdict(plan: &Plan, demand: &Demand) -> String {
    let window = plan.outcome.average.compute();
    let name = demand.scope.name();
    if is_hidden(plan, demand) {
        return format!(
            "{name}: hidden; {} of calls beside {} of computing",
            time(demand.time),
            time(window)
        );
    }
    let share = percent(part(demand.exposed, plan.outcome.step));
    let waited = format!("{name}: {} of a step exposed ({share})", time(demand.exposed));
    let seconds = demand.time.as_secs_f64().max(f64::MIN_POSITIVE);
    let size = words::bytes(demand.largest.as_u64());
    let waiter = match demand.scope {
        Scope::Tensor | Scope::Context | Scope::Expert => "every layer",
        Scope::Pipeline => "the next stage",
        _ => "the end of the step",
    };
    if demand.out_of_node == 0.0 {
        let reached = speed(demand.through_gpu / seconds);
        return format!(
            "{waited}; inside servers, where calls of {size} reach {reached}; every layer waits for it"
        );
    }
    let (needed, there) =
        (demand.out_of_node / window.as_secs_f64().max(f64::MIN_POSITIVE), plan.carries.node());
    let nics = format!("{} × {}", plan.carries.nics, plan.carries.line);
    let reached = format!("calls of {size} reach {}", speed(demand.out_of_node / seconds));
    if needed > there {
        let best = Span::from_ps((demand.out_of_node / there * 1e12) as u64);
        return format!(
            "{waited}; {nics} carry {:.0} % of what would hide it: {} at best, and {reached}",
            there / needed * 100.0,
            time(best)
        );
    }
    if demand.time > window {
        return format!("{waited}; {nics} would carry it in time, but {reached}");
    }
    format!("{waited}; {nics} carry it in time ({reached}), but {waiter} waits for it")
}

/// What larger buckets of gradients would do.
fn buckets(answer: &Answer) -> Option<String> {
    let (size, step) = answer.plan.larger_buckets?;
    let now = answer.subject.resolved.job.parallel.bucket;
    Some(format!(
        "of {size} instead of {now} (`bucket`): fewer, larger calls come nearer to what NICs carry; a step takes {} instead of {}",
        time(step),
        time(answer.plan.outcome.step)
    ))
}

fn gpudirect(bounce: &Bounce, plan: &Plan, is_on: bool) -> String {
    let slower = part(bounce.step_bounced - bounce.step_direct, bounce.step_direct);
    let copies = format!(
        "{} of copies a node and step, {} through its memory",
        words::bytes(bounce.copied as u64),
        words::bytes(bounce.through_memory as u64)
    );
    if plan.carries.bounced > 0.99 * plan.carries.nic {
        let same = "NICs would carry as much through the memory of the host";
        return if is_on { format!("saves {copies}; {same}") } else { format!("is off: {copies}; {same}") };
    }
    let steps = format!(
        "a NIC carries {} instead of {}, a step takes {} instead of {} (+{})",
        speed(plan.carries.bounced),
        speed(plan.carries.nic),
        time(bounce.step_bounced),
        time(bounce.step_direct),
        percent(slower)
    );
    if is_on { format!("saves {copies}; without it {steps}") } else { format!("is off: {copies}; {steps}") }
}

fn rails(answer: &Answer) -> String {
    let plan = &answer.plan;
    let all = plan.out_of_node();
    let crosses = |demand: &Demand| demand.out_of_node * (1.0 - demand.on_rails);
    let cross: f64 = plan.demands.iter().map(crosses).sum();
    let most = plan.demands.iter().max_by(|a, b| crosses(a).total_cmp(&crosses(b)));
    let leave = words::bytes(all as u64);
    if cross < all * SMALL {
        let rails = if answer.subject.has_rails {
            "on rails they cross one switch and no spine, inside a group of servers"
        } else {
            "this fabric has no rails, where they would cross one switch and no spine"
        };
        return format!("all {leave} that leave a node go to the NIC of the same number: {rails}");
    }
    let why = most.map_or("", |demand| demand.scope.name());
    let cross = words::bytes(cross as u64);
    let spine = if answer.subject.has_rails {
        "and have to cross a spine"
    } else {
        "; this fabric has no rails anyway"
    };
    format!("{cross} of the {leave} that leave a node go to a NIC of another number ({why}) {spine}")
}

fn belongs(home: &Home) -> String {
    let name = format!("{} ({})", home.scope.name(), count(u64::from(home.ranks), "rank", "ranks"));
    let costs = match (home.inside, home.across) {
        (Some(inside), Some(across)) => {
            format!("its calls take {} inside, {} between servers", time(inside), time(across))
        }
        (None, Some(across)) => {
            format!("more ranks than a server has GPUs; its calls take {} between servers", time(across))
        }
        (Some(inside), None) => format!("its calls take {} inside", time(inside)),
        (None, None) => "more ranks than fit anywhere else".to_owned(),
    };
    let place = match (home.belongs_inside, home.is_inside) {
        (true, true) => "inside a server, as it is",
        (false, false) => "between servers, as it is",
        (true, false) => "inside a server, where it is not",
        (false, true) => "between servers: others lose more by leaving",
    };
    format!("{name} {place}; {costs}")
}

/// Bytes per second.
fn speed(bytes_per_second: f64) -> String {
    format!("{}/s", words::bytes(bytes_per_second as u64))
}

fn part(span: Span, whole: Span) -> f64 {
    span.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// What is mostly said.
pub(super) fn what(what: What) -> &'static str {
    match what {
        What::Collective(collective) => collective.name(),
        What::Send { .. } | What::Receive { .. } => "SendRecv",
        What::Push => "Push",
        What::Pull => "Pull",
        What::Write => "Write",
    }
}

/// Whether a dimension is hidden behind computing.
pub(super) fn is_hidden(plan: &Plan, demand: &Demand) -> bool {
    part(demand.exposed, plan.outcome.step) < HIDDEN
}

/// Sequences that a step has time for in a second.
pub(super) fn tokens(job: &Job, step: Span) -> f64 {
    job.tokens() as f64 / step.as_secs_f64().max(f64::MIN_POSITIVE)
}
