//! What a seed stands for, before any NIC exists: who is connected how, what is posted, what goes wrong.

use railnet_core::{Psn, Rate, Span, Time};

use crate::completion::Status;
use crate::config::{Behaviour, Mtu};
use crate::queue_pair::Service;
use crate::recovery::RecoveryKind;
use crate::region::Access;
use crate::testing::{Faults, Outage};

/// Bytes at the start of each NIC's data that are read by anybody and written by nobody.
pub(super) const POOL: u64 = 128 << 10;

/// Which of a NIC's two spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    /// Messages: real bytes or ghosts.
    Data,
    /// Counters and the results of atomics: always real bytes.
    Control,
}

/// A stretch of a NIC's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) area: Area,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// Which key a job uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyChoice {
    /// The one that is right.
    Good,
    /// One that nobody has.
    Unknown,
    /// A region of the same memory that grants nothing.
    NoRights,
    /// A second region of the same memory, which is deregistered while the run goes on.
    Fleeting,
}

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Send(Option<u32>),
    Write(Piece, Option<u32>),
    Read(Piece),
    CompareSwap {
        at: Piece,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        at: Piece,
        add: u64,
    },
    /// Binds the window that belongs to the end to the pool.
    Bind(u8),
    /// Takes the window's rights away again.
    Invalidate,
    /// A datagram to another end.
    Datagram {
        to: usize,
        immediate: Option<u32>,
    },
}

impl Act {
    /// Whether the peer uses up a receive.
    pub(super) fn consumes(&self) -> bool {
        matches!(self, Self::Send(_) | Self::Write(_, Some(_)))
    }

    pub(super) fn immediate(&self) -> Option<u32> {
        match *self {
            Self::Send(immediate) | Self::Write(_, immediate) | Self::Datagram { immediate, .. } => immediate,
            _ => None,
        }
    }
}

/// One work request of a send queue.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) act: Act,
    /// Local memory, in order.
    pub(super) pieces: Vec<Piece>,
    /// Data of its own instead.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) length: u32,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    /// Posted only when all before it is complete.
    pub(super) waits: bool,
    /// Posted so much later than the one before.
    pub(super) delay: Span,
    pub(super) remote_key: KeyChoice,
    pub(super) local_key: KeyChoice,
}

/// One receive.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) pieces: Vec<Piece>,
    /// Posted so much later than the one before.
    pub(super) delay: Span,
}

impl Buffer {
    pub(super) fn length(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }
}

/// How the work of an end may come out.
#[derive(Clone, Debug, Default)]
pub(super) struct Ending {
    /// Something may fail: retries may run out on it.
    pub(super) may_fail: bool,
    /// The first failure may be a flush: the queue pair is sent to the error state by others.
    pub(super) flushed: bool,
    /// The job that fails when nothing before it does.
    pub(super) culprit: Option<usize>,
    /// How it fails; without a culprit, how any job may.
    pub(super) statuses: Vec<Status>,
    /// How the receive in use may end, besides being flushed.
    pub(super) receive_status: Option<Status>,
}

/// One queue pair.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) nic: usize,
    /// The other end of the connection; its own index for datagrams.
    pub(super) peer: usize,
    pub(super) service: Service,
    pub(super) mtu: Mtu,
    pub(super) psn: Psn,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) initiator_reads: u8,
    pub(super) destination_reads: u8,
    pub(super) access: Access,
    /// Its receives come from the NIC's shared queue.
    pub(super) shared: bool,
    pub(super) signal_all: bool,
    /// Jobs that may be unfinished at once.
    pub(super) window: usize,
    pub(super) send_depth: u32,
    /// Sends and receives complete on queues of their own.
    pub(super) own_queues: bool,
    /// A send completion queue of this depth, which nobody polls.
    pub(super) tiny_queue: Option<u32>,
    pub(super) jobs: Vec<Job>,
    pub(super) receives: Vec<Buffer>,
    pub(super) ending: Ending,
}

impl End {
    /// The jobs that use up a receive of the peer, in order.
    pub(super) fn messages(&self) -> impl Iterator<Item = usize> + '_ {
        self.jobs.iter().enumerate().filter(|(_, job)| job.act.consumes()).map(|(index, _)| index)
    }
}

/// One NIC.
#[derive(Clone, Debug)]
pub(super) struct NicPlan {
    pub(super) behaviour: Behaviour,
    pub(super) has_control: bool,
    pub(super) burst: u16,
    pub(super) recovery: RecoveryKind,
    pub(super) data_bytes: u64,
    pub(super) control_bytes: u64,
    /// The receives of its shared queue.
    pub(super) shared: Vec<Buffer>,
}

/// How a NIC that keeps `early` packets gets over losses: by the seed, not by random numbers, so that a new way leaves all else of
/// a plan as it was. In some plans the two ends of a connection differ.
pub(super) fn recovery(seed: u64, early: u16) -> RecoveryKind {
    let reordering = Span::from_us([0, 0, 2, 20][seed as usize / 15 % 4]);
    let window = if early == 0 { 1000 } else { early };
    match (seed / 3 % 5, early) {
        (0 | 1, 0) | (4, 64) => RecoveryKind::GoBackN,
        (0 | 1, _) | (4, 3) => RecoveryKind::Reorder { window: early },
        _ => RecoveryKind::SelectiveRepeat { window, reordering },
    }
}

/// What goes wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Scenario {
    /// Nothing: everything must succeed.
    None,
    /// The wire is so bad that retries may run out.
    Rough,
    /// A NIC is cut off for good.
    CutOff,
    /// A key that nobody has.
    WrongKey,
    /// A key that does not allow it.
    NoPermission,
    /// A range that ends outside the region.
    OutOfRange,
    /// A queue pair that does not allow it.
    NoAccess,
    /// An atomic on an address that is not aligned.
    Misaligned,
    /// A receive that is too small.
    TooSmall,
    /// No receive, and a sender that does not wait for ever.
    NoReceive,
    /// A local key that nobody has.
    WrongLocalKey,
    /// A queue pair is moved to the error state.
    ModifiedToError,
    /// A queue pair is destroyed.
    Destroyed,
    /// The region at the target is deregistered.
    TargetDeregistered,
    /// The region at the source is deregistered.
    SourceDeregistered,
    /// A completion queue runs over.
    QueueOverflow,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::None,
        Self::Rough,
        Self::CutOff,
        Self::WrongKey,
        Self::NoPermission,
        Self::OutOfRange,
        Self::NoAccess,
        Self::Misaligned,
        Self::TooSmall,
        Self::NoReceive,
        Self::WrongLocalKey,
        Self::ModifiedToError,
        Self::Destroyed,
        Self::TargetDeregistered,
        Self::SourceDeregistered,
        Self::QueueOverflow,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rough => "rough wire",
            Self::CutOff => "cut off for good",
            Self::WrongKey => "wrong key",
            Self::NoPermission => "no permission",
            Self::OutOfRange => "out of range",
            Self::NoAccess => "no queue pair access",
            Self::Misaligned => "misaligned atomic",
            Self::TooSmall => "receive too small",
            Self::NoReceive => "no receive",
            Self::WrongLocalKey => "wrong local key",
            Self::ModifiedToError => "moved to error",
            Self::Destroyed => "destroyed",
            Self::TargetDeregistered => "target deregistered",
            Self::SourceDeregistered => "source deregistered",
            Self::QueueOverflow => "queue overflow",
        }
    }
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) scenario: Scenario,
    /// The end that the scenario is about.
    pub(super) victim: usize,
    /// When it strikes, where that is a matter of time.
    pub(super) strikes: Time,
    /// Messages are ghosts.
    pub(super) ghost: bool,
    pub(super) nics: Vec<NicPlan>,
    pub(super) ends: Vec<End>,
    /// Counters that several ends add to: where, and by which NIC they are owned.
    pub(super) common_counters: Vec<(usize, Piece)>,
    pub(super) faults: Faults,
    pub(super) outages: Vec<Outage>,
    pub(super) latency: Span,
    pub(super) rate: Rate,
    /// By then all must be over.
    pub(super) deadline: Time,
}

impl Plan {
    /// The wire does nothing to packets.
    pub(super) fn is_clean(&self) -> bool {
        let Faults { loss, duplicate, reorder, delay, corrupt, .. } = self.faults;
        loss + duplicate + reorder + delay + corrupt == 0 && self.outages.is_empty()
    }

    /// The wire delivers each packet once at most, in the order of sending.
    pub(super) fn is_ordered(&self) -> bool {
        self.faults.duplicate + self.faults.reorder + self.faults.delay == 0
    }
}
