//! RoCEv2 as a transport: the ends are slots that the NIC of this rank reads and writes.

use std::io;
use std::os::fd::BorrowedFd;

use railnet_coll::machine::{Expect, Handed, Mark};

use super::{Rdma, Slots};
use crate::tcp::Tcp;
use crate::transport::{Arrival, ConnectionName, SliceReceiver, SliceSender, Transport};

/// Ends of a NIC are made by one.
const NIC: &str = "the NIC that made this end is there";

impl Transport for Rdma {
    type Sender = Slots;
    type Receiver = Slots;

    fn connect(&mut self, to: u32, name: ConnectionName, streams: Option<&Tcp>) -> io::Result<Slots> {
        let streams = streams.ok_or(io::ErrorKind::NotConnected)?;
        self.sender(streams, to, name)
    }

    fn accept(&mut self, name: ConnectionName) -> io::Result<Option<Slots>> {
        self.receiver(name.from, name).map(Some)
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.watch()
    }

    fn refused(&self) -> u64 {
        self.refused()
    }
}

impl SliceSender for Slots {
    #[inline]
    fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        Self::data(self, slot, length)
    }

    #[inline]
    fn publish(&mut self, filled: &Handed<'_>, nic: Option<&mut Rdma>) -> bool {
        nic.expect(NIC).fill(self, &filled.filled());
        false
    }

    #[inline]
    fn freed(&mut self, nic: Option<&mut Rdma>) -> io::Result<(u64, Option<Mark>)> {
        let (count, heard) = nic.expect(NIC).news(self)?;
        Ok((u64::from(count), heard))
    }

    fn retire(self, nic: Option<&mut Rdma>) {
        nic.expect(NIC).retire(self);
    }

    fn close(&self, nic: Option<&mut Rdma>) {
        nic.expect(NIC).close(self);
    }
}

impl SliceReceiver for Slots {
    #[inline]
    fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        Self::data(self, slot, length)
    }

    #[inline]
    fn arrived(&mut self, nic: Option<&mut Rdma>) -> io::Result<Arrival> {
        let has_arrived = nic.expect(NIC).arrived(self)?;
        Ok(if has_arrived { Arrival::Asked } else { Arrival::Nothing })
    }

    #[inline]
    fn release(&mut self, nic: Option<&mut Rdma>) {
        nic.expect(NIC).release(self);
    }

    fn expect(&mut self, expect: Expect, nic: Option<&mut Rdma>) {
        nic.expect(NIC).expect(self, expect);
    }

    fn retire(self, nic: Option<&mut Rdma>) {
        nic.expect(NIC).retire(self);
    }

    fn close(&self, nic: Option<&mut Rdma>) {
        nic.expect(NIC).close(self);
    }
}
