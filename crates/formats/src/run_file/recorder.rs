//! The sink that fills the tables of a run file.

use std::collections::{BTreeMap, VecDeque};

use railnet_coll::machine::Tag;
use railnet_core::event::{CallId, Event, RetryReason, Sink, SliceWay};
use railnet_core::{Component, Label, PacketSample, QueuePairNumber, Time};
use railnet_topology::{FabricGraph, Vertex};

use super::follow::Followed;
use super::load::Load;
use super::packets::{NOTIFICATION, Packets};
use super::pauses::Pauses;
use super::schema::{self, NOBODY};
use super::strings::Strings;
use super::table::{MISSING, Table};

/// How much is kept of what there is much of.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Packets, each with its way.
    pub packets: usize,
    /// Rows of every other table of single events.
    pub rows: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { packets: 50_000, rows: 200_000 }
    }
}

/// A connection so far.
#[derive(Clone, Copy, Debug)]
struct Talk {
    to: u64,
    target: u32,
    packets: u64,
    bytes: u64,
    resent: u64,
    /// The sequence number of its first request; answers have those of the other side.
    first: Option<u32>,
}

/// A call of a communicator so far.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    name: u32,
    begun: u64,
    ended: u64,
    bytes: u64,
    /// The endpoint that came last.
    last: u32,
}

/// What an incident is.
#[derive(Clone, Copy, Debug)]
enum Incident {
    Marked = 0,
    Dropped = 1,
    Lost = 2,
    Corrupted = 3,
    Paused = 4,
    Resumed = 5,
    Retransmitting = 6,
    ReceiverNotReady = 7,
    LinkDown = 8,
    LinkUp = 9,
    Rerouted = 10,
    Notification = 11,
    Nak = 12,
}

/// Fills the tables of a run file with what happens.
#[derive(Debug)]
pub struct Recorder {
    budget: Budget,
    hosts: u32,
    /// The channel of each port of each vertex.
    ports: Vec<Vec<u32>>,
    /// Where each channel leads.
    far: Vec<u32>,
    load: Load,
    packets: Packets,
    pauses: Pauses,
    pub(super) strings: Strings,
    operations: Table,
    slices: Table,
    messages: Table,
    completions: Table,
    states: Table,
    rates: Table,
    incidents: Table,
    /// Slices that have not arrived, by the way they take.
    under_way: BTreeMap<SliceWay, VecDeque<u32>>,
    /// Messages that are not over, by host and queue pair: their names and rows.
    open: BTreeMap<(u32, u32), VecDeque<(u64, u32)>>,
    talks: BTreeMap<(u32, u32), Talk>,
    /// The memory that is written to first, by host, the other host and its queue pair.
    regions: BTreeMap<(u32, u32, u32), (u64, u32)>,
    meetings: BTreeMap<(u32, u64), Meeting>,
    /// Calls that ranks are in: when they came, and what it is.
    entered: BTreeMap<(u32, u32, u64), (u64, u32, u64)>,
    /// The endpoint of each rank of each communicator.
    members: Vec<Vec<u32>>,
    /// Whether calls of ranks become rows of what ranks did; a job tells that itself.
    tells_calls: bool,
    end: u64,
}

impl Recorder {
    /// A recorder of what happens in a fabric.
    pub fn new(graph: &FabricGraph, budget: Budget) -> Self {
        let (hosts, switches) = (graph.hosts.len(), graph.switches.len());
        let number = |vertex: Vertex| match vertex {
            Vertex::Host(host) => host as usize,
            Vertex::Switch(switch) => hosts + switch as usize,
        };
        let mut ports = vec![Vec::new(); hosts + switches];
        let mut far = vec![0; graph.links.len() * 2];
        for (link, cable) in graph.links.iter().enumerate() {
            for side in 0..2 {
                let channel = 2 * link + side;
                let near = &cable.ends[side];
                let list: &mut Vec<u32> = &mut ports[number(near.vertex)];
                let port = usize::from(near.port);
                if list.len() <= port {
                    list.resize(port + 1, u32::MAX);
                }
                list[port] = channel as u32;
                far[channel] = number(cable.ends[1 - side].vertex) as u32;
            }
        }
        Self {
            budget,
            hosts: hosts as u32,
            load: Load::new(far.len()),
            ports,
            far,
            packets: Packets::new(budget.packets),
            pauses: Pauses::new(graph, budget.rows),
            strings: Strings::default(),
            operations: Table::new("operations", schema::OPERATIONS),
            slices: Table::new("slices", schema::SLICES),
            messages: Table::new("messages", schema::MESSAGES),
            completions: Table::new("completions", schema::COMPLETIONS),
            states: Table::new("states", schema::STATES),
            rates: Table::new("rates", schema::RATES),
            incidents: Table::new("incidents", schema::INCIDENTS),
            under_way: BTreeMap::new(),
            open: BTreeMap::new(),
            talks: BTreeMap::new(),
            regions: BTreeMap::new(),
            meetings: BTreeMap::new(),
            entered: BTreeMap::new(),
            members: Vec::new(),
            tells_calls: true,
            end: 0,
        }
    }

    /// A job tells itself what its ranks did.
    #[must_use]
    pub fn of_job(mut self) -> Self {
        self.tells_calls = false;
        self
    }

    /// A frame as it passed a link, in the direction of its number or back: what [`kept_of`](super::kept_of) leaves of it, and its
    /// length.
    pub fn frame(&mut self, at: Time, (link, is_back): (u32, bool), kept: &[u8], length: usize) {
        self.packets.frame(at.as_ps(), 2 * link + u32::from(is_back), kept, length);
    }

    /// A packet from one host to a queue pair of another names the memory that it writes to: address and key.
    pub fn writes_to(&mut self, [host, to]: [u32; 2], target: QueuePairNumber, region: (u64, u32)) {
        self.regions.entry((host, to, target.value())).or_insert(region);
    }

    /// Packets that are kept: frames of others need not be shown.
    pub fn sample(&mut self) -> PacketSample {
        self.packets.sample()
    }

    /// Both ends of the connection that is kept whole: host and queue pair.
    pub fn followed(&self) -> Option<[(u32, QueuePairNumber); 2]> {
        self.packets.followed.map(|one| one.tapped())
    }

    /// All frames that have passed so far were shown.
    pub fn frames_shown(&mut self) {
        self.packets.forget_passing();
    }

    /// So much waits in front of a channel when the run ends.
    pub fn left_waiting(&mut self, channel: usize, bytes: u64) {
        self.load.left(channel, bytes);
    }

    /// What a rank did.
    pub(super) fn operation(&mut self, row: [u64; 14]) {
        self.operations.push(row);
    }

    fn channel(&self, source: Component, port: u32) -> Option<u32> {
        self.ports.get(source.0 as usize)?.get(port as usize).copied().filter(|channel| *channel != u32::MAX)
    }

    fn incident(
        &mut self,
        at: u64,
        kind: Incident,
        source: Component,
        (channel, queue_pair, psn): (Option<u32>, u64, u64),
        value: u64,
    ) {
        if self.incidents.rows < self.budget.rows {
            let channel = channel.map_or(NOBODY, u64::from);
            self.incidents.push([at, kind as u64, u64::from(source.0), channel, queue_pair, psn, value]);
        }
    }

    fn pause(&mut self, at: u64, channel: u32, priority: u8, is_held: bool) {
        // A host sends on nothing of what it gets.
        let through =
            |vertex: u32| -> &[u32] { if vertex < self.hosts { &[] } else { &self.ports[vertex as usize] } };
        if is_held {
            let (from, to) = (self.far[channel as usize ^ 1], self.far[channel as usize]);
            let behind = through(from).iter().map(|out| out ^ 1);
            self.pauses.begun(at, (channel, priority), through(to), behind);
        } else {
            self.pauses.ended(at, channel, priority);
        }
    }

    fn posted(&mut self, at: u64, host: u32, (queue_pair, work, length): (u32, u64, u32), label: Label) {
        if self.messages.rows >= self.budget.rows {
            return;
        }
        let Tag { sequence, chunk, step } = label.into();
        let row = self.messages.push([
            at,
            MISSING,
            MISSING,
            u64::from(host),
            u64::from(queue_pair),
            u64::from(length),
            0,
            0,
            sequence,
            u64::from(chunk),
            step,
            0,
        ]);
        self.open.entry((host, queue_pair)).or_default().push_back((work, row));
    }

    fn call_made(&mut self, at: u64, call: CallId, (name, how, bytes): (&str, String, u64)) {
        let communicator = call.communicator as usize;
        if self.members.len() <= communicator {
            self.members.resize(communicator + 1, Vec::new());
        }
        let members = &mut self.members[communicator];
        if members.len() <= call.rank as usize {
            members.resize(call.rank as usize + 1, u32::MAX);
        }
        members[call.rank as usize] = call.endpoint;
        let name = self.strings.number(&format!("{name} {} {how}", railnet_core::Bytes(bytes)));
        let fresh = Meeting { name, begun: at, ended: at, bytes, last: call.endpoint };
        let meeting = self.meetings.entry((call.communicator, call.sequence)).or_insert(fresh);
        // It begins when the last one comes.
        (meeting.begun, meeting.last) = (at, call.endpoint);
        if self.tells_calls {
            self.entered.insert((call.communicator, call.rank, call.sequence), (at, name, bytes));
        }
    }

    fn call_over(&mut self, at: u64, call: CallId) {
        let Some(meeting) = self.meetings.get_mut(&(call.communicator, call.sequence)) else { return };
        meeting.ended = at;
        let (begun, last) = (meeting.begun, u64::from(meeting.last));
        let key = (call.communicator, call.rank, call.sequence);
        if let Some((entered, name, bytes)) = self.entered.remove(&key)
            && self.operations.rows < self.budget.rows
        {
            let (rank, name) = (u64::from(call.endpoint), u64::from(name));
            let step = call.sequence;
            let late = if entered < begun { last } else { NOBODY };
            let row =
                [rank, 0, 5, name, entered, begun, at, bytes, 65_535, 0, step, 0, late, begun - entered];
            self.operations.push(row);
        }
    }

    /// Calls that a run which failed or was stopped left open last until its end.
    fn end_calls(&mut self, end: u64) {
        for ((communicator, rank, sequence), (entered, name, bytes)) in std::mem::take(&mut self.entered) {
            let endpoint = self.endpoint(communicator, Some(rank));
            if let Some(meeting) = self.meetings.get_mut(&(communicator, sequence)) {
                meeting.ended = end;
            }
            if self.operations.rows < self.budget.rows {
                let name = u64::from(name);
                let (late, waited) = (NOBODY, 0);
                self.operations.push([
                    endpoint, 0, 5, name, entered, entered, end, bytes, 65_535, 0, sequence, 0, late, waited,
                ]);
            }
        }
    }

    fn endpoint(&self, communicator: u32, rank: Option<u32>) -> u64 {
        let members = self.members.get(communicator as usize);
        let endpoint = rank.and_then(|rank| members?.get(rank as usize).copied());
        endpoint.map_or(NOBODY, u64::from)
    }

    fn slice_sent(&mut self, at: u64, way: SliceWay, (label, bytes, by_nic): (Label, u32, bool)) {
        if self.slices.rows >= self.budget.rows {
            return;
        }
        let Tag { sequence, chunk, step } = label.into();
        let (from, to) = (self.endpoint(way.communicator, way.from), self.endpoint(way.communicator, way.to));
        let row = self.slices.push([
            u64::from(way.communicator),
            sequence,
            u64::from(chunk),
            step,
            u64::from(way.channel),
            u64::from(by_nic),
            from,
            to,
            at,
            MISSING,
            u64::from(bytes),
        ]);
        if way.to.is_some() {
            self.under_way.entry(way).or_default().push_back(row);
        }
    }

    /// Ends the record: the tables, and what is to be said about them.
    pub fn finish(mut self, end: Time) -> Recorded {
        let end = self.end.max(end.as_ps());
        let mut notes = Vec::new();
        self.packets.forget_passing();
        self.packets.thin_out();
        let packets = (self.packets.table.rows as u64, self.packets.all);
        if packets.0 < packets.1 {
            notes.push(format!(
                "packets: {} of {}, some of every part of the run, in runs of {} sequence numbers; before others the \
                 first of each connection, and those that were sent again, refused, lost or marked; one connection has all",
                packets.0,
                packets.1,
                PacketSample::RUN
            ));
        }
        let budget = self.budget.rows;
        self.end_calls(end);
        let pauses = self.pauses.finish(end);
        for table in [&self.slices, &self.messages, &self.rates, &self.incidents, &self.states, &pauses] {
            if table.rows >= budget {
                notes.push(format!("{}: the first {budget}", table.name));
            }
        }
        let mut calls = Table::new("calls", schema::CALLS);
        for ((communicator, sequence), meeting) in &self.meetings {
            let Meeting { name, begun, ended, bytes, .. } = *meeting;
            calls.push([u64::from(*communicator), *sequence, u64::from(name), begun, ended, bytes]);
        }
        let mut connections = Table::new("connections", schema::CONNECTIONS);
        for ((host, queue_pair), talk) in &self.talks {
            let region = self.regions.get(&(*host, talk.to as u32, talk.target));
            connections.push([
                u64::from(*host),
                u64::from(*queue_pair),
                talk.to,
                u64::from(talk.target),
                talk.packets,
                talk.bytes,
                talk.resent,
                talk.first.map_or(NOBODY, u64::from),
                region.map_or(MISSING, |(address, _)| *address),
                region.map_or(NOBODY, |(_, key)| u64::from(*key)),
            ]);
        }
        let (bin_width, bins, load) = self.load.finish(end);
        let Packets { table, hops, frames, heap, followed, .. } = self.packets;
        Recorded {
            tables: vec![
                self.operations,
                calls,
                self.slices,
                load,
                table,
                hops,
                self.messages,
                self.completions,
                self.states,
                self.rates,
                self.incidents,
                pauses,
                connections,
                frames,
                Table::of_bytes("heap", heap),
            ],
            strings: self.strings.finish(),
            bins: (bin_width, bins),
            packets,
            followed,
            notes,
            members: self.members,
        }
    }
}

/// Acknowledgements, of atomics too, and congestion notifications.
pub(super) const fn is_answer(opcode: u8) -> bool {
    matches!(opcode, 0x11 | 0x12 | NOTIFICATION)
}

/// What was recorded.
#[derive(Debug)]
pub struct Recorded {
    /// The tables.
    pub tables: Vec<Table>,
    /// Texts, by the numbers that the tables have.
    pub strings: Vec<String>,
    /// Picoseconds of a bin of what links carried, and how many there are.
    pub bins: (u64, usize),
    /// Packets that are there, of how many that were sent.
    pub packets: (u64, u64),
    /// The connection of which all packets are there, where those of others are not.
    pub(super) followed: Option<Followed>,
    /// What was left out, in words.
    pub notes: Vec<String>,
    /// The endpoint of each rank of each communicator.
    pub members: Vec<Vec<u32>>,
}

impl Sink for Recorder {
    fn record(&mut self, at: Time, source: Component, event: &Event) {
        let at = at.as_ps();
        self.end = self.end.max(at);
        match *event {
            Event::PacketStarted { packet, port, bytes, waiting } => {
                let Some(channel) = self.channel(source, port.0) else { return };
                self.load.sent(at, channel as usize, bytes, waiting);
                if let Some(packet) = packet {
                    let far = self.far[channel as usize];
                    self.packets.started(at, packet, (source.0, channel), (bytes, waiting), far);
                }
            }
            Event::PacketSent { packet, target, length, label, .. } => {
                let talk = self.talks.entry((source.0, packet.queue_pair.value())).or_insert(Talk {
                    to: NOBODY,
                    target: target.value(),
                    packets: 0,
                    bytes: 0,
                    resent: 0,
                    first: None,
                });
                // The first one shows where it leads; one that is lost does so when it is sent again.
                let is_first = talk.packets == 0 || talk.to == NOBODY && packet.transmission > 0;
                talk.packets += 1;
                talk.bytes += u64::from(length);
                talk.resent += u64::from(packet.transmission > 0);
                if !is_answer(packet.opcode) {
                    talk.first.get_or_insert(packet.psn.value());
                }
                self.packets.sent(at, source.0, packet, (target, length, label), is_first);
                if packet.opcode == NOTIFICATION {
                    let who = (None, u64::from(packet.queue_pair.value()), 0);
                    self.incident(at, Incident::Notification, source, who, 0);
                }
            }
            Event::Answered { syndrome, messages } => self.packets.answered(syndrome, messages),
            Event::PacketReceived { queue_pair, psn, opcode, .. } if source.0 < self.hosts => {
                let about = (queue_pair.value(), psn.value(), opcode);
                if let Some(sender) = self.packets.received(at, source.0, about)
                    && let Some(talk) = self.talks.get_mut(&sender)
                {
                    talk.to = u64::from(source.0);
                }
            }
            Event::Marked { packet, port, depth } => {
                let channel = self.channel(source, port.0);
                if let Some(channel) = channel {
                    self.load.marked(at, channel as usize, depth);
                }
                self.packets.marked(packet);
                let who =
                    (channel, packet.packet.queue_pair.value().into(), packet.packet.psn.value().into());
                self.incident(at, Incident::Marked, source, who, depth);
            }
            Event::DroppedBySwitch { packet, port, .. } => {
                let channel = self.channel(source, port.0);
                if let Some(channel) = channel {
                    self.load.dropped(at, channel as usize);
                }
                let who =
                    (channel, packet.packet.queue_pair.value().into(), packet.packet.psn.value().into());
                self.incident(at, Incident::Dropped, source, who, 0);
            }
            Event::PacketLost { packet, port, .. } | Event::PacketCorrupted { packet, port } => {
                let channel = self.channel(source, port.0);
                let lost = matches!(event, Event::PacketLost { .. });
                if let Some(channel) = channel.filter(|_| lost) {
                    self.load.dropped(at, channel as usize);
                }
                let id = packet.map(|packet| packet.packet);
                let number = |id: Option<u32>| id.map_or(NOBODY, u64::from);
                let queue_pair = number(id.map(|id| id.queue_pair.value()));
                let who = (channel, queue_pair, number(id.map(|id| id.psn.value())));
                let kind = if lost { Incident::Lost } else { Incident::Corrupted };
                self.incident(at, kind, source, who, 0);
            }
            Event::Paused { port, priority } | Event::Resumed { port, priority } => {
                let is_held = matches!(event, Event::Paused { .. });
                let channel = self.channel(source, port.0);
                if let Some(channel) = channel {
                    self.load.pause(at, channel as usize, is_held);
                    self.pause(at, channel, priority, is_held);
                }
                let kind = if is_held { Incident::Paused } else { Incident::Resumed };
                self.incident(at, kind, source, (channel, NOBODY, NOBODY), u64::from(priority));
            }
            Event::CreditAwaited { port, priority } | Event::CreditFound { port, priority } => {
                let waits = matches!(event, Event::CreditAwaited { .. });
                if let Some(channel) = self.channel(source, port.0) {
                    self.load.pause(at, channel as usize, waits);
                    if !waits || !self.pauses.lasts(at, channel, priority) {
                        self.pause(at, channel, priority, waits);
                    }
                }
            }
            Event::Retransmitting { queue_pair, from, reason } => {
                let kind = match reason {
                    RetryReason::SequenceNak => Incident::Nak,
                    _ => Incident::Retransmitting,
                };
                let who = (None, queue_pair.value().into(), from.value().into());
                self.incident(at, kind, source, who, reason as u64);
            }
            Event::ReceiverWait { queue_pair, psn, until } => {
                let who = (None, queue_pair.value().into(), psn.value().into());
                self.incident(at, Incident::ReceiverNotReady, source, who, until.as_ps());
            }
            Event::LinkDown { link } => {
                let who = (Some(2 * link), NOBODY, NOBODY);
                self.incident(at, Incident::LinkDown, source, who, 0);
            }
            Event::LinkUp { link } => {
                let who = (Some(2 * link), NOBODY, NOBODY);
                self.incident(at, Incident::LinkUp, source, who, 0);
            }
            Event::Rerouted { dead } => {
                self.incident(at, Incident::Rerouted, source, (None, NOBODY, NOBODY), u64::from(dead));
            }
            Event::WorkPosted { queue_pair, work, length, label } => {
                self.posted(at, source.0, (queue_pair.value(), work, length), label);
            }
            Event::WorkStarted { queue_pair, work, first, packets } => {
                let open = self.open.get(&(source.0, queue_pair.value()));
                let found = open.and_then(|open| {
                    let waits = |row: u32| self.messages.get(row as usize, 1) == MISSING;
                    open.iter().find(|(name, row)| *name == work && waits(*row)).map(|(_, row)| *row)
                });
                if let Some(row) = found {
                    self.messages.set(row, 1, at);
                    self.messages.set(row, 6, u64::from(first.value()));
                    self.messages.set(row, 7, u64::from(packets));
                }
            }
            Event::Completed { queue_pair, work, status, .. } => {
                let (host, number) = (source.0, queue_pair.value());
                if self.completions.rows < self.budget.rows {
                    self.completions.push([at, host.into(), number.into(), work, status.into()]);
                }
                let Some(open) = self.open.get_mut(&(host, number)) else { return };
                if let Some(place) = open.iter().position(|(name, _)| *name == work) {
                    // Those before it that asked for no completion are over with it.
                    for (name, row) in open.drain(..=place) {
                        self.messages.set(row, 2, at);
                        if name == work {
                            self.messages.set(row, 11, u64::from(status));
                        }
                    }
                }
            }
            Event::StateChanged { queue_pair, from, to } if self.states.rows < self.budget.rows => {
                let (host, number) = (u64::from(source.0), u64::from(queue_pair.value()));
                self.states.push([at, host, number, u64::from(from), u64::from(to)]);
            }
            Event::RateChanged { queue_pair, rate } if self.rates.rows < self.budget.rows => {
                let (host, number) = (u64::from(source.0), u64::from(queue_pair.value()));
                self.rates.push([at, host, number, rate.as_bps()]);
            }
            Event::CallMade { call, name, algorithm, protocol, bytes } => {
                self.call_made(at, call, (name, format!("{algorithm}/{protocol}"), bytes));
            }
            Event::CallOver { call } => self.call_over(at, call),
            Event::SliceSent { way, label, bytes, by_nic } => {
                self.slice_sent(at, way, (label, bytes, by_nic));
            }
            Event::SliceArrived { way } => {
                if let Some(row) = self.under_way.get_mut(&way).and_then(VecDeque::pop_front) {
                    self.slices.set(row, 9, at);
                }
            }
            _ => {}
        }
    }
}
