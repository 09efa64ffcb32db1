//! The conduits that a program can choose. [`crate::transport`] has what carries their slices.

use std::fmt;
use std::str::FromStr;

use railnet_core::parse::{ParseError, unknown_name};

/// What carries data between two ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Conduit {
    /// Memory that both processes have mapped: ranks of one host.
    SharedMemory,
    /// TCP.
    Tcp,
    /// RoCEv2 over UDP, by the NIC of `railnet_nic`.
    Roce,
}

impl Conduit {
    /// All of them, the fastest first.
    pub const ALL: [Self; 3] = [Self::SharedMemory, Self::Tcp, Self::Roce];

    /// The name that `RAILNET_CONDUIT` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
            Self::Roce => "roce",
        }
    }
}

impl fmt::Display for Conduit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Conduit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let found = Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(text.trim()));
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            unknown_name("conduit", text, &names, &names)
        })
    }
}
