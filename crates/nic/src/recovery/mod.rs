//! Loss recovery: what a responder does about a gap and where a requester starts again. One trait, one file each.

mod go_back_n;
mod reorder;
mod selective_repeat;

use railnet_core::{Psn, Span};

pub use go_back_n::GoBackN;
pub use reorder::Reorder;
pub use selective_repeat::SelectiveRepeat;

pub(crate) use selective_repeat::{Scoreboard, Serial};

/// What a responder does with a request that is ahead of the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    /// Drop it and ask for the expected one.
    Nak,
    /// Drop it silently.
    Drop,
    /// Keep it until those before it have come.
    Keep,
}

/// A loss recovery scheme; one state serves both roles of a queue pair.
pub trait LossRecovery {
    /// Responder: `arrived` is ahead of `expected`.
    fn on_gap(&mut self, expected: Psn, arrived: Psn) -> Gap;

    /// Responder: the expected packet came.
    fn on_expected(&mut self);

    /// Responder: the expected packet came and could not be taken for lack of a receive.
    fn on_not_ready(&mut self);

    /// Requester: the responder misses `missing`. Returns where to start again.
    fn on_nak(&mut self, missing: Psn) -> Psn;

    /// Requester: nothing came in time and `unacknowledged` is the oldest in doubt. Returns where to start again.
    fn on_timeout(&mut self, unacknowledged: Psn) -> Psn;
}

/// Which scheme.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RecoveryKind {
    /// Everything from the missing packet on is sent again.
    GoBackN,
    /// Packets that come early are kept, for networks that spread a connection over several paths: so many packets at
    /// most. One that is further ahead shows a loss, and then everything from there on is sent again.
    Reorder {
        /// How many packets ahead.
        window: u16,
    },
    /// Packets that come early are kept and told of, and only those that are missing are sent again. Both ends must be
    /// set to it: the answers carry an extension header that only Railnet reads.
    SelectiveRepeat {
        /// How many packets ahead are kept; the requester has no more in flight. It should cover what the path holds.
        window: u16,
        /// How much longer one way through the network may take than another: a packet is lost when one that was sent
        /// after it has been acknowledged for so long. Zero where a connection keeps to one path.
        reordering: Span,
    },
}

impl RecoveryKind {
    /// How much longer one way may take than another, where that matters.
    pub(crate) fn reordering(self) -> Span {
        match self {
            Self::SelectiveRepeat { reordering, .. } => reordering,
            _ => Span::ZERO,
        }
    }
}

/// The state of one queue pair's scheme.
#[derive(Clone, Debug)]
pub(crate) enum Recovery {
    GoBackN(GoBackN),
    Reorder(Reorder),
    SelectiveRepeat(SelectiveRepeat),
}

impl Recovery {
    pub(crate) fn new(kind: RecoveryKind) -> Self {
        match kind {
            RecoveryKind::GoBackN => Self::GoBackN(GoBackN::default()),
            RecoveryKind::Reorder { window } => Self::Reorder(Reorder::new(window)),
            RecoveryKind::SelectiveRepeat { window, .. } => {
                Self::SelectiveRepeat(SelectiveRepeat::new(window))
            }
        }
    }

    /// Whether the answers tell of early packets, and missing ones alone are sent again.
    #[inline]
    pub(crate) fn is_selective(&self) -> bool {
        matches!(self, Self::SelectiveRepeat(_))
    }
}

impl LossRecovery for Recovery {
    fn on_gap(&mut self, expected: Psn, arrived: Psn) -> Gap {
        match self {
            Self::GoBackN(state) => state.on_gap(expected, arrived),
            Self::Reorder(state) => state.on_gap(expected, arrived),
            Self::SelectiveRepeat(state) => state.on_gap(expected, arrived),
        }
    }

    #[inline]
    fn on_expected(&mut self) {
        match self {
            Self::GoBackN(state) => state.on_expected(),
            Self::Reorder(state) => state.on_expected(),
            Self::SelectiveRepeat(state) => state.on_expected(),
        }
    }

    fn on_not_ready(&mut self) {
        match self {
            Self::GoBackN(state) => state.on_not_ready(),
            Self::Reorder(state) => state.on_not_ready(),
            Self::SelectiveRepeat(state) => state.on_not_ready(),
        }
    }

    fn on_nak(&mut self, missing: Psn) -> Psn {
        match self {
            Self::GoBackN(state) => state.on_nak(missing),
            Self::Reorder(state) => state.on_nak(missing),
            Self::SelectiveRepeat(state) => state.on_nak(missing),
        }
    }

    fn on_timeout(&mut self, unacknowledged: Psn) -> Psn {
        match self {
            Self::GoBackN(state) => state.on_timeout(unacknowledged),
            Self::Reorder(state) => state.on_timeout(unacknowledged),
            Self::SelectiveRepeat(state) => state.on_timeout(unacknowledged),
        }
    }
}
