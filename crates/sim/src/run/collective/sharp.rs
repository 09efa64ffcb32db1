//! Switches of the network that reduce and multicast: groups are made before a run begins, because a switch may have no
//! context left.

use std::collections::{BTreeSet, VecDeque};

use railnet_coll::conduit::SlotMemory;
use railnet_coll::machine::{ConnectionId, Direction, Filled, Layout};
use railnet_coll::{Connection, Peer, Schedule, SwitchGroup, SwitchKind};
use railnet_core::Bytes;
use railnet_core::event::Sink;
use railnet_fabric::{BusPath, Contribution, Group as Tree, Member as TreeMember, Network, Role, host_gid};
use railnet_nic::Sge;
use railnet_nic::memory::SpaceId;

use super::carrier::{SLOTS, SLOTS_LENGTH};
use super::pending::Pending;
use super::timing::Hop;
use super::{Collectives, HostResources};

/// A group of heads whose slices the network reduces, or brings from one to all.
#[derive(Debug)]
pub(super) struct Sharp {
    tree: Tree,
    heads: Vec<Head>,
}

/// A rank of such a group.
#[derive(Debug)]
pub(super) struct Head {
    member: u32,
    role: Role,
    sends: Option<ConnectionId>,
    receives: Option<ConnectionId>,
    /// What it gives, and what it gets.
    slots: [SlotMemory; 2],
    out: Vec<BusPath>,
    into: Vec<BusPath>,
    /// Bytes of slices whose results are not back.
    lengths: VecDeque<Bytes>,
    /// Of one that only gets: slices of calls that it has made, slices that the giver has for it, and those that are in
    /// its slots or on their way there.
    expected: u64,
    waiting: VecDeque<Filled>,
    under_way: u32,
    layout: Option<Layout>,
}

impl Head {
    /// A slice's place in the slots: of those that it gives, or of those that it gets.
    fn place(&self, is_source: bool, filled: &Filled) -> Sge {
        let slots = self.slots[usize::from(!is_source)];
        let length = filled.bytes.as_u64() as u32;
        Sge { address: slots.slot(&filled.layout, filled.slot), length, key: slots.key }
    }

    /// The next slice that one that only gets has a call and room for.
    fn next(&mut self) -> Option<Filled> {
        let layout = self.waiting.front()?.layout;
        let is_full = (self.under_way + 1) * layout.fifo.slots_per_slice > layout.fifo.depth;
        // Slots of another layout overlap with these.
        let is_other = self.under_way > 0 && self.layout != Some(layout);
        if self.expected == 0 || is_full || is_other {
            return None;
        }
        self.layout = Some(layout);
        self.expected -= 1;
        self.under_way += 1;
        self.waiting.pop_front()
    }
}

impl Sharp {
    /// Where the slots of a head begin: what it gives, or what it gets back.
    pub(super) fn slots(&self, head: u32, is_sender: bool) -> (SpaceId, u64) {
        let slots = &self.heads[head as usize].slots[usize::from(!is_sender)];
        (slots.space, slots.address)
    }
}

/// What tells groups of a communicator apart: channel, lane, those who give and those who get.
pub(super) type SharpName = (u32, u16, u8, Vec<u32>, Vec<u32>);

impl Collectives {
    /// Makes the groups that a schedule needs of the network; says why not where that fails.
    pub(super) fn reserve<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        communicator: u32,
        schedule: &Schedule,
    ) -> Result<(), String> {
        for (channel, lane, number) in network_groups(schedule) {
            let group = &schedule.groups[number as usize];
            let name = (communicator, channel, lane, group.senders.clone(), group.receivers.clone());
            if self.sharp_names.contains_key(&name) {
                continue;
            }
            let sharp = self.make_sharp(network, resources, communicator, schedule, channel, group)?;
            self.sharp_names.insert(name, self.sharps.len() as u32);
            self.sharps.push(sharp);
        }
        Ok(())
    }

    fn make_sharp<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        communicator: u32,
        schedule: &Schedule,
        channel: u16,
        group: &SwitchGroup,
    ) -> Result<Sharp, String> {
        let mut heads = Vec::new();
        let mut members = Vec::new();
        let ranks: BTreeSet<u32> = group.senders.iter().chain(&group.receivers).copied().collect();
        for rank in ranks {
            let state = &self.communicators[communicator as usize];
            let member = state.members.start + rank;
            let endpoint = self.members[member as usize].endpoint;
            let nic = state.wiring.nic(schedule.algorithm, u32::from(channel), rank).unwrap_or(0);
            let (mut port, mut out, mut into) = (endpoint, Vec::new(), Vec::new());
            if let Some(servers) = resources.servers.as_deref_mut() {
                (port, out) = servers.out_paths(network, endpoint, nic, None, true);
                into = servers.in_paths(network, endpoint, nic, true).1;
            }
            let slots = [0, 1].map(|_| {
                let space = network.memory.add_ghost(SLOTS, SLOTS_LENGTH);
                Self::register(network, resources, port, space, SLOTS, SLOTS_LENGTH)
            });
            let domain = resources.ports[port as usize].domain;
            let role = match (group.senders.contains(&rank), group.receivers.contains(&rank)) {
                (true, true) => Role::Both,
                (true, false) => Role::Contributes,
                (false, _) => Role::Receives,
            };
            members.push(TreeMember { host: port, domain, role });
            heads.push(Head {
                member,
                role,
                sends: None,
                receives: None,
                slots,
                out,
                into,
                lengths: VecDeque::new(),
                expected: 0,
                waiting: VecDeque::new(),
                under_way: 0,
                layout: None,
            });
        }
        let settings = &self.settings;
        let plain = railnet_nic::Connection::to(host_gid(0), railnet_core::QueuePairNumber::new(0));
        let like = railnet_nic::Connection {
            mtu: settings.config.mtu,
            timeout: settings.config.timeout,
            retry_count: settings.config.retry_count,
            ..plain
        };
        // NCCL makes one SHARP communicator for each rail, and all channels and collectives share it (2.30
        // transport/coll_net.cc): so do groups of the same NICs share contexts.
        let hosts = members.iter().map(|member| member.host).collect();
        let key = (communicator, hosts);
        let tree = match self.sharp_teams.get(&key) {
            Some(team) => network.aggregate_beside(*team, &members, &like),
            None => network.aggregate(&members, &like),
        };
        let tree = tree.map_err(|refused| refused.to_string())?;
        self.sharp_teams.entry(key).or_insert(tree);
        Ok(Sharp { tree, heads })
    }

    /// The group that a connection belongs to, and which of its heads a member is.
    pub(super) fn join_sharp(
        &mut self,
        member: u32,
        connection: ConnectionId,
        to: Connection,
        group: &SwitchGroup,
        is_sender: bool,
    ) -> (u32, u32) {
        let communicator = self.members[member as usize].communicator;
        let name = (communicator, to.channel, to.lane, group.senders.clone(), group.receivers.clone());
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

    /// The paths by which a head's slices go to its NIC.
    pub(super) fn sharp_out(&self, (index, head): (u32, u32)) -> &[BusPath] {
        &self.sharps[index as usize].heads[head as usize].out
    }

    /// A slice of a head is at its NIC.
    pub(super) fn give<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        (index, place): (u32, u32),
        filled: &Filled,
    ) {
        self.contribute_slice(network, (index, place), filled, true);
        // Those who only get a slice name a place for it. They know how long it is from their own schedule; that they
        // hear it here changes nothing, since what they say is at the switches when the data is.
        for other in 0..self.sharps[index as usize].heads.len() as u32 {
            let head = &mut self.sharps[index as usize].heads[other as usize];
            if head.role == Role::Receives {
                head.waiting.push_back(*filled);
                self.take_more(network, (index, other));
            }
        }
    }

    /// One that only gets slices takes what it has a call and room for.
    fn take_more<S: Sink>(&mut self, network: &mut Network<S>, (index, place): (u32, u32)) {
        while let Some(filled) = self.sharps[index as usize].heads[place as usize].next() {
            self.contribute_slice(network, (index, place), &filled, false);
        }
    }

    /// A head takes part in the reduction of a slice, with data of its own or without.
    fn contribute_slice<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        (index, place): (u32, u32),
        filled: &Filled,
        gives: bool,
    ) {
        let Sharp { tree, heads } = &mut self.sharps[index as usize];
        let head = &mut heads[place as usize];
        head.lengths.push_back(filled.bytes);
        let given = Contribution {
            source: gives.then(|| head.place(true, filled)),
            target: (head.role != Role::Contributes).then(|| head.place(false, filled)),
            token: u64::from(index) << 32 | u64::from(place),
            label: filled.tag.into(),
        };
        if let Err(error) = network.contribute(*tree, place, given) {
            let (member, connection) = (head.member, if gives { head.sends } else { head.receives });
            let connection = connection.expect("only those who are connected take part");
            self.members[member as usize].machine.broken(connection, error.to_string());
        }
    }

    /// An operation of a head will get so many slices.
    pub(super) fn sharp_expect<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        (index, place): (u32, u32),
        slices: u64,
    ) {
        let head = &mut self.sharps[index as usize].heads[place as usize];
        if head.role == Role::Receives {
            head.expected += slices;
            self.take_more(network, (index, place));
        }
    }

    /// The result of a slice is with the NIC of a head; or it is through, where the head gets none.
    pub(in crate::run) fn reduced<S: Sink>(&mut self, network: &mut Network<S>, token: u64) {
        let (index, place) = ((token >> 32) as usize, token as u32 as usize);
        let head = &mut self.sharps[index].heads[place];
        let bytes = head.lengths.pop_front().unwrap_or(Bytes::ZERO);
        if head.role == Role::Contributes {
            self.sharp_free(network, (index as u32, place as u32));
            return;
        }
        let (member, connection) = (head.member, head.receives.expect("a head that gives also takes"));
        match head.into.first().copied() {
            Some(path) => {
                let packets = bytes.as_u64().div_ceil(self.settings.mtu_bytes).max(1) as u32;
                let token = self.pending.add(Pending::Into { member, connection });
                network.carry(path, bytes, packets, token);
            }
            None => self.delivered(network, member, connection),
        }
    }

    /// A head has taken a result: its slot may be filled again.
    pub(super) fn sharp_taken<S: Sink>(&mut self, network: &mut Network<S>, (index, place): (u32, u32)) {
        let head = &mut self.sharps[index as usize].heads[place as usize];
        if head.role == Role::Receives {
            head.under_way -= 1;
            self.take_more(network, (index, place));
        } else {
            self.sharp_free(network, (index, place));
        }
    }

    /// A slot of a head that gives may be filled again.
    fn sharp_free<S: Sink>(&mut self, network: &mut Network<S>, (index, place): (u32, u32)) {
        let head = &self.sharps[index as usize].heads[place as usize];
        let (member, connection) = (head.member, head.sends.expect("what is free was filled"));
        let communicator = self.members[member as usize].communicator;
        let after = self.communicators[communicator as usize].timing.credit(Hop::NvLink);
        self.later(network, after, member, Pending::Free { member, connection });
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
            for used in schedule.program.uses(rank, worker) {
                let to = used.connection;
                if let (Peer::Switch(group), Direction::Send) = (to.peer, used.direction)
                    && schedule.groups[group as usize].kind == SwitchKind::Network
                {
                    found.insert((to.channel, to.lane, group));
                }
            }
        }
    }
    found
}
