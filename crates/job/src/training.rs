//! How a model is trained: batches, number formats, what is kept and what is computed again.

use railnet_core::DataType;

/// The format of parameters and activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Precision {
    /// bfloat16, with the optimiser in f32.
    #[default]
    Bf16,
    /// IEEE half precision, with the optimiser in f32.
    F16,
    /// Matrix products in 8 bits, the rest as with bfloat16.
    F8,
    /// f32 throughout.
    F32,
}

impl Precision {
    /// The type in which parameters and activations lie in memory and travel.
    pub const fn dtype(self) -> DataType {
        match self {
            Self::Bf16 | Self::F8 => DataType::Bf16,
            Self::F16 => DataType::F16,
            Self::F32 => DataType::F32,
        }
    }

    /// Bytes of a parameter, or of an activation.
    pub const fn bytes(self) -> u64 {
        self.dtype().size() as u64
    }
}

/// What is computed again in the backward pass instead of kept from the forward pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// What is large and cheap: the inside of attention (arXiv 2205.05198).
    Selective,
    /// Everything but the input of each layer.
    Full,
}

/// How attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AttentionKernel {
    /// In pieces that stay on the chip, causal halves skipped (FlashAttention 2, arXiv 2307.08691).
    #[default]
    Flash,
    /// With the whole matrix of scores in memory, as before that.
    Plain,
}

/// The optimiser.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Optimiser {
    /// Adam: two moments.
    #[default]
    Adam,
    /// Stochastic gradient descent with momentum.
    Momentum,
    /// Plain stochastic gradient descent.
    Sgd,
}

impl Optimiser {
    /// f32 numbers that it keeps for each parameter.
    pub const fn states(self) -> u64 {
        match self {
            Self::Adam => 2,
            Self::Momentum => 1,
            Self::Sgd => 0,
        }
    }
}

/// How a model is trained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Training {
    /// Sequences that a rank computes with at a time.
    pub micro_batch: u64,
    /// Sequences of a step, over all ranks.
    pub global_batch: u64,
    /// The format of parameters and activations.
    pub precision: Precision,
    /// Whether gradients are added up in f32, whatever the precision.
    pub gradients_f32: bool,
    /// What is computed again.
    pub recompute: Recompute,
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// The optimiser.
    pub optimiser: Optimiser,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            micro_batch: 1,
            global_batch: 1,
            precision: Precision::default(),
            gradients_f32: false,
            recompute: Recompute::default(),
            attention: AttentionKernel::default(),
            optimiser: Optimiser::default(),
        }
    }
}

impl Training {
    /// The type of gradients, in memory and between ranks.
    pub const fn gradient_dtype(&self) -> DataType {
        if self.gradients_f32 { DataType::F32 } else { self.precision.dtype() }
    }

    /// Bytes of a gradient.
    pub const fn gradient_bytes(&self) -> u64 {
        self.gradient_dtype().size() as u64
    }

    /// Bytes that the optimiser keeps for each parameter: its states, and the parameter in f32 where that is not its format.
    pub const fn optimiser_bytes(&self) -> u64 {
        let master = if matches!(self.precision, Precision::F32) { 0 } else { 1 };
        4 * (self.optimiser.states() + master)
    }

    /// Microbatches of each data-parallel rank.
    pub const fn microbatches(&self, data: u32) -> u64 {
        self.global_batch / (data as u64 * self.micro_batch)
    }
}
