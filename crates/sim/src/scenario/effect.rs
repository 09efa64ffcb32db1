//! Keys that are written and have no effect on a run, and why: a plan may be coarse, but it says what it leaves out.
//!
//! `tests/effects.rs` goes over every key of the format at every fidelity: two values give two answers somewhere, or the key is
//! listed here.

use std::collections::BTreeSet;
use std::fmt;

use railnet_coll::variables::Place;
use toml::{Table, Value};

use super::nic::ControlName;
use super::switch::FlowControlName;
use super::{Fidelity, Scenario, Topology, TransportName};

/// A key or variable that has no effect on a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inert {
    /// The key, such as `nic.control` or `env.NCCL_IB_TC`.
    pub key: String,
    /// The reason.
    pub why: WhyInert,
}

/// Why a key has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhyInert {
    /// This fidelity does not know it; packets do.
    NeedsPackets(Fidelity),
    /// It would have one under a condition.
    Needs(&'static str),
    /// The simulator does not read this variable; the command says so when it reads it.
    NotRead,
}

impl fmt::Display for WhyInert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeedsPackets(fidelity) => {
                write!(f, "no effect at {} fidelity; use `--fidelity packet`", fidelity.name())
            }
            Self::Needs(condition) => write!(f, "no effect here: it counts only {condition}"),
            Self::NotRead => f.write_str("no effect: the simulator does not read it"),
        }
    }
}

impl fmt::Display for Inert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}", self.key, self.why)
    }
}

/// Keys that only packets feel, with all that is below them.
const PACKETS_ONLY: &[&str] = &[
    "seed",
    "limit",
    "stall",
    "sample",
    "fabric.link.loss",
    "fabric.link.bit_error_rate",
    "fabric.switch.buffer",
    "fabric.switch.reserve",
    "fabric.switch.alpha",
    "fabric.switch.pause_at",
    "fabric.switch.resume_offset",
    "fabric.hash",
    "fabric.switch.headroom",
    "fabric.switch.flow_control",
    "fabric.switch.lossless",
    "fabric.switch.ecn",
    "fabric.switch.marks_at",
    "fabric.switch.aggregation.contexts",
    "fabric.switch.aggregation.segment",
    "fabric.switch.aggregation.slots",
    "fabric.switch.aggregation.rate",
    "fabric.dscp",
    "fabric.infiniband",
    "fabric.scheduling",
    "nic.burst",
    "nic.dcqcn",
    "nic.timely",
    "nic.swift",
    "nic.hpcc",
    "nic.dctcp",
    "nic.notification_interval",
    "nic.ack_interval",
    "nic.ack_priority",
    "nic.recovery",
    "nic.reordering",
    "nic.timeout",
    "nic.retry_count",
    "nic.credits",
    "env.NCCL_LL_BUFFSIZE",
    "env.NCCL_IB_SPLIT_DATA_ON_QPS",
    "env.NCCL_IB_TC",
    "env.NCCL_IB_TIMEOUT",
    "env.NCCL_IB_RETRY_CNT",
];

/// Those of them that flows feel: where they begin and which paths hashes choose, and when a run is given up.
const FELT_BY_FLOWS: &[&str] = &["seed", "limit", "fabric.infiniband.lmc"];

/// Keys of recovery from what ends a job, behind the section that they are in.
const AFTER_FAILURE: &[&str] = &["launch.timeout", "launch.restart", "launch.spares", "storage.read"];

impl Scenario {
    /// The keys that were written, the values of tables and lists of tables one by one, and the variables that are set, wherever
    /// they come from, that have no effect on the run.
    pub fn without_effect(&self) -> Vec<Inert> {
        let variables = self.nccl().set().map(|(name, ..)| format!("env.{name}"));
        let unread = self.nccl().names_without_effect(Place::Sim).map(|name| format!("env.{name}"));
        let keys: BTreeSet<String> = self.written.iter().cloned().chain(variables).chain(unread).collect();
        keys.into_iter().filter_map(|key| self.why_inert(&key).map(|why| Inert { key, why })).collect()
    }

    /// Why a key has no effect on the run; nothing where it may have one.
    pub fn why_inert(&self, key: &str) -> Option<WhyInert> {
        if let Some(name) = key.strip_prefix("env.")
            && self.nccl().names_without_effect(Place::Sim).any(|unread| unread == name)
        {
            return Some(WhyInert::NotRead);
        }
        let is_under = |prefix: &str| {
            key.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let is_flow = self.fidelity == Fidelity::Flow;
        let is_coarse = is_flow || self.fidelity == Fidelity::Analytic && self.has_jobs();
        let needs_packets = Some(WhyInert::NeedsPackets(self.fidelity));
        // Jobs at flow fidelity end when their steps are over, whenever that is.
        let is_felt_by_flows = is_flow
            && FELT_BY_FLOWS.iter().any(|prefix| is_under(prefix))
            && !(self.has_jobs() && is_under("limit"));
        if is_coarse && !is_felt_by_flows && PACKETS_ONLY.iter().any(|prefix| is_under(prefix)) {
            return needs_packets;
        }
        // HPCC's packets are longer, and that much is felt.
        if is_coarse && is_under("nic.control") && !self.has_telemetry() {
            return needs_packets;
        }
        let condition = self.unmet(key, &is_under)?;
        Some(WhyInert::Needs(condition))
    }

    /// What a key needs in order to have an effect, where that is missing.
    fn unmet(&self, key: &str, is_under: &dyn Fn(&str) -> bool) -> Option<&'static str> {
        let control = self.control_name();
        let of_control = |names: &[ControlName]| names.contains(&control);
        let (tcp, direct) = (
            self.uses_tcp(),
            self.cluster
                .as_ref()
                .is_none_or(|cluster| cluster.gpudirect && cluster.transport() == TransportName::Rdma),
        );
        let dcqcn = [ControlName::Dcqcn, ControlName::DcqcnPaper, ControlName::DcqcnConnectx];
        let tells = !self.collective.is_empty();
        // Jobs as packets run what their ranks say between themselves: no contexts of switches are reserved for it.
        let by_packets = self.fidelity == Fidelity::Packet && self.has_jobs();
        let reduces = self.switch_config().aggregation.is_some();
        let rules: [(&str, bool, &'static str); 24] = [
            (
                "fabric.switch.aggregation",
                !by_packets,
                "for [[collective]], and for jobs at analytic fidelity",
            ),
            ("env.NCCL_COLLNET_ENABLE", !by_packets, "for [[collective]], and for jobs at analytic fidelity"),
            ("env.NCCL_COLLNET_ENABLE", reduces, "where switches reduce: `switch = { aggregation = {} }`"),
            ("env.NCCL_DEBUG", tells, "for [[collective]]: jobs do not print NCCL's lines"),
            ("env.NCCL_DEBUG_SUBSYS", tells, "for [[collective]]: jobs do not print NCCL's lines"),
            ("cluster.tcp", tcp, "with `transport = \"tcp\"`"),
            ("cluster.gpudirect", !tcp, "with `transport = \"rdma\"`: sockets always copy"),
            ("cluster.copy_start", !direct, "with `gpudirect = false` or `transport = \"tcp\"`"),
            ("cluster.slice", !self.traffic.is_empty(), "for [[traffic]]; collectives move NCCL's slots"),
            ("cluster.slots", !self.traffic.is_empty(), "for [[traffic]]; collectives have NCCL's slots"),
            ("nic.dcqcn", of_control(&dcqcn), "with `control = \"dcqcn\"`"),
            ("nic.timely", of_control(&[ControlName::Timely]), "with `control = \"timely\"`"),
            ("nic.swift", of_control(&[ControlName::Swift]), "with `control = \"swift\"`"),
            ("nic.hpcc", of_control(&[ControlName::Hpcc]), "with `control = \"hpcc\"`"),
            ("nic.dctcp", of_control(&[ControlName::Dctcp]), "with `control = \"dctcp\"`"),
            ("fabric.switch.headroom", self.uses_pfc(), "with `flow_control = \"pfc\"`"),
            ("fabric.switch.lossless", self.uses_pfc(), "with `flow_control = \"pfc\"`"),
            ("fabric.switch.marks_at", self.switch_config().marks, "where switches mark: `ecn` is off"),
            ("fabric.infiniband", self.is_infiniband(), "with `framing = \"infiniband\"`"),
            ("env.NCCL_IB_TC", self.has_ip(), "where packets have an IP header: not with this `framing`"),
            ("fabric.link.up", self.tiers() >= 2, "in a fabric of two tiers and more"),
            ("fabric.link.core", self.tiers() >= 3, "in a fabric of three tiers"),
            ("fabric.link.local", self.is_dragonfly(), "in a dragonfly"),
            ("fabric.link.global", self.is_dragonfly(), "in a dragonfly"),
        ];
        if let Some((.., needs)) = rules.iter().find(|(prefix, is_met, _)| is_under(prefix) && !is_met) {
            return Some(needs);
        }
        let is_of_failure = AFTER_FAILURE.iter().any(|end| key == *end || key.ends_with(&format!(".{end}")));
        if is_of_failure && !self.faults.iter().any(super::faults::FaultSection::ends_jobs) {
            return Some("where a fault ends the job (lost-gpu, crash)");
        }
        self.unmet_of_jobs(key)
    }

    /// The same for keys of jobs.
    fn unmet_of_jobs(&self, key: &str) -> Option<&'static str> {
        let (at, end) = key.rsplit_once('.')?;
        let index = at.strip_prefix("job.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let sections = self.job_sections();
        let (_, section) = sections.get(index.unwrap_or(0))?;
        let storage = section.storage?;
        let is_written = storage.interval.is_some_and(|interval| interval <= self.steps_of(section));
        match (at.rsplit('.').next()?, end) {
            ("storage", "gpudirect") if storage.servers == 0 => {
                Some("with `servers`: drives of the server itself take what `rate` says")
            }
            ("storage", "rate" | "checkpoint" | "gpudirect") if !is_written => {
                Some("where a checkpoint is written: `interval` is not reached in these steps")
            }
            _ => None,
        }
    }

    fn steps_of(&self, section: &railnet_job::file::JobSection) -> u32 {
        self.steps.unwrap_or(section.training.steps)
    }

    fn uses_pfc(&self) -> bool {
        matches!(self.flow_control_name(), FlowControlName::Pfc)
    }

    fn is_dragonfly(&self) -> bool {
        matches!(self.fabric.topology, Topology::Dragonfly { .. })
    }

    fn tiers(&self) -> u8 {
        super::graph(self).map_or(u8::MAX, |graph| graph.tiers())
    }
}

/// The keys of a table, such as `nic.mtu` or `traffic.0.bytes`.
pub(super) fn keys(table: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in table {
        collect(key, value, &mut found);
    }
    found
}

fn collect(key: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (name, value) in table {
                collect(&format!("{key}.{name}"), value, found);
            }
        }
        Value::Array(list) if list.first().is_some_and(Value::is_table) => {
            for (number, value) in list.iter().enumerate() {
                collect(&format!("{key}.{number}"), value, found);
            }
        }
        _ => found.push(key.to_owned()),
    }
}
