//! What does not divide what, and what would.

use railnet_core::limits::{BATCH_MAX, BATCH_TOKENS_MAX, LAYERS_MAX, MICROBATCH_TOKENS_MAX, PASSES_MAX};
use thiserror::Error;

use super::{Axis, Parallel, Schedule, divisors_near};
use crate::model::Model;

/// Why a model cannot be spread like that.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A dimension of no ranks.
    #[error("`{key}` is at least 1")]
    Zero {
        /// The key, as files write it.
        key: &'static str,
    },
    /// A number past its limit.
    #[error("{value} {what} are too many: {limit} is the limit")]
    TooMany {
        /// What there are so many of.
        what: &'static str,
        /// The value that is too large.
        value: u128,
        /// How many there may be.
        limit: u64,
    },
    /// The order of axes names one twice.
    #[error("`order` names each of tp, cp, dp and pp once, the innermost first")]
    Order,
    /// The axes do not make the GPUs that there are.
    #[error(
        "tp {tensor} × cp {context} × pp {pipeline} × dp {data} are {ranks} ranks, and there are {gpus} GPUs{help}"
    )]
    Ranks {
        /// Tensor parallelism.
        tensor: u32,
        /// Context parallelism.
        context: u32,
        /// Pipeline parallelism.
        pipeline: u32,
        /// Data parallelism.
        data: u32,
        /// Their product.
        ranks: u32,
        /// GPUs there are.
        gpus: u32,
        /// What would do.
        help: String,
    },
    /// One number does not divide another.
    #[error("`{key}` = {value} does not divide the {number} {what}: {would} would")]
    Divides {
        /// Which number of the layout.
        key: &'static str,
        /// What it is.
        value: u64,
        /// What it should divide.
        number: u64,
        /// The thing that this is a number of.
        what: &'static str,
        /// The nearest that do.
        would: String,
    },
    /// More stages than layers.
    #[error(
        "{chunks} chunks (pp {pipeline} × {each}) are too many for {layers} layers: at most {most} can be filled"
    )]
    TooManyChunks {
        /// Chunks of all stages.
        chunks: u32,
        /// Stages.
        pipeline: u32,
        /// Chunks of each.
        each: u32,
        /// Layers there are.
        layers: u32,
        /// Layers, and one for the words at each end.
        most: u32,
    },
    /// An interleaved pipeline takes microbatches in groups of as many as it has stages.
    #[error(
        "{microbatches} microbatches a rank are no multiple of the {pipeline} stages, which an interleaved pipeline needs: \
         a batch of {batch} would do"
    )]
    Interleaved {
        /// Microbatches of a rank.
        microbatches: u64,
        /// Stages.
        pipeline: u32,
        /// The next larger batch that would do.
        batch: u64,
    },
    /// Experts are shared in a model that has none.
    #[error("`ep` = {expert}, but {model} has no experts: leave `ep` out")]
    NoExperts {
        /// How many ranks were to share them.
        expert: u32,
        /// The model.
        model: String,
    },
    /// Sequence parallelism shares among tensor-parallel ranks.
    #[error(
        "`sp` shares out what lies between the matrices of tensor-parallel ranks: it needs a `tp` of 2 or more"
    )]
    Sequence,
}

pub(super) fn check(
    parallel: &Parallel,
    gpus: u32,
    model: &Model,
    batch: u64,
    micro: u64,
) -> Result<(), ParallelError> {
    let sizes = [
        ("tp", parallel.tensor),
        ("cp", parallel.context),
        ("dp", parallel.data),
        ("pp", parallel.pipeline),
        ("ep", parallel.expert),
        ("chunks", parallel.schedule.chunks()),
        ("micro_batch", micro.min(1) as u32),
        ("global_batch", batch.min(1) as u32),
        ("bucket", parallel.bucket.as_u64().min(1) as u32),
    ];
    if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(ParallelError::Zero { key });
    }
    let mut order = parallel.order;
    order.sort_unstable();
    if order != Axis::ALL {
        return Err(ParallelError::Order);
    }
    check_ranks(parallel, gpus)?;
    if parallel.sequence && parallel.tensor == 1 {
        return Err(ParallelError::Sequence);
    }
    check_model(parallel, model)?;
    check_limits(parallel, model, batch, micro)?;
    check_batch(parallel, batch, micro)
}

/// Before anything is built for them.
fn check_limits(parallel: &Parallel, model: &Model, batch: u64, micro: u64) -> Result<(), ParallelError> {
    let [sequence, layers] = [model.sequence, u64::from(model.layers)].map(u128::from);
    let microbatches = u128::from(batch) / (u128::from(parallel.data) * u128::from(micro));
    let limits = [
        ("sequences of the global batch", u128::from(batch), BATCH_MAX),
        ("tokens of the global batch", u128::from(batch) * sequence, BATCH_TOKENS_MAX),
        ("tokens of a microbatch", u128::from(micro) * sequence, MICROBATCH_TOKENS_MAX),
        ("passes of a rank through a layer in a step", microbatches * layers, PASSES_MAX),
        ("layers to gather ahead (`prefetch`)", u128::from(parallel.prefetch), u64::from(LAYERS_MAX)),
    ];
    match limits.into_iter().find(|(_, value, limit)| *value > u128::from(*limit)) {
        Some((what, value, limit)) => Err(ParallelError::TooMany { what, value, limit }),
        None => Ok(()),
    }
}

fn check_ranks(parallel: &Parallel, gpus: u32) -> Result<(), ParallelError> {
    let Parallel { tensor, context, data, pipeline, .. } = *parallel;
    let ranks = parallel.ranks();
    if ranks == gpus {
        return Ok(());
    }
    let each = ranks / data;
    let help = if gpus.is_multiple_of(each) {
        format!(": dp {} would do", gpus / each)
    } else {
        format!(
            ": {each} GPUs have one copy of the model, so write a tp × cp × pp of {}",
            divisors_near(u64::from(gpus), u64::from(each))
        )
    };
    Err(ParallelError::Ranks { tensor, context, pipeline, data, ranks, gpus, help })
}

fn divides(
    key: &'static str,
    value: impl Into<u64>,
    number: u64,
    what: &'static str,
) -> Result<(), ParallelError> {
    let value = value.into();
    if number.is_multiple_of(value) {
        return Ok(());
    }
    Err(ParallelError::Divides { key, value, number, what, would: divisors_near(number, value) })
}

fn check_model(parallel: &Parallel, model: &Model) -> Result<(), ParallelError> {
    divides("tp", parallel.tensor, model.heads, "attention heads")?;
    divides("tp", parallel.tensor, model.ffn, "columns of the feed-forward part")?;
    divides("cp", parallel.context, model.sequence, "tokens of a sequence")?;
    if parallel.sequence {
        divides("tp", parallel.tensor, model.sequence / u64::from(parallel.context), "tokens of a rank")?;
    }
    let (chunks, most) = (parallel.chunks(), model.layers.saturating_add(2));
    if chunks > most {
        let (pipeline, each) = (parallel.pipeline, parallel.schedule.chunks());
        return Err(ParallelError::TooManyChunks { chunks, pipeline, each, layers: model.layers, most });
    }
    match model.experts {
        Some(experts) => {
            divides("ep", parallel.expert, experts.count, "experts")?;
            divides("ep", parallel.expert, u64::from(parallel.data), "data-parallel ranks")
        }
        None if parallel.expert > 1 => {
            Err(ParallelError::NoExperts { expert: parallel.expert, model: model.name.clone() })
        }
        None => Ok(()),
    }
}

fn check_batch(parallel: &Parallel, batch: u64, micro: u64) -> Result<(), ParallelError> {
    divides("dp", parallel.data, batch, "sequences of the global batch")?;
    let each = batch / u64::from(parallel.data);
    divides("micro_batch", micro, each, "sequences of each data-parallel rank")?;
    let microbatches = each / micro;
    let pipeline = u64::from(parallel.pipeline);
    let is_interleaved = matches!(parallel.schedule, Schedule::Interleaved { chunks } if chunks > 1);
    if is_interleaved && !microbatches.is_multiple_of(pipeline) {
        let batch = microbatches.next_multiple_of(pipeline) * micro * u64::from(parallel.data);
        return Err(ParallelError::Interleaved { microbatches, pipeline: parallel.pipeline, batch });
    }
    Ok(())
}
