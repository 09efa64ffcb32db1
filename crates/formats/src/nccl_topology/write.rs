//! From a server to a file.

use std::fmt::Write as _;

use railnet_topology::host::{
    Architecture, DeviceId, DeviceKind, Host, HostLink, HostLinkKind, NicRole, Vendor,
};

use super::{
    ARCHITECTURES, CLASS_BRIDGE, CLASS_DRIVE, CLASS_GPU, CLASS_NIC, CLASS_NVSWITCH, GPU_IDS, NVIDIA, SPEEDS,
    VERSION,
};

/// A server as a topology file. Bus ids are made up; those of several trays differ in their first part.
pub fn write(host: &Host) -> String {
    let mut writer = Writer { host, text: String::new(), busids: busids(host), trays: host.trays() };
    let _ = writeln!(writer.text, "<system version=\"{VERSION}\">");
    for (numa, cpu) in host.cpus().into_iter().enumerate() {
        writer.cpu(numa, cpu);
    }
    writer.text.push_str("</system>\n");
    writer.text
}

struct Writer<'a> {
    host: &'a Host,
    text: String,
    /// The bus id of each device.
    busids: Vec<String>,
    trays: Vec<u32>,
}

/// Ids in the order of devices: domain by tray, then a bus each.
fn busids(host: &Host) -> Vec<String> {
    let trays = host.trays();
    let mut next = vec![0_u32; host.devices.len()];
    let ids = (0..host.devices.len()).map(|device| {
        // An NVLink switch is in no tray, and there is only one: its chips have a domain of their own.
        let Some(count) = next.get_mut(trays[device] as usize) else { return String::new() };
        *count += 1;
        format!("{:04x}:{:02x}:00.0", trays[device] + (*count >> 8), *count & 0xff)
    });
    ids.collect()
}

impl Writer<'_> {
    fn cpu(&mut self, numa: usize, cpu: DeviceId) {
        let DeviceKind::Cpu { processor, .. } = self.host.device(cpu).kind else { return };
        let arch = ARCHITECTURES.iter().find(|(_, one)| *one == processor.architecture);
        let _ = write!(
            self.text,
            "  <cpu host_hash=\"{:#x}\" numaid=\"{numa}\" arch=\"{}\"",
            self.trays[cpu.0 as usize] + 1,
            arch.map_or("x86_64", |(name, _)| name),
        );
        if processor.architecture == Architecture::X86 {
            let vendor = match processor.vendor {
                Vendor::Intel => "GenuineIntel",
                Vendor::Amd => "AuthenticAMD",
                Vendor::Zhaoxin => "CentaurHauls",
                Vendor::Other => "Unknown",
            };
            let (family, model) = (processor.family, processor.model);
            let _ = write!(self.text, " vendor=\"{vendor}\" familyid=\"{family}\" modelid=\"{model}\"");
        }
        self.text.push_str(">\n");
        self.below(cpu, cpu, 2);
        self.text.push_str("  </cpu>\n");
    }

    /// What hangs below a device, when one comes from `from`.
    fn below(&mut self, device: DeviceId, from: DeviceId, depth: usize) {
        let links: Vec<(DeviceId, HostLink)> = self
            .host
            .links
            .iter()
            .filter_map(|link| match link.ends {
                [here, there] if here == device && there != from => Some((there, link.clone())),
                [there, here] if here == device && there != from => Some((there, link.clone())),
                _ => None,
            })
            .filter(|(_, link)| {
                matches!(
                    link.kind,
                    HostLinkKind::Pcie { .. } | HostLinkKind::RootPort { .. } | HostLinkKind::C2c
                )
            })
            .collect();
        for (child, link) in links {
            // A GPU may have both a coherent link and PCIe: it is written once.
            let has_c2c = self.host.links.iter().any(|other| {
                other.kind == HostLinkKind::C2c && other.ends.contains(&child) && other.ends.contains(&device)
            });
            if has_c2c && link.kind != HostLinkKind::C2c {
                continue;
            }
            self.pci(child, device, &link, depth);
        }
    }

    fn pci(&mut self, device: DeviceId, parent: DeviceId, link: &HostLink, depth: usize) {
        let indent = "  ".repeat(depth);
        let one = self.host.device(device);
        let class = match one.kind {
            DeviceKind::Gpu { .. } => CLASS_GPU,
            DeviceKind::Nic { .. } => CLASS_NIC,
            DeviceKind::PciSwitch { .. } => CLASS_BRIDGE,
            DeviceKind::Nvme => CLASS_DRIVE,
            DeviceKind::Cpu { .. } | DeviceKind::NvSwitch { .. } => return,
        };
        let busid = &self.busids[device.0 as usize];
        let _ = write!(self.text, "{indent}<pci busid=\"{busid}\" class=\"{class}\"");
        if let DeviceKind::Gpu { model, .. } = &one.kind
            && let Some((id, _)) = GPU_IDS.iter().find(|(_, known)| known == model)
        {
            let _ = write!(self.text, " vendor=\"{NVIDIA}\" device=\"{id}\"");
        }
        if let HostLinkKind::Pcie { generation, lanes } | HostLinkKind::RootPort { generation, lanes, .. } =
            link.kind
        {
            let speed = SPEEDS[usize::from(generation.clamp(1, 6)) - 1];
            let _ = write!(self.text, " link_speed=\"{speed}\" link_width=\"{lanes}\"");
        }
        match &one.kind {
            DeviceKind::Nvme => self.text.push_str("/>\n"),
            DeviceKind::Gpu { .. } => {
                self.text.push_str(">\n");
                self.gpu(device, link, depth + 1);
                let _ = writeln!(self.text, "{indent}</pci>");
            }
            DeviceKind::Nic { .. } => {
                self.text.push_str(">\n");
                self.nic(device, depth + 1);
                let _ = writeln!(self.text, "{indent}</pci>");
            }
            _ => {
                self.text.push_str(">\n");
                self.below(device, parent, depth + 1);
                let _ = writeln!(self.text, "{indent}</pci>");
            }
        }
    }

    fn gpu(&mut self, device: DeviceId, link: &HostLink, depth: usize) {
        let DeviceKind::Gpu { compute_capability, .. } = self.host.device(device).kind else { return };
        let indent = "  ".repeat(depth);
        let gpus = self.host.gpus();
        let tray = self.trays[device.0 as usize];
        let dev = gpus.iter().filter(|gpu| self.trays[gpu.0 as usize] == tray).position(|gpu| *gpu == device);
        let rank = gpus.iter().position(|gpu| *gpu == device).unwrap_or(0);
        let _ = writeln!(
            self.text,
            "{indent}<gpu dev=\"{}\" sm=\"{compute_capability}\" rank=\"{rank}\" gdr=\"1\">",
            dev.unwrap_or(0)
        );
        for nvlink in self.host.links.iter().filter(|link| link.ends.contains(&device)) {
            let HostLinkKind::NvLink { links } = nvlink.kind else { continue };
            let target = if nvlink.ends[0] == device { nvlink.ends[1] } else { nvlink.ends[0] };
            match self.host.device(target).kind {
                DeviceKind::NvSwitch { chips, .. } => {
                    // Links are spread over the chips of the switch; NCCL adds them up again.
                    let chips = u16::from(chips.max(1)).min(links.max(1));
                    for chip in 0..chips {
                        let count = (links + chips - 1 - chip) / chips;
                        let _ = writeln!(
                            self.text,
                            "{indent}  <nvlink target=\"ffff:{chip:02x}:00.0\" count=\"{count}\" tclass=\"{CLASS_NVSWITCH}\"/>"
                        );
                    }
                }
                DeviceKind::Cpu { .. } => {
                    let _ = writeln!(
                        self.text,
                        "{indent}  <nvlink target=\"{}\" count=\"{links}\" tclass=\"0x068001\"/>",
                        self.busids[target.0 as usize]
                    );
                }
                _ => {
                    let _ = writeln!(
                        self.text,
                        "{indent}  <nvlink target=\"{}\" count=\"{links}\" tclass=\"{CLASS_GPU}\"/>",
                        self.busids[target.0 as usize]
                    );
                }
            }
        }
        if link.kind == HostLinkKind::C2c {
            let megabytes = link.bandwidth.as_bps() / 8_000_000;
            let _ = writeln!(self.text, "{indent}  <c2c bw=\"{megabytes}\" count=\"1\"/>");
        }
        let _ = writeln!(self.text, "{indent}</gpu>");
    }

    fn nic(&mut self, device: DeviceId, depth: usize) {
        let one = self.host.device(device);
        let DeviceKind::Nic { rate, role, gpudirect, latency } = one.kind else { return };
        let indent = "  ".repeat(depth);
        let place = self.host.nics().iter().position(|nic| *nic == device).unwrap_or(0);
        let micros = latency.as_ps() as f64 / 1e6;
        let _ = write!(
            self.text,
            "{indent}<nic>\n{indent}  <net name=\"{}\" dev=\"{place}\" speed=\"{}\" port=\"1\" latency=\"{micros:.6}\" \
             guid=\"{:#x}\" maxconn=\"131072\" gdr=\"{}\" coll=\"0\" keep=\"{}\"/>\n{indent}</nic>\n",
            escaped(&one.name),
            rate.as_bps() / 1_000_000,
            place + 1,
            u8::from(gpudirect),
            u8::from(role == NicRole::Compute),
        );
    }
}

/// Text as a value between quotes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
