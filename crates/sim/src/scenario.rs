//! The scenario file: a fabric, its NICs, and the traffic on it.

use std::fmt;
use std::ops::Range;

use railnet_core::{Bytes, Rate, Span};
use railnet_fabric::{FlowControl, Framing, Marking, Routing, SwitchConfig};
use railnet_nic::Mtu;
use railnet_nic::control::{ControlConfig, DcqcnParameters, SwiftParameters, TimelyParameters};
use railnet_nic::recovery::RecoveryKind;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use thiserror::Error;

use crate::locate;
use crate::written::Written;

/// What is wrong with a scenario, and where.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct ScenarioError {
    /// What, and what would be right.
    pub message: String,
    /// Which bytes of the text, where that is known.
    pub span: Option<Range<usize>>,
    /// The key it is about, such as `fabric.link.rate` or `traffic.0.to`; empty where it is about no key in particular.
    pub key: String,
}

impl ScenarioError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), span: None, key: String::new() }
    }

    /// The same about this key.
    pub(crate) fn at(mut self, key: &str) -> Self {
        key.clone_into(&mut self.key);
        self
    }

    /// The same about a key of the table at `path`.
    pub(crate) fn within(mut self, path: &str) -> Self {
        self.key = if self.key.is_empty() { path.to_owned() } else { format!("{path}.{}", self.key) };
        self
    }

    /// The same with its place in the text of the scenario, where its key is written there.
    #[must_use]
    pub fn located(mut self, text: &str) -> Self {
        if self.span.is_none() && !self.key.is_empty() {
            self.span = locate::key(text, &self.key);
        }
        self
    }
}

/// The most memory a switch may have.
const BUFFER_MAX: Bytes = Bytes(1_000_000_000_000);
/// The most that may be set aside for a port, or be on a link.
const AMOUNT_MAX: Bytes = Bytes(1_000_000_000);
/// The least memory a switch has that is not told how much.
const BUFFER_LEAST: Bytes = Bytes(16_000_000);
/// The largest code of an acknowledgement timeout: five bits.
const TIMEOUT_MAX: u8 = 31;
/// The most retries: three bits.
const RETRIES_MAX: u8 = 7;

/// A scenario as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The root of all randomness.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The network between the hosts.
    pub fabric: FabricSection,
    /// The NICs of the hosts.
    #[serde(default)]
    pub nic: NicSection,
    /// What is sent.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// When to give up, in virtual time.
    #[serde(default)]
    pub limit: Option<Written<Span>>,
}

fn default_seed() -> u64 {
    1
}

/// `[fabric]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricSection {
    /// Its shape.
    pub topology: Topology,
    /// Its links.
    #[serde(default)]
    pub link: LinkSection,
    /// Its switches.
    #[serde(default)]
    pub switch: SwitchSection,
    /// How a switch chooses among equal paths.
    #[serde(default)]
    pub routing: RoutingName,
    /// How a packet's length is counted.
    #[serde(default)]
    pub framing: FramingName,
}

/// The shape of a fabric.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// All hosts on one switch.
    SingleSwitch {
        /// How many.
        hosts: u32,
    },
    /// Leaves that each join hosts, and spines that join the leaves.
    LeafSpine {
        /// Leaves.
        leaves: u32,
        /// Hosts of each leaf.
        hosts_per_leaf: u32,
        /// Spines.
        spines: u32,
    },
    /// A k-ary fat-tree.
    FatTree {
        /// Ports of each switch.
        k: u32,
        /// Tiers of switches: 2 or 3.
        #[serde(default = "three")]
        tiers: u8,
    },
    /// A Clos fabric whose leaves each serve one rail of a group of nodes.
    RailOptimised {
        /// Servers.
        nodes: u32,
        /// NICs of each server.
        rails: u32,
        /// Servers of a group: the ports of a leaf that go down.
        nodes_per_group: u32,
        /// Spines.
        spines: u32,
    },
    /// Groups of routers, all joined inside a group, and groups joined to each other.
    Dragonfly {
        /// Groups.
        groups: u32,
        /// Routers of a group.
        routers: u32,
        /// Hosts of a router.
        hosts: u32,
        /// Links to other groups of a router.
        global_links: u32,
    },
}

fn three() -> u8 {
    3
}

/// `link = { … }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSection {
    /// Of every link.
    pub rate: Written<Rate>,
    /// One way.
    pub delay: Written<Span>,
}

impl Default for LinkSection {
    fn default() -> Self {
        Self { rate: Written(Rate::gbps(100)), delay: Written(Span::from_us(1)) }
    }
}

/// `switch = { … }`.
#[derive(Clone, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSection {
    /// All of its packet memory; 32 MB for each 100 Gb/s of a link by default, and 16 MB at least.
    pub buffer: Option<Written<Bytes>>,
    /// Guaranteed to each (port, priority).
    pub reserve: Option<Written<Bytes>>,
    /// Kept free for each (port, priority) that is paused.
    pub headroom: Option<Written<Bytes>>,
    /// `"pfc"`, `"credits"` or `"none"`.
    pub flow_control: FlowControlName,
    /// Thresholds of ECN marking, or `false` for none.
    pub ecn: Option<EcnSection>,
    /// Forward when the header is there.
    pub cut_through: bool,
}

/// `flow_control = "…"`.
#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum FlowControlName {
    /// Pause frames.
    #[default]
    Pfc,
    /// Credits.
    Credits,
    /// Nothing: packets are dropped.
    None,
}

/// `ecn = { … }` or `ecn = false`.
#[derive(Clone, Debug)]
pub enum EcnSection {
    /// On with thresholds for the rate, or off.
    Switch(bool),
    /// Thresholds.
    Thresholds(EcnThresholds),
}

/// `ecn = { … }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcnThresholds {
    /// Below this nothing is marked.
    pub kmin: Written<Bytes>,
    /// Above this everything is.
    pub kmax: Written<Bytes>,
    /// The chance just below `kmax`.
    pub pmax: f64,
}

impl<'de> Deserialize<'de> for EcnSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EcnVisitor)
    }
}

// By hand, because an untagged enum would answer every mistake with "no variant matches".
struct EcnVisitor;

impl<'de> Visitor<'de> for EcnVisitor {
    type Value = EcnSection;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or { kmin = \"400KB\", kmax = \"1600KB\", pmax = 0.2 }")
    }

    fn visit_bool<E: serde::de::Error>(self, is_on: bool) -> Result<EcnSection, E> {
        Ok(EcnSection::Switch(is_on))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EcnSection, A::Error> {
        EcnThresholds::deserialize(MapAccessDeserializer::new(map)).map(EcnSection::Thresholds)
    }
}

/// `routing = "…"`.
#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingName {
    /// By a hash of the five-tuple.
    #[default]
    Ecmp,
    /// By a hash, until a connection paused.
    Flowlet,
    /// The shortest queue.
    Adaptive,
    /// Any, packet by packet.
    Spray,
    /// In a dragonfly, by way of a random group.
    Valiant,
}

/// `framing = "…"`.
#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum FramingName {
    /// To the byte, preamble and gap included.
    #[default]
    Ethernet,
    /// Payload and 64 bytes, as htsim counts.
    Payload64,
}

/// `[nic]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicSection {
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// Congestion control.
    pub control: ControlName,
    /// What happens when packets are missing or come early; by default, early packets are kept where routing spreads a
    /// connection over several paths, and all is sent again from the missing one elsewhere.
    pub recovery: Option<RecoveryName>,
    /// Code of the acknowledgement timeout: 4.096 µs × 2^code.
    pub timeout: u8,
    /// Retries without an answer.
    pub retry_count: u8,
}

impl Default for NicSection {
    fn default() -> Self {
        Self { mtu: 4096, control: ControlName::default(), recovery: None, timeout: 14, retry_count: 7 }
    }
}

/// `recovery = "…"`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryName {
    /// All from the missing packet on is sent again.
    GoBackN,
    /// Early packets are kept.
    Reorder,
}

/// `control = "…"`.
#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum ControlName {
    /// As fast as the port goes.
    None,
    /// DCQCN with the parameters of the HPCC runs.
    #[default]
    Dcqcn,
    /// DCQCN with the parameters of its paper.
    DcqcnPaper,
    /// DCQCN with the defaults of ConnectX firmware.
    DcqcnConnectx,
    /// TIMELY with the parameters of the HPCC runs.
    Timely,
    /// Swift with the parameters of htsim.
    Swift,
}

/// `[[traffic]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Many hosts send to one.
    Incast {
        /// The senders, such as "0..15": both ends are meant.
        from: Written<Hosts>,
        /// The receiver.
        to: u32,
        /// Bytes from each sender.
        bytes: Written<Bytes>,
        /// When they start.
        #[serde(default = "at_once")]
        start: Written<Span>,
    },
    /// Every host sends to one other, and receives from one other, at random.
    Permutation {
        /// Bytes of each flow.
        bytes: Written<Bytes>,
        /// When they start.
        #[serde(default = "at_once")]
        start: Written<Span>,
    },
    /// Every host sends to every other.
    AllToAll {
        /// Bytes of each flow.
        bytes: Written<Bytes>,
        /// When they start.
        #[serde(default = "at_once")]
        start: Written<Span>,
    },
    /// The traffic of a ring all-reduce: host i sends to i + 1, and a step waits for the one before it.
    Ring {
        /// Bytes that are reduced: each step moves the part of one host.
        bytes: Written<Bytes>,
        /// Hosts in the ring, from 0 on; all by default.
        #[serde(default)]
        hosts: Option<u32>,
        /// When it starts.
        #[serde(default = "at_once")]
        start: Written<Span>,
    },
    /// One flow.
    Flow {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// Its bytes.
        bytes: Written<Bytes>,
        /// When it starts.
        #[serde(default = "at_once")]
        start: Written<Span>,
    },
}

fn at_once() -> Written<Span> {
    Written(Span::ZERO)
}

/// A range of hosts: "0..15" means 0 to 15, "7" means 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hosts {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
}

impl std::str::FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            part.trim().parse::<u32>().map_err(|_| {
                format!("\"{text}\" names no hosts: write \"0..15\" for hosts 0 to 15, or \"7\" for one")
            })
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(format!("\"{text}\" runs backwards: write \"{last}..{first}\""));
        }
        Ok(Self { first, last })
    }
}

impl Scenario {
    /// Reads a scenario.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let message = error.message().to_owned();
            let span = error.span().map(|span| locate::narrowed(text, span, &message));
            ScenarioError { message, span, key: String::new() }
        })?;
        scenario.check().map_err(|error| error.located(text))?;
        Ok(scenario)
    }

    /// Reads a scenario from what its text holds: for those who change it before it is run.
    pub fn from_table(table: toml::Table) -> Result<Self, ScenarioError> {
        let scenario: Self =
            table.try_into().map_err(|error: toml::de::Error| ScenarioError::new(error.message()))?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        let link = &self.fabric.link;
        if link.rate.0 == Rate::ZERO {
            return wrong(
                "fabric.link.rate",
                "a link rate of 0 moves nothing: give `rate` such as \"100Gbps\"".to_owned(),
            );
        }
        let on_the_way = link.rate.0.bytes_in(link.delay.0 * 3);
        if on_the_way > AMOUNT_MAX {
            let message = format!(
                "{} of delay at {} hold more than a switch could: three delays' worth may be {AMOUNT_MAX} at most",
                link.delay.0, link.rate.0
            );
            return wrong("fabric.link.delay", message);
        }
        if matches!(self.fabric.routing, RoutingName::Valiant)
            && !matches!(self.fabric.topology, Topology::Dragonfly { .. })
        {
            let message =
                "detours by way of another group need groups: \"valiant\" is for the kind \"dragonfly\"";
            return wrong("fabric.routing", message.to_owned());
        }
        let Self { nic, fabric: FabricSection { switch, .. }, .. } = self;
        if Mtu::from_bytes(nic.mtu).is_none() {
            let message = format!("no path MTU is {}: one of 256, 512, 1024, 2048, 4096", nic.mtu);
            return wrong("nic.mtu", message);
        }
        if nic.timeout > TIMEOUT_MAX {
            let message = format!("a timeout code is 0 (never) to {TIMEOUT_MAX}, not {}", nic.timeout);
            return wrong("nic.timeout", message);
        }
        if nic.retry_count > RETRIES_MAX {
            let message = format!("a retry count is 0 to {RETRIES_MAX}, not {}", nic.retry_count);
            return wrong("nic.retry_count", message);
        }
        let amounts = [
            ("fabric.switch.buffer", switch.buffer, BUFFER_MAX),
            ("fabric.switch.reserve", switch.reserve, AMOUNT_MAX),
            ("fabric.switch.headroom", switch.headroom, AMOUNT_MAX),
        ];
        for (key, amount, most) in amounts {
            if let Some(amount) = amount.filter(|amount| amount.0 > most) {
                return wrong(key, format!("{} is more than any switch has: at most {most}", amount.0));
            }
        }
        if let Some(EcnSection::Thresholds(EcnThresholds { kmin, kmax, pmax })) = &switch.ecn
            && (kmin.0 > kmax.0 || kmax.0 > BUFFER_MAX || !(0.0..=1.0).contains(pmax))
        {
            let message = format!("ecn needs kmin ≤ kmax ≤ {BUFFER_MAX}, and pmax between 0 and 1");
            return wrong("fabric.switch.ecn", message);
        }
        Ok(())
    }

    /// The configuration of the switches.
    pub fn switch_config(&self) -> SwitchConfig {
        let section = &self.fabric.switch;
        let default = SwitchConfig::default();
        let rate = self.fabric.link.rate.0;
        let (marks, marking) = match &section.ecn {
            None | Some(EcnSection::Switch(true)) => (true, None),
            Some(EcnSection::Switch(false)) => (false, None),
            Some(EcnSection::Thresholds(EcnThresholds { kmin, kmax, pmax })) => {
                (true, Some(Marking { low: kmin.0, high: kmax.0, most: (pmax * 1e6) as u32 }))
            }
        };
        SwitchConfig {
            // As the HPCC runs have it: 16 MB for each 50 Gb/s, which is a byte for each 3125 bit/s.
            buffer: section.buffer.map_or(Bytes(rate.as_bps() / 3_125).max(BUFFER_LEAST), |bytes| bytes.0),
            reserve: section.reserve.map_or(default.reserve, |bytes| bytes.0),
            headroom: section.headroom.map(|bytes| bytes.0),
            flow_control: match section.flow_control {
                FlowControlName::Pfc => FlowControl::Pfc,
                FlowControlName::Credits => FlowControl::Credits,
                FlowControlName::None => FlowControl::None,
            },
            marks,
            marking,
            cut_through: section.cut_through,
            routing: match self.fabric.routing {
                RoutingName::Ecmp => Routing::Ecmp,
                RoutingName::Flowlet => Routing::Flowlet(Span::from_us(50)),
                RoutingName::Adaptive => Routing::Adaptive,
                RoutingName::Spray => Routing::Spray,
                RoutingName::Valiant => Routing::Valiant,
            },
            ..default
        }
    }

    /// How lengths are counted.
    pub fn framing(&self) -> Framing {
        match self.fabric.framing {
            FramingName::Ethernet => Framing::ETHERNET,
            FramingName::Payload64 => Framing::fixed(64),
        }
    }

    /// The loss recovery of the NICs.
    pub fn recovery(&self) -> RecoveryKind {
        // Deep enough for what the paths of a fabric can differ by: a millisecond at 400 Gb/s is 12,000 packets.
        const WINDOW: u16 = 1 << 14;
        let spreads =
            matches!(self.fabric.routing, RoutingName::Adaptive | RoutingName::Spray | RoutingName::Flowlet);
        let keeps = match self.nic.recovery {
            Some(RecoveryName::Reorder) => true,
            Some(RecoveryName::GoBackN) => false,
            None => spreads,
        };
        if keeps { RecoveryKind::Reorder { window: WINDOW } } else { RecoveryKind::GoBackN }
    }

    /// The congestion control of the NICs.
    pub fn control(&self) -> ControlConfig {
        let rate = self.fabric.link.rate.0;
        match self.nic.control {
            ControlName::None => ControlConfig::None,
            ControlName::Dcqcn => ControlConfig::Dcqcn(DcqcnParameters::hpcc(rate)),
            ControlName::DcqcnPaper => ControlConfig::Dcqcn(DcqcnParameters::paper(rate)),
            ControlName::DcqcnConnectx => ControlConfig::Dcqcn(DcqcnParameters::connectx()),
            ControlName::Timely => ControlConfig::Timely(TimelyParameters::hpcc(rate)),
            ControlName::Swift => ControlConfig::Swift(SwiftParameters::htsim()),
        }
    }

    /// The least time between two congestion notifications to a queue pair: it belongs to a set of parameters as much
    /// as the sender's part does.
    pub fn notification_interval(&self) -> Span {
        match self.nic.control {
            // The HPCC runs tell it with every acknowledgement. Their alpha decays each microsecond: at 50 µs between
            // notifications it would be gone, and pause frames would do all the work.
            ControlName::Dcqcn => Span::ZERO,
            // MIN_TIME_BETWEEN_CNPS in the same dumps of `mlxconfig`.
            ControlName::DcqcnConnectx => Span::from_us(4),
            _ => Span::from_us(50),
        }
    }
}
