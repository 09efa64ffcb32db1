//! REQ: the wish to connect.

use std::fmt;

use railnet_core::{Psn, QueuePairNumber};

use super::{BODY_LENGTH, Body, bits, to_bits};
use crate::bytes::{put, put_u16, put_u24, put_u32, put_u64, take, u16_at, u24_at, u32_at, u64_at};
use crate::gid::Gid;

mod field {
    pub(super) const LOCAL_ID: usize = 0;
    pub(super) const SERVICE: usize = 8;
    pub(super) const CA_GUID: usize = 16;
    pub(super) const QUEUE_KEY: usize = 28;
    pub(super) const QUEUE_PAIR: usize = 32;
    pub(super) const RESPONDER_RESOURCES: usize = 35;
    pub(super) const EE_CONTEXT: usize = 36;
    pub(super) const INITIATOR_DEPTH: usize = 39;
    pub(super) const REMOTE_EE_CONTEXT: usize = 40;
    pub(super) const REMOTE_TIMEOUT: usize = 43;
    pub(super) const PSN: usize = 44;
    pub(super) const LOCAL_TIMEOUT: usize = 47;
    pub(super) const PARTITION: usize = 48;
    pub(super) const MTU: usize = 50;
    pub(super) const MAX_RETRIES: usize = 51;
    pub(super) const PRIMARY: usize = 52;
    pub(super) const ALTERNATE: usize = 96;
    pub(super) const PRIVATE: usize = 140;
}

mod path {
    pub(super) const LOCAL_LID: usize = 0;
    pub(super) const REMOTE_LID: usize = 2;
    pub(super) const LOCAL_GID: usize = 4;
    pub(super) const REMOTE_GID: usize = 20;
    pub(super) const FLOW_LABEL: usize = 36;
    pub(super) const TRAFFIC_CLASS: usize = 40;
    pub(super) const HOP_LIMIT: usize = 41;
    pub(super) const SERVICE_LEVEL: usize = 42;
    pub(super) const ACK_TIMEOUT: usize = 43;
}

/// What a connection is for. On IP it holds a port space and a port (IBTA annex A11).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ServiceId(pub u64);

impl ServiceId {
    const IP_PREFIX: u64 = 0x0000_0000_0100_0000;

    /// The service of a port; the protocol is 6 for the TCP port space and 17 for UDP's.
    pub const fn ip(protocol: u8, port: u16) -> Self {
        Self(Self::IP_PREFIX | (protocol as u64) << 16 | port as u64)
    }

    /// The services of the same port in both protocols; without a port the service itself.
    pub fn same_port(self) -> impl Iterator<Item = Self> {
        let both = match self.as_ip() {
            Some((_, port)) => [Self::ip(6, port), Self::ip(17, port)],
            None => [self; 2],
        };
        both.into_iter()
    }

    /// Protocol and port, where it is the service of one.
    pub const fn as_ip(self) -> Option<(u8, u16)> {
        let prefix_matches = self.0 & !0x00ff_ffff == Self::IP_PREFIX;
        if prefix_matches { Some(((self.0 >> 16) as u8, self.0 as u16)) } else { None }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// One way through the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Local identifier of the sender; without meaning on Ethernet.
    pub local_lid: u16,
    /// Local identifier of the receiver; without meaning on Ethernet.
    pub remote_lid: u16,
    /// The sender's address.
    pub local_gid: Gid,
    /// The receiver's address.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Code of the packet rate, six bits.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, four bits.
    pub service_level: u8,
    /// Both ends are in one subnet.
    pub is_subnet_local: bool,
    /// Code of the acknowledgement timeout, five bits.
    pub ack_timeout: u8,
}

impl Path {
    fn read(raw: &[u8]) -> Self {
        Self {
            local_lid: u16_at(raw, path::LOCAL_LID),
            remote_lid: u16_at(raw, path::REMOTE_LID),
            local_gid: Gid(take(raw, path::LOCAL_GID)),
            remote_gid: Gid(take(raw, path::REMOTE_GID)),
            flow_label: u32_at(raw, path::FLOW_LABEL) >> 12,
            rate: bits(raw[path::FLOW_LABEL + 3], 0, 6),
            traffic_class: raw[path::TRAFFIC_CLASS],
            hop_limit: raw[path::HOP_LIMIT],
            service_level: bits(raw[path::SERVICE_LEVEL], 4, 4),
            is_subnet_local: bits(raw[path::SERVICE_LEVEL], 3, 1) != 0,
            ack_timeout: bits(raw[path::ACK_TIMEOUT], 3, 5),
        }
    }

    fn write(&self, raw: &mut [u8]) {
        put_u16(raw, path::LOCAL_LID, self.local_lid);
        put_u16(raw, path::REMOTE_LID, self.remote_lid);
        put(raw, path::LOCAL_GID, self.local_gid.0);
        put(raw, path::REMOTE_GID, self.remote_gid.0);
        put_u32(raw, path::FLOW_LABEL, self.flow_label << 12 | u32::from(to_bits(self.rate, 0, 6)));
        raw[path::TRAFFIC_CLASS] = self.traffic_class;
        raw[path::HOP_LIMIT] = self.hop_limit;
        raw[path::SERVICE_LEVEL] =
            to_bits(self.service_level, 4, 4) | to_bits(self.is_subnet_local.into(), 3, 1);
        raw[path::ACK_TIMEOUT] = to_bits(self.ack_timeout, 3, 5);
    }
}

/// REQ: the wish to connect, and all that the other side must know for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// What is wanted.
    pub service: ServiceId,
    /// The sender's channel adapter.
    pub ca_guid: u64,
    /// Queue key, for datagrams.
    pub queue_key: u32,
    /// The sender's queue pair.
    pub queue_pair: QueuePairNumber,
    /// READs and atomics that the sender can serve at once.
    pub responder_resources: u8,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub ee_context: u32,
    /// READs and atomics that the sender would have under way at once.
    pub initiator_depth: u8,
    /// The other side's end-to-end context, 24 bits.
    pub remote_ee_context: u32,
    /// Code of the time in which the other side must answer, five bits.
    pub remote_timeout: u8,
    /// 0 RC, 1 UC, 2 RD, 3 see `extended_transport`; two bits.
    pub transport: u8,
    /// The sender uses credits.
    pub uses_flow_control: bool,
    /// The sequence number with which the receiver of this message shall begin to send.
    pub psn: Psn,
    /// Code of the time in which the sender answers, five bits.
    pub local_timeout: u8,
    /// Retries before the connection fails, three bits.
    pub retries: u8,
    /// Partition key.
    pub partition: u16,
    /// Code of the path MTU (1 is 256 bytes, 5 is 4096), four bits.
    pub mtu: u8,
    /// A reliable datagram channel exists already.
    pub has_datagram_channel: bool,
    /// Retries when the receiver is not ready, three bits; 7 is without end.
    pub rnr_retries: u8,
    /// How often a message of this exchange may be sent again, four bits.
    pub max_cm_retries: u8,
    /// The sender receives into a shared queue.
    pub uses_shared_receive_queue: bool,
    /// Extended transport type, three bits; 1 is XRC.
    pub extended_transport: u8,
    /// The path to use.
    pub primary: Path,
    /// Another, or all zeros.
    pub alternate: Path,
    /// The user's data; with RDMA CM it begins with a [`super::CmaHeader`].
    pub private: [u8; 92],
}

impl Body for Request {
    const ATTRIBUTE: u16 = 0x10;

    fn read(raw: &[u8; BODY_LENGTH]) -> Self {
        Self {
            local_id: u32_at(raw, field::LOCAL_ID),
            service: ServiceId(u64_at(raw, field::SERVICE)),
            ca_guid: u64_at(raw, field::CA_GUID),
            queue_key: u32_at(raw, field::QUEUE_KEY),
            queue_pair: QueuePairNumber::new(u24_at(raw, field::QUEUE_PAIR)),
            responder_resources: raw[field::RESPONDER_RESOURCES],
            ee_context: u24_at(raw, field::EE_CONTEXT),
            initiator_depth: raw[field::INITIATOR_DEPTH],
            remote_ee_context: u24_at(raw, field::REMOTE_EE_CONTEXT),
            remote_timeout: bits(raw[field::REMOTE_TIMEOUT], 3, 5),
            transport: bits(raw[field::REMOTE_TIMEOUT], 1, 2),
            uses_flow_control: bits(raw[field::REMOTE_TIMEOUT], 0, 1) != 0,
            psn: Psn::new(u24_at(raw, field::PSN)),
            local_timeout: bits(raw[field::LOCAL_TIMEOUT], 3, 5),
            retries: bits(raw[field::LOCAL_TIMEOUT], 0, 3),
            partition: u16_at(raw, field::PARTITION),
            mtu: bits(raw[field::MTU], 4, 4),
            has_datagram_channel: bits(raw[field::MTU], 3, 1) != 0,
            rnr_retries: bits(raw[field::MTU], 0, 3),
            max_cm_retries: bits(raw[field::MAX_RETRIES], 4, 4),
            uses_shared_receive_queue: bits(raw[field::MAX_RETRIES], 3, 1) != 0,
            extended_transport: bits(raw[field::MAX_RETRIES], 0, 3),
            primary: Path::read(&raw[field::PRIMARY..]),
            alternate: Path::read(&raw[field::ALTERNATE..]),
            private: take(raw, field::PRIVATE),
        }
    }

    fn write(&self, raw: &mut [u8; BODY_LENGTH]) {
        put_u32(raw, field::LOCAL_ID, self.local_id);
        put_u64(raw, field::SERVICE, self.service.0);
        put_u64(raw, field::CA_GUID, self.ca_guid);
        put_u32(raw, field::QUEUE_KEY, self.queue_key);
        put_u24(raw, field::QUEUE_PAIR, self.queue_pair.value());
        raw[field::RESPONDER_RESOURCES] = self.responder_resources;
        put_u24(raw, field::EE_CONTEXT, self.ee_context);
        raw[field::INITIATOR_DEPTH] = self.initiator_depth;
        put_u24(raw, field::REMOTE_EE_CONTEXT, self.remote_ee_context);
        raw[field::REMOTE_TIMEOUT] = to_bits(self.remote_timeout, 3, 5)
            | to_bits(self.transport, 1, 2)
            | to_bits(self.uses_flow_control.into(), 0, 1);
        put_u24(raw, field::PSN, self.psn.value());
        raw[field::LOCAL_TIMEOUT] = to_bits(self.local_timeout, 3, 5) | to_bits(self.retries, 0, 3);
        put_u16(raw, field::PARTITION, self.partition);
        raw[field::MTU] = to_bits(self.mtu, 4, 4)
            | to_bits(self.has_datagram_channel.into(), 3, 1)
            | to_bits(self.rnr_retries, 0, 3);
        raw[field::MAX_RETRIES] = to_bits(self.max_cm_retries, 4, 4)
            | to_bits(self.uses_shared_receive_queue.into(), 3, 1)
            | to_bits(self.extended_transport, 0, 3);
        self.primary.write(&mut raw[field::PRIMARY..]);
        self.alternate.write(&mut raw[field::ALTERNATE..]);
        put(raw, field::PRIVATE, self.private);
    }
}
