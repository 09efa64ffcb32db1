//! What a driver does for each packet: from the NIC to a socket, and from a socket to the NIC.

use std::io;

use railnet_core::Time;
use railnet_core::event::NoSink;
use railnet_nic::memory::Memory;
use railnet_nic::{Context, DropReason, Inbound, Payload, Priorities, Transmit};
use railnet_wire::{Aeth, Extended, Extension, Gid, Network, Opcode, Syndrome, parse_datagram};

use super::Driver;
use super::faults::Datagram;
use super::gathered::Gathered;
use super::shared_payload::{self, Gone, Reference};
use super::system::Arrival;

/// Sends that one call makes before it looks at what came in.
const SENDS_MAX: usize = 4;

impl<M: Memory> Driver<M> {
    pub(super) fn transmit(&mut self, now: Time) -> bool {
        let (mut sends, mut sink) = (0, NoSink);
        let mut least = usize::MAX;
        if let Some((shared, _)) = &mut self.shared_payload
            && shared.is_active()
        {
            shared.attend(now);
            least = shared_payload::LEAST;
        }
        while sends < SENDS_MAX {
            let mut memory = Gathered::new(&mut self.memory, least);
            let mut cx = Context::new(now, &mut memory, &mut sink);
            let place = self.batch.open();
            let before = place.len();
            if !self.nic.poll_transmit_into(&mut cx, 0, Priorities::ALL, place, &mut self.packet) {
                self.batch.cancel();
                break;
            }
            let (mut payload, mut sum, left) = (place.len() - before, memory.sum(), memory.left());
            let packet = self.packet.as_mut().expect("the NIC built a packet");
            let (mut lane, network) = self.senders.lane(packet);
            let mut reference = None;
            if let Some(source) = left {
                let peer = if Reference::suits(packet) { self.senders.process(lane) } else { None };
                if let (Some(peer), Some((shared, copy))) = (peer, &mut self.shared_payload) {
                    let fill = |out: &mut [u8]| copy(&self.memory, source.space, source.address, out);
                    match shared.put(peer, now, source.length, fill).transpose() {
                        Ok(put) => reference = put,
                        Err(Gone) => {
                            // It could be read a moment ago. The packet is lost, and sent again.
                            self.batch.cancel();
                            continue;
                        }
                    }
                }
                if reference.is_none() {
                    sum = self.memory.read_summed(source.space, source.address, source.length, place);
                    payload = source.length;
                    if self.memory.take_fault() {
                        self.batch.cancel();
                        continue;
                    }
                }
                lane.by_reference = reference.is_some();
            }
            if payload == 0 && reference.is_none() && is_plain_acknowledgement(packet) {
                self.batch.cancel();
                if self.batch.set_aside(lane, &network, packet) {
                    continue;
                }
                self.batch.open();
            }
            match reference {
                Some(_) => self.batch.frame_reference(),
                None => self.batch.frame(packet, lane),
            }
            if !self.batch.takes(lane) {
                sends += usize::from(self.flush(now));
            }
            let packet = self.packet.as_ref().expect("the NIC built a packet");
            self.batch.seal(lane, &network, packet, payload, sum, reference, &mut self.guards);
            if self.batch.is_full() {
                sends += usize::from(self.flush(now));
            }
        }
        // First what was completed, then an acknowledgement that could not go with it.
        while self.flush(now) {
            sends += 1;
        }
        if let Some(injector) = &mut self.injector {
            injector.release(now, &mut self.released);
            self.send_released();
        }
        sends > 0
    }

    /// Sends what is ready; `false` when nothing is.
    fn flush(&mut self, now: Time) -> bool {
        let Some(send) = self.batch.ready(&mut self.guards) else {
            return false;
        };
        if let Some(injector) = &mut self.injector {
            let (lane, network, bytes) = (send.lane, send.network, send.bytes.to_vec());
            injector.pass(now, Datagram { lane, network, bytes }, &mut self.released);
            self.batch.restart();
            self.send_released();
            return true;
        }
        if let Some(tap) = &mut self.tap {
            for (index, datagram) in send.bytes.chunks(send.segment).enumerate() {
                tap.write(&Network { identification: index as u16, ..send.network }, datagram, None);
            }
        }
        self.counters.sends += 1;
        self.counters.sent += send.bytes.len().div_ceil(send.segment) as u64;
        let outcome = self.senders.send(&self.receiver, send.lane, send.bytes, send.segment);
        self.batch.restart();
        self.take_refusal(outcome);
        true
    }

    fn send_released(&mut self) {
        for Datagram { lane, network, bytes } in std::mem::take(&mut self.released) {
            if let Some(tap) = &mut self.tap {
                tap.write(&network, &bytes, None);
            }
            self.counters.sends += 1;
            self.counters.sent += 1;
            let outcome = self.senders.send(&self.receiver, lane, &bytes, bytes.len());
            self.take_refusal(outcome);
        }
    }

    /// A send that the kernel refuses is a loss: the NIC sends again, or gives up with words.
    fn take_refusal(&mut self, outcome: io::Result<()>) {
        let Err(error) = outcome else {
            return;
        };
        // Some devices cannot segment, and say so only when it comes to it.
        if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) && self.batch.segments_max() > 1 {
            self.batch.stop_segmenting();
        }
        self.counters.refused += 1;
        self.last_refusal = Some(error);
    }

    pub(super) fn receive(&mut self, now: Time) -> io::Result<bool> {
        if !self.rest.is_over(now) {
            return Ok(false);
        }
        let Some(arrival) = self.receiver.receive(&mut self.inbox)? else {
            // Who sends, too, waits for acknowledgements.
            let may_rest = self.nic.is_idle();
            let to_come = |queue_pair| self.nic.query_qp(queue_pair).map_or(0, |info| info.to_come);
            self.rest.came_nothing(now, |queue_pair| if may_rest { to_come(queue_pair) } else { 0 });
            return Ok(false);
        };
        self.counters.receives += 1;
        if arrival.length == 0 {
            self.counters.received += 1;
            self.counters.malformed += 1;
            return Ok(true);
        }
        let mut network = self.network_of(&arrival);
        let mut sink = NoSink;
        let mut cx = Context::new(now, &mut self.memory, &mut sink);
        let before = self.counters.received;
        if let Some((shared, _)) = &mut self.shared_payload {
            shared.attend(now);
        }
        for (index, datagram) in self.inbox[..arrival.length].chunks(arrival.segment).enumerate() {
            self.counters.received += 1;
            if let Some(steering) = &mut self.steering
                && steering.on_datagram(datagram)
            {
                continue;
            }
            // Segments that Linux merged were most likely cut from one send, which numbered them.
            network.identification = index as u16;
            let reference = self.shared_payload.as_ref().and_then(|_| Reference::parse(datagram));
            let datagram = reference.map_or(datagram, |(_, packet)| packet);
            let Ok(parsed) = parse_datagram(&network, datagram, self.accepted) else {
                self.counters.malformed += 1;
                continue;
            };
            if let Some(tap) = &mut self.tap {
                let identification = parsed.identification.unwrap_or_default();
                let comment = (!parsed.icrc_is_good()).then_some("damaged");
                tap.write(&Network { identification, ..network }, datagram, comment);
            }
            // A damaged one is the NIC's to count.
            if parsed.icrc_is_good()
                && let Err(refusal) = self.guards.check(network.source_port, &parsed, datagram)
            {
                self.counters.refuse(refusal);
                continue;
            }
            let extension = match parsed.extension.is_empty() {
                true => None,
                false => match Extension::parse(&datagram[parsed.extension.clone()]) {
                    Ok(extension) => Some(extension),
                    Err(_) => {
                        self.counters.malformed += 1;
                        continue;
                    }
                },
            };
            let inbound = Inbound {
                network: &network,
                headers: &parsed.headers,
                extension: extension.as_ref().filter(|extension| !extension.is_none()),
                payload: Payload::Bytes(&datagram[parsed.payload.clone()]),
                intact: parsed.icrc_is_good(),
            };
            // What it throws away it has counted; loss is nothing to worry about.
            let outcome = match (reference, &mut self.shared_payload) {
                (Some((reference, _)), Some((shared, _))) => {
                    let nic = &mut self.nic;
                    let taken = shared.take(&reference, |bytes| {
                        nic.receive(&mut cx, &Inbound { payload: Payload::Bytes(bytes), ..inbound })
                    });
                    let Some(outcome) = taken else {
                        self.counters.unshared += 1;
                        continue;
                    };
                    self.counters.shared += 1;
                    outcome
                }
                _ => self.nic.receive(&mut cx, &inbound),
            };
            if outcome == Err(DropReason::NoQueuePair)
                && let Some(steering) = &mut self.steering
            {
                steering.on_unknown(parsed.headers.bth.destination);
            }
            if inbound.intact {
                self.rest.came(&parsed.headers);
            }
        }
        self.rest.came_together((self.counters.received - before) as usize);
        Ok(true)
    }

    /// The addressing of what came in. A socket does not see the hop limit.
    fn network_of(&self, arrival: &Arrival) -> Network {
        Network {
            source: Gid::from_ip(arrival.from.ip()),
            target: self.gid,
            source_port: arrival.from.port(),
            target_port: self.receiver.local().port(),
            traffic_class: arrival.traffic_class,
            hop_limit: 64,
            identification: 0,
            flow_label: 0,
        }
    }
}

/// Whether a packet only says that all is well so far: it may go a little later.
fn is_plain_acknowledgement(packet: &Transmit) -> bool {
    packet.headers.bth.opcode == Opcode::RcAcknowledge
        && matches!(packet.headers.extended, Extended::Aeth(Aeth { syndrome: Syndrome::Ack { .. }, .. }))
}
