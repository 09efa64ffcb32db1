//! FIFO depth, lengths of slots and slices, and the sizes at which a transport changes how it moves data: all in one place.
//!
//! Each threshold has the measurement it comes from. What a single file needs alone (buffers of sockets, say) is there.

use railnet_coll::{Call, Collective, Fifo};
use railnet_core::Bytes;

use crate::conduit::Conduit;

/// Slots of a connection: the depth of its FIFO.
pub(crate) const DEPTH: u32 = 8;

/// The most bytes of a slot, by transport. Most calls use less ([`Conduit::slice`]); pages that are never touched take no memory.
pub(crate) const SHARED_MEMORY_SLOT: usize = 512 << 10;
pub(crate) const TCP_SLOT: usize = 1 << 20;
pub(crate) const ROCE_SLOT: usize = 32 << 10;

/// Bytes of a slice from which zero-copy is considered: a system call costs less than the copy.
pub(crate) const ZERO_COPY_MIN: usize = 16 << 10;
/// Bytes for each rank from which ranks of a host read each other's buffers, and bytes of a call up to which they do: between two
/// ranks, and among more. Outside, slots are as good or better: the kernel copies through the caches, and slots are written with
/// non-temporal stores. Among four ranks on two cores an AlltoAll of 64, 128, 256, 512 KiB, 1, 2 MiB takes 32 37 55 93 173 360 µs
/// with zero-copy, and 20 38 74 125 250 720 with slots.
const ZERO_COPY_MIN_PER_RANK: [u64; 2] = [32 << 10, 64 << 10];
const ZERO_COPY_MAX: [u64; 2] = [8 << 20, 4 << 20];
/// Bytes of a call between two ranks that share a last-level cache from which they do: up to there slots stay in the cache.
pub(crate) const ZERO_COPY_MIN_NEAR: u64 = 2 << 20;

/// Bytes for each rank from which slices are as long as slots in shared memory, where blocks of all ranks cross: an AlltoAll of
/// 8 MiB between two ranks took 530 µs so, and 670 with slices of 32 KiB; one of 16 MiB 1.58 ms, and 1.77 with slices of 128 KiB.
const LONG_SLICE_MIN_PER_RANK: u64 = 128 << 10;
/// Bytes of a call among more than two ranks up to which that is so: beyond, the slots of all connections exceed the caches.
const LONG_SLICE_MAX: u64 = 4 << 20;
/// The same between two ranks over TCP: AllGather and AlltoAll of 32 MiB take 0.86 of the time so, those of 2 MiB 1.1 to 1.3.
const LONG_SLICE_MIN_TCP: u64 = 16 << 20;

/// The most ranks for which the algorithm Direct is eligible: each has a connection to each, with memory of its own.
pub(super) const DIRECT_RANKS_MAX: u32 = 8;
/// Bytes of a Broadcast or Reduce over TCP from which ranks that share a core are neighbours in the ring.
pub(crate) const RING_BY_CORE_MIN: u64 = 8 << 10;

impl Conduit {
    /// The FIFO of the connections of a communicator whose slowest conduit this is: one layout for all calls, so that no call
    /// waits for the slots of the one before it to drain.
    pub(crate) const fn fifo(self) -> Fifo {
        let slot = Bytes(self.slot_max());
        Fifo { slot, depth: DEPTH, slots_per_slice: 1, slices_per_chunk: 1 }
    }

    /// The FIFO where the user sets the bytes of a connection's buffer (`NCCL_BUFFSIZE`).
    pub(crate) fn fifo_with(self, buffer: Option<Bytes>) -> Fifo {
        let default = self.fifo();
        // A NIC has slots of one length.
        let (Some(buffer), Self::SharedMemory | Self::Tcp) = (buffer, self) else { return default };
        let slot = (buffer.0 / u64::from(default.depth)).next_multiple_of(64).min(self.slot_max());
        Fifo { slot: Bytes(slot), ..default }
    }

    /// The longest slice of a call that copies to slots. A NIC sends packet by packet, and has as many under way as all slots hold.
    ///
    /// Slices of 128 KiB move 1.2 to 1.5 times what those of 32 KiB do from 512 KiB on, in shared memory, wherever the cores
    /// are; longer ones no more, and less where a call has few of them.
    pub(crate) const fn slice(self) -> Bytes {
        match self {
            Self::SharedMemory | Self::Tcp => Bytes(128 << 10),
            Self::Roce => Bytes(ROCE_SLOT as u64),
        }
    }

    /// Whether slices are as long as slots, in a call of so many bytes in which blocks of all ranks cross.
    pub(crate) const fn has_long_slices(self, bytes: u64, ranks: u32) -> bool {
        match self {
            Self::SharedMemory => {
                bytes / ranks as u64 >= LONG_SLICE_MIN_PER_RANK && (ranks == 2 || bytes <= LONG_SLICE_MAX)
            }
            Self::Tcp => ranks == 2 && bytes >= LONG_SLICE_MIN_TCP,
            Self::Roce => false,
        }
    }

    /// The longest slot that a connection has room for.
    const fn slot_max(self) -> u64 {
        match self {
            Self::SharedMemory => SHARED_MEMORY_SLOT as u64,
            Self::Tcp => TCP_SLOT as u64,
            Self::Roce => ROCE_SLOT as u64,
        }
    }
}

/// Whether ranks of a host send zero-copy in a call: where all send and receive, so that none waits longer for that.
pub(crate) fn is_zero_copy(call: &Call, ranks: u32) -> bool {
    // Around a ring, what was read is sent on: among more than two, slots are better. AllGather of 1, 2, 4 MiB among four 115 330
    // 790 µs with slots and 165 320 790 zero-copy, with distant cores 270 560 1,150 and 630 1,250 2,400.
    let is_eligible = match call.collective {
        Collective::AllGather => ranks == 2,
        collective => collective == Collective::AllToAll,
    };
    let (bytes, index) = (call.bytes(ranks).0, usize::from(ranks > 2));
    is_eligible
        && bytes <= ZERO_COPY_MAX[index]
        && bytes >= ZERO_COPY_MIN_PER_RANK[index] * u64::from(ranks.max(1))
}
