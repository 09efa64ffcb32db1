//! What is wrong with a scenario.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use crate::locate;

/// What is wrong with a scenario, and where.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct ScenarioError {
    /// What, and what would be right.
    pub message: String,
    /// Which bytes of the text, where that is known.
    pub span: Option<Range<usize>>,
    /// The key it is about, such as `fabric.link.rate` or `traffic.0.to`; empty where it is about no key in particular.
    pub key: String,
    /// The name that was probably meant, where one was nearly written.
    pub meant: Option<String>,
    /// The file that it is about, where that is not the scenario itself but one that it names; the span is in this.
    pub file: Option<Box<SourceFile>>,
}

/// A file that a scenario names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// As the scenario names it.
    pub path: String,
    /// All of it.
    pub text: Arc<str>,
}

impl SourceFile {
    /// An error about a part of it.
    pub(crate) fn wrong(&self, span: Range<usize>, message: impl Into<String>) -> ScenarioError {
        ScenarioError { span: Some(span), file: Some(Box::new(self.clone())), ..ScenarioError::new(message) }
    }
}

impl ScenarioError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), span: None, key: String::new(), meant: None, file: None }
    }

    /// The same about this key.
    pub(crate) fn at(mut self, key: &str) -> Self {
        key.clone_into(&mut self.key);
        self
    }

    /// The same about a key of the table at `path`.
    pub(crate) fn within(mut self, path: &str) -> Self {
        self.key = if self.key.is_empty() { path.to_owned() } else { format!("{path}.{}", self.key) };
        self
    }

    /// The same with its place in the text of the scenario, where its key is written there.
    #[must_use]
    pub fn located(mut self, text: &str) -> Self {
        if self.span.is_none() && self.file.is_none() && !self.key.is_empty() {
            self.span = locate::key(text, &self.key);
        }
        self
    }
}
