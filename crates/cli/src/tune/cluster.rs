//! What `--cluster` names.

use std::path::{Path, PathBuf};

use railnet_formats::nccl_topology;
use railnet_topology::Cluster;
use railnet_topology::catalogue::Catalogue;

use crate::sim::problem::File;
use crate::{Usage, input, report, shipped};

/// A cluster by name, or a file that has one.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Name(String),
    File(PathBuf),
}

impl Target {
    /// Reads the argument: a file if there is one, else a name of the catalogue.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        if path.exists() || shipped::find(path).is_some() && railnet_topology::catalogue::host(text).is_none()
        {
            return Ok(Self::File(path.to_owned()));
        }
        let is_file = path.extension().is_some_and(|end| end == "toml" || end == "xml");
        if is_file {
            return Err(format!("there is no file {text}"));
        }
        Ok(Self::Name(text.to_owned()))
    }

    /// The variables of a scenario's `[env]`.
    pub(super) fn variables(&self) -> anyhow::Result<Vec<(String, String)>> {
        match self {
            Self::File(path) if !is_xml(path) => Ok(File::read(path)?.scenario.env.into_iter().collect()),
            _ => Ok(Vec::new()),
        }
    }
}

fn is_xml(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("xml"))
}

/// The cluster that is asked about. Without `--cluster` it is the server of `NCCL_TOPO_FILE`.
pub(crate) fn resolve(
    known: &Catalogue,
    target: Option<&Target>,
    topology_file: Option<&str>,
    nodes: Option<u32>,
) -> anyhow::Result<Cluster> {
    if target.is_some() && topology_file.is_some() {
        report("note: NCCL_TOPO_FILE has no effect, because --cluster says what the servers are");
    }
    let path = match (target, topology_file) {
        (Some(Target::Name(_)), _) if nodes.is_some() => {
            let advice = "--nodes is for topology files: put the number behind the name, as in dgx-h100x8";
            return Err(Usage(advice.to_owned()).into());
        }
        (Some(Target::Name(name)), _) => {
            return known.cluster(name).map_err(|error| Usage(format!("--cluster: {error}")).into());
        }
        (Some(Target::File(path)), _) => path.clone(),
        (None, Some(file)) => PathBuf::from(file),
        (None, None) => {
            let advice = "which cluster? --cluster dgx-h100x8, a scenario, or an NCCL topology file";
            return Err(Usage(advice.to_owned()).into());
        }
    };
    if is_xml(&path) || target.is_none() {
        let name = path.display();
        let text = input::text(&path)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let host = nccl_topology::read(&stem, &text).map_err(|error| Usage(format!("{name}, {error}")))?;
        return Ok(Cluster::new(host, nodes.unwrap_or(1)));
    }
    if nodes.is_some() {
        return Err(Usage(
            "--nodes is for topology files: a scenario says how many servers it has".to_owned(),
        )
        .into());
    }
    let file = File::read(&path)?;
    file.scenario.servers().map_err(|error| file.problem(error))
}
