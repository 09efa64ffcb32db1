//! Handles: what a program in C holds in place of a pointer.
//!
//! A handle is an index into a table and the generation of its slot, so that one that was destroyed, or never was one, is found out and never
//! followed. Its upper bits say which table it is of; no address of a program has them, so that a program that reads through a handle ends at
//! once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const GENERATION_BITS: u32 = 28;
const INDEX_BITS: u32 = 32;

/// What a program holds. Zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) u64);

const _: () = assert!(size_of::<Handle>() == size_of::<*const ()>(), "handles have the size of pointers");

impl Handle {
    pub(crate) const NONE: Self = Self(0);
}

/// What handles of one kind stand for.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Which table: 1 to 7.
    kind: u64,
    slots: Mutex<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    value: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: u64) -> Self {
        Self { kind, slots: Mutex::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Gives something a handle.
    pub(crate) fn insert(&self, value: Arc<T>) -> Handle {
        let mut table = self.lock();
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { generation: 0, value: None });
            table.slots.len() - 1
        });
        let slot = &mut table.slots[index];
        slot.value = Some(value);
        Handle(self.kind << (GENERATION_BITS + INDEX_BITS) | slot.generation << INDEX_BITS | index as u64)
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        let table = self.lock();
        let slot = table.slots.get(self.index(handle)?)?;
        if slot.generation == generation(handle) { slot.value.clone() } else { None }
    }

    /// Takes something out: its handle is none from now on.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<T>> {
        let index = self.index(handle)?;
        let mut table = self.lock();
        let slot = table.slots.get_mut(index)?;
        if slot.generation != generation(handle) {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation += 1;
        // A slot whose generations are used up stays empty.
        if slot.generation < 1 << GENERATION_BITS {
            table.free.push(index);
        }
        Some(value)
    }

    /// All that have a handle now and are as asked for.
    pub(crate) fn all(&self, is_meant: impl Fn(&T) -> bool) -> Vec<(Handle, Arc<T>)> {
        let table = self.lock();
        let handle = |index: usize, slot: &Slot<T>| {
            Handle(self.kind << (GENERATION_BITS + INDEX_BITS) | slot.generation << INDEX_BITS | index as u64)
        };
        let found = table.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = slot.value.as_ref().filter(|value| is_meant(value))?;
            Some((handle(index, slot), Arc::clone(value)))
        });
        found.collect()
    }

    fn index(&self, handle: Handle) -> Option<usize> {
        let is_ours = handle.0 >> (GENERATION_BITS + INDEX_BITS) == self.kind;
        is_ours.then_some((handle.0 & ((1 << INDEX_BITS) - 1)) as usize)
    }

    /// Nothing panics while it has this.
    fn lock(&self) -> MutexGuard<'_, Slots<T>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn generation(handle: Handle) -> u64 {
    handle.0 >> INDEX_BITS & ((1 << GENERATION_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_was_removed_is_none_although_its_slot_is_used_again() {
        let table = Table::new(1);
        let first = table.insert(Arc::new("first"));
        assert_eq!(table.remove(first).as_deref(), Some(&"first"));
        let second = table.insert(Arc::new("second"));
        assert_eq!(first.0 & 0xffff_ffff, second.0 & 0xffff_ffff, "the slot is used again");
        assert!(table.get(first).is_none() && table.remove(first).is_none());
        assert_eq!(table.get(second).as_deref(), Some(&"second"));
    }

    #[test]
    fn a_handle_of_another_table_and_any_number_are_none() {
        let (one, other) = (Table::new(1), Table::new(2));
        let handle = one.insert(Arc::new(1));
        other.insert(Arc::new(2));
        assert!(other.get(handle).is_none());
        for number in [0, 1, 0x1234, u64::MAX, handle.0 + 1, handle.0 | 1 << 63] {
            assert!(one.get(Handle(number)).is_none(), "{number:x}");
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_used_again() {
        let table = Table::new(1);
        table.insert(Arc::new(0));
        table.lock().slots[0].generation = (1 << GENERATION_BITS) - 1;
        let (last, _) = table.all(|_| true)[0];
        assert!(table.remove(last).is_some());
        let next = table.insert(Arc::new(1));
        assert_eq!(next.0 & 0xffff_ffff, 1);
        assert!(table.get(last).is_none());
    }
}
