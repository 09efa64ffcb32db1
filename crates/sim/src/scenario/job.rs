//! Training jobs of a scenario: which there are, where they run, and whether they fit.

use std::sync::Arc;

use railnet_core::Rank;
use railnet_job::file::{FileError, JobSection, Resolved};
use railnet_job::graph::StepGraph;
use railnet_job::parallel::{Axis, Layout, Scope};
use railnet_job::plan::common;
use railnet_topology::Cluster;
use railnet_topology::catalogue::switch_ports;
use railnet_topology::fabric::RailOptimised;
use serde::Deserialize;

use super::fabric::RoutingName;
use super::{Scenario, ScenarioError, Topology};

/// Servers of a group, with rails that nobody described: the ports of a leaf that go down.
const GROUP: u32 = 32;

/// `fidelity = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Fidelity {
    /// Every packet of every collective in the fabric.
    #[default]
    Packet,
    /// Flows as rates that share the links of their paths max-min fairly; no packets, no queues. For `[[traffic]]`.
    Flow,
    /// NCCL's cost model, bounded by the links of the fabric. For jobs.
    Analytic,
}

impl Fidelity {
    /// All of them, the finest first.
    pub const ALL: [Self; 3] = [Self::Packet, Self::Flow, Self::Analytic];

    /// As a scenario writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Flow => "flow",
            Self::Analytic => "analytic",
        }
    }
}

/// A job and where it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct PlacedJob {
    /// The job.
    pub resolved: Resolved,
    /// The servers that it has.
    pub cluster: Cluster,
    /// The whole cluster.
    pub whole: Arc<Cluster>,
    /// The first of its servers in the whole cluster.
    pub first_node: u32,
    /// Where in the whole cluster its servers are, where they do not follow each other.
    pub homes: Option<Vec<u32>>,
    /// Servers behind them that are kept for those that fail.
    pub spares: u32,
    /// Servers behind those that have the parameters, by their numbers in the whole cluster.
    pub servers: std::ops::Range<u32>,
    /// Servers behind those that have the storage.
    pub storage: std::ops::Range<u32>,
}

impl PlacedJob {
    /// The number in the whole cluster of one of its servers.
    pub fn home(&self, node: u32) -> u32 {
        self.homes.as_ref().map_or(self.first_node + node, |homes| homes[node as usize])
    }

    /// The one among all who send and receive on which a rank runs.
    pub fn endpoint(&self, rank: u32) -> u32 {
        let (node, gpu) = self.cluster.ranks().place(rank);
        self.whole.ends().range(self.home(node)).start + gpu
    }

    /// The rank that runs on a GPU of the whole cluster.
    pub fn rank_on(&self, gpu: u32) -> Option<u32> {
        let (home, gpu) = self.whole.ranks().place(gpu);
        let node = (0..self.cluster.nodes).find(|node| self.home(*node) == home)?;
        let ranks = self.cluster.ranks().range(node);
        Some(ranks.start + gpu).filter(|rank| ranks.contains(rank))
    }

    /// Its servers, by their numbers in the whole cluster.
    pub fn nodes(&self) -> std::ops::Range<u32> {
        self.first_node..self.first_node + self.cluster.nodes
    }

    /// What is to be said where servers have unlike numbers of GPUs and some groups of tensor parallelism do not fit into one,
    /// though others do.
    pub fn straddling(&self) -> Option<String> {
        let places = self.cluster.ranks();
        let parallel = &self.resolved.job.parallel;
        let tensor = parallel.tensor;
        if places.each().is_some()
            || tensor < 2
            || tensor > places.most()
            || self.resolved.job.trace.is_some()
        {
            return None;
        }
        let layout = Layout::new(parallel);
        let firsts = (0..self.ranks()).map(Rank).filter(|rank| layout.coordinates(*rank).tensor == 0);
        let (mut all, mut split) = (0_u32, 0_u32);
        for first in firsts {
            let group = layout.group(first, Scope::Tensor);
            let home = places.node_of(first.0);
            all += 1;
            split += u32::from(group.ranks().any(|rank| places.node_of(rank.0) != home));
        }
        let inside = common(&self.cluster);
        let advice = match parallel.order[0] {
            Axis::Tensor => format!("a `tp` that divides {inside} keeps all of them inside"),
            _ => "with \"tp\" first in `order` more of them stay inside".to_owned(),
        };
        (split > 0).then(|| {
            format!(
                "{split} of {all} groups of tensor parallelism are on two servers or more, because servers have unlike numbers of \
                 GPUs: they talk over the network; {advice}"
            )
        })
    }

    /// Ranks, one for each GPU.
    pub fn ranks(&self) -> u32 {
        self.cluster.gpus()
    }

    /// Servers with which ranks talk in this scope, by their numbers in the whole cluster; none where they talk to each other or
    /// to drives of their own.
    pub fn beside(&self, scope: Scope) -> std::ops::Range<u32> {
        match scope {
            Scope::Servers => self.servers.clone(),
            Scope::Storage => self.storage.clone(),
            _ => 0..0,
        }
    }
}

impl Scenario {
    /// Whether it has jobs.
    pub fn has_jobs(&self) -> bool {
        !self.job.is_empty() || self.model.is_some() || self.trace.is_some()
    }

    /// Runs jobs at this fidelity, whatever the file says.
    pub fn set_fidelity(&mut self, fidelity: Fidelity) -> Result<(), ScenarioError> {
        self.fidelity = fidelity;
        self.check_jobs()
    }

    /// The sections of each job, and where they are written.
    pub(super) fn job_sections(&self) -> Vec<(String, JobSection)> {
        let Some(model) = &self.model else {
            let listed = self.job.iter().enumerate();
            return listed.map(|(index, section)| (format!("job.{index}"), section.clone())).collect();
        };
        let section = JobSection {
            name: None,
            model: model.clone(),
            training: self.training.unwrap_or_default(),
            parallel: self.parallel.clone().unwrap_or_default(),
            launch: self.launch.unwrap_or_default(),
            storage: self.storage,
            parameters: self.parameters,
        };
        vec![(String::new(), section)]
    }

    /// The jobs, one after the other on the servers of the cluster.
    pub fn jobs(&self) -> Result<Vec<PlacedJob>, ScenarioError> {
        if !self.has_jobs() {
            return Ok(Vec::new());
        }
        if let Some(section) = &self.trace {
            return Ok(vec![self.traced(section)?]);
        }
        let all = Arc::new(self.servers()?);
        let mut first_node = 0;
        let mut placed = Vec::new();
        for (path, mut section) in self.job_sections() {
            let within = |error: ScenarioError| match error.key.starts_with("cluster") || path.is_empty() {
                true => error,
                false => error.within(&path),
            };
            let left = all.part(first_node, all.nodes - first_node);
            let few = section.launch.ranks_per_node.and_then(|each| left.with_gpus(each));
            let left = few.unwrap_or(left);
            if first_node >= all.nodes {
                let message = format!("the jobs before it have all {} servers of the cluster", all.nodes);
                return Err(within(ScenarioError::new(message).at("launch.nodes")));
            }
            if let Some(steps) = self.steps {
                if section.training.steps != 1 {
                    let message = "`steps` is said for all jobs: leave it out here, or there";
                    return Err(within(ScenarioError::new(message).at("training.steps")));
                }
                section.training.steps = steps;
            }
            let resolved = if self.is_planned { section.lay_out(&left) } else { section.resolve(&left) };
            let resolved = resolved.map_err(|error| within(told(error)))?;
            let spares = section.launch.spares;
            let cluster = left.part(0, resolved.nodes);
            let behind = first_node + cluster.nodes + spares;
            let servers = behind..behind + section.parameters.map_or(0, |parameters| parameters.servers);
            let storage = servers.end..servers.end + section.storage.map_or(0, |storage| storage.servers);
            let next = storage.end;
            let whole = Arc::clone(&all);
            placed.push(PlacedJob {
                resolved,
                cluster,
                whole,
                first_node,
                homes: None,
                spares,
                servers,
                storage,
            });
            first_node = next;
        }
        Ok(placed)
    }

    /// Bytes of all calls of all ranks in all steps, inside servers and across them: what the time that packets take goes by.
    pub fn job_bytes(&self) -> Result<(u128, u128), ScenarioError> {
        let (mut inside, mut across) = (0, 0);
        for placed in self.jobs()? {
            let graph = StepGraph::new(&placed.resolved.job);
            let stages = graph.programs.len() as u128;
            let each = u128::from(placed.ranks()) / stages.max(1) * u128::from(placed.resolved.steps);
            for scope in Scope::ALL {
                let volumes =
                    graph.programs.iter().map(|program| u128::from(program.volume(scope).1.as_u64()));
                let volume = volumes.sum::<u128>() * each;
                let group = graph.layout.group(Rank(0), scope);
                let mut servers = group.ranks().map(|rank| placed.cluster.ranks().node_of(rank.0));
                let first = servers.next();
                let is_inside = servers.all(|server| Some(server) == first);
                if !placed.beside(scope).is_empty() || !is_inside {
                    across += volume;
                } else if scope != Scope::Storage {
                    inside += volume;
                }
            }
        }
        Ok((inside, across))
    }

    pub(super) fn check_jobs(&self) -> Result<(), ScenarioError> {
        if self.trace.is_some() && (self.model.is_some() || !self.job.is_empty()) {
            let message = "ranks do what a [trace] says, or what a [model] needs: not both";
            return Err(ScenarioError::new(message).at("trace"));
        }
        if self.model.is_none() {
            let alone = [
                ("training", self.training.is_some()),
                ("parallel", self.parallel.is_some()),
                ("launch", self.launch.is_some()),
                ("storage", self.storage.is_some()),
                ("parameters", self.parameters.is_some()),
            ];
            if let Some((key, _)) = alone.into_iter().find(|(_, is_there)| *is_there) {
                let message = format!("[{key}] belongs to a job: name what it trains in [model]");
                return Err(ScenarioError::new(message).at(key));
            }
        } else if !self.job.is_empty() {
            let message = "one job has [model], several are [[job]] with a [job.model] each: not both";
            return Err(ScenarioError::new(message).at("model"));
        }
        if self.steps == Some(0) {
            return Err(ScenarioError::new("a job has at least one step").at("steps"));
        }
        if !self.has_jobs() {
            if let Some(index) = self.faults.iter().position(super::faults::FaultSection::is_about_jobs) {
                let message = "this happens to jobs, and there is none: describe one in [model]";
                return Err(ScenarioError::new(message).at("kind").within(&format!("faults.{index}")));
            }
            if self.steps.is_some() {
                let message = "`steps` is about jobs, and there is none: describe one in [model]";
                return Err(ScenarioError::new(message).at("steps"));
            }
            if self.fidelity == Fidelity::Analytic {
                let message = "analytic fidelity is for jobs, and there is none: describe one in [model], or use \"flow\" for [[traffic]]";
                return Err(ScenarioError::new(message).at("fidelity"));
            }
            return self.check_flow_fidelity();
        }
        self.check_flow_fidelity()?;
        let beside = [("collective", self.collective.is_empty()), ("transfer", self.transfer.is_empty())];
        if let Some((key, _)) = beside.into_iter().find(|(_, is_empty)| !is_empty) {
            let message = format!("a job makes its own calls: [[{key}]] goes into a file of its own");
            return Err(ScenarioError::new(message).at(key));
        }
        if self.fidelity == Fidelity::Analytic && !self.traffic.is_empty() {
            let message = "traffic beside a job takes packets: `fidelity = \"packet\"`";
            return Err(ScenarioError::new(message).at("fidelity"));
        }
        self.jobs()?;
        self.failures().map(|_| ())
    }

    /// Whether a scenario that asks for flow fidelity has nothing that only packets, or formulas, can do.
    pub(crate) fn check_flow_fidelity(&self) -> Result<(), ScenarioError> {
        if self.fidelity != Fidelity::Flow {
            return Ok(());
        }
        let packets = "; use \"packet\"";
        let jobs = self.has_jobs();
        let missing = [
            (
                !self.collective.is_empty(),
                "flow fidelity is for jobs and [[traffic]], not for [[collective]]",
                packets,
            ),
            (
                !self.transfer.is_empty(),
                "flow fidelity is for jobs and [[traffic]], not for [[transfer]]",
                packets,
            ),
            (jobs && !self.traffic.is_empty(), "flow fidelity knows no traffic beside a job", packets),
            (
                !jobs && self.cluster.is_some(),
                "flow fidelity knows the fabric for [[traffic]], not the servers of [cluster]",
                packets,
            ),
            (!jobs && !self.faults.is_empty(), "flow fidelity knows no faults of the network", packets),
            (self.sample.is_some(), "flow fidelity has no queues to sample", packets),
            (
                self.routing_name() == RoutingName::Valiant,
                "flow fidelity knows no detours by Valiant",
                packets,
            ),
        ];
        match missing.into_iter().find(|(is_there, ..)| *is_there) {
            Some((_, message, advice)) => {
                Err(ScenarioError::new(format!("{message}{advice}")).at("fidelity"))
            }
            None => Ok(()),
        }
    }

    /// Without a `[fabric]`, every NIC of the servers of `[cluster]` is on its own rail, and nothing is oversubscribed.
    pub(super) fn lay_rails(&mut self, has_fabric: bool) -> Result<(), ScenarioError> {
        if !matches!(self.fabric.topology, Topology::Unsaid) {
            return self.check_nodes();
        }
        let section = self.cluster.as_ref();
        let known = section.and_then(|section| Some((section.host()?, section.count()?)));
        let Some((host, nodes)) = known else {
            return Err(match has_fabric {
                true => ScenarioError::new("missing field `topology`").at("fabric"),
                false => ScenarioError::new(
                    "there is no network: describe it in [fabric], or give [cluster] a `server` and how many `nodes`",
                ),
            });
        };
        let rails = self.uneven_servers().map_or(host.compute_nics().len() as u32, |all| all.ports().most());
        let ports = switch_ports(self.fabric.link.rate.0);
        let shape = RailOptimised::of_switches(nodes, rails, GROUP, ports);
        self.fabric.topology = Topology::RailOptimised {
            nodes,
            rails,
            nodes_per_group: shape.nodes_per_group,
            spines: shape.spines,
            links_per_spine: shape.links_per_spine,
            groups_per_pod: shape.pods.map(|pods| pods.groups),
            cores: shape.pods.map(|pods| pods.cores),
            links_per_core: shape.pods.map_or(1, |pods| pods.links_per_core),
        };
        Ok(())
    }
}

/// What is wrong with the section of a job. What a job would need of memory is laid out by itself, and about no key.
pub(super) fn told(error: FileError) -> ScenarioError {
    let FileError { message, key, meant, memory } = error;
    let key = if memory.is_some() { String::new() } else { key };
    ScenarioError { key, meant, ..ScenarioError::new(message) }
}
