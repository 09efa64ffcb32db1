//! How long GPUs compute: a roofline. Each kernel takes as long as its arithmetic or its bytes need, whichever is longer,
//! at the rates that the GPU really reaches.
//!
//! Counts are exact in f64 (they stay below 2^53 for each kernel or are rounded far behind what matters); times become whole
//! picoseconds once, in [`Cost::span`].

mod gpu;
mod kernel;
mod layer;
mod recorded;
#[cfg(test)]
mod tests;

use std::ops::{Add, AddAssign, Mul};

use railnet_core::Span;

pub use gpu::{Gpu, NoGpu};
pub use layer::{LayerCost, Shard, Words, layer_cost, optimiser_cost, words_cost};
pub use recorded::{Format, Kernel, Rates};

use crate::model::Model;

/// What some work takes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Seconds on a GPU that does nothing else.
    pub seconds: f64,
    /// Floating-point operations of its matrix products.
    pub flops: f64,
}

impl Cost {
    /// Its time.
    pub fn span(&self) -> Span {
        Span::from_ps((self.seconds * 1e12).round() as u64)
    }
}

impl Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { seconds: self.seconds + other.seconds, flops: self.flops + other.flops }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<f64> for Cost {
    type Output = Self;
    fn mul(self, times: f64) -> Self {
        Self { seconds: self.seconds * times, flops: self.flops * times }
    }
}

/// One part of a layer, in both directions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Part {
    /// Forward.
    pub forward: Cost,
    /// Backward, as far as the part before it waits for that.
    pub backward: Cost,
    /// The gradient of weights, for which nobody waits: it hides the communication of what others wait for.
    pub tail: Cost,
}

impl AddAssign for Part {
    fn add_assign(&mut self, other: Self) {
        self.forward += other.forward;
        self.backward += other.backward;
        self.tail += other.tail;
    }
}

/// Operations of the matrix products of a model, forward, for so many sequences: layers and words apart. All pairs of tokens
/// are counted, also those that a causal mask leaves out, as published figures do (arXiv 2104.04473, appendix).
pub fn model_flops(model: &Model, sequences: u64) -> (f64, f64) {
    let tokens = (sequences * model.sequence) as f64;
    let (hidden, query) = (model.hidden as f64, model.query_width() as f64);
    let value = model.latent.map_or(model.head_size, |latent| latent.value) as f64;
    let key = model.head_size as f64 + model.latent.map_or(0.0, |latent| latent.rope as f64);
    let scores = 2.0 * tokens * model.sequence as f64 * model.heads as f64 * (key + value);
    let attention = match model.latent {
        Some(_) => model.attention_parameters() as f64,
        None => hidden * (2.0 * query + 2.0 * model.kv_width() as f64),
    };
    let matrices = if model.gated { 3.0 } else { 2.0 };
    let layer = |number: u32| {
        let feed_forward = match model.experts {
            Some(experts) if model.has_experts(number) => {
                let met = (experts.top_k + experts.shared) as f64;
                matrices * hidden * experts.ffn as f64 * met + hidden * experts.count as f64
            }
            _ => matrices * hidden * model.ffn as f64,
        };
        2.0 * tokens * (attention + feed_forward) + scores
    };
    let layers = (0..model.layers).map(layer).sum();
    (layers, 2.0 * tokens * hidden * model.vocabulary as f64)
}

/// Operations of a step without anything computed twice: forward once, backward twice that. What model FLOPs utilisation
/// (MFU) is measured by.
pub fn step_flops(model: &Model, sequences: u64) -> f64 {
    let (layers, words) = model_flops(model, sequences);
    3.0 * (layers + words)
}
