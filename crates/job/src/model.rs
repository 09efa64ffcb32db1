//! Models as descriptions: what has to be known of a transformer to count its parameters, its work and its bytes.
//!
//! ```
//! let llama = railnet_job::model::catalogue::model("llama-3-8b").expect("it is in the catalogue");
//! assert_eq!(llama.parameters(), 8_030_261_248);
//! ```

pub mod catalogue;
#[cfg(test)]
mod tests;

use railnet_core::limits::{
    EXPERTS_MAX, HEADS_MAX, LAYERS_MAX, PARAMETERS_MAX, SEQUENCE_MAX, TOKEN_WIDTH_MAX, VOCABULARY_MAX,
    WIDTH_MAX,
};
use thiserror::Error;

/// A decoder-only transformer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// What it is called.
    pub name: String,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values: fewer than `heads` with grouped queries.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_size: u64,
    /// Width of the feed-forward part of dense layers.
    pub ffn: u64,
    /// Whether the feed-forward part has a gate (three matrices, as in SwiGLU) or not (two).
    pub gated: bool,
    /// Words.
    pub vocabulary: u64,
    /// Tokens of a training sequence.
    pub sequence: u64,
    /// Whether the words of input and output are one matrix.
    pub tied: bool,
    /// Whether positions are learned (a matrix of sequence × hidden), as GPT does; others rotate queries and keys.
    pub learned_positions: bool,
    /// What norms have.
    pub norm: Norm,
    /// Whether linear layers have biases.
    pub biases: bool,
    /// Whether activations are dropped at random in training: masks are kept then.
    pub dropout: bool,
    /// Experts, where it has them.
    pub experts: Option<Experts>,
    /// Attention with compressed keys and values, where it has that.
    pub latent: Option<Latent>,
}

impl Model {
    /// No model, for what is not described by one.
    pub(crate) fn nothing(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            layers: 0,
            hidden: 0,
            heads: 0,
            kv_heads: 0,
            head_size: 0,
            ffn: 0,
            gated: false,
            vocabulary: 0,
            sequence: 0,
            tied: false,
            learned_positions: false,
            norm: Norm::Plain,
            biases: false,
            dropout: false,
            experts: None,
            latent: None,
        }
    }
}

/// What a norm has to learn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Norm {
    /// A scale (RMSNorm).
    #[default]
    Scale,
    /// A scale and a shift (LayerNorm).
    ScaleAndShift,
    /// Nothing, as in OLMo.
    Plain,
}

impl Norm {
    const fn per_width(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Scale => 1,
            Self::ScaleAndShift => 2,
        }
    }
}

/// A mixture of experts instead of one feed-forward part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// Experts of a layer among which tokens are routed.
    pub count: u64,
    /// How many of them a token goes to.
    pub top_k: u64,
    /// Experts that every token goes to besides.
    pub shared: u64,
    /// Width of each.
    pub ffn: u64,
    /// How many layers at the beginning have none.
    pub dense_layers: u32,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values come from short vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latent {
    /// Width of the vector that queries are made of.
    pub query_rank: u64,
    /// Width of the vector that keys and values are made of.
    pub kv_rank: u64,
    /// Part of a head that is rotated by its position.
    pub rope: u64,
    /// Width of a head's value.
    pub value: u64,
}

/// Why a description is no model.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A number is zero that cannot be.
    #[error("a model has at least one of `{key}`")]
    Zero {
        /// The key, as files write it.
        key: &'static str,
    },
    /// A number is past its limit.
    #[error("{value} `{key}` are too many: {limit} is the limit")]
    TooMany {
        /// The key, as files write it.
        key: &'static str,
        /// The value that is too large.
        value: u128,
        /// How many there may be.
        limit: u64,
    },
    /// Heads of keys and values are shared by whole groups of heads.
    #[error("{heads} heads cannot share {kv_heads} heads of keys and values evenly: {would} would do")]
    KvHeads {
        /// Attention heads.
        heads: u64,
        /// Heads of keys and values.
        kv_heads: u64,
        /// The nearest that do.
        would: String,
    },
    /// A token cannot go to more experts than there are.
    #[error("a token goes to {top_k} of {count} experts: write a `top_k` of 1 to {count}")]
    TopK {
        /// How many it goes to.
        top_k: u64,
        /// How many there are.
        count: u64,
    },
}

impl Model {
    /// Whether the numbers make sense together.
    pub fn check(&self) -> Result<(), ModelError> {
        let experts = |count: fn(Experts) -> u64| self.experts.map_or(1, count);
        let counts = [
            ("layers", u64::from(self.layers), u64::from(LAYERS_MAX)),
            ("hidden", self.hidden, WIDTH_MAX),
            ("heads", self.heads, HEADS_MAX),
            ("kv_heads", self.kv_heads, HEADS_MAX),
            ("head_size", self.head_size, WIDTH_MAX),
            ("ffn", self.ffn, WIDTH_MAX),
            ("vocabulary", self.vocabulary, VOCABULARY_MAX),
            ("sequence", self.sequence, SEQUENCE_MAX),
            ("experts.count", experts(|experts| experts.count), EXPERTS_MAX),
            ("experts.shared", experts(|experts| experts.shared.max(1)), EXPERTS_MAX),
            ("experts.ffn", experts(|experts| experts.ffn), WIDTH_MAX),
            ("heads × head_size", self.heads.saturating_mul(self.head_size), TOKEN_WIDTH_MAX),
        ];
        if let Some((key, ..)) = counts.into_iter().find(|(_, count, _)| *count == 0) {
            return Err(ModelError::Zero { key });
        }
        if let Some((key, count, limit)) = counts.into_iter().find(|(_, count, limit)| count > limit) {
            return Err(ModelError::TooMany { key, value: u128::from(count), limit });
        }
        if let Some(Experts { top_k, shared, ffn, .. }) = self.experts {
            let met = [u128::from(top_k) + u128::from(shared), u128::from(ffn.max(self.hidden))];
            let (value, limit) = (met[0] * met[1], TOKEN_WIDTH_MAX);
            if value > u128::from(limit) {
                return Err(ModelError::TooMany {
                    key: "(experts.top_k + experts.shared) × width",
                    value,
                    limit,
                });
            }
        }
        // A layer has at most 2^59 parameters within these limits; all layers may have more than 64 bits count.
        let layers = (0..self.layers).map(|layer| self.layer_parameters(layer));
        let layers: u128 = layers.map(|one| u128::from(one.dense) + u128::from(one.experts)).sum();
        let value = layers + u128::from(self.embedding_parameters()) + u128::from(self.head_parameters());
        if value > u128::from(PARAMETERS_MAX) {
            return Err(ModelError::TooMany { key: "parameters", value, limit: PARAMETERS_MAX });
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let would = crate::parallel::divisors_near(self.heads, self.kv_heads);
            return Err(ModelError::KvHeads { heads: self.heads, kv_heads: self.kv_heads, would });
        }
        match self.experts {
            Some(Experts { top_k, count, .. }) if top_k == 0 || top_k > count => {
                Err(ModelError::TopK { top_k, count })
            }
            _ => Ok(()),
        }
    }

    /// Width of the queries of all heads.
    pub const fn query_width(&self) -> u64 {
        self.heads * self.head_size
    }

    /// Width of the keys, and of the values, of all heads.
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_size
    }

    /// Whether a layer has experts.
    pub fn has_experts(&self, layer: u32) -> bool {
        self.experts.is_some_and(|experts| layer >= experts.dense_layers)
    }

    /// Matrices of a feed-forward part.
    const fn matrices(&self) -> u64 {
        if self.gated { 3 } else { 2 }
    }

    /// Parameters of the attention part of a layer.
    pub fn attention_parameters(&self) -> u64 {
        let (hidden, query) = (self.hidden, self.query_width());
        if let Some(latent) = self.latent {
            let query_up = latent.query_rank * self.heads * (self.head_size + latent.rope);
            let kv_up = latent.kv_rank * self.heads * (self.head_size + latent.value);
            let down = hidden * (latent.query_rank + latent.kv_rank + latent.rope);
            let norms = self.norm.per_width() * (latent.query_rank + latent.kv_rank);
            return down + query_up + kv_up + self.heads * latent.value * hidden + norms;
        }
        let outputs = query + 2 * self.kv_width();
        let biases = if self.biases { outputs + hidden } else { 0 };
        hidden * outputs + query * hidden + biases
    }

    /// Parameters of a feed-forward part of this width.
    pub fn feed_forward_parameters(&self, width: u64) -> u64 {
        let biases = if self.biases { (self.matrices() - 1) * width + self.hidden } else { 0 };
        self.matrices() * self.hidden * width + biases
    }

    /// Parameters of a layer, by where they live.
    pub fn layer_parameters(&self, layer: u32) -> LayerParameters {
        let norms = 2 * self.norm.per_width() * self.hidden;
        let attention = self.attention_parameters();
        match self.experts {
            Some(experts) if self.has_experts(layer) => {
                let expert = self.feed_forward_parameters(experts.ffn);
                let router = self.hidden * experts.count;
                let dense = attention + norms + router + experts.shared * expert;
                LayerParameters { dense, experts: experts.count * expert, active: experts.top_k * expert }
            }
            _ => LayerParameters {
                dense: attention + norms + self.feed_forward_parameters(self.ffn),
                experts: 0,
                active: 0,
            },
        }
    }

    /// Parameters of the words that go in, with learned positions.
    pub fn embedding_parameters(&self) -> u64 {
        let positions = if self.learned_positions { self.sequence } else { 0 };
        (self.vocabulary + positions) * self.hidden
    }

    /// Parameters of the last norm and of the words that come out, as far as those are a matrix of their own.
    pub fn head_parameters(&self) -> u64 {
        let words = if self.tied { 0 } else { self.vocabulary * self.hidden };
        self.norm.per_width() * self.hidden + words
    }

    /// All parameters.
    pub fn parameters(&self) -> u64 {
        let layers = (0..self.layers).map(|layer| self.layer_parameters(layer));
        let layers: u64 = layers.map(|one| one.dense + one.experts).sum();
        self.embedding_parameters() + layers + self.head_parameters()
    }

    /// The parameters that a token meets.
    pub fn active_parameters(&self) -> u64 {
        let layers = (0..self.layers).map(|layer| self.layer_parameters(layer));
        let layers: u64 = layers.map(|one| one.dense + one.active).sum();
        self.embedding_parameters() + layers + self.head_parameters()
    }
}

/// Parameters of a layer, by where they live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LayerParameters {
    /// Those that every data-parallel rank has.
    pub dense: u64,
    /// Those of routed experts, which expert parallelism spreads.
    pub experts: u64,
    /// Those of the experts that one token goes to.
    pub active: u64,
}
