//! The replay of one conversation, and the search for requests that the recorded responder never saw.
//!
//! A capture shows a packet that its receiver may have lost before it was looked at. The answers tell: a NAK that asks
//! for a sequence number shows that the request with it was not seen. So a request is left out when the NIC, given it,
//! answers otherwise than was recorded, and answers the same without it. The set of requests left out is one from which
//! none can be put back. Opcode, sequence number, verdict and message number decide; every other field is compared
//! afterwards and excuses nothing.

use std::collections::BTreeSet;

use railnet_wire::{Extended, GRH_LENGTH, Headers, NakCode, Syndrome};

use super::ReplayError;
use super::compare::{Answer, Difference, compare, describe};
use super::notes::Noted;
use super::recording::{Recorded, Recording, Spoken};
use super::report::{Conversation, Finding, Pair};
use super::setup::{Ending, Setup, exerciser_pattern, syndrome};
use super::world::World;
use crate::completion::{Completion, CompletionKind, Status};
use crate::config::Behaviour;

/// How many sets of left-out requests are tried before the search gives up.
const ATTEMPTS_MAX: usize = 1000;
/// The most requests that may be left out.
const LEFT_OUT_MAX: usize = 64;
/// How far before a contradiction its cause is looked for, in requests.
const LOOK_BACK: usize = 64;

/// How many pairs of answers may be looked at to find which belong together.
const ALIGN_MAX: usize = 1 << 22;

/// One conversation to hold.
struct Case<'a> {
    requests: Vec<&'a Recorded>,
    answers: Vec<&'a Recorded>,
    setup: &'a Setup,
    behaviour: Behaviour,
}

/// A recorded answer, and one of ours with the request that it answers.
type SideBySide<'a, 'g> = (Option<&'a Recorded>, Option<&'g (usize, Answer)>);

/// What came of one attempt.
struct Attempt<'a> {
    world: World<'a>,
    /// What was answered, and to which request.
    given: Vec<(usize, Answer)>,
    /// Answers that agreed before the first that did not.
    agreed: usize,
    /// The request at which the answers first did not agree.
    contradiction: Option<usize>,
}

/// Replays a conversation.
pub(super) fn hold(
    recording: &Recording,
    spoken: &Spoken,
    setup: &Setup,
    behaviour: Behaviour,
) -> Result<Conversation, ReplayError> {
    let packet = |index: usize| &recording.packets[index];
    let case = Case {
        requests: spoken.requests.iter().map(|&index| packet(index)).collect(),
        answers: recording.answers(spoken, setup.peer).into_iter().map(packet).collect(),
        setup,
        behaviour,
    };
    let left_out = case.find_left_out()?;
    let mut attempt = case.attempt(&left_out, false)?;
    let mut conversation = Conversation {
        responder: spoken.responder,
        requester: spoken.requester,
        queue_pair: spoken.number,
        peer: setup.peer,
        service: spoken.service,
        requests: case.requests.len() - left_out.len(),
        left_out: left_out.iter().map(|&index| case.requests[index].number).collect(),
        answers: case.answers.len(),
        equal: 0,
        completions: 0,
        other_checks: 0,
        freedoms: setup.freedoms.clone(),
        findings: Vec::new(),
        pairs: Vec::new(),
    };
    conversation.freedoms.add_all(&attempt.world.freedoms);
    case.compare_answers(&attempt, &mut conversation);
    if let Some(ending) = &setup.ending {
        compare_ending(&mut attempt.world, ending, &mut conversation)?;
    }
    Ok(conversation)
}

impl<'a> Case<'a> {
    fn attempt(&self, left_out: &[usize], stop: bool) -> Result<Attempt<'a>, ReplayError> {
        let mut attempt = Attempt {
            world: World::new(self.setup, self.behaviour)?,
            given: Vec::new(),
            agreed: 0,
            contradiction: None,
        };
        for (index, request) in self.requests.iter().enumerate() {
            if left_out.contains(&index) {
                continue;
            }
            let next = attempt.given.len().min(self.answers.len());
            for answer in attempt.world.offer(request, &self.answers[next..])? {
                // An answer comes after what it answers.
                let agrees = self
                    .answers
                    .get(attempt.given.len())
                    .is_some_and(|then| then.number > request.number && means_the_same(then, &answer));
                attempt.given.push((index, answer));
                if attempt.contradiction.is_none() {
                    if agrees {
                        attempt.agreed += 1;
                    } else {
                        attempt.contradiction = Some(index);
                    }
                }
            }
            if stop && attempt.contradiction.is_some() {
                return Ok(attempt);
            }
        }
        if attempt.given.len() < self.answers.len() && attempt.contradiction.is_none() {
            attempt.contradiction = Some(self.requests.len() - 1);
        }
        Ok(attempt)
    }

    /// The requests to leave out. Where no set explains everything, the one that explains most.
    fn find_left_out(&self) -> Result<Vec<usize>, ReplayError> {
        let mut best: (usize, Vec<usize>) = (0, Vec::new());
        let mut seen = BTreeSet::new();
        let mut waiting = vec![Vec::new()];
        for _ in 0..ATTEMPTS_MAX {
            let Some(left_out) = waiting.pop() else {
                break;
            };
            let attempt = self.attempt(&left_out, true)?;
            let Some(at) = attempt.contradiction else {
                return self.put_back(left_out);
            };
            let is_smaller = left_out.len() < best.1.len();
            if attempt.agreed > best.0 || attempt.agreed == best.0 && is_smaller {
                best = (attempt.agreed, left_out.clone());
            }
            if left_out.len() == LEFT_OUT_MAX {
                continue;
            }
            // The likeliest last: it is taken up first.
            let earlier = at.saturating_sub(LOOK_BACK)..=at;
            for candidate in earlier.chain(self.asked_for(&attempt, &left_out, at)) {
                if left_out.contains(&candidate) {
                    continue;
                }
                let mut more = left_out.clone();
                more.push(candidate);
                more.sort_unstable();
                if seen.insert(more.clone()) {
                    waiting.push(more);
                } else if let Some(place) = waiting.iter().position(|set| *set == more) {
                    let set = waiting.remove(place);
                    waiting.push(set);
                }
            }
        }
        Ok(best.1)
    }

    /// The request that the recorded answer asks for again, if that is what it does: it was not seen.
    fn asked_for(&self, attempt: &Attempt<'_>, left_out: &[usize], at: usize) -> Option<usize> {
        let answer = self.answers.get(attempt.agreed)?;
        if syndrome(answer) != Some(Syndrome::Nak(NakCode::Sequence)) {
            return None;
        }
        let psn = answer.headers.bth.psn;
        (0..=at).rev().find(|index| !left_out.contains(index) && self.requests[*index].headers.bth.psn == psn)
    }

    /// Puts back what need not be left out.
    fn put_back(&self, mut left_out: Vec<usize>) -> Result<Vec<usize>, ReplayError> {
        let mut place = 0;
        while place < left_out.len() {
            let mut fewer = left_out.clone();
            fewer.remove(place);
            if self.attempt(&fewer, true)?.contradiction.is_none() {
                left_out = fewer;
            } else {
                place += 1;
            }
        }
        Ok(left_out)
    }

    fn compare_answers(&self, attempt: &Attempt<'_>, conversation: &mut Conversation) {
        for (then, now) in self.align(&attempt.given) {
            let mut pair = Pair {
                request: now.map(|(index, _)| self.requests[*index].number),
                recorded: then
                    .map(|then| (then.number, describe(&then.network, &then.headers, then.payload.len()))),
                ours: now.map(|(_, now)| describe(&now.network, &now.headers, now.payload.len())),
                differences: Vec::new(),
            };
            if let (Some(then), Some((_, now))) = (then, now) {
                let compared = compare(then, now, &self.behaviour);
                for freedom in compared.freedoms {
                    conversation.freedoms.add(freedom);
                }
                pair.differences = compared.differences;
            }
            if pair.is_equal() {
                conversation.equal += 1;
            } else {
                conversation.findings.push(Finding::Answer(pair.clone()));
            }
            conversation.pairs.push(pair);
        }
    }

    /// Recorded answers and ours side by side, so that as many as possible say the same: one that is missing does not
    /// make all after it differ.
    fn align<'g>(&self, given: &'g [(usize, Answer)]) -> Vec<SideBySide<'a, 'g>> {
        let agree = |then: usize, now: usize| means_the_same(self.answers[then], &given[now].1);
        let least = self.answers.len().min(given.len());
        let equal = (0..least).take_while(|&place| agree(place, place)).count();
        let (rows, columns) = (self.answers.len() - equal, given.len() - equal);
        let fits = rows.saturating_mul(columns) <= ALIGN_MAX;
        // How many can agree from a place on: the longest common subsequence, from the end.
        let mut table = vec![0u32; if fits { (rows + 1) * (columns + 1) } else { 0 }];
        let at = |row: usize, column: usize| row * (columns + 1) + column;
        if fits {
            for row in (0..rows).rev() {
                for column in (0..columns).rev() {
                    table[at(row, column)] = match agree(equal + row, equal + column) {
                        true => table[at(row + 1, column + 1)] + 1,
                        false => table[at(row + 1, column)].max(table[at(row, column + 1)]),
                    };
                }
            }
        }
        let mut pairs: Vec<_> =
            (0..equal).map(|place| (Some(self.answers[place]), given.get(place))).collect();
        let (mut row, mut column) = (0, 0);
        while row < rows || column < columns {
            let (then, now) = (self.answers.get(equal + row).copied(), given.get(equal + column));
            let both = row < rows && column < columns;
            // Two that differ stand for each other unless that costs an agreement further on.
            let skips = fits && both && table[at(row, column)] > table[at(row + 1, column + 1)];
            let (take_then, take_now) = match both {
                true if skips && !agree(equal + row, equal + column) => {
                    let drops_recorded = table[at(row + 1, column)] >= table[at(row, column + 1)];
                    (drops_recorded, !drops_recorded)
                }
                _ => (row < rows, column < columns),
            };
            pairs.push((then.filter(|_| take_then), now.filter(|_| take_now)));
            row += usize::from(take_then);
            column += usize::from(take_now);
        }
        pairs
    }
}

/// Whether two answers say the same thing.
fn means_the_same(then: &Recorded, now: &Answer) -> bool {
    let aeth = |headers: &Headers| match headers.extended {
        Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) => Some(aeth),
        _ => None,
    };
    let (one, other) = (&then.headers, &now.headers);
    (one.bth.opcode, one.bth.psn, aeth(one)) == (other.bth.opcode, other.bth.psn, aeth(other))
}

/// Completions, state and memory at the end, as far as the notes tell them.
fn compare_ending(
    world: &mut World<'_>,
    ending: &Ending,
    conversation: &mut Conversation,
) -> Result<(), ReplayError> {
    let completions = world.completions();
    match ending {
        Ending::Exerciser { completions: noted, addresses, state, first_bytes, target } => {
            compare_completions(noted, &completions, conversation);
            conversation.check("final state", state.to_string(), (world.state()? as u8).to_string());
            let hex = |value: u64| format!("{value:016x}");
            conversation.check("first eight bytes of memory", hex(*first_bytes), hex(world.first_bytes()));
            for area in addresses {
                let found = world.received().get(..area.len()).unwrap_or_default();
                conversation.check("address area (GRH)", format!("{area:02x?}"), format!("{found:02x?}"));
            }
            compare_data(world, &completions, *target, conversation);
        }
        Ending::Pingpong { messages, length } => {
            let count = |completion: &&Completion| {
                (completion.status, completion.length) == (Status::Success, *length)
            };
            let ours = completions.iter().filter(count).count();
            conversation.check("messages received", messages.to_string(), ours.to_string());
        }
    }
    Ok(())
}

fn compare_completions(noted: &[Noted], completions: &[Completion], conversation: &mut Conversation) {
    let then: Vec<String> = noted
        .iter()
        .map(|noted| {
            let (work, status, kind, length) = (noted.work, noted.status, noted.kind, noted.length);
            let (flags, immediate, source) = (noted.flags, noted.immediate, noted.source);
            line(work, status, [kind.into(), length, flags, immediate, source])
        })
        .collect();
    let ours: Vec<String> = completions.iter().map(completion_text).collect();
    conversation.completions = then.len();
    for place in 0..then.len().max(ours.len()) {
        let text = |list: &[String]| list.get(place).cloned().unwrap_or_else(|| "none".to_owned());
        conversation.compare("completion", text(&then), text(&ours));
    }
}

/// What `rnx` received and what was written to it is the pattern that its peer sends.
fn compare_data(
    world: &World<'_>,
    completions: &[Completion],
    (target, size): (u64, u32),
    conversation: &mut Conversation,
) {
    let mut check = |what, bytes: &[u8]| {
        let sent = exerciser_pattern(true, bytes.len());
        let at = sent.iter().zip(bytes).position(|(sent, found)| sent != found);
        let text = |bytes: &[u8]| match at {
            Some(at) => format!("{:#04x} at byte {at}", bytes[at]),
            None => "all".to_owned(),
        };
        conversation.check(what, text(&sent), text(bytes));
    };
    let is_receive = |completion: &&Completion| {
        completion.status == Status::Success && completion.kind == CompletionKind::Receive
    };
    if let Some(last) = completions.iter().rfind(is_receive) {
        let is_datagram = last.source.value() != 0;
        let skip = if is_datagram { GRH_LENGTH } else { 0 };
        check("received bytes", world.received().get(skip..last.length as usize).unwrap_or_default());
    }
    if let Some(bytes) = world.written_at(target, size as usize) {
        check("written bytes", bytes);
    }
}

fn completion_text(completion: &Completion) -> String {
    const WITH_GRH: u32 = 1;
    const WITH_IMMEDIATE: u32 = 2;
    const WITH_INVALIDATE: u32 = 8;
    let mut flags = u32::from(completion.has_grh) * WITH_GRH;
    flags |= u32::from(completion.immediate.is_some()) * WITH_IMMEDIATE;
    flags |= u32::from(completion.invalidated.is_some()) * WITH_INVALIDATE;
    // The verbs structure has one place for both.
    let word = completion.immediate.or(completion.invalidated).unwrap_or(0);
    let (kind, source) = (completion.kind as u8, completion.source.value());
    line(completion.work, completion.status as u8, [kind.into(), completion.length, flags, word, source])
}

/// With an error only the work and the status mean anything.
fn line(work: u64, status: u8, rest: [u32; 5]) -> String {
    if status != Status::Success as u8 {
        return format!("work {work} status {status}");
    }
    let [kind, length, flags, immediate, source] = rest;
    format!(
        "work {work} status {status} opcode {kind} length {length} flags {flags:#x} immediate {immediate:#x} \
         source queue pair {source:#x}"
    )
}

impl Conversation {
    /// Compares a fact besides answers and completions.
    fn check(&mut self, field: &'static str, recorded: String, ours: String) {
        self.other_checks += 1;
        self.compare(field, recorded, ours);
    }

    fn compare(&mut self, field: &'static str, recorded: String, ours: String) {
        if recorded != ours {
            self.findings.push(Finding::Ending(Difference { field, recorded, ours }));
        }
    }
}
