//! `[nic]`: the NICs of the hosts.

use railnet_core::{Bytes, Rate, Span};
use railnet_fabric::Marking;
use railnet_nic::Mtu;
use railnet_nic::control::{
    ControlConfig, DcqcnParameters, DctcpParameters, HpccParameters, SwiftParameters, TimelyParameters,
};
use railnet_nic::recovery::RecoveryKind;
use serde::Deserialize;

use super::control::{DcqcnTable, DctcpTable, HpccTable, SwiftTable, TimelyTable};
use super::{Scenario, ScenarioError, TransportName};
use crate::round_trip::idle_round_trip;
use crate::written::Written;

/// The largest code of an acknowledgement timeout: five bits.
const TIMEOUT_MAX: u8 = 31;
/// The largest window and byte counter of DCQCN.
const WINDOW_MAX: Bytes = Bytes(4_000_000_000);
/// The most retries: three bits.
const RETRIES_MAX: u8 = 7;

/// How much longer the queues of one path may be than those of another where packets are spread over them. Permutations
/// on a fat-tree come to more than half of it with adaptive routing, and to a tenth with spraying.
const REORDERING: Bytes = Bytes::mib(4);

/// `[nic]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicSection {
    /// What a NIC and its link carry; by default what the server's NICs do, or the links of the fabric.
    pub rate: Option<Written<Rate>>,
    /// Payload bytes of a full packet, one of RoCE's.
    pub mtu: u32,
    /// The same where it is none of RoCE's.
    pub payload: Option<u32>,
    /// Packets that a connection sends before the next one has its turn.
    pub burst: u16,
    /// Congestion control.
    pub control: Option<ControlName>,
    /// What differs from the parameters that `control` names, where it is DCQCN.
    pub dcqcn: DcqcnTable,
    /// Where it is TIMELY.
    pub timely: TimelyTable,
    /// Where it is Swift.
    pub swift: SwiftTable,
    /// Where it is HPCC.
    pub hpcc: HpccTable,
    /// Where it is DCTCP.
    pub dctcp: DctcpTable,
    /// The least time between two congestion notifications to a sender; the control has one by default.
    pub notification_interval: Option<Written<Span>>,
    /// An acknowledgement is asked for at the end of every message that wants one, and at the latest after so many packets.
    pub ack_interval: u16,
    /// The priority of acknowledgements; that of the data by default.
    pub ack_priority: Option<u8>,
    /// What happens when packets are missing or come early; by default, early packets are kept where routing spreads a
    /// connection over several paths, and all is sent again from the missing one elsewhere.
    pub recovery: Option<RecoveryName>,
    /// With selective repeat, how much longer one path may take than another.
    pub reordering: Option<Written<Span>>,
    /// Code of the acknowledgement timeout: 4.096 µs × 2^code.
    pub timeout: Option<u8>,
    /// Retries without an answer.
    pub retry_count: u8,
    /// Acknowledgements say how many receives are posted, and no more messages come that need one.
    pub credits: bool,
}

impl Default for NicSection {
    fn default() -> Self {
        Self {
            rate: None,
            mtu: 4096,
            payload: None,
            burst: 16,
            control: None,
            dcqcn: DcqcnTable::default(),
            timely: TimelyTable::default(),
            swift: SwiftTable::default(),
            hpcc: HpccTable::default(),
            dctcp: DctcpTable::default(),
            notification_interval: None,
            ack_interval: 64,
            ack_priority: None,
            recovery: None,
            reordering: None,
            timeout: None,
            retry_count: 7,
            credits: false,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlName {
    /// As fast as the port goes.
    None,
    /// DCQCN with the parameters of the HPCC runs.
    Dcqcn,
    /// DCQCN with the parameters of its paper.
    DcqcnPaper,
    /// DCQCN with the defaults of ConnectX firmware.
    DcqcnConnectx,
    /// TIMELY with the parameters of the HPCC runs.
    Timely,
    /// Swift with the parameters of htsim.
    Swift,
    /// HPCC with the parameters of its authors' runs.
    Hpcc,
    /// DCTCP as in the HPCC runs, which start at line rate; as RFC 8257 has it where the kernel carries the data.
    Dctcp,
}

impl ControlName {
    /// The thresholds of marking that an algorithm needs, where they are not the usual ones.
    pub(super) fn marking(self, rate: Rate) -> Option<Marking> {
        // Every packet that finds more than a threshold of 30 KB for each 10 Gb/s, as in the HPCC runs.
        let step = Bytes(rate.as_bps() / 1_000_000 * 3);
        matches!(self, Self::Dctcp).then_some(Marking { low: step, high: step, most: 1_000_000 })
    }
}

impl NicSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        if self.rate.is_some_and(|rate| rate.0 == Rate::ZERO) {
            return wrong(
                "rate",
                "a NIC of rate 0 sends nothing: give it one, such as \"400Gbps\"".to_owned(),
            );
        }
        if Mtu::from_bytes(self.mtu).is_none() {
            let message = format!(
                "no path MTU is {}: one of 256, 512, 1024, 2048, 4096; `payload` has packets that no RoCE path has",
                self.mtu
            );
            return wrong("mtu", message);
        }
        if let Some(payload) = self.payload.filter(|payload| Mtu::of_payload(*payload).is_none()) {
            let least = Mtu::LEAST;
            let message = format!("a full packet has {least} to 4096 bytes, in words of 4, not {payload}");
            return wrong("payload", message);
        }
        if self.burst == 0 {
            return wrong("burst", "a turn has at least one packet: 1 to 65535".to_owned());
        }
        if let Some(timeout) = self.timeout.filter(|timeout| *timeout > TIMEOUT_MAX) {
            return wrong("timeout", format!("a timeout code is 0 (never) to {TIMEOUT_MAX}, not {timeout}"));
        }
        if self.ack_interval == 0 {
            return wrong("ack_interval", "somebody must ask some time: 1 to 65535 packets".to_owned());
        }
        if self.retry_count > RETRIES_MAX {
            let message = format!("a retry count is 0 to {RETRIES_MAX}, not {}", self.retry_count);
            return wrong("retry_count", message);
        }
        Ok(())
    }
}

impl Scenario {
    /// The code of the acknowledgement timeout.
    pub fn timeout(&self) -> u8 {
        self.nic.timeout.unwrap_or(self.choices().timeout)
    }

    /// Payload bytes of a full packet.
    pub fn payload(&self) -> u32 {
        self.nic.payload.unwrap_or(self.nic.mtu)
    }

    /// The DSCP of acknowledgements, where it is not that of the data.
    pub(crate) fn ack_dscp(&self) -> Result<Option<u8>, ScenarioError> {
        let dscp = self.nic.ack_priority.map(|priority| self.dscp_of(priority));
        dscp.transpose().map_err(|error| error.at("ack_priority"))
    }

    /// The congestion control of the NICs, by name.
    pub fn control_name(&self) -> ControlName {
        let usual = match self.uses_tcp() && self.preset.is_none() {
            true => ControlName::Dctcp,
            false => self.choices().control,
        };
        self.nic.control.unwrap_or(usual)
    }

    /// Whether the kernel carries data, and not the NICs.
    pub fn uses_tcp(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.transport() == TransportName::Tcp)
    }

    /// Whether packets have room for what switches write into them.
    pub(super) fn has_telemetry(&self) -> bool {
        self.control_name() == ControlName::Hpcc
    }

    /// The loss recovery of the NICs.
    pub fn recovery(&self) -> RecoveryKind {
        // Deep enough for what the paths of a fabric can differ by: a millisecond at 400 Gb/s is 12,000 packets.
        const WINDOW: u16 = 1 << 14;
        let spreads = self.routing_name().spreads();
        match self.nic.recovery.or(self.choices().recovery) {
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
        self.control_at(self.edge_rate())
    }

    /// The congestion control of a NIC with a port of this rate.
    pub(crate) fn control_at(&self, rate: Rate) -> ControlConfig {
        let NicSection { dcqcn, timely, swift, hpcc, dctcp, .. } = &self.nic;
        match self.control_name() {
            ControlName::None => ControlConfig::None,
            ControlName::Dcqcn => ControlConfig::Dcqcn(dcqcn.on(DcqcnParameters::hpcc(rate))),
            ControlName::DcqcnPaper => ControlConfig::Dcqcn(dcqcn.on(DcqcnParameters::paper(rate))),
            ControlName::DcqcnConnectx => ControlConfig::Dcqcn(dcqcn.on(DcqcnParameters::connectx())),
            ControlName::Timely => ControlConfig::Timely(timely.on(TimelyParameters::hpcc(rate))),
            ControlName::Swift => ControlConfig::Swift(swift.on(SwiftParameters::htsim())),
            ControlName::Hpcc => {
                ControlConfig::Hpcc(hpcc.on(HpccParameters::ns3(rate, idle_round_trip(self))))
            }
            ControlName::Dctcp => {
                let (round_trip, mtu) = (idle_round_trip(self), Bytes(u64::from(self.payload())));
                ControlConfig::Dctcp(dctcp.on(match self.uses_tcp() {
                    true => DctcpParameters::tcp(rate, round_trip, mtu),
                    false => DctcpParameters::hardware(rate, round_trip),
                }))
            }
        }
    }

    /// What the parameters of the congestion control have to do with each other.
    pub(super) fn check_control(&self) -> Result<(), ScenarioError> {
        match self.control() {
            ControlConfig::Timely(TimelyParameters { low, high, .. }) if low > high => {
                let message =
                    format!("the round trips that count as low end at {low}, above the high ones at {high}");
                Err(ScenarioError::new(message).at("timely.low"))
            }
            ControlConfig::Dcqcn(DcqcnParameters { window: Some(window), .. })
                if self.edge_rate().bytes_in(window) > WINDOW_MAX =>
            {
                let message = format!("a window is at most {WINDOW_MAX}, not {window} at line rate");
                Err(ScenarioError::new(message).at("dcqcn.window"))
            }
            ControlConfig::Dcqcn(DcqcnParameters { increase_bytes: Some(bytes), .. })
                if bytes > WINDOW_MAX =>
            {
                let message = format!("the byte counter counts to {WINDOW_MAX} at most, not {bytes}");
                Err(ScenarioError::new(message).at("dcqcn.increase_bytes"))
            }
            ControlConfig::Swift(SwiftParameters { base, .. }) if base == Span::ZERO => {
                let message = "a target of 0 is never met: `base` is above the round trip of an idle network";
                Err(ScenarioError::new(message).at("swift.base"))
            }
            ControlConfig::Hpcc(HpccParameters { target: (0, _), .. }) => {
                let message = "a target of 0 sends nothing: as 0.95";
                Err(ScenarioError::new(message).at("hpcc.target"))
            }
            ControlConfig::Dctcp(DctcpParameters { window_first, window_most, .. })
                if window_first > window_most || window_first == Bytes::ZERO =>
            {
                let message = format!(
                    "the first window, {window_first}, is more than 0 and not above the largest, {window_most}"
                );
                Err(ScenarioError::new(message).at("dctcp.window_first"))
            }
            _ => Ok(()),
        }
    }

    /// The least time between two congestion notifications to a queue pair: it belongs to a set of parameters as much
    /// as the sender's part does.
    pub fn notification_interval(&self) -> Span {
        if let Some(interval) = self.nic.notification_interval {
            return interval.0;
        }
        match self.control_name() {
            // The HPCC runs tell it with every acknowledgement. Their alpha decays each microsecond: at 50 µs between
            // notifications it would be gone, and pause frames would do all the work.
            ControlName::Dcqcn => Span::ZERO,
            // MIN_TIME_BETWEEN_CNPS in the same dumps of `mlxconfig`.
            ControlName::DcqcnConnectx => Span::from_us(4),
            _ => Span::from_us(50),
        }
    }
}
