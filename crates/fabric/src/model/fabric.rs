//! The state of the fabric: channels, switches, and the packets on them.

use railnet_core::{Bytes, Random, Rate, Span};
use railnet_nic::frame::WireForm;
use railnet_topology::{FabricGraph, LinkKind, Vertex};

use crate::engine::binning;
use crate::engine::event::CHANNELS_MAX;
use crate::model::buffer::IngressUsage;
use crate::model::channel::{Channel, NO_LOCAL_LP, PORTS_MAX};
use crate::model::config::{FlowControl, Framing, Marking, MarksAt, Scheduling, SwitchConfig};
use crate::model::ecmp::switch_stream;
use crate::model::ecn::Marker;
use crate::model::fault::Faults;
use crate::model::packet::PacketArena;
use crate::model::queue::QueuePool;
use crate::model::switch::Switch;
use crate::model::topology::component;

/// Channels, switches, and the packets on them.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) config: SwitchConfig,
    pub(crate) framing: Framing,
    /// Whether packets travel as values or as bytes.
    pub(crate) form: WireForm,
    pub(crate) channels: Vec<Channel>,
    /// What each channel's receiver uses of its buffer.
    pub(crate) usage: Vec<IngressUsage>,
    /// The ECN marker in front of each channel.
    pub(crate) markers: Vec<Marker>,
    /// Queue bytes up to which none of them marks.
    pub(crate) marks_above: u64,
    pub(crate) switches: Vec<Switch>,
    pub(crate) packets: PacketArena,
    /// The nodes of all packet queues.
    pub(crate) pool: QueuePool,
    pub(crate) faults: Faults,
    pub(crate) all_links_up: bool,
    /// Switches may bin their arrivals.
    pub(crate) can_bin: bool,
    /// Every packet takes the slow path.
    pub(crate) needs_slow_path: bool,
    /// Packets travel as frames, or a tap copies frames.
    pub(crate) shows_frames: bool,
}

impl Fabric {
    /// A fabric of this shape, with the egress channel of each host. `has_details` is whether a sink wants details.
    pub(crate) fn new(
        graph: &FabricGraph,
        config: SwitchConfig,
        framing: Framing,
        host_count: u32,
        seed: u64,
        has_details: bool,
    ) -> (Self, Vec<u32>) {
        let (mut channels, egress, ports) = connect(graph, host_count, config.raises_priority);
        for channel in &mut channels {
            configure(channel, &config);
        }
        let switches = ports.into_iter().enumerate().map(|(index, ports)| {
            let headroom = |port: &u32| channels[channels[*port as usize].reverse as usize].headroom_max;
            let headroom = ports.iter().map(|port| u64::from(headroom(port))).sum();
            Switch::new(&config, ports, headroom, switch_stream(seed, index as u32))
        });
        let switches = switches.collect();
        let marker = |(index, channel): (usize, &Channel)| {
            let marking = config.marking.unwrap_or_else(|| Marking::for_rate(channel.rate()));
            Marker::new(marking, Random::stream(seed, "marks", index as u64))
        };
        let markers: Vec<_> = channels.iter().enumerate().map(marker).collect();
        let has_credits = config.flow_control == FlowControl::Credits;
        let fabric = Self {
            framing,
            form: WireForm::Values,
            usage: vec![IngressUsage::default(); channels.len()],
            marks_above: markers.iter().map(Marker::low).min().unwrap_or(0),
            markers,
            switches,
            packets: PacketArena::default(),
            pool: QueuePool::default(),
            faults: Faults::new(seed),
            all_links_up: true,
            can_bin: binning::is_eligible(&config) && !channels.iter().any(|channel| channel.raises_priority),
            needs_slow_path: has_details || config.cut_through || has_credits,
            shows_frames: false,
            channels,
            config,
        };
        (fabric, egress)
    }

    /// Queue bytes up to which no packet is marked at that moment of its way.
    #[inline]
    pub(crate) fn marks_above_at(&self, at: MarksAt) -> u64 {
        let marks = self.config.marks && self.config.marks_at == at;
        if marks { self.marks_above } else { u64::MAX }
    }

    /// Whether a port transmits what is first in line and nothing else.
    pub(crate) fn is_fast(&self, channel: &Channel) -> bool {
        !self.needs_slow_path
            && !self.packets.has_telemetry
            && !channel.needs_slow_path()
            && channel.receiver_lp != NO_LOCAL_LP
            && !channel.has_pause_frame
            && channel.paused == 0
            && channel.is_ready_planned == (channel.occupied != 0)
            && self.config.marks_at == MarksAt::Departure
    }

    /// Frames are shown from now on: of packets that travel as bytes, or to a tap.
    pub(crate) fn show_frames(&mut self) {
        (self.shows_frames, self.needs_slow_path) = (true, true);
    }

    pub(crate) fn link_count(&self) -> usize {
        self.channels.len() / 2
    }

    /// The length of the longest queue.
    pub(crate) fn longest_queue(&self) -> Bytes {
        Bytes(self.channels.iter().map(Channel::queued).max().unwrap_or(0))
    }

    /// The present rate of the slowest channel, faults included.
    pub(crate) fn slowest(&self) -> Rate {
        self.channels.iter().map(Channel::rate).min().unwrap_or(Rate::ZERO)
    }
}

/// The channels of all links, the egress channel of each host, and those of each switch by port.
fn connect(
    graph: &FabricGraph,
    host_count: u32,
    raises_priority: bool,
) -> (Vec<Channel>, Vec<u32>, Vec<Vec<u32>>) {
    let nodes = (host_count, graph.switches.len() as u32);
    let mut channels = Vec::new();
    let mut egress = vec![u32::MAX; graph.hosts.len()];
    let mut ports: Vec<Vec<u32>> = vec![Vec::new(); graph.switches.len()];
    for link in &graph.links {
        for (near, far) in [(0, 1), (1, 0)] {
            let index = channels.len() as u32;
            let (from, to) = (link.ends[near], link.ends[far]);
            let near = (from.vertex, from.port, component(from.vertex, nodes));
            let mut channel = Channel::new(near, to.vertex, index ^ 1, link.rate, link.delay);
            channel.raises_priority = raises_priority && link.kind == LinkKind::Global;
            channels.push(channel);
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
    assert!(ports.iter().all(|ports| ports.len() <= PORTS_MAX), "a switch has at most {PORTS_MAX} ports");
    assign_tie_breaks(&mut channels);
    (channels, egress, ports)
}

fn configure(channel: &mut Channel, config: &SwitchConfig) {
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

/// Ranks channels by sender, then by port, for packets that arrive at one moment.
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

/// Bytes of the largest packet of RoCEv2.
const LARGEST_PACKET: u32 = 4_096 + 128;

/// Bytes of the largest packet with telemetry: a sender with less credit waits.
pub(crate) const CREDIT_PACKET: u32 = LARGEST_PACKET + 44;

/// What may be under way when XOFF is sent: three one-way delays at full rate, and a packet at either end.
fn headroom(channel: &Channel) -> u32 {
    let in_flight = channel.rate().bytes_in(channel.delay * 3).as_u64();
    (in_flight + 4 * u64::from(LARGEST_PACKET)) as u32
}

/// What a sender may have under way without hearing back: two delays at full rate, and some packets.
pub(crate) fn credit(rate: Rate, delay: Span) -> u32 {
    let in_flight = rate.bytes_in(delay * 2).as_u64();
    (in_flight + 4 * u64::from(LARGEST_PACKET)) as u32
}
