//! Two NICs with one connection between them: where most tests begin.

use railnet_core::event::{NoSink, Sink};
use railnet_core::{Psn, QueuePairNumber};

use super::lab::{Lab, Peer, connect};
use crate::completion::{Completion, CompletionQueue};
use crate::config::{Mtu, NicConfig};
use crate::error::{PostError, VerbsError};
use crate::memory::SpaceId;
use crate::nic::Nic;
use crate::queue_pair::{Attributes, QueuePairConfig, Service, State};
use crate::region::{Access, Key, ProtectionDomain};
use crate::work::{ReceiveRequest, Remote, SendRequest, Sge};

/// How a [`Pair`] is made. Sides are 0 and 1.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// First sequence number of each side.
    pub psn: [u32; 2],
    /// Of what service the queue pairs are.
    pub service: Service,
    /// Memory without bytes.
    pub ghost: bool,
    /// Bytes of memory of each side.
    pub memory: u64,
    /// Rights of the region of each side.
    pub access: [Access; 2],
    /// Depth of the completion queues.
    pub completions: u32,
    /// Changes the NIC of a side before it is made.
    pub nic: fn(usize, &mut NicConfig),
    /// Changes the queue pair of a side before it is made.
    pub queue_pair: fn(usize, &mut QueuePairConfig),
    /// Changes the attributes of a side's transitions.
    pub attributes: fn(usize, &mut Attributes),
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            mtu: Mtu::Mtu1024,
            psn: [100, 200],
            service: Service::ReliableConnection,
            ghost: false,
            memory: 1 << 20,
            access: [Access::ALL; 2],
            completions: 1000,
            nic: |_, _| {},
            queue_pair: |_, _| {},
            attributes: |_, _| {},
        }
    }
}

/// Two NICs with one connection, a region and a completion queue each.
#[derive(Debug)]
pub struct Pair<S = NoSink> {
    /// The world they live in.
    pub lab: Lab<S>,
    /// The queue pair of each side.
    pub queue_pairs: [QueuePairNumber; 2],
    /// The completion queue of each side.
    pub queues: [CompletionQueue; 2],
    /// The key of the region of each side.
    pub keys: [Key; 2],
    /// The memory of each side.
    pub spaces: [SpaceId; 2],
    /// The protection domain of each side.
    pub domains: [ProtectionDomain; 2],
}

/// Where the memory of both sides begins.
pub const PAIR_BASE: u64 = 0x10_0000;

impl Pair {
    /// A connected pair that nobody watches.
    pub fn new(options: &PairOptions) -> Result<Self, VerbsError> {
        Self::watched(options, NoSink)
    }
}

impl<S: Sink> Pair<S> {
    /// A connected pair whose events go to `sink`.
    pub fn watched(options: &PairOptions, sink: S) -> Result<Self, VerbsError> {
        let nics = [0, 1].map(|side| {
            let mut config = Lab::<S>::nic_config(side, 1);
            (options.nic)(side, &mut config);
            Nic::new(config)
        });
        let mut lab = Lab::new(nics.into(), 1, sink);
        let mut pair_of = |side: usize| {
            let space = if options.ghost {
                lab.memory.add_ghost(PAIR_BASE, options.memory)
            } else {
                let byte = |at: u64| (at as u8).wrapping_mul(7).wrapping_add(1 + 100 * side as u8);
                lab.memory.add_bytes(PAIR_BASE, (0..options.memory).map(byte).collect())
            };
            let nic = &mut lab.nics[side];
            let domain = nic.alloc_pd();
            let queue = nic.create_cq(options.completions)?;
            let (length, access) = (options.memory, options.access[side]);
            let key = nic.reg_mr(&lab.memory, domain, space, PAIR_BASE, length, access, None)?;
            let mut config = QueuePairConfig::new(options.service, queue);
            (options.queue_pair)(side, &mut config);
            let queue_pair = nic.create_qp(domain, &config)?;
            Ok::<_, VerbsError>((space, domain, queue, key, queue_pair))
        };
        let (a, b) = (pair_of(0)?, pair_of(1)?);
        let mut pair = Self {
            lab,
            spaces: [a.0, b.0],
            domains: [a.1, b.1],
            queues: [a.2, b.2],
            keys: [a.3, b.3],
            queue_pairs: [a.4, b.4],
        };
        match options.service {
            Service::Datagram => pair.bring_up_datagrams(options)?,
            _ => pair.bring_up(options)?,
        }
        Ok(pair)
    }

    fn bring_up(&mut self, options: &PairOptions) -> Result<(), VerbsError> {
        let ends = [0, 1].map(|nic| Peer {
            nic,
            queue_pair: self.queue_pairs[nic],
            psn: Psn::new(options.psn[nic]),
        });
        connect(&mut self.lab, ends, options.mtu, |side, change| {
            if options.service == Service::UnreliableConnection {
                change.destination_reads = None;
                change.min_rnr_timer = None;
                change.timeout = None;
                change.retry_count = None;
                change.rnr_retry = None;
                change.initiator_reads = None;
            }
            (options.attributes)(side, change);
        })
    }

    fn bring_up_datagrams(&mut self, options: &PairOptions) -> Result<(), VerbsError> {
        for side in 0..2 {
            let changes = [
                Attributes {
                    state: Some(State::Init),
                    partition_index: Some(0),
                    port: Some(1),
                    queue_key: Some(0x1111_1111),
                    ..Attributes::default()
                },
                Attributes { state: Some(State::ReadyToReceive), ..Attributes::default() },
                Attributes {
                    state: Some(State::ReadyToSend),
                    send_psn: Some(Psn::new(options.psn[side])),
                    ..Attributes::default()
                },
            ];
            for mut change in changes {
                (options.attributes)(side, &mut change);
                self.modify(side, &change)?;
            }
        }
        Ok(())
    }

    /// Local memory of a side.
    pub fn sge(&self, side: usize, offset: u64, length: u32) -> Sge {
        Sge { address: PAIR_BASE + offset, length, key: self.keys[side] }
    }

    /// Memory of a side as its peer names it.
    pub fn remote(&self, side: usize, offset: u64) -> Remote {
        Remote { address: PAIR_BASE + offset, key: self.keys[side] }
    }

    /// Hands work to the send queue of a side.
    pub fn send(&mut self, side: usize, request: SendRequest) -> Result<(), PostError> {
        let queue_pair = self.queue_pairs[side];
        let (nic, mut cx) = self.lab.nic(side);
        nic.post_send(&mut cx, queue_pair, request)
    }

    /// Hands a buffer to the receive queue of a side.
    pub fn receive(&mut self, side: usize, request: ReceiveRequest) -> Result<(), PostError> {
        let queue_pair = self.queue_pairs[side];
        let (nic, mut cx) = self.lab.nic(side);
        nic.post_recv(&mut cx, queue_pair, request)
    }

    /// Changes the queue pair of a side.
    pub fn modify(&mut self, side: usize, change: &Attributes) -> Result<(), VerbsError> {
        let queue_pair = self.queue_pairs[side];
        let (nic, mut cx) = self.lab.nic(side);
        nic.modify_qp(&mut cx, queue_pair, change)
    }

    /// The completions of a side that wait.
    pub fn done(&mut self, side: usize) -> Vec<Completion> {
        self.lab.completions(side, self.queues[side])
    }

    /// Runs until nothing will happen any more, then the completions of both sides.
    pub fn finish(&mut self) -> [Vec<Completion>; 2] {
        self.lab.run();
        [self.done(0), self.done(1)]
    }

    /// The state of a side's queue pair.
    pub fn state(&self, side: usize) -> State {
        self.lab.nics[side].query_qp(self.queue_pairs[side]).map_or(State::Reset, |info| info.state)
    }

    /// The memory of a side.
    pub fn bytes(&self, side: usize) -> &[u8] {
        self.lab.memory.bytes(self.spaces[side])
    }
}
