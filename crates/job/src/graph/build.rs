//! The program of a stage: microbatches forward and backward, gradients, the optimiser.

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType, Span};
use smallvec::SmallVec;

use super::layers::Layers;
use super::schedule::turns;
use super::{Communication, Job, Operation, Pass, Program, Stream, What, Work};
use crate::compute::{Cost, optimiser_cost};
use crate::parallel::{Scope, Sharding};
use crate::stage::{self, Chunk, Held};

/// The program of a stage.
pub(super) fn program(job: &Job, stage: u32) -> Program {
    let mut builder = Builder::new(job, stage);
    let microbatches = job.training.microbatches(job.parallel.data) as u32;
    let chunks = stage::chunks(&job.model, &job.parallel, stage);
    for turn in turns(job.parallel.schedule, stage, job.parallel.pipeline, microbatches) {
        let chunk = &chunks[turn.chunk as usize];
        builder.microbatch = turn.microbatch;
        if turn.is_backward {
            builder.backward(chunk, turn.microbatch + 1 == microbatches);
        } else {
            builder.forward(chunk, turn.microbatch == 0);
        }
    }
    builder.finish(&chunks)
}

/// Puts operations together. What is computed between two communications becomes one operation.
pub(super) struct Builder<'a> {
    pub(super) job: &'a Job,
    pub(super) stage: u32,
    pub(super) layers: Layers,
    operations: Vec<Operation>,
    /// What is computed next, as far as it is known.
    pending: Cost,
    pending_experts: Cost,
    /// What that waits for.
    waits: SmallVec<[u32; 2]>,
    last_compute: Option<u32>,
    pub(super) pass: Pass,
    pub(super) microbatch: u32,
    pub(super) layer: Option<u32>,
    /// Gradients that are ready and not yet in a bucket.
    ready: [u64; 2],
    /// The last operation that reduces gradients, of each scope.
    reduced: [Option<u32>; 2],
}

impl<'a> Builder<'a> {
    fn new(job: &'a Job, stage: u32) -> Self {
        Self {
            job,
            stage,
            layers: Layers::new(job),
            operations: Vec::new(),
            pending: Cost::default(),
            pending_experts: Cost::default(),
            waits: SmallVec::new(),
            last_compute: None,
            pass: Pass::Forward,
            microbatch: 0,
            layer: None,
            ready: [0; 2],
            reduced: [None; 2],
        }
    }

    /// Computes after everything so far.
    pub(super) fn compute(&mut self, cost: Cost) {
        self.pending += cost;
    }

    /// Computes with experts: how long depends on the tokens they get.
    pub(super) fn compute_experts(&mut self, cost: Cost) {
        self.pending_experts += cost;
    }

    /// What is computed from here on waits for this.
    pub(super) fn wait(&mut self, operation: u32) {
        self.flush();
        self.waits.push(operation);
    }

    /// The operation after which everything so far is computed.
    pub(super) fn flush(&mut self) -> Option<u32> {
        let pace = self.job.pace.of(self.pass);
        let (time, experts) = ((self.pending * pace).span(), (self.pending_experts * pace).span());
        // What rounds to nothing is not left for the next pass, whose pace is another.
        self.pending = Cost::default();
        self.pending_experts = Cost::default();
        if time + experts > Span::ZERO {
            let after = std::mem::take(&mut self.waits);
            self.last_compute = Some(self.push(Stream::Compute, Work::Compute { time, experts }, after));
        }
        self.last_compute
    }

    fn push(&mut self, stream: Stream, work: Work, after: SmallVec<[u32; 2]>) -> u32 {
        let (pass, microbatch, layer) = (self.pass, self.microbatch, self.layer);
        self.operations.push(Operation { stream, work, after, pass, microbatch, layer });
        self.operations.len() as u32 - 1
    }

    /// Communicates once everything so far is computed, while what comes next is.
    pub(super) fn communicate(&mut self, stream: Stream, said: Communication) -> u32 {
        let mut after: SmallVec<[u32; 2]> = self.flush().into_iter().collect();
        after.extend(self.waits.iter().copied());
        self.push(stream, Work::Communicate(said), after)
    }

    /// Communicates when this is done, or as soon as the stream is free.
    pub(super) fn communicate_after(
        &mut self,
        stream: Stream,
        said: Communication,
        after: Option<u32>,
    ) -> u32 {
        self.flush();
        self.push(stream, Work::Communicate(said), after.into_iter().collect())
    }

    /// Communicates, and computes on when that is done.
    pub(super) fn exchange(&mut self, stream: Stream, said: Communication) {
        let operation = self.communicate(stream, said);
        self.wait(operation);
    }

    fn neighbour(&self, what: What) -> Communication {
        let shard = &self.layers.shard;
        let bytes = Bytes(shard.between * self.job.model.hidden * shard.bytes);
        Communication { what, scope: Scope::Pipeline, bytes, dtype: self.job.training.precision.dtype() }
    }

    fn next_stage(&self) -> u32 {
        (self.stage + 1) % self.job.parallel.pipeline
    }

    fn stage_before(&self) -> u32 {
        (self.stage + self.job.parallel.pipeline - 1) % self.job.parallel.pipeline
    }

    fn receive(&mut self, stream: Stream, stage: u32) {
        let said = self.neighbour(What::Receive { stage });
        let received = self.communicate_after(stream, said, None);
        self.wait(received);
    }

    fn send(&mut self, stream: Stream, stage: u32) {
        let said = self.neighbour(What::Send { stage });
        self.communicate(stream, said);
    }

    /// One microbatch through a chunk.
    fn forward(&mut self, chunk: &Chunk, is_first: bool) {
        self.pass = Pass::Forward;
        let start = self.flush();
        if chunk.is_first {
            self.pull(
                Held { dense: self.layers.embedding_parameters(&self.job.model), experts: 0 },
                is_first,
                start,
            );
            self.embedding_forward();
        } else if self.job.parallel.pipeline > 1 {
            self.receive(Stream::ReceiveForward, self.stage_before());
        }
        self.run_layers(chunk.layers.clone(), is_first, false);
        self.layer = None;
        if chunk.is_last {
            let dense = self.layers.head_parameters(self.job);
            let start = self.flush();
            self.pull(Held { dense, experts: 0 }, is_first, start);
            self.head_forward();
        } else if self.job.parallel.pipeline > 1 {
            self.send(Stream::SendForward, self.next_stage());
        }
        self.flush();
    }

    /// One microbatch back through a chunk; with the last one, gradients are complete.
    fn backward(&mut self, chunk: &Chunk, is_last: bool) {
        self.pass = Pass::Backward;
        let reduces = is_last || self.job.parallel.sharding >= Sharding::Gradients;
        if chunk.is_last {
            self.head_backward();
            if reduces {
                let held = Held { dense: self.layers.head_parameters(self.job), experts: 0 };
                self.gradients(held);
            }
        } else if self.job.parallel.pipeline > 1 {
            self.receive(Stream::ReceiveBackward, self.next_stage());
        }
        self.run_layers(chunk.layers.clone(), reduces, true);
        self.layer = None;
        self.pass = Pass::Backward;
        if chunk.is_first {
            self.embedding_backward();
            if reduces {
                let dense = self.layers.embedding_parameters(&self.job.model);
                self.gradients(Held { dense, experts: 0 });
            }
        } else if self.job.parallel.pipeline > 1 {
            self.send(Stream::SendBackward, self.stage_before());
        }
        self.flush();
        if reduces && self.job.parallel.overlap {
            self.reduce_rest();
        }
    }

    /// These gradients are ready: they are reduced in buckets as soon as those are full; those of parameters that are shared
    /// out at once, as they were gathered.
    pub(super) fn gradients(&mut self, held: Held) {
        let bytes = self.job.training.gradient_bytes();
        self.ready[0] += held.dense * bytes;
        self.ready[1] += held.experts * bytes;
        if !self.job.parallel.overlap {
            return;
        }
        if self.job.parallel.sharding == Sharding::Parameters {
            for kind in 0..2 {
                let whole = std::mem::take(&mut self.ready[kind]);
                if whole > 0 {
                    self.reduce(kind, Bytes(whole));
                }
            }
            return;
        }
        let bucket = self.job.parallel.bucket.as_u64();
        for kind in 0..2 {
            while self.ready[kind] >= bucket {
                self.ready[kind] -= bucket;
                self.reduce(kind, Bytes(bucket));
            }
        }
    }

    /// What did not fill a bucket.
    fn reduce_rest(&mut self) {
        for kind in 0..2 {
            let rest = std::mem::take(&mut self.ready[kind]);
            let bucket = self.job.parallel.bucket.as_u64();
            for _ in 0..rest / bucket {
                self.reduce(kind, Bytes(bucket));
            }
            if !rest.is_multiple_of(bucket) {
                self.reduce(kind, Bytes(rest % bucket));
            }
        }
    }

    fn reduce(&mut self, kind: usize, bytes: Bytes) {
        let replicas = self.job.parallel.data * self.job.parallel.context;
        let (scope, members) = match kind {
            0 => (Scope::Data, replicas),
            _ => (Scope::ExpertData, replicas / self.job.parallel.expert),
        };
        let dtype = self.job.training.gradient_dtype();
        let said = match (self.job.servers, self.job.parallel.sharding) {
            (Some(_), _) => Communication { what: What::Push, scope: Scope::Servers, bytes, dtype },
            (None, _) if members == 1 => return,
            (None, Sharding::None) => {
                Communication { what: What::Collective(Collective::AllReduce), scope, bytes, dtype }
            }
            _ => Communication { what: What::Collective(Collective::ReduceScatter), scope, bytes, dtype },
        };
        self.reduced[kind] = Some(self.communicate(Stream::Reduce, said));
    }

    /// Parameters that the forward pass needs and that are not on the rank come now: shards of a sharded optimiser after its
    /// step, or what parameter servers have.
    pub(super) fn pull(&mut self, held: Held, is_first: bool, after: Option<u32>) {
        let parallel = &self.job.parallel;
        let replicas = parallel.data * parallel.context;
        let (bytes, dtype) = (self.job.training.precision.bytes(), self.job.training.precision.dtype());
        let gather = What::Collective(Collective::AllGather);
        let parts = match (self.job.servers, parallel.sharding) {
            (Some(_), _) if is_first => {
                [(What::Pull, Scope::Servers, held.dense + held.experts), (What::Pull, Scope::Servers, 0)]
            }
            (None, Sharding::Optimiser | Sharding::Gradients) if is_first && parallel.overlap => {
                [(gather, Scope::Data, held.dense), (gather, Scope::ExpertData, held.experts)]
            }
            (None, Sharding::Parameters) => {
                [(gather, Scope::Data, held.dense), (gather, Scope::ExpertData, held.experts)]
            }
            _ => return,
        };
        for (what, scope, count) in parts {
            let members = match scope {
                Scope::Data => replicas,
                Scope::ExpertData => replicas / parallel.expert,
                _ => 2,
            };
            if count == 0 || members == 1 {
                continue;
            }
            let said = Communication { what, scope, bytes: Bytes(count * bytes), dtype };
            let gathered = self.communicate_after(Stream::Gather, said, after);
            self.wait(gathered);
        }
    }

    /// The end of the step: what is left of the gradients, their norm, the optimiser, a checkpoint.
    fn finish(mut self, chunks: &[Chunk]) -> Program {
        self.pass = Pass::Optimiser;
        self.reduce_rest();
        for operation in self.reduced.into_iter().flatten() {
            self.wait(operation);
        }
        let parallel = &self.job.parallel;
        let has_words = chunks.iter().any(|chunk| chunk.is_first || chunk.is_last);
        if self.job.model.tied && parallel.pipeline > 1 && has_words {
            // Both ends have the words, and both have gradients for them.
            let words = self.job.model.vocabulary * self.job.model.hidden / u64::from(parallel.tensor);
            let bytes = Bytes(words * self.job.training.gradient_bytes());
            let what = What::Collective(Collective::AllReduce);
            let dtype = self.job.training.gradient_dtype();
            self.exchange(Stream::World, Communication { what, scope: Scope::Embedding, bytes, dtype });
        }
        if parallel.ranks() > 1 {
            // The norm of all gradients, by which they are clipped.
            let what = What::Collective(Collective::AllReduce);
            let said = Communication { what, scope: Scope::World, bytes: Bytes(4), dtype: DataType::F32 };
            self.exchange(Stream::World, said);
        }
        self.optimise(chunks);
        if let Some(bytes) = self.job.checkpoint {
            self.pass = Pass::Checkpoint;
            let said = Communication { what: What::Write, scope: Scope::Storage, bytes, dtype: DataType::U8 };
            self.communicate(Stream::Storage, said);
        }
        self.flush();
        Program::new(self.operations)
    }

    fn optimise(&mut self, chunks: &[Chunk]) {
        let parallel = &self.job.parallel;
        let held = chunks.iter().map(|chunk| stage::held(&self.job.model, parallel, chunk));
        let held = held.fold(Held::default(), |sum, one| Held {
            dense: sum.dense + one.dense,
            experts: sum.experts + one.experts,
        });
        let replicas = u64::from(parallel.data) * u64::from(parallel.context);
        let (dense, experts) = match (parallel.sharding, self.job.servers) {
            // The servers do it.
            (_, Some(_)) => (0, 0),
            (Sharding::None, None) => (held.dense, held.experts),
            _ => {
                (held.dense.div_ceil(replicas), held.experts.div_ceil(replicas / u64::from(parallel.expert)))
            }
        };
        self.compute(optimiser_cost(&self.job.gpu, &self.job.training, dense + experts));
        let is_sharded = matches!(parallel.sharding, Sharding::Optimiser | Sharding::Gradients);
        if !is_sharded || parallel.overlap || self.job.servers.is_some() {
            return;
        }
        for (scope, count, members) in [
            (Scope::Data, held.dense, replicas),
            (Scope::ExpertData, held.experts, replicas / u64::from(parallel.expert)),
        ] {
            if count > 0 && members > 1 {
                let bytes = Bytes(count * self.job.training.precision.bytes());
                let what = What::Collective(Collective::AllGather);
                let dtype = self.job.training.precision.dtype();
                self.exchange(Stream::Gather, Communication { what, scope, bytes, dtype });
            }
        }
    }
}
