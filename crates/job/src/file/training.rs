//! `[training]`.

use railnet_core::Span;
use serde::Deserialize;

use super::{FileError, Written};
use crate::training::{AttentionKernel, Optimiser, Precision, Recompute, Training};

/// `[training]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingSection {
    /// Sequences that a rank computes with at a time.
    pub micro_batch: u64,
    /// Sequences of a step; by default as many microbatches for each data-parallel rank as the pipeline has stages.
    pub global_batch: Option<u64>,
    /// The format of parameters and activations.
    pub precision: PrecisionName,
    /// The format of gradients; that of parameters by default.
    pub gradients: Option<GradientName>,
    /// What is computed again.
    pub recompute: RecomputeName,
    /// How attention is computed.
    pub attention: AttentionName,
    /// The optimiser.
    pub optimiser: OptimiserName,
    /// Steps.
    pub steps: u32,
    /// What a rank computes in the forward pass of a step, all microbatches together; by default what its GPU takes.
    pub forward: Option<Written<Span>>,
    /// The same of the backward pass, with what it computes again.
    pub backward: Option<Written<Span>>,
}

/// The longest pass that can be given: thousands of steps of it are still a time that can be counted.
const PASS_MAX: Span = Span::from_secs(3600);

impl Default for TrainingSection {
    fn default() -> Self {
        Self {
            micro_batch: 1,
            global_batch: None,
            precision: PrecisionName::Bf16,
            gradients: None,
            recompute: RecomputeName::None,
            attention: AttentionName::Flash,
            optimiser: OptimiserName::Adam,
            steps: 1,
            forward: None,
            backward: None,
        }
    }
}

/// `precision = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrecisionName {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// 8-bit matrix products.
    Fp8,
    /// f32.
    Fp32,
}

/// `gradients = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradientName {
    /// As parameters.
    Same,
    /// f32.
    Fp32,
}

/// `recompute = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecomputeName {
    /// Nothing.
    None,
    /// The inside of attention.
    Selective,
    /// Everything.
    Full,
}

/// `attention = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionName {
    /// In pieces that stay on the chip.
    Flash,
    /// With all scores in memory.
    Plain,
}

/// `optimiser = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimiserName {
    /// Adam.
    Adam,
    /// Stochastic gradient descent with momentum.
    Momentum,
    /// Plain stochastic gradient descent.
    Sgd,
}

impl TrainingSection {
    /// The training that is meant, with this batch where none is given.
    pub(super) fn resolve(&self, batch: u64) -> Training {
        Training {
            micro_batch: self.micro_batch,
            global_batch: self.global_batch.unwrap_or(batch),
            precision: match self.precision {
                PrecisionName::Bf16 => Precision::Bf16,
                PrecisionName::Fp16 => Precision::F16,
                PrecisionName::Fp8 => Precision::F8,
                PrecisionName::Fp32 => Precision::F32,
            },
            gradients_f32: self.gradients == Some(GradientName::Fp32),
            recompute: match self.recompute {
                RecomputeName::None => Recompute::None,
                RecomputeName::Selective => Recompute::Selective,
                RecomputeName::Full => Recompute::Full,
            },
            attention: match self.attention {
                AttentionName::Flash => AttentionKernel::Flash,
                AttentionName::Plain => AttentionKernel::Plain,
            },
            optimiser: match self.optimiser {
                OptimiserName::Adam => Optimiser::Adam,
                OptimiserName::Momentum => Optimiser::Momentum,
                OptimiserName::Sgd => Optimiser::Sgd,
            },
        }
    }
    /// The computing times of the forward and the backward pass, where they are given.
    pub(super) fn passes(&self) -> Result<(Option<Span>, Option<Span>), FileError> {
        for (name, told) in [("forward", self.forward), ("backward", self.backward)] {
            let Some(Written(told)) = told else { continue };
            let message = if told == Span::ZERO {
                format!("a {name} pass takes some time: leave `{name}` out for what the GPU takes")
            } else if told > PASS_MAX {
                format!("a {name} pass of {told} is longer than {PASS_MAX}, the longest that can be given")
            } else {
                continue;
            };
            return Err(FileError::new(&format!("training.{name}"), message));
        }
        Ok((self.forward.map(|told| told.0), self.backward.map(|told| told.0)))
    }
}
