//! Buses inside a host: slices of data over PCIe, NVLink and memory, and the work of processors on them.
//!
//! A NIC's packets are too fine for that, so data moves in slices. A *resource* serves one slice at a time, first come first
//! served: one direction of a link, the memory of a GPU, a core. A slice takes the *hops* of its *path* cut through, as real
//! transfers do: it occupies each resource for all of its bytes, but reaches the next one when its first 4 KiB have passed.
//! So the slowest resource bounds the throughput of many slices, and a slice alone takes as long as the slowest resource and
//! 4 KiB on each other one.

use railnet_core::event::Sink;
use railnet_core::{Bytes, Component, Rate, Span, Time};
use railnet_topology::Vertex;

use crate::application::Application;
use crate::engine::event::{Event, rank};
use crate::network::Network;

/// Something inside a host that serves one slice at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BusResource(u32);

/// A sequence of hops that slices take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusPath(u32);

/// Bytes that go on to the next resource while the rest is still to come. A NIC or a bridge forwards no less than a packet,
/// and no packet is longer; what they hold back in truth (PCIe moves 256 or 512 bytes at a time) is too short to matter.
pub const CUT_THROUGH_BYTES: Bytes = Bytes::kib(4);

/// What a slice does at one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusHop {
    /// The resource.
    pub resource: BusResource,
    /// Time of every slice there: a system call, the start of a copy.
    pub fixed: Span,
    /// Time of each of its packets there.
    pub per_packet: Span,
    /// The rate of its bytes, or `None` where they take no time.
    pub rate: Option<Rate>,
    /// How often each byte passes the resource: 1 where data moves, more where it is read and written.
    pub times: u32,
    /// The latency afterwards, while the resource serves the next slice.
    pub delay: Span,
    /// It begins when all of the slice is there, not with its first bytes: software has to be notified first.
    pub waits: bool,
}

impl BusHop {
    /// A hop that moves bytes at this rate.
    pub fn moves(resource: BusResource, rate: Rate, delay: Span) -> Self {
        let (fixed, per_packet) = (Span::ZERO, Span::ZERO);
        Self { resource, fixed, per_packet, rate: Some(rate), times: 1, delay, waits: false }
    }

    /// A hop that computes: for each byte of the slice, `times` bytes are read or written in a memory of this bandwidth.
    pub fn computes(resource: BusResource, bandwidth: Rate, times: u32) -> Self {
        Self { times, ..Self::moves(resource, bandwidth, Span::ZERO) }
    }

    /// How long the resource is occupied before the first byte, and by all of them.
    fn takes(&self, bytes: Bytes, packets: u32) -> (Span, Span) {
        let over = Bytes(bytes.as_u64() * u64::from(self.times));
        let moving = self.rate.map_or(Span::ZERO, |rate| rate.serialize(over));
        (self.fixed, self.per_packet * u64::from(packets) + moving)
    }
}

/// What a path begins and ends at, besides memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Memory,
    /// It begins at a port, whose bytes came at this rate.
    FromPort(Rate),
    /// It ends at a port, whose bytes leave at this rate.
    ToPort(Rate),
}

#[derive(Debug)]
struct Route {
    hops: Vec<BusHop>,
    ends: Ends,
}

/// Counters of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BusCounters {
    /// Slices served.
    pub slices: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it was occupied.
    pub busy: Span,
}

/// Full speed, in millionths.
const WHOLE: u32 = 1_000_000;

#[derive(Debug)]
struct ResourceState {
    host: u32,
    busy_until: Time,
    /// Its present speed, in millionths of the full one.
    speed: u32,
    counters: BusCounters,
}

impl ResourceState {
    /// How long `span` of work takes at its present speed.
    fn slowed(&self, span: Span) -> Span {
        if self.speed == WHOLE { span } else { span * u64::from(WHOLE) / u64::from(self.speed) }
    }
}

/// A slice under way.
#[derive(Clone, Copy, Debug)]
struct Slice {
    path: u32,
    /// The hop it is at.
    hop: u32,
    bytes: Bytes,
    packets: u32,
    token: u32,
    /// When its first bytes reached the hop.
    head: Time,
    /// When its last bytes did, or will.
    tail: Time,
}

/// All resources of all hosts, and the slices on them.
#[derive(Debug, Default)]
pub(crate) struct Buses {
    states: Vec<ResourceState>,
    paths: Vec<Route>,
    slices: Vec<Slice>,
    free: Vec<u32>,
}

impl Buses {
    fn add_route(&mut self, hops: Vec<BusHop>, ends: Ends) -> BusPath {
        assert!(!hops.is_empty(), "a bus path has one hop at least");
        self.paths.push(Route { hops, ends });
        BusPath(self.paths.len() as u32 - 1)
    }

    /// A slice sets out on a path now.
    fn add_slice(&mut self, path: BusPath, bytes: Bytes, packets: u32, token: u32, now: Time) -> u32 {
        let head = match self.paths[path.0 as usize].ends {
            Ends::FromPort(rate) => {
                before(now, rate.serialize(Bytes(bytes.0.saturating_sub(CUT_THROUGH_BYTES.0))))
            }
            _ => now,
        };
        let slice = Slice { path: path.0, hop: 0, bytes, packets, token, head, tail: now };
        match self.free.pop() {
            Some(index) => {
                self.slices[index as usize] = slice;
                index
            }
            None => {
                self.slices.push(slice);
                self.slices.len() as u32 - 1
            }
        }
    }

    /// The resource of its hop serves a slice, after those before it. Returns the host, and when the slice has passed the hop.
    fn serve(&mut self, index: u32) -> (u32, Time) {
        let Self { states, paths, slices, .. } = self;
        let slice = &mut slices[index as usize];
        let route = &paths[slice.path as usize];
        let hop = &route.hops[slice.hop as usize];
        let resource = &mut states[hop.resource.0 as usize];
        let (fixed, moving) = hop.takes(slice.bytes, slice.packets);
        let (fixed, moving) = (resource.slowed(fixed), resource.slowed(moving));
        let piece = part(moving, CUT_THROUGH_BYTES.min(slice.bytes), slice.bytes);
        let begins = resource.busy_until.max(if hop.waits { slice.tail } else { slice.head });
        // Where bytes come more slowly than they go, the resource serves others between them: it is occupied by the bytes
        // only.
        resource.busy_until = begins + fixed + moving;
        resource.counters.slices += 1;
        resource.counters.bytes += slice.bytes.as_u64();
        resource.counters.busy += fixed + moving;
        let host = resource.host;
        let ends = resource.busy_until.max(slice.tail + piece);
        slice.head = begins + fixed + piece + hop.delay;
        slice.tail = ends + hop.delay;
        let at = match (route.hops.get(slice.hop as usize + 1), route.ends) {
            (Some(next), _) if !next.waits => slice.head,
            (None, Ends::ToPort(rate)) => slice.head.max(before(slice.tail, rate.serialize(slice.bytes))),
            _ => slice.tail,
        };
        (host, at)
    }

    /// A slice has passed its hop. Returns its token if it has arrived.
    fn pass(&mut self, index: u32) -> Option<u32> {
        let slice = &mut self.slices[index as usize];
        slice.hop += 1;
        let Slice { path, hop, token, .. } = *slice;
        if (hop as usize) < self.paths[path as usize].hops.len() {
            return None;
        }
        self.free.push(index);
        Some(token)
    }

    /// A resource serves at so many millionths of its speed from now on; slices that already wait keep theirs.
    pub(crate) fn slow_down(&mut self, resource: BusResource, speed: u32) {
        self.states[resource.0 as usize].speed = speed.max(1);
    }
}

impl<S: Sink> Network<S> {
    /// Adds a resource to a host.
    pub fn add_bus_resource(&mut self, host: u32) -> BusResource {
        let state =
            ResourceState { host, busy_until: Time::ZERO, speed: WHOLE, counters: BusCounters::default() };
        self.endpoints.buses.states.push(state);
        BusResource(self.endpoints.buses.states.len() as u32 - 1)
    }

    /// Adds a path from memory to memory, which has one hop at least. A slice has arrived when all of it has.
    ///
    /// # Panics
    /// When there are no hops.
    pub fn add_bus_path(&mut self, hops: Vec<BusHop>) -> BusPath {
        self.endpoints.buses.add_route(hops, Ends::Memory)
    }

    /// Adds a path to a port that sends at `rate`. A slice has arrived when sending can begin: from then on its bytes come
    /// at least as fast as the port can take them.
    ///
    /// # Panics
    /// When there are no hops.
    pub fn add_bus_path_to_port(&mut self, hops: Vec<BusHop>, rate: Rate) -> BusPath {
        self.endpoints.buses.add_route(hops, Ends::ToPort(rate))
    }

    /// Adds a path from a port that receives at `rate`. A slice sets out when its last byte has come; those before it are on
    /// their way then, since they came no faster than that.
    ///
    /// # Panics
    /// When there are no hops.
    pub fn add_bus_path_from_port(&mut self, hops: Vec<BusHop>, rate: Rate) -> BusPath {
        self.endpoints.buses.add_route(hops, Ends::FromPort(rate))
    }

    /// Sends a slice on a path now. [`Application::carried`] hears `token` when it has arrived.
    pub fn carry(&mut self, path: BusPath, bytes: Bytes, packets: u32, token: u32) {
        let index = self.endpoints.buses.add_slice(path, bytes, packets, token, self.now);
        self.serve_slice(index);
    }

    /// The counters of a resource.
    pub fn bus_counters(&self, resource: BusResource) -> BusCounters {
        self.endpoints.buses.states[resource.0 as usize].counters
    }

    /// The same of a run that is stopped: a resource with a queue is reserved for longer than the run has lasted.
    pub fn bus_counters_so_far(&self, resource: BusResource) -> BusCounters {
        let ResourceState { busy_until, counters, .. } = &self.endpoints.buses.states[resource.0 as usize];
        let reserved = busy_until.since(self.now).min(counters.busy);
        BusCounters { busy: counters.busy - reserved, ..*counters }
    }

    /// Adds to the counters of a resource what it served outside of this run.
    pub fn count_on_bus(&mut self, resource: BusResource, more: BusCounters) {
        let counters = &mut self.endpoints.buses.states[resource.0 as usize].counters;
        counters.slices += more.slices;
        counters.bytes += more.bytes;
        counters.busy += more.busy;
    }

    fn serve_slice(&mut self, index: u32) {
        let (host, at) = self.endpoints.buses.serve(index);
        let (at, by, event) = (at.max(self.now), Component(host), Event::Slice { slice: index });
        self.schedule_at(Vertex::Host(host), at, rank::CALL, by, event);
    }

    /// A slice has passed its hop.
    pub(crate) fn slice_passed(&mut self, application: &mut impl Application<S>, index: u32) {
        match self.endpoints.buses.pass(index) {
            Some(token) => application.carried(self, token),
            None => self.serve_slice(index),
        }
    }
}

/// The moment `span` before `at`, or the start of time.
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
