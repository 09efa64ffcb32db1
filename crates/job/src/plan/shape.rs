//! A model of so many parameters, where nobody says more of it.

use crate::model::{Model, catalogue};

/// How much larger or smaller its vocabulary may become, so that parameters come out as asked.
const WORDS: std::ops::RangeInclusive<f64> = 0.5..=2.0;
/// Words come in multiples of this.
const STEP: u64 = 128;

/// A dense model of about so many parameters: that of the catalogue which is nearest in size, with more or fewer layers, and as
/// many words as make up for the rest.
///
/// ```
/// let model = railnet_job::plan::model_of(70_000_000_000);
/// assert!(model.parameters().abs_diff(70_000_000_000) < 2_000_000);
/// assert_eq!((model.layers, model.hidden), (80, 8_192));
/// ```
pub fn model_of(parameters: u64) -> Model {
    let wanted = parameters.max(1) as f64;
    let known = catalogue::models().filter_map(|(name, _)| catalogue::model(name));
    let dense = known.filter(|model| model.experts.is_none() && model.latent.is_none());
    let far = |model: &Model| {
        let size = model.parameters() as f64;
        (wanted / size).max(size / wanted)
    };
    let like = dense.min_by(|a, b| far(a).total_cmp(&far(b))).expect("the catalogue has dense models");
    let layer = like.layer_parameters(0).dense as f64;
    let rest = like.embedding_parameters() + like.head_parameters();
    let layers = ((wanted - rest as f64) / layer).max(1.0);
    // A number of layers that can be divided among stages, where the words can make up for what that leaves.
    let tries = [8.0, 4.0, 2.0, 1.0].map(|step| ((layers / step).round() * step).max(1.0));
    let word = if like.tied { like.hidden } else { 2 * like.hidden } as f64;
    let with = |layers: f64| {
        let missing = wanted - rest as f64 - layers * layer;
        (layers, like.vocabulary as f64 + missing / word)
    };
    let fits = |(_, words): &(f64, f64)| WORDS.contains(&(words / like.vocabulary as f64));
    let found = tries.into_iter().map(with).find(fits);
    let (layers, words) = found.unwrap_or((layers.round().max(1.0), like.vocabulary as f64));
    let vocabulary = ((words / STEP as f64).round() as u64).max(1) * STEP;
    let name = format!("like {}", like.name);
    Model { name, layers: layers as u32, vocabulary, ..like }
}
