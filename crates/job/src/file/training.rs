//! `[training]`.

use serde::Deserialize;

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
}

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
}
