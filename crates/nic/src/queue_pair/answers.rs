//! What the responder sends: answers in the order of the requests, and congestion notifications.

use railnet_core::event::{Event, PacketId, Sink};
use railnet_core::{Label, Psn, Time};
use railnet_wire::{Aeth, Bth, Extended, Headers, Opcode, Reth, Syndrome};

use super::echo::boxed;
use super::responder::Refusal;
use super::{Responder, Service, Shared, State};
use crate::config::credit_code;
use crate::context::Context;
use crate::device::Device;
use crate::memory::{Backing, GhostRuns, Memory};
use crate::packet::{OutboundPayload, Transmit, wire_bytes};
use crate::pool::Handle;
use crate::region::{Access, AccessFault, Key};

/// Answers that may wait on one queue pair. Only duplicates can bring more; they are asked for again.
const ANSWERS_MAX: u32 = 1 << 10;

/// Traffic class of congestion notifications: DSCP 48, the usual choice, not ECN-capable.
const NOTIFICATION_CLASS: u8 = 48 << 2;

/// An answer that waits for the port, in the order of the requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Response {
    /// An acknowledgement or a NAK.
    Acknowledge { psn: Psn, aeth: Aeth },
    /// The old value of an atomic.
    Atomic { psn: Psn, msn: u32, original: u64 },
    /// What is left of a READ.
    Read { psn: Psn, msn: u32, address: u64, key: Key, left: u32, starts: bool, is_replay: bool },
}

impl Response {
    /// The sequence number it goes out with next.
    pub(super) fn psn(&self) -> Psn {
        match *self {
            Self::Acknowledge { psn, .. } | Self::Atomic { psn, .. } | Self::Read { psn, .. } => psn,
        }
    }
}

fn notification_priority(device: &Device) -> u8 {
    device.config.priorities[usize::from(NOTIFICATION_CLASS >> 2)] & 7
}

impl Responder {
    pub(super) fn answer_read(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        psn: Psn,
        reth: Reth,
        starts: bool,
        is_replay: bool,
    ) {
        let (msn, key) = (self.msn, Key(reth.key));
        let (address, left) = (reth.address, reth.length);
        let response = Response::Read { psn, msn, address, key, left, starts, is_replay };
        if is_replay {
            // It takes no room from new READs: the peer may have had the first answer meanwhile.
            self.answer_again(shared, device, response);
        } else {
            self.reads += 1;
            self.answer(shared, device, response);
        }
    }

    pub(super) fn answer(&mut self, shared: &mut Shared, device: &mut Device, response: Response) {
        if self.answers.len() >= ANSWERS_MAX {
            if matches!(response, Response::Read { is_replay: false, .. }) {
                self.reads -= 1;
            }
            return;
        }
        let was_empty = self.answers.is_empty();
        device.responses.push(&mut self.answers, response);
        if was_empty {
            self.mark_answer_ready(shared, device);
        }
    }

    /// Queues an answer that is given again: before those to later requests. Behind a long READ, whose requester misses
    /// this very answer and asks for all from here on, its turn would never come.
    pub(super) fn answer_again(&mut self, shared: &mut Shared, device: &mut Device, response: Response) {
        if self.answers.len() >= ANSWERS_MAX {
            return;
        }
        let (psn, mut before) = (response.psn(), Handle::NONE);
        let mut at = self.answers.front();
        while at.is_some() && !device.responses.get(at).psn().is_after(psn) {
            before = at;
            at = device.responses.next(at);
        }
        device.responses.insert_after(&mut self.answers, before, response);
        self.mark_answer_ready(shared, device);
    }

    /// The answer at the front goes with the data when it is a READ's, else ahead of it.
    fn mark_answer_ready(&mut self, shared: &mut Shared, device: &mut Device) {
        let front = self.answers.front();
        if !front.is_some() {
            return;
        }
        match device.responses.get(front) {
            Response::Read { .. } => shared.mark_data_ready(device),
            _ => shared.mark_control_ready(device),
        }
    }

    /// The syndrome of an acknowledgement, with credits where they are in use.
    pub(super) fn good_syndrome(&mut self, shared: &mut Shared, device: &Device) -> Syndrome {
        if !device.config.behaviour.credits || shared.receive_source.is_some() {
            return Syndrome::ACK;
        }
        let receives = self.receives.len();
        self.starved = receives == 0;
        Syndrome::Ack { credits: credit_code(receives) }
    }

    /// A receive was posted: a peer that was told there is none gets to know (IBTA 9.7.7.2.3, unsolicited).
    pub(super) fn receive_was_posted(&mut self, shared: &mut Shared, device: &mut Device) {
        if self.starved && matches!(shared.state, State::ReadyToReceive | State::ReadyToSend) {
            self.acknowledge_through(shared, device, self.expected.minus(1));
        }
    }

    pub(super) fn acknowledge_through(&mut self, shared: &mut Shared, device: &mut Device, psn: Psn) {
        let syndrome = self.good_syndrome(shared, device);
        self.answer_acknowledge(shared, device, psn, syndrome);
    }

    /// Queues an acknowledgement or a NAK. A plain acknowledgement that already waits stands for this one too.
    pub(super) fn answer_acknowledge(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        psn: Psn,
        syndrome: Syndrome,
    ) {
        let aeth = Aeth { syndrome, msn: self.msn };
        let back = self.answers.back();
        if device.config.behaviour.coalesce_acks && back.is_some() {
            let last = device.responses.get_mut(back);
            if matches!(last, Response::Acknowledge { aeth: Aeth { syndrome: Syndrome::Ack { .. }, .. }, .. })
            {
                *last = Response::Acknowledge { psn, aeth };
                return;
            }
        }
        self.answer(shared, device, Response::Acknowledge { psn, aeth });
    }

    /// A packet came that the network had marked: tell its sender, not too often.
    pub(crate) fn notice_congestion(&mut self, shared: &mut Shared, device: &mut Device, now: Time) {
        let listens =
            matches!(shared.state, State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrain);
        if !device.config.behaviour.notify_congestion || shared.service == Service::Datagram || !listens {
            return;
        }
        if now >= self.notify_after && !self.notification {
            self.notify_after = now + device.config.notification_interval;
            self.notification = true;
            let priority = notification_priority(device);
            device.ports[usize::from(shared.port)].push_control(priority, shared.slot);
        }
    }

    /// The next answer that goes ahead of data: a notification, an acknowledgement or an atomic's result.
    pub(crate) fn transmit_control(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        priority: u8,
        slot: &mut Option<Transmit>,
    ) -> bool {
        // Notifications have a ring of their own: the one of their priority, which may be the answers' too.
        if priority == notification_priority(device) && std::mem::take(&mut self.notification) {
            *slot = Some(shared.congestion_notification(device));
            return true;
        }
        shared.in_control_ring = false;
        let front = self.answers.front();
        if !front.is_some() {
            return false;
        }
        let (opcode, psn, extended) = match *device.responses.get(front) {
            Response::Acknowledge { psn, aeth } => (Opcode::RcAcknowledge, psn, Extended::Aeth(aeth)),
            Response::Atomic { psn, msn, original } => {
                let aeth = Aeth { syndrome: self.good_syndrome(shared, device), msn };
                (Opcode::RcAtomicAcknowledge, psn, Extended::AtomicAck(aeth, original))
            }
            Response::Read { .. } => {
                shared.mark_data_ready(device);
                return false;
            }
        };
        device.responses.pop(&mut self.answers);
        self.mark_answer_ready(shared, device);
        let headers = shared.response_headers(device, opcode, psn, extended);
        let mut transmit = shared.response(headers, OutboundPayload::Bytes(0));
        if self.echo.is_some() || shared.recovery.is_selective() {
            transmit.extension =
                self.answer_extension(shared, psn, extended).map(|extension| boxed(slot, extension));
        }
        *slot = Some(transmit);
        true
    }

    /// The next packet of a READ's answer.
    pub(crate) fn transmit_read_response<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        let front = self.answers.front();
        if !front.is_some() {
            return false;
        }
        let Response::Read { psn, msn, address, key, left, starts, is_replay } = *device.responses.get(front)
        else {
            return false;
        };
        let length = left.min(shared.mtu.bytes());
        let mut payload = OutboundPayload::Bytes(length);
        if length > 0 {
            let (domain, number) = (shared.domain, shared.number);
            match device.regions.remote(key, domain, number, address, u64::from(length), Access::REMOTE_READ)
            {
                Ok(place) if place.backing == Backing::Ghost => {
                    let mut runs = GhostRuns::new();
                    cx.memory.read_ghost(place.space, address, length, &mut runs);
                    payload = OutboundPayload::Ghost(runs);
                }
                Ok(place) => {
                    cx.memory.read(place.space, address, length as usize, out);
                    if cx.memory.take_fault() {
                        return self.abandon_read(shared, device, cx, psn, AccessFault::Range);
                    }
                }
                Err(fault) => return self.abandon_read(shared, device, cx, psn, fault),
            }
        }
        if length > 0 {
            let queue_pair = shared.number;
            cx.emit_detail(device.component, || Event::DataGathered { queue_pair, psn, address, length });
        }
        let is_last = left == length;
        let opcode = match (starts, is_last) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, false) => Opcode::RcReadResponseMiddle,
            (false, true) => Opcode::RcReadResponseLast,
        };
        if is_last {
            device.responses.pop(&mut self.answers);
            self.reads -= u16::from(!is_replay);
            self.mark_answer_ready(shared, device);
        } else {
            let address = address + u64::from(length);
            let (psn, left) = (psn.plus(1), left - length);
            *device.responses.get_mut(front) =
                Response::Read { psn, msn, address, key, left, starts: false, is_replay };
        }
        let extended = match opcode {
            Opcode::RcReadResponseMiddle => Extended::None,
            _ => Extended::Aeth(Aeth { syndrome: self.good_syndrome(shared, device), msn }),
        };
        let headers = shared.response_headers(device, opcode, psn, extended);
        if !shared.control.is_none() && shared.control.window().is_none() {
            shared.pace(device, cx, wire_bytes(&headers, 0, length));
        }
        *slot = Some(shared.response(headers, payload));
        if is_last && self.early.is_some() {
            self.take_held(shared, device, cx);
        }
        true
    }

    /// The region, or the pages behind it, went away under a READ. Sends no packet.
    fn abandon_read<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        psn: Psn,
        fault: AccessFault,
    ) -> bool {
        device.responses.clear(&mut self.answers);
        self.reads = 0;
        self.refuse(shared, device, cx, psn, &Refusal::access(fault.check()));
        false
    }

    /// Whether READ responses wait for their turn.
    pub(crate) fn has_read_response(&self, device: &Device) -> bool {
        let front = self.answers.front();
        front.is_some() && matches!(device.responses.get(front), Response::Read { .. })
    }
}

impl Shared {
    fn congestion_notification(&self, device: &mut Device) -> Transmit {
        device.counters.notifications_sent += 1;
        let mut headers = self.response_headers(device, Opcode::Cnp, Psn::new(0), Extended::Cnp);
        headers.bth.becn = true;
        let mut transmit = self.response(headers, OutboundPayload::Bytes(0));
        transmit.network.traffic_class = NOTIFICATION_CLASS;
        transmit.priority = notification_priority(device);
        transmit
    }

    fn response_headers(&self, device: &Device, opcode: Opcode, psn: Psn, extended: Extended) -> Headers {
        let bth = Bth {
            opcode,
            solicited: false,
            migrated: device.config.behaviour.migrated_bit,
            fecn: false,
            becn: false,
            ack_request: false,
            partition: self.partition,
            destination: self.peer,
            psn,
        };
        Headers { bth, extended }
    }

    #[inline]
    fn response(&self, headers: Headers, payload: OutboundPayload) -> Transmit {
        let Bth { psn, opcode, .. } = headers.bth;
        Transmit {
            network: self.route.network,
            headers,
            extension: None,
            payload,
            priority: self.route.priority,
            packet: PacketId { queue_pair: self.number, psn, transmission: 0, opcode: opcode as u8 },
            label: Label::default(),
        }
    }
}
