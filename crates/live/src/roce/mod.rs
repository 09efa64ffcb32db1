//! RoCEv2 over UDP: the NIC of `railnet-nic` on real sockets, with no kernel module and no privilege.
//!
//! A [`Driver`] is a short loop around a [`Nic`]: datagrams that come in are parsed and handed to it, packets that it
//! has are given headers and ICRC and sent, many in one call where they go to one peer. What belongs to the NIC itself
//! (queue pairs, work, completions) is asked of the NIC; the driver adds sockets, memory and the clock. It never waits
//! but in [`Driver::wait`], and that has a limit.
//!
//! The ICRC covers IP and UDP headers that the kernel writes, so the driver must know them beforehand. Of the fields
//! that are covered a socket decides all but the IPv4 ID, and that is 0 for a socket that is not connected and may not
//! fragment, and the index of a segment where one send is cut into several. Packets go out from a pool of sockets, one
//! for each connection's own source port, so that a network with several paths can spread them; they come in at one
//! port, 4791 or the process's own.
//!
//! Who has a loop of its own calls [`Driver::progress`] in it, which never waits. When that had nothing to do, it may
//! sleep until the driver's descriptor ([`AsFd`]) can be read or [`Driver::next_timeout`] is over. Code that speaks to a
//! NIC (the conduits of `railnet-coll`) is lent it by [`Driver::lend`]; the queue pairs that it connects are then told
//! their way by [`Driver::route`].
//!
//! ```
//! use std::time::{Duration, Instant};
//! use railnet_live::memory::{Buffer, ProcessMemory};
//! use railnet_live::roce::{Config, Driver};
//! use railnet_nic::{Access, Connection, Operation, QueuePairConfig, Remote, SendRequest, Service, Sge};
//!
//! // Two NICs in one process; each could as well be in its own.
//! let mut sides = Vec::new();
//! for _ in 0..2 {
//!     let buffer = Buffer::new(8192);
//!     let mut memory = ProcessMemory::default();
//!     let space = memory.add(&buffer);
//!     let mut driver = Driver::open(&Config::new("127.0.0.1:0".parse()?), memory)?;
//!     let domain = driver.nic_mut().alloc_pd();
//!     let key = driver.register(domain, space, buffer.address(), 8192, Access::ALL)?;
//!     let queue = driver.nic_mut().create_cq(16)?;
//!     let config = QueuePairConfig::new(Service::ReliableConnection, queue);
//!     let queue_pair = driver.nic_mut().create_qp(domain, &config)?;
//!     sides.push((driver, buffer, key, queue_pair));
//! }
//! for (mine, theirs) in [(0, 1), (1, 0)] {
//!     let (address, number) = (sides[theirs].0.local(), sides[theirs].3);
//!     let connection = Connection::to(sides[theirs].0.gid(), number);
//!     let own = sides[mine].3;
//!     sides[mine].0.connect(own, address, &connection)?;
//! }
//! let (target, key) = (sides[1].1.address(), sides[1].2);
//! let (driver, buffer, local, queue_pair) = &mut sides[0];
//! buffer.store(0, 42);
//! let write = Operation::Write(Remote { address: target + 4096, key });
//! let sge = Sge { address: buffer.address(), length: 8, key: *local };
//! driver.post_send(*queue_pair, SendRequest::new(1, write).with(sge))?;
//! let limit = Instant::now() + Duration::from_secs(10);
//! while sides[1].1.load(4096) != 42 && Instant::now() < limit {
//!     sides[0].0.progress()?;
//!     sides[1].0.progress()?;
//! }
//! assert_eq!(sides[1].1.load(4096), 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod counters;
mod datapath;
mod device;
mod error;
mod faults;
mod gathered;
mod guard;
mod management;
mod rest;
mod senders;
mod settings;
mod shared;
mod shared_payload;
mod steering;
mod system;
mod tap;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use railnet_core::event::NoSink;
use railnet_core::{Component, QueuePairNumber, Time};
use railnet_nic::memory::{Memory, SpaceId};
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Context, DropReason, Key, Nic, NicConfig, Path,
    PostError, ProtectionDomain, ReceiveRequest, SendRequest, Transmit, VerbsError,
};
use railnet_wire::capture::CaptureError;
use railnet_wire::{Gid, Identification, SEGMENTS_MAX};
use rustix::event::{PollFd, PollFlags};

pub use steering::{COMMUNICATION_BITS, MEMBERS_MAX, QUEUE_PAIR_BITS};

pub use counters::Counters;
pub use device::{Device, Link, devices, interface_index};
pub use error::Error;
pub use faults::{FaultCounters, Faults, share};
pub use guard::{Guard, SessionId, SessionKeys};
pub use management::ConnectionManagement;
pub use settings::Settings;
pub use system::{Arrival, Endpoint, Target};

use batch::Batch;
use faults::{Datagram, Injector};
use guard::Guards;
use rest::Rest;
use senders::Senders;
use shared_payload::{CopyFrom, SharedPayload};
use steering::Steering;
use tap::Tap;

use crate::memory::ProcessMemory;

/// Receives before a timer that is due is looked at: what a socket's buffer holds, in pieces of 16 KiB.
const RECEIVES_MAX: usize = 256;

/// Bytes of one receive: what the kernel merges at most.
const RECEIVE_BYTES: usize = 1 << 16;

/// How long a send may wait for room in the kernel before it counts as lost.
const SEND_WAIT: Duration = Duration::from_millis(1);

/// Why packets are thrown away that no peer sent, or that the network damaged.
pub const STRANGE: [DropReason; 8] = [
    DropReason::BadIcrc,
    DropReason::NoQueuePair,
    DropReason::WrongTransport,
    DropReason::Partition,
    DropReason::Address,
    DropReason::UnsentResponse,
    DropReason::QueueKey,
    DropReason::NotServed,
];

/// What a driver is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to receive. The address is the NIC's own; port 0 lets the system choose, 4791 is what foreign peers need.
    pub address: SocketAddr,
    /// The NIC. Its first port has the address above as its only one, whatever stands here.
    pub nic: NicConfig,
    /// Which IPv4 IDs a peer may use. [`Identification::SEGMENTS`] is what Railnet sends; others need `Any`.
    pub accepted: Identification,
    /// Bytes that the kernel shall keep of what came in. It may allow less.
    pub receive_buffer: usize,
    /// Queue pairs that may send to one receiver at once. They share its buffer, so each has that part of the window;
    /// what is beyond it is lost and sent again. All peers should be made with the same number.
    pub senders: u32,
    /// Send from a socket for each connection's source port, rather than from the one that receives.
    pub spread: bool,
    /// Let the kernel cut sends into datagrams, and merge those that come in.
    pub segment: bool,
    /// How long [`Driver::wait`] looks again and again before it sleeps: a wake-up costs more than a short wait, and a
    /// long one would take a core from those who work.
    pub spin: Duration,
    /// How long [`Driver::progress`] may leave the socket alone at most when it has found nothing in the middle of a long
    /// WRITE that comes at full speed, or of several that follow each other, and sends nothing itself. A sender on the same
    /// host is faster by it, and nobody waits for a part of a WRITE; but what others send waits, too. 0: never.
    pub rest: Duration,
    /// What happens to datagrams on their way out.
    pub faults: Faults,
    /// Share the address with other processes of this user, each of which has queue pair numbers of its own:
    /// `nic.queue_pairs` is replaced by this process's share of them.
    pub shared: bool,
}

impl Config {
    /// A NIC with this address, for Railnet peers, with numbers that a stranger does not guess.
    pub fn new(address: SocketAddr) -> Self {
        let seed = random_u64();
        let mut nic = NicConfig::new(Component(0), seed, Gid::from_ip(address.ip()));
        // Where in its space a process begins is nobody's business: old packets of another find no queue pair.
        let first = 0x100 + (seed >> 32) as u32 % 0x00ff_0000;
        nic.queue_pairs = first..1 << 24;
        nic.random_keys = true;
        Self {
            address,
            nic,
            accepted: Identification::SEGMENTS,
            receive_buffer: 4 << 20,
            senders: 1,
            spread: true,
            segment: true,
            spin: Duration::from_micros(30),
            rest: Duration::from_micros(200),
            faults: Faults::NONE,
            shared: false,
        }
    }
}

/// A NIC on real sockets.
pub struct Driver<M = ProcessMemory> {
    nic: Nic,
    memory: M,
    receiver: Endpoint,
    senders: Senders,
    guards: Guards,
    gid: Gid,
    accepted: Identification,
    batch: Batch,
    /// The packet that the NIC builds.
    packet: Option<Transmit>,
    inbox: Box<[u8]>,
    started: Instant,
    spin: Duration,
    rest: Rest,
    /// Where other processes share the address.
    steering: Option<Steering>,
    injector: Option<Injector>,
    /// Datagrams that the faults let go.
    released: Vec<Datagram>,
    tap: Option<Tap>,
    sink: NoSink,
    counters: Counters,
    last_refusal: Option<io::Error>,
    /// Where payloads may go through shared memory, and how they get there.
    shared_payload: Option<(SharedPayload, CopyFrom<M>)>,
}

impl<M: Memory> Driver<M> {
    /// Opens the sockets of a NIC.
    pub fn open(config: &Config, memory: M) -> Result<Self, Error> {
        let address = config.address;
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(Error::Unspecified(address));
        }
        let bind = |source| Error::Bind { address, source };
        let (receiver, steering) = match config.shared {
            true => Steering::join(address).map(|(receiver, steering)| (receiver, Some(steering))),
            false => Endpoint::bind(address).map(|receiver| (receiver, None)),
        }
        .map_err(bind)?;
        let kept = receiver.prepare_receive(config.receive_buffer, config.segment).map_err(bind)?;
        let gid = Gid::from_ip(address.ip());
        let mut nic = config.nic.clone();
        nic.ports[0].gids = vec![gid];
        if let Some(steering) = &steering {
            nic.queue_pairs = queue_pairs_of(steering.member(), nic.seed);
        }
        let behaviour = &mut nic.behaviour;
        behaviour.unacked_packets_max =
            behaviour.unacked_packets_max.min(window(kept, nic.ports[0].mtu.bytes(), config.senders));
        behaviour.ack_requests.interval =
            behaviour.ack_requests.interval.min((behaviour.unacked_packets_max / 4).max(1) as u16);
        let segments = config.segment && config.faults.is_none() && receiver.can_segment();
        let mut driver = Self {
            nic: Nic::new(nic),
            memory,
            senders: Senders::new(receiver.local(), config.spread),
            guards: Guards::default(),
            receiver,
            gid,
            accepted: config.accepted,
            batch: Batch::new(if segments { SEGMENTS_MAX } else { 1 }),
            packet: None,
            inbox: vec![0; RECEIVE_BYTES].into(),
            started: Instant::now(),
            spin: config.spin,
            rest: Rest::new(config.rest),
            steering,
            injector: (!config.faults.is_none()).then(|| Injector::new(config.faults)),
            released: Vec::new(),
            tap: None,
            sink: NoSink,
            counters: Counters::default(),
            last_refusal: None,
            shared_payload: None,
        };
        driver.rebuild_steering().map_err(bind)?;
        Ok(driver)
    }

    /// Where it receives.
    pub fn local(&self) -> SocketAddr {
        self.receiver.local()
    }

    /// The NIC's address as peers name it.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The NIC, for the verbs that need neither time nor memory.
    pub fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// The memory it reaches.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory it reaches, to add to it.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        let faults = self.injector.as_ref().map_or_else(FaultCounters::default, |injector| injector.counters);
        Counters { faults, ..self.counters.clone() }
    }

    /// Why the kernel refused the last send that it refused.
    pub fn last_refusal(&self) -> Option<&io::Error> {
        self.last_refusal.as_ref()
    }

    /// From now on writes every packet that leaves or comes to `write`, as pcapng.
    pub fn capture(&mut self, write: Box<dyn Write + Send>) -> Result<(), CaptureError> {
        self.capture_first(write, None, None)
    }

    /// The same, but not more than so many of them, in a file that begins with a comment.
    pub fn capture_first(
        &mut self,
        write: Box<dyn Write + Send>,
        most: Option<u64>,
        comment: Option<&str>,
    ) -> Result<(), CaptureError> {
        if let Some((shared_payload, _)) = &mut self.shared_payload {
            shared_payload.end();
        }
        self.tap = Some(Tap::new(write, &self.local().to_string(), most.unwrap_or(u64::MAX), comment)?);
        Ok(())
    }

    /// Ends the capture, and tells whether all of it could be written.
    pub fn finish_capture(&mut self) -> Result<(), CaptureError> {
        self.tap.take().map_or(Ok(()), Tap::finish)
    }

    /// Registers memory; see [`Nic::reg_mr`].
    pub fn register(
        &mut self,
        domain: ProtectionDomain,
        space: SpaceId,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Key, VerbsError> {
        self.nic.reg_mr(&self.memory, domain, space, address, length, access, None)
    }

    /// The same, with a key that is free: one that another region had.
    pub fn register_as(
        &mut self,
        domain: ProtectionDomain,
        space: SpaceId,
        address: u64,
        length: u64,
        access: Access,
        key: Key,
    ) -> Result<(), VerbsError> {
        self.nic.reg_mr(&self.memory, domain, space, address, length, access, Some(key)).map(|_| ())
    }

    /// Brings a queue pair up to a peer that receives at `peer`.
    pub fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: SocketAddr,
        connection: &Connection,
    ) -> Result<(), Error> {
        self.connect_guarded(queue_pair, peer, connection, Guard::default())
    }

    /// The same, for a queue pair whose packets are held to more than its peer's address. The peer has to do likewise.
    pub fn connect_guarded(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: SocketAddr,
        connection: &Connection,
        guard: Guard,
    ) -> Result<(), Error> {
        self.check_family(peer)?;
        let mut sink = NoSink;
        let mut cx = Context::new(self.now(), &mut self.memory, &mut sink);
        for change in connection.transitions() {
            self.nic.modify_qp(&mut cx, queue_pair, &change)?;
        }
        self.route_guarded(queue_pair, peer, &connection.path, guard)
    }

    /// Tells the way of a queue pair that was connected through [`Driver::lend`]: to a peer that receives at `peer`.
    pub fn route(&mut self, queue_pair: QueuePairNumber, peer: SocketAddr, path: &Path) -> Result<(), Error> {
        self.route_guarded(queue_pair, peer, path, Guard::default())
    }

    /// The same, with a guard.
    pub fn route_guarded(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: SocketAddr,
        path: &Path,
        guard: Guard,
    ) -> Result<(), Error> {
        self.check_family(peer)?;
        let destination = self.nic.query_qp(queue_pair)?.destination;
        let own_port = railnet_wire::udp_source_port(path.flow_label, queue_pair, destination);
        self.senders.connect(queue_pair, peer, own_port, path, guard)?;
        if guard.exact_port {
            let address = self.local();
            let set = self.receiver.set_class(path.traffic_class, path.hop_limit);
            set.map_err(|source| Error::Sender { address, source })?;
        }
        self.guards.set(queue_pair, peer.port(), guard);
        if let Some((shared_payload, _)) = &mut self.shared_payload {
            shared_payload.offer((peer, steering::member_of(destination)));
        }
        Ok(())
    }

    /// A session with another driver: what guards name ([`Guard::session`]).
    pub fn add_session(&mut self, keys: &SessionKeys) -> SessionId {
        self.guards.add_session(keys)
    }

    fn check_family(&self, peer: SocketAddr) -> Result<(), Error> {
        let local = self.local();
        match local.is_ipv4() == peer.is_ipv4() {
            true => Ok(()),
            false => Err(Error::Family { local, peer }),
        }
    }

    /// Destroys a queue pair, and forgets its way.
    pub fn destroy(&mut self, queue_pair: QueuePairNumber) -> Result<(), VerbsError> {
        self.nic.destroy_qp(queue_pair)?;
        self.senders.disconnect(queue_pair);
        self.guards.remove(queue_pair);
        Ok(())
    }

    /// The NIC, and what it needs with each call: the time now, and the memory.
    pub fn lend(&mut self) -> (&mut Nic, Context<'_, M, NoSink>) {
        let now = self.now();
        (&mut self.nic, Context::new(now, &mut self.memory, &mut self.sink))
    }

    /// Hands work to a send queue; see [`Nic::post_send`].
    pub fn post_send(&mut self, queue_pair: QueuePairNumber, request: SendRequest) -> Result<(), PostError> {
        let now = self.now();
        self.nic.post_send(&mut Context::new(now, &mut self.memory, &mut NoSink), queue_pair, request)
    }

    /// Hands a buffer to a receive queue; see [`Nic::post_recv`].
    pub fn post_recv(
        &mut self,
        queue_pair: QueuePairNumber,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let now = self.now();
        self.nic.post_recv(&mut Context::new(now, &mut self.memory, &mut NoSink), queue_pair, request)
    }

    /// Sends what is due, without looking at what came in. Tells whether anything went out.
    pub fn flush_sends(&mut self) -> bool {
        let now = self.now();
        self.transmit(now)
    }

    /// Takes completions off a queue; see [`Nic::poll_cq`].
    #[must_use = "the number says how many of `out` are filled"]
    pub fn poll_cq(&mut self, queue: CompletionQueue, out: &mut [Completion]) -> usize {
        self.nic.poll_cq(queue, out)
    }

    /// Does what can be done without waiting: sends what is due, takes one receive's worth in, unless it rests
    /// ([`Config::rest`]). Tells whether anything was done.
    ///
    /// Sending comes first, so that what the application posted in answer to the last call goes out in one send with
    /// the acknowledgement that is owed for it.
    pub fn progress(&mut self) -> io::Result<bool> {
        let now = self.now();
        let mut received = false;
        if self.nic.poll_timeout().is_some_and(|(due, _)| due <= now) {
            received = self.receive_before_timeout(now)?;
            self.nic.handle_timeout(&mut Context::new(now, &mut self.memory, &mut NoSink));
        }
        let sent = self.transmit(now);
        received |= self.receive(now)?;
        Ok(sent || received)
    }

    /// A timer is due: takes in what the kernel keeps. A thread that was not on a core for longer than a timeout finds the
    /// acknowledgements there that it would otherwise send everything again for. Tells whether there was anything.
    fn receive_before_timeout(&mut self, now: Time) -> io::Result<bool> {
        self.rest.end();
        for receives in 0..RECEIVES_MAX {
            if !self.receive(now)? {
                return Ok(receives > 0);
            }
        }
        Ok(true)
    }

    /// Waits until something may have come in, a timer is due, or `limit` is over; then makes progress.
    pub fn wait(&mut self, limit: Duration) -> io::Result<bool> {
        let began = Instant::now();
        loop {
            // What is ready to go must not wait.
            if self.progress()? {
                return Ok(true);
            }
            if began.elapsed() >= self.spin.min(limit) {
                break;
            }
        }
        let limit = self.next_timeout().map_or(limit, |next| next.min(limit));
        wait_for(&self.receiver, PollFlags::IN, limit)?;
        self.rest.end();
        self.progress()
    }

    /// How long a caller may sleep before the next call of [`Driver::progress`], when nothing comes in until then and
    /// the last call had nothing to do. `None`: for ever.
    #[must_use = "a timer that is not kept loses packets"]
    pub fn next_timeout(&self) -> Option<Duration> {
        let due = self.nic.poll_timeout().map(|(due, _)| due);
        let held = self.injector.as_ref().and_then(Injector::next_due);
        let next = due.into_iter().chain(held).min()?;
        Some(Duration::from_nanos(next.since(self.now()).as_ps().div_ceil(1000)))
    }

    /// The time on this driver's clock.
    pub fn now(&self) -> Time {
        Time::from_ps(self.started.elapsed().as_nanos() as u64 * 1000)
    }
}

/// The queue pair numbers of a process that shares its address. Where they begin differs each time, so that packets for a
/// process that died do not find one that has its numbers now.
fn queue_pairs_of(member: u16, seed: u64) -> std::ops::Range<u32> {
    const SPECIAL: u32 = 0x11;
    let share = 1 << QUEUE_PAIR_BITS;
    let first = u32::from(member) * share;
    let skip = SPECIAL + (seed >> 40) as u32 % (share / 4);
    first + skip..first + share
}

/// Can be read when something came in.
impl<M> AsFd for Driver<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl<M> std::fmt::Debug for Driver<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.receiver.local())
    }
}

/// How many packets each of several queue pairs may have on their way to a socket that keeps so many bytes, its peer's
/// being like this one. The kernel counts the memory that packets take, which is up to twice their bytes.
fn window(kept: usize, mtu: u32, senders: u32) -> u32 {
    (kept as u32 / 2 / (mtu + 256) / senders.max(1)).max(8)
}

/// Waits until a socket is ready, at most for `limit`.
fn wait_for(endpoint: &Endpoint, flags: PollFlags, limit: Duration) -> io::Result<bool> {
    let timeout = rustix::event::Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut [PollFd::new(endpoint, flags)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A number that nobody guesses.
fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Without a source of randomness time and process must do.
        _ => {
            let time = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
            time ^ u64::from(std::process::id()) << 32
        }
    }
}
