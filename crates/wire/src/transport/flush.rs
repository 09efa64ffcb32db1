//! The flush extended transport header (IBTA annex A19).

use super::Part;
use crate::bytes::{put_u32, u32_at};
use crate::malformed::Layer;

const PLACEMENT_MASK: u32 = 0xf;
const SELECTIVITY_SHIFT: u32 = 4;
const SELECTIVITY_MASK: u32 = 3;

/// How far data must have got, and which data.
pub(super) struct Flush {
    pub(super) placement: u8,
    pub(super) selectivity: u8,
}

impl Part for Flush {
    const LAYER: Layer = Layer::FlushExtended;
    const LENGTH: usize = 4;

    fn read(raw: &[u8]) -> Self {
        let word = u32_at(raw, 0);
        Self {
            placement: (word & PLACEMENT_MASK) as u8,
            selectivity: (word >> SELECTIVITY_SHIFT & SELECTIVITY_MASK) as u8,
        }
    }

    fn write(&self, raw: &mut [u8]) {
        let selectivity = u32::from(self.selectivity) & SELECTIVITY_MASK;
        put_u32(raw, 0, selectivity << SELECTIVITY_SHIFT | u32::from(self.placement) & PLACEMENT_MASK);
    }
}
