//! The engine: packets between hosts, through switches, in virtual time.

use std::net::Ipv4Addr;

use railnet_core::event::Sink;
use railnet_core::{Psn, Random, Rate, Span, Time};
use railnet_nic::frame::WireForm;
use railnet_nic::memory::Segments;
use railnet_nic::{CompletionQueue, Context, Inbound, Nic, OutboundPayload, Payload, Priorities};
use railnet_topology::{FabricGraph, LinkKind, Routes, Vertex};
use railnet_wire::Gid;

use crate::engine::binning::{self, PortBins};
use crate::engine::calendar::{COMPONENTS_MAX, Calendar, Sequences};
use crate::engine::colouring::TwoColouring;
use crate::engine::epoch::Epochs;
use crate::engine::event::{CHANNELS_MAX, Event, PackedEvent, rank};
use crate::engine::event_buffer::EventBuffer;
use crate::engine::lookahead::Lookahead;
use crate::engine::partition::Partition;
use crate::engine::run::LARGE;
use crate::model::aggregation::{Aggregation, extended, reducer};
use crate::model::buffer::IngressUsage;
use crate::model::bus::Buses;
use crate::model::channel::{Channel, ChannelCounters, PORTS_MAX};
use crate::model::config::{FlowControl, Framing, Marking, Routing, Scheduling, SwitchConfig};
use crate::model::ecn::Marker;
use crate::model::fault::Faults;
use crate::model::murmur3::Murmur3Hash;
use crate::model::packet::{Flag, Flags, PacketArena, PacketIndex, PacketMetadata};
use crate::model::queue::{NO_INGRESS, QueuePool, QueuedPacket};
use crate::model::routing::mix;
use crate::model::switch::Switch;
use crate::model::telemetry;
use crate::model::valiant::ValiantRoutes;
use crate::observe::emit::component;
use crate::observe::tap::Taps;

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
    pub(crate) calendar: Calendar<PackedEvent>,
    /// What will happen to switches, where each can be taken through a window of time by itself.
    pub(crate) epochs: Option<Epochs>,
    /// What of it this one carries out, where others carry out the rest.
    pub(crate) partition: Option<Box<Partition>>,
    pub(crate) lookahead: Lookahead,
    pub(crate) colouring: Option<Box<TwoColouring>>,
    pub(crate) sequences: Sequences,
    pub(crate) packets: PacketArena,
    /// Where they wait.
    pub(crate) pool: QueuePool,
    /// What the switch whose turn it is has to tell.
    pub(crate) event_buffer: EventBuffer,
    /// Packets that it has taken in, where its ports are taken one by one.
    pub(crate) bins: PortBins,
    pub(crate) can_bin: bool,
    /// No link is down.
    pub(crate) all_links_up: bool,
    pub(crate) channels: Vec<Channel>,
    /// What the receiver of each of them holds.
    pub(crate) usage: Vec<IngressUsage>,
    pub(crate) switches: Vec<Switch>,
    /// The hosts, then the NICs of switches that reduce.
    pub(crate) hosts: Vec<Host>,
    pub(crate) host_count: u32,
    pub(crate) routes: Routes,
    /// Where connections make detours, if they do.
    pub(crate) valiant: Option<ValiantRoutes>,
    /// The hash of another simulator, where that chooses paths.
    pub(crate) murmur3: Option<Murmur3Hash>,
    /// Who marks in front of each channel.
    pub(crate) markers: Vec<Marker>,
    /// The lowest of them: below it nobody marks.
    pub(crate) marks_above: u64,
    /// Hosts with completions that the application has not seen.
    pub(crate) ready: Vec<u32>,
    /// There is something to tell the application.
    pub(crate) has_notifications: bool,
    /// Hosts with messages of groups that nobody has dealt with.
    pub(crate) reducing: Vec<u32>,
    pub(crate) aggregation: Option<Box<Aggregation>>,
    /// Packets that come next, and to which host, for a look ahead.
    pub(crate) coming: Vec<(u32, PacketIndex)>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) graph: FabricGraph,
    pub(crate) faults: Faults,
    pub(crate) buses: Buses,
    pub(crate) events: u64,
    /// Those when hosts last ran an epoch.
    pub(crate) events_before: u64,
    /// Islands that are run before a call of the application, while they are.
    pub(crate) ready_scratch: Vec<u32>,
    /// How packets travel.
    pub(crate) form: WireForm,
    pub(crate) taps: Taps,
    /// Packets travel as frames, or frames are looked at.
    pub(crate) shows_frames: bool,
    /// There is more to every packet that starts than in most networks.
    pub(crate) needs_slow_path: bool,
    /// Priorities of each channel that wait for credit, where somebody looks on.
    pub(crate) credit_waits: Vec<u8>,
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
        assign_tie_breaks(&mut channels);
        for channel in &mut channels {
            channel.headroom_max = match config.flow_control {
                FlowControl::Pfc => config.headroom.map_or_else(|| headroom(channel), |bytes| bytes.0 as u32),
                _ => 0,
            };
            channel.credits = [credit(channel.rate(), channel.delay); 8];
            channel.lossless = config.lossless;
            if let Scheduling::Weighted(weights) = &config.scheduling {
                channel.set_weights(weights);
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
                Switch::new(&config, ports, headroom, Random::stream(seed, "switch", index as u64))
            })
            .collect();
        let marking = |channel: &Channel| config.marking.unwrap_or_else(|| Marking::for_rate(channel.rate()));
        let random = |channel: usize| Random::stream(seed, "marks", channel as u64);
        let markers = channels.iter().enumerate();
        let markers: Vec<_> =
            markers.map(|(index, channel)| Marker::new(marking(channel), random(index))).collect();
        let credit_waits = if S::DETAIL { vec![0; channels.len()] } else { Vec::new() };
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
        let valiant = (config.routing == Routing::Valiant)
            .then(|| ValiantRoutes::new(&graph, Random::stream(seed, "detours", 0).next_u32()));
        let murmur3 = (config.routing == Routing::Murmur3).then_some(Murmur3Hash { hosts: host_count });
        let needs_slow_path = S::DETAIL || config.cut_through || config.flow_control == FlowControl::Credits;
        let bins = PortBins::new(switches.iter().map(|switch| switch.ports.len()).max().unwrap_or(0));
        let can_bin =
            binning::is_eligible(&config) && !channels.iter().any(|channel| channel.raises_priority);
        let mut network = Self {
            now: Time::ZERO,
            memory: Segments::new(),
            sink,
            config,
            framing,
            calendar: Calendar::new(),
            epochs: None,
            partition: None,
            lookahead: Lookahead::NONE,
            colouring: None,
            // Two more for the application.
            sequences: Sequences::new(node_count + switch_count + 2),
            packets: PacketArena::default(),
            pool: QueuePool::default(),
            event_buffer: EventBuffer::default(),
            bins,
            can_bin,
            all_links_up: true,
            usage: vec![IngressUsage::default(); channels.len()],
            channels,
            switches,
            hosts,
            host_count,
            routes,
            valiant,
            murmur3,
            markers,
            marks_above,
            ready: Vec::new(),
            has_notifications: false,
            reducing: Vec::new(),
            aggregation,
            coming: Vec::new(),
            buffer: Vec::new(),
            graph,
            faults: Faults::new(seed),
            buses: Buses::default(),
            events: 0,
            events_before: 0,
            ready_scratch: Vec::new(),
            form: WireForm::Values,
            taps: Taps::default(),
            shows_frames: false,
            needs_slow_path,
            credit_waits,
        };
        if host_count >= LARGE {
            network.use_epochs();
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
        let is_pause = self.packets.metadata[packet as usize].is(Flag::Pause);
        if is_pause || !self.all_links_up && self.channels[channel as usize].is_down {
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
            self.receive_pause(channel, packet);
        }
    }

    /// A packet comes to its host.
    fn deliver(&mut self, host: u32, channel: u32, packet: PacketIndex) {
        let metadata = self.packets.metadata[packet as usize];
        if self.config.flow_control == FlowControl::Credits {
            self.return_credit(channel, metadata.priority, metadata.bytes.into());
        }
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.sink);
        if self.form == WireForm::Bytes {
            self.deliver_frame(host, packet);
        } else if let Some(contents) = self.packets.headers.get_mut(packet) {
            contents.network.hop_limit = contents.network.hop_limit.saturating_sub(metadata.hops);
            if metadata.is(Flag::Marked) {
                contents.network.traffic_class |= 3;
            }
            let payload = match &contents.payload {
                OutboundPayload::Ghost(runs) => Payload::Ghost(runs),
                OutboundPayload::Bytes(0) => Payload::Bytes(&[]),
                OutboundPayload::Bytes(_) => Payload::Bytes(&self.packets.bytes[packet as usize]),
            };
            let (network, headers) = (&contents.network, &contents.headers);
            let (extension, intact) = (contents.extension.as_deref(), !metadata.is(Flag::Corrupt));
            let inbound = Inbound { network, headers, extension, payload, intact };
            // A packet that the NIC throws away is loss: its counters tell.
            let _ = self.hosts[host as usize].nic.receive(&mut cx, &inbound);
        }
        self.packets.release(packet);
        self.has_notifications |= self.memory.is_touched();
        self.kick(host);
    }

    /// Lets a NIC send what it can, and notes what it waits for. Call it after every verb.
    pub fn kick(&mut self, host: u32) {
        let egress = self.hosts[host as usize].egress;
        loop {
            let channel = &self.channels[egress as usize];
            if channel.busy_until > self.now {
                // A wake-up for this very moment may have come after a packet that left just before it.
                self.schedule_transmit(egress);
                break;
            }
            if channel.has_pause_frame {
                self.send_next(egress);
                break;
            }
            let mut allowed = !channel.paused;
            if self.config.flow_control == FlowControl::Credits {
                allowed &= channel.with_credit(CREDIT_PACKET);
            }
            let sent = match channel.is_weighted {
                false => self.send_from_nic(host, egress, Priorities(allowed)),
                true => self.send_weighted(host, egress, allowed),
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
            self.lookahead.note_timer(at);
            self.schedule_at(Vertex::Host(host), at, rank::TIMER, by, Event::Timer { host });
        }
        let host_state = &mut self.hosts[host as usize];
        if let Some(queue) = host_state.watched
            && !host_state.is_ready
            && host_state.nic.completions(queue) > 0
        {
            host_state.is_ready = true;
            self.ready.push(host);
            self.has_notifications = true;
        }
        if let Some(queue) = host_state.reduces
            && !host_state.is_reducing
            && host_state.nic.completions(queue) > 0
        {
            host_state.is_reducing = true;
            self.reducing.push(host);
            self.has_notifications = true;
        }
    }

    /// As [`Network::send_from_nic`], one priority after the other: who has nothing to send is passed over.
    fn send_weighted(&mut self, host: u32, egress: u32, mut allowed: u8) -> bool {
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
        let next_free = packets.next_free();
        let contents = packets.headers.get_mut(next_free);
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
        let metadata = PacketMetadata {
            packet: transmit.packet,
            source,
            target,
            hash: mix(source ^ mix(target ^ u32::from(network.source_port) << 8)),
            bytes: bytes as u16,
            priority: transmit.priority,
            flags: Flags::NONE
                .with(Flag::Data, payload > 0)
                .with(Flag::EcnCapable, network.ecn() != 0)
                .with(Flag::CollectsTelemetry, telemetry::collects_telemetry(transmit))
                .with(Flag::HasBytes, !buffer.is_empty()),
            ..PacketMetadata::NONE
        };
        let packet = self.packets.take(metadata);
        if !self.buffer.is_empty() {
            self.packets.bytes_of(packet).extend_from_slice(&self.buffer);
        }
        self.start(egress, QueuedPacket::new(packet, &metadata, NO_INGRESS, metadata.priority.into()));
        self.schedule_transmit(egress);
        true
    }

    pub(crate) fn transmit_ready(&mut self, egress: u32) {
        let channel = &mut self.channels[egress as usize];
        channel.is_ready_planned = false;
        if channel.busy_until > self.now {
            // A packet left at this very moment before it: it was for nothing, and does not count.
            self.events -= 1;
            self.schedule_transmit(egress);
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
        (self.shows_frames, self.needs_slow_path) = (true, true);
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
        if let Some(valiant) = &mut self.valiant {
            valiant.avoid(&self.graph, &self.faults.dead);
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
fn assign_tie_breaks(channels: &mut [Channel]) {
    let mut order: Vec<u32> = (0..channels.len() as u32).collect();
    order.sort_by_key(|index| {
        let channel = &channels[*index as usize];
        (channel.sender, channel.port)
    });
    for (tie_break, index) in order.into_iter().enumerate() {
        channels[index as usize].tie_break = tie_break as u32;
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
