//! The best layouts, and why the others are not.

use std::collections::BTreeMap;
use std::io::Write;

use railnet_core::Span;
use railnet_job::parallel::{Parallel, Scope, Sharding};
use railnet_job::plan::{Candidate, Judged, Part, least_memory, why};

use super::Answer;
use super::screen::tokens;
use crate::words::{self, count, grouped, percent, time};

pub(super) fn print(answer: &Answer, verbose: bool, best: usize, out: &mut dyn Write) -> std::io::Result<()> {
    let sweep = &answer.sweep;
    let ranks = u64::from(answer.subject.resolved.job.parallel.ranks());
    let fits = sweep.judged.len() + sweep.beaten.len();
    writeln!(
        out,
        "  Layouts of {}{}: {} fit, {} do not",
        count(ranks, "GPU", "GPUs"),
        if answer.by_itself.is_some() { ", at the pace of computing that you gave" } else { "" },
        grouped(fits as u64),
        grouped(sweep.misfits.len() as u64)
    )?;
    let Some(first) = sweep.judged.first() else { return none(answer, out) };
    let names = axes(answer);
    let mut head = vec![String::new()];
    head.extend(names.iter().map(|(name, _)| (*name).to_owned()));
    head.extend(
        ["zero", "recompute", "memory", "step", "tokens/s", "why it is not the first"].map(str::to_owned),
    );
    let mut rows = vec![head];
    let shown = if verbose { sweep.judged.len() } else { best };
    for (number, one) in sweep.judged.iter().take(shown).enumerate() {
        rows.push(row(number, one, first, &names));
    }
    words::columns(&rows, &[rows[0].len() - 1], out)?;
    others(answer, shown, out)
}

type AxisColumn = (&'static str, fn(&Parallel) -> u32);

/// The dimensions that any layout has.
fn axes(answer: &Answer) -> Vec<AxisColumn> {
    let all: [AxisColumn; 5] = [
        ("tp", |parallel| parallel.tensor),
        ("cp", |parallel| parallel.context),
        ("pp", |parallel| parallel.pipeline),
        ("ep", |parallel| parallel.expert),
        ("dp", |parallel| parallel.data),
    ];
    let job = &answer.subject.resolved.job;
    let is_used = |name: &str| match name {
        "cp" => job.parallel.context > 1,
        "ep" => job.model.experts.is_some(),
        _ => true,
    };
    all.into_iter().filter(|(name, _)| is_used(name)).collect()
}

fn row(number: usize, one: &Judged, first: &Judged, names: &[AxisColumn]) -> Vec<String> {
    let job = &one.candidate.job;
    let mut row = vec![(number + 1).to_string()];
    row.extend(names.iter().map(|(_, of)| of(&job.parallel).to_string()));
    row.push((job.parallel.sharding as u8).to_string());
    row.push(words::kebab(&job.training.recompute));
    row.push(words::bytes(one.candidate.memory.total().as_u64()));
    row.push(time(one.outcome.step));
    row.push(grouped(tokens(job, one.outcome.step).round() as u64));
    row.push(if number == 0 { praise(one) } else { reasons(one, first) });
    row
}

/// Why the best is the best: where its time goes.
fn praise(one: &Judged) -> String {
    let outcome = &one.outcome;
    let exposed = outcome.average.exposed_total();
    let share = |span: Span| percent(span.as_secs_f64() / outcome.step.as_secs_f64().max(f64::MIN_POSITIVE));
    let bubble = match outcome.average.bubble {
        Span::ZERO => String::new(),
        bubble => format!(", {} is bubble", share(bubble)),
    };
    format!(
        "{} of it computes, {} waits for communication{bubble}",
        share(outcome.average.compute()),
        share(exposed)
    )
}

/// What is longer in a layout than in the best.
fn reasons(one: &Judged, first: &Judged) -> String {
    let longer = one.outcome.step - first.outcome.step;
    let parts = why(&first.outcome.average, &one.outcome.average);
    let parts: Vec<String> =
        parts.into_iter().take(2).map(|(part, span)| format!("{} +{}", name(part), time(span))).collect();
    let more = longer.as_secs_f64() / first.outcome.step.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0;
    format!("+{more:.1} %: {}", parts.join(", "))
}

/// What a part of a step is called.
pub(super) fn name(part: Part) -> String {
    match part {
        Part::Compute => "computing".to_owned(),
        Part::Recompute => "computing again".to_owned(),
        Part::Contention => "sharing GPUs with communication".to_owned(),
        Part::Exposed(scope) => format!("waiting for {}", scope.name()),
        Part::Bubble => "pipeline bubble".to_owned(),
        Part::Waiting => "waiting for late ranks".to_owned(),
    }
}

/// Those that are not in the table.
fn others(answer: &Answer, shown: usize, out: &mut dyn Write) -> std::io::Result<()> {
    let sweep = &answer.sweep;
    let Some(first) = sweep.judged.first() else { return Ok(()) };
    let mut causes: BTreeMap<String, u64> = BTreeMap::new();
    for one in sweep.judged.iter().skip(shown) {
        let parts = why(&first.outcome.average, &one.outcome.average);
        if let Some((part, _)) = parts.first() {
            *causes.entry(name(*part)).or_insert(0) += 1;
        }
    }
    for (_, bound) in &sweep.beaten {
        let average = &first.outcome.average;
        let plain = average.forward + average.backward + average.optimiser;
        let parts = [
            (Part::Recompute, bound.recompute - bound.recompute.min(average.recompute)),
            (Part::Bubble, bound.bubble - bound.bubble.min(average.bubble)),
            (Part::Compute, bound.compute - bound.compute.min(plain)),
        ];
        let exposed = average.exposed_total();
        let said =
            (bound.said > exposed).then(|| ("waiting for communication".to_owned(), bound.said - exposed));
        let chain = bound.compute + bound.recompute + bound.said + bound.bubble;
        let shared = (bound.shared > chain)
            .then(|| (name(Part::Exposed(Scope::Data)), bound.shared - chain + first.outcome.step));
        let parts = parts.into_iter().map(|(part, span)| (name(part), span)).chain(said).chain(shared);
        if let Some((cause, _)) = parts.max_by_key(|(_, span)| *span) {
            *causes.entry(cause).or_insert(0) += 1;
        }
    }
    let mut causes: Vec<(String, u64)> = causes.into_iter().collect();
    causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let causes: Vec<String> = causes.into_iter().map(|(name, count)| format!("{name} ({count})")).collect();
    if !causes.is_empty() {
        writeln!(out, "  The others lose most by {}", causes.join(", "))?;
    }
    if let Some(least) = sweep.misfits.first() {
        writeln!(
            out,
            "  Those that do not fit need {} a GPU or more, of {}: {} comes nearest",
            words::bytes(least.memory.total().as_u64()),
            words::bytes(least_memory(&least.job).as_u64()),
            laid_out(least)
        )?;
    }
    Ok(())
}

/// Nothing fits: what would help.
fn none(answer: &Answer, out: &mut dyn Write) -> std::io::Result<()> {
    let Some(least) = answer.sweep.misfits.first() else {
        return writeln!(
            out,
            "  No layout divides the model and its batch: try another --batch or number of GPUs"
        );
    };
    let has = least_memory(&least.job);
    writeln!(
        out,
        "  Nearest is {} with {} a GPU, {} too much: use more GPUs, or GPUs with more memory than the {} of {}",
        laid_out(least),
        words::bytes(least.memory.total().as_u64()),
        words::bytes(least.lacks().as_u64()),
        words::bytes(has.as_u64()),
        least.job.gpu.name
    )
}

/// tp 8, pp 1, dp 8, zero 3, full recomputation.
pub(super) fn laid_out(one: &Candidate) -> String {
    let parallel = &one.job.parallel;
    let mut words = vec![
        format!("tp {}", parallel.tensor),
        format!("pp {}", parallel.pipeline),
        format!("dp {}", parallel.data),
    ];
    if parallel.expert > 1 {
        words.push(format!("ep {}", parallel.expert));
    }
    if parallel.sharding != Sharding::None {
        words.push(format!("zero {}", parallel.sharding as u8));
    }
    match one.job.training.recompute {
        railnet_job::training::Recompute::None => {}
        other => words.push(format!("{} recomputation", crate::words::kebab(&other))),
    }
    words.join(" ")
}
