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
use super::crew::{Crew, Foreman, Part};
use super::driver::{Driver, TICK};
use super::report::{FaultPrice, JobResult, JobsOutcome, sum};
use super::stage::Stage;
use super::{JobProgress, JobSettings, JobWatch, keeps_timeline};
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
    let JobSettings { memo, threads, mut watch } = settings;
    let manner = Manner { memo, threads };
    let mut first = First { watch: reborrow(&mut watch) };
    let (mut found, sink, failure) = once(scenario, &scenario.jobs()?, sink, manner, &mut first)?;
    if scenario.has_slowing_faults() && !found.is_partial {
        let mut sound = scenario.clone();
        sound.faults.clear();
        sound.sample = None;
        let mut second = Second { watch: reborrow(&mut watch) };
        let sound = succeeded(once(&sound, &sound.jobs()?, NoSink, manner, &mut second)?)?;
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

/// What came of jobs, whoever watched them, and why they failed where they did.
type Ended<S> = (JobsOutcome, S, Option<RunError>);

fn succeeded<S>((outcome, _, failure): Ended<S>) -> Result<JobsOutcome, RunError> {
    failure.map_or(Ok(outcome), Err)
}

fn reborrow<'a, S>(watch: &'a mut Option<&mut dyn JobWatch<S>>) -> Option<&'a mut dyn JobWatch<S>> {
    match watch {
        Some(watch) => Some(&mut **watch),
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
    let mut found = succeeded(once(scenario, &jobs, NoSink, manner, &mut First { watch: None })?)?;
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
    onlooker: &mut impl Onlooker<S>,
) -> Result<Ended<S>, RunError> {
    onlooker.set_up("operations of a step");
    let slowed = scenario.slowed(false)?;
    let placed: Vec<PlacedJob> = jobs.iter().map(|job| job.with(&slowed)).collect::<Result<_, _>>()?;
    let graphs: Vec<Graphs> = placed.iter().map(Graphs::new).collect();
    onlooker.set_up("network");
    let mut run = new_run(scenario, &placed, sink)?;
    onlooker.set_up("ranks");
    // What else is on the fabric may come in the way of anything.
    let is_idle = run.world.runner.flows.is_empty() && !run.network.has_bus_faults();
    // A memo hit sends no packets: nothing would be there to see.
    let keeps_timeline = keeps_timeline::<S>();
    let mut driver = Driver::new(scenario, keeps_timeline, memo && is_idle && !keeps_timeline);
    for (placed, graphs) in placed.iter().zip(&graphs) {
        let mine: Vec<Slowed> = slowed.iter().filter(|one| one.is_in(placed)).copied().collect();
        driver.add(placed, (&graphs.plain, graphs.written.as_ref()), specials(placed, &mine));
    }
    driver.stop = onlooker.stop();
    onlooker.begin(&mut run);
    onlooker.set_up("network, for each thread");
    let mut parts = parts(run, threads, |sink| new_run(scenario, &placed, sink))?;
    for part in &mut parts {
        part.world.stop.clone_from(&driver.stop);
    }
    // A communicator connects in its first call, so that set-up ends with the first microseconds.
    onlooker.set_up("connections and the first microseconds");
    onlooker.runs();
    let (mut parts, ended) = advance(parts, &mut driver, onlooker);
    let (is_partial, failure) = match ended {
        Ok(is_whole) => (!is_whole, None),
        Err(failure) => (true, Some(failure)),
    };
    let memo =
        driver.count(&mut Stage::new(parts.iter_mut().map(|part| (&mut part.network, &mut part.world))));
    let Run { mut network, world: World { runner, mut collectives, .. }, sampler, .. } = joined(parts);
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

fn new_run<S: Sink>(scenario: &Scenario, placed: &[PlacedJob], sink: S) -> Result<Part<S>, RunError> {
    let mut run = Run::new(scenario, (Digest::new(), sink))?;
    run.limit = Time::ZERO + scenario.limit.map_or(LIMIT, |limit| limit.0);
    for placed in placed {
        limit_servers(&mut run, placed);
    }
    Ok(run)
}

/// A run and others like it that share its work, as many as threads and as the network has use for; or the run alone.
fn parts<S: Sink>(
    run: Part<S>,
    threads: u32,
    another: impl Fn(S) -> Result<Part<S>, RunError>,
) -> Result<Vec<Part<S>>, RunError> {
    let is_plain = run.world.runner.flows.is_empty() && run.sampler.is_none();
    let most = threads.min(run.network.host_count());
    let count = (2..=most).rev().find(|count| is_plain && run.network.can_be_partitioned(*count));
    let mut parts = vec![run];
    while (parts.len() as u32) < count.unwrap_or(1)
        && let Some(sink) = parts[0].network.sink.1.fork()
    {
        parts.push(another(sink)?);
    }
    Ok(parts)
}

/// What parts have carried out, in one.
fn joined<S: Sink>(parts: Vec<Part<S>>) -> Part<S> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().expect("a run has a part at least");
    for (number, part) in (1..).zip(parts) {
        let Run { network, world, .. } = part;
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

/// Virtual time between two looks of one who looks on; and of one who takes frames then, which wait in memory for that.
const STRIDE: Span = Span::from_us(200);
/// Of so many hosts; of more it is shorter, since as much takes longer then, but not shorter than some epochs.
const STRIDE_HOSTS: u64 = 1024;
const STRIDE_LEAST: Span = Span::from_us(5);
const STRIDE_WITH_FRAMES: Span = Span::from_us(10);

/// One who looks on while jobs run in a fabric.
trait Onlooker<S> {
    /// Whether there is anybody.
    fn is_there(&self) -> bool;

    /// What is set up next.
    fn set_up(&mut self, stage: &'static str);

    fn begin(&mut self, run: &mut Run<(Digest, S)>);

    /// All is set up.
    fn runs(&mut self);

    /// Is set where the run shall stop before the next look.
    fn stop(&self) -> Option<Arc<AtomicBool>>;

    /// Whether the run shall go on.
    fn look(&mut self, run: &mut Run<(Digest, S)>, progress: &JobProgress) -> bool;
}

/// The one of the run that was asked for.
struct First<'a, S> {
    watch: Option<&'a mut dyn JobWatch<S>>,
}

impl<S> Onlooker<S> for First<'_, S> {
    fn is_there(&self) -> bool {
        self.watch.is_some()
    }

    fn set_up(&mut self, stage: &'static str) {
        if let Some(watch) = &mut self.watch {
            watch.set_up(stage);
        }
    }

    fn begin(&mut self, run: &mut Run<(Digest, S)>) {
        if let Some(watch) = &mut self.watch {
            watch.begin(run);
        }
    }

    fn runs(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.runs();
        }
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        self.watch.as_ref().and_then(|watch| watch.stop())
    }

    fn look(&mut self, run: &mut Run<(Digest, S)>, progress: &JobProgress) -> bool {
        self.watch.as_mut().is_none_or(|watch| watch.look(run, progress))
    }
}

/// The one of the run without faults: it only hears how far that is.
struct Second<'a, S> {
    watch: Option<&'a mut dyn JobWatch<S>>,
}

impl<S> Onlooker<NoSink> for Second<'_, S> {
    fn is_there(&self) -> bool {
        self.watch.is_some()
    }

    fn set_up(&mut self, stage: &'static str) {
        if let Some(watch) = &mut self.watch {
            watch.set_up(stage);
        }
    }

    fn begin(&mut self, _run: &mut Run<(Digest, NoSink)>) {}

    fn runs(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.runs();
        }
    }

    fn stop(&self) -> Option<Arc<AtomicBool>> {
        self.watch.as_ref().and_then(|watch| watch.stop())
    }

    fn look(&mut self, _run: &mut Run<(Digest, NoSink)>, progress: &JobProgress) -> bool {
        let progress = JobProgress { is_second: true, ..*progress };
        self.watch.as_mut().is_none_or(|watch| watch.look_beside(&progress))
    }
}

/// When one who looks on does so next.
fn next_look<S: Sink>(onlooker: &impl Onlooker<S>, run: &Part<S>, now: Time) -> Time {
    match run.network.shows_frames() {
        _ if !onlooker.is_there() => Time::NEVER,
        true => now + STRIDE_WITH_FRAMES,
        false => {
            let hosts = u64::from(run.network.host_count()).max(STRIDE_HOSTS);
            now + Span::from_ps(STRIDE.as_ps() * STRIDE_HOSTS / hosts).max(STRIDE_LEAST)
        }
    }
}

/// Runs until nothing happens any more. Gives the parts back, and whether it came to its end.
fn advance<S: Sink>(
    mut parts: Vec<Part<S>>,
    driver: &mut Driver<'_>,
    onlooker: &mut impl Onlooker<S>,
) -> (Vec<Part<S>>, Result<bool, RunError>) {
    let goes_on = if let [run] = &mut parts[..] {
        advance_alone(run, driver, onlooker)
    } else {
        let goes_on;
        (parts, goes_on) = Crew::new(parts).with(|foreman| advance_together(foreman, driver, onlooker));
        goes_on
    };
    let ended = verdict(&mut parts, driver, goes_on);
    (parts, ended)
}

/// Whether it came to its end, or why it failed.
fn verdict<S: Sink>(parts: &mut [Part<S>], driver: &mut Driver<'_>, goes_on: bool) -> Result<bool, RunError> {
    if let Some(failure) = parts.iter_mut().find_map(|part| part.world.runner.failure.take()) {
        return Err(failure);
    }
    if let Some(failure) = driver.failure.take() {
        return Err(failure);
    }
    let mut wrong = 0;
    for collectives in parts.iter().filter_map(|part| part.world.collectives.as_ref()) {
        if let Some(failure) = &collectives.failure {
            return Err(RunError::Collective(failure.to_string()));
        }
        wrong += collectives.wrong();
    }
    if wrong > 0 {
        return Err(RunError::Collective(format!("{wrong} bytes of results were wrong")));
    }
    let standstill = if goes_on { driver.standstill() } else { None };
    standstill.map_or(Ok(goes_on), |who| Err(RunError::Collective(who)))
}

/// Whether something has failed in a part.
fn has_failed<S>(part: &Part<S>) -> bool {
    let has_broken = part.world.collectives.as_ref().is_some_and(|all| all.failure.is_some());
    has_broken || part.world.runner.failure.is_some()
}

/// One thread does it all. Whether nobody has stopped it.
fn advance_alone<S: Sink>(
    run: &mut Part<S>,
    driver: &mut Driver<'_>,
    onlooker: &mut impl Onlooker<S>,
) -> bool {
    JobWorld { world: &mut run.world, driver }.settle(&mut run.network);
    let mut is_quiet = false;
    let mut goes_on = true;
    let mut next = next_look(onlooker, run, Time::ZERO);
    while goes_on && !is_quiet && run.network.now < run.limit {
        let sampled = run.sampler.as_ref().map_or(Time::NEVER, |sampler| sampler.next);
        let stage = run.limit.min(run.watch.next).min(sampled).min(next);
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
        if onlooker.is_there() && (stage == next || is_quiet || is_done) {
            let progress = progress(driver, run.now(), run.events());
            goes_on = onlooker.look(run, &progress) || is_done;
            next = next_look(onlooker, run, stage);
        }
        if driver.is_stopped() {
            goes_on = is_done;
        }
        if driver.failure.is_some() || has_failed(run) || is_done {
            // Where all is done, what is left are timers of NICs; where a call broke, it never ends.
            break;
        }
    }
    goes_on
}

/// Several threads do it together. Whether nobody has stopped them.
fn advance_together<S: Sink>(
    mut foreman: Foreman<'_, S>,
    driver: &mut Driver<'_>,
    onlooker: &mut impl Onlooker<S>,
) -> bool {
    foreman.begin(driver);
    let limit = foreman.first().limit;
    let (mut is_quiet, mut goes_on, mut now) = (false, true, Time::ZERO);
    while goes_on && !is_quiet && now < limit {
        let next = next_look(onlooker, &foreman.first(), now);
        now = limit.min(next);
        is_quiet = foreman.run(driver, now);
        let is_done = driver.is_done();
        if onlooker.is_there() {
            let events = foreman.all().iter().map(|part| part.events()).sum();
            let progress = progress(driver, now, events);
            goes_on = onlooker.look(&mut foreman.first(), &progress) || is_done;
        }
        if driver.is_stopped() {
            goes_on = is_done;
        }
        if driver.failure.is_some() || is_done || foreman.all().iter().any(|part| has_failed(part)) {
            break;
        }
    }
    goes_on
}

fn progress(driver: &Driver<'_>, now: Time, events: u64) -> JobProgress {
    let (steps, calls) = driver.progress();
    JobProgress { now, events, steps, calls, is_second: false }
}

/// All that runs on the hosts while jobs run.
struct JobWorld<'a, 'g> {
    world: &'a mut World,
    driver: &'a mut Driver<'g>,
}

impl JobWorld<'_, '_> {
    /// Goes on with jobs, as far as they can.
    fn settle<S: Sink>(&mut self, network: &mut Network<S>) {
        self.driver.settle(&mut Stage::whole(network, self.world));
    }

    /// The same, where a call has ended.
    fn settle_ended<S: Sink>(&mut self, network: &mut Network<S>) {
        if self.world.collectives.as_ref().is_some_and(Collectives::has_ended) {
            self.driver.note_ended(&mut Stage::whole(network, self.world));
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
