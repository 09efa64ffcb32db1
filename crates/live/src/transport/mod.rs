//! What the engine knows of the transports between ranks: shared memory, TCP and RoCEv2 are implementations of [`Transport`].
//!
//! A connection of a schedule goes from one rank to another and has a FIFO of slots. Its ends are a [`SliceSender`] and a
//! [`SliceReceiver`]; the engine has them as [`SendEnd`] and [`ReceiveEnd`], which forward every call to the transport's own
//! type: enums, because a call of 8 bytes takes less time than a few indirect calls. What one transport has and others have not
//! (zero-copy sends, posted receive buffers, Nagle batching) is a method with a default, so that no other file matches on transports.
//!
//! | file | has |
//! | --- | --- |
//! | `buffer.rs` | callers' buffers that a transport reads or fills itself |
//! | `ends.rs` | the dispatch |
//! | `limits.rs` | FIFO depth, lengths of slots and slices, thresholds |
//! | `cost.rs` | what algorithms cost over each transport |

mod buffer;
pub(crate) mod cost;
mod ends;
pub(crate) mod limits;

use std::io;
use std::os::fd::BorrowedFd;

use railnet_coll::Protocol;
use railnet_coll::machine::{Expect, Handed, Mark};

pub(crate) use buffer::{PostedBuffer, StableSource};
pub(crate) use ends::{ReceiveEnd, SendEnd};

use crate::rdma::Rdma;
use crate::shared_memory::PeerBuffer;
use crate::tcp::Tcp;

/// The protocol of all connections: LL and LL128 put flags among the data, which only GPUs gain by.
pub(crate) const PROTOCOL: Protocol = Protocol::Simple;

/// A connection of a communicator, as its receiver tells it from others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnectionName {
    /// The communicator.
    pub(crate) context: u64,
    /// The rank of the world that sends.
    pub(crate) from: u32,
    /// The channel of the schedule.
    pub(crate) channel: u16,
    /// The connection's index among those of the channel.
    pub(crate) lane: u8,
}

/// A way to carry slices between ranks.
pub(crate) trait Transport {
    /// Its sending ends.
    type Sender: SliceSender;
    /// Its receiving ends.
    type Receiver: SliceReceiver;

    /// Opens the sending end of a connection to a rank. `streams` is the TCP of this rank, for a transport whose ends exchange
    /// addresses out of band.
    fn connect(&mut self, to: u32, name: ConnectionName, streams: Option<&Tcp>) -> io::Result<Self::Sender>;

    /// Opens the receiving end of a connection; `None` until the sender has connected, where the transport depends on that.
    fn accept(&mut self, name: ConnectionName) -> io::Result<Option<Self::Receiver>>;

    /// This rank receives nothing more of a communicator.
    fn forget(&mut self, _context: u64) {}

    /// What becomes readable when there is something to do: a rank that blocks waits for it.
    fn doorbell(&self) -> BorrowedFd<'_>;

    /// This rank is about to block on the doorbell, or has stopped doing so.
    fn set_blocked(&self, _is_blocked: bool) {}

    /// Connections and packets of unauthenticated peers that were refused.
    fn refused(&self) -> u64 {
        0
    }
}

/// What a poll of a receiving end returns.
pub(crate) enum Arrival {
    /// A slice, with its operation tag.
    Slice(Mark),
    /// A slice that this rank asked for, so that there is no tag to compare.
    Asked,
    /// Nothing yet.
    Nothing,
    /// Nothing ever again: the peer has closed the connection.
    End,
}

/// Who reads a caller's buffer that is sent without a copy to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZeroCopy {
    /// Nobody: data has to be in a slot.
    No,
    /// The kernel, as soon as it has room, whatever the receiver does.
    ByKernel,
    /// The receiver, when it gets there. Whether its core shares no last-level cache with this one.
    ByReceiver { is_distant: bool },
}

/// The sending end of a connection. `nic` is the NIC of this rank, where it has one.
pub(crate) trait SliceSender {
    /// Where the data of the next slice is written.
    fn data(&mut self, slot: u32, length: usize) -> *mut u8;

    /// Hands over the next slice. True if the caller has to `push` it before it waits for anything.
    fn publish(&mut self, filled: &Handed<'_>, nic: Option<&mut Rdma>) -> bool;

    /// How many slots have become free since the last question, and the operation that the receiver is at, where that is new.
    fn freed(&mut self, nic: Option<&mut Rdma>) -> io::Result<(u64, Option<Mark>)>;

    /// How many slots have become free, for the synchronous executor: only as far as memory of this process tells.
    fn freed_inline(&mut self) -> u64 {
        0
    }

    /// Whether slices wait for this process, or are read from a caller's buffer. A NIC sends between calls.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Whether slots are memory that the receiver reads, so that a small slice is one copy (the inline-copy fast path).
    fn is_shared(&self) -> bool {
        false
    }

    /// Hands over a slice of the inline-copy fast path.
    fn publish_inline(&mut self, _length: usize, _mark: Mark) {
        unreachable!("only slots in shared memory are filled inline");
    }

    /// Whether slots are better written with non-temporal stores: the receiver's core is far.
    fn is_streamed(&self) -> bool {
        false
    }

    /// Whether the next slice may stay in the caller's buffer, and who reads it there.
    fn zero_copy(&self) -> ZeroCopy {
        ZeroCopy::No
    }

    /// The data of the next slice, of so many bytes, is read from this buffer and not from its slot.
    fn send_from(&mut self, _slot: u32, _source: StableSource, _length: usize) {
        unreachable!("this transport sends from slots");
    }

    /// Whether the kernel may batch small slices (Nagle's algorithm).
    fn can_batch(&self) -> bool {
        false
    }

    /// Hands small slices to the kernel, which may hold them until those before are acknowledged if `may_hold`.
    fn push(&mut self, _may_hold: bool) {}

    /// Whether the kernel may hold slices.
    fn is_holding(&self) -> bool {
        false
    }

    /// Has the kernel send what it holds. How many slices it may have held, if any.
    fn flush_held(&mut self) -> Option<u32> {
        None
    }

    /// The descriptor that becomes writable when unsent slices can go on.
    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nothing more will be handed over; what was, still goes out.
    fn retire(self, nic: Option<&mut Rdma>);

    /// Nothing more is sent, neither what waits.
    fn close(&self, nic: Option<&mut Rdma>);
}

/// The receiving end of a connection. `nic` is the NIC of this rank, where it has one.
pub(crate) trait SliceReceiver {
    /// Where the data of the oldest slice is.
    fn data(&mut self, slot: u32, length: usize) -> *mut u8;

    /// The next slice, if it has arrived.
    fn arrived(&mut self, nic: Option<&mut Rdma>) -> io::Result<Arrival>;

    /// The same for the synchronous executor, which polls often: only where a poll is cheap or likely to succeed.
    fn arrived_inline(&mut self) -> io::Result<Arrival> {
        Ok(Arrival::Nothing)
    }

    /// Gives back the slot of the oldest slice.
    fn release(&mut self, nic: Option<&mut Rdma>);

    /// A call will receive something here: transports that ask their sender for data do.
    fn expect(&mut self, _expect: Expect, _nic: Option<&mut Rdma>) {}

    /// Whether slots are memory that the sender writes: polls cost no system call, and several in a row are worth it.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether a poll is a system call.
    fn polls_kernel(&self) -> bool {
        false
    }

    /// Whether `post` has a use.
    fn takes_posted(&self) -> bool {
        false
    }

    /// The data of the next slice goes to this buffer and not to its slot, if nothing of it has arrived yet.
    fn post(&mut self, _buffer: PostedBuffer) {}

    /// Whether the oldest slice is in the buffer that was posted.
    fn is_in_posted(&self) -> bool {
        false
    }

    /// The sender's buffer that has the data of the oldest slice, if it was sent without a copy.
    fn foreign(&self) -> Option<PeerBuffer> {
        None
    }

    /// Whether the sender has left that buffer alone until now, after its so many bytes were read.
    fn is_still_stable(&self, _length: usize) -> bool {
        true
    }

    /// The descriptor that becomes readable when more arrives.
    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nothing more is expected. The sender may not know yet that all has arrived.
    fn retire(self, nic: Option<&mut Rdma>);

    /// Nothing more is received, neither what is under way.
    fn close(&self, nic: Option<&mut Rdma>);
}
