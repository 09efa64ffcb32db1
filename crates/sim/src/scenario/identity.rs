//! What a person decides about the connections of a collective that nobody decides otherwise: in which order ranks
//! follow each other, and what names, keys and addresses connections have.

use railnet_core::Bytes;
use serde::Deserialize;

use super::ScenarioError;

/// Numbers below are reserved or used by NICs themselves.
const QUEUE_PAIR_LEAST: u32 = 0x11;
/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_END: u32 = 1 << 24;
/// The upper 24 bits of a key count regions, from 1 on.
const KEY_LEAST: u32 = 1 << 8;
/// Addresses of user programs have 47 bits.
const ADDRESS_END: u64 = 1 << 47;
/// The longest slot: eight of them, with the flags of LL, fit into what a connection has.
pub(super) const SLOT_MAX: Bytes = Bytes(256 << 20);

/// `order = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// As NCCL's search finds rings and trees on the servers.
    #[default]
    Search,
    /// Rank after rank: one ring, one chain in each server, each by the NIC beside its GPU.
    Ascending,
}

/// `[[collective.connection]]`: what a connection of the first channel is called. Of each two values, the first is the
/// sender's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSection {
    /// The rank that sends, by its place in the group.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// The numbers of the queue pairs.
    #[serde(default)]
    pub queue_pairs: Option<[u32; 2]>,
    /// The numbers of the first packets.
    #[serde(default)]
    pub psns: Option<[u32; 2]>,
    /// The keys: of the memory in which the sender is told where there is room, and of the receiver's slots.
    #[serde(default)]
    pub keys: Option<[u32; 2]>,
    /// Where these memories begin.
    #[serde(default)]
    pub addresses: Option<[u64; 2]>,
}

impl ConnectionSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        if self.from == self.to {
            return wrong("to", format!("rank {} is not connected to itself: name another one", self.to));
        }
        let numbers = [
            ("queue_pairs", self.queue_pairs, QUEUE_PAIR_LEAST..NUMBER_END),
            ("psns", self.psns, 0..NUMBER_END),
            ("keys", self.keys, KEY_LEAST..u32::MAX),
        ];
        for (key, pair, range) in numbers {
            if let Some(number) = pair.into_iter().flatten().find(|number| !range.contains(number)) {
                let (first, last) = (range.start, range.end - 1);
                return wrong(key, format!("{number} is not among {first:#x} to {last:#x}"));
            }
        }
        if let Some(address) = self.addresses.into_iter().flatten().find(|address| *address >= ADDRESS_END) {
            return wrong("addresses", format!("{address:#x} is too large: addresses have 47 bits"));
        }
        Ok(())
    }
}
