//! Internal parsers of what other ranks and processes send, for tests with damaged input.

use crate::engine::{Card, Envelope, Reason};
use crate::rdma::{NicCard, handshake};
use crate::status::RankStatus;

/// A parser. What it parses it writes as bytes again; `None` is a refusal.
pub struct Parser {
    /// Its name, which is that of the folder with valid inputs too.
    pub name: &'static str,
    /// Parses, and writes what was parsed.
    pub read: fn(&[u8]) -> Option<Vec<u8>>,
}

/// All parsers.
pub const PARSERS: [Parser; 6] = [
    Parser { name: "rank-status", read: |bytes| RankStatus::read(bytes).ok().map(|one| one.write()) },
    Parser {
        name: "queue-pairs",
        read: |bytes| handshake::read(bytes).ok().map(|one| handshake::write(&one).to_vec()),
    },
    Parser { name: "nic-card", read: |bytes| NicCard::read(bytes).map(|one| one.write()) },
    Parser { name: "rank-card", read: |bytes| Card::read(bytes).ok().map(|one| one.write()) },
    Parser { name: "departure", read: |bytes| Reason::read(bytes).ok().map(|one| one.write()) },
    Parser { name: "notice", read: |bytes| Envelope::read(bytes).ok().map(|one| one.write()) },
];
