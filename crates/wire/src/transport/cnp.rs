//! The body of a congestion notification packet: 16 reserved bytes (IBTA annex A17).

use super::Part;
use crate::malformed::Layer;

/// Sent as zeros, not looked at on arrival.
pub(super) struct Reserved;

impl Part for Reserved {
    const LAYER: Layer = Layer::CongestionNotification;
    const LENGTH: usize = 16;

    fn read(_: &[u8]) -> Self {
        Self
    }

    fn write(&self, raw: &mut [u8]) {
        raw.fill(0);
    }
}
