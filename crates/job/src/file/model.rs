//! `[model]`: by its name, in full, or by its name with some of it changed.

use serde::Deserialize;

use super::error::FileError;
use crate::model::{Experts, Model, Norm, catalogue};

/// `[model]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// A model of the catalogue; or, where all the rest is given, what this one is called.
    pub name: Option<String>,
    /// Transformer layers.
    pub layers: Option<u32>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Attention heads.
    pub heads: Option<u64>,
    /// Heads of keys and values; as many as heads by default.
    pub kv_heads: Option<u64>,
    /// Width of a head; hidden / heads by default.
    pub head_size: Option<u64>,
    /// Width of the feed-forward part.
    pub ffn: Option<u64>,
    /// Whether that has a gate; yes by default.
    pub gated: Option<bool>,
    /// Words.
    pub vocabulary: Option<u64>,
    /// Tokens of a sequence.
    pub sequence: Option<u64>,
    /// Whether the words of input and output are one matrix; no by default.
    pub tied: Option<bool>,
    /// Experts, where it has them.
    pub experts: Option<ExpertsSection>,
    /// The model of that name in a catalogue of the user's.
    #[serde(skip)]
    pub known: Option<Box<Model>>,
    /// The names that are known, where there are more than those that ship.
    #[serde(skip)]
    pub names: Vec<String>,
}

/// `[model.experts]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSection {
    /// Experts of a layer among which tokens are routed.
    pub count: u64,
    /// How many of them a token goes to.
    pub top_k: u64,
    /// Experts that every token goes to besides.
    #[serde(default)]
    pub shared: u64,
    /// Width of each; that of the model's feed-forward part by default.
    #[serde(default)]
    pub ffn: Option<u64>,
    /// Layers at the beginning that have none.
    #[serde(default)]
    pub dense_layers: u32,
}

impl ModelSection {
    /// The model that is meant.
    pub fn resolve(&self) -> Result<Model, FileError> {
        let known = || self.name.as_deref().and_then(catalogue::model);
        let model = match self.known.as_deref().cloned().or_else(known) {
            Some(known) => self.changed(known),
            None => self.described()?,
        };
        model.check().map_err(|error| FileError::new("model", error.to_string()))?;
        Ok(model)
    }

    fn changed(&self, known: Model) -> Model {
        let ffn = self.ffn.unwrap_or(known.ffn);
        let heads = self.heads.unwrap_or(known.heads);
        Model {
            layers: self.layers.unwrap_or(known.layers),
            hidden: self.hidden.unwrap_or(known.hidden),
            heads,
            kv_heads: self.kv_heads.unwrap_or(known.kv_heads.min(heads)),
            head_size: self.head_size.unwrap_or(known.head_size),
            ffn,
            gated: self.gated.unwrap_or(known.gated),
            vocabulary: self.vocabulary.unwrap_or(known.vocabulary),
            sequence: self.sequence.unwrap_or(known.sequence),
            tied: self.tied.unwrap_or(known.tied),
            experts: self.experts.map_or(known.experts, |section| Some(section.experts(ffn))),
            ..known
        }
    }

    /// A model that is described in full.
    fn described(&self) -> Result<Model, FileError> {
        let needed = [
            ("layers", self.layers.map(u64::from)),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("ffn", self.ffn),
            ("vocabulary", self.vocabulary),
            ("sequence", self.sequence),
        ];
        let missing: Vec<&str> =
            needed.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| *key).collect();
        if !missing.is_empty() {
            return Err(self.unknown(&missing));
        }
        let [layers, hidden, heads, ffn, vocabulary, sequence] =
            needed.map(|(_, value)| value.unwrap_or_default());
        Ok(Model {
            name: self.name.clone().unwrap_or_else(|| "model".to_owned()),
            layers: layers as u32,
            hidden,
            heads,
            kv_heads: self.kv_heads.unwrap_or(heads),
            head_size: self.head_size.unwrap_or(hidden / heads.max(1)),
            ffn,
            gated: self.gated.unwrap_or(true),
            vocabulary,
            sequence,
            tied: self.tied.unwrap_or(false),
            learned_positions: false,
            norm: Norm::Scale,
            biases: false,
            dropout: false,
            experts: self.experts.map(|section| section.experts(ffn)),
            latent: None,
        })
    }

    fn unknown(&self, missing: &[&str]) -> FileError {
        let mut names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        if names.is_empty() {
            names = catalogue::models().map(|(name, _)| name).collect();
        }
        let missing = missing.join(", ");
        let Some(name) = &self.name else {
            let known = names.join(", ");
            return FileError::new(
                "model",
                format!("name a model, one of {known}; or describe it: {missing} are missing"),
            );
        };
        let meant = railnet_core::nearest(name, &names).map(str::to_owned);
        let message = format!(
            "unknown model \"{name}\": one of {}; or describe it: {missing} are missing",
            names.join(", ")
        );
        FileError { meant, ..FileError::new("model.name", message) }
    }
}

impl ExpertsSection {
    pub(crate) fn experts(self, ffn: u64) -> Experts {
        let Self { count, top_k, shared, dense_layers, .. } = self;
        Experts { count, top_k, shared, ffn: self.ffn.unwrap_or(ffn), dense_layers }
    }
}
