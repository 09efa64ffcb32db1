//! `railnet rdma`: existing RDMA programs on the software NIC.

mod devices;
mod directory;
mod environment;
mod exec;
mod options;
mod sysfs;

use std::io::Write;

use crate::Outcome;

const EXAMPLES: &str = "\
Examples:
  railnet rdma exec -- ib_write_bw                      one shell
  railnet rdma exec -- ib_write_bw 127.0.0.1            another
  railnet rdma exec --drop 0.01 --pcap run.pcapng -- ./my_rdma_test
  eval \"$(railnet rdma env)\"; ibv_devinfo               a whole shell
  railnet rdma devices                                  what programs will find

docs/rdma.md has recipes for perftest, UCX, NCCL, containers and CI.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Run a program with libibverbs and librdmacm of the software NIC
    Exec(exec::Arguments),
    /// Print the lines that do the same for a shell, a Dockerfile, a pod, a CI job
    Env(environment::Arguments),
    /// List the devices that programs find, and what limits them
    Devices(devices::Arguments),
}

impl Arguments {
    /// Whether what it prints is for a shell or a file.
    pub(crate) const fn is_raw(&self) -> bool {
        matches!(self.action, Action::Exec(_) | Action::Env(_))
    }
}

/// `libibverbs.so.1` of this build.
pub(crate) fn verbs_library() -> anyhow::Result<std::path::PathBuf> {
    directory::library(directory::VERBS)
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match &arguments.action {
        Action::Exec(arguments) => exec::run(arguments),
        Action::Env(arguments) => environment::run(arguments, out),
        Action::Devices(arguments) => devices::run(arguments, out),
    }
}
