//! One network in several parts, each carried out by a thread of its own.
//!
//! Places reach each other by links only, and no window is longer than a link's delay: all of them can be taken through a
//! window at the same time. Each part is a whole network of which it carries out some places; what those send to places of
//! other parts is handed over between two windows. Where an event stands in the order is up to its sender alone, so it
//! makes no difference to what happens how many parts there are, and which.

use railnet_core::event::Sink;
use railnet_core::{Component, Order, Time};
use railnet_nic::Transmit;
use railnet_nic::frame::WireForm;
use railnet_topology::Vertex;

use crate::application::Application;
use crate::calendar::{Entry, Key};
use crate::event::{Event, Packed};
use crate::network::Network;
use crate::packet::{Facts, Flag, PacketIndex};
use crate::windows::Windows;

/// What a network carries out, and what it has for others.
#[derive(Debug)]
pub(crate) struct Share {
    me: u32,
    /// Who carries out each place.
    owners: Vec<u32>,
    /// For each of the parts.
    out: Vec<Mail>,
    /// When the first of that happens.
    first_out: Time,
    /// What others have sent, and room that was used for it.
    incoming: Vec<Mail>,
}

/// What will happen at places of another part.
#[derive(Debug, Default)]
struct Mail {
    parcels: Vec<Parcel>,
    /// Packets that arrive, in the order of the events that say so.
    packets: Vec<Packet>,
}

#[derive(Debug)]
struct Parcel {
    place: u32,
    entry: Entry<Packed>,
}

/// A packet on its way from one part to another.
#[derive(Debug)]
struct Packet {
    facts: Facts,
    contents: Option<Transmit>,
    bytes: Vec<u8>,
}

impl<S: Sink> Network<S> {
    /// Whether several parts could carry it out: places have windows, hosts too, and nobody looks at frames or breaks links.
    pub fn can_be_shared(&self, parts: u32) -> bool {
        let islands = self.windows.as_ref().map_or(0, |windows| windows.islands().count());
        let is_plain = self.form == WireForm::Values && !self.shows_frames && !self.has_faults_ahead();
        parts > 1 && islands >= parts && self.switches.len() as u32 >= parts && is_plain
    }

    /// From now on it carries out only what is up to the part `me` of so many, before anything has happened. The others are
    /// networks that were made in the same way.
    pub fn take_share(&mut self, me: u32, parts: u32) {
        let Some(windows) = &self.windows else { return };
        let (switches, islands) = (self.switches.len() as u32, windows.islands().count());
        // Switches of a tier follow each other, and often one tier has most to do.
        let of_switches = (0..switches).map(|switch| switch % parts);
        let of_islands = (0..islands).map(|island| island * parts / islands);
        self.share = Some(Box::new(Share {
            me,
            owners: of_switches.chain(of_islands).collect(),
            out: (0..parts).map(|_| Mail::default()).collect(),
            first_out: Time::NEVER,
            incoming: Vec::new(),
        }));
        self.find_places();
    }

    /// Which part carries out a host or switch.
    pub fn part_of(&self, vertex: Vertex) -> u32 {
        let place = self.windows.as_ref().and_then(|windows| windows.place(vertex));
        match (&self.share, place) {
            (Some(share), Some(place)) => share.owners[place as usize],
            _ => 0,
        }
    }

    /// Which part the events of a component come from.
    pub fn part_of_component(&self, component: Component) -> u32 {
        let Component(number) = component;
        match number.checked_sub(self.host_count) {
            None => self.part_of(Vertex::Host(number)),
            Some(switch) if (switch as usize) < self.switches.len() => self.part_of(Vertex::Switch(switch)),
            Some(_) => 0,
        }
    }

    /// Lets something happen at a place of another part.
    pub(crate) fn send_to_part(&mut self, part: u32, order: &Order, place: u32, event: Event) {
        let packet = match event {
            Event::Arrive { packet, .. } => Some(self.take_out(packet)),
            _ => None,
        };
        let Some(share) = &mut self.share else { return };
        debug_assert!(
            self.windows.as_ref().is_none_or(|windows| order.time > windows.end()),
            "one part reached another sooner than it can"
        );
        share.first_out = share.first_out.min(order.time);
        let Mail { parcels, packets } = &mut share.out[part as usize];
        packets.extend(packet);
        parcels.push(Parcel { place, entry: Entry { key: Key::new(order), event: Packed::new(event) } });
    }

    fn take_out(&mut self, index: PacketIndex) -> Packet {
        let facts = self.packets.facts[index as usize];
        let contents = self.packets.contents.get_mut(index).take();
        let bytes = match facts.is(Flag::HasBytes) {
            true => std::mem::take(&mut self.packets.bytes[index as usize]),
            false => Vec::new(),
        };
        self.packets.release(index);
        Packet { facts, contents, bytes }
    }

    /// Hands over what two parts have for each other, between two windows.
    pub fn exchange(&mut self, other: &mut Self) {
        let (Some(one), Some(two)) = (&mut self.share, &mut other.share) else { return };
        one.send(two);
        two.send(one);
    }

    /// When something may happen next, to this part or to others by it.
    pub fn next_window(&self) -> Option<Time> {
        let own = self.windows.as_ref().and_then(Windows::next_time);
        let sent = self.share.as_ref().map(|share| share.first_out).filter(|at| at.is_set());
        self.calendar.next_time().into_iter().chain(own).chain(sent).min()
    }

    /// Goes on to the windows from the one of `at` to the one that ends at `end`, once all that others sent was handed over.
    pub fn open_windows(&mut self, at: Time, end: Time) {
        let (Some(windows), Some(share)) = (&mut self.windows, &mut self.share) else { return };
        windows.go_to(at, end);
        share.first_out = Time::NEVER;
        for Mail { parcels, packets } in &mut share.incoming {
            let mut packets = packets.drain(..);
            for Parcel { place, entry } in parcels.drain(..) {
                // Packets come in the order of the events that are about them.
                if let Some((channel, _)) = entry.event.arrival()
                    && let Some(Packet { facts, contents, bytes }) = packets.next()
                {
                    let packet = self.packets.take(facts);
                    *self.packets.contents.get_mut(packet) = contents;
                    if !bytes.is_empty() {
                        *self.packets.bytes_of(packet) = bytes;
                    }
                    let standing = self.channels[channel as usize].standing;
                    windows.arrive(place, entry.key.time(), standing, channel, packet);
                } else {
                    windows.put(place, entry);
                }
            }
        }
    }

    /// Takes its hosts through the window at hand until `limit`.
    pub fn take_hosts(&mut self, application: &mut impl Application<S>, limit: Time) {
        self.tell(application);
        self.catch_up_by_host(application, limit);
    }

    /// Takes its switches through the window at hand until `limit`.
    pub fn take_switches(&mut self, limit: Time) {
        self.catch_up_to(limit);
    }

    /// Takes in what another part has carried out, once all is over: what can be asked about hosts, switches and links.
    pub fn absorb(&mut self, mut other: Self) {
        let part = other.share.as_ref().map_or(0, |share| share.me);
        self.events += other.events;
        for host in 0..self.host_count {
            if self.part_of(Vertex::Host(host)) == part {
                std::mem::swap(&mut self.hosts[host as usize], &mut other.hosts[host as usize]);
            }
        }
        for switch in 0..self.switches.len() {
            if self.part_of(Vertex::Switch(switch as u32)) == part {
                std::mem::swap(&mut self.switches[switch], &mut other.switches[switch]);
            }
        }
        for (index, theirs) in other.channels.into_iter().enumerate() {
            let [sends, receives] = [theirs.from, theirs.to].map(|vertex| self.part_of(vertex) == part);
            if receives {
                self.held[index] = std::mem::take(&mut other.held[index]);
            }
            let ours = &mut self.channels[index];
            match (sends, receives) {
                (true, true) => *ours = theirs,
                (true, false) => {
                    let receiver = std::mem::replace(ours, theirs);
                    ours.take_receiver_of(&receiver);
                }
                (false, true) => ours.take_receiver_of(&theirs),
                (false, false) => {}
            }
        }
    }
}

impl Share {
    /// The part that carries out a place, where that is another one.
    #[inline]
    pub(crate) fn elsewhere(&self, place: u32) -> Option<u32> {
        let owner = self.owners[place as usize];
        (owner != self.me).then_some(owner)
    }

    /// Whether something is on its way to this part or from it.
    pub(crate) fn has_mail(&self) -> bool {
        self.out.iter().chain(&self.incoming).any(|mail| !mail.parcels.is_empty())
    }

    /// Hands over what it has for another part, in return for room.
    fn send(&mut self, other: &mut Self) {
        let is_room = |mail: &Mail| mail.parcels.is_empty();
        let room = other.incoming.iter().position(is_room).map(|room| other.incoming.swap_remove(room));
        let mail = std::mem::replace(&mut self.out[other.me as usize], room.unwrap_or_default());
        other.incoming.push(mail);
    }
}
