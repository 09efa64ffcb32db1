//! All of it for programs. `docs/planning.md` says what the fields mean.

use railnet_job::graph::Job;
use railnet_job::memory::Memory;
use railnet_job::plan::{Candidate, Demand, Home, Plan, least_memory, why};
use serde_json::{Value, json};

use super::layouts::name;
use super::screen::{is_hidden, tokens, what};
use super::{Answer, Subject};
use crate::careful;
use crate::words;

pub(super) fn object(answer: &Answer) -> Value {
    let (subject, plan, sweep) = (&answer.subject, &answer.plan, &answer.sweep);
    let job = &subject.resolved.job;
    let outcome = &plan.outcome;
    let best = sweep.judged.first();
    let judged = sweep.judged.iter().map(|one| {
        let reasons = best.map_or(Vec::new(), |best| why(&best.outcome.average, &one.outcome.average));
        let mut value = layout(&one.candidate);
        value["step_us"] = one.outcome.step.as_us_f64().into();
        value["tokens_per_s"] = tokens(&one.candidate.job, one.outcome.step).into();
        value["mfu"] = one.outcome.mfu.into();
        value["longer_us"] = reasons
            .into_iter()
            .map(|(part, span)| (name(part).replace(' ', "_"), span.as_us_f64().into()))
            .collect::<serde_json::Map<String, Value>>()
            .into();
        value
    });
    let beaten = sweep.beaten.iter().map(|(candidate, bound)| {
        let mut value = layout(candidate);
        value["step_at_least_us"] = bound.at_least().as_us_f64().into();
        value
    });
    json!({
        "job": subject.resolved.name,
        "parameters": job.model.parameters(),
        "server": subject.cluster.host.name,
        "gpu": job.gpu.name,
        "nodes": subject.cluster.nodes,
        "gpus": subject.cluster.gpus(),
        "layout": parallel(job),
        "global_batch": job.training.global_batch,
        "compute_us": outcome.average.compute().as_us_f64(),
        "compute_by_itself_us": answer.by_itself.map(railnet_core::Span::as_us_f64),
        "step_us": outcome.step.as_us_f64(),
        "exposed_us": outcome.average.exposed_total().as_us_f64(),
        "bubble_us": outcome.average.bubble.as_us_f64(),
        "mfu": outcome.mfu,
        "tokens_per_s": outcome.tokens,
        "fits": plan.memory.total() <= least_memory(job),
        "memory_bytes": memory(&plan.memory),
        "gpu_memory_bytes": least_memory(job).as_u64(),
        "available_bytes_per_s": {
            "gpu": plan.carries.gpu,
            "node": plan.carries.node(),
            "nic": plan.carries.nic,
            "nic_without_gpudirect": plan.carries.bounced,
        },
        "nics": plan.carries.nics,
        "dimensions": plan.demands.iter().map(|one| demand(plan, one)).collect::<Vec<_>>(),
        "gpudirect": plan.bounce.map(|bounce| json!({
            "on": subject.gpudirect,
            "copied_bytes_per_node": bounce.copied,
            "host_memory_bytes_per_node": bounce.through_memory,
            "nic_us": bounce.direct.as_us_f64(),
            "nic_without_us": bounce.bounced.as_us_f64(),
            "step_us": bounce.step_direct.as_us_f64(),
            "step_without_us": bounce.step_bounced.as_us_f64(),
        })),
        "larger_buckets": plan.larger_buckets.map(|(size, step)| json!({
            "bucket_bytes": size.as_u64(),
            "step_us": step.as_us_f64(),
        })),
        "belongs": plan.homes.iter().map(home).collect::<Vec<_>>(),
        "better_order": plan.better_order.map(|(order, step)| json!({
            "order": order.map(railnet_job::parallel::Axis::name),
            "step_us": step.as_us_f64(),
        })),
        "layouts": judged.collect::<Vec<_>>(),
        "layouts_beaten": beaten.collect::<Vec<_>>(),
        "layouts_that_do_not_fit": sweep.misfits.iter().map(layout).collect::<Vec<_>>(),
        "notes": subject.notes,
        "without_effect": careful::object(&subject.inert),
        "caveats": careful::caveats_object(&careful::notices(&plan.caveats)),
    })
}

/// What each parallel dimension says in a step.
pub(super) fn dimensions(subject: &Subject, plan: &Plan) -> Value {
    json!({
        "job": subject.resolved.name,
        "gpus": subject.cluster.gpus(),
        "layout": parallel(&subject.resolved.job),
        "compute_us": plan.outcome.average.compute().as_us_f64(),
        "nics": plan.carries.nics,
        "dimensions": plan.demands.iter().map(|one| demand(plan, one)).collect::<Vec<_>>(),
    })
}

fn memory(memory: &Memory) -> Value {
    json!({
        "parameters": memory.parameters.as_u64(),
        "gradients": memory.gradients.as_u64(),
        "optimiser": memory.optimiser.as_u64(),
        "activations": memory.activations.as_u64(),
        "total": memory.total().as_u64(),
    })
}

fn parallel(job: &Job) -> Value {
    let parallel = &job.parallel;
    json!({
        "tp": parallel.tensor,
        "cp": parallel.context,
        "pp": parallel.pipeline,
        "dp": parallel.data,
        "ep": parallel.expert,
        "sp": parallel.sequence,
        "zero": parallel.sharding as u8,
        "recompute": words::kebab(&job.training.recompute),
    })
}

fn layout(candidate: &Candidate) -> Value {
    let mut value = parallel(&candidate.job);
    value["memory_bytes"] = candidate.memory.total().as_u64().into();
    value
}

fn demand(plan: &Plan, demand: &Demand) -> Value {
    let seconds = plan.outcome.average.compute().as_secs_f64().max(f64::MIN_POSITIVE);
    let nics = f64::from(plan.carries.nics.max(1));
    let leaves = demand.out_of_node > 0.0;
    json!({
        "dimension": demand.scope.name().replace(' ', "_"),
        "mostly": what(demand.what),
        "ranks": demand.ranks,
        "nodes": demand.nodes,
        "ranks_per_node": demand.local,
        "calls": demand.calls,
        "largest_bytes": demand.largest.as_u64(),
        "bytes": demand.bytes.as_u64(),
        "gpu_sends_bytes": demand.through_gpu,
        "node_sends_bytes": demand.out_of_node,
        "nic_sends_bytes": demand.out_of_node / nics,
        "on_rails": leaves.then_some(demand.on_rails),
        "basis": if leaves { "node" } else { "gpu" },
        "needed_bytes_per_s": {
            "gpu": demand.through_gpu / seconds,
            "node": demand.out_of_node / seconds,
            "nic": demand.out_of_node / nics / seconds,
        },
        "calls_us": demand.time.as_us_f64(),
        "exposed_us": demand.exposed.as_us_f64(),
        "hidden": is_hidden(plan, demand),
    })
}

fn home(home: &Home) -> Value {
    json!({
        "dimension": home.scope.name().replace(' ', "_"),
        "ranks": home.ranks,
        "inside_us": home.inside.map(railnet_core::Span::as_us_f64),
        "between_us": home.across.map(railnet_core::Span::as_us_f64),
        "is_inside": home.is_inside,
        "belongs_inside": home.belongs_inside,
    })
}
