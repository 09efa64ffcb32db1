//! Making connections: which way data goes between two ranks, and what is needed for it.

use railnet_coll::conduit::SlotMemory;
use railnet_coll::conduit::net::{Fill, NetConfig, NetError, Receiver, Sender};
use railnet_coll::machine::{ConnectionId, Direction, Filled};
use railnet_coll::transport::Transport;
use railnet_coll::{Algorithm, Connection, Peer, SwitchGroup, SwitchKind};
use railnet_core::Span;
use railnet_core::event::Sink;
use railnet_fabric::{Network, host_gid};
use railnet_nic::memory::Memory as _;
use railnet_nic::{Access, Key, Path, VerbsError};
use railnet_topology::host::PathType;

use super::carrier::{BusPaths, Carrier, Local, Net, Pair, SLOTS, SLOTS_LENGTH};
use super::group::{Group, Spoke};
use super::identity::Identity;
use super::pending::Pending;
use super::put::PUT;
use super::timing::Hop;
use super::{Collectives, End, HostResources};

/// Where control words of a connection lie.
const RING: u64 = 1 << 20;

/// How collectives use NICs.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetSettings {
    pub(super) config: NetConfig,
    /// DSCP and ECN bits of their packets.
    pub(super) traffic_class: u8,
    pub(super) mtu_bytes: u64,
}

impl Collectives {
    /// A machine uses a connection for the first time.
    pub(super) fn connect<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        connection: ConnectionId,
        to: Connection,
        direction: Direction,
    ) {
        let first = self.communicators[self.members[member as usize].communicator as usize].members.start;
        let end = match (to.peer, direction) {
            (Peer::Rank(rank), Direction::Send) => {
                let pair = self.pair(network, resources, member, (to.channel, to.lane, member, first + rank));
                self.pairs[pair as usize].sender.1 = Some(connection);
                End::Sender(pair)
            }
            (Peer::Rank(rank), Direction::Receive) => {
                let pair = self.pair(network, resources, member, (to.channel, to.lane, first + rank, member));
                self.pairs[pair as usize].receiver.1 = Some(connection);
                for mark in std::mem::take(&mut self.pairs[pair as usize].early) {
                    self.later(network, Span::ZERO, member, Pending::See { pair, mark });
                }
                End::Receiver(pair)
            }
            (Peer::Switch(number), _)
                if self.schedule(member).groups[number as usize].kind == SwitchKind::Network =>
            {
                let group = self.schedule(member).groups[number as usize].clone();
                let is_sender = direction == Direction::Send;
                let (group, head) = self.join_sharp(member, connection, to, &group, is_sender);
                if is_sender { End::Giver(group, head) } else { End::Taker(group, head) }
            }
            (Peer::Switch(number), _) => {
                let group = self.group(network, resources, member, to, number);
                let is_sender = direction == Direction::Send;
                let (place, early) = self.groups[group as usize].join(is_sender, member, connection);
                for mark in early {
                    let see = Pending::SeeResult { group, receiver: place, mark };
                    self.later(network, Span::ZERO, member, see);
                }
                if is_sender { End::Contributor(group, place) } else { End::Beneficiary(group, place) }
            }
        };
        let slots = match end {
            End::Sender(pair) => self.pairs[pair as usize].slots(true),
            End::Receiver(pair) => self.pairs[pair as usize].slots(false),
            End::Contributor(group, place) => {
                (self.groups[group as usize].senders[place as usize].slots, SLOTS)
            }
            End::Beneficiary(group, place) => {
                (self.groups[group as usize].receivers[place as usize].slots, SLOTS)
            }
            End::Giver(group, head) => self.sharps[group as usize].slots(head, true),
            End::Taker(group, head) => self.sharps[group as usize].slots(head, false),
        };
        self.members[member as usize].slots.push(slots);
        let ends = &mut self.members[member as usize].ends;
        debug_assert_eq!(ends.len(), connection.0 as usize, "connections are named in order");
        ends.push(end);
    }

    /// The connection between two members, for what one of them executes.
    fn pair<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        by: u32,
        key: super::PairKey,
    ) -> u32 {
        if let Some(known) = self.pair_names.get(&key) {
            return *known;
        }
        let index = self.pairs.len() as u32;
        // What NICs hear of a connection does not depend on how many there are without them.
        let on = (self.net_pairs.len() as u32, self.schedule(by).algorithm);
        let (.., sender, receiver) = key;
        let communicator = &self.communicators[self.members[sender as usize].communicator as usize];
        let first = communicator.members.start;
        let transport = communicator.transport(sender - first, receiver - first);
        let ends = [sender, receiver].map(|member| self.members[member as usize].endpoint);
        let carrier = match (transport, resources.servers.as_deref_mut()) {
            (Transport::PeerToPeer { path }, Some(servers)) => {
                let hops = servers.hops_between(ends[0], ends[1]);
                let hop = if path <= PathType::Nvb { Hop::NvLink } else { Hop::Pcie };
                Self::local(network, hops, hop)
            }
            (Transport::SharedMemory, Some(servers)) => {
                let hops = servers.hops_through_host(ends[0], ends[1]);
                Self::local(network, hops, Hop::Pcie)
            }
            _ => {
                let identity = communicator.identity(key);
                let mut net = self.net(network, resources, on, key, transport, identity);
                if let (Err(error), true) = (&net, identity != Identity::default()) {
                    self.refuse(key, error);
                    net = self.net(network, resources, on, key, transport, Identity::default());
                }
                self.net_pairs.push(index);
                Carrier::Net(Box::new(net.expect("NICs have room for the connections of a communicator")))
            }
        };
        self.pairs.push(Pair {
            sender: (sender, None),
            receiver: (receiver, None),
            early: Vec::new(),
            carrier,
        });
        self.pair_names.insert(key, index);
        index
    }

    fn local<S: Sink>(network: &mut Network<S>, hops: Vec<railnet_fabric::BusHop>, hop: Hop) -> Carrier {
        let slots = network.memory.add_ghost(SLOTS, SLOTS_LENGTH);
        Carrier::Local(Local { slots, hop, paths: BusPaths::default(), hops, extra: Span::ZERO })
    }

    /// A connection by NICs: those on which the channel runs, or else those that NCCL takes for sends and receives.
    fn net<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        (index, algorithm): (u32, Algorithm),
        (channel, _, sender, receiver): super::PairKey,
        transport: Transport,
        identity: Identity,
    ) -> Result<Net, NetError> {
        let communicator = &self.communicators[self.members[sender as usize].communicator as usize];
        let first = communicator.members.start;
        let wired = [sender, receiver]
            .map(|member| communicator.wiring.nic(algorithm, u32::from(channel), member - first));
        let (mut nics, mut relay, mut gdr) = ([0, 0], None, [true, true]);
        if let Transport::Network { from_nic, to_nic, gdr_send, gdr_receive, relay: by, .. } = transport {
            (nics, relay, gdr) = ([from_nic, to_nic], by, [gdr_send, gdr_receive]);
        }
        if let [Some(out), Some(into)] = wired {
            nics = [out, into];
            (relay, gdr[0]) = communicator.transports.by_nic(sender - first, out, true);
            (_, gdr[1]) = communicator.transports.by_nic(receiver - first, into, false);
        }
        gdr[0] &= !communicator.is_bounced;
        let relay = relay.map(|rank| self.members[(first + rank) as usize].endpoint);
        let ends = [sender, receiver].map(|member| self.members[member as usize].endpoint);
        let (mut ports, mut out, mut into) = (ends, None, None);
        if let Some(servers) = resources.servers.as_deref_mut() {
            let (port, paths) = servers.out_paths(network, ends[0], nics[0], relay, gdr[0]);
            (ports[0], out) = (port, servers.next_path(port, true, &paths));
            let (port, paths) = servers.in_paths(network, ends[1], nics[1], gdr[1]);
            (ports[1], into) = (port, servers.next_path(port, false, &paths));
        }
        let own = network.memory.add_ghost(SLOTS, SLOTS_LENGTH);
        let own = Self::register(network, resources, ports[0], own, SLOTS, SLOTS_LENGTH);
        let far = identity.addresses[1].unwrap_or(SLOTS);
        let space = network.memory.add_ghost(far, SLOTS_LENGTH);
        let theirs =
            Self::register_as(network, resources, ports[1], (space, far, SLOTS_LENGTH), identity.keys[1])?;
        let base = identity.addresses[0].unwrap_or(RING);
        let space = network.memory.add_bytes(base, vec![0; Sender::RING_BYTES as usize]);
        network.memory.watch(space, base..base + Sender::RING_BYTES, u64::from(index));
        let place = (space, base, Sender::RING_BYTES);
        let ring = Self::register_as(network, resources, ports[0], place, identity.keys[0])?;
        // Tokens count from 1 on: work of plain traffic has none.
        let token = 2 * index + 1;
        let [config, config_far] = identity.configs(self.settings.config);
        let [near, far] = ports.map(|port| &resources.ports[port as usize]);
        let (nic, _) = network.nic(ports[0]);
        let mut sender = Sender::new(nic, near.domain, near.queue, config, token, ring)?;
        let (nic, _) = network.nic(ports[1]);
        let mut receiver = Receiver::new(nic, far.domain, far.queue, config_far, token + 1, theirs)?;
        let path =
            |port: u32| Path { traffic_class: self.settings.traffic_class, ..Path::to(host_gid(port)) };
        let (nic, mut cx) = network.nic(ports[0]);
        sender.connect(nic, &mut cx, path(ports[1]), &receiver.handle())?;
        let (nic, mut cx) = network.nic(ports[1]);
        receiver.connect(nic, &mut cx, path(ports[0]), &sender.handle())?;
        Ok(Net { sender, receiver, ports, sent: 0, slots: own, out, into })
    }

    /// Lets the NIC of a port use memory.
    pub(super) fn register<S: Sink>(
        network: &mut Network<S>,
        resources: &HostResources<'_>,
        port: u32,
        space: railnet_nic::memory::SpaceId,
        address: u64,
        length: u64,
    ) -> SlotMemory {
        let registered = Self::register_as(network, resources, port, (space, address, length), None);
        registered.expect("the memory was just made")
    }

    /// Lets the NIC of a port use memory (its space, first byte and length), by a certain key where one is given.
    fn register_as<S: Sink>(
        network: &mut Network<S>,
        resources: &HostResources<'_>,
        port: u32,
        (space, address, length): (railnet_nic::memory::SpaceId, u64, u64),
        key: Option<Key>,
    ) -> Result<SlotMemory, VerbsError> {
        debug_assert!(network.memory.backing(space, address, length).is_some(), "it was just made");
        let domain = resources.ports[port as usize].domain;
        // Borrowed apart: registration looks at the memory, the NIC is changed.
        let memory = std::mem::take(&mut network.memory);
        let (nic, _) = network.nic(port);
        let key = nic.reg_mr(&memory, domain, space, address, length, Access::ALL, key);
        network.memory = memory;
        Ok(SlotMemory { space, address, key: key? })
    }

    /// The group around a switch that a connection belongs to.
    fn group<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        to: Connection,
        number: u32,
    ) -> u32 {
        let communicator = self.members[member as usize].communicator;
        let first = self.communicators[communicator as usize].members.start;
        let SwitchGroup { senders, receivers, .. } = self.schedule(member).groups[number as usize].clone();
        let name = (communicator, to.channel, to.lane, senders, receivers);
        if let Some(known) = self.group_names.get(&name) {
            return *known;
        }
        let mut spoke = |rank: u32, is_sender: bool| {
            let member = first + rank;
            let endpoint = self.members[member as usize].endpoint;
            let slots = network.memory.add_ghost(SLOTS, SLOTS_LENGTH);
            let servers = resources.servers.as_deref_mut();
            let hops = servers.map_or_else(Vec::new, |servers| servers.hops_at_switch(endpoint, is_sender));
            Spoke::new(member, slots, hops)
        };
        let senders = name.3.iter().map(|rank| spoke(*rank, true)).collect();
        let receivers = name.4.iter().map(|rank| spoke(*rank, false)).collect();
        let index = self.groups.len() as u32;
        self.groups.push(Group::new(senders, receivers));
        self.group_names.insert(name, index);
        index
    }

    /// A slot is at the NIC: it is sent as soon as the receiver has room.
    pub(super) fn send<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        filled: Filled,
    ) {
        let end = self.members[member as usize].ends[filled.connection.0 as usize];
        if let End::Giver(group, head) = end {
            return self.give(network, (group, head), &filled);
        }
        let End::Sender(pair) = end else { return };
        let Carrier::Net(net) = &mut self.pairs[pair as usize].carrier else { return };
        let fill = Fill {
            address: net.slots.slot(&filled.layout, filled.slot),
            length: filled.bytes.as_u64() as u32,
            key: net.slots.key,
            mark: filled.mark,
            label: filled.tag.into(),
        };
        // The data, and the note that asked for it.
        self.transfers.messages += 2;
        net.sent += filled.bytes.as_u64();
        let port = net.ports[0];
        let (nic, mut cx) = network.nic(port);
        let result = net.sender.fill(nic, &mut cx, fill);
        network.kick(port);
        self.heard(network, resources, member, filled.connection, result);
    }

    /// Control words of a connection were written.
    pub(in crate::run) fn touched<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        pair: u32,
    ) {
        if pair & PUT != 0 {
            return self.put_touched(network, pair & !PUT);
        }
        let pair = self.net_pairs[pair as usize];
        let Pair { sender: (member, connection), carrier, .. } = &mut self.pairs[pair as usize];
        let (member, Some(connection)) = (*member, *connection) else { return };
        let Carrier::Net(net) = carrier else { return };
        let port = net.ports[0];
        let (nic, mut cx) = network.nic(port);
        let result = net.sender.poll(nic, &mut cx);
        network.kick(port);
        self.heard(network, resources, member, connection, result);
    }

    fn heard<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        resources: &mut HostResources<'_>,
        member: u32,
        connection: ConnectionId,
        result: Result<Option<railnet_coll::machine::Mark>, NetError>,
    ) {
        match result {
            Ok(None) => return,
            Ok(Some(mark)) => self.members[member as usize].machine.heard(network.now, connection, mark),
            Err(error) => self.note(member, connection, Err(error)),
        }
        self.pump(network, resources, member);
    }
}
