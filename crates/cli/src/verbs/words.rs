//! Headers, checks and verdicts in plain words, with the term of art beside them.

use railnet_core::event::Check;
use railnet_core::{Span, Time};
use railnet_nic::{Access, CompletionKind, Status, rnr_wait};
use railnet_wire::{Extended, Frame, Framing, Headers, Link, Lrh, NakCode, Opcode, Syndrome};
use serde_json::{Value, json};

use super::Kind;

/// A and B.
pub(super) fn host(side: usize) -> &'static str {
    ["A", "B"][side]
}

/// Microseconds with three decimals, so that times stand below each other.
pub(super) fn microseconds(ps: u64) -> String {
    format!("{}.{:03} µs", ps / 1_000_000, ps % 1_000_000 / 1_000)
}

pub(super) fn moment(at: Time) -> String {
    microseconds(at.as_ps())
}

/// A span as people write it.
pub(super) fn span(span: Span) -> String {
    span.to_string().replace("us", "µs")
}

/// The transport headers of a frame, and its payload's length.
pub(super) fn headers_of(framing: Framing, frame: &[u8]) -> Option<(Headers, u32)> {
    match parse(framing, frame)? {
        Frame::Roce(packet) => Some((packet.headers, packet.payload.len() as u32)),
        Frame::Infiniband(packet) => Some((packet.headers, packet.payload.len() as u32)),
        _ => None,
    }
}

fn parse(framing: Framing, frame: &[u8]) -> Option<Frame<'_>> {
    match framing {
        Framing::Infiniband => Frame::parse_infiniband(frame),
        Framing::RoceV2 | Framing::RoceV1 => Frame::parse(frame),
    }
    .ok()
}

/// What stands in front of the BTH and behind the payload where that is neither IP nor UDP: in words, and as fields.
pub(super) fn around(framing: Framing, frame: &[u8]) -> Option<(String, Value)> {
    let Some(Frame::Infiniband(packet)) = parse(framing, frame) else { return None };
    let check = match packet.vcrc {
        Some(vcrc) => format!("ICRC {:08x}, VCRC {:04x}", packet.icrc.found, vcrc.found),
        None => format!("ICRC {:08x}", packet.icrc.found),
    };
    let mut fields = json!({ "icrc": packet.icrc.found });
    let front = match packet.route.link {
        Link::Infiniband(Lrh { virtual_lane, service_level, source, target, .. }) => {
            fields["lrh"] = json!({ "vl": virtual_lane, "sl": service_level, "source_lid": source.0, "target_lid": target.0 });
            fields["vcrc"] = packet.vcrc.map(|vcrc| vcrc.found).into();
            format!("LRH: LID {source} → {target}, SL {service_level}, VL {virtual_lane}")
        }
        Link::Ethernet(ethernet) => {
            let priority = ethernet.vlan.map_or(0, |tag| tag.priority);
            fields["ether_type"] = ethernet.ether_type.0.into();
            fields["priority"] = priority.into();
            format!("Ethernet type {:#06x}, priority {priority}", ethernet.ether_type.0)
        }
    };
    let global = packet.route.grh.map(|grh| {
        fields["grh"] = json!({ "source": grh.source.to_string(), "target": grh.target.to_string(),
            "hop_limit": grh.hop_limit, "traffic_class": grh.traffic_class, "flow_label": grh.flow_label });
        format!("; GRH: {} → {}, hop limit {}", grh.source, grh.target, grh.hop_limit)
    });
    Some((format!("{front}{}; {check}", global.unwrap_or_default()), fields))
}

/// The first line about a packet: base transport header and length.
pub(super) fn packet(headers: &Headers, length: u32) -> String {
    let bth = &headers.bth;
    let mut text = format!("{} · PSN {}", bth.opcode.name(), bth.psn);
    if let (Opcode::RcAcknowledge, Extended::Aeth(aeth)) = (bth.opcode, &headers.extended) {
        text += match aeth.syndrome {
            Syndrome::Ack { .. } => " · ACK",
            Syndrome::RnrNak { .. } => " · RNR NAK",
            Syndrome::Nak(_) => " · NAK",
            Syndrome::Reserved(_) => "",
        };
    }
    if length > 0 {
        text = format!("{text} · {length} B");
    }
    if bth.ack_request {
        text += " · asks for an ACK (A)";
    }
    if bth.solicited {
        text += " · solicited";
    }
    text
}

/// The second line about a packet: its extended header.
pub(super) fn extended(headers: &Headers) -> Option<String> {
    Some(match headers.extended {
        Extended::Reth(reth) => {
            format!("RETH: address {:#x}, rkey {:#x}, length {} B", reth.address, reth.key, reth.length)
        }
        Extended::RethImmediate(reth, value) => format!(
            "RETH: address {:#x}, rkey {:#x}, length {} B; ImmDt: {value:#x}",
            reth.address, reth.key, reth.length
        ),
        Extended::Immediate(value) => format!("ImmDt: immediate {value:#x}"),
        Extended::Invalidate(key) => format!("IETH: rkey {key:#x}"),
        Extended::Aeth(aeth) => format!("AETH: {}, MSN {}", syndrome(aeth.syndrome), aeth.msn),
        Extended::AtomicAck(aeth, original) => {
            format!("AETH: {}, MSN {}; AtomicAckETH: old value {original}", syndrome(aeth.syndrome), aeth.msn)
        }
        Extended::Atomic(atomic) if headers.bth.opcode == Opcode::RcFetchAdd => format!(
            "AtomicETH: address {:#x}, rkey {:#x}, add {}",
            atomic.address, atomic.key, atomic.swap_or_add
        ),
        Extended::Atomic(atomic) => format!(
            "AtomicETH: address {:#x}, rkey {:#x}, swap {}, compare {}",
            atomic.address, atomic.key, atomic.swap_or_add, atomic.compare
        ),
        _ => return None,
    })
}

fn syndrome(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack { .. } => "all up to here has arrived".to_owned(),
        Syndrome::RnrNak { timer } => {
            format!("no receive is posted, try again after {}", span(rnr_wait(timer)))
        }
        Syndrome::Nak(NakCode::Sequence) => "sequence error, this PSN is missing".to_owned(),
        Syndrome::Nak(NakCode::InvalidRequest) => "invalid request".to_owned(),
        Syndrome::Nak(NakCode::RemoteAccess) => {
            "remote access error, this memory may not be touched".to_owned()
        }
        Syndrome::Nak(NakCode::RemoteOperational) => "remote operational error".to_owned(),
        Syndrome::Nak(NakCode::InvalidRdRequest) => "invalid RD request".to_owned(),
        Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}"),
    }
}

/// What a requester learns from an acknowledgement.
pub(super) fn learned(headers: &Headers) -> String {
    let psn = headers.bth.psn;
    if headers.bth.opcode.is_read_response() {
        return format!("PSN {psn} of the answer comes, but it is not the next one");
    }
    match headers.extended {
        Extended::Aeth(aeth) => match aeth.syndrome {
            Syndrome::Ack { .. } => format!("takes the ACK: everything up to PSN {psn} has arrived"),
            Syndrome::RnrNak { .. } => {
                format!("takes the RNR NAK: B had no receive posted for PSN {psn}")
            }
            Syndrome::Nak(NakCode::Sequence) => {
                format!("takes the NAK: B misses PSN {psn}, all before it has arrived")
            }
            Syndrome::Nak(_) => format!("takes the NAK: B refuses PSN {psn} for good"),
            Syndrome::Reserved(_) => format!("takes an answer without meaning for PSN {psn}"),
        },
        _ => format!("takes the answer, PSN {psn}"),
    }
}

/// What is checked, in few words.
pub(super) fn check(check: Check, kind: Kind) -> &'static str {
    match check {
        Check::QueuePair => "queue pair",
        Check::Sequence => "PSN",
        Check::OpcodeOrder => "opcode order",
        Check::QueuePairAccess => "QP access",
        Check::Resources if kind.consumes_receive() => "receive posted",
        Check::Resources => "READ/atomic slot free",
        Check::Length => "length",
        Check::Key => "rkey",
        Check::Permission => "permission",
        Check::Range => "range",
        Check::Alignment => "alignment",
    }
}

/// Why a check fails, in a sentence.
pub(super) fn failure(check: Check) -> &'static str {
    match check {
        Check::QueuePair => "there is no such queue pair, or it is not ready",
        Check::Sequence => "it is not the sequence number that comes next",
        Check::OpcodeOrder => "first, middle and last packets do not make a message",
        Check::QueuePairAccess => "the queue pair does not allow this kind of access",
        Check::Resources => "no receive is posted",
        Check::Length => "the length is not what headers and buffer allow",
        Check::Key => "no memory of B goes by this key",
        Check::Permission => "the memory region does not grant this kind of access",
        Check::Range => "part of the range lies outside of the memory region",
        Check::Alignment => "the address is not a multiple of 8",
    }
}

/// The status with this number.
pub(super) fn status(number: u8) -> Option<Status> {
    [
        Status::Success,
        Status::LocalLength,
        Status::LocalOperation,
        Status::LocalProtection,
        Status::Flushed,
        Status::WindowBind,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
    ]
    .into_iter()
    .find(|&status| status as u8 == number)
}

pub(super) fn completed(kind: CompletionKind) -> &'static str {
    match kind {
        CompletionKind::Send => "SEND",
        CompletionKind::Write => "WRITE",
        CompletionKind::Read => "READ",
        CompletionKind::CompareSwap => "compare-and-swap",
        CompletionKind::FetchAdd => "fetch-and-add",
        CompletionKind::BindWindow => "bind window",
        CompletionKind::LocalInvalidate => "local invalidate",
        CompletionKind::Receive => "receive of a SEND",
        CompletionKind::ReceiveWriteImmediate => "receive of a WRITE with immediate",
    }
}

/// What a region lets others do.
pub(super) fn rights(access: Access) -> String {
    let mut words = Vec::new();
    for (right, word) in
        [(Access::REMOTE_WRITE, "write"), (Access::REMOTE_READ, "read"), (Access::REMOTE_ATOMIC, "atomic")]
    {
        if access.allows(right) {
            words.push(word);
        }
    }
    if words.is_empty() { "no remote access".to_owned() } else { format!("remote {}", words.join("+")) }
}
