//! Queue entries of all queue pairs in one place.
//!
//! A queue pair that has nothing to do must cost little, and there are thousands: its queues are heads and tails of
//! linked lists into pools that the NIC owns. Entries are reused, so steady work allocates nothing.

use railnet_core::prefetch::prefetch_lines;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Entry<T> {
    value: Option<T>,
    next: u32,
}

/// Entries of one kind.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    /// Entries that are in use.
    length: u32,
}

/// One queue: a chain of entries of a [`Pool`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    head: u32,
    tail: u32,
    length: u32,
}

/// Which entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(u32);

impl Handle {
    /// No entry.
    pub(crate) const NONE: Self = Self(NONE);

    pub(crate) fn is_some(self) -> bool {
        self.0 != NONE
    }
}

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: NONE, length: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.entries.reserve_exact(count);
    }

    fn insert(&mut self, value: T) -> Handle {
        self.length += 1;
        if self.free == NONE {
            self.entries.push(Entry { value: Some(value), next: NONE });
            return Handle(self.entries.len() as u32 - 1);
        }
        let index = self.free;
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        entry.next = NONE;
        entry.value = Some(value);
        Handle(index)
    }

    /// Takes an entry that is in no chain.
    pub(crate) fn remove(&mut self, handle: Handle) -> T {
        let entry = &mut self.entries[handle.0 as usize];
        let value = entry.value.take().expect("a handle names a live entry");
        entry.next = self.free;
        self.free = handle.0;
        self.length -= 1;
        value
    }

    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> &T {
        self.entries[handle.0 as usize].value.as_ref().expect("a handle names a live entry")
    }

    /// Prefetches an entry, if the handle names one.
    #[inline]
    pub(crate) fn prefetch(&self, handle: Handle) {
        if let Some(entry) = self.entries.get(handle.0 as usize) {
            prefetch_lines(entry);
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, handle: Handle) -> &mut T {
        self.entries[handle.0 as usize].value.as_mut().expect("a handle names a live entry")
    }

    #[inline]
    pub(crate) fn next(&self, handle: Handle) -> Handle {
        Handle(self.entries[handle.0 as usize].next)
    }

    pub(crate) fn push(&mut self, chain: &mut Chain, value: T) -> Handle {
        let handle = self.insert(value);
        if chain.tail == NONE {
            chain.head = handle.0;
        } else {
            self.entries[chain.tail as usize].next = handle.0;
        }
        chain.tail = handle.0;
        chain.length += 1;
        handle
    }

    /// Puts a value behind `before`, or first where that is no entry.
    pub(crate) fn insert_after(&mut self, chain: &mut Chain, before: Handle, value: T) {
        if before.0 == chain.tail {
            self.push(chain, value);
            return;
        }
        let handle = self.insert(value);
        let place = match before.is_some() {
            true => &mut self.entries[before.0 as usize].next,
            false => &mut chain.head,
        };
        let next = std::mem::replace(place, handle.0);
        self.entries[handle.0 as usize].next = next;
        chain.length += 1;
    }

    /// Unlinks the first entry without freeing it: [`Pool::remove`] does.
    pub(crate) fn detach(&mut self, chain: &mut Chain) -> Option<Handle> {
        let head = chain.head;
        if head == NONE {
            return None;
        }
        let entry = &mut self.entries[head as usize];
        chain.head = entry.next;
        entry.next = NONE;
        if chain.head == NONE {
            chain.tail = NONE;
        }
        chain.length -= 1;
        Some(Handle(head))
    }

    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Option<T> {
        let head = self.detach(chain)?;
        Some(self.remove(head))
    }

    pub(crate) fn clear(&mut self, chain: &mut Chain) {
        while self.pop(chain).is_some() {}
    }
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE, length: 0 };

    #[inline]
    pub(crate) fn front(&self) -> Handle {
        Handle(self.head)
    }

    #[inline]
    pub(crate) fn back(&self) -> Handle {
        Handle(self.tail)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.length
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_chains_share_a_pool_and_reuse_entries() {
        let mut pool = Pool::new();
        let (mut a, mut b) = (Chain::EMPTY, Chain::EMPTY);
        for round in 0..10 {
            pool.push(&mut a, round);
            pool.push(&mut b, -round);
            pool.push(&mut a, round + 100);
            assert_eq!(pool.pop(&mut a), Some(round));
            assert_eq!(pool.pop(&mut b), Some(-round));
            assert_eq!(pool.pop(&mut a), Some(round + 100));
            assert_eq!(pool.pop(&mut a), None);
        }
        assert_eq!(pool.entries.len(), 3);
        assert!(pool.is_empty());
    }

    #[test]
    fn values_can_be_put_in_between() {
        let (mut pool, mut chain) = (Pool::new(), Chain::EMPTY);
        pool.insert_after(&mut chain, Handle::NONE, 2);
        let two = chain.front();
        pool.insert_after(&mut chain, Handle::NONE, 1);
        pool.insert_after(&mut chain, two, 4);
        pool.insert_after(&mut chain, two, 3);
        assert_eq!(chain.len(), 4);
        pool.push(&mut chain, 5);
        let all: Vec<_> = std::iter::from_fn(|| pool.pop(&mut chain)).collect();
        assert_eq!(all, [1, 2, 3, 4, 5]);
        assert!(chain.is_empty());
    }
}
