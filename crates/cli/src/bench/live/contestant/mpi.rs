//! Open MPI and MPICH: one program, compiled with each library's own compiler and started by its own launcher.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::{Ready, on_path};
use crate::bench::live::point::{Place, Transport};
use crate::bench::live::weight;

const SOURCE: &str = include_str!("../../../../embedded/peers/mpi.c");

/// Which library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    OpenMpi,
    Mpich,
}

impl Library {
    /// Launchers and compilers that belong together, those that can be nothing else first: where several libraries are
    /// installed, a plain `mpirun` is that of any of them.
    const fn tools(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::OpenMpi => &[("mpirun.openmpi", "mpicc.openmpi"), ("mpirun", "mpicc")],
            Self::Mpich => {
                &[("mpiexec.hydra", "mpicc.mpich"), ("mpiexec.hydra", "mpicc"), ("mpiexec", "mpicc")]
            }
        }
    }

    /// What its launcher says of itself.
    const fn sign(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "HYDRA",
        }
    }

    const fn packages(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi-bin libopenmpi-dev",
            Self::Mpich => "mpich libmpich-dev",
        }
    }

    fn find(self) -> Option<(PathBuf, PathBuf)> {
        self.tools().iter().find_map(|(launcher, compiler)| {
            let (launcher, compiler) = (on_path(launcher)?, on_path(compiler)?);
            let version = Command::new(&launcher).arg("--version").stdin(Stdio::null()).output().ok()?;
            let is_it = String::from_utf8_lossy(&version.stdout).contains(self.sign());
            is_it.then_some((launcher, compiler))
        })
    }

    /// The launcher with its options, up to the program.
    pub(super) fn command(self, launcher: &Path, place: Place) -> Command {
        let mut command = weight::command(launcher);
        let has_cores = railnet_live::host::cores().usable >= place.ranks as usize;
        match self {
            Self::OpenMpi => {
                // Containers run as root, and nothing here is worth its refusal.
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                command.args(["-np", &place.ranks.to_string(), "--mca", "pml", "ob1"]);
                match place.transport {
                    Transport::SharedMemory => command.args(["--mca", "btl", "^tcp"]),
                    Transport::Tcp => {
                        command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"])
                    }
                };
                // More ranks than cores make it yield while it waits, which it needs there.
                command.args(if has_cores {
                    ["--bind-to", "core"].as_slice()
                } else {
                    ["--oversubscribe", "--bind-to", "none"].as_slice()
                });
            }
            Self::Mpich => {
                command.args(["-n", &place.ranks.to_string()]);
                if has_cores {
                    command.args(["-bind-to", "core"]);
                }
                if place.transport == Transport::Tcp {
                    // Otherwise ranks of one host use shared memory whatever UCX is told.
                    command.env("MPIR_CVAR_NOLOCAL", "1");
                    command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", "lo");
                }
            }
        }
        command
    }
}

pub(super) fn prepare(library: Library, folder: &Path) -> anyhow::Result<Ready> {
    let packages = library.packages();
    let (launcher, compiler) =
        library.find().with_context(|| format!("not installed: apt-get install {packages}"))?;
    let source = folder.join("mpi.c");
    let program = folder.join(match library {
        Library::OpenMpi => "openmpi",
        Library::Mpich => "mpich",
    });
    std::fs::write(&source, SOURCE)?;
    let made = Command::new(&compiler).args(["-O3", "-o"]).arg(&program).arg(&source).output()?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        let line = said.lines().find(|line| line.contains("error")).unwrap_or("it does not say why");
        anyhow::bail!("{} cannot compile a program ({line}): apt-get install {packages}", compiler.display());
    }
    Ok(Ready::Mpi { library, launcher, program })
}
