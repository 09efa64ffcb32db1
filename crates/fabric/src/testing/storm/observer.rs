//! The sink of a storm: the digest of the run, and a ledger for each port, kept from its events.

use std::collections::BTreeMap;

use railnet_core::event::{Event, Sink, SwitchDropReason};
use railnet_core::{Bytes, Component, Digest, Port, Rate, Time};

/// Packets and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Amount {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }

    /// What is left; nothing where that would be less than none.
    pub(super) fn minus(self, other: Self) -> Option<Self> {
        let packets = self.packets.checked_sub(other.packets)?;
        Some(Self { packets, bytes: self.bytes.checked_sub(other.bytes)? })
    }
}

/// What a port transmitted and received, by its events.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PortLedger {
    /// Packets, without pause frames.
    pub(super) started: Amount,
    /// Of those, the ones that the link lost.
    pub(super) lost: Amount,
    /// Of those, the ones that the link corrupted and carried all the same.
    pub(super) damaged: u64,
    pub(super) pauses: Amount,
    pub(super) pauses_lost: Amount,
    /// Packets that came in by the port and were dropped.
    pub(super) dropped: Amount,
    pub(super) marked: u64,
    /// Priorities that are paused now.
    pub(super) paused: u8,
    pub(super) times_paused: u64,
    /// Before this moment the last packet cannot have left, whatever the port's rate.
    busy_until: Time,
}

/// The sink.
#[derive(Default, Debug)]
pub(super) struct Observer {
    pub(super) digest: Digest,
    pub(super) events: u64,
    pub(super) ports: BTreeMap<(Component, Port), PortLedger>,
    pub(super) no_memory: u64,
    pub(super) no_route: u64,
    pub(super) corrupted: u64,
    pub(super) rerouted: u64,
    /// Packets that NICs dropped.
    pub(super) refused: u64,
    /// The time of the last event, of each component or of all.
    last: BTreeMap<Option<Component>, Time>,
    /// The rate of the fastest link, once that is known.
    pub(super) fastest: Option<Rate>,
    /// All events must come in the order of time, not just those of one component.
    pub(super) in_order: bool,
    /// The first event that contradicts those before it.
    pub(super) contradiction: Option<String>,
}

impl Observer {
    pub(super) fn port(&self, component: Component, port: Port) -> PortLedger {
        self.ports.get(&(component, port)).copied().unwrap_or_default()
    }

    fn contradict(&mut self, what: impl FnOnce() -> String) {
        self.contradiction.get_or_insert_with(what);
    }

    fn note_pause(&mut self, source: Component, port: Port, priority: u8, stops: bool) {
        let books = self.ports.entry((source, port)).or_default();
        let is_stopped = books.paused >> priority & 1 != 0;
        books.paused ^= 1 << priority;
        books.times_paused += u64::from(stops);
        if is_stopped == stops {
            let state = if stops { "paused" } else { "resumed" };
            self.contradict(|| format!("{source} {port}, priority {priority}: {state} twice"));
        }
    }
}

impl Sink for Observer {
    const IN_ORDER: bool = false;

    fn record(&mut self, at: Time, source: Component, event: &Event) {
        self.events += 1;
        self.digest.record(at, source, event);
        let whose = (!self.in_order).then_some(source);
        let last = self.last.insert(whose, at).unwrap_or_default();
        if at < last {
            self.contradict(|| format!("time goes back from {last:?} to {at:?}: {event:?}"));
        }
        match *event {
            Event::PacketStarted { packet, port, bytes, .. } => {
                let books = self.ports.entry((source, port)).or_default();
                let amount = if packet.is_some() { &mut books.started } else { &mut books.pauses };
                amount.add(bytes.into());
                let free = books.busy_until;
                let takes = self.fastest.map(|rate| rate.serialize(Bytes(bytes.into())));
                books.busy_until = at + takes.unwrap_or_default();
                if at < free {
                    self.contradict(|| {
                        format!("{source} {port}: busy until {free:?}, but at {at:?}: {event:?}")
                    });
                }
            }
            Event::PacketLost { packet, port, bytes } => {
                let books = self.ports.entry((source, port)).or_default();
                let amount = if packet.is_some() { &mut books.lost } else { &mut books.pauses_lost };
                amount.add(bytes.into());
            }
            Event::DroppedBySwitch { port, bytes, reason, .. } => {
                self.ports.entry((source, port)).or_default().dropped.add(bytes.into());
                match reason {
                    SwitchDropReason::NoMemory => self.no_memory += 1,
                    SwitchDropReason::NoRoute => self.no_route += 1,
                }
            }
            Event::Marked { port, .. } => self.ports.entry((source, port)).or_default().marked += 1,
            Event::Paused { port, priority } => self.note_pause(source, port, priority, true),
            Event::Resumed { port, priority } => self.note_pause(source, port, priority, false),
            Event::PacketCorrupted { port, .. } => {
                self.ports.entry((source, port)).or_default().damaged += 1;
                self.corrupted += 1;
            }
            Event::Rerouted { .. } => self.rerouted += 1,
            Event::PacketDropped { .. } => self.refused += 1,
            _ => {}
        }
    }
}
