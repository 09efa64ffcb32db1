//! From a file to a server.

use std::collections::{BTreeMap, BTreeSet};

use railnet_core::{Rate, Span};
use railnet_topology::catalogue;
use railnet_topology::host::{
    Architecture, DeviceId, DeviceKind, Host, HostLinkKind, NicRole, Processor, Vendor,
};
use roxmltree::{Document, Node};

use super::{
    ARCHITECTURES, ATTRIBUTES_MAX, BYTES_MAX, CHILDREN_MAX, CLASS_NVSWITCH, GPU_IDS, SPEEDS, TopologyError,
    VALUE_MAX, VERSION, nvlink_megabits,
};

/// More than any link carries: a NIC that is on no bus (NCCL's LOC_BW, 5,000 GB/s).
const LOCAL: Rate = Rate::gbps(40_000);

/// The server that a file describes, under a name of the caller's choice.
pub fn read(name: &str, text: &str) -> Result<Host, TopologyError> {
    if text.len() > BYTES_MAX {
        let what = format!("the file has {} bytes, more than {BYTES_MAX}", text.len());
        return Err(TopologyError { line: 1, what, help: "is it a topology at all?".into() });
    }
    let document = Document::parse(text).map_err(|error| TopologyError {
        line: error.pos().row,
        what: format!("this is not XML: {error}"),
        help: "NCCL_TOPO_DUMP_FILE=FILE makes NCCL write such a file".into(),
    })?;
    let reader = Reader { document: &document };
    reader.limits()?;
    let mut parts = Parts::default();
    reader.system(&mut parts)?;
    let host = parts.build(name);
    host.check().map_err(|error| TopologyError {
        line: 1,
        what: error.to_string(),
        help: "every device has to be in a <cpu>, and names of <net> have to differ".into(),
    })?;
    Ok(host)
}

/// What was found, before it is put in order.
#[derive(Default)]
struct Parts {
    /// What tells hosts apart: a rack has several.
    hosts: Vec<String>,
    cpus: Vec<CpuPart>,
    switches: Vec<Bus>,
    gpus: Vec<GpuPart>,
    nics: Vec<NicPart>,
    drives: Vec<Bus>,
}

/// Where something hangs, and by what.
#[derive(Clone, Copy)]
struct Bus {
    parent: Parent,
    generation: u8,
    lanes: u8,
}

#[derive(Clone, Copy)]
enum Parent {
    /// A NUMA node, and the number of its host bridge.
    Cpu(usize, u8),
    Switch(usize),
}

struct CpuPart {
    /// Which of several hosts it is in, in the order of the file.
    host: usize,
    processor: Processor,
}

struct GpuPart {
    order: (usize, u32),
    bus: Bus,
    busid: String,
    kind: DeviceKind,
    capability: u16,
    /// To switches: how many chips and links; to GPUs by bus id; to the CPU.
    chips: BTreeSet<String>,
    switch_links: u16,
    peers: Vec<(String, u16)>,
    cpu_links: u16,
    c2c: Option<Rate>,
    cpu: usize,
}

struct NicPart {
    order: (usize, u32),
    bus: Option<Bus>,
    cpu: usize,
    name: String,
    kind: DeviceKind,
}

type Element<'a> = Node<'a, 'a>;

struct Reader<'a> {
    document: &'a Document<'a>,
}

impl<'a> Reader<'a> {
    fn wrong<T>(&self, at: Element<'_>, what: String, help: &str) -> Result<T, TopologyError> {
        let line = self.document.text_pos_at(at.range().start).row;
        Err(TopologyError { line, what, help: help.to_owned() })
    }

    /// NCCL reads nothing that is longer.
    fn limits(&self) -> Result<(), TopologyError> {
        for element in self.document.descendants().filter(Node::is_element) {
            let name = element.tag_name().name();
            if element.attributes().len() > ATTRIBUTES_MAX {
                let what = format!("<{name}> has more than {ATTRIBUTES_MAX} attributes");
                return self.wrong(element, what, "NCCL reads no more: leave some out");
            }
            if let Some(long) = element.attributes().find(|value| value.value().len() > VALUE_MAX) {
                let what = format!("{} of <{name}> is longer than {VALUE_MAX} characters", long.name());
                return self.wrong(element, what, "NCCL reads no more: shorten it");
            }
            if element.children().filter(Node::is_element).count() > CHILDREN_MAX {
                let what = format!("<{name}> has more than {CHILDREN_MAX} elements in it");
                return self.wrong(element, what, "NCCL reads no more: leave some out");
            }
        }
        Ok(())
    }

    fn system(&self, parts: &mut Parts) -> Result<(), TopologyError> {
        let root = self.document.root_element();
        if root.tag_name().name() != "system" {
            let what = format!("the file begins with <{}>, not <system>", root.tag_name().name());
            return self.wrong(root, what, "a topology is one <system version=\"1\"> with <cpu>s in it");
        }
        let version: u32 = self.number(root, "version", None)?;
        if version != VERSION {
            let what = format!("version {version} of the format is not known");
            return self.wrong(root, what, "NCCL writes version 1");
        }
        for cpu in named(root, "cpu") {
            self.cpu(cpu, parts)?;
        }
        if parts.cpus.is_empty() {
            return self.wrong(
                root,
                "there is no <cpu>".into(),
                "GPUs and NICs are inside the <cpu> they hang on",
            );
        }
        if parts.gpus.is_empty() && parts.nics.is_empty() {
            return self.wrong(
                root,
                "there are no GPUs and no NICs".into(),
                "a GPU is <pci busid=\"…\" class=\"0x030200\"><gpu dev=\"0\" sm=\"90\"/></pci>",
            );
        }
        Ok(())
    }

    fn cpu(&self, element: Element<'a>, parts: &mut Parts) -> Result<(), TopologyError> {
        self.number::<i32>(element, "numaid", None)?;
        let name = self.text(element, "arch", "write arch=\"x86_64\", \"arm64\" or \"ppc64\"")?;
        let Some((_, architecture)) = ARCHITECTURES.iter().find(|(known, _)| *known == name) else {
            let what = format!("no architecture is called \"{name}\"");
            return self.wrong(element, what, "write arch=\"x86_64\", \"arm64\" or \"ppc64\"");
        };
        let vendor = match element.attribute("vendor").map(str::trim) {
            Some("GenuineIntel") => Vendor::Intel,
            Some("AuthenticAMD") => Vendor::Amd,
            Some("CentaurHauls" | "Shanghai") => Vendor::Zhaoxin,
            _ => Vendor::Other,
        };
        let (family, model) = match architecture {
            Architecture::X86 => {
                (self.number(element, "familyid", None)?, self.number(element, "modelid", None)?)
            }
            _ => (self.number(element, "familyid", Some(0))?, self.number(element, "modelid", Some(0))?),
        };
        let cpu = parts.cpus.len();
        let hash = element.attribute("host_hash").unwrap_or("").to_owned();
        let host = parts.hosts.iter().position(|known| *known == hash).unwrap_or(parts.hosts.len());
        if host == parts.hosts.len() {
            parts.hosts.push(hash);
        }
        parts.cpus.push(CpuPart {
            host,
            processor: Processor { architecture: *architecture, vendor, family, model },
        });
        for (number, child) in element.children().filter(Node::is_element).enumerate() {
            match child.tag_name().name() {
                "pci" => self.pci(child, Parent::Cpu(cpu, number as u8), cpu, parts)?,
                "nic" => self.nic(child, None, cpu, parts)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn pci(
        &self,
        element: Element<'a>,
        parent: Parent,
        cpu: usize,
        parts: &mut Parts,
    ) -> Result<(), TopologyError> {
        let help = "a device on PCIe has busid=\"0000:17:00.0\" and class=\"0x030200\"";
        self.text(element, "busid", help)?;
        let class = self.text(element, "class", help)?;
        let bus = self.bus(element, parent)?;
        let children: Vec<_> = element.children().filter(Node::is_element).collect();
        for gpu in children.iter().filter(|child| child.tag_name().name() == "gpu") {
            let part = self.gpu(*gpu, element, bus, cpu, parts)?;
            parts.gpus.push(part);
        }
        for nic in children.iter().filter(|child| child.tag_name().name() == "nic") {
            self.nic(*nic, Some(bus), cpu, parts)?;
        }
        let below = || children.iter().filter(|child| child.tag_name().name() == "pci");
        if below().next().is_some() {
            let switch = parts.switches.len();
            parts.switches.push(bus);
            for child in below() {
                self.pci(*child, Parent::Switch(switch), cpu, parts)?;
            }
        } else if class.starts_with("0x0108") {
            parts.drives.push(bus);
        }
        Ok(())
    }

    /// The link of a device to what it hangs on. As NCCL does: 16 lanes where the file has none, the third generation
    /// where it does not know the speed.
    fn bus(&self, element: Element<'a>, parent: Parent) -> Result<Bus, TopologyError> {
        let lanes: u8 = self.number(element, "link_width", Some(16))?;
        let speed = element.attribute("link_speed").unwrap_or("");
        let number =
            |text: &str| text.split_whitespace().next().map(|word| word.trim_end_matches(".0").to_owned());
        let known = SPEEDS.iter().position(|known| number(known) == number(speed));
        let generation = known.map_or(3, |place| place as u8 + 1);
        Ok(Bus { parent, generation, lanes: if lanes == 0 { 16 } else { lanes } })
    }

    fn gpu(
        &self,
        element: Element<'a>,
        pci: Element<'a>,
        bus: Bus,
        cpu: usize,
        parts: &Parts,
    ) -> Result<GpuPart, TopologyError> {
        let dev = self.number(element, "dev", None)?;
        let capability: u16 = self.number(element, "sm", None)?;
        let busid = pci.attribute("busid").unwrap_or("").to_ascii_lowercase();
        if parts.gpus.iter().any(|other| other.busid == busid) {
            let what = format!("two GPUs have the bus id {busid}");
            return self.wrong(pci, what, "bus ids tell devices apart: give each its own");
        }
        let mut part = GpuPart {
            order: (parts.cpus[cpu].host, dev),
            bus,
            busid,
            kind: gpu_kind(pci.attribute("device"), capability),
            capability,
            chips: BTreeSet::new(),
            switch_links: 0,
            peers: Vec::new(),
            cpu_links: 0,
            c2c: None,
            cpu,
        };
        for nvlink in named(element, "nvlink") {
            let help = "an NVLink has target=\"0000:18:00.0\", count=\"1\" and the tclass of its target";
            let target = self.text(nvlink, "target", help)?.to_ascii_lowercase();
            let class = self.text(nvlink, "tclass", help)?;
            let count: u16 = self.number(nvlink, "count", None)?;
            match class {
                CLASS_NVSWITCH => {
                    part.chips.insert(target);
                    part.switch_links = self.more_links(nvlink, part.switch_links, count)?;
                }
                _ if class.starts_with("0x03") => part.peers.push((target, count)),
                _ => part.cpu_links = self.more_links(nvlink, part.cpu_links, count)?,
            }
        }
        if let Some(c2c) = named(element, "c2c").next() {
            let (megabytes, count): (u64, u64) =
                (self.number(c2c, "bw", None)?, self.number(c2c, "count", None)?);
            part.c2c = Some(Rate::mbps(megabytes.saturating_mul(count).saturating_mul(8)));
        }
        Ok(part)
    }

    /// So many links of a GPU, and more of them.
    fn more_links(&self, nvlink: Element<'a>, links: u16, more: u16) -> Result<u16, TopologyError> {
        match links.checked_add(more) {
            Some(links) => Ok(links),
            None => {
                let what = format!("a GPU with more than {} NVLinks", u16::MAX);
                self.wrong(
                    nvlink,
                    what,
                    "count is how many links there are to the target: 18 at most, as GPUs are sold",
                )
            }
        }
    }

    fn nic(
        &self,
        element: Element<'a>,
        bus: Option<Bus>,
        cpu: usize,
        parts: &mut Parts,
    ) -> Result<(), TopologyError> {
        for net in named(element, "net") {
            let name = self.text(net, "name", "a port of a NIC has a name, such as name=\"mlx5_0\"")?;
            let dev = self.number(net, "dev", Some(parts.nics.len() as u32))?;
            let megabits: i64 = self.number(net, "speed", Some(0))?;
            // NCCL takes ports without a speed for ports of 10 Gbit/s.
            let megabits = if megabits <= 0 { 10_000 } else { megabits as u64 };
            let latency: f64 = self.number(net, "latency", Some(0.0))?;
            let host = parts.cpus[cpu].host;
            let is_taken = parts.nics.iter().any(|other| other.name == name && other.order.0 == host);
            if is_taken {
                let what = format!("two NICs are called {name}");
                return self.wrong(net, what, "names tell NICs apart: give each its own");
            }
            parts.nics.push(NicPart {
                order: (host, dev),
                bus,
                cpu,
                name: name.to_owned(),
                kind: DeviceKind::Nic {
                    rate: Rate::mbps(megabits),
                    role: if net.attribute("keep") == Some("0") {
                        NicRole::Storage
                    } else {
                        NicRole::Compute
                    },
                    gpudirect: self.number::<u8>(net, "gdr", Some(0))? != 0,
                    latency: Span::from_ns((latency.clamp(0.0, 1e6) * 1000.0) as u64),
                },
            });
        }
        Ok(())
    }

    fn text(&self, element: Element<'a>, key: &str, help: &str) -> Result<&'a str, TopologyError> {
        match element.attribute(key) {
            Some(value) => Ok(value),
            None => self.wrong(element, format!("<{}> has no {key}", element.tag_name().name()), help),
        }
    }

    fn number<T: std::str::FromStr>(
        &self,
        element: Element<'a>,
        key: &str,
        default: Option<T>,
    ) -> Result<T, TopologyError> {
        let name = element.tag_name().name();
        let Some(text) = element.attribute(key) else {
            return match default {
                Some(value) => Ok(value),
                None => self.wrong(
                    element,
                    format!("<{name}> has no {key}"),
                    &format!("write {key}=\"…\", a number"),
                ),
            };
        };
        match text.trim().parse() {
            Ok(value) => Ok(value),
            Err(_) => {
                let what = format!("{key}=\"{text}\" of <{name}> is not a number that fits");
                self.wrong(element, what, "write it as a plain number")
            }
        }
    }
}

/// The GPU with this PCIe id, else one that has its compute capability, else the nearest older one under another name.
fn gpu_kind(device: Option<&str>, capability: u16) -> DeviceKind {
    let known = device.and_then(|device| GPU_IDS.iter().find(|(id, _)| *id == device));
    let mut kind =
        known.and_then(|(_, model)| catalogue::gpu(model)).unwrap_or_else(|| catalogue::gpu_like(capability));
    if let DeviceKind::Gpu { model, compute_capability, .. } = &mut kind {
        if *compute_capability != capability {
            *model = format!("GPU of compute capability {}.{}", capability / 10, capability % 10);
        }
        *compute_capability = capability;
    }
    kind
}

impl Parts {
    /// The server: GPUs and NICs in the order of their numbers.
    fn build(mut self, name: &str) -> Host {
        let mut host = Host::new(name);
        let cpus: Vec<_> = self
            .cpus
            .iter()
            .enumerate()
            .map(|(id, cpu)| {
                let kind = DeviceKind::Cpu { socket: id as u8, processor: cpu.processor };
                host.add(format!("CPU{id}"), kind)
            })
            .collect();
        for (id, cpu) in self.cpus.iter().enumerate() {
            let rate = cpu.processor.socket_bandwidth();
            for (other, _) in
                self.cpus.iter().enumerate().skip(id + 1).filter(|(_, other)| other.host == cpu.host)
            {
                host.join(cpus[id], cpus[other], HostLinkKind::Socket, rate, rate);
            }
        }
        let switches: Vec<_> = (0..self.switches.len())
            .map(|id| host.add(format!("PCI{id}"), DeviceKind::PciSwitch { two_levels: false }))
            .collect();
        let place = |parent: Parent| match parent {
            Parent::Cpu(cpu, bridge) => (cpus[cpu], Some(bridge)),
            Parent::Switch(switch) => (switches[switch], None),
        };
        for (switch, bus) in switches.iter().zip(&self.switches) {
            join(&mut host, place(bus.parent), *switch, *bus);
        }
        self.gpus.sort_by_key(|gpu| gpu.order);
        self.nics.sort_by_key(|nic| nic.order);
        self.add_gpus(&mut host, &cpus, place);
        for nic in &self.nics {
            let tray = nic.order.0;
            let is_taken = host.find(&nic.name).is_some();
            let name = if is_taken { format!("tray{tray}.{}", nic.name) } else { nic.name.clone() };
            let device = host.add(name, nic.kind.clone());
            match nic.bus {
                Some(bus) => join(&mut host, place(bus.parent), device, bus),
                None => {
                    let kind = HostLinkKind::RootPort { generation: 6, lanes: 16, bridge: u8::MAX };
                    host.join(cpus[nic.cpu], device, kind, LOCAL, LOCAL);
                }
            }
        }
        for (id, bus) in self.drives.iter().enumerate() {
            let drive = host.add(format!("nvme{id}"), DeviceKind::Nvme);
            join(&mut host, place(bus.parent), drive, *bus);
        }
        host
    }

    fn add_gpus(&self, host: &mut Host, cpus: &[DeviceId], place: impl Fn(Parent) -> (DeviceId, Option<u8>)) {
        let chips: BTreeSet<_> = self.gpus.iter().flat_map(|gpu| &gpu.chips).collect();
        let capability = self.gpus.iter().map(|gpu| gpu.capability).min().unwrap_or(0);
        // NVLink switches reduce since Hopper.
        let kind = DeviceKind::NvSwitch { chips: chips.len().min(255) as u8, reduces: capability >= 90 };
        let nvswitch = (!chips.is_empty()).then(|| host.add("NVSwitch", kind));
        let mut by_busid: BTreeMap<&str, DeviceId> = BTreeMap::new();
        for (id, gpu) in self.gpus.iter().enumerate() {
            let device = host.add(format!("GPU{id}"), gpu.kind.clone());
            by_busid.insert(&gpu.busid, device);
            match gpu.c2c {
                Some(rate) => host.join(cpus[gpu.cpu], device, HostLinkKind::C2c, rate, rate),
                None => join(host, place(gpu.bus.parent), device, gpu.bus),
            }
            let to_switch = nvswitch.map(|nvswitch| (nvswitch, gpu.switch_links));
            let to_cpu = Some((cpus[gpu.cpu], gpu.cpu_links));
            for (target, links) in [to_switch, to_cpu].into_iter().flatten().filter(|(_, links)| *links > 0) {
                join_nvlinks(host, device, target, links, gpu.capability);
            }
        }
        let mut joined: BTreeSet<(DeviceId, DeviceId)> = BTreeSet::new();
        for gpu in &self.gpus {
            let device = by_busid[gpu.busid.as_str()];
            for (target, links) in &gpu.peers {
                // A file may be about some of the GPUs of a server.
                let Some(peer) = by_busid.get(target.as_str()) else { continue };
                if *peer != device && joined.insert((device.min(*peer), device.max(*peer))) {
                    join_nvlinks(host, device, *peer, *links, gpu.capability);
                }
            }
        }
    }
}

fn join_nvlinks(host: &mut Host, a: DeviceId, b: DeviceId, links: u16, capability: u16) {
    let (usable, line) = nvlink_megabits(capability);
    let rate = |each: u64| Rate::mbps(each * u64::from(links));
    host.join(a, b, HostLinkKind::NvLink { links }, rate(usable), rate(line));
}

fn join(host: &mut Host, (parent, bridge): (DeviceId, Option<u8>), device: DeviceId, bus: Bus) {
    host.join_pcie(parent, device, bus.generation, bus.lanes, bridge);
}

fn named<'a>(element: Element<'a>, name: &'static str) -> impl Iterator<Item = Element<'a>> {
    element.children().filter(move |child| child.is_element() && child.tag_name().name() == name)
}
