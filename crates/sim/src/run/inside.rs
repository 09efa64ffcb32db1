//! Flows between GPUs: slices that cross the server of the sender, the network, and the server of the receiver.
//!
//! As NCCL does it, a flow has a few slots. A slice takes one when it is read at the sender; the receiver gives it back,
//! with a message of its own, when the slice is in place. So a slow copy at either end slows the sender down, and nothing
//! piles up in between.

use railnet_core::Bytes;
use railnet_core::event::Sink;
use railnet_fabric::{BusCounters, BusResource, Network};
use railnet_nic::{Completion, PostError};
use railnet_topology::Cluster;

use super::runner::Runner;
use super::server::Servers;
use crate::scenario::{ClusterSection, Scenario};
use crate::traffic::Flow;

/// The bit of an immediate value that says: a slot is free again.
const SLOT: u32 = 1 << 31;

/// How far a flow has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Bytes that no slice has taken yet.
    unread: u64,
    /// Slices that none has been made of yet.
    slices: u32,
    /// Slots that are free.
    slots: u32,
}

/// A slice on a way inside a server.
#[derive(Clone, Copy, Debug)]
struct Move {
    flow: u32,
    bytes: u32,
    leg: Leg,
}

/// Which part of its journey a slice is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leg {
    /// From memory to the NIC.
    Out,
    /// From the NIC to memory.
    Into,
    /// From memory to memory of one server.
    Local,
}

/// What a run knows of the inside of servers.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) servers: Servers,
    progress: Vec<Progress>,
    moves: Vec<Move>,
    free: Vec<u32>,
    slice: u64,
    /// Slots that a flow begins with.
    slots: u32,
    mtu: u32,
}

/// One lane of a server and what it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneResult {
    /// What it is.
    pub name: String,
    /// What it counted.
    pub counters: BusCounters,
}

impl LaneResult {
    /// Whether it is a core that serves a port for the kernel.
    pub fn is_core(&self) -> bool {
        self.name.contains(" core ")
    }

    /// Whether it leads into the memory of the host, and not from one socket's to the other's.
    pub fn is_into_host_memory(&self) -> bool {
        let ends = self.name.split_once(" → ");
        ends.is_some_and(|(from, to)| to.starts_with("CPU") && !from.contains(" CPU"))
    }
}

impl Inside {
    pub(super) fn new<S: Sink>(
        network: &mut Network<S>,
        scenario: &Scenario,
        section: &ClusterSection,
        cluster: Option<Cluster>,
        ports: u32,
        flows: &[Flow],
    ) -> Self {
        let mut inside = Self {
            servers: Servers::new(network, section, cluster, ports),
            progress: Vec::with_capacity(flows.len()),
            moves: Vec::new(),
            free: Vec::new(),
            slice: section.slice.0.as_u64(),
            slots: section.slots,
            mtu: scenario.payload(),
        };
        for flow in flows {
            inside.add(flow);
        }
        inside
    }

    /// One more flow, with the number after that of the last.
    pub(super) fn add(&mut self, flow: &Flow) {
        let (unread, slices) = (flow.bytes, self.slices(flow));
        self.progress.push(Progress { unread, slices, slots: self.slots });
    }

    /// Slices of a flow.
    pub(super) fn slices(&self, flow: &Flow) -> u32 {
        slices(flow.bytes, self.slice)
    }

    /// The port of the fabric that an endpoint uses.
    pub(super) fn port(&self, endpoint: u32) -> u32 {
        self.servers.endpoints[endpoint as usize].port
    }

    /// The links of a GPU, in both directions.
    pub(super) fn bus_of(&self, gpu: u32) -> Vec<BusResource> {
        self.servers.bus_of(gpu)
    }

    /// A link inside a server, in both directions.
    pub(super) fn bus_inside(&self, server: u32, link: u32) -> [BusResource; 2] {
        self.servers.bus_inside(server, link)
    }

    /// The flow that a slice on its way belongs to.
    pub(super) fn flow_of(&self, token: u32) -> u32 {
        self.moves[token as usize].flow
    }

    fn is_local(&self, flow: &Flow) -> bool {
        self.servers.server_of(flow.source) == self.servers.server_of(flow.target)
    }

    fn carry<S: Sink>(&mut self, network: &mut Network<S>, path: railnet_fabric::BusPath, slice: Move) {
        let token = match self.free.pop() {
            Some(token) => {
                self.moves[token as usize] = slice;
                token
            }
            None => {
                self.moves.push(slice);
                self.moves.len() as u32 - 1
            }
        };
        let packets = slice.bytes.div_ceil(self.mtu).max(1);
        network.carry(path, Bytes(u64::from(slice.bytes)), packets, token);
    }

    /// What the bus resources did, those that did anything.
    pub(super) fn lanes<S: Sink>(&self, network: &Network<S>) -> Vec<LaneResult> {
        let all = self.servers.names.iter();
        let results = all.map(|(name, lane)| LaneResult {
            name: name.clone(),
            counters: network.bus_counters_so_far(*lane),
        });
        results.filter(|lane| lane.counters.slices > 0).collect()
    }
}

/// One at least: a flow of no bytes arrives too.
fn slices(bytes: u64, slice: u64) -> u32 {
    bytes.div_ceil(slice).max(1) as u32
}

impl Runner {
    /// Reads as many slices of a flow as it has slots for.
    pub(super) fn read_slices<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        index: u32,
    ) -> Result<(), PostError> {
        let flow = self.flows[index as usize];
        while let Some(inside) = &mut self.inside {
            let progress = &mut inside.progress[index as usize];
            if progress.slices == 0 || progress.slots == 0 {
                break;
            }
            let bytes = progress.unread.min(inside.slice) as u32;
            progress.unread -= u64::from(bytes);
            progress.slices -= 1;
            progress.slots -= 1;
            let out = &inside.servers.endpoints[flow.source as usize].out;
            if inside.is_local(&flow) {
                let slice = Move { flow: index, bytes, leg: Leg::Local };
                match inside.servers.local_path(network, flow.source, flow.target) {
                    Some(path) => inside.carry(network, path, slice),
                    // Within one memory there is nothing to move.
                    None => self.place_slice(network, index)?,
                }
            } else if out.is_empty() {
                self.send_slice(network, index, bytes)?;
            } else {
                let path = out[index as usize % out.len()];
                inside.carry(network, path, Move { flow: index, bytes, leg: Leg::Out });
            }
        }
        Ok(())
    }

    /// A slice is at the sender's NIC.
    fn send_slice<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        index: u32,
        bytes: u32,
    ) -> Result<(), PostError> {
        let flow = self.flows[index as usize];
        let (from, to) = (self.port(flow.source), self.port(flow.target));
        self.post_message(network, index, [from, to], bytes, index)?;
        network.kick(from);
        Ok(())
    }

    /// A slice has come to the end of a way.
    pub(super) fn slice_carried<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        token: u32,
    ) -> Result<(), PostError> {
        let Some(inside) = &mut self.inside else { return Ok(()) };
        let Move { flow, bytes, leg } = inside.moves[token as usize];
        inside.free.push(token);
        match leg {
            Leg::Out => self.send_slice(network, flow, bytes),
            Leg::Into | Leg::Local => self.place_slice(network, flow),
        }
    }

    /// A message has arrived: a slice, or word that a slot is free.
    pub(super) fn slice_received<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        completion: &Completion,
    ) -> Result<(), PostError> {
        let Some(inside) = &mut self.inside else { return Ok(()) };
        let value = completion.immediate.unwrap_or_default();
        let index = value & !SLOT;
        if value & SLOT != 0 {
            inside.progress[index as usize].slots += 1;
            return self.read_slices(network, index);
        }
        let flow = self.flows[index as usize];
        let into = &inside.servers.endpoints[flow.target as usize].into;
        if into.is_empty() {
            return self.place_slice(network, index);
        }
        let path = into[index as usize % into.len()];
        inside.carry(network, path, Move { flow: index, bytes: completion.length, leg: Leg::Into });
        Ok(())
    }

    /// A slice is in place: its slot is free.
    fn place_slice<S: Sink>(&mut self, network: &mut Network<S>, index: u32) -> Result<(), PostError> {
        let flow = self.flows[index as usize];
        let Some(inside) = &mut self.inside else { return Ok(()) };
        let progress = &mut inside.progress[index as usize];
        if progress.slices > 0 {
            if inside.is_local(&flow) {
                inside.progress[index as usize].slots += 1;
                self.read_slices(network, index)?;
            } else {
                let (from, to) = (self.port(flow.target), self.port(flow.source));
                self.post_message(network, index, [from, to], 0, index | SLOT)?;
                network.kick(from);
            }
        }
        self.arrived(network, index);
        Ok(())
    }
}
