//! The same, for programs.

use railnet_coll::tuner::{Decision, Estimate, Table, choose};
use railnet_coll::variables::TUNED;
use serde_json::{Value, json};

use super::{MOST, Question, sweep};

pub(super) fn object(question: &Question, with_sweep: bool) -> anyhow::Result<Value> {
    let Question { name, inputs, request, .. } = question;
    let mut value = json!({
        "cluster": name,
        "collective": request.collective.name(),
        "ranks": inputs.ranks,
        "nodes": inputs.nodes,
        "type": request.dtype.name(),
        "op": request.op.name(),
    });
    if with_sweep {
        let points = sweep::points(question)?;
        let points = points.iter().map(|point| {
            let mut one = decision(&point.decision);
            one["bytes"] = point.bytes.0.into();
            one["next"] =
                point.runner_up.as_ref().map(|(name, time)| json!({ "name": name, "time_us": time })).into();
            one
        });
        value["sweep"] = points.collect();
    } else {
        value["bytes"] = request.bytes.0.into();
        value["chosen"] = decision(&choose(inputs, request)?);
    }
    if TUNED.contains(&request.collective) {
        let table = Table::new(inputs, request);
        if !with_sweep {
            value["cells"] = cells(&table, question);
        }
        let crossovers = table.crossovers(MOST)?;
        let crossover = crossovers.iter().map(|one| {
            json!({
                "from_bytes": one.from.0,
                "algorithm": one.algorithm.name(),
                "protocol": one.protocol.name(),
            })
        });
        value["crossovers"] = crossover.collect();
    }
    Ok(value)
}

fn cells(table: &Table, question: &Question) -> Value {
    let request = &question.request;
    let cell = table.cells().iter().map(|cell| {
        let mut one = json!({ "algorithm": cell.algorithm.name(), "protocol": cell.protocol.name() });
        match (&cell.outcome, table.estimate(cell, request.bytes, request.together)) {
            (Ok(model), Some(estimate)) => {
                one["model_latency_us"] = model.latency_us.into();
                one["model_bandwidth_gb_per_s"] = model.bandwidth.into();
                add(&mut one, &estimate);
            }
            (Err(out), _) => one["out"] = out.to_string().into(),
            _ => {}
        }
        one
    });
    cell.collect()
}

fn add(value: &mut Value, estimate: &Estimate) {
    value["latency_us"] = estimate.latency_us.into();
    value["transfer_us"] = estimate.transfer_us.into();
    value["time_us"] = estimate.time_us.into();
    value["bandwidth_gb_per_s"] = estimate.bandwidth.into();
}

fn decision(decision: &Decision) -> Value {
    let mut value = json!({
        "algorithm": decision.algorithm.name(),
        "protocol": decision.protocol.name(),
        "channels": decision.channels,
        "threads": decision.threads,
        "chunk_bytes": decision.chunk.0,
    });
    if let Some(estimate) = &decision.estimate {
        add(&mut value, estimate);
    }
    value
}
