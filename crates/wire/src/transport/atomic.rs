//! The extended headers of atomic operations: the request's and the answer's.

use super::Part;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};
use crate::malformed::Layer;

mod field {
    pub(super) const ADDRESS: usize = 0;
    pub(super) const KEY: usize = 8;
    pub(super) const SWAP_OR_ADD: usize = 12;
    pub(super) const COMPARE: usize = 20;
}

/// Atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// What to swap in, or to add.
    pub swap_or_add: u64,
    /// What to compare with; 0 for FetchAdd.
    pub compare: u64,
}

impl Part for AtomicEth {
    const LAYER: Layer = Layer::AtomicExtended;
    const LENGTH: usize = 28;

    fn read(raw: &[u8]) -> Self {
        Self {
            address: u64_at(raw, field::ADDRESS),
            key: u32_at(raw, field::KEY),
            swap_or_add: u64_at(raw, field::SWAP_OR_ADD),
            compare: u64_at(raw, field::COMPARE),
        }
    }

    fn write(&self, raw: &mut [u8]) {
        put_u64(raw, field::ADDRESS, self.address);
        put_u32(raw, field::KEY, self.key);
        put_u64(raw, field::SWAP_OR_ADD, self.swap_or_add);
        put_u64(raw, field::COMPARE, self.compare);
    }
}

/// Atomic acknowledge extended transport header: the value that was there before.
pub(super) struct AtomicAcknowledge(pub(super) u64);

impl Part for AtomicAcknowledge {
    const LAYER: Layer = Layer::AtomicAcknowledge;
    const LENGTH: usize = 8;

    fn read(raw: &[u8]) -> Self {
        Self(u64_at(raw, 0))
    }

    fn write(&self, raw: &mut [u8]) {
        put_u64(raw, 0, self.0);
    }
}
