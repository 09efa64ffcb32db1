//! The connections of a server as a table, in the manner of `nvidia-smi topo -m`.

use std::fmt::Write as _;

use railnet_core::Rate;

use super::{DeviceId, DeviceKind, Host, HostLinkKind, PathType};

/// How GPUs and NICs reach each other, then how much each path carries.
///
/// The words are those of `nvidia-smi`, which has no PHB in NCCL's wide sense: two devices on different host bridges
/// of one NUMA node are NODE.
pub fn topo_matrix(host: &Host) -> String {
    let (gpus, nics) = (host.gpus(), host.nics());
    let ids: Vec<_> = gpus.iter().chain(&nics).copied().collect();
    let labels: Vec<String> = (0..gpus.len())
        .map(|id| format!("GPU{id}"))
        .chain((0..nics.len()).map(|id| format!("NIC{id}")))
        .collect();
    let mut text = format!("{}\n\n", host.name);
    if ids.is_empty() {
        text.push_str("no GPUs and no NICs\n");
        return text;
    }

    let mut header = labels.clone();
    header.push("NUMA".to_owned());
    let rows: Vec<Vec<String>> = ids
        .iter()
        .map(|row| {
            let mut cells: Vec<_> = ids.iter().map(|column| cell(host, *row, *column)).collect();
            cells.push(host.numa_of(*row).map_or("-".to_owned(), |numa| numa.to_string()));
            cells
        })
        .collect();
    table(&mut text, &header, &labels, &rows);

    if !gpus.is_empty() {
        text.push_str("\nGB/s one way along the best path\n\n");
        let rows: Vec<Vec<String>> = gpus
            .iter()
            .map(|row| ids.iter().map(|column| bandwidth(host, *row, *column)).collect())
            .collect();
        table(&mut text, &labels, &labels[..gpus.len()], &rows);
    }

    text.push_str("\nLegend\n\n");
    text.push_str(LEGEND);
    if !nics.is_empty() {
        text.push_str("\nNICs\n\n");
        for (id, nic) in nics.iter().enumerate() {
            let device = host.device(*nic);
            if let DeviceKind::Nic { rate, role, .. } = &device.kind {
                let role = match role {
                    super::NicRole::Compute => "compute",
                    super::NicRole::Storage => "storage",
                };
                let _ = writeln!(text, "  NIC{id}: {} ({rate}, {role})", device.name);
            }
        }
    }
    text
}

const LEGEND: &str = "  X    the device itself
  NV#  # NVLinks
  PIX  one PCIe switch
  PXB  several levels of PCIe switches, no CPU
  PHB  one host bridge of a CPU
  NODE host bridges of one NUMA node
  SYS  from one NUMA node to another
";

/// Columns as wide as their widest cell; rows begin with their label.
fn table(text: &mut String, header: &[String], labels: &[String], rows: &[Vec<String>]) {
    let first = labels.iter().map(String::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..header.len()).map(width).collect();
    let line = |text: &mut String, label: &str, cells: &[String]| {
        let mut line = format!("{label:first$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "  {cell:>width$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(text, "", header);
    for (label, row) in labels.iter().zip(rows) {
        line(text, label, row);
    }
}

fn cell(host: &Host, a: DeviceId, b: DeviceId) -> String {
    if a == b {
        return "X".to_owned();
    }
    let best = host.path(a, b);
    if best.kind == PathType::Nvl {
        let links = best.devices.windows(2).filter_map(|pair| nvlinks(host, pair[0], pair[1]));
        return format!("NV{}", links.min().unwrap_or(0));
    }
    pcie_cell(host, a, b).to_owned()
}

fn nvlinks(host: &Host, a: DeviceId, b: DeviceId) -> Option<u16> {
    host.links.iter().find_map(|link| match link.kind {
        HostLinkKind::NvLink { links } if link.ends == [a, b] || link.ends == [b, a] => Some(links),
        _ => None,
    })
}

/// How two devices reach each other when NVLink does not count.
fn pcie_cell(host: &Host, a: DeviceId, b: DeviceId) -> &'static str {
    let path = host.path_over(a, b, |link| !matches!(link.kind, HostLinkKind::NvLink { .. }));
    if path.devices.is_empty() {
        return "-";
    }
    let kind_of = |id: &DeviceId| &host.device(*id).kind;
    let cpus = path.devices.iter().filter(|id| matches!(kind_of(id), DeviceKind::Cpu { .. })).count();
    if cpus > 1 {
        return "SYS";
    }
    if cpus == 1 {
        let bridges: Vec<_> =
            path.devices.windows(2).filter_map(|pair| bridge(host, pair[0], pair[1])).collect();
        return if bridges.len() == 2 && bridges[0] == bridges[1] { "PHB" } else { "NODE" };
    }
    let levels = path.devices.iter().map(|id| match kind_of(id) {
        DeviceKind::PciSwitch { two_levels } => 1 + u32::from(*two_levels),
        _ => 0,
    });
    if levels.sum::<u32>() > 1 { "PXB" } else { "PIX" }
}

fn bridge(host: &Host, a: DeviceId, b: DeviceId) -> Option<u8> {
    host.links.iter().find_map(|link| match link.kind {
        HostLinkKind::RootPort { bridge, .. } if link.ends == [a, b] || link.ends == [b, a] => Some(bridge),
        _ => None,
    })
}

fn bandwidth(host: &Host, a: DeviceId, b: DeviceId) -> String {
    if a == b {
        return "X".to_owned();
    }
    let rate = host.path(a, b).bandwidth;
    if rate == Rate::ZERO { "-".to_owned() } else { gigabytes(rate) }
}

/// In GB/s with one decimal, left off where it is zero.
fn gigabytes(rate: Rate) -> String {
    let tenths = (rate.as_bps() + 400_000_000) / 800_000_000;
    if tenths.is_multiple_of(10) {
        format!("{}", tenths / 10)
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}
