//! Doing a piece of work on real memory: copying and reducing between the buffers of a call and the slots of connections.
#![expect(unsafe_code, reason = "slots and the caller's buffers are reached through pointers")]

use railnet_coll::machine::{Place, Work};
use railnet_coll::{Buffer, Call};
use railnet_core::ReduceOp;
use railnet_core::reduce::{self, ReduceError};
use smallvec::SmallVec;

use super::streaming;

/// Bytes that are worked on at once where they are looked at more than once: they stay in the first cache.
const BLOCK: usize = 16 << 10;
/// Bytes from which a copy goes past the caches, where it should. Below that, an AllGather of 2 KiB took half the time
/// between cores that share a cache and no longer between others; from there on the others would take several times as long.
const STREAMED: usize = 2 << 10;
/// Bytes of a call from which its output is more than a core's share of the caches. Between near cores calls of 8 MiB take 0.76
/// (AlltoAll, Broadcast) to 1.0 (AllGather) of the time so, those of 4 MiB up to 1.45.
const LARGE: u64 = 8 << 20;

/// Whether so many bytes of the output of a call should go past the caches. What reduces is better off with the caches at any
/// size: a sum is made where it goes, and not somewhere else first (a ReduceScatter of 32 MiB 3.5 ms for 4.8).
#[inline]
pub(super) fn is_large(call: &Call, ranks: u32, length: usize) -> bool {
    length >= STREAMED && !call.collective.reduces() && call.bytes(ranks).0 >= LARGE
}

/// Memory that a piece of work uses, from here on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At(pub(crate) *mut u8);

// SAFETY: it is an address and no more; who uses what lies there says why that is right.
unsafe impl Send for At {}
// SAFETY: as above.
unsafe impl Sync for At {}

/// Where a place is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) at: At,
    /// Whether what is written there is of no use in the caches of this core: another will read it, or it is more than
    /// they hold.
    pub(super) is_streamed: bool,
}

impl At {
    fn plus(self, offset: usize) -> Self {
        Self(self.0.wrapping_add(offset))
    }

    /// Copies bytes to another place, which may be the same one.
    ///
    /// # Safety
    /// Both must be so many bytes of memory that nobody else uses now. They are either the same or do not overlap.
    pub(super) unsafe fn copy_to(self, to: Self, length: usize) {
        if self != to {
            // SAFETY: the caller says so.
            unsafe { std::ptr::copy_nonoverlapping(self.0, to.0, length) }
        }
    }

    /// # Safety
    /// So many bytes of memory that nobody writes now.
    unsafe fn bytes<'a>(self, length: usize) -> &'a [u8] {
        // SAFETY: the caller says so.
        unsafe { std::slice::from_raw_parts(self.0, length) }
    }

    /// # Safety
    /// So many bytes of memory that nobody else uses now.
    unsafe fn bytes_mut<'a>(self, length: usize) -> &'a mut [u8] {
        // SAFETY: the caller says so.
        unsafe { std::slice::from_raw_parts_mut(self.0, length) }
    }
}

impl Spot {
    /// Copies bytes here from `offset` on.
    ///
    /// # Safety
    /// As for [`At::copy_to`].
    pub(super) unsafe fn take(self, from: At, offset: usize, length: usize) {
        let at = self.at.plus(offset);
        // SAFETY: the caller says so.
        unsafe {
            if self.is_streamed && length >= STREAMED && from != at {
                streaming::copy(from.0, at.0, length);
            } else {
                from.copy_to(at, length);
            }
        }
    }
}

/// Does a piece of work of a call among so many ranks. `locate` says where places are; `spare` is memory to work in.
///
/// # Safety
/// Every place must be memory for all of the work, which nobody else uses until this returns. Places are either the same
/// or do not overlap.
pub(super) unsafe fn execute(
    work: &Work,
    call: &Call,
    ranks: u32,
    spare: &mut Vec<u8>,
    mut locate: impl FnMut(Place) -> Spot,
) -> Result<(), ReduceError> {
    let length = call.dtype.bytes(work.count).0 as usize;
    let reduces = call.collective.reduces();
    let divides = work.is_final && reduces && call.op == ReduceOp::Average;
    let multiplies = reduces && matches!(call.op, ReduceOp::PreMulSum(_));
    if let ([source], false, false) = (&work.sources[..], divides, multiplies) {
        let source = locate(*source).at;
        if let [target] = &work.targets[..] {
            // SAFETY: the caller says so.
            unsafe { locate(*target).take(source, 0, length) };
            return Ok(());
        }
        let mut targets: SmallVec<[Spot; 4]> = work.targets.iter().map(|place| locate(*place)).collect();
        // What is sent from where it goes, goes there once.
        targets.dedup_by_key(|target| target.at.0);
        // Block by block, so that all but the first of them come out of the cache.
        for offset in (0..length).step_by(BLOCK) {
            for target in &targets {
                // SAFETY: as above.
                unsafe { target.take(source.plus(offset), offset, BLOCK.min(length - offset)) };
            }
        }
        return Ok(());
    }
    let mut sources: SmallVec<[At; 4]> = SmallVec::new();
    for place in &work.sources {
        sources.push(locate(*place).at);
    }
    let mut targets: SmallVec<[Spot; 4]> = SmallVec::new();
    for place in &work.targets {
        targets.push(locate(*place));
    }
    targets.dedup_by_key(|target| target.at.0);
    // The result is made in its first target, unless later data still lies there, or it shall not be in the caches.
    let first = targets[0];
    let apart = multiplies
        || first.is_streamed && length >= STREAMED
        || sources.iter().skip(2).any(|source| *source == first.at);
    if apart {
        spare.resize(2 * BLOCK, 0);
    }
    let (made, scaled) = (At(spare.as_mut_ptr()), At(spare.as_mut_ptr()).plus(BLOCK));
    let mut offset = 0;
    while offset < length {
        let part = BLOCK.min(length - offset);
        let result = if apart { made } else { first.at.plus(offset) };
        for (index, source) in sources.iter().enumerate() {
            let mut source = source.plus(offset);
            // SAFETY: all of these are `part` bytes that are ours: of places, as the caller says, or of `spare`, which
            // has two blocks where they are used. Slices are made of different memory, as `combine` below sees to.
            unsafe {
                if multiplies && matches!(work.sources[index], Place::Buffer(Buffer::Input, _)) {
                    source.copy_to(scaled, part);
                    source = scaled;
                    reduce::prepare(call.dtype, call.op, source.bytes_mut(part))?;
                }
                match index {
                    0 if sources.len() == 1 || multiplies => source.copy_to(result, part),
                    // Together with the next.
                    0 => {}
                    1 if !multiplies => combine(call, result, sources[0].plus(offset), source, part)?,
                    _ => reduce::reduce(call.dtype, call.op, result.bytes_mut(part), source.bytes(part))?,
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            if divides {
                reduce::finish(call.dtype, call.op, ranks, result.bytes_mut(part))?;
            }
            for target in &targets[usize::from(!apart)..] {
                target.take(result, offset, part);
            }
        }
        offset += part;
    }
    Ok(())
}

/// Puts two things together. Operations do not mind the order of two.
///
/// # Safety
/// All three must be so many bytes of memory that nobody else uses now. They are either the same or do not overlap.
unsafe fn combine(call: &Call, target: At, left: At, right: At, length: usize) -> Result<(), ReduceError> {
    // SAFETY: the caller says so, and a slice that is written is no other's memory.
    unsafe {
        if target == left {
            reduce::reduce(call.dtype, call.op, target.bytes_mut(length), right.bytes(length))
        } else if target == right {
            reduce::reduce(call.dtype, call.op, target.bytes_mut(length), left.bytes(length))
        } else {
            let (left, right) = (left.bytes(length), right.bytes(length));
            reduce::combine(call.dtype, call.op, target.bytes_mut(length), left, right)
        }
    }
}
