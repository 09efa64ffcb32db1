//! The RDMA extended transport header.

use super::Part;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};
use crate::malformed::Layer;

mod field {
    pub(super) const ADDRESS: usize = 0;
    pub(super) const KEY: usize = 8;
    pub(super) const LENGTH: usize = 12;
}

/// RDMA extended transport header: where in the target's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Part for Reth {
    const LAYER: Layer = Layer::RdmaExtended;
    const LENGTH: usize = 16;

    fn read(raw: &[u8]) -> Self {
        Self {
            address: u64_at(raw, field::ADDRESS),
            key: u32_at(raw, field::KEY),
            length: u32_at(raw, field::LENGTH),
        }
    }

    fn write(&self, raw: &mut [u8]) {
        put_u64(raw, field::ADDRESS, self.address);
        put_u32(raw, field::KEY, self.key);
        put_u32(raw, field::LENGTH, self.length);
    }
}
