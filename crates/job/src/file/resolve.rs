//! From sections to a job that can run.

use std::ops::Range;

use railnet_core::limits::STEPS_MAX;
use railnet_core::{Bytes, Rate, Span};
use railnet_topology::Cluster;
use railnet_topology::host::{DeviceKind, Host};

use super::JobSection;
use super::error::FileError;
use crate::compute::{Gpu, NoGpu};
use crate::graph::{Job, Other};
use crate::memory::{Memory, fit, memory};
use crate::plan::paced_by_pass;
use crate::run::analytic::{NIC_PERCENT, Rates};
use crate::training::Precision;

/// PyTorch's timeout for collectives of NCCL (torch.distributed, `init_process_group`: 10 minutes).
const TIMEOUT: Span = Span::from_secs(600);
/// Scheduling, starting processes and meeting again. A round figure: with checks of the hardware MegaScale took less than 10 minutes
/// until it went on (arXiv 2402.15627, section 6.3).
const RESTART: Span = Span::from_secs(300);

/// What getting over a failure takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// Until ranks give up waiting for one that is lost.
    pub timeout: Span,
    /// From then on, until all ranks are there again.
    pub restart: Span,
    /// Reading the checkpoint; nothing where there is none.
    pub read: Span,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { timeout: TIMEOUT, restart: RESTART, read: Span::ZERO }
    }
}

/// A job on its cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct Resolved {
    /// What it is called.
    pub name: String,
    /// The job. Its steps write no checkpoint: those that do have `checkpoint` in its place.
    pub job: Job,
    /// What lies in the memory of a GPU.
    pub memory: Memory,
    /// How many steps it has.
    pub steps: u32,
    /// After how many steps a checkpoint is written, and what each rank writes then.
    pub checkpoint: Option<(u32, Bytes)>,
    /// Rates of servers and storage.
    pub rates: Rates,
    /// What getting over a failure takes.
    pub recovery: Recovery,
    /// Nodes that it runs on.
    pub nodes: u32,
}

/// Ranks on the servers of a cluster that are unlike its first kind. Where servers have unlike numbers of GPUs, those on the
/// first kind are told apart too: which of them are on one server depends on all before.
pub fn others(cluster: &Cluster, precision: Precision) -> Result<Vec<Other>, NoGpu> {
    let kinds = cluster.kinds();
    let mut found: Vec<Other> = Vec::new();
    let is_even = cluster.ranks().each().is_some();
    let nodes: Vec<u32> =
        if is_even { cluster.unlike.keys().copied().collect() } else { (0..cluster.nodes).collect() };
    for node in nodes {
        let (host, ranks) = (cluster.host_of(node), cluster.ranks().range(node));
        if ranks.is_empty() {
            continue;
        }
        let kind = kinds.iter().position(|kind| *kind == host).unwrap_or_default() as u32;
        match found.last_mut() {
            Some(last) if last.kind == kind && last.ranks.end == ranks.start => last.ranks.end = ranks.end,
            _ => {
                let per_node = ranks.end - ranks.start;
                found.push(Other { ranks, gpu: Gpu::of(host, precision)?, kind, per_node });
            }
        }
    }
    Ok(found)
}

/// A job whose GPUs have memory for it.
fn fitted(resolved: Resolved) -> Result<Resolved, FileError> {
    let Job { model, parallel, training, gpu, others, servers, .. } = &resolved.job;
    let all = std::iter::once(gpu).chain(others.iter().map(|other| &other.gpu));
    let smallest = all.min_by_key(|gpu| gpu.memory).unwrap_or(gpu);
    let has = (smallest.name.as_str(), smallest.memory);
    fit(model, parallel, training, *servers, has).map_err(|refusal| FileError {
        memory: Some(refusal.clone()),
        ..FileError::new("model", refusal.to_string())
    })?;
    Ok(resolved)
}

impl JobSection {
    /// The job that is meant, on a cluster whose GPUs have memory for it.
    pub fn resolve(&self, cluster: &Cluster) -> Result<Resolved, FileError> {
        fitted(self.lay_out(cluster)?)
    }

    /// The job that is meant, on all nodes of a cluster: those that have parameters or storage are elsewhere.
    pub fn resolve_on(&self, cluster: &Cluster) -> Result<Resolved, FileError> {
        if cluster.gpus() == 0 {
            return Err(no_gpus(cluster));
        }
        fitted(self.lay_out_on(cluster, (self.rates(cluster, cluster.nodes), None))?)
    }

    /// The job that is meant, on a cluster, whether or not its GPUs have memory for it.
    pub fn lay_out(&self, cluster: &Cluster) -> Result<Resolved, FileError> {
        if cluster.gpus() == 0 {
            return Err(no_gpus(cluster));
        }
        self.servers()?;
        let nodes = self.nodes(cluster)?;
        let storage = beside(cluster, self.nodes_beside_from(nodes).1, None);
        self.lay_out_on(&cluster.part(0, nodes), (self.rates(cluster, nodes), storage))
    }

    /// The job on all nodes of a cluster, with what the NICs of nodes with the storage carry where those are unlike the others.
    fn lay_out_on(
        &self,
        cluster: &Cluster,
        (rates, storage): (Rates, Option<Rate>),
    ) -> Result<Resolved, FileError> {
        let servers = self.servers()?;
        let ranks = cluster.gpus();
        let model = self.model.resolve()?;
        let parallel = self.parallel.resolve(ranks)?;
        let batch = u64::from(parallel.data) * u64::from(parallel.pipeline);
        let batch = batch.saturating_mul(self.training.micro_batch);
        let training = self.training.resolve(batch);
        parallel
            .check(ranks, &model, training.global_batch, training.micro_batch)
            .map_err(|error| FileError::new("parallel", error.to_string()))?;
        if self.training.steps == 0 {
            return Err(FileError::new("training.steps", "a job has at least one step"));
        }
        if self.training.steps > STEPS_MAX {
            let message = format!("{} steps are too many: {STEPS_MAX} is the limit", self.training.steps);
            return Err(FileError::new("training.steps", message));
        }
        let no_gpu = |error: NoGpu| FileError::new("cluster.server", error.to_string());
        let gpu = Gpu::of(&cluster.host, training.precision).map_err(no_gpu)?;
        let others = others(cluster, training.precision).map_err(no_gpu)?;
        let memory = memory(&model, &parallel, &training, servers);
        let state = model.parameters() * (training.precision.bytes() + training.optimiser_bytes());
        let name = self.name.clone().unwrap_or_else(|| model.name.clone());
        let mut job = Job::new(model, parallel, training, gpu);
        job.others = others;
        job.hot_expert = self.parallel.hot_expert;
        job.servers = servers;
        let (forward, backward) = self.training.passes()?;
        let job = paced_by_pass(&job, forward, backward);
        let checkpoint = self.checkpoint(state, ranks)?;
        Ok(Resolved {
            name,
            memory,
            steps: self.training.steps,
            recovery: self.recovery(cluster, checkpoint, (rates, storage)),
            nodes: cluster.nodes,
            checkpoint,
            rates,
            job,
        })
    }

    fn recovery(
        &self,
        cluster: &Cluster,
        checkpoint: Option<(u32, Bytes)>,
        (rates, storage): (Rates, Option<Rate>),
    ) -> Recovery {
        let read = self.storage.and_then(|storage| storage.read);
        let read = match rates.storage_servers {
            0 => read.map(|read| self.through_host(cluster, read.0)).or(rates.storage),
            // All servers together, through their NICs.
            servers => read.map(|read| read.0).or(rates.storage).map(|rate| {
                let each = rate.min(storage.unwrap_or_else(|| nics_of(&cluster.host)));
                Rate::from_bps(each.as_bps().saturating_mul(u64::from(servers)))
            }),
        };
        // Nodes read from their own drives at the same time, and the one with most ranks has most to read.
        let together = if rates.storage_servers > 0 { cluster.gpus() } else { cluster.ranks().most() };
        let bytes = checkpoint.map(|(_, each)| each * u64::from(together));
        let read = read.zip(bytes).map_or(Span::ZERO, |(rate, bytes)| rate.serialize(bytes));
        Recovery {
            timeout: self.launch.timeout.map_or(TIMEOUT, |timeout| timeout.0),
            restart: self.launch.restart.map_or(RESTART, |restart| restart.0),
            read,
        }
    }

    /// Nodes that it runs on, the first of the cluster.
    fn nodes(&self, cluster: &Cluster) -> Result<u32, FileError> {
        let nodes = cluster.nodes;
        let spares = self.launch.spares;
        if spares >= nodes {
            let message =
                format!("the cluster has {nodes} nodes for this job, and {spares} are none to run on");
            return Err(FileError::new("launch.spares", message));
        }
        let servers = self.nodes_beside();
        let wanted = self.launch.nodes.unwrap_or((nodes - spares).saturating_sub(servers));
        self.check_beside(cluster, wanted)?;
        if wanted.checked_add(spares).is_some_and(|all| wanted > 0 && all > nodes && wanted <= nodes) {
            let message = format!("{wanted} nodes and {spares} spares are more than the cluster's {nodes}");
            return Err(FileError::new("launch.spares", message));
        }
        if wanted == 0 || wanted > nodes {
            let message =
                format!("the cluster has {nodes} nodes, and 1 to {nodes} can be asked for, not {wanted}");
            return Err(FileError::new("launch.nodes", message));
        }
        let mine = cluster.part(0, wanted);
        if mine.gpus() == 0 {
            let message = format!(
                "the first {wanted} nodes of the cluster have no GPUs to train on: ask for more, or put those that have some first"
            );
            return Err(FileError::new("launch.nodes", message));
        }
        let has = |asked: &u32| (0..wanted).all(|node| [0, *asked].contains(&mine.ranks().count(node)));
        if let Some(asked) = self.launch.ranks_per_node.filter(|asked| !has(asked)) {
            let message = match mine.ranks().each() {
                Some(each) => {
                    format!("a node has {each} GPUs, and each rank needs one: ask for 1 to {each}")
                }
                None => format!(
                    "not every node has {asked} GPUs ({}), and each rank needs one: ask for fewer, or leave it out for a rank on each",
                    counted(&mine)
                ),
            };
            return Err(FileError::new("launch.ranks_per_node", message));
        }
        Ok(wanted)
    }

    /// Nodes that have parameters or storage.
    pub fn nodes_beside(&self) -> u32 {
        let parameters = self.parameters.map_or(0, |parameters| parameters.servers);
        parameters.saturating_add(self.storage.map_or(0, |storage| storage.servers))
    }

    /// The nodes that have parameters and those that have the storage, behind so many for ranks and the spares.
    fn nodes_beside_from(&self, nodes: u32) -> (Range<u32>, Range<u32>) {
        let first = nodes + self.launch.spares;
        let next = first + self.parameters.map_or(0, |parameters| parameters.servers);
        (first..next, next..next + self.storage.map_or(0, |storage| storage.servers))
    }

    /// Whether there are nodes for parameters and storage beside so many for ranks, and the spares.
    fn check_beside(&self, cluster: &Cluster, wanted: u32) -> Result<(), FileError> {
        let (nodes, servers, spares) = (cluster.nodes, self.nodes_beside(), self.launch.spares);
        let all = wanted.saturating_add(servers).saturating_add(spares);
        if servers == 0 || wanted > nodes || wanted > 0 && all <= nodes {
            return Ok(());
        }
        let key = if self.parameters.is_some() { "parameters.servers" } else { "storage.servers" };
        let needed = wanted.max(1).saturating_add(servers).saturating_add(spares);
        let kept = if spares > 0 { format!(", {spares} spares") } else { String::new() };
        let message = format!(
            "the cluster has {nodes} nodes for this job, and it needs {needed}: {servers} that have parameters or storage{kept} \
             and {} for ranks: give [cluster] more `nodes`",
            wanted.max(1)
        );
        Err(FileError::new(key, message))
    }

    fn servers(&self) -> Result<Option<u32>, FileError> {
        match self.parameters {
            Some(parameters) if parameters.servers == 0 => {
                Err(FileError::new("parameters.servers", "at least one server has the parameters"))
            }
            Some(_) if self.parallel.zero > 0 || self.parallel.fsdp => {
                let message = "parameters that live on servers are not shared out among GPUs: leave `zero` and `fsdp` out";
                Err(FileError::new("parameters", message))
            }
            parameters => Ok(parameters.map(|parameters| parameters.servers)),
        }
    }

    fn checkpoint(&self, state: u64, ranks: u32) -> Result<Option<(u32, Bytes)>, FileError> {
        let Some(storage) = self.storage else { return Ok(None) };
        let bytes = storage.checkpoint.map_or(state, |checkpoint| checkpoint.0.as_u64());
        match storage.interval {
            Some(0) => Err(FileError::new("storage.interval", "a checkpoint comes after one step or more")),
            interval => Ok(interval.map(|interval| (interval, Bytes(bytes.div_ceil(u64::from(ranks)))))),
        }
    }

    /// Rates of servers and storage of a job on so many of the first nodes of a cluster.
    fn rates(&self, cluster: &Cluster, nodes: u32) -> Rates {
        let (of_parameters, of_storage) = self.nodes_beside_from(nodes);
        let servers = of_storage.end - of_storage.start;
        let storage = self.storage.map(|storage| match servers {
            0 => self.through_host(cluster, storage.rate.0),
            _ => beside(cluster, of_storage, Some(storage.rate.0)).unwrap_or(storage.rate.0),
        });
        let server = self.parameters.and_then(|parameters| parameters.rate).map(|rate| rate.0);
        Rates {
            server: beside(cluster, of_parameters, server),
            servers: self.parameters.map_or(0, |parameters| parameters.servers),
            storage,
            storage_servers: servers,
            is_storage_bounced: self.storage.is_some_and(|storage| !storage.gpudirect),
        }
    }

    /// What is left of a rate of storage where GPUs do not use it themselves.
    fn through_host(&self, cluster: &Cluster, rate: Rate) -> Rate {
        if self.storage.is_some_and(|storage| storage.gpudirect) {
            return rate;
        }
        // Through the memory of the host, data passes the GPUs' PCIe once and that of the drives once more.
        let host = &cluster.host;
        let halves = host.gpus().into_iter().map(|gpu| {
            let best = host.cpus().into_iter().map(|cpu| host.path(gpu, cpu).bandwidth.as_bps()).max();
            best.unwrap_or(0) / 2
        });
        rate.min(Rate::from_bps(halves.sum()))
    }
}

/// How many GPUs nodes have, in words.
fn counted(cluster: &Cluster) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for gpus in (0..cluster.nodes).map(|node| cluster.ranks().count(node)) {
        match runs.last_mut() {
            Some((nodes, same)) if *same == gpus => *nodes += 1,
            _ => runs.push((1, gpus)),
        }
    }
    let told: Vec<String> = runs.into_iter().map(|(nodes, gpus)| format!("{nodes} × {gpus}")).collect();
    told.join(", ")
}

/// What each of some nodes beside those of ranks takes and gives: no more than its NICs carry, where it is unlike the others.
fn beside(cluster: &Cluster, nodes: Range<u32>, rate: Option<Rate>) -> Option<Rate> {
    let unlike = nodes.filter_map(|node| cluster.unlike.get(&node));
    let carried = unlike.map(|host| Rate::from_bps(nics_of(host).as_bps() * NIC_PERCENT / 100)).min();
    carried.into_iter().chain(rate).min()
}

fn no_gpus(cluster: &Cluster) -> FileError {
    let message = format!("{} has no GPUs to train on: name a server that does", cluster.host.name);
    FileError::new("cluster.server", message)
}

/// What all NICs of a node carry.
fn nics_of(host: &Host) -> Rate {
    let rates = host.compute_nics().into_iter().map(|nic| match host.device(nic).kind {
        DeviceKind::Nic { rate, .. } => rate.as_bps(),
        _ => 0,
    });
    Rate::from_bps(rates.sum())
}
