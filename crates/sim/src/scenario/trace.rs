//! `[trace]`: what ranks did, read from files, instead of a model.

use std::sync::Arc;

use railnet_job::compute::Gpu;
use railnet_job::file::{Recovery, Resolved};
use railnet_job::graph::Job;
use railnet_job::memory::Memory;
use railnet_job::run::analytic::Rates;
use railnet_job::trace::{RankTrace, TraceGraph};
use railnet_job::training::Precision;
use railnet_topology::Cluster;
use serde::Deserialize;

use super::{Files, PlacedJob, Scenario, ScenarioError, unreadable};

/// What stands for the number of a rank in the name of its file.
const RANK: &str = "{rank}";

/// `[trace]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSection {
    /// The files: `{rank}` stands for the rank.
    pub files: String,
    /// How many ranks; one for each GPU by default.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// What they have.
    #[serde(skip)]
    pub(super) read: Arc<Vec<RankTrace>>,
}

impl TraceSection {
    fn file(&self, rank: u32) -> String {
        self.files.replace(RANK, &rank.to_string())
    }

    /// What reports call it.
    fn name(&self) -> String {
        let name = self.files.rsplit('/').next().unwrap_or(&self.files);
        name.trim_end_matches(".et").replace(RANK, "").trim_matches(['.', '-', '_']).to_owned()
    }
}

impl Scenario {
    /// Reads the traces, where there are any.
    pub(super) fn read_traces(&mut self, files: &mut impl Files) -> Result<(), ScenarioError> {
        let Some(section) = &self.trace else { return Ok(()) };
        let wrong = |message: String, key: &str| Err(ScenarioError::new(message).at(key));
        if !section.files.contains(RANK) {
            let message = format!("each rank has a file of its own: write {RANK} where its number stands");
            return wrong(message, "trace.files");
        }
        let cluster = self.servers()?;
        let ranks = section.ranks.unwrap_or(cluster.gpus());
        if whole_servers(&cluster, ranks).is_none() {
            let servers = match cluster.ranks().each() {
                Some(each) => format!("{} servers of {each} GPUs", cluster.nodes),
                None => format!("{} GPUs in {} servers", cluster.gpus(), cluster.nodes),
            };
            let message = format!("the cluster has {servers}: {ranks} ranks do not fill whole servers of it");
            return wrong(message, "trace.ranks");
        }
        let mut read = Vec::new();
        for rank in 0..ranks {
            let path = section.file(rank);
            read.push(files.trace(&path).map_err(|why| unreadable(&path, &why).at("trace.files"))?);
        }
        if let Some(section) = &mut self.trace {
            section.read = Arc::new(read);
        }
        Ok(())
    }

    /// The job that the traces make.
    pub(super) fn traced(&self, section: &TraceSection) -> Result<PlacedJob, ScenarioError> {
        let all = self.servers()?;
        let ranks = section.read.len() as u32;
        let mut cluster = all.part(0, whole_servers(&all, ranks).unwrap_or(all.nodes));
        if ranks < cluster.gpus() {
            // Part of one server: the others of its GPUs have nothing to do.
            let local: Vec<u32> = (0..ranks).collect();
            cluster = Cluster::new(cluster.host_of(0).with_gpus(&local), 1);
        }
        let at = |message: String| ScenarioError::new(message).at("trace.files");
        let gpu = Gpu::of(&cluster.host, Precision::Bf16)
            .map_err(|error| ScenarioError::new(error.to_string()).at("cluster.server"))?;
        let graph = TraceGraph::new(&section.read, &gpu).map_err(|error| at(error.to_string()))?;
        let resolved = Resolved {
            name: section.name(),
            job: Job::of_trace(graph, ranks, gpu),
            memory: Memory::default(),
            steps: self.steps.unwrap_or(1),
            checkpoint: None,
            rates: Rates::default(),
            recovery: Recovery::default(),
            nodes: cluster.nodes,
        };
        Ok(PlacedJob {
            resolved,
            cluster,
            whole: Arc::new(all),
            first_node: 0,
            homes: None,
            spares: 0,
            servers: 0..0,
            storage: 0..0,
        })
    }
}

/// How many servers so many ranks fill; one for fewer than its GPUs. Nothing where some of the GPUs of the last would be left.
fn whole_servers(cluster: &Cluster, ranks: u32) -> Option<u32> {
    if ranks == 0 || ranks > cluster.gpus() {
        return None;
    }
    let last = cluster.ranks().node_of(ranks - 1);
    (last == 0 || cluster.ranks().range(last).end == ranks).then_some(last + 1)
}
