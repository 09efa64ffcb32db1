//! Data that is sent from where it lies.
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
