//! The storm: NICs with random work on a wire that does its worst, watched by a reference model.
//!
//! A seed stands for everything: two to four NICs and how they behave, queue pairs and their attributes, what is
//! posted when, what the wire does, and what goes wrong on purpose. The model knows nothing of the NIC's insides: it
//! knows what was posted, takes completions and events as an application would, and compares all memory at the end.
//! It checks that
//!
//! - every byte, or every ghost tag, is where it should be and no other was touched;
//! - messages arrive once, whole and in order; atomics are carried out once;
//! - completions come in order, with the right status, none lost, none twice;
//! - everything ends: a run that does not is a failure, and names the queue pair that waits.
//!
//! The same seed gives the same digest, whether packets travel as values or as bytes.
//!
//! ```
//! use railnet_nic::testing::{WireForm, storm};
//!
//! let summary = storm::run(7, WireForm::Values)?;
//! assert_eq!(summary.digest, storm::run(7, WireForm::Bytes)?.digest);
//! # Ok::<(), Box<storm::Violation>>(())
//! ```

mod generate;
mod image;
mod ledger;
mod plan;
mod run;
mod settle;
mod violation;
mod watch;
mod world;

use railnet_core::{RunDigest, Span, Time};

use super::{Injected, WireForm};
use run::Run;
use world::World;

pub use plan::Scenario;
pub use violation::Violation;

/// What a run of one seed came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// What went wrong on purpose.
    pub scenario: Scenario,
    /// The digest of all events.
    pub digest: RunDigest,
    /// NICs that took part.
    pub nics: u64,
    /// Queue pairs that took part.
    pub queue_pairs: u64,
    /// Work requests posted to send queues.
    pub operations: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Sequence NAKs.
    pub sequence_naks: u64,
    /// Receiver-not-ready NAKs.
    pub rnr_naks: u64,
    /// Congestion notifications.
    pub notifications: u64,
    /// What the wire did to packets.
    pub injected: Injected,
    /// How long it took, in the run's own time.
    pub virtual_time: Span,
    /// Events, as the digest saw them.
    pub events: u64,
}

/// A falsification, to see that the model notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// One byte of a NIC's data is changed at the end.
    FlipByte {
        /// Which NIC, modulo their number.
        nic: usize,
        /// Which byte, modulo their number.
        place: u64,
    },
    /// A completion is thrown away.
    DropCompletion {
        /// Which one, in the order of polling.
        number: u64,
    },
    /// A completion comes twice.
    RepeatCompletion {
        /// Which one, in the order of polling.
        number: u64,
    },
    /// A completion tells a byte too many.
    LengthenCompletion {
        /// Which one, in the order of polling.
        number: u64,
    },
    /// The wire falls silent for good.
    Silence {
        /// After so many packets.
        after: u64,
    },
}

/// Runs a seed.
pub fn run(seed: u64, form: WireForm) -> Result<Summary, Box<Violation>> {
    run_with(seed, form, None)
}

/// Runs a seed with something falsified: the model must find out.
pub fn run_sabotaged(seed: u64, form: WireForm, sabotage: Sabotage) -> Result<Summary, Box<Violation>> {
    run_with(seed, form, Some(sabotage))
}

fn run_with(seed: u64, form: WireForm, sabotage: Option<Sabotage>) -> Result<Summary, Box<Violation>> {
    let plan = generate::plan(seed);
    let world = World::build(&plan, form).map_err(|error| {
        let mut violation = Violation::new("a verb was refused while connecting").found(error);
        violation.seed = seed;
        violation
    })?;
    let mut run = Run::new(&plan, world, sabotage);
    let result = run.drive().and_then(|()| {
        if let Some(Sabotage::FlipByte { nic, place }) = sabotage {
            settle::flip(&mut run, nic, place);
        }
        run.settle()
    });
    match result {
        Ok(()) => Ok(summarize(&run)),
        Err(mut violation) => {
            violation.seed = seed;
            violation.at = run.world.lab.now;
            if let Some(end) = violation.end {
                violation.nic = Some(plan.ends[end].nic);
                violation.queue_pair = Some(run.world.ends[end].queue_pair.value());
            }
            Err(violation)
        }
    }
}

fn summarize(run: &Run<'_>) -> Summary {
    let lab = &run.world.lab;
    let sum = |count: fn(&crate::Counters) -> u64| lab.nics.iter().map(|nic| count(nic.counters())).sum();
    Summary {
        scenario: run.plan.scenario,
        digest: lab.sink.digest.finish(),
        nics: lab.nics.len() as u64,
        queue_pairs: run.plan.ends.len() as u64,
        operations: run.ledger.ends.iter().map(|books| books.posted as u64).sum(),
        packets: sum(|counters| counters.sent),
        resent: sum(|counters| counters.resent),
        timeouts: sum(|counters| counters.timeouts),
        sequence_naks: sum(|counters| counters.sequence_naks),
        rnr_naks: sum(|counters| counters.rnr_naks),
        notifications: sum(|counters| counters.notifications_sent),
        injected: lab.injected,
        virtual_time: lab.now.since(Time::ZERO),
        events: lab.sink.events,
    }
}
