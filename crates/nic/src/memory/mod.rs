//! Memory as the NIC sees it: lent by the driver, of real bytes or of ghosts.
//!
//! The driver owns memory because several parties touch it: more than one NIC, a GPU that reduces, a switch. A region
//! says which [`SpaceId`] of the driver's it lies in and whether that part has bytes or is a ghost.

mod ghost;
mod segments;

use railnet_core::GhostRun;
use railnet_wire::PayloadSum;
use smallvec::SmallVec;

pub use ghost::{GhostMemory, reduce_ghosts};
pub use segments::Segments;

/// Which of the driver's address spaces a region lies in: a process, a GPU, a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct SpaceId(pub u32);

/// What stands behind a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Real bytes.
    Bytes,
    /// Lengths and tags only.
    Ghost,
}

/// Ghost data in order. One run is the rule: a packet seldom spans two buffers.
pub type GhostRuns = SmallVec<[GhostRun; 1]>;

/// What the driver lends. The NIC calls it only for ranges that lie inside a registered region. A range that
/// [`Memory::backing`] accepted at registration stays accessible until the region is gone, or the access reports a fault
/// ([`Memory::take_fault`]).
pub trait Memory {
    /// What stands behind this range, or `None` when it is not all mapped with one kind.
    fn backing(&self, space: SpaceId, address: u64, length: u64) -> Option<Backing>;

    /// Appends bytes of a range to `out`.
    fn read(&self, space: SpaceId, address: u64, length: usize, out: &mut Vec<u8>);

    /// As [`Memory::read`], and tells what the bytes add to the ICRC of a packet that carries them and nothing else, where
    /// that is found at less cost than by reading them again.
    #[inline]
    fn read_summed(
        &self,
        space: SpaceId,
        address: u64,
        length: usize,
        out: &mut Vec<u8>,
    ) -> Option<PayloadSum> {
        self.read(space, address, length, out);
        None
    }

    /// Writes bytes to a range.
    fn write(&mut self, space: SpaceId, address: u64, data: &[u8]);

    /// Appends what a ghost range holds to `out`.
    fn read_ghost(&self, space: SpaceId, address: u64, length: u32, out: &mut GhostRuns);

    /// Writes a run to a ghost range.
    fn write_ghost(&mut self, space: SpaceId, address: u64, run: GhostRun);

    /// Whether an access since the last call failed because its pages are gone; resets the report. The NIC asks after each
    /// access and treats a fault as a protection error. Memory that cannot lose its pages keeps this default.
    #[inline]
    fn take_fault(&self) -> bool {
        false
    }

    /// Replaces the eight bytes at an aligned address by `change(old)` and returns the old value. Atomics work on the
    /// host's own byte order, which is little-endian here.
    fn update(&mut self, space: SpaceId, address: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut old = Vec::with_capacity(8);
        self.read(space, address, 8, &mut old);
        let old = u64::from_le_bytes(old.try_into().expect("eight bytes were asked for"));
        self.write(space, address, &change(old).to_le_bytes());
        old
    }
}
