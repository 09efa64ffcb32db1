//! Jobs that fail on the way: what their steps amount to when they begin again from their checkpoint.
//!
//! Steps before the failure take what they take without it, and those after it what they take on what is left. What packets do
//! while ranks wait for one that is gone is not looked at.

use railnet_core::digest::Fold;
use railnet_core::{RunDigest, Span};
use railnet_job::run::{self, Past};

use super::report::{FaultPrice, JobsOutcome, RecoveryStory, sum};
use super::{analytic, packet};
use crate::run::RunError;
use crate::scenario::{FailureSection, Fidelity, PlacedJob, Scenario, ScenarioError};

/// A job that may fail again.
struct Survivor {
    /// Where it runs now.
    placed: PlacedJob,
    /// The servers that it has, by their numbers in the whole cluster.
    nodes: Vec<u32>,
    /// Spares that are left.
    spares: Vec<u32>,
    /// How long its steps take there.
    steps: Vec<Span>,
    past: Past,
    /// What it takes in all, as far as is known.
    total: Span,
}

impl Survivor {
    fn new(placed: &PlacedJob, steps: &[Span]) -> Self {
        let end = placed.nodes().end;
        Self {
            placed: placed.clone(),
            nodes: placed.nodes().collect(),
            spares: (end..end + placed.spares).collect(),
            steps: steps.to_vec(),
            past: Past::default(),
            total: sum(steps),
        }
    }

    /// Goes on without a server. Whether a spare took its place.
    fn lose(&mut self, scenario: &Scenario, failed: &FailureSection) -> Result<bool, ScenarioError> {
        let Some(lost) = self.nodes.iter().position(|node| *node == failed.node) else {
            let message = format!("server {} is no part of the job any more when this comes", failed.node);
            return Err(ScenarioError::new(message).within(&format!("faults.{}", failed.fault)));
        };
        let spare = (!self.spares.is_empty()).then(|| self.spares.remove(0));
        self.placed = scenario.rest(&self.placed, failed, (lost as u32, spare))?;
        match spare {
            Some(spare) => self.nodes[lost] = spare,
            None => {
                self.nodes.remove(lost);
                self.nodes.truncate(self.placed.cluster.nodes as usize);
            }
        }
        Ok(spare.is_some())
    }
}

/// Lets jobs fail and begin again.
pub(super) fn relive(scenario: &Scenario, outcome: &mut JobsOutcome) -> Result<(), RunError> {
    let failures = scenario.failures()?;
    if failures.is_empty() {
        return Ok(());
    }
    let jobs = scenario.jobs()?;
    let mut survivors: Vec<Survivor> =
        jobs.iter().zip(&outcome.jobs).map(|(placed, found)| Survivor::new(placed, &found.steps)).collect();
    let mut digest = Fold::new();
    digest.push((outcome.digest.as_u128() >> 64) as u64);
    digest.push(outcome.digest.as_u128() as u64);
    for failed in &failures {
        let survivor = &mut survivors[failed.job];
        if let Some(idle) = survivor.spares.iter().position(|spare| *spare == failed.node) {
            // Nobody was on it: it is a spare less.
            survivor.spares.remove(idle);
            continue;
        }
        let result = &mut outcome.jobs[failed.job];
        let before = std::mem::take(&mut survivor.steps);
        check_time(&before, survivor.past, failed)?;
        let cluster = survivor.placed.cluster.clone();
        let has_spare = survivor.lose(scenario, failed)?;
        let after = if has_spare && survivor.placed.cluster == cluster {
            before.clone()
        } else {
            let rest = survivor.placed.clone();
            match scenario.fidelity {
                Fidelity::Analytic | Fidelity::Flow => analytic::elsewhere(scenario, &rest)?,
                Fidelity::Packet => packet::elsewhere(scenario, &jobs, (failed.job, rest))?,
            }
        };
        let interval = result.placed.resolved.checkpoint.map(|(interval, _)| interval);
        let life = run::relive(survivor.past, (&before, &after), interval, failed.failure);
        let life = life.expect("it was looked at that the job is not over");
        for span in [life.total, life.lost, life.slower] {
            digest.push(span.as_ps());
        }
        let without = before.first().copied().unwrap_or(Span::ZERO);
        result.life = Some(life);
        result.faults.push(FaultPrice {
            what: failed.what.clone(),
            with: after.first().copied().unwrap_or(without),
            without,
            total_with: life.total,
            total_without: survivor.total,
            recovery: Some(RecoveryStory {
                life,
                noticed: failed.noticed,
                nodes: survivor.placed.cluster.nodes,
                has_spare,
            }),
        });
        (survivor.steps, survivor.past, survivor.total) = (after, life.past(), life.total);
    }
    outcome.digest = RunDigest::from_u128(digest.finish_wide());
    Ok(())
}

/// Whether a job is under way when it is to fail.
fn check_time(steps: &[Span], past: Past, failed: &FailureSection) -> Result<(), RunError> {
    let at = failed.failure.at;
    let end = past.time + sum(steps.get(past.steps as usize..).unwrap_or_default());
    let message = if at < past.time {
        let again = past.time;
        format!(
            "the job gets over an earlier failure until {again}, and this comes at {at}: let it come later"
        )
    } else if at >= end {
        format!(
            "the job is over after {end}, and this comes at {at}: let it come sooner, or give the job more `steps`"
        )
    } else {
        return Ok(());
    };
    let error = ScenarioError::new(message).at("at").within(&format!("faults.{}", failed.fault));
    Err(RunError::Scenario(error))
}
