//! What a layer takes on one rank, for one microbatch.
//!
//! Matrix products are counted with their shapes after tensor parallelism; what lies between them by the bytes that fused
//! kernels read and write. Backward, each product makes two: the gradient of its input and that of its weights.

use super::kernel::{Product, fused_attention, moved};
use super::{Cost, Gpu, Part};
use crate::model::Model;
use crate::parallel::Parallel;
use crate::training::{AttentionKernel, Training};

/// What one rank has of a microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Its tokens.
    pub tokens: u64,
    /// Its tokens between matrices: fewer with sequence parallelism.
    pub between: u64,
    /// Ranks that share matrices.
    pub tensor: u64,
    /// Ranks that share sequences.
    pub context: u64,
    /// Ranks that share experts.
    pub expert: u64,
    /// Bytes of a number.
    pub bytes: u64,
    /// Bytes of a gradient.
    pub gradient: u64,
    /// How attention is computed.
    pub attention: AttentionKernel,
}

impl Shard {
    /// The part of a rank of this job.
    pub fn new(model: &Model, parallel: &Parallel, training: &Training) -> Self {
        let tensor = u64::from(parallel.tensor);
        let tokens = training.micro_batch * model.sequence / u64::from(parallel.context);
        Self {
            tokens,
            between: if parallel.sequence { tokens / tensor } else { tokens },
            tensor,
            context: u64::from(parallel.context),
            expert: u64::from(parallel.expert),
            bytes: training.precision.bytes(),
            gradient: training.gradient_bytes(),
            attention: training.attention,
        }
    }
}

/// The parts of a layer, in the order of the forward pass.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LayerCost {
    /// Norm, queries, keys and values.
    pub project: Part,
    /// Scores, softmax and the sum of values.
    pub core: Part,
    /// The projection after that.
    pub output: Part,
    /// Residual and norm; the choice of experts and the sorting of tokens, where there are experts.
    pub enter: Part,
    /// The feed-forward part: dense, or the experts of this rank with an even share of tokens.
    pub feed: Part,
    /// Experts that every token meets, and the sorting back.
    pub shared: Part,
}

impl LayerCost {
    /// Everything.
    pub fn total(&self) -> Part {
        let mut total = Part::default();
        for part in [self.project, self.core, self.output, self.enter, self.feed, self.shared] {
            total += part;
        }
        total
    }
}

/// What a layer takes.
pub fn layer_cost(gpu: &Gpu, model: &Model, shard: &Shard, layer: u32) -> LayerCost {
    let counter = Counter { gpu, shard };
    let mut cost = LayerCost {
        project: projections(&counter, model),
        core: core(&counter, model),
        output: output(&counter, model),
        enter: counter.normed(model),
        ..LayerCost::default()
    };
    match model.experts {
        Some(experts) if model.has_experts(layer) => {
            cost.enter += counter.linear(shard.between, experts.count, model.hidden, 1, false);
            // Each token is copied once for each of its experts, and the results are added up again.
            let copied = (shard.between * experts.top_k * model.hidden * shard.bytes) as f64;
            cost.enter += counter.streamed(2.0 * copied, 2.0 * copied);
            cost.shared += counter.streamed(2.0 * copied, 2.0 * copied);
            let local = (experts.count / shard.expert).max(1);
            let tokens = (shard.tokens * experts.top_k).div_ceil(local);
            cost.feed = counter.feed_forward(model, tokens, experts.ffn, local);
            if experts.shared > 0 {
                cost.shared += counter.feed_forward(model, shard.tokens, experts.shared * experts.ffn, 1);
            }
        }
        _ => cost.feed = counter.feed_forward(model, shard.tokens, model.ffn, 1),
    }
    cost
}

fn projections(counter: &Counter<'_>, model: &Model) -> Part {
    let Shard { tokens, tensor, bytes, .. } = *counter.shard;
    let mut part = counter.normed(model);
    part += counter.biases(model, tokens * (model.query_width() + 2 * model.kv_width()) / tensor);
    let kv_heads = model.kv_heads.div_ceil(tensor).max(1);
    if let Some(latent) = model.latent {
        let heads = model.heads / tensor;
        let down = latent.query_rank + latent.kv_rank + latent.rope;
        part += counter.linear(tokens, down, model.hidden, 1, false);
        part += counter.linear(tokens, heads * (model.head_size + latent.rope), latent.query_rank, 1, true);
        part += counter.linear(tokens, heads * (model.head_size + latent.value), latent.kv_rank, 1, true);
    } else {
        let width = model.query_width() / tensor + 2 * kv_heads * model.head_size;
        part += counter.linear(tokens, width, model.hidden, 1, true);
    }
    if !model.learned_positions {
        // Queries and keys are turned.
        let width = model.query_width() / tensor + kv_heads * model.head_size;
        let turned = (2 * tokens * width * bytes) as f64;
        part += counter.streamed(turned, turned);
    }
    part
}

fn core(counter: &Counter<'_>, model: &Model) -> Part {
    let Shard { tokens, tensor, bytes, attention, .. } = *counter.shard;
    let heads = model.heads / tensor;
    let key = model.head_size + model.latent.map_or(0, |latent| latent.rope);
    let value = model.latent.map_or(model.head_size, |latent| latent.value);
    let pairs = tokens as f64 * model.sequence as f64 * heads as f64;
    match attention {
        AttentionKernel::Flash => {
            // Half of the pairs, and the scores once more backward (arXiv 2307.08691, section 4.1).
            let flops = pairs * (key + value) as f64;
            Part {
                forward: fused_attention(counter.gpu, flops, false),
                backward: fused_attention(counter.gpu, 2.5 * flops, true),
                tail: Cost::default(),
            }
        }
        AttentionKernel::Plain => {
            // A rank's sequences have `sequence` tokens each, of which it has its share as queries.
            let (rows, columns) = (model.sequence / counter.shard.context, model.sequence);
            let count = tokens / rows * heads;
            let product = |m, n, k| Product { count, ..Product::new(m, n, k, bytes) }.cost(counter.gpu);
            let scores = product(rows, columns, key);
            let values = product(rows, value, columns);
            // Scale, mask and softmax read and write; dropout does again, with a mask of a byte. Backward the gradients of
            // both are read and written, with the probabilities.
            let mask = u64::from(model.dropout);
            let forward = pairs * (2 * bytes + mask * (2 * bytes + 1)) as f64;
            let backward = pairs * (3 * bytes + mask * (2 * bytes + 1)) as f64;
            let mut part = counter.streamed(forward, backward);
            part.forward += scores + values;
            part.backward += product(rows, columns, value)
                + product(columns, value, rows)
                + product(rows, key, columns)
                + product(columns, key, rows);
            part
        }
    }
}

fn output(counter: &Counter<'_>, model: &Model) -> Part {
    let value = model.latent.map_or(model.head_size, |latent| latent.value);
    let width = model.heads * value / counter.shard.tensor;
    let mut part = counter.linear(counter.shard.tokens, model.hidden, width, 1, false);
    part += counter.biases(model, counter.shard.between * model.hidden);
    part
}

/// What the words at the ends take.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Words {
    /// Looking up the words that go in.
    pub embedding: Part,
    /// The last norm, the words that come out, and the loss.
    pub head: Part,
}

/// What the words at the ends take.
pub fn words_cost(gpu: &Gpu, model: &Model, shard: &Shard) -> Words {
    let counter = Counter { gpu, shard };
    let rows = (shard.tokens * model.hidden * shard.bytes) as f64;
    let mut head = counter.normed(model);
    let words = model.vocabulary / shard.tensor;
    head += counter.linear(shard.tokens, words, model.hidden, 1, true);
    // Scores are widened to f32 (read 2, write 4), their logarithms read and written; backward gradients are made of both (read
    // 8, write 4) and narrowed (read 4, write 2).
    let scores = (shard.tokens * words) as f64;
    head += counter.streamed(14.0 * scores, 18.0 * scores);
    Words { embedding: counter.streamed(2.0 * rows, 2.0 * rows), head }
}

/// What the optimiser takes for so many parameters of a rank: gradients are read for their norm, read and written to be clipped,
/// and read again; its state is read and written; the parameter is written.
pub fn optimiser_cost(gpu: &Gpu, training: &Training, parameters: u64) -> Cost {
    let state = 2 * training.optimiser_bytes();
    let each = state + 4 * training.gradient_bytes() + training.precision.bytes();
    moved(gpu, (parameters * each) as f64)
}

/// Counts kernels.
struct Counter<'a> {
    gpu: &'a Gpu,
    shard: &'a Shard,
}

impl Counter<'_> {
    /// A linear layer on so many tokens: `outputs` × `inputs` weights, `count` of them. With `has_tail` nobody waits for the
    /// gradient of its weights.
    fn linear(&self, tokens: u64, outputs: u64, inputs: u64, count: u64, has_tail: bool) -> Part {
        let bytes = self.shard.bytes;
        let product = |m, n, k| Product { count, ..Product::new(m, n, k, bytes) };
        let weights = Product {
            // Gradients are added to those of earlier microbatches.
            out: 2 * self.shard.gradient,
            ..product(outputs, inputs, tokens)
        };
        let (inward, weights) = (product(tokens, inputs, outputs).cost(self.gpu), weights.cost(self.gpu));
        let (backward, tail) = if has_tail { (inward, weights) } else { (inward + weights, Cost::default()) };
        Part { forward: product(tokens, outputs, inputs).cost(self.gpu), backward, tail }
    }

    /// So many bytes through memory, forward and backward.
    fn streamed(&self, forward: f64, backward: f64) -> Part {
        Part { forward: moved(self.gpu, forward), backward: moved(self.gpu, backward), tail: Cost::default() }
    }

    /// Residual (with dropout) and norm: read two and write one, read one and write one; backward the norm reads two and
    /// writes one, and the gradient that goes past it is added: read two and write one.
    fn normed(&self, model: &Model) -> Part {
        let rows = (self.shard.between * model.hidden) as f64;
        let mask = if model.dropout { rows } else { 0.0 };
        let bytes = rows * self.shard.bytes as f64;
        self.streamed(5.0 * bytes + mask, 6.0 * bytes + mask)
    }

    /// Biases are added where matrices are multiplied; their gradient is a sum over all tokens, read once more.
    fn biases(&self, model: &Model, numbers: u64) -> Part {
        self.streamed(0.0, if model.biases { (numbers * self.shard.bytes) as f64 } else { 0.0 })
    }

    fn feed_forward(&self, model: &Model, tokens: u64, width: u64, count: u64) -> Part {
        let width = width / self.shard.tensor;
        let inputs = if model.gated { 2 } else { 1 };
        let mut part = self.linear(tokens, inputs * width, model.hidden, count, true);
        part += self.linear(tokens, model.hidden, width, count, false);
        // The activation reads its inputs and writes one; backward it reads those and a gradient, and writes theirs.
        let rows = (tokens * width * count * self.shard.bytes) as f64;
        part += self.streamed((inputs + 1) as f64 * rows, (2 * inputs + 1) as f64 * rows);
        part += self.biases(model, tokens * count * (inputs * width + model.hidden));
        part
    }
}
