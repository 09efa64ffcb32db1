//! Messages of a connection.

use railnet_core::QueuePairNumber;
use railnet_wire::Gid;
use railnet_wire::mad::{
    DisconnectReply, DisconnectRequest, Message, MessageReceived, Path, ReadyToUse, Reject, RejectReason,
    Reply, Request, SidrReply, SidrRequest,
};

use super::connection::{Connection, Offer};
use super::{CmError, ConnectionId};
use crate::Mtu;

/// What Linux fills in: the time that the other side's manager may take (4.3 s), how often a message is sent, and the time that
/// an application may take (69 s).
const RESPONSE_TIMEOUT: u8 = 20;
pub(super) const REQUESTS_MAX: u8 = 15;
const SERVICE_TIMEOUT: u8 = 24;

const DEFAULT_PARTITION: u16 = 0xffff;
const PERMISSIVE_LID: u16 = 0xffff;

/// Which message a REJ or MRA is about.
pub(super) const ABOUT_REQUEST: u8 = 0;
pub(super) const ABOUT_REPLY: u8 = 1;
pub(super) const ABOUT_NONE: u8 = 2;

/// Private data as it stands in a message.
pub(super) fn private<const N: usize>(data: &[u8]) -> Result<[u8; N], CmError> {
    let mut room = [0; N];
    room.get_mut(..data.len()).ok_or(CmError::PrivateData(N))?.copy_from_slice(data);
    Ok(room)
}

impl Connection {
    pub(super) fn request(&self, id: ConnectionId, gid: Gid, guid: u64) -> Result<Message, CmError> {
        let primary = Path {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: gid,
            remote_gid: self.remote,
            traffic_class: self.traffic_class,
            hop_limit: 64,
            is_subnet_local: true,
            ack_timeout: self.ack_timeout,
            ..Path::default()
        };
        Ok(Message::Request(Request {
            local_id: id.0,
            service: self.service,
            ca_guid: guid,
            queue_key: 0,
            queue_pair: self.own.queue_pair,
            responder_resources: self.own.responder_resources,
            ee_context: 0,
            initiator_depth: self.own.initiator_depth,
            remote_ee_context: 0,
            remote_timeout: RESPONSE_TIMEOUT,
            transport: self.is_unreliable.into(),
            uses_flow_control: true,
            psn: self.own.psn,
            local_timeout: RESPONSE_TIMEOUT,
            retries: self.own.retry_count,
            partition: DEFAULT_PARTITION,
            mtu: mtu_code(self.mtu),
            has_datagram_channel: false,
            rnr_retries: self.own.rnr_retry,
            max_cm_retries: REQUESTS_MAX,
            uses_shared_receive_queue: self.own.uses_shared_receive_queue,
            extended_transport: 0,
            primary,
            alternate: Path::default(),
            private: private(&self.own.private)?,
        }))
    }

    pub(super) fn reply(&self, id: ConnectionId, guid: u64) -> Result<Message, CmError> {
        Ok(Message::Reply(Reply {
            local_id: id.0,
            remote_id: self.remote_id,
            queue_key: 0,
            queue_pair: self.own.queue_pair,
            ee_context: 0,
            psn: self.own.psn,
            responder_resources: self.own.responder_resources,
            initiator_depth: self.own.initiator_depth,
            target_ack_delay: 15,
            failover: 0,
            uses_flow_control: true,
            rnr_retries: self.own.rnr_retry,
            uses_shared_receive_queue: self.own.uses_shared_receive_queue,
            ca_guid: guid,
            private: private(&self.own.private)?,
        }))
    }

    pub(super) fn ready_to_use(&self, id: ConnectionId) -> Message {
        Message::ReadyToUse(ReadyToUse { local_id: id.0, remote_id: self.remote_id, private: [0; 224] })
    }

    pub(super) fn disconnect_request(&self, id: ConnectionId) -> Message {
        Message::DisconnectRequest(DisconnectRequest {
            local_id: id.0,
            remote_id: self.remote_id,
            remote_queue_pair: self.peer.queue_pair,
            private: [0; 220],
        })
    }

    pub(super) fn reject(
        &self,
        id: ConnectionId,
        reason: RejectReason,
        data: &[u8],
    ) -> Result<Message, CmError> {
        let about = if self.is_active { ABOUT_REPLY } else { ABOUT_REQUEST };
        reject((id.0, self.remote_id), about, reason, data)
    }

    /// The application has not answered yet.
    pub(super) fn more_time(&self, id: ConnectionId) -> Message {
        Message::MessageReceived(MessageReceived {
            local_id: id.0,
            remote_id: self.remote_id,
            about: ABOUT_REQUEST,
            service_timeout: SERVICE_TIMEOUT,
            private: [0; 222],
        })
    }

    pub(super) fn sidr_request(&self, id: ConnectionId) -> Result<Message, CmError> {
        Ok(Message::SidrRequest(SidrRequest {
            request_id: id.0,
            partition: DEFAULT_PARTITION,
            service: self.service,
            private: private(&self.own.private)?,
        }))
    }

    pub(super) fn sidr_reply(
        &self,
        status: u8,
        queue_pair: QueuePairNumber,
        queue_key: u32,
        data: &[u8],
    ) -> Result<Message, CmError> {
        Ok(Message::SidrReply(SidrReply {
            request_id: self.remote_id,
            status,
            info_length: 0,
            queue_pair,
            service: self.service,
            queue_key,
            info: [0; 72],
            private: private(data)?,
        }))
    }
}

pub(super) fn reject(
    (local_id, remote_id): (u32, u32),
    about: u8,
    reason: RejectReason,
    data: &[u8],
) -> Result<Message, CmError> {
    let private = private(data)?;
    Ok(Message::Reject(Reject { local_id, remote_id, about, info_length: 0, reason, info: [0; 72], private }))
}

pub(super) fn disconnect_reply(request: &DisconnectRequest) -> Message {
    let DisconnectRequest { local_id, remote_id, .. } = *request;
    Message::DisconnectReply(DisconnectReply { local_id: remote_id, remote_id: local_id, private: [0; 224] })
}

impl Offer {
    pub(super) fn of_request(request: &Request) -> Self {
        Self {
            queue_pair: request.queue_pair,
            psn: request.psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            retry_count: request.retries,
            rnr_retry: request.rnr_retries,
            uses_shared_receive_queue: request.uses_shared_receive_queue,
            private: request.private.to_vec(),
        }
    }

    pub(super) fn of_reply(reply: &Reply) -> Self {
        Self {
            queue_pair: reply.queue_pair,
            psn: reply.psn,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            retry_count: 0,
            rnr_retry: reply.rnr_retries,
            uses_shared_receive_queue: reply.uses_shared_receive_queue,
            private: reply.private.to_vec(),
        }
    }
}

fn mtu_code(mtu: Mtu) -> u8 {
    Mtu::ALL.iter().position(|one| *one == mtu).map_or(1, |index| index as u8 + 1)
}

pub(super) fn mtu_of(code: u8) -> Option<Mtu> {
    Mtu::ALL.get(usize::from(code).checked_sub(1)?).copied()
}
