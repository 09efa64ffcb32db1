//! How a model is spread over ranks: the sizes of the parallel dimensions, and what follows from them.
//!
//! There are four axes: tensor, context, data and pipeline parallelism; the number of ranks is the product of their sizes.
//! Expert parallelism is no axis of its own: it takes neighbours along the data axis, as Megatron does. [`Layout`] says
//! which rank is where, and who is in a group with whom.

mod error;
mod layout;
#[cfg(test)]
mod tests;

use railnet_core::Bytes;

pub use error::ParallelError;
pub use layout::{Coordinates, Group, Layout, Scope};

use crate::model::Model;

/// An axis along which ranks differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Axis {
    /// Parts of each matrix.
    Tensor,
    /// Parts of each sequence.
    Context,
    /// Parts of the batch.
    Data,
    /// Layers.
    Pipeline,
}

impl Axis {
    /// All of them, the one inside all others first: Megatron's order.
    pub const ALL: [Self; 4] = [Self::Tensor, Self::Context, Self::Data, Self::Pipeline];

    /// Its short name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tp",
            Self::Context => "cp",
            Self::Data => "dp",
            Self::Pipeline => "pp",
        }
    }
}

/// What data-parallel ranks share out among themselves instead of having all of it: ZeRO (arXiv 1910.02054).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Sharding {
    /// Nothing: each has everything.
    #[default]
    None,
    /// The optimiser's state (ZeRO 1).
    Optimiser,
    /// And gradients (ZeRO 2).
    Gradients,
    /// And parameters (ZeRO 3, FSDP).
    Parameters,
}

impl Sharding {
    /// All of them, by their number.
    pub const ALL: [Self; 4] = [Self::None, Self::Optimiser, Self::Gradients, Self::Parameters];
}

/// The order in which a stage of a pipeline works through microbatches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Schedule {
    /// All forward, then all backward (arXiv 1811.06965).
    GPipe,
    /// One forward, one backward, once the pipeline is full (arXiv 1806.03377).
    #[default]
    OneForwardOneBackward,
    /// The same with several chunks of layers on each stage, which shortens the bubble (arXiv 2104.04473).
    Interleaved {
        /// Chunks of each stage.
        chunks: u32,
    },
}

impl Schedule {
    /// Chunks of layers of each stage.
    pub const fn chunks(self) -> u32 {
        match self {
            Self::GPipe | Self::OneForwardOneBackward => 1,
            Self::Interleaved { chunks } => chunks,
        }
    }
}

/// How a model is spread over ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parallel {
    /// Ranks that share each matrix.
    pub tensor: u32,
    /// Ranks that share each sequence.
    pub context: u32,
    /// Ranks that have parts of the batch.
    pub data: u32,
    /// Stages of the pipeline.
    pub pipeline: u32,
    /// Data-parallel ranks that share the experts.
    pub expert: u32,
    /// Whether tensor-parallel ranks also share what lies between matrices (Megatron's sequence parallelism).
    pub sequence: bool,
    /// What data-parallel ranks share out.
    pub sharding: Sharding,
    /// The order of microbatches.
    pub schedule: Schedule,
    /// Bytes of gradients that are reduced together.
    pub bucket: Bytes,
    /// Whether gradients are reduced, and parameters gathered, while GPUs compute.
    pub overlap: bool,
    /// Layers whose parameters are gathered ahead of their use, where those are shared out.
    pub prefetch: u32,
    /// The axes, the one inside all others first.
    pub order: [Axis; 4],
}

impl Default for Parallel {
    /// One rank. Buckets are PyTorch's 25 MiB.
    fn default() -> Self {
        Self {
            tensor: 1,
            context: 1,
            data: 1,
            pipeline: 1,
            expert: 1,
            sequence: false,
            sharding: Sharding::None,
            schedule: Schedule::default(),
            bucket: Bytes::mib(25),
            overlap: true,
            prefetch: 1,
            order: Axis::ALL,
        }
    }
}

impl Parallel {
    /// Data parallelism alone.
    pub fn data(ranks: u32) -> Self {
        Self { data: ranks, ..Self::default() }
    }

    /// The size of an axis.
    pub const fn size(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tensor => self.tensor,
            Axis::Context => self.context,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
        }
    }

    /// Ranks of all axes together.
    pub fn ranks(&self) -> u32 {
        Axis::ALL.into_iter().fold(1, |ranks: u32, axis| ranks.saturating_mul(self.size(axis)))
    }

    /// Chunks of layers of all stages together.
    pub fn chunks(&self) -> u32 {
        self.pipeline.saturating_mul(self.schedule.chunks())
    }

    /// The layers of each chunk, in the order of the model: as equal as can be. Where they do not come out even, the chunks
    /// at both ends have one less, since they have the words as well (as Llama 3 does it, arXiv 2407.21783, section 3.3.2).
    pub fn layers_of_chunks(&self, layers: u32) -> Vec<u32> {
        let chunks = self.chunks();
        let each = layers.div_ceil(chunks);
        let mut counts = vec![each; chunks as usize];
        let missing = (each * chunks - layers) as usize;
        for place in 0..missing {
            let from_end = place / 2;
            let at = if place % 2 == 0 { counts.len() - 1 - from_end } else { from_end };
            counts[at] -= 1;
        }
        counts
    }

    /// Whether it fits so many GPUs, a model, and a batch of so many sequences in microbatches of so many.
    pub fn check(&self, gpus: u32, model: &Model, batch: u64, micro: u64) -> Result<(), ParallelError> {
        error::check(self, gpus, model, batch, micro)
    }
}

/// In words, the divisors of a number that are nearest to another, below and above: `4 or 8`.
pub(crate) fn divisors_near(number: u64, wanted: u64) -> String {
    // Divisors come in pairs of which one is at most the square root: 46,341 trials for a number of 31 bits.
    let (mut below, mut above) = (None, None);
    let small = (1..=number.isqrt()).filter(|one| number.is_multiple_of(*one));
    for divisor in small.flat_map(|one| [one, number / one]) {
        if divisor < wanted {
            below = below.max(Some(divisor));
        } else if divisor > wanted {
            above = Some(above.map_or(divisor, |least: u64| least.min(divisor)));
        }
    }
    let found: Vec<String> = below.into_iter().chain(above).map(|one| one.to_string()).collect();
    found.join(" or ")
}
