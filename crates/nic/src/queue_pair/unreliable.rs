//! The receiving side of unreliable connections and datagrams: no answers, what does not fit is lost.

use railnet_core::event::{Check, Sink};
use railnet_wire::{Extended, GRH_LENGTH, Headers, Network};

use super::completer::scatter;
use super::responder::{Executed, Message};
use super::{Responder, Shared};
use crate::completion::{Completion, CompletionKind, Status};
use crate::context::Context;
use crate::device::Device;
use crate::error::DropReason;
use crate::memory::Memory;
use crate::packet::{Inbound, Payload};

impl Responder {
    /// A packet of an unreliable connection: in order it counts, else the rest of its message is lost (IBTA 9.8.2).
    pub(super) fn receive_unreliable<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let bth = &packet.headers.bth;
        let is_next = bth.psn == self.expected;
        self.expected = bth.psn.plus(1);
        let begins = bth.opcode.position().is_start();
        let broken = !is_next || begins && !matches!(self.message, Message::None);
        if broken && let Message::Send { receive, .. } = self.message {
            self.kept = Some(receive);
        }
        if broken {
            self.message = Message::None;
        }
        if begins {
            self.skipping = false;
        } else if broken || self.skipping {
            self.skipping = true;
            return Err(DropReason::BrokenMessage);
        }
        let reason = match self.execute(shared, device, cx, packet) {
            Executed::Done => return Ok(()),
            Executed::NotReady => DropReason::NoReceive,
            Executed::Refused(refusal) if refusal.check == Check::Length => DropReason::TooLong,
            _ => DropReason::Access,
        };
        self.skipping = true;
        if let Some(taken) = self.release_taken() {
            self.kept = Some(taken);
        }
        Err(reason)
    }

    pub(super) fn receive_datagram<M: Memory, S: Sink>(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let (deth, immediate) = match packet.headers.extended {
            Extended::Deth(deth) => (deth, None),
            Extended::DethImmediate(deth, value) => (deth, Some(value)),
            _ => return Err(DropReason::WrongTransport),
        };
        if deth.queue_key != shared.queue_key {
            return Err(DropReason::QueueKey);
        }
        let receive = self.take_receive(shared, device).ok_or(DropReason::NoReceive)?;
        let length = packet.payload.length() + GRH_LENGTH as u32;
        let buffer = device.receives.get(receive);
        if u64::from(length) > buffer.length() {
            self.kept = Some(receive);
            return Err(DropReason::TooLong);
        }
        let grh = grh(packet.network, packet.headers, packet.payload.length());
        let written =
            scatter(device, cx, &buffer.scatter, shared.domain, 0, Payload::Bytes(&grh)).and_then(|_| {
                scatter(device, cx, &buffer.scatter, shared.domain, GRH_LENGTH as u32, packet.payload)
            });
        if written.is_err() {
            shared.end_receive(device, cx, receive, Status::LocalProtection);
            self.fail(shared, false);
            return Err(DropReason::Access);
        }
        let completion = Completion {
            work: device.receives.remove(receive).work,
            kind: CompletionKind::Receive,
            queue_pair: shared.number,
            length,
            immediate,
            source: deth.source,
            has_grh: true,
            ..Completion::EMPTY
        };
        device.complete(cx, shared.receive_queue, completion, packet.headers.bth.solicited);
        Ok(())
    }
}

/// The address area of a datagram receive.
fn grh(network: &Network, headers: &Headers, payload: u32) -> [u8; GRH_LENGTH] {
    const ICRC: usize = 4;
    network.grh(headers.length() + payload.next_multiple_of(4) as usize + ICRC)
}
