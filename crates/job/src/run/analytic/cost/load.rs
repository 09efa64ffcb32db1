//! Which resource of the interconnect is busy longest with what all groups of a kind send at the same time.

use std::ops::Range;
use std::sync::Arc;

use railnet_coll::Collective;
use railnet_coll::transport::{Transport, Transports};
use railnet_coll::tuner::Decision;
use railnet_core::{Rank, Rate};
use railnet_topology::Cluster;
use smallvec::SmallVec;

use super::super::caveat::Caveat;
use super::super::interconnect::{HopEnd, HostPath, Interconnect, Load, Loads, Way, Ways};
use super::super::predict::{Bounded, way};
use super::super::traffic::{self, Hop};
use super::super::{Asked, NoPrice};
use super::{ClusterCosts, Shape, Style};
use crate::graph::{Communication, What};
use crate::parallel::{Group, Scope};

/// The slowest resource of a kind of communication.
#[derive(Clone, PartialEq, Debug)]
pub struct Bottleneck {
    /// Among whom it is.
    pub scope: Scope,
    /// What it is.
    pub what: What,
    /// The resource that is busy longest.
    pub resource: String,
    /// The part of the time of the call in which that is busy.
    pub busy: f64,
    /// How many times the mean load of equal paths the fullest has, because a hash chooses.
    pub collisions: f64,
}

/// A group in a collective.
pub(super) struct Caller {
    /// The node and GPU of each rank, in the order of its wiring.
    pub(super) places: Vec<(u32, u32)>,
    pub(super) hops: Arc<Vec<Hop>>,
}

impl ClusterCosts<'_> {
    /// What is busy longest with a collective of all groups like this one at the same time, for each byte of the call; nothing
    /// where there is no interconnect, or the group is on one server.
    pub(super) fn load(
        &mut self,
        shape: &Shape,
        group: &Group,
        collective: Collective,
        decision: &Decision,
        said: &Communication,
    ) -> Result<Option<Load>, NoPrice> {
        let Some(net) = self.interconnect.clone() else { return Ok(None) };
        if shape.nodes < 2 {
            return Ok(None);
        }
        let piece =
            traffic::piece(collective, decision, said.bytes.as_u64() as f64, &self.known(shape)?.inputs);
        let shares = traffic::shares(collective, decision, said.bytes, group.size());
        let style = (collective, decision.algorithm, decision.protocol, shares);
        // Pieces matter to copies that wait for all of one: to a factor of two is enough.
        let pieces = match net.host_path {
            HostPath::GpuDirect => 0,
            HostPath::Bounce | HostPath::Kernel(_) => (piece as u64).max(1).ilog2(),
        };
        let key = (group.levels.to_vec(), style, pieces);
        if let Some(load) = self.loads.get(&key) {
            return Ok(Some(load.clone()));
        }
        let mut callers = Vec::new();
        for group in self.alike(group) {
            callers.push(self.caller(&group, style, decision)?);
        }
        let load = self.loaded(&net, piece, |loads| {
            for Caller { places, hops } in &callers {
                for hop in hops.iter() {
                    if let Some(way) = way(hop, &|rank: u32| places[rank as usize]) {
                        loads.add(&way, hop.share);
                    }
                }
            }
        });
        self.loads.insert(key, load.clone());
        Ok(Some(load))
    }

    /// All groups whose ranks are as far apart as those of this one: those of the other ranks of the job.
    fn alike(&self, group: &Group) -> Vec<Group> {
        let ranks = self.cluster.gpus();
        let mut seen = vec![false; ranks as usize];
        let mut found = Vec::new();
        for first in 0..ranks {
            if seen[first as usize] {
                continue;
            }
            let one = Group { first: Rank(first), levels: group.levels.clone() };
            let members: SmallVec<[Rank; 16]> = one.ranks().collect();
            if members.iter().any(|rank| rank.0 >= ranks || seen[rank.0 as usize]) {
                continue;
            }
            for rank in members {
                seen[rank.0 as usize] = true;
            }
            found.push(one);
        }
        found
    }

    /// A group with the connections of a collective across servers.
    pub(super) fn caller(
        &mut self,
        group: &Group,
        style: Style,
        decision: &Decision,
    ) -> Result<Caller, NoPrice> {
        let shape = self.shape(group)?;
        let mut places = group.ranks().map(|rank| self.place(rank)).collect::<Result<Vec<_>, _>>()?;
        // As wirings have them: node by node, GPUs ascending.
        places.sort_unstable();
        let shape = if shape.looks.is_empty() { shape.of_kind(shape.kind()) } else { shape };
        let key = (shape, style);
        if let Some(hops) = self.hops.get(&key) {
            return Ok(Caller { places, hops: Arc::clone(hops) });
        }
        let hops = match self.known(&key.0)?.wired.clone() {
            Some(wired) => wired.hops(style.0, decision, style.3),
            None => self.unlike(&places, style.0.bus_factor(group.size())),
        };
        let hops = Arc::new(hops);
        // Servers that are unlike each other have hops of their own.
        if key.0.looks.is_empty() {
            self.hops.insert(key, Arc::clone(&hops));
        }
        Ok(Caller { places, hops })
    }

    /// Servers with unlike numbers of GPUs or NICs: the data passes from each to the next over as many NICs as both have.
    fn unlike(&self, places: &[(u32, u32)], share: f64) -> Vec<Hop> {
        let firsts: Vec<u32> = (0..places.len() as u32)
            .filter(|rank| *rank == 0 || places[*rank as usize - 1].0 != places[*rank as usize].0)
            .collect();
        let nics = |rank: u32| self.cluster.host_of(places[rank as usize].0).compute_nics().len() as u32;
        let mut hops = Vec::new();
        for (from, to) in firsts.iter().zip(firsts.iter().cycle().skip(1)) {
            let both = nics(*from).min(nics(*to)).max(1);
            hops.extend((0..both).map(|nic| Hop {
                channel: nic,
                from: Some(*from),
                to: Some(*to),
                nics: [nic; 2],
                relay: None,
                gdr: [true; 2],
                share: share / f64::from(both),
            }));
        }
        hops
    }

    fn loaded(&mut self, net: &Interconnect, piece: f64, add: impl FnOnce(&mut Loads<'_>)) -> Load {
        let mut paths = std::mem::take(&mut self.host_paths);
        let kinds: Vec<u32> = (0..self.cluster.nodes).map(|node| self.kind_of(node)).collect();
        let kind_of = |node: u32| kinds[node as usize];
        let ways = Ways { net, cluster: self.cluster, paths: &mut paths, kind_of: &kind_of };
        let mut loads = Loads::new(ways, piece);
        add(&mut loads);
        let load = loads.load();
        self.host_paths = paths;
        load
    }

    /// What is busy longest with messages between all ranks that are as far apart as these, for each byte.
    pub(super) fn message_load(&mut self, [from, to]: [Rank; 2]) -> Result<Option<Load>, NoPrice> {
        let Some(net) = self.interconnect.clone() else { return Ok(None) };
        let apart = i64::from(to.0) - i64::from(from.0);
        if let Some(load) = self.message_loads.get(&apart) {
            return Ok(Some(load.clone()));
        }
        let transports = self.transports();
        let ranks = self.cluster.gpus();
        let mut sends = Vec::new();
        for from in 0..ranks {
            let Ok(to) = u32::try_from(i64::from(from) + apart) else { continue };
            if to >= ranks {
                continue;
            }
            let ((node, gpu), (other, other_gpu)) = (self.place(Rank(from))?, self.place(Rank(to))?);
            if node == other {
                continue;
            }
            if let Some((out, into)) =
                ends(self.cluster, &transports, (from, node, gpu), (to, other, other_gpu))
            {
                sends.push((out, into));
            }
        }
        let load = self.loaded(&net, PIECE, |loads| {
            for (out, into) in &sends {
                loads.add(&Way::Send(*out, *into), 1.0);
            }
        });
        self.message_loads.insert(apart, load.clone());
        Ok(Some(load))
    }

    pub(super) fn transports(&mut self) -> Arc<Transports> {
        if self.transports.is_none() {
            self.transports = Some(Arc::new(Transports::of(self.cluster, &self.options)));
        }
        Arc::clone(self.transports.as_ref().expect("it was just made"))
    }

    /// What is busy longest when all ranks exchange data with all of these servers at once, for each byte of a rank. Each goes
    /// through the NIC of its own number at either end; a server gives and takes no more than its rate.
    pub(super) fn server_load(
        &mut self,
        ports: &[Range<u32>],
        rate: Option<Rate>,
        gdr: bool,
        sends: bool,
    ) -> Result<Option<Load>, NoPrice> {
        let Some(net) = self.interconnect.clone().filter(|_| !ports.is_empty()) else { return Ok(None) };
        let transports = self.transports();
        let ranks = self.cluster.gpus();
        let share = 1.0 / ports.len() as f64;
        let mut exchanges = Vec::new();
        for rank in 0..ranks {
            let (node, gpu) = self.place(Rank(rank))?;
            let nic = transports.nic_beside(rank).unwrap_or(0);
            for server in ports {
                let far = server.start + nic % (server.end - server.start).max(1);
                let end = HopEnd { node, gpu: Some(gpu), nic, relay: None, gdr };
                exchanges.push((end, far));
            }
        }
        let mut load = self.loaded(&net, PIECE, |loads| {
            for (end, far) in &exchanges {
                loads.add(&Way::Exchange { end: *end, far: *far, sends }, share);
            }
        });
        if let Some(rate) = rate {
            let seconds = f64::from(ranks) * share * 8.0 / rate.as_bps() as f64;
            if seconds > load.seconds {
                load.resource = format!("each of {} servers at {rate}", ports.len());
                (load.seconds, load.seconds_balanced) = (seconds, seconds);
            }
        }
        Ok(Some(load))
    }

    /// Keeps the resource that bounds this kind of communication most, and what is to be said of its longest call.
    pub(super) fn remember(&mut self, asked: &Asked<'_>, load: &Load, call: &Bounded) {
        let Bounded { seconds, on_network, caveat } = *call;
        let busy = if seconds > 0.0 { (on_network / seconds).min(1.0) } else { 0.0 };
        let collisions = load.collisions();
        let scope = asked.said.scope;
        let longest = self.longest.entry(scope as u8).or_insert((seconds, scope, caveat));
        if seconds > longest.0 {
            *longest = (seconds, scope, caveat);
        }
        let found = Bottleneck {
            scope: asked.said.scope,
            what: asked.said.what,
            resource: load.resource.clone(),
            busy,
            collisions,
        };
        let known = self.bottlenecks.entry(asked.said.scope as u8).or_insert_with(|| found.clone());
        if found.busy > known.busy {
            *known = found;
        }
    }

    /// Why packets may differ from formulas in the longest call of each scope that was asked for so far.
    pub fn caveats(&self) -> impl Iterator<Item = (Scope, Caveat)> {
        self.longest.values().filter_map(|(_, scope, caveat)| caveat.map(|caveat| (*scope, caveat)))
    }

    /// The resource that bounds each kind of communication across servers that was asked for so far.
    pub fn bottlenecks(&self) -> impl Iterator<Item = &Bottleneck> {
        self.bottlenecks.values()
    }
}

/// What a message moves at a time: a slot of NCCL's Simple protocol.
pub(super) const PIECE: f64 = 524_288.0;

/// The ends of a message between two ranks on different servers, given with their nodes and GPUs.
pub(super) fn ends(
    cluster: &Cluster,
    transports: &Transports,
    (from, node, gpu): (u32, u32, u32),
    (to, other, other_gpu): (u32, u32, u32),
) -> Option<(HopEnd, HopEnd)> {
    let Transport::Network { from_nic, to_nic, gdr_send, gdr_receive, relay, .. } =
        transports.between(from, to).transport
    else {
        return None;
    };
    let relay = relay.map(|rank| cluster.ranks().place(rank).1);
    let out = HopEnd { node, gpu: Some(gpu), nic: from_nic, relay, gdr: gdr_send };
    let into = HopEnd { node: other, gpu: Some(other_gpu), nic: to_nic, relay: None, gdr: gdr_receive };
    Some((out, into))
}
