//! The parsers of what other ranks and processes say that are no part of the API, for tests that give them damaged bytes.

use crate::engine::{Card, Letter, Reason};
use crate::rdma::{NicCard, handshake};
use crate::status::RankStatus;

/// A parser. What it reads it writes as bytes again; `None` is a refusal.
pub struct Parser {
    /// What it reads: the name of the folder with true inputs, too.
    pub name: &'static str,
    /// Reads, and writes what was read.
    pub read: fn(&[u8]) -> Option<Vec<u8>>,
}

/// All of them.
pub const PARSERS: [Parser; 6] = [
    Parser { name: "rank-status", read: |bytes| RankStatus::read(bytes).ok().map(|one| one.write()) },
    Parser {
        name: "queue-pairs",
        read: |bytes| handshake::read(bytes).ok().map(|one| handshake::write(&one).to_vec()),
    },
    Parser { name: "nic-card", read: |bytes| NicCard::read(bytes).map(|one| one.write()) },
    Parser { name: "rank-card", read: |bytes| Card::read(bytes).ok().map(|one| one.write()) },
    Parser { name: "departure", read: |bytes| Reason::read(bytes).ok().map(|one| one.write()) },
    Parser { name: "notice", read: |bytes| Letter::read(bytes).ok().map(|one| one.write()) },
];
