//! The messages of ranks at the rendezvous and on the control channel.
//!
//! Both ends of a connection begin with a preamble: eight letters and the protocol version. Frames follow: the length of the
//! rest (four bytes), a kind (one byte), the fields. Numbers are little-endian; texts and blobs are preceded by their length.
//! Nothing is read past a frame, no length is believed beyond its limit, and malformed input is an error that says why. The
//! preamble, the frame and the first two fields of [`Message::Hello`] are the same in every version, so that another version is
//! told from garbage and refused in words.
//!
//! ```
//! use railnet_live::message::{Decoder, Message, preamble};
//!
//! let mut bytes = preamble().to_vec();
//! Message::Ping.write(&mut bytes);
//! let mut decoder = Decoder::new(1024);
//! decoder.push(&bytes);
//! assert_eq!(decoder.next()?, Some(Message::Ping));
//! assert_eq!(decoder.next()?, None);
//! # Ok::<(), railnet_live::message::Malformed>(())
//! ```

pub(crate) mod fields;

use crate::seal::Seal;
use fields::{Reader, put_blob, put_ranks, put_text};

/// The protocol version. It covers the cards that ranks exchange, the layout of shared memory, and the headers of streams.
pub const VERSION: u16 = 9;
/// The most bytes that a rank contributes to the rendezvous or an exchange, or stores under a key.
pub const BLOB_MAX: usize = 64 * 1024;
/// The most bytes of a notice.
pub const NOTICE_MAX: usize = 4 * 1024;
/// The most bytes of a name: a host, a group, a label, a key.
pub const NAME_MAX: usize = 255;
/// The most bytes of a frame that a rank sends to rank 0.
pub const REQUEST_MAX: usize = BLOB_MAX + 1024;
/// The most bytes of a frame that rank 0 sends: all contributions.
pub const ANSWER_MAX: usize = 64 * 1024 * 1024;

const MAGIC: [u8; 8] = *b"RAILNET\0";
const PREAMBLE_SIZE: usize = MAGIC.len() + 2;
const LENGTH_SIZE: usize = 4;

/// A number that is used once.
pub type Nonce = [u8; 16];
/// Proof of knowing the secret.
pub type Proof = [u8; 32];

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Message {
    /// A rank introduces itself.
    Hello(Hello),
    /// Rank 0 proves that it knows the secret, and challenges the rank.
    Challenge {
        /// The challenge for the rank.
        nonce: Nonce,
        /// Rank 0's proof.
        proof: Proof,
    },
    /// A rank proves that it knows the secret, and hands over its blob.
    Join {
        /// The rank's proof.
        proof: Proof,
        /// Its contribution to the rendezvous.
        blob: Vec<u8>,
    },
    /// All are there: the members, in the order of ranks.
    Welcome(Vec<Member>),
    /// The rendezvous has failed, or this rank is refused.
    Refused(Trouble),
    /// A keepalive.
    Ping,
    /// A contribution to an exchange of all ranks.
    Gather {
        /// The number of the exchange: every rank counts its own.
        sequence: u32,
        /// The timeout in milliseconds.
        limit_ms: u32,
        /// Its label: the same on every rank.
        label: String,
        /// The contribution.
        blob: Vec<u8>,
    },
    /// All contributions, in the order of ranks.
    Gathered {
        /// The number of the exchange.
        sequence: u32,
        /// The contributions.
        blobs: Vec<Vec<u8>>,
    },
    /// An exchange that failed.
    GatherFailed {
        /// Its number.
        sequence: u32,
        /// The reason.
        trouble: Trouble,
    },
    /// Stores a value under a key, for all.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
    },
    /// Asks for a value, and waits until it is stored.
    Get {
        /// The number of the request.
        ticket: u32,
        /// The timeout in milliseconds, after which there is no value.
        limit_ms: u32,
        /// The key.
        key: String,
    },
    /// The response to a request.
    Got {
        /// The number of the request.
        ticket: u32,
        /// The value, if it was stored in time.
        value: Option<Vec<u8>>,
    },
    /// A notice for all ranks.
    Notice {
        /// The rank that it is about.
        from: u32,
        /// Its kind, as [`crate::control::NoticeKind`] numbers it.
        kind: u8,
        /// Its body.
        body: Vec<u8>,
    },
    /// A rank has finished and will close its connection.
    Leave,
}

/// The introduction of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its rank.
    pub rank: u32,
    /// The number of ranks that it expects.
    pub world_size: u32,
    /// A hash of its job.
    pub job: u64,
    /// The challenge for rank 0.
    pub nonce: Nonce,
    /// Its timeout in milliseconds: the shortest decides when missing ranks are named.
    pub limit_ms: u32,
    /// Its pid.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
    /// Its host group.
    pub group: String,
}

/// A rank as all know it after the rendezvous.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its pid.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
    /// Its host group: members of different groups never use shared memory.
    pub group: String,
    /// Its contribution.
    pub blob: Vec<u8>,
}

/// What failed in a rendezvous or an exchange: the same on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// The kind of failure.
    pub kind: TroubleKind,
    /// The ranks it is about.
    pub ranks: Vec<u32>,
    /// The description.
    pub text: String,
}

/// Kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TroubleKind {
    /// Ranks did not arrive in time.
    Missing,
    /// Two processes claim one rank.
    Twice,
    /// A rank expects another number of ranks, or its number is out of range.
    WorldSize,
    /// A rank has another protocol version.
    Version,
    /// The secrets differ.
    Secret,
    /// It belongs to another job.
    Job,
    /// A rank is gone.
    Gone,
    /// Ranks call for different exchanges.
    Mismatch,
    /// A contribution is too long.
    TooMuch,
    /// A rank lacks something of its own host: descriptors, memory, a thread.
    Local,
}

impl TroubleKind {
    const ALL: [Self; 10] = [
        Self::Missing,
        Self::Twice,
        Self::WorldSize,
        Self::Version,
        Self::Secret,
        Self::Job,
        Self::Gone,
        Self::Mismatch,
        Self::TooMuch,
        Self::Local,
    ];
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The preamble is wrong.
    #[error("it does not begin as a rank of Railnet does")]
    Magic,
    /// Another protocol version.
    #[error("it speaks version {0} of the protocol, this is version {VERSION}")]
    Version(u16),
    /// A frame of length 0, or too long.
    #[error("a frame of {0} bytes")]
    Length(usize),
    /// An unknown kind.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// A frame whose MAC is wrong.
    #[error("a message that was forged or changed on its way")]
    Code,
    /// A field that does not fit, or bytes that are left over.
    #[error("a {0} that is cut off, too long or not what it should be")]
    Field(&'static str),
}

/// The preamble of each end.
pub fn preamble() -> [u8; PREAMBLE_SIZE] {
    preamble_of(VERSION)
}

/// The preamble of another version.
pub fn preamble_of(version: u16) -> [u8; PREAMBLE_SIZE] {
    let mut bytes = [0; PREAMBLE_SIZE];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(&version.to_le_bytes());
    bytes
}

impl Message {
    /// Appends the message as a frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; LENGTH_SIZE]);
        out.push(self.kind());
        self.write_fields(out);
        let length = (out.len() - start - LENGTH_SIZE) as u32;
        out[start..start + LENGTH_SIZE].copy_from_slice(&length.to_le_bytes());
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Challenge { .. } => 2,
            Self::Join { .. } => 3,
            Self::Welcome(_) => 4,
            Self::Refused(_) => 5,
            Self::Ping => 6,
            Self::Gather { .. } => 7,
            Self::Gathered { .. } => 8,
            Self::GatherFailed { .. } => 9,
            Self::Put { .. } => 10,
            Self::Get { .. } => 11,
            Self::Got { .. } => 12,
            Self::Notice { .. } => 13,
            Self::Leave => 14,
        }
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.extend(hello.rank.to_le_bytes());
                out.extend(hello.world_size.to_le_bytes());
                out.extend(hello.job.to_le_bytes());
                out.extend(hello.nonce);
                out.extend(hello.limit_ms.to_le_bytes());
                out.extend(hello.pid.to_le_bytes());
                put_text(out, &hello.host);
                put_text(out, &hello.group);
            }
            Self::Challenge { nonce, proof } => {
                out.extend(nonce);
                out.extend(proof);
            }
            Self::Join { proof, blob } => {
                out.extend(proof);
                put_blob(out, blob);
            }
            Self::Welcome(members) => {
                out.extend((members.len() as u32).to_le_bytes());
                for member in members {
                    out.extend(member.pid.to_le_bytes());
                    put_text(out, &member.host);
                    put_text(out, &member.group);
                    put_blob(out, &member.blob);
                }
            }
            Self::Refused(trouble) => put_trouble(out, trouble),
            Self::Ping | Self::Leave => {}
            Self::Gather { sequence, limit_ms, label, blob } => {
                out.extend(sequence.to_le_bytes());
                out.extend(limit_ms.to_le_bytes());
                put_text(out, label);
                put_blob(out, blob);
            }
            Self::Gathered { sequence, blobs } => {
                out.extend(sequence.to_le_bytes());
                out.extend((blobs.len() as u32).to_le_bytes());
                for blob in blobs {
                    put_blob(out, blob);
                }
            }
            Self::GatherFailed { sequence, trouble } => {
                out.extend(sequence.to_le_bytes());
                put_trouble(out, trouble);
            }
            Self::Put { key, value } => {
                put_text(out, key);
                put_blob(out, value);
            }
            Self::Get { ticket, limit_ms, key } => {
                out.extend(ticket.to_le_bytes());
                out.extend(limit_ms.to_le_bytes());
                put_text(out, key);
            }
            Self::Got { ticket, value } => {
                out.extend(ticket.to_le_bytes());
                out.push(u8::from(value.is_some()));
                put_blob(out, value.as_deref().unwrap_or_default());
            }
            Self::Notice { from, kind, body } => {
                out.extend(from.to_le_bytes());
                out.push(*kind);
                put_blob(out, body);
            }
        }
    }

    /// Parses a frame after its length.
    pub fn read(frame: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(frame);
        let kind = reader.byte("kind")?;
        let message = match kind {
            1 => Self::Hello(Hello {
                rank: reader.number("rank")?,
                world_size: reader.number("world size")?,
                job: reader.long("job")?,
                nonce: reader.array("nonce")?,
                limit_ms: reader.number("limit")?,
                pid: reader.number("process")?,
                host: reader.text("host", NAME_MAX)?,
                group: reader.text("group", NAME_MAX)?,
            }),
            2 => Self::Challenge { nonce: reader.array("nonce")?, proof: reader.array("proof")? },
            3 => Self::Join { proof: reader.array("proof")?, blob: reader.blob("blob", BLOB_MAX)? },
            4 => Self::Welcome(reader.list("members", |reader| {
                Ok(Member {
                    pid: reader.number("process")?,
                    host: reader.text("host", NAME_MAX)?,
                    group: reader.text("group", NAME_MAX)?,
                    blob: reader.blob("blob", BLOB_MAX)?,
                })
            })?),
            5 => Self::Refused(read_trouble(&mut reader)?),
            6 => Self::Ping,
            7 => Self::Gather {
                sequence: reader.number("sequence")?,
                limit_ms: reader.number("limit")?,
                label: reader.text("label", NAME_MAX)?,
                blob: reader.blob("blob", BLOB_MAX)?,
            },
            8 => Self::Gathered {
                sequence: reader.number("sequence")?,
                blobs: reader.list("blobs", |reader| reader.blob("blob", BLOB_MAX))?,
            },
            9 => Self::GatherFailed {
                sequence: reader.number("sequence")?,
                trouble: read_trouble(&mut reader)?,
            },
            10 => Self::Put { key: reader.text("key", NAME_MAX)?, value: reader.blob("value", BLOB_MAX)? },
            11 => Self::Get {
                ticket: reader.number("ticket")?,
                limit_ms: reader.number("limit")?,
                key: reader.text("key", NAME_MAX)?,
            },
            12 => {
                let ticket = reader.number("ticket")?;
                let is_there = match reader.byte("flag")? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed::Field("flag")),
                };
                let value = reader.blob("value", if is_there { BLOB_MAX } else { 0 })?;
                Self::Got { ticket, value: is_there.then_some(value) }
            }
            13 => Self::Notice {
                from: reader.number("rank")?,
                kind: reader.byte("kind")?,
                body: reader.blob("notice", NOTICE_MAX)?,
            },
            14 => Self::Leave,
            other => return Err(Malformed::Kind(other)),
        };
        reader.finish()?;
        Ok(message)
    }
}

fn put_trouble(out: &mut Vec<u8>, trouble: &Trouble) {
    // The numbers are indices of the list, which only grows at its end.
    let place = TroubleKind::ALL.iter().position(|kind| *kind == trouble.kind);
    out.push(place.expect("every kind is in the list") as u8);
    put_ranks(out, &trouble.ranks);
    // The text is truncated rather than refused: the ranks are complete.
    let end = (0..=trouble.text.len().min(NOTICE_MAX)).rev().find(|at| trouble.text.is_char_boundary(*at));
    put_text(out, &trouble.text[..end.unwrap_or(0)]);
}

fn read_trouble(reader: &mut Reader<'_>) -> Result<Trouble, Malformed> {
    let place = reader.byte("kind of trouble")?;
    let kind = TroubleKind::ALL.get(usize::from(place)).ok_or(Malformed::Field("kind of trouble"))?;
    Ok(Trouble {
        kind: *kind,
        ranks: reader.list("ranks", |reader| reader.number("rank"))?,
        text: reader.text("text", NOTICE_MAX)?,
    })
}

/// Parses messages from bytes as they arrive.
pub struct Decoder {
    bytes: Vec<u8>,
    /// Bytes that were parsed.
    at: usize,
    has_begun: bool,
    limit: usize,
    seal: Option<Seal>,
}

impl Decoder {
    /// For frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), at: 0, has_begun: false, limit, seal: None }
    }

    /// Sets another limit from here on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// From the next frame on, each is followed by a MAC.
    pub(crate) fn expect_codes(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    /// Appends bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 && self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        } else if self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of an incomplete message.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next message, if it is complete.
    #[expect(clippy::should_implement_trait, reason = "it fails, and goes on after `push`: no iterator")]
    pub fn next(&mut self) -> Result<Option<Message>, Malformed> {
        if !self.has_begun && !self.begin()? {
            return Ok(None);
        }
        let rest = &self.bytes[self.at..];
        let Some(length) = rest.first_chunk::<LENGTH_SIZE>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > self.limit {
            return Err(Malformed::Length(length));
        }
        let code = if self.seal.is_some() { Seal::LENGTH } else { 0 };
        let Some(frame) = rest.get(..LENGTH_SIZE + length + code) else {
            return Ok(None);
        };
        let (covered, code) = frame.split_at(LENGTH_SIZE + length);
        if self.seal.as_mut().is_some_and(|seal| !seal.is_code(code, &[covered])) {
            return Err(Malformed::Code);
        }
        let message = Message::read(&covered[LENGTH_SIZE..])?;
        self.at += frame.len();
        Ok(Some(message))
    }

    /// Parses the preamble. A wrong one is refused at its first wrong byte.
    fn begin(&mut self) -> Result<bool, Malformed> {
        let seen = &self.bytes[..self.bytes.len().min(MAGIC.len())];
        if *seen != MAGIC[..seen.len()] {
            return Err(Malformed::Magic);
        }
        let Some(preamble) = self.bytes.first_chunk::<PREAMBLE_SIZE>() else {
            return Ok(false);
        };
        let version = u16::from_le_bytes([preamble[MAGIC.len()], preamble[MAGIC.len() + 1]]);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        self.at = PREAMBLE_SIZE;
        self.has_begun = true;
        Ok(true)
    }

    /// The peer of another version: the first two fields of its [`Hello`], if they have arrived.
    pub fn foreign_rank(&self) -> Option<(u32, u32)> {
        let hello = self.bytes.get(PREAMBLE_SIZE + LENGTH_SIZE + 1..)?;
        let number = |at: usize| hello.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        Some((number(0)?, number(4)?))
    }
}
