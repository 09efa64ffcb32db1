//! A bounded reorder buffer in front of the responder.
//!
//! Where a network spreads one connection over several paths, a packet that comes early is no sign of loss. It is kept
//! until those before it have come, and the responder sees all of them in order. Only one that is further ahead than the
//! buffer is deep makes the responder ask for the missing one; what is lost near the end of a transfer is found by the
//! requester's clock.

use railnet_core::Psn;

use super::{Gap, GoBackN, LossRecovery};

/// Keeps early packets, within limits; beyond them it is go-back-N.
#[derive(Clone, Debug)]
pub struct Reorder {
    window: u16,
    beyond: GoBackN,
}

impl Reorder {
    /// A buffer for packets that are up to `window` ahead.
    pub fn new(window: u16) -> Self {
        Self { window, beyond: GoBackN::default() }
    }
}

impl LossRecovery for Reorder {
    fn on_gap(&mut self, expected: Psn, arrived: Psn) -> Gap {
        if arrived.distance_from(expected) <= i32::from(self.window) {
            return Gap::Keep;
        }
        self.beyond.on_gap(expected, arrived)
    }

    #[inline]
    fn on_expected(&mut self) {
        self.beyond.on_expected();
    }

    fn on_not_ready(&mut self) {
        self.beyond.on_not_ready();
    }

    fn on_nak(&mut self, missing: Psn) -> Psn {
        self.beyond.on_nak(missing)
    }

    fn on_timeout(&mut self, unacknowledged: Psn) -> Psn {
        self.beyond.on_timeout(unacknowledged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_within_the_window_are_kept_and_the_first_beyond_it_asks() {
        let mut state = Reorder::new(4);
        let expected = Psn::new(0xff_fffe);
        assert_eq!(state.on_gap(expected, expected.plus(1)), Gap::Keep);
        assert_eq!(state.on_gap(expected, expected.plus(4)), Gap::Keep);
        assert_eq!(state.on_gap(expected, expected.plus(5)), Gap::Nak);
        assert_eq!(state.on_gap(expected, expected.plus(6)), Gap::Drop);
        assert_eq!(state.on_gap(expected, expected.plus(2)), Gap::Keep);
    }
}
