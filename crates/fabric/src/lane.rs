//! Inside a host: slices of data over PCIe, NVLink and memory, and the work that processors do on them.
//!
//! A NIC's packets are too fine for what happens there, so data moves in slices. A lane is whatever serves one slice at a
//! time, in the order they come: one direction of a link, the memory of a GPU, a core. A slice goes over the lanes of its
//! way as real transfers do, cut through: it takes each lane for all of its bytes, but the next lane begins when the first
//! piece has passed. So a slice alone takes as long as the slowest lane of its way and a piece on each other one, and many
//! slices go as fast as the slowest lane.

use railnet_core::event::Sink;
use railnet_core::{Bytes, Component, Rate, Span, Time};
use railnet_topology::Vertex;

use crate::application::Application;
use crate::event::{Event, rank};
use crate::network::Network;

/// Something inside a host that serves one slice at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lane(u32);

/// A sequence of stops that slices follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way(u32);

/// What goes on to the next lane while the rest is still under way. A NIC or a bridge passes on no less than a packet, and
/// no packet is longer; what they keep back in truth (PCIe moves 256 or 512 bytes at a time) is too short to matter.
pub const PIECE: Bytes = Bytes::kib(4);

/// What a slice does at one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Which.
    pub lane: Lane,
    /// Time that every slice takes there: a system call, the start of a copy.
    pub fixed: Span,
    /// Time that each of its packets takes there.
    pub per_packet: Span,
    /// How fast its bytes go, or `None` where they take no time.
    pub rate: Option<Rate>,
    /// How often each byte goes over the lane: 1 where data moves, more where it is read and written.
    pub times: u32,
    /// How long it is under way afterwards, while the lane serves the next.
    pub delay: Span,
    /// It begins when all of the slice is there, not with its first piece: somebody has to be told first.
    pub waits: bool,
}

impl Stop {
    /// A stop that moves bytes at this rate.
    pub fn moves(lane: Lane, rate: Rate, delay: Span) -> Self {
        let (fixed, per_packet) = (Span::ZERO, Span::ZERO);
        Self { lane, fixed, per_packet, rate: Some(rate), times: 1, delay, waits: false }
    }

    /// A stop that computes: for each byte of the slice, so many are read or written in a memory of this bandwidth.
    pub fn computes(lane: Lane, bandwidth: Rate, times: u32) -> Self {
        Self { times, ..Self::moves(lane, bandwidth, Span::ZERO) }
    }

    /// How long the lane is taken before the first byte, and by all of them.
    fn takes(&self, bytes: Bytes, packets: u32) -> (Span, Span) {
        let over = Bytes(bytes.as_u64() * u64::from(self.times));
        let moving = self.rate.map_or(Span::ZERO, |rate| rate.serialize(over));
        (self.fixed, self.per_packet * u64::from(packets) + moving)
    }
}

/// What a way leads from and to, besides memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Memory,
    /// It begins at a port, from which bytes came at this rate.
    FromPort(Rate),
    /// It ends at a port, where bytes leave at this rate.
    ToPort(Rate),
}

#[derive(Debug)]
struct Course {
    stops: Vec<Stop>,
    ends: Ends,
}

/// What a lane counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneCounters {
    /// Slices that it served.
    pub slices: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it was taken.
    pub busy: Span,
}

/// The whole of a lane's speed, in millionths.
const WHOLE: u32 = 1_000_000;

#[derive(Debug)]
struct LaneState {
    host: u32,
    busy_until: Time,
    /// What is left of its speed, in millionths.
    speed: u32,
    counters: LaneCounters,
}

impl LaneState {
    /// How long `span` of work takes at its present speed.
    fn slowed(&self, span: Span) -> Span {
        if self.speed == WHOLE { span } else { span * u64::from(WHOLE) / u64::from(self.speed) }
    }
}

/// A slice under way.
#[derive(Clone, Copy, Debug)]
struct Slice {
    way: u32,
    /// The stop it is at.
    stop: u32,
    bytes: Bytes,
    packets: u32,
    token: u32,
    /// When its first piece came to the stop.
    head: Time,
    /// When the last one came, or will.
    tail: Time,
}

/// All lanes of all hosts, and what moves over them.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    states: Vec<LaneState>,
    ways: Vec<Course>,
    slices: Vec<Slice>,
    free: Vec<u32>,
}

impl<S: Sink> Network<S> {
    /// A lane of a host.
    pub fn add_lane(&mut self, host: u32) -> Lane {
        let state =
            LaneState { host, busy_until: Time::ZERO, speed: WHOLE, counters: LaneCounters::default() };
        self.lanes.states.push(state);
        Lane(self.lanes.states.len() as u32 - 1)
    }

    /// A way that slices can follow, from memory to memory; it has one stop at least. A slice is there when all of it is.
    ///
    /// # Panics
    /// When there are no stops.
    pub fn add_way(&mut self, stops: Vec<Stop>) -> Way {
        self.add_course(stops, Ends::Memory)
    }

    /// A way to a port that sends at `rate`. A slice is there when sending can begin: from then on its bytes come at least
    /// as fast as the port can take them.
    ///
    /// # Panics
    /// When there are no stops.
    pub fn add_way_to_port(&mut self, stops: Vec<Stop>, rate: Rate) -> Way {
        self.add_course(stops, Ends::ToPort(rate))
    }

    /// A way from a port that receives at `rate`. A slice sets out when its last byte has come; those before it are on
    /// their way then, since they came no faster than that.
    ///
    /// # Panics
    /// When there are no stops.
    pub fn add_way_from_port(&mut self, stops: Vec<Stop>, rate: Rate) -> Way {
        self.add_course(stops, Ends::FromPort(rate))
    }

    fn add_course(&mut self, stops: Vec<Stop>, ends: Ends) -> Way {
        assert!(!stops.is_empty(), "a way leads over one lane at least");
        self.lanes.ways.push(Course { stops, ends });
        Way(self.lanes.ways.len() as u32 - 1)
    }

    /// Sends a slice on its way now. [`Application::carried`] hears `token` when it is there.
    pub fn carry(&mut self, way: Way, bytes: Bytes, packets: u32, token: u32) {
        let head = match self.lanes.ways[way.0 as usize].ends {
            Ends::FromPort(rate) => before(self.now, rate.serialize(Bytes(bytes.0.saturating_sub(PIECE.0)))),
            _ => self.now,
        };
        let slice = Slice { way: way.0, stop: 0, bytes, packets, token, head, tail: self.now };
        let index = match self.lanes.free.pop() {
            Some(index) => {
                self.lanes.slices[index as usize] = slice;
                index
            }
            None => {
                self.lanes.slices.push(slice);
                self.lanes.slices.len() as u32 - 1
            }
        };
        self.serve_slice(index);
    }

    /// What a lane counted.
    pub fn lane(&self, lane: Lane) -> LaneCounters {
        self.lanes.states[lane.0 as usize].counters
    }

    /// The same of a run that is stopped: a lane with a queue is reserved for longer than the run has lasted.
    pub fn lane_so_far(&self, lane: Lane) -> LaneCounters {
        let LaneState { busy_until, counters, .. } = &self.lanes.states[lane.0 as usize];
        let reserved = busy_until.since(self.now).min(counters.busy);
        LaneCounters { busy: counters.busy - reserved, ..*counters }
    }

    /// A lane is taken to have served this too, at some time when it had nothing else to do.
    pub fn count_on_lane(&mut self, lane: Lane, more: LaneCounters) {
        let counters = &mut self.lanes.states[lane.0 as usize].counters;
        counters.slices += more.slices;
        counters.bytes += more.bytes;
        counters.busy += more.busy;
    }

    /// A lane serves at so many millionths of its speed from now on; what already waits keeps its pace.
    pub(crate) fn slow_lane(&mut self, lane: Lane, speed: u32) {
        self.lanes.states[lane.0 as usize].speed = speed.max(1);
    }

    /// The lane of its stop takes a slice, when it has done with those before it.
    fn serve_slice(&mut self, index: u32) {
        let Lanes { states, ways, slices, .. } = &mut self.lanes;
        let slice = &mut slices[index as usize];
        let course = &ways[slice.way as usize];
        let stop = &course.stops[slice.stop as usize];
        let lane = &mut states[stop.lane.0 as usize];
        let (fixed, moving) = stop.takes(slice.bytes, slice.packets);
        let (fixed, moving) = (lane.slowed(fixed), lane.slowed(moving));
        let piece = part(moving, PIECE.min(slice.bytes), slice.bytes);
        let begins = lane.busy_until.max(if stop.waits { slice.tail } else { slice.head });
        // Where bytes come more slowly than they go, the lane serves others between them: it is taken for the bytes only.
        lane.busy_until = begins + fixed + moving;
        lane.counters.slices += 1;
        lane.counters.bytes += slice.bytes.as_u64();
        lane.counters.busy += fixed + moving;
        let host = lane.host;
        let ends = lane.busy_until.max(slice.tail + piece);
        slice.head = begins + fixed + piece + stop.delay;
        slice.tail = ends + stop.delay;
        let at = match (course.stops.get(slice.stop as usize + 1), course.ends) {
            (Some(next), _) if !next.waits => slice.head,
            (None, Ends::ToPort(rate)) => slice.head.max(before(slice.tail, rate.serialize(slice.bytes))),
            _ => slice.tail,
        };
        let at = at.max(self.now);
        self.schedule_at(Vertex::Host(host), at, rank::CALL, Component(host), Event::Slice { slice: index });
    }

    /// A slice has passed its stop.
    pub(crate) fn slice_passed(&mut self, application: &mut impl Application<S>, index: u32) {
        let slice = &mut self.lanes.slices[index as usize];
        slice.stop += 1;
        let Slice { way, stop, token, .. } = *slice;
        if (stop as usize) < self.lanes.ways[way as usize].stops.len() {
            self.serve_slice(index);
            return;
        }
        self.lanes.free.push(index);
        application.carried(self, token);
    }
}

/// The moment so long before another; none is before the start.
fn before(at: Time, span: Span) -> Time {
    Time::from_ps(at.as_ps().saturating_sub(span.as_ps()))
}

/// The part of `span` that `some` of all bytes take, rounded up.
fn part(span: Span, some: Bytes, all: Bytes) -> Span {
    if some == all {
        return span;
    }
    let work = u128::from(span.as_ps()) * u128::from(some.as_u64());
    Span::from_ps(work.div_ceil(u128::from(all.as_u64())) as u64)
}
