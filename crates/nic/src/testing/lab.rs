//! The lab: NICs, memory, a clock, and a wire between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;

use railnet_core::event::Sink;
use railnet_core::{Psn, QueuePairNumber, Random, Rate, Span, Time};
use railnet_wire::{
    EtherType, Ethernet, Extension, Framing, Gid, HEADROOM, Headers, Lid, Mac, Network, forward_infiniband,
    router,
};

use crate::completion::{Completion, CompletionQueue};
use crate::config::{Mtu, NicConfig};
use crate::context::Context;
use crate::frame::{self, Front, Sent, WireForm};
use crate::memory::{GhostRuns, Segments};
use crate::nic::Nic;
use crate::packet::{Inbound, OutboundPayload, Payload, Transmit, reframed, wire_bytes};
use crate::queue_pair::{Attributes, Connection};
use crate::schedule::Priorities;

/// What the wire does to packets, each in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Lost.
    pub loss: u32,
    /// Delivered twice.
    pub duplicate: u32,
    /// Held back so that later ones overtake it.
    pub reorder: u32,
    /// Held back for long.
    pub delay: u32,
    /// A bit is flipped.
    pub corrupt: u32,
    /// Marked as having met congestion.
    pub mark: u32,
}

/// What the wire did to packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Injected {
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that a judge or an outage took away.
    pub cut: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back so that later ones overtake them.
    pub reordered: u64,
    /// Held back for long.
    pub delayed: u64,
    /// With a bit flipped.
    pub corrupted: u64,
    /// Marked as having met congestion.
    pub marked: u64,
}

/// A time in which nothing gets through to or from a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The NIC.
    pub nic: usize,
    /// The first moment of it.
    pub from: Time,
    /// The first moment after it.
    pub until: Time,
}

/// What becomes of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It arrives.
    Deliver,
    /// It is lost.
    Lose,
}

/// A packet that was seen on the wire.
#[derive(Clone, Debug)]
pub struct Tapped {
    /// When it left.
    pub at: Time,
    /// Which NIC sent it.
    pub from: usize,
    /// The frame.
    pub frame: Vec<u8>,
    /// It does not arrive.
    pub lost: bool,
}

#[derive(Clone, Debug)]
enum Cargo {
    Bytes(Vec<u8>),
    Ghost(GhostRuns),
}

#[derive(Clone, Debug)]
enum Carried {
    Values {
        network: Network,
        headers: Headers,
        extension: Option<Box<Extension>>,
        payload: Cargo,
        intact: bool,
    },
    /// The frame, and beside it what ghost payload it stands for. Once a bit of it was flipped, also what it was:
    /// whoever finds the damage reports it under that name in both forms.
    Frame {
        bytes: Vec<u8>,
        ghost: Option<GhostRuns>,
        network: Network,
        headers: Headers,
        extension: Option<Box<Extension>>,
        damaged: bool,
    },
}

#[derive(Debug)]
struct Flight {
    at: Time,
    sequence: u64,
    to: usize,
    carried: Carried,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Decides what becomes of each packet.
type Judge = Box<dyn FnMut(Time, usize, &Transmit) -> Fate>;

/// NICs, memory, a clock, and a wire.
pub struct Lab<S> {
    /// The present.
    pub now: Time,
    /// The NICs; number i has the address [`loopback_gid`]`(i)`.
    pub nics: Vec<Nic>,
    /// All memory.
    pub memory: Segments,
    /// Where events go.
    pub sink: S,
    /// The time from leaving a NIC to arriving at another.
    pub latency: Span,
    /// The rate of every port.
    pub rate: Rate,
    /// What the wire does to packets.
    pub faults: Faults,
    /// When which NIC is cut off.
    pub outages: Vec<Outage>,
    /// How packets travel.
    pub form: WireForm,
    /// What carries them. The NICs' configuration says the same.
    pub framing: Framing,
    /// What was seen on the wire, when the tap is open.
    pub tap: Option<Vec<Tapped>>,
    /// Packets delivered.
    pub delivered: u64,
    /// What the wire did to packets.
    pub injected: Injected,
    judge: Option<Judge>,
    random: Random,
    port_free: Vec<Time>,
    in_flight: BinaryHeap<Reverse<Flight>>,
    sequence: u64,
    spare: Vec<Vec<u8>>,
}

/// The address of NIC number `index` of a lab.
pub fn loopback_gid(index: usize) -> Gid {
    Gid::from_ipv4(Ipv4Addr::new(10, 0, (index >> 8) as u8, (index & 255) as u8 + 1))
}

fn mac(index: usize) -> Mac {
    Mac([0x02, 0, 0, 0, (index >> 8) as u8, index as u8])
}

impl<S: Sink> Lab<S> {
    /// A lab with these NICs on a good wire: 100 Gb/s, 1 µs.
    pub fn new(nics: Vec<Nic>, seed: u64, sink: S) -> Self {
        Self {
            now: Time::ZERO,
            port_free: vec![Time::ZERO; nics.len()],
            nics,
            memory: Segments::new(),
            sink,
            latency: Span::from_us(1),
            rate: Rate::gbps(100),
            faults: Faults::default(),
            outages: Vec::new(),
            form: WireForm::Values,
            framing: Framing::RoceV2,
            tap: None,
            delivered: 0,
            injected: Injected::default(),
            judge: None,
            random: Random::stream(seed, "wire", 0),
            in_flight: BinaryHeap::new(),
            sequence: 0,
            spare: Vec::new(),
        }
    }

    /// The usual configuration of NIC number `index` of a lab.
    pub fn nic_config(index: usize, seed: u64) -> NicConfig {
        NicConfig::new(railnet_core::Component(index as u32), seed, loopback_gid(index))
    }

    /// Lets `judge` decide about every packet as it leaves.
    pub fn set_judge(&mut self, judge: impl FnMut(Time, usize, &Transmit) -> Fate + 'static) {
        self.judge = Some(Box::new(judge));
    }

    /// A NIC, with what to lend to its calls.
    pub fn nic(&mut self, index: usize) -> (&mut Nic, Context<'_, Segments, S>) {
        (&mut self.nics[index], Context::new(self.now, &mut self.memory, &mut self.sink))
    }

    /// All completions that wait on a queue.
    pub fn completions(&mut self, nic: usize, queue: CompletionQueue) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut some = [Completion::EMPTY; 16];
        loop {
            let count = self.nics[nic].poll_cq(queue, &mut some);
            all.extend_from_slice(&some[..count]);
            if count < some.len() {
                return all;
            }
        }
    }

    /// Sends what can be sent now.
    fn pump(&mut self) {
        for index in 0..self.nics.len() {
            while self.port_free[index] <= self.now {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.clear();
                buffer.resize(HEADROOM, 0);
                let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
                match self.nics[index].poll_transmit(&mut cx, 0, Priorities::ALL, &mut buffer) {
                    Some(transmit) => self.launch(index, transmit, buffer),
                    None => {
                        self.spare.push(buffer);
                        break;
                    }
                }
            }
        }
    }

    fn launch(&mut self, from: usize, transmit: Transmit, buffer: Vec<u8>) {
        let length = transmit.payload.length();
        let added = transmit.extension().length();
        let occupied =
            self.rate.serialize(reframed(wire_bytes(&transmit.headers, added, length), self.framing));
        self.port_free[from] = self.now + occupied;
        let judged = self.judge.as_mut().map_or(Fate::Deliver, |judge| judge(self.now, from, &transmit));
        let target = transmit.network.target;
        let to = (0..self.nics.len()).find(|&index| loopback_gid(index) == target);
        let is_cut = |nic: usize| {
            let during = |outage: &&Outage| (outage.from..outage.until).contains(&self.now);
            self.outages.iter().filter(during).any(|outage| outage.nic == nic)
        };
        let cut = judged == Fate::Lose || is_cut(from) || to.is_none_or(is_cut);
        let lost = !cut && self.random.chance(self.faults.loss);
        self.injected.cut += u64::from(cut);
        self.injected.lost += u64::from(lost);
        let covered = frame::covered_bits(&transmit.headers, transmit.extension(), length);
        let mut carried = self.load(from, to.unwrap_or(from), transmit, buffer, cut || lost);
        let Some(to) = to.filter(|_| !cut && !lost) else {
            self.recycle(carried);
            return;
        };
        if self.random.chance(self.faults.mark) {
            self.injected.marked += u64::from(mark(&mut carried, self.framing));
        }
        if self.random.chance(self.faults.corrupt) {
            // Both forms draw the same random numbers, so that both run the same course.
            let bit = self.random.below(covered);
            corrupt(&mut carried, self.framing, bit);
            self.injected.corrupted += 1;
        }
        let mut at = self.now + occupied + self.latency;
        if self.random.chance(self.faults.reorder) {
            at += self.latency * self.random.between(1, 4) / 2;
            self.injected.reordered += 1;
        }
        if self.random.chance(self.faults.delay) {
            at += self.latency * self.random.between(5, 100);
            self.injected.delayed += 1;
        }
        if self.random.chance(self.faults.duplicate) {
            let again = at + self.latency * self.random.between(0, 20) / 4;
            self.fly(again, to, carried.clone());
            self.injected.duplicated += 1;
        }
        self.fly(at, to, carried);
    }

    /// Puts a packet in the form in which it travels.
    fn load(
        &mut self,
        from: usize,
        to: usize,
        transmit: Transmit,
        mut buffer: Vec<u8>,
        lost: bool,
    ) -> Carried {
        let needs_frame = self.form == WireForm::Bytes || self.tap.is_some();
        let Transmit { network, headers, extension, payload, .. } = transmit;
        let ghost = match payload {
            OutboundPayload::Bytes(_) => None,
            OutboundPayload::Ghost(runs) => Some(runs),
        };
        if !needs_frame {
            let payload = match ghost {
                Some(runs) => {
                    self.spare.push(buffer);
                    Cargo::Ghost(runs)
                }
                None => Cargo::Bytes(buffer),
            };
            return Carried::Values { network, headers, extension, payload, intact: true };
        }
        let front = self.front(from, to, &network);
        let payload = self.form == WireForm::Values;
        let plain = payload.then(|| buffer.clone());
        let blocks = extension.as_deref().unwrap_or(&Extension::NONE);
        let start = frame::emit(&mut buffer, &front, &headers, blocks, ghost.as_deref());
        if let Some(tap) = &mut self.tap {
            tap.push(Tapped { at: self.now, from, frame: buffer[start..].to_vec(), lost });
        }
        match plain {
            Some(plain) => {
                let payload = ghost.map_or(Cargo::Bytes(plain), Cargo::Ghost);
                Carried::Values { network, headers, extension, payload, intact: true }
            }
            None => {
                buffer.drain(..start);
                Carried::Frame { bytes: buffer, ghost, network, headers, extension, damaged: false }
            }
        }
    }

    /// The headers in front of a packet: ports have the LIDs 1, 2, 3, and so on.
    fn front(&self, from: usize, to: usize, network: &Network) -> Front {
        let ends = [from, to].map(mac);
        match self.framing {
            Framing::RoceV2 => {
                let [source, target] = ends;
                Front::Ip(Ethernet { target, source, vlan: None, ether_type: EtherType::IPV4 }, *network)
            }
            Framing::RoceV1 => Front::roce_v1(ends, network, 0),
            Framing::Infiniband => Front::infiniband([from, to].map(|index| Lid(index as u16 + 1)), 0, 0),
        }
    }

    fn fly(&mut self, at: Time, to: usize, carried: Carried) {
        self.sequence += 1;
        self.in_flight.push(Reverse(Flight { at, sequence: self.sequence, to, carried }));
    }

    fn recycle(&mut self, carried: Carried) {
        if let Carried::Values { payload: Cargo::Bytes(bytes), .. } | Carried::Frame { bytes, .. } = carried {
            self.spare.push(bytes);
        }
    }

    fn arrive(&mut self, flight: Flight) {
        self.delivered += 1;
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
        let nic = &mut self.nics[flight.to];
        match &flight.carried {
            Carried::Values { network, headers, extension, payload, intact } => {
                let extension = extension.as_deref();
                let payload = match payload {
                    Cargo::Bytes(bytes) => Payload::Bytes(&bytes[HEADROOM..]),
                    Cargo::Ghost(runs) => Payload::Ghost(runs),
                };
                let inbound = Inbound { network, headers, extension, payload, intact: *intact };
                let _ = nic.receive(&mut cx, &inbound);
            }
            Carried::Frame { bytes, ghost, network, headers, damaged, .. } => {
                let (framing, is_damaged) = (self.framing, *damaged);
                let sent = Sent { ghost: ghost.as_deref(), network, headers, framing, is_damaged };
                let _ = frame::deliver(nic, &mut cx, bytes, &sent);
            }
        }
        self.recycle(flight.carried);
    }

    /// When something happens next.
    pub fn next_time(&self) -> Option<Time> {
        let arrival = self.in_flight.peek().map(|Reverse(flight)| flight.at);
        let timers = self.nics.iter().filter_map(|nic| nic.poll_timeout().map(|(at, _)| at));
        let ports = self.port_free.iter().copied().filter(|&at| at > self.now);
        arrival.into_iter().chain(timers).chain(ports).min()
    }

    /// Does what happens next. `false` when nothing will.
    pub fn step(&mut self) -> bool {
        self.step_until(Time::NEVER)
    }

    /// Does what happens next, or waits until `limit` when that comes first. `false` when nothing will happen and
    /// there is no limit to wait for.
    pub fn step_until(&mut self, limit: Time) -> bool {
        self.pump();
        let Some(next) = self.next_time().filter(|&next| next <= limit) else {
            if limit.is_set() {
                self.now = self.now.max(limit);
            }
            return limit.is_set();
        };
        self.now = self.now.max(next);
        while let Some(Reverse(flight)) = self.in_flight.peek()
            && flight.at <= self.now
        {
            let Some(Reverse(flight)) = self.in_flight.pop() else {
                break;
            };
            self.arrive(flight);
        }
        for nic in &mut self.nics {
            if nic.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                nic.handle_timeout(&mut Context::new(self.now, &mut self.memory, &mut self.sink));
            }
        }
        self.pump();
        true
    }

    /// Runs until nothing will happen any more, or until `limit`.
    pub fn run_until(&mut self, limit: Time) {
        self.pump();
        while self.next_time().is_some_and(|next| next <= limit) {
            self.step();
        }
        self.pump();
    }

    /// Runs until nothing will happen any more, for a minute at most.
    pub fn run(&mut self) {
        self.run_until(self.now + Span::from_secs(60));
    }
}

/// Marks an ECN-capable packet; tells whether it was one. RoCE v1 has no place for a mark.
fn mark(carried: &mut Carried, framing: Framing) -> bool {
    if framing == Framing::RoceV1 {
        return false;
    }
    let network = match carried {
        Carried::Values { network, .. } => network,
        Carried::Frame { bytes, network, .. } => {
            match framing {
                Framing::Infiniband => forward_infiniband(bytes, 0, network.ecn() != 0),
                _ => router::mark(bytes).map(|_| ()),
            }
            .expect("the lab made it a moment ago");
            network
        }
    };
    let is_capable = network.ecn() != 0;
    if is_capable {
        network.traffic_class |= 3;
    }
    is_capable
}

/// Flips a bit that the ICRC covers; where a packet travels as values, the mark of a wrong ICRC.
fn corrupt(carried: &mut Carried, framing: Framing, bit: u64) {
    match carried {
        Carried::Values { intact, .. } => *intact = false,
        Carried::Frame { bytes, extension, damaged, .. } => {
            frame::flip(bytes, framing, extension.as_deref().unwrap_or(&Extension::NONE), bit);
            *damaged = true;
        }
    }
}

/// One end of a connection that [`connect`] makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Which NIC.
    pub nic: usize,
    /// The queue pair.
    pub queue_pair: QueuePairNumber,
    /// Its first sequence number.
    pub psn: Psn,
}

/// Connects two reliable queue pairs, RESET to RTS. `adjust` may change the attributes of each step first.
pub fn connect<S: Sink>(
    lab: &mut Lab<S>,
    ends: [Peer; 2],
    mtu: Mtu,
    mut adjust: impl FnMut(usize, &mut Attributes),
) -> Result<(), crate::error::VerbsError> {
    for step in 0..3 {
        for (own, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let connection = Connection {
                mtu,
                send_psn: own.psn,
                receive_psn: other.psn,
                // A lab is quick: 1 ms is a long time without an answer.
                timeout: 8,
                ..Connection::to(loopback_gid(other.nic), other.queue_pair)
            };
            let mut change = connection.transitions()[step];
            adjust(own.nic, &mut change);
            let (nic, mut cx) = lab.nic(own.nic);
            nic.modify_qp(&mut cx, own.queue_pair, &change)?;
        }
    }
    Ok(())
}

impl<S> std::fmt::Debug for Lab<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("now", &self.now).field("nics", &self.nics.len()).finish_non_exhaustive()
    }
}
