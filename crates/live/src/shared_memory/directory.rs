//! The directory of a segment: which mailbox belongs to which connection.
//!
//! Whoever comes first, sender or receiver, makes the mailbox of a connection; the other finds it by its name. It is free
//! again when both have left it: then nobody writes to it or reads it any more, so that nothing of an old connection can
//! turn up in a new one. The one that was left last is used first, because its pages are there already.
//!
//! Entries are found by a hash of the name; one that was given up keeps its place as a mark where the search goes on.
//! Changes are made by one at a time. Connections are made and ended seldom, so a lock costs nothing. It names the process that has
//! it: one that is killed there loses it to the next. Each change leaves a directory that can be used after each of its stores; what is
//! lost then is a mailbox at most.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

use super::segment::Segment;
use super::words::{Word as _, Words};
use crate::transport::ConnectionName;

/// Entries of a directory, and mailboxes of a segment: some entries stay empty, where searches end.
const ENTRIES: usize = 4096;
pub(super) const MAILBOXES: usize = 4000;
/// Bytes of an entry: its state, two words of name, and which mailbox it is.
const ENTRY: usize = 32;
/// Bytes of a directory: the lock, how many mailboxes were ever used, how many of them are free, which those are, and
/// the entries.
pub(super) const LENGTH: usize = 64 + MAILBOXES * 8 + ENTRIES * ENTRY;

/// States of an entry: never used, given up, or in use, by both ends that have not left.
const EMPTY: u64 = 0;
const GIVEN_UP: u64 = 1 << 8;
const USED: u64 = 1 << 9;
const BOTH_LEFT: u64 = USED | End::Sender as u64 | End::Receiver as u64;

/// How long somebody may keep the lock. It takes nanoseconds, unless it dies there.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for who leaves: a mailbox that is not given back is missed by nobody.
const PATIENCE_LEAVING: Duration = Duration::from_millis(50);

impl ConnectionName {
    /// Where the search for its entry begins.
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

/// The directory that lies at a place of a segment.
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

impl<M: Words> Directory<'_, M> {
    /// The entry of a name and its mailbox, found or made. `prepare` makes a mailbox ready before anybody uses it.
    pub(super) fn enter(
        self,
        name: ConnectionName,
        prepare: impl FnOnce(usize),
    ) -> io::Result<(usize, usize)> {
        let full = || {
            let why = "the shared memory of a rank is full: too many communicators are there at once";
            io::Error::other(why)
        };
        self.locked(PATIENCE, || {
            let mut free = None;
            for index in (0..ENTRIES).map(|step| name.hash().wrapping_add(step) % ENTRIES) {
                match self.get(index, 0) {
                    EMPTY => {
                        free.get_or_insert(index);
                        break;
                    }
                    GIVEN_UP => _ = free.get_or_insert(index),
                    _ if (self.get(index, 1), self.get(index, 2)) == (name.context, name.word()) => {
                        let mailbox = self.get(index, 3) as usize;
                        return (mailbox < MAILBOXES).then_some((index, mailbox)).ok_or_else(full);
                    }
                    _ => {}
                }
            }
            let index = free.ok_or_else(full)?;
            let mailbox = self.take().ok_or_else(full)?;
            prepare(mailbox);
            for (field, value) in [(1, name.context), (2, name.word()), (3, mailbox as u64), (0, USED)] {
                self.set(index, field, value);
            }
            Ok((index, mailbox))
        })?
    }

    /// Words that entering and leaving reach, where no other name is there: for memory that has no others.
    #[cfg(test)]
    pub(super) fn words_of(at: usize, name: ConnectionName) -> impl Iterator<Item = usize> {
        let entry = move |step: usize| {
            let index = name.hash().wrapping_add(step) % ENTRIES;
            (0..4).map(move |field| at + 64 + MAILBOXES * 8 + index * ENTRY + field * 8)
        };
        [at, at + 8, at + 16, at + 64].into_iter().chain([ENTRIES - 1, 0, 1].into_iter().flat_map(entry))
    }

    /// One end of a connection has no more use for its mailbox.
    pub(super) fn leave(self, index: usize, end: End) {
        // Without the lock it stays taken, and that is all.
        let _ = self.locked(PATIENCE_LEAVING, || self.leave_locked(index, end));
    }

    /// The receiver has no more use for any mailbox of a communicator, also those that it has never looked into.
    pub(super) fn forget(self, context: u64) {
        let _ = self.locked(PATIENCE_LEAVING, || {
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
        // In this order: a rank that dies in between leaves an unused mailbox, not one that two ranks use.
        let mailbox = self.get(index, 3);
        self.set(index, 0, GIVEN_UP);
        self.give_back(mailbox);
        // Where no search goes on after it, none needs to come here.
        let mut last = index;
        if self.get((last + 1) % ENTRIES, 0) == EMPTY {
            while self.get(last, 0) == GIVEN_UP {
                self.set(last, 0, EMPTY);
                last = (last + ENTRIES - 1) % ENTRIES;
            }
        }
    }

    /// A free mailbox.
    fn take(self) -> Option<usize> {
        let [used, free] = [8, 16].map(|word| self.segment.word(self.at + word));
        let count = free.load(Ordering::Relaxed) as usize;
        if (1..=MAILBOXES).contains(&count) {
            free.store(count as u64 - 1, Ordering::Relaxed);
            return Some(self.free(count - 1).load(Ordering::Relaxed) as usize)
                .filter(|one| *one < MAILBOXES);
        }
        let next = used.load(Ordering::Relaxed) as usize;
        (next < MAILBOXES).then(|| {
            used.store(next as u64 + 1, Ordering::Relaxed);
            next
        })
    }

    fn give_back(self, mailbox: u64) {
        let free = self.segment.word(self.at + 16);
        let count = free.load(Ordering::Relaxed) as usize;
        if count < MAILBOXES {
            self.free(count).store(mailbox, Ordering::Relaxed);
            free.store(count as u64 + 1, Ordering::Relaxed);
        }
    }

    fn free(&self, index: usize) -> &M::Word {
        self.segment.word(self.at + 64 + index * 8)
    }

    fn get(self, index: usize, field: usize) -> u64 {
        self.segment.word(self.field(index, field)).load(Ordering::Relaxed)
    }

    fn set(self, index: usize, field: usize, value: u64) {
        self.segment.word(self.field(index, field)).store(value, Ordering::Relaxed);
    }

    const fn field(&self, index: usize, field: usize) -> usize {
        self.at + 64 + MAILBOXES * 8 + index * ENTRY + field * 8
    }

    fn locked<T>(self, patience: Duration, action: impl FnOnce() -> T) -> io::Result<T> {
        let lock = self.segment.word(self.at);
        let own = Owner::here();
        let since = Instant::now();
        let mut expected = 0;
        while let Err(found) = lock.compare_exchange(expected, own, Ordering::Acquire, Ordering::Relaxed) {
            // The lock of a dead owner is taken over, unless another rank has done so.
            expected = if found != 0 && Owner::is_gone(found) { found } else { 0 };
            if since.elapsed() > patience {
                return Err(io::Error::other("a rank stopped while it made a mailbox"));
            }
            M::yield_now();
        }
        let outcome = action();
        lock.store(0, Ordering::Release);
        Ok(outcome)
    }
}

/// Who has the lock: the number of its process, and which processes are numbered so (its PID namespace).
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

    /// Whether a process that had the lock is known to have ended. Of one in another container that cannot be said.
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
        // Process 1 lives, and one of another container cannot be judged.
        for owner in [Owner::here() >> 32 << 32 | 1, (Owner::here() >> 32 ^ 1) << 32 | u64::from(child.id())]
        {
            segment.word(0).store(owner, Ordering::Relaxed);
            assert!(directory.locked(Duration::from_millis(5), || {}).is_err());
            assert_eq!(segment.word(0).load(Ordering::Relaxed), owner);
        }
    }

    /// Whoever dies between any two stores of a change leaves a directory in which no mailbox has two names.
    #[test]
    fn an_entry_is_given_up_before_its_mailbox_is_free() {
        let segment = Segment::create(LENGTH.next_multiple_of(4096)).unwrap();
        let directory = Directory { segment: &segment, at: 0 };
        let (index, mailbox) = directory.enter(NAME, |_| {}).unwrap();
        directory.leave(index, End::Sender);
        directory.set(index, 0, GIVEN_UP);
        // As if it had died here. Another connection gets another mailbox, or this one, but never shares it.
        let other = ConnectionName { context: 9, ..NAME };
        let (_, second) = directory.enter(other, |_| {}).unwrap();
        let (_, third) = directory.enter(NAME, |_| {}).unwrap();
        assert_ne!(second, third);
        assert_ne!(second, mailbox, "it was not given back");
    }
}
