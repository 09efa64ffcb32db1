//! A server as a description: GPUs, NVLink, PCIe switches, NUMA nodes, NICs, drives, and the links between them.
//!
//! [`Host::path`] answers how two devices reach each other, in the words NCCL uses ([`PathType`]) and with the
//! bandwidth of the narrowest link. [`topo_matrix`] prints all of it the way `nvidia-smi topo -m` does.
//!
//! ```
//! use railnet_topology::host::PathType;
//!
//! let host = railnet_topology::catalogue::host("dgx-h100").expect("it is in the catalogue");
//! let (gpus, nics) = (host.gpus(), host.compute_nics());
//! assert_eq!(host.path(gpus[0], gpus[7]).kind, PathType::Nvl);
//! assert_eq!(host.path(gpus[0], nics[0]).kind, PathType::Pix);
//! assert_eq!(host.path(gpus[0], nics[4]).kind, PathType::Sys);
//! assert_eq!(host.path_with_pxn(gpus[0], nics[4]).kind, PathType::Pxn);
//! ```

mod damage;
mod matrix;
mod path;
mod processor;
#[cfg(test)]
mod tests;

use railnet_core::{Bytes, Rate, Span};

use crate::catalogue::Compute;

pub use damage::DamageError;
pub use matrix::topo_matrix;
pub use path::{Path, PathType};
pub use processor::{Architecture, Processor, Vendor};

/// A server: devices and the links between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// What it is called.
    pub name: String,
    /// What is in it.
    pub devices: Vec<Device>,
    /// What joins it.
    pub links: Vec<HostLink>,
}

/// A device of a server, by its place in [`Host::devices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Something that links end at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What reports call it: `GPU0`, `mlx5_3`.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU.
    Gpu {
        /// Its model: `H100 SXM5`.
        model: String,
        /// Its memory.
        memory: Bytes,
        /// How fast that memory is.
        memory_bandwidth: Rate,
        /// Its compute capability without the point: 80, 90, 100. NCCL's numbers depend on it.
        compute_capability: u16,
        /// How fast it computes, where that is known.
        compute: Option<Compute>,
    },
    /// The NVLink switches of a domain, taken as one as NCCL does.
    NvSwitch {
        /// How many chips they are.
        chips: u8,
        /// Whether they multicast and reduce (NVLS).
        reduces: bool,
    },
    /// A PCIe switch.
    PciSwitch {
        /// Whether software sees two levels of bridges in it. `nvidia-smi` then says PXB where one switch is crossed;
        /// NCCL flattens such switches and says PIX.
        two_levels: bool,
    },
    /// A NUMA node: cores, memory and the root of PCIe trees.
    Cpu {
        /// The socket it is part of.
        socket: u8,
        /// What processor it is.
        processor: Processor,
    },
    /// A port of a NIC.
    Nic {
        /// What its link to the network carries.
        rate: Rate,
        /// What it is there for.
        role: NicRole,
        /// Whether it reads and writes the memory of GPUs by itself.
        gpudirect: bool,
        /// What a message takes besides its bytes, as far as the NIC's driver tells NCCL. Most tell nothing: zero.
        latency: Span,
    },
    /// A solid-state drive.
    Nvme,
}

/// What a NIC is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NicRole {
    /// Traffic between GPUs: a rail.
    Compute,
    /// Storage and management.
    Storage,
}

/// A link inside a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// What it joins.
    pub ends: [DeviceId; 2],
    /// What it is.
    pub kind: HostLinkKind,
    /// What each direction carries in practice: the number NCCL calculates with.
    pub bandwidth: Rate,
    /// What each direction carries according to its data sheet.
    pub line_rate: Rate,
}

impl HostLink {
    /// Its generation and width, where it is PCIe.
    pub const fn pcie(&self) -> Option<(u8, u8)> {
        match self.kind {
            HostLinkKind::Pcie { generation, lanes } | HostLinkKind::RootPort { generation, lanes, .. } => {
                Some((generation, lanes))
            }
            _ => None,
        }
    }
}

/// What a link inside a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLinkKind {
    /// NVLinks, bundled.
    NvLink {
        /// NVLinks between the two.
        links: u16,
    },
    /// The coherent link between a GPU and a CPU in one package.
    C2c,
    /// PCIe below a switch.
    Pcie {
        /// 3, 4, 5, 6.
        generation: u8,
        /// Its width.
        lanes: u8,
    },
    /// PCIe between a CPU and what hangs on it.
    RootPort {
        /// 3, 4, 5, 6.
        generation: u8,
        /// Its width.
        lanes: u8,
        /// The host bridge of that CPU which the port belongs to.
        bridge: u8,
    },
    /// Between NUMA nodes: UPI, xGMI or the fabric of one socket.
    Socket,
}

/// Why a description is not a usable server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A link refers to a device that is not there.
    #[error("link {link} of {host} ends at device {device}, which does not exist")]
    UnknownDevice {
        /// The server.
        host: String,
        /// The link's place in the list.
        link: u32,
        /// The device it refers to.
        device: u32,
    },
    /// A link from a device to itself.
    #[error("{device} of {host} is linked to itself")]
    SelfLink {
        /// The server.
        host: String,
        /// The device.
        device: String,
    },
    /// A link that carries nothing.
    #[error("the link {a} - {b} of {host} has a bandwidth of zero")]
    ZeroBandwidth {
        /// The server.
        host: String,
        /// One end.
        a: String,
        /// The other.
        b: String,
    },
    /// Two devices cannot be told apart.
    #[error("{host} has two devices called {device}")]
    DuplicateName {
        /// The server.
        host: String,
        /// The name.
        device: String,
    },
    /// A device that nothing reaches.
    #[error("nothing leads to {device} of {host}")]
    Unlinked {
        /// The server.
        host: String,
        /// The device.
        device: String,
    },
}

impl Host {
    /// An empty server.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a device.
    pub fn add(&mut self, name: impl Into<String>, kind: DeviceKind) -> DeviceId {
        self.devices.push(Device { name: name.into(), kind });
        DeviceId(self.devices.len() as u32 - 1)
    }

    /// Joins two devices.
    pub fn join(&mut self, a: DeviceId, b: DeviceId, kind: HostLinkKind, bandwidth: Rate, line_rate: Rate) {
        self.links.push(HostLink { ends: [a, b], kind, bandwidth, line_rate });
    }

    /// Joins two devices by PCIe; a port of a CPU names its host bridge.
    pub fn join_pcie(&mut self, a: DeviceId, b: DeviceId, generation: u8, lanes: u8, bridge: Option<u8>) {
        let kind = match bridge {
            Some(bridge) => HostLinkKind::RootPort { generation, lanes, bridge },
            None => HostLinkKind::Pcie { generation, lanes },
        };
        self.join(a, b, kind, pcie_bandwidth(generation, lanes), pcie_line_rate(generation, lanes));
    }

    /// A device by its id, which must exist.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.0 as usize]
    }

    /// The device of that name.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.devices.iter().position(|device| device.name == name).map(|id| DeviceId(id as u32))
    }

    /// The GPUs, in order.
    pub fn gpus(&self) -> Vec<DeviceId> {
        self.of_kind(|kind| matches!(kind, DeviceKind::Gpu { .. }))
    }

    /// The ports of NICs, in order.
    pub fn nics(&self) -> Vec<DeviceId> {
        self.of_kind(|kind| matches!(kind, DeviceKind::Nic { .. }))
    }

    /// The ports of NICs that carry traffic between GPUs, in order: the rails.
    pub fn compute_nics(&self) -> Vec<DeviceId> {
        self.of_kind(|kind| matches!(kind, DeviceKind::Nic { role: NicRole::Compute, .. }))
    }

    /// The NUMA nodes, in order.
    pub fn cpus(&self) -> Vec<DeviceId> {
        self.of_kind(|kind| matches!(kind, DeviceKind::Cpu { .. }))
    }

    /// The NVLinks of a device, wherever they lead.
    pub fn nvlinks(&self, device: DeviceId) -> u32 {
        let of_device = self.links.iter().filter(|link| link.ends.contains(&device));
        of_device
            .map(|link| match link.kind {
                HostLinkKind::NvLink { links } => u32::from(links),
                _ => 0,
            })
            .sum()
    }

    /// Compute capability of the oldest GPU, by which NCCL picks its numbers; `None` without GPUs.
    pub fn compute_capability(&self) -> Option<u16> {
        let capabilities = self.devices.iter().filter_map(|device| match device.kind {
            DeviceKind::Gpu { compute_capability, .. } => Some(compute_capability),
            _ => None,
        });
        capabilities.min()
    }

    /// The processor of the first NUMA node, which NCCL takes for that of the server.
    pub fn processor(&self) -> Option<Processor> {
        self.devices.iter().find_map(|device| match device.kind {
            DeviceKind::Cpu { processor, .. } => Some(processor),
            _ => None,
        })
    }

    /// Whether the GPUs share NVLink switches that multicast and reduce (NVLS).
    pub fn has_nvls(&self) -> bool {
        self.devices.iter().any(|device| matches!(device.kind, DeviceKind::NvSwitch { reduces: true, .. }))
    }

    /// The same with just these GPUs, by their number in it.
    #[must_use]
    pub fn with_gpus(&self, wanted: &[u32]) -> Self {
        let gpus = self.gpus();
        let wanted: Vec<DeviceId> = wanted.iter().map(|gpu| gpus[*gpu as usize]).collect();
        let stays = |device: &DeviceId| !gpus.contains(device) || wanted.contains(device);
        let mut small = Self::new(self.name.clone());
        let mut places = vec![None; self.devices.len()];
        for (place, device) in self.devices.iter().enumerate() {
            if stays(&DeviceId(place as u32)) {
                places[place] = Some(small.add(device.name.clone(), device.kind.clone()));
            }
        }
        for link in &self.links {
            if let [Some(a), Some(b)] = link.ends.map(|end| places[end.0 as usize]) {
                small.join(a, b, link.kind, link.bandwidth, link.line_rate);
            }
        }
        small
    }

    /// The same with NICs of this rate for the traffic between GPUs.
    #[must_use]
    pub fn with_nic_rate(mut self, wanted: Rate) -> Self {
        for device in &mut self.devices {
            if let DeviceKind::Nic { rate, role: NicRole::Compute, .. } = &mut device.kind {
                *rate = wanted;
            }
        }
        self
    }

    /// The drives, in order.
    pub fn drives(&self) -> Vec<DeviceId> {
        self.of_kind(|kind| matches!(kind, DeviceKind::Nvme))
    }

    fn of_kind(&self, wanted: impl Fn(&DeviceKind) -> bool) -> Vec<DeviceId> {
        let ids = self.devices.iter().enumerate().filter(|(_, device)| wanted(&device.kind));
        ids.map(|(id, _)| DeviceId(id as u32)).collect()
    }

    /// Whether names are unique, links join things that exist and carry something, and everything is linked.
    pub fn check(&self) -> Result<(), HostError> {
        let host = || self.name.clone();
        let mut linked = vec![false; self.devices.len()];
        for (id, link) in self.links.iter().enumerate() {
            for end in link.ends {
                let Some(place) = linked.get_mut(end.0 as usize) else {
                    return Err(HostError::UnknownDevice { host: host(), link: id as u32, device: end.0 });
                };
                *place = true;
            }
            let [a, b] = link.ends.map(|end| self.device(end).name.clone());
            if link.ends[0] == link.ends[1] {
                return Err(HostError::SelfLink { host: host(), device: a });
            }
            if link.bandwidth == Rate::ZERO {
                return Err(HostError::ZeroBandwidth { host: host(), a, b });
            }
        }
        let mut names: Vec<_> = self.devices.iter().map(|device| &device.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(HostError::DuplicateName { host: host(), device: pair[0].clone() });
        }
        match linked.iter().position(|linked| !linked) {
            Some(lost) if self.devices.len() > 1 => {
                Err(HostError::Unlinked { host: host(), device: self.devices[lost].name.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// What NCCL expects PCIe to carry: its table of per-lane speeds (15, 30, 60, 120, 240, 480 for generations 1 to 6)
/// times the width over 80, in GB/s (NCCL 2.30 graph/topo.cc).
pub fn pcie_bandwidth(generation: u8, lanes: u8) -> Rate {
    let per_lane = 15_u64 << generation.clamp(1, 6).saturating_sub(1);
    Rate::from_bps(per_lane * u64::from(lanes) * 1_000_000_000 * 8 / 80)
}

/// What PCIe carries after line coding: 8b/10b up to generation 2, 128b/130b up to 5, none to speak of in 6.
pub fn pcie_line_rate(generation: u8, lanes: u8) -> Rate {
    let megabits = match generation {
        0 | 1 => 2_000,
        2 => 4_000,
        3 => 8_000 * 128 / 130,
        4 => 16_000 * 128 / 130,
        5 => 32_000 * 128 / 130,
        _ => 64_000,
    };
    Rate::from_bps(megabits * 1_000_000 * u64::from(lanes))
}
