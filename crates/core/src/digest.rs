//! The digest of a run: one number that two runs share only if the same things happened in them at the same times.
//!
//! Every component has a digest of its own, of its events in their order; the digest of the run is made of these in the
//! order of ids. So it does not matter in which order two components' events of the same moment were handled, and two
//! runs that differ can be asked which component went its own way first. Headers, lengths, tags and times are covered;
//! bytes of payload never are.
//!
//! ```
//! use railnet_core::event::{Event, Sink};
//! use railnet_core::{Component, Digest, QueuePairNumber, Time};
//!
//! let event = Event::StateChanged { queue_pair: QueuePairNumber::new(17), from: 0, to: 1 };
//! let (mut one, mut two) = (Digest::new(), Digest::new());
//! one.record(Time::from_ps(80), Component(3), &event);
//! two.record(Time::from_ps(81), Component(3), &event);
//! assert_ne!(one.finish(), two.finish());
//! assert_eq!(one.first_difference(&two), Some(Component(3)));
//! ```
//!
//! **What is hashed, and how, is part of every recorded digest.** A change to [`Fold`], to the numbers of events, checks
//! and reasons below, or to the fields of an event changes all of them; a test pins one so that nobody does it unaware.

use std::cmp::Ordering;
use std::fmt;

use crate::event::{Check, Event, PacketId, RetryReason, SentPacket, Sink, SwitchDropReason};
use crate::id::{Component, Port, QueuePairNumber};
use crate::random::mix;
use crate::time::Time;

/// A hash of 64-bit words: two lanes that multiply and shift, each a one-to-one function of its state and the word, and
/// a final mix of both. Two multiplications a word; not for adversaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fold {
    left: u64,
    right: u64,
    words: u64,
}

impl Fold {
    /// The hash of nothing yet.
    pub const fn new() -> Self {
        // Digits of pi, and of the square root of two: numbers with nothing up their sleeves.
        Self { left: 0x243f_6a88_85a3_08d3, right: 0x6a09_e667_f3bc_c908, words: 0 }
    }

    /// Take a word in.
    #[inline]
    pub const fn push(&mut self, word: u64) {
        // The multipliers of SplitMix64 and of Knuth's linear congruential generator: odd, so no state is lost.
        self.left = (self.left ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.left ^= self.left >> 32;
        self.right = self.right.rotate_left(29).wrapping_add(word).wrapping_mul(0x5851_f42d_4c95_7f2d);
        self.words = self.words.wrapping_add(1);
    }

    /// Take bytes in: their number, then eight at a time.
    pub const fn push_bytes(&mut self, bytes: &[u8]) {
        self.push(bytes.len() as u64);
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = if rest.len() < 8 { rest.len() } else { 8 };
            let (now, later) = rest.split_at(count);
            let mut word = [0; 8];
            word.split_at_mut(count).0.copy_from_slice(now);
            self.push(u64::from_le_bytes(word));
            rest = later;
        }
    }

    /// The hash of what was taken in, in 128 bits.
    pub const fn finish_wide(&self) -> u128 {
        let (high, low) = (self.finish(), mix(self.right ^ mix(self.left.wrapping_add(self.words))));
        (high as u128) << 64 | low as u128
    }

    /// The hash of what was taken in, in 64 bits: the upper half of the wide one.
    pub const fn finish(&self) -> u64 {
        mix(self.left ^ mix(self.right ^ self.words))
    }
}

impl Default for Fold {
    fn default() -> Self {
        Self::new()
    }
}

/// The digest of a run, or of one component of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunDigest(u128);

impl RunDigest {
    /// A digest that was written down as a number.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// All of it as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

/// The first half, in groups that can be read out loud: `7f3a 91c2 0d1e 55aa`. With `{:#}` all of it.
impl fmt::Display for RunDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let shown = if f.alternate() { 32 } else { 16 };
        let groups: Vec<&str> = (0..shown).step_by(4).map(|at| &digits[at..at + 4]).collect();
        f.pad(&groups.join(" "))
    }
}

impl fmt::Debug for RunDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The sink that computes the digest of a run.
#[derive(Clone, Default, Debug)]
pub struct Digest {
    /// Of components with low ids, by id: a run numbers its own from 0, and every event looks for one.
    low: Vec<Fold>,
    /// Of all others, in the order of ids.
    high: Vec<(Component, Fold)>,
}

/// Ids below this one are low.
const LOW_IDS: u32 = 1 << 20;

impl Digest {
    /// The digest of a run in which nothing has happened.
    pub fn new() -> Self {
        Self::default()
    }

    /// The digest of what has happened so far.
    pub fn finish(&self) -> RunDigest {
        let mut run = Fold::new();
        for (component, digest) in self.components() {
            run.push(u64::from(component.0));
            run.push((digest.0 >> 64) as u64);
            run.push(digest.0 as u64);
        }
        RunDigest(run.finish_wide())
    }

    /// Takes over what happened in some components of another digest of the same run, instead of what is known of them here.
    pub fn absorb(&mut self, other: &Self, is_theirs: impl Fn(Component) -> bool) {
        self.low.resize(self.low.len().max(other.low.len()), Fold::new());
        for (index, ours) in self.low.iter_mut().enumerate() {
            if is_theirs(Component(index as u32)) {
                *ours = other.low.get(index).copied().unwrap_or_default();
            }
        }
        self.high.retain(|(component, _)| !is_theirs(*component));
        self.high.extend(other.high.iter().filter(|(component, _)| is_theirs(*component)));
        self.high.sort_unstable_by_key(|(component, _)| *component);
    }

    /// The components in which something happened, and the digest of each, in the order of ids.
    pub fn components(&self) -> impl Iterator<Item = (Component, RunDigest)> {
        let low = (0..).map(Component).zip(self.low.iter().copied());
        let all = low.chain(self.high.iter().copied()).filter(|(_, fold)| fold.words > 0);
        all.map(|(component, fold)| (component, RunDigest(fold.finish_wide())))
    }

    /// The component with the lowest id that did something else in the other run, if there is one.
    pub fn first_difference(&self, other: &Self) -> Option<Component> {
        let (mut ours, mut theirs) = (self.components().peekable(), other.components().peekable());
        loop {
            let (our, their) = match (ours.peek(), theirs.peek()) {
                (Some(our), Some(their)) => (*our, *their),
                (Some(only), None) | (None, Some(only)) => return Some(only.0),
                (None, None) => return None,
            };
            match our.0.cmp(&their.0) {
                Ordering::Less => return Some(our.0),
                Ordering::Greater => return Some(their.0),
                Ordering::Equal if our.1 != their.1 => return Some(our.0),
                Ordering::Equal => {
                    ours.next();
                    theirs.next();
                }
            }
        }
    }

    #[inline]
    fn fold_of(&mut self, source: Component) -> &mut Fold {
        if source.0 >= LOW_IDS {
            return self.high_fold_of(source);
        }
        let place = source.0 as usize;
        if place >= self.low.len() {
            self.low.resize(place + 1, Fold::new());
        }
        &mut self.low[place]
    }

    #[cold]
    fn high_fold_of(&mut self, source: Component) -> &mut Fold {
        let found = self.high.binary_search_by_key(&source, |(component, _)| *component);
        let place = found.unwrap_or_else(|place| {
            self.high.insert(place, (source, Fold::new()));
            place
        });
        &mut self.high[place].1
    }
}

impl Sink for Digest {
    /// Details follow from the rest and would cost more than all of it. They are left out even when another sink beside
    /// this one has asked for them, so that the digest does not depend on who else watches.
    const DETAIL: bool = false;
    const IN_ORDER: bool = false;

    #[allow(
        clippy::inline_always,
        reason = "where an event is made, which one is known: a few multiplications are left"
    )]
    #[inline(always)]
    fn record(&mut self, at: Time, source: Component, event: &Event) {
        if event.is_detail() {
            return;
        }
        let fold = self.fold_of(source);
        fold.push(at.as_ps());
        push_event(fold, event);
    }
}

/// Hash an event: a word with its number and its smallest fields, then the others. The numbers are written out, so that
/// adding or moving a variant changes nothing that was recorded.
#[allow(clippy::inline_always, reason = "see Digest::record")]
#[inline(always)]
fn push_event(fold: &mut Fold, event: &Event) {
    match *event {
        Event::WorkPosted { queue_pair, work, length, label } => {
            fold.push(head(1, 0, queue_pair));
            fold.push(work);
            fold.push(u64::from(length));
            fold.push(label.0);
        }
        Event::ReceivePosted { queue_pair, work, length } => {
            let is_shared = u8::from(queue_pair.is_none());
            fold.push(head(2, is_shared, queue_pair.unwrap_or_default()));
            fold.push(work);
            fold.push(u64::from(length));
        }
        Event::WorkStarted { queue_pair, work, first, packets } => {
            fold.push(head(3, 0, queue_pair));
            fold.push(work);
            fold.push(pair(first.value(), packets));
        }
        Event::PacketSent { packet, target, length, fingerprint, label } => {
            let PacketId { queue_pair, psn, transmission, opcode } = packet;
            fold.push(head(4, opcode, queue_pair));
            fold.push(pair(psn.value(), u32::from(transmission)));
            fold.push(pair(target.value(), length));
            fold.push(fingerprint);
            fold.push(label.0);
        }
        Event::PacketReceived { queue_pair, psn, opcode, length } => {
            fold.push(head(5, opcode, queue_pair));
            fold.push(pair(psn.value(), length));
        }
        Event::PacketDropped { queue_pair, psn, opcode, reason } => {
            fold.push(head(6, opcode, queue_pair));
            fold.push(u64::from(psn.value()));
            fold.push_bytes(reason.as_bytes());
        }
        Event::Checked { queue_pair, psn, check, passed } => {
            fold.push(head(7, number_of_check(check), queue_pair));
            fold.push(pair(psn.value(), u32::from(passed)));
        }
        Event::DataPlaced { queue_pair, psn, address, length } => {
            fold.push(head(8, 0, queue_pair));
            fold.push(pair(psn.value(), length));
            fold.push(address);
        }
        Event::Completed { queue_pair, queue, work, status } => {
            fold.push(head(9, status, queue_pair));
            fold.push(u64::from(queue));
            fold.push(work);
        }
        Event::StateChanged { queue_pair, from, to } => {
            fold.push(head(10, 0, queue_pair));
            fold.push(pair(u32::from(from), u32::from(to)));
        }
        Event::Retransmitting { queue_pair, from, reason } => {
            fold.push(head(11, number_of_reason(reason), queue_pair));
            fold.push(u64::from(from.value()));
        }
        Event::RateChanged { queue_pair, rate } => {
            fold.push(head(12, 0, queue_pair));
            fold.push(rate.as_bps());
        }
        Event::DataGathered { queue_pair, psn, address, length } => {
            fold.push(head(13, 0, queue_pair));
            fold.push(pair(psn.value(), length));
            fold.push(address);
        }
        Event::ReceiverWait { queue_pair, psn, until } => {
            fold.push(head(14, 0, queue_pair));
            fold.push(u64::from(psn.value()));
            fold.push(until.as_ps());
        }
        // What waits behind it follows from what starts after it.
        Event::PacketStarted { packet, port, bytes, waiting: _ } => {
            push_packet(fold, 15, 0, packet);
            fold.push(pair(port.0, bytes));
        }
        Event::Marked { packet, port, depth } => {
            push_packet(fold, 16, 0, Some(packet));
            fold.push(u64::from(port.0));
            fold.push(depth);
        }
        Event::DroppedBySwitch { packet, port, bytes, reason } => {
            push_packet(fold, 17, number_of_drop(reason), Some(packet));
            fold.push(pair(port.0, bytes));
        }
        Event::PacketLost { packet, port, bytes } => {
            push_packet(fold, 18, 0, packet);
            fold.push(pair(port.0, bytes));
        }
        Event::PacketCorrupted { packet, port } => {
            push_packet(fold, 19, 0, packet);
            fold.push(u64::from(port.0));
        }
        Event::Paused { port, priority } => fold.push(at_port(20, priority, port)),
        Event::Resumed { port, priority } => fold.push(at_port(21, priority, port)),
        Event::LinkDown { link } => fold.push(numbered(22, link)),
        Event::LinkUp { link } => fold.push(numbered(23, link)),
        Event::Rerouted { dead } => fold.push(numbered(24, dead)),
        // Details all of them, of which no digest ever was made: the work and the packets that they cause are hashed.
        Event::Answered { .. }
        | Event::CreditAwaited { .. }
        | Event::CreditFound { .. }
        | Event::CallMade { .. }
        | Event::CallOver { .. }
        | Event::SliceSent { .. }
        | Event::SliceArrived { .. } => {}
    }
}

/// Hash an event of a packet on its way: all that identifies the packet, or that it is a pause frame.
fn push_packet(fold: &mut Fold, number: u16, byte: u8, packet: Option<SentPacket>) {
    let Some(SentPacket { sender, packet }) = packet else {
        fold.push(head(number, byte, QueuePairNumber::default()) | 1 << 40);
        return;
    };
    let PacketId { queue_pair, psn, transmission, opcode } = packet;
    fold.push(head(number, byte, queue_pair));
    fold.push(pair(psn.value(), u32::from(transmission) << 8 | u32::from(opcode)));
    fold.push(u64::from(sender.0));
}

/// The first word of an event of a port: its number, one byte that belongs to it, and the port.
const fn at_port(number: u16, byte: u8, port: Port) -> u64 {
    numbered(number, port.0) | (byte as u64) << 32
}

/// The first word of an event about something that has a number of its own.
const fn numbered(number: u16, which: u32) -> u64 {
    (number as u64) << 48 | which as u64
}

/// The first word of an event: its number, one byte that belongs to it, and its queue pair.
const fn head(number: u16, byte: u8, queue_pair: QueuePairNumber) -> u64 {
    (number as u64) << 48 | (byte as u64) << 32 | queue_pair.value() as u64
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn number_of_check(check: Check) -> u8 {
    match check {
        Check::QueuePair => 1,
        Check::Sequence => 2,
        Check::OpcodeOrder => 3,
        Check::QueuePairAccess => 4,
        Check::Resources => 5,
        Check::Length => 6,
        Check::Key => 7,
        Check::Permission => 8,
        Check::Range => 9,
        Check::Alignment => 10,
    }
}

const fn number_of_reason(reason: RetryReason) -> u8 {
    match reason {
        RetryReason::Timeout => 1,
        RetryReason::SequenceNak => 2,
        RetryReason::ResponseLost => 3,
        RetryReason::ReceiverNotReady => 4,
        RetryReason::Missing => 5,
    }
}

const fn number_of_drop(reason: SwitchDropReason) -> u8 {
    match reason {
        SwitchDropReason::NoMemory => 1,
        SwitchDropReason::NoRoute => 2,
    }
}

#[cfg(test)]
mod tests;
