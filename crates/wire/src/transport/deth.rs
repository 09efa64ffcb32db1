//! The datagram extended transport header.

use railnet_core::QueuePairNumber;

use super::Part;
use crate::bytes::{put_u24, put_u32, u24_at, u32_at};
use crate::malformed::Layer;

mod field {
    pub(super) const QUEUE_KEY: usize = 0;
    pub(super) const RESERVED: usize = 4;
    pub(super) const SOURCE: usize = 5;
}

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key, checked against the receiver's.
    pub queue_key: u32,
    /// The queue pair that sent it.
    pub source: QueuePairNumber,
}

impl Part for Deth {
    const LAYER: Layer = Layer::DatagramExtended;
    const LENGTH: usize = 8;

    fn read(raw: &[u8]) -> Self {
        Self {
            queue_key: u32_at(raw, field::QUEUE_KEY),
            source: QueuePairNumber::new(u24_at(raw, field::SOURCE)),
        }
    }

    fn write(&self, raw: &mut [u8]) {
        put_u32(raw, field::QUEUE_KEY, self.queue_key);
        raw[field::RESERVED] = 0;
        put_u24(raw, field::SOURCE, self.source.value());
    }
}
