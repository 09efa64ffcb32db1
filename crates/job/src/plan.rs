//! What a job needs of its servers and its network, before anybody runs it: bytes by parallel dimension, the bandwidth that would
//! hide them, what there is, and which layout of ranks is best. No packets: the graph of the step, NCCL's cost model, and the
//! memory of a GPU.
//!
//! ```
//! use railnet_job::compute::Gpu;
//! use railnet_job::graph::Job;
//! use railnet_job::parallel::{Parallel, Scope};
//! use railnet_job::plan::{Ground, Plan, model_of};
//! use railnet_job::training::{Precision, Training};
//! use railnet_topology::catalogue::cluster;
//!
//! let cluster = cluster("dgx-h100x8")?;
//! let gpu = Gpu::of(&cluster.host, Precision::Bf16)?;
//! let training = Training { global_batch: 64, ..Training::default() };
//! let job = Job::new(model_of(70_000_000_000), Parallel::data(64), training, gpu);
//! let plan = Plan::new(&job, &Ground::plain(&cluster))?;
//! let data = plan.demand(Scope::Data).expect("gradients are added up");
//! // 2 × 63 / 64 × 140 GB.
//! assert_eq!((data.through_gpu / 1e9).round(), 276.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bounce;
mod call;
mod demand;
mod home;
mod pace;
mod shape;
mod sweep;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use railnet_coll::TopologyOptions;
use railnet_coll::tuner::Settings;
use railnet_core::{Bytes, Span};
use railnet_topology::Cluster;

pub use bounce::{Bounce, Copies};
pub use call::CallTraffic;
pub use demand::Demand;
pub use home::Home;
pub use pace::{Passes, compute, paced, paced_by_pass};
pub use shape::model_of;
pub use sweep::{Bound, Candidate, Judged, Part, Sweep, candidates, common, why};

use crate::graph::{Job, StepGraph};
use crate::memory::{Memory, memory};
use crate::parallel::{Axis, Parallel, Scope, Sharding};
use crate::run::analytic::{self, Carries, Caveat, ClusterCosts, HostPath, Interconnect, NoPrice, Rates};
use crate::run::{Outcome, Workers};

/// Where a job is to run, and what was said of NCCL.
#[derive(Clone, Debug)]
pub struct Ground<'a> {
    /// The servers.
    pub cluster: &'a Cluster,
    /// What the tuner is told.
    pub settings: Settings,
    /// What the search is told.
    pub options: TopologyOptions,
    /// Rates of what is not between GPUs.
    pub rates: Rates,
    /// Whether NICs read and write the memory of GPUs.
    pub gpudirect: bool,
    /// The network between the servers, where it is described; else switches carry whatever NICs send.
    pub interconnect: Option<Arc<Interconnect>>,
}

impl<'a> Ground<'a> {
    /// Servers with NCCL's defaults.
    pub fn plain(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            settings: Settings::default(),
            options: TopologyOptions::default(),
            rates: Rates::default(),
            gpudirect: true,
            interconnect: None,
        }
    }

    /// The cost model. What it finds out of a group of ranks it remembers, so one is used for many layouts.
    pub fn costs(&self) -> ClusterCosts<'a> {
        let costs = ClusterCosts::new(self.cluster, self.settings.clone(), self.options.clone(), self.rates);
        match &self.interconnect {
            Some(net) => costs.over(Arc::clone(net)),
            None => costs,
        }
    }

    /// The same with GPUDirect where this has none, and without where it has it. Sockets have none either way.
    fn otherwise(&self) -> Self {
        let gpudirect = !self.gpudirect;
        let interconnect = self.interconnect.as_ref().map(|net| {
            let host_path = match (net.host_path, gpudirect) {
                (kernel @ HostPath::Kernel(_), _) => kernel,
                (_, true) => HostPath::GpuDirect,
                (_, false) => HostPath::Bounce,
            };
            Arc::new(Interconnect { host_path, ..Interconnect::clone(net) })
        });
        Self { gpudirect, interconnect, ..self.clone() }
    }
}

/// A step of a job.
fn step(
    job: &Job,
    graph: &StepGraph,
    costs: &mut ClusterCosts<'_>,
    gpudirect: bool,
) -> Result<Outcome, NoPrice> {
    let workers = Workers::kinds(graph, &[]);
    let machine = if gpudirect || costs.has_interconnect() {
        analytic::run(graph, workers, costs)?
    } else {
        analytic::run(graph, workers, &mut bounce::Bounced::new(costs))?
    };
    Ok(Outcome::of(job, &machine))
}

/// What a job needs, and what there is.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// What would lie in the memory of a GPU.
    pub memory: Memory,
    /// A step by NCCL's cost model.
    pub outcome: Outcome,
    /// What GPUs and NICs carry.
    pub carries: Carries,
    /// What is said by each parallel dimension, the one with most bytes first.
    pub demands: Vec<Demand>,
    /// What GPUDirect saves, where anything leaves a node.
    pub bounce: Option<Bounce>,
    /// Where each dimension belongs.
    pub homes: Vec<Home>,
    /// An order of axes that makes the step shorter, and how long it takes with that.
    pub better_order: Option<([Axis; 4], Span)>,
    /// Larger buckets of gradients that make the step shorter, and how long it takes with them.
    pub larger_buckets: Option<(Bytes, Span)>,
    /// Why packets may differ from formulas in the longest call of each scope.
    pub caveats: Vec<(Scope, Caveat)>,
}

impl Plan {
    /// The plan of a job that has been checked; it need not fit the memory of its GPUs.
    pub fn new(job: &Job, ground: &Ground<'_>) -> Result<Self, NoPrice> {
        let graph = StepGraph::new(job);
        let mut costs = ground.costs();
        let outcome = step(job, &graph, &mut costs, ground.gpudirect)?;
        // Of the step itself: what is asked for below prices other layouts too.
        let caveats = costs.caveats().collect();
        let demands = demand::demands(&graph, &outcome, &mut costs, ground)?;
        let otherwise = ground.otherwise();
        let other = step(job, &graph, &mut otherwise.costs(), otherwise.gpudirect)?.step;
        let carries = costs.carries();
        let mut homes = home::homes(&graph, &mut costs, ground.cluster)?;
        let better_order = better_order(job, &outcome, &homes, &mut costs, ground.gpudirect)?;
        if better_order.is_none() {
            for home in &mut homes {
                home.belongs_inside = home.is_inside;
            }
        }
        let larger_buckets = larger_buckets(job, &outcome, &mut costs, ground.gpudirect)?;
        let steps = if ground.gpudirect { [outcome.step, other] } else { [other, outcome.step] };
        Ok(Self {
            memory: memory(&job.model, &job.parallel, &job.training, job.servers),
            bounce: bounce::saving(&demands, carries, steps),
            homes,
            better_order,
            larger_buckets,
            caveats,
            carries,
            demands,
            outcome,
        })
    }

    /// What a dimension says.
    pub fn demand(&self, scope: Scope) -> Option<&Demand> {
        self.demands.iter().find(|demand| demand.scope == scope)
    }

    /// Bytes that leave a node in a step, through all its NICs.
    pub fn out_of_node(&self) -> f64 {
        self.demands.iter().map(|demand| demand.out_of_node).sum()
    }
}

/// A change is worth telling that makes a step shorter by more than this part.
const WORTH: f64 = 0.03;

/// Another order of axes, where dimensions belong elsewhere and a step is really shorter with them there.
fn better_order(
    job: &Job,
    outcome: &Outcome,
    homes: &[Home],
    costs: &mut ClusterCosts<'_>,
    gpudirect: bool,
) -> Result<Option<([Axis; 4], Span)>, NoPrice> {
    let Some(order) = home::order(job.parallel.order, homes) else { return Ok(None) };
    let parallel = Parallel { order, ..job.parallel.clone() };
    let with = Job { parallel, ..job.clone() };
    let step = step(&with, &StepGraph::new(&with), costs, gpudirect)?.step;
    let is_better = step.as_secs_f64() < outcome.step.as_secs_f64() * (1.0 - WORTH);
    Ok(is_better.then_some((order, step)))
}

fn larger_buckets(
    job: &Job,
    outcome: &Outcome,
    costs: &mut ClusterCosts<'_>,
    gpudirect: bool,
) -> Result<Option<(Bytes, Span)>, NoPrice> {
    let exposed = outcome.average.exposed[Scope::Data as usize].as_secs_f64();
    // With parameters shared out, each layer is a bucket.
    if exposed < WORTH * outcome.step.as_secs_f64() || job.parallel.sharding == Sharding::Parameters {
        return Ok(None);
    }
    let mut found = None;
    let mut best = outcome.step.as_secs_f64() * (1.0 - WORTH);
    for times in [4, 16] {
        let bucket = job.parallel.bucket * times;
        let parallel = Parallel { bucket, ..job.parallel.clone() };
        let with = Job { parallel, ..job.clone() };
        let step = step(&with, &StepGraph::new(&with), costs, gpudirect)?.step;
        if step.as_secs_f64() < best {
            best = step.as_secs_f64() * (1.0 - WORTH);
            found = Some((bucket, step));
        }
    }
    Ok(found)
}

/// The memory of the GPU that has least.
pub fn least_memory(job: &Job) -> Bytes {
    let others = job.others.iter().map(|other| other.gpu.memory);
    others.fold(job.gpu.memory, Bytes::min)
}
