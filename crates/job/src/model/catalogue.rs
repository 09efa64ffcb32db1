//! Models as data, and where each number comes from.
//!
//! The data is in the file of this crate's `catalogue` folder; users add files of the same form ([`Models::extend`]).

use std::ops::Range;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;
use toml::Spanned;

use super::{Experts, Latent, Model, Norm};

/// The models of some files.
#[derive(Clone, Debug, Default)]
pub struct Models {
    rows: Vec<Row>,
}

/// What is wrong with a file of models.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ModelsError {
    /// What, and what would be right.
    pub message: String,
    /// Which bytes of the file, where that is known.
    pub span: Option<Range<usize>>,
}

static BUILT_IN: LazyLock<Models> = LazyLock::new(|| {
    let mut models = Models::default();
    let text = include_str!("../../catalogue/models.toml");
    models.extend(text).expect("the file that ships is sound: a test reads it");
    models
});

impl Models {
    /// What ships.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// Adds the `[[model]]`s of a file. What it says of GPUs, NICs and servers is for others.
    pub fn extend(&mut self, text: &str) -> Result<(), ModelsError> {
        let sections: Sections = toml::from_str(text).map_err(|error| ModelsError {
            message: railnet_core::without_types(error.message()),
            span: error.span(),
        })?;
        for row in sections.model {
            let wrong = |message: String| ModelsError { message, span: Some(row.name.span()) };
            let name = row.name.get_ref();
            if self.model(name).is_some() {
                let message =
                    format!("there is a model called \"{name}\" already: give this one another name");
                return Err(wrong(message));
            }
            row.build().check().map_err(|error| wrong(error.to_string()))?;
            self.rows.push(row);
        }
        Ok(())
    }

    /// The names, with a line on each.
    pub fn models(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().map(|row| (row.name.get_ref().as_str(), row.title.as_str()))
    }

    /// A model by its name.
    pub fn model(&self, name: &str) -> Option<Model> {
        self.rows.iter().find(|row| row.name.get_ref() == name).map(Row::build)
    }

    /// Where the figures of a model come from.
    pub fn sources(&self, name: &str) -> &[String] {
        self.rows.iter().find(|row| row.name.get_ref() == name).map_or(&[], |row| &row.sources)
    }
}

/// The names that [`model`] knows, with a line on each.
pub fn models() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.models()
}

/// A model that ships with the catalogue.
pub fn model(name: &str) -> Option<Model> {
    BUILT_IN.model(name)
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
        gated: false,
        vocabulary,
        sequence: 2_048,
        tied: true,
        learned_positions: true,
        norm: Norm::ScaleAndShift,
        biases: true,
        dropout: true,
        experts: None,
        latent: None,
    }
}

/// All that a file may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sections {
    #[serde(default)]
    model: Vec<Row>,
    /// For the reader of servers.
    #[serde(default, rename = "gpu")]
    _gpu: IgnoredAny,
    #[serde(default, rename = "nic")]
    _nic: IgnoredAny,
    #[serde(default, rename = "machine")]
    _machine: IgnoredAny,
    #[serde(default, rename = "rack")]
    _rack: IgnoredAny,
}

/// A model as its authors describe it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: Spanned<String>,
    #[serde(default)]
    title: String,
    layers: u32,
    hidden: u64,
    heads: u64,
    kv_heads: Option<u64>,
    head_size: Option<u64>,
    ffn: u64,
    gated: bool,
    vocabulary: u64,
    sequence: u64,
    #[serde(default)]
    tied: bool,
    #[serde(default)]
    positions: PositionsName,
    #[serde(default)]
    norm: NormName,
    #[serde(default)]
    biases: bool,
    #[serde(default)]
    dropout: bool,
    experts: Option<crate::file::ExpertsSection>,
    latent: Option<LatentRow>,
    #[serde(default)]
    sources: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum PositionsName {
    #[default]
    Rotated,
    Learned,
}

#[derive(Clone, Copy, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum NormName {
    #[default]
    Scale,
    ScaleAndShift,
    Plain,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LatentRow {
    query_rank: u64,
    kv_rank: u64,
    rope: u64,
    value: u64,
}

impl Row {
    fn build(&self) -> Model {
        let experts = |section: crate::file::ExpertsSection| -> Experts { section.experts(self.ffn) };
        let latent = |row: LatentRow| {
            let LatentRow { query_rank, kv_rank, rope, value } = row;
            Latent { query_rank, kv_rank, rope, value }
        };
        Model {
            name: self.name.get_ref().clone(),
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            head_size: self.head_size.unwrap_or(self.hidden / self.heads.max(1)),
            ffn: self.ffn,
            gated: self.gated,
            vocabulary: self.vocabulary,
            sequence: self.sequence,
            tied: self.tied,
            learned_positions: self.positions == PositionsName::Learned,
            norm: match self.norm {
                NormName::Scale => Norm::Scale,
                NormName::ScaleAndShift => Norm::ScaleAndShift,
                NormName::Plain => Norm::Plain,
            },
            biases: self.biases,
            dropout: self.dropout,
            experts: self.experts.map(experts),
            latent: self.latent.map(latent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_ones_own_add_models_and_do_not_replace_any() {
        let own = "[[model]]\nname = \"mine\"\nlayers = 2\nhidden = 256\nheads = 4\nffn = 512\ngated = true\n\
                   vocabulary = 1000\nsequence = 128\n[[gpu]]\nanything = 1\n";
        let mut models = Models::built_in().clone();
        models.extend(own).unwrap();
        let mine = models.model("mine").unwrap();
        assert_eq!((mine.kv_heads, mine.head_size), (4, 64));
        let twice = models.extend(own).unwrap_err();
        assert!(twice.message.starts_with("there is a model called \"mine\" already"), "{twice}");
        assert_eq!(&own[twice.span.unwrap()], "\"mine\"");
        let odd = models.extend(&own.replace("mine", "odd").replace("heads = 4", "heads = 0")).unwrap_err();
        assert!(odd.span.is_some(), "{odd}");
        assert!(Models::built_in().models().all(|(name, _)| !Models::built_in().sources(name).is_empty()));
    }
}
