//! Threads of this process. If the kernel refuses one, the error names it, and what may limit threads.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

fn refused(name: &str, error: &io::Error) -> io::Error {
    let text = format!(
        "no thread for {name}: {error} (ulimit -u, ulimit -v or the pids limit of a container allows no more)"
    );
    io::Error::new(error.kind(), text)
}

/// Starts a thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(run).map_err(|error| refused(name, &error))
}

/// Starts a thread that ends before its scope does.
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().name(name.to_owned()).spawn_scoped(scope, run).map_err(|error| refused(name, &error))
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that waits for its work: started in advance, so that it exists when ranks have agreed on something. It ends if no
/// work comes.
#[derive(Debug)]
pub(crate) struct Reserved {
    work: mpsc::SyncSender<Work>,
    thread: JoinHandle<()>,
}

impl Reserved {
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let (work, waiting) = mpsc::sync_channel::<Work>(1);
        let thread = spawn(name, move || {
            if let Ok(work) = waiting.recv() {
                work();
            }
        })?;
        Ok(Self { work, thread })
    }

    pub(crate) fn start(self, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // The channel has room for one.
        let _ = self.work.send(Box::new(work));
        self.thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_thread_does_its_work_or_ends_without() {
        let (done, wait) = mpsc::channel();
        let thread = Reserved::new("test").unwrap().start(move || done.send(7).unwrap());
        assert_eq!(wait.recv(), Ok(7));
        thread.join().unwrap();
        let Reserved { work, thread } = Reserved::new("test").unwrap();
        drop(work);
        thread.join().unwrap();
    }
}
