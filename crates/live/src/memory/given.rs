//! Memory that a program already has, under a [`Buffer`](super::Buffer): nothing is copied when it becomes one, nor when it is
//! returned.
#![expect(unsafe_code, reason = "memory that another type allocated is read and written through atomics")]

use std::any::TypeId;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, AtomicU64};

use super::WORD;

/// Memory of the program, aligned to eight.
pub(crate) struct Given {
    start: *mut u8,
    length: usize,
    owner: Owner,
}

/// Who frees it.
enum Owner {
    /// The program.
    Program,
    /// It was a vector: its capacity in elements, their type, and what frees it.
    Vector { capacity: usize, elements: TypeId, free: unsafe fn(*mut u8, usize, usize) },
}

// SAFETY: it is reached through atomics alone until it is a vector again, and the elements of that can be sent.
unsafe impl Send for Given {}
// SAFETY: as above.
unsafe impl Sync for Given {}

impl Given {
    /// The memory of a vector; the vector itself if it is not aligned to eight.
    pub(crate) fn vector<T: Copy + Send + 'static>(vector: Vec<T>) -> Result<Self, Vec<T>> {
        let mut vector = ManuallyDrop::new(vector);
        let (start, length, capacity) = (vector.as_mut_ptr(), vector.len(), vector.capacity());
        // An empty vector has no memory, and a dangling pointer.
        if capacity > 0 && !start.addr().is_multiple_of(WORD) {
            return Err(ManuallyDrop::into_inner(vector));
        }
        let owner = Owner::Vector { capacity, elements: TypeId::of::<T>(), free: free::<T> };
        Ok(Self { start: start.cast(), length: length * size_of::<T>(), owner })
    }

    /// So many bytes of memory that stays the program's. `None` if it is not aligned to eight.
    ///
    /// # Safety
    /// The memory lives as long as this, and is read and written only through this.
    pub(crate) unsafe fn memory(start: *mut u8, length: usize) -> Option<Self> {
        start.addr().is_multiple_of(WORD).then_some(Self { start, length, owner: Owner::Program })
    }

    /// The vector; `None` if it was none.
    pub(crate) fn into_vector<T: Copy + Send + 'static>(self) -> Option<Vec<T>> {
        let given = ManuallyDrop::new(self);
        match given.owner {
            Owner::Vector { capacity, elements, .. } if elements == TypeId::of::<T>() => {
                let length = given.length / size_of::<T>();
                // SAFETY: these are the parts of a vector of this type, and nothing else is made of them.
                Some(unsafe { Vec::from_raw_parts(given.start.cast(), length, capacity) })
            }
            _ => {
                drop(ManuallyDrop::into_inner(given));
                None
            }
        }
    }

    pub(super) fn is_vector(&self) -> bool {
        matches!(self.owner, Owner::Vector { .. })
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Its whole words.
    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the memory is there, aligned, and reached through atomics alone.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length / WORD) }
    }

    /// The bytes after them.
    pub(super) fn tail(&self) -> &[AtomicU8] {
        let rest = self.length % WORD;
        if rest == 0 {
            return &[];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.add(self.length - rest).cast(), rest) }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Owner::Vector { capacity, free, .. } = self.owner {
            // SAFETY: it was made of a vector by the function that this comes with.
            unsafe { free(self.start, self.length, capacity) };
        }
    }
}

/// Frees the memory of a vector of `T`.
///
/// # Safety
/// The parts are those of a vector of `T` that is not used any more: its address, its bytes, and its capacity in elements.
unsafe fn free<T>(start: *mut u8, length: usize, capacity: usize) {
    // SAFETY: as the caller says.
    drop(unsafe { Vec::<T>::from_raw_parts(start.cast(), length / size_of::<T>(), capacity) });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Buffer;
    use super::*;

    #[test]
    fn a_vector_is_the_same_memory_before_and_after() {
        for length in [1_usize, 7, 8, 9, 100, 1001] {
            let vector: Vec<u8> = (0..length).map(|index| index as u8).collect();
            let start = vector.as_ptr();
            let buffer = Buffer::given(Arc::new(Given::vector(vector).unwrap()));
            assert_eq!((buffer.len(), buffer.address()), (length, start.addr() as u64));
            let mut found = vec![0; length];
            buffer.read(0, &mut found);
            assert!((0..length).all(|index| found[index] == index as u8));
            // Any range, up to the last byte.
            for at in 0..length.min(20) {
                buffer.write(at, &vec![at as u8; length - at]);
                let mut found = vec![0; length - at];
                buffer.read(at, &mut found);
                assert!(found.iter().all(|byte| *byte == at as u8));
                let mut last = [0];
                buffer.read(length - 1, &mut last);
                assert_eq!(last, [at as u8]);
            }
            let vector: Vec<u8> = buffer.into_vector().unwrap();
            assert_eq!((vector.as_ptr(), vector.len()), (start, length));
        }
    }

    #[test]
    fn what_was_no_vector_or_is_still_used_does_not_become_one() {
        let buffer = Buffer::given(Arc::new(Given::vector(vec![1_u32; 10]).unwrap()));
        let clone = buffer.clone();
        assert!(buffer.into_vector::<u32>().is_none());
        assert!(clone.into_vector::<f32>().is_none(), "of another type");
        assert!(Buffer::new(8).into_vector::<u8>().is_none());
    }
}
