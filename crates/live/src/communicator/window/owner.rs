//! How a window holds its communicator.

use std::ops::Deref;
use std::sync::Arc;

use crate::communicator::Communicator;

/// The communicator of a window: borrowed from the program, or owned.
#[derive(Clone, Debug)]
pub(super) enum Owner<'a> {
    Borrowed(&'a Communicator),
    Shared(Arc<Communicator>),
}

impl Deref for Owner<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        match self {
            Self::Borrowed(communicator) => communicator,
            Self::Shared(communicator) => communicator,
        }
    }
}
