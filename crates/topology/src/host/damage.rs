//! Servers that are not what they should be: NVLinks that are down, PCIe that trained to less, NICs in the wrong slot.

use railnet_core::Rate;
use thiserror::Error;

use super::{DeviceId, DeviceKind, Host, HostLinkKind, pcie_bandwidth, pcie_line_rate};

/// Why a server cannot be damaged like that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DamageError {
    /// There is no NVLink to lose.
    #[error("{device} of {host} has no NVLinks")]
    NoNvLinks {
        /// The server.
        host: String,
        /// The GPU.
        device: String,
    },
    /// More NVLinks than there are, or all of them.
    #[error("{device} of {host} has {links} NVLinks: 1 to {} of them can be down, not {down}", links - 1)]
    AllNvLinks {
        /// The server.
        host: String,
        /// The GPU.
        device: String,
        /// Those it has.
        links: u16,
        /// Those that would be down.
        down: u16,
    },
    /// The device is not on PCIe.
    #[error("{device} of {host} has no PCIe link of its own")]
    NoPcie {
        /// The server.
        host: String,
        /// The device.
        device: String,
    },
    /// It would be as good as before, or better.
    #[error(
        "{device} of {host} has PCIe {generation} x{lanes}: what it trains down to has a lower `generation` or fewer `lanes`"
    )]
    NotLess {
        /// The server.
        host: String,
        /// The device.
        device: String,
        /// Its generation.
        generation: u8,
        /// Its width.
        lanes: u8,
    },
    /// There is no wrong NUMA node.
    #[error("{host} has one NUMA node: no NIC of it is on a wrong one")]
    OneNumaNode {
        /// The server.
        host: String,
    },
}

impl Host {
    /// The same with so many NVLinks of a GPU down.
    pub fn with_nvlinks_down(&self, gpu: DeviceId, down: u16) -> Result<Self, DamageError> {
        let name = || (self.name.clone(), self.device(gpu).name.clone());
        let mut damaged = self.clone();
        let bundle = damaged.links.iter_mut().find_map(|link| match &mut link.kind {
            HostLinkKind::NvLink { links } if link.ends.contains(&gpu) => {
                Some((links, &mut link.bandwidth, &mut link.line_rate))
            }
            _ => None,
        });
        let Some((links, bandwidth, line_rate)) = bundle else {
            let (host, device) = name();
            return Err(DamageError::NoNvLinks { host, device });
        };
        let before = *links;
        if down == 0 || down >= before {
            let (host, device) = name();
            return Err(DamageError::AllNvLinks { host, device, links: before, down });
        }
        *links = before - down;
        for rate in [bandwidth, line_rate] {
            *rate = Rate::from_bps(rate.as_bps() / u64::from(before) * u64::from(before - down));
        }
        Ok(damaged)
    }

    /// The same with the PCIe link of a device at another generation and width; as it is where nothing is said.
    pub fn with_pcie(
        &self,
        device: DeviceId,
        generation: Option<u8>,
        lanes: Option<u8>,
    ) -> Result<Self, DamageError> {
        let mut damaged = self.clone();
        let name = || (self.name.clone(), self.device(device).name.clone());
        let link = damaged.links.iter_mut().find(|link| link.ends.contains(&device) && link.pcie().is_some());
        let Some(((was, wide), link)) = link.and_then(|link| Some((link.pcie()?, link))) else {
            let (host, device) = name();
            return Err(DamageError::NoPcie { host, device });
        };
        let (now, narrow) = (generation.unwrap_or(was), lanes.unwrap_or(wide));
        if now == 0 || narrow == 0 || now > was || narrow > wide || (now, narrow) == (was, wide) {
            let (host, device) = name();
            return Err(DamageError::NotLess { host, device, generation: was, lanes: wide });
        }
        match &mut link.kind {
            HostLinkKind::Pcie { generation, lanes } | HostLinkKind::RootPort { generation, lanes, .. } => {
                (*generation, *lanes) = (now, narrow);
            }
            _ => {}
        }
        (link.bandwidth, link.line_rate) = (pcie_bandwidth(now, narrow), pcie_line_rate(now, narrow));
        Ok(damaged)
    }

    /// The same with a NIC on a root port of another socket, or else of another NUMA node.
    pub fn with_nic_elsewhere(&self, nic: DeviceId) -> Result<Self, DamageError> {
        let cpus = self.cpus();
        let home = self.numa_of(nic).and_then(|numa| cpus.get(numa as usize).copied());
        let socket = |cpu: DeviceId| match self.device(cpu).kind {
            DeviceKind::Cpu { socket, .. } => socket,
            _ => 0,
        };
        let away = cpus.iter().copied().filter(|cpu| Some(*cpu) != home);
        let Some(other) = away.min_by_key(|cpu| home.is_some_and(|home| socket(home) == socket(*cpu))) else {
            return Err(DamageError::OneNumaNode { host: self.name.clone() });
        };
        let mut moved = self.clone();
        let bridges = self.links.iter().filter_map(|link| match link.kind {
            HostLinkKind::RootPort { bridge, .. } => Some(bridge),
            _ => None,
        });
        let free = bridges.max().map_or(0, |bridge| bridge.saturating_add(1));
        let link = moved.links.iter_mut().find(|link| link.ends.contains(&nic));
        let Some(((generation, lanes), link)) = link.and_then(|link| Some((link.pcie()?, link))) else {
            let device = self.device(nic).name.clone();
            return Err(DamageError::NoPcie { host: self.name.clone(), device });
        };
        link.ends = [other, nic];
        link.kind = HostLinkKind::RootPort { generation, lanes, bridge: free };
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::host;
    use crate::host::PathType;

    #[test]
    fn damage_narrows_just_what_it_is_about() {
        let sound = host("dgx-h100").unwrap();
        let (gpus, nics) = (sound.gpus(), sound.compute_nics());
        let rate = |host: &Host, a, b| host.path(a, b).bandwidth.as_bps() as f64 / 8e9;
        let lanes = sound.with_nvlinks_down(gpus[3], 6).unwrap();
        assert!((rate(&lanes, gpus[3], gpus[4]) - 12.0 * 20.6).abs() < 0.1);
        assert!((rate(&lanes, gpus[0], gpus[4]) - 18.0 * 20.6).abs() < 0.1);
        // Half the lanes of generation 5 are 24 GB/s, all of generation 3 are 12.
        let narrow = sound.with_pcie(gpus[3], None, Some(8)).unwrap();
        assert!((rate(&narrow, gpus[3], nics[3]) - 24.0).abs() < 0.1);
        let old = sound.with_pcie(nics[3], Some(3), None).unwrap();
        assert!((rate(&old, gpus[3], nics[3]) - 12.0).abs() < 0.1);
        assert!((rate(&old, gpus[2], nics[2]) - 48.0).abs() < 0.1);
        let moved = sound.with_nic_elsewhere(nics[3]).unwrap();
        assert_eq!(moved.path(gpus[3], nics[3]).kind, PathType::Sys);
        assert_eq!(moved.numa_of(nics[3]), Some(1));
        for damaged in [&lanes, &narrow, &old, &moved] {
            damaged.check().unwrap();
            assert_ne!(damaged, &sound);
        }
    }

    #[test]
    fn damage_that_makes_no_sense_is_refused() {
        let dgx = host("dgx-h100").unwrap();
        let plain = host("pcie-4gpu").unwrap();
        let message = |error: DamageError| error.to_string();
        let all = message(dgx.with_nvlinks_down(dgx.gpus()[0], 18).unwrap_err());
        assert!(all.contains("1 to 17 of them can be down, not 18"), "{all}");
        let none = message(plain.with_nvlinks_down(plain.gpus()[1], 1).unwrap_err());
        assert_eq!(none, "GPU1 of pcie-4gpu has no NVLinks");
        let better = message(dgx.with_pcie(dgx.gpus()[0], Some(6), None).unwrap_err());
        assert!(better.starts_with("GPU0 of dgx-h100 has PCIe 5 x16"), "{better}");
    }
}
