//! Data that is sent from where it lies, and received where it goes.
#![expect(unsafe_code, reason = "buffers of callers are reached through pointers")]

/// Where data lies that is sent without being copied to a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent(*const u8);

// SAFETY: it is an address and no more; who uses what lies there says why that is right.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// Data from here on.
    ///
    /// # Safety
    /// Nobody may change it until the slice that it is lent to was taken, or its connection is gone.
    pub(crate) unsafe fn new(from: *const u8) -> Self {
        Self(from)
    }

    pub(super) fn bytes(&self, length: usize) -> &[u8] {
        // SAFETY: who lent it said that it stays as it is as long as the slice waits, and `self` is part of that.
        unsafe { std::slice::from_raw_parts(self.0, length) }
    }
}

/// Where data goes that is received without going to a slot before.
#[derive(Debug)]
pub(crate) struct Landing {
    at: *mut u8,
    length: usize,
}

// SAFETY: it is an address and no more; who uses what lies there says why that is right.
unsafe impl Send for Landing {}
// SAFETY: as above.
unsafe impl Sync for Landing {}

impl Landing {
    /// So many bytes from here on.
    ///
    /// # Safety
    /// Nobody else may use them until the slice that lands there was taken, or its connection is gone.
    pub(crate) unsafe fn new(at: *mut u8, length: usize) -> Self {
        Self { at, length }
    }

    /// The first bytes of memory that a test keeps alive.
    #[cfg(test)]
    pub(super) fn of(memory: &mut [u8], length: usize) -> Self {
        let at = memory[..length].as_mut_ptr();
        // SAFETY: a test looks at it only when the slice has come.
        unsafe { Self::new(at, length) }
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: who named it said that nobody else uses it as long as the slice has not come, and `self` is part of that.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.length) }
    }
}
