//! A conduit over a NIC: NCCL's network protocol (NCCL 2.30 transport/net_ib), sans I/O, once for both worlds.
//!
//! ```text
//!   sender                                                        receiver
//!     │ ring of clear-to-sends  ◀────────── WRITE {where, how much, of which operation} ── expect, emptied: a slot
//!   fill ── poll finds it ──▶ WRITE with immediate, over one or more queue pairs ────────▶ receives used up
//!     │ ◀── completions: freed                                      completions, counted: arrived
//! ```
//!
//! The receiver posts receives and writes a clear-to-send into the sender's control memory for every free slot that its
//! operations will need. The sender answers each with the data. Which slice a completion belongs to is in the name of
//! the work request; a slice is there when all of its parts are, whatever the order between queue pairs.
//!
//! Each half is driven by calls: [`Sender::fill`] when a slot is filled, [`Sender::poll`] when control memory was
//! written, [`Receiver::expect`] and [`Receiver::emptied`] as the machine says, and `completed` for each completion whose
//! `work >> 32` is the half's token.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use railnet_core::event::Sink;
use railnet_core::{Bytes, Psn, QueuePairNumber};
use railnet_nic::memory::Memory;
use railnet_nic::{
    Access, CompletionQueue, Connection, Context, Mtu, Nic, Path, PostError, ProtectionDomain,
    QueuePairConfig, Remote, Service, VerbsError,
};
use smallvec::SmallVec;
use thiserror::Error;

pub use receiver::Receiver;
pub use sender::{Fill, Sender};

use crate::machine::Mark;

/// Clear-to-sends that the ring holds. Never more are under way than a connection has slots.
pub const RING: u64 = 16;
/// Bytes of a clear-to-send.
pub const ELEMENT: u64 = 64;

/// How a connection uses queue pairs. The values are NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetConfig {
    /// Queue pairs of a connection: `NCCL_IB_QPS_PER_CONNECTION`.
    pub queue_pairs: u32,
    /// Each slice is split over all queue pairs; otherwise they take turns: `NCCL_IB_SPLIT_DATA_ON_QPS`.
    pub split: bool,
    /// More than this is sent as a WRITE, followed by an empty WRITE with immediate: `NCCL_IB_AR_THRESHOLD`, where the
    /// network's packets may overtake each other.
    pub apart_above: Option<Bytes>,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// Code of the acknowledgement timeout: `NCCL_IB_TIMEOUT`.
    pub timeout: u8,
    /// Retries without an answer: `NCCL_IB_RETRY_CNT`.
    pub retry_count: u8,
    /// The first sequence number of this end.
    pub psn: Psn,
    /// The number of the first queue pair, where it must be a certain one.
    pub number: Option<QueuePairNumber>,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            queue_pairs: 1,
            split: false,
            apart_above: None,
            mtu: Mtu::Mtu4096,
            timeout: 20,
            retry_count: 7,
            psn: Psn::new(0),
            number: None,
        }
    }
}

/// What the other end has to know to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handle {
    /// The queue pairs, in order.
    pub queue_pairs: SmallVec<[QueuePairNumber; 2]>,
    /// Their first sequence number.
    pub psn: Psn,
    /// Where clear-to-sends are written to: a sender's.
    pub ring: Option<Remote>,
}

/// Why a conduit could not be made or used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NetError {
    /// A queue pair could not be made or connected.
    #[error("cannot connect: {0}")]
    Verbs(#[from] VerbsError),
    /// A work request was refused.
    #[error("cannot post: {0}")]
    Post(#[from] PostError),
    /// A work request failed.
    #[error("{status} ({}) on queue pair {queue_pair}", status.verbs_name())]
    Status {
        /// The status of the completion.
        status: railnet_nic::Status,
        /// The queue pair it completed on.
        queue_pair: QueuePairNumber,
    },
    /// A clear-to-send that no receiver writes.
    #[error("a slice of {length} bytes was asked for with room for {room}")]
    NoRoom {
        /// Of the slice.
        length: u32,
        /// What there is for it.
        room: u64,
    },
    /// A completion that does not fit what was asked for: no rank of the job sent it.
    #[error("{found} arrived on queue pair {queue_pair} in place of {expected}")]
    Unexpected {
        /// The queue pair it came on.
        queue_pair: QueuePairNumber,
        /// What it was.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// The ends were made differently.
    #[error("one end has {here} queue pairs, the other {there}: set them alike")]
    QueuePairsDiffer {
        /// Of this end.
        here: usize,
        /// Of the other.
        there: usize,
    },
    /// The other end is no sender, or sent no place for clear-to-sends.
    #[error("the other end has no ring for clear-to-sends: a receiver connects to a sender")]
    NoRing,
}

/// The queue pairs of one end.
#[derive(Clone, Debug)]
struct QueuePairs {
    numbers: SmallVec<[QueuePairNumber; 2]>,
    config: NetConfig,
    token: u32,
}

impl QueuePairs {
    fn new(
        nic: &mut Nic,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        config: NetConfig,
        token: u32,
    ) -> Result<Self, NetError> {
        assert!(config.queue_pairs > 0, "a connection needs a queue pair");
        let mut numbers = SmallVec::new();
        for index in 0..config.queue_pairs {
            let number = config.number.filter(|_| index == 0);
            let config =
                QueuePairConfig { number, ..QueuePairConfig::new(Service::ReliableConnection, queue) };
            numbers.push(nic.create_qp(domain, &config)?);
        }
        Ok(Self { numbers, config, token })
    }

    fn connect<M: Memory, S: Sink>(
        &self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        path: Path,
        peer: &Handle,
    ) -> Result<(), NetError> {
        let (here, there) = (self.numbers.len(), peer.queue_pairs.len());
        if here != there {
            return Err(NetError::QueuePairsDiffer { here, there });
        }
        for (own, other) in self.numbers.iter().zip(&peer.queue_pairs) {
            // NCCL 2.30 transport/net_ib: these attributes, and nothing is read.
            let connection = Connection {
                path,
                destination: *other,
                mtu: self.config.mtu,
                send_psn: self.config.psn,
                receive_psn: peer.psn,
                access: Access::REMOTE_WRITE,
                reads: 1,
                min_rnr_timer: 12,
                timeout: self.config.timeout,
                retry_count: self.config.retry_count,
                rnr_retry: 7,
            };
            for change in connection.transitions() {
                nic.modify_qp(cx, *own, &change)?;
            }
        }
        Ok(())
    }

    fn handle(&self, ring: Option<Remote>) -> Handle {
        Handle { queue_pairs: self.numbers.clone(), psn: self.config.psn, ring }
    }

    /// The queue pairs over which a request goes.
    fn of(&self, request: u64) -> &[QueuePairNumber] {
        if self.config.split {
            &self.numbers
        } else {
            let index = (request % self.numbers.len() as u64) as usize;
            &self.numbers[index..=index]
        }
    }

    /// Bytes of the part of a slice that goes over this queue pair, of so many over which it goes.
    fn part(&self, request: u64, queue_pair: QueuePairNumber, length: u32) -> Option<u32> {
        let queue_pairs = self.of(request);
        let index = queue_pairs.iter().position(|number| *number == queue_pair)? as u32;
        let part = part_of(length, queue_pairs.len());
        Some(length.saturating_sub(part * index).min(part))
    }

    /// The name of a work request.
    fn work(&self, request: u64) -> u64 {
        u64::from(self.token) << 32 | request & 0xffff_ffff
    }
}

/// Parts of a slice on several queue pairs are whole multiples of this: the lines of LL128 stay whole.
const SPLIT_GRAIN: u32 = 128;

/// Bytes of a part of a slice that goes over so many queue pairs, but for the last.
fn part_of(length: u32, queue_pairs: usize) -> u32 {
    length.div_ceil(queue_pairs as u32).next_multiple_of(SPLIT_GRAIN)
}

/// Requests under way, and how many parts of each are missing. They begin in order, and what is told of them is in
/// order too.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    /// The first request that is not complete.
    first: u64,
    /// Missing parts of those from the first one on.
    missing: [u16; RING as usize],
}

impl Parts {
    fn begin(&mut self, request: u64, parts: usize) {
        assert!(request - self.first < RING, "more requests under way than slots");
        self.missing[(request % RING) as usize] = parts as u16;
    }

    /// The request under way with these lower bits.
    fn request(&self, low: u32) -> u64 {
        self.first + u64::from(low.wrapping_sub(self.first as u32))
    }

    /// A part of the request with these lower bits is there. Gives how many requests are complete now, of those that
    /// have begun, `next` being the first that has not.
    fn done(&mut self, low: u32, next: u64) -> u32 {
        let request = self.request(low);
        assert!(request < next, "no such request is under way");
        self.missing[(request % RING) as usize] -= 1;
        let before = self.first;
        while self.first < next && self.missing[(self.first % RING) as usize] == 0 {
            self.first += 1;
        }
        (self.first - before) as u32
    }
}

/// A clear-to-send as it lies in the ring. `index` comes last and makes it valid: the bytes of one packet are written in
/// ascending order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClearToSend {
    address: u64,
    size: u64,
    key: u32,
    mark: Mark,
    index: u64,
}

impl ClearToSend {
    fn emit(&self) -> [u8; ELEMENT as usize] {
        let mut bytes = [0; ELEMENT as usize];
        bytes[0..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.mark.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.index.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        Self { address: word(0), size: word(8), key: word(16) as u32, mark: Mark(word(24)), index: word(56) }
    }
}
