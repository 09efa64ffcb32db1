//! TCP as a transport.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use railnet_coll::machine::{Handed, Mark};

use super::{Receiver, Sender, Tcp};
use crate::rdma::Rdma;
use crate::transport::{
    Arrival, ConnectionName, PostedBuffer, SliceReceiver, SliceSender, StableSource, Transport, ZeroCopy,
};

impl Transport for Tcp {
    type Sender = Sender;
    type Receiver = Receiver;

    /// The peer need not be ready: its kernel accepts the connection.
    fn connect(&mut self, to: u32, name: ConnectionName, _: Option<&Tcp>) -> io::Result<Sender> {
        Sender::new(self.dial(to, name)?, self.shares_cores)
    }

    fn accept(&mut self, name: ConnectionName) -> io::Result<Option<Receiver>> {
        self.take(name)?.map(Receiver::new).transpose()
    }

    fn forget(&mut self, context: u64) {
        self.known.retain(|name, _| name.context != context);
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

impl SliceSender for Sender {
    #[inline]
    fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        self.data(slot, length)
    }

    /// Small slices are to be pushed. No clear-to-send or operation tag is asked for: the tag goes with the data.
    #[inline]
    fn publish(&mut self, filled: &Handed<'_>, _: Option<&mut Rdma>) -> bool {
        self.publish(filled.slot, filled.data.0 as usize, filled.mark)
    }

    #[inline]
    fn freed(&mut self, _: Option<&mut Rdma>) -> io::Result<(u64, Option<Mark>)> {
        Ok((if self.has_unsent() { self.flush()? } else { self.handed_over() }, None))
    }

    #[inline]
    fn freed_inline(&mut self) -> u64 {
        self.handed_over()
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        Self::has_unsent(self)
    }

    #[inline]
    fn zero_copy(&self) -> ZeroCopy {
        ZeroCopy::ByKernel
    }

    fn send_from(&mut self, slot: u32, source: StableSource, _: usize) {
        self.send_from(slot, source);
    }

    #[inline]
    fn can_batch(&self) -> bool {
        true
    }

    #[inline]
    fn push(&mut self, may_hold: bool) {
        self.push(may_hold);
    }

    #[inline]
    fn is_holding(&self) -> bool {
        self.is_holding()
    }

    fn flush_held(&mut self) -> Option<u32> {
        self.flush_held()
    }

    fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.has_unsent().then(|| self.as_fd())
    }

    /// What was sent is with the kernel.
    fn retire(self, _: Option<&mut Rdma>) {}

    fn close(&self, _: Option<&mut Rdma>) {}
}

impl SliceReceiver for Receiver {
    #[inline]
    fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        self.data(slot, length)
    }

    #[inline]
    fn arrived(&mut self, _: Option<&mut Rdma>) -> io::Result<Arrival> {
        self.arrived()
    }

    /// Large slices are polled for in turn with other connections, so that slices are sent meanwhile.
    #[inline]
    fn arrived_inline(&mut self) -> io::Result<Arrival> {
        if self.is_of_small() { self.arrived() } else { Ok(Arrival::Nothing) }
    }

    #[inline]
    fn release(&mut self, _: Option<&mut Rdma>) {
        self.release();
    }

    #[inline]
    fn polls_kernel(&self) -> bool {
        true
    }

    #[inline]
    fn takes_posted(&self) -> bool {
        true
    }

    fn post(&mut self, buffer: PostedBuffer) {
        self.post(buffer);
    }

    #[inline]
    fn is_in_posted(&self) -> bool {
        self.is_in_posted()
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn retire(self, _: Option<&mut Rdma>) {}

    fn close(&self, _: Option<&mut Rdma>) {}
}
