//! Servers as data, and where each number comes from.
//!
//! Bandwidths come in two kinds. Line rates are those of NVIDIA's data sheets and of the PCIe specification. What a
//! link carries in practice is what NCCL 2.30 calculates with (graph/topo.h): 20 GB/s per NVLink of an A100, 20.6 of
//! an H100 or H200, 40.1 of a B200; 12, 24 and 48 GB/s for 16 lanes of PCIe 3, 4 and 5; between sockets 16 GB/s on AMD, 22 on
//! Sapphire Rapids, 40 on Emerald Rapids.

mod compute;
mod rack;

use railnet_core::{Bytes, Rate, Span};

use rack::{RACKS, RackRow};

pub use self::compute::{Compute, compute};
pub use crate::cluster::cluster;
use crate::host::{DeviceId, DeviceKind, Host, HostLinkKind, NicRole, Processor};

/// The names that [`host`] knows, with a line on each.
pub fn hosts() -> impl Iterator<Item = (&'static str, &'static str)> {
    HOSTS.iter().map(|row| (row.name, row.title)).chain(RACKS.iter().map(|row| (row.name, row.title)))
}

/// A server of the catalogue.
pub fn host(name: &str) -> Option<Host> {
    let host = HOSTS.iter().find(|row| row.name == name).map(HostRow::build);
    host.or_else(|| RACKS.iter().find(|row| row.name == name).map(RackRow::build))
}

/// A GPU of the catalogue by the name of its model.
pub fn gpu(model: &str) -> Option<DeviceKind> {
    GPUS.iter().find(|row| row.model == model).map(GpuRow::device)
}

/// A GPU of the catalogue with this compute capability (90 for 9.0), else the nearest older one, else the oldest.
pub fn gpu_like(capability: u16) -> DeviceKind {
    let older = GPUS.iter().filter(|row| row.capability <= capability);
    // Of several the first: that with the least memory.
    let best = older.rev().max_by_key(|row| row.capability).unwrap_or(&GPUS[0]);
    best.device()
}

/// A GPU as its data sheet has it.
struct GpuRow {
    model: &'static str,
    memory: Bytes,
    memory_bandwidth: Rate,
    /// Compute capability without the point.
    capability: u16,
    nvlinks: u16,
    /// What its data sheet says of one NVLink.
    nvlink_line: Rate,
    /// What NCCL expects of one NVLink, in tenths of a GB/s.
    nvlink_tenths: u64,
    pcie: u8,
}

/// Bytes per second of memory.
const fn gigabytes_per_second(gigabytes: u64) -> Rate {
    Rate::gbps(gigabytes * 8)
}

// NVIDIA A100 data sheet: 80 GB at 2,039 GB/s, 12 NVLinks (600 GB/s both ways: 25 GB/s each way per link), PCIe 4.
// NCCL: sm80, 20 GB/s a link.
const A100: GpuRow = GpuRow {
    model: "A100 SXM4",
    memory: Bytes(80_000_000_000),
    memory_bandwidth: gigabytes_per_second(2_039),
    capability: 80,
    nvlinks: 12,
    nvlink_line: Rate::gbps(200),
    nvlink_tenths: 200,
    pcie: 4,
};
// NVIDIA H100 data sheet: 80 GB at 3.35 TB/s, 18 NVLinks (900 GB/s both ways), PCIe 5. NCCL: sm90, 20.6 GB/s a link.
const H100: GpuRow = GpuRow {
    model: "H100 SXM5",
    memory_bandwidth: gigabytes_per_second(3_350),
    capability: 90,
    nvlinks: 18,
    nvlink_tenths: 206,
    pcie: 5,
    ..A100
};
// NVIDIA H200 data sheet: an H100 with 141 GB at 4.8 TB/s.
const H200: GpuRow = GpuRow {
    model: "H200 SXM5",
    memory: Bytes(141_000_000_000),
    memory_bandwidth: gigabytes_per_second(4_800),
    ..H100
};
// NVIDIA DGX B200 data sheet: 8 GPUs with 1,440 GB at 64 TB/s, 14.4 TB/s of NVLink both ways (18 links of 50 GB/s each
// way), PCIe 5. NCCL: sm100, 40.1 GB/s a link.
const B200: GpuRow = GpuRow {
    model: "B200",
    memory: Bytes(180_000_000_000),
    memory_bandwidth: gigabytes_per_second(8_000),
    capability: 100,
    nvlinks: 18,
    nvlink_line: Rate::gbps(400),
    nvlink_tenths: 401,
    pcie: 5,
};
// NVIDIA GB200 NVL72 data sheet: 13.4 TB at 576 TB/s for 72 of them.
const GB200: GpuRow = GpuRow { model: "GB200", memory: Bytes(186_000_000_000), ..B200 };
// NVIDIA V100 data sheet: 32 GB at 900 GB/s, 6 NVLinks of 25 GB/s each way, PCIe 3. NCCL: sm70, 20 GB/s a link.
const V100: GpuRow = GpuRow {
    model: "V100 SXM2",
    memory: Bytes(32_000_000_000),
    memory_bandwidth: gigabytes_per_second(900),
    capability: 70,
    nvlinks: 6,
    pcie: 3,
    ..A100
};
// NVIDIA L40S data sheet: 48 GB at 864 GB/s, PCIe 4, no NVLink, compute capability 8.9.
const L40S: GpuRow = GpuRow {
    model: "L40S",
    memory: Bytes(48_000_000_000),
    memory_bandwidth: gigabytes_per_second(864),
    capability: 89,
    nvlinks: 0,
    nvlink_line: Rate::ZERO,
    nvlink_tenths: 0,
    pcie: 4,
};

/// All of them, oldest first.
const GPUS: [GpuRow; 7] = [V100, A100, L40S, H100, H200, B200, GB200];

/// A server.
struct HostRow {
    name: &'static str,
    title: &'static str,
    gpu: GpuRow,
    /// How many chips switch the NVLinks, and whether they reduce.
    nvswitch: Option<(u8, bool)>,
    /// The socket of each NUMA node.
    sockets: &'static [u8],
    processor: Processor,
    /// What hangs on the host bridges, one entry each.
    bridges: &'static [BridgeRow],
}

/// What hangs on one host bridge of a NUMA node.
struct BridgeRow {
    numa: u8,
    /// Whether there is a PCIe switch, and of how many levels it looks; without one all devices are on root ports.
    switch: Option<Levels>,
    gpus: u8,
    nics: &'static [NicRow],
    drives: u8,
}

#[derive(Clone, Copy)]
enum Levels {
    One,
    Two,
}

struct NicRow {
    name: &'static str,
    gigabits: u64,
    role: NicRole,
    pcie: u8,
}

const fn rail(name: &'static str, gigabits: u64, pcie: u8) -> NicRow {
    NicRow { name, gigabits, role: NicRole::Compute, pcie }
}

const fn storage(name: &'static str, gigabits: u64, pcie: u8) -> NicRow {
    NicRow { name, gigabits, role: NicRole::Storage, pcie }
}

/// A GPU and its NIC on a switch of their own.
const fn pair(numa: u8, levels: Levels, nics: &'static [NicRow]) -> BridgeRow {
    BridgeRow { numa, switch: Some(levels), gpus: 1, nics, drives: 0 }
}

/// Devices on root ports.
const fn direct(numa: u8, gpus: u8, nics: &'static [NicRow], drives: u8) -> BridgeRow {
    BridgeRow { numa, switch: None, gpus, nics, drives }
}

/// Two GPUs and two NICs on one switch.
const fn quad(numa: u8, nics: &'static [NicRow]) -> BridgeRow {
    BridgeRow { numa, switch: Some(Levels::Two), gpus: 2, nics, drives: 2 }
}

/// The PCIe trees of a DGX H100.
const PAIRS_AND_STORAGE: [BridgeRow; 10] = [
    pair(0, Levels::Two, &[rail("mlx5_0", 400, 5)]),
    direct(0, 0, &[storage("mlx5_1", 200, 5), storage("mlx5_2", 200, 5)], 4),
    pair(0, Levels::Two, &[rail("mlx5_3", 400, 5)]),
    pair(0, Levels::Two, &[rail("mlx5_4", 400, 5)]),
    pair(0, Levels::Two, &[rail("mlx5_5", 400, 5)]),
    pair(1, Levels::Two, &[rail("mlx5_6", 400, 5)]),
    direct(1, 0, &[storage("mlx5_7", 200, 5), storage("mlx5_8", 200, 5)], 4),
    pair(1, Levels::Two, &[rail("mlx5_9", 400, 5)]),
    pair(1, Levels::Two, &[rail("mlx5_10", 400, 5)]),
    pair(1, Levels::Two, &[rail("mlx5_11", 400, 5)]),
];

const HOSTS: [HostRow; 6] = [
    // NVIDIA DGX A100 user guide: 8 A100, 6 NVSwitches, two EPYC 7742 with four NUMA nodes each, 8 ConnectX-6 of
    // 200 Gb/s for compute, two dual-port ones for storage, 8 drives for data. Which devices share a switch and a
    // NUMA node (3, 1, 7, 5 for pairs of GPUs) is as `nvidia-smi topo -m` shows it on such machines. The NUMA nodes
    // of the storage NICs (ones without GPUs) and the switches of the drives are guesses.
    HostRow {
        name: "dgx-a100",
        title: "NVIDIA DGX A100: 8 A100 on NVSwitch, 8 NICs of 200 Gbps",
        gpu: A100,
        nvswitch: Some((6, false)),
        sockets: &[0, 0, 0, 0, 1, 1, 1, 1],
        processor: Processor::EPYC_ROME,
        bridges: &[
            quad(3, &[rail("mlx5_0", 200, 4), rail("mlx5_1", 200, 4)]),
            quad(1, &[rail("mlx5_2", 200, 4), rail("mlx5_3", 200, 4)]),
            direct(2, 0, &[storage("mlx5_4", 200, 4), storage("mlx5_5", 200, 4)], 0),
            quad(7, &[rail("mlx5_6", 200, 4), rail("mlx5_7", 200, 4)]),
            quad(5, &[rail("mlx5_8", 200, 4), rail("mlx5_9", 200, 4)]),
            direct(6, 0, &[storage("mlx5_10", 200, 4), storage("mlx5_11", 200, 4)], 0),
        ],
    },
    // NVIDIA DGX H100 user guide: 8 H100, 4 NVSwitches with NVLS, two Xeon 8480C (Sapphire Rapids), 8 ConnectX-7 of
    // 400 Gb/s, each paired with a GPU (the guide's table of network modules gives the names mlx5_0, 3, 4, 5 on CPU 0
    // and 6, 9, 10, 11 on CPU 1), two dual-port ones for storage, 8 drives for data. Guesses: that the PCIe switches
    // show two levels, as those of the A100 do; 200 Gb/s a storage port; four drives on each socket.
    HostRow {
        name: "dgx-h100",
        title: "NVIDIA DGX H100: 8 H100 on NVSwitch, 8 NICs of 400 Gbps",
        gpu: H100,
        nvswitch: Some((4, true)),
        sockets: &[0, 1],
        processor: Processor::SAPPHIRE_RAPIDS,
        bridges: &PAIRS_AND_STORAGE,
    },
    // NVIDIA HGX H200 data sheet: 8 H200, 4 NVSwitches with NVLS. Around the board every maker builds its own server;
    // this one has what most have: a NIC of 400 Gb/s beside each GPU and one for storage, two Emerald Rapids sockets.
    HostRow {
        name: "hgx-h200",
        title: "HGX H200 server: 8 H200 on NVSwitch, 8 NICs of 400 Gbps",
        gpu: H200,
        nvswitch: Some((4, true)),
        sockets: &[0, 1],
        processor: Processor::EMERALD_RAPIDS,
        bridges: &[
            pair(0, Levels::One, &[rail("mlx5_0", 400, 5)]),
            pair(0, Levels::One, &[rail("mlx5_1", 400, 5)]),
            pair(0, Levels::One, &[rail("mlx5_2", 400, 5)]),
            pair(0, Levels::One, &[rail("mlx5_3", 400, 5)]),
            pair(1, Levels::One, &[rail("mlx5_4", 400, 5)]),
            pair(1, Levels::One, &[rail("mlx5_5", 400, 5)]),
            pair(1, Levels::One, &[rail("mlx5_6", 400, 5)]),
            pair(1, Levels::One, &[rail("mlx5_7", 400, 5)]),
            direct(0, 0, &[storage("mlx5_8", 200, 5)], 4),
            direct(1, 0, &[], 4),
        ],
    },
    // NVIDIA DGX B200 user guide: 8 B200, 2 NVSwitches, two Xeon 8570 (Emerald Rapids), 8 ConnectX-7 of 400 Gb/s, two
    // dual-port BlueField-3 for storage, 8 drives for data. Guesses: that GPUs, NICs and drives are joined as in a
    // DGX H100, down to the names; 200 Gb/s a storage port.
    HostRow {
        name: "dgx-b200",
        title: "NVIDIA DGX B200: 8 B200 on NVSwitch, 8 NICs of 400 Gbps",
        gpu: B200,
        nvswitch: Some((2, true)),
        sockets: &[0, 1],
        processor: Processor::EMERALD_RAPIDS,
        bridges: &PAIRS_AND_STORAGE,
    },
    // No product: four cards on the root ports of two AMD sockets, one NIC of 100 Gb/s that all share.
    HostRow {
        name: "pcie-4gpu",
        title: "plain PCIe server: 4 L40S, no NVLink, one NIC of 100 Gbps",
        gpu: L40S,
        nvswitch: None,
        sockets: &[0, 1],
        processor: Processor::EPYC_ROME,
        bridges: &[
            direct(0, 1, &[], 0),
            direct(0, 1, &[rail("mlx5_0", 100, 4)], 1),
            direct(1, 1, &[], 0),
            direct(1, 1, &[], 1),
        ],
    },
    // No product: two sockets, no GPU, one NIC of 100 Gb/s.
    HostRow {
        name: "cpu",
        title: "CPU server: two sockets, one NIC of 100 Gbps",
        gpu: L40S,
        nvswitch: None,
        sockets: &[0, 1],
        processor: Processor::SAPPHIRE_RAPIDS,
        bridges: &[direct(0, 0, &[rail("mlx5_0", 100, 4)], 2)],
    },
];

/// What NCCL expects between NUMA nodes is all that is known of those links.
fn gigabytes(tenths: u64) -> Rate {
    Rate::from_bps(tenths * 800_000_000)
}

impl HostRow {
    fn build(&self) -> Host {
        let mut host = Host::new(self.name);
        let cpus = self.add_cpus(&mut host);
        let nvswitch = self
            .nvswitch
            .map(|(chips, reduces)| host.add("NVSwitch", DeviceKind::NvSwitch { chips, reduces }));
        let mut counts = Counts::default();
        for (number, row) in self.bridges.iter().enumerate() {
            self.add_bridge(&mut host, row, number as u8, cpus[row.numa as usize], nvswitch, &mut counts);
        }
        host
    }

    /// The NUMA nodes, each joined to each.
    fn add_cpus(&self, host: &mut Host) -> Vec<DeviceId> {
        let nodes = self.sockets.iter().enumerate();
        let cpus: Vec<_> = nodes
            .map(|(id, socket)| {
                host.add(format!("CPU{id}"), DeviceKind::Cpu { socket: *socket, processor: self.processor })
            })
            .collect();
        let rate = self.processor.socket_bandwidth();
        for (id, cpu) in cpus.iter().enumerate() {
            for other in &cpus[id + 1..] {
                host.join(*cpu, *other, HostLinkKind::Socket, rate, rate);
            }
        }
        cpus
    }

    fn add_bridge(
        &self,
        host: &mut Host,
        row: &BridgeRow,
        number: u8,
        cpu: DeviceId,
        nvswitch: Option<DeviceId>,
        counts: &mut Counts,
    ) {
        let (parent, bridge) = match row.switch {
            Some(levels) => {
                let kind = DeviceKind::PciSwitch { two_levels: matches!(levels, Levels::Two) };
                let switch = host.add(format!("PCI{number}"), kind);
                host.join_pcie(cpu, switch, self.gpu.pcie, 16, Some(number));
                (switch, None)
            }
            None => (cpu, Some(number)),
        };
        for _ in 0..row.gpus {
            let kind = self.gpu.device();
            let gpu = host.add(format!("GPU{}", counts.gpus), kind);
            counts.gpus += 1;
            host.join_pcie(parent, gpu, self.gpu.pcie, 16, bridge);
            if let Some(nvswitch) = nvswitch {
                let links = self.gpu.nvlinks;
                let usable = gigabytes(self.gpu.nvlink_tenths * u64::from(links));
                let line = Rate::from_bps(self.gpu.nvlink_line.as_bps() * u64::from(links));
                host.join(gpu, nvswitch, HostLinkKind::NvLink { links }, usable, line);
            }
        }
        for nic in row.nics {
            let device = host.add(nic.name, nic.device());
            host.join_pcie(parent, device, nic.pcie, 16, bridge);
        }
        for _ in 0..row.drives {
            let drive = host.add(format!("nvme{}", counts.drives), DeviceKind::Nvme);
            counts.drives += 1;
            host.join_pcie(parent, drive, 4, 4, bridge);
        }
    }
}

impl GpuRow {
    fn device(&self) -> DeviceKind {
        DeviceKind::Gpu {
            model: self.model.to_owned(),
            memory: self.memory,
            memory_bandwidth: self.memory_bandwidth,
            compute_capability: self.capability,
        }
    }
}

impl NicRow {
    fn device(&self) -> DeviceKind {
        let rate = Rate::gbps(self.gigabits);
        DeviceKind::Nic { rate, role: self.role, gpudirect: true, latency: Span::ZERO }
    }
}

/// What has been numbered so far.
#[derive(Default)]
struct Counts {
    gpus: u32,
    drives: u32,
}
