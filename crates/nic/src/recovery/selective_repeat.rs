//! Selective repeat: one lost packet costs one packet.
//!
//! The responder keeps packets that come early, as [`Reorder`] does, and its answers tell which. From that the requester
//! learns which ones are missing, and sends those again and no others.
//!
//! Missing is not lost: where a network spreads a connection over several paths, packets overtake each other all the time.
//! A packet is taken for lost when one that was *sent* after it has been acknowledged, for as long as the paths may
//! differ. The order of sending decides, not the sequence number, so that a packet sent again and lost again is found in
//! the same way (as in RACK-TLP, RFC 8985, there by the clock). What nothing was sent after is left to the timeout, which
//! sends one packet: its acknowledgement shows what else was lost.
//!
//! The answers to READs are not covered: when one is missing, all READs and atomics from there on are asked for again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use railnet_core::{Psn, Span, Time};
use railnet_wire::SelectiveAck;

use super::{Gap, LossRecovery, Reorder};

/// The responder's part: early packets are kept, and told of in the answers.
#[derive(Clone, Debug)]
pub struct SelectiveRepeat {
    kept: Reorder,
}

impl SelectiveRepeat {
    /// A buffer for packets that are up to `window` ahead.
    pub fn new(window: u16) -> Self {
        Self { kept: Reorder::new(window) }
    }
}

impl LossRecovery for SelectiveRepeat {
    fn on_gap(&mut self, expected: Psn, arrived: Psn) -> Gap {
        self.kept.on_gap(expected, arrived)
    }

    #[inline]
    fn on_expected(&mut self) {
        self.kept.on_expected();
    }

    fn on_not_ready(&mut self) {
        self.kept.on_not_ready();
    }

    fn on_nak(&mut self, missing: Psn) -> Psn {
        self.kept.on_nak(missing)
    }

    fn on_timeout(&mut self, unacknowledged: Psn) -> Psn {
        self.kept.on_timeout(unacknowledged)
    }
}

/// A sequence number that does not wrap, valid as long as its [`Scoreboard`].
pub(crate) type Serial = u64;

/// When a packet was sent: first transmissions in the order of their numbers, and what was sent again in between.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Moment {
    /// The newest first transmission by then.
    serial: Serial,
    /// 0 for that one itself; what was sent again after it counts on.
    again: u32,
}

impl Moment {
    const fn first(serial: Serial) -> Self {
        Self { serial, again: 0 }
    }
}

/// A packet that was sent again.
#[derive(Clone, Copy, Debug)]
struct Resent {
    moment: Moment,
    /// No answer to it can come before: one that does is to an earlier transmission.
    answered_after: Time,
    /// A timeout sent it.
    is_probe: bool,
}

impl Resent {
    /// When the packet was sent that an answer now is to.
    fn answered(self, serial: Serial, now: Time) -> Moment {
        if now >= self.answered_after { self.moment } else { Moment::first(serial) }
    }
}

/// Where serial numbers begin: far enough from zero that a work which began earlier still has one.
const ORIGIN: Serial = 1 << 32;

/// Marks that wait to become due, at most about this many in the time that paths may differ by.
const MARKS: u64 = 8;

/// What a requester knows of its packets in flight beyond the oldest in doubt. It exists while something is missing.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    /// The oldest sequence number in doubt, and its serial number.
    unacked: Psn,
    oldest: Serial,
    /// What the peer has told to have arrived, from `oldest` on.
    arrived: Bits,
    /// Taken for lost, and not sent again yet.
    lost: BTreeSet<Serial>,
    /// Sent again, when last, and not known to have arrived.
    resent: BTreeMap<Serial, Resent>,
    /// The same in the order of sending; entries that `resent` does not confirm are void.
    resent_order: VecDeque<(Moment, Serial)>,
    resends: u32,
    /// Sent again for want of an answer: an answer is to that, for none came to what was sent before.
    overdue: Option<Serial>,
    /// The packet that a timeout sent is answered: when it was sent, and until when answers to others would show that the
    /// timeout was spurious. After that it counts like any other.
    probe: Option<(Moment, Time)>,
    /// The latest sending that is known to have arrived.
    newest: Moment,
    /// What `newest` was, and since when, where that is not long enough ago to count.
    marks: VecDeque<(Moment, Time)>,
    /// What was sent before this and is missing is lost.
    due: Moment,
    /// First transmissions before this one have been looked at.
    checked: Serial,
    /// Losses of packets before this one belong to a time of trouble that congestion control knows of.
    episode: Serial,
    /// All requests before this one were carried out, although answers to READs among them are missing.
    answered: Serial,
}

impl Scoreboard {
    pub(crate) fn new(unacked: Psn) -> Self {
        let none = Moment::first(ORIGIN - 1);
        Self {
            unacked,
            oldest: ORIGIN,
            arrived: Bits::new(ORIGIN),
            lost: BTreeSet::new(),
            resent: BTreeMap::new(),
            resent_order: VecDeque::new(),
            resends: 0,
            overdue: None,
            probe: None,
            newest: none,
            marks: VecDeque::new(),
            due: none,
            checked: ORIGIN,
            episode: ORIGIN,
            answered: ORIGIN,
        }
    }

    /// The serial number of one in doubt, or of one that was sent after all of those.
    pub(crate) fn serial(&self, psn: Psn) -> Serial {
        self.oldest + Serial::from(psn.value().wrapping_sub(self.unacked.value()) & Psn::MASK)
    }

    /// The serial number of the first packet of a work that has packets in doubt.
    pub(crate) fn serial_of_begun(&self, first: Psn) -> Serial {
        self.oldest - Serial::from(self.unacked.value().wrapping_sub(first.value()) & Psn::MASK)
    }

    pub(crate) fn psn(&self, serial: Serial) -> Psn {
        self.unacked.plus((serial - self.oldest) as u32)
    }

    pub(crate) fn oldest(&self) -> Serial {
        self.oldest
    }

    /// Nothing is known that a requester without a scoreboard would not know.
    pub(crate) fn is_over(&self) -> bool {
        let is_empty =
            self.arrived.count == 0 && self.lost.is_empty() && self.resent.is_empty() && self.probe.is_none();
        is_empty && !self.has_overtaken() && self.oldest >= self.episode.max(self.answered)
    }

    /// Packets between the oldest in doubt and the newest that are not in the network: arrived, or lost.
    pub(crate) fn absent(&self) -> u32 {
        self.arrived.count + self.lost.len() as u32
    }

    pub(crate) fn has_arrived(&self, psn: Psn) -> bool {
        self.arrived.contains(self.serial(psn))
    }

    /// Everything before `unacked` is answered. Tells how many of that were known to have arrived.
    pub(crate) fn advance(&mut self, unacked: Psn, now: Time, spurious_wait: Span) -> u32 {
        let to = self.serial(unacked);
        let known = self.arrived.forget_before(to);
        let mut first_transmissions = (to - self.oldest).saturating_sub(Serial::from(known));
        let mut probe = None;
        while let Some(entry) = self.resent.first_entry()
            && *entry.key() < to
        {
            let (serial, resent) = entry.remove_entry();
            first_transmissions = first_transmissions.saturating_sub(1);
            if resent.is_probe && spurious_wait != Span::ZERO {
                probe = Some((resent.moment, now + spurious_wait));
            } else {
                self.newest = self.newest.max(resent.answered(serial, now));
            }
        }
        self.take_evidence(probe, first_transmissions > 0);
        self.lost = self.lost.split_off(&to);
        (self.unacked, self.oldest) = (unacked, to);
        self.newest = self.newest.max(Moment::first(to - 1));
        self.checked = self.checked.max(to);
        known
    }

    /// Takes in what the peer tells of packets before `sent`. Tells how many of them are news.
    pub(crate) fn note(&mut self, told: &SelectiveAck, sent: Psn, now: Time, spurious_wait: Span) -> u32 {
        let (end, mut bits, before) = (self.serial(sent), told.bits(), self.arrived.count);
        while bits != 0 {
            let psn = told.first.plus(bits.trailing_zeros());
            bits &= bits - 1;
            let serial = self.serial(psn);
            // The rest was answered before: the answer came late.
            if serial < end && self.arrived.insert(serial) {
                self.lost.remove(&serial);
                match self.resent.remove(&serial) {
                    Some(resent) if resent.is_probe && spurious_wait != Span::ZERO => {
                        self.take_evidence(Some((resent.moment, now + spurious_wait)), false);
                    }
                    Some(resent) => self.newest = self.newest.max(resent.answered(serial, now)),
                    None => {
                        self.newest = self.newest.max(Moment::first(serial));
                        self.take_evidence(None, true);
                    }
                }
            }
        }
        self.arrived.count - before
    }

    /// What an answer shows of a timeout. The answer to the packet that it sent may cover others that had arrived before.
    /// Where a later answer covers first transmissions, these arrive still, and the timeout was spurious.
    fn take_evidence(&mut self, probe: Option<(Moment, Time)>, has_first_transmissions: bool) {
        if probe.is_some() || has_first_transmissions {
            self.probe = probe;
        }
    }

    /// The peer has dropped this one after all.
    pub(crate) fn forget(&mut self, psn: Psn) {
        let serial = self.serial(psn);
        self.arrived.remove(serial);
    }

    /// All requests up to `psn` were carried out. What is missing are answers.
    pub(crate) fn note_answered(&mut self, psn: Psn) {
        self.answered = self.answered.max(self.serial(psn) + 1);
    }

    /// The newest that is known to be carried out, where that is in doubt no more than for want of answers before it.
    pub(crate) fn answered(&self) -> Option<Psn> {
        (self.answered > self.oldest).then(|| self.psn(self.answered - 1))
    }

    /// Whether an answer to the request `evidence` tells something new about a missing answer to `missing`: not when
    /// that was asked for again after `evidence` was sent.
    pub(crate) fn is_news(&self, missing: Psn, evidence: Psn) -> bool {
        let (serial, evidence) = (self.serial(missing), Moment::first(self.serial(evidence)));
        !self.lost.contains(&serial) && self.resent.get(&serial).is_none_or(|resent| resent.moment < evidence)
    }

    /// Time goes on: what arrived `reordering` ago shows by now that what was sent before it and is missing is lost.
    pub(crate) fn ripen(&mut self, now: Time, reordering: Span) {
        if let Some((moment, _)) = self.probe.take_if(|(_, until)| *until <= now) {
            self.newest = self.newest.max(moment);
        }
        if reordering == Span::ZERO {
            self.due = self.newest;
            return;
        }
        let newest = self.newest;
        if self.marks.back().map_or(self.due, |mark| mark.0) < newest {
            // Marks that are close together are one: the time is then that of the later.
            let grain = Span::from_ps(reordering.as_ps() / MARKS);
            let is_close = self.marks.len() > 1 && now < self.marks[self.marks.len() - 2].1 + grain;
            if is_close {
                self.marks.pop_back();
            }
            self.marks.push_back((newest, now));
        }
        while let Some(&(moment, at)) = self.marks.front()
            && at + reordering <= now
        {
            self.due = moment;
            self.marks.pop_front();
        }
    }

    /// Whether something arrived that was sent after the oldest in doubt was first sent.
    fn has_overtaken(&self) -> bool {
        self.newest > Moment::first(self.oldest)
    }

    /// When [`Scoreboard::ripen`] will have something to say, where anything is missing that it could be about.
    pub(crate) fn next_due(&self, reordering: Span) -> Option<Time> {
        let mark = self.marks.front().filter(|_| self.has_overtaken()).map(|mark| mark.1 + reordering);
        mark.into_iter().chain(self.probe.map(|(_, until)| until)).min()
    }

    /// Takes for lost what was sent again, long enough ago, and is missing still. Tells which.
    pub(crate) fn lose_resent(&mut self, found: &mut Vec<Serial>) {
        while let Some(&(moment, serial)) = self.resent_order.front()
            && moment < self.due
        {
            self.resent_order.pop_front();
            if self.resent.get(&serial).is_some_and(|resent| resent.moment == moment) {
                self.lose(serial);
                found.push(serial);
            }
        }
    }

    /// The first transmissions that it is time to look at, if any of them is missing.
    pub(crate) fn take_unchecked(&mut self) -> Option<Range<Serial>> {
        let end = self.due.serial + Serial::from(self.due.again > 0);
        let range = self.checked..end;
        if range.is_empty() {
            return None;
        }
        self.checked = end;
        (!self.arrived.has_all(range.clone())).then_some(range)
    }

    /// Takes a first transmission for lost, unless it has arrived or been dealt with. Tells whether it did.
    pub(crate) fn lose_first(&mut self, serial: Serial) -> bool {
        let has_arrived = serial < self.oldest.max(self.answered) || self.arrived.contains(serial);
        !has_arrived && !self.resent.contains_key(&serial) && self.lost.insert(serial)
    }

    /// Takes a packet for lost, whatever was known of it.
    pub(crate) fn lose(&mut self, serial: Serial) {
        self.arrived.remove(serial);
        self.resent.remove(&serial);
        self.lost.insert(serial);
    }

    /// Takes the oldest packet in doubt for lost, because nothing was heard for long.
    pub(crate) fn lose_oldest(&mut self) {
        self.lose(self.oldest);
        self.overdue = Some(self.oldest);
    }

    /// Whether it is taken for lost and not yet sent again.
    pub(crate) fn is_lost(&self, psn: Psn) -> bool {
        self.lost.contains(&self.serial(psn))
    }

    /// The next packet to send again.
    #[inline]
    pub(crate) fn next_lost(&self) -> Option<Psn> {
        self.lost.first().map(|&serial| self.psn(serial))
    }

    /// A packet is sent again; `sent` is one past the newest that was sent, and no answer comes before `answered_after`.
    pub(crate) fn note_resent(&mut self, psn: Psn, sent: Psn, answered_after: Time) {
        let serial = self.serial(psn);
        self.lost.remove(&serial);
        self.resends += 1;
        let moment = Moment { serial: self.serial(sent) - 1, again: self.resends };
        let is_probe = self.overdue == Some(serial);
        let answered_after = if is_probe { Time::ZERO } else { answered_after };
        self.overdue = self.overdue.filter(|&overdue| overdue != serial);
        self.resent.insert(serial, Resent { moment, answered_after, is_probe });
        self.resent_order.push_back((moment, serial));
    }

    /// A loss was found. Tells whether it is the first since all that was in flight at the last one is answered.
    pub(crate) fn begin_episode(&mut self, sent: Psn) -> bool {
        let is_first = self.oldest >= self.episode;
        if is_first {
            self.episode = self.serial(sent);
        }
        is_first
    }
}

/// A set of serial numbers that are not far apart.
#[derive(Debug)]
struct Bits {
    /// The number of the first word: serial number / 64.
    first: u64,
    words: VecDeque<u64>,
    count: u32,
}

impl Bits {
    fn new(from: Serial) -> Self {
        Self { first: from / 64, words: VecDeque::new(), count: 0 }
    }

    fn word(&self, serial: Serial) -> u64 {
        let place = (serial / 64).checked_sub(self.first);
        place.and_then(|place| self.words.get(place as usize)).copied().unwrap_or(0)
    }

    fn contains(&self, serial: Serial) -> bool {
        self.word(serial) >> (serial % 64) & 1 != 0
    }

    /// Puts one in that is not before the first word. Tells whether it is new.
    fn insert(&mut self, serial: Serial) -> bool {
        let place = (serial / 64 - self.first) as usize;
        if place >= self.words.len() {
            self.words.resize(place + 1, 0);
        }
        let bit = 1 << (serial % 64);
        let is_new = self.words[place] & bit == 0;
        self.words[place] |= bit;
        self.count += u32::from(is_new);
        is_new
    }

    fn remove(&mut self, serial: Serial) {
        if self.contains(serial) {
            self.words[(serial / 64 - self.first) as usize] &= !(1 << (serial % 64));
            self.count -= 1;
        }
    }

    /// Takes out all before `end`, and tells how many there were.
    fn forget_before(&mut self, end: Serial) -> u32 {
        let before = self.count;
        while self.first < end / 64 {
            let Some(word) = self.words.pop_front() else {
                self.first = end / 64;
                break;
            };
            self.count -= word.count_ones();
            self.first += 1;
        }
        if let Some(word) = self.words.front_mut() {
            let gone = *word & !(u64::MAX << (end % 64));
            *word &= !gone;
            self.count -= gone.count_ones();
        }
        before - self.count
    }

    fn has_all(&self, range: Range<Serial>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let length = (64 - at % 64).min(range.end - at);
            let mask = (u64::MAX >> (64 - length)) << (at % 64);
            if self.word(at) & mask != mask {
                return false;
            }
            at += length;
        }
        true
    }
}

#[cfg(test)]
mod tests;
