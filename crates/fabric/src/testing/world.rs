//! A network with one endpoint for each host, and an application that notes what completes.

use railnet_core::event::{NoSink, Sink};
use railnet_core::{Component, QueuePairNumber, Rate, Time};
use railnet_nic::memory::SpaceId;
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Key, Mtu, Nic, NicConfig, Operation, PortConfig,
    ProtectionDomain, QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge, Status,
};
use railnet_topology::{FabricGraph, Routes, Vertex};

use crate::application::Application;
use crate::model::config::{Framing, SwitchConfig};
use crate::network::{Network, host_gid};

/// Where the memory of every host begins.
const BASE: u64 = 1 << 32;

/// How a [`World`] is made.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// How the switches behave.
    pub switch: SwitchConfig,
    /// How lengths are counted.
    pub framing: Framing,
    /// The root of all randomness.
    pub seed: u64,
    /// Bytes of memory of each host.
    pub memory: u64,
    /// Memory has no bytes, only tags.
    pub is_ghost: bool,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// Code of the acknowledgement timeout.
    pub timeout: u8,
    /// Retries without an answer.
    pub retry_count: u8,
    /// What all NICs are like; their component, seed and addresses are set for each.
    pub nic: NicConfig,
}

impl WorldOptions {
    /// NICs of 100 Gb/s that give up after a millisecond without an answer, eight times, behind these switches.
    pub fn new(switch: SwitchConfig) -> Self {
        Self {
            switch,
            framing: Framing::ETHERNET,
            seed: 1,
            memory: 1 << 30,
            is_ghost: true,
            mtu: Mtu::Mtu4096,
            timeout: 8,
            retry_count: 7,
            nic: NicConfig::new(Component(0), 1, host_gid(0)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Endpoint {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    key: Key,
    space: SpaceId,
}

/// A network with one endpoint for each host.
#[derive(Debug)]
pub struct World<S = NoSink> {
    /// The network.
    pub network: Network<S>,
    options: WorldOptions,
    endpoints: Vec<Endpoint>,
}

impl World {
    /// A world without a sink.
    pub fn new(graph: &FabricGraph, switch: SwitchConfig) -> Self {
        Self::watched(graph, WorldOptions::new(switch), NoSink)
    }
}

impl<S: Sink> World<S> {
    /// A world whose events go to `sink`.
    pub fn watched(graph: &FabricGraph, options: WorldOptions, sink: S) -> Self {
        let WorldOptions { switch, framing, seed, .. } = &options;
        let nic = |host: u32| {
            let own = graph.neighbours(Vertex::Host(host));
            let rate = own.first().map_or(Rate::gbps(100), |link| graph.links[link.link as usize].rate);
            let ports = vec![PortConfig { gids: vec![host_gid(host)], rate, mtu: Mtu::Mtu4096 }];
            Nic::new(NicConfig { component: Component(host), seed: *seed, ports, ..options.nic.clone() })
        };
        let routes = Routes::minimal(graph, &[]);
        let mut network = Network::new(graph, routes, switch.clone(), *framing, *seed, sink, nic);
        let endpoints = (0..network.host_count())
            .map(|host| {
                let space = match options.is_ghost {
                    true => network.memory.add_ghost(BASE, options.memory),
                    false => network.memory.add_bytes(BASE, vec![0; options.memory as usize]),
                };
                let (nic, cx) = network.nic(host);
                let domain = nic.alloc_pd();
                let queue = nic.create_cq(1 << 16).expect("the depth is within the NIC's limit");
                let key = nic
                    .reg_mr(cx.memory, domain, space, BASE, options.memory, Access::ALL, None)
                    .expect("the memory was just made");
                network.watch(host, queue);
                Endpoint { domain, queue, key, space }
            })
            .collect();
        Self { network, options, endpoints }
    }

    /// The protection domain that a host's memory is registered in.
    pub fn domain(&self, host: u32) -> ProtectionDomain {
        self.endpoints[host as usize].domain
    }

    /// Registers more memory with the NIC of a host.
    pub fn register(&mut self, host: u32, space: SpaceId, address: u64, length: u64, access: Access) -> Key {
        let Endpoint { domain, .. } = self.endpoints[host as usize];
        let (nic, cx) = self.network.nic(host);
        let key = nic.reg_mr(cx.memory, domain, space, address, length, access, None);
        key.expect("the range lies in the space")
    }

    /// The address space of a host's memory, which begins at [`World::address`]`(0)`.
    pub fn space(&self, host: u32) -> SpaceId {
        self.endpoints[host as usize].space
    }

    /// The address `offset` bytes into any host's memory.
    pub fn address(&self, offset: u64) -> u64 {
        BASE + offset
    }

    /// A new connection: the queue pair of either end.
    pub fn connect(&mut self, from: u32, to: u32) -> (QueuePairNumber, QueuePairNumber) {
        self.connect_with(from, to, |_| {})
    }

    /// A new connection, of which `adjust` may change what both ends have in common.
    pub fn connect_with(
        &mut self,
        from: u32,
        to: u32,
        adjust: impl Fn(&mut Connection),
    ) -> (QueuePairNumber, QueuePairNumber) {
        let ends = [from, to].map(|host| {
            let Endpoint { domain, queue, .. } = self.endpoints[host as usize];
            let config = QueuePairConfig::new(Service::ReliableConnection, queue);
            let (nic, _) = self.network.nic(host);
            nic.create_qp(domain, &config).expect("the range has numbers left")
        });
        for (host, own, peer, other) in [(from, ends[0], to, ends[1]), (to, ends[1], from, ends[0])] {
            let mut connection = Connection {
                mtu: self.options.mtu,
                timeout: self.options.timeout,
                retry_count: self.options.retry_count,
                reads: 1,
                ..Connection::to(host_gid(peer), other)
            };
            adjust(&mut connection);
            let (nic, mut cx) = self.network.nic(host);
            for change in connection.transitions() {
                nic.modify_qp(&mut cx, own, &change).expect("the attributes are those the transition needs");
            }
        }
        (ends[0], ends[1])
    }

    /// A range of a host's memory, for its own NIC.
    pub fn sge(&self, host: u32, offset: u64, length: u32) -> Sge {
        Sge { address: self.address(offset), length, key: self.endpoints[host as usize].key }
    }

    /// A range of a host's memory, for other NICs.
    pub fn remote(&self, host: u32, offset: u64) -> Remote {
        Remote { address: self.address(offset), key: self.endpoints[host as usize].key }
    }

    /// Sends `bytes` over a new connection, as WRITE with immediate: the target's completion has the number `work`.
    pub fn send(&mut self, from: u32, to: u32, bytes: u32, work: u64) {
        let (near, far) = self.connect(from, to);
        let request = SendRequest::new(work, Operation::WriteImmediate(self.remote(to, 0), 7));
        let request = request.with(self.sge(from, 0, bytes)).unsignaled();
        let (nic, mut cx) = self.network.nic(to);
        nic.post_recv(&mut cx, far, ReceiveRequest::new(work)).expect("the queue is empty");
        let (nic, mut cx) = self.network.nic(from);
        nic.post_send(&mut cx, near, request).expect("the queue is empty");
        self.network.kick(from);
    }
}

/// Notes when each piece of work completed: (time, host, work, status).
#[derive(Clone, Default, Debug)]
pub struct Log {
    /// In the order of completion.
    pub entries: Vec<(Time, u32, u64, Status)>,
}

impl<S: Sink> Application<S> for Log {
    fn completed(&mut self, network: &mut Network<S>, host: u32, completion: &Completion) {
        self.entries.push((network.now, host, completion.work, completion.status));
    }

    fn called(&mut self, _network: &mut Network<S>, _token: u32) {}
}
