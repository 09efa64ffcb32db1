//! From a seed to a plan.
//!
//! Operations that run at the same time get targets of their own: the specification orders nothing between them.
//! Where memory is used again it is by the same queue pair, in an order that the transport guarantees: WRITE after
//! WRITE, READ after WRITE, and WRITE after READ behind a fence.

use railnet_core::{Psn, Random, Rate, Span, Time};

use super::plan::{
    Act, Area, Buffer, End, Ending, Job, KeyChoice, NicPlan, POOL, Piece, Plan, Scenario, recovery,
};
use crate::completion::Status;
use crate::config::{AckRequests, Behaviour, Mtu, ack_timeout, rnr_wait};
use crate::queue_pair::Service;
use crate::region::Access;
use crate::testing::{Faults, Outage};
use railnet_wire::{GRH_LENGTH, NakCode};

/// A message is no longer than this many packets.
const PACKETS_MAX: u64 = 24;
/// The longest inline message.
pub(super) const INLINE_MAX: u32 = 128;
/// Scatter and gather entries of a work request.
pub(super) const PIECES_MAX: u64 = 4;

/// How bad the wire is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    Clean,
    /// So mild that seven retries do not run out.
    Mild,
    Heavy,
}

/// What has been handed out of a NIC's memory.
struct Arena {
    data: u64,
    control: u64,
}

struct Generator {
    random: Random,
    scenario: Scenario,
    /// Retries never run out.
    endless: bool,
    weather: Weather,
    arenas: Vec<Arena>,
    nics: Vec<NicPlan>,
    ends: Vec<End>,
    common_counters: Vec<(usize, Piece)>,
    victim: usize,
}

/// The plan of a seed.
pub(super) fn plan(seed: u64) -> Plan {
    let mut random = Random::stream(seed, "storm", 0);
    let scenario = match random.below(100) {
        0..50 => Scenario::None,
        50..62 => Scenario::Rough,
        _ => *random.pick(&Scenario::ALL[2..]),
    };
    let endless = scenario == Scenario::None && random.chance(400_000);
    let weather = match (scenario, random.below(4)) {
        (Scenario::Rough, _) => Weather::Heavy,
        (_, 0) => Weather::Clean,
        _ if endless => Weather::Heavy,
        _ => Weather::Mild,
    };
    let generator = Generator {
        random,
        scenario,
        endless,
        weather,
        arenas: Vec::new(),
        nics: Vec::new(),
        ends: Vec::new(),
        common_counters: Vec::new(),
        victim: 0,
    };
    generator.generate(seed)
}

impl Generator {
    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    /// A time up to `limit`, short ones as likely as long ones.
    fn moment(&mut self, limit: Span) -> Span {
        let ceiling = limit.as_ps() >> self.random.below(8);
        Span::from_ps(self.random.below(ceiling.max(1)))
    }

    fn generate(mut self, seed: u64) -> Plan {
        let ghost = self.one_in(4);
        let nics = self.random.between(2, 4) as usize;
        let credits = self.one_in(6);
        let has_control = self.one_in(5);
        for _ in 0..nics {
            let nic = self.nic(seed, credits, has_control);
            self.nics.push(nic);
            self.arenas.push(Arena { data: POOL, control: 64 });
        }
        if self.scenario == Scenario::None && self.one_in(2) {
            let owner = self.random.below(nics as u64) as usize;
            let counter = self.counter(owner);
            self.common_counters.push((owner, counter));
        }
        for _ in 0..self.random.between(1, 3) {
            self.connection(Service::ReliableConnection);
        }
        let reliable = self.ends.len();
        if self.one_in(3) {
            self.connection(Service::UnreliableConnection);
        }
        if self.one_in(4) {
            self.datagrams();
        }
        // The first side of a connection has work to do; the second may have none.
        self.victim = 2 * self.random.below(reliable as u64 / 2) as usize;
        self.provoke();
        self.signal();
        self.receives();
        let (faults, latency) = (self.faults(), Span::from_ns(self.random.between(300, 3_000)));
        let outages = self.outages();
        self.finish_culprit();
        for (nic, arena) in self.nics.iter_mut().zip(&self.arenas) {
            nic.data_bytes = arena.data + 64;
            nic.control_bytes = arena.control + 64;
        }
        self.place_out_of_range();
        let strikes = Time::ZERO + self.moment(Span::from_us(400));
        let rate = Rate::gbps(*self.random.pick(&[10, 100, 400]));
        let deadline = self.deadline(&outages);
        Plan {
            seed,
            scenario: self.scenario,
            victim: self.victim,
            strikes,
            ghost,
            nics: self.nics,
            ends: self.ends,
            common_counters: self.common_counters,
            faults,
            outages,
            latency,
            rate,
            deadline,
        }
    }

    fn nic(&mut self, seed: u64, credits: bool, has_control: bool) -> NicPlan {
        let mut behaviour = *self.random.pick(&[Behaviour::SPECIFICATION, Behaviour::RXE]);
        if self.one_in(2) {
            behaviour.ack_requests =
                AckRequests { every_message: self.one_in(2), interval: *self.random.pick(&[1, 3, 16, 64]) };
            behaviour.coalesce_acks = self.one_in(2);
            behaviour.rnr_nak_acknowledges = self.one_in(2);
            behaviour.sequence_nak_after_rnr = self.one_in(2);
            behaviour.replay_starts_message = self.one_in(2);
            behaviour.unacked_packets_max = *self.random.pick(&[2, 16, 128, Psn::WINDOW - 1]);
            behaviour.rnr_tick = Span::from_us(*self.random.pick(&[1, 100]));
        }
        behaviour.retry_seven_is_infinite = self.endless;
        behaviour.credits = credits && !self.one_in(3);
        NicPlan {
            behaviour,
            has_control: has_control && !self.one_in(3),
            burst: *self.random.pick(&[1, 2, 16, 64]),
            recovery: recovery(seed, *self.random.pick(&[0, 0, 0, 3, 64])),
            data_bytes: 0,
            control_bytes: 0,
            shared: Vec::new(),
        }
    }

    /// Memory that nobody else gets, with a guard in front of it.
    fn fresh(&mut self, nic: usize, length: u32) -> Piece {
        let gap = self.random.between(8, 72);
        let arena = &mut self.arenas[nic];
        let offset = arena.data + gap;
        arena.data = offset + u64::from(length);
        Piece { area: Area::Data, offset, length }
    }

    fn counter(&mut self, nic: usize) -> Piece {
        let arena = &mut self.arenas[nic];
        let offset = arena.control.next_multiple_of(8) + 8;
        arena.control = offset + 16;
        Piece { area: Area::Control, offset, length: 8 }
    }

    /// Where in the pool a message may be read from.
    fn in_pool(&mut self, length: u32) -> Piece {
        let offset = self.random.below(POOL - u64::from(length) + 1);
        Piece { area: Area::Data, offset, length }
    }

    /// Cuts a length in a random number of parts, some of them empty.
    fn parts(&mut self, length: u32) -> Vec<u32> {
        let count = if self.one_in(3) { self.random.between(1, PIECES_MAX) } else { 1 };
        if length == 0 && self.one_in(2) {
            return Vec::new();
        }
        let mut left = length;
        let mut parts: Vec<u32> = (1..count)
            .map(|_| {
                let part = self.random.between(0, u64::from(left)) as u32;
                left -= part;
                part
            })
            .collect();
        parts.push(left);
        parts
    }

    fn sources(&mut self, length: u32) -> Vec<Piece> {
        let parts = self.parts(length);
        parts.into_iter().map(|part| self.in_pool(part)).collect()
    }

    fn targets(&mut self, nic: usize, length: u32) -> Vec<Piece> {
        let parts = self.parts(length);
        parts.into_iter().map(|part| self.fresh(nic, part)).collect()
    }

    fn length(&mut self, mtu: Mtu) -> u32 {
        let mtu = u64::from(mtu.bytes());
        let length = match self.random.below(20) {
            0 => 0,
            1..6 => self.random.between(1, 64),
            6..12 => self.random.between(1, mtu),
            12..14 => mtu * self.random.between(1, 4),
            14..19 => self.random.between(1, mtu * 6),
            _ => self.random.between(1, mtu * PACKETS_MAX),
        };
        length as u32
    }

    fn connection(&mut self, service: Service) {
        let first = self.random.below(self.nics.len() as u64) as usize;
        let step = 1 + self.random.below(self.nics.len() as u64 - 1) as usize;
        let nics = [first, (first + step) % self.nics.len()];
        let mtu = match self.random.below(6) {
            0 => Mtu::of_payload(4 * self.random.between(16, 1024) as u32).expect("it is within the limits"),
            _ => *self.random.pick(&Mtu::ALL),
        };
        let reads = [self.random.between(1, 16) as u8, self.random.between(1, 16) as u8];
        let base = self.ends.len();
        let allowed =
            if service == Service::ReliableConnection { *self.random.pick(&[8, 36, 80]) } else { 16 };
        let jobs = [self.random.between(3, allowed), self.random.between(0, allowed)];
        for side in 0..2 {
            let window = self.random.between(1, 48) as usize;
            let psn = match self.random.below(3) {
                0 => Psn::MASK - self.random.below(64) as u32,
                _ => self.random.next_u32() & Psn::MASK,
            };
            let strict = self.scenario == Scenario::None;
            let end = End {
                nic: nics[side],
                peer: base + 1 - side,
                service,
                mtu,
                psn: Psn::new(psn),
                timeout: self.random.between(7, 10) as u8,
                retry_count: 7,
                rnr_retry: 7,
                min_rnr_timer: self.random.between(1, 14) as u8,
                // What one side starts the other must have room for.
                initiator_reads: reads[side],
                destination_reads: reads[1 - side] + self.random.below(3) as u8,
                access: Access::ALL,
                shared: strict && service == Service::ReliableConnection && self.one_in(4),
                signal_all: self.one_in(6),
                window,
                send_depth: if self.one_in(5) { window.div_ceil(2) as u32 } else { 64 },
                own_queues: self.one_in(2),
                tiny_queue: None,
                jobs: Vec::new(),
                receives: Vec::new(),
                ending: Ending::default(),
            };
            self.ends.push(end);
        }
        for (end, count) in (base..).zip(jobs) {
            self.jobs(end, count as usize);
        }
    }

    /// Fills the send queue of an end.
    fn jobs(&mut self, end: usize, count: usize) {
        let counter = self.counter(self.ends[self.ends[end].peer].nic);
        let signaled_in_ten = *self.random.pick(&[2, 5, 10]);
        let is_reliable = self.ends[end].service == Service::ReliableConnection;
        let mut written = Vec::new();
        let mut is_bound = false;
        for index in 0..count {
            let mut job = if is_reliable {
                self.reliable_job(end, index, counter, &mut written, &mut is_bound)
            } else {
                self.unreliable_job(end, index)
            };
            job.signaled = self.random.below(10) < signaled_in_ten;
            self.ends[end].jobs.push(job);
        }
    }

    /// What the application cannot know to be done it cannot wait for: something must be signalled often enough.
    fn signal(&mut self) {
        for end in &mut self.ends {
            let mut silent = 0;
            for index in 0..end.jobs.len() {
                let needed = end.jobs.get(index + 1).is_none_or(|next| next.waits);
                silent += 1;
                if needed || silent * 2 >= end.window {
                    end.jobs[index].signaled = true;
                }
                if end.jobs[index].signaled {
                    silent = 0;
                }
            }
        }
    }

    fn blank_job(&mut self, act: Act, length: u32) -> Job {
        Job {
            act,
            pieces: Vec::new(),
            inline: None,
            length,
            signaled: true,
            solicited: self.one_in(4),
            fence: self.one_in(8),
            waits: self.one_in(30),
            delay: if self.one_in(20) { self.moment(Span::from_us(300)) } else { Span::ZERO },
            remote_key: KeyChoice::Good,
            local_key: KeyChoice::Good,
        }
    }

    /// A job that carries data out of the pool, or out of itself.
    fn outgoing(&mut self, act: Act, length: u32) -> Job {
        let mut job = self.blank_job(act, length);
        if length <= INLINE_MAX && self.one_in(4) {
            job.inline = Some((0..length).map(|_| self.random.next_u32() as u8).collect());
        } else {
            job.pieces = self.sources(length);
        }
        job
    }

    fn immediate(&mut self, end: usize, index: usize) -> Option<u32> {
        self.one_in(3).then_some((end as u32) << 16 | index as u32)
    }

    fn reliable_job(
        &mut self,
        end: usize,
        index: usize,
        counter: Piece,
        written: &mut Vec<(Piece, bool)>,
        is_bound: &mut bool,
    ) -> Job {
        let (own, peer) = (self.ends[end].nic, self.ends[self.ends[end].peer].nic);
        let length = self.length(self.ends[end].mtu);
        // Where something may fail, memory is used once: what is left in it then tells how far each job came.
        let reuse = self.scenario == Scenario::None && self.one_in(5);
        match self.random.below(20) {
            0..6 => {
                let immediate = self.immediate(end, index);
                self.outgoing(Act::Send(immediate), length)
            }
            6..12 => {
                let immediate = self.immediate(end, index);
                let mut fence = false;
                let target = match written.len() {
                    known @ 1.. if reuse => {
                        let place = self.random.below(known as u64) as usize;
                        fence = std::mem::take(&mut written[place].1);
                        written[place].0
                    }
                    _ => {
                        let target = self.fresh(peer, length);
                        written.push((target, false));
                        target
                    }
                };
                let target = Piece { length: target.length.min(length), ..target };
                let mut job = self.outgoing(Act::Write(target, immediate), target.length);
                job.fence |= fence;
                job
            }
            12..16 => {
                let source = match written.len() {
                    known @ 1.. if reuse => {
                        let place = self.random.below(known as u64) as usize;
                        written[place].1 = true;
                        written[place].0
                    }
                    _ => self.in_pool(length),
                };
                let mut job = self.blank_job(Act::Read(source), source.length);
                job.pieces = self.targets(own, source.length);
                job
            }
            16..19 => self.atomic(own, peer, counter),
            _ => {
                let act = if *is_bound { Act::Invalidate } else { Act::Bind(self.random.next_u32() as u8) };
                *is_bound = !*is_bound;
                self.blank_job(act, 0)
            }
        }
    }

    fn atomic(&mut self, own: usize, peer: usize, counter: Piece) -> Job {
        let common = self.common_counters.iter().find(|(owner, _)| *owner == peer).copied();
        // Small numbers, so that some comparisons find what they look for; where something may fail, large ones, so
        // that no value comes back and the last one tells how many were carried out.
        let values = if self.scenario == Scenario::None { 3 } else { 1 << 60 };
        let act = match (self.random.below(4), common) {
            (0 | 1, Some((_, at))) => Act::FetchAdd { at, add: self.random.next_u64() | 1 },
            (0 | 2, _) => Act::FetchAdd { at: counter, add: self.random.below(values) },
            _ => Act::CompareSwap {
                at: counter,
                compare: self.random.below(3),
                swap: self.random.below(values),
            },
        };
        let mut job = self.blank_job(act, 8);
        let arena = &mut self.arenas[own];
        let first = self.random.between(1, 8);
        for length in [first, 8 - first] {
            let offset = arena.control + self.random.between(8, 20);
            arena.control = offset + length;
            if length > 0 {
                job.pieces.push(Piece { area: Area::Control, offset, length: length as u32 });
            }
        }
        job
    }

    fn unreliable_job(&mut self, end: usize, index: usize) -> Job {
        let peer = self.ends[self.ends[end].peer].nic;
        let length = self.length(self.ends[end].mtu);
        let immediate = self.immediate(end, index);
        if self.one_in(2) {
            self.outgoing(Act::Send(immediate), length)
        } else {
            let target = self.fresh(peer, length);
            let mut job = self.outgoing(Act::Write(target, immediate), length);
            // Nobody is told when it is refused: it is lost like any other.
            if length > 0 && self.one_in(8) {
                job.remote_key = KeyChoice::Unknown;
            }
            job
        }
    }

    fn datagrams(&mut self) {
        let count = self.random.between(2, self.nics.len() as u64) as usize;
        let base = self.ends.len();
        for nic in 0..count {
            let end = End {
                nic,
                peer: base + nic,
                service: Service::Datagram,
                mtu: Mtu::Mtu4096,
                psn: Psn::new(self.random.next_u32() & Psn::MASK),
                timeout: 8,
                retry_count: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
                initiator_reads: 0,
                destination_reads: 0,
                access: Access::NONE,
                shared: false,
                signal_all: self.one_in(4),
                window: self.random.between(1, 16) as usize,
                send_depth: 64,
                own_queues: self.one_in(2),
                tiny_queue: None,
                jobs: Vec::new(),
                receives: Vec::new(),
                ending: Ending::default(),
            };
            self.ends.push(end);
        }
        for end in base..base + count {
            for index in 0..self.random.between(1, 12) as usize {
                let to = base + (end - base + 1 + self.random.below(count as u64 - 1) as usize) % count;
                let immediate = self.immediate(end, index);
                let length = self.length(Mtu::Mtu1024).min(4096);
                let job = self.outgoing(Act::Datagram { to, immediate }, length);
                self.ends[end].jobs.push(job);
            }
        }
    }

    /// Makes the victim's job go wrong, and says what may come of it.
    fn provoke(&mut self) {
        let (victim, peer) = (self.victim, self.ends[self.victim].peer);
        if self.scenario == Scenario::None {
            return;
        }
        let whole_seed = matches!(self.scenario, Scenario::Rough | Scenario::CutOff);
        for index in 0..self.ends.len() {
            let end = &self.ends[index];
            if end.service != Service::ReliableConnection {
                continue;
            }
            let cut = self.ends[victim].nic;
            let touched = match self.scenario {
                Scenario::CutOff => end.nic == cut || self.ends[end.peer].nic == cut,
                _ => whole_seed || index == victim || index == peer,
            };
            if touched {
                let retries = self.random.between(2, 7) as u8;
                self.ends[index].retry_count = retries;
                self.ends[index].ending.may_fail = true;
            }
        }
        let statuses = match self.scenario {
            Scenario::WrongKey
            | Scenario::NoPermission
            | Scenario::OutOfRange
            | Scenario::TargetDeregistered => vec![Status::RemoteAccess],
            Scenario::Misaligned => vec![Status::RemoteInvalidRequest],
            Scenario::NoAccess | Scenario::TooSmall => {
                let behaviour = &self.nics[self.ends[peer].nic].behaviour;
                let code = match self.scenario {
                    Scenario::NoAccess => behaviour.access_flag_nak,
                    _ => behaviour.receive_too_small_nak,
                };
                vec![match code {
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational => Status::RemoteOperation,
                    _ => Status::RemoteInvalidRequest,
                }]
            }
            Scenario::NoReceive => vec![Status::RnrRetryExceeded],
            Scenario::WrongLocalKey | Scenario::SourceDeregistered => vec![Status::LocalProtection],
            _ => Vec::new(),
        };
        self.ends[victim].ending.statuses = statuses;
        match self.scenario {
            Scenario::ModifiedToError | Scenario::QueueOverflow => self.ends[victim].ending.flushed = true,
            Scenario::Rough | Scenario::CutOff | Scenario::Destroyed => {}
            Scenario::TargetDeregistered => {
                self.ends[peer].ending.flushed = true;
                for job in &mut self.ends[victim].jobs {
                    if matches!(job.act, Act::Write(..) | Act::Read(_)) {
                        job.remote_key = KeyChoice::Fleeting;
                    }
                }
            }
            Scenario::SourceDeregistered => {
                for job in &mut self.ends[victim].jobs {
                    job.local_key = KeyChoice::Fleeting;
                }
            }
            _ => self.culprit(),
        }
        if self.scenario == Scenario::QueueOverflow {
            let end = &mut self.ends[victim];
            // Nobody sees a completion, so nothing must wait for one.
            (end.signal_all, end.window, end.send_depth) = (true, end.jobs.len(), end.jobs.len() as u32);
            end.tiny_queue = Some(self.random.between(1, end.jobs.len() as u64 - 1) as u32);
            for job in &mut end.jobs {
                job.waits = false;
            }
        }
    }

    /// Puts the job that must fail into the victim's queue.
    fn culprit(&mut self) {
        let (victim, peer) = (self.victim, self.ends[self.victim].peer);
        let (own_nic, peer_nic) = (self.ends[victim].nic, self.ends[peer].nic);
        let place = self.random.below(self.ends[victim].jobs.len() as u64) as usize;
        let length = self.length(self.ends[victim].mtu).max(2);
        let refused_at_target = !matches!(self.scenario, Scenario::NoReceive | Scenario::WrongLocalKey);
        let reads = self.one_in(2);
        let mut job = match self.scenario {
            Scenario::TooSmall | Scenario::NoReceive => self.outgoing(Act::Send(None), length),
            Scenario::Misaligned => {
                let at = self.counter(peer_nic);
                let mut job = self.atomic(own_nic, peer_nic, at);
                let off = Piece { offset: at.offset + self.random.between(1, 7), ..at };
                job.act = Act::FetchAdd { at: off, add: 1 };
                job
            }
            _ if reads => {
                let source = self.in_pool(length);
                let mut job = self.blank_job(Act::Read(source), length);
                job.pieces = vec![self.fresh(own_nic, length)];
                job
            }
            _ => {
                let target = self.fresh(peer_nic, length);
                let mut job = self.blank_job(Act::Write(target, None), length);
                job.pieces = vec![self.in_pool(length)];
                job
            }
        };
        match self.scenario {
            Scenario::WrongKey => job.remote_key = KeyChoice::Unknown,
            Scenario::NoPermission => job.remote_key = KeyChoice::NoRights,
            Scenario::WrongLocalKey => job.local_key = KeyChoice::Unknown,
            Scenario::NoAccess => {
                let is_read = matches!(job.act, Act::Read(_));
                let denied = if is_read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
                self.ends[peer].access = Access::from_bits(Access::ALL.bits() & !denied.bits());
                self.ends[victim].jobs.retain(|job| match job.act {
                    Act::Read(_) => !is_read,
                    Act::Write(..) => is_read,
                    _ => true,
                });
            }
            Scenario::NoReceive => self.ends[victim].rnr_retry = self.random.below(4) as u8,
            _ => {}
        }
        job.signaled = self.one_in(2);
        let jobs = &mut self.ends[victim].jobs;
        let place = place.min(jobs.len());
        jobs.insert(place, job);
        self.ends[victim].ending.culprit = Some(place);
        self.ends[peer].ending.flushed = refused_at_target;
        if self.scenario == Scenario::TooSmall {
            let code = self.nics[peer_nic].behaviour.receive_too_small_nak;
            self.ends[peer].ending.receive_status = Some(match code {
                NakCode::RemoteOperational => Status::LocalOperation,
                _ => Status::LocalLength,
            });
        }
    }

    /// A receive for each message, in time or late.
    fn receives(&mut self) {
        for end in 0..self.ends.len() {
            let nic = self.ends[end].nic;
            let lengths: Vec<u32> = match self.ends[end].service {
                Service::Datagram => {
                    let sent = self.ends.iter().flat_map(|other| &other.jobs);
                    let mine = |job: &&Job| matches!(job.act, Act::Datagram { to, .. } if to == end);
                    sent.filter(mine).map(|job| job.length + GRH_LENGTH as u32).collect()
                }
                _ => {
                    let sender = &self.ends[self.ends[end].peer];
                    sender.messages().map(|index| sender.jobs[index].length).collect()
                }
            };
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let is_reliable = self.ends[end].service == Service::ReliableConnection;
            let is_exact = is_reliable && !self.ends[end].shared;
            // A duplicate takes a receive as well where nothing tells it from a new message.
            let spare = if is_reliable { 0 } else { lengths.len() / 4 };
            let spares = std::iter::repeat_n(longest, spare);
            for needed in lengths.into_iter().chain(spares) {
                let mut length = if is_exact { needed } else { longest };
                if self.one_in(3) {
                    length += self.random.between(1, 100) as u32;
                }
                let pieces = self.targets(nic, length);
                let is_late = is_reliable && self.scenario != Scenario::NoReceive && self.one_in(8);
                let delay = if is_late { self.moment(Span::from_ms(2)) } else { Span::ZERO };
                let buffer = Buffer { pieces, delay };
                if self.ends[end].shared {
                    self.nics[nic].shared.push(buffer);
                } else {
                    self.ends[end].receives.push(buffer);
                }
            }
        }
        self.even_out_shared();
    }

    /// Any message may come to any receive of a shared queue: all must be long enough for the longest.
    fn even_out_shared(&mut self) {
        for nic in 0..self.nics.len() {
            let longest = self.nics[nic].shared.iter().map(Buffer::length).max().unwrap_or(0);
            for index in 0..self.nics[nic].shared.len() {
                let missing = longest - self.nics[nic].shared[index].length();
                if missing > 0 && self.nics[nic].shared[index].pieces.len() < PIECES_MAX as usize {
                    let piece = self.fresh(nic, missing);
                    self.nics[nic].shared[index].pieces.push(piece);
                } else if missing > 0 {
                    let pieces = vec![self.fresh(nic, longest)];
                    self.nics[nic].shared[index].pieces = pieces;
                }
            }
        }
    }

    /// The receive of a culprit is too small, or is not there, nor any after it.
    fn finish_culprit(&mut self) {
        let Some(culprit) = self.ends[self.victim].ending.culprit else {
            return;
        };
        let sender = &self.ends[self.victim];
        let Some(place) = sender.messages().position(|index| index == culprit) else {
            return;
        };
        let (length, nic) = (sender.jobs[culprit].length, self.ends[sender.peer].nic);
        let peer = sender.peer;
        match self.scenario {
            Scenario::TooSmall => {
                let short = self.random.below(u64::from(length)) as u32;
                let pieces = self.targets(nic, short);
                self.ends[peer].receives[place].pieces = pieces;
            }
            Scenario::NoReceive => self.ends[peer].receives.truncate(place),
            _ => {}
        }
    }

    fn place_out_of_range(&mut self) {
        let Some(culprit) = self.ends[self.victim].ending.culprit else {
            return;
        };
        if self.scenario != Scenario::OutOfRange {
            return;
        }
        let bytes = self.nics[self.ends[self.ends[self.victim].peer].nic].data_bytes;
        let inside = self.random.below(u64::from(self.ends[self.victim].jobs[culprit].length));
        if let Act::Read(piece) | Act::Write(piece, _) = &mut self.ends[self.victim].jobs[culprit].act {
            piece.offset = bytes - inside;
        }
    }

    fn faults(&mut self) -> Faults {
        let mut rate = |mild: u64, heavy: u64| {
            let limit = match self.weather {
                Weather::Clean => 0,
                Weather::Mild => mild,
                Weather::Heavy => heavy,
            };
            let drawn = self.random.below(limit + 1) as u32;
            if self.random.below(4) == 0 { 0 } else { drawn }
        };
        Faults {
            loss: rate(8_000, 100_000),
            duplicate: rate(50_000, 100_000),
            reorder: rate(30_000, 100_000),
            delay: rate(10_000, 100_000),
            corrupt: rate(8_000, 100_000),
            mark: rate(100_000, 100_000),
        }
    }

    fn outages(&mut self) -> Vec<Outage> {
        let mut outages = Vec::new();
        if self.scenario == Scenario::CutOff {
            outages.push(Outage {
                nic: self.ends[self.victim].nic,
                from: Time::ZERO + self.moment(Span::from_us(300)),
                until: Time::NEVER,
            });
            return outages;
        }
        if self.weather == Weather::Clean || !self.one_in(3) {
            return outages;
        }
        // Where retries are counted, a silence takes no more than three of them.
        let timeouts = self.ends.iter().filter_map(|end| ack_timeout(end.timeout));
        let shortest = timeouts.min().unwrap_or(Span::from_us(500));
        let longest = if self.endless { Span::from_ms(20) } else { shortest * 2 };
        let from = Time::ZERO + self.moment(Span::from_us(500));
        let until = from + Span::from_ps(self.random.below(longest.as_ps()));
        let nic = self.random.below(self.nics.len() as u64) as usize;
        outages.push(Outage { nic, from, until });
        outages
    }

    /// A time by which even an unlucky run is over.
    fn deadline(&self, outages: &[Outage]) -> Time {
        let mut limit = Span::from_ms(20);
        for end in &self.ends {
            let tick = self.nics.iter().map(|nic| nic.behaviour.rnr_tick).max().unwrap_or(Span::ZERO);
            let slowest = self.ends.iter().map(|end| rnr_wait(end.min_rnr_timer)).max().unwrap_or(Span::ZERO);
            let patience = ack_timeout(end.timeout).unwrap_or(Span::ZERO) * 40 + (slowest + tick) * 40;
            limit += patience * (end.jobs.len() as u64 + 1);
            for job in &end.jobs {
                limit += job.delay;
            }
            for receive in &end.receives {
                limit += receive.delay;
            }
        }
        for receive in self.nics.iter().flat_map(|nic| &nic.shared) {
            limit += receive.delay;
        }
        let quiet = outages.iter().map(|outage| outage.until).filter(|until| until.is_set()).max();
        quiet.unwrap_or(Time::ZERO) + limit
    }
}
