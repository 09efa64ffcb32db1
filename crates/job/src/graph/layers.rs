//! Layers forward and backward, with what ranks say to each other inside them.

use std::ops::Range;

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType};

use super::build::Builder;
use super::{Communication, Job, Pass, Stream, What};
use crate::compute::{LayerCost, Shard, Words, layer_cost, words_cost};
use crate::model::Model;
use crate::parallel::{Scope, Sharding};
use crate::stage::Held;
use crate::training::{AttentionKernel, Recompute};

/// What layers cost: there are two kinds.
pub(super) struct Layers {
    pub(super) shard: Shard,
    dense: LayerCost,
    experts: Option<LayerCost>,
    words: Words,
    tensor: u64,
}

impl Layers {
    pub(super) fn new(job: &Job) -> Self {
        let shard = Shard::new(&job.model, &job.parallel, &job.training);
        let plain = Model { experts: None, ..job.model.clone() };
        let last = job.model.layers - 1;
        Self {
            dense: layer_cost(&job.gpu, &plain, &shard, 0),
            experts: job.model.has_experts(last).then(|| layer_cost(&job.gpu, &job.model, &shard, last)),
            words: words_cost(&job.gpu, &job.model, &shard),
            tensor: shard.tensor,
            shard,
        }
    }

    pub(super) fn embedding_parameters(&self, model: &Model) -> u64 {
        model.embedding_parameters().div_ceil(self.tensor)
    }

    /// Gradients that the last chunk has besides its layers: words that are tied are reduced with the first chunk's where that
    /// is on the same rank.
    pub(super) fn head_parameters(&self, job: &Job) -> u64 {
        let copied = job.model.tied && job.parallel.pipeline > 1;
        let words = if copied { job.model.vocabulary * job.model.hidden } else { 0 };
        (job.model.head_parameters() + words).div_ceil(self.tensor)
    }

    fn held(&self, job: &Job, layer: u32) -> Held {
        let parameters = job.model.layer_parameters(layer);
        Held {
            dense: parameters.dense.div_ceil(self.tensor),
            experts: parameters.experts.div_ceil(self.tensor * u64::from(job.parallel.expert)),
        }
    }
}

impl Builder<'_> {
    /// Some layers one after the other, forward or backward. With `is_marked` parameters come that have changed, or gradients
    /// are complete.
    pub(super) fn run_layers(&mut self, layers: Range<u32>, is_marked: bool, is_backward: bool) {
        let numbers: Vec<u32> = if is_backward { layers.rev().collect() } else { layers.collect() };
        // Parameters that are shared out come so many layers ahead of their use.
        let ahead = self.job.parallel.prefetch as usize + 1;
        let mut ends = vec![self.flush(); ahead];
        let full = self.job.training.recompute == Recompute::Full;
        for (place, layer) in numbers.into_iter().enumerate() {
            self.layer = Some(layer);
            let held = self.layers.held(self.job, layer);
            let is_gathered = self.job.parallel.sharding == Sharding::Parameters;
            if is_gathered || !is_backward {
                let after = if is_gathered { ends[place] } else { None };
                self.pull(held, is_marked && !is_backward, after);
            }
            if is_backward {
                if full {
                    // What was computed so far belongs to the pass before, what comes to the next.
                    self.flush();
                    self.pass = Pass::Recompute;
                    self.layer_forward(layer);
                    self.flush();
                    self.pass = Pass::Backward;
                }
                self.layer_backward(layer);
                if is_marked {
                    self.gradients(held);
                }
            } else {
                self.layer_forward(layer);
            }
            ends.push(self.flush());
        }
    }

    fn cost(&self, layer: u32) -> (LayerCost, bool) {
        match self.layers.experts {
            Some(cost) if self.job.model.has_experts(layer) => (cost, true),
            _ => (self.layers.dense, false),
        }
    }

    /// The activations of all tokens of a rank, among tensor-parallel ranks.
    fn among_tensor(&self, collective: Collective) -> Communication {
        let bytes = Bytes(self.layers.shard.tokens * self.job.model.hidden * self.layers.shard.bytes);
        let dtype = self.job.training.precision.dtype();
        Communication { what: What::Collective(collective), scope: Scope::Tensor, bytes, dtype }
    }

    /// Before matrices that are split by columns: everybody gets all tokens.
    fn enter_tensor(&mut self) {
        if self.job.parallel.sequence {
            let said = self.among_tensor(Collective::AllGather);
            self.exchange(Stream::Tensor, said);
        }
    }

    /// After matrices that are split by rows: partial sums are added up.
    fn leave_tensor(&mut self) {
        if self.job.parallel.tensor > 1 {
            let said = self.among_tensor(self.sums());
            self.exchange(Stream::Tensor, said);
        }
    }

    fn sums(&self) -> Collective {
        if self.job.parallel.sequence { Collective::ReduceScatter } else { Collective::AllReduce }
    }

    /// Tokens to the experts, or back.
    fn route(&mut self) {
        let Some(experts) = self.job.model.experts else { return };
        if self.job.parallel.expert == 1 {
            return;
        }
        let shard = &self.layers.shard;
        let bytes = Bytes(shard.between * experts.top_k * self.job.model.hidden * shard.bytes);
        let dtype = self.job.training.precision.dtype();
        let what = What::Collective(Collective::AllToAll);
        self.exchange(Stream::Expert, Communication { what, scope: Scope::Expert, bytes, dtype });
    }

    /// Keys and values of the whole sequence, or their gradients.
    fn context(&mut self, collective: Collective) {
        if self.job.parallel.context == 1 {
            return;
        }
        let (model, shard) = (&self.job.model, &self.layers.shard);
        let width = match model.latent {
            Some(latent) => latent.kv_rank + latent.rope,
            None => 2 * model.kv_heads.div_ceil(shard.tensor) * model.head_size,
        };
        let bytes = Bytes(shard.tokens * shard.context * width * shard.bytes);
        let dtype = self.job.training.precision.dtype();
        let what = What::Collective(collective);
        self.exchange(Stream::Context, Communication { what, scope: Scope::Context, bytes, dtype });
    }

    fn layer_forward(&mut self, layer: u32) {
        let (cost, has_experts) = self.cost(layer);
        self.enter_tensor();
        self.compute(cost.project.forward);
        self.context(Collective::AllGather);
        self.compute(cost.core.forward);
        self.compute(cost.output.forward);
        self.leave_tensor();
        self.compute(cost.enter.forward);
        self.enter_tensor();
        if has_experts {
            self.route();
            self.compute_experts(cost.feed.forward);
            self.route();
            self.compute(cost.shared.forward);
        } else {
            self.compute(cost.feed.forward);
        }
        self.leave_tensor();
    }

    fn layer_backward(&mut self, layer: u32) {
        let (cost, has_experts) = self.cost(layer);
        self.enter_tensor();
        self.gather_input();
        if has_experts {
            self.compute(cost.shared.backward);
            self.compute(cost.shared.tail);
            self.route();
            self.compute_experts(cost.feed.backward);
            self.compute_experts(cost.feed.tail);
            self.route();
            self.leave_tensor();
        } else {
            self.compute(cost.feed.backward);
            self.leave_with_tail(cost.feed.tail);
        }
        self.compute(cost.enter.backward);
        self.compute(cost.enter.tail);
        self.enter_tensor();
        self.gather_input();
        self.compute(cost.output.backward);
        // Attention that stays on the chip computes its scores again by itself.
        let repeats = self.job.training.recompute == Recompute::Selective
            && self.job.training.attention == AttentionKernel::Plain;
        if repeats {
            self.flush();
            self.pass = Pass::Recompute;
            self.compute(cost.core.forward);
            self.flush();
            self.pass = Pass::Backward;
        }
        self.context(Collective::AllGather);
        self.compute(cost.core.backward);
        self.context(Collective::ReduceScatter);
        self.compute(cost.project.backward);
        self.leave_with_tail(cost.project.tail);
    }

    /// The gradients of a part's input are added up while those of its weights are computed (Megatron-LM
    /// core/tensor_parallel/layers.py).
    fn leave_with_tail(&mut self, tail: crate::compute::Cost) {
        if self.job.parallel.tensor == 1 {
            self.compute(tail);
            return;
        }
        let said = self.among_tensor(self.sums());
        let summed = self.communicate(Stream::Tensor, said);
        self.compute(tail);
        self.wait(summed);
    }

    /// With sequence parallelism a rank has kept its part of a part's input; all of it is gathered once more for the gradient
    /// of weights, beside other work.
    fn gather_input(&mut self) {
        if self.job.parallel.sequence {
            let said = self.among_tensor(Collective::AllGather);
            self.communicate(Stream::Tensor, said);
        }
    }

    pub(super) fn embedding_forward(&mut self) {
        self.compute(self.layers.words.embedding.forward);
        self.leave_tensor();
    }

    pub(super) fn embedding_backward(&mut self) {
        self.enter_tensor();
        self.compute(self.layers.words.embedding.backward);
    }

    pub(super) fn head_forward(&mut self) {
        self.enter_tensor();
        self.compute(self.layers.words.head.forward);
        if self.job.parallel.tensor > 1 {
            // The largest score, the sum of exponents and the score of the right word of each token (Megatron-LM
            // core/tensor_parallel/cross_entropy.py), as one.
            let bytes = Bytes(self.layers.shard.tokens * 3 * 4);
            let what = What::Collective(Collective::AllReduce);
            self.exchange(
                Stream::Tensor,
                Communication { what, scope: Scope::Tensor, bytes, dtype: DataType::F32 },
            );
        }
    }

    pub(super) fn head_backward(&mut self) {
        self.compute(self.layers.words.head.backward);
        self.leave_with_tail(self.layers.words.head.tail);
    }
}
