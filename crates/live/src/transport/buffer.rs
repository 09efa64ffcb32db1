//! Callers' buffers that a transport reads or fills itself, without a copy to or from a slot.
#![expect(unsafe_code, reason = "buffers of callers are reached through pointers")]

/// Data of a caller that is sent without a copy to a slot, and does not change meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StableSource(*const u8);

// SAFETY: it is an address and no more; who uses what lies there says why that is right.
unsafe impl Send for StableSource {}
// SAFETY: as above.
unsafe impl Sync for StableSource {}

impl StableSource {
    /// Data from here on.
    ///
    /// # Safety
    /// Nobody may change it until the slice is sent, or its connection is closed.
    pub(crate) unsafe fn new(from: *const u8) -> Self {
        Self(from)
    }

    pub(crate) const fn pointer(&self) -> *const u8 {
        self.0
    }

    pub(crate) fn bytes(&self, length: usize) -> &[u8] {
        // SAFETY: whoever made it promised that the data is stable as long as the slice waits, and `self` is part of that.
        unsafe { std::slice::from_raw_parts(self.0, length) }
    }
}

/// A posted receive buffer: data of a slice goes there without a copy from a slot.
#[derive(Debug)]
pub(crate) struct PostedBuffer {
    at: *mut u8,
    length: usize,
}

// SAFETY: it is an address and no more; who uses what lies there says why that is right.
unsafe impl Send for PostedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PostedBuffer {}

impl PostedBuffer {
    /// So many bytes from here on.
    ///
    /// # Safety
    /// Nobody else may use them until the slice that it receives is released, or its connection is closed.
    pub(crate) unsafe fn new(at: *mut u8, length: usize) -> Self {
        Self { at, length }
    }

    /// The first bytes of memory that a test keeps alive.
    #[cfg(test)]
    pub(crate) fn of(memory: &mut [u8], length: usize) -> Self {
        let at = memory[..length].as_mut_ptr();
        // SAFETY: a test reads it only when the slice has arrived.
        unsafe { Self::new(at, length) }
    }

    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: whoever posted it promised that nobody else uses it until the slice has arrived, and `self` is part of that.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.length) }
    }
}
