//! `railnet topo`: what a fabric or a server amounts to.

mod fabric;
mod host;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use railnet_topology::catalogue;

use crate::sim::problem::File;
use crate::{Outcome, words};

const EXAMPLES: &str = "\
Examples:
  railnet topo scenarios/permutation.toml                  the fabric of a scenario
  railnet topo scenarios/permutation.toml --svg fabric.svg   and a picture of it
  railnet topo scenarios/leaf-spine.toml --links             and every link, by number and ends
  railnet topo dgx-h100                                    the GPUs and NICs of a server";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A scenario (a TOML file), or a server of the catalogue by name
    #[arg(value_name = "FILE|NAME")]
    what: PathBuf,
    /// List every link with its number and the names of its ends
    #[arg(long)]
    links: bool,
    /// Draw the fabric into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write over the picture that is there
    #[arg(long, requires = "svg")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let path = arguments.what.as_path();
    if let Some(server) = path.to_str().and_then(catalogue::host).filter(|_| !path.exists()) {
        ensure!(arguments.svg.is_none(), "--svg draws fabrics: {} is a server", server.name);
        ensure!(!arguments.links, "--links lists the links of fabrics: {} is a server", server.name);
        host::print(&server, arguments.json, out)?;
        return Ok(Outcome::Done);
    }
    if !path.exists() {
        return Err(unknown(path));
    }
    let file = File::read(path)?;
    let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
    fabric::print(&file, &graph, arguments.json, arguments.links, out)?;
    if let Some(picture) = &arguments.svg {
        draw(picture, arguments.force, &railnet_topology::draw(&graph))?;
        if !arguments.json {
            writeln!(out, "  Picture      {}", picture.display())?;
        }
    }
    Ok(Outcome::Done)
}

/// Writes a picture, but not over what somebody may want to keep.
fn draw(path: &Path, is_forced: bool, picture: &str) -> anyhow::Result<()> {
    let name = path.display();
    ensure!(is_forced || !path.exists(), "{name} exists: --force writes over it");
    std::fs::write(path, picture).with_context(|| format!("cannot write {name}"))
}

fn unknown(path: &Path) -> anyhow::Error {
    let name = path.display().to_string();
    let known: Vec<&str> = catalogue::hosts().map(|(name, _)| name).collect();
    let width = known.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut text = format!("there is no file and no server called {name}\n  servers of the catalogue:");
    for (name, title) in catalogue::hosts() {
        let _ = write!(text, "\n    {name:<width$}  {title}");
    }
    if let Some(meant) = words::nearest(&name, &known) {
        let _ = write!(text, "\n  = did you mean \"{meant}\"?");
    }
    text.push_str("\n  = or give a scenario file, such as scenarios/permutation.toml");
    anyhow!(text)
}
