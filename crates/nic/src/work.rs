//! Work requests: what an application hands to a queue.

use railnet_core::{Label, Psn, QueuePairNumber};
use smallvec::SmallVec;

use crate::completion::CompletionKind;
use crate::queue_pair::Route;
use crate::region::{Bind, Key};

/// A piece of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The local key of the region it lies in.
    pub key: Key,
}

/// Pieces of local memory, in order.
pub type SgeList = SmallVec<[Sge; 1]>;

/// Where in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// First byte.
    pub address: u64,
    /// The key that the peer gave.
    pub key: Key,
}

/// An address handle: the path to a datagram's target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AddressHandle(pub(crate) u32);

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramTarget {
    /// The path.
    pub handle: AddressHandle,
    /// The queue pair.
    pub queue_pair: QueuePairNumber,
    /// Its queue key. With the top bit set, the sender's own is used.
    pub queue_key: u32,
}

/// What to do. Immediate data is carried as it is: byte order is the application's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Send to a receive of the peer.
    Send,
    /// Send, with 32 bits in the completion.
    SendImmediate(u32),
    /// Send, and take the rights of a key of the peer away.
    SendInvalidate(Key),
    /// Write to the peer's memory.
    Write(Remote),
    /// Write, then use up a receive to hand over 32 bits.
    WriteImmediate(Remote, u32),
    /// Read from the peer's memory.
    Read(Remote),
    /// Swap 64 bits of the peer's memory if they compare equal; the old value comes back.
    CompareSwap {
        /// Where; aligned to 8 bytes.
        remote: Remote,
        /// The value that must be there.
        compare: u64,
        /// The value to put there.
        swap: u64,
    },
    /// Add to 64 bits of the peer's memory; the old value comes back.
    FetchAdd {
        /// Where; aligned to 8 bytes.
        remote: Remote,
        /// What to add.
        add: u64,
    },
    /// Bind a memory window of this NIC.
    BindWindow(Bind),
    /// Take the rights of a window of this NIC away.
    LocalInvalidate(Key),
}

impl Operation {
    /// Its name in the verbs interface's words.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImmediate(_) => "SEND with immediate",
            Self::SendInvalidate(_) => "SEND with invalidate",
            Self::Write(_) => "WRITE",
            Self::WriteImmediate(..) => "WRITE with immediate",
            Self::Read(_) => "READ",
            Self::CompareSwap { .. } => "compare-and-swap",
            Self::FetchAdd { .. } => "fetch-and-add",
            Self::BindWindow(_) => "bind window",
            Self::LocalInvalidate(_) => "local invalidate",
        }
    }

    /// Whether the answer carries data, so that responder resources are needed.
    #[inline]
    pub(crate) const fn reads(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether nothing goes to the wire.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::BindWindow(_) | Self::LocalInvalidate(_))
    }

    /// Whether a receive of the peer is used up.
    pub(crate) const fn consumes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) | Self::WriteImmediate(..)
        )
    }

    pub(crate) const fn completion_kind(&self) -> CompletionKind {
        match self {
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) => CompletionKind::Send,
            Self::Write(_) | Self::WriteImmediate(..) => CompletionKind::Write,
            Self::Read(_) => CompletionKind::Read,
            Self::CompareSwap { .. } => CompletionKind::CompareSwap,
            Self::FetchAdd { .. } => CompletionKind::FetchAdd,
            Self::BindWindow(_) => CompletionKind::BindWindow,
            Self::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }
}

/// Work for a send queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The application's name for it.
    pub work: u64,
    /// What to do.
    pub operation: Operation,
    /// Local memory: where the data comes from, or goes to for READ and atomics.
    pub gather: SgeList,
    /// Data copied at once instead of `gather`; the buffer is free when the post returns.
    pub inline: Option<Box<[u8]>>,
    /// Make a completion.
    pub signaled: bool,
    /// Raise an event at the receiver.
    pub solicited: bool,
    /// Wait for earlier READs and atomics to finish.
    pub fence: bool,
    /// Where a datagram goes.
    pub target: Option<DatagramTarget>,
    /// What its packets are labelled.
    pub label: Label,
}

impl SendRequest {
    /// A signalled request with no data.
    pub fn new(work: u64, operation: Operation) -> Self {
        Self {
            work,
            operation,
            gather: SgeList::new(),
            inline: None,
            signaled: true,
            solicited: false,
            fence: false,
            target: None,
            label: Label::default(),
        }
    }

    /// With one more piece of local memory.
    #[must_use]
    pub fn with(mut self, sge: Sge) -> Self {
        self.gather.push(sge);
        self
    }

    /// With data that is copied at once.
    #[must_use]
    pub fn with_inline(mut self, data: &[u8]) -> Self {
        self.inline = Some(data.into());
        self
    }

    /// With no completion when it succeeds.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }
}

/// A buffer for a receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveRequest {
    /// The application's name for it.
    pub work: u64,
    /// Local memory, in order.
    pub scatter: SgeList,
}

impl ReceiveRequest {
    /// A receive with no memory: takes an empty SEND or a WRITE with immediate.
    pub fn new(work: u64) -> Self {
        Self { work, scatter: SgeList::new() }
    }

    /// With one more piece of local memory.
    #[must_use]
    pub fn with(mut self, sge: Sge) -> Self {
        self.scatter.push(sge);
        self
    }

    pub(crate) fn length(&self) -> u64 {
        total(&self.scatter)
    }
}

/// All bytes of a list.
pub(crate) fn total(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.length)).sum()
}

/// A request in a send queue.
#[derive(Debug)]
pub(crate) struct SendWork {
    pub(crate) work: u64,
    pub(crate) operation: Operation,
    pub(crate) gather: SgeList,
    pub(crate) inline: Option<Box<[u8]>>,
    pub(crate) datagram: Option<Box<(Route, DatagramTarget)>>,
    pub(crate) label: Label,
    pub(crate) length: u32,
    /// How many sequence numbers it takes.
    pub(crate) packets: u32,
    pub(crate) first: Psn,
    /// Which message of the connection it is, for credits.
    pub(crate) message: u32,
    /// READ: response packets received.
    pub(crate) received: u32,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// Its local memory was checked and its first packet sent.
    pub(crate) started: bool,
    /// READ, atomic: it counts as in flight.
    pub(crate) counted: bool,
}

impl SendWork {
    #[inline]
    pub(crate) fn last(&self) -> Psn {
        self.first.plus(self.packets.wrapping_sub(1))
    }

    /// Where byte `offset` of the message is read from; `None` where it was copied at the post.
    pub(crate) fn read_address(&self, offset: u32) -> Option<u64> {
        let mut skip = u64::from(offset);
        for sge in self.gather.iter().filter(|_| self.inline.is_none()) {
            if skip < u64::from(sge.length) {
                return Some(sge.address + skip);
            }
            skip -= u64::from(sge.length);
        }
        None
    }
}
