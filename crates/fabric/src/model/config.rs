//! The configuration of links and switches.

use railnet_core::{Bytes, Rate, Span};

use crate::model::aggregation::AggregationConfig;

/// How a switch avoids dropping packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowControl {
    /// Not at all: packets that do not fit are dropped.
    None,
    /// Priority flow control (PFC): XOFF to the sender when the buffer fills.
    Pfc,
    /// InfiniBand's credits: a sender transmits only what the receiver has room for.
    Credits,
}

/// How a switch selects among equal-cost paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// By a hash of the five-tuple: a connection keeps its path.
    Ecmp,
    /// ECMP with the hash of the HPCC paper's ns-3, to repeat its paths.
    Murmur3,
    /// As ECMP, but a flow with a gap of this length may take another path.
    Flowlet(Span),
    /// The shortest queue of the moment, for each packet.
    Adaptive,
    /// A random path, for each packet.
    Spray,
    /// In a dragonfly, by way of a random group that a connection keeps; elsewhere as ECMP.
    Valiant,
    /// By the forwarding tables of a subnet manager, which gives each host 2^`lmc` LIDs: as many paths, of which a connection keeps
    /// one.
    Tables {
        /// LID mask control.
        lmc: u8,
    },
}

/// When a switch marks packets: random early detection on their queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marking {
    /// Below this nothing is marked.
    pub low: Bytes,
    /// Above this everything is.
    pub high: Bytes,
    /// The probability just below `high`, in parts per million.
    pub most: u32,
}

impl Marking {
    /// The usual thresholds for a link of this rate: 100 and 400 KB for each 25 Gb/s, 20 % (as the HPCC runs have it).
    pub fn for_rate(rate: Rate) -> Self {
        let low = rate.as_bps() / 250_000;
        Self { low: Bytes(low), high: Bytes(low * 4), most: 200_000 }
    }
}

/// When a switch reads the queue to mark a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarksAt {
    /// When the packet is enqueued: the mark reflects the queue before it, and waits with it.
    Arrival,
    /// When the packet is dequeued: the mark reflects the queue behind it, as fresh as can be.
    Departure,
}

/// Which priority transmits first, at switches and at NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduling {
    /// The highest priority that has something to send.
    Strict,
    /// Priorities share the link by weight.
    Weighted(Weights),
}

/// How priorities share a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights {
    /// The share of each priority; at least 1.
    pub weights: [u32; 8],
    /// Priorities that go before all others, the highest first, one bit each.
    pub strict: u8,
}

/// How a switch behaves.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Bytes of its packet buffer.
    pub buffer: Bytes,
    /// Guaranteed to each (port, priority).
    pub reserve: Bytes,
    /// A (port, priority) may use the free shared memory divided by 2^shift, -3 to 7: what is called alpha is 8 to 1/128.
    pub shift: i8,
    /// A static threshold, where it is lower than the dynamic one.
    pub pause_at: Option<Bytes>,
    /// How far a queue must fall below its threshold before XON is sent.
    pub resume_offset: Bytes,
    /// Reserved for packets under way when XOFF is sent, for each (port, lossless priority); `None` computes it from rate
    /// and delay of the link.
    pub headroom: Option<Bytes>,
    /// How it avoids loss.
    pub flow_control: FlowControl,
    /// The lossless priorities, one bit each.
    pub lossless: u8,
    /// Which priority transmits first.
    pub scheduling: Scheduling,
    /// ECN marking; `None` uses the thresholds for each link's rate.
    pub marking: Option<Marking>,
    /// Whether it marks at all.
    pub marks: bool,
    /// When it reads the queue to mark a packet.
    pub marks_at: MarksAt,
    /// Cut-through: forwards when the header has arrived, where the next link is no faster.
    pub cut_through: bool,
    /// How it selects among equal-cost paths.
    pub routing: Routing,
    /// Packets that crossed a global link of a dragonfly go on at the next priority. Then none waits for one that has
    /// crossed fewer, and pauses cannot form a cycle. A lossless packet goes up only where the next priority is lossless
    /// too.
    pub raises_priority: bool,
    /// In-network reduction, if switches have it.
    pub aggregation: Option<AggregationConfig>,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            buffer: Bytes(32_000_000),
            reserve: Bytes(4_000),
            shift: 3,
            pause_at: None,
            resume_offset: Bytes(3_000),
            headroom: None,
            flow_control: FlowControl::Pfc,
            lossless: 0xff,
            scheduling: Scheduling::Strict,
            marking: None,
            marks: true,
            marks_at: MarksAt::Departure,
            cut_through: false,
            routing: Routing::Ecmp,
            raises_priority: true,
            aggregation: None,
        }
    }
}

/// How the length of a packet on a link is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Bytes besides transport headers and payload.
    pub overhead: u32,
    /// Count the transport headers too.
    pub headers: bool,
    /// What packets look like on links.
    pub kind: railnet_wire::Framing,
}

impl Framing {
    /// RoCEv2 on Ethernet to the byte: preamble and gap 20, Ethernet 14, IPv4 20, UDP 8, ICRC 4, FCS 4.
    pub const ETHERNET: Self = Self::of(railnet_wire::Framing::RoceV2);

    /// To the byte, as packets of this kind are on the wire.
    pub const fn of(kind: railnet_wire::Framing) -> Self {
        Self { overhead: kind.overhead(), headers: true, kind }
    }

    /// The payload and a fixed header, as other simulators count: for comparisons.
    pub const fn fixed(overhead: u32) -> Self {
        Self { overhead, headers: false, kind: railnet_wire::Framing::RoceV2 }
    }
}
