//! GPUs, NICs and servers as data, and where each number comes from.
//!
//! The data is in the files of this crate's `catalogue` folder; users add files of the same form ([`Catalogue::extend`]).
//! Bandwidths come in two kinds. Line rates are those of data sheets and of the PCIe specification. What a link carries in
//! practice is what NCCL 2.30 calculates with (graph/topo.h): 20 GB/s per NVLink of an A100, 20.6 of an H100 or H200, 40.1
//! of a B200; 12, 24 and 48 GB/s for 16 lanes of PCIe 3, 4 and 5; between sockets 16 GB/s on AMD, 22 on Sapphire Rapids, 40 on
//! Emerald Rapids.

mod build;
mod compute;
mod file;
mod switches;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::LazyLock;

use thiserror::Error;

pub use self::compute::Compute;
pub use self::switches::switch_ports;
pub use crate::cluster::cluster;
use crate::cluster::{Cluster, ClusterError};
use crate::host::{DeviceKind, Host};
use file::{GpuRow, MachineRow, NicRow, RackRow, Sections};

/// What the files have.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    gpus: Vec<GpuRow>,
    nics: Vec<NicRow>,
    machines: Vec<MachineRow>,
    racks: Vec<RackRow>,
}

/// What is wrong with a file of a catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct CatalogueError {
    /// What, and what would be right.
    pub message: String,
    /// Which bytes of the file, where that is known.
    pub span: Option<Range<usize>>,
    /// The name that was probably meant, where one was nearly written.
    pub meant: Option<String>,
}

static BUILT_IN: LazyLock<Catalogue> = LazyLock::new(|| {
    let files = [
        include_str!("../catalogue/gpus.toml"),
        include_str!("../catalogue/nics.toml"),
        include_str!("../catalogue/machines.toml"),
    ];
    let mut catalogue = Catalogue::default();
    for text in files {
        catalogue.extend(text).expect("the files that ship are sound: a test reads them");
    }
    catalogue
});

impl Catalogue {
    /// What ships.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// Adds what a file has: `[[gpu]]`, `[[nic]]`, `[[machine]]` and `[[rack]]`. What it says of `[[model]]` is for others.
    pub fn extend(&mut self, text: &str) -> Result<(), CatalogueError> {
        let sections = Sections::read(text)?;
        for gpu in sections.gpu {
            refuse_twice("a GPU", &gpu.name, self.gpus.iter().any(|row| row.name == gpu.name))?;
            self.gpus.push(gpu);
        }
        for nic in sections.nic {
            refuse_twice("a NIC", &nic.name, self.nics.iter().any(|row| row.name == nic.name))?;
            self.nics.push(nic);
        }
        for machine in sections.machine {
            refuse_twice("a server", &machine.name, self.names().any(|name| name == machine.name.get_ref()))?;
            machine.check(self)?;
            self.machines.push(machine);
        }
        for rack in sections.rack {
            refuse_twice("a server", &rack.name, self.names().any(|name| name == rack.name.get_ref()))?;
            rack.check(self)?;
            self.racks.push(rack);
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts().map(|(name, _)| name)
    }

    /// The names that [`Catalogue::host`] knows, with a line on each.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &str)> {
        let machines = self.machines.iter().map(|row| (row.name.get_ref().as_str(), row.title.as_str()));
        machines.chain(self.racks.iter().map(|row| (row.name.get_ref().as_str(), row.title.as_str())))
    }

    /// A server by its name.
    pub fn host(&self, name: &str) -> Option<Host> {
        let machine = self.machines.iter().find(|row| row.name.get_ref() == name);
        let rack = || self.racks.iter().find(|row| row.name.get_ref() == name);
        machine.map(|row| row.build(self)).or_else(|| rack().map(|row| row.build(self)))
    }

    /// Several servers by their name: `dgx-h100` is one of them, `dgx-h100x8` eight.
    pub fn cluster(&self, name: &str) -> Result<Cluster, ClusterError> {
        crate::cluster::cluster_of(self, name)
    }

    /// Where the figures of a server come from.
    pub fn host_sources(&self, name: &str) -> &[String] {
        let machine = self.machines.iter().find(|row| row.name.get_ref() == name).map(|row| &row.sources);
        let rack = self.racks.iter().find(|row| row.name.get_ref() == name).map(|row| &row.sources);
        machine.or(rack).map_or(&[], |sources| sources)
    }

    /// A GPU by the name of its model.
    pub fn gpu(&self, model: &str) -> Option<DeviceKind> {
        self.gpus.iter().find(|row| row.name.get_ref() == model).map(GpuRow::device)
    }

    /// The GPUs, with where their figures come from.
    pub fn gpus(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.gpus.iter().map(|row| (row.name.get_ref().as_str(), row.sources.as_slice()))
    }
}

fn refuse_twice(what: &str, name: &toml::Spanned<String>, is_there: bool) -> Result<(), CatalogueError> {
    if !is_there {
        return Ok(());
    }
    let message =
        format!("there is {what} called \"{}\" already: give this one another name", name.get_ref());
    Err(CatalogueError { message, span: Some(name.span()), meant: None })
}

/// The names that [`host`] knows, with a line on each.
pub fn hosts() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.hosts()
}

/// A server that ships with the catalogue.
pub fn host(name: &str) -> Option<Host> {
    BUILT_IN.host(name)
}

/// A GPU that ships with the catalogue, by the name of its model.
pub fn gpu(model: &str) -> Option<DeviceKind> {
    BUILT_IN.gpu(model)
}

/// A GPU of the catalogue with this compute capability (90 for 9.0), else the nearest older one, else the oldest.
pub fn gpu_like(capability: u16) -> DeviceKind {
    let gpus = &BUILT_IN.gpus;
    let older = gpus.iter().filter(|row| row.compute_capability <= capability);
    // Of several the first: that with the least memory.
    let best = older.rev().max_by_key(|row| row.compute_capability).unwrap_or(&gpus[0]);
    best.device()
}
