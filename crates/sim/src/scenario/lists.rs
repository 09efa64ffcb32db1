//! Defaults of lists of tables, and what names stand for.

use railnet_topology::host::{DeviceKind, Host};

use super::faults::FaultSection;
use super::filled::{Filled, name, span};
use super::{Scenario, Traffic};

impl Scenario {
    /// The defaults of `[[traffic]]`, `[[collective]]`, `[[transfer]]` and `[[faults]]`.
    pub(super) fn fill_lists(&self, filled: &mut Filled) {
        for (index, traffic) in self.traffic.iter().enumerate() {
            let at = format!("traffic.{index}");
            let common = Traffic::common(traffic);
            filled.put(&format!("{at}.start"), span(common.start));
            filled.put(&format!("{at}.jitter"), span(common.jitter));
            if common.dscp.is_none() {
                filled.whole(&format!("{at}.priority"), u64::from(common.priority.unwrap_or(0)));
            }
        }
        for (index, section) in self.collective.iter().enumerate() {
            let at = format!("collective.{index}");
            filled.put(&format!("{at}.type"), section.dtype.0.to_string());
            filled.put(&format!("{at}.op"), name(&section.op));
            filled.whole(&format!("{at}.root"), u64::from(section.root));
            filled.put(&format!("{at}.order"), name(&section.order));
            filled.whole(&format!("{at}.iterations"), u64::from(section.iterations));
            filled.put(&format!("{at}.placement"), name(&section.placement));
        }
        for (index, section) in self.transfer.iter().enumerate() {
            let at = format!("transfer.{index}");
            filled.whole(&format!("{at}.layers"), u64::from(section.layers));
            filled.put(&format!("{at}.by"), name(&section.by));
        }
        for (index, fault) in self.faults.iter().enumerate() {
            fault.fill(&format!("faults.{index}"), filled);
        }
    }

    /// What the names of servers stand for.
    pub(super) fn note_servers(&self, filled: &mut Filled) {
        let Some(section) = &self.cluster else { return };
        if let (Some(_), Some(host)) = (&section.server, section.host()) {
            filled.notes.insert("cluster.server".to_owned(), described(&host));
        }
        let Ok(cluster) = self.servers() else { return };
        let mut first = 0;
        for (index, group) in section.groups.iter().enumerate() {
            let note = described(cluster.host_of(first));
            filled.notes.insert(format!("cluster.groups.{index}.server"), note);
            first += group.nodes;
        }
    }
}

/// A server in a line.
fn described(host: &Host) -> String {
    let mut parts = Vec::new();
    let gpus = host.gpus();
    if let Some(DeviceKind::Gpu { model, memory, .. }) = gpus.first().map(|gpu| &host.device(*gpu).kind) {
        parts.push(format!("{} x {model} with {memory}", gpus.len()));
    }
    let links = gpus.first().map_or(0, |gpu| host.nvlinks(*gpu));
    if links > 0 {
        parts.push(format!("{} each", several(links as usize, "NVLink")));
    }
    let nics = host.compute_nics();
    if let Some(DeviceKind::Nic { rate, .. }) = nics.first().map(|nic| &host.device(*nic).kind) {
        parts.push(format!("{} of {rate}", several(nics.len(), "NIC")));
    }
    parts.push(several(host.cpus().len(), "NUMA node"));
    parts.join(", ")
}

/// So many of something.
fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl FaultSection {
    fn fill(&self, at: &str, filled: &mut Filled) {
        let detected = |filled: &mut Filled, from: &_, detection: &crate::written::Written<_>| {
            filled.put(&format!("{at}.at"), span(*from));
            filled.put(&format!("{at}.detection"), span(detection.0));
        };
        match self {
            Self::LinkDown { at: from, detection, .. } => detected(filled, &from.0, detection),
            Self::Flap { at: from, detection, period, down, .. } => {
                detected(filled, &from.0, detection);
                filled.put(&format!("{at}.down"), span(down.map_or(period.0 / 2, |down| down.0)));
            }
            Self::NvlinkDown { at: from, links, .. } => {
                filled.put(&format!("{at}.at"), span(from.0));
                filled.whole(&format!("{at}.links"), u64::from(*links));
            }
            Self::LostGpu { at: from, xid, .. } => {
                filled.put(&format!("{at}.at"), span(from.0));
                filled.whole(&format!("{at}.xid"), u64::from(*xid));
            }
            Self::Loss { at: from, .. }
            | Self::Corruption { at: from, .. }
            | Self::BitErrors { at: from, .. }
            | Self::SlowLink { at: from, .. }
            | Self::SlowNic { at: from, .. }
            | Self::SlowGpu { at: from, .. }
            | Self::PcieDown { at: from, .. }
            | Self::Crash { at: from, .. }
            | Self::LosePacket { at: from, .. }
            | Self::PauseStorm { at: from, .. }
            | Self::WrongClass { at: from, .. } => filled.put(&format!("{at}.at"), span(from.0)),
            Self::WrongNuma { .. } | Self::HotExpert { .. } => {}
        }
    }
}
