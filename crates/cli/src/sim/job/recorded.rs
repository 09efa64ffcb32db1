//! What is known of a recorded script besides its step: its lines, its kernels, its memory.

use std::io::Write;

use railnet_job::trace::{Recorded, RecordedMemory};
use railnet_sim::JobResult;
use serde_json::{Value, json};

use crate::words::{bytes, count, grouped, percent, time};

/// Lines on the first screen.
const LINES_SHOWN: usize = 8;
/// A part of the memory above which a warning is due: fragments, NCCL's buffers and CUDA itself are not in the recording.
const FULL: f64 = 0.92;

/// What ran, in a line.
pub(super) fn ran(recorded: &Recorded) -> String {
    let most = |list: &[u64]| list.iter().copied().max().unwrap_or(0);
    let flops = recorded.flops.iter().copied().fold(0.0, f64::max);
    let roles = recorded.roles.len() as u64;
    format!(
        "a recorded script: {}, {:.1} TFLOP of matrix products and attention{}",
        count(most(&recorded.kernels), "kernel", "kernels"),
        flops / 1e12,
        if roles > 1 {
            format!(" in the largest of {}", count(roles, "role", "roles"))
        } else {
            String::new()
        }
    )
}

/// Speed, memory and lines.
pub(super) fn print(job: &JobResult, verbose: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let resolved = &job.placed.resolved;
    let Some(recorded) = resolved.job.trace.as_ref().and_then(|trace| trace.recorded.as_ref()) else {
        return Ok(());
    };
    let line = |out: &mut dyn Write, what: &str, text: &str| writeln!(out, "  {what:<23}{text}");
    let rate = rate(job, recorded);
    let peak = rate / resolved.job.gpu.peak;
    line(
        out,
        "Speed",
        &format!("{:.0} TFLOP/s a GPU, {} of its peak at half precision (HFU)", rate / 1e12, percent(peak)),
    )?;
    if let Some(starved) = recorded.launch.iter().max().filter(|span| span.as_us_f64() >= 1.0) {
        let text = format!(
            "{} in which the GPU has nothing to do because the CPU has not started it yet, counted as computing",
            time(*starved)
        );
        line(out, "Launches", &text)?;
    }
    let memory = largest(recorded);
    let other = memory.peak.as_u64().saturating_sub(held(&memory));
    let share = memory.peak.as_u64() as f64 / resolved.job.gpu.memory.as_u64().max(1) as f64;
    let text = format!(
        "{} of {} at most: parameters {}, gradients {}, optimiser {}, other (activations) {}{}",
        bytes(memory.peak.as_u64()),
        bytes(resolved.job.gpu.memory.as_u64()),
        bytes(memory.parameters.as_u64()),
        bytes(memory.gradients.as_u64()),
        bytes(memory.optimiser.as_u64()),
        bytes(other),
        if share > 1.0 {
            "; it does not fit"
        } else if share > FULL {
            "; fragments and buffers of NCCL may be too much"
        } else {
            ""
        }
    );
    line(out, "Memory", &text)?;
    let shown = if verbose { usize::MAX } else { LINES_SHOWN };
    let costly =
        job.first.lines.iter().filter(|one| (one.exposed + one.computes).as_us_f64() >= 1.0 || one.calls > 0);
    for (place, one) in costly.take(shown).enumerate() {
        let calls = if one.calls == 0 {
            String::new()
        } else {
            format!(
                "  {} of {}, {} in all, {} exposed",
                count(one.calls, "call", "calls"),
                bytes(one.bytes.as_u64()),
                time(one.communicates),
                time(one.exposed)
            )
        };
        let text = format!("{:<40} computes {:>8}{calls}", one.line, time(one.computes));
        line(out, if place == 0 { "By line" } else { "" }, &text)?;
    }
    if !verbose && job.first.lines.len() > LINES_SHOWN {
        line(
            out,
            "",
            &format!("… {} more with --verbose", grouped((job.first.lines.len() - LINES_SHOWN) as u64)),
        )?;
    }
    Ok(())
}

/// The same for programs.
pub(super) fn object(job: &JobResult) -> Option<Value> {
    let recorded = job.placed.resolved.job.trace.as_ref()?.recorded.as_ref()?;
    let memory = largest(recorded);
    let lines = job.first.lines.iter().map(|one| {
        json!({
            "line": one.line,
            "computes_us": one.computes.as_us_f64(),
            "calls": one.calls,
            "bytes": one.bytes.as_u64(),
            "communicates_us": one.communicates.as_us_f64(),
            "exposed_us": one.exposed.as_us_f64(),
        })
    });
    Some(json!({
        "roles": recorded.roles,
        "kernels": recorded.kernels,
        "flops": recorded.flops,
        "flops_per_gpu": rate(job, recorded),
        "starved_us": recorded.launch.iter().map(|span| span.as_us_f64()).collect::<Vec<_>>(),
        "memory_bytes": {
            "parameters": memory.parameters.as_u64(),
            "gradients": memory.gradients.as_u64(),
            "optimiser": memory.optimiser.as_u64(),
            "peak": memory.peak.as_u64(),
        },
        "lines": lines.collect::<Vec<_>>(),
        "notes": recorded.notes,
    }))
}

/// That of the role that has most.
fn largest(recorded: &Recorded) -> RecordedMemory {
    recorded.memory.iter().copied().max_by_key(|memory| memory.peak).unwrap_or_default()
}

fn held(memory: &RecordedMemory) -> u64 {
    (memory.parameters + memory.gradients + memory.optimiser).as_u64()
}

/// FLOP/s of an average GPU.
fn rate(job: &JobResult, recorded: &Recorded) -> f64 {
    let mean = recorded.flops.iter().sum::<f64>() / recorded.flops.len().max(1) as f64;
    mean / job.first.outcome.step.as_secs_f64().max(f64::MIN_POSITIVE)
}
