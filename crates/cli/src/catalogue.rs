//! `--catalogue FILE`: servers and models of the user's, beside those that ship.

use std::path::{Path, PathBuf};

use railnet_job::file::ModelSection;
use railnet_job::model::catalogue::Models;
use railnet_topology::catalogue::Catalogue;

use crate::{Usage, input};

/// Files with servers, GPUs, NICs and models.
#[derive(clap::Args, Default)]
pub(crate) struct Files {
    /// A file with servers, GPUs, NICs or models of your own, beside those that ship; several may be given
    #[arg(long = "catalogue", value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// All that there is to name.
pub(crate) struct Known {
    pub(crate) servers: Catalogue,
    pub(crate) models: Models,
}

impl Files {
    /// What ships, and what the files have.
    pub(crate) fn read(&self) -> anyhow::Result<Known> {
        let mut known = Known { servers: Catalogue::built_in().clone(), models: Models::built_in().clone() };
        for path in &self.files {
            let name = path.display();
            let text = input::text(path)?;
            let at = |span: Option<std::ops::Range<usize>>| {
                let line = |span: std::ops::Range<usize>| text[..span.start.min(text.len())].lines().count();
                span.map_or(String::new(), |span| format!(", line {}", line(span).max(1)))
            };
            let servers = known.servers.extend(&text).map_err(|error| {
                let meant = error.meant.map(|meant| format!("; did you mean \"{meant}\"?"));
                Usage(format!("{name}{}: {}{}", at(error.span), error.message, meant.unwrap_or_default()))
            });
            servers?;
            let models = known.models.extend(&text);
            models.map_err(|error| Usage(format!("{name}{}: {}", at(error.span), error.message)))?;
        }
        Ok(known)
    }

    /// A file says by itself what its servers are.
    pub(crate) fn refuse_beside(&self, path: &Path) -> Result<(), Usage> {
        if self.is_empty() {
            return Ok(());
        }
        let name = path.display();
        Err(Usage(format!(
            "--catalogue is for names: {name} says itself what its servers are, with `catalogue` or in full"
        )))
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

impl Known {
    /// Puts what a model's name stands for beside it.
    pub(crate) fn describe(&self, section: &mut ModelSection) {
        section.known = section.name.as_deref().and_then(|name| self.models.model(name)).map(Box::new);
        section.names = self.models.models().map(|(name, _)| name.to_owned()).collect();
    }
}
