//! Requests that come a second time, because an answer was lost or is late.

use railnet_core::Psn;
use railnet_wire::{Extended, Reth};

use super::answers::Response;
use super::responder::{Memorable, Remembered};
use super::{Responder, Shared};
use crate::device::Device;
use crate::error::DropReason;
use crate::packet::Inbound;
use crate::region::Key;

impl Responder {
    /// A request that was carried out before: its answer was lost, or is late.
    pub(super) fn receive_duplicate(
        &mut self,
        shared: &mut Shared,
        device: &mut Device,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        let (opcode, psn) = (packet.headers.bth.opcode, packet.headers.bth.psn);
        if opcode.is_send() || opcode.is_write() {
            // IBTA C9-105: acknowledge what is newest, do not carry it out again.
            self.acknowledge_through(shared, device, self.expected.minus(1));
            return Ok(());
        }
        let found = self.recall(psn).ok_or(DropReason::Forgotten)?;
        match (found.what, packet.headers.extended) {
            (Memorable::Atomic { original }, Extended::Atomic(_)) => {
                let msn = self.msn;
                self.answer_again(shared, device, Response::Atomic { psn, msn, original });
                Ok(())
            }
            (Memorable::Read { address, key, length }, Extended::Reth(reth)) => {
                let end = u128::from(reth.address) + u128::from(reth.length);
                let is_part = reth.key == key
                    && reth.address >= address
                    && end <= u128::from(address) + u128::from(length);
                if !is_part {
                    return Err(DropReason::Forgotten);
                }
                let starts = psn == found.first || device.config.behaviour.replay_starts_message;
                if !self.rewind_read(device, &found, psn, reth, starts) {
                    self.answer_read(shared, device, psn, reth, starts, true);
                }
                Ok(())
            }
            _ => Err(DropReason::Forgotten),
        }
    }

    /// Where the answer to this READ is still being given, it starts again from `psn`: what would follow is of no use to
    /// a peer that misses that one. `false` when there is no such answer.
    fn rewind_read(
        &mut self,
        device: &mut Device,
        found: &Remembered,
        psn: Psn,
        reth: Reth,
        starts: bool,
    ) -> bool {
        let mut at = self.answers.front();
        while at.is_some() {
            if let Response::Read { psn: next, address, key, left, starts: begins, .. } =
                device.responses.get_mut(at)
                && (next.value().wrapping_sub(found.first.value()) & Psn::MASK) < found.packets
            {
                if next.is_after(psn) {
                    (*next, *address, *key, *left, *begins) =
                        (psn, reth.address, Key(reth.key), reth.length, starts);
                }
                return true;
            }
            at = device.responses.next(at);
        }
        false
    }
}
