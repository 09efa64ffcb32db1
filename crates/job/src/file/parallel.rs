//! `[parallel]`.

use railnet_core::Bytes;
use railnet_core::limits::EXPERTS_MAX;
use serde::Deserialize;

use super::error::FileError;
use super::written::Written;
use crate::parallel::{Axis, Parallel, Schedule, Sharding};

/// `[parallel]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSection {
    /// Ranks that share each matrix.
    pub tp: u32,
    /// Stages of the pipeline.
    pub pp: u32,
    /// Ranks that share each sequence.
    pub cp: u32,
    /// Ranks that have parts of the batch; all that are left by default.
    pub dp: Option<u32>,
    /// Data-parallel ranks that share the experts.
    pub ep: u32,
    /// Whether tensor-parallel ranks share what lies between matrices.
    pub sp: bool,
    /// What data-parallel ranks share out: 0 nothing, 1 the optimiser, 2 gradients, 3 parameters.
    pub zero: u8,
    /// The same as `zero = 3`.
    pub fsdp: bool,
    /// Bytes of gradients that are reduced together.
    pub bucket: Written<Bytes>,
    /// Whether data-parallel communication runs beside computing.
    pub overlap: bool,
    /// Layers whose parameters are gathered ahead, with `fsdp`.
    pub prefetch: u32,
    /// The order of microbatches.
    pub schedule: ScheduleName,
    /// Chunks of each stage, with `schedule = "interleaved"`.
    pub chunks: u32,
    /// The axes, the innermost first.
    pub order: [AxisName; 4],
    /// How many times as many tokens as the average the busiest expert gets.
    pub hot_expert: f64,
}

impl Default for ParallelSection {
    fn default() -> Self {
        let parallel = Parallel::default();
        Self {
            tp: 1,
            pp: 1,
            cp: 1,
            dp: None,
            ep: 1,
            sp: false,
            zero: 0,
            fsdp: false,
            bucket: Written(parallel.bucket),
            overlap: parallel.overlap,
            prefetch: parallel.prefetch,
            schedule: ScheduleName::OneForwardOneBackward,
            chunks: 2,
            order: [AxisName::Tp, AxisName::Cp, AxisName::Dp, AxisName::Pp],
            hot_expert: 1.0,
        }
    }
}

/// `schedule = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub enum ScheduleName {
    /// All forward, then all backward.
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward, one backward.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with several chunks on each stage.
    #[serde(rename = "interleaved")]
    Interleaved,
}

/// An axis in `order`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AxisName {
    /// Parts of each matrix.
    Tp,
    /// Parts of each sequence.
    Cp,
    /// Parts of the batch.
    Dp,
    /// Layers.
    Pp,
}

impl AxisName {
    const fn axis(self) -> Axis {
        match self {
            Self::Tp => Axis::Tensor,
            Self::Cp => Axis::Context,
            Self::Dp => Axis::Data,
            Self::Pp => Axis::Pipeline,
        }
    }
}

impl ParallelSection {
    /// The layout that is meant, on so many ranks. Whether it fits them is not checked here.
    pub(super) fn resolve(&self, ranks: u32) -> Result<Parallel, FileError> {
        let sharding = match (self.zero, self.fsdp) {
            (0 | 3, true) => Sharding::Parameters,
            (number @ 1..=2, true) => {
                let message = format!("`fsdp` is `zero = 3`, not {number}: leave one of them out");
                return Err(FileError::new("parallel.fsdp", message));
            }
            (number @ 0..=3, false) => Sharding::ALL[usize::from(number)],
            (number, _) => {
                let message = format!(
                    "`zero` is 0 (nothing shared), 1 (the optimiser), 2 (and gradients) or 3 (and parameters), not {number}"
                );
                return Err(FileError::new("parallel.zero", message));
            }
        };
        if !(1.0..=EXPERTS_MAX as f64).contains(&self.hot_expert) {
            let message = format!(
                "the busiest expert gets at least its share: 1 to {EXPERTS_MAX}, not {}",
                self.hot_expert
            );
            return Err(FileError::new("parallel.hot_expert", message));
        }
        let copy = self.tp.saturating_mul(self.cp).saturating_mul(self.pp).max(1);
        Ok(Parallel {
            tensor: self.tp,
            context: self.cp,
            data: self.dp.unwrap_or((ranks / copy).max(1)),
            pipeline: self.pp,
            expert: self.ep,
            sequence: self.sp,
            sharding,
            schedule: match self.schedule {
                ScheduleName::GPipe => Schedule::GPipe,
                ScheduleName::OneForwardOneBackward => Schedule::OneForwardOneBackward,
                ScheduleName::Interleaved => Schedule::Interleaved { chunks: self.chunks },
            },
            bucket: self.bucket.0,
            overlap: self.overlap,
            prefetch: self.prefetch,
            order: self.order.map(AxisName::axis),
        })
    }
}
