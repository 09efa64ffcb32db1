//! The beginning of a stream: the name of its connection, and a proof that it belongs to the job. No secret travels.
//!
//! ```text
//!   dialer ── magic, nonce, name, proof ──▶ acceptor      proof: HMAC over the acceptor's token, the nonce and the name
//! ```
//!
//! The acceptor need not be ready: the proof needs no challenge, because a token is of one process and one rendezvous, and a
//! nonce is accepted once. An eavesdropper learns neither secret nor keys, and a replayed greeting opens no stream.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::Token;
use crate::seal::{Seal, Seals};
use crate::secret::Secret;
use crate::transport::ConnectionName;

const MAGIC: [u8; 8] = *b"RAILTCP2";
const NONCE: std::ops::Range<usize> = 8..24;
const NAME: std::ops::Range<usize> = 24..40;
const PROOF: std::ops::Range<usize> = 40..72;
/// Bytes of a greeting.
pub(super) const LENGTH: usize = PROOF.end;

/// The timeout of a greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// The most unauthenticated streams at a time; beyond that, the oldest is closed.
pub(super) const UNAUTHENTICATED_MAX: usize = 256;

/// Makes a greeting for the process of this token, and the MACs of what follows it.
pub(super) fn write(
    secret: &Secret,
    token: &Token,
    name: &ConnectionName,
) -> io::Result<([u8; LENGTH], Seals)> {
    let nonce: [u8; 16] = crate::secret::random()?;
    let mut bytes = [0; LENGTH];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[NONCE].copy_from_slice(&nonce);
    bytes[NAME].copy_from_slice(&name.write());
    let proof = secret.code_of(b"railnet stream", &[token, &bytes[NONCE], &bytes[NAME]]);
    bytes[PROOF].copy_from_slice(&proof);
    let [send, receive] = seals(secret, token, &bytes);
    Ok((bytes, Seals { send, receive }))
}

/// The MACs of both directions, the dialer's first.
fn seals(secret: &Secret, token: &Token, greeting: &[u8; LENGTH]) -> [Seal; 2] {
    [&b"railnet stream forward"[..], b"railnet stream back   "]
        .map(|purpose| Seal::new(&secret.key_of(purpose, &[token, &greeting[NONCE], &greeting[NAME]])))
}

/// A stream whose greeting is incomplete.
#[derive(Debug)]
pub(super) struct Fresh {
    stream: TcpStream,
    bytes: Vec<u8>,
    since: Instant,
}

/// What became of a greeting.
pub(super) enum Greeted {
    /// It is incomplete.
    Waits(Fresh),
    /// It is right: the stream belongs to the job.
    Belongs(ConnectionName, TcpStream, Seals),
    /// It is wrong, or too late.
    Closed,
}

/// Checks greetings.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) secret: Secret,
    pub(super) token: Token,
    /// Nonces of streams that were accepted.
    nonces: BTreeSet<[u8; 16]>,
}

impl Acceptor {
    pub(super) fn new(secret: Secret, token: Token) -> Self {
        Self { secret, token, nonces: BTreeSet::new() }
    }

    /// Reads more of a greeting.
    pub(super) fn greet(&mut self, mut fresh: Fresh) -> Greeted {
        let mut buffer = [0; LENGTH];
        let missing = &mut buffer[..LENGTH - fresh.bytes.len()];
        match fresh.stream.read(missing) {
            Ok(0) => return Greeted::Closed,
            Ok(length) => fresh.bytes.extend_from_slice(&missing[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Greeted::Closed,
        }
        let is_ours = fresh.bytes.iter().zip(&MAGIC).all(|(found, expected)| found == expected);
        let Some(bytes) = fresh.bytes.first_chunk::<LENGTH>() else {
            return match is_ours && fresh.since.elapsed() < GREETING_TIMEOUT {
                true => Greeted::Waits(fresh),
                false => Greeted::Closed,
            };
        };
        let proof = bytes[PROOF].try_into().expect("as long as a proof");
        let parts: [&[u8]; 3] = [&self.token, &bytes[NONCE], &bytes[NAME]];
        let nonce = bytes[NONCE].try_into().expect("as long as a nonce");
        if !is_ours || !self.secret.is_code(&proof, b"railnet stream", &parts) || !self.nonces.insert(nonce) {
            return Greeted::Closed;
        }
        let name = ConnectionName::read(bytes[NAME].try_into().expect("as long as a name"));
        let [receive, send] = seals(&self.secret, &self.token, bytes);
        Greeted::Belongs(name, fresh.stream, Seals { send, receive })
    }
}

impl Fresh {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, bytes: Vec::new(), since: Instant::now() }
    }
}

impl ConnectionName {
    fn write(&self) -> [u8; NAME.end - NAME.start] {
        let mut bytes = [0; NAME.end - NAME.start];
        bytes[..8].copy_from_slice(&self.context.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.channel.to_le_bytes());
        bytes[14] = self.lane;
        bytes
    }

    fn read(bytes: &[u8; NAME.end - NAME.start]) -> Self {
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0, |value: u64, byte| value << 8 | u64::from(*byte))
        };
        Self {
            context: number(0..8),
            from: number(8..12) as u32,
            channel: number(12..14) as u16,
            lane: bytes[14],
        }
    }
}
