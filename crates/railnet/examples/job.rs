//! A training job in code: Llama 3 70B on 16 servers, laid out in three ways, by NCCL's cost model.
#![allow(clippy::print_stdout, reason = "an example talks")]

use railnet::sim::{ClusterSpec, ModelSpec, ParallelSpec, ScenarioSpec, TrainingSpec, simulate_jobs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("  tp  pp  zero     step   exposed   tokens/s");
    for (tp, pp, zero) in [(8, 1, 1), (4, 2, 1), (8, 1, 3)] {
        let outcome = simulate_jobs(&job(tp, pp, zero).build()?)?;
        let step = &outcome.jobs[0].first.outcome;
        let exposed = step.average.exposed_total().as_secs_f64();
        println!(
            "{tp:>4}{pp:>4}{zero:>6}{:>7.2} s{exposed:>8.2} s{:>11.0}",
            step.step.as_secs_f64(),
            step.tokens
        );
    }
    Ok(())
}

fn job(tp: u32, pp: u32, zero: u32) -> ScenarioSpec {
    let cluster = ClusterSpec { server: Some("dgx-h100".into()), nodes: Some(16), ..ClusterSpec::default() };
    ScenarioSpec {
        fidelity: Some("analytic".into()),
        cluster: Some(cluster),
        model: Some(ModelSpec { name: Some("llama-3-70b".into()), ..ModelSpec::default() }),
        training: Some(TrainingSpec { recompute: Some("full".into()), ..TrainingSpec::default() }),
        parallel: Some(ParallelSpec {
            tp: Some(tp),
            pp: Some(pp),
            zero: Some(zero),
            ..ParallelSpec::default()
        }),
        ..ScenarioSpec::default()
    }
}
