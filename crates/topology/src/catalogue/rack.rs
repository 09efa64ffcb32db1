//! Racks whose trays share one NVLink domain: for NCCL one node with many hosts in it (its MNNVL).

use railnet_core::{Rate, Span};

use super::{GB200, GpuRow, gigabytes};
use crate::host::{DeviceKind, Host, HostLinkKind, NicRole, Processor};

/// A rack.
pub(super) struct RackRow {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    trays: u8,
    /// Packages of each tray: a CPU, with so many GPUs and NICs.
    packages: u8,
    gpus: u8,
    nics: u8,
    gpu: GpuRow,
    nvswitches: u8,
}

// NVIDIA's guide to multi-node NVLink systems: 18 compute trays with four GPUs each, two Grace CPUs and four ConnectX-7;
// nine trays of two NVLink switches. GB200 NVL72 data sheet: 13.4 TB of memory at 576 TB/s, so 186 GB at 8 TB/s a GPU;
// 900 GB/s both ways between a Grace and its two GPUs, so 225 GB/s one way for each, of which NCCL counts five links of
// 44,712 MB/s (topology dumps of such racks). ConnectX-7 is a 400 Gb/s NIC with 16 lanes of PCIe 5. Left out: the two
// BlueField-3 of each tray, which serve storage, and PCIe between Grace and GPU, which nothing uses beside C2C.
pub(super) const RACKS: [RackRow; 1] = [RackRow {
    name: "gb200-nvl72",
    title: "NVIDIA GB200 NVL72: a rack of 72 GB200 in one NVLink domain, 72 NICs of 400 Gbps",
    trays: 18,
    packages: 2,
    gpus: 2,
    nics: 2,
    gpu: GB200,
    nvswitches: 18,
}];

/// What NCCL counts between a Grace and one of its GPUs, and what the data sheet says, in Mbit/s.
const C2C_MEGABITS: u64 = 5 * 44_712 * 8;
const C2C_LINE_MEGABITS: u64 = 225_000 * 8;

impl RackRow {
    pub(super) fn build(&self) -> Host {
        let mut host = Host::new(self.name);
        let nvswitch = host.add("NVSwitch", DeviceKind::NvSwitch { chips: self.nvswitches, reduces: true });
        let processor = Processor::GRACE;
        let mut gpus = 0;
        for tray in 0..self.trays {
            let cpus: Vec<_> = (0..self.packages)
                .map(|package| {
                    let socket = tray * self.packages + package;
                    host.add(format!("CPU{socket}"), DeviceKind::Cpu { socket, processor })
                })
                .collect();
            for (id, cpu) in cpus.iter().enumerate() {
                let rate = processor.socket_bandwidth();
                for other in &cpus[id + 1..] {
                    host.join(*cpu, *other, HostLinkKind::Socket, rate, rate);
                }
                for _ in 0..self.gpus {
                    let gpu = host.add(format!("GPU{gpus}"), self.gpu.device());
                    gpus += 1;
                    let [usable, line] = [C2C_MEGABITS, C2C_LINE_MEGABITS].map(Rate::mbps);
                    host.join(*cpu, gpu, HostLinkKind::C2c, usable, line);
                    let links = self.gpu.nvlinks;
                    let usable = gigabytes(self.gpu.nvlink_tenths * u64::from(links));
                    let line = Rate::from_bps(self.gpu.nvlink_line.as_bps() * u64::from(links));
                    host.join(gpu, nvswitch, HostLinkKind::NvLink { links }, usable, line);
                }
                for nic in 0..self.nics {
                    let kind = DeviceKind::Nic {
                        rate: Rate::gbps(400),
                        role: NicRole::Compute,
                        gpudirect: true,
                        latency: Span::ZERO,
                    };
                    let name = format!("tray{tray}.mlx5_{}", id as u8 * self.nics + nic);
                    let device = host.add(name, kind);
                    host.join_pcie(*cpu, device, 5, 16, Some(nic));
                }
            }
        }
        host
    }
}
