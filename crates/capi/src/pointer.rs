//! Pointers that a program in C passes, as types that check what can be checked.
//!
//! Such a parameter comes from nowhere but C. What `railnet.h` says of it is what the program promises: that a pointer that is not `NULL`
//! leads to as much as the call uses, until it returns, or has ended where it was started.
#![expect(unsafe_code, reason = "the caller, a program in C, vouches for its pointers")]

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::failure::Failure;

/// Where a result is put.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// Values that are read.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// Memory that a call reads.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Source(*const c_void);

/// Memory that a call writes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Target(*mut c_void);

impl<T: Copy> Out<T> {
    /// Whether there is a place for it at all.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_null()
    }

    /// The same place, once it is known to be one.
    pub(crate) fn check(&self, name: &str) -> Result<(), Failure> {
        check(name, self.0)
    }

    pub(crate) fn set(&self, name: &str, value: T) -> Result<(), Failure> {
        self.check(name)?;
        // SAFETY: it is aligned and not null, and the program says that there is room.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// What is there now.
    pub(crate) fn get(&self, name: &str) -> Result<T, Failure> {
        self.check(name)?;
        // SAFETY: it is aligned and not null, and the program says that there is a value.
        Ok(unsafe { self.0.read() })
    }

    /// The element after so many others.
    pub(crate) fn at(&self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// The same place, to be filled later.
    pub(crate) fn again(&self) -> Self {
        Self(self.0)
    }
}

impl<T: Copy> In<T> {
    /// So many values.
    pub(crate) fn values(&self, name: &str, count: usize) -> Result<Vec<T>, Failure> {
        if count == 0 {
            return Ok(Vec::new());
        }
        check(name, self.0)?;
        // SAFETY: it is aligned and not null, and the program says that there are so many values.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

fn check<T>(name: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL: it has to lead to a value")));
    }
    if !pointer.is_aligned() {
        let needs = align_of::<T>();
        return Err(Failure::argument(format!("{name} is {pointer:p}, which is no multiple of {needs}")));
    }
    Ok(())
}

impl Source {
    /// The address as it was given.
    pub(crate) fn start(self) -> usize {
        self.0.addr()
    }

    /// Where it begins; somewhere where nothing is used of it.
    pub(crate) fn address(self, name: &str, bytes: usize) -> Result<*const u8, Failure> {
        found(name, self.0.cast_mut(), bytes).map(|start| start.as_ptr().cast_const())
    }

    /// So many bytes.
    pub(crate) fn bytes(&self, name: &str, bytes: usize) -> Result<&[u8], Failure> {
        let start = self.address(name, bytes)?;
        // SAFETY: it is not null, and the program says that there are so many bytes, which it leaves alone during the call.
        Ok(unsafe { std::slice::from_raw_parts(start, bytes) })
    }
}

impl Target {
    /// The address as it was given.
    pub(crate) fn start(self) -> usize {
        self.0.addr()
    }

    pub(crate) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// Where it begins; somewhere where nothing is used of it.
    pub(crate) fn address(self, name: &str, bytes: usize) -> Result<*mut u8, Failure> {
        found(name, self.0, bytes).map(NonNull::as_ptr)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, name: &str, bytes: usize) -> Result<&mut [u8], Failure> {
        let start = self.address(name, bytes)?;
        // SAFETY: it is not null, and the program says that there is room for so many bytes, which it leaves alone during the call.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }
}

fn found(name: &str, pointer: *mut c_void, bytes: usize) -> Result<NonNull<u8>, Failure> {
    if bytes == 0 {
        return Ok(NonNull::<u64>::dangling().cast());
    }
    if isize::try_from(bytes).is_err() {
        return Err(Failure::argument(format!("{name} has {bytes} bytes: no memory is that large")));
    }
    let missing = || Failure::argument(format!("{name} is NULL: this rank's part has {bytes} bytes"));
    NonNull::new(pointer.cast()).ok_or_else(missing)
}
