//! Gloo through `torch.distributed`: an interpreter for each rank.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Ready;
use crate::bench::live::point::Place;
use crate::bench::live::weight;

const SOURCE: &str = include_str!("../../../../embedded/peers/gloo.py");

pub(super) fn prepare(folder: &Path, python: &Path) -> anyhow::Result<Ready> {
    let name = python.display();
    let mut question = Command::new(python);
    // Whether the package is there, without the many seconds of loading it.
    question.args(["-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"]);
    let has_it = question.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    anyhow::ensure!(
        has_it.is_ok_and(|status| status.success()),
        "{name} has no torch: pip install torch, or name an interpreter that has it with --python"
    );
    let script = folder.join("gloo.py");
    std::fs::write(&script, SOURCE)?;
    Ok(Ready::Gloo { python: python.to_owned(), script })
}

pub(super) fn commands(
    python: &Path,
    script: &Path,
    place: Place,
    socket: &Path,
    folder: &Path,
) -> Vec<Command> {
    let meeting = folder.join(format!("gloo-{}-{}", place.ranks, place.transport.name()));
    (0..place.ranks)
        .map(|rank| {
            let mut command = weight::command(python);
            command.arg(script).arg(socket);
            command.args([rank.to_string(), place.ranks.to_string()]).arg(&meeting);
            command.env("GLOO_SOCKET_IFNAME", "lo").env("CUDA_VISIBLE_DEVICES", "");
            command
        })
        .collect()
}
