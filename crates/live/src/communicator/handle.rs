//! A communicator's entry in the engine, closed when neither the communicator nor an operation of it is left.

use std::sync::Arc;

use railnet_coll::machine::{Failure, OperationId};

use super::process::Process;
use crate::engine::ContextId;

/// Called every 50 ms while a call waits; `false` aborts the wait.
pub type GoOn<'a> = dyn FnMut() -> bool + 'a;

#[derive(Debug)]
pub(super) struct ContextHandle {
    pub(super) process: Arc<Process>,
    pub(super) context: ContextId,
}

impl ContextHandle {
    pub(super) fn new(process: Arc<Process>, context: ContextId) -> Self {
        Self { process, context }
    }

    /// Drives the engine until an operation is over. Other threads get the engine in between. If `goes_on` returns false, the
    /// communicator is aborted, because buffers are the caller's again when this returns.
    pub(super) fn wait(&self, operation: OperationId, goes_on: &mut GoOn<'_>) -> Result<(), Arc<Failure>> {
        let mut done = self.process.wait(self.context, operation, false);
        loop {
            if let Some(done) = done {
                return done;
            }
            if !goes_on() {
                self.process.with(|engine| engine.abort(self.context));
            }
            done = self.process.wait(self.context, operation, true);
        }
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        self.process.with_if_there(|engine| engine.close(self.context));
    }
}
