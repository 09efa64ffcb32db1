//! What the NIC reads while it builds a packet, and what that adds to the packet's ICRC. A payload that may go
//! through shared memory is left where it is.

use std::cell::Cell;

use railnet_core::GhostRun;
use railnet_nic::memory::{Backing, GhostRuns, Memory, SpaceId};
use railnet_wire::PayloadSum;

use super::shared_payload::Source;

/// Memory for the time in which one packet is built.
pub(super) struct Gathered<'a, M> {
    memory: &'a mut M,
    reads: Cell<u32>,
    sum: Cell<Option<PayloadSum>>,
    /// How long a payload is at least that is left where it is.
    least: usize,
    left: Cell<Option<Source>>,
}

impl<'a, M: Memory> Gathered<'a, M> {
    #[inline]
    pub(super) fn new(memory: &'a mut M, least: usize) -> Self {
        Self { memory, reads: Cell::new(0), sum: Cell::new(None), least, left: Cell::new(None) }
    }

    /// The payload that was left where it is, all of it.
    #[inline]
    pub(super) fn left(&self) -> Option<Source> {
        self.left.get()
    }

    /// What the payload adds, where it was read in one piece and memory found out.
    #[inline]
    pub(super) fn sum(&self) -> Option<PayloadSum> {
        self.sum.get().filter(|_| self.reads.get() == 1)
    }
}

impl<M: Memory> Memory for Gathered<'_, M> {
    fn backing(&self, space: SpaceId, address: u64, length: u64) -> Option<Backing> {
        self.memory.backing(space, address, length)
    }

    #[inline]
    fn read(&self, space: SpaceId, address: u64, length: usize, out: &mut Vec<u8>) {
        self.reads.set(self.reads.get() + 1);
        if length >= self.least && self.reads.get() == 1 {
            // No payload reaches over more than two pages: where both ends can be read, all of it can.
            let before = out.len();
            self.memory.read(space, address, 1, out);
            self.memory.read(space, address + length as u64 - 1, 1, out);
            out.truncate(before);
            return self.left.set(Some(Source { space, address, length }));
        }
        if let Some(Source { space, address, length }) = self.left.take() {
            self.memory.read(space, address, length, out);
        }
        self.sum.set(self.memory.read_summed(space, address, length, out));
    }

    fn write(&mut self, space: SpaceId, address: u64, data: &[u8]) {
        self.memory.write(space, address, data);
    }

    fn read_ghost(&self, space: SpaceId, address: u64, length: u32, out: &mut GhostRuns) {
        self.memory.read_ghost(space, address, length, out);
    }

    fn write_ghost(&mut self, space: SpaceId, address: u64, run: GhostRun) {
        self.memory.write_ghost(space, address, run);
    }

    #[inline]
    fn take_fault(&self) -> bool {
        self.memory.take_fault()
    }

    fn update(&mut self, space: SpaceId, address: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        self.memory.update(space, address, change)
    }
}
