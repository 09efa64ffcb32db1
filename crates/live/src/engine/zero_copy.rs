//! Zero-copy: data is sent from the caller's buffer and received in the caller's buffer, without slots.
//!
//! Data goes from buffer to buffer in one copy. The sender's call is closed only when the receiver, or the kernel, has read it, so
//! this is for blocking calls whose source buffers are stable: nothing writes to them before the data has arrived
//! ([`Work::kept`]).
#![expect(unsafe_code, reason = "buffers of callers are reached through pointers")]

use std::io;

use railnet_coll::machine::{Place, Work};
use railnet_coll::{Buffer, Call, Collective, Schedule};

use super::context::{ConnectionEnd, Side, Submitted};
use super::work::{self, At, Spot};
use crate::shared_memory::PeerBuffer;
use crate::transport::limits::{ZERO_COPY_MIN, ZERO_COPY_MIN_NEAR, is_zero_copy};
use crate::transport::{StableSource, ZeroCopy};

/// Whether the oldest slice is in its posted receive buffer, which is in the output.
#[inline]
fn is_in_posted(side: &Side) -> bool {
    matches!(side, Side::Receive(end) if end.is_in_posted())
}

/// Where the data of a work item is.
enum Source {
    /// In the output, at the first of its targets: a posted receive buffer.
    Posted,
    /// In a buffer of the call, and stable.
    Stable(At),
    /// In the sender's memory, and the connection closed which it was announced.
    Foreign(PeerBuffer, usize),
}

/// Executes a work item of which some data need not go through slots. `false` if there is none of that; an error has the number of
/// the connection closed which data did not arrive.
///
/// # Safety
/// As for [`super::work::execute`].
pub(super) unsafe fn execute(
    work: &Work,
    schedule: &Schedule,
    ranks: u32,
    submitted: &Submitted,
    ends: &mut [ConnectionEnd],
    spare: &mut Vec<u8>,
    scratch: At,
) -> Result<bool, (u32, io::Error)> {
    let call = &schedule.call;
    let length = call.dtype.bytes(work.count).0 as usize;
    if length < ZERO_COPY_MIN {
        return Ok(false);
    }
    let [source] = &work.sources[..] else { return Ok(false) };
    let is_posted =
        matches!(source, Place::Slot(connection, _) if is_in_posted(&ends[connection.0 as usize].side));
    let stable = work.kept(schedule);
    let source = match *source {
        Place::Slot(..) if is_posted => Source::Posted,
        Place::Buffer(..) if stable != Some(*source) => return Ok(false),
        Place::Buffer(buffer, first) => Source::Stable(submitted.at(call, buffer, first, scratch)),
        Place::Slot(connection, _) => match &mut ends[connection.0 as usize].side {
            Side::Receive(end) => match end.foreign() {
                Some(foreign) => Source::Foreign(foreign, connection.0 as usize),
                None => return Ok(false),
            },
            Side::Send(_) => return Ok(false),
        },
    };
    let is_zero_copy = submitted.keep.is_none() && is_zero_copy(call, ranks);
    // Non-temporal stores are better for an AlltoAll of that size; for an AllGather it depends on the load of the host.
    let is_large = work::is_large(call, ranks, length) && call.collective == Collective::AllToAll;
    let is_fit = ranks > 2 || call.bytes(ranks).0 > ZERO_COPY_MIN_NEAR && !is_large;
    let may_send_from = |side: &Side| match side {
        Side::Send(end) => match end.zero_copy() {
            ZeroCopy::No => false,
            ZeroCopy::ByKernel => submitted.keep.is_none(),
            ZeroCopy::ByReceiver { is_distant } => is_zero_copy && (is_distant || is_fit),
        },
        Side::Receive(_) => false,
    };
    let can_send_from = |place: &Place| match place {
        Place::Slot(connection, _) => may_send_from(&ends[connection.0 as usize].side),
        Place::Buffer(..) => false,
    };
    let is_foreign = matches!(source, Source::Foreign(..));
    let is_sent_from = work.targets.iter().any(can_send_from);
    if !is_foreign && !is_sent_from && !is_posted {
        return Ok(false);
    }
    let mut targets = &work.targets[..];
    let (from, is_stable) = match source {
        Source::Stable(at) => (at, true),
        Source::Posted => {
            let [Place::Buffer(buffer, first), rest @ ..] = targets else {
                unreachable!("a posted buffer is the first target")
            };
            targets = rest;
            (submitted.at(call, *buffer, *first, scratch), stable.is_some())
        }
        Source::Foreign(foreign, connection) => {
            let (into, is_stable) = match targets {
                [Place::Buffer(buffer @ (Buffer::Input | Buffer::Output), first), rest @ ..] => {
                    targets = rest;
                    (submitted.at(call, *buffer, *first, scratch), true)
                }
                _ => {
                    spare.resize(spare.len().max(length), 0);
                    (At(spare.as_mut_ptr()), false)
                }
            };
            let wrong = |error| (connection as u32, error);
            // SAFETY: it is an operand of the work, or `spare`, which is long enough.
            unsafe { foreign.process.read(foreign.address, into.0, length) }.map_err(wrong)?;
            if let Side::Receive(end) = &ends[connection].side
                && !end.is_still_stable(length)
            {
                return Err(wrong(io::Error::other("the sender has given up and taken its data back")));
            }
            (into, is_stable)
        }
    };
    for place in targets {
        match *place {
            Place::Buffer(buffer, first) => {
                let at = submitted.at(call, buffer, first, scratch);
                let to = Spot { at, is_streamed: !is_zero_copy && work::is_large(call, ranks, length) };
                // SAFETY: both are operands of the work, or `spare`.
                unsafe { to.take(from, 0, length) };
            }
            Place::Slot(connection, slot) => {
                let side = &mut ends[connection.0 as usize].side;
                let is_sent_from = is_stable && may_send_from(side);
                let Side::Send(end) = side else { continue };
                if is_sent_from {
                    // SAFETY: a call is closed only when all that it sent is with the kernel or the receiver, and until then its
                    // buffers do not change where they are sent from, as its schedule says. If it fails, its ends are closed first.
                    end.send_from(slot, unsafe { StableSource::new(from.0) }, length);
                } else {
                    // SAFETY: both are operands of the work, or `spare`.
                    unsafe { from.copy_to(At(end.data(slot, length)), length) }
                }
            }
        }
    }
    Ok(true)
}

/// Where the result of a work item is in the output, if it can be sent from there in place of a slot.
pub(super) fn result(work: &Work, schedule: &Schedule, submitted: &Submitted) -> Option<At> {
    let length = schedule.call.dtype.bytes(work.count).0 as usize;
    if length < ZERO_COPY_MIN || work.targets.len() < 2 || submitted.keep.is_some() {
        return None;
    }
    match work.kept(schedule)? {
        Place::Buffer(Buffer::Output, first) if work.targets[0] == Place::Buffer(Buffer::Output, first) => {
            Some(submitted.at(&schedule.call, Buffer::Output, first, submitted.output))
        }
        _ => None,
    }
}

impl Submitted {
    /// Where an element of a buffer is.
    fn at(&self, call: &Call, buffer: Buffer, first: u64, scratch: At) -> At {
        let start = match buffer {
            Buffer::Input => self.input,
            Buffer::Output => self.output,
            Buffer::Scratch => scratch,
        };
        At(start.0.wrapping_add(call.dtype.bytes(first).0 as usize))
    }
}
