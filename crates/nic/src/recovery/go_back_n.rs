//! Go-back-N, as the InfiniBand specification has it: a responder takes packets in order only, asks once for the
//! missing one, and the requester starts again from there.

use railnet_core::Psn;

use super::{Gap, LossRecovery};

/// IBTA 9.7.5.2: one NAK for each gap. Whatever else comes before the missing packet is dropped without a word.
#[derive(Clone, Debug, Default)]
pub struct GoBackN {
    asked: bool,
}

impl LossRecovery for GoBackN {
    fn on_gap(&mut self, _expected: Psn, _arrived: Psn) -> Gap {
        if std::mem::replace(&mut self.asked, true) { Gap::Drop } else { Gap::Nak }
    }

    #[inline]
    fn on_expected(&mut self) {
        self.asked = false;
    }

    fn on_not_ready(&mut self) {
        // The receiver-not-ready NAK already tells where to start again.
        self.asked = true;
    }

    fn on_nak(&mut self, missing: Psn) -> Psn {
        missing
    }

    fn on_timeout(&mut self, unacknowledged: Psn) -> Psn {
        unacknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nak_for_each_gap() {
        let mut state = GoBackN::default();
        let (missing, next) = (Psn::new(5), Psn::new(6));
        assert_eq!(state.on_gap(missing, next), Gap::Nak);
        assert_eq!(state.on_gap(missing, next.plus(1)), Gap::Drop);
        state.on_expected();
        assert_eq!(state.on_gap(next, next.plus(2)), Gap::Nak);
    }
}
