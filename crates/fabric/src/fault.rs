//! What goes wrong, and when.

use railnet_core::event::{Event, Sink};
use railnet_core::{Psn, Span, Time};
use railnet_topology::{Routes, Vertex};

use crate::network::Network;
use crate::packet::PacketIndex;

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
    /// A link loses packets, in parts per million; 0 heals it.
    Loss {
        /// Which.
        link: u32,
        /// How many of a million.
        rate: u32,
    },
    /// A link flips bits in packets, in parts per million; 0 heals it.
    Corruption {
        /// Which.
        link: u32,
        /// How many of a million.
        rate: u32,
    },
    /// A host's port runs at a part of its rate, in parts per million; 1,000,000 heals it.
    SlowHost {
        /// Which.
        host: u32,
        /// How much is left.
        rate: u32,
    },
    /// The next packet of a host with this sequence number is lost, once.
    LosePacket {
        /// The sender.
        host: u32,
        /// The sequence number.
        psn: Psn,
    },
    /// A host tells its switch to stop, for ever, on all lossless priorities.
    PauseStorm {
        /// Which.
        host: u32,
    },
}

/// The state of all faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// What is planned, in the order it was planned.
    pub(crate) planned: Vec<Fault>,
    /// Links that are down.
    pub(crate) dead: Vec<bool>,
    /// Packets to lose: (host, sequence number).
    pub(crate) named: Vec<(u32, Psn)>,
}

impl<S: Sink> Network<S> {
    /// Plans a fault.
    pub fn fault_at(&mut self, at: Time, fault: Fault) {
        self.faults.planned.push(fault);
        let index = self.faults.planned.len() as u32 - 1;
        self.plan_fault(at, index);
    }

    /// A fault's moment has come.
    pub(crate) fn strike(&mut self, index: u32) {
        match self.faults.planned[index as usize] {
            Fault::LinkDown { link, detection } => self.set_link(link, true, detection),
            Fault::LinkUp { link, detection } => self.set_link(link, false, detection),
            Fault::Loss { link, rate } => {
                for channel in channels_of(link) {
                    self.channel_mut(channel).loss = rate;
                }
            }
            Fault::Corruption { link, rate } => {
                for channel in channels_of(link) {
                    self.channel_mut(channel).corruption = rate;
                }
            }
            Fault::SlowHost { host, rate } => {
                let egress = self.egress_of(host);
                self.channel_mut(egress).slow_down(rate);
            }
            Fault::LosePacket { host, psn } => self.faults.named.push((host, psn)),
            Fault::PauseStorm { host } => self.pause_for_ever(host),
        }
    }

    fn set_link(&mut self, link: u32, down: bool, detection: Span) {
        self.faults.dead.resize(self.link_count(), false);
        self.faults.dead[link as usize] = down;
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
        let routes = Routes::minimal(&self.graph, &self.faults.dead);
        self.set_routes(routes);
        let dead = self.faults.dead.iter().filter(|is_dead| **is_dead).count() as u32;
        self.note_environment(&Event::Rerouted { dead });
    }

    /// Whether a packet that leaves now is lost, or damaged, on its way.
    pub(crate) fn meets_fault(&mut self, egress: u32, packet: PacketIndex) -> bool {
        let (loss, corruption) = (self.channel_mut(egress).loss, self.channel_mut(egress).corruption);
        if loss > 0 && self.dice.chance(loss) {
            return true;
        }
        if corruption > 0 && self.dice.chance(corruption) {
            self.damage(egress, packet);
        }
        if self.faults.named.is_empty() {
            return false;
        }
        let Vertex::Host(host) = self.channel_mut(egress).from else { return false };
        let Some(psn) = self.psn_of(packet) else { return false };
        let named = self.faults.named.iter().position(|&name| name == (host, psn));
        named.map(|index| self.faults.named.remove(index)).is_some()
    }
}

/// Both directions of a link.
fn channels_of(link: u32) -> [u32; 2] {
    [link * 2, link * 2 + 1]
}
