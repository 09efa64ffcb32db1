//! The two extended headers that are one word: immediate data and the key to invalidate.

use super::Part;
use crate::bytes::{put_u32, u32_at};
use crate::malformed::Layer;

/// Immediate data: opaque, carried as it is.
pub(super) struct Immediate(pub(super) u32);

/// Invalidate extended transport header.
pub(super) struct Invalidate(pub(super) u32);

impl Part for Immediate {
    const LAYER: Layer = Layer::Immediate;
    const LENGTH: usize = 4;

    fn read(raw: &[u8]) -> Self {
        Self(u32_at(raw, 0))
    }

    fn write(&self, raw: &mut [u8]) {
        put_u32(raw, 0, self.0);
    }
}

impl Part for Invalidate {
    const LAYER: Layer = Layer::Invalidate;
    const LENGTH: usize = 4;

    fn read(raw: &[u8]) -> Self {
        Self(u32_at(raw, 0))
    }

    fn write(&self, raw: &mut [u8]) {
        put_u32(raw, 0, self.0);
    }
}
