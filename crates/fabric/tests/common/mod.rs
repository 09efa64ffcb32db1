//! Hosts that each have memory, a completion queue and connections, for tests of the fabric.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test takes what it needs")]

use railnet_core::event::NoSink;
use railnet_core::{Component, QueuePairNumber, Rate, Time};
use railnet_fabric::{Application, Framing, Network, SwitchConfig, host_gid};
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Key, Mtu, Nic, NicConfig, Operation, PortConfig,
    ProtectionDomain, QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge, Status,
};
use railnet_topology::{FabricGraph, Routes};

const BASE: u64 = 0;
const SIZE: u64 = 1 << 30;

/// Notes when each message arrived or failed: (time, host, work, status).
#[derive(Default)]
pub struct Log {
    pub entries: Vec<(Time, u32, u64, Status)>,
}

impl Application<NoSink> for Log {
    fn completed(&mut self, network: &mut Network<NoSink>, host: u32, completion: &Completion) {
        self.entries.push((network.now, host, completion.work, completion.status));
    }

    fn called(&mut self, _network: &mut Network<NoSink>, _token: u32) {}
}

/// A network with one endpoint for each host.
pub struct World {
    pub network: Network<NoSink>,
    endpoints: Vec<(ProtectionDomain, CompletionQueue, Key)>,
}

impl World {
    pub fn new(graph: &FabricGraph, config: SwitchConfig) -> Self {
        let routes = Routes::shortest(graph);
        let mut network = Network::new(graph, routes, config, Framing::ETHERNET, 1, NoSink, |host| {
            let mut config = NicConfig::new(Component(host), 1, host_gid(host));
            let gids = vec![host_gid(host)];
            config.ports = vec![PortConfig { gids, rate: Rate::gbps(100), mtu: Mtu::Mtu4096 }];
            Nic::new(config)
        });
        let endpoints = (0..network.host_count())
            .map(|host| {
                let space = network.memory.add_ghost(BASE, SIZE);
                let memory = std::mem::take(&mut network.memory);
                let (nic, _) = network.nic(host);
                let domain = nic.alloc_pd();
                let queue = nic.create_cq(1000).unwrap();
                let key = nic.reg_mr(&memory, domain, space, BASE, SIZE, Access::ALL, None).unwrap();
                network.memory = memory;
                network.watch(host, queue);
                (domain, queue, key)
            })
            .collect();
        Self { network, endpoints }
    }

    fn queue_pair(&mut self, host: u32) -> QueuePairNumber {
        let (domain, queue, _) = self.endpoints[host as usize];
        let config = QueuePairConfig::new(Service::ReliableConnection, queue);
        self.network.nic(host).0.create_qp(domain, &config).unwrap()
    }

    /// Sends `bytes` over a new connection, as WRITE with immediate: the target's completion has the number `work`.
    pub fn send(&mut self, from: u32, to: u32, bytes: u32, work: u64) {
        let (near, far) = (self.queue_pair(from), self.queue_pair(to));
        connect(&mut self.network, from, near, to, far);
        connect(&mut self.network, to, far, from, near);
        let (nic, mut cx) = self.network.nic(to);
        nic.post_recv(&mut cx, far, ReceiveRequest::new(work)).unwrap();
        let remote = Remote { address: BASE, key: self.endpoints[to as usize].2 };
        let sge = Sge { address: BASE, length: bytes, key: self.endpoints[from as usize].2 };
        let request = SendRequest::new(work, Operation::WriteImmediate(remote, 7)).with(sge).unsignaled();
        let (nic, mut cx) = self.network.nic(from);
        nic.post_send(&mut cx, near, request).unwrap();
        self.network.kick(from);
    }
}

fn connect(
    network: &mut Network<NoSink>,
    host: u32,
    own: QueuePairNumber,
    peer: u32,
    other: QueuePairNumber,
) {
    let connection = Connection { timeout: 8, reads: 1, ..Connection::to(host_gid(peer), other) };
    let (nic, mut cx) = network.nic(host);
    for change in connection.transitions() {
        nic.modify_qp(&mut cx, own, &change).unwrap();
    }
}
