//! Sends and receives between two ranks, alone or several at once.

use std::sync::Arc;

use railnet_coll::machine::{Failure, OperationId};
use railnet_coll::{Algorithm, Call, Choice, Collective, Schedule, Wiring, build};
use railnet_core::Rank;

use super::handle::ContextHandle;
use super::{At, Communicator, Element, Error, Pair, derived, trace};
use crate::engine::{Engine, KeepAlive};
use crate::transport::PROTOCOL;

/// Sends and receives that are done at once, so that no two ranks wait for each other: made by [`Communicator::group`].
#[derive(Debug)]
pub struct Group<'a> {
    communicator: &'a Communicator,
    calls: Vec<Part<'a>>,
}

#[derive(Debug)]
struct Part<'a> {
    from: u32,
    to: u32,
    call: Call,
    at: At,
    is_send: bool,
    /// The buffer is borrowed until the group is done.
    _buffer: std::marker::PhantomData<&'a mut ()>,
}

impl<'a> Group<'a> {
    /// Sends to a rank.
    pub fn send<T: Element>(&mut self, data: &'a [T], to: usize) -> Result<&mut Self, Error> {
        let Rank(to) = self.communicator.named(to)?;
        let at = At(data.as_ptr().cast_mut().cast());
        self.add::<T>(self.communicator.rank.0, to, data.len(), at, true);
        Ok(self)
    }

    /// Receives from a rank, which must send as much.
    pub fn receive<T: Element>(&mut self, data: &'a mut [T], from: usize) -> Result<&mut Self, Error> {
        let Rank(from) = self.communicator.named(from)?;
        let (length, at) = (data.len(), At(data.as_mut_ptr().cast()));
        self.add::<T>(from, self.communicator.rank.0, length, at, false);
        Ok(self)
    }

    fn add<T: Element>(&mut self, from: u32, to: u32, count: usize, at: At, is_send: bool) {
        // A pair has communicators of its own, one for each direction: rank 0 sends, rank 1 receives.
        let call = Call { dtype: T::TYPE, peer: Rank(1), ..Call::new(Collective::SendReceive, count as u64) };
        self.calls.push(Part { from, to, call, at, is_send, _buffer: std::marker::PhantomData });
    }

    /// Does all of it.
    pub fn run(self) -> Result<(), Error> {
        let Self { communicator, calls } = self;
        let (own, calls): (Vec<_>, Vec<_>) = calls.into_iter().partition(|part| part.from == part.to);
        communicator.run_own(&own)?;
        let begun = communicator.begins();
        let mut started: Vec<(PairOperation, Pair)> = Vec::with_capacity(calls.len());
        let mut outcome = Ok(());
        for Part { from, to, call, at, .. } in calls {
            let pair = Pair { from, to, tag: 0 };
            match communicator.start_pair(pair, &call, at, None) {
                Ok(operation) => started.push((operation, pair)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Buffers are in use until all that was started is over, or has failed.
        for ((handle, operation, schedule), pair) in started {
            if outcome.is_err() {
                communicator.process.with(|engine| engine.abort(handle.context));
            }
            let done = handle.wait(operation, &mut || true);
            if let Some(begun) = begun {
                let members = [pair.from, pair.to].map(|rank| communicator.members[rank as usize]);
                let origin = (communicator.name, &members[..]);
                trace(&communicator.process, origin, begun, operation, &schedule, done.is_err());
            }
            if let Err(failure) = done
                && outcome.is_ok()
            {
                outcome = Err(communicator.pair_failed(&failure, pair));
            }
        }
        outcome
    }
}

impl Communicator {
    /// Sends and receives that are done at once.
    ///
    /// ```
    /// # use railnet_live::Communicator;
    /// # let world = Communicator::from_env()?;
    /// // Everybody passes something on to the next rank.
    /// let (rank, size) = (world.rank(), world.size());
    /// let (gives, mut gets) = ([rank as u64], [0_u64]);
    /// let mut group = world.group();
    /// group.send(&gives, (rank + 1) % size)?;
    /// group.receive(&mut gets, (rank + size - 1) % size)?;
    /// group.run()?;
    /// assert_eq!(gets[0] as usize, (rank + size - 1) % size);
    /// # Ok::<(), railnet_live::communicator::Error>(())
    /// ```
    pub fn group(&self) -> Group<'_> {
        Group { communicator: self, calls: Vec::new() }
    }

    /// Sends to a rank, and returns when the data may be changed again.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<(), Error> {
        let mut group = Group { communicator: self, calls: Vec::new() };
        group.send(data, to)?;
        group.run()
    }

    /// Receives from a rank, which must send as much.
    pub fn receive<T: Element>(&self, data: &mut [T], from: usize) -> Result<(), Error> {
        let mut group = Group { communicator: self, calls: Vec::new() };
        group.receive(data, from)?;
        group.run()
    }

    /// What a rank sends to itself: each send goes with a receive, in their order.
    fn run_own(&self, parts: &[Part<'_>]) -> Result<(), Error> {
        let (sends, receives): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.is_send);
        if sends.len() != receives.len() {
            let needs = format!("{} (one for each that this rank sends to itself)", sends.len());
            return Err(Error::Length { what: "the list of receives", has: receives.len(), needs });
        }
        for (send, receive) in sends.into_iter().zip(receives) {
            let (gives, gets) = (send.call.bytes(2), receive.call.bytes(2));
            if gives != gets {
                let needs = format!("{} (as many as are sent)", gives.0);
                return Err(Error::Length {
                    what: "what is received, in bytes,",
                    has: gets.0 as usize,
                    needs,
                });
            }
            let call = Call { peer: Rank(0), ..send.call.clone() };
            let choice = Choice::new(Algorithm::PointToPoint, PROTOCOL);
            let schedule = Arc::new(build(&call, &choice, &Wiring::flat(1))?);
            let handle = self.pair(Pair { from: self.rank.0, to: self.rank.0, tag: 0 });
            let buffers = (send.at, receive.at);
            let failed = |failure| self.process.with(|engine| self.failed(engine, failure));
            let submitted =
                self.process.with(|engine| engine.submit(handle.context, &schedule, buffers, None));
            handle.wait(submitted.map_err(failed)?, &mut || true).map_err(failed)?;
        }
        Ok(())
    }

    /// Starts what one rank sends to another; where the caller does not wait, `keep` keeps the buffer.
    pub(super) fn start_pair(
        &self,
        pair: Pair,
        call: &Call,
        at: At,
        keep: Option<KeepAlive>,
    ) -> Result<PairOperation, Error> {
        let handle = self.pair(pair);
        let context = handle.context;
        let Pair { from, to, .. } = pair;
        let other = self.members[if from == self.rank.0 { to } else { from } as usize];
        let submitted = self.process.with(|engine| {
            let schedule = match engine.known(context, call) {
                Some(known) => known,
                None => {
                    let conduit = engine.conduits().kind(other);
                    let (fifo, chunk) = (Some(conduit.fifo()), Some(conduit.slice()));
                    let choice = Choice { fifo, chunk, ..Choice::new(Algorithm::PointToPoint, PROTOCOL) };
                    let schedule = Arc::new(build(call, &choice, &Wiring::flat(2))?);
                    engine.keep(context, &schedule);
                    schedule
                }
            };
            let submitted = engine.submit(context, &schedule, (at, at), keep);
            engine.poll(true);
            Ok::<_, Error>(submitted.map(|operation| (operation, schedule)))
        })?;
        let (operation, schedule) = submitted.map_err(|failure| self.pair_failed(&failure, pair))?;
        Ok((handle, operation, schedule))
    }

    /// The communicator of what one rank sends to another, or to itself.
    pub(super) fn pair(&self, pair: Pair) -> Arc<ContextHandle> {
        let make = || {
            let Pair { from, to, tag } = pair;
            let world = |rank: u32| self.members[rank as usize];
            let is_own = from == to;
            let members: Arc<[u32]> =
                if is_own { Arc::new([world(from)]) } else { Arc::new([world(from), world(to)]) };
            let rank = Rank(u32::from(self.rank.0 == to && !is_own));
            let name = derived(self.name, [u64::MAX, u64::from(from) << 32 | u64::from(to)]);
            // A tag makes another name, and the first tag is none.
            let name = if tag == 0 { name } else { derived(name, [u64::MAX, tag]) };
            let timeout = self.timeout();
            let context = self.process.with(|engine| {
                let context = engine.context(name, rank, &members);
                if let Some(timeout) = timeout {
                    engine.set_limit(context, timeout);
                }
                context
            });
            Arc::new(ContextHandle::new(Arc::clone(&self.process), context))
        };
        Arc::clone(self.pairs().entry(pair).or_insert_with(make))
    }

    pub(super) fn pair_failed(&self, failure: &Failure, Pair { from, to, .. }: Pair) -> Error {
        self.process.with(|engine| pair_failed(failure, [from, to], &self.members, engine))
    }
}

/// The error of a failed transfer in the rank numbers of its communicator: its sender and its receiver are rank 0 and rank 1 of a
/// communicator of their own. The other ranks hear of it before the program does.
pub(super) fn pair_failed(failure: &Failure, pair: [u32; 2], members: &[u32], engine: &mut Engine) -> Error {
    let number = |rank: Rank| Rank(pair.get(rank.0 as usize).copied().unwrap_or(rank.0));
    let renumbered = failure.renumbered(&number).within(members);
    engine.announce_failure(&renumbered, members);
    let mut notes = super::notes(&renumbered, members, engine.control());
    if let Failure::Told { .. } = failure {
        let [from, to] = pair;
        notes =
            format!("\n  (rank 0 of this pair is rank {from}, which sends, and rank 1 is rank {to}){notes}");
    }
    Error::Failed { failure: Arc::new(renumbered), notes }
}

/// A transfer that was started: where, its number there, and how it is carried out.
type PairOperation = (Arc<ContextHandle>, OperationId, Arc<Schedule>);
