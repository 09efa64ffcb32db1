//! The rings and the directory under a model checker: every interleaving of two threads, and every value that the orderings of
//! their loads and stores permit, up to a number of preemptions (`RAILNET_MODEL_PREEMPTIONS`).
//!
//! The code is that of [`super::Sender`], [`super::Receiver`] and [`super::directory`]; the memory is [`Model`], with loom's
//! atomics and shorter rings, so that a few slices wrap around all of them. Data in slots is not atomic: a slot that is written
//! while the other end may read it is a race, which loom reports.

#![expect(
    clippy::arc_with_non_send_sync,
    reason = "capacity of the model checker are shared by its threads, which take turns"
)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use loom::cell::Cell;
use loom::sync::atomic::AtomicU64;
use railnet_coll::machine::Mark;
use rustix::event::EventfdFlags;

use super::atomics::{AtomicMemory, AtomicWord};
use super::ring::{self, End, Rings};
use super::{CoreLatency, Peer, Receiver, Sender, are_rings_sound};
use crate::transport::ConnectionName;

const NAME: ConnectionName = ConnectionName { context: 1, from: 0, channel: 0, lane: 0 };

/// An ordering that is left out, to test that the model checker notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Omitted {
    Nothing,
    Release,
    Acquire,
}

#[derive(Debug)]
struct ModelWord {
    word: AtomicU64,
    omitted: Omitted,
}

impl AtomicWord for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(if self.omitted == Omitted::Acquire { Ordering::Relaxed } else { order })
    }

    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, if self.omitted == Omitted::Release { Ordering::Relaxed } else { order });
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.word.swap(value, order)
    }

    fn compare_exchange(
        &self,
        expected: u64,
        value: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let success = if self.omitted == Omitted::Acquire { Ordering::Relaxed } else { success };
        self.word.compare_exchange(expected, value, success, failure)
    }
}

/// A segment with the rings of one connection.
#[derive(Debug)]
struct Model {
    atomics: BTreeMap<usize, ModelWord>,
    /// Data of slots by their offset. The sender is the first to reach each.
    slots: Mutex<BTreeMap<usize, Arc<Cell<u64>>>>,
}

const _: () = assert!(are_rings_sound::<Model>());

impl Model {
    fn new(omitted: Omitted) -> Self {
        let word = |offset| (offset, ModelWord { word: AtomicU64::new(0), omitted });
        let atomics = ring::words_of::<Self>(NAME).map(word).collect();
        Self { atomics, slots: Mutex::default() }
    }

    fn slot(&self, at: *mut u8) -> Arc<Cell<u64>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(at as usize).or_insert_with(|| Arc::new(Cell::new(0))))
    }
}

impl AtomicMemory for Model {
    type AtomicWord = ModelWord;

    const LINES: u64 = 4;
    const SHORT_SLOTS: u64 = 4;
    const LONG_SLOTS: u64 = 2;
    const CREDIT_INTERVAL: u64 = 2;

    fn len(&self) -> usize {
        ring::SEGMENT
    }

    fn word(&self, offset: usize) -> &ModelWord {
        self.atomics.get(&offset).unwrap_or_else(|| panic!("the model has no word at {offset}"))
    }

    fn pointer(&self, offset: usize, _length: usize) -> *mut u8 {
        std::ptr::without_provenance_mut(offset)
    }

    fn yield_now() {
        loom::thread::yield_now();
    }
}

/// Slices that a sender sends, and whether something arrives before each, so that it has a line for itself.
#[derive(Clone, Copy, Debug)]
struct Slices {
    lengths: &'static [usize],
    is_exchange: bool,
}

fn sends(mut sender: Sender<Model>, memory: &Model, slices: Slices) -> Sender<Model> {
    for (number, length) in (1..).zip(slices.lengths) {
        // As a rank machine does, which has DEPTH slots.
        while sender.sent - sender.freed == Model::LONG_SLOTS {
            if sender.freed() == 0 {
                loom::thread::yield_now();
            }
        }
        if slices.is_exchange {
            sender.arrivals.fetch_add(1, Ordering::Relaxed);
        }
        memory.slot(sender.data(*length)).set(number);
        sender.publish(*length, Mark(number));
    }
    sender
}

fn receives(mut receiver: Receiver<Model>, memory: &Model, slices: Slices) -> Receiver<Model> {
    for (number, length) in (1..).zip(slices.lengths) {
        let mark = loop {
            match receiver.arrived() {
                Some(mark) => break mark,
                None => loom::thread::yield_now(),
            }
        };
        assert_eq!(mark, Mark(number));
        assert_eq!(memory.slot(receiver.data(*length)).get(), number, "{length} bytes");
        receiver.release();
    }
    receiver
}

/// The default preemption bound: more take long, and two find most faults.
const PREEMPTIONS: usize = 2;

fn preemptions() -> usize {
    std::env::var("RAILNET_MODEL_PREEMPTIONS")
        .map_or(PREEMPTIONS, |text| text.parse().expect("RAILNET_MODEL_PREEMPTIONS is a number"))
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions());
    builder.max_branches = 100_000;
    builder.check(model);
}

fn peer(memory: &Arc<Model>) -> Peer<Model> {
    let doorbell =
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    Peer { segment: Arc::clone(memory), doorbell: Arc::new(doorbell), process: None, reads: false }
}

fn sender(rings: Rings<Model>, memory: &Arc<Model>) -> Sender<Model> {
    let mut sender = Sender::new(rings, peer(memory), Arc::default());
    sender.core_latency = CoreLatency::unmeasured();
    sender
}

/// One end in each of two threads.
fn check_rings(slices: Slices, omitted: Omitted) {
    check(move || {
        let memory = Arc::new(Model::new(omitted));
        let open = |end| Rings::open(&memory, NAME, end, 2).expect("the segment is empty");
        let sender = sender(open(End::Sender), &memory);
        let receiver = Receiver::new(open(End::Receiver), peer(&memory), Arc::default());
        let theirs = Arc::clone(&memory);
        let other = loom::thread::spawn(move || receives(receiver, &theirs, slices));
        let sender = sends(sender, &memory, slices);
        // Both ends are dropped in this thread: closing has a model of its own.
        drop((sender, other.join()));
    });
}

/// Wrapping the lines; two slices in a line; closed lines; wrapping the short slots; the long ones; all together.
const ALL: [Slices; 6] = [
    Slices { lengths: &[8; 6], is_exchange: true },
    Slices { lengths: &[8; 5], is_exchange: false },
    Slices { lengths: &[16, 8, 40, 8, 16], is_exchange: false },
    Slices { lengths: &[1024; 6], is_exchange: false },
    Slices { lengths: &[8192; 4], is_exchange: false },
    Slices { lengths: &[8, 8192, 1024, 8, 8192], is_exchange: false },
];
/// Longer sequences, where more than the default preemptions are asked for.
const LONGER: [Slices; 2] = [
    Slices { lengths: &[8; 8], is_exchange: false },
    Slices { lengths: &[8, 8192, 8, 1024, 8, 8192], is_exchange: false },
];

#[test]
fn no_slice_is_read_before_it_is_there_or_overwritten_before_it_is_taken() {
    let longer = if preemptions() > PREEMPTIONS { &LONGER[..] } else { &[] };
    for slices in ALL.iter().chain(longer) {
        check_rings(*slices, Omitted::Nothing);
    }
}

#[test]
fn ends_that_open_at_the_same_time_have_the_same_rings() {
    let slices = Slices { lengths: &[8, 8192], is_exchange: false };
    check(move || {
        let memory = Arc::new(Model::new(Omitted::Nothing));
        let theirs = Arc::clone(&memory);
        let other = loom::thread::spawn(move || {
            let rings = Rings::open(&theirs, NAME, End::Receiver, 2).expect("there is room");
            receives(Receiver::new(rings, peer(&theirs), Arc::default()), &theirs, slices)
        });
        let rings = Rings::open(&memory, NAME, End::Sender, 2).expect("there is room");
        let sender = sends(sender(rings, &memory), &memory, slices);
        drop((sender, other.join()));
    });
}

/// Without one of the orderings the same model ends with a race: it would not be seen if the model saw none.
#[test]
fn a_missing_ordering_is_found() {
    for omitted in [Omitted::Release, Omitted::Acquire] {
        for slices in ALL {
            let found = catch_unwind(AssertUnwindSafe(|| check_rings(slices, omitted)));
            let why = found.expect_err("no race was found");
            let text = why.downcast_ref::<String>().map_or("", String::as_str);
            assert!(
                text.contains("Causality violation") || text.contains("assertion"),
                "{slices:?} without {omitted:?}: {text}"
            );
        }
    }
}
