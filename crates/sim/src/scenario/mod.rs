//! The scenario file: a fabric, its NICs, and the traffic on it. One file for each section.

mod cluster;
mod collective;
mod control;
mod counts;
mod damage;
mod differs;
mod effect;
mod env;
mod error;
mod fabric;
mod failure;
mod faults;
mod files;
mod filled;
mod framing;
mod hosts;
mod identity;
mod interconnect;
mod job;
mod list;
mod lists;
mod names;
mod nic;
mod own;
mod preset;
mod priorities;
mod slowed;
mod switch;
mod topology;
mod trace;
mod traffic;
mod transfer;

use std::collections::BTreeMap;
use std::sync::Arc;

use railnet_coll::CustomAlgorithm;
use railnet_coll::variables::{Source, Variables};
use railnet_core::{Span, without_types};
use railnet_job::file::{
    JobSection, LaunchSection, ModelSection, ParallelSection, ParametersSection, StorageSection,
    TrainingSection,
};
use serde::Deserialize;

pub(crate) use cluster::{ClusterSection, TransportName};
pub(crate) use collective::{Chosen, CollectiveSection};
pub(crate) use damage::SlowInside;
pub use effect::{Inert, WhyInert};
pub use error::{ScenarioError, SourceFile};
pub(crate) use failure::FailureSection;
pub(crate) use faults::{SlowGpu, faults, slow_gpus};
pub use files::Files;
pub use filled::Filled;
pub(crate) use hosts::HostSet;
pub(crate) use identity::{ConnectionSection, Order};
pub use job::{Fidelity, PlacedJob};
pub(crate) use names::HostName;
pub use preset::Preset;
pub(crate) use slowed::Slowed;
pub use topology::{Topology, graph};
use trace::TraceSection;
pub(crate) use traffic::{Common, Traffic};
pub(crate) use transfer::{TransferSection, TransferWay};

use crate::locate;
use crate::written::Written;
use fabric::FabricSection;
use faults::FaultSection;
use nic::NicSection;

/// Nobody looks more often than this whether a run still moves.
const STALL_LEAST: Span = Span::from_us(100);

/// Nobody looks more often than this at links and connections.
const SAMPLE_LEAST: Span = Span::from_ns(100);

/// A scenario as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The root of all randomness.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The kind of network: what is chosen where nothing else is said.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// Catalogues of the user's: files with servers and models besides those that ship.
    #[serde(default)]
    pub catalogue: Vec<String>,
    /// How jobs are run: packet by packet, or by formulas.
    #[serde(default)]
    pub fidelity: Fidelity,
    /// Steps of every job; as `[training]` says by default.
    #[serde(default)]
    pub steps: Option<u32>,
    /// The network between the hosts; rails between the servers of `[cluster]` by default.
    #[serde(default)]
    pub fabric: FabricSection,
    /// The NICs of the hosts.
    #[serde(default)]
    pub nic: NicSection,
    /// What is behind the NICs; by default the data lies there.
    #[serde(default)]
    pub cluster: Option<ClusterSection>,
    /// What is sent.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// What ranks do together, one after the other.
    #[serde(default)]
    pub collective: Vec<CollectiveSection>,
    /// KV caches that move from some GPUs to others, after all collectives.
    #[serde(default)]
    pub transfer: Vec<TransferSection>,
    /// Training jobs, where there are several.
    #[serde(default)]
    pub job: Vec<JobSection>,
    /// What the one job trains.
    #[serde(default)]
    pub model: Option<ModelSection>,
    /// What ranks did, instead of a model.
    #[serde(default)]
    pub trace: Option<TraceSection>,
    /// How it trains that.
    #[serde(default)]
    pub training: Option<TrainingSection>,
    /// How it is spread.
    #[serde(default)]
    pub parallel: Option<ParallelSection>,
    /// What part of the cluster it has.
    #[serde(default)]
    pub launch: Option<LaunchSection>,
    /// Where its checkpoints go.
    #[serde(default)]
    pub storage: Option<StorageSection>,
    /// Parameters that live away from its GPUs.
    #[serde(default)]
    pub parameters: Option<ParametersSection>,
    /// NCCL's variables.
    #[serde(default, deserialize_with = "env::read")]
    pub env: BTreeMap<String, String>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Vec<FaultSection>,
    /// When to give up, in virtual time.
    #[serde(default)]
    pub limit: Option<Written<Span>>,
    /// How long nothing may move while links are held back.
    #[serde(default)]
    pub stall: Option<Written<Span>>,
    /// How often links and connections are looked at, for series over time; never by default.
    #[serde(default)]
    pub sample: Option<Written<Span>>,
    /// The files that it names, and what is in them.
    #[serde(skip)]
    files: BTreeMap<String, Arc<str>>,
    /// The algorithms that it names.
    #[serde(skip)]
    pub(crate) algorithms: BTreeMap<String, Arc<dyn CustomAlgorithm>>,
    /// The variables as they are used: those of the scenario, unless somebody put others over them.
    #[serde(skip)]
    variables: Variables,
    /// Whether jobs may need more memory than there is: they are planned, not run.
    #[serde(skip)]
    is_planned: bool,
    /// The keys that it was written with.
    #[serde(skip)]
    written: Vec<String>,
}

fn default_seed() -> u64 {
    1
}

/// What a scenario says itself of that whose default depends on the rest.
#[derive(Clone, Copy, Default)]
struct Said {
    fabric: bool,
    rate: bool,
}

impl Said {
    fn of(table: &toml::Table) -> Self {
        let link = table.get("fabric").and_then(|fabric| fabric.get("link"));
        let rate = link.and_then(|link| link.get("rate"));
        Self { fabric: table.contains_key("fabric"), rate: rate.is_some() }
    }
}

impl Scenario {
    /// Reads a scenario that names no files.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        Self::parse_with(text, no_files)
    }

    /// Reads a scenario; `files` is asked for what it names.
    pub fn parse_with(text: &str, files: impl Files) -> Result<Self, ScenarioError> {
        Self::read(text, files, false)
    }

    /// Reads a scenario whose jobs are planned, not run: they may need more memory than their GPUs have.
    pub fn parse_to_plan(text: &str, files: impl Files) -> Result<Self, ScenarioError> {
        Self::read(text, files, true)
    }

    fn read(text: &str, files: impl Files, is_planned: bool) -> Result<Self, ScenarioError> {
        let mut scenario: Self = toml::from_str(text).map_err(|error| {
            let message = error.message().to_owned();
            let reread =
                |table: toml::Table| table.try_into::<Self>().err().map(|error| error.message().to_owned());
            let culprit = |span| locate::culprit(text, &span, &message, reread).unwrap_or(span);
            let span = error.span().map(culprit).map(|span| locate::narrowed(text, span, &message));
            ScenarioError { span, ..ScenarioError::new(without_types(&message)) }
        })?;
        scenario.is_planned = is_planned;
        let table: toml::Table = text.parse().unwrap_or_default();
        scenario.written = effect::keys(&table);
        let said = Said::of(&table);
        scenario.finish(files, said).map_err(|error| error.located(text))
    }

    /// Reads a scenario from what its text holds: for those who change it before it is run.
    pub fn from_table(table: toml::Table, files: impl Files) -> Result<Self, ScenarioError> {
        let (said, written) = (Said::of(&table), effect::keys(&table));
        let mut scenario: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| ScenarioError::new(without_types(error.message())))?;
        scenario.written = written;
        scenario.finish(files, said)
    }

    /// Checks it, and reads the files that it names.
    fn finish(mut self, mut files: impl Files, said: Said) -> Result<Self, ScenarioError> {
        self.read_catalogues(&mut files)?;
        self.check()?;
        let variables = Variables::merge([(Source::Scenario, self.variables())])
            .map_err(|error| ScenarioError::new(error.to_string()).at("env"))?;
        self.set_variables(variables);
        for (key, path) in self.file_names() {
            if self.files.contains_key(&path) {
                continue;
            }
            let text = files.text(&path).map_err(|reason| unreadable(&path, &reason).at(&key))?;
            self.files.insert(path, text.into());
        }
        self.read_servers(&mut files)?;
        if !said.rate {
            self.match_links();
        }
        self.lay_rails(said.fabric)?;
        self.shape_servers()?;
        // Some of it follows from how long the paths are.
        self.check_control().map_err(|error| error.within("nic"))?;
        self.read_traces(&mut files)?;
        self.check_jobs()?;
        for (index, section) in self.collective.iter().enumerate() {
            if let Some(path) = &section.file
                && !self.algorithms.contains_key(path)
            {
                let key = format!("collective.{index}.file");
                let read = files.algorithm(path).map_err(|reason| unreadable(path, &reason).at(&key))?;
                self.algorithms.insert(path.clone(), read);
            }
        }
        Ok(self)
    }

    /// The files that it names, each with the key that does.
    fn file_names(&self) -> Vec<(String, String)> {
        let mut names = Vec::new();
        if let Topology::List { file: Some(file), .. } = &self.fabric.topology {
            names.push(("fabric.topology.file".to_owned(), file.clone()));
        }
        for (index, traffic) in self.traffic.iter().enumerate() {
            if let Traffic::List { file, .. } = traffic {
                names.push((format!("traffic.{index}.file"), file.clone()));
            }
        }
        names
    }

    /// A file that it names.
    pub(crate) fn file(&self, path: &str) -> SourceFile {
        let text = self.files.get(path).cloned().unwrap_or_default();
        SourceFile { path: path.to_owned(), text }
    }

    /// Uses these variables of NCCL's, which have been put together from `[env]` and from elsewhere.
    pub fn set_variables(&mut self, variables: Variables) {
        let Some(cluster) = &mut self.cluster else {
            self.variables = variables;
            return;
        };
        // One fact, said by the scenario's own key or by NCCL's variable: the NICs are used through sockets.
        cluster.sockets = variables.uses_sockets();
        let uses_tcp = cluster.transport() == TransportName::Tcp;
        self.variables = if uses_tcp { variables.over_sockets() } else { variables };
    }

    /// NCCL's variables, as they are used.
    pub(crate) fn nccl(&self) -> &Variables {
        &self.variables
    }

    /// Looks at links and connections so often.
    pub fn set_sample(&mut self, interval: Span) -> Result<(), ScenarioError> {
        self.sample = Some(Written(interval));
        self.check()
    }

    fn check(&self) -> Result<(), ScenarioError> {
        if self.limit.is_some_and(|limit| limit.0 == Span::ZERO) {
            return Err(ScenarioError::new("nothing happens in no time: write a `limit` above 0").at("limit"));
        }
        if self.stall.is_some_and(|stall| stall.0 < STALL_LEAST) {
            let message =
                format!("links are held back for microseconds all the time: at least {STALL_LEAST}");
            return Err(ScenarioError::new(message).at("stall"));
        }
        if self.sample.is_some_and(|sample| sample.0 < SAMPLE_LEAST) {
            let message =
                format!("a packet takes longer than that: at least {SAMPLE_LEAST} from sample to sample");
            return Err(ScenarioError::new(message).at("sample"));
        }
        self.fabric.check().map_err(|error| error.within("fabric"))?;
        self.check_framing()?;
        self.nic.check().map_err(|error| error.within("nic"))?;
        if let Some(cluster) = &self.cluster {
            cluster.check().map_err(|error| error.within("cluster"))?;
        }
        self.check_env()?;
        self.check_collectives()?;
        self.check_transfers()?;
        self.ack_dscp().map(|_| ()).map_err(|error| error.within("nic"))
    }
}

fn unreadable(path: &str, reason: &str) -> ScenarioError {
    ScenarioError::new(format!("cannot read {path}: {reason}"))
}

fn no_files(_path: &str) -> Result<String, String> {
    Err("files are not at hand here".to_owned())
}
