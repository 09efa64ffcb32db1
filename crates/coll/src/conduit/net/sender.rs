//! The sender's half.

use std::collections::VecDeque;

use railnet_core::event::Sink;
use railnet_core::{Label, QueuePairNumber};
use railnet_nic::memory::Memory;
use railnet_nic::{
    Completion, CompletionQueue, Context, Key, Nic, Operation, Path, ProtectionDomain, Remote, SendRequest,
    Sge, Status,
};

use super::{ClearToSend, ELEMENT, Handle, NetConfig, NetError, Parts, QueuePairs, RING, part_of};
use crate::conduit::SlotMemory;
use crate::machine::Mark;

/// A slot that is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Its first byte.
    pub address: u64,
    /// How many bytes are to be carried, flags included.
    pub length: u32,
    /// The local key of the region it lies in.
    pub key: Key,
    /// Of which operation.
    pub mark: Mark,
    /// What its packets are labelled.
    pub label: Label,
}

/// The end that sends.
#[derive(Debug)]
pub struct Sender {
    queue_pairs: QueuePairs,
    ring: SlotMemory,
    /// Slots that wait for their clear-to-send.
    filled: VecDeque<Fill>,
    /// The next request.
    next: u64,
    parts: Parts,
    /// The operation of the last clear-to-send that was seen.
    seen: Option<Mark>,
    element: Vec<u8>,
}

impl Sender {
    /// Bytes of control memory that a sender needs: real ones, that the peer may write.
    pub const RING_BYTES: u64 = RING * ELEMENT;

    /// Makes the queue pairs. `ring` is [`Sender::RING_BYTES`] of zeroes in a region with real bytes and remote write
    /// access; completions of work with this token in its upper half belong here.
    pub fn new(
        nic: &mut Nic,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        config: NetConfig,
        token: u32,
        ring: SlotMemory,
    ) -> Result<Self, NetError> {
        let queue_pairs = QueuePairs::new(nic, domain, queue, config, token)?;
        let (parts, element) = (Parts::default(), Vec::new());
        Ok(Self { queue_pairs, ring, filled: VecDeque::new(), next: 0, parts, seen: None, element })
    }

    /// What the receiver has to know.
    pub fn handle(&self) -> Handle {
        self.queue_pairs.handle(Some(Remote { address: self.ring.address, key: self.ring.key }))
    }

    /// Connects to a receiver.
    pub fn connect<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        path: Path,
        peer: &Handle,
    ) -> Result<(), NetError> {
        self.queue_pairs.connect(nic, cx, path, peer)
    }

    /// The queue pairs, in order.
    pub fn queue_pairs(&self) -> &[QueuePairNumber] {
        &self.queue_pairs.numbers
    }

    /// A slot is filled: it is sent as soon as the receiver has room. Gives what [`Sender::poll`] gives.
    pub fn fill<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        fill: Fill,
    ) -> Result<Option<Mark>, NetError> {
        self.filled.push_back(fill);
        self.poll(nic, cx)
    }

    /// Looks for clear-to-sends and sends what they ask for. Call it when the ring was written; it may be called at any
    /// time. Gives the operation of the receiver when it has begun another one, for `RankMachine::heard`.
    pub fn poll<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
    ) -> Result<Option<Mark>, NetError> {
        let mut heard = None;
        loop {
            self.element.clear();
            let address = self.ring.address + self.next % RING * ELEMENT;
            cx.memory.read(self.ring.space, address, ELEMENT as usize, &mut self.element);
            let clear = ClearToSend::parse(&self.element);
            if clear.index != self.next + 1 {
                return Ok(heard);
            }
            if self.seen != Some(clear.mark) {
                self.seen = Some(clear.mark);
                heard = Some(clear.mark);
            }
            // Data of one operation never goes into the slots of another.
            let Some(fill) = self.filled.pop_front_if(|fill| fill.mark == clear.mark) else {
                return Ok(heard);
            };
            self.send(nic, cx, &clear, fill)?;
        }
    }

    fn send<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        clear: &ClearToSend,
        fill: Fill,
    ) -> Result<(), NetError> {
        if u64::from(fill.length) > clear.size {
            return Err(NetError::NoRoom { length: fill.length, room: clear.size });
        }
        let request = self.next;
        self.next += 1;
        let queue_pairs = self.queue_pairs.of(request);
        self.parts.begin(request, queue_pairs.len());
        let part = part_of(fill.length, queue_pairs.len());
        let work = self.queue_pairs.work(request);
        let mut offset = 0;
        for queue_pair in queue_pairs {
            let length = part.min(fill.length - offset);
            let at = u64::from(offset);
            let remote = Remote { address: clear.address + at, key: Key(clear.key) };
            let data = Sge { address: fill.address + at, length, key: fill.key };
            let post = |nic: &mut Nic, cx: &mut _, operation, data: Option<Sge>, signaled| {
                let mut one =
                    SendRequest { signaled, label: fill.label, ..SendRequest::new(work, operation) };
                one.gather.extend(data);
                nic.post_send(cx, *queue_pair, one)
            };
            let is_apart =
                self.queue_pairs.config.apart_above.is_some_and(|above| u64::from(length) > above.0);
            if is_apart {
                post(nic, cx, Operation::Write(remote), Some(data), false)?;
            }
            let rest = (length > 0 && !is_apart).then_some(data);
            // The receiver counts parts; the number is the length of the whole, as NCCL sends it.
            post(nic, cx, Operation::WriteImmediate(remote, fill.length), rest, true)?;
            offset += length;
        }
        Ok(())
    }

    /// A completion of this half. Gives how many slices, the oldest first, are out of their slots.
    pub fn completed(&mut self, completion: &Completion) -> Result<u32, NetError> {
        if completion.status != Status::Success {
            let (status, queue_pair) = (completion.status, completion.queue_pair);
            return Err(NetError::Status { status, queue_pair });
        }
        Ok(self.parts.done(completion.work as u32, self.next))
    }

    /// Slices that are sent, and not known to have arrived.
    pub fn under_way(&self) -> u64 {
        self.next - self.parts.first
    }

    /// Slots that wait for the receiver.
    pub fn waiting(&self) -> usize {
        self.filled.len()
    }
}
