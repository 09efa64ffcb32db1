//! From a seed to a plan.

use railnet_core::{Bytes, Component, Psn, Random, Rate, Span, Time};
use railnet_nic::control::{
    ControlConfig, DcqcnParameters, DctcpParameters, HpccParameters, SwiftParameters, TimelyParameters,
};
use railnet_nic::recovery::RecoveryKind;
use railnet_nic::{AckRequests, Mtu, NicConfig};
use railnet_topology::FabricGraph;
use railnet_topology::fabric::{
    Dragonfly, Explicit, ExplicitLink, FabricKind, FatTree, LeafSpine, LinkOverride, LinkSpec, RailOptimised,
    SingleSwitch,
};

use super::plan::{Act, LIMIT, Link, Message, POOL, Plan};
use crate::model::chance::Chance;
use crate::model::config::{
    FlowControl, Framing, Marking, MarksAt, Routing, Scheduling, SwitchConfig, Weights,
};
use crate::model::fault::{Fault, WhichPacket};
use crate::network::host_gid;
use crate::testing::WorldOptions;

/// Packets of a message at most, in most runs and in those that fill the network.
const PACKETS_MAX: (u64, u64) = (24, 100);
/// Untouched bytes around what arrives.
const GUARD: u64 = 64;
/// When all messages and faults have begun.
const WITHIN: Span = Span::from_us(200);

struct Generator {
    random: Random,
    /// Long messages, all at once.
    is_heavy: bool,
}

/// The plan of a seed.
pub(super) fn plan(seed: u64) -> Plan {
    let mut generator = Generator { random: Random::stream(seed, "fabric storm", 0), is_heavy: false };
    generator.is_heavy = generator.one_in(6);
    let (kind, graph) = generator.fabric();
    let is_patient = !generator.one_in(4);
    let (switch, has_headroom) = generator.switch();
    let mut options = WorldOptions::new(switch);
    options.seed = seed;
    options.is_ghost = !generator.one_in(4);
    options.mtu = *generator.random.pick(&Mtu::ALL);
    if generator.one_in(5) {
        let words = generator.random.between(16, 1024) as u32;
        options.mtu = Mtu::of_payload(4 * words).expect("it is within the limits");
    }
    options.framing = if generator.one_in(5) { Framing::fixed(64) } else { Framing::ETHERNET };
    options.timeout = if is_patient { 15 } else { generator.random.between(5, 12) as u8 };
    options.retry_count = if generator.one_in(4) { generator.random.below(8) as u8 } else { 7 };
    options.nic = generator.nic(seed, &options.switch, graph.links[0].rate);
    let connections = generator.connections(graph.hosts.len() as u64);
    let mut messages = generator.messages(&connections, options.mtu);
    let memory = lay_out(&mut generator, &mut messages, graph.hosts.len());
    options.memory = memory;
    let faults = generator.faults(&graph);
    Plan {
        kind,
        graph,
        options,
        connections,
        messages,
        faults,
        is_patient,
        has_headroom,
        limit: Time::ZERO + LIMIT,
    }
}

/// Gives every message a place of its own at its receiver; returns the bytes that a host needs.
fn lay_out(generator: &mut Generator, messages: &mut [Message], hosts: usize) -> u64 {
    // Offsets do not depend on the receiver: one counter for all hosts wastes some memory, which is a ghost's or small.
    let mut next = POOL + GUARD;
    for message in messages.iter_mut() {
        message.from = generator.random.below(POOL - u64::from(message.length) + 1);
        message.to = next;
        next += u64::from(message.length) + GUARD + generator.random.below(8);
    }
    debug_assert!(hosts > 0, "a fabric has hosts");
    next + GUARD
}

impl Generator {
    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn small(&mut self, low: u64, high: u64) -> u32 {
        self.random.between(low, high) as u32
    }

    /// A moment while things begin, early ones as likely as late ones.
    fn moment(&mut self) -> Time {
        let ceiling = WITHIN.as_ps() >> self.random.below(8);
        Time::from_ps(self.random.below(ceiling.max(1)))
    }

    fn fabric(&mut self) -> (FabricKind, FabricGraph) {
        loop {
            let kind = self.kind();
            let rate = Rate::gbps(*self.random.pick(&[10, 25, 37, 40, 100, 100, 200, 400]));
            let delay = Span::from_ns(*self.random.pick(&[0, 10, 300, 500, 1000, 1000, 2000, 5000]));
            let mut links = LinkSpec::new(rate, delay);
            if self.one_in(4) {
                let other = Some(Rate::gbps(*self.random.pick(&[10, 50, 100, 400])));
                let delay = Some(Span::from_ns(self.random.below(3000)));
                let place = LinkOverride { rate: other, delay };
                (links.up, links.global, links.local) = (place, place, place);
            }
            // Some numbers do not fit together, and one host alone has no peer.
            if let Ok(graph) = kind.build(&links)
                && graph.hosts.len() > 1
            {
                return (kind, graph);
            }
        }
    }

    fn kind(&mut self) -> FabricKind {
        match self.random.below(12) {
            0 | 1 => FabricKind::SingleSwitch(SingleSwitch { hosts: self.small(2, 9) }),
            2..6 => {
                let shape = LeafSpine::new(self.small(2, 4), self.small(1, 4), self.small(1, 3));
                FabricKind::LeafSpine(LeafSpine { links_per_spine: self.small(1, 2), ..shape })
            }
            6 => {
                let (k, tiers) = *self.random.pick(&[(2, 3), (4, 2), (4, 3), (6, 2)]);
                FabricKind::FatTree(FatTree { tiers, ..FatTree::new(k) })
            }
            7 | 8 => {
                let nodes_per_group = self.small(1, 2);
                let shape = RailOptimised::new(self.small(2, 4), self.small(1, 3), self.small(1, 3));
                FabricKind::RailOptimised(RailOptimised { nodes_per_group, ..shape })
            }
            9 | 10 => FabricKind::Dragonfly(Dragonfly {
                groups: self.small(2, 4),
                routers_per_group: self.small(1, 3),
                hosts_per_router: self.small(1, 2),
                global_links_per_router: self.small(1, 2),
            }),
            _ => self.explicit(),
        }
    }

    /// Switches in a ring or a line, with some links more, and hosts on each.
    fn explicit(&mut self) -> FabricKind {
        let count = self.small(1, 5);
        let mut links = Vec::new();
        let joins = if count > 2 && self.one_in(2) { count } else { count - 1 };
        for switch in 0..joins {
            links.push(ExplicitLink::new(format!("s{switch} - s{}", (switch + 1) % count)));
        }
        for _ in 0..self.random.below(3) {
            let (a, b) = (self.random.below(u64::from(count)), self.random.below(u64::from(count)));
            if a != b {
                links.push(ExplicitLink::new(format!("s{a} - s{b}")));
            }
        }
        let mut hosts = 0;
        for switch in 0..count {
            for _ in 0..self.random.between(1, 2) {
                links.push(ExplicitLink::new(format!("h{hosts} - s{switch}")));
                hosts += 1;
            }
        }
        let switches = (0..count).map(|id| format!("s{id}")).collect();
        FabricKind::Explicit(Explicit { hosts: Vec::new(), switches, links })
    }

    /// The switches, and whether their headroom is enough.
    fn switch(&mut self) -> (SwitchConfig, bool) {
        let flow_control = match self.random.below(8) {
            0..5 => FlowControl::Pfc,
            5 | 6 => FlowControl::Credits,
            _ => FlowControl::None,
        };
        let routing = match self.random.below(8) {
            0..3 => Routing::Ecmp,
            3 => Routing::Murmur3,
            4 => Routing::Valiant,
            5 => Routing::Flowlet(Span::from_us(self.random.between(1, 50))),
            6 => Routing::Adaptive,
            _ => Routing::Spray,
        };
        let low = self.random.below(60_000) >> self.random.below(4);
        let marking = Marking {
            low: Bytes(low),
            high: Bytes(low + (self.random.below(100_000) >> self.random.below(4))),
            most: self.random.below(1_000_001) as u32,
        };
        let is_tight = self.one_in(10);
        let config = SwitchConfig {
            buffer: Bytes(
                *self.random.pick(&[0, 200_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 32_000_000]),
            ),
            reserve: Bytes(*self.random.pick(&[0, 1_000, 4_000, 4_000, 20_000])),
            shift: self.random.between(0, 10) as i8 - 3,
            pause_at: self.one_in(6).then(|| Bytes(self.random.below(200_000))),
            resume_offset: Bytes(*self.random.pick(&[0, 3_000, 3_000, 50_000])),
            headroom: is_tight.then(|| Bytes(self.random.below(20_000))),
            flow_control,
            lossless: if self.one_in(12) { self.random.below(256) as u8 } else { 0xff },
            marking: if self.one_in(4) { None } else { Some(marking) },
            marks: !self.one_in(5),
            marks_at: *self.random.pick(&[MarksAt::Arrival, MarksAt::Departure]),
            scheduling: match self.one_in(3) {
                true => Scheduling::Weighted(Weights {
                    weights: std::array::from_fn(|_| self.random.between(1, 10) as u32),
                    strict: self.random.below(256) as u8,
                }),
                false => Scheduling::Strict,
            },
            cut_through: self.one_in(4),
            routing,
            raises_priority: !self.one_in(4),
            aggregation: None,
        };
        (config, !is_tight)
    }

    fn nic(&mut self, seed: u64, switch: &SwitchConfig, rate: Rate) -> NicConfig {
        let mut config = NicConfig::new(Component(0), seed, host_gid(0));
        let round_trip = Span::from_us(self.random.between(2, 60));
        config.control = match self.random.below(10) {
            0..3 => ControlConfig::None,
            3 => ControlConfig::Dcqcn(DcqcnParameters {
                window: self.one_in(2).then_some(round_trip),
                window_follows_rate: self.one_in(2),
                ..DcqcnParameters::hpcc(rate)
            }),
            4 => ControlConfig::Dcqcn(DcqcnParameters::paper(rate)),
            5 => ControlConfig::Dcqcn(DcqcnParameters::connectx()),
            6 => ControlConfig::Timely(TimelyParameters::hpcc(rate)),
            7 => ControlConfig::Hpcc(HpccParameters::ns3(rate, round_trip)),
            8 => ControlConfig::Dctcp(DctcpParameters::hardware(rate, round_trip)),
            _ => ControlConfig::Swift(SwiftParameters::htsim()),
        };
        let spreads = !matches!(switch.routing, Routing::Ecmp | Routing::Murmur3 | Routing::Valiant);
        config.recovery = match self.random.below(10) {
            8 | 9 => RecoveryKind::SelectiveRepeat {
                window: *self.random.pick(&[64, 1 << 10, 1 << 14]),
                reordering: Span::from_us(if spreads { self.random.between(0, 200) } else { 0 }),
            },
            0 => RecoveryKind::Reorder { window: self.random.between(1, 64) as u16 },
            1..4 => RecoveryKind::Reorder { window: 1 << 14 },
            _ if spreads && !self.one_in(3) => RecoveryKind::Reorder { window: 1 << 14 },
            _ => RecoveryKind::GoBackN,
        };
        config.notification_interval = Span::from_us(*self.random.pick(&[0, 4, 50]));
        config.burst_packets = *self.random.pick(&[1, 2, 16, 64]);
        config.behaviour.ack_requests =
            AckRequests { every_message: self.one_in(2), interval: *self.random.pick(&[1, 3, 16, 64]) };
        config.behaviour.coalesce_acks = !self.one_in(3);
        config
    }

    fn connections(&mut self, hosts: u64) -> Vec<Link> {
        let least = if self.is_heavy { hosts.min(14) } else { 1 };
        let count = self.random.between(least, (hosts * 2).min(14));
        // Incast, or each host to the one so many further on, or random pairs.
        let popular = self.one_in(2).then(|| self.random.below(hosts));
        let shift = self.one_in(2).then(|| self.random.below(hosts));
        let mut connections = Vec::new();
        while (connections.len() as u64) < count {
            let from = self.random.below(hosts);
            let aim = popular.or(shift.map(|shift| (from + shift) % hosts));
            let to = aim.filter(|to| *to != from && !self.one_in(5));
            let to = to.unwrap_or_else(|| self.random.below(hosts));
            if from == to {
                continue;
            }
            // Any priority but those of notifications and pauses, most often the same.
            let dscp = if self.one_in(3) { self.random.below(48) as u8 } else { 0 };
            let ecn = if self.one_in(8) { 0 } else { 2 };
            let psn = *self.random.pick(&[0, 100, Psn::MASK - 3]);
            let (ends, psn) = ([from as u32, to as u32], Psn::new(psn));
            connections.push(Link { ends, traffic_class: dscp << 2 | ecn, psn });
        }
        connections
    }

    fn messages(&mut self, connections: &[Link], mtu: Mtu) -> Vec<Message> {
        let count = self.random.between(connections.len() as u64, connections.len() as u64 * 3);
        let together = (self.is_heavy || self.one_in(2)).then(|| self.moment());
        let mut messages: Vec<Message> = (0..count)
            .map(|index| {
                let connection = match index < connections.len() as u64 {
                    true => index as usize,
                    false => self.random.below(connections.len() as u64) as usize,
                };
                Message {
                    connection,
                    is_reverse: self.one_in(4),
                    act: *self.random.pick(&[Act::Write, Act::Write, Act::Write, Act::Send, Act::Read]),
                    length: self.length(mtu),
                    from: 0,
                    to: 0,
                    start: together.unwrap_or_else(|| self.moment()),
                }
            })
            .collect();
        // Receives are used in the order of sends: both are posted in this order.
        messages.sort_by_key(|message| message.start);
        messages
    }

    fn length(&mut self, mtu: Mtu) -> u32 {
        let mtu = u64::from(mtu.bytes());
        let packets = if self.is_heavy { PACKETS_MAX.1 } else { PACKETS_MAX.0 };
        let most = (mtu * packets).min(POOL);
        let length = match self.random.below(8) {
            0 => self.random.below(3),
            1 => self.random.between(mtu - 2, mtu + 2),
            2 => mtu * self.random.between(1, packets),
            3 => most,
            _ => self.random.below(most + 1),
        };
        length.min(most) as u32
    }

    fn faults(&mut self, graph: &FabricGraph) -> Vec<(Time, Fault)> {
        let mut faults = Vec::new();
        if self.one_in(2) {
            return faults;
        }
        for _ in 0..self.random.between(1, 3) {
            let at = self.moment();
            let link = self.random.below(graph.links.len() as u64) as u32;
            let host = self.random.below(graph.hosts.len() as u64) as u32;
            let later = at + Span::from_ns(self.random.below(400_000));
            let rate = self.random.between(256, 200_000) as u32 >> self.random.below(8);
            let heals = !self.one_in(4);
            let (chance, never) = (Chance::parts_per_million(rate), Chance::NEVER);
            let (fault, healed) = match self.random.below(8) {
                0 => {
                    let mut detection = || Span::from_ns(self.random.below(100_000));
                    let down = Fault::LinkDown { link, detection: detection() };
                    (down, Fault::LinkUp { link, detection: detection() })
                }
                1 => (Fault::Loss { link, chance }, Fault::Loss { link, chance: never }),
                2 => (Fault::Corruption { link, chance }, Fault::Corruption { link, chance: never }),
                4 => {
                    let chance = Chance::parts_per_million(self.random.between(1, 20) as u32);
                    (Fault::BitErrors { link, chance }, Fault::BitErrors { link, chance: never })
                }
                5 => {
                    let rate = self.random.between(50_000, 999_999) as u32;
                    (Fault::SlowLink { link, rate }, Fault::SlowLink { link, rate: 1_000_000 })
                }
                3 => {
                    let rate = self.random.between(50_000, 999_999) as u32;
                    (Fault::SlowHost { host, rate }, Fault::SlowHost { host, rate: 1_000_000 })
                }
                _ => {
                    let number = self.random.below(30);
                    let which = match self.one_in(2) {
                        true => WhichPacket::Psn(Psn::new(number as u32)),
                        false => WhichPacket::Nth(number + 1),
                    };
                    let named = Fault::LosePacket { host, target: None, which };
                    (named, named)
                }
            };
            faults.push((at, fault));
            if heals && healed != fault {
                faults.push((later, healed));
            }
        }
        faults.sort_by_key(|(at, _)| *at);
        faults
    }
}
