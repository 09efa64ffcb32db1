//! Calls on memory that is known only when a program runs, for bindings of other languages: blocking, or started and waited for
//! later.
#![expect(unsafe_code, reason = "the caller vouches for the memory of a call")]

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use railnet_coll::machine::{Failure, OperationId};
use railnet_coll::{Call, Collective, check_call};
use railnet_core::{DataType, Rank};

use super::handle::{ContextHandle, GoOn};
use super::{At, Communicator, Error, Pair, Started, failed};
use crate::log::Log;

/// A call under way. Dropping it cancels nothing: the call goes on, and owns its buffers until it is over.
#[must_use = "whether a call ended well is known only to who asks"]
#[derive(Debug)]
pub struct Operation {
    handle: Arc<ContextHandle>,
    number: OperationId,
    /// When it began, and its schedule, until it is in the call trace.
    started: Mutex<Started>,
    origin: Origin,
}

/// The communicator, for errors and the call trace.
#[derive(Debug)]
struct Origin {
    name: u64,
    members: Arc<[u32]>,
    log: Log,
    /// Sender and receiver of a point-to-point transfer.
    pair: Option<[u32; 2]>,
}

impl Operation {
    /// Whether it is over; an error if its communicator has failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        let Self { handle, number, .. } = self;
        let done = handle.process.with(|engine| engine.is_done(handle.context, *number));
        done.map_err(|failure| self.failed(failure))
    }

    /// Waits until it is over. `goes_on` is called every 50 ms; if it returns false, the communicator is aborted on every rank.
    /// A `timeout` replaces that of the communicator until this returns.
    pub fn wait(&self, timeout: Option<Duration>, goes_on: &mut GoOn<'_>) -> Result<(), Error> {
        let Self { handle, number, .. } = self;
        let set = |limit: Duration| handle.process.with(|engine| engine.set_limit(handle.context, limit));
        let before = timeout.map(set);
        let done = handle.wait(*number, goes_on);
        before.map(set);
        self.trace(done.is_err());
        done.map_err(|failure| self.failed(failure))
    }

    /// Its number among the operations of its communicator.
    pub fn number(&self) -> u64 {
        self.number.0
    }

    fn trace(&self, is_failed: bool) {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((begun, schedule)) = started {
            let Origin { name, members, pair, .. } = &self.origin;
            let pair = pair.map(|pair| pair.map(|rank| members[rank as usize]));
            let members = pair.as_ref().map_or(&**members, |pair| pair);
            super::trace(&self.handle.process, (*name, members), begun, self.number, &schedule, is_failed);
        }
    }

    fn failed(&self, failure: Arc<Failure>) -> Error {
        let Origin { members, log, pair, .. } = &self.origin;
        log.warn(|| failure.to_string());
        self.handle.process.with(|engine| match pair {
            Some(pair) => super::group::pair_failed(&failure, *pair, members, engine),
            None => failed(engine, failure, members),
        })
    }
}

impl Communicator {
    /// Makes a call and waits for it, as long as `goes_on` returns true.
    ///
    /// # Safety
    /// `input` and `output` must point to as many bytes as the call says, which this program does not use meanwhile. In place
    /// they overlap as NCCL requires.
    pub unsafe fn run_raw(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        goes_on: &mut GoOn<'_>,
    ) -> Result<(), Error> {
        self.run_while(call, (At(input.cast_mut()), At(output)), goes_on)
    }

    /// Starts a call, which goes on while the program computes. `keep` is dropped when it is over, on any thread.
    ///
    /// # Safety
    /// As for [`Communicator::run_raw`], until `keep` is dropped.
    pub unsafe fn start_raw(
        &self,
        call: &Call,
        input: *const u8,
        output: *mut u8,
        keep: impl Any + Send,
    ) -> Result<Operation, Error> {
        self.start_operation(call, At(input.cast_mut()), At(output), keep)
    }

    /// The same for callers inside this crate, which guarantee the conditions themselves.
    pub(super) fn start_operation(
        &self,
        call: &Call,
        input: At,
        output: At,
        keep: impl Any + Send,
    ) -> Result<Operation, Error> {
        let (number, started) = self.start(call, input, output, keep)?;
        let origin =
            Origin { name: self.name, members: Arc::clone(&self.members), log: self.log.clone(), pair: None };
        Ok(Operation { handle: Arc::clone(&self.handle), number, started: Mutex::new(started), origin })
    }

    /// Starts to send to another rank, or to receive from it. Transfers between two ranks under the same tag match in order.
    ///
    /// # Safety
    /// As for [`Communicator::start_raw`]: `data` points to `count` elements.
    pub unsafe fn start_transfer_raw(
        &self,
        transfer: Transfer,
        data: *mut u8,
        keep: impl Any + Send,
    ) -> Result<Operation, Error> {
        let Transfer { direction, peer, tag, dtype, count } = transfer;
        let Rank(peer) = self.named(peer)?;
        if peer == self.rank.0 {
            return Err(Error::ToItself { rank: peer as usize });
        }
        let (from, to) = match direction {
            TransferDirection::Send => (self.rank.0, peer),
            TransferDirection::Receive => (peer, self.rank.0),
        };
        let call = Call { dtype, peer: Rank(1), ..Call::new(Collective::SendReceive, count) };
        check_call(&call, 2)?;
        let begun = self.begins();
        let keep = self.process.in_flight(keep);
        let (handle, number, schedule) =
            self.start_pair(Pair { from, to, tag }, &call, At(data), Some(keep))?;
        self.process.wake();
        let origin = Origin {
            name: self.name,
            members: Arc::clone(&self.members),
            log: self.log.clone(),
            pair: Some([from, to]),
        };
        let started = Mutex::new(begun.map(|begun: Instant| (begun, schedule)));
        Ok(Operation { handle, number, started, origin })
    }
}

/// A point-to-point transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Whether this rank sends or receives.
    pub direction: TransferDirection,
    /// The other rank.
    pub peer: usize,
    /// The same on both sides; transfers under different tags do not wait for each other.
    pub tag: u64,
    /// The type of the elements.
    pub dtype: DataType,
    /// The number of elements.
    pub count: u64,
}

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferDirection {
    /// This rank sends.
    Send,
    /// This rank receives.
    Receive,
}
