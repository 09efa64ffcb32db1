//! What a stage of a pipeline has: which layers, and how many parameters.

use std::ops::Range;

use crate::model::Model;
use crate::parallel::Parallel;

/// Some layers that follow each other, with the words at the ends of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its place among the chunks of the model.
    pub place: u32,
    /// Its layers.
    pub layers: Range<u32>,
    /// Whether the words go in here.
    pub is_first: bool,
    /// Whether the words come out here.
    pub is_last: bool,
}

/// The chunks of a stage, in the order of the model.
pub fn chunks(model: &Model, parallel: &Parallel, stage: u32) -> Vec<Chunk> {
    let counts = parallel.layers_of_chunks(model.layers);
    let last = counts.len() - 1;
    let mut from = 0;
    let mut found = Vec::new();
    for (place, count) in counts.into_iter().enumerate() {
        let layers = from..from + count;
        from += count;
        if place as u32 % parallel.pipeline == stage {
            let (is_first, is_last) = (place == 0, place == last);
            found.push(Chunk { place: place as u32, layers, is_first, is_last });
        }
    }
    found
}

/// Parameters of one rank, by who else has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Those that all data-parallel ranks have too.
    pub dense: u64,
    /// Those of its experts.
    pub experts: u64,
}

/// Parameters of a chunk on one rank, after tensor and expert parallelism. The words of the last stage are its own where
/// they are tied and the first stage is another rank.
pub fn held(model: &Model, parallel: &Parallel, chunk: &Chunk) -> Held {
    let tensor = u64::from(parallel.tensor);
    let mut held = Held::default();
    for layer in chunk.layers.clone() {
        let parameters = model.layer_parameters(layer);
        held.dense += parameters.dense.div_ceil(tensor);
        held.experts += parameters.experts.div_ceil(tensor * u64::from(parallel.expert));
    }
    if chunk.is_first {
        held.dense += model.embedding_parameters().div_ceil(tensor);
    }
    if chunk.is_last {
        let copied = if model.tied && parallel.pipeline > 1 { model.vocabulary * model.hidden } else { 0 };
        held.dense += (model.head_parameters() + copied).div_ceil(tensor);
    }
    held
}
