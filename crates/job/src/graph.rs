//! The graph of a step: what each stage of the pipeline computes, what it says to whom, and what waits for what.
//!
//! All ranks of a stage run the same [`Program`], each with its own neighbours, so that a graph for thousands of ranks is as
//! large as its pipeline is long. A program is a list of operations on streams, as CUDA has them: those of one stream run in
//! order, those of different streams wait for each other only where they say so.

mod build;
mod layers;
mod schedule;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use railnet_coll::{Call, Collective, Counts};
use railnet_core::{Bytes, DataType, Rank, Span};
use smallvec::SmallVec;

pub use schedule::{Turn, turns};

use crate::compute::Gpu;
use crate::model::Model;
use crate::parallel::{Axis, Layout, Parallel, Scope};
use crate::trace::{Recorded, TraceGraph};
use crate::training::Training;

/// GPUs of the same kind differ by 8 % on average over five clusters (P. Sinha et al., SC '22, arXiv 2208.11035), and a step waits
/// for the slowest. That the slowest is just so much slower than the one whose rates are known is a reading of that figure.
pub(crate) const SLOWEST: f64 = 1.08;

/// A job: all that the graph of its steps depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// What is trained.
    pub model: Model,
    /// How it is spread.
    pub parallel: Parallel,
    /// How it is trained.
    pub training: Training,
    /// On what.
    pub gpu: Gpu,
    /// Ranks on servers that are unlike the first.
    pub others: Vec<Other>,
    /// How long ranks that wait for each other compute, as a multiple of what a good GPU takes.
    pub pace: Pace,
    /// How many times as many tokens as the others the busiest expert gets: 1 where all are alike.
    pub hot_expert: f64,
    /// Servers that have the parameters, where those do not live on the GPUs.
    pub servers: Option<u32>,
    /// Bytes that each rank writes to storage at the end of the step, where it does.
    pub checkpoint: Option<Bytes>,
    /// What ranks did, where that was written down: the model is then nothing.
    pub trace: Option<Arc<TraceGraph>>,
}

impl Job {
    /// A job with all experts alike, parameters on the GPUs and no checkpoint.
    pub fn new(model: Model, parallel: Parallel, training: Training, gpu: Gpu) -> Self {
        let pace = Pace::even(if parallel.ranks() > 1 { SLOWEST } else { 1.0 });
        let others = Vec::new();
        Self {
            model,
            parallel,
            training,
            gpu,
            others,
            pace,
            hot_expert: 1.0,
            servers: None,
            checkpoint: None,
            trace: None,
        }
    }

    /// What so many ranks did, as it was written down.
    pub fn of_trace(trace: TraceGraph, ranks: u32, gpu: Gpu) -> Self {
        // Each rank has a program of its own, as the stages of a pipeline have.
        let parallel = Parallel { pipeline: ranks, ..Parallel::default() };
        let mut job = Self::new(Model::nothing("trace"), parallel, Training::default(), gpu);
        job.trace = Some(Arc::new(trace));
        job
    }

    /// What a script did, role by role, as it was recorded: the roles are the stages of a pipeline, and all else is alike.
    pub fn of_recording(trace: TraceGraph, parallel: Parallel, gpu: Gpu) -> Self {
        let mut job = Self::new(Model::nothing("recording"), parallel, Training::default(), gpu);
        job.trace = Some(Arc::new(trace));
        job
    }

    /// The peak of a GPU, on average.
    pub fn peak(&self) -> f64 {
        let ranks = f64::from(self.parallel.ranks()).max(1.0);
        let more =
            self.others.iter().map(|other| (other.gpu.peak - self.gpu.peak) * other.ranks.len() as f64);
        self.gpu.peak + more.sum::<f64>() / ranks
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> u64 {
        self.training.global_batch * self.model.sequence
    }
}

/// Time of computing as a multiple of what the model of a GPU says, by pass.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// Of the forward pass.
    pub forward: f64,
    /// Of the backward pass, with what it computes again.
    pub backward: f64,
    /// Of the optimiser.
    pub optimiser: f64,
}

impl Pace {
    /// The same for all passes.
    pub const fn even(times: f64) -> Self {
        Self { forward: times, backward: times, optimiser: times }
    }

    /// That of a pass.
    pub const fn of(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward => self.forward,
            Pass::Recompute | Pass::Backward => self.backward,
            Pass::Optimiser | Pass::Checkpoint => self.optimiser,
        }
    }
}

/// Ranks on servers that are unlike the first.
#[derive(Clone, PartialEq, Debug)]
pub struct Other {
    /// Their numbers.
    pub ranks: Range<u32>,
    /// What they compute on.
    pub gpu: Gpu,
    /// What kind of server it is: those of a kind are alike.
    pub kind: u32,
    /// GPUs of a server, which may each be different from the others in it.
    pub per_node: u32,
}

/// In what order operations of a rank run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// What the GPU computes.
    Compute,
    /// Among those who share matrices.
    Tensor,
    /// Among those who share sequences.
    Context,
    /// Among those who share experts.
    Expert,
    /// Parameters that come.
    Gather,
    /// Gradients that go.
    Reduce,
    /// Activations to the next stage.
    SendForward,
    /// Activations from the stage before.
    ReceiveForward,
    /// Gradients to the stage before.
    SendBackward,
    /// Gradients from the next stage.
    ReceiveBackward,
    /// What all do together.
    World,
    /// Checkpoints.
    Storage,
    /// The first CUDA stream of a recorded program besides its default one: it computes beside that.
    Side1,
    /// The second.
    Side2,
    /// The third.
    Side3,
    /// The fourth, and those after it.
    Side4,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Compute,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Gather,
        Self::Reduce,
        Self::SendForward,
        Self::ReceiveForward,
        Self::SendBackward,
        Self::ReceiveBackward,
        Self::World,
        Self::Storage,
        Self::Side1,
        Self::Side2,
        Self::Side3,
        Self::Side4,
    ];

    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Gather => "gather",
            Self::Reduce => "reduce",
            Self::SendForward => "send forward",
            Self::ReceiveForward => "receive forward",
            Self::SendBackward => "send backward",
            Self::ReceiveBackward => "receive backward",
            Self::World => "world",
            Self::Storage => "storage",
            Self::Side1 => "side stream 1",
            Self::Side2 => "side stream 2",
            Self::Side3 => "side stream 3",
            Self::Side4 => "side stream 4",
        }
    }
}

/// What part of a step an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pass {
    /// Forward.
    Forward,
    /// Forward again, for the backward pass.
    Recompute,
    /// Backward.
    Backward,
    /// The optimiser's step.
    Optimiser,
    /// A checkpoint.
    Checkpoint,
}

/// What is said.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum What {
    /// A collective.
    Collective(Collective),
    /// A message to another stage.
    Send {
        /// The stage that receives.
        stage: u32,
    },
    /// A message from another stage.
    Receive {
        /// The stage that sends.
        stage: u32,
    },
    /// Gradients to the servers that have the parameters.
    Push,
    /// Parameters from those servers.
    Pull,
    /// To storage.
    Write,
}

/// Something said among ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Communication {
    /// The kind of operation.
    pub what: What,
    /// Among whom.
    pub scope: Scope,
    /// Bytes: of the largest buffer of a collective, as [`railnet_coll::Call::bytes`] counts them, or of the message.
    pub bytes: Bytes,
    /// Of what type.
    pub dtype: DataType,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Computes.
    Compute {
        /// For so long, on a GPU that does nothing else.
        time: Span,
        /// And so long for its experts, with an even share of tokens.
        experts: Span,
    },
    /// Communicates.
    Communicate(Communication),
}

/// One operation of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// On which stream.
    pub stream: Stream,
    /// What it does.
    pub work: Work,
    /// Operations of the same program that have to be done first, besides those before it on its stream.
    pub after: SmallVec<[u32; 2]>,
    /// What part of the step it belongs to.
    pub pass: Pass,
    /// Which microbatch.
    pub microbatch: u32,
    /// Which layer, where it belongs to one.
    pub layer: Option<u32>,
}

/// What every rank of a stage does in a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its operations. Each comes after all that it waits for.
    pub operations: Vec<Operation>,
    /// The operations of each stream, in order.
    pub streams: Vec<Vec<u32>>,
    /// Where the dependents of each operation begin in the next list; one more at the end.
    starts: Vec<u32>,
    dependents: Vec<u32>,
}

impl Program {
    pub(crate) fn new(operations: Vec<Operation>) -> Self {
        let mut streams = vec![Vec::new(); Stream::ALL.len()];
        let mut counts = vec![0_u32; operations.len() + 1];
        for (number, operation) in operations.iter().enumerate() {
            streams[operation.stream as usize].push(number as u32);
            for before in &operation.after {
                assert!((*before as usize) < number, "an operation waits only for earlier ones");
                counts[*before as usize + 1] += 1;
            }
        }
        for place in 1..counts.len() {
            counts[place] += counts[place - 1];
        }
        let mut next = counts.clone();
        let mut dependents = vec![0; next[operations.len()] as usize];
        for (number, operation) in operations.iter().enumerate() {
            for before in &operation.after {
                let place = &mut next[*before as usize];
                dependents[*place as usize] = number as u32;
                *place += 1;
            }
        }
        Self { operations, streams, starts: counts, dependents }
    }

    /// Operations that wait for this one.
    pub fn dependents(&self, operation: u32) -> &[u32] {
        let [from, to] = [operation, operation + 1].map(|place| self.starts[place as usize] as usize);
        &self.dependents[from..to]
    }
}

/// The graph of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepGraph {
    /// What each stage does, on each kind of GPU: all stages on the first kind, then on the next.
    pub programs: Vec<Program>,
    /// Ranks that are unlike the others.
    pub others: Vec<OtherRanks>,
    /// Who is where.
    pub layout: Layout,
    /// The load of the rank with the busiest expert, and of the others with which it shares experts, as parts of an even
    /// share.
    pub loads: [f64; 2],
    /// Ranks that share experts.
    pub expert: u32,
    /// Which line of its script each operation of a program came from, where that was recorded.
    pub lines: Option<Arc<Recorded>>,
    /// Whether each rank has a program of its own.
    is_trace: bool,
}

/// Ranks of a graph that are unlike the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherRanks {
    /// Their numbers.
    pub ranks: Range<u32>,
    /// The kind of their server: the same GPUs of those of a kind are alike.
    pub kind: u32,
    /// GPUs of a server.
    pub per_node: u32,
    /// Where the programs for their GPU begin.
    first_program: u32,
}

impl StepGraph {
    /// The graph of a job that has been checked.
    pub fn new(job: &Job) -> Self {
        if let Some(trace) = &job.trace {
            let programs = trace.programs.clone();
            let layout = Layout::new(&job.parallel).with_groups(trace.groups.clone());
            return Self {
                programs,
                others: Vec::new(),
                layout,
                loads: [1.0, 1.0],
                expert: 1,
                is_trace: trace.recorded.is_none(),
                lines: trace.recorded.clone(),
            };
        }
        let stages = job.parallel.pipeline;
        let mut gpus = vec![&job.gpu];
        for other in &job.others {
            if !gpus.contains(&&other.gpu) {
                gpus.push(&other.gpu);
            }
        }
        let programs = gpus.iter().flat_map(|gpu| {
            let job = Job { gpu: (*gpu).clone(), ..job.clone() };
            (0..stages).map(move |stage| build::program(&job, stage))
        });
        let others = job.others.iter().map(|other| {
            let gpu = gpus.iter().position(|gpu| **gpu == other.gpu).unwrap_or_default() as u32;
            let Other { ranks, kind, per_node, .. } = other.clone();
            OtherRanks { ranks, kind, per_node, first_program: gpu * stages }
        });
        Self {
            programs: programs.collect(),
            others: others.collect(),
            layout: Layout::new(&job.parallel),
            loads: loads(job),
            expert: job.parallel.expert,
            lines: None,
            is_trace: false,
        }
    }

    /// Whether each rank has a program of its own, as somebody wrote it down.
    pub const fn is_trace(&self) -> bool {
        self.is_trace
    }

    /// Stages of the pipeline; one where each rank has a program of its own.
    pub const fn stages(&self) -> u32 {
        if self.is_trace { 1 } else { self.layout.size(Axis::Pipeline) }
    }

    /// The program of a rank: its place among the programs.
    pub fn program_of(&self, rank: Rank) -> u32 {
        let other = self.others.iter().find(|other| other.ranks.contains(&rank.0));
        other.map_or(0, |other| other.first_program) + self.layout.coordinates(rank).pipeline
    }
}

impl StepGraph {
    /// A communication as a call of so many ranks, for those who carry it with packets: what goes to servers or comes from them
    /// is a message too. In an exchange with experts the first rank of the group has the busiest.
    pub fn call(&self, said: &Communication, ranks: u32) -> Call {
        let elements = said.bytes.as_u64().div_ceil(said.dtype.size() as u64);
        let block = elements.div_ceil(u64::from(ranks).max(1));
        let collective = match said.what {
            What::Collective(collective) => collective,
            What::Send { .. } | What::Receive { .. } | What::Push | What::Pull | What::Write => {
                Collective::SendReceive
            }
        };
        let counts = match collective {
            Collective::AllToAll if self.loads[0] > self.loads[1] => {
                let share = |to: u32| self.loads[usize::from(to > 0)];
                let blocks =
                    (0..ranks * ranks).map(|pair| (block as f64 * share(pair % ranks)).round() as u64);
                Counts::PerPair(blocks.collect())
            }
            Collective::AllToAll | Collective::AllGather | Collective::ReduceScatter => Counts::Each(block),
            _ => Counts::Each(elements),
        };
        let mut call = Call { counts, dtype: said.dtype, ..Call::new(collective, 0) };
        if collective == Collective::SendReceive {
            call.peer = Rank(1);
        }
        call
    }
}

/// The busiest expert gets `hot` times the tokens of the average one; the others share the rest evenly.
fn loads(job: &Job) -> [f64; 2] {
    let Some(experts) = job.model.experts else { return [1.0, 1.0] };
    let (count, ranks) = (experts.count as f64, f64::from(job.parallel.expert));
    let hot = job.hot_expert.clamp(1.0, count);
    if count <= 1.0 {
        return [1.0, 1.0];
    }
    let other = (count - hot) / (count - 1.0);
    let local = count / ranks;
    [(hot + (local - 1.0) * other) / local, other]
}
