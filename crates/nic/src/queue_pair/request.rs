//! The headers of request packets.

use railnet_core::Psn;
use railnet_wire::{AtomicEth, Bth, Deth, Extended, Headers, Opcode, Position, Reth};

use super::{Requester, Service, Shared, State};
use crate::device::Device;
use crate::work::{Operation, Remote, SendWork};

impl Requester {
    pub(super) fn request_headers(
        &self,
        shared: &Shared,
        device: &Device,
        work: &SendWork,
        packet: u32,
        ends: bool,
    ) -> Headers {
        let psn = work.first.plus(packet);
        let position = match (packet == 0, packet + 1 == work.packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let reth = |remote: Remote, skip: u32| Reth {
            address: remote.address.wrapping_add(u64::from(skip)),
            key: remote.key.0,
            length: work.length - skip,
        };
        let starts = position.is_start();
        let (opcode, extended) = match work.operation {
            Operation::Send => (send_opcode(position, Tail::Plain), Extended::None),
            Operation::SendImmediate(value) => {
                let extended = if ends { Extended::Immediate(value) } else { Extended::None };
                (send_opcode(position, Tail::Immediate), extended)
            }
            Operation::SendInvalidate(key) => {
                let extended = if ends { Extended::Invalidate(key.0) } else { Extended::None };
                (send_opcode(position, Tail::Invalidate), extended)
            }
            Operation::Write(remote) => {
                let extended = if starts { Extended::Reth(reth(remote, 0)) } else { Extended::None };
                (write_opcode(position, false), extended)
            }
            Operation::WriteImmediate(remote, value) => {
                let extended = match position {
                    Position::Only => Extended::RethImmediate(reth(remote, 0), value),
                    Position::First => Extended::Reth(reth(remote, 0)),
                    Position::Last => Extended::Immediate(value),
                    Position::Middle => Extended::None,
                };
                (write_opcode(position, true), extended)
            }
            Operation::Read(remote) => {
                (Opcode::RcReadRequest, Extended::Reth(reth(remote, packet * shared.mtu.bytes())))
            }
            Operation::CompareSwap { remote, compare, swap } => {
                let (address, key) = (remote.address, remote.key.0);
                (
                    Opcode::RcCompareSwap,
                    Extended::Atomic(AtomicEth { address, key, swap_or_add: swap, compare }),
                )
            }
            Operation::FetchAdd { remote, add } => {
                let (address, key) = (remote.address, remote.key.0);
                (
                    Opcode::RcFetchAdd,
                    Extended::Atomic(AtomicEth { address, key, swap_or_add: add, compare: 0 }),
                )
            }
            Operation::BindWindow(_) | Operation::LocalInvalidate(_) => unreachable!("never on the wire"),
        };
        let (opcode, extended, destination) = match (shared.service, &work.datagram) {
            (Service::UnreliableConnection, _) => (unreliable(opcode), extended, shared.peer),
            (Service::Datagram, Some(datagram)) => {
                let target = datagram.1;
                // IBTA 10.2.5: a queue key with the top bit set is the privileged one of the sending queue pair.
                let queue_key = if target.queue_key >> 31 == 1 { shared.queue_key } else { target.queue_key };
                let deth = Deth { queue_key, source: shared.number };
                match extended {
                    Extended::Immediate(value) => {
                        (Opcode::UdSendOnlyImmediate, Extended::DethImmediate(deth, value), target.queue_pair)
                    }
                    _ => (Opcode::UdSendOnly, Extended::Deth(deth), target.queue_pair),
                }
            }
            _ => (opcode, extended, shared.peer),
        };
        let bth = Bth {
            opcode,
            solicited: work.solicited && ends,
            migrated: device.config.behaviour.migrated_bit,
            fecn: false,
            becn: false,
            ack_request: shared.is_reliable() && self.asks_acknowledgement(shared, device, work, psn, ends),
            partition: shared.partition,
            destination,
            psn,
        };
        Headers { bth, extended }
    }

    /// Whether this packet asks for an acknowledgement. Something must ask before the requester falls silent, and often
    /// enough that it never has to.
    #[inline]
    fn asks_acknowledgement(
        &self,
        shared: &Shared,
        device: &Device,
        work: &SendWork,
        psn: Psn,
        ends: bool,
    ) -> bool {
        let policy = device.config.behaviour.ack_requests;
        if ends && (policy.every_message || work.signaled || work.operation.reads()) {
            return true;
        }
        // What is sent again was missed once: the sooner it is answered the better.
        if ends && (self.was_sent(psn) || self.next_must_wait(device)) {
            return true;
        }
        let in_flight = psn.value().wrapping_sub(self.unacked.value()) & Psn::MASK;
        let window_closes = in_flight + 1 >= device.unacked_max
            || shared.control.window().is_some_and(|window| {
                u64::from(self.in_network(in_flight) + 1) * u64::from(shared.mtu.bytes()) >= window.0
            })
            || device.config.behaviour.credits && work.operation.consumes_receive()
            || shared.state == State::SendQueueDrain;
        let interval = match shared.control.ack_interval() {
            None => policy.interval,
            Some(wanted) => wanted.min(policy.interval),
        };
        self.since_request + 1 >= interval || window_closes
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    Plain,
    Immediate,
    Invalidate,
}

fn send_opcode(position: Position, tail: Tail) -> Opcode {
    match (position, tail) {
        (Position::First, _) => Opcode::RcSendFirst,
        (Position::Middle, _) => Opcode::RcSendMiddle,
        (Position::Last, Tail::Plain) => Opcode::RcSendLast,
        (Position::Last, Tail::Immediate) => Opcode::RcSendLastImmediate,
        (Position::Last, Tail::Invalidate) => Opcode::RcSendLastInvalidate,
        (Position::Only, Tail::Plain) => Opcode::RcSendOnly,
        (Position::Only, Tail::Immediate) => Opcode::RcSendOnlyImmediate,
        (Position::Only, Tail::Invalidate) => Opcode::RcSendOnlyInvalidate,
    }
}

fn write_opcode(position: Position, immediate: bool) -> Opcode {
    match (position, immediate) {
        (Position::First, _) => Opcode::RcWriteFirst,
        (Position::Middle, _) => Opcode::RcWriteMiddle,
        (Position::Last, false) => Opcode::RcWriteLast,
        (Position::Last, true) => Opcode::RcWriteLastImmediate,
        (Position::Only, false) => Opcode::RcWriteOnly,
        (Position::Only, true) => Opcode::RcWriteOnlyImmediate,
    }
}

/// The opcode of the same operation on an unreliable connection.
fn unreliable(opcode: Opcode) -> Opcode {
    Opcode::from_byte(opcode as u8 | 0x20).expect("a SEND or WRITE has a UC form")
}
