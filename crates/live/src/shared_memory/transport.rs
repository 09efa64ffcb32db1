//! Shared memory as a transport.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use railnet_coll::machine::{Handed, Mark};

use super::{PeerBuffer, Receiver, Sender, SharedMemory, ring};
use crate::rdma::Rdma;
use crate::tcp::Tcp;
use crate::transport::{
    Arrival, ConnectionName, SliceReceiver, SliceSender, StableSource, Transport, ZeroCopy,
};

impl Transport for SharedMemory {
    type Sender = Sender;
    type Receiver = Receiver;

    fn connect(&mut self, to: u32, name: ConnectionName, _: Option<&Tcp>) -> io::Result<Sender> {
        self.sender(to, name)
    }

    fn accept(&mut self, name: ConnectionName) -> io::Result<Option<Receiver>> {
        self.receiver(name).map(Some)
    }

    fn forget(&mut self, context: u64) {
        ring::forget(&self.own, context);
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    fn set_blocked(&self, is_blocked: bool) {
        self.set_blocked(is_blocked);
    }
}

impl SliceSender for Sender {
    #[inline]
    fn data(&mut self, _: u32, length: usize) -> *mut u8 {
        self.data(length)
    }

    #[inline]
    fn publish(&mut self, filled: &Handed<'_>, _: Option<&mut Rdma>) -> bool {
        self.publish(filled.data.0 as usize, filled.mark);
        false
    }

    #[inline]
    fn freed(&mut self, _: Option<&mut Rdma>) -> io::Result<(u64, Option<Mark>)> {
        Ok((if self.needs_credits() { self.freed() } else { 0 }, None))
    }

    #[inline]
    fn freed_inline(&mut self) -> u64 {
        self.freed()
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.has_zero_copy()
    }

    #[inline]
    fn is_shared(&self) -> bool {
        true
    }

    #[inline(always)]
    fn publish_inline(&mut self, length: usize, mark: Mark) {
        self.publish(length, mark);
    }

    #[inline]
    fn is_streamed(&self) -> bool {
        self.is_distant()
    }

    #[inline]
    fn zero_copy(&self) -> ZeroCopy {
        if self.can_zero_copy() {
            ZeroCopy::ByReceiver { is_distant: self.is_distant() }
        } else {
            ZeroCopy::No
        }
    }

    fn send_from(&mut self, _: u32, source: StableSource, length: usize) {
        self.send_from(source.pointer(), length);
    }

    /// What was sent is in the receiver's memory.
    fn retire(self, _: Option<&mut Rdma>) {}

    fn close(&self, _: Option<&mut Rdma>) {
        self.revoke();
    }
}

impl SliceReceiver for Receiver {
    #[inline]
    fn data(&mut self, _: u32, length: usize) -> *mut u8 {
        Self::data(self, length)
    }

    #[inline]
    fn arrived(&mut self, _: Option<&mut Rdma>) -> io::Result<Arrival> {
        self.arrived_inline()
    }

    #[inline(always)]
    fn arrived_inline(&mut self) -> io::Result<Arrival> {
        Ok(self.arrived().map_or(Arrival::Nothing, Arrival::Slice))
    }

    #[inline]
    fn release(&mut self, _: Option<&mut Rdma>) {
        self.release();
    }

    #[inline]
    fn is_shared(&self) -> bool {
        true
    }

    #[inline]
    fn foreign(&self) -> Option<PeerBuffer> {
        self.source()
    }

    fn is_still_stable(&self, length: usize) -> bool {
        self.is_still_stable(length)
    }

    fn retire(self, _: Option<&mut Rdma>) {}

    fn close(&self, _: Option<&mut Rdma>) {}
}
