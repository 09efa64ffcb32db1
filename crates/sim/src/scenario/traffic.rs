//! `[[traffic]]`: what is sent.

use railnet_core::{Bytes, Span};
use serde::Deserialize;

use super::hosts::{HostSet, Hosts};
use super::names::HostName;
use crate::written::Written;

/// The kinds of traffic. What every table may say besides its own keys is added to each.
macro_rules! traffic {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$meta:meta])* $key:ident: $type:ty,)* })*) => {
        /// `[[traffic]]`.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
        pub enum Traffic {
            $($(#[$doc])* $kind {
                $($(#[$meta])* $key: $type,)*
                /// When it starts.
                #[serde(default = "at_once")]
                start: Written<Span>,
                /// Each flow starts up to so much later, at random.
                #[serde(default = "at_once")]
                jitter: Written<Span>,
                /// The priority its packets travel in; 0 by default.
                #[serde(default)]
                priority: Option<u8>,
                /// The DSCP that chooses it, instead.
                #[serde(default)]
                dscp: Option<u8>,
            },)*
        }

        impl Traffic {
            /// What every table may say.
            pub(crate) fn common(&self) -> Common {
                match *self {
                    $(Self::$kind { start, jitter, priority, dscp, .. } => {
                        Common { start: start.0, jitter: jitter.0, priority, dscp }
                    })*
                }
            }
        }
    };
}

/// What every table may say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub(crate) start: Span,
    pub(crate) jitter: Span,
    pub(crate) priority: Option<u8>,
    pub(crate) dscp: Option<u8>,
}

traffic! {
    /// Many hosts send to one.
    Incast {
        /// The senders, such as "0..15": both ends are meant.
        from: Written<Hosts>,
        /// The receiver.
        to: HostName,
        /// Bytes from each sender.
        bytes: Written<Bytes>,
    }
    /// Every host sends to one other, and receives from one other, at random.
    Permutation {
        /// Which hosts; all by default.
        #[serde(default)]
        hosts: Option<HostSet>,
        /// Bytes of each flow.
        bytes: Written<Bytes>,
    }
    /// Every host sends to every other.
    AllToAll {
        /// Which hosts; all by default.
        #[serde(default)]
        hosts: Option<HostSet>,
        /// Bytes of each flow.
        bytes: Written<Bytes>,
    }
    /// The traffic of a ring all-reduce: host i sends to i + 1, and a step waits for the one before it.
    Ring {
        /// Bytes that are reduced: each step moves the part of one host.
        bytes: Written<Bytes>,
        /// Hosts in the ring, in this order; all by default.
        #[serde(default)]
        hosts: Option<HostSet>,
    }
    /// One flow.
    Flow {
        /// The sender.
        from: HostName,
        /// The receiver.
        to: HostName,
        /// Its bytes.
        bytes: Written<Bytes>,
    }
    /// Flows that a file lists.
    List {
        /// The file.
        file: String,
    }
}

fn at_once() -> Written<Span> {
    Written(Span::ZERO)
}
