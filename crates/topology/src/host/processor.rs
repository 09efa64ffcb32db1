//! Processors, as far as NCCL tells them apart.

use railnet_core::Rate;

/// The instruction set of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// 64-bit x86.
    X86,
    /// 64-bit ARM.
    Arm,
    /// POWER.
    Power,
}

/// Who made a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
    /// Zhaoxin.
    Zhaoxin,
    /// Somebody whom NCCL does not tell apart.
    Other,
}

/// A processor: what NCCL 2.30 reads of it (graph/topo.cc) to guess how fast sockets talk, and which row of its tuner
/// applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// Its instruction set.
    pub architecture: Architecture,
    /// Its maker.
    pub vendor: Vendor,
    /// The family that `cpuid` tells.
    pub family: u16,
    /// The model that `cpuid` tells.
    pub model: u16,
}

impl Processor {
    /// AMD EPYC of the second generation (7742).
    pub const EPYC_ROME: Self = Self::x86(Vendor::Amd, 23, 49);
    /// Intel Xeon of the fourth generation (8480C).
    pub const SAPPHIRE_RAPIDS: Self = Self::x86(Vendor::Intel, 6, 143);
    /// Intel Xeon of the fifth generation (8570).
    pub const EMERALD_RAPIDS: Self = Self::x86(Vendor::Intel, 6, 207);
    /// NVIDIA Grace.
    pub const GRACE: Self =
        Self { architecture: Architecture::Arm, vendor: Vendor::Other, family: 0, model: 0 };

    const fn x86(vendor: Vendor, family: u16, model: u16) -> Self {
        Self { architecture: Architecture::X86, vendor, family, model }
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match (self.architecture, self.vendor, self.model) {
            (Architecture::Arm, ..) => "ARM",
            (Architecture::Power, ..) => "POWER",
            (_, Vendor::Amd, _) => "AMD",
            (_, Vendor::Zhaoxin, _) => "Zhaoxin",
            (_, Vendor::Other, _) => "x86",
            (_, Vendor::Intel, 207..) if self.family == 6 => "Intel Emerald Rapids",
            (_, Vendor::Intel, 143..) if self.family == 6 => "Intel Sapphire Rapids",
            (_, Vendor::Intel, 85..) if self.family == 6 => "Intel Skylake",
            (_, Vendor::Intel, _) => "Intel Broadwell",
        }
    }

    /// What NCCL expects one socket to send to another (graph/topo.h).
    pub const fn socket_bandwidth(self) -> Rate {
        let gigabytes = match (self.architecture, self.vendor, self.model) {
            (Architecture::Power, ..) => 32,
            (Architecture::Arm, ..) | (_, Vendor::Zhaoxin, _) => 6,
            (_, Vendor::Amd, _) => 16,
            (_, Vendor::Intel, 207..) if self.family == 6 => 40,
            (_, Vendor::Intel, 143..) if self.family == 6 => 22,
            (_, Vendor::Intel, 85..) if self.family == 6 => 10,
            (_, Vendor::Intel | Vendor::Other, _) => 6,
        };
        Rate::gbps(gigabytes * 8)
    }
}
