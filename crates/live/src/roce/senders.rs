//! The sockets that packets go out from, and which connection uses which.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use railnet_core::QueuePairNumber;
use railnet_nic::{Path, Transmit};
use railnet_wire::{Network, ROCE_PORT};
use rustix::event::PollFlags;

use super::batch::Lane;
use super::guard::{Guard, SessionId};
use super::steering::QUEUE_PAIR_BITS;
use super::system::{Endpoint, Target};
use super::{Error, SEND_WAIT, wait_for};

/// Sockets in the pool. Connections beyond that share them: the paths of a network are fewer.
const SENDERS_MAX: usize = 64;

/// The sender that is the socket that receives.
const RECEIVER: usize = usize::MAX;

/// Where the packets of a queue pair go, and from where.
#[derive(Clone, Copy, Debug)]
struct Route {
    sender: usize,
    target: usize,
    source_port: u16,
    target_port: u16,
    session: Option<SessionId>,
}

/// The pool.
#[derive(Debug)]
pub(super) struct Senders {
    local: SocketAddr,
    spread: bool,
    endpoints: Vec<Endpoint>,
    /// By the source port that was asked for.
    by_port: BTreeMap<u16, usize>,
    targets: Vec<(SocketAddr, Target)>,
    routes: BTreeMap<QueuePairNumber, Route>,
    /// The route that was used last: bursts are of one queue pair.
    last: Option<(QueuePairNumber, Route)>,
}

impl Senders {
    pub(super) fn new(local: SocketAddr, spread: bool) -> Self {
        Self {
            local,
            spread,
            endpoints: Vec::new(),
            by_port: BTreeMap::new(),
            targets: Vec::new(),
            routes: BTreeMap::new(),
            last: None,
        }
    }

    /// The sockets of the pool.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter()
    }

    /// A queue pair sends to `peer` from now on, from `source_port` where that can be had.
    pub(super) fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: SocketAddr,
        source_port: u16,
        path: &Path,
        guard: Guard,
    ) -> Result<(), Error> {
        let target = self.target(peer);
        let (sender, source_port) = match self.spread && !guard.exact_port {
            false => (RECEIVER, self.local.port()),
            true => self.sender(source_port, path)?,
        };
        let route = Route { sender, target, source_port, target_port: peer.port(), session: guard.session };
        self.routes.insert(queue_pair, route);
        self.last = None;
        Ok(())
    }

    /// A queue pair is gone. Its socket stays for others.
    pub(super) fn disconnect(&mut self, queue_pair: QueuePairNumber) {
        self.routes.remove(&queue_pair);
        self.last = None;
    }

    fn target(&mut self, peer: SocketAddr) -> usize {
        let known = self.targets.iter().position(|(address, _)| *address == peer);
        known.unwrap_or_else(|| {
            self.targets.push((peer, Target::from(peer)));
            self.targets.len() - 1
        })
    }

    fn sender(&mut self, source_port: u16, path: &Path) -> Result<(usize, u16), Error> {
        if let Some(&sender) = self.by_port.get(&source_port) {
            return Ok((sender, self.endpoints[sender].local().port()));
        }
        if self.endpoints.len() >= SENDERS_MAX {
            let sender = usize::from(source_port) % self.endpoints.len();
            return Ok((sender, self.endpoints[sender].local().port()));
        }
        let at = |port| {
            let mut address = self.local;
            address.set_port(port);
            address
        };
        // Somebody else may have that port: any other spreads as well.
        let mut endpoint = Endpoint::bind(at(source_port))
            .or_else(|_| Endpoint::bind(at(0)))
            .map_err(|source| Error::Sender { address: at(0), source })?;
        let sender = |source| Error::Sender { address: endpoint.local(), source };
        endpoint.refuse_input().map_err(sender)?;
        let address = endpoint.local();
        endpoint
            .set_class(path.traffic_class, path.hop_limit)
            .map_err(|source| Error::Sender { address, source })?;
        self.endpoints.push(endpoint);
        self.by_port.insert(source_port, self.endpoints.len() - 1);
        Ok((self.endpoints.len() - 1, address.port()))
    }

    /// How a packet goes, and the addressing that it will have on the wire.
    #[inline]
    pub(super) fn lane(&mut self, packet: &Transmit) -> (Lane, Network) {
        let queue_pair = packet.packet.queue_pair;
        let route = match self.last {
            Some((last, route)) if last == queue_pair => route,
            _ => self.find(packet),
        };
        let network =
            Network { source_port: route.source_port, target_port: route.target_port, ..packet.network };
        let class = packet.network.traffic_class;
        let member = (packet.headers.bth.destination.value() >> QUEUE_PAIR_BITS) as u16;
        let (sender, target, session) = (route.sender, route.target, route.session);
        (Lane { sender, target, class, member, session, by_reference: false }, network)
    }

    /// The process that packets of a lane go to, where they need no code.
    #[inline]
    pub(super) fn process(&self, lane: Lane) -> Option<(SocketAddr, u16)> {
        lane.session.is_none().then(|| (self.targets[lane.target].0, lane.member))
    }

    #[cold]
    fn find(&mut self, packet: &Transmit) -> Route {
        let queue_pair = packet.packet.queue_pair;
        if let Some(&route) = self.routes.get(&queue_pair) {
            self.last = Some((queue_pair, route));
            return route;
        }
        // A datagram has its own target each time: RoCEv2's port there.
        let target = self.target(SocketAddr::new(packet.network.target.to_ip(), ROCE_PORT));
        let source_port = self.local.port();
        Route { sender: RECEIVER, target, source_port, target_port: ROCE_PORT, session: None }
    }

    /// Sends, and waits a moment where the kernel has no room.
    pub(super) fn send(
        &self,
        receiver: &Endpoint,
        lane: Lane,
        bytes: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        let endpoint = self.endpoints.get(lane.sender).unwrap_or(receiver);
        let (_, target) = &self.targets[lane.target];
        match endpoint.send(target, bytes, segment, lane.class) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(endpoint, PollFlags::OUT, SEND_WAIT)?;
                endpoint.send(target, bytes, segment, lane.class)
            }
            outcome => outcome,
        }
    }
}
