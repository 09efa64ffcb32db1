//! Copies that spare a slot: a rank lends what it sends, and the receiver reads it where it lies.
//!
//! Data goes from buffer to buffer in one copy. The sender's call is over only when the receiver has read it, so this is
//! for calls that somebody waits for, and that write to nothing that they send before it has come
//! ([`Work::kept`]).
#![expect(unsafe_code, reason = "buffers of callers are reached through pointers")]

use std::io;

use railnet_coll::machine::{Place, Work};
use railnet_coll::{Buffer, Call, Collective, Schedule};

use super::context::{End, Submitted, Way};
use super::work::{self, At, Spot};
use crate::conduit::{ReceiveEnd, SendEnd};
use crate::shared_memory::Foreign;
use crate::tcp::Lent;

/// Bytes of a slice from which a system call is worth less than a copy.
pub(super) const LEAST: usize = 16 << 10;
/// Bytes for each rank from which a call lends, and bytes of a call up to which it does: between two ranks, and among more.
/// Outside, slots are as good or better: the system's copies go through the caches, and ours past them. Among four ranks on two
/// cores an AlltoAll of 64, 128, 256, 512 KiB, 1, 2 MiB takes 32 37 55 93 173 360 µs so, and 20 38 74 125 250 720 with slots.
const WORTH: [u64; 2] = [32 << 10, 64 << 10];
const MOST: [u64; 2] = [8 << 20, 4 << 20];
/// Bytes of a call between two ranks from which it does where their cores are near each other: up to there slots stay in
/// the caches.
const NEAR: u64 = 2 << 20;

/// Whether a call should lend what it sends to ranks of this host: where all send and receive, so that none of them waits
/// longer for that.
fn lends(call: &Call, ranks: u32) -> bool {
    // Around a ring, what was read is lent on: among more than two, slots are better. AllGather of 1, 2, 4 MiB among four 115 330 790 µs
    // with them and 165 320 790 without, with far cores 270 560 1,150 and 630 1,250 2,400.
    let is_fit = match call.collective {
        Collective::AllGather => ranks == 2,
        collective => collective == Collective::AllToAll,
    };
    if !is_fit {
        return false;
    }
    let (bytes, kind) = (call.bytes(ranks).0, usize::from(ranks > 2));
    bytes <= MOST[kind] && bytes >= WORTH[kind] * u64::from(ranks.max(1))
}

/// Whether the slice that is there is in the output already.
#[inline]
const fn has_landed(way: &Way) -> bool {
    matches!(way, Way::Receive(ReceiveEnd::Tcp(end)) if end.has_landed())
}

/// Where the data of a piece of work is.
enum Source {
    /// In the output, at the first of its targets.
    Landed,
    /// In a buffer of the call, where it stays.
    Lasting(At),
    /// In the memory of the sender, at the end of a connection.
    Foreign(Foreign, usize),
}

/// Does a piece of work in which data need not go through all of its slots. Says `false` where there is none of that, and
/// an error with the number of the connection over which it did not come.
///
/// # Safety
/// As for [`super::work::execute`].
pub(super) unsafe fn execute(
    work: &Work,
    schedule: &Schedule,
    ranks: u32,
    submitted: &Submitted,
    ends: &mut [End],
    spare: &mut Vec<u8>,
    scratch: At,
) -> Result<bool, (u32, io::Error)> {
    let call = &schedule.call;
    let length = call.dtype.bytes(work.count).0 as usize;
    // Nobody lends so little.
    if length < LEAST {
        return Ok(false);
    }
    let [source] = &work.sources[..] else { return Ok(false) };
    let landed = matches!(source, Place::Slot(connection, _) if has_landed(&ends[connection.0 as usize].way));
    let kept = work.kept(schedule);
    let source = match *source {
        Place::Slot(..) if landed => Source::Landed,
        Place::Buffer(..) if kept != Some(*source) => return Ok(false),
        Place::Buffer(buffer, first) => Source::Lasting(submitted.at(call, buffer, first, scratch)),
        Place::Slot(connection, _) => match &mut ends[connection.0 as usize].way {
            Way::Receive(ReceiveEnd::Shared(end)) => match end.lent() {
                Some(lent) => Source::Foreign(lent, connection.0 as usize),
                None => return Ok(false),
            },
            _ => return Ok(false),
        },
    };
    let lends = submitted.keep.is_none() && lends(call, ranks);
    // Past the caches is better for an AlltoAll of that size; for an AllGather it depends on who else is on the host.
    let is_large = work::is_large(call, ranks, length) && call.collective == Collective::AllToAll;
    let is_fit = ranks > 2 || call.bytes(ranks).0 > NEAR && !is_large;
    let may_lend = |way: &Way| match way {
        Way::Send(SendEnd::Shared(end)) => lends && end.can_lend() && (end.is_far() || is_fit),
        // The system takes it as soon as it has room, whatever the receiver does.
        Way::Send(SendEnd::Tcp(_)) => submitted.keep.is_none(),
        _ => false,
    };
    let can_lend = |place: &Place| match place {
        Place::Slot(connection, _) => may_lend(&ends[connection.0 as usize].way),
        Place::Buffer(..) => false,
    };
    let is_lent = matches!(source, Source::Foreign(..));
    let is_lending = work.targets.iter().any(can_lend);
    if !is_lent && !is_lending && !landed {
        return Ok(false);
    }
    let mut targets = &work.targets[..];
    let (from, lasts) = match source {
        Source::Lasting(at) => (at, true),
        Source::Landed => {
            let [Place::Buffer(buffer, first), rest @ ..] = targets else {
                unreachable!("it has landed at its first target")
            };
            targets = rest;
            (submitted.at(call, *buffer, *first, scratch), kept.is_some())
        }
        Source::Foreign(foreign, connection) => {
            let (into, lasts) = match targets {
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
            // SAFETY: it is a place of the work, or `spare`, which is long enough.
            unsafe { foreign.process.read(foreign.address, into.0, length) }.map_err(wrong)?;
            if let Way::Receive(ReceiveEnd::Shared(end)) = &ends[connection].way
                && !end.is_still_lent(length)
            {
                return Err(wrong(io::Error::other("the sender has given up and taken its data back")));
            }
            (into, lasts)
        }
    };
    for place in targets {
        match *place {
            Place::Buffer(buffer, first) => {
                let at = submitted.at(call, buffer, first, scratch);
                let to = Spot { at, is_streamed: !lends && work::is_large(call, ranks, length) };
                // SAFETY: both are places of the work, or `spare`.
                unsafe { to.take(from, 0, length) };
            }
            Place::Slot(connection, slot) => {
                let way = &mut ends[connection.0 as usize].way;
                let is_lent = lasts && may_lend(way);
                let Way::Send(end) = way else { continue };
                match end {
                    SendEnd::Shared(end) if is_lent => end.lend(from.0, length),
                    // SAFETY: a call is over only when all that it sent is with the system, and until then its buffers are
                    // not changed where they are sent from, as its schedule says. If it fails, its ends are gone before.
                    SendEnd::Tcp(end) if is_lent => end.lend(slot, unsafe { Lent::new(from.0) }),
                    // SAFETY: both are places of the work, or `spare`.
                    end => unsafe { from.copy_to(At(end.data(slot, length)), length) },
                }
            }
        }
    }
    Ok(true)
}

/// Where the result of a piece of work is in the output and is sent from, in place of slots of streams.
pub(super) fn result(work: &Work, schedule: &Schedule, submitted: &Submitted) -> Option<At> {
    let length = schedule.call.dtype.bytes(work.count).0 as usize;
    if length < LEAST || work.targets.len() < 2 || submitted.keep.is_some() {
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
