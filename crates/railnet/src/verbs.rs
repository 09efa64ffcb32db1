//! A NIC on this host: device, protection domain, memory region, completion queue and queue pair, as `libibverbs` has them, in safe
//! Rust. The NIC is Railnet's own, on UDP sockets: it speaks RoCEv2 with other Railnets and with RDMA hardware, and needs no
//! kernel module and no root.
//!
//! | libibverbs | here |
//! | --- | --- |
//! | `ibv_open_device` | [`Device::open`] |
//! | `ibv_alloc_pd` | [`Device::protection_domain`] |
//! | `ibv_reg_mr` | [`ProtectionDomain::register`] |
//! | `ibv_create_cq` | [`Device::completion_queue`] |
//! | `ibv_create_qp`, `ibv_modify_qp` to INIT | [`ProtectionDomain::queue_pair`] |
//! | what programs exchange over TCP | [`QueuePair::endpoint`], [`MemoryRegion::remote`] |
//! | `ibv_modify_qp` to RTR and RTS | [`QueuePair::connect`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post`], [`QueuePair::post_receive`] |
//! | `ibv_poll_cq` | [`CompletionQueue::poll`], [`CompletionQueue::wait`] |
//!
//! There is no hardware that works while the program does something else: the NIC works in [`CompletionQueue::poll`],
//! [`CompletionQueue::wait`] and [`Device::progress`]. A program that only serves its memory to others calls the last in a loop.
//! Objects are destroyed when the last value that uses them is dropped.
//!
//! ```
//! use std::time::Duration;
//! use railnet::verbs::{Access, Device, Status, Work};
//!
//! // Two NICs in one process; each could as well be in its own.
//! let (here, there) = (Device::open("127.0.0.1:0".parse()?)?, Device::open("127.0.0.1:0".parse()?)?);
//! let source = here.protection_domain().register(4096, Access::LOCAL_WRITE)?;
//! let target = there.protection_domain().register(4096, Access::ALL)?;
//! let (mine, theirs) = (here.completion_queue(16)?, there.completion_queue(16)?);
//! let left = source.protection_domain().queue_pair(&mine)?;
//! let right = target.protection_domain().queue_pair(&theirs)?;
//! left.connect(&right.endpoint())?;
//! right.connect(&left.endpoint())?;
//!
//! source.write(0, b"hello");
//! left.post(Work::write(source.slice(0, 5), target.remote().at(100)).id(7))?;
//! let mut done = Vec::new();
//! while done.is_empty() {
//!     there.progress(Duration::ZERO)?;
//!     done = mine.poll()?;
//! }
//! assert_eq!((done[0].work, done[0].status), (7, Status::Success));
//! let mut found = [0; 5];
//! target.read(100, &mut found);
//! assert_eq!(&found, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use railnet_core::QueuePairNumber;
use railnet_core::{Psn, Random, Span};
use railnet_live::memory::{Buffer, ProcessMemory};
use railnet_live::roce::{Config, Driver, Error as DriverError};
use railnet_nic::memory::SpaceId;
pub use railnet_nic::{Access, Completion, CompletionKind, Mtu, PostError, State, Status, VerbsError};
use railnet_nic::{
    Attributes, Connection, Key, Operation, QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service,
    Sge,
};
use railnet_wire::Gid;
use thiserror::Error as ThisError;

/// Completions that one poll returns at most.
const POLL_MAX: usize = 32;

/// What can go wrong in a call.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be opened, or a peer not be reached from it.
    #[error(transparent)]
    Device(#[from] DriverError),
    /// The NIC refuses to make, change or destroy an object.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The NIC refuses a work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A socket fails.
    #[error("the device's socket: {0}")]
    Socket(#[from] io::Error),
    /// What a peer sent is no endpoint or no memory region.
    #[error("\"{text}\" is no {what}: expected {expected}")]
    Exchange {
        /// What was read.
        text: String,
        /// What it was to be.
        what: &'static str,
        /// Its form.
        expected: &'static str,
    },
}

/// A NIC at an address of this host. Clones are the same NIC.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Mutex<Driver>,
    random: Mutex<Random>,
}

impl Shared {
    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// Opens a NIC that receives at an address of this host. Peers that are not Railnet need port 4791; port 0 lets the kernel choose.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let config = Config::new(address);
        let random = Mutex::new(Random::stream(config.nic.seed, "first PSN", 0));
        let driver = Mutex::new(Driver::open(&config, ProcessMemory::default())?);
        Ok(Self { shared: Arc::new(Shared { driver, random }) })
    }

    /// The address at which it receives.
    pub fn address(&self) -> SocketAddr {
        self.shared.driver().local()
    }

    /// A new protection domain.
    pub fn protection_domain(&self) -> ProtectionDomain {
        let id = self.shared.driver().nic_mut().alloc_pd();
        ProtectionDomain { inner: Arc::new(Domain { device: self.clone(), id }) }
    }

    /// A new completion queue for so many completions.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, Error> {
        let id = self.shared.driver().nic_mut().create_cq(depth)?;
        Ok(CompletionQueue { inner: Arc::new(Queue { device: self.clone(), id }) })
    }

    /// Sends what is due and takes in what has arrived; waits for that until `limit` is over. Tells whether there was anything.
    pub fn progress(&self, limit: Duration) -> Result<bool, Error> {
        let mut driver = self.shared.driver();
        Ok(if limit.is_zero() { driver.progress()? } else { driver.wait(limit)? })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// What memory regions and queue pairs have to share so that one may use the other.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<Domain>,
}

#[derive(Debug)]
struct Domain {
    device: Device,
    id: railnet_nic::ProtectionDomain,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Whatever uses it keeps it: nothing is left by now.
        let _ = self.device.shared.driver().nic_mut().dealloc_pd(self.id);
    }
}

impl ProtectionDomain {
    /// New memory of so many bytes, all 0, which the NIC may use, and peers as far as `access` says.
    pub fn register(&self, bytes: usize, access: Access) -> Result<MemoryRegion, Error> {
        let buffer = Buffer::new(bytes);
        let mut driver = self.inner.device.shared.driver();
        let space = driver.memory_mut().add(&buffer);
        match driver.register(self.inner.id, space, buffer.address(), bytes as u64, access) {
            Ok(key) => {
                let region = Region { domain: Arc::clone(&self.inner), buffer, space, key };
                Ok(MemoryRegion { inner: Arc::new(region) })
            }
            Err(error) => {
                driver.memory_mut().remove(space);
                Err(error.into())
            }
        }
    }

    /// A new queue pair of a reliable connection, in the state INIT, so that receives can be posted before it is connected; sends
    /// and receives complete on `queue`.
    pub fn queue_pair(&self, queue: &CompletionQueue) -> Result<QueuePair, Error> {
        let shared = &self.inner.device.shared;
        let config = QueuePairConfig::new(Service::ReliableConnection, queue.inner.id);
        let mut driver = shared.driver();
        let number = driver.nic_mut().create_qp(self.inner.id, &config)?;
        let to_init = Attributes {
            state: Some(State::Init),
            partition_index: Some(0),
            port: Some(1),
            access: Some(Access::ALL),
            ..Attributes::default()
        };
        let (nic, mut cx) = driver.lend();
        nic.modify_qp(&mut cx, number, &to_init)?;
        let mut random = shared.random.lock().unwrap_or_else(PoisonError::into_inner);
        let psn = Psn::new(random.next_u32());
        Ok(QueuePair { domain: Arc::clone(&self.inner), queue: Arc::clone(&queue.inner), number, psn })
    }
}

/// Memory that the NIC may use. Clones are the same memory.
#[derive(Clone)]
pub struct MemoryRegion {
    inner: Arc<Region>,
}

struct Region {
    domain: Arc<Domain>,
    buffer: Buffer,
    space: SpaceId,
    key: Key,
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut driver = self.domain.device.shared.driver();
        // Work that still names it fails from now on, with a local protection error.
        let _ = driver.nic_mut().dereg_mr(self.key);
        driver.memory_mut().remove(self.space);
    }
}

impl MemoryRegion {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.buffer.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.inner.buffer.is_empty()
    }

    /// The protection domain that it was registered in.
    pub fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain { inner: Arc::clone(&self.inner.domain) }
    }

    /// Copies bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not all in the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.inner.buffer.read(offset, out);
    }

    /// Copies bytes to `offset`.
    ///
    /// # Panics
    /// If they are not all in the region.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.inner.buffer.write(offset, data);
    }

    /// A part of it, for a work request.
    ///
    /// # Panics
    /// If it is not all in the region, or longer than 2³¹ bytes, which no message is.
    pub fn slice(&self, offset: usize, bytes: usize) -> Slice {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.len() && bytes <= 1 << 31);
        assert!(end.is_some(), "{bytes} bytes at {offset} are not in a region of {}", self.len());
        let address = self.inner.buffer.address() + offset as u64;
        Slice { sge: Sge { address, length: bytes as u32, key: self.inner.key } }
    }

    /// What a peer has to know to read or write it: send that, as text, by whatever channel there is.
    pub fn remote(&self) -> RemoteRegion {
        let address = self.inner.buffer.address();
        RemoteRegion { address, bytes: self.len() as u64, rkey: self.inner.key.0 }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("remote", &self.remote()).finish_non_exhaustive()
    }
}

/// A part of a memory region of this host.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    sge: Sge,
}

/// A peer's memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    /// Its first byte, in the peer's memory.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The key that opens it.
    pub rkey: u32,
}

impl RemoteRegion {
    /// What begins `offset` bytes behind its start. The peer's NIC refuses what is not in it.
    #[must_use]
    pub fn at(self, offset: u64) -> RemoteSlice {
        RemoteSlice { remote: Remote { address: self.address.wrapping_add(offset), key: Key(self.rkey) } }
    }
}

impl fmt::Display for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} {} {:#x}", self.address, self.bytes, self.rkey)
    }
}

impl FromStr for RemoteRegion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            || exchange(text, "memory region", "its address, bytes and rkey, such as 0x7f00 4096 0x1b0");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [address, bytes, rkey] = words[..] else { return Err(wrong()) };
        Ok(Self {
            address: number(address).ok_or_else(wrong)?,
            bytes: number(bytes).ok_or_else(wrong)?,
            rkey: number(rkey).and_then(|rkey| rkey.try_into().ok()).ok_or_else(wrong)?,
        })
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSlice {
    remote: Remote,
}

/// One end of a connection, as its peer has to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Where its NIC receives.
    pub address: SocketAddr,
    /// The queue pair.
    pub queue_pair: u32,
    /// The sequence number of its first packet.
    pub psn: u32,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x} {}", self.address, self.queue_pair, self.psn)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            || exchange(text, "endpoint", "its address, QPN and PSN, such as 192.0.2.1:4791 0x11 671633");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [address, queue_pair, psn] = words[..] else { return Err(wrong()) };
        let short = |word| number(word).filter(|number| *number < 1 << 24).map(|number| number as u32);
        Ok(Self {
            address: address.parse().map_err(|_| wrong())?,
            queue_pair: short(queue_pair).ok_or_else(wrong)?,
            psn: short(psn).ok_or_else(wrong)?,
        })
    }
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

fn exchange(text: &str, what: &'static str, expected: &'static str) -> Error {
    Error::Exchange { text: text.trim_end().to_owned(), what, expected }
}

/// What connections of one kind have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// An acknowledgement is waited for 4.096 µs × 2 to the power of this.
    pub timeout: u8,
    /// How often something is sent again without an answer.
    pub retry_count: u8,
    /// How often to a peer that has no receive posted; 7 is without end.
    pub rnr_retry: u8,
}

impl Default for ConnectionOptions {
    /// Packets of 4096 bytes, 67 ms and 7 retries.
    fn default() -> Self {
        Self { mtu: Mtu::Mtu4096, timeout: 14, retry_count: 7, rnr_retry: 7 }
    }
}

/// One end of a reliable connection.
pub struct QueuePair {
    domain: Arc<Domain>,
    queue: Arc<Queue>,
    number: QueuePairNumber,
    psn: Psn,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _ = self.domain.device.shared.driver().destroy(self.number);
    }
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// The completion queue of its work.
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue { inner: Arc::clone(&self.queue) }
    }

    /// What its peer has to know: send that, as text, by whatever channel there is.
    pub fn endpoint(&self) -> Endpoint {
        let address = self.domain.device.address();
        Endpoint { address, queue_pair: self.number.value(), psn: self.psn.value() }
    }

    /// The state that it is in.
    pub fn state(&self) -> Result<State, Error> {
        Ok(self.domain.device.shared.driver().nic().query_qp(self.number)?.state)
    }

    /// Takes it from INIT through RTR to RTS, connected with this peer. Receives that the peer's first messages need
    /// should be posted by then, or the peer waits and tries again.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        self.connect_with(peer, ConnectionOptions::default())
    }

    /// The same with other options; both ends need the same MTU.
    pub fn connect_with(&self, peer: &Endpoint, options: ConnectionOptions) -> Result<(), Error> {
        let gid = Gid::from_ip(peer.address.ip());
        let connection = Connection {
            mtu: options.mtu,
            send_psn: self.psn,
            receive_psn: Psn::new(peer.psn),
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            ..Connection::to(gid, QueuePairNumber::new(peer.queue_pair))
        };
        Ok(self.domain.device.shared.driver().connect(self.number, peer.address, &connection)?)
    }

    /// Hands work to the send queue. The memory that it names has to stay until the work is complete.
    pub fn post(&self, work: Work) -> Result<(), Error> {
        Ok(self.domain.device.shared.driver().post_send(self.number, work.request)?)
    }

    /// Hands memory to the receive queue, for the next SEND of the peer that finds no earlier one.
    pub fn post_receive(&self, id: u64, into: Slice) -> Result<(), Error> {
        let request = ReceiveRequest::new(id).with(into.sge);
        Ok(self.domain.device.shared.driver().post_recv(self.number, request)?)
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

/// A work request for a send queue: signalled, with the id 0.
#[derive(Clone, Debug)]
pub struct Work {
    request: SendRequest,
}

impl Work {
    fn new(operation: Operation, local: Slice) -> Self {
        Self { request: SendRequest::new(0, operation).with(local.sge) }
    }

    /// Sends to a receive that the peer has posted.
    #[must_use]
    pub fn send(data: Slice) -> Self {
        Self::new(Operation::Send, data)
    }

    /// Writes to the peer's memory.
    #[must_use]
    pub fn write(data: Slice, to: RemoteSlice) -> Self {
        Self::new(Operation::Write(to.remote), data)
    }

    /// Writes to the peer's memory and completes a receive of the peer, with these 32 bits.
    #[must_use]
    pub fn write_with_immediate(data: Slice, to: RemoteSlice, immediate: u32) -> Self {
        Self::new(Operation::WriteImmediate(to.remote, immediate), data)
    }

    /// Reads from the peer's memory.
    #[must_use]
    pub fn read(into: Slice, from: RemoteSlice) -> Self {
        Self::new(Operation::Read(from.remote), into)
    }

    /// Adds to 64 bits of the peer's memory; the old value comes back.
    #[must_use]
    pub fn fetch_add(old: Slice, at: RemoteSlice, add: u64) -> Self {
        Self::new(Operation::FetchAdd { remote: at.remote, add }, old)
    }

    /// Replaces 64 bits of the peer's memory by `swap` if they are `compare`; the old value comes back.
    #[must_use]
    pub fn compare_swap(old: Slice, at: RemoteSlice, compare: u64, swap: u64) -> Self {
        Self::new(Operation::CompareSwap { remote: at.remote, compare, swap }, old)
    }

    /// With this id, which its completion has too.
    #[must_use]
    pub fn id(mut self, id: u64) -> Self {
        self.request.work = id;
        self
    }

    /// Without a completion, unless it fails. A later completion of the same queue pair says that it is done.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.request.signaled = false;
        self
    }
}

/// Where finished work is reported. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    device: Device,
    id: railnet_nic::CompletionQueue,
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = self.device.shared.driver().nic_mut().destroy_cq(self.id);
    }
}

impl CompletionQueue {
    /// Lets the NIC work, and takes what completed; empty where nothing did.
    pub fn poll(&self) -> Result<Vec<Completion>, Error> {
        let mut driver = self.inner.device.shared.driver();
        driver.progress()?;
        Ok(taken(&mut driver, self.inner.id))
    }

    /// The same, but waits until something completes or `limit` is over: then it is empty.
    pub fn wait(&self, limit: Duration) -> Result<Vec<Completion>, Error> {
        let mut driver = self.inner.device.shared.driver();
        let began = driver.now();
        loop {
            let found = taken(&mut driver, self.inner.id);
            let waited = Duration::from_nanos(driver.now().since(began).as_ps() / Span::from_ns(1).as_ps());
            if !found.is_empty() || waited >= limit {
                return Ok(found);
            }
            driver.wait(limit.saturating_sub(waited))?;
        }
    }
}

fn taken(driver: &mut Driver, queue: railnet_nic::CompletionQueue) -> Vec<Completion> {
    let mut found = vec![Completion::EMPTY; POLL_MAX];
    let count = driver.poll_cq(queue, &mut found);
    found.truncate(count);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exchanged_is_read_as_it_was_written() {
        let endpoint = Endpoint { address: "[::1]:4791".parse().unwrap(), queue_pair: 0x11, psn: 671_633 };
        assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
        let region = RemoteRegion { address: 0x7f20_0000_1000, bytes: 4096, rkey: 0xfeed_0001 };
        assert_eq!(region.to_string().parse::<RemoteRegion>().unwrap(), region);
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_its_form() {
        for text in [
            "",
            "127.0.0.1:1 2",
            "127.0.0.1 2 3",
            "127.0.0.1:1 0x1000000 3",
            "127.0.0.1:1 2 -3",
            "127.0.0.1:1 2 3 4",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(
                error.contains("is no endpoint") && error.contains("192.0.2.1:4791 0x11"),
                "{text}: {error}"
            );
        }
        let error = "0x1 4096 0x100000000".parse::<RemoteRegion>().unwrap_err().to_string();
        assert!(error.contains("is no memory region"), "{error}");
    }
}
