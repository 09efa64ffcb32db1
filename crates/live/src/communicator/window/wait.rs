//! Waiting for other ranks, with a timeout, and finding out why one does not answer.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use railnet_core::Rank;

use super::{Error, Window, lock, setup};
use crate::communicator::{Element, notes_on};
use crate::control::Absence;
use crate::engine::{BLOCK_MAX, Backoff, Engine, Step};
use crate::tcp::window::{Backoff as LinkBackoff, Link, RmaService};

/// The grace period for the reason, after a connection broke or a rank left.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// Why an operation over a link failed.
pub(super) enum Stopped {
    Io(io::Error),
    Error(Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The state of a wait.
struct Wait {
    backoff: Backoff,
    began: Instant,
    /// When something last moved.
    moved: Instant,
}

/// Serves requests of other ranks as long as it lives.
struct ServingGuard<'a>(Option<&'a RmaService>);

impl<'a> ServingGuard<'a> {
    fn new(service: Option<&'a RmaService>) -> Self {
        if let Some(service) = service {
            service.enter();
        }
        Self(service)
    }
}

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        if let Some(service) = self.0 {
            service.leave();
        }
    }
}

impl<T: Element> Window<'_, T> {
    pub(super) fn limit(&self) -> Duration {
        self.communicator.timeout().unwrap_or(self.communicator.process.origin().1.limit)
    }

    /// Executes requests of other ranks, where this rank has to. Whether there were any.
    pub(super) fn serve(&self) -> bool {
        let by_service = self.service.as_ref().is_some_and(|service| service.service().serve());
        let process = &self.communicator.process;
        by_service || self.staging.is_some() && process.with(Engine::drive_nic)
    }

    fn begin(&self) -> Wait {
        let backoff = self.communicator.process.with(|engine| engine.backoff());
        let now = Instant::now();
        Wait { backoff, began: now, moved: now }
    }

    /// Waits for a condition that the awaited ranks have to bring about.
    pub(super) fn wait(
        &self,
        what: &'static str,
        awaited: &dyn Fn() -> Vec<usize>,
        limit: Duration,
        mut is_there: impl FnMut() -> bool,
        late: &dyn Fn(&[usize]) -> String,
    ) -> Result<(), Error> {
        if is_there() {
            return Ok(());
        }
        let _served =
            ServingGuard::new(self.service.as_ref().map(crate::tcp::window::ServiceThread::service));
        let mut wait = self.begin();
        loop {
            let outcome = self.pause(&mut wait, what, awaited, limit, late);
            // What arrived before a rank died counts.
            if is_there() {
                return Ok(());
            }
            outcome?;
        }
    }

    /// One step of a wait.
    fn pause(
        &self,
        wait: &mut Wait,
        what: &'static str,
        awaited: &dyn Fn() -> Vec<usize>,
        limit: Duration,
        late: &dyn Fn(&[usize]) -> String,
    ) -> Result<(), Error> {
        if self.serve() {
            wait.backoff.reset();
            wait.moved = Instant::now();
        }
        match wait.backoff.wait() {
            Step::Spun => return Ok(()),
            Step::Yielded => {}
            Step::Block => match &self.service {
                Some(service) => service.service().block(BLOCK_MAX),
                None => std::thread::sleep(BLOCK_MAX),
            },
        }
        let ranks = awaited();
        for rank in &ranks {
            self.check_alive(what, *rank, wait.moved)?;
        }
        if wait.began.elapsed() < limit {
            return Ok(());
        }
        // All of them may be at fault; the error names the first.
        let rank = ranks.first().copied().unwrap_or_default();
        Err(self.failed(what, rank, &late(&ranks)))
    }

    /// An operation over a stream, with a wait of its own.
    pub(super) fn over_tcp(
        &self,
        what: &'static str,
        target: usize,
        link: &Mutex<Link>,
        action: impl FnOnce(&mut Link, LinkBackoff<'_, Stopped>) -> Result<(), Stopped>,
    ) -> Result<(), Error> {
        let _served =
            ServingGuard::new(self.service.as_ref().map(crate::tcp::window::ServiceThread::service));
        let limit = self.limit();
        let late = |_: &[usize]| format!("has not taken it for {limit:.1?}");
        let awaited = || vec![target];
        let mut wait = None;
        let mut pause = || {
            let wait = wait.get_or_insert_with(|| self.begin());
            self.pause(wait, what, &awaited, limit, &late).map_err(Stopped::Error)
        };
        match action(&mut lock(link), &mut pause) {
            Ok(()) => Ok(()),
            Err(Stopped::Error(error)) => Err(error),
            Err(Stopped::Io(error)) => Err(self.hung_up(what, target, &error)),
        }
    }

    /// A stream broke: the control channel may report the reason in a moment.
    fn hung_up(&self, what: &'static str, target: usize, error: &io::Error) -> Error {
        let began = Instant::now();
        while began.elapsed() < GRACE_PERIOD {
            if let Err(error) = self.check_alive(what, target, began) {
                return error;
            }
            std::thread::sleep(BLOCK_MAX);
        }
        self.failed(what, target, &format!("has closed the window, or its connection broke: {error}"))
    }

    /// Whether a rank can still do anything; `moved` is when something last moved.
    fn check_alive(&self, what: &'static str, rank: usize, moved: Instant) -> Result<(), Error> {
        let communicator = &*self.communicator;
        let world = Rank(communicator.members[rank]);
        let absent = communicator.process.control().absent();
        let absence = absent.iter().find(|(rank, _)| *rank == world).map(|(_, absence)| absence);
        let has_gone = match absence {
            Some(Absence::Lost(_)) => true,
            Some(Absence::Left) => moved.elapsed() > GRACE_PERIOD,
            _ => false,
        };
        if has_gone
            && let Some(error) = communicator.process.with(|engine| communicator.departed(engine, rank))
        {
            return Err(error);
        }
        match absence {
            Some(Absence::Lost(cause)) => Err(self.failed(what, rank, &format!("is lost: {cause}"))),
            Some(Absence::Left) if moved.elapsed() > GRACE_PERIOD => {
                Err(self.failed(what, rank, "has finished, and its program left"))
            }
            Some(Absence::Left | Absence::Silent) | None => self.check_communicator(),
        }
    }

    /// A failure of the communicator is one of its windows.
    fn check_communicator(&self) -> Result<(), Error> {
        let communicator = &*self.communicator;
        communicator.process.with(|engine| match engine.failure(communicator.context()) {
            Some(failure) => Err(communicator.failed(engine, failure)),
            None => Ok(()),
        })
    }

    /// Checks that the target is not known to be lost, which costs little.
    pub(super) fn check_there(&self, what: &'static str, target: usize) -> Result<(), Error> {
        let communicator = &*self.communicator;
        let world = communicator.members[target];
        if communicator.process.control().is_lost(Rank(world)) {
            return self.check_alive(what, target, Instant::now());
        }
        if let Some(signals) = self.routes[target].signals()
            && target != communicator.rank()
            && signals.memory.load(setup::closed_at(signals, self.lengths.len())) != 0
        {
            return Err(self.failed(what, target, "has closed the window"));
        }
        Ok(())
    }

    /// The kernel cannot access the memory of a rank: its process may be gone, which is reported in a moment.
    pub(super) fn out_of_reach(&self, what: &'static str, target: usize, error: &io::Error) -> Error {
        self.hung_up(what, target, error)
    }

    pub(super) fn failed(&self, what: &'static str, rank: usize, why: &str) -> Error {
        let communicator = &*self.communicator;
        let control = communicator.process.control();
        let notes = notes_on(&[Rank(rank as u32)], &|rank| rank, &communicator.members, control);
        let error = Error::OneSided {
            what: format!("{what} in window #{}", self.number),
            rank,
            why: why.to_owned(),
            notes,
        };
        communicator.log.warn(|| error.to_string());
        error
    }
}
