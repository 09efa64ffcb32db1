//! Who may talk to whom directly: the rules by which NCCL 2.30 (graph/paths.cc) decides on P2P, GPUDirect and PXN.

use railnet_topology::host::{Architecture, DeviceId, DeviceKind, Host, PathType, Vendor};

use crate::options::TopologyOptions;

/// How far apart GPUs may be that read and write each other's memory. Through a CPU they do not, unless there are just
/// two of them and the CPU is an AMD.
pub(crate) fn p2p_level(host: &Host, options: &TopologyOptions) -> PathType {
    if options.p2p_disable {
        return PathType::Loc;
    }
    let is_amd = host
        .processor()
        .is_some_and(|cpu| cpu.architecture == Architecture::X86 && cpu.vendor == Vendor::Amd);
    let usual = if is_amd && host.gpus().len() <= 2 { PathType::Sys } else { PathType::Pxb };
    options.p2p_level.unwrap_or(usual)
}

/// How far apart a GPU and a NIC may be that uses the GPU's memory.
pub(crate) fn gdr_level(options: &TopologyOptions) -> PathType {
    options.net_gdr_level.unwrap_or(PathType::P2c)
}

/// Whether a NIC can use the memory of GPUs at all.
pub(crate) fn nic_has_gdr(host: &Host, nic: DeviceId, options: &TopologyOptions) -> bool {
    !options.ib_disable && matches!(host.device(nic).kind, DeviceKind::Nic { gpudirect: true, .. })
}

/// Whether NICs read from this GPU. Before Ampere only where other traffic of GPUs is on NVLink, not on PCIe.
pub(crate) fn gdr_reads(capability: u16, has_nvlink: bool, options: &TopologyOptions) -> bool {
    options.net_gdr_read.unwrap_or(capability >= 80 || has_nvlink)
}
