//! Waiting: first by looking again and again, then by letting others run, at last by sleeping.
//!
//! On a machine with a core for each rank, the peer is about to answer: looking again is fastest. With fewer cores the
//! peer may need this one, so it is given away at once. The same may happen to ranks with a core each, where others load the
//! machine and the system puts two of them on one: who finds what it waits for as soon as it has let others run, looks for a
//! shorter time before it does so again. After a while there is no hurry any more, and a rank that sleeps costs the others
//! nothing.

use std::time::{Duration, Instant};

use super::cores::Home;

/// How long to look before the core is offered to others, where each rank has one: at most, which is as long as a few slices take
/// over TCP; and at least, twice what an answer takes there.
const LOOKING: Duration = Duration::from_micros(200);
const LOOKING_LEAST: Duration = Duration::from_micros(10);
/// Looks before one at the clock. One at memory takes 30 ns, one at a stream 500.
const LOOKS: u32 = 16;
/// Looks before the core is offered to others, where ranks share cores.
const LOOKS_SHARED: u32 = 4;
/// Looks in a row for what a small call waits for, where each rank has a core: some 200 ns.
const LOOKS_AT_ONCE: u32 = 16;
/// Looks before one around.
const LOOKS_AROUND: u32 = 1024;
/// Offers before sleeping.
const OFFERS: u32 = 1_000;
/// So few offers brought what was waited for: somebody needed this core for it.
const OFFERS_FEW: u32 = 3;
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
    shares_cores: bool,
    looks: u32,
    offers: u32,
    /// How long to look, and when it began as far as the clock was looked at.
    looking: Duration,
    since: Option<Instant>,
    home: Option<Home>,
}

impl Idle {
    /// Where ranks of this host share cores, or where each has one.
    pub(super) const fn new(shares_cores: bool, home: Option<Home>) -> Self {
        Self { shares_cores, looks: 0, offers: 0, looking: LOOKING, since: None, home }
    }

    /// The same patience, for somebody who has not waited yet.
    pub(crate) const fn fresh(&self) -> Self {
        Self::new(self.shares_cores, None)
    }

    /// Looks into memory that a small call is worth before anything else is looked at.
    #[inline]
    pub(crate) const fn looks_at_once(&self) -> u32 {
        if self.shares_cores { 1 } else { LOOKS_AT_ONCE }
    }

    /// Something happened.
    #[inline]
    pub(crate) fn reset(&mut self) {
        // Most of the time nobody waited for long.
        if self.looks >= LOOKS {
            let looking = if self.offers == 0 {
                2 * self.looking
            } else if self.offers <= OFFERS_FEW {
                self.looking / 2
            } else {
                self.looking
            };
            self.looking = looking.clamp(LOOKING_LEAST, LOOKING);
            self.since = None;
        }
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
        if self.offers == 0 && self.is_looking() {
            self.looks += 1;
            std::hint::spin_loop();
            return if self.looks.is_multiple_of(LOOKS_AROUND) { Next::LookAround } else { Next::Look };
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

    /// Whether to look again before the core is offered to others.
    #[inline]
    fn is_looking(&mut self) -> bool {
        if self.shares_cores {
            return self.looks < LOOKS_SHARED;
        }
        if self.looks == 0 || !self.looks.is_multiple_of(LOOKS) {
            return true;
        }
        let now = Instant::now();
        now.duration_since(*self.since.get_or_insert(now)) < self.looking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks in vain until something else is done, each of which takes so long.
    fn looks(idle: &mut Idle, each: Duration) -> u32 {
        let looked = (0..1_000_000).take_while(|_| {
            let until = Instant::now() + each;
            while Instant::now() < until {}
            idle.wait();
            idle.offers == 0
        });
        looked.count() as u32
    }

    #[test]
    fn ranks_with_a_core_each_look_for_a_time_and_not_for_a_number_of_looks() {
        let mut idle = Idle::new(false, None);
        // Looks of a millisecond: once the clock was looked at twice.
        assert_eq!(looks(&mut idle, Duration::from_millis(1)), 2 * LOOKS);
        idle.reset();
        assert!(looks(&mut idle, Duration::ZERO) >= 2 * LOOKS);
    }

    #[test]
    fn ranks_that_share_cores_offer_theirs_at_once() {
        let mut idle = Idle::new(true, None);
        assert_eq!(looks(&mut idle, Duration::ZERO), LOOKS_SHARED);
    }

    #[test]
    fn who_had_to_let_others_run_looks_for_a_shorter_time() {
        let mut idle = Idle::new(false, None);
        for _ in 0..10 {
            looks(&mut idle, Duration::ZERO);
            idle.reset();
        }
        assert_eq!(idle.looking, LOOKING_LEAST);
        for _ in 0..10 {
            (0..LOOKS).for_each(|_| _ = idle.wait());
            idle.reset();
        }
        assert_eq!(idle.looking, LOOKING);
        // What came after a long time says nothing of who had the core.
        looks(&mut idle, Duration::ZERO);
        (0..OFFERS_FEW).for_each(|_| _ = idle.wait());
        idle.reset();
        assert_eq!(idle.looking, LOOKING);
    }

    #[test]
    fn who_waits_for_long_sleeps() {
        let mut idle = Idle::new(false, None);
        looks(&mut idle, Duration::ZERO);
        assert!((1..OFFERS).all(|_| idle.wait() == Next::LookAround));
        assert_eq!(idle.wait(), Next::Sleep);
    }
}
