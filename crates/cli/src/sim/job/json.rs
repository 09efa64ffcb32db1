//! All of it for programs. `docs/jobs.md` says what the fields mean.

use railnet_core::Span;
use railnet_job::graph::What;
use railnet_job::parallel::Scope;
use railnet_job::run::Breakdown;
use railnet_sim::{FaultPrice, JobResult, JobsOutcome, SaidResult};
use serde_json::{Map, Value, json};

use crate::careful;
use crate::sim::problem::File;
use crate::sim::{report, series};

pub(super) fn whole(file: &File, outcome: &JobsOutcome, wall_s: f64) -> Value {
    let mut value = json!({
        "scenario": file.path,
        "seed": file.scenario.seed,
        "fidelity": outcome.fidelity.name(),
        "partial": outcome.is_partial,
        "digest": format!("{:?}", outcome.digest),
        "wall_s": wall_s,
        "without_effect": careful::object(&file.scenario.without_effect()),
        "jobs": outcome.jobs.iter().map(|one| job(outcome, one)).collect::<Vec<_>>(),
    });
    if let Some(network) = &outcome.network {
        value["network"] = serde_json::to_value(report::fabric(network)).unwrap_or_default();
        if let Some(sampled) = &network.series {
            value["series"] = serde_json::to_value(series::object(network, sampled)).unwrap_or_default();
        }
        value["collectives"] = json!({ "calls": outcome.memo.calls, "from_memory": outcome.memo.hits });
    }
    value
}

fn job(outcome: &JobsOutcome, job: &JobResult) -> Value {
    let (placed, resolved, result) = (&job.placed, &job.placed.resolved, &job.first.outcome);
    let memory = &resolved.memory;
    // Of a part of a step nobody knows how much of its tokens it was.
    let whole = !job.steps.is_empty();
    let joined = &job.connections;
    json!({
        "name": resolved.name,
        "model": resolved.job.model.name,
        "parameters": resolved.job.model.parameters(),
        "nodes": placed.cluster.nodes,
        "first_node": placed.first_node,
        "ranks": placed.ranks(),
        "gpu": resolved.job.gpu.name,
        "gpus_of_nodes": (0..placed.cluster.nodes).map(|node| placed.cluster.ranks().count(node)).collect::<Vec<_>>(),
        "warnings": placed.straddling().into_iter().collect::<Vec<_>>(),
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
        "meet_us": job.start.meet.as_us_f64(),
        "connect_us": job.start.connect.as_us_f64(),
        "completion_us": job.completion().as_us_f64(),
        "step_us": result.step.as_us_f64(),
        "tokens_per_s": whole.then_some(result.tokens),
        "mfu": whole.then_some(result.mfu),
        "flops_per_gpu": whole.then_some(result.flops),
        "busy": result.utilisation,
        "average_us": breakdown(&result.average),
        "said": job.first.said.iter().map(said).collect::<Vec<_>>(),
        "critical_path_us": path(&job.first.path),
        "flow_level": job.first.flow_level.as_ref().map(|seen| json!({
            "coflows": seen.coflows,
            "run": seen.run,
            "busiest": seen.busiest.as_ref().map(|(link, _)| link),
            "busy": seen.busiest.as_ref().map(|(_, busy)| busy),
        })),
        "bottlenecks": job.first.bottlenecks.iter().map(|one| json!({
            "scope": one.scope.name().replace(' ', "_"),
            "resource": one.resource,
            "busy": one.busy,
            "collisions": one.collisions,
        })).collect::<Vec<_>>(),
        "caveats": careful::caveats_object(&careful::notices_of_job(outcome, job)),
        "slowest": result.straggler.map(|one| json!({
            "rank": one.rank.0,
            "alike": one.alike,
            "others_waited_us": one.delay.as_us_f64(),
            "computed_longer_us": one.behind.as_us_f64(),
        })),
        "recorded": super::recorded::object(job),
        "ports": job.ports.iter().map(|port| json!({
            "port": port.port,
            "scope": port.scope.name().replace(' ', "_"),
            "sent_bytes": port.sent,
            "received_bytes": port.received,
        })).collect::<Vec<_>>(),
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

/// What is said, in a word.
pub(super) fn what(what: What) -> &'static str {
    match what {
        What::Collective(collective) => collective.name(),
        What::Send { .. } => "send",
        What::Receive { .. } => "receive",
        What::Push => "push",
        What::Pull => "pull",
        What::Write => "write",
    }
}

fn said(row: &SaidResult) -> Value {
    let said = &row.said;
    json!({
        "what": what(said.what),
        "scope": said.scope.name().replace(' ', "_"),
        "ranks": row.ranks,
        "count": said.count,
        "largest_bytes": said.largest.as_u64(),
        "bytes": said.bytes.as_u64(),
        "median_us": said.median.as_us_f64(),
        "p99_us": said.late.as_us_f64(),
        "max_us": said.longest.as_us_f64(),
        "worst": {
            "rank": said.worst.rank.0,
            "us": said.worst.total.as_us_f64(),
            "waited_us": said.worst.waited.as_us_f64(),
            "for_rank": said.worst.last.map(|rank| rank.0),
            "network": row.trouble.map(|trouble| json!({
                "marks": trouble.marks,
                "pauses": trouble.pauses,
                "lost": trouble.lost,
                "resent": trouble.resent,
            })),
        },
        "algorithm": row.how.map(|how| how.algorithm.to_string()),
        "protocol": row.how.map(|how| how.protocol.to_string()),
        "channels": row.how.map(|how| how.channels),
    })
}
