//! The network side of the NIC: packets in, packets out, time.

use railnet_core::event::{Check, Event, Sink};
use railnet_core::{Fold, GhostRun, Time};
use railnet_wire::{CongestionEcho, Extended, Extension, Opcode, TelemetryBlock, Transport};

use crate::context::Context;
use crate::error::DropReason;
use crate::memory::Memory;
use crate::nic::Nic;
use crate::packet::{Inbound, OutboundPayload, Transmit};
use crate::queue_pair::{QueuePair, Service, State};
use crate::schedule::{Priorities, Schedule};
use crate::timer::Timer;

impl Nic {
    /// A packet came in. What it brings about is there when the call returns; an error tells why it was thrown away,
    /// which is loss and nothing to worry about.
    pub fn receive<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        self.device.counters.received += 1;
        let result = self.dispatch(cx, packet);
        if let Err(reason) = result {
            let bth = &packet.headers.bth;
            self.device.counters.count_drop(reason);
            cx.emit(self.device.component, || Event::PacketDropped {
                queue_pair: bth.destination,
                psn: bth.psn,
                opcode: bth.opcode as u8,
                reason: reason.text(),
            });
        }
        if !self.device.overflowed.is_empty() {
            self.settle(cx);
        }
        result
    }

    fn dispatch<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        packet: &Inbound<'_>,
    ) -> Result<(), DropReason> {
        if !packet.intact {
            return Err(DropReason::BadIcrc);
        }
        let bth = &packet.headers.bth;
        let slot = self.slot_of(bth.destination).ok_or(DropReason::NoQueuePair)?;
        let Self { device, queue_pairs, .. } = self;
        let queue_pair = queue_pairs[slot].as_mut().expect("slot_of names a live one");
        admit(queue_pair, packet)?;
        let (psn, length) = (bth.psn, packet.payload.length());
        cx.emit(device.component, || Event::PacketReceived {
            queue_pair: bth.destination,
            psn,
            opcode: bth.opcode as u8,
            length,
        });
        if bth.opcode == Opcode::Cnp {
            device.counters.notifications_received += 1;
            if !queue_pair.shared.control.is_none() {
                queue_pair.shared.wake_clock(device, cx);
                let before = queue_pair.shared.control.rate();
                queue_pair.shared.control.on_notification(&device.config.control, cx.now);
                queue_pair.shared.after_control(device, cx, before);
            }
            return Ok(());
        }
        let queue_pair_number = bth.destination;
        cx.emit_detail(device.component, || Event::Checked {
            queue_pair: queue_pair_number,
            psn,
            check: Check::QueuePair,
            passed: true,
        });
        // What carries data is worth slowing down: requests, and the answers to READs.
        if packet.network.ecn() == 3 && length > 0 && !device.config.control.counts_marks() {
            queue_pair.responder.notice_congestion(&mut queue_pair.shared, device, cx.now);
        }
        if bth.opcode.is_response() {
            queue_pair.receive_response(device, cx, packet)
        } else {
            if packet.extension.is_some() || device.config.control.counts_marks() {
                queue_pair.responder.note_way(packet, device.config.control.counts_marks() && length > 0);
            }
            queue_pair.receive_request(device, cx, packet)
        }
    }

    /// The next packet for a port that can take one, of a priority that is not paused. Payload bytes are appended to
    /// `out`; the driver leaves room for headers in front.
    #[must_use = "a packet that is not sent is lost"]
    pub fn poll_transmit<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        port: u8,
        allowed: Priorities,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let mut packet = None;
        self.poll_transmit_into(cx, port, allowed, out, &mut packet);
        packet
    }

    /// As [`Nic::poll_transmit`], for drivers that count every nanosecond: the packet is built in the driver's own
    /// place, and `false` leaves that as it was.
    #[inline]
    pub fn poll_transmit_into<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        port: u8,
        allowed: Priorities,
        out: &mut Vec<u8>,
        packet: &mut Option<Transmit>,
    ) -> bool {
        let sent = self.next_control(port, allowed, packet) || self.next_data(cx, port, allowed, out, packet);
        if sent && let Some(transmit) = packet {
            self.device.counters.sent += 1;
            cx.emit(self.device.component, || Event::PacketSent {
                packet: transmit.packet,
                target: transmit.headers.bth.destination,
                length: transmit.payload.length(),
                fingerprint: fingerprint(transmit),
                label: transmit.label,
            });
            if let Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) = transmit.headers.extended {
                cx.emit_detail(self.device.component, || Event::Answered {
                    syndrome: aeth.syndrome.to_byte(),
                    messages: aeth.msn,
                });
            }
        }
        if !self.device.overflowed.is_empty() {
            self.settle(cx);
        }
        sent
    }

    /// Whether it has nothing to send, and waits for no answer: what time there is left until [`Nic::poll_timeout`] is for nothing.
    pub fn is_idle(&self) -> bool {
        let device = &self.device;
        device.sends.is_empty() && device.responses.is_empty() && device.ports.iter().all(Schedule::is_empty)
    }

    fn next_control(&mut self, port: u8, allowed: Priorities, slot: &mut Option<Transmit>) -> bool {
        while let Some((priority, index)) = self.device.ports[usize::from(port)].pop_control(allowed) {
            let Self { device, queue_pairs, .. } = self;
            if let Some(queue_pair) = &mut queue_pairs[index as usize]
                && queue_pair.responder.transmit_control(&mut queue_pair.shared, device, priority, slot)
            {
                return true;
            }
        }
        false
    }

    #[inline]
    fn next_data<M: Memory, S: Sink>(
        &mut self,
        cx: &mut Context<'_, M, S>,
        port: u8,
        allowed: Priorities,
        out: &mut Vec<u8>,
        slot: &mut Option<Transmit>,
    ) -> bool {
        let start = out.len();
        while let Some((priority, index)) = self.device.ports[usize::from(port)].front_data(allowed) {
            let Self { device, queue_pairs, .. } = self;
            let sent = match &mut queue_pairs[index as usize] {
                Some(queue_pair) if queue_pair.shared.in_data_ring => {
                    let sent = queue_pair.transmit_data(device, cx, out, slot);
                    // A queue pair that sent something stays in the ring until it has nothing.
                    queue_pair.shared.in_data_ring = sent;
                    sent
                }
                _ => false,
            };
            let schedule = &mut device.ports[usize::from(port)];
            if sent {
                schedule.count_data(priority, device.config.burst_packets);
                return true;
            }
            out.truncate(start);
            schedule.pop_data(priority);
        }
        false
    }

    /// Time has come to [`Nic::poll_timeout`], or past it.
    pub fn handle_timeout<M: Memory, S: Sink>(&mut self, cx: &mut Context<'_, M, S>) {
        while let Some(entry) = self.device.timers.pop(cx.now) {
            let Self { device, queue_pairs, .. } = self;
            let Some(queue_pair) = &mut queue_pairs[entry.1 as usize] else {
                continue;
            };
            if device.timers.fires(&mut queue_pair.shared.deadlines, cx.now, entry) {
                queue_pair.handle_timer(device, cx, entry.2);
            }
        }
        self.settle(cx);
    }

    /// When [`Nic::handle_timeout`] wants to be called, and for which timer. It may prove to be for nothing.
    #[must_use = "the NIC relies on being called then"]
    pub fn poll_timeout(&self) -> Option<(Time, Timer)> {
        self.device.timers.next()
    }
}

/// Whether a packet is for this queue pair at all.
#[inline]
fn admit(queue_pair: &QueuePair, packet: &Inbound<'_>) -> Result<(), DropReason> {
    let bth = &packet.headers.bth;
    let service = match bth.opcode.transport() {
        Transport::Rc => Service::ReliableConnection,
        Transport::Uc => Service::UnreliableConnection,
        Transport::Ud => Service::Datagram,
        Transport::Cnp => queue_pair.shared.service,
    };
    if service != queue_pair.shared.service {
        return Err(DropReason::WrongTransport);
    }
    // IBTA 10.9.3: the lower 15 bits must be equal and one side a full member.
    let mine = queue_pair.shared.partition;
    if (mine ^ bth.partition) & 0x7fff != 0 || (mine | bth.partition) & 0x8000 == 0 {
        return Err(DropReason::Partition);
    }
    if service == Service::Datagram {
        return Ok(());
    }
    if matches!(queue_pair.shared.state, State::Reset | State::Init) {
        return Err(DropReason::NotReady);
    }
    let connection = &queue_pair.shared.route.network;
    if packet.network.source != connection.target || packet.network.target != connection.source {
        return Err(DropReason::Address);
    }
    Ok(())
}

/// What the run digest covers of a packet: headers, length and ghost tags, never payload bytes.
fn fingerprint(transmit: &Transmit) -> u64 {
    let mut fold = Fold::new();
    let bth = &transmit.headers.bth;
    let flags = [bth.solicited, bth.migrated, bth.fecn, bth.becn, bth.ack_request];
    let flags = flags.iter().fold(0, |bits, &flag| bits << 1 | u64::from(flag));
    fold.push(u64::from(bth.opcode as u8) << 32 | u64::from(bth.partition) << 8 | flags);
    fold.push(u64::from(bth.destination.value()) << 32 | u64::from(bth.psn.value()));
    match transmit.headers.extended {
        Extended::None | Extended::Cnp => {}
        Extended::Immediate(value) | Extended::Invalidate(value) => fold.push(value.into()),
        Extended::Reth(reth) => push_reth(&mut fold, &reth),
        Extended::RethImmediate(reth, value) => {
            push_reth(&mut fold, &reth);
            fold.push(value.into());
        }
        Extended::Aeth(aeth) => push_aeth(&mut fold, aeth),
        Extended::AtomicAck(aeth, original) => {
            push_aeth(&mut fold, aeth);
            fold.push(original);
        }
        Extended::Atomic(atomic) => {
            for word in [atomic.address, atomic.key.into(), atomic.swap_or_add, atomic.compare] {
                fold.push(word);
            }
        }
        Extended::Deth(deth) => push_deth(&mut fold, deth),
        Extended::DethImmediate(deth, value) => {
            push_deth(&mut fold, deth);
            fold.push(value.into());
        }
        Extended::Flush { placement, selectivity, reth } => {
            push_reth(&mut fold, &reth);
            fold.push(u64::from(placement) << 8 | u64::from(selectivity));
        }
    }
    if let Some(extension) = &transmit.extension {
        push_extension(&mut fold, extension);
    }
    match &transmit.payload {
        OutboundPayload::Bytes(length) => fold.push((*length).into()),
        OutboundPayload::Ghost(runs) => {
            for GhostRun { tag, length } in runs {
                for word in [tag.sum as u64, (tag.sum >> 64) as u64, tag.origin, (*length).into()] {
                    fold.push(word);
                }
            }
        }
    }
    fold.finish()
}

fn push_extension(fold: &mut Fold, extension: &Extension) {
    if let TelemetryBlock::Gathered(telemetry) | TelemetryBlock::Echoed(telemetry) = &extension.telemetry {
        telemetry.hops().iter().for_each(|hop| fold.push(u64::from_be_bytes(hop.to_bytes())));
    }
    if let Some(CongestionEcho { marked, packets }) = extension.congestion {
        fold.push(u64::from(marked) << 32 | u64::from(packets));
    }
    if let Some(selective) = extension.selective {
        let bits = selective.bits();
        for word in [selective.first.value().into(), bits as u64, (bits >> 64) as u64] {
            fold.push(word);
        }
    }
    fold.push(extension.length() as u64);
}

fn push_reth(fold: &mut Fold, reth: &railnet_wire::Reth) {
    fold.push(reth.address);
    fold.push(u64::from(reth.key) << 32 | u64::from(reth.length));
}

fn push_aeth(fold: &mut Fold, aeth: railnet_wire::Aeth) {
    fold.push(u64::from(aeth.syndrome.to_byte()) << 32 | u64::from(aeth.msn));
}

fn push_deth(fold: &mut Fold, deth: railnet_wire::Deth) {
    fold.push(u64::from(deth.queue_key) << 32 | u64::from(deth.source.value()));
}
