//! All of it for programs. `docs/jobs.md` says what the fields mean.

use railnet_core::Span;
use railnet_job::graph::What;
use railnet_job::parallel::Scope;
use railnet_job::run::Breakdown;
use railnet_sim::{FaultPrice, JobResult, JobsOutcome, SaidResult};
use serde_json::{Map, Value, json};

use crate::sim::problem::File;
use crate::sim::report;

pub(super) fn whole(file: &File, outcome: &JobsOutcome, wall_s: f64) -> Value {
    let mut value = json!({
        "scenario": file.path,
        "seed": file.scenario.seed,
        "fidelity": outcome.fidelity.name(),
        "digest": format!("{:?}", outcome.digest),
        "wall_s": wall_s,
        "jobs": outcome.jobs.iter().map(job).collect::<Vec<_>>(),
    });
    if let Some(network) = &outcome.network {
        value["network"] = serde_json::to_value(report::fabric(network)).unwrap_or_default();
        value["collectives"] = json!({ "calls": outcome.memo.calls, "from_memory": outcome.memo.taken });
    }
    value
}

fn job(job: &JobResult) -> Value {
    let (placed, resolved, result) = (&job.placed, &job.placed.resolved, &job.first.outcome);
    let memory = &resolved.memory;
    let joined = &job.connections;
    json!({
        "name": resolved.name,
        "model": resolved.job.model.name,
        "parameters": resolved.job.model.parameters(),
        "nodes": placed.cluster.nodes,
        "first_node": placed.first_node,
        "ranks": placed.ranks(),
        "gpu": resolved.job.gpu.name,
        "communicators": joined.communicators,
        "queue_pairs": joined.queue_pairs,
        "buffer_bytes": joined.buffers.as_u64(),
        "memory_bytes": {
            "parameters": memory.parameters.as_u64(),
            "gradients": memory.gradients.as_u64(),
            "optimiser": memory.optimiser.as_u64(),
            "activations": memory.activations.as_u64(),
            "total": memory.total().as_u64(),
        },
        "steps_us": job.steps.iter().map(|step| step.as_us_f64()).collect::<Vec<_>>(),
        "total_us": job.total().as_us_f64(),
        "step_us": result.step.as_us_f64(),
        "tokens_per_s": result.tokens,
        "mfu": result.mfu,
        "flops_per_gpu": result.flops,
        "busy": result.utilisation,
        "average_us": breakdown(&result.average),
        "said": job.first.said.iter().map(said).collect::<Vec<_>>(),
        "critical_path_us": path(&job.first.path),
        "slowest": result.straggler.map(|one| json!({
            "rank": one.rank.0,
            "others_waited_us": one.delay.as_us_f64(),
            "computed_longer_us": one.behind.as_us_f64(),
        })),
        "kinds": job.first.kinds.iter().map(|kind| json!({
            "gpu": kind.gpu,
            "ranks": kind.ranks,
            "compute_us": kind.compute.as_us_f64(),
            "waiting_us": kind.waiting.as_us_f64(),
        })).collect::<Vec<_>>(),
        "faults": job.faults.iter().map(|one| fault(one, placed.ranks())).collect::<Vec<_>>(),
    })
}

fn fault(fault: &FaultPrice, ranks: u32) -> Value {
    json!({
        "what": fault.what,
        "step_with_us": fault.with.as_us_f64(),
        "step_without_us": fault.without.as_us_f64(),
        "total_with_us": fault.total_with.as_us_f64(),
        "total_without_us": fault.total_without.as_us_f64(),
        "gpu_hours": fault.gpu_hours(ranks),
        "recovery": fault.recovery.as_ref().map(|story| json!({
            "step": story.life.step,
            "checkpoint_step": story.life.checkpoint,
            "done_again_us": story.life.lost.as_us_f64(),
            "noticed": story.noticed,
            "notice_us": story.life.failure.notice.as_us_f64(),
            "restart_us": story.life.failure.restart.as_us_f64(),
            "read_us": story.life.failure.read.as_us_f64(),
            "slower_us": story.life.slower.as_us_f64(),
            "nodes": story.nodes,
            "has_spare": story.has_spare,
        })),
    })
}

fn breakdown(average: &Breakdown) -> Value {
    let exposed: Map<String, Value> = Scope::ALL
        .into_iter()
        .map(|scope| (scope.name().replace(' ', "_"), average.exposed[scope as usize]))
        .filter(|(_, span)| *span > Span::ZERO)
        .map(|(name, span)| (name, span.as_us_f64().into()))
        .collect();
    json!({
        "forward": average.forward.as_us_f64(),
        "recompute": average.recompute.as_us_f64(),
        "backward": average.backward.as_us_f64(),
        "optimiser": average.optimiser.as_us_f64(),
        "contention": average.contention.as_us_f64(),
        "exposed": exposed,
        "bubble": average.bubble.as_us_f64(),
        "waiting": average.waiting.as_us_f64(),
    })
}

fn path(parts: &[(&'static str, Span)]) -> Map<String, Value> {
    parts.iter().map(|(name, span)| (name.replace(' ', "_"), span.as_us_f64().into())).collect()
}

fn said(row: &SaidResult) -> Value {
    let said = &row.said;
    let what = match said.what {
        What::Collective(collective) => collective.name(),
        What::Send { .. } => "send",
        What::Receive { .. } => "receive",
        What::Push => "push",
        What::Pull => "pull",
        What::Write => "write",
    };
    json!({
        "what": what,
        "scope": said.scope.name().replace(' ', "_"),
        "ranks": row.ranks,
        "count": said.count,
        "largest_bytes": said.largest.as_u64(),
        "bytes": said.bytes.as_u64(),
        "median_us": said.median.as_us_f64(),
        "p99_us": said.late.as_us_f64(),
        "max_us": said.longest.as_us_f64(),
        "algorithm": row.how.map(|how| how.algorithm.to_string()),
        "protocol": row.how.map(|how| how.protocol.to_string()),
        "channels": row.how.map(|how| how.channels),
    })
}
