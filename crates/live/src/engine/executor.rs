//! The synchronous executor of a communicator's machine: it copies and reduces between buffers and slots, and publishes slots.

use std::collections::VecDeque;

use railnet_coll::Buffer;
use railnet_coll::machine::{
    ConnectionId, Execution, Executor, Handed, InlineCopy, Mark, OperationId, Place, Polled, ReceiveBuffer,
    Task,
};
use railnet_core::Bytes;

use super::batching::Batching;
use super::conduits::Conduits;
use super::context::{ConnectionEnd, Side, Submitted};
use super::work::{self, At, Spot};
use super::zero_copy;
use crate::transport::limits::ZERO_COPY_MIN;
use crate::transport::{Arrival, PostedBuffer, StableSource, ZeroCopy};

/// The parts of a communicator that work touches.
pub(super) struct Synchronous<'a> {
    pub(super) ends: &'a mut [ConnectionEnd],
    pub(super) calls: &'a mut VecDeque<Submitted>,
    pub(super) done: &'a mut u64,
    pub(super) has_unsent: &'a mut bool,
    pub(super) batching: &'a mut Batching,
    pub(super) unread: &'a mut Option<(ConnectionId, String)>,
    pub(super) spare: &'a mut Vec<u8>,
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) conduits: &'a mut Conduits,
    pub(super) ranks: u32,
    /// How often in a row it is worth polling memory.
    pub(super) polls: u32,
    /// A connection with small slices that the system does not have: those that follow each other go together.
    pub(super) unpushed: Option<ConnectionId>,
}

impl Synchronous<'_> {
    /// Gives the system what it should have before anything is waited for. If nothing is, as far as is known, it may hold it back.
    #[inline]
    pub(super) fn push(&mut self, is_over: bool) {
        let Some(connection) = self.unpushed.take() else { return };
        if let ConnectionEnd { side: Side::Send(end), .. } = &mut self.ends[connection.0 as usize] {
            end.push(is_over && self.batching.is_burst());
            *self.has_unsent |= end.has_unsent();
            self.batching.is_holding |= end.is_holding();
        }
    }
}

impl Executor for Synchronous<'_> {
    /// NICs are polled elsewhere, all together.
    #[inline(always)]
    fn poll(&mut self, connection: ConnectionId) -> Polled {
        self.push(false);
        let ConnectionEnd { side, closed: closed @ None, .. } = &mut self.ends[connection.0 as usize] else {
            return Polled::Nothing;
        };
        match side {
            Side::Receive(end) => match end.arrived_inline() {
                Ok(Arrival::Slice(mark)) => Polled::Arrived(mark),
                Ok(_) => Polled::Nothing,
                Err(error) => {
                    *closed = Some(error.to_string());
                    Polled::Nothing
                }
            },
            Side::Send(end) => match end.freed_inline() {
                0 => Polled::Nothing,
                count => Polled::Freed(count),
            },
        }
    }

    #[inline]
    fn polls(&self, connection: ConnectionId) -> u32 {
        match &self.ends[connection.0 as usize].side {
            Side::Receive(end) if end.is_shared() => self.polls,
            _ => 1,
        }
    }

    #[expect(unsafe_code, reason = "the caller's buffers are reached through pointers")]
    #[inline]
    fn post_receive(&mut self, connection: ConnectionId, buffer: ReceiveBuffer) {
        let length = buffer.length.0 as usize;
        let Side::Receive(end) = &mut self.ends[connection.0 as usize].side else { return };
        if !end.takes_posted() {
            return;
        }
        // One way only, what is read ahead into slots makes more room for the sender.
        if length >= ZERO_COPY_MIN && !buffer.collective.is_one_way() {
            let submitted = &self.calls[(buffer.operation.0 - *self.done) as usize];
            let at = submitted.output.0.wrapping_add(buffer.offset.0 as usize);
            // SAFETY: it is part of the output of a call under way, in which nothing else is done with it until this slice
            // was taken; a call that fails is over when its ends are gone.
            end.post(unsafe { PostedBuffer::new(at, length) });
        }
    }

    #[expect(unsafe_code, reason = "the caller's buffers and slots are reached through pointers")]
    #[inline(always)]
    fn copy_inline(&mut self, copy: &InlineCopy, connections: &[ConnectionId], mark: Mark) -> bool {
        let Some(Submitted { input, output, .. }) = self.calls.back() else { return false };
        let (input, output) = (*input, *output);
        let at = |(buffer, offset): (Buffer, Bytes)| {
            let start = if buffer == Buffer::Input { input } else { output };
            At(start.0.wrapping_add(offset.0 as usize))
        };
        let length = copy.length.0 as usize;
        let (from, sends) = match (copy.from, connections) {
            (Some(place), sends) => (at(place), sends),
            (None, [first, sends @ ..]) => match &mut self.ends[first.0 as usize].side {
                Side::Receive(end) if end.is_shared() => (At(end.data(0, length)), sends),
                _ => return false,
            },
            (None, []) => return false,
        };
        let is_shared = |connection: &ConnectionId| matches!(&self.ends[connection.0 as usize].side, Side::Send(end) if end.is_shared());
        if !sends.iter().all(is_shared) {
            return false;
        }
        for connection in sends {
            if let Side::Send(end) = &mut self.ends[connection.0 as usize].side {
                // SAFETY: the slice that is sent and its place are so many bytes that nobody else uses now, as in `execute`.
                unsafe { from.copy_to(At(end.data(0, length)), length) };
                end.publish_inline(length, mark);
            }
        }
        if let Some(place) = copy.into {
            // SAFETY: as above.
            unsafe { from.copy_to(at(place), length) };
        }
        if copy.from.is_none()
            && let Side::Receive(end) = &mut self.ends[connections[0].0 as usize].side
        {
            end.release(None);
        }
        true
    }

    #[expect(unsafe_code, reason = "work on the caller's buffers and on slots is done through pointers")]
    #[inline(always)]
    fn execute(&mut self, task: Task<'_>) -> Execution {
        let (work, schedule) = task.describe();
        let Self { ends, calls, spare, scratch, done, unread, ranks, .. } = self;
        let ranks = *ranks;
        let submitted = &calls[(work.operation.0 - **done) as usize];
        let call = &schedule.call;
        let scratch = At(scratch.as_mut_ptr());
        // SAFETY: as below.
        match unsafe { zero_copy::execute(work, schedule, ranks, submitted, ends, spare, scratch) } {
            Ok(true) => return Execution::Done,
            Ok(false) => {}
            Err((connection, error)) => {
                **unread = Some((ConnectionId(connection), format!("cannot read what was sent: {error}")));
                return Execution::Pending;
            }
        }
        let result = zero_copy::result(work, schedule, submitted);
        let Submitted { input, output, .. } = submitted;
        let bytes = |count: u64| call.dtype.bytes(count).0 as usize;
        let length = bytes(work.count);
        let own = |start: At, first: u64, is_streamed: bool| Spot {
            at: At(start.0.wrapping_add(bytes(first))),
            is_streamed,
        };
        let mut locate = |place: Place| match place {
            Place::Buffer(Buffer::Input, first) => own(*input, first, false),
            Place::Buffer(Buffer::Output, first) => own(*output, first, work::is_large(call, ranks, length)),
            Place::Buffer(Buffer::Scratch, first) => own(scratch, first, false),
            Place::Slot(connection, slot) => match &mut ends[connection.0 as usize].side {
                Side::Send(end)
                    if let Some(at) = result
                        && end.zero_copy() == ZeroCopy::ByKernel =>
                {
                    // SAFETY: as in `zero_copy::execute`.
                    end.send_from(slot, unsafe { StableSource::new(at.0) }, length);
                    Spot { at, is_streamed: false }
                }
                Side::Send(end) => {
                    let is_streamed = end.is_streamed();
                    Spot { at: At(end.data(slot, length)), is_streamed }
                }
                Side::Receive(end) => Spot { at: At(end.data(slot, length)), is_streamed: false },
            },
        };
        // SAFETY: buffers hold what their call says, which was checked when it was submitted, and live until it is over;
        // slots are this rank's until the machine says otherwise. The machine hands out no other work on them meanwhile:
        // that is what its checker proves of schedules. A NIC may reach slots too, but it is driven by whoever has the
        // engine, which is this thread now, and has no use for a slot before it was handed over or after it arrived.
        let done = unsafe { work::execute(work, call, ranks, spare, &mut locate) };
        done.expect("types were checked when the call was submitted");
        Execution::Done
    }

    #[inline(always)]
    fn filled(&mut self, filled: &Handed<'_>) {
        if self.unpushed.is_some_and(|connection| connection != filled.connection) {
            self.push(true);
        }
        if let ConnectionEnd { side: Side::Send(end), .. } = &mut self.ends[filled.connection.0 as usize] {
            if end.publish(filled, self.conduits.nic()) {
                self.unpushed = Some(filled.connection);
            } else {
                *self.has_unsent |= end.has_unsent();
            }
        }
    }

    #[inline(always)]
    fn emptied(&mut self, emptied: &Handed<'_>) {
        if let ConnectionEnd { side: Side::Receive(end), .. } = &mut self.ends[emptied.connection.0 as usize]
        {
            end.release(self.conduits.nic());
        }
    }

    #[inline]
    fn finished(&mut self, _: OperationId) {
        self.calls.pop_front();
        *self.done += 1;
    }
}
