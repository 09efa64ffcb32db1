//! The engine: packets between hosts, through switches, in virtual time.

use std::net::Ipv4Addr;

use railnet_core::event::Sink;
use railnet_core::{Psn, Random, Rate, Span, Time};
use railnet_nic::frame::WireForm;
use railnet_nic::memory::Segments;
use railnet_nic::{CompletionQueue, Context, Inbound, Nic, OutboundPayload, Payload, Priorities};
use railnet_topology::{FabricGraph, LinkKind, Routes, Vertex};
use railnet_wire::Gid;

use crate::aggregation::{Aggregation, extended, reducer};
use crate::batch::{self, Batch};
use crate::calendar::{COMPONENTS_MAX, Calendar, Sequences};
use crate::channel::{Channel, ChannelCounters, NOWHERE, PORTS_MAX};
use crate::config::{FlowControl, Framing, Marking, Routing, Scheduling, SwitchConfig};
use crate::detour::Detours;
use crate::ecmp::{connection_hash, switch_stream};
use crate::engine::LARGE;
use crate::event::{CHANNELS_MAX, Event, Packed, rank};
use crate::fault::Faults;
use crate::halves::Halves;
use crate::lane::Lanes;
use crate::lull::Lulls;
use crate::marking::Marker;
use crate::murmur::Murmur;
use crate::note::component;
use crate::packet::{Facts, Flag, Flags, PacketIndex, Packets};
use crate::ports::Notebook;
use crate::share::Share;
use crate::switch::{Held, Switch};
use crate::tap::Taps;
use crate::telemetry;
use crate::waiting::{NO_INGRESS, Waiting, WaitingRoom};
use crate::windows::Windows;

/// Bytes that must have arrived before a cut-through switch forwards.
const HEADER_BYTES: u32 = 64;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) egress: u32,
    pub(crate) watched: Option<CompletionQueue>,
    /// Where groups hear of messages.
    pub(crate) reduces: Option<CompletionQueue>,
    /// When the next timer event of this host is in the calendar, and when one after it is: what comes first is often
    /// short, and would be followed by another event for what it came before.
    pub(crate) timer_at: Time,
    timer_later: Time,
    pub(crate) is_ready: bool,
    /// It waits to deal with messages of groups.
    pub(crate) is_reducing: bool,
}

/// Hosts, switches and what is under way between them.
#[derive(Debug)]
pub struct Network<S> {
    /// The present.
    pub now: Time,
    /// The memory of all hosts.
    pub memory: Segments,
    /// Where events go.
    pub sink: S,
    pub(crate) config: SwitchConfig,
    pub(crate) framing: Framing,
    /// What will happen to hosts, and to switches where all must come in the order of time.
    pub(crate) calendar: Calendar<Packed>,
    /// What will happen to switches, where each can be taken through a window of time by itself.
    pub(crate) windows: Option<Windows>,
    /// What of it this one carries out, where others carry out the rest.
    pub(crate) share: Option<Box<Share>>,
    pub(crate) lulls: Lulls,
    pub(crate) halves: Option<Box<Halves>>,
    pub(crate) sequences: Sequences,
    pub(crate) packets: Packets,
    /// Where they wait.
    pub(crate) room: WaitingRoom,
    /// What the switch whose turn it is has to tell.
    pub(crate) notebook: Notebook,
    /// Packets that it has taken in, where its ports are taken one by one.
    pub(crate) batch: Batch,
    pub(crate) goes_by_port: bool,
    /// No link is down.
    pub(crate) is_whole: bool,
    pub(crate) channels: Vec<Channel>,
    /// What the receiver of each of them holds.
    pub(crate) held: Vec<Held>,
    pub(crate) switches: Vec<Switch>,
    /// The hosts, then the NICs of switches that reduce.
    pub(crate) hosts: Vec<Host>,
    pub(crate) host_count: u32,
    pub(crate) routes: Routes,
    /// Where connections make detours, if they do.
    pub(crate) detours: Option<Detours>,
    /// The hash of another simulator, where that chooses paths.
    pub(crate) murmur: Option<Murmur>,
    /// Who marks in front of each channel.
    pub(crate) markers: Vec<Marker>,
    /// The lowest of them: below it nobody marks.
    pub(crate) marks_above: u64,
    /// Hosts with completions that the application has not seen.
    pub(crate) ready: Vec<u32>,
    /// There is something to tell the application.
    pub(crate) has_news: bool,
    /// Hosts with messages of groups that nobody has dealt with.
    pub(crate) reducing: Vec<u32>,
    pub(crate) aggregation: Option<Box<Aggregation>>,
    /// Packets that come next, and to which host, for a look ahead.
    pub(crate) coming: Vec<(u32, PacketIndex)>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) graph: FabricGraph,
    pub(crate) faults: Faults,
    pub(crate) lanes: Lanes,
    pub(crate) events: u64,
    /// Those when hosts last ran an epoch.
    pub(crate) events_before: u64,
    /// Islands that are run before a call of the application, while they are.
    pub(crate) pending: Vec<u32>,
    /// How packets travel.
    pub(crate) form: WireForm,
    pub(crate) taps: Taps,
    /// Packets travel as frames, or frames are looked at.
    pub(crate) shows_frames: bool,
    /// There is more to every packet that starts than in most networks.
    pub(crate) is_special: bool,
    /// Priorities of each channel that wait for credit, where somebody looks on.
    pub(crate) awaited: Vec<u8>,
}

/// The address of a host.
pub fn host_gid(host: u32) -> Gid {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    Gid::from_ipv4(Ipv4Addr::new(10, b, c, d))
}

/// The host of an address that [`host_gid`] made.
pub(crate) fn host_of(gid: Gid) -> u32 {
    let bytes = gid.0;
    u32::from_be_bytes([0, bytes[13], bytes[14], bytes[15]]).wrapping_sub(1)
}

impl<S: Sink> Network<S> {
    /// A network of this shape. `nic` makes the NIC of each host; its address must be [`host_gid`].
    pub fn new(
        graph: &FabricGraph,
        routes: Routes,
        config: SwitchConfig,
        framing: Framing,
        seed: u64,
        sink: S,
        mut nic: impl FnMut(u32) -> Nic,
    ) -> Self {
        let host_count = graph.hosts.len() as u32;
        let (graph, routes) = match &config.aggregation {
            None => (graph.clone(), routes),
            Some(aggregation) => {
                let graph = extended(graph, aggregation);
                let routes = Routes::minimal(&graph, &[]);
                (graph, routes)
            }
        };
        let (node_count, switch_count) = (graph.hosts.len(), graph.switches.len());
        let mut channels = Vec::new();
        let mut egress = vec![u32::MAX; node_count];
        let mut ports: Vec<Vec<u32>> = vec![Vec::new(); switch_count];
        for link in &graph.links {
            for (near, far) in [(0, 1), (1, 0)] {
                let index = channels.len() as u32;
                let (from, to) = (link.ends[near], link.ends[far]);
                let sender = component(from.vertex, host_count, switch_count as u32);
                let near = (from.vertex, from.port, sender);
                channels.push(Channel::new(near, to.vertex, index ^ 1, link.rate, link.delay));
                channels[index as usize].raises_priority =
                    config.raises_priority && link.kind == LinkKind::Global;
                match from.vertex {
                    Vertex::Host(host) => egress[host as usize] = index,
                    Vertex::Switch(switch) => {
                        let list = &mut ports[switch as usize];
                        list.resize(list.len().max(usize::from(from.port) + 1), u32::MAX);
                        list[usize::from(from.port)] = index;
                    }
                }
            }
        }
        assert!(channels.len() <= CHANNELS_MAX, "a network has at most {CHANNELS_MAX} channels");
        assert!(
            node_count + switch_count + 2 <= COMPONENTS_MAX,
            "a network has at most {COMPONENTS_MAX} nodes"
        );
        assert!(ports.iter().all(|ports| ports.len() <= PORTS_MAX), "a switch has at most {PORTS_MAX} ports");
        stand_in_order(&mut channels);
        for channel in &mut channels {
            channel.headroom_max = match config.flow_control {
                FlowControl::Pfc => config.headroom.map_or_else(|| headroom(channel), |bytes| bytes.0 as u32),
                _ => 0,
            };
            channel.credits = [credit(channel.rate(), channel.delay); 8];
            channel.lossless = config.lossless;
            if let Scheduling::Weighted(weights) = &config.scheduling {
                channel.share_by(weights);
            }
        }
        let switches: Vec<Switch> = ports
            .into_iter()
            .enumerate()
            .map(|(index, ports)| {
                let headroom = ports
                    .iter()
                    .map(|&port| u64::from(channels[channels[port as usize].reverse as usize].headroom_max));
                let headroom = headroom.sum();
                Switch::new(&config, ports, headroom, switch_stream(seed, index as u32))
            })
            .collect();
        let marking = |channel: &Channel| config.marking.unwrap_or_else(|| Marking::for_rate(channel.rate()));
        let dice = |channel: usize| Random::stream(seed, "marks", channel as u64);
        let markers = channels.iter().enumerate();
        let markers: Vec<_> =
            markers.map(|(index, channel)| Marker::new(marking(channel), dice(index))).collect();
        let awaited = if S::DETAIL { vec![0; channels.len()] } else { Vec::new() };
        let marks_above = markers.iter().map(Marker::low).min().unwrap_or(0);
        let host = |nic: Nic, host: u32| Host {
            nic,
            egress: egress[host as usize],
            watched: None,
            reduces: None,
            timer_at: Time::NEVER,
            timer_later: Time::NEVER,
            is_ready: false,
            is_reducing: false,
        };
        let mut hosts: Vec<_> = (0..host_count).map(|index| host(nic(index), index)).collect();
        for index in host_count..node_count as u32 {
            let switch = index - host_count;
            let ports = graph.neighbours(Vertex::Switch(switch));
            let lines =
                ports.iter().filter(|port| !matches!(port.peer.vertex, Vertex::Host(h) if h >= host_count));
            let line =
                lines.map(|port| graph.links[port.link as usize].rate).max().unwrap_or(Rate::gbps(100));
            let component = component(Vertex::Host(index), host_count, switch_count as u32);
            hosts.push(host(reducer(hosts[0].nic.config(), component, index, line), index));
        }
        let aggregation = config.aggregation.clone();
        let aggregation =
            aggregation.map(|config| Box::new(Aggregation::new(config, &mut hosts[host_count as usize..])));
        let detours = (config.routing == Routing::Valiant)
            .then(|| Detours::new(&graph, Random::stream(seed, "detours", 0).next_u32()));
        let murmur = (config.routing == Routing::Murmur3).then_some(Murmur { hosts: host_count });
        let is_special = S::DETAIL || config.cut_through || config.flow_control == FlowControl::Credits;
        let batch = Batch::new(switches.iter().map(|switch| switch.ports.len()).max().unwrap_or(0));
        let goes_by_port = batch::is_apt(&config) && !channels.iter().any(|channel| channel.raises_priority);
        let mut network = Self {
            now: Time::ZERO,
            memory: Segments::new(),
            sink,
            config,
            framing,
            calendar: Calendar::new(),
            windows: None,
            share: None,
            lulls: Lulls::NONE,
            halves: None,
            // Two more for the application.
            sequences: Sequences::new(node_count + switch_count + 2),
            packets: Packets::default(),
            room: WaitingRoom::default(),
            notebook: Notebook::default(),
            batch,
            goes_by_port,
            is_whole: true,
            held: vec![Held::default(); channels.len()],
            channels,
            switches,
            hosts,
            host_count,
            routes,
            detours,
            murmur,
            markers,
            marks_above,
            ready: Vec::new(),
            has_news: false,
            reducing: Vec::new(),
            aggregation,
            coming: Vec::new(),
            buffer: Vec::new(),
            graph,
            faults: Faults::new(seed),
            lanes: Lanes::default(),
            events: 0,
            events_before: 0,
            pending: Vec::new(),
            form: WireForm::Values,
            taps: Taps::default(),
            shows_frames: false,
            is_special,
            awaited,
        };
        if host_count >= LARGE {
            network.go_by_switch();
        }
        network
    }

    /// How many hosts there are.
    pub fn host_count(&self) -> u32 {
        self.host_count
    }

    /// What the port of a host carries without faults.
    pub fn port_rate(&self, host: u32) -> Rate {
        self.channels[self.hosts[host as usize].egress as usize].full_rate()
    }

    /// Its shape. A switch that reduces has a host of its own in it, after all others, for its NIC.
    pub fn graph(&self) -> &FabricGraph {
        &self.graph
    }

    /// The NIC of a host, with what to lend to its calls. [`Network::kick`] afterwards.
    pub fn nic(&mut self, host: u32) -> (&mut Nic, Context<'_, Segments, S>) {
        (&mut self.hosts[host as usize].nic, Context::new(self.now, &mut self.memory, &mut self.sink))
    }

    /// The application wants to hear of completions on this queue of a host.
    pub fn watch(&mut self, host: u32, queue: CompletionQueue) {
        self.hosts[host as usize].watched = Some(queue);
    }

    /// Events handled so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Packets under way.
    pub fn packets_in_flight(&self) -> usize {
        self.packets.in_use()
    }

    /// Both directions of every link, with what they counted: (from, to, rate without faults, counters).
    pub fn channels(&self) -> impl Iterator<Item = (Vertex, Vertex, railnet_core::Rate, &ChannelCounters)> {
        self.channels.iter().map(|channel| (channel.from, channel.to, channel.full_rate(), &channel.counters))
    }

    /// Its sink, where the process is about to end. Hosts and packets are left to the system, which takes a gigabyte back at once:
    /// to free a million queue pairs one by one takes half a second.
    pub fn into_sink_at_exit(self) -> S {
        let Self { sink, hosts, packets, .. } = self;
        std::mem::forget((hosts, packets));
        sink
    }

    /// Data packets times channels they went over.
    pub fn packet_hops(&self) -> u64 {
        self.channels.iter().map(|channel| channel.counters.data_packets).sum()
    }

    pub(crate) fn arrive(&mut self, channel: u32, packet: PacketIndex) {
        match self.channels[channel as usize].to {
            Vertex::Host(host) => self.arrive_at_host(host, channel, packet),
            Vertex::Switch(switch) => self.arrive_at_switch(switch, channel, packet),
        }
    }

    pub(crate) fn arrive_at_host(&mut self, host: u32, channel: u32, packet: PacketIndex) {
        let is_pause = self.packets.facts[packet as usize].is(Flag::Pause);
        if is_pause || !self.is_whole && self.channels[channel as usize].is_down {
            self.end_in_port(channel, packet);
        } else {
            self.deliver(host, channel, packet);
        }
    }

    /// What comes out of a channel goes no further than the port: it is lost, or was meant for the port.
    #[cold]
    pub(crate) fn end_in_port(&mut self, channel: u32, packet: PacketIndex) {
        if self.channels[channel as usize].is_down {
            self.lose(channel, packet);
        } else {
            self.take_pause(channel, packet);
        }
    }

    /// A packet comes to its host.
    fn deliver(&mut self, host: u32, channel: u32, packet: PacketIndex) {
        let facts = self.packets.facts[packet as usize];
        if self.config.flow_control == FlowControl::Credits {
            self.return_credit(channel, facts.priority, facts.bytes.into());
        }
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
        if self.form == WireForm::Bytes {
            self.deliver_frame(host, packet);
        } else if let Some(contents) = self.packets.contents.get_mut(packet) {
            contents.network.hop_limit = contents.network.hop_limit.saturating_sub(facts.hops);
            if facts.is(Flag::Marked) {
                contents.network.traffic_class |= 3;
            }
            let payload = match &contents.payload {
                OutboundPayload::Ghost(runs) => Payload::Ghost(runs),
                OutboundPayload::Bytes(0) => Payload::Bytes(&[]),
                OutboundPayload::Bytes(_) => Payload::Bytes(&self.packets.bytes[packet as usize]),
            };
            let (network, headers) = (&contents.network, &contents.headers);
            let (extension, intact) = (contents.extension.as_deref(), !facts.is(Flag::Corrupt));
            let inbound = Inbound { network, headers, extension, payload, intact };
            // A packet that the NIC throws away is loss: its counters tell.
            let _ = self.hosts[host as usize].nic.receive(&mut cx, &inbound);
        }
        self.packets.release(packet);
        self.has_news |= self.memory.is_touched();
        self.kick(host);
    }

    /// Lets a NIC send what it can, and notes what it waits for. Call it after every verb.
    pub fn kick(&mut self, host: u32) {
        let egress = self.hosts[host as usize].egress;
        loop {
            let channel = &self.channels[egress as usize];
            if channel.busy_until > self.now {
                // A wake-up for this very moment may have come after a packet that left just before it.
                self.set_wake(egress);
                break;
            }
            if channel.is_urgent {
                self.send_next(egress);
                break;
            }
            let mut allowed = !channel.paused;
            if self.config.flow_control == FlowControl::Credits {
                allowed &= channel.with_credit(CREDIT_PACKET);
            }
            let sent = match channel.has_turns {
                false => self.send_from_nic(host, egress, Priorities(allowed)),
                true => self.send_by_turns(host, egress, allowed),
            };
            if !sent {
                break;
            }
        }
        let host_state = &mut self.hosts[host as usize];
        if let Some((at, _)) = host_state.nic.poll_timeout()
            && at < host_state.timer_at
        {
            host_state.timer_later = std::mem::replace(&mut host_state.timer_at, at);
            let by = self.channels[egress as usize].sender;
            let at = at.max(self.now);
            self.lulls.note_timer(at);
            self.schedule_at(Vertex::Host(host), at, rank::TIMER, by, Event::Timer { host });
        }
        let host_state = &mut self.hosts[host as usize];
        if let Some(queue) = host_state.watched
            && !host_state.is_ready
            && host_state.nic.completions(queue) > 0
        {
            host_state.is_ready = true;
            self.ready.push(host);
            self.has_news = true;
        }
        if let Some(queue) = host_state.reduces
            && !host_state.is_reducing
            && host_state.nic.completions(queue) > 0
        {
            host_state.is_reducing = true;
            self.reducing.push(host);
            self.has_news = true;
        }
    }

    /// As [`Network::send_from_nic`], one priority after the other: who has nothing to send is passed over.
    fn send_by_turns(&mut self, host: u32, egress: u32, mut allowed: u8) -> bool {
        while let Some(priority) = self.channels[egress as usize].next_priority(allowed) {
            if self.send_from_nic(host, egress, Priorities(1 << priority)) {
                return true;
            }
            allowed &= !(1 << priority);
        }
        false
    }

    fn send_from_nic(&mut self, host: u32, egress: u32, allowed: Priorities) -> bool {
        let Self { hosts, memory, sink, packets, buffer, .. } = self;
        buffer.clear();
        let mut cx = Context::new(self.now, memory, sink);
        let vacant = packets.vacant();
        let contents = packets.contents.get_mut(vacant);
        if !hosts[host as usize].nic.poll_transmit_into(&mut cx, 0, allowed, buffer, contents) {
            return false;
        }
        let Some(transmit) = contents else { return false };
        let payload = transmit.payload.length();
        // What Railnet adds to RoCEv2 is overhead in every framing.
        let extension = transmit.extension.as_ref().map_or(0, |extension| extension.length() as u32);
        let headers = extension + if self.framing.headers { transmit.headers.length() as u32 } else { 0 };
        let network = &transmit.network;
        let (source, target) = (host_of(network.source), host_of(network.target));
        let bytes = self.framing.overhead + headers + payload.next_multiple_of(4);
        debug_assert!(bytes <= u16::MAX.into(), "a packet of {bytes} bytes");
        let facts = Facts {
            packet: transmit.packet,
            source,
            target,
            hash: connection_hash(source, target, network.source_port),
            bytes: bytes as u16,
            priority: transmit.priority,
            flags: Flags::NONE
                .with(Flag::Data, payload > 0)
                .with(Flag::Markable, network.ecn() != 0)
                .with(Flag::Gathers, telemetry::gathers(transmit))
                .with(Flag::HasBytes, !buffer.is_empty()),
            ..Facts::NOTHING
        };
        let packet = self.packets.take(facts);
        if !self.buffer.is_empty() {
            self.packets.bytes_of(packet).extend_from_slice(&self.buffer);
        }
        self.start(egress, Waiting::new(packet, &facts, NO_INGRESS, facts.priority.into()));
        self.set_wake(egress);
        true
    }

    /// Puts a packet on the wire.
    #[allow(clippy::needless_bitwise_bool, reason = "one branch for all that is rare")]
    #[allow(clippy::inline_always, reason = "it is called for each packet-hop, from three places")]
    #[inline(always)]
    pub(crate) fn start(&mut self, egress: u32, waiting: Waiting) {
        let Self { channels, windows, now, .. } = self;
        let bytes = waiting.bytes();
        let channel = &mut channels[egress as usize];
        let takes = channel.serialize(bytes);
        channel.busy_until = *now + takes;
        channel.count(waiting);
        if self.is_special | waiting.gathers() | channel.is_special() {
            self.start_specially(egress, waiting, takes);
            return;
        }
        let at = channel.busy_until + channel.delay;
        match windows {
            Some(windows) if channel.place != NOWHERE => {
                windows.arrive(channel.place, at, channel.standing, egress, waiting.packet());
            }
            _ => self.schedule_arrival(egress, at, waiting.packet()),
        }
    }

    /// The same with all that is to be done about it in some networks, or for some packets.
    #[inline(never)]
    fn start_specially(&mut self, egress: u32, waiting: Waiting, takes: Span) {
        if let Some(until_there) = self.prepare_specially(egress, waiting, takes) {
            let at = self.now + until_there + self.channels[egress as usize].delay;
            self.schedule_arrival(egress, at, waiting.packet());
        }
    }

    /// Returns how long it is before enough of the packet has left for the other end to go on with it; none where it never
    /// arrives.
    fn prepare_specially(&mut self, egress: u32, waiting: Waiting, takes: Span) -> Option<Span> {
        let (packet, bytes, priority) = (waiting.packet(), waiting.bytes(), waiting.priority());
        let channel = &mut self.channels[egress as usize];
        let takes_credit = self.config.flow_control == FlowControl::Credits && !waiting.is_pause();
        if takes_credit {
            channel.credits[priority] = channel.credits[priority].saturating_sub(bytes);
        }
        if !waiting.is_pause() {
            channel.charge(priority, bytes);
        }
        let (is_cut, is_troubled) = (channel.is_down, channel.is_troubled);
        let until_there = match channel.to {
            Vertex::Switch(_) if self.config.cut_through => channel.serialize(bytes.min(HEADER_BYTES)),
            _ => takes,
        };
        if waiting.gathers() {
            self.stamp(egress, packet);
        }
        self.note_started(egress, packet, bytes);
        if S::DETAIL && takes_credit {
            self.note_credit(egress, priority);
        }
        if self.shows_frames {
            self.show_frame(egress, packet);
        }
        if is_cut || is_troubled && self.meets_fault(egress, packet) {
            self.taps.lose_last(egress);
            self.lose(egress, packet);
            return None;
        }
        Some(until_there)
    }

    pub(crate) fn wake(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        channel.wake_set = false;
        if channel.busy_until > self.now {
            // A packet left at this very moment before it: it was for nothing, and does not count.
            self.events -= 1;
            self.set_wake(egress);
            return;
        }
        match self.channels[egress as usize].from {
            Vertex::Host(host) => self.kick(host),
            Vertex::Switch(_) => self.send_next(egress),
        }
    }

    pub(crate) fn resume(&mut self, egress: u32) {
        match self.channels[egress as usize].from {
            Vertex::Host(host) => self.kick(host),
            Vertex::Switch(_) => self.send_next(egress),
        }
    }

    /// Frames are to be seen from now on.
    pub(crate) fn show_frames(&mut self) {
        (self.shows_frames, self.is_special) = (true, true);
    }

    pub(crate) fn channel_mut(&mut self, channel: u32) -> &mut Channel {
        &mut self.channels[channel as usize]
    }

    pub(crate) fn egress_of(&self, host: u32) -> u32 {
        self.hosts[host as usize].egress
    }

    pub(crate) fn link_count(&self) -> usize {
        self.channels.len() / 2
    }

    pub(crate) fn set_routes(&mut self, routes: Routes) {
        self.routes = routes;
        if let Some(detours) = &mut self.detours {
            detours.avoid(&self.graph, &self.faults.dead);
        }
    }

    pub(crate) fn psn_of(&self, packet: PacketIndex) -> Option<Psn> {
        self.packets.headers(packet).map(|contents| contents.headers.bth.psn)
    }

    pub(crate) fn timer(&mut self, host: u32) {
        let state = &mut self.hosts[host as usize];
        if state.timer_at > self.now {
            return;
        }
        state.timer_at = std::mem::replace(&mut state.timer_later, Time::NEVER);
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
        state.nic.handle_timeout(&mut cx);
        self.kick(host);
    }
}

/// Room for the largest packet of RoCEv2.
const PLAIN_PACKET: u32 = 4_096 + 128;

/// Room for the largest packet, with telemetry: a sender with less credit waits.
pub(crate) const CREDIT_PACKET: u32 = PLAIN_PACKET + 44;

/// Where channels stand when packets come out of several at one moment: by sender, then by port.
fn stand_in_order(channels: &mut [Channel]) {
    let mut order: Vec<u32> = (0..channels.len() as u32).collect();
    order.sort_by_key(|index| {
        let channel = &channels[*index as usize];
        (channel.sender, channel.port)
    });
    for (standing, index) in order.into_iter().enumerate() {
        channels[index as usize].standing = standing as u32;
    }
}

/// What may be under way when a pause is sent: three one-way delays at full rate, and a packet at either end.
fn headroom(channel: &Channel) -> u32 {
    let in_flight = channel.rate().bytes_in(channel.delay * 3).as_u64();
    (in_flight + 4 * u64::from(PLAIN_PACKET)) as u32
}

/// What a sender may have under way without hearing back: two delays at full rate, and some packets.
pub(crate) fn credit(rate: Rate, delay: Span) -> u32 {
    let in_flight = rate.bytes_in(delay * 2).as_u64();
    (in_flight + 4 * u64::from(PLAIN_PACKET)) as u32
}
