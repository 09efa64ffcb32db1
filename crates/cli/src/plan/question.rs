//! What is asked: a file with jobs, or a job in options.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use railnet_coll::variables::{Place, Variables};
use railnet_core::Bytes;
use railnet_job::file::{
    FileError, JobSection, ModelSection, ParallelSection, RecomputeName, Resolved, TrainingSection, Written,
};
use railnet_job::plan::{Ground, model_of};
use railnet_job::run::analytic::Interconnect;
use railnet_sim::{Fidelity, Inert, PlacedJob, Scenario, Topology};
use railnet_topology::Cluster;
use railnet_topology::catalogue::Catalogue;

use super::Arguments;
use crate::sim::problem::{self, File};
use crate::{Usage, environment};

/// A job in options.
#[derive(clap::Args)]
pub(super) struct Flags {
    /// The model, of the catalogue, such as llama-3-70b
    #[arg(long, value_name = "NAME", conflicts_with = "params")]
    model: Option<String>,
    /// Its parameters, such as 70B, where it has no name: it is shaped like the nearest of the catalogue
    #[arg(long, value_name = "N", value_parser = parameters)]
    params: Option<u64>,
    /// GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 19))]
    gpus: Option<u32>,
    /// The servers, such as dgx-h100, or with how many of them, as in dgx-h100x8
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// GPUs that share each matrix
    #[arg(long, value_name = "N")]
    tp: Option<u32>,
    /// Stages of the pipeline
    #[arg(long, value_name = "N")]
    pp: Option<u32>,
    /// GPUs that share each sequence
    #[arg(long, value_name = "N")]
    cp: Option<u32>,
    /// Data-parallel ranks that share the experts
    #[arg(long, value_name = "N")]
    ep: Option<u32>,
    /// What data-parallel ranks share out: 0 nothing, 1 the optimiser, 2 gradients too, 3 parameters too (FSDP)
    #[arg(long, value_name = "N")]
    zero: Option<u8>,
    /// Sequence parallelism beside --tp
    #[arg(long)]
    sp: bool,
    /// Sequences of a step; one for each GPU by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    batch: Option<u64>,
    /// Sequences that a GPU computes with at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    micro_batch: Option<u64>,
    /// Tokens of a sequence, instead of the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    sequence: Option<u64>,
    /// Bytes of gradients that are reduced together, such as 200MiB
    #[arg(long, value_name = "SIZE")]
    bucket: Option<Bytes>,
    /// What is computed again at least: none, selective or full
    #[arg(long, value_name = "WHAT", value_parser = recompute)]
    recompute: Option<RecomputeName>,
}

/// A job, and where it is to run.
pub(super) struct Subject {
    /// The file, or what was asked for.
    pub(super) title: String,
    pub(super) resolved: Resolved,
    pub(super) cluster: Cluster,
    pub(super) variables: Variables,
    pub(super) gpudirect: bool,
    /// The network between the servers, where a file describes it.
    pub(super) interconnect: Option<Arc<Interconnect>>,
    /// Keys and variables that have no effect on a plan.
    pub(super) inert: Vec<Inert>,
    /// Whether the NICs of the same number are on one leaf, as far as the fabric is known.
    pub(super) has_rails: bool,
    /// What is not counted.
    pub(super) notes: Vec<String>,
}

pub(super) fn subjects(arguments: &Arguments) -> anyhow::Result<Vec<Subject>> {
    match &arguments.file {
        Some(path) => from_file(path, arguments.env_file.as_deref()),
        None => from_flags(arguments).map(|subject| vec![subject]),
    }
}

fn from_file(path: &Path, env_file: Option<&Path>) -> anyhow::Result<Vec<Subject>> {
    let mut file = File::read_to_plan(path)?;
    if file.scenario.model.is_none() && file.scenario.job.is_empty() {
        let name = path.display();
        return Err(Usage(format!("{name} has no job: a plan is for scenarios with a [model]")).into());
    }
    let variables = environment::variables(Place::Plan, file.scenario.variables(), env_file, Vec::new())?;
    if let Some(path) = variables.topology_file() {
        let server = problem::server(Path::new(path)).with_context(|| format!("NCCL_TOPO_FILE={path}"))?;
        file.scenario.set_server(server);
    }
    file.scenario.set_variables(variables.clone());
    // A plan is made by formulas, whatever a run would be.
    file.scenario.fidelity = Fidelity::Analytic;
    let inert = file.scenario.without_effect();
    let jobs = file.scenario.jobs().map_err(|error| file.problem(error))?;
    let mut notes = notes(&file.scenario, &jobs);
    notes.extend(jobs.iter().filter_map(PlacedJob::straddling));
    let has_rails = matches!(file.scenario.fabric.topology, Topology::RailOptimised { .. });
    let gpudirect = file.scenario.cluster.as_ref().is_none_or(|cluster| cluster.gpudirect);
    let subjects = jobs.into_iter().map(|placed| {
        let interconnect = file.scenario.interconnect(&placed).map_err(|error| file.problem(error))?;
        Ok(Subject {
            title: file.path.clone(),
            resolved: placed.resolved,
            cluster: placed.cluster,
            variables: variables.clone(),
            gpudirect,
            interconnect: Some(Arc::new(interconnect)),
            inert: inert.clone(),
            has_rails,
            notes: notes.clone(),
        })
    });
    subjects.collect()
}

/// What a file says that a plan does not count.
fn notes(scenario: &Scenario, jobs: &[PlacedJob]) -> Vec<String> {
    let is_uneven = jobs.iter().any(|placed| placed.cluster.is_uneven());
    let is_mixed = jobs.iter().any(|placed| !placed.cluster.unlike.is_empty()) && !is_uneven;
    let all = [
        (!scenario.faults.is_empty(), "faults are left out: railnet sim prices them"),
        (
            is_mixed,
            "bandwidth available is that of the first kind of servers; steps wait for the slowest kind",
        ),
        (
            is_uneven,
            "bandwidth available is that of the servers whose NICs carry least together: every ring passes them",
        ),
        (jobs.len() > 1, "each job is planned as if it had the network alone"),
    ];
    all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, note)| note.to_owned()).collect()
}

fn from_flags(arguments: &Arguments) -> anyhow::Result<Subject> {
    let flags = &arguments.flags;
    if flags.model.is_none() && flags.params.is_none() {
        let advice = "which job? A file, or --model llama-3-70b --gpus 64, or --params 70B --gpus 64";
        return Err(Usage(advice.to_owned()).into());
    }
    let variables =
        environment::variables(Place::Plan, Vec::new(), arguments.env_file.as_deref(), Vec::new())?;
    let known = arguments.catalogue.read()?;
    let cluster = flags.cluster(&known.servers, variables.topology_file())?;
    let mut section = flags.section(cluster.gpus());
    if !arguments.catalogue.is_empty() {
        known.describe(&mut section.model);
    }
    let mut resolved = section.lay_out(&cluster).map_err(told)?;
    if let Some(parameters) = flags.params {
        resolved.name = format!("a model {}", model_of(parameters).name);
    }
    Ok(Subject {
        title: "options".to_owned(),
        resolved,
        cluster,
        variables,
        gpudirect: true,
        interconnect: None,
        inert: Vec::new(),
        has_rails: true,
        notes: vec!["no fabric is described: switches are taken to carry whatever NICs send".to_owned()],
    })
}

/// What is wrong with options, in their words.
fn told(error: FileError) -> anyhow::Error {
    let meant = error.meant.map(|meant| format!("; did you mean \"{meant}\"?")).unwrap_or_default();
    Usage(format!("{}{meant}", error.message)).into()
}

impl Flags {
    fn section(&self, gpus: u32) -> JobSection {
        let model = match (&self.model, self.params) {
            (Some(name), _) => ModelSection { name: Some(name.clone()), ..ModelSection::default() },
            (None, Some(parameters)) => {
                let shape = model_of(parameters);
                let like = shape.name.trim_start_matches("like ").to_owned();
                ModelSection {
                    name: Some(like),
                    layers: Some(shape.layers),
                    vocabulary: Some(shape.vocabulary),
                    ..ModelSection::default()
                }
            }
            (None, None) => ModelSection::default(),
        };
        let usual = (TrainingSection::default(), ParallelSection::default());
        let micro_batch = self.micro_batch.unwrap_or(usual.0.micro_batch);
        JobSection {
            model: ModelSection { sequence: self.sequence, ..model },
            training: TrainingSection {
                micro_batch,
                global_batch: Some(self.batch.unwrap_or(u64::from(gpus) * micro_batch)),
                recompute: self.recompute.unwrap_or(usual.0.recompute),
                ..usual.0
            },
            parallel: ParallelSection {
                tp: self.tp.unwrap_or(1),
                pp: self.pp.unwrap_or(1),
                cp: self.cp.unwrap_or(1),
                ep: self.ep.unwrap_or(1),
                zero: self.zero.unwrap_or(0),
                sp: self.sp,
                bucket: self.bucket.map_or(usual.1.bucket, Written),
                ..usual.1
            },
            ..JobSection::default()
        }
    }

    /// The servers: as many as have so many GPUs.
    fn cluster(&self, known: &Catalogue, topology_file: Option<&str>) -> anyhow::Result<Cluster> {
        cluster_of(known, self.cluster.as_deref(), self.gpus, topology_file)
    }
}

/// The variables of the environment, as a plan takes them.
pub(crate) fn ground_of(cluster: &Cluster) -> anyhow::Result<Ground<'_>> {
    let variables = environment::variables(Place::Plan, Vec::new(), None, Vec::new())?;
    let (settings, options) = (variables.settings(), variables.topology());
    Ok(Ground { settings, options, ..Ground::plain(cluster) })
}

/// Servers by name, as many as have so many GPUs.
pub(crate) fn cluster_of(
    known: &Catalogue,
    cluster: Option<&str>,
    gpus: Option<u32>,
    topology_file: Option<&str>,
) -> anyhow::Result<Cluster> {
    let named = match (cluster, topology_file) {
        (None, Some(path)) => {
            let server = problem::server(Path::new(path));
            Cluster::new(server.with_context(|| format!("NCCL_TOPO_FILE={path}"))?, 1)
        }
        (name, _) => {
            let name = name.unwrap_or("dgx-h100");
            known.cluster(name).map_err(|error| Usage(format!("--cluster: {error}")))?
        }
    };
    let each = named.ranks().count(0);
    if each == 0 {
        return Err(Usage(format!("--cluster: {} has no GPUs to train on", named.host.name)).into());
    }
    let Some(gpus) = gpus else {
        if named.nodes == 1 && cluster.is_none() {
            return Err(Usage("how many GPUs? --gpus 64, or --cluster dgx-h100x8".to_owned()).into());
        }
        return Ok(named);
    };
    if named.nodes > 1 && gpus != named.gpus() {
        let message = format!(
            "{} has {} GPUs, not {gpus}: leave --gpus or the number of servers out",
            named.name,
            named.gpus()
        );
        return Err(Usage(message).into());
    }
    if gpus < each {
        let few: Vec<u32> = (0..gpus).collect();
        return Ok(Cluster::new(named.host.with_gpus(&few), 1));
    }
    if !gpus.is_multiple_of(each) {
        let (less, more) = (gpus / each * each, gpus.next_multiple_of(each));
        let message = format!(
            "{} has {each} GPUs, and {gpus} are no whole servers: {less} or {more} would do",
            named.host.name
        );
        return Err(Usage(message).into());
    }
    Ok(Cluster::new(named.host, gpus / each))
}

/// Reads 70B, 7.5B, 400M.
fn parameters(text: &str) -> Result<u64, String> {
    let advice = || format!("\"{text}\" is no number of parameters: write it as 70B, 7.5B or 400M");
    let units = [('K', 1e3), ('M', 1e6), ('B', 1e9), ('T', 1e12)];
    let last = text.trim().chars().last().map(|letter| letter.to_ascii_uppercase());
    let (letter, unit) = units.into_iter().find(|(letter, _)| Some(*letter) == last).ok_or_else(advice)?;
    let number = text.trim().trim_end_matches([letter, letter.to_ascii_lowercase()]).trim();
    let number: f64 = number.parse().map_err(|_| advice())?;
    let count = number * unit;
    if !(1e6..=1e14).contains(&count) {
        return Err(format!("a model has 1M to 100T parameters, not {text}"));
    }
    Ok(count.round() as u64)
}

fn recompute(text: &str) -> Result<RecomputeName, String> {
    match text {
        "none" => Ok(RecomputeName::None),
        "selective" => Ok(RecomputeName::Selective),
        "full" => Ok(RecomputeName::Full),
        _ => Err("write none, selective or full".to_owned()),
    }
}
