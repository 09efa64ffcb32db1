//! Models as data, and where each number comes from.

use super::{Experts, Latent, Model, Norm};

/// The names that [`model`] knows, with a line on each.
pub fn models() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODELS.iter().map(|row| (row.name, row.title))
}

/// A model of the catalogue.
pub fn model(name: &str) -> Option<Model> {
    MODELS.iter().find(|row| row.name == name).map(Row::build)
}

/// A GPT of this size, as those of Megatron-LM's papers and of MosaicML's llm-foundry: four times as wide in its feed-forward
/// part, with biases, learned positions and tied words, for 2,048 tokens.
///
/// ```
/// use railnet_job::model::catalogue::gpt;
///
/// assert_eq!(gpt(80, 8_192, 64, 50_368).parameters(), 64_862_437_376);
/// ```
pub fn gpt(layers: u32, hidden: u64, heads: u64, vocabulary: u64) -> Model {
    Model {
        name: format!("gpt-{layers}x{hidden}"),
        layers,
        hidden,
        heads,
        kv_heads: heads,
        head_size: hidden / heads,
        ffn: 4 * hidden,
        vocabulary,
        ..GPT.build()
    }
}

/// A model as its authors describe it.
struct Row {
    name: &'static str,
    title: &'static str,
    layers: u32,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_size: u64,
    ffn: u64,
    gated: bool,
    vocabulary: u64,
    sequence: u64,
    tied: bool,
    /// What GPT-2 and GPT-3 have and later models do not: learned positions, shifts of norms, biases, dropout.
    is_gpt: bool,
    norm: Norm,
    experts: Option<Experts>,
    latent: Option<Latent>,
}

// Llama 3 (arXiv 2407.21783, table 3): grouped queries with 8 heads of keys and values, SwiGLU, rotated positions,
// 128,256 words that are not tied, sequences of 8,192 tokens.
const LLAMA: Row = Row {
    name: "llama-3-8b",
    title: "Llama 3 8B",
    layers: 32,
    hidden: 4_096,
    heads: 32,
    kv_heads: 8,
    head_size: 128,
    ffn: 14_336,
    gated: true,
    vocabulary: 128_256,
    sequence: 8_192,
    tied: false,
    is_gpt: false,
    norm: Norm::Scale,
    experts: None,
    latent: None,
};

// GPT-3 (arXiv 2005.14165, table 2.1): 96 layers of 12,288, 96 heads of 128, 2,048 tokens, the 50,257 words of GPT-2.
const GPT: Row = Row {
    name: "gpt-3-175b",
    title: "GPT-3 175B",
    layers: 96,
    hidden: 12_288,
    heads: 96,
    kv_heads: 96,
    head_size: 128,
    ffn: 4 * 12_288,
    gated: false,
    vocabulary: 50_257,
    sequence: 2_048,
    tied: true,
    is_gpt: true,
    norm: Norm::ScaleAndShift,
    ..LLAMA
};

const MODELS: [Row; 8] = [
    LLAMA,
    Row {
        name: "llama-3-70b",
        title: "Llama 3 70B",
        layers: 80,
        hidden: 8_192,
        heads: 64,
        ffn: 28_672,
        ..LLAMA
    },
    Row {
        name: "llama-3-405b",
        title: "Llama 3 405B",
        layers: 126,
        hidden: 16_384,
        heads: 128,
        ffn: 53_248,
        ..LLAMA
    },
    GPT,
    // Mixtral of experts (arXiv 2401.04088, table 1): Mistral 7B with 8 experts of which a token meets 2. Sequences are as
    // long as its context of 32,768; training jobs usually say less.
    Row {
        name: "mixtral-8x7b",
        title: "Mixtral 8x7B: 8 experts, 2 for each token",
        vocabulary: 32_000,
        sequence: 32_768,
        experts: Some(Experts { count: 8, top_k: 2, shared: 0, ffn: 14_336, dense_layers: 0 }),
        ..LLAMA
    },
    // DeepSeek-V3 (arXiv 2412.19437, section 4.2): 61 layers, of which the first 3 are dense, 256 experts of 2,048 of which
    // a token meets 8 and one that all meet, latent attention, sequences of 4,096. Its module that predicts a second token
    // is left out: 671 B parameters without it.
    Row {
        name: "deepseek-v3",
        title: "like DeepSeek-V3: 256 experts, 8 and a shared one for each token",
        layers: 61,
        hidden: 7_168,
        heads: 128,
        kv_heads: 128,
        ffn: 18_432,
        vocabulary: 129_280,
        sequence: 4_096,
        experts: Some(Experts { count: 256, top_k: 8, shared: 1, ffn: 2_048, dense_layers: 3 }),
        latent: Some(Latent { query_rank: 1_536, kv_rank: 512, rope: 64, value: 128 }),
        ..LLAMA
    },
    // Nobody's model: a layer has 12 × 1,024² parameters, 24 MiB of bf16, and each of the two matrices of words four times
    // that. 24 layers and the words are 402,653,184 parameters: 768 MiB of gradients, 32 buckets of 24 MiB.
    Row {
        name: "gpt-400m",
        title: "400 M parameters: 768 MiB of bf16 gradients, for the built-in job",
        layers: 24,
        hidden: 1_024,
        heads: 16,
        kv_heads: 16,
        head_size: 64,
        ffn: 4_096,
        gated: false,
        vocabulary: 49_152,
        sequence: 2_048,
        norm: Norm::Plain,
        ..LLAMA
    },
    // Nobody's model either: small enough to follow by hand.
    Row {
        name: "tiny",
        title: "small enough to follow by hand, for tests",
        layers: 4,
        hidden: 256,
        heads: 4,
        kv_heads: 4,
        head_size: 64,
        ffn: 1_024,
        gated: false,
        vocabulary: 1_024,
        sequence: 256,
        ..LLAMA
    },
];

impl Row {
    fn build(&self) -> Model {
        Model {
            name: self.name.to_owned(),
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            ffn: self.ffn,
            gated: self.gated,
            vocabulary: self.vocabulary,
            sequence: self.sequence,
            tied: self.tied,
            learned_positions: self.is_gpt,
            norm: self.norm,
            biases: self.is_gpt,
            dropout: self.is_gpt,
            experts: self.experts,
            latent: self.latent,
        }
    }
}
