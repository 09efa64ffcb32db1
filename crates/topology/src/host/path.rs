//! How two devices of a server reach each other.
//!
//! The search is NCCL's (graph/paths.cc): the path with the fewest links, and of those the one that carries most;
//! data passes through another GPU only over NVLink and only once.

use std::fmt;

use railnet_core::Rate;

use super::{DeviceId, DeviceKind, Host, HostLink, HostLinkKind};

/// The kinds of paths NCCL tells apart, nearest first; `NCCL_P2P_LEVEL` and `NCCL_NET_GDR_LEVEL` use these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathType {
    /// The device itself.
    Loc = 0,
    /// NVLink, switched or not.
    Nvl = 1,
    /// NVLink by way of another GPU.
    Nvb = 2,
    /// The coherent link of a GPU and a CPU in one package.
    C2c = 3,
    /// One PCIe switch.
    Pix = 4,
    /// Several PCIe switches, no CPU.
    Pxb = 5,
    /// The coherent link to the CPU, then PCIe from there.
    P2c = 6,
    /// NVLink to a GPU that is near the NIC, PCIe from there.
    Pxn = 7,
    /// Through a CPU.
    Phb = 8,
    /// From one NUMA node to another.
    Sys = 9,
    /// Over the network.
    Net = 10,
    /// Not at all.
    Dis = 11,
}

impl PathType {
    /// All of them, nearest first.
    pub const ALL: [Self; 12] = [
        Self::Loc,
        Self::Nvl,
        Self::Nvb,
        Self::C2c,
        Self::Pix,
        Self::Pxb,
        Self::P2c,
        Self::Pxn,
        Self::Phb,
        Self::Sys,
        Self::Net,
        Self::Dis,
    ];

    /// NCCL's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
            Self::Net => "NET",
            Self::Dis => "DIS",
        }
    }
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What NCCL gives a device's path to itself: 5,000 GB/s, more than any link.
const LOCAL: Rate = Rate::gbps(5_000 * 8);

/// A way from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What kind it is.
    pub kind: PathType,
    /// What its narrowest part carries; the network port of a NIC counts as part of it. Zero where there is no way.
    pub bandwidth: Rate,
    /// The devices on it, both ends included; empty where there is no way.
    pub devices: Vec<DeviceId>,
}

impl Path {
    fn none() -> Self {
        Self { kind: PathType::Dis, bandwidth: Rate::ZERO, devices: Vec::new() }
    }
}

/// What the search knows of a device it has reached.
#[derive(Clone, Copy)]
struct Reached {
    kind: PathType,
    bandwidth: Rate,
    links: u32,
    from: DeviceId,
}

impl Host {
    /// How `a` reaches `b`.
    pub fn path(&self, a: DeviceId, b: DeviceId) -> Path {
        self.path_over(a, b, |_| true)
    }

    /// How `a` reaches every device, in their order.
    pub fn paths_from(&self, a: DeviceId) -> Vec<Path> {
        let reached = self.search(a, |_| true);
        (0..self.devices.len() as u32).map(|b| self.path_in(&reached, a, DeviceId(b))).collect()
    }

    /// Groups of devices that are joined by more than NVLink: the trays of a rack. The group of each device, from 0.
    pub fn trays(&self) -> Vec<u32> {
        let mut tray = vec![u32::MAX; self.devices.len()];
        let mut count = 0;
        for device in 0..self.devices.len() {
            if tray[device] != u32::MAX || matches!(self.devices[device].kind, DeviceKind::NvSwitch { .. }) {
                continue;
            }
            let reached = self.search(DeviceId(device as u32), |link| !is_nvlink(link));
            for (other, reached) in reached.iter().enumerate() {
                if reached.is_some() && tray[other] == u32::MAX {
                    tray[other] = count;
                }
            }
            count += 1;
        }
        tray
    }

    /// How a GPU reaches a NIC when it may hand data to a GPU that is nearer to it (PXN): its own path unless that
    /// crosses a CPU and another GPU, reached over NVLink, has one that does not.
    pub fn path_with_pxn(&self, gpu: DeviceId, nic: DeviceId) -> Path {
        let direct = self.path(gpu, nic);
        if direct.kind <= PathType::P2c {
            return direct;
        }
        let mut best: Option<Path> = None;
        for peer in self.gpus().into_iter().filter(|peer| *peer != gpu) {
            let (first, second) = (self.path(gpu, peer), self.path(peer, nic));
            if first.kind > PathType::Nvl || second.kind > PathType::P2c {
                continue;
            }
            let bandwidth = first.bandwidth.min(second.bandwidth);
            if best.as_ref().is_none_or(|best| bandwidth > best.bandwidth) {
                let devices = first.devices.into_iter().chain(second.devices.into_iter().skip(1)).collect();
                best = Some(Path { kind: PathType::Pxn, bandwidth, devices });
            }
        }
        best.unwrap_or(direct)
    }

    /// What each GPU sends through the NIC that carries most of it, by way of another GPU where [`Host::path_with_pxn`] has it so.
    pub fn rates_to_nics(&self) -> Vec<Rate> {
        let (gpus, nics) = (self.gpus(), self.compute_nics());
        let from: Vec<Vec<Path>> = gpus.iter().map(|gpu| self.paths_from(*gpu)).collect();
        let best = |place: usize| {
            let through = |nic: &DeviceId| {
                let direct = &from[place][nic.0 as usize];
                if direct.kind <= PathType::P2c {
                    return direct.bandwidth;
                }
                let helpers = gpus.iter().zip(&from).filter_map(|(peer, onwards)| {
                    let (first, second) = (&from[place][peer.0 as usize], &onwards[nic.0 as usize]);
                    let helps = first.kind == PathType::Nvl && second.kind <= PathType::P2c;
                    helps.then(|| first.bandwidth.min(second.bandwidth))
                });
                helpers.max().unwrap_or(direct.bandwidth)
            };
            nics.iter().map(through).max().unwrap_or(Rate::ZERO)
        };
        (0..gpus.len()).map(best).collect()
    }

    /// The NICs for traffic between GPUs that are nearest to a GPU: of the best kind of path, those that carry most.
    pub fn nearest_nics(&self, gpu: DeviceId) -> Vec<DeviceId> {
        let mut all = self.paths_from(gpu);
        let take = |nic: DeviceId| (nic, std::mem::replace(&mut all[nic.0 as usize], Path::none()));
        let paths: Vec<_> = self.compute_nics().into_iter().map(take).collect();
        let rank = |path: &Path| (path.kind, std::cmp::Reverse(path.bandwidth));
        let Some(best) = paths.iter().map(|(_, path)| rank(path)).min() else { return Vec::new() };
        paths.iter().filter(|(_, path)| rank(path) == best).map(|(nic, _)| *nic).collect()
    }

    /// The NUMA node a device hangs on: its number among [`Host::cpus`].
    pub fn numa_of(&self, device: DeviceId) -> Option<u32> {
        let reached = self.search(device, |link| !matches!(link.kind, HostLinkKind::NvLink { .. }));
        let cpus = self.cpus().into_iter().enumerate();
        let near = cpus.filter_map(|(number, cpu)| Some((reached[cpu.0 as usize]?.links, number)));
        near.min().map(|(_, number)| number as u32)
    }

    /// How `a` reaches `b` over the links that `usable` allows.
    pub(super) fn path_over(&self, a: DeviceId, b: DeviceId, usable: impl Fn(&HostLink) -> bool) -> Path {
        self.path_in(&self.search(a, usable), a, b)
    }

    /// The path from `a` to `b`, where this is all that `a` reaches.
    fn path_in(&self, reached: &[Option<Reached>], a: DeviceId, b: DeviceId) -> Path {
        let Some(Some(end)) = reached.get(b.0 as usize) else { return Path::none() };
        let mut devices = vec![b];
        let mut at = b;
        while at != a {
            let Some(step) = reached[at.0 as usize] else { return Path::none() };
            at = step.from;
            devices.push(at);
        }
        devices.reverse();
        let mut bandwidth = end.bandwidth;
        for device in [a, b] {
            if let (DeviceKind::Nic { rate, .. }, true) = (&self.device(device).kind, a != b) {
                bandwidth = bandwidth.min(*rate);
            }
        }
        Path { kind: end.kind, bandwidth, devices }
    }

    /// Everything that `base` reaches, layer by layer.
    fn search(&self, base: DeviceId, usable: impl Fn(&HostLink) -> bool) -> Vec<Option<Reached>> {
        let mut reached = vec![None; self.devices.len()];
        let Some(start) = reached.get_mut(base.0 as usize) else { return reached };
        *start = Some(Reached { kind: PathType::Loc, bandwidth: LOCAL, links: 0, from: base });
        let mut layer = vec![base];
        while !layer.is_empty() {
            let mut next: Vec<DeviceId> = Vec::new();
            for at in layer {
                let Some(here) = reached[at.0 as usize] else { continue };
                for (link, peer) in self.links_of(at).filter(|(link, _)| usable(link)) {
                    if !self.may_pass(base, at, peer, link, here.links) {
                        continue;
                    }
                    let candidate = Reached {
                        kind: self.kind_after(here, at, peer, link),
                        bandwidth: here.bandwidth.min(link.bandwidth),
                        links: here.links + 1,
                        from: at,
                    };
                    let place = &mut reached[peer.0 as usize];
                    let better = place.is_none_or(|known: Reached| {
                        known.links == candidate.links && candidate.bandwidth > known.bandwidth
                    });
                    if better {
                        *place = Some(candidate);
                        next.push(peer);
                    }
                }
            }
            next.sort_unstable();
            next.dedup();
            layer = next;
        }
        reached
    }

    fn links_of(&self, device: DeviceId) -> impl Iterator<Item = (&HostLink, DeviceId)> {
        self.links.iter().filter_map(move |link| match link.ends {
            [here, there] if here == device => Some((link, there)),
            [there, here] if here == device => Some((link, there)),
            _ => None,
        })
    }

    /// Whether data from `base` may go on from `at` to `peer`.
    fn may_pass(&self, base: DeviceId, at: DeviceId, peer: DeviceId, link: &HostLink, links: u32) -> bool {
        let is_gpu = |device: DeviceId| matches!(self.device(device).kind, DeviceKind::Gpu { .. });
        if at == base {
            return true;
        }
        match self.device(at).kind {
            DeviceKind::Gpu { .. } => {
                links == 1
                    && is_gpu(base)
                    && is_gpu(peer)
                    && matches!(link.kind, HostLinkKind::NvLink { .. })
                    && self.links_of(at).any(|(first, from)| from == base && is_nvlink(first))
            }
            DeviceKind::NvSwitch { .. } => is_gpu(base) && is_gpu(peer),
            DeviceKind::Nic { .. } | DeviceKind::Nvme => false,
            DeviceKind::PciSwitch { .. } | DeviceKind::Cpu { .. } => true,
        }
    }

    /// The kind of a path that goes on from `at` to `peer`.
    fn kind_after(&self, here: Reached, at: DeviceId, peer: DeviceId, link: &HostLink) -> PathType {
        let is_switch = |device: DeviceId| matches!(self.device(device).kind, DeviceKind::PciSwitch { .. });
        let kind = match link.kind {
            HostLinkKind::NvLink { .. } => {
                let over_gpu = here.links > 0 && matches!(self.device(at).kind, DeviceKind::Gpu { .. });
                if over_gpu { PathType::Nvb } else { PathType::Nvl }
            }
            HostLinkKind::C2c => PathType::C2c,
            HostLinkKind::Pcie { .. } if is_switch(at) && is_switch(peer) => PathType::Pxb,
            HostLinkKind::Pcie { .. } => PathType::Pix,
            HostLinkKind::RootPort { .. } if here.kind == PathType::C2c => PathType::P2c,
            HostLinkKind::RootPort { .. } => PathType::Phb,
            HostLinkKind::Socket => PathType::Sys,
        };
        if link.kind == HostLinkKind::C2c && here.kind == PathType::Phb {
            // The same way back: PCIe to the CPU, then the coherent link.
            return PathType::P2c;
        }
        here.kind.max(kind)
    }
}

fn is_nvlink(link: &HostLink) -> bool {
    matches!(link.kind, HostLinkKind::NvLink { .. })
}
