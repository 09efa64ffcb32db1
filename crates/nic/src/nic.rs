//! The NIC: what the application and the network call.

use std::collections::VecDeque;

use railnet_core::event::Sink;
use railnet_core::{QueuePairNumber, Random};
use railnet_wire::{Gid, Network, ROCE_PORT, udp_source_port};

use crate::completion::{Completion, CompletionQueue, Notify, Queue};
use crate::config::{Mtu, NicConfig};
use crate::context::Context;
use crate::control::Controller;
use crate::device::{AsyncEvent, Counters, Device, SharedReceives};
use crate::error::{PostError, VerbsError};
use crate::memory::{Memory, SpaceId};
use crate::pool::{Chain, Pool};
use crate::queue_pair::{
    Attribute, Attributes, Path, QueuePair, QueuePairConfig, Route, Service, Shared, SharedReceiveQueue,
    State, check_transition,
};
use crate::recovery::RecoveryKind;
use crate::region::{Access, Key, ProtectionDomain, Regions};
use crate::schedule::Schedule;
use crate::timer::TimerQueue;
use crate::work::{AddressHandle, ReceiveRequest, SendRequest};

/// QP1: management datagrams of the general services, connection management among them (IBTA 3.5.3).
const GENERAL_SERVICES: QueuePairNumber = QueuePairNumber::new(1);

/// What uses a protection domain.
#[derive(Clone, Copy, Default, Debug)]
struct DomainUse {
    regions: u32,
    windows: u32,
    queue_pairs: u32,
    shared: u32,
    handles: u32,
}

/// One RDMA NIC, driven from outside.
///
/// Call a verb or hand in a packet or the time; then drain [`Nic::poll_cq`] and [`Nic::poll_event`]; then wait until
/// [`Nic::poll_timeout`] or the next input. Call [`Nic::poll_transmit`] whenever the port can take a packet, until it
/// returns `None`.
#[derive(Debug)]
pub struct Nic {
    pub(crate) device: Device,
    pub(crate) queue_pairs: Vec<Option<Box<QueuePair>>>,
    free: VecDeque<u32>,
    /// The slot of the general services queue pair (QP1), whose number lies outside the NIC's range.
    general_services: Option<u32>,
    domains: Vec<Option<DomainUse>>,
    handles: Vec<Option<(ProtectionDomain, Path)>>,
}

/// What [`Nic::query_qp`] tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairInfo {
    /// Its state.
    pub state: State,
    /// The peer's queue pair.
    pub destination: QueuePairNumber,
    /// Work requests in the send queue that are not complete.
    pub sends: u32,
    /// Receives of its own that are posted.
    pub receives: u32,
    /// The payload bytes of a full packet.
    pub mtu: Mtu,
    /// The sequence number of the next work to be posted.
    pub send_psn: railnet_core::Psn,
    /// The sequence number that is expected from the peer.
    pub receive_psn: railnet_core::Psn,
    /// Bytes that are still to come of the WRITE that it is in the middle of; 0 where it is in none.
    pub to_come: u32,
}

impl Nic {
    /// Bytes of memory that an idle queue pair takes: its state, and its place in the table.
    pub const IDLE_QUEUE_PAIR_BYTES: usize = size_of::<QueuePair>() + size_of::<Option<Box<QueuePair>>>();

    /// A NIC as configured. At least one port is needed.
    pub fn new(config: NicConfig) -> Self {
        assert!(!config.ports.is_empty(), "a NIC needs a port");
        let random = Random::stream(config.seed, "nic keys", u64::from(config.component.0));
        let kept = match config.recovery {
            RecoveryKind::SelectiveRepeat { window, .. } => u32::from(window.max(1)),
            _ => u32::MAX,
        };
        let device = Device {
            component: config.component,
            unacked_max: config.behaviour.unacked_packets_max.min(kept),
            regions: Regions::new(config.keys.clone(), config.random_keys, random),
            queues: Vec::new(),
            shared: Vec::new(),
            sends: Pool::new(),
            receives: Pool::new(),
            responses: Pool::new(),
            timers: TimerQueue::default(),
            ports: config.ports.iter().map(|_| Schedule::default()).collect(),
            events: VecDeque::new(),
            overflowed: Vec::new(),
            counters: Counters::default(),
            told: None,
            config,
        };
        let (queue_pairs, free, domains, handles) = (Vec::new(), VecDeque::new(), Vec::new(), Vec::new());
        Self { device, queue_pairs, free, general_services: None, domains, handles }
    }

    /// How it was made.
    pub fn config(&self) -> &NicConfig {
        &self.device.config
    }

    /// What it counted.
    pub fn counters(&self) -> &Counters {
        &self.device.counters
    }

    /// A new protection domain.
    pub fn alloc_pd(&mut self) -> ProtectionDomain {
        ProtectionDomain(place(&mut self.domains, DomainUse::default()))
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        let used = self.domain(domain)?;
        let users = [
            ("memory regions", used.regions),
            ("memory windows", used.windows),
            ("queue pairs", used.queue_pairs),
            ("shared receive queues", used.shared),
            ("address handles", used.handles),
        ];
        if let Some((by, count)) = users.into_iter().find(|(_, count)| *count > 0) {
            return Err(VerbsError::Busy { what: "protection domain", by, count });
        }
        self.domains[domain.0 as usize] = None;
        Ok(())
    }

    fn domain(&mut self, domain: ProtectionDomain) -> Result<&mut DomainUse, VerbsError> {
        let entry = self.domains.get_mut(domain.0 as usize).and_then(Option::as_mut);
        entry.ok_or(VerbsError::Unknown("protection domain"))
    }

    /// Registers memory. With remote access the key is good for the peer too. `key` asks for a certain one.
    #[allow(
        clippy::too_many_arguments,
        reason = "a region is these facts, and a struct would only repeat them"
    )]
    pub fn reg_mr<M: Memory>(
        &mut self,
        memory: &M,
        domain: ProtectionDomain,
        space: SpaceId,
        address: u64,
        length: u64,
        access: Access,
        key: Option<Key>,
    ) -> Result<Key, VerbsError> {
        self.domain(domain)?;
        let backing = memory.backing(space, address, length).ok_or(VerbsError::Fault { address, length })?;
        let key = self.device.regions.register(domain, space, backing, address, length, access, key)?;
        self.domain(domain)?.regions += 1;
        Ok(key)
    }

    /// Frees a memory region that no window is bound to. What still uses it will fail.
    pub fn dereg_mr(&mut self, key: Key) -> Result<(), VerbsError> {
        if self.device.regions.is_window(key) {
            return Err(VerbsError::Unknown("memory region"));
        }
        let domain = self.device.regions.remove(key)?;
        self.domain(domain)?.regions -= 1;
        Ok(())
    }

    /// A new memory window, not bound to anything. Bind it with a work request.
    pub fn alloc_mw(&mut self, domain: ProtectionDomain) -> Result<Key, VerbsError> {
        self.domain(domain)?;
        let key = self.device.regions.allocate_window(domain)?;
        self.domain(domain)?.windows += 1;
        Ok(key)
    }

    /// The present key of a memory window, of which any earlier key is given.
    pub fn window_key(&self, key: Key) -> Result<Key, VerbsError> {
        self.device.regions.present_key(key).ok_or(VerbsError::Unknown("memory window"))
    }

    /// Frees a memory window, by its present key.
    pub fn dealloc_mw(&mut self, key: Key) -> Result<(), VerbsError> {
        if !self.device.regions.is_window(key) {
            return Err(VerbsError::Unknown("memory window"));
        }
        let domain = self.device.regions.remove(key)?;
        self.domain(domain)?.windows -= 1;
        Ok(())
    }

    /// A new completion queue for `depth` completions.
    pub fn create_cq(&mut self, depth: u32) -> Result<CompletionQueue, VerbsError> {
        let limit = self.device.config.limits.completions;
        check_limit("a completion queue of depth", depth.into(), limit.into())?;
        Ok(CompletionQueue(place(&mut self.device.queues, Queue::new(depth))))
    }

    fn queue(&mut self, queue: CompletionQueue) -> Result<&mut Queue, VerbsError> {
        let entry = self.device.queues.get_mut(queue.0 as usize).and_then(Option::as_mut);
        entry.ok_or(VerbsError::Unknown("completion queue"))
    }

    /// Frees a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let count = self.queue(queue)?.users;
        if count > 0 {
            return Err(VerbsError::Busy { what: "completion queue", by: "queue pairs' queues", count });
        }
        self.device.queues[queue.0 as usize] = None;
        Ok(())
    }

    /// Changes how many completions a queue holds. It must hold those that wait on it.
    pub fn resize_cq(&mut self, queue: CompletionQueue, depth: u32) -> Result<(), VerbsError> {
        let limit = self.device.config.limits.completions;
        check_limit("a completion queue of depth", depth.into(), limit.into())?;
        let waiting = self.queue(queue)?.len() as u32;
        if depth < waiting {
            return Err(VerbsError::Busy { what: "completion queue", by: "completions", count: waiting });
        }
        self.queue(queue)?.resize(depth);
        Ok(())
    }

    /// Takes completions off a queue; tells how many were put in `out`.
    #[must_use = "the number says how many of `out` are filled"]
    pub fn poll_cq(&mut self, queue: CompletionQueue, out: &mut [Completion]) -> usize {
        self.queue(queue).map_or(0, |queue| queue.poll(out))
    }

    /// How many completions wait on a queue.
    pub fn completions(&self, queue: CompletionQueue) -> usize {
        self.device.queues.get(queue.0 as usize).and_then(Option::as_ref).map_or(0, Queue::len)
    }

    /// Asks for one [`AsyncEvent::CompletionReady`] at the next completion.
    pub fn req_notify(&mut self, queue: CompletionQueue, notify: Notify) -> Result<(), VerbsError> {
        self.queue(queue)?.arm(notify);
        Ok(())
    }

    /// A new shared receive queue for `depth` receives.
    pub fn create_srq(
        &mut self,
        domain: ProtectionDomain,
        depth: u32,
        gather_max: u32,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let limits = self.device.config.limits;
        check_limit("a shared receive queue of depth", depth.into(), limits.queue_depth.into())?;
        check_limit("a number of scatter entries of", gather_max.into(), limits.gather.into())?;
        self.domain(domain)?.shared += 1;
        let queue = SharedReceives { domain, receives: Chain::EMPTY, depth, gather_max, limit: 0, users: 0 };
        Ok(SharedReceiveQueue(place(&mut self.device.shared, queue)))
    }

    fn shared(&mut self, queue: SharedReceiveQueue) -> Result<&mut SharedReceives, VerbsError> {
        let entry = self.device.shared.get_mut(queue.0 as usize).and_then(Option::as_mut);
        entry.ok_or(VerbsError::Unknown("shared receive queue"))
    }

    /// Arms the limit event of a shared receive queue: it comes once, when fewer than `limit` receives are left.
    pub fn modify_srq(&mut self, queue: SharedReceiveQueue, limit: u32) -> Result<(), VerbsError> {
        let entry = self.shared(queue)?;
        check_limit("a limit of", limit.into(), entry.depth.into())?;
        entry.limit = limit;
        Ok(())
    }

    /// Frees a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, queue: SharedReceiveQueue) -> Result<(), VerbsError> {
        let count = self.shared(queue)?.users;
        if count > 0 {
            return Err(VerbsError::Busy { what: "shared receive queue", by: "queue pairs", count });
        }
        let mut entry = self.device.shared[queue.0 as usize].take().expect("it was there a moment ago");
        self.device.receives.clear(&mut entry.receives);
        self.domain(entry.domain)?.shared -= 1;
        Ok(())
    }

    /// A new address handle for datagrams.
    pub fn create_ah(&mut self, domain: ProtectionDomain, path: Path) -> Result<AddressHandle, VerbsError> {
        self.domain(domain)?.handles += 1;
        Ok(AddressHandle(place(&mut self.handles, (domain, path))))
    }

    /// Frees an address handle. Datagrams already posted keep their path.
    pub fn destroy_ah(&mut self, handle: AddressHandle) -> Result<(), VerbsError> {
        let entry = self.handles.get_mut(handle.0 as usize).and_then(Option::take);
        let (domain, _) = entry.ok_or(VerbsError::Unknown("address handle"))?;
        self.domain(domain)?.handles -= 1;
        Ok(())
    }

    /// A new queue pair, in the state RESET.
    pub fn create_qp(
        &mut self,
        domain: ProtectionDomain,
        config: &QueuePairConfig,
    ) -> Result<QueuePairNumber, VerbsError> {
        let limits = self.device.config.limits;
        check_limit("a send queue of depth", config.send_depth.into(), limits.queue_depth.into())?;
        check_limit("a receive queue of depth", config.receive_depth.into(), limits.queue_depth.into())?;
        check_limit("a number of gather entries of", config.gather_max.into(), limits.gather.into())?;
        check_limit("a number of inline bytes of", config.inline_max.into(), limits.inline.into())?;
        self.domain(domain)?;
        self.queue(config.send_queue)?;
        self.queue(config.receive_queue)?;
        if let Some(shared) = config.shared
            && self.shared(shared)?.domain != domain
        {
            return Err(VerbsError::OtherDomain("shared receive queue"));
        }
        let (slot, number) = match config.number {
            Some(GENERAL_SERVICES) => (self.claim_general_services(config.service)?, GENERAL_SERVICES),
            wanted => {
                let slot = self.free_slot(wanted)?;
                (slot, QueuePairNumber::new(self.device.config.queue_pairs.start + slot))
            }
        };
        let queue_pair = self.blank_queue_pair(domain, config, number, slot);
        self.queue_pairs[slot as usize] = Some(Box::new(queue_pair));
        self.domain(domain)?.queue_pairs += 1;
        self.queue(config.send_queue)?.users += 1;
        self.queue(config.receive_queue)?.users += 1;
        if let Some(shared) = config.shared {
            self.shared(shared)?.users += 1;
        }
        Ok(number)
    }

    /// Makes room for so many more queue pairs, sends and receives that wait. Without it there is room when it is needed.
    pub fn reserve(&mut self, queue_pairs: usize, sends: usize, receives: usize) {
        self.queue_pairs.reserve(queue_pairs);
        self.device.sends.reserve(sends);
        self.device.receives.reserve(receives);
    }

    fn blank_queue_pair(
        &self,
        domain: ProtectionDomain,
        config: &QueuePairConfig,
        number: QueuePairNumber,
        slot: u32,
    ) -> QueuePair {
        let device = &self.device.config;
        let source = device.ports[0].gids.first().copied().unwrap_or_default();
        let route = route(device, 0, &Path::to(Gid::default()), number, QueuePairNumber::new(0));
        let route = route.unwrap_or_else(|_| unaddressed(source));
        QueuePair::new(Shared::new(device, config, domain, (number, slot), route))
    }

    /// A free place in the table. Freed numbers rest for some time, so that stale packets find nobody.
    fn free_slot(&mut self, wanted: Option<QueuePairNumber>) -> Result<u32, VerbsError> {
        const REST: usize = 16;
        let range = self.device.config.queue_pairs.clone();
        if let Some(number) = wanted {
            let slot = number.value().wrapping_sub(range.start);
            let is_free = self.queue_pairs.get(slot as usize).is_none_or(Option::is_none);
            if !range.contains(&number.value()) || !is_free {
                return Err(VerbsError::NotAvailable { what: "queue pair number", number: number.value() });
            }
            while self.queue_pairs.len() <= slot as usize {
                self.free.push_back(self.queue_pairs.len() as u32);
                self.queue_pairs.push(None);
            }
            self.free.retain(|&free| free != slot);
            return Ok(slot);
        }
        let fresh = self.queue_pairs.len() as u32;
        if self.free.len() <= REST && range.start + fresh < range.end {
            self.queue_pairs.push(None);
            return Ok(fresh);
        }
        self.free.pop_front().ok_or(VerbsError::Exhausted("queue pair number"))
    }

    /// A slot for QP1, which carries the datagrams of connection management. A NIC has one at most.
    fn claim_general_services(&mut self, service: Service) -> Result<u32, VerbsError> {
        if service != Service::Datagram || self.general_services.is_some() {
            let number = GENERAL_SERVICES.value();
            return Err(VerbsError::NotAvailable { what: "queue pair number", number });
        }
        let slot = self.free_slot(None)?;
        self.general_services = Some(slot);
        Ok(slot)
    }

    #[inline]
    pub(crate) fn slot_of(&self, number: QueuePairNumber) -> Option<usize> {
        let slot = number.value().wrapping_sub(self.device.config.queue_pairs.start) as usize;
        let general_services = self.general_services.map(|slot| slot as usize);
        match self.queue_pairs.get(slot) {
            // The number that would go with the slot of QP1 is unused.
            Some(Some(_)) => (general_services != Some(slot)).then_some(slot),
            Some(None) => None,
            None => general_services.filter(|_| number == GENERAL_SERVICES),
        }
    }

    fn queue_pair(&self, number: QueuePairNumber) -> Result<&QueuePair, VerbsError> {
        let slot = self.slot_of(number).ok_or(VerbsError::Unknown("queue pair"))?;
        Ok(self.queue_pairs[slot].as_ref().expect("slot_of names a live one"))
    }

    /// What a queue pair is up to.
    pub fn query_qp(&self, number: QueuePairNumber) -> Result<QueuePairInfo, VerbsError> {
        let queue_pair = self.queue_pair(number)?;
        Ok(QueuePairInfo {
            state: queue_pair.shared.state,
            destination: queue_pair.shared.peer,
            sends: queue_pair.requester.queue.len(),
            receives: queue_pair.responder.receives.len(),
            mtu: queue_pair.shared.mtu,
            send_psn: queue_pair.requester.next,
            receive_psn: queue_pair.responder.expected,
            to_come: queue_pair.responder.to_come(),
        })
    }

    /// Work requests of a connected queue pair that no acknowledgement has covered yet. Unreliable ones get none.
    pub fn unacknowledged(&self, number: QueuePairNumber) -> u32 {
        match self.queue_pair(number) {
            Ok(queue_pair) if queue_pair.shared.service == Service::ReliableConnection => {
                queue_pair.requester.queue.len()
            }
            _ => 0,
        }
    }

    /// Changes a queue pair: its state, and the attributes that the transition needs or allows.
    pub fn modify_qp<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        number: QueuePairNumber,
        change: &Attributes,
    ) -> Result<(), VerbsError> {
        let slot = self.slot_of(number).ok_or(VerbsError::Unknown("queue pair"))?;
        let Self { device, queue_pairs, .. } = self;
        let queue_pair = queue_pairs[slot].as_mut().expect("slot_of names a live one");
        let to = check_transition(queue_pair.shared.service, queue_pair.shared.state, change)?;
        apply(device, queue_pair, change)?;
        match to {
            State::Reset => {
                queue_pair.reset(device);
                queue_pair.shared.set_state(device, cx, to);
            }
            State::Error => queue_pair.enter_error(device, cx, false),
            State::SendQueueDrain => {
                queue_pair.shared.set_state(device, cx, to);
                queue_pair.requester.check_drained(&mut queue_pair.shared, device);
                // The packet that was to ask for an acknowledgement will not follow: the clock must find out.
                if queue_pair.requester.is_waiting() {
                    queue_pair.requester.arm_acknowledgement(&mut queue_pair.shared, device, cx.now);
                }
            }
            _ => {
                queue_pair.shared.set_state(device, cx, to);
                if to == State::ReadyToSend {
                    queue_pair.shared.mark_data_ready(device);
                }
            }
        }
        self.settle(cx);
        Ok(())
    }

    /// Destroys a queue pair, in whatever state. Its completions that nobody polled vanish.
    pub fn destroy_qp(&mut self, number: QueuePairNumber) -> Result<(), VerbsError> {
        let slot = self.slot_of(number).ok_or(VerbsError::Unknown("queue pair"))?;
        let mut queue_pair = self.queue_pairs[slot].take().expect("slot_of names a live one");
        queue_pair.reset(&mut self.device);
        self.free.push_back(slot as u32);
        self.general_services.take_if(|general| *general as usize == slot);
        self.domain(queue_pair.shared.domain)?.queue_pairs -= 1;
        self.queue(queue_pair.shared.send_queue)?.users -= 1;
        self.queue(queue_pair.shared.receive_queue)?.users -= 1;
        if let Some(shared) = queue_pair.shared.receive_source {
            self.shared(shared)?.users -= 1;
        }
        Ok(())
    }

    /// Hands work to a send queue.
    pub fn post_send<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        number: QueuePairNumber,
        request: SendRequest,
    ) -> Result<(), PostError> {
        let slot = self.slot_of(number).ok_or(PostError::Unknown("queue pair"))?;
        let Self { device, queue_pairs, handles, .. } = self;
        let queue_pair = queue_pairs[slot].as_mut().expect("slot_of names a live one");
        let datagram = match (queue_pair.shared.service, request.target) {
            (Service::Datagram, Some(target)) => {
                let entry = handles.get(target.handle.0 as usize).and_then(Option::as_ref);
                let (_, path) = entry.ok_or(PostError::Unknown("address handle"))?;
                let found = route(&device.config, queue_pair.shared.port, path, number, number);
                Some(found.map_err(|_| PostError::Unknown("source address"))?)
            }
            _ => None,
        };
        queue_pair.requester.post_send(&mut queue_pair.shared, device, cx, request, datagram)?;
        self.settle(cx);
        Ok(())
    }

    /// Hands a buffer to the receive queue of a queue pair.
    pub fn post_recv<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        number: QueuePairNumber,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let slot = self.slot_of(number).ok_or(PostError::Unknown("queue pair"))?;
        let Self { device, queue_pairs, .. } = self;
        let QueuePair { responder, shared, .. } =
            &mut **queue_pairs[slot].as_mut().expect("slot_of names a live one");
        responder.post_recv(shared, device, cx, request)?;
        self.settle(cx);
        Ok(())
    }

    /// Hands a buffer to a shared receive queue.
    pub fn post_srq_recv(
        &mut self,
        queue: SharedReceiveQueue,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let entry = self.device.shared.get_mut(queue.0 as usize).and_then(Option::as_mut);
        let entry = entry.ok_or(PostError::Unknown("shared receive queue"))?;
        if entry.receives.len() >= entry.depth {
            return Err(PostError::Full { depth: entry.depth });
        }
        if request.scatter.len() > entry.gather_max as usize {
            return Err(PostError::TooManyEntries { asked: request.scatter.len(), limit: entry.gather_max });
        }
        self.device.receives.push(&mut entry.receives, request);
        Ok(())
    }

    /// The next event, if there is one.
    #[must_use = "an event that is not looked at is lost"]
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.device.events.pop_front()
    }

    /// Ends a call: queue pairs whose completion queue ran over in it go to error.
    pub(crate) fn settle<M: Memory, S: Sink>(&mut self, cx: &mut Context<'_, M, S>) {
        while let Some(queue) = self.device.overflowed.pop() {
            let Self { device, queue_pairs, .. } = self;
            for queue_pair in queue_pairs.iter_mut().flatten() {
                let uses = queue_pair.shared.send_queue == queue || queue_pair.shared.receive_queue == queue;
                if uses && !matches!(queue_pair.shared.state, State::Reset | State::Error) {
                    device.events.push_back(AsyncEvent::QueuePairFatal(queue_pair.shared.number));
                    queue_pair.enter_error(device, cx, false);
                }
            }
        }
    }
}

/// Puts `value` in the first free place.
fn place<T>(list: &mut Vec<Option<T>>, value: T) -> u32 {
    let index = list.iter().position(Option::is_none).unwrap_or(list.len());
    if index == list.len() {
        list.push(None);
    }
    list[index] = Some(value);
    index as u32
}

fn check_limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked > limit { Err(VerbsError::Limit { what, asked, limit }) } else { Ok(()) }
}

fn bad(attribute: Attribute, value: u64, help: &'static str) -> VerbsError {
    VerbsError::BadAttribute { attribute, value, help }
}

/// Takes over the attributes of a change; nothing is changed when one of them is wrong.
fn apply(device: &Device, queue_pair: &mut QueuePair, change: &Attributes) -> Result<(), VerbsError> {
    let config = &device.config;
    let port = match change.port {
        Some(port) if port == 0 || usize::from(port) > config.ports.len() => {
            return Err(bad(Attribute::Port, port.into(), "ports count from 1"));
        }
        Some(port) => port - 1,
        None => queue_pair.shared.port,
    };
    if let Some(index) = change.partition_index
        && index != 0
    {
        return Err(bad(
            Attribute::PartitionIndex,
            index.into(),
            "the partition table has one entry, index 0",
        ));
    }
    if let Some(mtu) = change.path_mtu
        && mtu > config.ports[usize::from(port)].mtu
    {
        return Err(bad(Attribute::PathMtu, mtu.bytes().into(), "it is more than the port carries"));
    }
    let small = [
        (Attribute::Timeout, change.timeout, 31, "5 bits: 0 (for ever) to 31"),
        (Attribute::MinRnrTimer, change.min_rnr_timer, 31, "5 bits: 0 to 31"),
        (Attribute::RetryCount, change.retry_count, 7, "3 bits: 0 to 7"),
        (Attribute::RnrRetry, change.rnr_retry, 7, "3 bits: 0 to 7 (for ever)"),
        (
            Attribute::InitiatorReads,
            change.initiator_reads,
            config.limits.reads,
            "it is more than the NIC's limit",
        ),
        (
            Attribute::DestinationReads,
            change.destination_reads,
            config.limits.reads,
            "it is more than the NIC's limit",
        ),
    ];
    for (attribute, value, limit, help) in small {
        if let Some(value) = value
            && value > limit
        {
            return Err(bad(attribute, value.into(), help));
        }
    }
    let peer = change.destination.unwrap_or(queue_pair.shared.peer);
    if let Some(path) = &change.path {
        queue_pair.shared.route = route(config, port, path, queue_pair.shared.number, peer)?;
    }
    queue_pair.shared.port = port;
    queue_pair.shared.peer = peer;
    queue_pair.shared.mtu = change.path_mtu.unwrap_or(queue_pair.shared.mtu);
    if change.port.is_some() || change.path_mtu.is_some() {
        // What congestion control learned is of no use on another line or with other packets.
        let line = config.ports[usize::from(port)].rate;
        queue_pair.shared.control = Controller::new(&config.control, line, queue_pair.shared.mtu);
    }
    queue_pair.shared.access = change.access.unwrap_or(queue_pair.shared.access);
    queue_pair.shared.queue_key = change.queue_key.unwrap_or(queue_pair.shared.queue_key);
    queue_pair.shared.notify_drained = change.notify_drained.unwrap_or(queue_pair.shared.notify_drained);
    let (requester, responder) = (&mut queue_pair.requester, &mut queue_pair.responder);
    responder.expected = change.receive_psn.unwrap_or(responder.expected);
    responder.reads_max = change.destination_reads.unwrap_or(responder.reads_max);
    responder.min_rnr_timer = change.min_rnr_timer.unwrap_or(responder.min_rnr_timer);
    requester.timeout = change.timeout.unwrap_or(requester.timeout);
    requester.reads_max = change.initiator_reads.unwrap_or(requester.reads_max);
    if let Some(count) = change.retry_count {
        (requester.retry_count, requester.retries) = (count, count);
    }
    if let Some(count) = change.rnr_retry {
        (requester.rnr_retry, requester.rnr_retries) = (count, count);
    }
    if let Some(psn) = change.send_psn {
        requester.start(psn);
    }
    Ok(())
}

/// The addressing of packets along a path.
fn route(
    config: &NicConfig,
    port: u8,
    path: &Path,
    local: QueuePairNumber,
    remote: QueuePairNumber,
) -> Result<Route, VerbsError> {
    let gids = &config.ports[usize::from(port)].gids;
    let source = *gids.get(usize::from(path.source)).ok_or_else(|| {
        bad(
            Attribute::Path,
            path.source.into(),
            "the source index is past the end of the port's address table",
        )
    })?;
    let network = Network {
        source,
        target: path.target,
        source_port: udp_source_port(path.flow_label, local, remote),
        target_port: ROCE_PORT,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        identification: 0,
        flow_label: 0,
    };
    Ok(Route { network, priority: config.priorities[usize::from(path.traffic_class >> 2)] & 7 })
}

/// The route of a queue pair that has no peer yet.
fn unaddressed(source: Gid) -> Route {
    let network = Network {
        source,
        target: Gid::default(),
        source_port: 0,
        target_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: 0,
        identification: 0,
        flow_label: 0,
    };
    Route { network, priority: 0 }
}
