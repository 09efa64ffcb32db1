//! `[nic]`: the NICs of the hosts.

use railnet_core::{Bytes, Span};
use railnet_nic::Mtu;
use railnet_nic::control::{ControlConfig, DcqcnParameters, SwiftParameters, TimelyParameters};
use railnet_nic::recovery::RecoveryKind;
use serde::Deserialize;

use super::{Scenario, ScenarioError};
use crate::written::Written;

/// The largest code of an acknowledgement timeout: five bits.
const TIMEOUT_MAX: u8 = 31;
/// The most retries: three bits.
const RETRIES_MAX: u8 = 7;

/// How much longer the queues of one path may be than those of another where packets are spread over them. Permutations
/// on a fat-tree come to half of it with adaptive routing, and to a tenth with spraying.
const REORDERING: Bytes = Bytes::mib(4);

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
    /// With selective repeat, how much longer one path may take than another.
    pub reordering: Option<Written<Span>>,
    /// Code of the acknowledgement timeout: 4.096 µs × 2^code.
    pub timeout: u8,
    /// Retries without an answer.
    pub retry_count: u8,
}

impl Default for NicSection {
    fn default() -> Self {
        Self {
            mtu: 4096,
            control: ControlName::default(),
            recovery: None,
            reordering: None,
            timeout: 14,
            retry_count: 7,
        }
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
    /// Early packets are kept and told of; only those that are missing are sent again.
    SelectiveRepeat,
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

impl NicSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        if Mtu::from_bytes(self.mtu).is_none() {
            return wrong("mtu", format!("no path MTU is {}: one of 256, 512, 1024, 2048, 4096", self.mtu));
        }
        if self.timeout > TIMEOUT_MAX {
            let message = format!("a timeout code is 0 (never) to {TIMEOUT_MAX}, not {}", self.timeout);
            return wrong("timeout", message);
        }
        if self.retry_count > RETRIES_MAX {
            let message = format!("a retry count is 0 to {RETRIES_MAX}, not {}", self.retry_count);
            return wrong("retry_count", message);
        }
        Ok(())
    }
}

impl Scenario {
    /// The loss recovery of the NICs.
    pub fn recovery(&self) -> RecoveryKind {
        // Deep enough for what the paths of a fabric can differ by: a millisecond at 400 Gb/s is 12,000 packets.
        const WINDOW: u16 = 1 << 14;
        let spreads = self.fabric.routing.spreads();
        match self.nic.recovery {
            Some(RecoveryName::SelectiveRepeat) => {
                let queues = if spreads { REORDERING } else { Bytes(0) };
                let usual = self.fabric.link.rate.0.serialize(queues);
                let reordering = self.nic.reordering.map_or(usual, |written| written.0);
                RecoveryKind::SelectiveRepeat { window: WINDOW, reordering }
            }
            Some(RecoveryName::Reorder) => RecoveryKind::Reorder { window: WINDOW },
            None if spreads => RecoveryKind::Reorder { window: WINDOW },
            _ => RecoveryKind::GoBackN,
        }
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
