//! Who is measured: what each is called, whether it is here, and how its ranks are started.

mod gloo;
mod mpi;
mod railnet;

use std::path::{Path, PathBuf};
use std::process::Command;

use super::point::{Place, Transport};

/// A library that can do collectives between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Contestant {
    /// This one
    Railnet,
    /// Open MPI
    #[value(name = "openmpi")]
    OpenMpi,
    /// MPICH
    Mpich,
    /// Gloo, through PyTorch
    Gloo,
}

/// Those that a goal is set against together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    Railnet,
    Mpi,
    Gloo,
}

impl Contestant {
    /// The short name, as the options have it.
    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::Railnet => "railnet",
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Gloo => "gloo",
        }
    }

    /// The name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Railnet => "Railnet",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Gloo => "Gloo",
        }
    }

    pub(crate) const fn family(self) -> Family {
        match self {
            Self::Railnet => Family::Railnet,
            Self::OpenMpi | Self::Mpich => Family::Mpi,
            Self::Gloo => Family::Gloo,
        }
    }

    /// Whether it can go that way at all.
    pub(crate) const fn has(self, transport: Transport) -> bool {
        !matches!((self, transport), (Self::Gloo, Transport::SharedMemory))
    }

    /// Finds it and makes what its ranks run. An error says what is missing and how to get it.
    pub(crate) fn prepare(self, folder: &Path, python: &Path) -> anyhow::Result<Ready> {
        match self {
            Self::Railnet => railnet::prepare(),
            Self::OpenMpi => mpi::prepare(mpi::Library::OpenMpi, folder),
            Self::Mpich => mpi::prepare(mpi::Library::Mpich, folder),
            Self::Gloo => gloo::prepare(folder, python),
        }
    }
}

/// A contestant that is here.
pub(crate) enum Ready {
    /// This command starts its ranks.
    Railnet { railnet: PathBuf },
    /// The launcher of a library starts a program that was made with its compiler.
    Mpi { library: mpi::Library, launcher: PathBuf, program: PathBuf },
    /// An interpreter for each rank.
    Gloo { python: PathBuf, script: PathBuf },
}

impl Ready {
    /// What to start so that all ranks connect to the socket. Files that are needed on the way go into the folder.
    pub(crate) fn commands(&self, place: Place, socket: &Path, folder: &Path) -> Vec<Command> {
        match self {
            Self::Railnet { railnet } => vec![railnet::command(railnet, place, socket)],
            Self::Mpi { library, launcher, program } => {
                let mut command = library.command(launcher, place);
                command.arg(program).arg(socket);
                vec![command]
            }
            Self::Gloo { python, script } => gloo::commands(python, script, place, socket, folder),
        }
    }
}

/// Where a program is, if it is on the path.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
