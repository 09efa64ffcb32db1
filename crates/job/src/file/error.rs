//! What is wrong with a section.

use thiserror::Error;

use crate::memory::DoesNotFit;

/// What is wrong with a job, and which key it is about.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct FileError {
    /// What, and what would be right.
    pub message: String,
    /// The key it is about, such as `model.heads`.
    pub key: String,
    /// The name that was probably meant, where one was nearly written.
    pub meant: Option<String>,
    /// What a GPU would need, where that is what is wrong.
    pub memory: Option<Box<DoesNotFit>>,
}

impl FileError {
    pub(super) fn new(key: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), key: key.to_owned(), meant: None, memory: None }
    }
}
