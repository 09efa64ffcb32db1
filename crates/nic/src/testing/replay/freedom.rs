//! Where a replayed answer may differ from the recorded one, or the set-up had to be learned from the recording.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! freedoms {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $reason:literal;)*) => {
        /// Something that may differ without being wrong, or that was learned from the recording because nothing tells it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Freedom {
            $($(#[$doc])* $name,)*
        }

        impl Freedom {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// In few words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Why it is one.
            pub const fn reason(self) -> &'static str {
                match self {
                    $(Self::$name => $reason,)*
                }
            }
        }
    };
}

freedoms! {
    /// Counted for each answer.
    Identification, "IPv4 ID",
        "an IPv4 ID may be anything; the header checksum and the ICRC follow from it";
    /// Counted for each answer.
    EthernetAddresses, "Ethernet addresses",
        "whom a frame goes to on its link is the driver's business, not the NIC's";
    /// Counted for each conversation.
    Path, "path learned",
        "Linux takes the hop limit from its routes, and not every program tells the traffic class: the first answer does";
    /// Counted for each value that was learned.
    QueuePair, "queue pair learned",
        "nothing tells the peer's number, the first PSN, the MTU, the RNR timer or the queue key: the packets do";
    /// Counted for each region.
    Region, "region learned",
        "the program does not print what it registered: what requests reached under a key was registered";
    /// Counted for each READ or atomic.
    Memory, "memory learned",
        "what the program kept in bytes that no recorded request wrote is known from the answer only";
    /// Counted for each receive.
    Receives, "receive posted when needed",
        "how many receives were waiting is not told: one was there whenever a message was taken";
    /// Counted for each conversation.
    PostingTime, "receives posted late",
        "the program posted its receives after a delay: the first answer that is no RNR NAK shows when";
}

impl fmt::Display for Freedom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// How often each freedom was used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Freedoms(BTreeMap<Freedom, u64>);

impl Freedoms {
    /// How often this one was used.
    pub fn count(&self, freedom: Freedom) -> u64 {
        self.0.get(&freedom).copied().unwrap_or(0)
    }

    /// Those that were used, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Freedom, u64)> + '_ {
        self.0.iter().map(|(&freedom, &count)| (freedom, count))
    }

    /// Adds the uses that another one counted.
    pub fn add_all(&mut self, other: &Self) {
        for (freedom, count) in other.iter() {
            *self.0.entry(freedom).or_default() += count;
        }
    }

    pub(super) fn add(&mut self, freedom: Freedom) {
        *self.0.entry(freedom).or_default() += 1;
    }
}

impl fmt::Display for Freedoms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (freedom, count)) in self.iter().enumerate() {
            write!(f, "{}{freedom} {count}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
