//! Faults inside servers: NVLinks that are down, PCIe that trained to less, NICs in the wrong slot.

use railnet_core::{Span, Time};
use railnet_topology::Cluster;
use railnet_topology::host::{DamageError, Host};

use super::faults::{FaultSection, order};
use super::{ClusterSection, Scenario, ScenarioError};

/// What is wrong with a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// NVLinks of one of its GPUs are down.
    NvLinks {
        /// The GPU, by its number in the server.
        gpu: u32,
        /// NVLinks that are down.
        down: u16,
    },
    /// PCIe of a device trained to less.
    Pcie {
        /// The device.
        device: Part,
        /// The generation, where that is less.
        generation: Option<u8>,
        /// The lanes, where those are fewer.
        lanes: Option<u8>,
    },
    /// A NIC is in the wrong slot.
    Slot {
        /// The NIC, by its number among those for traffic between GPUs.
        nic: u32,
    },
}

/// A device of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Gpu(u32),
    Nic(u32),
}

impl Part {
    /// What a report calls it, on the server with these first GPU and first port.
    fn words(self, [first_gpu, first_port]: [u32; 2]) -> String {
        match self {
            Self::Gpu(gpu) => format!("GPU {}", first_gpu + gpu),
            Self::Nic(nic) => format!("the NIC of port {}", first_port + nic),
        }
    }
}

impl Damage {
    /// Whether what it is about is part of a server.
    pub(crate) fn is_on(self, host: &Host) -> bool {
        match self {
            Self::NvLinks { gpu, .. } | Self::Pcie { device: Part::Gpu(gpu), .. } => {
                (gpu as usize) < host.gpus().len()
            }
            Self::Pcie { device: Part::Nic(_), .. } | Self::Slot { .. } => true,
        }
    }

    /// The server with this.
    pub(crate) fn on(self, host: &Host) -> Result<Host, DamageError> {
        match self {
            Self::NvLinks { gpu, down } => host.with_nvlinks_down(host.gpus()[gpu as usize], down),
            Self::Pcie { device, generation, lanes } => {
                let device = match device {
                    Part::Gpu(gpu) => host.gpus()[gpu as usize],
                    Part::Nic(nic) => host.compute_nics()[nic as usize],
                };
                host.with_pcie(device, generation, lanes)
            }
            Self::Slot { nic } => host.with_nic_elsewhere(host.compute_nics()[nic as usize]),
        }
    }

    /// What a report calls it, on the server with these first GPU and first port.
    pub(crate) fn words(self, first: [u32; 2]) -> String {
        match self {
            Self::NvLinks { gpu, down } => {
                let links = if down == 1 { "NVLink" } else { "NVLinks" };
                format!("{down} {links} of {} down", Part::Gpu(gpu).words(first))
            }
            Self::Pcie { device, generation, lanes } => {
                let generation = generation.map(|generation| format!("generation {generation}"));
                let lanes = lanes.map(|lanes| format!("x{lanes}"));
                let left: Vec<String> = generation.into_iter().chain(lanes).collect();
                format!("PCIe of {} trained down to {}", device.words(first), left.join(" "))
            }
            Self::Slot { nic } => {
                format!("{} in a slot of the wrong NUMA node", Part::Nic(nic).words(first))
            }
        }
    }
}

/// What is wrong with a server, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DamageSection {
    /// The server.
    pub(crate) node: u32,
    /// The damage.
    pub(crate) damage: Damage,
    /// From when on.
    pub(crate) at: Span,
    /// When it ends; never if `None`.
    pub(crate) until: Option<Span>,
}

impl DamageSection {
    /// Whether it is there as long as anything runs: then NCCL sees it when it looks at the server.
    pub(crate) fn is_standing(&self) -> bool {
        self.at == Span::ZERO && self.until.is_none()
    }
}

/// A link inside a server that becomes slow, or is itself again: what is left of its rate, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlowInside {
    pub(crate) at: Time,
    pub(crate) server: u32,
    /// Its place among the links of the server.
    pub(crate) link: u32,
    pub(crate) rate: u32,
}

impl Scenario {
    /// What a fault does to a server, where that is what it does.
    pub(crate) fn damage(&self, fault: &FaultSection) -> Result<Option<DamageSection>, ScenarioError> {
        let (part, at, until) = match fault {
            FaultSection::NvlinkDown { gpu, at, until, .. } => (self.part_of_gpu(*gpu)?, *at, *until),
            FaultSection::PcieDown { gpu: Some(gpu), host: None, at, until, .. } => {
                (self.part_of_gpu(*gpu)?, *at, *until)
            }
            FaultSection::PcieDown { gpu: None, host: Some(host), at, until, .. } => {
                (self.part_of_port(host)?, *at, *until)
            }
            FaultSection::PcieDown { .. } => {
                let message = "whose PCIe? Name a `gpu`, or the `host` of a NIC, not both";
                return Err(ScenarioError::new(message).at("kind"));
            }
            FaultSection::WrongNuma { host } => {
                (self.part_of_port(host)?, crate::written::Written(Span::ZERO), None)
            }
            _ => return Ok(None),
        };
        let _ = order(at, until)?;
        let (node, device) = part;
        let damage = match (fault, device) {
            (FaultSection::NvlinkDown { links, .. }, Part::Gpu(gpu)) => Damage::NvLinks { gpu, down: *links },
            (FaultSection::PcieDown { generation, lanes, .. }, _) => {
                Damage::Pcie { device, generation: *generation, lanes: *lanes }
            }
            (_, Part::Nic(nic) | Part::Gpu(nic)) => Damage::Slot { nic },
        };
        damage.on(self.servers()?.host_of(node)).map_err(|error| ScenarioError::new(error.to_string()))?;
        Ok(Some(DamageSection { node, damage, at: at.0, until: until.map(|until| until.0) }))
    }

    /// The server and the number in it of a GPU.
    fn part_of_gpu(&self, gpu: u32) -> Result<(u32, Part), ScenarioError> {
        let cluster = self.servers().map_err(|_| no_servers().at("gpu"))?;
        if gpu >= cluster.gpus() {
            return Err(no_gpu(gpu, cluster.gpus()));
        }
        let (node, gpu) = cluster.ranks().place(gpu);
        Ok((node, Part::Gpu(gpu)))
    }

    /// The server and the number in it of the NIC of a port.
    fn part_of_port(&self, host: &super::HostName) -> Result<(u32, Part), ScenarioError> {
        let port = host.find(&super::graph(self)?).map_err(|error| error.at("host"))?;
        let cluster = self.servers().map_err(|_| no_servers().at("host"))?;
        let (node, nic) = cluster.ports().place(port);
        Ok((node, Part::Nic(nic)))
    }

    /// All that is wrong with servers.
    fn damages(&self) -> Result<Vec<DamageSection>, ScenarioError> {
        let mut all = Vec::new();
        for (index, fault) in self.faults.iter().enumerate() {
            all.extend(self.damage(fault).map_err(|error| error.within(&format!("faults.{index}")))?);
        }
        Ok(all)
    }

    /// The servers behind the ports as they are from the start, where any are described.
    pub(crate) fn damaged(&self) -> Result<Option<Cluster>, ScenarioError> {
        let damages = self.damages()?;
        if self.cluster.as_ref().and_then(ClusterSection::host).is_none() {
            return Ok(None);
        }
        let mut cluster = self.servers()?;
        for one in damages.into_iter().filter(DamageSection::is_standing) {
            let host = one.damage.on(cluster.host_of(one.node));
            cluster.replace(one.node, host.map_err(|error| ScenarioError::new(error.to_string()))?);
        }
        Ok(Some(cluster))
    }

    /// Links inside servers that become slow on the way: whoever uses them does not look for another way.
    pub(crate) fn slow_inside(&self, cluster: &Cluster) -> Result<Vec<SlowInside>, ScenarioError> {
        let mut slow = Vec::new();
        for one in self.damages()?.into_iter().filter(|one| !one.is_standing()) {
            let sound = cluster.host_of(one.node);
            let hurt = one.damage.on(sound).map_err(|error| ScenarioError::new(error.to_string()))?;
            for (link, (before, after)) in sound.links.iter().zip(&hurt.links).enumerate() {
                if before.bandwidth == after.bandwidth {
                    continue;
                }
                let left = u128::from(after.bandwidth.as_bps()) * 1_000_000;
                let rate = (left / u128::from(before.bandwidth.as_bps())) as u32;
                let moments = [Some((one.at, rate)), one.until.map(|until| (until, 1_000_000))];
                slow.extend(moments.into_iter().flatten().map(|(at, rate)| SlowInside {
                    at: Time::ZERO + at,
                    server: one.node,
                    link: link as u32,
                    rate,
                }));
            }
        }
        Ok(slow)
    }
}

fn no_servers() -> ScenarioError {
    ScenarioError::new("there are no servers: name one in [cluster], such as server = \"dgx-h100\"")
}

pub(super) fn no_gpu(gpu: u32, gpus: u32) -> ScenarioError {
    let message = format!("there is no GPU {gpu}: the servers have GPUs 0 to {}", gpus.saturating_sub(1));
    ScenarioError::new(message).at("gpu")
}
