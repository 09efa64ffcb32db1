//! Waiting: first by looking again and again, then by letting others run, at last by sleeping.
//!
//! On a machine with a core for each rank, the peer is about to answer: looking again is fastest. With fewer cores the
//! peer may need this one, so it is given away at once. After a while there is no hurry any more, and a rank that sleeps
//! costs the others nothing.

use std::time::Duration;

use super::cores::Home;

/// Looks before the core is offered to others, where each rank has one: some 50 µs. The system may still have put two of
/// them on the same.
const LOOKS: u32 = 1_500;
/// The same, where ranks share cores.
const LOOKS_SHARED: u32 = 4;
/// Looks in a row for what a small call waits for, where each rank has a core: some 200 ns.
const LOOKS_AT_ONCE: u32 = 16;
/// Offers before sleeping.
const OFFERS: u32 = 1_000;
/// Every so many looks go to all connections: what comes where nothing is awaited says that ranks mean different calls.
const AROUND: u32 = 16;
/// How long a sleep is at most: some news comes without a bell.
pub(crate) const SLEEP: Duration = Duration::from_millis(1);

/// What to do after a look that brought nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Look again; other ranks have run, so time has passed.
    LookAround,
    /// Sleep.
    Sleep,
}

/// How long somebody waits already.
#[derive(Debug)]
pub(crate) struct Idle {
    patience: u32,
    looks: u32,
    offers: u32,
    home: Option<Home>,
}

impl Idle {
    /// Where ranks of this host share cores, or where each has one.
    pub(super) const fn new(shares_cores: bool, home: Option<Home>) -> Self {
        let patience = if shares_cores { LOOKS_SHARED } else { LOOKS };
        Self { patience, looks: 0, offers: 0, home }
    }

    /// The same patience, for somebody who has not waited yet.
    pub(crate) const fn fresh(&self) -> Self {
        Self { patience: self.patience, looks: 0, offers: 0, home: None }
    }

    /// Looks into memory that a small call is worth before anything else is looked at.
    #[inline]
    pub(crate) const fn looks_at_once(&self) -> u32 {
        if self.patience == LOOKS { LOOKS_AT_ONCE } else { 1 }
    }

    /// Something happened.
    #[inline]
    pub(crate) const fn reset(&mut self) {
        self.looks = 0;
        self.offers = 0;
    }

    /// Whether it is time to look at connections from which nothing is awaited.
    #[inline]
    pub(crate) const fn is_long(&self) -> bool {
        (self.looks + self.offers) % AROUND == AROUND - 1
    }

    /// Waits a moment.
    #[inline]
    pub(crate) fn wait(&mut self) -> Next {
        if self.looks < self.patience {
            self.looks += 1;
            std::hint::spin_loop();
            return if self.looks.is_multiple_of(1024) { Next::LookAround } else { Next::Look };
        }
        if self.offers < OFFERS {
            self.offers += 1;
            std::thread::yield_now();
            if let Some(home) = &mut self.home {
                home.look();
            }
            return Next::LookAround;
        }
        Next::Sleep
    }
}
