//! Completions and the queues they are put on.

use std::collections::VecDeque;
use std::fmt;

use railnet_core::QueuePairNumber;

/// How a work request ended. The numbers are those of the verbs interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// It was done.
    Success = 0,
    /// The message was longer than the buffers.
    LocalLength = 1,
    /// The queue pair could not do it.
    LocalOperation = 2,
    /// A local key, range or permission is wrong.
    LocalProtection = 4,
    /// It was thrown out because of an earlier error.
    Flushed = 5,
    /// A window could not be bound, or a key not be invalidated.
    WindowBind = 6,
    /// The answer makes no sense.
    BadResponse = 7,
    /// Writing to a receive buffer is not allowed.
    LocalAccess = 8,
    /// The target does not understand the request.
    RemoteInvalidRequest = 9,
    /// The target refuses the access.
    RemoteAccess = 10,
    /// The target failed.
    RemoteOperation = 11,
    /// No answer after all retries.
    RetryExceeded = 12,
    /// No receive posted at the target after all retries.
    RnrRetryExceeded = 13,
}

impl Status {
    /// In words, close to those of `ibv_wc_status_str`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "work request flushed",
            Self::WindowBind => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry count exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retry count exceeded",
        }
    }

    /// The name in the verbs interface.
    pub const fn verbs_name(self) -> &'static str {
        match self {
            Self::Success => "IBV_WC_SUCCESS",
            Self::LocalLength => "IBV_WC_LOC_LEN_ERR",
            Self::LocalOperation => "IBV_WC_LOC_QP_OP_ERR",
            Self::LocalProtection => "IBV_WC_LOC_PROT_ERR",
            Self::Flushed => "IBV_WC_WR_FLUSH_ERR",
            Self::WindowBind => "IBV_WC_MW_BIND_ERR",
            Self::BadResponse => "IBV_WC_BAD_RESP_ERR",
            Self::LocalAccess => "IBV_WC_LOC_ACCESS_ERR",
            Self::RemoteInvalidRequest => "IBV_WC_REM_INV_REQ_ERR",
            Self::RemoteAccess => "IBV_WC_REM_ACCESS_ERR",
            Self::RemoteOperation => "IBV_WC_REM_OP_ERR",
            Self::RetryExceeded => "IBV_WC_RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "IBV_WC_RNR_RETRY_EXC_ERR",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// What kind of work completed. The numbers are those of the verbs interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CompletionKind {
    /// A SEND of any kind.
    Send = 0,
    /// A WRITE of any kind.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare-and-swap.
    CompareSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// A window was bound.
    BindWindow = 5,
    /// A key was invalidated.
    LocalInvalidate = 6,
    /// A receive took a SEND.
    Receive = 128,
    /// A receive was used up by a WRITE with immediate data.
    ReceiveWriteImmediate = 129,
}

/// A finished work request. With an error status only `work`, `status` and `queue_pair` mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The application's name for the work.
    pub work: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub kind: CompletionKind,
    /// The queue pair it belongs to.
    pub queue_pair: QueuePairNumber,
    /// Bytes moved; for a datagram the 40 bytes of the GRH area are counted.
    pub length: u32,
    /// Immediate data as it stood on the wire.
    pub immediate: Option<u32>,
    /// The key that the peer invalidated.
    pub invalidated: Option<u32>,
    /// The peer's queue pair, for datagrams.
    pub source: QueuePairNumber,
    /// The buffer begins with a GRH area.
    pub has_grh: bool,
}

impl Completion {
    /// Something to fill a poll array with.
    pub const EMPTY: Self = Self {
        work: 0,
        status: Status::Success,
        kind: CompletionKind::Send,
        queue_pair: QueuePairNumber::new(0),
        length: 0,
        immediate: None,
        invalidated: None,
        source: QueuePairNumber::new(0),
        has_grh: false,
    };
}

/// A completion queue of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct CompletionQueue(pub(crate) u32);

impl CompletionQueue {
    /// Its number on the NIC.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// What a completion queue shall tell about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next one that was solicited by the sender, or is an error.
    Solicited,
}

/// What came of putting a completion on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    Quiet,
    Notify,
    Overflow,
}

#[derive(Debug)]
pub(crate) struct Queue {
    entries: VecDeque<Completion>,
    depth: u32,
    armed: Option<Notify>,
    /// It ran over: nothing can be trusted any more, as on hardware.
    pub(crate) broken: bool,
    /// Queue pairs that complete here, each direction counted.
    pub(crate) users: u32,
}

impl Queue {
    pub(crate) fn new(depth: u32) -> Self {
        Self { entries: VecDeque::new(), depth, armed: None, broken: false, users: 0 }
    }

    pub(crate) fn resize(&mut self, depth: u32) {
        self.depth = depth;
    }

    pub(crate) fn put(&mut self, completion: Completion, solicited: bool) -> Put {
        if self.broken {
            return Put::Quiet;
        }
        if self.entries.len() == self.depth as usize {
            self.broken = true;
            return Put::Overflow;
        }
        let is_loud = solicited || completion.status != Status::Success;
        self.entries.push_back(completion);
        match self.armed {
            Some(Notify::Next) => {}
            Some(Notify::Solicited) if is_loud => {}
            _ => return Put::Quiet,
        }
        self.armed = None;
        Put::Notify
    }

    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.entries.len());
        for (place, completion) in out.iter_mut().zip(self.entries.drain(..count)) {
            *place = completion;
        }
        count
    }

    pub(crate) fn arm(&mut self, notify: Notify) {
        // Asking for every completion wins over asking for solicited ones only.
        if self.armed != Some(Notify::Next) {
            self.armed = Some(notify);
        }
    }

    /// Drops the completions of a queue pair that is gone or was reset.
    pub(crate) fn forget(&mut self, queue_pair: QueuePairNumber) {
        self.entries.retain(|completion| completion.queue_pair != queue_pair);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
