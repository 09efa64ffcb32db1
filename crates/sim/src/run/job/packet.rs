//! Jobs as packets: the machine of each job says which rank enters what, the collectives of `coll` carry it in the fabric.

use railnet_core::digest::Fold;
use railnet_core::event::{NoSink, Sink};
use railnet_core::{Digest, RunDigest, Span, Time};
use railnet_fabric::{Application, Group, Network, ReductionFailure};
use railnet_job::graph::StepGraph;
use railnet_nic::Completion;

use super::analytic::specials;
use super::driver::{Driver, TICK};
use super::report::{FaultPrice, JobResult, JobsOutcome, sum};
use super::{Look, keeps_timeline};
use crate::run::outcome::outcome;
use crate::run::world::World;
use crate::run::{Run, RunError};
use crate::scenario::{Fidelity, PlacedJob, Scenario, Slowed};

/// When a job is given up that sets no limit itself, in virtual time.
const LIMIT: Span = Span::from_secs(3_600);
/// How far a run goes before somebody looks at it.
const LOOK: Span = Span::from_us(10);

/// Runs the jobs of a scenario, and once more without its faults where it has any.
pub(super) fn run<S: Sink>(
    scenario: &Scenario,
    sink: S,
    look: &mut Look<'_, S>,
) -> Result<(JobsOutcome, S), RunError> {
    let (mut found, sink) = once(scenario, scenario.jobs()?, sink, look)?;
    if scenario.has_slowing_faults() {
        let mut sound = scenario.clone();
        sound.faults.clear();
        let (sound, _) = once(&sound, sound.jobs()?, NoSink, &mut |_| {})?;
        let what = scenario.fault_words()?;
        for (job, sound) in found.jobs.iter_mut().zip(&sound.jobs) {
            job.faults.push(FaultPrice {
                what: what.clone(),
                with: job.first.outcome.step,
                without: sound.first.outcome.step,
                total_with: sum(&job.steps),
                total_without: sum(&sound.steps),
                recovery: None,
            });
        }
    }
    Ok((found, sink))
}

/// How long each step of a job takes that is put somewhere else, beside the others.
pub(super) fn elsewhere(
    scenario: &Scenario,
    jobs: &[PlacedJob],
    (index, placed): (usize, PlacedJob),
) -> Result<Vec<Span>, RunError> {
    let mut jobs = jobs.to_vec();
    jobs[index] = placed;
    let (mut found, _) = once(scenario, jobs, NoSink, &mut |_| {})?;
    Ok(found.jobs.swap_remove(index).steps)
}

/// The graphs of a job's steps: without a checkpoint, and with one where some step writes it.
struct Graphs {
    plain: StepGraph,
    written: Option<StepGraph>,
}

impl Graphs {
    fn new(placed: &PlacedJob) -> Self {
        let mut job = placed.resolved.job.clone();
        let plain = StepGraph::new(&job);
        let written = placed.resolved.checkpoint.map(|(_, bytes)| {
            job.checkpoint = Some(bytes);
            StepGraph::new(&job)
        });
        Self { plain, written }
    }
}

fn once<S: Sink>(
    scenario: &Scenario,
    jobs: Vec<PlacedJob>,
    sink: S,
    look: &mut Look<'_, S>,
) -> Result<(JobsOutcome, S), RunError> {
    let slowed = scenario.slowed(false)?;
    let placed: Vec<PlacedJob> = jobs.iter().map(|job| job.with(&slowed)).collect::<Result<_, _>>()?;
    let graphs: Vec<Graphs> = placed.iter().map(Graphs::new).collect();
    let mut run = Run::new(scenario, (Digest::new(), sink))?;
    run.limit = Time::ZERO + scenario.limit.map_or(LIMIT, |limit| limit.0);
    let mut driver = Driver::new(scenario, keeps_timeline::<S>());
    for (placed, graphs) in placed.iter().zip(&graphs) {
        let mine: Vec<Slowed> = slowed.iter().filter(|one| one.is_in(placed)).copied().collect();
        driver.add(placed, (&graphs.plain, graphs.written.as_ref()), specials(placed, &mine));
    }
    let digest = advance(&mut run, &mut driver, look)?;
    let Run { mut network, world: World { runner, collectives }, .. } = run;
    let results: Vec<JobResult> = driver.finish(collectives.as_ref());
    let mut all = Fold::new();
    let of_packets = {
        let outcome = outcome(&mut network, runner, collectives, None);
        (outcome, network.sink.0.finish())
    };
    all.push((of_packets.1.as_u128() >> 64) as u64);
    all.push(of_packets.1.as_u128() as u64);
    all.push(digest);
    let outcome = JobsOutcome {
        fidelity: Fidelity::Packet,
        jobs: results,
        network: Some(of_packets.0),
        digest: RunDigest::from_u128(all.finish_wide()),
    };
    Ok((outcome, network.sink.1))
}

/// Runs until nothing happens any more, and says what the steps amount to.
fn advance<S: Sink>(
    run: &mut Run<(Digest, S)>,
    driver: &mut Driver<'_>,
    look: &mut Look<'_, S>,
) -> Result<u64, RunError> {
    look(run);
    JobWorld { world: &mut run.world, driver }.settle(&mut run.network);
    let mut is_quiet = false;
    while !is_quiet && run.network.now < run.limit {
        let stage = run.limit.min(run.watch.next).min(run.network.now + LOOK);
        is_quiet = run.network.run(&mut JobWorld { world: &mut run.world, driver }, stage);
        if stage == run.watch.next && run.world.runner.failure.is_none() {
            run.world.runner.failure = run.watch.look(&mut run.network, &run.world.runner);
        }
        look(run);
        if driver.failure.is_some() || run.world.runner.failure.is_some() {
            break;
        }
        if driver.is_done() && run.world.runner.unfinished == 0 {
            // What is left are timers of NICs.
            break;
        }
    }
    if let Some(failure) = run.world.runner.failure.take() {
        return Err(failure);
    }
    if let Some(failure) = driver.failure.take() {
        return Err(failure);
    }
    if let Some(collectives) = &run.world.collectives {
        if let Some(failure) = &collectives.failure {
            return Err(RunError::Collective(failure.to_string()));
        }
        if collectives.wrong() > 0 {
            let message = format!("{} bytes of results were wrong", collectives.wrong());
            return Err(RunError::Collective(message));
        }
    }
    match driver.standstill() {
        Some(who) => Err(RunError::Collective(who)),
        None => Ok(driver.digest.finish()),
    }
}

/// All that runs on the hosts while jobs run.
struct JobWorld<'a, 'g> {
    world: &'a mut World,
    driver: &'a mut Driver<'g>,
}

impl JobWorld<'_, '_> {
    /// Goes on with jobs, as far as they can.
    fn settle<S: Sink>(&mut self, network: &mut Network<S>) {
        if let (Some(collectives), mut ground) = self.world.parts() {
            self.driver.settle(network, collectives, &mut ground);
        }
    }

    /// The same, where a call has ended.
    fn settle_ended<S: Sink>(&mut self, network: &mut Network<S>) {
        if self.world.collectives.as_ref().is_some_and(super::super::collective::Collectives::has_ended) {
            self.settle(network);
        }
    }
}

impl<S: Sink> Application<S> for JobWorld<'_, '_> {
    fn completed(&mut self, network: &mut Network<S>, host: u32, completion: &Completion) {
        self.world.completed(network, host, completion);
        self.settle_ended(network);
    }

    fn called(&mut self, network: &mut Network<S>, token: u32) {
        if token == TICK {
            return self.settle(network);
        }
        self.world.called(network, token);
        self.settle_ended(network);
    }

    fn carried(&mut self, network: &mut Network<S>, token: u32) {
        self.world.carried(network, token);
        self.settle_ended(network);
    }

    fn reduced(&mut self, network: &mut Network<S>, group: Group, member: u32, token: u64) {
        self.world.reduced(network, group, member, token);
        self.settle_ended(network);
    }

    fn reduction_failed(&mut self, network: &mut Network<S>, group: Group, failure: &ReductionFailure) {
        self.world.reduction_failed(network, group, failure);
    }

    fn touched(&mut self, network: &mut Network<S>, token: u64) {
        self.world.touched(network, token);
        self.settle_ended(network);
    }
}
