//! Backoff of a waiting thread: it spins, then yields, then blocks.
//!
//! With a core for each rank the peer is about to answer, and spinning is fastest. With fewer cores the peer may need this one,
//! so that the thread yields at once. The same happens where other programs load the machine and the kernel puts two ranks on
//! one core: progress right after `sched_yield` means oversubscription, and halves the spin budget. After many yields a thread
//! blocks, and costs the others nothing.

use std::time::{Duration, Instant};

use super::cores::PreferredCpu;

/// The spin budget where each rank has a core: at most, which is as long as a few slices take over TCP; and at least, twice the
/// round trip there.
const SPIN_MAX: Duration = Duration::from_micros(200);
const SPIN_MIN: Duration = Duration::from_micros(10);
/// Polls before the clock is read. A poll of memory costs 30 ns, one of a stream 500.
const SPINS_PER_CHECK: u32 = 16;
/// Polls before a yield, where ranks share cores.
const SPINS_SHARED: u32 = 4;
/// Polls in a row of one connection by the synchronous executor, where each rank has a core: some 200 ns.
const SPINS_INLINE: u32 = 16;
/// Polls until the caller should check its timeouts.
const SPINS_PER_CLOCK: u32 = 1024;
/// Yields before blocking.
const YIELDS_MAX: u32 = 1_000;
/// Progress after so few yields means oversubscription: somebody needed this core for it.
const YIELDS_FEW: u32 = 3;
/// Every so many polls go to all connections: data that is not awaited tells that the calls of ranks differ.
const SWEEP_INTERVAL: u32 = 16;
/// The longest block: some notices come without a doorbell.
pub(crate) const BLOCK_MAX: Duration = Duration::from_millis(1);

/// What a wait has done, or the caller should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It has spun: poll again.
    Spun,
    /// It has yielded, or spun for a while: poll, and check timeouts.
    Yielded,
    /// The caller should block.
    Block,
}

/// The state of a wait.
#[derive(Debug)]
pub(crate) struct Backoff {
    shares_cores: bool,
    spins: u32,
    yields: u32,
    /// The spin budget, and since when it is used, as far as the clock was read.
    spin_budget: Duration,
    since: Option<Instant>,
    preferred_cpu: Option<PreferredCpu>,
}

impl Backoff {
    /// For ranks that share cores, or have one each.
    pub(super) const fn new(shares_cores: bool, preferred_cpu: Option<PreferredCpu>) -> Self {
        Self { shares_cores, spins: 0, yields: 0, spin_budget: SPIN_MAX, since: None, preferred_cpu }
    }

    /// The same policy, for a new wait.
    pub(crate) const fn fresh(&self) -> Self {
        Self::new(self.shares_cores, None)
    }

    /// Polls of one connection in a row by the synchronous executor.
    #[inline]
    pub(crate) const fn spins_inline(&self) -> u32 {
        if self.shares_cores { 1 } else { SPINS_INLINE }
    }

    /// Something moved.
    #[inline]
    pub(crate) fn reset(&mut self) {
        // Mostly the wait was short.
        if self.spins >= SPINS_PER_CHECK {
            let spin_budget = if self.yields == 0 {
                2 * self.spin_budget
            } else if self.yields <= YIELDS_FEW {
                self.spin_budget / 2
            } else {
                self.spin_budget
            };
            self.spin_budget = spin_budget.clamp(SPIN_MIN, SPIN_MAX);
            self.since = None;
        }
        self.spins = 0;
        self.yields = 0;
    }

    /// Whether connections from which nothing is awaited should be polled too.
    #[inline]
    pub(crate) const fn is_sweep_due(&self) -> bool {
        (self.spins + self.yields) % SWEEP_INTERVAL == SWEEP_INTERVAL - 1
    }

    /// Spins or yields once.
    #[inline]
    pub(crate) fn wait(&mut self) -> Step {
        if self.yields == 0 && self.may_spin() {
            self.spins += 1;
            std::hint::spin_loop();
            return if self.spins.is_multiple_of(SPINS_PER_CLOCK) { Step::Yielded } else { Step::Spun };
        }
        if self.yields < YIELDS_MAX {
            self.yields += 1;
            std::thread::yield_now();
            if let Some(preferred_cpu) = &mut self.preferred_cpu {
                preferred_cpu.yielded();
            }
            return Step::Yielded;
        }
        Step::Block
    }

    /// Whether to spin once more before yielding.
    #[inline]
    fn may_spin(&mut self) -> bool {
        if self.shares_cores {
            return self.spins < SPINS_SHARED;
        }
        if self.spins == 0 || !self.spins.is_multiple_of(SPINS_PER_CHECK) {
            return true;
        }
        let now = Instant::now();
        now.duration_since(*self.since.get_or_insert(now)) < self.spin_budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until the first yield, each of which takes so long.
    fn spins(backoff: &mut Backoff, each: Duration) -> u32 {
        let spun = (0..1_000_000).take_while(|_| {
            let until = Instant::now() + each;
            while Instant::now() < until {}
            backoff.wait();
            backoff.yields == 0
        });
        spun.count() as u32
    }

    #[test]
    fn ranks_with_a_core_each_spin_for_a_time_and_not_for_a_number_of_polls() {
        let mut backoff = Backoff::new(false, None);
        // Polls of a millisecond: until the clock was read twice.
        assert_eq!(spins(&mut backoff, Duration::from_millis(1)), 2 * SPINS_PER_CHECK);
        backoff.reset();
        assert!(spins(&mut backoff, Duration::ZERO) >= 2 * SPINS_PER_CHECK);
    }

    #[test]
    fn ranks_that_share_cores_yield_at_once() {
        let mut backoff = Backoff::new(true, None);
        assert_eq!(spins(&mut backoff, Duration::ZERO), SPINS_SHARED);
    }

    #[test]
    fn progress_right_after_a_yield_halves_the_spin_budget() {
        let mut backoff = Backoff::new(false, None);
        for _ in 0..10 {
            spins(&mut backoff, Duration::ZERO);
            backoff.reset();
        }
        assert_eq!(backoff.spin_budget, SPIN_MIN);
        for _ in 0..10 {
            (0..SPINS_PER_CHECK).for_each(|_| _ = backoff.wait());
            backoff.reset();
        }
        assert_eq!(backoff.spin_budget, SPIN_MAX);
        // Progress after a long time tells nothing of who had the core.
        spins(&mut backoff, Duration::ZERO);
        (0..YIELDS_FEW).for_each(|_| _ = backoff.wait());
        backoff.reset();
        assert_eq!(backoff.spin_budget, SPIN_MAX);
    }

    #[test]
    fn a_long_wait_blocks() {
        let mut backoff = Backoff::new(false, None);
        spins(&mut backoff, Duration::ZERO);
        assert!((1..YIELDS_MAX).all(|_| backoff.wait() == Step::Yielded));
        assert_eq!(backoff.wait(), Step::Block);
    }
}
