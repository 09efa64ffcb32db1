//! The cores of the ranks of a host: with fewer cores than ranks, a rank that waits is in the way of the one that it waits for.

use rustix::thread::CpuSet;

use crate::host;
use crate::message::Malformed;
use crate::message::fields::{Reader, put_blob};

/// Bytes of the longest affinity mask.
const MASK: usize = CpuSet::MAX_CPU / 8;

/// The cores that a rank may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct UsableCores {
    /// How many, by affinity and control group.
    pub(super) usable: u32,
    /// The affinity mask; empty if the kernel does not tell.
    pub(super) mask: Vec<u8>,
}

impl UsableCores {
    /// Of this process.
    pub(super) fn own() -> Self {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut mask = vec![0; MASK];
        for core in (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)) {
            mask[core / 8] |= 1 << (core % 8);
        }
        let length = mask.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        mask.truncate(length);
        Self { usable: crate::host::cores().usable as u32, mask }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.usable.to_le_bytes());
        put_blob(out, &self.mask);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { usable: reader.number("cores")?, mask: reader.blob("cores", MASK)? })
    }

    /// How many cores the ranks of one host have. Each may be bound to some, or all may use the same; a control group that
    /// grants fewer than affinity grants them to all ranks together.
    pub(super) fn union_count<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> usize {
        let count = |mask: &[u8]| mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let limited = all.clone().filter(|one| one.usable < count(&one.mask)).map(|one| one.usable).min();
        let mut union = vec![0; MASK];
        for one in all.clone() {
            for (whole, byte) in union.iter_mut().zip(&one.mask) {
                *whole |= byte;
            }
        }
        let most = all.map(|one| one.usable).max().unwrap_or(1);
        limited.unwrap_or_else(|| count(&union).max(most)) as usize
    }
}

/// How often in a row a rank finds itself on another core after a yield, before it migrates to its preferred one.
const MIGRATE_MIN: u32 = 16;
const MIGRATE_MAX: u32 = 1 << 14;
/// Yields on the preferred core after which that threshold is reset.
const SETTLED: u32 = 1 << 10;

/// The preferred CPU of a rank that shares cores with others.
///
/// Ranks that yield to each other never block, and the kernel seldom rebalances its run queues: three on one core and one on
/// the other take twice as long as two and two. So a rank that waits migrates to the core that its local rank selects. It is
/// not bound there: if it is moved away again, it migrates less often. On an oversubscribed machine the kernel has put ranks
/// where other programs leave room, and they stay.
#[derive(Debug)]
pub(super) struct PreferredCpu {
    core: usize,
    /// Ranks that share the cores, and how many cores these are.
    ranks: usize,
    cores: usize,
    away: u32,
    settled: u32,
    threshold: u32,
}

impl PreferredCpu {
    /// Of one of the ranks of a host, if all of them may use the same cores and there are fewer cores than ranks.
    pub(super) fn of(index: usize, all: &[&UsableCores]) -> Option<Self> {
        let mask = &all.first()?.mask;
        let cores: Vec<usize> =
            (0..8 * mask.len()).filter(|core| mask[core / 8] & 1 << (core % 8) != 0).collect();
        let is_same = |one: &&UsableCores| one.mask == *mask && one.usable as usize == cores.len();
        if cores.len() >= all.len() || !all.iter().all(is_same) {
            return None;
        }
        let core = *cores.get(index % cores.len().max(1))?;
        let (ranks, cores) = (all.len(), cores.len());
        Some(Self { core, ranks, cores, away: 0, settled: 0, threshold: MIGRATE_MIN })
    }

    pub(super) const fn core(&self) -> usize {
        self.core
    }

    /// After a yield: migrates to the preferred core, if the thread was on others for long.
    pub(super) fn yielded(&mut self) {
        if rustix::thread::sched_getcpu() == self.core {
            self.away = 0;
            self.settled += 1;
            if self.settled >= SETTLED {
                self.threshold = MIGRATE_MIN;
            }
            return;
        }
        self.away += 1;
        if self.away >= self.threshold {
            self.migrate();
        }
    }

    /// Whether other programs want to run too, where the machine has no cores but the ranks'.
    fn is_oversubscribed(&self) -> bool {
        host::running().is_some_and(|running| running > self.ranks) && host::cores().online == self.cores
    }

    /// Has the kernel migrate this thread, and restores the affinity.
    #[cold]
    fn migrate(&mut self) {
        (self.away, self.settled) = (0, 0);
        self.threshold = (2 * self.threshold).min(MIGRATE_MAX);
        if self.is_oversubscribed() {
            return;
        }
        let Ok(all) = rustix::thread::sched_getaffinity(None) else { return };
        if all.is_set(self.core) {
            let mut own = CpuSet::new();
            own.set(self.core);
            // Only speed depends on it: errors are ignored.
            if rustix::thread::sched_setaffinity(None, &own).is_ok() {
                let _ = rustix::thread::sched_setaffinity(None, &all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn union_count(all: &[(u32, &[u8])]) -> usize {
        let all: Vec<UsableCores> =
            all.iter().map(|(usable, mask)| UsableCores { usable: *usable, mask: mask.to_vec() }).collect();
        UsableCores::union_count(all.iter())
    }

    #[test]
    fn ranks_that_are_bound_to_cores_of_their_own_have_as_many_together() {
        assert_eq!(union_count(&[(2, &[0b11]), (2, &[0b11]), (2, &[0b11])]), 2);
        assert_eq!(union_count(&[(1, &[0b01]), (1, &[0b10]), (2, &[0, 0b11])]), 4);
        // Half of eight cores' time is for all ranks of a control group together.
        assert_eq!(union_count(&[(4, &[0xff]), (4, &[0xff])]), 4);
        // A kernel that tells no mask.
        assert_eq!(union_count(&[(3, &[]), (3, &[])]), 3);
    }

    #[test]
    fn ranks_that_share_cores_have_as_many_on_each() {
        let preferred = |index, all: &[(u32, &[u8])]| {
            let all: Vec<UsableCores> = all
                .iter()
                .map(|(usable, mask)| UsableCores { usable: *usable, mask: mask.to_vec() })
                .collect();
            PreferredCpu::of(index, &all.iter().collect::<Vec<_>>()).map(|preferred| preferred.core)
        };
        let shared: [(u32, &[u8]); 5] = [(2, &[0, 0b1010]); 5];
        assert_eq!([0, 1, 2, 3, 4].map(|index| preferred(index, &shared).unwrap()), [9, 11, 9, 11, 9]);
        // Ranks with a core each, or with different cores, or with a quota, are left where they are.
        assert_eq!(preferred(0, &shared[..2]), None);
        assert_eq!(preferred(0, &[(1, &[0b01]), (1, &[0b01]), (1, &[0b10])]), None);
        assert_eq!(preferred(0, &[(1, &[0b11]), (1, &[0b11])]), None);
        assert_eq!(preferred(0, &[(1, &[]), (1, &[])]), None);
    }

    #[test]
    fn a_thread_that_migrates_is_there_and_may_use_all_cores_still() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).rfind(|core| before.is_set(*core)).unwrap();
        let mut preferred =
            PreferredCpu { core, ranks: usize::MAX, cores: 1, away: 0, settled: 0, threshold: MIGRATE_MIN };
        preferred.migrate();
        assert_eq!(preferred.threshold, 2 * MIGRATE_MIN);
        let after = rustix::thread::sched_getaffinity(None).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|core| before.is_set(core) == after.is_set(core)));
        preferred.threshold = MIGRATE_MAX;
        preferred.migrate();
        assert_eq!(preferred.threshold, MIGRATE_MAX);
    }

    #[test]
    fn on_an_oversubscribed_machine_nobody_migrates() {
        let cores = host::cores().online;
        let preferred = |ranks, cores| PreferredCpu {
            core: 0,
            ranks,
            cores,
            away: 0,
            settled: 0,
            threshold: MIGRATE_MIN,
        };
        // This test runs: that is more than none.
        assert!(preferred(0, cores).is_oversubscribed());
        assert!(!preferred(usize::MAX, cores).is_oversubscribed());
        // Other programs may run on other cores.
        assert!(!preferred(0, cores - 1).is_oversubscribed());
    }

    #[test]
    fn this_process_has_some_and_they_are_read_as_they_were_written() {
        let own = UsableCores::own();
        assert!(own.usable >= 1 && UsableCores::union_count([&own].into_iter()) == own.usable as usize);
        let mut bytes = Vec::new();
        own.write(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(UsableCores::read(&mut reader).unwrap(), own);
        assert!(reader.finish().is_ok());
    }
}
