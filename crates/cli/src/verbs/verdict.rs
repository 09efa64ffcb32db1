//! What had to come of it, compared with what came of it: completions, memory, the trouble that was asked for.

use railnet_nic::Status;
use railnet_wire::{Extended, Syndrome};

use super::words;
use super::world::{A, ADD, B, Record};
use super::{Kind, Trouble};

/// The outcome.
#[derive(Debug)]
pub(super) struct Verdict {
    /// How A's work request had to end.
    pub(super) expected: Status,
    /// How it ended.
    pub(super) status: Option<Status>,
    /// In a sentence: what was expected, and whether it came.
    pub(super) outcome: String,
    /// What comparing memory gave.
    pub(super) memory: String,
    /// Bytes that were compared and are equal.
    pub(super) bytes_equal: u64,
    /// What is not as it should be.
    pub(super) problems: Vec<String>,
}

impl Verdict {
    pub(super) fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

pub(super) fn judge(record: &Record) -> Verdict {
    let plan = &record.plan;
    // IBTA C9-88: the key of a request for no bytes is not looked at.
    let touches_memory = plan.bytes > 0;
    let is_refused = matches!(plan.trouble, Trouble::WrongKey | Trouble::NoPermission | Trouble::OutOfRange);
    let expected = if is_refused && touches_memory { Status::RemoteAccess } else { Status::Success };
    let status = record.completions[A].first().map(|completion| completion.status);
    let mut verdict = Verdict {
        expected,
        status,
        outcome: String::new(),
        memory: String::new(),
        bytes_equal: 0,
        problems: Vec::new(),
    };
    check_completions(record, &mut verdict);
    check_trouble(record, &mut verdict);
    if expected == Status::Success {
        compare_moved(record, &mut verdict);
    } else {
        compare_untouched(record, &mut verdict);
    }
    verdict.outcome = outcome(record, &verdict, is_refused && !touches_memory);
    verdict
}

fn outcome(record: &Record, verdict: &Verdict, unchecked: bool) -> String {
    let Some(status) = verdict.status else {
        return "UNEXPECTED: A's work request never completed".to_owned();
    };
    let name = status.verbs_name();
    if status != verdict.expected {
        return format!("UNEXPECTED: {name}; it had to be {}", verdict.expected.verbs_name());
    }
    let why = match record.plan.trouble {
        _ if unchecked => "a request for 0 bytes touches no memory, so B does not look at its key",
        Trouble::None => "the operation is done",
        Trouble::WrongKey => "a key that B never gave opens nothing",
        Trouble::NoPermission => "the region does not grant this access",
        Trouble::OutOfRange => "bytes outside of the region are out of reach",
        Trouble::NoReceive => "done, once B had posted its receive",
        Trouble::Drop(_) => "done, although a packet was lost",
    };
    format!("as expected: {name} ({why})")
}

fn check_completions(record: &Record, verdict: &mut Verdict) {
    let (a, b) = (&record.completions[A], &record.completions[B]);
    if a.len() != 1 {
        verdict.problems.push(format!("A has {} completions, not one", a.len()));
    }
    if verdict.status != Some(verdict.expected) {
        verdict.problems.push("A's completion is not the expected one".to_owned());
    }
    let ends = if verdict.expected == Status::Success { Status::Success } else { Status::Flushed };
    let receives = usize::from(record.plan.kind.consumes_receive());
    if b.len() != receives || b.iter().any(|completion| completion.status != ends) {
        verdict.problems.push(format!(
            "B has {} completions; it had to have {receives} with {}",
            b.len(),
            ends.verbs_name()
        ));
    }
    if record.unpolled != [0, 0] {
        verdict.problems.push("there are completions that nobody waited for".to_owned());
    }
}

/// Whether what should go wrong did go wrong.
fn check_trouble(record: &Record, verdict: &mut Verdict) {
    let lost = record.frames.iter().filter(|frame| frame.lost).count();
    let expected_lost = usize::from(matches!(record.plan.trouble, Trouble::Drop(_)));
    if lost != expected_lost {
        verdict.problems.push(format!("{lost} packets were lost, not {expected_lost}"));
    }
    let is_late = record.plan.trouble == Trouble::NoReceive;
    if is_late != (record.rnr_naks > 0) {
        verdict.problems.push(format!("B said {} times that it has no receive", record.rnr_naks));
    }
    let refused = record.frames.iter().filter(|frame| {
        let headers = words::headers_of(record.plan.framing, &frame.frame);
        matches!(headers.map(|(headers, _)| headers.extended),
            Some(Extended::Aeth(aeth)) if aeth.syndrome == Syndrome::Nak(railnet_wire::NakCode::RemoteAccess))
    });
    if (verdict.expected == Status::RemoteAccess) != (refused.count() > 0) {
        verdict.problems.push("the refusal on the wire does not fit the completion".to_owned());
    }
}

/// The data is where it should be, and nothing else changed.
fn compare_moved(record: &Record, verdict: &mut Verdict) {
    let (from, to) = match record.plan.kind {
        Kind::Read => (B, A),
        Kind::Atomic => return compare_atomic(record, verdict),
        _ => (A, B),
    };
    let bytes = record.plan.bytes;
    let (source, target) = (record.sides[from].range(bytes), record.sides[to].range(bytes));
    let equal = record.after[from][source.clone()]
        .iter()
        .zip(&record.after[to][target.clone()])
        .filter(|(source, target)| source == target)
        .count() as u64;
    verdict.bytes_equal = equal;
    let mut wanted = record.before[to].clone();
    wanted[target].copy_from_slice(&record.before[from][source]);
    let is_clean = wanted == record.after[to] && record.before[from] == record.after[from];
    let (from, to) = (words::host(from), words::host(to));
    if equal == u64::from(bytes) && is_clean {
        verdict.memory = format!(
            "memory compared: {equal} bytes equal at {to} and {from}; no other byte of the regions changed"
        );
    } else {
        verdict.memory =
            format!("memory compared: only {equal} of {bytes} bytes equal at {to}, or others changed");
        verdict.problems.push("memory is not as it should be".to_owned());
    }
}

fn compare_atomic(record: &Record, verdict: &mut Verdict) {
    let number = |memory: &[Vec<u8>; 2], side: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&memory[side][record.sides[side].range(8)]);
        u64::from_le_bytes(bytes)
    };
    let (old, new) = (number(&record.before, B), number(&record.after, B));
    let returned = number(&record.after, A);
    if returned == old && new == old.wrapping_add(ADD) {
        verdict.bytes_equal = 8;
        verdict.memory = format!(
            "memory compared: B held {old} and holds {new} now; A was given the old value {returned}"
        );
    } else {
        verdict.memory = format!(
            "memory compared: B held {old} and holds {new} now, A was given {returned}: that is wrong"
        );
        verdict.problems.push("memory is not as it should be".to_owned());
    }
}

/// A refused operation leaves no trace.
fn compare_untouched(record: &Record, verdict: &mut Verdict) {
    if record.before == record.after {
        verdict.bytes_equal = record.sides[B].region_bytes;
        verdict.memory = format!(
            "memory compared: all {} bytes of B's region are as they were, and A's too",
            record.sides[B].region_bytes
        );
    } else {
        verdict.memory += "memory compared: bytes changed although the operation was refused";
        verdict.problems.push("memory is not as it should be".to_owned());
    }
}
