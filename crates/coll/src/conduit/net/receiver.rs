//! The receiver's half.

use std::collections::VecDeque;

use railnet_core::event::Sink;
use railnet_core::{Label, QueuePairNumber};
use railnet_nic::memory::Memory;
use railnet_nic::{
    Completion, CompletionKind, CompletionQueue, Context, Nic, Operation, Path, ProtectionDomain,
    ReceiveRequest, Remote, SendRequest, Status,
};

use super::{ClearToSend, ELEMENT, Handle, NetConfig, NetError, Parts, QueuePairs, RING};
use crate::conduit::SlotMemory;
use crate::machine::{Expect, Layout, Tag};

/// The end that receives.
#[derive(Debug)]
pub struct Receiver {
    queue_pairs: QueuePairs,
    slots: SlotMemory,
    /// Where clear-to-sends go, once it is connected.
    ring: Option<Remote>,
    /// What operations will receive and has not been asked for, the slot being that of the next.
    expected: VecDeque<Expect>,
    /// How slices that were asked for lie.
    layout: Option<Layout>,
    /// Slices that were asked for and are not emptied.
    under_way: u32,
    /// The next request.
    next: u64,
    parts: Parts,
    /// Bytes that were asked for with each request under way.
    sizes: [u64; RING as usize],
}

impl Receiver {
    /// Makes the queue pairs. `slots` lie in a region with remote write access; completions of work with this token in
    /// its upper half belong here.
    pub fn new(
        nic: &mut Nic,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        config: NetConfig,
        token: u32,
        slots: SlotMemory,
    ) -> Result<Self, NetError> {
        let queue_pairs = QueuePairs::new(nic, domain, queue, config, token)?;
        Ok(Self {
            queue_pairs,
            slots,
            ring: None,
            expected: VecDeque::new(),
            layout: None,
            under_way: 0,
            next: 0,
            parts: Parts::default(),
            sizes: [0; RING as usize],
        })
    }

    /// What the sender has to know.
    pub fn handle(&self) -> Handle {
        self.queue_pairs.handle(None)
    }

    /// Connects to a sender, and asks for what was expected before.
    pub fn connect<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        path: Path,
        peer: &Handle,
    ) -> Result<(), NetError> {
        let ring = peer.ring.ok_or(NetError::NoRing)?;
        self.queue_pairs.connect(nic, cx, path, peer)?;
        self.ring = Some(ring);
        self.ask(nic, cx)
    }

    /// The queue pairs, in order.
    pub fn queue_pairs(&self) -> &[QueuePairNumber] {
        &self.queue_pairs.numbers
    }

    /// Where the slots are.
    pub fn slots(&self) -> &SlotMemory {
        &self.slots
    }

    /// An operation will receive this.
    pub fn expect<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        expect: Expect,
    ) -> Result<(), NetError> {
        let fifo = &expect.layout.fifo;
        assert!(u64::from(fifo.depth / fifo.slots_per_slice) <= RING, "more slices than the ring holds");
        self.expected.push_back(expect);
        self.ask(nic, cx)
    }

    /// The oldest slice that has arrived is out of its slots.
    pub fn emptied<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
    ) -> Result<(), NetError> {
        assert!(self.under_way > 0, "no slice has arrived");
        self.under_way -= 1;
        self.ask(nic, cx)
    }

    /// Asks for all that there is room for.
    fn ask<M: Memory, S: Sink>(&mut self, nic: &mut Nic, cx: &mut Context<'_, M, S>) -> Result<(), NetError> {
        let Some(ring) = self.ring else { return Ok(()) };
        while let Some(expect) = self.expected.front_mut() {
            let fifo = &expect.layout.fifo;
            if self.layout != Some(expect.layout) {
                // Slots of another layout overlap with these.
                if self.under_way > 0 {
                    return Ok(());
                }
                self.layout = Some(expect.layout);
            }
            if (self.under_way + 1) * fifo.slots_per_slice > fifo.depth {
                return Ok(());
            }
            let clear = ClearToSend {
                address: self.slots.slot(&expect.layout, expect.slot),
                size: expect.layout.slice(),
                key: self.slots.key.0,
                mark: expect.mark,
                index: self.next + 1,
            };
            let tag = Tag { sequence: expect.operation.0, chunk: 0, step: 0 };
            expect.slot = (expect.slot + fifo.slots_per_slice) % fifo.depth;
            expect.slices -= 1;
            if expect.slices == 0 {
                self.expected.pop_front();
            }
            self.under_way += 1;
            self.clear(nic, cx, ring, &clear, tag.into())?;
        }
        Ok(())
    }

    fn clear<M: Memory, S: Sink>(
        &mut self,
        nic: &mut Nic,
        cx: &mut Context<'_, M, S>,
        ring: Remote,
        clear: &ClearToSend,
        label: Label,
    ) -> Result<(), NetError> {
        let request = self.next;
        self.next += 1;
        let work = self.queue_pairs.work(request);
        let queue_pairs = self.queue_pairs.of(request);
        self.parts.begin(request, queue_pairs.len());
        self.sizes[(request % RING) as usize] = clear.size;
        for queue_pair in queue_pairs {
            nic.post_recv(cx, *queue_pair, ReceiveRequest::new(work))?;
        }
        let remote = Remote { address: ring.address + request % RING * ELEMENT, key: ring.key };
        let write = SendRequest { label, ..SendRequest::new(work, Operation::Write(remote)) };
        nic.post_send(cx, self.queue_pairs.numbers[0], write.with_inline(&clear.emit()).unsignaled())?;
        Ok(())
    }

    /// A completion of this half. Gives how many slices, the oldest first, have arrived.
    pub fn completed(&mut self, completion: &Completion) -> Result<u32, NetError> {
        if completion.status != Status::Success {
            let (status, queue_pair) = (completion.status, completion.queue_pair);
            return Err(NetError::Status { status, queue_pair });
        }
        let request = self.parts.request(completion.work as u32);
        if !self.fits(request, completion) {
            let found = format!(
                "{:?} of {} bytes with immediate data {:?}",
                completion.kind, completion.length, completion.immediate
            );
            let size = self.sizes[(request % RING) as usize];
            let expected = format!("a part of a slice of at most {size} bytes");
            return Err(NetError::Unexpected { queue_pair: completion.queue_pair, found, expected });
        }
        Ok(self.parts.done(completion.work as u32, self.next))
    }

    /// Whether a completion is of what a sender writes where this was asked for: a WRITE whose immediate data is the length of the
    /// slice, and which is as long as the part for its queue pair.
    fn fits(&self, request: u64, completion: &Completion) -> bool {
        let Some(length) = completion.immediate else { return false };
        let is_apart =
            |part: u32| self.queue_pairs.config.apart_above.is_some_and(|above| u64::from(part) > above.0);
        let is_whole = |part: u32| completion.length == if is_apart(part) { 0 } else { part };
        completion.kind == CompletionKind::ReceiveWriteImmediate
            && u64::from(length) <= self.sizes[(request % RING) as usize]
            && self.queue_pairs.part(request, completion.queue_pair, length).is_some_and(is_whole)
    }
}
