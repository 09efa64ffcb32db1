//! The capture, taken apart: packets, the connections that were set up in it, and who served whom.

use std::collections::BTreeMap;
use std::io::Read;

use railnet_core::{Psn, QueuePairNumber, Span, Time};
use railnet_wire::capture::{Reader, Undecodable};
use railnet_wire::mad::{ConnectionMad, MANAGEMENT_QUEUE_PAIR, Message, Request};
use railnet_wire::{Ethernet, Frame, Gid, Headers, Network, Opcode, Transport};

use super::ReplayError;
use crate::config::Mtu;
use crate::queue_pair::Service;

/// One RoCEv2 packet of the capture.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    /// Its place in the capture, from 1.
    pub(super) number: u64,
    pub(super) at: Time,
    pub(super) ethernet: Option<Ethernet>,
    pub(super) network: Network,
    pub(super) headers: Headers,
    pub(super) payload: Vec<u8>,
    /// The ICRC was right.
    pub(super) intact: bool,
    /// As it was captured, less what Ethernet appended to a short frame.
    pub(super) bytes: Vec<u8>,
}

/// One end of a connection that was set up with management datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionEnd {
    pub(super) gid: Gid,
    pub(super) number: QueuePairNumber,
    /// The sequence number that this end expects first.
    pub(super) expected: Psn,
    /// READs and atomics that it serves at once.
    pub(super) reads: u8,
}

/// A connection that was set up with management datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) ends: [ConnectionEnd; 2],
    pub(super) mtu: Option<Mtu>,
    pub(super) flow_label: u32,
    pub(super) traffic_class: u8,
}

/// A queue pair that served requests, and all packets of that.
#[derive(Clone, Debug)]
pub(super) struct Spoken {
    pub(super) responder: Gid,
    pub(super) requester: Gid,
    pub(super) number: QueuePairNumber,
    pub(super) service: Service,
    /// Indices of the requests to it.
    pub(super) requests: Vec<usize>,
}

/// All of a capture.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) packets: Vec<Recorded>,
    pub(super) connections: Vec<Connection>,
    pub(super) total: u64,
    pub(super) management: u64,
    pub(super) other: u64,
    pub(super) malformed: u64,
}

impl Recording {
    pub(super) fn read(capture: impl Read) -> Result<Self, ReplayError> {
        let mut reader = Reader::new(capture)?;
        let mut recording = Self::default();
        let mut start = None;
        let mut wishes: Vec<(Gid, Gid, u64, Request)> = Vec::new();
        while let Some(packet) = reader.next_packet()? {
            recording.total += 1;
            let start = *start.get_or_insert(packet.timestamp);
            let roce = match packet.frame() {
                Ok(Frame::Roce(roce)) => roce,
                Err(Undecodable::Malformed(_)) => {
                    recording.malformed += 1;
                    continue;
                }
                _ => {
                    recording.other += 1;
                    continue;
                }
            };
            let network = roce.network();
            if roce.headers.bth.destination.value() == MANAGEMENT_QUEUE_PAIR {
                recording.management += 1;
                recording.take_management(&mut wishes, &network, roce.payload);
                continue;
            }
            let elapsed = packet.timestamp.zip(start).map_or(Span::ZERO, |(at, start)| at.since(start));
            recording.packets.push(Recorded {
                number: recording.total,
                at: Time::ZERO + elapsed,
                ethernet: roce.ethernet,
                network,
                headers: roce.headers,
                payload: roce.payload.to_vec(),
                intact: roce.icrc.is_good(),
                bytes: packet.bytes[..packet.bytes.len() - roce.trailer.len()].to_vec(),
            });
        }
        if recording.packets.is_empty() && recording.management == 0 {
            let packets = recording.total;
            return Err(ReplayError::NoRoce { packets });
        }
        Ok(recording)
    }

    /// A REQ is remembered until its REP comes: then the connection is known.
    fn take_management(
        &mut self,
        wishes: &mut Vec<(Gid, Gid, u64, Request)>,
        network: &Network,
        payload: &[u8],
    ) {
        let Ok(mad) = ConnectionMad::parse(payload) else {
            return;
        };
        match mad.message {
            Message::Request(request) => {
                wishes.push((network.source, network.target, mad.transaction, request));
            }
            Message::Reply(reply) => {
                let wish = wishes.iter().rev().find(|(from, to, transaction, request)| {
                    (*from, *to, *transaction) == (network.target, network.source, mad.transaction)
                        && request.local_id == reply.remote_id
                });
                let Some((from, to, _, request)) = wish else {
                    return;
                };
                // A starting PSN is the one that its sender expects: Linux core/cma.c sets rq_psn from the same number.
                let ends = [
                    ConnectionEnd {
                        gid: *from,
                        number: request.queue_pair,
                        expected: request.psn,
                        reads: request.responder_resources,
                    },
                    ConnectionEnd {
                        gid: *to,
                        number: reply.queue_pair,
                        expected: reply.psn,
                        reads: reply.responder_resources,
                    },
                ];
                let code = usize::from(request.mtu).wrapping_sub(1);
                self.connections.push(Connection {
                    ends,
                    mtu: Mtu::ALL.get(code).copied(),
                    flow_label: request.primary.flow_label,
                    traffic_class: request.primary.traffic_class,
                });
            }
            _ => {}
        }
    }

    /// Every queue pair that requests went to, in the order of their first ones.
    pub(super) fn conversations(&self) -> Vec<Spoken> {
        let mut places = BTreeMap::new();
        let mut all: Vec<Spoken> = Vec::new();
        for (index, packet) in self.packets.iter().enumerate() {
            let bth = &packet.headers.bth;
            let service = match bth.opcode.transport() {
                Transport::Rc => Service::ReliableConnection,
                Transport::Uc => Service::UnreliableConnection,
                Transport::Ud => Service::Datagram,
                Transport::Cnp => continue,
            };
            if bth.opcode.is_response() {
                continue;
            }
            let place = *places.entry((packet.network.target, bth.destination)).or_insert_with(|| {
                all.push(Spoken {
                    responder: packet.network.target,
                    requester: packet.network.source,
                    number: bth.destination,
                    service,
                    requests: Vec::new(),
                });
                all.len() - 1
            });
            all[place].requests.push(index);
        }
        all
    }

    /// Indices of the answers that `spoken` gave to the queue pair `peer`.
    pub(super) fn answers(&self, spoken: &Spoken, peer: QueuePairNumber) -> Vec<usize> {
        let is_answer = |packet: &Recorded| {
            packet.headers.bth.opcode.is_response()
                && packet.network.source == spoken.responder
                && packet.network.target == spoken.requester
                && packet.headers.bth.destination == peer
        };
        (0..self.packets.len()).filter(|&index| is_answer(&self.packets[index])).collect()
    }

    /// The queue pair that asked: the one whose answers carry most of the requests' sequence numbers. For datagrams the
    /// packets say it.
    pub(super) fn guess_peer(&self, spoken: &Spoken) -> QueuePairNumber {
        let asked: std::collections::BTreeSet<u32> =
            spoken.requests.iter().map(|&index| self.packets[index].headers.bth.psn.value()).collect();
        let mut votes: BTreeMap<QueuePairNumber, u64> = BTreeMap::new();
        for packet in &self.packets {
            let bth = &packet.headers.bth;
            let is_back =
                packet.network.source == spoken.responder && packet.network.target == spoken.requester;
            if is_back && bth.opcode.is_response() && asked.contains(&bth.psn.value()) {
                *votes.entry(bth.destination).or_default() += 1;
            }
        }
        let best = votes.into_iter().max_by_key(|&(_, count)| count);
        best.map_or(QueuePairNumber::new(0), |(number, _)| number)
    }

    /// The connection that this queue pair is an end of, and which end.
    pub(super) fn connection(&self, gid: Gid, number: QueuePairNumber) -> Option<(&Connection, usize)> {
        self.connections.iter().rev().find_map(|connection| {
            let end = connection.ends.iter().position(|end| end.gid == gid && end.number == number)?;
            Some((connection, end))
        })
    }
}

/// Whether a request uses up a receive at this packet.
pub(super) fn takes_receive(opcode: Opcode) -> bool {
    match opcode {
        Opcode::RcWriteLastImmediate
        | Opcode::RcWriteOnlyImmediate
        | Opcode::UcWriteLastImmediate
        | Opcode::UcWriteOnlyImmediate => true,
        _ => opcode.is_send() && opcode.position().is_start(),
    }
}
