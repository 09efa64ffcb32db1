//! NCCL's topology files: what `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads, to and from
//! [`railnet_topology::host::Host`]. The format is version 1, as of NCCL 2.30 (graph/xml.cc, graph/topo.cc).
//!
//! A file says less than a server has. What is missing is filled in: the memory of GPUs from their PCIe id or their
//! compute capability, links between NUMA nodes from the processor, the speed of NVLinks from the compute capability. What
//! a file has no place for is lost: which socket a NUMA node is part of, and whether a PCIe switch shows two levels.
//!
//! ```
//! use railnet_formats::nccl_topology::{read, write};
//!
//! let host = railnet_topology::catalogue::host("dgx-h100").expect("it is in the catalogue");
//! let again = read("dgx-h100", &write(&host))?;
//! assert_eq!(again.gpus().len(), 8);
//! # Ok::<(), railnet_formats::nccl_topology::TopologyError>(())
//! ```

mod read;
mod write;

use railnet_topology::host::Architecture;

pub use read::read;
pub use write::write;

/// Why a file is no topology.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}\n  help: {help}")]
pub struct TopologyError {
    /// The line of the file, from 1.
    pub line: u32,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub help: String,
}

/// The version that NCCL reads and writes.
const VERSION: u32 = 1;
/// The longest file that is read.
const BYTES_MAX: usize = 16 << 20;
/// NCCL's limits: characters of a value, attributes of an element, elements in an element.
const VALUE_MAX: usize = 255;
const ATTRIBUTES_MAX: usize = 16;
const CHILDREN_MAX: usize = 640;

/// Classes of PCIe devices.
const CLASS_GPU: &str = "0x030200";
const CLASS_NIC: &str = "0x020700";
const CLASS_BRIDGE: &str = "0x060400";
const CLASS_DRIVE: &str = "0x010802";
const CLASS_NVSWITCH: &str = "0x068000";

/// NVIDIA's number among makers of PCIe devices, and its numbers for GPUs of the catalogue (pci.ids).
const NVIDIA: &str = "0x10de";
const GPU_IDS: [(&str, &str); 7] = [
    ("0x1db5", "V100 SXM2"),
    ("0x20b2", "A100 SXM4"),
    ("0x2330", "H100 SXM5"),
    ("0x2335", "H200 SXM5"),
    ("0x2901", "B200"),
    ("0x2941", "GB200"),
    ("0x26b9", "L40S"),
];

/// What the file calls the speed of a lane, by generation from 1.
const SPEEDS: [&str; 6] =
    ["2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"];

const ARCHITECTURES: [(&str, Architecture); 3] =
    [("x86_64", Architecture::X86), ("arm64", Architecture::Arm), ("ppc64", Architecture::Power)];

/// What NCCL expects of one NVLink, and what its data sheet says, in Mbit/s, by compute capability (graph/topo.h).
fn nvlink_megabits(capability: u16) -> (u64, u64) {
    match capability {
        100.. => (40_100 * 8, 50_000 * 8),
        90.. => (20_600 * 8, 25_000 * 8),
        86 | 89 => (12_000 * 8, 14_000 * 8),
        70.. => (20_000 * 8, 25_000 * 8),
        _ => (18_000 * 8, 20_000 * 8),
    }
}
