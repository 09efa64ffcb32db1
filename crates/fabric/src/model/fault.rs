//! Faults: what breaks, when, and what it does to packets.

use std::collections::BTreeMap;

use railnet_core::event::{Event, Sink};
use railnet_core::{Psn, Random, Span, Time};
use railnet_topology::Vertex;

use crate::model::bus::BusResource;
use crate::model::chance::Chance;
use crate::model::config::FlowControl;
use crate::model::fabric::Fabric;
use crate::model::packet::{Flag, PacketIndex};
use crate::network::Network;

/// A change of the network at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing gets through a link, in either direction. Switches route around it after `detection`.
    LinkDown {
        /// The link.
        link: u32,
        /// How long it takes until routes change.
        detection: Span,
    },
    /// A link works again. Switches use it after `detection`.
    LinkUp {
        /// The link.
        link: u32,
        /// How long it takes until routes change.
        detection: Span,
    },
    /// A link loses packets.
    Loss {
        /// The link.
        link: u32,
        /// How likely for each packet; [`Chance::NEVER`] heals it.
        chance: Chance,
    },
    /// A link corrupts packets where its frame check does not see it: only the receiving NIC's ICRC does.
    Corruption {
        /// The link.
        link: u32,
        /// How likely for each packet; [`Chance::NEVER`] heals it.
        chance: Chance,
    },
    /// A link flips bits. The frame check at its far end drops such a packet; a cut-through switch has begun to forward it
    /// by then, and the receiving host drops it.
    BitErrors {
        /// The link.
        link: u32,
        /// How likely for each bit; [`Chance::NEVER`] heals it.
        chance: Chance,
    },
    /// Both directions of a link run at a part of their rate, in parts per million; 1,000,000 heals it.
    SlowLink {
        /// The link.
        link: u32,
        /// Its rate, in parts per million.
        rate: u32,
    },
    /// A bus resource of a host serves at a part of its speed.
    SlowBus {
        /// The resource.
        resource: BusResource,
        /// Its speed, in parts per million.
        rate: u32,
    },
    /// A host sends and receives at a part of its rate, in parts per million; 1,000,000 heals it.
    SlowHost {
        /// The host.
        host: u32,
        /// Its rate, in parts per million.
        rate: u32,
    },
    /// One data packet of a host is lost, once.
    LosePacket {
        /// The sender.
        host: u32,
        /// Only packets to this host count.
        target: Option<u32>,
        /// The packet.
        which: WhichPacket,
    },
    /// A host sends XOFF to its switch, over and over, on all lossless priorities. Without PFC nothing comes of it.
    PauseStorm {
        /// The host.
        host: u32,
    },
    /// That host sends XON.
    PauseStormEnd {
        /// The host.
        host: u32,
    },
    /// Ports have PFC enabled for these priorities and no others: packets of others have no headroom and cause no XOFF, and
    /// pause frames for them are ignored. Without PFC nothing comes of it.
    Lossless {
        /// The ports.
        ports: Ports,
        /// The priorities, one bit each.
        priorities: u8,
    },
}

/// How a data packet is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhichPacket {
    /// The n-th that leaves, counted from 1.
    Nth(u64),
    /// The next one with this sequence number.
    Psn(Psn),
}

/// Ports of switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ports {
    /// All of all switches.
    All,
    /// All of one switch.
    Switch(u32),
    /// The one that a link is plugged into.
    Link {
        /// The switch.
        switch: u32,
        /// The link.
        link: u32,
    },
}

/// What is wrong with a channel.
#[derive(Debug)]
struct ChannelFaults {
    loss: Chance,
    corruption: Chance,
    bit_errors: Chance,
    /// Packets to lose: to this host, which packet.
    named: Vec<(Option<u32>, WhichPacket)>,
    random: Random,
}

/// What happens to a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    Damaged,
    Lost,
}

/// All faults, planned and present.
#[derive(Debug)]
pub(crate) struct Faults {
    seed: u64,
    /// In the order in which they were planned.
    planned: Vec<Fault>,
    /// How many of those have been applied.
    applied: usize,
    /// When the last one was.
    last: Time,
    /// Links that are down, and those that the routes avoid.
    pub(crate) dead: Vec<bool>,
    avoided: Vec<bool>,
    /// Channels that lose or corrupt packets.
    by_channel: BTreeMap<u32, ChannelFaults>,
    /// Hosts in a pause storm.
    storms: Vec<u32>,
    /// All work is done: no storm begins any more.
    is_over: bool,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            planned: Vec::new(),
            applied: 0,
            last: Time::ZERO,
            dead: Vec::new(),
            avoided: Vec::new(),
            by_channel: BTreeMap::new(),
            storms: Vec::new(),
            is_over: false,
        }
    }
}

impl Fabric {
    fn change_link(&mut self, link: u32, change: impl Fn(&mut ChannelFaults)) {
        for channel in channels_of(link) {
            self.channel_faults(channel, &change);
        }
    }

    fn channel_faults(&mut self, channel: u32, change: impl Fn(&mut ChannelFaults)) {
        let Faults { seed, by_channel, .. } = &mut self.faults;
        let channel_faults = by_channel.entry(channel).or_insert_with(|| ChannelFaults {
            loss: Chance::NEVER,
            corruption: Chance::NEVER,
            bit_errors: Chance::NEVER,
            named: Vec::new(),
            random: Random::stream(*seed, "faults", channel.into()),
        });
        change(channel_faults);
        let has_faults = channel_faults.is_any();
        self.channels[channel as usize].has_faults = has_faults;
    }

    fn set_lossless(&mut self, ports: Ports, priorities: u8) {
        if self.config.flow_control != FlowControl::Pfc {
            return;
        }
        let ingresses: Vec<u32> = match ports {
            Ports::All => (0..self.channels.len() as u32)
                .filter(|channel| matches!(self.channels[*channel as usize].to, Vertex::Switch(_)))
                .collect(),
            Ports::Switch(switch) => {
                let ports = &self.switches[switch as usize].ports;
                ports.iter().map(|egress| self.channels[*egress as usize].reverse).collect()
            }
            Ports::Link { switch, link } => {
                let to_switch = |channel: &u32| self.channels[*channel as usize].to == Vertex::Switch(switch);
                channels_of(link).into_iter().filter(to_switch).collect()
            }
        };
        for ingress in ingresses {
            self.channels[ingress as usize].lossless = priorities;
        }
    }
}

impl<S: Sink> Network<S> {
    /// Plans a fault.
    pub fn fault_at(&mut self, at: Time, fault: Fault) {
        self.use_one_calendar();
        self.fabric.faults.planned.push(fault);
        let index = self.fabric.faults.planned.len() as u32 - 1;
        self.schedule_fault(at, index);
    }

    /// Whether a planned fault has not been applied yet.
    pub fn has_faults_ahead(&self) -> bool {
        self.fabric.faults.applied < self.fabric.faults.planned.len()
    }

    /// Whether a bus resource is or will be slowed down.
    pub fn has_bus_faults(&self) -> bool {
        self.fabric.faults.planned.iter().any(|fault| match fault {
            Fault::SlowBus { .. } => true,
            Fault::LinkDown { .. }
            | Fault::LinkUp { .. }
            | Fault::Loss { .. }
            | Fault::Corruption { .. }
            | Fault::BitErrors { .. }
            | Fault::SlowLink { .. }
            | Fault::SlowHost { .. }
            | Fault::LosePacket { .. }
            | Fault::PauseStorm { .. }
            | Fault::PauseStormEnd { .. }
            | Fault::Lossless { .. } => false,
        })
    }

    /// When the last fault was applied; the start of the run where none was.
    pub fn last_fault(&self) -> Time {
        self.fabric.faults.last
    }

    /// Ends all pause storms, and lets none begin: for when all work is done.
    pub fn end_pause_storms(&mut self) {
        self.fabric.faults.is_over = true;
        for host in std::mem::take(&mut self.fabric.faults.storms) {
            self.end_pause_storm(host);
        }
    }

    /// Applies a fault.
    pub(crate) fn apply_fault(&mut self, index: u32) {
        self.fabric.faults.applied += 1;
        self.fabric.faults.last = self.now;
        match self.fabric.faults.planned[index as usize] {
            Fault::LinkDown { link, detection } => self.set_link(link, true, detection),
            Fault::LinkUp { link, detection } => self.set_link(link, false, detection),
            Fault::Loss { link, chance } => {
                self.fabric.change_link(link, |faults| faults.loss = chance);
            }
            Fault::Corruption { link, chance } => {
                self.fabric.change_link(link, |faults| faults.corruption = chance);
            }
            Fault::BitErrors { link, chance } => {
                self.fabric.change_link(link, |faults| faults.bit_errors = chance);
            }
            Fault::SlowLink { link, rate } => {
                for channel in channels_of(link) {
                    self.fabric.channels[channel as usize].slow_down(rate);
                }
            }
            Fault::SlowBus { resource, rate } => self.endpoints.buses.slow_down(resource, rate),
            Fault::SlowHost { host, rate } => {
                let egress = self.endpoints.hosts[host as usize].egress;
                for channel in channels_of(egress / 2) {
                    self.fabric.channels[channel as usize].slow_down(rate);
                }
            }
            Fault::LosePacket { host, target, which } => {
                let egress = self.endpoints.hosts[host as usize].egress;
                self.fabric.channel_faults(egress, |faults| faults.named.push((target, which)));
            }
            Fault::PauseStorm { host } => {
                // A switch without PFC ignores pause frames.
                let is_heard = self.fabric.config.flow_control == FlowControl::Pfc;
                if is_heard && !self.fabric.faults.is_over && !self.fabric.faults.storms.contains(&host) {
                    self.fabric.faults.storms.push(host);
                    self.begin_pause_storm(host);
                }
            }
            Fault::PauseStormEnd { host } => {
                if let Some(place) = self.fabric.faults.storms.iter().position(|storm| *storm == host) {
                    self.fabric.faults.storms.remove(place);
                    self.end_pause_storm(host);
                }
            }
            Fault::Lossless { ports, priorities } => self.fabric.set_lossless(ports, priorities),
        }
    }

    fn set_link(&mut self, link: u32, down: bool, detection: Span) {
        self.fabric.faults.dead.resize(self.fabric.link_count(), false);
        self.fabric.faults.dead[link as usize] = down;
        self.fabric.all_links_up = !self.fabric.faults.dead.contains(&true);
        self.emit_environment(&if down { Event::LinkDown { link } } else { Event::LinkUp { link } });
        for channel in channels_of(link) {
            self.fabric.channels[channel as usize].is_down = down;
            if !down {
                self.resume(channel);
            }
        }
        self.schedule_reroute(self.now + detection);
    }

    /// Switches compute their routes again.
    pub(crate) fn reroute(&mut self) {
        if self.fabric.faults.dead == self.fabric.faults.avoided {
            return;
        }
        self.fabric.faults.avoided.clone_from(&self.fabric.faults.dead);
        self.topology.avoid(&self.fabric.faults.dead);
        let dead = self.fabric.faults.dead.iter().filter(|is_dead| **is_dead).count() as u32;
        self.emit_environment(&Event::Rerouted { dead });
    }

    /// Whether a packet that is transmitted on a faulty channel is lost. A corrupted one goes on.
    pub(crate) fn meets_fault(&mut self, egress: u32, packet: PacketIndex) -> bool {
        let metadata = self.fabric.packets.metadata[packet as usize];
        let headers = self.fabric.packets.headers(packet).filter(|_| metadata.is(Flag::Data));
        let psn = headers.map(|transmit| transmit.headers.bth.psn);
        let Some(channel_faults) = self.fabric.faults.by_channel.get_mut(&egress) else { return false };
        let is_cut_through = self.fabric.config.cut_through
            && matches!(self.fabric.channels[egress as usize].to, Vertex::Switch(_))
            && !metadata.is(Flag::Pause);
        let mut fate = channel_faults.fate(metadata.bytes.into(), is_cut_through);
        if let Some(psn) = psn
            && channel_faults.takes_named(metadata.target, psn)
        {
            fate = Fate::Lost;
        }
        self.fabric.channels[egress as usize].has_faults = channel_faults.is_any();
        if fate == Fate::Damaged && !metadata.is(Flag::Pause) {
            self.damage(egress, packet);
            return false;
        }
        // A corrupted pause frame is lost.
        fate != Fate::Arrives
    }
}

impl Faults {
    /// Links that are down.
    pub(crate) fn dead_links(&self) -> Vec<u32> {
        let links = self.dead.iter().enumerate();
        links.filter(|(_, is_dead)| **is_dead).map(|(link, _)| link as u32).collect()
    }

    /// The random stream of a faulty channel.
    pub(crate) fn random_of(&mut self, channel: u32) -> &mut Random {
        &mut self.by_channel.get_mut(&channel).expect("only a troubled channel asks").random
    }
}

impl ChannelFaults {
    fn is_any(&self) -> bool {
        let chances = [self.loss, self.corruption, self.bit_errors];
        chances.iter().any(|chance| *chance != Chance::NEVER) || !self.named.is_empty()
    }

    fn fate(&mut self, bytes: u32, is_cut_through: bool) -> Fate {
        if self.loss.happens(&mut self.random) {
            return Fate::Lost;
        }
        if self.bit_errors != Chance::NEVER && self.bit_errors.any_of(bytes * 8).happens(&mut self.random) {
            return if is_cut_through { Fate::Damaged } else { Fate::Lost };
        }
        if self.corruption.happens(&mut self.random) { Fate::Damaged } else { Fate::Arrives }
    }

    /// Whether a data packet is one that was named; each name is good for one.
    fn takes_named(&mut self, target: u32, psn: Psn) -> bool {
        let mut is_named = false;
        self.named.retain_mut(|(to, which)| {
            if to.is_some_and(|to| to != target) {
                return true;
            }
            let hits = match which {
                WhichPacket::Nth(left) => {
                    *left = left.saturating_sub(1);
                    *left == 0
                }
                // Named twice, it is lost again when it is sent again.
                WhichPacket::Psn(name) => *name == psn && !is_named,
            };
            is_named |= hits;
            !hits
        });
        is_named
    }
}

/// Both directions of a link.
fn channels_of(link: u32) -> [u32; 2] {
    [link * 2, link * 2 + 1]
}
