//! Inside a host: slices of data over PCIe, NVLink and memory, and the work that processors do on them.
//!
//! A NIC's packets are too fine for what happens there, so data moves in slices. A lane is whatever serves one slice at a
//! time, in the order they come: one direction of a link, a core. A slice visits the lanes of its way one after the
//! other, each as a whole; several slices under way overlap, as in the real pipeline.

use railnet_core::event::Sink;
use railnet_core::{Bytes, Rate, Span, Time};
use railnet_topology::Vertex;

use crate::application::Application;
use crate::network::{Event, Network, rank};

/// Something inside a host that serves one slice at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lane(u32);

/// A sequence of stops that slices follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way(u32);

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
    /// How long it is under way afterwards, while the lane serves the next.
    pub delay: Span,
}

impl Stop {
    /// A stop that moves bytes at this rate.
    pub fn moves(lane: Lane, rate: Rate, delay: Span) -> Self {
        Self { lane, fixed: Span::ZERO, per_packet: Span::ZERO, rate: Some(rate), delay }
    }

    /// How long the lane is taken.
    fn takes(&self, bytes: Bytes, packets: u32) -> Span {
        let moving = self.rate.map_or(Span::ZERO, |rate| rate.serialize(bytes));
        self.fixed + self.per_packet * u64::from(packets) + moving
    }
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

/// A slice under way.
#[derive(Clone, Copy, Debug)]
struct Slice {
    way: u32,
    /// The stop it is at.
    stop: u32,
    bytes: Bytes,
    packets: u32,
    token: u32,
}

/// All lanes of all hosts, and what moves over them.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    states: Vec<LaneState>,
    ways: Vec<Vec<Stop>>,
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

    /// A way that slices can follow; it has one stop at least.
    ///
    /// # Panics
    /// When there are no stops.
    pub fn add_way(&mut self, stops: Vec<Stop>) -> Way {
        assert!(!stops.is_empty(), "a way leads over one lane at least");
        self.lanes.ways.push(stops);
        Way(self.lanes.ways.len() as u32 - 1)
    }

    /// Sends a slice on its way now. [`Application::carried`] hears `token` when it is there.
    pub fn carry(&mut self, way: Way, bytes: Bytes, packets: u32, token: u32) {
        let slice = Slice { way: way.0, stop: 0, bytes, packets, token };
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

    /// A lane serves at so many millionths of its speed from now on; what already waits keeps its pace.
    pub(crate) fn slow_lane(&mut self, lane: Lane, speed: u32) {
        self.lanes.states[lane.0 as usize].speed = speed.max(1);
    }

    /// The lane of its stop takes a slice, when it has done with those before it.
    fn serve_slice(&mut self, index: u32) {
        let Slice { way, stop, bytes, packets, .. } = self.lanes.slices[index as usize];
        let stop = self.lanes.ways[way as usize][stop as usize];
        let lane = &mut self.lanes.states[stop.lane.0 as usize];
        let takes = stop.takes(bytes, packets) * u64::from(WHOLE) / u64::from(lane.speed);
        lane.busy_until = lane.busy_until.max(self.now) + takes;
        lane.counters.slices += 1;
        lane.counters.bytes += bytes.as_u64();
        lane.counters.busy += takes;
        let (at, host) = (lane.busy_until + stop.delay, lane.host);
        self.schedule(at, rank::CALL, Vertex::Host(host), Event::Slice { slice: index });
    }

    /// A slice has passed its stop.
    pub(crate) fn slice_passed(&mut self, application: &mut impl Application<S>, index: u32) {
        let slice = &mut self.lanes.slices[index as usize];
        slice.stop += 1;
        let Slice { way, stop, token, .. } = *slice;
        if (stop as usize) < self.lanes.ways[way as usize].len() {
            self.serve_slice(index);
            return;
        }
        self.lanes.free.push(index);
        application.carried(self, token);
    }
}
