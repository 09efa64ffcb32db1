//! Faults that end jobs: a GPU that is lost, a server that crashes; and what a job goes on with.

use railnet_core::Span;
use railnet_job::file::Resolved;
use railnet_job::run::Failure;

use super::damage::no_gpu;
use super::faults::FaultSection;
use super::job::told;
use super::{PlacedJob, Scenario, ScenarioError};

/// A fault that ends a job.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FailureSection {
    /// Its place among the faults.
    pub(crate) fault: usize,
    /// The job that it ends, by its place.
    pub(crate) job: usize,
    /// The server that is lost, in the whole cluster.
    pub(crate) node: u32,
    /// What a report calls it.
    pub(crate) what: String,
    /// How the others notice.
    pub(crate) noticed: &'static str,
    /// When, and how long each part of getting over it takes.
    pub(crate) failure: Failure,
}

impl Scenario {
    /// The faults that end jobs, in the order in which they come; those on servers that no job has are nobody's business.
    pub(crate) fn failures(&self) -> Result<Vec<FailureSection>, ScenarioError> {
        if !self.faults.iter().any(FaultSection::ends_jobs) {
            return Ok(Vec::new());
        }
        let jobs = self.jobs()?;
        let cluster = self.servers()?;
        let mut found: Vec<FailureSection> = Vec::new();
        for (fault, section) in self.faults.iter().enumerate() {
            let within = |error: ScenarioError| error.within(&format!("faults.{fault}"));
            let (node, what, at) = match section {
                FaultSection::LostGpu { gpu, xid, at } if *gpu < cluster.gpus() => {
                    let node = cluster.ranks().node_of(*gpu);
                    (node, format!("GPU {gpu} of server {node} lost (Xid {xid})"), at.0)
                }
                FaultSection::LostGpu { gpu, .. } => return Err(within(no_gpu(*gpu, cluster.gpus()))),
                FaultSection::Crash { node, at } if *node < cluster.nodes => {
                    (*node, format!("server {node} crashed"), at.0)
                }
                FaultSection::Crash { node, .. } => {
                    let message =
                        format!("there is no server {node}: the cluster has 0 to {}", cluster.nodes - 1);
                    return Err(within(ScenarioError::new(message).at("node")));
                }
                _ => continue,
            };
            if jobs.iter().any(|placed| placed.servers.contains(&node) || placed.storage.contains(&node)) {
                let message = format!(
                    "server {node} has the parameters or the storage of a job: what its loss costs is not known"
                );
                return Err(within(ScenarioError::new(message)));
            }
            let with_spares = |placed: &PlacedJob| placed.first_node..placed.nodes().end + placed.spares;
            let Some(job) = jobs.iter().position(|placed| with_spares(placed).contains(&node)) else {
                continue;
            };
            let recovery = jobs[job].resolved.recovery;
            let is_crash = matches!(section, FaultSection::Crash { .. });
            let (notice, noticed) = if is_crash && !self.uses_tcp() {
                (self.retries(), "NICs gave up")
            } else {
                (recovery.timeout, "the collective timed out")
            };
            let failure = Failure { at, notice, restart: recovery.restart, read: recovery.read };
            found.push(FailureSection { fault, job, node, what, noticed, failure });
        }
        found.sort_by_key(|one| one.failure.at);
        Ok(found)
    }

    /// How long NICs send again to one that is not there before they give up.
    fn retries(&self) -> Span {
        // IBTA 1.7 9.7.6.1.3: 4.096 us times 2 to the power of the timeout, for the first try and each after it.
        let once = Span::from_ns(4_096) * (1_u64 << self.timeout().min(31));
        once * (u64::from(self.nic.retry_count) + 1)
    }

    /// A job on what is left of its servers, of which it has lost the one at this place: a spare (its number) instead, or as many
    /// of the others as it fits.
    pub(crate) fn rest(
        &self,
        placed: &PlacedJob,
        failed: &FailureSection,
        (lost, spare): (u32, Option<u32>),
    ) -> Result<PlacedJob, ScenarioError> {
        if let Some(spare) = spare {
            let mut rest = placed.clone();
            let whole = &placed.whole;
            let [has, had] = [whole.ranks().count(spare), placed.cluster.ranks().count(lost)];
            if has < had {
                let message = format!(
                    "server {spare} is to stand in for one with {had} ranks and has {has} GPUs: spares are the servers behind those \
                     of the job, put some with {had} or more there"
                );
                return Err(ScenarioError::new(message).within(&format!("faults.{}", failed.fault)));
            }
            if whole.is_uneven() {
                let mut homes: Vec<u32> = (0..placed.cluster.nodes).map(|node| placed.home(node)).collect();
                homes[lost as usize] = spare;
                rest.homes = Some(homes);
            }
            let mut host = whole.host_of(spare).clone();
            if has > had {
                host = host.with_gpus(&(0..had).collect::<Vec<_>>());
            }
            rest.cluster.replace(lost, host);
            return rest.with(&[]);
        }
        let Some((_, mut section)) = self.job_sections().into_iter().nth(failed.job) else {
            return Ok(placed.clone());
        };
        section.parallel.dp = None;
        section.training.global_batch = Some(placed.resolved.job.training.global_batch);
        section.training.steps = placed.resolved.steps;
        section.launch.spares = 0;
        let mut why = None;
        for nodes in (1..placed.cluster.nodes).rev() {
            section.launch.nodes = Some(nodes);
            let cluster = placed.cluster.without(lost).part(0, nodes);
            match section.resolve_on(&cluster) {
                Ok(resolved) => {
                    // Servers with parameters or storage are still there.
                    let resolved = Resolved { rates: placed.resolved.rates, ..resolved };
                    let mut rest = PlacedJob { resolved, cluster, spares: 0, ..placed.clone() };
                    if placed.whole.is_uneven() {
                        let left = (0..placed.cluster.nodes).filter(|node| *node != lost);
                        rest.homes = Some(left.map(|node| placed.home(node)).take(nodes as usize).collect());
                    }
                    return Ok(rest);
                }
                Err(error) => why = why.or(Some(told(error).message)),
            }
        }
        let why = why.map_or(String::new(), |why| format!(" ({})", why.lines().next().unwrap_or_default()));
        let message = format!(
            "the job cannot go on with fewer servers{why}: keep some for it with `spares` of [launch]"
        );
        Err(ScenarioError::new(message).within(&format!("faults.{}", failed.fault)))
    }
}
