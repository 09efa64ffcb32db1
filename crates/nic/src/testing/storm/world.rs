//! A plan made real: NICs, memory, queue pairs, keys.

use railnet_core::{GhostRun, GhostTag, QueuePairNumber, Random, Rate, Span};

use super::generate::{INLINE_MAX, PIECES_MAX};
use super::plan::{Act, Area, Buffer, End, Job, KeyChoice, POOL, Piece, Plan};
use super::watch::Watch;
use crate::completion::CompletionQueue;
use crate::control::{
    ControlConfig, DcqcnParameters, DctcpParameters, HpccParameters, SwiftParameters, TimelyParameters,
};
use crate::error::VerbsError;
use crate::memory::{Memory, SpaceId};
use crate::nic::Nic;
use crate::queue_pair::{Attributes, Path, QueuePairConfig, Service, SharedReceiveQueue, State};
use crate::region::{Access, Bind, Key};
use crate::testing::{Lab, WireForm, loopback_gid};
use crate::work::{
    AddressHandle, DatagramTarget, Operation, ReceiveRequest, Remote, SendRequest, Sge, SgeList,
};

/// Where each NIC's data begins.
const DATA_BASE: u64 = 0x7f00_0001_0000;
/// Where each NIC's counters begin.
const CONTROL_BASE: u64 = 0x6000;
/// Set in the work ids of receives.
pub(super) const RECEIVE: u64 = 1 << 40;
/// Set in the work ids of receives of a shared queue.
pub(super) const SHARED: u64 = 1 << 41;
/// A key that no NIC hands out.
const UNKNOWN_KEY: Key = Key(0x00ff_ff77);
/// The queue key of all datagram queue pairs.
const QUEUE_KEY: u32 = 0x1122_3344;

/// One queue pair as it came to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handles {
    pub(super) queue_pair: QueuePairNumber,
    pub(super) send_queue: CompletionQueue,
    pub(super) receive_queue: CompletionQueue,
    /// The present key of its window.
    window: Key,
}

/// What a NIC was given.
#[derive(Clone, Debug)]
pub(super) struct Station {
    pub(super) data: SpaceId,
    pub(super) control: SpaceId,
    data_key: Key,
    control_key: Key,
    no_rights_key: Key,
    pub(super) fleeting_key: Key,
    pub(super) shared: Option<SharedReceiveQueue>,
    /// To each NIC.
    addresses: Vec<AddressHandle>,
}

impl Station {
    pub(super) fn space(&self, area: Area) -> SpaceId {
        match area {
            Area::Data => self.data,
            Area::Control => self.control,
        }
    }
}

/// The world of a plan.
pub(super) struct World {
    pub(super) lab: Lab<Watch>,
    pub(super) stations: Vec<Station>,
    pub(super) ends: Vec<Handles>,
}

/// The work id of a job.
pub(super) fn job_work(end: usize, index: usize) -> u64 {
    (end as u64) << 32 | index as u64
}

/// The address of a piece.
pub(super) fn address(piece: Piece) -> u64 {
    piece.offset
        + match piece.area {
            Area::Data => DATA_BASE,
            Area::Control => CONTROL_BASE,
        }
}

fn noise(random: &mut Random, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while (bytes.len() as u64) < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

impl World {
    /// Builds everything up to queue pairs that are ready to send.
    pub(super) fn build(plan: &Plan, form: WireForm) -> Result<Self, VerbsError> {
        let nics = (0..plan.nics.len()).map(|index| make_nic(plan, index)).collect();
        let mut lab = Lab::new(nics, plan.seed, Watch::default());
        lab.faults = plan.faults;
        lab.outages.clone_from(&plan.outages);
        lab.latency = plan.latency;
        lab.rate = plan.rate;
        lab.form = form;
        let mut world = Self { lab, stations: Vec::new(), ends: Vec::new() };
        for nic in 0..plan.nics.len() {
            world.furnish(plan, nic)?;
        }
        for end in &plan.ends {
            world.make_end(plan, end)?;
        }
        for step in 0..3 {
            for index in 0..plan.ends.len() {
                let change = world.transition(plan, index, step);
                let queue_pair = world.ends[index].queue_pair;
                let (nic, mut cx) = world.lab.nic(plan.ends[index].nic);
                nic.modify_qp(&mut cx, queue_pair, &change)?;
            }
        }
        Ok(world)
    }

    fn furnish(&mut self, plan: &Plan, index: usize) -> Result<(), VerbsError> {
        let described = &plan.nics[index];
        let mut random = Random::stream(plan.seed, "storm memory", index as u64);
        let memory = &mut self.lab.memory;
        let data = if plan.ghost {
            let space = memory.add_ghost(DATA_BASE, described.data_bytes);
            let (sum, origin) = (u128::from(random.next_u64()) << 40 | 1, random.next_u64());
            let tag = GhostTag { sum, origin };
            let length = POOL as u32;
            memory.write_ghost(space, DATA_BASE, GhostRun { tag, length });
            space
        } else {
            memory.add_bytes(DATA_BASE, noise(&mut random, described.data_bytes))
        };
        let control = memory.add_bytes(CONTROL_BASE, noise(&mut random, described.control_bytes));
        // Private counters begin small, so that comparisons sometimes hold.
        for end in plan.ends.iter().filter(|end| plan.ends[end.peer].nic == index) {
            for job in &end.jobs {
                if let Act::CompareSwap { at, .. } | Act::FetchAdd { at, .. } = job.act
                    && at.offset % 8 == 0
                {
                    memory.write(control, address(at), &0u64.to_le_bytes());
                }
            }
        }
        let lab = &mut self.lab;
        let domain = lab.nics[index].alloc_pd();
        let (data_bytes, control_bytes) = (described.data_bytes, described.control_bytes);
        let mut register = |space, base, length, access| {
            lab.nics[index].reg_mr(&lab.memory, domain, space, base, length, access, None)
        };
        let data_key = register(data, DATA_BASE, data_bytes, Access::ALL)?;
        let control_key = register(control, CONTROL_BASE, control_bytes, Access::ALL)?;
        let no_rights_key = register(data, DATA_BASE, data_bytes, Access::LOCAL_WRITE)?;
        let fleeting_key = register(data, DATA_BASE, data_bytes, Access::ALL)?;
        let nic = &mut lab.nics[index];
        let shared = match described.shared.len() {
            0 => None,
            depth => Some(nic.create_srq(domain, depth as u32, PIECES_MAX as u32)?),
        };
        let mut addresses = Vec::new();
        for target in 0..plan.nics.len() {
            addresses.push(nic.create_ah(domain, Path::to(loopback_gid(target)))?);
        }
        self.stations.push(Station {
            data,
            control,
            data_key,
            control_key,
            no_rights_key,
            fleeting_key,
            shared,
            addresses,
        });
        Ok(())
    }

    fn make_end(&mut self, plan: &Plan, end: &End) -> Result<(), VerbsError> {
        let nic = &mut self.lab.nics[end.nic];
        let domain = crate::region::ProtectionDomain(0);
        // Room for everything that can complete, flushes of what is posted later included.
        let shared = plan.nics[end.nic].shared.len();
        let depth = (end.jobs.len() + end.receives.len() + shared + 8) as u32;
        let send_queue = nic.create_cq(end.tiny_queue.unwrap_or(depth))?;
        let receive_queue =
            if end.own_queues || end.tiny_queue.is_some() { nic.create_cq(depth)? } else { send_queue };
        let config = QueuePairConfig {
            receive_queue,
            shared: if end.shared { self.stations[end.nic].shared } else { None },
            send_depth: end.send_depth,
            receive_depth: end.receives.len() as u32 + 1,
            gather_max: PIECES_MAX as u32,
            inline_max: INLINE_MAX,
            signal_all: end.signal_all,
            ..QueuePairConfig::new(end.service, send_queue)
        };
        let queue_pair = nic.create_qp(domain, &config)?;
        let window = nic.alloc_mw(domain)?;
        self.ends.push(Handles { queue_pair, send_queue, receive_queue, window });
        Ok(())
    }

    /// The attributes of one of the three steps to RTS.
    fn transition(&self, plan: &Plan, index: usize, step: usize) -> Attributes {
        let end = &plan.ends[index];
        let peer = &plan.ends[end.peer];
        let is_datagram = end.service == Service::Datagram;
        let is_connected = !is_datagram;
        let is_reliable = end.service == Service::ReliableConnection;
        let none = Attributes::default();
        match step {
            0 => Attributes {
                state: Some(State::Init),
                partition_index: Some(0),
                port: Some(1),
                access: is_connected.then_some(end.access),
                queue_key: is_datagram.then_some(QUEUE_KEY),
                ..none
            },
            1 => Attributes {
                state: Some(State::ReadyToReceive),
                path: is_connected.then(|| Path::to(loopback_gid(peer.nic))),
                path_mtu: is_connected.then_some(end.mtu),
                destination: is_connected.then(|| self.ends[end.peer].queue_pair),
                receive_psn: is_connected.then_some(peer.psn),
                destination_reads: is_reliable.then_some(end.destination_reads),
                min_rnr_timer: is_reliable.then_some(end.min_rnr_timer),
                ..none
            },
            _ => Attributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(end.psn),
                timeout: is_reliable.then_some(end.timeout),
                retry_count: is_reliable.then_some(end.retry_count),
                rnr_retry: is_reliable.then_some(end.rnr_retry),
                initiator_reads: is_reliable.then_some(end.initiator_reads),
                ..none
            },
        }
    }

    fn key(&self, nic: usize, area: Area, choice: KeyChoice) -> Key {
        let station = &self.stations[nic];
        match (choice, area) {
            (KeyChoice::Unknown, _) => UNKNOWN_KEY,
            (_, Area::Control) => station.control_key,
            (KeyChoice::Good, _) => station.data_key,
            (KeyChoice::NoRights, _) => station.no_rights_key,
            (KeyChoice::Fleeting, _) => station.fleeting_key,
        }
    }

    fn sges(&self, nic: usize, pieces: &[Piece], choice: KeyChoice) -> SgeList {
        let sge = |piece: &Piece| Sge {
            address: address(*piece),
            length: piece.length,
            key: self.key(nic, piece.area, choice),
        };
        pieces.iter().map(sge).collect()
    }

    /// The work request of a job.
    pub(super) fn request(&mut self, plan: &Plan, end: usize, index: usize) -> SendRequest {
        let described = &plan.ends[end];
        let job = &described.jobs[index];
        let peer = plan.ends[described.peer].nic;
        let remote = |piece: Piece| Remote {
            address: address(piece),
            key: self.key(peer, piece.area, job.remote_key),
        };
        let mut target = None;
        let operation = match job.act {
            Act::Send(None) => Operation::Send,
            Act::Send(Some(value)) => Operation::SendImmediate(value),
            Act::Write(at, None) => Operation::Write(remote(at)),
            Act::Write(at, Some(value)) => Operation::WriteImmediate(remote(at), value),
            Act::Read(at) => Operation::Read(remote(at)),
            Act::CompareSwap { at, compare, swap } => {
                Operation::CompareSwap { remote: remote(at), compare, swap }
            }
            Act::FetchAdd { at, add } => Operation::FetchAdd { remote: remote(at), add },
            Act::Bind(variant) => self.bind(described.nic, end, variant),
            Act::Invalidate => Operation::LocalInvalidate(self.ends[end].window),
            Act::Datagram { to, immediate } => {
                target = Some(DatagramTarget {
                    handle: self.stations[described.nic].addresses[plan.ends[to].nic],
                    queue_pair: self.ends[to].queue_pair,
                    queue_key: QUEUE_KEY,
                });
                immediate.map_or(Operation::Send, Operation::SendImmediate)
            }
        };
        SendRequest {
            gather: self.sges(described.nic, &job.pieces, job.local_key),
            inline: job.inline.as_deref().map(Into::into),
            signaled: job.signaled,
            solicited: job.solicited,
            fence: job.fence,
            target,
            ..SendRequest::new(job_work(end, index), operation)
        }
    }

    fn bind(&mut self, nic: usize, end: usize, variant: u8) -> Operation {
        let window = self.ends[end].window;
        self.ends[end].window = Key(window.0 & !0xff | u32::from(variant));
        Operation::BindWindow(Bind {
            window,
            variant,
            region: self.stations[nic].data_key,
            address: DATA_BASE,
            length: POOL,
            access: Access::REMOTE_READ,
        })
    }

    /// The request that stands for a buffer.
    pub(super) fn receive(&self, nic: usize, work: u64, buffer: &Buffer) -> ReceiveRequest {
        ReceiveRequest { work, scatter: self.sges(nic, &buffer.pieces, KeyChoice::Good) }
    }
}

/// Whether a job completes visibly when it succeeds.
pub(super) fn is_signaled(end: &End, job: &Job) -> bool {
    job.signaled || end.signal_all
}

fn make_nic(plan: &Plan, index: usize) -> Nic {
    let described = &plan.nics[index];
    let mut config = Lab::<Watch>::nic_config(index, plan.seed);
    config.behaviour = described.behaviour;
    config.burst_packets = described.burst;
    config.recovery = described.recovery;
    config.ports[0].rate = plan.rate;
    if described.has_control {
        // By the seed, not by random numbers: a new algorithm leaves all else of a plan as it was.
        config.control = match plan.seed % 5 {
            0 => ControlConfig::Dcqcn(DcqcnParameters::paper(Rate::gbps(100))),
            1 => ControlConfig::Timely(TimelyParameters::paper(plan.rate)),
            2 => ControlConfig::Swift(SwiftParameters::htsim()),
            3 => ControlConfig::Hpcc(HpccParameters::paper(plan.rate, Span::from_us(5))),
            _ => ControlConfig::Dctcp(DctcpParameters::hardware(plan.rate, Span::from_us(5))),
        };
    }
    Nic::new(config)
}
