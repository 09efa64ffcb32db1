//! A NIC in the place of the recorded responder, with its memory.

use std::collections::BTreeSet;

use railnet_core::event::{Event, Sink};
use railnet_core::{Component, Span, Time};
use railnet_wire::{Extended, Syndrome};

use super::ReplayError;
use super::compare::Answer;
use super::freedom::{Freedom, Freedoms};
use super::recording::{Recorded, takes_receive};
use super::setup::{Posting, Setup, syndrome};
use crate::completion::{Completion, CompletionQueue};
use crate::config::{Behaviour, NicConfig};
use crate::context::Context;
use crate::error::VerbsError;
use crate::memory::{Memory, Segments, SpaceId};
use crate::nic::Nic;
use crate::packet::{Inbound, Payload};
use crate::queue_pair::{Attributes, QueuePairConfig, Service, SharedReceiveQueue, State};
use crate::region::Key;
use crate::schedule::Priorities;
use crate::work::{ReceiveRequest, Sge};

/// The application's name for the first receive: what `rnx` calls it.
const FIRST_WORK: u64 = 1000;
const COMPLETIONS: u32 = 1 << 16;

/// Remembers which memory requests wrote.
#[derive(Debug, Default)]
struct Written(Vec<(u64, u32)>);

impl Sink for Written {
    fn record(&mut self, _at: Time, _source: Component, event: &Event) {
        if let Event::DataPlaced { address, length, .. } = *event {
            self.0.push((address, length));
        }
    }
}

/// A region whose contents are learned: which of its bytes are known by now.
#[derive(Debug)]
struct Learned {
    space: SpaceId,
    key: Key,
    address: u64,
    known: Vec<bool>,
}

/// The NIC and what belongs to it.
#[derive(Debug)]
pub(super) struct World<'a> {
    setup: &'a Setup,
    nic: Nic,
    memory: Segments,
    written: Written,
    learned: Vec<Learned>,
    queue: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    buffer: Sge,
    buffer_space: SpaceId,
    now: Time,
    posted: u64,
    has_posted_late: bool,
    /// Where requests began to write.
    reached: BTreeSet<u64>,
    pub(super) freedoms: Freedoms,
}

impl<'a> World<'a> {
    pub(super) fn new(setup: &'a Setup, behaviour: Behaviour) -> Result<Self, ReplayError> {
        let number = setup.number.value();
        let mut config = NicConfig::new(Component(0), 1, setup.gid);
        config.queue_pairs = number..number + 1;
        config.keys = setup.key_range()?;
        config.behaviour = behaviour;
        let mut nic = Nic::new(config);
        let mut memory = Segments::new();
        let domain = nic.alloc_pd();
        let mut learned = Vec::new();
        let mut keys = Vec::new();
        // Regions with a certain key first: one without takes any that is left.
        let order = |wanted: bool| {
            let regions = setup.regions.iter().enumerate();
            regions.filter(move |(_, region)| region.key.is_some() == wanted)
        };
        for (index, region) in order(true).chain(order(false)) {
            let space = memory.add_bytes(region.address, region.bytes.clone());
            let length = region.bytes.len() as u64;
            let key =
                nic.reg_mr(&memory, domain, space, region.address, length, region.access, region.key)?;
            keys.push((index, space, key));
            if !region.is_known {
                learned.push(Learned {
                    space,
                    key,
                    address: region.address,
                    known: vec![false; region.bytes.len()],
                });
            }
        }
        let (region, address, length) = setup.buffer;
        let &(_, buffer_space, key) =
            keys.iter().find(|(index, ..)| *index == region).expect("the set-up names a region of its own");
        let queue = nic.create_cq(COMPLETIONS)?;
        let shared = match setup.is_shared {
            true => Some(nic.create_srq(domain, 1 << 12, 4)?),
            false => None,
        };
        let mut create = QueuePairConfig::new(setup.service, queue);
        create.number = Some(setup.number);
        create.shared = shared;
        nic.create_qp(domain, &create)?;
        let mut world = Self {
            setup,
            nic,
            memory,
            written: Written::default(),
            learned,
            queue,
            shared,
            buffer: Sge { address, length, key },
            buffer_space,
            now: Time::ZERO,
            posted: 0,
            has_posted_late: false,
            reached: BTreeSet::new(),
            freedoms: Freedoms::default(),
        };
        world.connect()?;
        if let Posting::Early(count) = setup.posting {
            world.post(count)?;
        }
        Ok(world)
    }

    fn connect(&mut self) -> Result<(), VerbsError> {
        let setup = self.setup;
        let only = |service: Service| setup.service == service;
        let (reliable, datagram) = (only(Service::ReliableConnection), only(Service::Datagram));
        let initial = Attributes {
            state: Some(State::Init),
            partition_index: Some(0),
            port: Some(1),
            access: (!datagram).then_some(setup.access),
            queue_key: datagram.then_some(setup.queue_key),
            ..Attributes::default()
        };
        let receiving = Attributes {
            state: Some(State::ReadyToReceive),
            path: (!datagram).then_some(setup.path),
            path_mtu: (!datagram).then_some(setup.mtu),
            destination: (!datagram).then_some(setup.peer),
            receive_psn: (!datagram).then_some(setup.expected),
            destination_reads: reliable.then_some(setup.reads),
            min_rnr_timer: reliable.then_some(setup.min_rnr_timer),
            ..Attributes::default()
        };
        let sending = Attributes {
            state: Some(State::ReadyToSend),
            send_psn: Some(setup.expected),
            timeout: reliable.then_some(14),
            retry_count: reliable.then_some(7),
            rnr_retry: reliable.then_some(7),
            initiator_reads: reliable.then_some(setup.reads),
            ..Attributes::default()
        };
        for change in [initial, receiving, sending] {
            let mut cx = Context::new(self.now, &mut self.memory, &mut self.written);
            self.nic.modify_qp(&mut cx, setup.number, &change)?;
        }
        Ok(())
    }

    fn post(&mut self, count: u32) -> Result<(), ReplayError> {
        for _ in 0..count {
            let request = ReceiveRequest::new(FIRST_WORK + self.posted).with(self.buffer);
            self.posted += 1;
            match self.shared {
                Some(shared) => self.nic.post_srq_recv(shared, request)?,
                None => {
                    let mut cx = Context::new(self.now, &mut self.memory, &mut self.written);
                    self.nic.post_recv(&mut cx, self.setup.number, request)?;
                }
            }
        }
        Ok(())
    }

    /// Hands a request in, and takes the answers out. `upcoming` are the recorded answers from here on.
    pub(super) fn offer(
        &mut self,
        request: &Recorded,
        upcoming: &[&Recorded],
    ) -> Result<Vec<Answer>, ReplayError> {
        self.now = self.now.max(request.at);
        self.post_if_needed(request, upcoming)?;
        self.learn_memory(request, upcoming);
        let inbound = Inbound {
            network: &request.network,
            headers: &request.headers,
            extension: None,
            payload: Payload::Bytes(&request.payload),
            intact: request.intact,
        };
        let mut cx = Context::new(self.now, &mut self.memory, &mut self.written);
        // A drop is an answer too: none. Whether that is right the comparison tells.
        let _ = self.nic.receive(&mut cx, &inbound);
        let mut answers = Vec::new();
        loop {
            let mut payload = Vec::new();
            let transmit = self.nic.poll_transmit(&mut cx, 0, Priorities::ALL, &mut payload);
            let Some(transmit) = transmit else {
                break;
            };
            // Time goes on between the packets of a READ: nothing here takes longer than a recorded answer did.
            self.now += Span::from_ns(1);
            cx.now = self.now;
            answers.push(Answer { network: transmit.network, headers: transmit.headers, payload });
        }
        self.note_written();
        Ok(answers)
    }

    /// Posts receives that the answers show to have been there, unless they show that there were none.
    fn post_if_needed(&mut self, request: &Recorded, upcoming: &[&Recorded]) -> Result<(), ReplayError> {
        let bth = &request.headers.bth;
        let info = self.nic.query_qp(self.setup.number)?;
        let is_new = self.setup.service != Service::ReliableConnection || bth.psn == info.receive_psn;
        if !takes_receive(bth.opcode) || !is_new {
            return Ok(());
        }
        let is_refused = upcoming.first().is_some_and(|answer| {
            matches!(syndrome(answer), Some(Syndrome::RnrNak { .. })) && answer.headers.bth.psn == bth.psn
        });
        match self.setup.posting {
            Posting::Early(_) => {}
            _ if is_refused => {}
            Posting::Late(count) => {
                if !std::mem::replace(&mut self.has_posted_late, true) {
                    self.post(count)?;
                }
            }
            Posting::AsNeeded => {
                if self.shared.is_some() || info.receives == 0 {
                    self.post(1)?;
                    self.freedoms.add(Freedom::Receives);
                }
            }
        }
        Ok(())
    }

    /// Before a READ or atomic of bytes that nothing recorded has written: they were what the answer says.
    fn learn_memory(&mut self, request: &Recorded, upcoming: &[&Recorded]) {
        let psn = request.headers.bth.psn;
        let place = upcoming.iter().position(|answer| answer.headers.bth.psn == psn);
        let upcoming = &upcoming[place.unwrap_or(upcoming.len())..];
        let (key, address, bytes) = match request.headers.extended {
            Extended::Reth(reth) if !request.headers.bth.opcode.is_write() => {
                let mut bytes = Vec::new();
                for (answer, ahead) in upcoming.iter().zip(0..) {
                    let bth = &answer.headers.bth;
                    if !bth.opcode.is_read_response()
                        || bth.psn != psn.plus(ahead)
                        || bytes.len() >= reth.length as usize
                    {
                        break;
                    }
                    bytes.extend_from_slice(&answer.payload);
                }
                (reth.key, reth.address, bytes)
            }
            Extended::Atomic(atomic) => match upcoming.first().map(|answer| answer.headers.extended) {
                Some(Extended::AtomicAck(_, original)) => {
                    (atomic.key, atomic.address, original.to_le_bytes().to_vec())
                }
                _ => return,
            },
            _ => return,
        };
        let Some(region) = self.learned.iter().find(|region| region.key.0 == key) else {
            return;
        };
        let mut has_learned = false;
        for (offset, byte) in (0..).zip(bytes) {
            let at = address.saturating_add(offset);
            let known = at.checked_sub(region.address).and_then(|offset| region.known.get(offset as usize));
            if known == Some(&false) {
                has_learned = true;
                self.memory.write(region.space, at, &[byte]);
            }
        }
        if has_learned {
            self.freedoms.add(Freedom::Memory);
        }
    }

    /// What requests wrote is known from then on.
    fn note_written(&mut self) {
        for (address, length) in self.written.0.drain(..) {
            self.reached.insert(address);
            for region in &mut self.learned {
                let Some(from) = address.checked_sub(region.address) else {
                    continue;
                };
                let from = from as usize;
                let to = from.saturating_add(length as usize);
                if let Some(known) = region.known.get_mut(from..to) {
                    known.fill(true);
                }
            }
        }
    }

    /// All completions so far.
    pub(super) fn completions(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut some = [Completion::EMPTY; 32];
        loop {
            let count = self.nic.poll_cq(self.queue, &mut some);
            all.extend_from_slice(&some[..count]);
            if count < some.len() {
                return all;
            }
        }
    }

    pub(super) fn state(&self) -> Result<State, VerbsError> {
        Ok(self.nic.query_qp(self.setup.number)?.state)
    }

    /// The first bytes of the region that receives go to.
    pub(super) fn first_bytes(&self) -> u64 {
        let bytes = self.memory.bytes(self.buffer_space);
        bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
    }

    /// The bytes of the receives' region from `address` on, where a request wrote there.
    pub(super) fn written_at(&self, address: u64, length: usize) -> Option<&[u8]> {
        let start = address.checked_sub(self.setup.regions[self.setup.buffer.0].address)?;
        let bytes = self.memory.bytes(self.buffer_space).get(start as usize..)?;
        self.reached.contains(&address).then_some(bytes.get(..length)?)
    }

    /// The bytes that receives were put into.
    pub(super) fn received(&self) -> &[u8] {
        let start = self.buffer.address - self.setup.regions[self.setup.buffer.0].address;
        let rest = self.memory.bytes(self.buffer_space).get(start as usize..).unwrap_or_default();
        &rest[..rest.len().min(self.buffer.length as usize)]
    }
}
