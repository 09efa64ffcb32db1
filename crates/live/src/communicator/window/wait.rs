//! Waiting for other ranks, each time with a limit, and finding out why one does not answer.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use railnet_core::Rank;

use super::{Error, Window, lock, setup};
use crate::communicator::{Element, notes_on};
use crate::control::Absence;
use crate::engine::{Engine, Idle, Next, SLEEP};
use crate::tcp::window::{Desk, Link, Pause};

/// How long after a connection broke, or a rank left, the reason may take to be known.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why a link stopped.
pub(super) enum Stopped {
    Io(io::Error),
    Error(Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A wait: what was done so far.
struct Wait {
    idle: Idle,
    began: Instant,
    /// When something last happened.
    moved: Instant,
}

/// Looks after a desk as long as it lives.
struct Served<'a>(Option<&'a Desk>);

impl<'a> Served<'a> {
    fn new(desk: Option<&'a Desk>) -> Self {
        if let Some(desk) = desk {
            desk.enter();
        }
        Self(desk)
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(desk) = self.0 {
            desk.leave();
        }
    }
}

impl<T: Element> Window<'_, T> {
    pub(super) fn limit(&self) -> Duration {
        self.communicator.timeout().unwrap_or(self.communicator.process.origin().1.limit)
    }

    /// Does what others ask this rank for, where it has to. Whether anything was.
    pub(super) fn serve(&self) -> bool {
        let by_desk = self.service.as_ref().is_some_and(|service| service.desk().serve());
        let process = &self.communicator.process;
        by_desk || self.staging.is_some() && process.with(Engine::attend_nic)
    }

    fn begin(&self) -> Wait {
        let idle = self.communicator.process.with(|engine| engine.patience());
        let now = Instant::now();
        Wait { idle, began: now, moved: now }
    }

    /// Waits until something is there that the awaited ranks have to do.
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
        let _served = Served::new(self.service.as_ref().map(crate::tcp::window::Service::desk));
        let mut wait = self.begin();
        loop {
            let outcome = self.pause(&mut wait, what, awaited, limit, late);
            // What came before a rank died counts.
            if is_there() {
                return Ok(());
            }
            outcome?;
        }
    }

    /// One moment of a wait.
    fn pause(
        &self,
        wait: &mut Wait,
        what: &'static str,
        awaited: &dyn Fn() -> Vec<usize>,
        limit: Duration,
        late: &dyn Fn(&[usize]) -> String,
    ) -> Result<(), Error> {
        if self.serve() {
            wait.idle.reset();
            wait.moved = Instant::now();
        }
        match wait.idle.wait() {
            Next::Look => return Ok(()),
            Next::LookAround => {}
            Next::Sleep => match &self.service {
                Some(service) => service.desk().sleep(SLEEP),
                None => std::thread::sleep(SLEEP),
            },
        }
        let ranks = awaited();
        for rank in &ranks {
            self.check_alive(what, *rank, wait.moved)?;
        }
        if wait.began.elapsed() < limit {
            return Ok(());
        }
        // All of them may be at fault; the first is looked at first by whoever reads it.
        let rank = ranks.first().copied().unwrap_or_default();
        Err(self.failed(what, rank, &late(&ranks)))
    }

    /// Something over a stream, in a wait of its own.
    pub(super) fn over_tcp(
        &self,
        what: &'static str,
        target: usize,
        link: &Mutex<Link>,
        action: impl FnOnce(&mut Link, Pause<'_, Stopped>) -> Result<(), Stopped>,
    ) -> Result<(), Error> {
        let _served = Served::new(self.service.as_ref().map(crate::tcp::window::Service::desk));
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

    /// A stream broke: the control channel may know why in a moment.
    fn hung_up(&self, what: &'static str, target: usize, error: &io::Error) -> Error {
        let began = Instant::now();
        while began.elapsed() < FAREWELL {
            if let Err(error) = self.check_alive(what, target, began) {
                return error;
            }
            std::thread::sleep(SLEEP);
        }
        self.failed(what, target, &format!("has closed the window, or its connection broke: {error}"))
    }

    /// Whether a rank can still do something; `moved` is when it last did.
    fn check_alive(&self, what: &'static str, rank: usize, moved: Instant) -> Result<(), Error> {
        let communicator = &*self.communicator;
        let world = Rank(communicator.members[rank]);
        let absent = communicator.process.control().absent();
        let absence = absent.iter().find(|(rank, _)| *rank == world).map(|(_, absence)| absence);
        let has_gone = match absence {
            Some(Absence::Lost(_)) => true,
            Some(Absence::Left) => moved.elapsed() > FAREWELL,
            _ => false,
        };
        if has_gone
            && let Some(error) = communicator.process.with(|engine| communicator.departed(engine, rank))
        {
            return Err(error);
        }
        match absence {
            Some(Absence::Lost(cause)) => Err(self.failed(what, rank, &format!("is lost: {cause}"))),
            Some(Absence::Left) if moved.elapsed() > FAREWELL => {
                Err(self.failed(what, rank, "has finished, and its program left"))
            }
            Some(Absence::Left | Absence::Silent) | None => self.check_communicator(),
        }
    }

    /// What failed for the communicator has failed for its windows.
    fn check_communicator(&self) -> Result<(), Error> {
        let communicator = &*self.communicator;
        communicator.process.with(|engine| match engine.failure(communicator.context()) {
            Some(failure) => Err(communicator.failed(engine, failure)),
            None => Ok(()),
        })
    }

    /// Whether a rank is there to be sent something. This is a look at what is known, and costs little.
    pub(super) fn check_there(&self, what: &'static str, target: usize) -> Result<(), Error> {
        let communicator = &*self.communicator;
        let world = communicator.members[target];
        if communicator.process.control().is_lost(Rank(world)) {
            return self.check_alive(what, target, Instant::now());
        }
        if let Some(signals) = self.roads[target].signals()
            && target != communicator.rank()
            && signals.memory.load(setup::closed_at(signals, self.lengths.len())) != 0
        {
            return Err(self.failed(what, target, "has closed the window"));
        }
        Ok(())
    }

    /// The kernel does not copy to or from the memory of a rank: its process may be gone, as is known in a moment.
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
