//! `fabric.framing`: what carries the packets, and what goes with it: on InfiniBand a subnet manager, LIDs and virtual lanes; without
//! IP no DSCP and no ECN.

use railnet_fabric::{Framing, LMC_MAX, Routing, base_lid, last_lid};
use railnet_wire::Lid;
use serde::Deserialize;

use super::fabric::RoutingName;
use super::nic::ControlName;
use super::preset::Preset;
use super::switch::{EcnSection, FlowControlName};
use super::{Scenario, ScenarioError, TransportName};

/// Service levels of InfiniBand: four bits.
const SERVICE_LEVELS: usize = 16;
/// Virtual lanes for data here: as many as ports have priorities. InfiniBand has up to 15.
const LANE_MAX: u8 = 7;

/// `framing = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FramingName {
    /// RoCEv2 on Ethernet to the byte, preamble and gap included.
    #[serde(alias = "ethernet")]
    Rocev2,
    /// RoCE v1 on Ethernet to the byte.
    Rocev1,
    /// InfiniBand to the byte.
    Infiniband,
    /// RoCEv2 of which a packet counts as its payload and 64 bytes, as htsim counts.
    Payload64,
    /// RoCEv2 of which a packet counts as its payload and 48 bytes, as the HPCC paper's ns-3 counts.
    Payload48,
}

/// `infiniband = { … }`: the subnet manager's choices.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InfinibandSection {
    /// LID mask control: each port of a host has 2^lmc LIDs, and as many paths.
    pub lmc: u8,
    /// The virtual lane of each service level; by default the level itself, modulo 8.
    pub sl2vl: Option<Vec<u8>>,
}

impl InfinibandSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        if self.lmc > LMC_MAX {
            let message =
                format!("an LMC has three bits: 0 to {LMC_MAX}, for 1 to 128 LIDs a port, not {}", self.lmc);
            return Err(ScenarioError::new(message).at("lmc"));
        }
        let Some(lanes) = &self.sl2vl else { return Ok(()) };
        if lanes.len() != SERVICE_LEVELS {
            let message = format!(
                "there are {SERVICE_LEVELS} service levels, and {} virtual lanes here: one for each, from 0 on",
                lanes.len()
            );
            return Err(ScenarioError::new(message).at("sl2vl"));
        }
        if let Some(place) = lanes.iter().position(|lane| *lane > LANE_MAX) {
            let message =
                format!("there is no virtual lane {} for data: they are 0 to {LANE_MAX}", lanes[place]);
            return Err(ScenarioError::new(message).at(&format!("sl2vl.{place}")));
        }
        Ok(())
    }

    /// The virtual lane of each service level.
    fn lanes(&self) -> [u8; SERVICE_LEVELS] {
        let usual = std::array::from_fn(|level| level as u8 & LANE_MAX);
        self.sl2vl.as_ref().and_then(|lanes| lanes.as_slice().try_into().ok()).unwrap_or(usual)
    }
}

impl Scenario {
    /// What carries packets, by name.
    pub fn framing_name(&self) -> FramingName {
        self.fabric.framing.unwrap_or(match self.preset {
            Some(Preset::Infiniband) => FramingName::Infiniband,
            _ => FramingName::Rocev2,
        })
    }

    /// What packets look like on links.
    pub fn wire_framing(&self) -> railnet_wire::Framing {
        self.framing().kind
    }

    /// Whether hosts and switches are joined by InfiniBand links.
    pub fn is_infiniband(&self) -> bool {
        self.framing_name() == FramingName::Infiniband
    }

    /// The first LID of a host, where links are InfiniBand's.
    pub fn lid(&self, host: u32) -> Option<Lid> {
        self.is_infiniband().then(|| base_lid(host, self.fabric.infiniband.lmc))
    }

    /// Whether packets have an IP header, and with it DSCP and ECN.
    pub(crate) fn has_ip(&self) -> bool {
        self.wire_framing() == railnet_wire::Framing::RoceV2
    }

    /// How lengths are counted.
    pub fn framing(&self) -> Framing {
        match self.framing_name() {
            FramingName::Rocev2 => Framing::ETHERNET,
            FramingName::Rocev1 => Framing::of(railnet_wire::Framing::RoceV1),
            FramingName::Infiniband => Framing::of(railnet_wire::Framing::Infiniband),
            FramingName::Payload64 => Framing::fixed(64),
            FramingName::Payload48 => Framing::fixed(48),
        }
    }

    /// The subnet manager's tables.
    pub(super) fn tables(&self) -> Routing {
        Routing::Tables { lmc: self.fabric.infiniband.lmc }
    }

    /// The virtual lane of each service level, in the place of each DSCP's priority: a NIC keeps the service level there.
    pub(super) fn lanes(&self) -> [u8; 64] {
        let lanes = self.fabric.infiniband.lanes();
        std::array::from_fn(|level| lanes[level % SERVICE_LEVELS])
    }

    /// What does not go with what carries the packets.
    pub(super) fn check_framing(&self) -> Result<(), ScenarioError> {
        let section = &self.fabric;
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        let framing = self.wire_framing();
        if framing != railnet_wire::Framing::Infiniband {
            if self.routing_name() == RoutingName::Lft {
                let message = "forwarding tables of a subnet manager are InfiniBand's: write framing = \"infiniband\", or another routing";
                return wrong("fabric.routing", message.to_owned());
            }
            if framing == railnet_wire::Framing::RoceV2 {
                return Ok(());
            }
        }
        let name = framing.name();
        if self.cluster.as_ref().is_some_and(|cluster| cluster.transport() == TransportName::Tcp) {
            let message = format!(
                "TCP needs IP, which {name} does not carry here: leave out `framing`, or use \"rdma\""
            );
            return wrong("cluster.transport", message);
        }
        if !section.dscp.is_empty() {
            let instead = match framing {
                railnet_wire::Framing::Infiniband => {
                    "`infiniband = { sl2vl = […] }` gives service levels their lanes"
                }
                _ => "its VLAN tag has the priority itself",
            };
            return wrong("fabric.dscp", format!("{name} has no IP header and so no DSCP: {instead}"));
        }
        if self.switch_config().marks {
            let key = match (&section.switch.ecn, self.nic.control) {
                (Some(EcnSection::Switch(false)), _) => "fabric.framing",
                (Some(_), _) => "fabric.switch.ecn",
                (None, _) => "preset",
            };
            let message = format!(
                "switches of {name} have no ECN bits to mark: write ecn = false{}",
                if self.is_infiniband() { " (FECN with its tables is not simulated yet)" } else { "" }
            );
            return wrong(key, message);
        }
        let control = self.control_name();
        let key = if self.nic.control.is_some() { "nic.control" } else { "preset" };
        match (framing, control) {
            (_, ControlName::None)
            | (railnet_wire::Framing::RoceV1, ControlName::Timely | ControlName::Swift) => {}
            (railnet_wire::Framing::Infiniband, _) => {
                let message = "this congestion control is for Ethernet: on InfiniBand credits hold senders back, so write control = \"none\"";
                return wrong(key, message.to_owned());
            }
            _ => {
                let message = "this congestion control needs marks or telemetry of switches, which RoCE v1 has no IP header for: none, timely or swift";
                return wrong(key, message.to_owned());
            }
        }
        if section.hash == super::fabric::HashName::Ns3 {
            let message = format!("ns-3's hash is one over UDP ports, which {name} has not");
            return wrong("fabric.hash", message);
        }
        if framing == railnet_wire::Framing::Infiniband { self.check_subnet() } else { Ok(()) }
    }

    fn check_subnet(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        if !self.uses_credits() {
            let key = if self.fabric.switch.flow_control.is_some() {
                "fabric.switch.flow_control"
            } else {
                "preset"
            };
            let message = match self.flow_control_name() {
                FlowControlName::Pfc => {
                    "pause frames are Ethernet's: an InfiniBand link has credits for each lane, so write \"credits\""
                }
                _ => "an InfiniBand link sends nothing without credits: write \"credits\"",
            };
            return wrong(key, message.to_owned());
        }
        if !matches!(self.routing_name(), RoutingName::Lft | RoutingName::Adaptive) {
            let key = if self.fabric.routing.is_some() { "fabric.routing" } else { "preset" };
            let message =
                "InfiniBand switches forward by LID: \"lft\" by the subnet manager's tables, or \"adaptive\"";
            return wrong(key, message.to_owned());
        }
        Ok(())
    }

    /// An error where the subnet has more ports than LIDs.
    pub(super) fn check_lids(&self, hosts: usize, switches: usize) -> Result<(), ScenarioError> {
        if !self.is_infiniband() {
            return Ok(());
        }
        let lmc = self.fabric.infiniband.lmc;
        let (last, most) = (last_lid(hosts, switches, lmc), u64::from(Lid::UNICAST_LAST.0));
        if last > most {
            let message = format!(
                "{hosts} hosts with {} LIDs each and {switches} switches need LIDs up to {last}: a subnet has {most}, and several subnets \
                 are not simulated",
                1 << lmc
            );
            return Err(ScenarioError::new(message).at("fabric.topology"));
        }
        Ok(())
    }

    /// An error where a table of traffic names a DSCP and packets have none.
    pub(super) fn check_dscp(&self) -> Result<(), ScenarioError> {
        if self.has_ip() {
            return Ok(());
        }
        let (name, instead) = match self.is_infiniband() {
            true => ("InfiniBand", "the service level"),
            false => ("RoCE v1", "that of the VLAN tag"),
        };
        let message = format!("{name} has no IP header and so no DSCP: write `priority`, {instead}");
        Err(ScenarioError::new(message).at("dscp"))
    }
}
