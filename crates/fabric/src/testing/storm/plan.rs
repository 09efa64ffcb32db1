//! What a seed stands for, before any network exists, and what may come of it.

use std::fmt;

use railnet_core::{Psn, Span, Time};
use railnet_nic::control::ControlConfig;
use railnet_nic::recovery::RecoveryKind;
use railnet_topology::FabricGraph;
use railnet_topology::fabric::FabricKind;

use crate::model::config::{FlowControl, Routing};
use crate::model::fault::Fault;
use crate::testing::WorldOptions;

/// Bytes at the start of each host's memory that everything is sent from.
pub(super) const POOL: u64 = 128 << 10;

/// How a message moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// WRITE with immediate, from the first end to the second.
    Write,
    /// SEND, from the first end to the second.
    Send,
    /// READ: the first end fetches it from the second.
    Read,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) connection: usize,
    /// The second end of the connection asks for it, not the first.
    pub(super) is_reverse: bool,
    pub(super) act: Act,
    pub(super) length: u32,
    /// Where in the pool of the host that has it.
    pub(super) from: u64,
    /// Where in the memory of the host that gets it.
    pub(super) to: u64,
    pub(super) start: Time,
}

/// A connection between two hosts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) ends: [u32; 2],
    pub(super) traffic_class: u8,
    pub(super) psn: Psn,
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: FabricKind,
    pub(super) graph: FabricGraph,
    pub(super) options: WorldOptions,
    pub(super) connections: Vec<Link>,
    pub(super) messages: Vec<Message>,
    pub(super) faults: Vec<(Time, Fault)>,
    /// The acknowledgement timeout is longer than the run can take without loss.
    pub(super) is_patient: bool,
    /// Headroom is enough for what is under way when a pause is sent.
    pub(super) has_headroom: bool,
    /// By then all must be over.
    pub(super) limit: Time,
}

impl Message {
    /// The requester and the responder.
    pub(super) fn ends(&self, plan: &Plan) -> (u32, u32) {
        let [first, second] = plan.connections[self.connection].ends;
        if self.is_reverse { (second, first) } else { (first, second) }
    }

    /// The host that has it, and the host that gets it.
    pub(super) fn way(&self, plan: &Plan) -> (u32, u32) {
        let (asks, serves) = self.ends(plan);
        if self.act == Act::Read { (serves, asks) } else { (asks, serves) }
    }
}

impl Plan {
    fn has_fault(&self, is_meant: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|(_, fault)| is_meant(fault))
    }

    /// Packets, and pause frames too, get lost on links, more than here and there one.
    pub(super) fn is_rough(&self) -> bool {
        self.has_fault(|fault| {
            matches!(
                fault,
                Fault::LinkDown { .. }
                    | Fault::Loss { .. }
                    | Fault::Corruption { .. }
                    | Fault::BitErrors { .. }
            )
        })
    }

    /// A link fails: routes change while packets are under way.
    pub(super) fn reroutes(&self) -> bool {
        self.has_fault(|fault| matches!(fault, Fault::LinkDown { .. }))
    }

    /// One packet is lost, by name.
    pub(super) fn loses_one(&self) -> bool {
        self.has_fault(|fault| matches!(fault, Fault::LosePacket { .. }))
    }

    /// Switches may run out of memory.
    pub(super) fn may_drop(&self) -> bool {
        match self.options.switch.flow_control {
            FlowControl::None => true,
            FlowControl::Pfc => self.is_rough() || !self.has_headroom || self.options.switch.lossless != 0xff,
            FlowControl::Credits => false,
        }
    }

    /// Packets of a connection may overtake each other.
    pub(super) fn may_overtake(&self) -> bool {
        !matches!(self.options.switch.routing, Routing::Ecmp | Routing::Murmur3 | Routing::Valiant)
            || self.reroutes()
    }

    /// Packets that come early are not all kept: answers to READs never are.
    fn is_strict_about_order(&self) -> bool {
        if self.messages.iter().any(|message| message.act == Act::Read) {
            return true;
        }
        match self.options.nic.recovery {
            RecoveryKind::Reorder { window } => window < 1 << 12,
            _ => true,
        }
    }

    /// Nothing is sent twice.
    pub(super) fn is_calm(&self) -> bool {
        let loses = self.is_rough() || self.loses_one() || self.may_drop();
        !loses && self.is_patient && !(self.may_overtake() && self.is_strict_about_order())
    }

    /// Retries may run out.
    pub(super) fn may_fail(&self) -> bool {
        let retries = self.options.retry_count;
        let is_hard = self.is_rough()
            || self.may_drop()
            || !self.is_patient
            || self.may_overtake() && self.is_strict_about_order();
        is_hard || self.loses_one() && retries == 0
    }

    /// Senders that hold each other up can form a circle: paths go up and down in any order.
    pub(super) fn may_lock(&self) -> bool {
        let has_circles = match self.kind {
            FabricKind::Dragonfly(_) => {
                !self.options.switch.raises_priority || self.options.switch.lossless != 0xff
            }
            FabricKind::Explicit(_) => true,
            // A detour comes down and goes up again.
            _ => self.options.switch.routing == Routing::Valiant,
        };
        self.options.switch.flow_control != FlowControl::None && (has_circles || self.reroutes())
    }

    fn fault_in_words(&self, fault: Fault) -> String {
        let name = |link: u32| self.graph.link_name(link);
        let host = |host: u32| &self.graph.hosts[host as usize].name;
        match fault {
            Fault::LinkDown { link, detection } => format!("{} down (seen after {detection})", name(link)),
            Fault::LinkUp { link, detection } => format!("{} up (seen after {detection})", name(link)),
            Fault::Loss { link, chance } => format!("{} loses {} of its packets", name(link), chance.share()),
            Fault::Corruption { link, chance } => {
                format!("{} damages {} of its packets", name(link), chance.share())
            }
            Fault::BitErrors { link, chance } => {
                format!("{} flips {} of its bits", name(link), chance.share())
            }
            Fault::SlowLink { link, rate } => format!("{} at {rate} ppm of its rate", name(link)),
            Fault::SlowHost { host: slow, rate } => format!("{} at {rate} ppm of its rate", host(slow)),
            Fault::LosePacket { host: sender, which, .. } => {
                format!("a packet of {} is lost ({which:?})", host(sender))
            }
            other => format!("{other:?}"),
        }
    }
}

/// The scenario in words.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { graph, options, .. } = self;
        let link = &graph.links[0];
        write!(
            f,
            "{:?}: {} hosts, {} switches, {} links ({} and {})",
            self.kind,
            graph.hosts.len(),
            graph.switches.len(),
            graph.links.len(),
            link.rate,
            link.delay
        )?;
        let switch = &options.switch;
        let headroom = switch.headroom.map_or("computed".to_owned(), |bytes| bytes.to_string());
        write!(
            f,
            "; flow control {:?}, lossless {:#04x}, buffer {}, reserve {}, headroom {headroom}, {:?} routing, raises priority {}, \
             cut-through {}, ",
            switch.flow_control,
            switch.lossless,
            switch.buffer,
            switch.reserve,
            switch.routing,
            switch.raises_priority,
            switch.cut_through
        )?;
        match (switch.marks, switch.marking) {
            (false, _) => write!(f, "no ECN")?,
            (true, None) => write!(f, "ECN by the rate")?,
            (true, Some(marking)) => write!(f, "ECN {} to {}", marking.low, marking.high)?,
        }
        let control = match &options.nic.control {
            ControlConfig::None => "none",
            ControlConfig::Dcqcn(_) => "DCQCN",
            ControlConfig::Timely(_) => "TIMELY",
            ControlConfig::Swift(_) => "Swift",
            ControlConfig::Hpcc(_) => "HPCC",
            ControlConfig::Dctcp(_) => "DCTCP",
            _ => "another",
        };
        write!(
            f,
            "; MTU {}, control {control}, {:?}, timeout code {}, {} retries, {} bytes a packet and {}, {}",
            options.mtu.bytes(),
            options.nic.recovery,
            options.timeout,
            options.retry_count,
            options.framing.overhead,
            if options.framing.headers { "headers" } else { "no headers" },
            if options.is_ghost { "ghosts" } else { "real bytes" },
        )?;
        let bytes: u64 = self.messages.iter().map(|message| u64::from(message.length)).sum();
        let (count, connections) = (self.messages.len(), self.connections.len());
        write!(f, "; {count} messages of {bytes} B in all on {connections} connections")?;
        for (at, fault) in &self.faults {
            write!(f, "; at {}: {}", at.since(Time::ZERO), self.fault_in_words(*fault))?;
        }
        Ok(())
    }
}

/// The longest that a run goes on: a congestion control that crawls back to full rate takes half of it.
pub(super) const LIMIT: Span = Span::from_secs(120);
