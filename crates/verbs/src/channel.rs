//! A queue with a descriptor that can be read while it holds something: completion channels, asynchronous events, events of
//! connection management.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ReadWriteFlags;

/// How long an object that is destroyed waits for its events to be acknowledged. The manual page says for ever.
const ACKNOWLEDGEMENT_LIMIT: Duration = Duration::from_secs(10);

/// What events are about: an object of the application, by the address of its C structure. It counts the events that were
/// taken and not acknowledged, because the object must outlive them.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    pub(crate) token: usize,
    taken: Mutex<u32>,
    acknowledged: Condvar,
}

impl Subject {
    pub(crate) fn new(token: usize) -> Arc<Self> {
        Arc::new(Self { token, ..Self::default() })
    }

    fn taken(&self) -> MutexGuard<'_, u32> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut taken = self.taken();
        *taken = taken.saturating_sub(events);
        self.acknowledged.notify_all();
    }

    /// Waits until all events that were taken are acknowledged; tells whether they are.
    pub(crate) fn wait_acknowledged(&self) -> bool {
        let waited =
            self.acknowledged.wait_timeout_while(self.taken(), ACKNOWLEDGEMENT_LIMIT, |taken| *taken > 0);
        waited.map_or(true, |(taken, _)| *taken == 0)
    }
}

/// An event that a subject has to outlive.
pub(crate) trait OfSubject {
    fn subject(&self) -> &Arc<Subject>;
}

impl OfSubject for Arc<Subject> {
    fn subject(&self) -> &Arc<Subject> {
        self
    }
}

impl<K> OfSubject for (K, Arc<Subject>) {
    fn subject(&self) -> &Arc<Subject> {
        &self.1
    }
}

/// The queue. An application may wait for its descriptor in any way, and make it non-blocking.
#[derive(Debug)]
pub(crate) struct Channel<T> {
    descriptor: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T: OfSubject> Channel<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        Ok(Self { descriptor, queue: Mutex::new(VecDeque::new()) })
    }

    /// For an application to wait with.
    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no event waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }

    /// Appends an event.
    pub(crate) fn push(&self, event: T) {
        self.queue().push_back(event);
        // The counter holds 2^64 - 2 events.
        let _ = rustix::io::write(self.descriptor.as_fd(), &1_u64.to_ne_bytes());
    }

    /// The next event, to be acknowledged. Blocks while there is none, unless the application made the descriptor
    /// non-blocking.
    pub(crate) fn next(&self) -> io::Result<T> {
        loop {
            rustix::io::read(self.descriptor.as_fd(), &mut [0; 8])?;
            let mut queue = self.queue();
            // Nothing where it was withdrawn meanwhile.
            if let Some(event) = queue.pop_front() {
                *event.subject().taken() += 1;
                return Ok(event);
            }
        }
    }

    /// Withdraws the events that were not taken yet and satisfy this; hands them out.
    pub(crate) fn withdraw(&self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = self.queue();
        let (withdrawn, kept): (Vec<T>, Vec<T>) = queue.drain(..).partition(matches);
        queue.extend(kept);
        for _ in &withdrawn {
            // Where a reader was faster, it finds no event for its count, and goes on waiting.
            let mut count = [0; 8];
            let _ = rustix::io::preadv2(
                self.descriptor.as_fd(),
                &mut [IoSliceMut::new(&mut count)],
                u64::MAX,
                ReadWriteFlags::NOWAIT,
            );
        }
        withdrawn
    }

    /// The same, for all events of a subject that is about to end.
    pub(crate) fn withdraw_subject(&self, subject: &Arc<Subject>) {
        self.withdraw(|event| Arc::ptr_eq(event.subject(), subject));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_and_withdrawn_ones_never() {
        let channel: Channel<(u32, Arc<Subject>)> = Channel::new().unwrap();
        let (kept, gone) = (Subject::new(1), Subject::new(2));
        for (number, subject) in [(1, &kept), (2, &gone), (3, &kept)] {
            channel.push((number, subject.clone()));
        }
        channel.withdraw_subject(&gone);
        assert_eq!((channel.next().unwrap().0, channel.next().unwrap().0), (1, 3));
        let flags = rustix::fs::fcntl_getfl(channel.descriptor.as_fd()).unwrap();
        rustix::fs::fcntl_setfl(channel.descriptor.as_fd(), flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        assert_eq!(channel.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_subject_waits_for_its_acknowledgements() {
        let channel: Channel<Arc<Subject>> = Channel::new().unwrap();
        let subject = Subject::new(1);
        assert!(subject.wait_acknowledged());
        channel.push(subject.clone());
        channel.next().unwrap();
        let other = subject.clone();
        let acknowledging = std::thread::spawn(move || other.acknowledge(1));
        assert!(subject.wait_acknowledged());
        acknowledging.join().unwrap();
    }
}
