//! Two NICs on real sockets, driven from one thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use railnet_core::{Psn, QueuePairNumber};
use railnet_live::memory::{Buffer, ProcessMemory};
use railnet_live::roce::{Config, Driver};
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Key, QueuePairConfig, ReceiveRequest, Remote,
    SendRequest, Service, Sge,
};

/// No wait of a test is longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// One NIC with one queue pair and one buffer.
pub(crate) struct Side {
    pub(crate) driver: Driver,
    pub(crate) buffer: Buffer,
    pub(crate) key: Key,
    pub(crate) queue: CompletionQueue,
    pub(crate) queue_pair: QueuePairNumber,
}

impl Side {
    pub(crate) fn new(config: &Config, bytes: usize) -> Self {
        let buffer = Buffer::new(bytes);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        let mut driver = Driver::open(config, memory).unwrap();
        let domain = driver.nic_mut().alloc_pd();
        let key = driver.register(domain, space, buffer.address(), bytes as u64, Access::ALL).unwrap();
        let queue = driver.nic_mut().create_cq(4096).unwrap();
        let config = QueuePairConfig::new(Service::ReliableConnection, queue);
        let queue_pair = driver.nic_mut().create_qp(domain, &config).unwrap();
        Self { driver, buffer, key, queue, queue_pair }
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { address: self.buffer.address() + offset as u64, length: length as u32, key: self.key }
    }

    pub(crate) fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.buffer.address() + offset as u64, key: self.key }
    }

    pub(crate) fn send(&mut self, request: SendRequest) {
        self.driver.post_send(self.queue_pair, request).unwrap();
    }

    pub(crate) fn receive(&mut self, work: u64, offset: usize, length: usize) {
        let request = ReceiveRequest::new(work).with(self.sge(offset, length));
        self.driver.post_recv(self.queue_pair, request).unwrap();
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let mut out = [Completion::EMPTY; 64];
        let count = self.driver.poll_cq(self.queue, &mut out);
        out[..count].to_vec()
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

/// Two NICs that are connected.
pub(crate) struct Pair(pub(crate) [Side; 2]);

#[allow(dead_code, reason = "not every test makes them in both ways")]
impl Pair {
    /// Both made as `config` says, the connection of each as `change` has it.
    pub(crate) fn new(configs: [Config; 2], bytes: usize, change: impl Fn(&mut Connection)) -> Self {
        Self::of(configs.map(|config| Side::new(&config, bytes)), change)
    }

    /// The same of NICs that are there.
    pub(crate) fn of(mut sides: [Side; 2], change: impl Fn(&mut Connection)) -> Self {
        let ends: Vec<_> =
            sides.iter().map(|side| (side.driver.local(), side.driver.gid(), side.queue_pair)).collect();
        for (index, side) in sides.iter_mut().enumerate() {
            let (address, gid, number) = ends[1 - index];
            let mut connection = Connection {
                send_psn: Psn::new(0xff_fff0 + index as u32),
                receive_psn: Psn::new(0xff_fff0 + 1 - index as u32),
                ..Connection::to(gid, number)
            };
            change(&mut connection);
            side.driver.connect(side.queue_pair, address, &connection).unwrap();
        }
        Self(sides)
    }

    pub(crate) fn plain(address: &str, bytes: usize) -> Self {
        Self::new([config(address), config(address)], bytes, |_| {})
    }

    /// Drives both until `done` says so.
    pub(crate) fn drive(&mut self, what: &str, mut done: impl FnMut(&mut [Side; 2]) -> bool) {
        let limit = Instant::now() + LIMIT;
        while !done(&mut self.0) {
            let moved = self.0.iter_mut().fold(false, |moved, side| side.driver.progress().unwrap() | moved);
            if !moved {
                self.0[0].driver.wait(Duration::from_micros(50)).unwrap();
            }
            assert!(Instant::now() < limit, "waited {LIMIT:?} for {what}");
        }
    }

    /// Drives both until each has so many completions more, and gives them.
    pub(crate) fn completions(&mut self, counts: [usize; 2]) -> [Vec<Completion>; 2] {
        let mut found = [Vec::new(), Vec::new()];
        self.drive("completions", |sides| {
            for (side, found) in sides.iter_mut().zip(&mut found) {
                found.extend(side.completions());
            }
            found[0].len() >= counts[0] && found[1].len() >= counts[1]
        });
        found
    }
}

/// A NIC at this address, at a port that the system chooses.
pub(crate) fn config(address: &str) -> Config {
    Config::new(SocketAddr::new(address.parse().unwrap(), 0))
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = railnet_core::Random::from_seed(seed);
    (0..length.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).take(length).collect()
}
