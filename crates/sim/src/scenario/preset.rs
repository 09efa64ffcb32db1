//! `preset = "…"`: what kinds of networks are known by, as the choices that make them.

use serde::Deserialize;

use super::Scenario;
use super::fabric::RoutingName;
use super::framing::FramingName;
use super::nic::{ControlName, RecoveryName};
use super::switch::FlowControlName;

/// A kind of network. What a scenario says itself wins over what the preset would choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// InfiniBand links: credits for each lane, and a subnet manager's tables.
    Infiniband,
    /// Ethernet whose switches spread packets and whose NICs put them in order again.
    SpectrumX,
    /// Ethernet with pause frames, hashed paths and DCQCN.
    RoceDcqcn,
    /// Ethernet that drops packets, and NICs that keep what came early.
    RoceLossy,
}

/// What a preset chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    pub(super) flow_control: FlowControlName,
    pub(super) ecn: bool,
    pub(super) routing: RoutingName,
    pub(super) control: ControlName,
    /// Where nothing is said, the routing decides.
    pub(super) recovery: Option<RecoveryName>,
    pub(super) timeout: u8,
}

impl Choices {
    /// Without a preset.
    const USUAL: Self = Self {
        flow_control: FlowControlName::Pfc,
        ecn: true,
        routing: RoutingName::Ecmp,
        control: ControlName::Dcqcn,
        recovery: None,
        timeout: 14,
    };
}

impl Preset {
    // `docs/scenarios.md` gives the reasons, row by row.
    fn choices(self) -> Choices {
        let usual = Choices::USUAL;
        match self {
            Self::Infiniband => Choices {
                flow_control: FlowControlName::Credits,
                ecn: false,
                routing: RoutingName::Lft,
                control: ControlName::None,
                recovery: Some(RecoveryName::GoBackN),
                ..usual
            },
            Self::SpectrumX => Choices {
                routing: RoutingName::Adaptive,
                control: ControlName::Swift,
                recovery: Some(RecoveryName::Reorder),
                ..usual
            },
            Self::RoceDcqcn => Choices { recovery: Some(RecoveryName::GoBackN), ..usual },
            Self::RoceLossy => Choices {
                flow_control: FlowControlName::None,
                recovery: Some(RecoveryName::SelectiveRepeat),
                // Nobody tells of a last packet that was lost: the clock does, so it must not be slow.
                timeout: 8,
                ..usual
            },
        }
    }
}

impl Scenario {
    pub(super) fn choices(&self) -> Choices {
        let chosen = self.preset.map_or(Choices::USUAL, Preset::choices);
        match (self.framing_name(), self.preset) {
            (FramingName::Infiniband, None) => Preset::Infiniband.choices(),
            // No IP header, no marks: what reacts to them has nothing to react to.
            (FramingName::Rocev1, None) => Choices { ecn: false, control: ControlName::None, ..chosen },
            (FramingName::Infiniband, _) => chosen,
            // Credits on Ethernet: its switches have no forwarding tables of a subnet manager.
            (_, Some(Preset::Infiniband)) => Choices { routing: RoutingName::Ecmp, ..chosen },
            _ => chosen,
        }
    }
}
