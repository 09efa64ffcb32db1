//! Switches of the network that reduce: groups are made before a run begins, because a switch may have no context left.

use std::collections::{BTreeSet, VecDeque};

use railnet_coll::conduit::SlotMemory;
use railnet_coll::machine::{ConnectionId, Filled, Layout};
use railnet_coll::{Connection, Peer, Schedule, SwitchKind};
use railnet_core::Bytes;
use railnet_core::event::Sink;
use railnet_fabric::{Contribution, Group as Tree, Member as TreeMember, Network, Role, Way, host_gid};
use railnet_nic::Sge;
use railnet_nic::memory::SpaceId;

use super::carrier::{SLOTS, SLOTS_LENGTH};
use super::pending::Pending;
use super::timing::Hop;
use super::{Collectives, Ground};

/// A group of heads whose slices the network reduces.
#[derive(Debug)]
pub(super) struct Sharp {
    tree: Tree,
    heads: Vec<Head>,
}

/// A rank of such a group.
#[derive(Debug)]
pub(super) struct Head {
    member: u32,
    sends: Option<ConnectionId>,
    receives: Option<ConnectionId>,
    /// What it gives, and what it gets back.
    slots: [SlotMemory; 2],
    out: Vec<Way>,
    into: Vec<Way>,
    /// Bytes of slices whose results are not back.
    lengths: VecDeque<Bytes>,
}

impl Sharp {
    /// Where the slots of a head begin: what it gives, or what it gets back.
    pub(super) fn slots(&self, head: u32, is_sender: bool) -> (SpaceId, u64) {
        let slots = &self.heads[head as usize].slots[usize::from(!is_sender)];
        (slots.space, slots.address)
    }
}

/// What tells groups of a communicator apart: channel, lane, and ranks.
pub(super) type SharpName = (u32, u16, u8, Vec<u32>);

impl Collectives {
    /// Makes the groups that a schedule needs of the network; says why not where that fails.
    pub(super) fn reserve<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        communicator: u32,
        schedule: &Schedule,
    ) -> Result<(), String> {
        for (channel, lane, number) in network_groups(schedule) {
            let group = &schedule.groups[number as usize];
            if group.senders != group.receivers {
                return Err(format!(
                    "the network's switches do AllReduce here, not {}",
                    schedule.call.collective
                ));
            }
            let name = (communicator, channel, lane, group.senders.clone());
            if self.sharp_names.contains_key(&name) {
                continue;
            }
            let sharp = self.make_sharp(network, ground, communicator, schedule, channel, &group.senders)?;
            self.sharp_names.insert(name, self.sharps.len() as u32);
            self.sharps.push(sharp);
        }
        Ok(())
    }

    fn make_sharp<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        ground: &mut Ground<'_>,
        communicator: u32,
        schedule: &Schedule,
        channel: u16,
        ranks: &[u32],
    ) -> Result<Sharp, String> {
        let mut heads = Vec::new();
        let mut members = Vec::new();
        for rank in ranks {
            let state = &self.communicators[communicator as usize];
            let member = state.members.start + rank;
            let endpoint = self.members[member as usize].endpoint;
            let nic = state.wiring.nic(schedule.algorithm, u32::from(channel), *rank).unwrap_or(0);
            let (mut port, mut out, mut into) = (endpoint, Vec::new(), Vec::new());
            if let Some(servers) = ground.servers.as_deref_mut() {
                (port, out) = servers.out_ways(network, endpoint, nic, None, true);
                into = servers.in_ways(network, endpoint, nic, true).1;
            }
            let slots = [0, 1].map(|_| {
                let space = network.memory.add_ghost(SLOTS, SLOTS_LENGTH);
                Self::register(network, ground, port, space, SLOTS, SLOTS_LENGTH)
            });
            let domain = ground.ports[port as usize].domain;
            members.push(TreeMember { host: port, domain, role: Role::Both });
            let (sends, receives, lengths) = (None, None, VecDeque::new());
            heads.push(Head { member, sends, receives, slots, out, into, lengths });
        }
        let settings = &self.settings;
        let plain = railnet_nic::Connection::to(host_gid(0), railnet_core::QueuePairNumber::new(0));
        let like = railnet_nic::Connection {
            mtu: settings.config.mtu,
            timeout: settings.config.timeout,
            retry_count: settings.config.retry_count,
            ..plain
        };
        let tree = network.aggregate(&members, &like).map_err(|refused| refused.to_string())?;
        Ok(Sharp { tree, heads })
    }

    /// The group that a connection belongs to, and which of its heads a member is.
    pub(super) fn join_sharp(
        &mut self,
        member: u32,
        connection: ConnectionId,
        to: Connection,
        ranks: &[u32],
        is_sender: bool,
    ) -> (u32, u32) {
        let communicator = self.members[member as usize].communicator;
        let name = (communicator, to.channel, to.lane, ranks.to_vec());
        let index = *self.sharp_names.get(&name).expect("groups are made before a run begins");
        let heads = &mut self.sharps[index as usize].heads;
        let place = heads.iter().position(|head| head.member == member).expect("only its ranks use a group");
        if is_sender {
            heads[place].sends = Some(connection);
        } else {
            heads[place].receives = Some(connection);
        }
        (index, place as u32)
    }

    /// The ways by which a head's slices go to its NIC.
    pub(super) fn sharp_out(&self, (index, head): (u32, u32)) -> &[Way] {
        &self.sharps[index as usize].heads[head as usize].out
    }

    /// A slice of a head is at its NIC.
    pub(super) fn give<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        (index, place): (u32, u32),
        layout: &Layout,
        filled: &Filled,
    ) {
        let Sharp { tree, heads } = &mut self.sharps[index as usize];
        let head = &mut heads[place as usize];
        let length = filled.bytes.as_u64() as u32;
        let [source, target] = head
            .slots
            .map(|slots| Some(Sge { address: slots.slot(layout, filled.slot), length, key: slots.key }));
        head.lengths.push_back(filled.bytes);
        let token = u64::from(index) << 32 | u64::from(place);
        let given = Contribution { source, target, token, label: filled.tag.into() };
        if let Err(error) = network.contribute(*tree, place, given) {
            let (member, connection) = (head.member, filled.connection);
            self.members[member as usize].machine.broken(connection, error.to_string());
        }
    }

    /// The result of a slice is with the NIC of a head.
    pub(in crate::run) fn reduced<S: Sink>(&mut self, network: &mut Network<S>, token: u64) {
        let (index, place) = ((token >> 32) as usize, token as u32 as usize);
        let head = &mut self.sharps[index].heads[place];
        let bytes = head.lengths.pop_front().unwrap_or(Bytes::ZERO);
        let (member, connection) = (head.member, head.receives.expect("a head that gives also takes"));
        match head.into.first().copied() {
            Some(way) => {
                let packets = bytes.as_u64().div_ceil(self.settings.mtu_bytes).max(1) as u32;
                let token = self.pending.add(Pending::Into { member, connection });
                network.carry(way, bytes, packets, token);
            }
            None => self.delivered(network, member, connection),
        }
    }

    /// A head has taken a result: its slot may be filled again.
    pub(super) fn sharp_taken<S: Sink>(&mut self, network: &mut Network<S>, (index, place): (u32, u32)) {
        let head = &self.sharps[index as usize].heads[place as usize];
        let (member, connection) = (head.member, head.sends.expect("a head that takes also gives"));
        let communicator = self.members[member as usize].communicator;
        let after = self.communicators[communicator as usize].timing.credit(Hop::NvLink);
        self.later(network, after, Pending::Free { member, connection });
    }
}

/// The groups of the network that a schedule uses: channel, lane and number of each.
fn network_groups(schedule: &Schedule) -> BTreeSet<(u16, u8, u32)> {
    let mut found = BTreeSet::new();
    let kinds = schedule.groups.iter().enumerate();
    let network = kinds.filter(|(_, group)| group.kind == SwitchKind::Network);
    // The first sender of a group stands for all.
    let ranks: BTreeSet<u32> = network.filter_map(|(_, group)| group.senders.first().copied()).collect();
    for rank in ranks {
        for worker in 0..schedule.program.workers(rank) {
            for number in 0..schedule.program.steps(rank, worker) {
                let step = schedule.program.step(rank, worker, number);
                for to in &step.sends {
                    if let Peer::Switch(group) = to.peer
                        && schedule.groups[group as usize].kind == SwitchKind::Network
                    {
                        found.insert((to.channel, to.lane, group));
                    }
                }
            }
        }
    }
    found
}
