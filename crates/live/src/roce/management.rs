//! Connection management of a driver: QP1, and the communication manager behind it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use railnet_core::{QueuePairNumber, Span, Time};
use railnet_nic::cm::Manager;
use railnet_nic::memory::{Memory, SpaceId};
use railnet_nic::{
    Access, AddressHandle, Attributes, Completion, CompletionQueue, DatagramTarget, Key, Operation, Path,
    ProtectionDomain, QueuePairConfig, ReceiveRequest, SendRequest, Service, Sge, State,
};
use railnet_wire::mad::{MAD_LENGTH, MANAGEMENT_QUEUE_KEY, MANAGEMENT_QUEUE_PAIR, ServiceId};
use railnet_wire::{Gid, ROCE_PORT};

use super::steering::{COMMUNICATION_BITS, is_alive, member_of};
use super::{Driver, Error, random_u64};
use crate::memory::application::ApplicationMemory;

const QP1: QueuePairNumber = QueuePairNumber::new(MANAGEMENT_QUEUE_PAIR);

/// Receives that are posted, and datagrams that may wait to be sent.
const DEPTH: u32 = 512;

/// Bytes in front of a datagram for the GRH.
const GRH_LENGTH: usize = 40;
const SLOT: usize = GRH_LENGTH + MAD_LENGTH;

/// Ways to peers that are kept: a process seldom talks to more.
const HANDLES_MAX: usize = 1024;

impl<M: Memory> Driver<M> {
    /// Keeps a service for this process, which may listen on it later. An error of kind `AddrInUse` tells that it is taken.
    pub fn reserve(&mut self, service: ServiceId) -> io::Result<()> {
        self.steering.as_mut().map_or(Ok(()), |steering| steering.reserve_service(service.0 as u32))
    }

    /// Requests of connection management for a service come to this process from now on. An error of kind `AddrInUse` tells that
    /// another process of the host has it.
    pub fn listen(&mut self, service: ServiceId) -> io::Result<()> {
        if let Some(steering) = &mut self.steering {
            steering.add_service(service.0 as u32)?;
        }
        self.rebuild_steering()?;
        self.steering.as_ref().map_or(Ok(()), |steering| steering.show_listening(service.0 as u32))
    }

    /// They come no longer, and others may have the service.
    pub fn unlisten(&mut self, service: ServiceId) {
        if let Some(steering) = &mut self.steering {
            steering.remove_service(service.0 as u32);
        }
    }
}

/// Whether a datagram is for another process of the host. No process answers, let alone refuses, for another one.
fn is_astray<M: Memory>(driver: &mut Driver<M>, manager: &Manager, datagram: &[u8]) -> bool {
    let Some(steering) = &mut driver.steering else { return false };
    match (Manager::asked_service(datagram), Manager::addressed_id(datagram)) {
        (Some(service), _) => !manager.listens(service) && steering.on_foreign_service(service.0 as u32),
        (None, Some(id)) => steering.on_foreign_id(id.0),
        (None, None) => false,
    }
}

/// QP1 of a driver.
#[derive(Debug)]
pub struct ConnectionManagement {
    manager: Manager,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    /// Where datagrams arrive: the NIC writes there.
    buffer: Box<[u8]>,
    key: Key,
    handles: BTreeMap<Gid, AddressHandle>,
    read: Vec<u8>,
    neighbours: Neighbours,
}

/// How often this side looks whether the processes of this host that it is connected to are still there.
const NEIGHBOUR_INTERVAL: Duration = Duration::from_millis(250);

/// The processes that connections lead to, and which of them are of this host. The kernel ends the connections of a process that
/// dies; here the process at the other end of them does.
#[derive(Debug, Default)]
struct Neighbours {
    /// Members of an address, and whether that member was seen on this host.
    known: BTreeMap<(Gid, u16), bool>,
    /// When to look again; `None` while no connection leads to a process of this host.
    due: Option<Time>,
}

impl Neighbours {
    /// Looks whether new peers are processes of this host and, when that is due, whether those are still there. Ends the
    /// connections to those that are gone; tells whether there were any.
    fn check(&mut self, now: Time, manager: &mut Manager) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        let up: Vec<_> = manager.established().collect();
        let mut known = BTreeMap::new();
        let mut lost = false;
        for (id, peer, queue_pair) in up {
            let neighbour = (peer, member_of(queue_pair));
            let alive = || is_alive(SocketAddr::new(peer.to_ip(), ROCE_PORT), neighbour.1);
            let was_here = self.known.get(&neighbour).copied();
            let is_here = *known.entry(neighbour).or_insert_with(|| match was_here {
                None => alive(),
                Some(true) if is_due => alive(),
                Some(was_here) => was_here,
            });
            if was_here == Some(true) && !is_here {
                manager.lost(now, id);
                lost = true;
            }
        }
        self.known = known;
        if is_due || self.due.is_none() {
            let interval = Span::from_ps(NEIGHBOUR_INTERVAL.as_nanos() as u64 * 1000);
            self.due = self.known.values().any(|is_here| *is_here).then(|| now + interval);
        }
        lost
    }
}

impl ConnectionManagement {
    /// Opens QP1. `guid` is the device's name in requests.
    pub fn open(driver: &mut Driver<ApplicationMemory>, guid: u64) -> Result<Self, Error> {
        let first = u32::from(driver.member()) << COMMUNICATION_BITS;
        let ids = first..first + ((1 << COMMUNICATION_BITS) - 1);
        let manager = Manager::new(driver.gid(), guid, ids, random_u64());
        let mut buffer = vec![0; SLOT * DEPTH as usize].into_boxed_slice();
        let nic = driver.nic_mut();
        let domain = nic.alloc_pd();
        let completions = nic.create_cq(2 * DEPTH)?;
        let mut config = QueuePairConfig::new(Service::Datagram, completions);
        (config.number, config.send_depth, config.receive_depth) = (Some(QP1), DEPTH, DEPTH);
        config.inline_max = MAD_LENGTH as u32;
        nic.create_qp(domain, &config)?;
        let address = buffer.as_mut_ptr() as u64;
        let key = driver.register(domain, SpaceId(0), address, buffer.len() as u64, Access::LOCAL_WRITE)?;
        let (nic, mut cx) = driver.lend();
        let none = Attributes::default();
        let init = Attributes {
            state: Some(State::Init),
            partition_index: Some(0),
            port: Some(1),
            queue_key: Some(MANAGEMENT_QUEUE_KEY),
            ..none
        };
        let receive = Attributes { state: Some(State::ReadyToReceive), ..none };
        let send = Attributes {
            state: Some(State::ReadyToSend),
            send_psn: Some(railnet_core::Psn::new(random_u64() as u32 & railnet_core::Psn::MASK)),
            ..none
        };
        for change in [init, receive, send] {
            nic.modify_qp(&mut cx, QP1, &change)?;
        }
        let mut opened = Self {
            manager,
            domain,
            completions,
            buffer,
            key,
            handles: BTreeMap::new(),
            read: Vec::new(),
            neighbours: Neighbours::default(),
        };
        for slot in 0..DEPTH {
            opened.post_receive(driver, slot);
        }
        Ok(opened)
    }

    /// The communication manager. What it has to send leaves with the next [`ConnectionManagement::progress`].
    pub fn manager(&mut self) -> &mut Manager {
        &mut self.manager
    }

    fn post_receive(&mut self, driver: &mut Driver<ApplicationMemory>, slot: u32) {
        let address = self.buffer.as_mut_ptr() as u64 + u64::from(slot) * SLOT as u64;
        let sge = Sge { address, length: SLOT as u32, key: self.key };
        // The queue has room for every slot.
        let _ = driver.post_recv(QP1, ReceiveRequest::new(slot.into()).with(sge));
    }

    /// Hands the manager what arrived and what is due, and sends what it has to send; tells whether there was anything.
    pub fn progress(&mut self, driver: &mut Driver<ApplicationMemory>) -> bool {
        let mut arrived = [Completion::EMPTY; 16];
        let mut active = false;
        loop {
            let count = driver.poll_cq(self.completions, &mut arrived);
            for completion in &arrived[..count] {
                self.take(driver, completion);
            }
            active |= count > 0;
            if count < arrived.len() {
                break;
            }
        }
        // Asked in every turn of a progress loop: the clock is read only where something has a time.
        if let Some(due) = self.manager.poll_timeout() {
            let now = driver.now();
            if due <= now {
                self.manager.handle_timeout(now);
                active = true;
            }
        }
        while let Some(datagram) = self.manager.poll_transmit() {
            active = true;
            let Ok(handle) = self.handle(driver, datagram.target) else { continue };
            let target = DatagramTarget { handle, queue_pair: QP1, queue_key: MANAGEMENT_QUEUE_KEY };
            let mut request = SendRequest::new(u64::MAX, Operation::Send);
            request = request.with_inline(&datagram.bytes).unsignaled();
            request.target = Some(target);
            // A full queue is a loss like any other: the manager sends again.
            let _ = driver.post_send(QP1, request);
        }
        if active || self.neighbours.due.is_some_and(|due| due <= driver.now()) {
            active |= self.neighbours.check(driver.now(), &mut self.manager);
        }
        active
    }

    fn take(&mut self, driver: &mut Driver<ApplicationMemory>, completion: &Completion) {
        let Ok(slot) = u32::try_from(completion.work) else { return };
        if completion.length as usize == SLOT && completion.source == QP1 {
            let address = self.buffer.as_ptr() as u64 + u64::from(slot) * SLOT as u64;
            self.read.clear();
            driver.memory().read(SpaceId(0), address, SLOT, &mut self.read);
            if let Some((grh, datagram)) = self.read.split_first_chunk::<GRH_LENGTH>()
                && !is_astray(driver, &self.manager, datagram)
            {
                self.manager.receive(driver.now(), Gid::from_grh(grh), datagram);
            }
        }
        self.post_receive(driver, slot);
    }

    fn handle(
        &mut self,
        driver: &mut Driver<ApplicationMemory>,
        target: Gid,
    ) -> Result<AddressHandle, Error> {
        if let Some(handle) = self.handles.get(&target) {
            return Ok(*handle);
        }
        if self.handles.len() >= HANDLES_MAX {
            for handle in std::mem::take(&mut self.handles).into_values() {
                driver.nic_mut().destroy_ah(handle)?;
            }
        }
        let path = Path { source: 0, target, flow_label: 0, traffic_class: 0, hop_limit: 64 };
        let handle = driver.nic_mut().create_ah(self.domain, path)?;
        self.handles.insert(target, handle);
        Ok(handle)
    }

    /// How long until something is due.
    pub fn next_timeout(&self, driver: &Driver<ApplicationMemory>) -> Option<Duration> {
        let due = self.manager.poll_timeout().into_iter().chain(self.neighbours.due).min()?;
        Some(Duration::from_nanos(due.as_ps().saturating_sub(driver.now().as_ps()) / 1000))
    }
}
