//! Channels: one direction of a link each, with the egress port in front of it.

use std::ops::{Index, IndexMut};

use railnet_core::prefetch::prefetch;
use railnet_core::{Bytes, Component, Order, Rate, Span, Time};
use railnet_topology::Vertex;

use crate::engine::calendar::SEQUENCE_BITS;
use crate::engine::event::rank;
use crate::model::config::Weights;
use crate::model::drr::DeficitRoundRobin;
use crate::model::queue::{Queue, QueuePool, QueuedPacket};

/// Counters of a channel. Those that every packet changes come last, next to the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ChannelCounters {
    /// Packets marked in front of it.
    pub marks: u64,
    /// Packets dropped at its far end for lack of buffer.
    pub drops: u64,
    /// Packets lost or corrupted on it.
    pub losses: u64,
    /// Pause frames received for it.
    pub pauses: u64,
    /// How long it was paused, in picoseconds, all priorities together.
    pub paused_ps: u64,
    /// Bytes transmitted.
    pub bytes: u64,
    /// Packets transmitted.
    pub packets: u64,
    /// Of those, packets with payload.
    pub data_packets: u64,
    /// The longest its queue has been, in bytes.
    pub queue_max: u64,
}

/// In the order of arrivals, a port stands above so many bits of its packets' sequence.
const COUNT_BITS: u32 = 24;
/// Ports of a switch that have a rank of their own in that order.
pub(crate) const PORTS_MAX: usize = 1 << (SEQUENCE_BITS - COUNT_BITS);

/// The queues in front of a channel, by priority. Those of 0 and 6 are adjacent: data and congestion notifications have
/// these by default.
#[derive(Clone, Debug)]
#[repr(transparent)]
pub(crate) struct Queues([Queue; 8]);

impl Queues {
    const EMPTY: Self = Self([Queue::EMPTY; 8]);
    /// The index of the queue of each priority, four bits each.
    const ORDER: u32 = 0x7165_4320;

    #[inline]
    fn index_of(priority: usize) -> usize {
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
        &self.0[Self::index_of(priority)]
    }
}

impl IndexMut<usize> for Queues {
    #[inline]
    fn index_mut(&mut self, priority: usize) -> &mut Queue {
        &mut self.0[Self::index_of(priority)]
    }
}

/// Not an LP, or one that another partition runs.
pub(crate) const NO_LOCAL_LP: u32 = u32::MAX;

/// One direction of a link, with the egress port in front of it.
///
/// A run touches many of them in no order, and each cache line of one is a miss. So fields lie in the order of use: what
/// transmitting needs in the first line, rare things in the second, counters of every packet and the usual queues in the
/// third. What its receiver uses of a buffer is apart ([`IngressUsage`](crate::model::buffer::IngressUsage)).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Channel {
    pub(crate) from: Vertex,
    pub(crate) to: Vertex,
    /// The other direction.
    pub(crate) reverse: u32,
    /// Its tie-break rank: its position among all channels whose packets arrive at one moment.
    pub(crate) tie_break: u32,
    pub(crate) delay: Span,
    /// Picoseconds for a byte, where that is a whole number; else 0.
    ps_per_byte: u32,
    /// The egress port of the sender.
    pub(crate) port: u16,
    /// It is on the ready list of its switch.
    pub(crate) is_listed: bool,
    /// Priorities share it by weight.
    pub(crate) is_weighted: bool,
    pub(crate) busy_until: Time,
    /// The LP of its receiver, or [`NO_LOCAL_LP`].
    pub(crate) receiver_lp: u32,
    /// A pause frame waits to be transmitted.
    pub(crate) has_pause_frame: bool,
    /// Padding, so that the first line is as long as it should be.
    gap: [u8; 3],
    /// A transmit-ready event at `busy_until` is scheduled.
    pub(crate) is_ready_planned: bool,
    /// Priorities whose queues are not empty.
    pub(crate) occupied: u8,
    /// Priorities that the receiver has paused.
    pub(crate) paused: u8,
    /// Priorities for which the receiver has sent XOFF.
    pub(crate) xoff: u8,
    /// Priorities for which the port at the receiving end sends pause frames, and obeys them in the other direction.
    pub(crate) lossless: u8,
    /// Its packets go on at the next priority.
    pub(crate) raises_priority: bool,
    pub(crate) is_down: bool,
    /// Packets may be lost or corrupted on it.
    pub(crate) has_faults: bool,
    /// Apart from the flag that says whether there is one, which every packet reads.
    drr: Option<Box<DeficitRoundRobin>>,
    rate: Rate,
    /// The rate without faults.
    full_rate: Rate,
    pub(crate) counters: ChannelCounters,
    pub(crate) queues: Queues,
    /// Pause frames that wait to be transmitted: they go first.
    pub(crate) pause_frames: Queue,
    pub(crate) headroom_max: u32,
    /// The component of the sender, whose events they are.
    pub(crate) sender: Component,
    pub(crate) pause_began: Time,
    /// Bytes that the sender has credit for, by priority.
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
            tie_break: 0,
            sender,
            delay,
            rate,
            ps_per_byte: ps_per_byte(rate),
            port: from_port,
            is_listed: false,
            is_weighted: false,
            busy_until: Time::ZERO,
            receiver_lp: NO_LOCAL_LP,
            has_pause_frame: false,
            gap: [0; 3],
            is_ready_planned: false,
            queues: Queues::EMPTY,
            occupied: 0,
            drr: None,
            pause_frames: Queue::EMPTY,
            paused: 0,
            pause_until: [Time::ZERO; 8],
            pause_began: Time::ZERO,
            headroom_max: 0,
            xoff: 0,
            credits: [0; 8],
            lossless: u8::MAX,
            raises_priority: false,
            is_down: false,
            has_faults: false,
            full_rate: rate,
            counters: ChannelCounters::default(),
        }
    }

    /// Transmits at `rate` millionths of its full rate from now on.
    pub(crate) fn slow_down(&mut self, rate: u32) {
        self.rate = Rate::from_bps((self.full_rate.as_bps() / 1_000_000 * u64::from(rate)).max(1));
        self.ps_per_byte = ps_per_byte(self.rate);
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Its rate without faults.
    pub(crate) fn full_rate(&self) -> Rate {
        self.full_rate
    }

    /// The order of the arrival at `time` of the packet that was counted before the last `after` ones: among those of its
    /// sender at one moment by port and, where packets take no time, by sequence.
    #[inline]
    pub(crate) fn arrival_order(&self, time: Time, after: u64) -> Order {
        let number = self.counters.packets.wrapping_sub(after) & ((1 << COUNT_BITS) - 1);
        let sequence = u64::from(self.port) << COUNT_BITS | number;
        Order { time, priority: rank::ARRIVE, component: self.sender, sequence }
    }

    /// How long `bytes` take to serialise.
    #[inline]
    pub(crate) fn serialize(&self, bytes: u32) -> Span {
        if self.ps_per_byte != 0 {
            return Span::from_ps(u64::from(bytes) * u64::from(self.ps_per_byte));
        }
        self.rate.serialize(Bytes(u64::from(bytes)))
    }

    /// Bytes queued in front of it.
    #[inline]
    pub(crate) fn queued(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes).sum()
    }

    /// Whether it should transmit before `time`.
    #[inline]
    pub(crate) fn is_due_before(&self, time: Time) -> bool {
        self.is_ready_planned && self.busy_until < time
    }

    /// Notes that it has more to transmit. Returns whether that has to be scheduled.
    #[inline]
    pub(crate) fn needs_transmit_event(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.is_ready_planned, true);
        is_new && !self.is_listed
    }

    /// Prefetches what sending a packet needs of it.
    #[inline]
    pub(crate) fn prefetch_transmitter(&self) {
        prefetch(&self.busy_until);
        prefetch(&self.counters.packets);
    }

    /// The queue of the lowest priority that is not empty: mostly the longest.
    #[inline]
    pub(crate) fn long_queue(&self) -> Option<&Queue> {
        (self.occupied != 0).then(|| &self.queues[self.occupied.trailing_zeros() as usize])
    }

    /// Queues a pause frame.
    pub(crate) fn push_pause_frame(&mut self, pool: &mut QueuePool, packet: QueuedPacket) {
        self.pause_frames.push(pool, packet);
        self.has_pause_frame = true;
    }

    pub(crate) fn pop_pause_frame(&mut self, pool: &mut QueuePool) -> Option<QueuedPacket> {
        let first = self.pause_frames.pop(pool);
        self.has_pause_frame = !self.pause_frames.is_empty();
        first
    }

    /// Which of the `ready` priorities transmits next.
    #[inline]
    pub(crate) fn next_priority(&mut self, ready: u8) -> Option<usize> {
        match self.is_weighted {
            false => (ready != 0).then(|| 7 - ready.leading_zeros() as usize),
            true => self.drr.as_mut()?.next(ready),
        }
    }

    /// Priorities share it by these weights from now on.
    pub(crate) fn set_weights(&mut self, weights: &Weights) {
        self.drr = Some(Box::new(DeficitRoundRobin::new(weights)));
        self.is_weighted = true;
    }

    /// Charges a packet of a priority to its weight.
    pub(crate) fn charge(&mut self, priority: usize, bytes: u32) {
        if let Some(drr) = &mut self.drr {
            drr.charge(priority, bytes);
        }
    }

    /// A packet joins the end of its queue.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
    #[inline(always)]
    pub(crate) fn enqueue(&mut self, pool: &mut QueuePool, packet: QueuedPacket) {
        let priority = packet.priority();
        let queue = &mut self.queues[priority];
        queue.push(pool, packet);
        self.occupied |= 1 << priority;
        self.counters.queue_max = self.counters.queue_max.max(queue.bytes);
    }

    /// Takes the first packet out of a queue that is not empty, with the bytes that are left behind it.
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from two places")]
    #[inline(always)]
    pub(crate) fn dequeue(&mut self, pool: &mut QueuePool, priority: usize) -> (QueuedPacket, u64) {
        let queue = &mut self.queues[priority];
        let packet = queue.pop_front(pool);
        if queue.is_empty() {
            self.occupied &= !(1 << priority);
        }
        (packet, queue.bytes)
    }

    /// Takes the channel for a packet from `now` on, and counts it. Returns how long it takes to serialise.
    #[inline]
    pub(crate) fn occupy(&mut self, packet: QueuedPacket, now: Time) -> Span {
        let takes = self.serialize(packet.bytes());
        self.busy_until = now + takes;
        self.count(packet);
        takes
    }

    /// Counts a packet that is transmitted.
    #[inline]
    fn count(&mut self, packet: QueuedPacket) {
        self.counters.bytes += u64::from(packet.bytes());
        self.counters.packets += 1;
        self.counters.data_packets += u64::from(packet.is_data());
    }

    /// Whether a packet that it transmits takes the slow path.
    #[inline]
    pub(crate) fn needs_slow_path(&self) -> bool {
        self.is_weighted | self.is_down | self.has_faults
    }

    /// Priorities with credit for a packet of `bytes`.
    pub(crate) fn with_credit(&self, bytes: u32) -> u8 {
        let credits = self.credits.iter().enumerate();
        credits.fold(0, |mask, (priority, credit)| mask | u8::from(*credit >= bytes) << priority)
    }

    /// Takes over what the receiver keeps here, from the partition that ran the receiver.
    pub(crate) fn take_receiver_of(&mut self, other: &Self) {
        self.counters.drops = other.counters.drops;
        self.xoff = other.xoff;
    }

    /// Sets the priorities that are paused.
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

/// The cache lines of [`Channel`].
const _: () = {
    let counted = std::mem::offset_of!(Channel, counters) + std::mem::offset_of!(ChannelCounters, bytes);
    assert!(counted == 128);
    assert!(std::mem::offset_of!(Channel, queues) + 2 * size_of::<Queue>() == 192);
};

/// Picoseconds for a byte, or 0 where that is no whole number or too large.
fn ps_per_byte(rate: Rate) -> u32 {
    const PS_PER_SECOND_AND_BYTE: u64 = 8_000_000_000_000;
    let is_exact = rate.as_bps() > 0 && PS_PER_SECOND_AND_BYTE.is_multiple_of(rate.as_bps());
    if is_exact { u32::try_from(PS_PER_SECOND_AND_BYTE / rate.as_bps()).unwrap_or(0) } else { 0 }
}
