//! Jobs that fail on the way: what their steps amount to when they begin again from their checkpoint.
//!
//! Steps before the failure take what they take without it, and those after it what they take on what is left. What packets do
//! while ranks wait for one that is gone is not looked at.

use railnet_core::digest::Fold;
use railnet_core::{RunDigest, Span};
use railnet_job::run;

use super::report::{FaultPrice, JobsOutcome, RecoveryStory, sum};
use super::{analytic, packet};
use crate::run::RunError;
use crate::scenario::{Fidelity, Scenario, ScenarioError};

/// Lets jobs fail and begin again.
pub(super) fn relive(scenario: &Scenario, outcome: &mut JobsOutcome) -> Result<(), RunError> {
    let failures = scenario.failures()?;
    if failures.is_empty() {
        return Ok(());
    }
    let jobs = scenario.jobs()?;
    let mut digest = Fold::new();
    digest.push((outcome.digest.as_u128() >> 64) as u64);
    digest.push(outcome.digest.as_u128() as u64);
    for failed in &failures {
        let rest = scenario.rest(&jobs, failed)?;
        let (nodes, has_spare) = (rest.cluster.nodes, jobs[failed.job].spares > 0);
        let result = &mut outcome.jobs[failed.job];
        let after = if has_spare && rest.cluster == jobs[failed.job].cluster {
            result.steps.clone()
        } else {
            match scenario.fidelity {
                Fidelity::Analytic => analytic::elsewhere(scenario, &rest)?,
                Fidelity::Packet => packet::elsewhere(scenario, &jobs, (failed.job, rest))?,
            }
        };
        let interval = result.placed.resolved.checkpoint.map(|(interval, _)| interval);
        let Some(life) = run::relive(&result.steps, &after, interval, failed.failure) else {
            let message = format!(
                "the job is over after {}, and this comes at {}: let it come sooner, or give the job more `steps`",
                sum(&result.steps),
                failed.failure.at
            );
            let error = ScenarioError::new(message).at("at").within(&format!("faults.{}", failed.fault));
            return Err(RunError::Scenario(error));
        };
        for span in [life.total, life.lost, life.slower] {
            digest.push(span.as_ps());
        }
        let without = result.steps.first().copied().unwrap_or(Span::ZERO);
        result.life = Some(life);
        result.faults.push(FaultPrice {
            what: failed.what.clone(),
            with: after.first().copied().unwrap_or(without),
            without,
            total_with: life.total,
            total_without: sum(&result.steps),
            recovery: Some(RecoveryStory { life, noticed: failed.noticed, nodes, has_spare }),
        });
    }
    outcome.digest = RunDigest::from_u128(digest.finish_wide());
    Ok(())
}
