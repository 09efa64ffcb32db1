//! Doing a piece of work on real memory: copying and reducing between the buffers of a call and the slots of connections.
#![expect(unsafe_code, reason = "slots and the caller's buffers are reached through pointers")]

use railnet_coll::machine::{Place, Work};
use railnet_coll::{Buffer, Call};
use railnet_core::ReduceOp;
use railnet_core::reduce::{self, ReduceError};

/// Bytes that are worked on at once where they are looked at more than once: they stay in the first cache.
const BLOCK: usize = 16 << 10;

/// Memory that a piece of work uses, from here on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At(pub(crate) *mut u8);

// SAFETY: it is an address and no more; who uses what lies there says why that is right.
unsafe impl Send for At {}
// SAFETY: as above.
unsafe impl Sync for At {}

impl At {
    fn plus(self, offset: usize) -> Self {
        Self(self.0.wrapping_add(offset))
    }

    /// Copies bytes to another place, which may be the same one.
    ///
    /// # Safety
    /// Both must be so many bytes of memory that nobody else uses now.
    unsafe fn copy_to(self, to: Self, length: usize) {
        if self != to {
            // SAFETY: the caller says so; they may overlap.
            unsafe { std::ptr::copy(self.0, to.0, length) }
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

/// Does a piece of work of a call among so many ranks. `locate` says where places are; `spare` is memory to work in.
///
/// # Safety
/// Every place must be memory for all of the work, which nobody else uses until this returns. Places are either the same
/// or do not overlap.
pub(crate) unsafe fn execute(
    work: &Work,
    call: &Call,
    ranks: u32,
    spare: &mut Vec<u8>,
    mut locate: impl FnMut(Place) -> At,
) -> Result<(), ReduceError> {
    let length = call.dtype.bytes(work.count).0 as usize;
    let reduces = call.collective.reduces();
    let divides = work.is_final && reduces && call.op == ReduceOp::Average;
    let multiplies = reduces && matches!(call.op, ReduceOp::PreMulSum(_));
    if let ([source], [target]) = (&work.sources[..], &work.targets[..])
        && !divides
        && !multiplies
    {
        // SAFETY: the caller says so.
        unsafe { locate(*source).copy_to(locate(*target), length) };
        return Ok(());
    }
    let first = locate(work.targets[0]);
    // The result is made in its first target, unless that is where later data still lies.
    let late = multiplies || work.sources.iter().skip(2).any(|place| locate(*place) == first);
    let mut offset = 0;
    while offset < length {
        let part = BLOCK.min(length - offset);
        if late {
            spare.resize(2 * BLOCK, 0);
        }
        let (result, scaled) = (At(spare.as_mut_ptr()), At(spare.as_mut_ptr().wrapping_add(BLOCK)));
        let target = if late { result } else { first.plus(offset) };
        for (index, place) in work.sources.iter().enumerate() {
            let mut source = locate(*place).plus(offset);
            // SAFETY: all of these are `part` bytes that are ours: of places, as the caller says, or of `spare`, which
            // has two blocks where they are used. Slices are made of different memory, as `combine` below sees to.
            unsafe {
                if multiplies && matches!(place, Place::Buffer(Buffer::Input, _)) {
                    source.copy_to(scaled, part);
                    source = scaled;
                    reduce::prepare(call.dtype, call.op, source.bytes_mut(part))?;
                }
                match index {
                    0 if work.sources.len() == 1 || multiplies => source.copy_to(target, part),
                    // Together with the next.
                    0 => {}
                    1 if !multiplies => {
                        combine(call, target, locate(work.sources[0]).plus(offset), source, part)?
                    }
                    _ => reduce::reduce(call.dtype, call.op, target.bytes_mut(part), source.bytes(part))?,
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            if divides {
                reduce::finish(call.dtype, call.op, ranks, target.bytes_mut(part))?;
            }
            if late {
                target.copy_to(first.plus(offset), part);
            }
            for other in &work.targets[1..] {
                target.copy_to(locate(*other).plus(offset), part);
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
            reduce::combine(
                call.dtype,
                call.op,
                target.bytes_mut(length),
                left.bytes(length),
                right.bytes(length),
            )
        }
    }
}
