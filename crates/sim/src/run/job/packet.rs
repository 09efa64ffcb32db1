//! Jobs as packets: the machine of each job says which rank enters what, the collectives of `coll` carry it in the fabric.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use railnet_core::digest::Fold;
use railnet_core::event::{NoSink, Sink};
use railnet_core::{Digest, RunDigest, Span, Time};
use railnet_fabric::{Application, Group, Network, ReductionFailure};
use railnet_job::graph::StepGraph;
use railnet_nic::Completion;

use super::analytic::specials;
use super::driver::{Driver, TICK};
use super::partitions::PartitionView;
use super::report::{FaultPrice, JobResult, JobsOutcome, sum};
use super::worker_pool::{Coordinator, Partition, WorkerPool};
use super::{JobObserver, JobProgress, JobSettings, keeps_timeline};
use crate::run::collective::Collectives;
use crate::run::outcome::outcome;
use crate::run::series::Sampler;
use crate::run::world::World;
use crate::run::{Run, RunError};
use crate::scenario::{Fidelity, PlacedJob, Scenario, Slowed};

/// When a job is given up that sets no limit itself, in virtual time.
const LIMIT: Span = Span::from_secs(3_600);

/// Runs the jobs of a scenario, and once more without its faults where it has any that slow it down.
pub(super) fn run<S: Sink>(
    scenario: &Scenario,
    sink: S,
    settings: JobSettings<'_, S>,
) -> Result<Ended<S>, RunError> {
    let JobSettings { memo, threads, mut observer } = settings;
    let manner = Manner { memo, threads };
    let mut of_run = OfRun { observer: reborrow(&mut observer) };
    let (mut found, sink, failure) = once(scenario, &scenario.jobs()?, sink, manner, &mut of_run)?;
    if scenario.has_slowing_faults() && !found.is_partial {
        let mut sound = scenario.clone();
        sound.faults.clear();
        sound.sample = None;
        let mut of_baseline = OfBaseline { observer: reborrow(&mut observer) };
        let sound = succeeded(once(&sound, &sound.jobs()?, NoSink, manner, &mut of_baseline)?)?;
        found.is_partial = sound.is_partial;
        let what = scenario.fault_words()?;
        for (job, sound) in
            found.jobs.iter_mut().zip(&sound.jobs).filter(|(_, sound)| !sound.steps.is_empty())
        {
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
    Ok((found, sink, failure))
}

/// How jobs are run, without a difference to what comes of it: see [`JobSettings`].
#[derive(Clone, Copy)]
struct Manner {
    memo: bool,
    threads: u32,
}

/// What came of jobs, their sink, and why they failed if they did.
type Ended<S> = (JobsOutcome, S, Option<RunError>);

fn succeeded<S>((outcome, _, failure): Ended<S>) -> Result<JobsOutcome, RunError> {
    failure.map_or(Ok(outcome), Err)
}

fn reborrow<'a, S>(observer: &'a mut Option<&mut dyn JobObserver<S>>) -> Option<&'a mut dyn JobObserver<S>> {
    match observer {
        Some(observer) => Some(&mut **observer),
        None => None,
    }
}

/// How long each step of a job takes that is put somewhere else, beside the others.
pub(super) fn elsewhere(
    scenario: &Scenario,
    jobs: &[PlacedJob],
    (index, placed): (usize, PlacedJob),
) -> Result<Vec<Span>, RunError> {
    let mut jobs = jobs.to_vec();
    jobs[index] = placed;
    let manner = Manner { memo: true, threads: 1 };
    let mut found = succeeded(once(scenario, &jobs, NoSink, manner, &mut OfRun { observer: None })?)?;
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
    jobs: &[PlacedJob],
    sink: S,
    Manner { memo, threads }: Manner,
    observer: &mut impl Observer<S>,
) -> Result<Ended<S>, RunError> {
    observer.set_up("operations of a step");
    let slowed = scenario.slowed(false)?;
    let placed: Vec<PlacedJob> = jobs.iter().map(|job| job.with(&slowed)).collect::<Result<_, _>>()?;
    let graphs: Vec<Graphs> = placed.iter().map(Graphs::new).collect();
    observer.set_up("network");
    let mut run = new_run(scenario, &placed, sink)?;
    observer.set_up("ranks");
    // What else is on the fabric may come in the way of anything.
    let is_idle = run.world.runner.flows.is_empty() && !run.network.has_bus_faults();
    // A memo hit sends no packets: nothing would be there to see.
    let keeps_timeline = keeps_timeline::<S>();
    let mut driver = Driver::new(scenario, keeps_timeline, memo && is_idle && !keeps_timeline);
    for (placed, graphs) in placed.iter().zip(&graphs) {
        let mine: Vec<Slowed> = slowed.iter().filter(|one| one.is_in(placed)).copied().collect();
        driver.add(placed, (&graphs.plain, graphs.written.as_ref()), specials(placed, &mine));
    }
    driver.stop = observer.stop();
    observer.begin(&mut run);
    observer.set_up("network, for each thread");
    let mut partitions = partition(run, threads, |sink| new_run(scenario, &placed, sink))?;
    for partition in &mut partitions {
        partition.world.stop.clone_from(&driver.stop);
    }
    // A communicator connects in its first call, so that set-up ends with the first microseconds.
    observer.set_up("connections and the first microseconds");
    observer.runs();
    let (mut partitions, ended) = run_partitions(partitions, &mut driver, observer);
    let (is_partial, failure) = match ended {
        Ok(is_whole) => (!is_whole, None),
        Err(failure) => (true, Some(failure)),
    };
    let memo = driver.count(&mut PartitionView::new(
        partitions.iter_mut().map(|partition| (&mut partition.network, &mut partition.world)),
    ));
    let Run { mut network, world: World { runner, mut collectives, .. }, sampler, .. } = joined(partitions);
    let now = network.now;
    if let Some(collectives) = collectives.as_mut().filter(|_| is_partial) {
        collectives.note_end(now);
    }
    let digest = driver.digest.finish();
    let jobs: Vec<JobResult> = driver.finish(collectives.as_ref(), &network);
    let outcome = outcome(&mut network, runner, collectives, sampler.map(Sampler::finish));
    let of_packets = network.sink.0.finish().as_u128();
    let mut all = Fold::new();
    all.push((of_packets >> 64) as u64);
    all.push(of_packets as u64);
    all.push(digest);
    let outcome = JobsOutcome {
        fidelity: Fidelity::Packet,
        jobs,
        network: Some(outcome),
        memo,
        is_partial,
        digest: RunDigest::from_u128(all.finish_wide()),
    };
    Ok((outcome, network.sink.1, failure))
}

fn new_run<S: Sink>(scenario: &Scenario, placed: &[PlacedJob], sink: S) -> Result<Partition<S>, RunError> {
    let mut run = Run::new(scenario, (Digest::new(), sink))?;
    run.limit = Time::ZERO + scenario.limit.map_or(LIMIT, |limit| limit.0);
    for placed in placed {
        limit_servers(&mut run, placed);
    }
    Ok(run)
}

/// A run and others like it that share its work, at most one for each thread and as many as the network can be cut into; or the
/// run alone.
fn partition<S: Sink>(
    run: Partition<S>,
    threads: u32,
    another: impl Fn(S) -> Result<Partition<S>, RunError>,
) -> Result<Vec<Partition<S>>, RunError> {
    let is_plain = run.world.runner.flows.is_empty() && run.sampler.is_none();
    let most = threads.min(run.network.host_count());
    let count = (2..=most).rev().find(|count| is_plain && run.network.can_be_partitioned(*count));
    let mut partitions = vec![run];
    while (partitions.len() as u32) < count.unwrap_or(1)
        && let Some(sink) = partitions[0].network.sink.1.fork()
    {
        partitions.push(another(sink)?);
    }
    Ok(partitions)
}

/// Merges partitions into the first.
fn joined<S: Sink>(partitions: Vec<Partition<S>>) -> Partition<S> {
    let mut partitions = partitions.into_iter();
    let mut all = partitions.next().expect("a run has a partition at least");
    for (number, partition) in (1..).zip(partitions) {
        let Run { network, world, .. } = partition;
        let is_theirs = |component| network.partition_of_component(component) == number;
        all.network.sink.0.absorb(&network.sink.0, is_theirs);
        all.world.absorb(&mut all.network, &world, &network);
        all.network.merge(network);
    }
    all
}

/// Servers that have parameters or storage give and take no more than the job says.
fn limit_servers<S: Sink>(run: &mut Run<(Digest, S)>, placed: &PlacedJob) {
    let rates = placed.resolved.rates;
    let Some(servers) = run.world.parts().1.servers else { return };
    for (nodes, rate) in [(placed.servers.clone(), rates.server), (placed.storage.clone(), rates.storage)] {
        for (node, rate) in nodes.filter_map(|node| Some((node, rate?))) {
            servers.limit(&mut run.network, node, rate);
        }
    }
}

/// Virtual time between two observations; and where the observer takes frames, which wait in memory until then.
const STRIDE: Span = Span::from_us(200);
/// Of so many hosts; of more it is shorter, since as much takes longer then, but not shorter than some epochs.
const STRIDE_HOSTS: u64 = 1024;
const STRIDE_LEAST: Span = Span::from_us(5);
const STRIDE_WITH_FRAMES: Span = Span::from_us(10);

/// What a run does with the observer that was asked for, if any.
trait Observer<S> {
    /// Whether there is one.
    fn is_present(&self) -> bool;

    /// As [`JobObserver::set_up`].
    fn set_up(&mut self, part: &'static str);

    /// As [`JobObserver::begin`].
    fn begin(&mut self, run: &mut Run<(Digest, S)>);

    /// As [`JobObserver::runs`].
    fn runs(&mut self);

    /// As [`JobObserver::stop`].
    fn stop(&self) -> Option<Arc<AtomicBool>>;

    /// As [`JobObserver::observe`].
    fn observe(&mut self, run: &mut Run<(Digest, S)>, progress: &JobProgress) -> bool;
}

/// Of the run that was asked for: the observer hears all.
struct OfRun<'a, S> {
    observer: Option<&'a mut dyn JobObserver<S>>,
}

impl<S> Observer<S> for OfRun<'_, S> {
    fn is_present(&self) -> bool {
        self.observer.is_some()
    }

    fn set_up(&mut self, part: &'static str) {
        if let Some(observer) = &mut self.observer {
            observer.set_up(part);
        }
    }

    fn begin(&mut self, run: &mut Run<(Digest, S)>) {
        if let Some(observer) = &mut self.observer {
            observer.begin(run);
        }
    }

    fn runs(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.runs();
        }
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        self.observer.as_ref().and_then(|observer| observer.stop())
    }

    fn observe(&mut self, run: &mut Run<(Digest, S)>, progress: &JobProgress) -> bool {
        self.observer.as_mut().is_none_or(|observer| observer.observe(run, progress))
    }
}

/// Of the baseline, which has no sink: the observer hears how far it is.
struct OfBaseline<'a, S> {
    observer: Option<&'a mut dyn JobObserver<S>>,
}

impl<S> Observer<NoSink> for OfBaseline<'_, S> {
    fn is_present(&self) -> bool {
        self.observer.is_some()
    }

    fn set_up(&mut self, part: &'static str) {
        if let Some(observer) = &mut self.observer {
            observer.set_up(part);
        }
    }

    fn begin(&mut self, _run: &mut Run<(Digest, NoSink)>) {}

    fn runs(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.runs();
        }
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        self.observer.as_ref().and_then(|observer| observer.stop())
    }

    fn observe(&mut self, _run: &mut Run<(Digest, NoSink)>, progress: &JobProgress) -> bool {
        let progress = JobProgress { is_baseline: true, ..*progress };
        self.observer.as_mut().is_none_or(|observer| observer.observe_baseline(&progress))
    }
}

/// When the next observation is due.
fn next_observation<S: Sink>(observer: &impl Observer<S>, run: &Partition<S>, now: Time) -> Time {
    match run.network.shows_frames() {
        _ if !observer.is_present() => Time::NEVER,
        true => now + STRIDE_WITH_FRAMES,
        false => {
            let hosts = u64::from(run.network.host_count()).max(STRIDE_HOSTS);
            now + Span::from_ps(STRIDE.as_ps() * STRIDE_HOSTS / hosts).max(STRIDE_LEAST)
        }
    }
}

/// Runs until nothing happens any more. Returns the partitions, and whether the run came to its end.
fn run_partitions<S: Sink>(
    mut partitions: Vec<Partition<S>>,
    driver: &mut Driver<'_>,
    observer: &mut impl Observer<S>,
) -> (Vec<Partition<S>>, Result<bool, RunError>) {
    let is_whole;
    if let [run] = &mut partitions[..] {
        is_whole = advance(&mut Engine::Alone(run), driver, observer);
    } else {
        (partitions, is_whole) = WorkerPool::new(partitions)
            .with(|coordinator| advance(&mut Engine::Pool(coordinator), driver, observer));
    }
    let ended = check(&mut partitions, driver, is_whole);
    (partitions, ended)
}

/// Whether the run came to its end, or why it failed.
fn check<S: Sink>(
    partitions: &mut [Partition<S>],
    driver: &mut Driver<'_>,
    is_whole: bool,
) -> Result<bool, RunError> {
    if let Some(failure) = partitions.iter_mut().find_map(|partition| partition.world.runner.failure.take()) {
        return Err(failure);
    }
    if let Some(failure) = driver.failure.take() {
        return Err(failure);
    }
    let mut wrong = 0;
    for collectives in partitions.iter().filter_map(|partition| partition.world.collectives.as_ref()) {
        if let Some(failure) = &collectives.failure {
            return Err(RunError::Collective(failure.to_string()));
        }
        wrong += collectives.wrong();
    }
    if wrong > 0 {
        return Err(RunError::Collective(format!("{wrong} bytes of results were wrong")));
    }
    let stalled = if is_whole { driver.stalled() } else { None };
    stalled.map_or(Ok(is_whole), |who| Err(RunError::Collective(who)))
}

/// What runs a job: one network in the order of time or by epochs, or partitions of one with a thread each.
enum Engine<'a, S> {
    Alone(&'a mut Partition<S>),
    Pool(Coordinator<'a, S>),
}

impl<S: Sink> Engine<'_, S> {
    /// Lets the driver begin.
    fn begin(&mut self, driver: &mut Driver<'_>) {
        match self {
            Self::Alone(run) => JobWorld { world: &mut run.world, driver }.settle(&mut run.network),
            Self::Pool(coordinator) => coordinator.begin(driver),
        }
    }

    /// Runs until `until`. Returns whether nothing will happen any more.
    fn run(&mut self, driver: &mut Driver<'_>, until: Time) -> bool {
        match self {
            Self::Alone(run) => run.network.run(&mut JobWorld { world: &mut run.world, driver }, until),
            Self::Pool(coordinator) => coordinator.run(driver, until),
        }
    }

    /// Does something with the first partition, which stands for all where it does not matter which.
    fn with_first<R>(&mut self, what: impl FnOnce(&mut Partition<S>) -> R) -> R {
        match self {
            Self::Alone(run) => what(run),
            Self::Pool(coordinator) => what(&mut coordinator.first()),
        }
    }

    /// Samples and the detection of stalls are for flows, and those run in one partition: when the next of them is due.
    fn next_check(&mut self) -> Time {
        match self {
            Self::Alone(run) => {
                run.stall.next.min(run.sampler.as_ref().map_or(Time::NEVER, |sampler| sampler.next))
            }
            Self::Pool(_) => Time::NEVER,
        }
    }

    /// Takes the samples and checks for the stalls that are due now.
    fn check(&mut self, now: Time, is_done: bool) {
        let Self::Alone(run) = self else { return };
        if let Some(sampler) = run.sampler.as_mut().filter(|sampler| sampler.next == now) {
            let seen = sampler.sample(&mut run.network, &run.world.runner, !is_done);
            run.world.runner.failure = run.world.runner.failure.take().or(seen.err());
        }
        if run.stall.next == now && run.world.runner.failure.is_none() {
            run.world.runner.failure = run.stall.check(&mut run.network, &run.world.runner);
        }
    }

    fn unfinished_flows(&mut self) -> usize {
        self.with_first(|first| first.world.runner.unfinished)
    }

    fn events(&self) -> u64 {
        match self {
            Self::Alone(run) => run.events(),
            Self::Pool(coordinator) => coordinator.all().iter().map(|partition| partition.events()).sum(),
        }
    }

    /// Whether something has failed in a partition.
    fn has_failed(&self) -> bool {
        let has_failed = |partition: &Partition<S>| {
            let has_broken = partition.world.collectives.as_ref().is_some_and(|all| all.failure.is_some());
            has_broken || partition.world.runner.failure.is_some()
        };
        match self {
            Self::Alone(run) => has_failed(run),
            Self::Pool(coordinator) => coordinator.all().iter().any(|partition| has_failed(partition)),
        }
    }
}

/// Runs jobs to their end, to a failure or to the limit. `false` if the observer stopped them before.
fn advance<S: Sink>(
    engine: &mut Engine<'_, S>,
    driver: &mut Driver<'_>,
    observer: &mut impl Observer<S>,
) -> bool {
    engine.begin(driver);
    let limit = engine.with_first(|first| first.limit);
    let mut observed = engine.with_first(|first| next_observation(observer, first, Time::ZERO));
    let (mut is_quiet, mut goes_on) = (false, true);
    while goes_on && !is_quiet && engine.with_first(|first| first.network.now) < limit {
        let until = limit.min(engine.next_check()).min(observed);
        is_quiet = engine.run(driver, until);
        let is_done = driver.is_done() && engine.unfinished_flows() == 0;
        engine.check(until, is_done);
        if observer.is_present() && (until == observed || is_quiet || is_done) {
            let progress = progress(driver, engine.with_first(|first| first.now()), engine.events());
            goes_on = engine.with_first(|first| observer.observe(first, &progress)) || is_done;
            observed = engine.with_first(|first| next_observation(observer, first, until));
        }
        if driver.is_stopped() {
            goes_on = is_done;
        }
        if driver.failure.is_some() || engine.has_failed() || is_done {
            // Where all is done, what is left are timers of NICs; where a call broke, it never ends.
            break;
        }
    }
    goes_on
}

fn progress(driver: &Driver<'_>, now: Time, events: u64) -> JobProgress {
    let (steps, calls) = driver.progress();
    JobProgress { now, events, steps, calls, is_baseline: false }
}

/// All that runs on the hosts while jobs run.
struct JobWorld<'a, 'g> {
    world: &'a mut World,
    driver: &'a mut Driver<'g>,
}

impl JobWorld<'_, '_> {
    /// Goes on with jobs, as far as they can.
    fn settle<S: Sink>(&mut self, network: &mut Network<S>) {
        self.driver.settle(&mut PartitionView::whole(network, self.world));
    }

    /// The same, where a call has ended.
    fn settle_ended<S: Sink>(&mut self, network: &mut Network<S>) {
        if self.world.collectives.as_ref().is_some_and(Collectives::has_ended) {
            self.driver.note_ended(&mut PartitionView::whole(network, self.world));
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

    fn is_stopped(&self) -> bool {
        self.world.is_stopped()
    }

    fn earliest_interaction(&self) -> Time {
        self.world.collectives.as_ref().map_or(Time::ZERO, Collectives::ends_from)
    }
}
