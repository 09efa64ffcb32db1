//! Railnet itself: `railnet run` starts ranks of `railnet perf --serve SOCKET`, which speak the protocol.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::Ready;
use crate::bench::live::point::Place;
use crate::bench::live::weight;

pub(super) fn prepare() -> anyhow::Result<Ready> {
    let railnet = std::env::current_exe().context("cannot tell where this command is")?;
    let mut question = Command::new(&railnet);
    question.args(["perf", "--serve", "socket", "--help"]);
    let has_it = question.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    anyhow::ensure!(has_it.success(), "not built yet: this command has no `perf --serve`");
    Ok(Ready::Railnet { railnet })
}

/// The one place that says how Railnet's own ranks are started.
pub(super) fn command(railnet: &Path, place: Place, socket: &Path) -> Command {
    let mut command = weight::command(railnet);
    command.args(["run", "-n", &place.ranks.to_string(), "--"]);
    command.arg(railnet).args(["perf", "--conduit", place.transport.name(), "--serve"]).arg(socket);
    command
}
