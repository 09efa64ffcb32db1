//! A network for other simulators: they say when which transfer starts, and learn when it ended.

use railnet_core::event::NoSink;
use railnet_core::limits::{FLOW_BYTES_MAX, FLOWS_MAX};
use railnet_core::{Span, Time};
use thiserror::Error;

use super::Run;
use super::error::RunError;
use crate::scenario::{Fidelity, Scenario, ScenarioError, graph};
use crate::traffic::{Flow, flows_if_any};

/// A fabric, packet by packet, in which transfers start while it runs.
///
/// Whoever drives it owns the order of things: [`Coupled::advance`] stops at the moment at which a transfer ends, so that what
/// follows from that may start at this very moment. Traffic of the scenario runs beside it, and is reported as well.
///
/// ```
/// use railnet_core::Time;
/// use railnet_sim::{Coupled, Scenario};
///
/// let scenario = Scenario::parse("[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n")?;
/// let mut network = Coupled::new(&scenario)?;
/// let first = network.start(0, 1, 1 << 20, Time::ZERO)?;
/// let ended = network.advance(Time::NEVER)?;
/// assert_eq!(ended[0].transfer, first);
/// // The next step begins when the first has ended.
/// network.start(1, 2, 1 << 20, network.now())?;
/// assert!(network.advance(Time::NEVER)?[0].finished > ended[0].finished);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Coupled {
    run: Run<NoSink>,
    /// Senders and receivers there are.
    ends: u32,
    now: Time,
    /// The priority of packets without a DSCP.
    priority: u8,
}

/// A transfer that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// Its number, as [`Coupled::start`] gave it. Those of the scenario's own traffic come first, from 0.
    pub transfer: u32,
    /// The sender.
    pub source: u32,
    /// The receiver.
    pub target: u32,
    /// How many bytes.
    pub bytes: u64,
    /// When it started.
    pub started: Time,
    /// When its last byte was there.
    pub finished: Time,
}

/// Why a transfer does not start.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CouplingError {
    /// There is no such sender or receiver.
    #[error("there is no host {host}: the network has {ends}, from 0 on")]
    Host {
        /// What was named.
        host: u32,
        /// How many there are.
        ends: u32,
    },
    /// It crosses no network.
    #[error("a transfer from host {0} to itself crosses no network")]
    Loop(u32),
    /// It is too large, or nothing.
    #[error("a transfer has 1 to {FLOW_BYTES_MAX} bytes, not {0}")]
    Bytes(u64),
    /// It would start before the present.
    #[error("a transfer cannot start at {at}: the network is at {now} already")]
    Past {
        /// When it should have started.
        at: Span,
        /// The present.
        now: Span,
    },
    /// There are too many.
    #[error("a network carries at most {FLOWS_MAX} transfers in a run")]
    TooMany,
}

impl Coupled {
    /// Makes the fabric. Jobs and collectives are run by [`Run`] and [`super::run_jobs`], not beside transfers.
    pub fn new(scenario: &Scenario) -> Result<Self, ScenarioError> {
        if scenario.has_jobs() || !scenario.collective.is_empty() || !scenario.transfer.is_empty() {
            let message = "a network for another simulator runs no jobs, collectives or transfers of its own: leave out [model], \
                           [[collective]] and [[transfer]]";
            return Err(ScenarioError::new(message));
        }
        if scenario.fidelity != Fidelity::Packet {
            let message = "a network for another simulator sends packets: fidelity = \"packet\"";
            return Err(ScenarioError::new(message).at("fidelity"));
        }
        let graph = graph(scenario)?;
        let ends = scenario.ends(&graph)?.hosts.len() as u32;
        let mut run = Run::with_flows(scenario, NoSink, flows_if_any)?;
        run.world.runner.news = Some(Vec::new());
        Ok(Self { run, ends, now: Time::ZERO, priority: scenario.priorities()[0] })
    }

    /// Senders and receivers: hosts of the fabric, or GPUs where the scenario has servers.
    pub const fn ends(&self) -> u32 {
        self.ends
    }

    /// The present.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Transfers that have not ended, those not yet started included.
    pub fn unfinished(&self) -> usize {
        self.run.unfinished()
    }

    /// Events handled so far.
    pub fn events(&self) -> u64 {
        self.run.events()
    }

    /// Has a transfer start at `at`, now or later. Returns its number.
    pub fn start(&mut self, source: u32, target: u32, bytes: u64, at: Time) -> Result<u32, CouplingError> {
        for host in [source, target] {
            if host >= self.ends {
                return Err(CouplingError::Host { host, ends: self.ends });
            }
        }
        if source == target {
            return Err(CouplingError::Loop(source));
        }
        if bytes == 0 || bytes > FLOW_BYTES_MAX {
            return Err(CouplingError::Bytes(bytes));
        }
        if at < self.now {
            return Err(CouplingError::Past { at: at.since(Time::ZERO), now: self.now.since(Time::ZERO) });
        }
        let Run { network, world, is_quiet, .. } = &mut self.run;
        if world.runner.flows.len() >= FLOWS_MAX {
            return Err(CouplingError::TooMany);
        }
        let flow = Flow { source, target, bytes, start: at, dscp: 0, priority: self.priority, after: None };
        *is_quiet = false;
        Ok(world.runner.add(network, flow))
    }

    /// Goes on until transfers end, and says which: all that end at the same moment. At `until` it stops, also where none has.
    pub fn advance(&mut self, until: Time) -> Result<Vec<Finished>, RunError> {
        loop {
            let ended = self.ended();
            if !ended.is_empty() {
                return Ok(ended);
            }
            let Run { network, world, stall, is_quiet, .. } = &mut self.run;
            if let Some(failure) = world.runner.failure.take() {
                return Err(failure);
            }
            let is_over = *is_quiet || world.unfinished() == 0;
            if is_over || self.now >= until {
                // Time passes also where nothing happens.
                self.now = if until == Time::NEVER { self.now } else { self.now.max(until) };
                return Ok(Vec::new());
            }
            let next = until.min(stall.next);
            let has_none = |runner: &super::runner::Runner| {
                runner.failure.is_none() && runner.news.as_ref().is_none_or(Vec::is_empty)
            };
            *is_quiet = network.run_while(world, next, |world| has_none(&world.runner));
            self.now = self.now.max(network.now);
            if next == stall.next && network.now >= next && world.runner.failure.is_none() {
                world.runner.failure = stall.check(network, &world.runner);
            }
        }
    }

    /// Transfers that ended since the last time, and all others that end at that moment.
    fn ended(&mut self) -> Vec<Finished> {
        let runner = &mut self.run.world.runner;
        if runner.news.as_ref().is_none_or(Vec::is_empty) {
            return Vec::new();
        }
        // More may end at this moment: in order of time these come before anything else.
        let (network, now) = (&mut self.run.network, self.now);
        self.run.is_quiet = network.run_while(&mut self.run.world, now, |_| true);
        let runner = &mut self.run.world.runner;
        let news = runner.news.as_mut().map(std::mem::take).unwrap_or_default();
        let finished = news.into_iter().map(|transfer| {
            let index = transfer as usize;
            let Flow { source, target, bytes, .. } = runner.flows[index];
            let (started, finished) = (runner.started[index], runner.finished[index]);
            Finished { transfer, source, target, bytes, started, finished }
        });
        finished.collect()
    }
}
