//! Pointers to objects of this library that threads share under a lock.

use std::marker::PhantomData;

/// A pointer as a number, so that it may be sent to another thread.
pub(super) struct Pointer<T>(usize, PhantomData<fn() -> T>);

impl<T> Pointer<T> {
    pub(super) fn new(pointer: *mut T) -> Self {
        Self(pointer as usize, PhantomData)
    }

    pub(super) fn get(&self) -> *mut T {
        self.0 as *mut T
    }
}

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}
