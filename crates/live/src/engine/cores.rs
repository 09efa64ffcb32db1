//! The cores that ranks of one host have between them: where there are fewer than ranks, a rank that waits is in the way of
//! the one that it waits for.

use rustix::thread::CpuSet;

use crate::machine;
use crate::message::Malformed;
use crate::message::fields::{Reader, put_blob};

/// The longest mask of cores.
const MASK: usize = CpuSet::MAX_CPU / 8;

/// What a rank may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cores {
    /// How many, by affinity and control group.
    pub(super) usable: u32,
    /// Which, by affinity: a bit for each. Nothing where the system does not tell.
    pub(super) mask: Vec<u8>,
}

impl Cores {
    /// Of this process.
    pub(super) fn own() -> Self {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut mask = vec![0; MASK];
        for core in (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)) {
            mask[core / 8] |= 1 << (core % 8);
        }
        let length = mask.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        mask.truncate(length);
        Self { usable: crate::machine::cores().usable as u32, mask }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.usable.to_le_bytes());
        put_blob(out, &self.mask);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { usable: reader.number("cores")?, mask: reader.blob("cores", MASK)? })
    }

    /// How many ranks of one host have between them. Each may be bound to some, or all may use the same; a control group
    /// that grants less than affinity does grants it to all together.
    pub(super) fn together<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> usize {
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

/// Times in a row that a rank finds itself on another core, after it has let others run, before it goes to its own.
const AWAY_LEAST: u32 = 16;
const AWAY_MOST: u32 = 1 << 14;
/// Times on its own core after which it goes there as soon as at first.
const STAYED: u32 = 1 << 10;

/// The core on which a rank is best off that shares cores with others.
///
/// Ranks that let each other run never sleep, and the system looks only now and then whether as many wait for one core as for
/// another: three on one and one on the other take twice as long as two and two. So a rank that waits goes to a core
/// that fits its number. It is not bound there: what moves it away again has a reason, and then it goes back less often. Where others
/// want to run on the machine too, the system has put ranks where these leave room, and they stay.
#[derive(Debug)]
pub(super) struct Home {
    core: usize,
    /// Ranks that share the cores, and how many cores that are.
    ranks: usize,
    cores: usize,
    away: u32,
    stayed: u32,
    patience: u32,
}

impl Home {
    /// Of one of the ranks of a host, where all of them may use the same cores, and there are fewer than ranks.
    pub(super) fn of(index: usize, all: &[&Cores]) -> Option<Self> {
        let mask = &all.first()?.mask;
        let cores: Vec<usize> =
            (0..8 * mask.len()).filter(|core| mask[core / 8] & 1 << (core % 8) != 0).collect();
        let is_same = |one: &&Cores| one.mask == *mask && one.usable as usize == cores.len();
        if cores.len() >= all.len() || !all.iter().all(is_same) {
            return None;
        }
        let core = *cores.get(index % cores.len().max(1))?;
        let (ranks, cores) = (all.len(), cores.len());
        Some(Self { core, ranks, cores, away: 0, stayed: 0, patience: AWAY_LEAST })
    }

    pub(super) const fn core(&self) -> usize {
        self.core
    }

    /// Others have run. Goes to its core, if it was on another for long.
    pub(super) fn look(&mut self) {
        if rustix::thread::sched_getcpu() == self.core {
            self.away = 0;
            self.stayed += 1;
            if self.stayed >= STAYED {
                self.patience = AWAY_LEAST;
            }
            return;
        }
        self.away += 1;
        if self.away >= self.patience {
            self.go();
        }
    }

    /// Whether others than the ranks want to run now, where the machine has no cores but theirs.
    fn is_crowded(&self) -> bool {
        machine::running().is_some_and(|running| running > self.ranks)
            && machine::cores().online == self.cores
    }

    /// Has the system move this thread, and nothing else changed.
    #[cold]
    fn go(&mut self) {
        (self.away, self.stayed) = (0, 0);
        self.patience = (2 * self.patience).min(AWAY_MOST);
        if self.is_crowded() {
            return;
        }
        let Ok(all) = rustix::thread::sched_getaffinity(None) else { return };
        if all.is_set(self.core) {
            let mut own = CpuSet::new();
            own.set(self.core);
            // It is for speed alone: what the system does not do, nobody misses.
            if rustix::thread::sched_setaffinity(None, &own).is_ok() {
                let _ = rustix::thread::sched_setaffinity(None, &all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(all: &[(u32, &[u8])]) -> usize {
        let all: Vec<Cores> =
            all.iter().map(|(usable, mask)| Cores { usable: *usable, mask: mask.to_vec() }).collect();
        Cores::together(all.iter())
    }

    #[test]
    fn ranks_that_are_bound_to_cores_of_their_own_have_as_many_together() {
        assert_eq!(together(&[(2, &[0b11]), (2, &[0b11]), (2, &[0b11])]), 2);
        assert_eq!(together(&[(1, &[0b01]), (1, &[0b10]), (2, &[0, 0b11])]), 4);
        // Half of eight cores' time is for all ranks of a control group together.
        assert_eq!(together(&[(4, &[0xff]), (4, &[0xff])]), 4);
        // A system that does not say which.
        assert_eq!(together(&[(3, &[]), (3, &[])]), 3);
    }

    #[test]
    fn ranks_that_share_cores_have_as_many_on_each() {
        let home = |index, all: &[(u32, &[u8])]| {
            let all: Vec<Cores> =
                all.iter().map(|(usable, mask)| Cores { usable: *usable, mask: mask.to_vec() }).collect();
            Home::of(index, &all.iter().collect::<Vec<_>>()).map(|home| home.core)
        };
        let shared: [(u32, &[u8]); 5] = [(2, &[0, 0b1010]); 5];
        assert_eq!([0, 1, 2, 3, 4].map(|index| home(index, &shared).unwrap()), [9, 11, 9, 11, 9]);
        // Those that have a core each, or not the same ones, or no more than a part of their time, are left where they are.
        assert_eq!(home(0, &shared[..2]), None);
        assert_eq!(home(0, &[(1, &[0b01]), (1, &[0b01]), (1, &[0b10])]), None);
        assert_eq!(home(0, &[(1, &[0b11]), (1, &[0b11])]), None);
        assert_eq!(home(0, &[(1, &[]), (1, &[])]), None);
    }

    #[test]
    fn who_goes_to_its_core_is_there_and_may_use_the_others_still() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).rfind(|core| before.is_set(*core)).unwrap();
        let mut home = Home { core, ranks: usize::MAX, cores: 1, away: 0, stayed: 0, patience: AWAY_LEAST };
        home.go();
        assert_eq!(home.patience, 2 * AWAY_LEAST);
        let after = rustix::thread::sched_getaffinity(None).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|core| before.is_set(core) == after.is_set(core)));
        home.patience = AWAY_MOST;
        home.go();
        assert_eq!(home.patience, AWAY_MOST);
    }

    #[test]
    fn where_others_want_to_run_nobody_goes_to_its_core() {
        let cores = machine::cores().online;
        let home = |ranks, cores| Home { core: 0, ranks, cores, away: 0, stayed: 0, patience: AWAY_LEAST };
        // This test runs: that is more than none.
        assert!(home(0, cores).is_crowded());
        assert!(!home(usize::MAX, cores).is_crowded());
        // They may run on the others' cores.
        assert!(!home(0, cores - 1).is_crowded());
    }

    #[test]
    fn this_process_has_some_and_they_are_read_as_they_were_written() {
        let own = Cores::own();
        assert!(own.usable >= 1 && Cores::together([&own].into_iter()) == own.usable as usize);
        let mut bytes = Vec::new();
        own.write(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(Cores::read(&mut reader).unwrap(), own);
        assert!(reader.finish().is_ok());
    }
}
