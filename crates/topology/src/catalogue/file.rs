//! The form of the files.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use railnet_core::{Bytes, Rate};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, Visitor};
use toml::Spanned;

use super::CatalogueError;
use crate::host::{NicRole, Processor};

/// All that a file may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sections {
    #[serde(default)]
    pub(super) gpu: Vec<GpuRow>,
    #[serde(default)]
    pub(super) nic: Vec<NicRow>,
    #[serde(default)]
    pub(super) machine: Vec<MachineRow>,
    #[serde(default)]
    pub(super) rack: Vec<RackRow>,
    /// For the reader of models.
    #[serde(default, rename = "model")]
    _model: IgnoredAny,
}

impl Sections {
    pub(super) fn read(text: &str) -> Result<Self, CatalogueError> {
        toml::from_str(text).map_err(|error| CatalogueError {
            message: railnet_core::without_types(error.message()),
            span: error.span(),
            meant: None,
        })
    }
}

/// A GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GpuRow {
    pub(super) name: Spanned<String>,
    pub(super) memory: Written<Bytes>,
    pub(super) bandwidth: MemoryRow,
    pub(super) compute_capability: u16,
    #[serde(default)]
    pub(super) nvlink: Option<NvLinkRow>,
    pub(super) pcie: u8,
    pub(super) multiprocessors: u32,
    pub(super) half: HalfRow,
    #[serde(default)]
    pub(super) eight: Option<f64>,
    pub(super) single: f64,
    pub(super) attention: AttentionRow,
    #[serde(default)]
    pub(super) sources: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryRow {
    pub(super) nominal: Written<Rate>,
    pub(super) percent: u8,
}

/// What one link carries each way.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NvLinkRow {
    pub(super) links: u16,
    pub(super) nominal: Written<Rate>,
    pub(super) effective: Written<Rate>,
}

/// In TFLOP/s.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HalfRow {
    pub(super) nominal: f64,
    pub(super) best: f64,
    pub(super) sustained: f64,
}

/// In TFLOP/s.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttentionRow {
    pub(super) forward: f64,
    pub(super) backward: f64,
}

/// A NIC.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NicRow {
    pub(super) name: Spanned<String>,
    pub(super) rate: Written<Rate>,
    pub(super) pcie: u8,
    #[serde(default, rename = "sources")]
    _sources: Vec<String>,
}

/// A server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MachineRow {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) gpu: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) nvswitch: Option<SwitchRow>,
    pub(super) sockets: Vec<u8>,
    pub(super) processor: ProcessorName,
    pub(super) bridge: Vec<BridgeRow>,
    #[serde(default)]
    pub(super) sources: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchRow {
    pub(super) chips: u8,
    #[serde(default)]
    pub(super) reduces: bool,
}

/// What hangs on one host bridge of a NUMA node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BridgeRow {
    pub(super) numa: Spanned<u8>,
    /// Levels of a PCIe switch; without one all devices are on root ports.
    #[serde(default)]
    pub(super) switch: Option<Spanned<u8>>,
    #[serde(default)]
    pub(super) gpus: u8,
    #[serde(default)]
    pub(super) nics: Vec<PortRow>,
    #[serde(default)]
    pub(super) drives: u8,
}

/// A NIC of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortRow {
    pub(super) name: String,
    pub(super) nic: Spanned<String>,
    #[serde(default)]
    pub(super) role: RoleName,
}

/// A rack whose trays share one NVLink domain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RackRow {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) title: String,
    pub(super) gpu: Spanned<String>,
    pub(super) nic: Spanned<String>,
    pub(super) processor: ProcessorName,
    pub(super) trays: u8,
    /// Packages of each tray: a CPU, with so many GPUs and NICs.
    pub(super) packages: u8,
    pub(super) gpus: u8,
    pub(super) nics: u8,
    pub(super) nvswitches: u8,
    pub(super) c2c: C2cRow,
    #[serde(default)]
    pub(super) sources: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct C2cRow {
    pub(super) nominal: Written<Rate>,
    pub(super) effective: Written<Rate>,
}

#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RoleName {
    #[default]
    Compute,
    Storage,
}

impl RoleName {
    pub(super) const fn role(self) -> NicRole {
        match self {
            Self::Compute => NicRole::Compute,
            Self::Storage => NicRole::Storage,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ProcessorName {
    EpycRome,
    SapphireRapids,
    EmeraldRapids,
    Grace,
}

impl ProcessorName {
    pub(super) const fn processor(self) -> Processor {
        match self {
            Self::EpycRome => Processor::EPYC_ROME,
            Self::SapphireRapids => Processor::SAPPHIRE_RAPIDS,
            Self::EmeraldRapids => Processor::EMERALD_RAPIDS,
            Self::Grace => Processor::GRACE,
        }
    }
}

/// A value with its unit: "80GB", "400Gbps".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written<T>(pub(super) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(PhantomData)).map(Self)
    }
}

struct FromText<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text with its unit, such as \"400Gbps\" or \"80GB\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
