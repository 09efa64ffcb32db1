//! A call of a group, and what came of one that was carried out alone.

use railnet_core::{Span, Time};
use railnet_fabric::BusCounters;

use crate::run::collective::driven::Planned;

/// What makes two calls the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    kind: u32,
    schedule: u32,
    /// When each rank came, after the first.
    entered: Vec<Span>,
}

/// What came of a call that was carried out alone.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) key: Key,
    first: Time,
    /// When each rank was through, after the first had come.
    pub(super) ends: Vec<Option<Span>>,
    /// Ranks that are not through.
    pub(super) left: u32,
    /// What its bus resources had counted before; once it is over, what they did for it.
    pub(super) bus: Vec<BusCounters>,
    /// Something else came in its way.
    pub(super) is_void: bool,
    /// Calls that are like it, by group and number, while it is under way.
    pub(super) followers: Vec<(u32, u64)>,
}

impl Recorded {
    pub(super) fn new(key: Key, first: Time, bus: Vec<BusCounters>) -> Self {
        let ranks = key.entered.len();
        let (ends, left) = (vec![None; ranks], ranks as u32);
        Self { key, first, ends, left, bus, is_void: false, followers: Vec::new() }
    }

    /// A rank is through.
    pub(super) fn end(&mut self, place: u32, at: Time) {
        self.ends[place as usize] = Some(at.since(self.first));
        self.left -= 1;
    }

    /// All are through, and this is what its bus resources have counted by now.
    pub(super) fn count(&mut self, now: &[BusCounters]) {
        for (resource, now) in self.bus.iter_mut().zip(now) {
            resource.slices = now.slices - resource.slices;
            resource.bytes = now.bytes - resource.bytes;
            resource.busy = now.busy - resource.busy;
        }
    }

    /// When the last one was through.
    pub(super) fn last(&self) -> Span {
        self.ends.iter().flatten().copied().max().unwrap_or_default()
    }
}

/// Adds what a bus resource did.
pub(super) fn add(resource: &mut BusCounters, more: &BusCounters) {
    resource.slices += more.slices;
    resource.bytes += more.bytes;
    resource.busy += more.busy;
}

/// How a call is dealt with.
#[derive(Debug)]
pub(super) enum Phase {
    /// Not all have come.
    Held,
    /// It is carried out; what comes of it is recorded there.
    Real(Option<usize>),
    /// It is like one that was carried out; whether the end of each rank is planned.
    Hit(usize, Vec<bool>),
}

/// A call of a group, from the first rank that comes to the last that is through.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) planned: Planned,
    /// It uses nothing before.
    pub(super) active: Time,
    /// Who came when, in order.
    pub(super) entries: Vec<(u32, Time)>,
    /// Ranks whose end was reported.
    pub(super) reported: Vec<bool>,
    /// Who is through with it as it is carried out.
    pub(super) done: Vec<bool>,
    pub(super) phase: Phase,
    /// It is carried out because of the call before it, and may yet be recorded.
    pub(super) may_record: bool,
    /// What its bus resources had counted when that call was over.
    pub(super) before: Option<Vec<BusCounters>>,
    /// Where it was taken: nothing would be left of it from then on.
    pub(super) quiet: Time,
}

impl Session {
    /// Whether a rank has come.
    pub(super) fn has(&self, place: u32) -> bool {
        self.entries.iter().any(|(other, _)| *other == place)
    }

    pub(super) fn is_hit(&self) -> bool {
        matches!(self.phase, Phase::Hit(..))
    }

    /// Whether it was taken from this record.
    pub(super) fn follows(&self, record: usize) -> bool {
        matches!(self.phase, Phase::Hit(of, _) if of == record)
    }

    /// It is like this one. What was planned already stays so: times are the same.
    pub(super) fn follow(&mut self, record: usize) {
        let planned = match &mut self.phase {
            Phase::Hit(_, planned) => std::mem::take(planned),
            _ => vec![false; self.reported.len()],
        };
        self.phase = Phase::Hit(record, planned);
    }

    /// What makes it the same as another, now that all have come.
    pub(super) fn key(&self, kind: u32) -> Key {
        let first = self.entries[0].1;
        let mut entered = vec![Span::ZERO; self.entries.len()];
        for (place, at) in &self.entries {
            entered[*place as usize] = at.since(first);
        }
        Key { kind, schedule: self.planned.number, entered }
    }
}
