//! The storm of fabrics: random networks with random traffic and faults, and everything about them checked.
//!
//! A seed stands for everything: the shape of the network, rates and delays, switches and NICs and how they behave, who
//! sends what to whom, and what breaks when. It is checked that
//!
//! - every message ends: with its bytes, or ghost tags, in place and nothing else touched, or with an error that the
//!   faults allow;
//! - what went into each link and switch is what came out of it, was lost, was dropped or is still held, while it runs
//!   and at its end;
//! - switches with flow control drop nothing as long as pause frames get through;
//! - in the end no packet is left, buffers and credit are released, every pause is over;
//! - a deadlock is there only where paths allow cycles, and then the cycle is found and named;
//! - events come in the order of time;
//! - packets as values, in the order of time, and packets as bytes, epoch by epoch, give one digest, and
//!   so does the same seed again.
//!
//! ```
//! use railnet_fabric::testing::storm;
//!
//! let summary = storm::run(7)?;
//! assert_eq!(summary, storm::run(7)?);
//! # Ok::<(), storm::Violation>(())
//! ```

mod balance;
mod generate;
mod observer;
mod plan;
mod run;
mod settle;
mod violation;

use railnet_core::{Digest, RunDigest, Span, Time};
use railnet_nic::Counters;
use railnet_nic::frame::WireForm;

use plan::Plan;
use run::Run;

pub use violation::Violation;

/// What a run of one seed came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The shape of the network, as scenarios name it.
    pub kind: &'static str,
    /// The digest of all events.
    pub digest: RunDigest,
    /// Hosts.
    pub hosts: u64,
    /// Switches.
    pub switches: u64,
    /// Messages posted.
    pub messages: u64,
    /// Messages that failed, as they may.
    pub failed: u64,
    /// Senders held each other up for good, as they may.
    pub is_locked: bool,
    /// Packets that NICs sent.
    pub packets: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Sequence NAKs.
    pub sequence_naks: u64,
    /// Congestion notifications.
    pub notifications: u64,
    /// Packets marked by switches.
    pub marked: u64,
    /// Packets dropped for lack of memory.
    pub dropped: u64,
    /// Packets dropped for lack of a route.
    pub unroutable: u64,
    /// Packets lost on links.
    pub lost: u64,
    /// Packets corrupted on links.
    pub corrupted: u64,
    /// Times that a port was paused.
    pub pauses: u64,
    /// Times that routes changed.
    pub rerouted: u64,
    /// How long it took, in the run's own time.
    pub virtual_time: Span,
    /// Events, details included.
    pub events: u64,
}

/// A falsification, to see that the checks notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A byte of what arrived is another.
    ChangeByte,
    /// A completion is thrown away.
    HideCompletion {
        /// Which one, counted from 1.
        number: u64,
    },
    /// A packet vanishes from a queue.
    LosePacketSilently,
    /// A switch accounts buffer space that no packet uses.
    ForgetMemory {
        /// Bytes that stay accounted.
        bytes: u64,
    },
    /// A packet stays in the arena.
    KeepPacket,
    /// A port stays paused.
    KeepPause,
}

/// One seed in so many is run once more in the same form.
const REPEATED: u64 = 8;

/// Runs a seed with packets as values and as bytes, and some seeds once more: all must pass and come to the same.
pub fn run(seed: u64) -> Result<Summary, Violation> {
    let plan = generate::plan(seed);
    let (summary, digest) = run_plan(&plan, WireForm::Values, None)?;
    let mut others = vec![("bytes", WireForm::Bytes)];
    if seed.is_multiple_of(REPEATED) {
        others.push(("the same again", WireForm::Values));
    }
    for (name, form) in others {
        let (other, other_digest) = run_plan(&plan, form, None)?;
        if other != summary {
            let differs = digest.first_difference(&other_digest);
            let component = differs.map_or("no component".to_owned(), |id| id.to_string());
            let what =
                format!("values and {name} come to different runs: {component} is the first that differs");
            let violation = Violation::new(what).expected(summary.digest).found(other.digest);
            return Err(completed(violation, &plan, Time::ZERO + summary.virtual_time));
        }
    }
    Ok(summary)
}

/// Runs a seed with packets in one form.
pub fn run_form(seed: u64, form: WireForm) -> Result<Summary, Violation> {
    run_plan(&generate::plan(seed), form, None).map(|(summary, _)| summary)
}

/// Runs a seed with something falsified: the checks must find out.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Result<Summary, Violation> {
    run_plan(&generate::plan(seed), WireForm::Values, Some(sabotage)).map(|(summary, _)| summary)
}

/// The scenario of a seed, in words.
pub fn describe(seed: u64) -> String {
    generate::plan(seed).to_string()
}

fn run_plan(plan: &Plan, form: WireForm, sabotage: Option<Sabotage>) -> Result<(Summary, Digest), Violation> {
    let mut run = Run::new(plan, form, sabotage);
    let result = run.drive().and_then(|()| {
        falsify(&mut run, sabotage);
        run.settle()
    });
    match result {
        Ok(verdict) => Ok((summarize(&run, verdict), run.world.network.sink.digest)),
        Err(violation) => Err(completed(violation, plan, run.world.network.now)),
    }
}

fn completed(mut violation: Violation, plan: &Plan, at: Time) -> Violation {
    violation.seed = plan.options.seed;
    violation.at = at;
    violation.scenario = plan.to_string();
    violation
}

/// Falsifies the end of a run.
fn falsify(run: &mut Run<'_>, sabotage: Option<Sabotage>) {
    let network = &mut run.world.network;
    match sabotage {
        Some(Sabotage::ChangeByte) => {
            settle::falsify(run);
        }
        Some(Sabotage::KeepPacket) => {
            let metadata = network.fabric.packets.metadata.first().copied();
            metadata.map(|metadata| network.fabric.packets.take(metadata));
        }
        Some(Sabotage::KeepPause) => network.fabric.channels[0].paused = 1,
        _ => {}
    }
}

fn summarize(run: &Run<'_>, verdict: settle::Verdict) -> Summary {
    let network = &run.world.network;
    let watch = &network.sink;
    let sum = |count: fn(&Counters) -> u64| -> u64 {
        network.endpoints.hosts.iter().map(|host| count(host.nic.counters())).sum()
    };
    let ports = |count: fn(&observer::PortLedger) -> u64| -> u64 { watch.ports.values().map(count).sum() };
    Summary {
        kind: run.plan.kind.name(),
        digest: watch.digest.finish(),
        hosts: u64::from(network.host_count()),
        switches: network.fabric.switches.len() as u64,
        messages: run.plan.messages.len() as u64,
        failed: verdict.failed,
        is_locked: verdict.is_locked,
        packets: sum(|counters| counters.sent),
        resent: sum(|counters| counters.resent),
        timeouts: sum(|counters| counters.timeouts),
        sequence_naks: sum(|counters| counters.sequence_naks),
        notifications: sum(|counters| counters.notifications_sent),
        marked: ports(|books| books.marked),
        dropped: watch.no_memory,
        unroutable: watch.no_route,
        lost: ports(|books| books.lost.packets + books.pauses_lost.packets),
        corrupted: watch.corrupted,
        pauses: ports(|books| books.times_paused),
        rerouted: watch.rerouted,
        virtual_time: network.now.since(Time::ZERO),
        events: watch.events,
    }
}
