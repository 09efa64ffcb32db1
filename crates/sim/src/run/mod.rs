//! Runs a scenario: makes the fabric, starts the flows, and notes what came of them.

mod collective;
mod coupled;
mod error;
mod flow_level;
mod inside;
mod job;
mod outcome;
mod peers;
mod runner;
mod series;
mod server;
mod server_ranks;
mod stall;
mod world;

use std::collections::BTreeMap;

use railnet_coll::variables::Variables;
use railnet_core::event::{NoSink, Sink};
use railnet_core::{Bytes, Component, PacketSample, QueuePairNumber, Rate, Span, Time};
use railnet_fabric::{Fault, Network, Tapped, host_gid};
use railnet_nic::control::ControlConfig;
use railnet_nic::frame::WireForm;
use railnet_nic::{Mtu, Nic, NicConfig, PortConfig};
use railnet_topology::{Cluster, FabricGraph, Routes, Vertex};

pub use collective::{CollectiveResult, TransferResult};
pub use coupled::{Coupled, CouplingError, Finished};
pub use error::{FlowFailure, RunError, StallReport};
pub use flow_level::{FlowLevel, FlowLevelRun};
pub use inside::LaneResult;
pub use job::{
    Connections, FaultPrice, How, JobObserver, JobProgress, JobResult, JobSettings, JobsOutcome, KindResult,
    MemoCount, PortTraffic, RecoveryStory, SaidResult, Start, StepResult, Trouble, run_jobs,
    run_jobs_to_failure, run_jobs_with,
};
pub use outcome::{FlowResult, LinkResult, Outcome};
pub use series::{ConnectionSample, LinkSample, Series};
pub use stall::{BlockingCause, Waiting, listed};

use crate::scenario::{Fidelity, Scenario, ScenarioError, SlowGpu, SlowInside, faults, graph, slow_gpus};
use crate::traffic::{Flow, flows};
use collective::Collectives;
use inside::Inside;
use outcome::outcome;
use runner::Runner;
use series::Sampler;
use stall::{StallDetector, blocking_cause};
use world::World;

/// When a run is given up that sets no limit itself, in virtual time.
const LIMIT: Span = Span::from_secs(60);
/// How far a run goes before it looks whether a flow has failed.
const STRIDE: Span = Span::from_ms(10);

/// Runs a scenario; events go to `sink`, which comes back with the outcome.
pub fn run<S: Sink>(scenario: &Scenario, sink: S) -> Result<(Outcome, S), RunError> {
    Run::new(scenario, sink)?.finish()
}

/// Whether a scenario can be run packet by packet: hosts, links and ranks that it names have to be there. Flows are counted and
/// neither they nor switches and NICs are built, unless collectives or transfers are planned on them.
pub fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let graph = graph(scenario)?;
    let ends = scenario.ends(&graph)?;
    crate::traffic::check(scenario, &ends)?;
    scenario.check_flow_fidelity()?;
    if !scenario.collective.is_empty() || !scenario.transfer.is_empty() {
        return Run::new(scenario, NoSink).map(|_| ());
    }
    scenario.ack_dscp()?;
    faults(scenario, &graph)?;
    if let Some(cluster) = scenario.damaged()? {
        scenario.slow_inside(&cluster)?;
    }
    slow_gpus(scenario)?;
    if scenario.has_jobs() {
        scenario.slowed(false)?;
    }
    Ok(())
}

/// A run that is under way, for those who want to watch it. It comes to the same outcome in one go and in steps.
///
/// ```
/// use railnet_core::Span;
/// use railnet_core::event::NoSink;
/// use railnet_sim::{Run, Scenario};
///
/// let scenario = Scenario::parse(
///     "[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n\
///      [[traffic]]\nkind = \"all-to-all\"\nbytes = \"64KB\"\n",
/// )?;
/// let mut run = Run::new(&scenario, NoSink)?;
/// while !run.advance(Span::from_us(10)) {
///     println!("{}: {} flows to go", run.now(), run.unfinished());
/// }
/// let (outcome, _) = run.finish()?;
/// assert_eq!(outcome.flows.len(), 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Run<S> {
    network: Network<S>,
    world: World,
    stall: StallDetector,
    sampler: Option<Sampler>,
    limit: Time,
    /// Nothing will happen any more.
    is_quiet: bool,
    is_over: bool,
}

impl<S: Sink> Run<S> {
    /// Makes the fabric and has every flow ready to start.
    pub fn new(scenario: &Scenario, sink: S) -> Result<Self, ScenarioError> {
        Self::with_flows(scenario, sink, flows)
    }

    fn with_flows(
        scenario: &Scenario,
        sink: S,
        flows: fn(&Scenario, &FabricGraph) -> Result<Vec<Flow>, ScenarioError>,
    ) -> Result<Self, ScenarioError> {
        if scenario.fidelity == Fidelity::Flow {
            let message = "this run sends packets: at flow fidelity, use FlowLevelRun";
            return Err(ScenarioError::new(message).at("fidelity"));
        }
        let graph = graph(scenario)?;
        let hosts = graph.hosts.len() as u32;
        let ends = scenario.ends(&graph)?;
        let mut runner = Runner::new(scenario, hosts, flows(scenario, &ends)?)?;
        let routes = Routes::minimal(&graph, &[]);
        let rates = host_rates(&graph);
        // Once for each rate: some controls begin with the round trip of the whole fabric.
        let mut controls: BTreeMap<Rate, ControlConfig> = BTreeMap::new();
        let nic = |host: u32| {
            let rate = rates[host as usize];
            let mut config = NicConfig::new(Component(host), scenario.seed, host_gid(host));
            config.ports = vec![PortConfig { gids: vec![host_gid(host)], rate, mtu: Mtu::Mtu4096 }];
            config.control = controls.entry(rate).or_insert_with(|| scenario.control_at(rate)).clone();
            config.recovery = scenario.recovery();
            config.behaviour.ack_requests.interval = scenario.nic.ack_interval;
            config.behaviour.credits = scenario.nic.credits;
            config.priorities = scenario.priorities();
            config.notification_interval = scenario.notification_interval();
            config.burst_packets = scenario.nic.burst;
            config.framing = scenario.wire_framing();
            Nic::new(config)
        };
        let (config, framing) = (scenario.switch_config(), scenario.framing());
        let mut network = Network::new(&graph, routes, config, framing, scenario.seed, sink, nic);
        let cluster = scenario.damaged()?;
        // Before the flows: what breaks at the start is broken when they do.
        for (at, fault) in faults(scenario, &graph)? {
            network.fault_at(at, fault);
        }
        let inside = scenario.cluster.as_ref().map(|section| {
            Inside::new(&mut network, scenario, section, cluster.clone(), hosts, &runner.flows)
        });
        if let (Some(cluster), Some(inside)) = (&cluster, &inside) {
            for SlowInside { at, server, link, rate } in scenario.slow_inside(cluster)? {
                for lane in inside.bus_inside(server, link) {
                    network.fault_at(at, Fault::SlowBus { resource: lane, rate });
                }
            }
        }
        for SlowGpu { at, gpu, rate } in slow_gpus(scenario)? {
            let end = |cluster: &Cluster| {
                let (node, gpu) = cluster.ranks().place(gpu);
                cluster.ends().range(node).start + gpu
            };
            let gpu = cluster.as_ref().map_or(gpu, end);
            for lane in inside.iter().flat_map(|inside| inside.bus_of(gpu)) {
                network.fault_at(at, Fault::SlowBus { resource: lane, rate });
            }
        }
        runner.set_up(&mut network, inside);
        let mut world = World { runner, collectives: None, stop: None };
        let (_, mut resources) = world.parts();
        let collectives = Collectives::new(&mut network, &mut resources, scenario, &ends)?;
        let groups = resources.host_groups(hosts);
        let bound = match &collectives {
            Some(collectives) => collectives.lookahead_bound(&resources),
            None => Some(Span::MAX),
        };
        if let (Some(groups), Some(bound)) = (groups, bound)
            && world.runner.minds_its_host()
        {
            network.partition_by_host(groups, bound);
            // Jobs announce their traffic phases; other traffic, and what faults make of it, does not.
            let is_driven = collectives.as_ref().is_some_and(Collectives::is_driven);
            if is_driven && world.runner.flows.is_empty() && !network.has_faults_ahead() {
                network.enable_extended_lookahead();
            }
        }
        world.collectives = collectives;
        if let (Some(collectives), mut resources) = world.parts() {
            collectives.begin(&mut network, &mut resources);
        }
        let limit = Time::ZERO + scenario.limit.map_or(LIMIT, |limit| limit.0);
        let stall = StallDetector::new(scenario.stall.map(|stall| stall.0));
        let sampler = scenario.sample.map(|interval| Sampler::new(interval.0, hosts as usize));
        Ok(Self { network, world, stall, sampler, limit, is_quiet: false, is_over: false })
    }

    /// Goes on for `span` of virtual time; whether the run is over.
    pub fn advance(&mut self, span: Span) -> bool {
        let until = (self.network.now + span).min(self.limit);
        // Step by step, so that observations do not depend on how far a call advances.
        while !self.is_over {
            let sampled = self.sampler.as_ref().map_or(Time::NEVER, |sampler| sampler.next);
            let next = until.min(self.stall.next).min(sampled);
            self.is_quiet = self.network.run(&mut self.world, next);
            if let Some(sampler) = &mut self.sampler
                && next == sampled
            {
                let goes_on = self.world.unfinished() > 0;
                let seen = sampler.sample(&mut self.network, &self.world.runner, goes_on);
                self.world.runner.failure = self.world.runner.failure.take().or(seen.err());
            }
            if next == self.stall.next && self.world.runner.failure.is_none() {
                self.world.runner.failure = self.stall.check(&mut self.network, &self.world.runner);
                // Nobody has to wait for timers that nothing will come of.
                self.is_quiet |= self.world.unfinished() == 0 && self.network.is_idle();
            }
            // A call that broke never ends: nobody has to wait for what pauses and timers do then.
            let has_broken = self.world.collectives.as_ref().is_some_and(|all| all.failure.is_some());
            self.is_over =
                self.is_quiet || next >= self.limit || self.world.runner.failure.is_some() || has_broken;
            if next >= until {
                break;
            }
        }
        self.is_over
    }

    /// How packets travel, before the run begins: as values, or as bytes with the same digest.
    pub fn set_wire(&mut self, form: WireForm) {
        self.network.set_wire(form);
    }

    /// Keeps a copy of every frame that passes a link, by its number in [`graph`], until
    /// [`Run::drain_taps`] hands them out.
    pub fn tap(&mut self, link: u32) {
        self.network.tap(link);
    }

    /// What packets look like on links.
    pub fn framing(&self) -> railnet_wire::Framing {
        self.network.framing()
    }

    /// Packets that taps look at from now on, besides pause frames; all of them unless said otherwise.
    pub fn tap_sample(&mut self, sample: PacketSample) {
        self.network.tap_sample(sample);
    }

    /// A connection of which taps look at all packets, whatever the sample has: host and queue pair of both ends.
    pub fn tap_connection(&mut self, ends: Option<[(u32, QueuePairNumber); 2]>) {
        self.network.tap_connection(ends);
    }

    /// Hands out the frames that passed the taps since the last call, in the order of time.
    pub fn drain_taps(&mut self, take: impl FnMut(&Tapped<'_>)) {
        self.network.drain_taps(take);
    }

    /// Whoever watches this run.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.network.sink
    }

    /// What NCCL would say while the ranks of this scenario start, as far as `variables` ask for it (`NCCL_DEBUG`).
    pub fn start_lines(&self, variables: &Variables) -> Vec<String> {
        self.world.collectives.as_ref().map_or_else(Vec::new, |all| all.start_lines(variables))
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.network.now
    }

    /// Hosts of the fabric.
    pub fn hosts(&self) -> u32 {
        self.network.host_count()
    }

    /// Events handled so far.
    pub fn events(&self) -> u64 {
        self.network.events()
    }

    /// What waits in the longest queue at present.
    pub fn longest_queue(&self) -> Bytes {
        self.network.longest_queue()
    }

    /// Flows that have not finished, those not yet started included.
    pub fn unfinished(&self) -> usize {
        self.world.unfinished()
    }

    /// All calls of `[[collective]]` and `[[transfer]]`.
    pub fn calls(&self) -> usize {
        self.world.collectives.as_ref().map_or(0, Collectives::all)
    }

    /// All flows.
    pub fn flows(&self) -> usize {
        self.world.runner.flows.len()
    }

    /// What came of a run that is over ([`Run::complete`]).
    pub fn end(self) -> (Outcome, S) {
        let (outcome, network) = self.take_apart();
        (outcome, network.sink)
    }

    /// As [`Run::end`], where the process is about to end: most of what the run has in memory is left to the system.
    pub fn end_at_exit(self) -> (Outcome, S) {
        let (outcome, network) = self.take_apart();
        (outcome, network.into_sink_at_exit())
    }

    fn take_apart(self) -> (Outcome, Network<S>) {
        let Self { mut network, world: World { runner, collectives, .. }, sampler, .. } = self;
        let series = sampler.map(Sampler::finish);
        (outcome(&mut network, runner, collectives, series), network)
    }

    /// Gives up, and says what is known by now: flows that have finished, calls that are over, what links counted.
    pub fn stop(mut self) -> (Outcome, S) {
        let now = self.network.now;
        let Self { world: World { runner, collectives, .. }, sampler, .. } = self;
        let series = sampler.map(Sampler::finish);
        let mut found = outcome(&mut self.network, runner, collectives, series);
        let (whole, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut found.flows).into_iter().partition(|flow| flow.finished.is_set());
        found.flows = whole;
        found.open_flows = open.into_iter().filter(|flow| flow.started.is_set()).collect();
        found.completion = now;
        (found, self.network.sink)
    }

    /// Runs what is left, and says what came of it all.
    pub fn finish(mut self) -> Result<(Outcome, S), RunError> {
        self.complete()?;
        Ok(self.end())
    }

    /// Runs what is left. Of a run that fails, [`Run::stop`] has what happened until then.
    pub fn complete(&mut self) -> Result<(), RunError> {
        while !self.is_over {
            self.advance(STRIDE);
        }
        if self.is_quiet
            && let (Some(collectives), mut resources) = self.world.parts()
        {
            collectives.inquire(&mut self.network, &mut resources, self.limit);
        }
        let Self { network, world: World { runner, collectives, .. }, limit, is_quiet, .. } = self;
        if let Some(failure) = runner.failure.take() {
            return Err(failure);
        }
        if let Some(failure) = collectives.as_ref().and_then(|all| all.failure.as_ref()) {
            return Err(RunError::Collective(failure.to_string()));
        }
        if runner.unfinished > 0 {
            return Err(unfinished(network, runner, *limit, *is_quiet));
        }
        collectives.as_ref().map_or(Ok(()), unfinished_call)
    }
}

/// Why calls are left over.
fn unfinished_call(collectives: &Collectives) -> Result<(), RunError> {
    if collectives.is_done() {
        return Ok(());
    }
    Err(RunError::Collective(collectives.stalled()))
}

/// What the link of each host carries.
fn host_rates(graph: &FabricGraph) -> Vec<Rate> {
    let mut rates = vec![Rate::ZERO; graph.hosts.len()];
    for link in &graph.links {
        for end in link.ends {
            if let Vertex::Host(host) = end.vertex {
                rates[host as usize] = link.rate;
            }
        }
    }
    rates
}

/// Why flows are left over, where nothing went wrong that anybody told of.
fn unfinished<S: Sink>(network: &mut Network<S>, runner: &Runner, limit: Time, is_quiet: bool) -> RunError {
    let waiting = runner.waiting(network);
    if is_quiet && !waiting.is_empty() {
        let cause =
            Some(blocking_cause(network)).filter(BlockingCause::is_firm).unwrap_or(BlockingCause::Silence);
        return RunError::Stuck(Box::new(StallReport { cause, idle: Span::ZERO, waiting }));
    }
    let first = runner.finished.iter().position(|at| !at.is_set()).unwrap_or(0);
    let Flow { source: from, target: to, .. } = runner.flows[first];
    let (unfinished, flows) = (runner.unfinished, runner.flows.len());
    let limit = limit.since(Time::ZERO);
    RunError::Unfinished { unfinished, flows, limit, first: first as u32, from, to, waiting }
}
