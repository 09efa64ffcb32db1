//! The directory of a segment: finds the rings of a connection by its name.
//!
//! Whichever end opens first, sender or receiver, creates the rings of a connection; the other finds them by the name. They are
//! free again when both ends have left: nobody writes or reads them any more, so that nothing of an old connection shows up in
//! a new one. The rings that were freed last are reused first, because their pages are populated.
//!
//! It is a hash table with open addressing and tombstones, changed under one lock: connections are opened and closed seldom.
//! The lock word names its owner, so that the next process takes it over from one that was killed. After each single store of a
//! change the directory is consistent; what a kill costs is at most the rings of one connection.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

use super::atomics::{AtomicMemory, AtomicWord as _};
use super::segment::Segment;
use crate::transport::ConnectionName;

/// Entries of a directory, and connections of a segment: some entries stay empty, where searches end.
const ENTRIES: usize = 4096;
pub(super) const CONNECTIONS_MAX: usize = 4000;
/// Bytes of an entry: its state, two words of name, and the index of its rings.
const ENTRY: usize = 32;
/// Bytes of a directory: the lock, how many connections ever had rings, how many rings are free, which those are, and the
/// entries.
pub(super) const LENGTH: usize = 64 + CONNECTIONS_MAX * 8 + ENTRIES * ENTRY;

/// States of an entry: never used, tombstone, or in use, with a bit for each end that has left.
const EMPTY: u64 = 0;
const GIVEN_UP: u64 = 1 << 8;
const USED: u64 = 1 << 9;
const BOTH_LEFT: u64 = USED | End::Sender as u64 | End::Receiver as u64;

/// How long the lock may be held. It takes nanoseconds, unless its owner stops there.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for an end that leaves: rings that are not freed cost only memory.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(50);

impl ConnectionName {
    /// The index at which the search begins.
    const fn hash(&self) -> usize {
        (self.context ^ self.word().wrapping_mul(0x9e37_79b9_7f4a_7c15)) as usize
    }

    const fn word(&self) -> u64 {
        (self.from as u64) << 32 | (self.channel as u64) << 8 | self.lane as u64
    }
}

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Sender = 1,
    Receiver = 2,
}

/// The directory at an offset of a segment.
#[derive(Debug)]
pub(super) struct Directory<'a, M = Segment> {
    pub(super) segment: &'a M,
    pub(super) at: usize,
}

impl<M> Clone for Directory<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Directory<'_, M> {}

impl<M: AtomicMemory> Directory<'_, M> {
    /// Finds or creates the entry of a name and its rings. `prepare` initialises new rings before anybody uses them.
    pub(super) fn enter(
        self,
        name: ConnectionName,
        prepare: impl FnOnce(usize),
    ) -> io::Result<(usize, usize)> {
        let full = || {
            let why = "the shared memory of a rank is full: too many communicators are there at once";
            io::Error::other(why)
        };
        self.locked(LOCK_TIMEOUT, || {
            let mut free = None;
            for index in (0..ENTRIES).map(|step| name.hash().wrapping_add(step) % ENTRIES) {
                match self.get(index, 0) {
                    EMPTY => {
                        free.get_or_insert(index);
                        break;
                    }
                    GIVEN_UP => _ = free.get_or_insert(index),
                    _ if (self.get(index, 1), self.get(index, 2)) == (name.context, name.word()) => {
                        let rings = self.get(index, 3) as usize;
                        return (rings < CONNECTIONS_MAX).then_some((index, rings)).ok_or_else(full);
                    }
                    _ => {}
                }
            }
            let index = free.ok_or_else(full)?;
            let rings = self.take().ok_or_else(full)?;
            prepare(rings);
            for (field, value) in [(1, name.context), (2, name.word()), (3, rings as u64), (0, USED)] {
                self.set(index, field, value);
            }
            Ok((index, rings))
        })?
    }

    /// Offsets of all words that entering and leaving reach, where no other name is there: for a memory model that has no
    /// others.
    #[cfg(test)]
    pub(super) fn words_of(at: usize, name: ConnectionName) -> impl Iterator<Item = usize> {
        let entry = move |step: usize| {
            let index = name.hash().wrapping_add(step) % ENTRIES;
            (0..4).map(move |field| at + 64 + CONNECTIONS_MAX * 8 + index * ENTRY + field * 8)
        };
        [at, at + 8, at + 16, at + 64].into_iter().chain([ENTRIES - 1, 0, 1].into_iter().flat_map(entry))
    }

    /// One end of a connection closes its rings.
    pub(super) fn leave(self, index: usize, end: End) {
        // Without the lock they stay allocated, and that is all.
        let _ = self.locked(LEAVE_TIMEOUT, || self.leave_locked(index, end));
    }

    /// The receiver closes all rings of a communicator, also those that it has never opened.
    pub(super) fn forget(self, context: u64) {
        let _ = self.locked(LEAVE_TIMEOUT, || {
            for index in 0..ENTRIES {
                if self.get(index, 0) & USED != 0 && self.get(index, 1) == context {
                    self.leave_locked(index, End::Receiver);
                }
            }
        });
    }

    fn leave_locked(self, index: usize, end: End) {
        let state = self.get(index, 0) | end as u64;
        if state != BOTH_LEFT {
            return self.set(index, 0, state);
        }
        // In this order: a process that is killed in between leaks the rings, and no two connections share them.
        let rings = self.get(index, 3);
        self.set(index, 0, GIVEN_UP);
        self.give_back(rings);
        // Tombstones before an empty entry end no search: they become empty too.
        let mut last = index;
        if self.get((last + 1) % ENTRIES, 0) == EMPTY {
            while self.get(last, 0) == GIVEN_UP {
                self.set(last, 0, EMPTY);
                last = (last + ENTRIES - 1) % ENTRIES;
            }
        }
    }

    /// Allocates rings.
    fn take(self) -> Option<usize> {
        let [used, free] = [8, 16].map(|word| self.segment.word(self.at + word));
        let count = free.load(Ordering::Relaxed) as usize;
        if (1..=CONNECTIONS_MAX).contains(&count) {
            free.store(count as u64 - 1, Ordering::Relaxed);
            return Some(self.free(count - 1).load(Ordering::Relaxed) as usize)
                .filter(|one| *one < CONNECTIONS_MAX);
        }
        let next = used.load(Ordering::Relaxed) as usize;
        (next < CONNECTIONS_MAX).then(|| {
            used.store(next as u64 + 1, Ordering::Relaxed);
            next
        })
    }

    fn give_back(self, rings: u64) {
        let free = self.segment.word(self.at + 16);
        let count = free.load(Ordering::Relaxed) as usize;
        if count < CONNECTIONS_MAX {
            self.free(count).store(rings, Ordering::Relaxed);
            free.store(count as u64 + 1, Ordering::Relaxed);
        }
    }

    fn free(&self, index: usize) -> &M::AtomicWord {
        self.segment.word(self.at + 64 + index * 8)
    }

    fn get(self, index: usize, field: usize) -> u64 {
        self.segment.word(self.field(index, field)).load(Ordering::Relaxed)
    }

    fn set(self, index: usize, field: usize, value: u64) {
        self.segment.word(self.field(index, field)).store(value, Ordering::Relaxed);
    }

    const fn field(&self, index: usize, field: usize) -> usize {
        self.at + 64 + CONNECTIONS_MAX * 8 + index * ENTRY + field * 8
    }

    fn locked<T>(self, timeout: Duration, action: impl FnOnce() -> T) -> io::Result<T> {
        let lock = self.segment.word(self.at);
        let own = Owner::here();
        let since = Instant::now();
        let mut expected = 0;
        while let Err(found) = lock.compare_exchange(expected, own, Ordering::Acquire, Ordering::Relaxed) {
            // The lock of a dead owner is taken over, unless another process has done so.
            expected = if found != 0 && Owner::is_gone(found) { found } else { 0 };
            if since.elapsed() > timeout {
                return Err(io::Error::other("a rank stopped while it changed the directory of a segment"));
            }
            M::yield_now();
        }
        let outcome = action();
        lock.store(0, Ordering::Release);
        Ok(outcome)
    }
}

/// The owner of the lock: its pid and its PID namespace.
struct Owner;

impl Owner {
    /// This process, as a word that is not 0.
    fn here() -> u64 {
        static NAMESPACE: OnceLock<u64> = OnceLock::new();
        let namespace = NAMESPACE.get_or_init(|| {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino() & 0xffff_ffff)
        });
        namespace << 32 | u64::from(std::process::id())
    }

    /// Whether the owner is known to have exited. A pid of another namespace cannot be checked.
    fn is_gone(owner: u64) -> bool {
        let number = i32::try_from(owner & 0xffff_ffff).ok().and_then(Pid::from_raw);
        let is_near = owner >> 32 == Self::here() >> 32;
        is_near && number.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: ConnectionName = ConnectionName { context: 1, from: 2, channel: 3, lane: 0 };

    #[test]
    fn a_lock_of_a_process_that_was_killed_is_taken_over_and_that_of_one_that_lives_is_not() {
        let segment = Segment::create(LENGTH.next_multiple_of(4096)).unwrap();
        let directory = Directory { segment: &segment, at: 0 };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        segment.word(0).store(Owner::here() >> 32 << 32 | u64::from(child.id()), Ordering::Relaxed);
        assert!(directory.enter(NAME, |_| {}).is_ok());
        assert_eq!(segment.word(0).load(Ordering::Relaxed), 0);
        // Process 1 lives, and one of another namespace cannot be checked.
        for owner in [Owner::here() >> 32 << 32 | 1, (Owner::here() >> 32 ^ 1) << 32 | u64::from(child.id())]
        {
            segment.word(0).store(owner, Ordering::Relaxed);
            assert!(directory.locked(Duration::from_millis(5), || {}).is_err());
            assert_eq!(segment.word(0).load(Ordering::Relaxed), owner);
        }
    }

    /// A process that is killed between any two stores of a change leaves no rings with two names.
    #[test]
    fn an_entry_is_given_up_before_its_rings_are_free() {
        let segment = Segment::create(LENGTH.next_multiple_of(4096)).unwrap();
        let directory = Directory { segment: &segment, at: 0 };
        let (index, rings) = directory.enter(NAME, |_| {}).unwrap();
        directory.leave(index, End::Sender);
        directory.set(index, 0, GIVEN_UP);
        // As if it had been killed here. Another connection gets other rings, or these, but never shares them.
        let other = ConnectionName { context: 9, ..NAME };
        let (_, second) = directory.enter(other, |_| {}).unwrap();
        let (_, third) = directory.enter(NAME, |_| {}).unwrap();
        assert_ne!(second, third);
        assert_ne!(second, rings, "it was not given back");
    }
}
