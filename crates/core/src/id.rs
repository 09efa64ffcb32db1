//! Ids as newtypes, so that a rank is never passed where a queue pair is meant.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// One process of a communicator.
    Rank, "rank"
);
id!(
    /// A component of a run that has a clock, a random stream and a digest of its own: a NIC, a switch, a link, a GPU.
    Component, "component"
);
id!(
    /// A port of a NIC or a switch: where a link is plugged in.
    Port, "port"
);

/// The number of a queue pair on its NIC: 24 bits on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueuePairNumber(u32);

impl QueuePairNumber {
    /// The bits that exist on the wire.
    pub const MASK: u32 = 0x00ff_ffff;

    /// The number modulo 2^24.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The 24 bits as a number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for QueuePairNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for QueuePairNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#x}", self.0)
    }
}

/// What a work request is about, in its owner's words: the NIC never looks inside, its packets inherit it.
///
/// The collective layer packs (collective, chunk, step) into it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Label(pub u64);
