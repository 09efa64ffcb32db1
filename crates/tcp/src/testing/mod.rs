//! Two ends and a wire between them that can be made bad.

pub mod storm;

use std::collections::BTreeMap;

use railnet_core::{Bytes, Random, Rate, Span, Time};
use railnet_wire::{Frame, Tcp, TcpRoute, tcp_packet};

use crate::connection::Connection;
use crate::state::Segment;

/// Bytes around a segment on an Ethernet: preamble and gap 20, Ethernet 14, IPv4 20, check sequence 4.
pub const FRAMING: u64 = 58;

/// What the wire does to segments, each in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Lost.
    pub loss: u32,
    /// Delivered twice.
    pub duplicate: u32,
    /// Held back so that later ones overtake it.
    pub reorder: u32,
}

/// A segment that was on the wire.
#[derive(Clone, Debug)]
pub struct Tapped {
    /// When its first bit left.
    pub at: Time,
    /// Which end sent it.
    pub from: usize,
    /// The segment as it left.
    pub segment: Segment,
    /// It does not arrive.
    pub is_lost: bool,
}

/// What decides about a segment besides the faults: its number among those of its end, and the segment; whether it is lost.
type Judge = Box<dyn FnMut(usize, u64, &Segment) -> bool>;

/// Two connections, a clock, and a wire.
pub struct Pair {
    /// The present.
    pub now: Time,
    /// Both ends.
    pub ends: [Connection; 2],
    /// One way, behind the transmitter.
    pub delay: Span,
    /// Of the wire.
    pub rate: Rate,
    /// What goes wrong.
    pub faults: Faults,
    /// Bytes that wait in front of the wire above which segments are dropped.
    pub queue: Option<Bytes>,
    /// Bytes that wait above which segments are marked, where their sender understands that.
    pub marks_above: Option<Bytes>,
    /// All segments, where they are kept.
    pub tap: Option<Vec<Tapped>>,
    /// Segments travel as the bytes of their IP packets: emitted, and parsed again.
    pub as_bytes: bool,
    /// A segment that was not read back as it was.
    pub misread: Option<String>,
    /// Segments that the queue dropped.
    pub dropped: u64,
    /// The longest queue.
    pub queue_most: u64,
    judge: Option<Judge>,
    free_at: [Time; 2],
    sent: [u64; 2],
    random: Random,
    /// Segments on the wire, by when they arrive and in what order they were sent, with the end that receives each.
    in_flight: BTreeMap<(Time, u64), (usize, Segment)>,
    sequence: u64,
}

impl Pair {
    /// Two ends on a good wire: 10 Gb/s, 10 µs.
    pub fn new(ends: [Connection; 2], seed: u64) -> Self {
        Self {
            now: Time::ZERO,
            ends,
            delay: Span::from_us(10),
            rate: Rate::gbps(10),
            faults: Faults::default(),
            queue: None,
            marks_above: None,
            tap: None,
            as_bytes: false,
            misread: None,
            dropped: 0,
            queue_most: 0,
            judge: None,
            free_at: [Time::ZERO; 2],
            sent: [0; 2],
            random: Random::stream(seed, "wire", 0),
            in_flight: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Lets `judge` decide about every segment as it leaves.
    pub fn set_judge(&mut self, judge: impl FnMut(usize, u64, &Segment) -> bool + 'static) {
        self.judge = Some(Box::new(judge));
    }

    /// Sends what can be sent now.
    pub fn pump(&mut self) {
        for from in 0..2 {
            while let Some(segment) = self.ends[from].poll_transmit(self.now) {
                self.launch(from, segment);
            }
        }
    }

    fn launch(&mut self, from: usize, mut segment: Segment) {
        let number = self.sent[from];
        self.sent[from] += 1;
        let waits = self.free_at[from].max(self.now).since(self.now);
        let queued = self.rate.bytes_in(waits).as_u64();
        self.queue_most = self.queue_most.max(queued);
        let is_full = self.queue.is_some_and(|most| queued > most.as_u64());
        self.dropped += u64::from(is_full);
        if self.marks_above.is_some_and(|most| queued > most.as_u64()) && segment.ecn != 0 {
            segment.ecn = 3;
        }
        let judged = self.judge.as_mut().is_some_and(|judge| judge(from, number, &segment));
        let is_lost = is_full || judged || self.random.chance(self.faults.loss);
        if self.as_bytes {
            match as_bytes(from, &segment) {
                Ok(read) => segment = read,
                Err(what) => self.misread = Some(what),
            }
        }
        let left = self.now + waits;
        if let Some(tap) = &mut self.tap {
            tap.push(Tapped { at: left, from, segment: segment.clone(), is_lost });
        }
        if is_full {
            return;
        }
        let bytes = FRAMING + segment_bytes(&segment.tcp, segment.payload.len());
        self.free_at[from] = left + self.rate.serialize(Bytes(bytes));
        if is_lost {
            return;
        }
        let mut at = self.free_at[from] + self.delay;
        if self.random.chance(self.faults.reorder) {
            at += self.delay * self.random.between(1, 6) / 2;
        }
        if self.random.chance(self.faults.duplicate) {
            let again = at + self.delay * self.random.between(0, 8) / 4;
            self.fly(again, 1 - from, segment.clone());
        }
        self.fly(at, 1 - from, segment);
    }

    fn fly(&mut self, at: Time, to: usize, segment: Segment) {
        self.sequence += 1;
        self.in_flight.insert((at, self.sequence), (to, segment));
    }

    /// When something happens next.
    pub fn next_time(&self) -> Option<Time> {
        let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        let timers = self.ends.iter().filter_map(|end| end.poll_timeout().map(|(at, _)| at));
        arrival.into_iter().chain(timers).min()
    }

    /// Does what happens next; `false` where nothing will.
    pub fn step(&mut self) -> bool {
        self.pump();
        let Some(next) = self.next_time() else { return false };
        self.now = self.now.max(next);
        while let Some(first) = self.in_flight.first_entry()
            && first.key().0 <= self.now
        {
            let (to, segment) = first.remove();
            self.ends[to].receive(self.now, &segment);
        }
        for end in &mut self.ends {
            if end.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                end.handle_timeout(self.now);
            }
        }
        self.pump();
        true
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("now", &self.now).field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// Bytes of a segment: header, options and data.
pub fn segment_bytes(tcp: &Tcp, payload: usize) -> u64 {
    (tcp.length() + payload) as u64
}

/// A segment as it is read from the bytes of its IP packet.
fn as_bytes(from: usize, segment: &Segment) -> Result<Segment, String> {
    let address = |end: usize| [10, 0, 0, end as u8 + 1].into();
    let (source, target) = (address(from), address(1 - from));
    let route = TcpRoute { source, target, traffic_class: segment.ecn, hop_limit: 64, identification: 0 };
    let bytes = tcp_packet(None, &route, &segment.tcp, &segment.payload);
    match Frame::parse_ip(&bytes) {
        Ok(Frame::Tcp(packet)) if packet.checksum_is_good => Ok(Segment {
            tcp: packet.tcp,
            payload: packet.payload.to_vec(),
            ecn: bytes[1] & 3,
            is_again: segment.is_again,
        }),
        other => Err(format!("{segment:?} is read as {other:?}")),
    }
}
