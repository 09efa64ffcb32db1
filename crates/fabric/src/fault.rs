//! What goes wrong, and when.

use std::collections::BTreeMap;

use railnet_core::event::{Event, Sink};
use railnet_core::{Psn, Random, Span, Time};
use railnet_topology::{Routes, Vertex};

use crate::chance::Chance;
use crate::config::FlowControl;
use crate::lane::Lane;
use crate::network::Network;
use crate::packet::{Flag, PacketIndex};

/// Something that changes about the network at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing gets through a link, in either direction. Switches route around it after `detection`.
    LinkDown {
        /// Which.
        link: u32,
        /// How long it takes until routes change.
        detection: Span,
    },
    /// A link works again. Switches use it after `detection`.
    LinkUp {
        /// Which.
        link: u32,
        /// How long it takes until routes change.
        detection: Span,
    },
    /// A link loses packets.
    Loss {
        /// Which.
        link: u32,
        /// How likely for each packet; [`Chance::NEVER`] heals it.
        chance: Chance,
    },
    /// Packets are damaged where no checksum of the link sees it: only the receiving NIC's ICRC does.
    Corruption {
        /// Which.
        link: u32,
        /// How likely for each packet; [`Chance::NEVER`] heals it.
        chance: Chance,
    },
    /// A link flips bits. The frame check at its far end throws such a packet away; a cut-through switch has begun to
    /// send it on by then, and the receiving host throws it away.
    BitErrors {
        /// Which.
        link: u32,
        /// How likely for each bit; [`Chance::NEVER`] heals it.
        chance: Chance,
    },
    /// Both directions of a link run at a part of their rate, in parts per million; 1,000,000 heals it.
    SlowLink {
        /// Which.
        link: u32,
        /// How much is left.
        rate: u32,
    },
    /// Something inside a host serves at a part of its speed.
    SlowLane {
        /// Which.
        lane: Lane,
        /// What is left, in millionths.
        rate: u32,
    },
    /// A host sends and takes in at a part of its rate, in parts per million; 1,000,000 heals it.
    SlowHost {
        /// Which.
        host: u32,
        /// How much is left.
        rate: u32,
    },
    /// One data packet of a host is lost, once.
    LosePacket {
        /// The sender.
        host: u32,
        /// Only packets to this host count.
        target: Option<u32>,
        /// Which of them.
        which: WhichPacket,
    },
    /// A host tells its switch to stop, over and over, on all lossless priorities. Without pause frames in use, as
    /// with credits, nothing comes of it.
    PauseStorm {
        /// Which.
        host: u32,
    },
    /// That host lets its switch go on.
    PauseStormEnd {
        /// Which.
        host: u32,
    },
    /// Ports have pause frames enabled for these priorities and no others: packets in others find no headroom, nobody
    /// is told to stop for them, and pauses that come for them are not obeyed. Without pause frames in use, nothing
    /// comes of it.
    Lossless {
        /// Which ports.
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
struct Trouble {
    loss: Chance,
    corruption: Chance,
    bit_errors: Chance,
    /// Packets to lose: to this host, which.
    named: Vec<(Option<u32>, WhichPacket)>,
    dice: Random,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    Damaged,
    Lost,
}

/// The state of all faults.
#[derive(Debug)]
pub(crate) struct Faults {
    seed: u64,
    /// What is planned, in the order it was planned.
    planned: Vec<Fault>,
    /// How many of those have struck.
    struck: usize,
    /// When the last one did.
    last: Time,
    /// Links that are down, and those that the routes avoid.
    pub(crate) dead: Vec<bool>,
    avoided: Vec<bool>,
    /// Channels on which packets meet trouble, by number.
    troubles: BTreeMap<u32, Trouble>,
    /// Hosts that do not let go.
    storms: Vec<u32>,
    /// Nobody is left to suffer: no new storms.
    is_over: bool,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            planned: Vec::new(),
            struck: 0,
            last: Time::ZERO,
            dead: Vec::new(),
            avoided: Vec::new(),
            troubles: BTreeMap::new(),
            storms: Vec::new(),
            is_over: false,
        }
    }
}

impl<S: Sink> Network<S> {
    /// Plans a fault.
    pub fn fault_at(&mut self, at: Time, fault: Fault) {
        self.keep_order();
        self.faults.planned.push(fault);
        let index = self.faults.planned.len() as u32 - 1;
        self.plan_fault(at, index);
    }

    /// Whether a planned fault has yet to strike.
    pub fn has_faults_ahead(&self) -> bool {
        self.faults.struck < self.faults.planned.len()
    }

    /// Whether something inside hosts is or will be slower than it should be.
    pub fn has_lane_faults(&self) -> bool {
        self.faults.planned.iter().any(|fault| match fault {
            Fault::SlowLane { .. } => true,
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

    /// When the last fault struck; the start of the run where none has.
    pub fn last_fault(&self) -> Time {
        self.faults.last
    }

    /// Links that are down.
    pub(crate) fn dead_links(&self) -> Vec<u32> {
        let links = self.faults.dead.iter().enumerate();
        links.filter(|(_, is_dead)| **is_dead).map(|(link, _)| link as u32).collect()
    }

    /// Hosts that pause their switch without end let go, and no other begins: for when all work is done.
    pub fn end_pause_storms(&mut self) {
        self.faults.is_over = true;
        for host in std::mem::take(&mut self.faults.storms) {
            self.let_go(host);
        }
    }

    /// A fault's moment has come.
    pub(crate) fn strike(&mut self, index: u32) {
        self.faults.struck += 1;
        self.faults.last = self.now;
        match self.faults.planned[index as usize] {
            Fault::LinkDown { link, detection } => self.set_link(link, true, detection),
            Fault::LinkUp { link, detection } => self.set_link(link, false, detection),
            Fault::Loss { link, chance } => self.trouble_link(link, |trouble| trouble.loss = chance),
            Fault::Corruption { link, chance } => {
                self.trouble_link(link, |trouble| trouble.corruption = chance);
            }
            Fault::BitErrors { link, chance } => {
                self.trouble_link(link, |trouble| trouble.bit_errors = chance);
            }
            Fault::SlowLink { link, rate } => {
                for channel in channels_of(link) {
                    self.channel_mut(channel).slow_down(rate);
                }
            }
            Fault::SlowLane { lane, rate } => self.slow_lane(lane, rate),
            Fault::SlowHost { host, rate } => {
                let egress = self.egress_of(host);
                for channel in channels_of(egress / 2) {
                    self.channel_mut(channel).slow_down(rate);
                }
            }
            Fault::LosePacket { host, target, which } => {
                let egress = self.egress_of(host);
                self.trouble(egress, |trouble| trouble.named.push((target, which)));
            }
            Fault::PauseStorm { host } => {
                // A switch without pause frames does not know what it is being told.
                let is_heard = self.config.flow_control == FlowControl::Pfc;
                if is_heard && !self.faults.is_over && !self.faults.storms.contains(&host) {
                    self.faults.storms.push(host);
                    self.pause_for_ever(host);
                }
            }
            Fault::PauseStormEnd { host } => {
                if let Some(place) = self.faults.storms.iter().position(|storm| *storm == host) {
                    self.faults.storms.remove(place);
                    self.let_go(host);
                }
            }
            Fault::Lossless { ports, priorities } => self.set_lossless(ports, priorities),
        }
    }

    fn set_link(&mut self, link: u32, down: bool, detection: Span) {
        self.faults.dead.resize(self.link_count(), false);
        self.faults.dead[link as usize] = down;
        self.is_whole = !self.faults.dead.contains(&true);
        self.note_environment(&if down { Event::LinkDown { link } } else { Event::LinkUp { link } });
        for channel in channels_of(link) {
            self.channel_mut(channel).is_down = down;
            if !down {
                self.resume(channel);
            }
        }
        self.plan_reroute(self.now + detection);
    }

    /// Switches learn of what is up and down.
    pub(crate) fn reroute(&mut self) {
        if self.faults.dead == self.faults.avoided {
            return;
        }
        let routes = Routes::minimal(&self.graph, &self.faults.dead);
        self.faults.avoided.clone_from(&self.faults.dead);
        self.set_routes(routes);
        let dead = self.faults.dead.iter().filter(|is_dead| **is_dead).count() as u32;
        self.note_environment(&Event::Rerouted { dead });
    }

    fn trouble_link(&mut self, link: u32, change: impl Fn(&mut Trouble)) {
        for channel in channels_of(link) {
            self.trouble(channel, &change);
        }
    }

    fn trouble(&mut self, channel: u32, change: impl Fn(&mut Trouble)) {
        let Faults { seed, troubles, .. } = &mut self.faults;
        let trouble = troubles.entry(channel).or_insert_with(|| Trouble {
            loss: Chance::NEVER,
            corruption: Chance::NEVER,
            bit_errors: Chance::NEVER,
            named: Vec::new(),
            dice: Random::stream(*seed, "faults", channel.into()),
        });
        change(trouble);
        let is_troubled = trouble.is_any();
        self.channel_mut(channel).is_troubled = is_troubled;
    }

    /// Whether a packet that leaves now over a troubled channel is lost. One that is damaged goes on, and shows it later.
    pub(crate) fn meets_fault(&mut self, egress: u32, packet: PacketIndex) -> bool {
        let facts = self.packets.facts[packet as usize];
        let psn = self.psn_of(packet).filter(|_| facts.is(Flag::Data));
        let Some(trouble) = self.faults.troubles.get_mut(&egress) else { return false };
        let is_cut_through = self.config.cut_through
            && matches!(self.channels[egress as usize].to, Vertex::Switch(_))
            && !facts.is(Flag::Pause);
        let mut fate = trouble.fate(facts.bytes.into(), is_cut_through);
        if let Some(psn) = psn
            && trouble.takes_named(facts.target, psn)
        {
            fate = Fate::Lost;
        }
        self.channels[egress as usize].is_troubled = trouble.is_any();
        if fate == Fate::Damaged && !facts.is(Flag::Pause) {
            self.damage(egress, packet);
            return false;
        }
        // A damaged pause frame is no pause frame.
        fate != Fate::Arrives
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
            self.channel_mut(ingress).lossless = priorities;
        }
    }
}

impl Faults {
    /// The dice of a channel on which packets meet trouble.
    pub(crate) fn dice_of(&mut self, channel: u32) -> &mut Random {
        &mut self.troubles.get_mut(&channel).expect("only a troubled channel asks").dice
    }
}

impl Trouble {
    fn is_any(&self) -> bool {
        let chances = [self.loss, self.corruption, self.bit_errors];
        chances.iter().any(|chance| *chance != Chance::NEVER) || !self.named.is_empty()
    }

    fn fate(&mut self, bytes: u32, is_cut_through: bool) -> Fate {
        if self.loss.happens(&mut self.dice) {
            return Fate::Lost;
        }
        if self.bit_errors != Chance::NEVER && self.bit_errors.any_of(bytes * 8).happens(&mut self.dice) {
            return if is_cut_through { Fate::Damaged } else { Fate::Lost };
        }
        if self.corruption.happens(&mut self.dice) { Fate::Damaged } else { Fate::Arrives }
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
