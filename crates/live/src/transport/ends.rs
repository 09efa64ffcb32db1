//! The ends of connections, whatever their transport: the one place where transports are told apart.

use std::io;
use std::os::fd::BorrowedFd;

use railnet_coll::machine::{Expect, Handed, Mark};

use super::{Arrival, PostedBuffer, SliceReceiver, SliceSender, StableSource, ZeroCopy};
use crate::rdma::{self, Rdma};
use crate::shared_memory::{self, PeerBuffer};
use crate::tcp;

/// The sending end of a connection.
#[derive(Debug)]
pub(crate) enum SendEnd {
    Shared(shared_memory::Sender),
    Tcp(tcp::Sender),
    Roce(rdma::Slots),
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) enum ReceiveEnd {
    Shared(shared_memory::Receiver),
    Tcp(tcp::Receiver),
    Roce(rdma::Slots),
    /// The sender has not connected yet.
    Unconnected,
}

/// Calls the method of the transport's own type.
macro_rules! dispatch {
    ($end:ident, $one:ident => $call:expr) => {
        match $end {
            Self::Shared($one) => $call,
            Self::Tcp($one) => $call,
            Self::Roce($one) => $call,
        }
    };
    ($end:ident, $one:ident => $call:expr, $unconnected:expr) => {
        match $end {
            Self::Shared($one) => $call,
            Self::Tcp($one) => $call,
            Self::Roce($one) => $call,
            Self::Unconnected => $unconnected,
        }
    };
}

// Each is described in [`SliceSender`].
impl SendEnd {
    #[inline]
    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        dispatch!(self, end => SliceSender::data(end, slot, length))
    }

    #[inline]
    pub(crate) fn publish(&mut self, filled: &Handed<'_>, nic: Option<&mut Rdma>) -> bool {
        dispatch!(self, end => SliceSender::publish(end, filled, nic))
    }

    #[inline]
    pub(crate) fn freed(&mut self, nic: Option<&mut Rdma>) -> io::Result<(u64, Option<Mark>)> {
        dispatch!(self, end => SliceSender::freed(end, nic))
    }

    #[inline]
    pub(crate) fn freed_inline(&mut self) -> u64 {
        dispatch!(self, end => SliceSender::freed_inline(end))
    }

    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        dispatch!(self, end => SliceSender::has_unsent(end))
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        dispatch!(self, end => SliceSender::is_shared(end))
    }

    #[inline]
    pub(crate) fn publish_inline(&mut self, length: usize, mark: Mark) {
        dispatch!(self, end => SliceSender::publish_inline(end, length, mark));
    }

    #[inline]
    pub(crate) fn is_streamed(&self) -> bool {
        dispatch!(self, end => SliceSender::is_streamed(end))
    }

    #[inline]
    pub(crate) fn zero_copy(&self) -> ZeroCopy {
        dispatch!(self, end => SliceSender::zero_copy(end))
    }

    #[inline]
    pub(crate) fn send_from(&mut self, slot: u32, source: StableSource, length: usize) {
        dispatch!(self, end => SliceSender::send_from(end, slot, source, length));
    }

    #[inline]
    pub(crate) fn can_batch(&self) -> bool {
        dispatch!(self, end => SliceSender::can_batch(end))
    }

    #[inline]
    pub(crate) fn push(&mut self, may_hold: bool) {
        dispatch!(self, end => SliceSender::push(end, may_hold));
    }

    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        dispatch!(self, end => SliceSender::is_holding(end))
    }

    #[inline]
    pub(crate) fn flush_held(&mut self) -> Option<u32> {
        dispatch!(self, end => SliceSender::flush_held(end))
    }

    #[inline]
    pub(crate) fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        dispatch!(self, end => SliceSender::writable_fd(end))
    }

    #[inline]
    pub(crate) fn retire(self, nic: Option<&mut Rdma>) {
        dispatch!(self, end => SliceSender::retire(end, nic));
    }

    #[inline]
    pub(crate) fn close(&self, nic: Option<&mut Rdma>) {
        dispatch!(self, end => SliceSender::close(end, nic));
    }
}

// Each is described in [`SliceReceiver`].
impl ReceiveEnd {
    #[inline]
    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        dispatch!(self, end => SliceReceiver::data(end, slot, length), unreachable!("nothing has arrived"))
    }

    #[inline]
    pub(crate) fn arrived(&mut self, nic: Option<&mut Rdma>) -> io::Result<Arrival> {
        dispatch!(self, end => SliceReceiver::arrived(end, nic), Ok(Arrival::Nothing))
    }

    #[inline]
    pub(crate) fn arrived_inline(&mut self) -> io::Result<Arrival> {
        dispatch!(self, end => SliceReceiver::arrived_inline(end), Ok(Arrival::Nothing))
    }

    #[inline]
    pub(crate) fn release(&mut self, nic: Option<&mut Rdma>) {
        dispatch!(self, end => SliceReceiver::release(end, nic), unreachable!("nothing has arrived"));
    }

    #[inline]
    pub(crate) fn expect(&mut self, expect: Expect, nic: Option<&mut Rdma>) {
        dispatch!(self, end => SliceReceiver::expect(end, expect, nic), {});
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        dispatch!(self, end => SliceReceiver::is_shared(end), false)
    }

    #[inline]
    pub(crate) fn polls_kernel(&self) -> bool {
        dispatch!(self, end => SliceReceiver::polls_kernel(end), true)
    }

    #[inline]
    pub(crate) fn takes_posted(&self) -> bool {
        dispatch!(self, end => SliceReceiver::takes_posted(end), false)
    }

    #[inline]
    pub(crate) fn post(&mut self, buffer: PostedBuffer) {
        dispatch!(self, end => SliceReceiver::post(end, buffer), {});
    }

    #[inline]
    pub(crate) fn is_in_posted(&self) -> bool {
        dispatch!(self, end => SliceReceiver::is_in_posted(end), false)
    }

    #[inline]
    pub(crate) fn foreign(&self) -> Option<PeerBuffer> {
        dispatch!(self, end => SliceReceiver::foreign(end), None)
    }

    #[inline]
    pub(crate) fn is_still_stable(&self, length: usize) -> bool {
        dispatch!(self, end => SliceReceiver::is_still_stable(end, length), true)
    }

    #[inline]
    pub(crate) fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        dispatch!(self, end => SliceReceiver::readable_fd(end), None)
    }

    #[inline]
    pub(crate) fn retire(self, nic: Option<&mut Rdma>) {
        dispatch!(self, end => SliceReceiver::retire(end, nic), {});
    }

    #[inline]
    pub(crate) fn close(&self, nic: Option<&mut Rdma>) {
        dispatch!(self, end => SliceReceiver::close(end, nic), {});
    }

    /// Whether the sender has connected.
    #[inline]
    pub(crate) const fn is_connected(&self) -> bool {
        !matches!(self, Self::Unconnected)
    }
}
