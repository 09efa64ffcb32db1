//! `[trace]`: what ranks did, read from files, instead of a model: a file for each rank, or a recording of a script.

use std::sync::Arc;

use railnet_core::Span;
use railnet_job::compute::{Gpu, NoGpu, Rates as GpuRates};
use railnet_job::file::{Recovery, Resolved};
use railnet_job::graph::Job;
use railnet_job::memory::Memory;
use railnet_job::run::analytic::Rates;
use railnet_job::trace::{Pricing, RankTrace, Recording, RecordingError, TraceError, TraceGraph};
use railnet_job::training::Precision;
use railnet_topology::Cluster;
use serde::Deserialize;

use super::{Files, PlacedJob, Scenario, ScenarioError, unreadable};
use crate::written::Written;

/// What stands for the number of a rank in the name of its file.
const RANK: &str = "{rank}";

/// `[trace]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSection {
    /// The files: `{rank}` stands for the rank.
    #[serde(default)]
    pub files: Option<String>,
    /// What a script did, as `railnet dryrun` recorded it, in the place of files of all ranks.
    #[serde(default)]
    pub recording: Option<String>,
    /// What the CPU takes to start a kernel of a recording.
    #[serde(default)]
    pub launch: Option<Written<Span>>,
    /// How many ranks; one for each GPU by default.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// What the files have.
    #[serde(skip)]
    pub(super) read: Arc<Vec<RankTrace>>,
    /// What the recording has.
    #[serde(skip)]
    pub(super) recorded: Option<Arc<Recording>>,
}

/// What the CPU takes to start a kernel where nothing is said: a round figure for PyTorch without compilation, not a measurement.
pub(super) const LAUNCH: Span = Span::from_us(5);

impl TraceSection {
    /// What reports call it.
    fn name(&self) -> String {
        let path = self.recording.as_ref().or(self.files.as_ref()).map_or("", String::as_str);
        let name = path.rsplit('/').next().unwrap_or(path);
        let name = name.trim_end_matches(".et").trim_end_matches(".json");
        name.replace(RANK, "").trim_matches(['.', '-', '_']).to_owned()
    }
}

impl Scenario {
    /// Reads the traces, where there are any.
    pub(super) fn read_traces(&mut self, files: &mut impl Files) -> Result<(), ScenarioError> {
        let Some(section) = &self.trace else { return Ok(()) };
        let wrong = |message: String, key: &str| Err(ScenarioError::new(message).at(key));
        let (read, recorded) = match (&section.files, &section.recording) {
            (Some(pattern), None) => {
                if section.launch.is_some() {
                    let message = "traces say when everything began: `launch` is for a `recording`";
                    return wrong(message.to_owned(), "trace.launch");
                }
                (self.read_ranks(section, pattern, files)?, None)
            }
            (None, Some(path)) => {
                let read = files.recording(path);
                let read = read.map_err(|why| unreadable(path, &why).at("trace.recording"))?;
                if section.ranks.is_some_and(|ranks| ranks != read.ranks) {
                    let message = format!("the recording is of {} ranks: leave `ranks` out", read.ranks);
                    return wrong(message, "trace.ranks");
                }
                self.check_ranks(read.ranks, "trace.recording")?;
                (Vec::new(), Some(Arc::new(read)))
            }
            _ => {
                let message = "[trace] needs `files`, one for each rank, or a `recording` of railnet dryrun";
                return wrong(message.to_owned(), "trace");
            }
        };
        if let Some(section) = &mut self.trace {
            section.read = Arc::new(read);
            section.recorded = recorded;
        }
        Ok(())
    }

    fn check_ranks(&self, ranks: u32, key: &str) -> Result<(), ScenarioError> {
        let cluster = self.servers()?;
        if whole_servers(&cluster, ranks).is_some() {
            return Ok(());
        }
        let servers = match cluster.ranks().each() {
            Some(each) => format!("{} servers of {each} GPUs", cluster.nodes),
            None => format!("{} GPUs in {} servers", cluster.gpus(), cluster.nodes),
        };
        let message = format!("the cluster has {servers}: {ranks} ranks do not fill whole servers of it");
        Err(ScenarioError::new(message).at(key))
    }

    fn read_ranks(
        &self,
        section: &TraceSection,
        pattern: &str,
        files: &mut impl Files,
    ) -> Result<Vec<RankTrace>, ScenarioError> {
        if !pattern.contains(RANK) {
            let message = format!("each rank has a file of its own: write {RANK} where its number stands");
            return Err(ScenarioError::new(message).at("trace.files"));
        }
        let ranks = match section.ranks {
            Some(ranks) => ranks,
            None => self.servers()?.gpus(),
        };
        self.check_ranks(ranks, "trace.ranks")?;
        let mut read = Vec::new();
        for rank in 0..ranks {
            let path = pattern.replace(RANK, &rank.to_string());
            read.push(files.trace(&path).map_err(|why| unreadable(&path, &why).at("trace.files"))?);
        }
        Ok(read)
    }

    /// The job that the traces make.
    pub(super) fn traced(&self, section: &TraceSection) -> Result<PlacedJob, ScenarioError> {
        let all = self.servers()?;
        let recorded = section.recorded.as_ref();
        let ranks = recorded.map_or(section.read.len() as u32, |recording| recording.ranks);
        let mut cluster = all.part(0, whole_servers(&all, ranks).unwrap_or(all.nodes));
        if ranks < cluster.gpus() {
            // Part of one server: the others of its GPUs have nothing to do.
            let local: Vec<u32> = (0..ranks).collect();
            cluster = Cluster::new(cluster.host_of(0).with_gpus(&local), 1);
        }
        let no_gpu = |error: NoGpu| ScenarioError::new(error.to_string()).at("cluster.server");
        let gpu = Gpu::of(&cluster.host, Precision::Bf16).map_err(no_gpu)?;
        let job = match recorded {
            Some(recording) => {
                let rates = GpuRates::of(&cluster.host).map_err(no_gpu)?;
                let launch = section.launch.as_ref().map_or(LAUNCH, |launch| launch.0);
                let at = |error: RecordingError| ScenarioError::new(error.to_string()).at("trace.recording");
                let made = TraceGraph::of_recording(recording, &Pricing { rates, launch });
                let (graph, parallel) = made.map_err(at)?;
                Job::of_recording(graph, parallel, gpu)
            }
            None => {
                let at = |error: TraceError| ScenarioError::new(error.to_string()).at("trace.files");
                let graph = TraceGraph::new(&section.read, &gpu).map_err(at)?;
                Job::of_trace(graph, ranks, gpu)
            }
        };
        let resolved = Resolved {
            name: section.name(),
            job,
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
