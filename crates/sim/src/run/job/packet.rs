//! Jobs as packets: the machine of each job says which rank enters what, the collectives of `coll` carry it in the fabric.

use railnet_core::digest::Fold;
use railnet_core::event::Sink;
use railnet_core::{Digest, RunDigest, Span, Time};
use railnet_fabric::{Application, Group, Network, ReductionFailure};
use railnet_job::graph::StepGraph;
use railnet_nic::Completion;

use super::analytic::specials;
use super::driver::{Driver, TICK};
use super::report::{FaultPrice, JobResult, JobsOutcome};
use super::{JobProgress, JobSettings, JobWatch};
use crate::run::outcome::outcome;
use crate::run::series::Sampler;
use crate::run::world::World;
use crate::run::{Run, RunError};
use crate::scenario::{Fidelity, PlacedJob, Scenario, Slowed};

/// When a job is given up that sets no limit itself, in virtual time.
const LIMIT: Span = Span::from_secs(3_600);

/// Runs the jobs of a scenario, and once more without its faults where it has any.
pub(super) fn run(scenario: &Scenario, mut settings: JobSettings<'_>) -> Result<JobsOutcome, RunError> {
    let mut found = once(scenario, &mut settings, false)?;
    if !scenario.faults.is_empty() && !found.is_partial {
        let mut sound = scenario.clone();
        sound.faults.clear();
        sound.sample = None;
        let sound = once(&sound, &mut settings, true)?;
        found.is_partial = sound.is_partial;
        let what = scenario.fault_words()?;
        for (job, sound) in
            found.jobs.iter_mut().zip(&sound.jobs).filter(|(_, sound)| !sound.steps.is_empty())
        {
            let (with, without) = (job.first.outcome.step, sound.first.outcome.step);
            job.faults.push(FaultPrice { what: what.clone(), with, without });
        }
    }
    Ok(found)
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

fn once(
    scenario: &Scenario,
    settings: &mut JobSettings<'_>,
    is_second: bool,
) -> Result<JobsOutcome, RunError> {
    let placed = scenario.jobs()?;
    let graphs: Vec<Graphs> = placed.iter().map(Graphs::new).collect();
    let slowed = scenario.slowed(false)?;
    let mut run = Run::new(scenario, Digest::new())?;
    run.limit = Time::ZERO + scenario.limit.map_or(LIMIT, |limit| limit.0);
    // What else is on the fabric may come in the way of anything.
    let is_idle = run.world.runner.flows.is_empty() && !run.network.has_lane_faults();
    let mut driver = Driver::new(scenario, settings.memo && is_idle);
    for (placed, graphs) in placed.iter().zip(&graphs) {
        let mine: Vec<Slowed> = slowed.iter().filter(|one| one.is_in(placed)).copied().collect();
        driver.add(placed, (&graphs.plain, graphs.written.as_ref()), specials(placed, &mine));
    }
    let watch: Option<&mut dyn JobWatch> = match &mut settings.watch {
        Some(watch) => Some(&mut **watch),
        None => None,
    };
    let mut onlooker = Onlooker { watch, is_second };
    onlooker.begin(&mut run);
    let is_partial = !advance(&mut run, &mut driver, &mut onlooker)?;
    let now = run.network.now;
    let Run { mut network, world: World { runner, mut collectives }, sampler, .. } = run;
    let memo = collectives.as_mut().map(|all| driver.count(&mut network, all)).unwrap_or_default();
    if let Some(collectives) = collectives.as_mut().filter(|_| is_partial) {
        collectives.note_end(now);
    }
    let digest = driver.digest.finish();
    let jobs: Vec<JobResult> = driver.finish(collectives.as_ref(), &network);
    let outcome = outcome(&mut network, runner, collectives, sampler.map(Sampler::finish));
    let of_packets = network.sink.finish().as_u128();
    let mut sum = Fold::new();
    sum.push((of_packets >> 64) as u64);
    sum.push(of_packets as u64);
    sum.push(digest);
    Ok(JobsOutcome {
        fidelity: Fidelity::Packet,
        jobs,
        network: Some(outcome),
        memo,
        is_partial,
        digest: RunDigest::from_u128(sum.finish_wide()),
    })
}

/// Virtual time between two looks of one who looks on.
const STRIDE: Span = Span::from_us(20);

/// One who looks on, if there is one.
struct Onlooker<'a> {
    watch: Option<&'a mut dyn JobWatch>,
    is_second: bool,
}

impl Onlooker<'_> {
    fn begin(&mut self, run: &mut Run<Digest>) {
        if let Some(watch) = self.watch.as_mut().filter(|_| !self.is_second) {
            watch.begin(run);
        }
    }

    /// When it looks next.
    fn next(&self, now: Time) -> Time {
        if self.watch.is_some() { now + STRIDE } else { Time::NEVER }
    }

    /// Whether the run shall go on.
    fn look(&mut self, run: &mut Run<Digest>, driver: &Driver<'_>) -> bool {
        let Some(watch) = &mut self.watch else { return true };
        let (steps, calls) = driver.progress();
        let (now, events) = (run.now(), run.events());
        watch.look(run, &JobProgress { now, events, steps, calls, is_second: self.is_second })
    }
}

/// Runs until nothing happens any more. Whether it came to its end.
fn advance(
    run: &mut Run<Digest>,
    driver: &mut Driver<'_>,
    onlooker: &mut Onlooker<'_>,
) -> Result<bool, RunError> {
    JobWorld { world: &mut run.world, driver }.settle(&mut run.network);
    let mut is_quiet = false;
    let mut goes_on = true;
    let mut next_look = onlooker.next(Time::ZERO);
    while goes_on && !is_quiet && run.network.now < run.limit {
        let sampled = run.sampler.as_ref().map_or(Time::NEVER, |sampler| sampler.next);
        let stage = run.limit.min(run.watch.next).min(sampled).min(next_look);
        is_quiet = run.network.run(&mut JobWorld { world: &mut run.world, driver }, stage);
        let is_done = driver.is_done() && run.world.runner.unfinished == 0;
        if stage == sampled
            && let Some(sampler) = &mut run.sampler
        {
            let seen = sampler.look(&mut run.network, &run.world.runner, !is_done);
            run.world.runner.failure = run.world.runner.failure.take().or(seen.err());
        }
        if stage == run.watch.next && run.world.runner.failure.is_none() {
            run.world.runner.failure = run.watch.look(&mut run.network, &run.world.runner);
        }
        if stage == next_look || is_quiet || is_done {
            goes_on = onlooker.look(run, driver) || is_done;
            next_look = onlooker.next(stage);
        }
        if driver.failure.is_some() || run.world.runner.failure.is_some() || is_done {
            // Where all is done, what is left are timers of NICs.
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
    match driver.standstill().filter(|_| goes_on) {
        Some(who) => Err(RunError::Collective(who)),
        None => Ok(goes_on),
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
            self.driver.note_ended(network);
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
