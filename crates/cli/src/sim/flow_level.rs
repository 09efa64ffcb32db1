//! Runs at flow fidelity: no packets to look at, and an end in moments.

use std::time::Instant;

use railnet_core::Time;
use railnet_sim::{FlowLevelRun, RunError, Scenario};

use super::progress::Progress;
use super::{Arguments, Finished};
use crate::interrupt::Interrupt;
use crate::wire::Wire;
use crate::{Usage, words};

/// Moments at which flows start or end, between two looks at the clock and at whether the run shall go on.
const STRIDE: u32 = 256;

/// Refuses what looks at packets.
pub(super) fn refuse(arguments: &Arguments) -> Result<(), Usage> {
    let given = [
        ("--sample", arguments.sample.is_some()),
        ("--pcap", arguments.capture.is_on()),
        ("--record, --report, --trace and --view", arguments.record.is_on()),
        ("--wire bytes", arguments.wire == Wire::Bytes),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Usage(format!(
            "{option}: there are no packets to look at, at flow fidelity; use `--fidelity packet`"
        ))),
        None => Ok(()),
    }
}

/// Runs a scenario to its end, or for as long as `goes_on` wants; of a run that fails, what was known by then.
pub(super) fn run(
    scenario: &Scenario,
    mut goes_on: impl FnMut(&FlowLevelRun) -> bool,
) -> Result<Finished, RunError> {
    let began = Instant::now();
    let mut run = FlowLevelRun::new(scenario)?;
    let mut is_over = false;
    while !is_over && goes_on(&run) {
        is_over = (0..STRIDE).any(|_| !run.step());
    }
    let (unfinished, all) = run.unfinished();
    let partial = (!is_over).then_some((all - unfinished, all));
    let failure = run.failure();
    let (outcome, digest) = match partial.is_some() || failure.is_some() {
        true => run.stop(),
        false => run.finish()?,
    };
    let wall_s = began.elapsed().as_secs_f64();
    Ok(Finished { seed: scenario.seed, outcome, digest, wall_s, captured: None, partial, failure })
}

/// The same until Ctrl-C, with a line of progress on a terminal.
pub(super) fn watch(scenario: &Scenario) -> anyhow::Result<Result<Finished, RunError>> {
    let (interrupt, progress) = (Interrupt::catch()?, Progress::new());
    let mut shown = Instant::now();
    let finished = run(scenario, |run| {
        if progress.is_due(shown) {
            shown = Instant::now();
            let (unfinished, all) = run.unfinished();
            progress.show(&format!(
                "{} µs simulated · {} of {} flows finished",
                words::micros(run.now() - Time::ZERO),
                words::grouped((all - unfinished) as u64),
                words::grouped(all as u64)
            ));
        }
        !interrupt.is_set()
    });
    progress.clear();
    Ok(finished)
}
