//! Memory of a GPU: what lies in it, and whether it fits.
//!
//! Parameters, gradients and the optimiser's state are counted as the ZeRO paper does (arXiv 1910.02054), activations as
//! Korthikanti et al. do (arXiv 2205.05198, equations 1 to 6): what a backward pass needs of the forward pass. Their figures
//! are for GPT; they are split here into the parts they come from, so that other widths, gates and heads can be counted too.

mod fit;
#[cfg(test)]
mod tests;

use railnet_core::Bytes;
use railnet_core::limits::MEMORY_MAX;

pub use fit::{DoesNotFit, Suggestion, fit};

use crate::model::Model;
use crate::parallel::{Parallel, Schedule, Sharding};
use crate::stage::{self, Chunk, Held};
use crate::training::{AttentionKernel, Recompute, Training};

/// What lies in the memory of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Parameters.
    pub parameters: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// The optimiser's state, with the parameters in full precision.
    pub optimiser: Bytes,
    /// Activations of all microbatches under way.
    pub activations: Bytes,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> Bytes {
        self.parameters + self.gradients + self.optimiser + self.activations
    }
}

/// What lies in the memory of the GPU that has most: a GPU of one of the stages. Where parameters live on servers, so many, the
/// optimiser works there and has its state there.
pub fn memory(model: &Model, parallel: &Parallel, training: &Training, servers: Option<u32>) -> Memory {
    let stages = 0..parallel.pipeline;
    let of_stages = stages.map(|stage| {
        let all = memory_of_stage(model, parallel, training, stage);
        if servers.is_some() { Memory { optimiser: Bytes::ZERO, ..all } } else { all }
    });
    of_stages.max_by_key(Memory::total).unwrap_or_default()
}

/// What lies in the memory of a GPU of a stage that has the optimiser's state itself.
pub fn memory_of_stage(model: &Model, parallel: &Parallel, training: &Training, stage: u32) -> Memory {
    let chunks = stage::chunks(model, parallel, stage);
    let held: Vec<Held> = chunks.iter().map(|chunk| stage::held(model, parallel, chunk)).collect();
    let shared = |bytes: u64, from: Sharding| -> Bytes {
        let is_shared = parallel.sharding >= from;
        let replicas = u64::from(parallel.data) * u64::from(parallel.context);
        let of = |count: u64, replicas: u64| (count * bytes).div_ceil(if is_shared { replicas } else { 1 });
        let expert_replicas = replicas / u64::from(parallel.expert);
        held.iter().map(|one| Bytes(of(one.dense, replicas) + of(one.experts, expert_replicas))).sum()
    };
    let mut parameters = shared(training.precision.bytes(), Sharding::Parameters);
    if parallel.sharding == Sharding::Parameters {
        // Those of the layers that are gathered at the time.
        let largest = (0..model.layers).map(|layer| model.layer_parameters(layer));
        let largest = largest.map(|one| one.dense + one.experts / u64::from(parallel.expert)).max();
        let gathered = 1 + u64::from(parallel.prefetch.min(model.layers));
        let each = largest.unwrap_or(0) / u64::from(parallel.tensor) * training.precision.bytes();
        parameters += bounded(u128::from(each) * u128::from(gathered));
    }
    Memory {
        parameters,
        gradients: shared(training.gradient_bytes(), Sharding::Gradients),
        optimiser: shared(training.optimiser_bytes(), Sharding::Optimiser),
        activations: activations(model, parallel, training, stage, &chunks),
    }
}

/// Microbatches of each chunk whose activations a stage has at most: the most forward passes whose backward pass is to come,
/// over its chunks.
fn under_way(parallel: &Parallel, training: &Training, stage: u32) -> (u64, u64) {
    let (stages, each) = (u64::from(parallel.pipeline), u64::from(parallel.schedule.chunks()));
    let microbatches = training.microbatches(parallel.data);
    let behind = stages - 1 - u64::from(stage);
    let passes = match parallel.schedule {
        Schedule::GPipe => microbatches,
        Schedule::OneForwardOneBackward | Schedule::Interleaved { chunks: 1 } => behind + 1,
        Schedule::Interleaved { .. } => 2 * behind + (each - 1) * stages + 1,
    };
    (passes.min(microbatches * each), each)
}

fn activations(
    model: &Model,
    parallel: &Parallel,
    training: &Training,
    stage: u32,
    chunks: &[Chunk],
) -> Bytes {
    let (passes, each) = under_way(parallel, training, stage);
    let layers: u64 = chunks.iter().map(|chunk| chunk.layers.len() as u64).sum();
    let per_layer = layer_activations(model, parallel, training);
    let mut bytes = bounded(
        u128::from(per_layer.as_u64()) * (u128::from(passes) * u128::from(layers)).div_ceil(each.into()),
    );
    if training.recompute == Recompute::Full {
        // One layer at a time is there in full.
        let none = Training { recompute: Recompute::None, ..*training };
        bytes += layer_activations(model, parallel, &none);
    }
    let tokens = training.micro_batch * model.sequence / u64::from(parallel.context);
    if chunks.iter().any(|chunk| chunk.is_last) {
        // The words that come out, in f32, and what goes into them (arXiv 2205.05198, section 4.3).
        let tensor = u64::from(parallel.tensor);
        bytes += Bytes(tokens * (4 * model.hidden + 4 * model.vocabulary) / tensor);
    }
    bytes
}

/// Bytes of activations that a layer keeps for one microbatch on one rank.
pub fn layer_activations(model: &Model, parallel: &Parallel, training: &Training) -> Bytes {
    let tokens = training.micro_batch * model.sequence / u64::from(parallel.context);
    let (tensor, hidden) = (u64::from(parallel.tensor), model.hidden);
    let bytes = training.precision.bytes();
    let between = if parallel.sequence { tensor } else { 1 };
    if training.recompute == Recompute::Full {
        return Bytes(tokens * hidden * bytes / between);
    }
    let masks = u64::from(model.dropout);
    // Inputs of both norms and both parts, and a mask after each: alike on all tensor-parallel ranks, but for sequence
    // parallelism.
    let alike = tokens * hidden * (4 * bytes + 2 * masks) / between;
    // Queries, keys, values, and what goes into the projection after them.
    let attention = tokens * (2 * model.query_width() + 2 * model.kv_width()) * bytes;
    let matrices = if model.gated { 3 } else { 2 };
    let (width, copies) = match model.experts {
        // A token is in the buffers of each of its experts, and so is its input.
        Some(experts) => ((experts.top_k + experts.shared) * experts.ffn, experts.top_k * hidden * bytes),
        None => (model.ffn, 0),
    };
    let feed_forward = tokens * (matrices * width * bytes + copies);
    let mut split = u128::from((attention + feed_forward) / tensor);
    if training.recompute == Recompute::None && training.attention == AttentionKernel::Plain {
        // Scores before and after the mask is applied, and the mask.
        let scores = u128::from(tokens) * u128::from(model.sequence) * u128::from(model.heads);
        split += scores * u128::from(2 * bytes + masks) / u128::from(tensor);
    }
    bounded(u128::from(alike) + split)
}

/// An amount of memory, or one that no GPU has.
fn bounded(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(MEMORY_MAX).min(MEMORY_MAX))
}
