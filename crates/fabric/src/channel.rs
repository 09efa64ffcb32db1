//! One direction of a link, and the sender's queues in front of it.

use std::ops::{Index, IndexMut};

use railnet_core::{Bytes, Component, Order, Rate, Span, Time};
use railnet_topology::Vertex;

use crate::calendar::SEQUENCE_BITS;
use crate::config::Weights;
use crate::event::rank;
use crate::turns::Turns;
use crate::waiting::{Queue, Waiting, WaitingRoom};

/// What a channel counted. What every packet changes comes last, where a channel has its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ChannelCounters {
    /// Packets marked in front of it.
    pub marks: u64,
    /// Packets dropped at its far end for lack of memory.
    pub drops: u64,
    /// Packets lost or corrupted on it.
    pub losses: u64,
    /// Pause frames received for it.
    pub pauses: u64,
    /// How long it was held back by pauses, in picoseconds, all priorities together.
    pub paused_ps: u64,
    /// Bytes that went over it.
    pub bytes: u64,
    /// Packets that went over it.
    pub packets: u64,
    /// Of those, packets with payload.
    pub data_packets: u64,
    /// The most bytes that waited in front of it.
    pub queue_max: u64,
}

/// In the order of arrivals, a port stands above so many bits of its packets' number.
const COUNT_BITS: u32 = 24;
/// Ports of a switch that have a place of their own in that order.
pub(crate) const PORTS_MAX: usize = 1 << (SEQUENCE_BITS - COUNT_BITS);

/// The queues in front of a channel, by priority. Those of 0 and 6 lie next to each other: data and congestion notifications have
/// these where nobody says otherwise.
#[derive(Clone, Debug)]
#[repr(transparent)]
pub(crate) struct Queues([Queue; 8]);

impl Queues {
    const EMPTY: Self = Self([Queue::EMPTY; 8]);
    /// Where the queue of each priority is, four bits each.
    const ORDER: u32 = 0x7165_4320;

    #[inline]
    fn place(priority: usize) -> usize {
        (Self::ORDER >> (4 * (priority & 7)) & 7) as usize
    }

    /// All of them, the lowest priority first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queue> {
        (0..8).map(|priority| &self[priority])
    }
}

impl Index<usize> for Queues {
    type Output = Queue;

    #[inline]
    fn index(&self, priority: usize) -> &Queue {
        &self.0[Self::place(priority)]
    }
}

impl IndexMut<usize> for Queues {
    #[inline]
    fn index_mut(&mut self, priority: usize) -> &mut Queue {
        &mut self.0[Self::place(priority)]
    }
}

/// No place that has windows.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// One direction of a link.
///
/// A run touches many of them in no order, and each line of the cache that a packet needs of one is a miss. So fields lie
/// in the order of use: what starts a packet in the first line, rare things in the second, what is counted with every
/// packet and the queues that most have use for in the third. What its receiver holds is apart ([`Held`](crate::switch::Held)).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Channel {
    pub(crate) from: Vertex,
    pub(crate) to: Vertex,
    /// The other direction.
    pub(crate) reverse: u32,
    /// Where it stands among all channels when packets come out of several at one moment.
    pub(crate) standing: u32,
    pub(crate) delay: Span,
    /// Picoseconds for a byte, where that is a whole number.
    ps_per_byte: u32,
    /// The port of the sender that it leaves by.
    pub(crate) port: u16,
    /// Its switch has it among the ports that are to be woken.
    pub(crate) is_listed: bool,
    /// Priorities have weights: `turns` says whose turn it is.
    pub(crate) has_turns: bool,
    pub(crate) busy_until: Time,
    /// Where it comes out, among the places that have windows; [`NOWHERE`] where that has none, or is not up to this network.
    pub(crate) place: u32,
    /// Whether a pause frame waits.
    pub(crate) is_urgent: bool,
    /// Nothing, so that the first line is as long as it should be.
    gap: [u8; 3],
    /// A wake-up at `busy_until` is planned.
    pub(crate) wake_set: bool,
    /// Priorities with something queued.
    pub(crate) occupied: u8,
    /// Priorities that the receiver has paused.
    pub(crate) paused: u8,
    /// Priorities that the receiver has told the sender to stop.
    pub(crate) told_to_stop: u8,
    /// Priorities for which the port at the receiving end sends pauses, and obeys them in the other direction.
    pub(crate) lossless: u8,
    /// What comes out of it goes on at the next priority.
    pub(crate) raises_priority: bool,
    pub(crate) is_down: bool,
    /// Packets may be lost or damaged on it: the faults know how.
    pub(crate) is_troubled: bool,
    /// Apart from what says whether there are any, which every packet needs.
    turns: Option<Box<Turns>>,
    rate: Rate,
    /// The rate without faults.
    full_rate: Rate,
    pub(crate) counters: ChannelCounters,
    pub(crate) queues: Queues,
    /// Pause frames that wait: they go first.
    pub(crate) urgent: Queue,
    pub(crate) headroom_max: u32,
    /// Whose events those of the sender are.
    pub(crate) sender: Component,
    pub(crate) pause_began: Time,
    /// Bytes that the sender may still send, by priority, where credits are in use.
    pub(crate) credits: [u32; 8],
    pub(crate) pause_until: [Time; 8],
}

impl Channel {
    pub(crate) fn new(
        (from, from_port, sender): (Vertex, u16, Component),
        to: Vertex,
        reverse: u32,
        rate: Rate,
        delay: Span,
    ) -> Self {
        Self {
            from,
            to,
            reverse,
            standing: 0,
            sender,
            delay,
            rate,
            ps_per_byte: ps_per_byte(rate),
            port: from_port,
            is_listed: false,
            has_turns: false,
            busy_until: Time::ZERO,
            place: NOWHERE,
            is_urgent: false,
            gap: [0; 3],
            wake_set: false,
            queues: Queues::EMPTY,
            occupied: 0,
            turns: None,
            urgent: Queue::EMPTY,
            paused: 0,
            pause_until: [Time::ZERO; 8],
            pause_began: Time::ZERO,
            headroom_max: 0,
            told_to_stop: 0,
            credits: [0; 8],
            lossless: u8::MAX,
            raises_priority: false,
            is_down: false,
            is_troubled: false,
            full_rate: rate,
            counters: ChannelCounters::default(),
        }
    }

    /// Runs at `rate` millionths of its full rate from now on.
    pub(crate) fn slow_down(&mut self, rate: u32) {
        self.rate = Rate::from_bps((self.full_rate.as_bps() / 1_000_000 * u64::from(rate)).max(1));
        self.ps_per_byte = ps_per_byte(self.rate);
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// What it carries without faults.
    pub(crate) fn full_rate(&self) -> Rate {
        self.full_rate
    }

    /// Where the arrival at `time` of the packet that was counted before the last `after` ones stands among all events: with
    /// others of its sender at the same moment, by port and, where packets take no time, by number.
    #[inline]
    pub(crate) fn arrival_order(&self, time: Time, after: u64) -> Order {
        let number = self.counters.packets.wrapping_sub(after) & ((1 << COUNT_BITS) - 1);
        let sequence = u64::from(self.port) << COUNT_BITS | number;
        Order { time, priority: rank::ARRIVE, component: self.sender, sequence }
    }

    /// How long `bytes` take.
    #[inline]
    pub(crate) fn serialize(&self, bytes: u32) -> Span {
        if self.ps_per_byte != 0 {
            return Span::from_ps(u64::from(bytes) * u64::from(self.ps_per_byte));
        }
        self.rate.serialize(Bytes(u64::from(bytes)))
    }

    /// Bytes that wait in front of it.
    #[inline]
    pub(crate) fn queued(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes).sum()
    }

    /// Whether nothing is before a packet of this priority, and nobody has to choose.
    #[inline]
    pub(crate) fn is_free_for(&self, priority: usize, now: Time) -> bool {
        let is_held = self.paused & 1 << priority != 0 || self.has_turns;
        self.busy_until <= now && self.occupied == 0 && !is_held && !self.is_urgent
    }

    /// Whether it should be woken before `time`.
    #[inline]
    pub(crate) fn is_due_before(&self, time: Time) -> bool {
        self.wake_set && self.busy_until < time
    }

    /// It is to be woken when it is free again; whether that has to be planned.
    #[inline]
    pub(crate) fn needs_wake(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.wake_set, true);
        is_new && !self.is_listed
    }

    /// Looks at what sending needs of it, and says nothing of use.
    #[inline]
    pub(crate) fn look_at_sender(&self) -> u32 {
        self.counters.packets as u32 ^ self.busy_until.as_ps() as u32
    }

    /// The queue of the lowest priority that has anything, which is the one where most waits.
    #[inline]
    pub(crate) fn long_queue(&self) -> Option<&Queue> {
        (self.occupied != 0).then(|| &self.queues[self.occupied.trailing_zeros() as usize])
    }

    /// A pause frame is to go out.
    pub(crate) fn push_urgent(&mut self, room: &mut WaitingRoom, waiting: Waiting) {
        self.urgent.push(room, waiting);
        self.is_urgent = true;
    }

    pub(crate) fn pop_urgent(&mut self, room: &mut WaitingRoom) -> Option<Waiting> {
        let first = self.urgent.pop(room);
        self.is_urgent = !self.urgent.is_empty();
        first
    }

    /// Which of the priorities that are `ready` sends next.
    #[inline]
    pub(crate) fn next_priority(&mut self, ready: u8) -> Option<usize> {
        match self.has_turns {
            false => (ready != 0).then(|| 7 - ready.leading_zeros() as usize),
            true => self.turns.as_mut()?.next(ready),
        }
    }

    /// From now on priorities share it by these weights.
    pub(crate) fn share_by(&mut self, weights: &Weights) {
        self.turns = Some(Box::new(Turns::new(weights)));
        self.has_turns = true;
    }

    /// A packet of a priority goes out.
    pub(crate) fn charge(&mut self, priority: usize, bytes: u32) {
        if let Some(turns) = &mut self.turns {
            turns.charge(priority, bytes);
        }
    }

    /// A packet goes out.
    #[inline]
    pub(crate) fn count(&mut self, waiting: Waiting) {
        self.counters.bytes += u64::from(waiting.bytes());
        self.counters.packets += 1;
        self.counters.data_packets += u64::from(waiting.is_data());
    }

    /// Whether there is more to a packet that starts on it than on others.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        self.has_turns | self.is_down | self.is_troubled
    }

    /// Priorities for which there is credit for a packet of `bytes`.
    pub(crate) fn with_credit(&self, bytes: u32) -> u8 {
        let credits = self.credits.iter().enumerate();
        credits.fold(0, |mask, (priority, credit)| mask | u8::from(*credit >= bytes) << priority)
    }

    /// What is up to its receiver becomes what it is in another one.
    pub(crate) fn take_receiver_of(&mut self, other: &Self) {
        self.counters.drops = other.counters.drops;
        self.told_to_stop = other.told_to_stop;
    }

    /// Notes that the set of paused priorities becomes `paused`.
    pub(crate) fn set_paused(&mut self, now: Time, paused: u8) {
        if self.paused != 0 && paused == 0 {
            self.counters.paused_ps += now.since(self.pause_began).as_ps();
        }
        if self.paused == 0 && paused != 0 {
            self.pause_began = now;
        }
        self.paused = paused;
    }
}

/// The lines of the cache that [`Channel`] speaks of.
const _: () = {
    let counted = std::mem::offset_of!(Channel, counters) + std::mem::offset_of!(ChannelCounters, bytes);
    assert!(counted == 128);
    assert!(std::mem::offset_of!(Channel, queues) + 2 * size_of::<Queue>() == 192);
};

/// Picoseconds for a byte, or 0 where that is no whole number, or one that is too large.
fn ps_per_byte(rate: Rate) -> u32 {
    const PS_PER_SECOND_AND_BYTE: u64 = 8_000_000_000_000;
    let is_exact = rate.as_bps() > 0 && PS_PER_SECOND_AND_BYTE.is_multiple_of(rate.as_bps());
    if is_exact { u32::try_from(PS_PER_SECOND_AND_BYTE / rate.as_bps()).unwrap_or(0) } else { 0 }
}
