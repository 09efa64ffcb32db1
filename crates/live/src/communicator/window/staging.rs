//! Puts and gets through the NIC, staged in registered memory: one half is filled while the other is in flight.

use railnet_coll::window::{Reserved, Rma};
use railnet_core::{Bytes, Rank};

use super::{Error, Window, lock};
use crate::communicator::Element;
use crate::memory::Buffer;
use crate::rdma::Rdma;
use crate::rdma::window::{shared, staged};

/// Bytes of a half.
const HALF: usize = 512 << 10;

/// The registered memory from which puts are sent.
#[derive(Debug)]
pub(super) struct Staging {
    /// The token of the window at the NIC.
    pub(super) token: u32,
    memory: Buffer,
    next: usize,
    /// How many groups must be complete before a half may be reused.
    busy: [u64; 2],
    /// How many must be complete for all to be flushed, and to whom they were sent since the last flush.
    all: u64,
    targets: Vec<usize>,
}

impl Staging {
    pub(super) const BYTES: usize = 2 * HALF;

    pub(super) fn new(token: u32, memory: Buffer) -> Self {
        Self { token, memory, next: 0, busy: [0; 2], all: 0, targets: Vec::new() }
    }

    fn sent(&mut self, half: Option<usize>, group: u64, target: usize) {
        self.all = group;
        if let Some(half) = half {
            self.busy[half] = group;
        }
        if !self.targets.contains(&target) {
            self.targets.push(target);
        }
    }
}

impl<T: Element> Window<'_, T> {
    pub(super) fn put_by_nic(
        &self,
        what: &'static str,
        peer: Rank,
        data: Option<(usize, &[u8])>,
        signals: bool,
    ) -> Result<(), Error> {
        let target = peer.0 as usize;
        let mut staging = self.staging();
        let (offset, data) = data.unwrap_or_default();
        let mut parts = data.chunks(HALF).zip((offset..).step_by(HALF)).peekable();
        while let Some((part, offset)) = parts.next() {
            let half = staging.next;
            self.until_over(what, &staging.targets, staging.token, staging.busy[half])?;
            staging.memory.write(half * HALF, part);
            let (from, to, bytes) = (staged(half * HALF), shared(offset), Bytes(part.len() as u64));
            let reserved = Reserved::default();
            let operation = match signals && parts.peek().is_none() {
                true => Rma::PutSignal { peer, from, to, bytes, reserved },
                false => Rma::Put { peer, from, to, bytes },
            };
            let group = self.submit(staging.token, operation)?;
            staging.sent(Some(half), group, target);
            staging.next = 1 - half;
        }
        if signals && data.is_empty() {
            let group = self.submit(staging.token, Rma::Signal { peer, reserved: Reserved::default() })?;
            staging.sent(None, group, target);
        }
        Ok(())
    }

    pub(super) fn get_by_nic(&self, peer: Rank, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let target = peer.0 as usize;
        let mut staging = self.staging();
        for (part, offset) in out.chunks_mut(HALF).zip((offset..).step_by(HALF)) {
            let half = staging.next;
            self.until_over("get", &staging.targets, staging.token, staging.busy[half])?;
            let (from, to, bytes) = (shared(offset), staged(half * HALF), Bytes(part.len() as u64));
            let group = self.submit(staging.token, Rma::Get { peer, from, to, bytes })?;
            staging.sent(Some(half), group, target);
            self.until_over("get", &staging.targets, staging.token, group)?;
            staging.memory.read(half * HALF, part);
        }
        Ok(())
    }

    pub(super) fn flush_nic(&self) -> Result<(), Error> {
        let Some(staging) = &self.staging else { return Ok(()) };
        let mut staging = lock(staging);
        self.until_over("flush", &staging.targets, staging.token, staging.all)?;
        staging.targets.clear();
        Ok(())
    }

    fn staging(&self) -> std::sync::MutexGuard<'_, Staging> {
        lock(self.staging.as_ref().expect("ranks at a NIC are reached from there"))
    }

    fn submit(&self, token: u32, operation: Rma) -> Result<u64, Error> {
        let submitted = self.with_nic(|nic| nic.submit(token, vec![operation]));
        Ok(submitted?)
    }

    fn with_nic<R>(&self, action: impl FnOnce(&mut Rdma) -> R) -> R {
        let process = &self.communicator.process;
        process.with(|engine| action(engine.conduits_mut().nic().expect("the window was made at a NIC")))
    }

    /// Waits until so many groups are complete. `targets` are the ranks that may delay it.
    fn until_over(
        &self,
        what: &'static str,
        targets: &[usize],
        token: u32,
        groups: u64,
    ) -> Result<(), Error> {
        let mut failure = None;
        let is_over = || match self.with_nic(|nic| nic.finished(token)) {
            Ok(finished) => finished >= groups,
            Err(cause) => {
                failure = Some(cause);
                true
            }
        };
        let limit = self.limit();
        let late = |_: &[usize]| format!("has not taken it for {limit:.1?}");
        self.wait(what, &|| targets.to_vec(), limit, is_over, &late)?;
        match (failure, targets.first()) {
            (Some(cause), Some(target)) => {
                Err(self.failed(what, *target, &format!("cannot be reached: {cause}")))
            }
            _ => Ok(()),
        }
    }
}
