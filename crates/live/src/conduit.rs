//! Conduits between two ranks of this world: what carries the slots of a connection.

use std::fmt;
use std::io;
use std::str::FromStr;

use railnet_coll::machine::{Expect, Handed, Mark};
use railnet_coll::{Fifo, Protocol};
use railnet_core::Bytes;
use railnet_core::parse::{ParseError, unknown_name};

use crate::rdma::{self, Rdma};
use crate::shared_memory;
use crate::shared_memory::mailbox;
use crate::tcp;

/// What carries data between two ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Conduit {
    /// Memory that both processes see: ranks of one host.
    SharedMemory,
    /// TCP.
    Tcp,
    /// RoCEv2 over UDP, by the NIC of `railnet_nic`.
    Roce,
}

impl Conduit {
    /// All of them, the best first.
    pub const ALL: [Self; 3] = [Self::SharedMemory, Self::Tcp, Self::Roce];

    /// The name that `RAILNET_CONDUIT` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
            Self::Roce => "roce",
        }
    }
}

impl Conduit {
    /// How slices lie in the slots of the connections of a communicator whose slowest conduit this is: one way for all
    /// calls, so that none waits for the slots of the one before it to be empty.
    pub(crate) const fn fifo(self) -> Fifo {
        let slot = Bytes(self.slot_most());
        Fifo { slot, depth: mailbox::DEPTH, slots_per_slice: 1, slices_per_chunk: 1 }
    }

    /// The longest slice of a call that copies to slots; a NIC sends packet by packet, and has as many under way as all
    /// slots hold.
    ///
    /// Slices of 128 KiB move 1.2 to 1.5 times what those of 32 KiB do from 512 KiB on, in shared memory, wherever the cores
    /// are; longer ones no more, and less where a call has few of them.
    pub(crate) const fn slice(self) -> Bytes {
        match self {
            Self::SharedMemory | Self::Tcp => Bytes(128 << 10),
            Self::Roce => Bytes(rdma::SLOT as u64),
        }
    }
}

impl Conduit {
    /// The longest slot that a connection has room for. A NIC has slots of one length.
    pub(crate) const fn slot_most(self) -> u64 {
        match self {
            Self::SharedMemory => mailbox::SLOT as u64,
            Self::Tcp => tcp::SLOT as u64,
            Self::Roce => rdma::SLOT as u64,
        }
    }
}

impl fmt::Display for Conduit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Conduit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let found = Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(text.trim()));
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            unknown_name("conduit", text, &names, &names)
        })
    }
}

/// The protocol of all connections: flags among the data are of use to GPUs.
pub(crate) const PROTOCOL: Protocol = Protocol::Simple;

/// What a look at a connection brings.
pub(crate) enum Arrival {
    /// A slice.
    Slice(Mark),
    /// A slice that was asked for, so that nothing has to be compared.
    Asked,
    /// Nothing yet.
    Nothing,
    /// Nothing ever again.
    End,
}

/// The end of a connection from which slices are sent.
#[derive(Debug)]
pub(crate) enum SendEnd {
    Shared(shared_memory::Sender),
    Tcp(tcp::Sender),
    Roce(rdma::Slots),
}

/// The end of a connection at which slices arrive.
#[derive(Debug)]
pub(crate) enum ReceiveEnd {
    Shared(shared_memory::Receiver),
    Tcp(tcp::Receiver),
    Roce(rdma::Slots),
    /// The sender has not connected yet.
    Awaited,
}

impl SendEnd {
    /// Where the data of a slice goes.
    #[inline]
    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        match self {
            Self::Shared(end) => end.data(length),
            Self::Tcp(end) => end.data(slot, length),
            Self::Roce(slots) => slots.data(slot, length),
        }
    }

    /// Hands over the next slice. Whether it should be pushed before anything is waited for.
    #[inline]
    pub(crate) fn publish(&mut self, filled: &Handed<'_>, nic: Option<&mut Rdma>) -> bool {
        match self {
            Self::Shared(end) => end.publish(filled.data.0 as usize, filled.mark),
            // Nothing goes with the data: flags are of use to GPUs.
            Self::Tcp(end) => return end.publish(filled.slot, filled.data.0 as usize, filled.mark),
            Self::Roce(slots) => nic.expect(NIC).fill(slots, &filled.filled()),
        }
        false
    }

    /// Whether it holds slices that wait for this process to send them, or that lie in a caller's buffer. What a NIC has is
    /// carried on behind calls.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Roce(_) => false,
            Self::Shared(end) => end.has_lent(),
            Self::Tcp(end) => end.is_waiting(),
        }
    }

    /// How many slices are out of their slots since the last look, and what the receiver does where that is new.
    #[inline]
    pub(crate) fn freed(&mut self, nic: Option<&mut Rdma>) -> io::Result<(u64, Option<Mark>)> {
        match self {
            Self::Shared(end) if end.is_short() => Ok((end.freed(), None)),
            Self::Tcp(end) if end.is_waiting() => Ok((end.flush()?, None)),
            Self::Tcp(end) => Ok((end.gone(), None)),
            Self::Shared(_) => Ok((0, None)),
            Self::Roce(slots) => {
                let (count, heard) = nic.expect(NIC).news(slots)?;
                Ok((u64::from(count), heard))
            }
        }
    }

    /// Nothing more will be handed over. What was, is on its way: with the system, or in the memory of the receiver.
    pub(crate) fn retire(self, nic: Option<&mut Rdma>) {
        if let Self::Roce(slots) = self {
            nic.expect(NIC).retire(slots);
        }
    }

    /// Nothing will be sent any more.
    pub(crate) fn close(&self, nic: Option<&mut Rdma>) {
        match self {
            Self::Shared(end) => end.take_back(),
            Self::Tcp(_) => {}
            Self::Roce(slots) => nic.expect(NIC).close(slots),
        }
    }
}

/// An end at a NIC is there only where a NIC is.
const NIC: &str = "the end was made by the NIC";

impl ReceiveEnd {
    /// Where the data of a slice is.
    #[inline]
    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        match self {
            Self::Shared(end) => end.data(length),
            Self::Tcp(end) => end.data(slot, length),
            Self::Roce(slots) => slots.data(slot, length),
            Self::Awaited => unreachable!("nothing has arrived"),
        }
    }

    /// A call will receive something.
    pub(crate) fn expect(&mut self, expect: Expect, nic: Option<&mut Rdma>) {
        if let Self::Roce(slots) = self {
            nic.expect(NIC).expect(slots, expect);
        }
    }

    /// The next slice, if it is there.
    #[inline]
    pub(crate) fn arrived(&mut self, nic: Option<&mut Rdma>) -> io::Result<Arrival> {
        match self {
            Self::Shared(end) => Ok(end.arrived().map_or(Arrival::Nothing, Arrival::Slice)),
            Self::Tcp(end) => end.arrived(),
            Self::Roce(slots) => {
                let arrived = nic.expect(NIC).arrived(slots)?;
                Ok(if arrived { Arrival::Asked } else { Arrival::Nothing })
            }
            Self::Awaited => Ok(Arrival::Nothing),
        }
    }

    /// Gives the slot of the oldest slice back.
    #[inline]
    pub(crate) fn release(&mut self, nic: Option<&mut Rdma>) {
        match self {
            Self::Shared(end) => end.release(),
            Self::Tcp(end) => end.release(),
            Self::Roce(slots) => nic.expect(NIC).release(slots),
            Self::Awaited => unreachable!("nothing has arrived"),
        }
    }

    /// Nothing more is expected. The sender may not know yet that all has arrived.
    pub(crate) fn retire(self, nic: Option<&mut Rdma>) {
        if let Self::Roce(slots) = self {
            nic.expect(NIC).retire(slots);
        }
    }

    /// Nothing will be received any more.
    pub(crate) fn close(&self, nic: Option<&mut Rdma>) {
        if let Self::Roce(slots) = self {
            nic.expect(NIC).close(slots);
        }
    }
}
