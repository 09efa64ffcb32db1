//! The InfiniBand transport on the wire, as RoCEv2, RoCE v1 and InfiniBand: what each byte means, from the first header to the
//! last check sequence, and the capture files that hold it.
//!
//! Each header is a small struct of valid values in a file of its own, which states the offsets of its fields once and
//! has a way to read it from bytes and one to write it. [`Headers`] are the transport headers that the NIC speaks,
//! [`Extension`] in them is what RoCEv2 has no field for, [`Network`] is the addressing around them in RoCEv2, [`Route`] in RoCE v1 and on
//! InfiniBand links, [`Frame`] is any frame taken apart, [`mad`] holds the messages
//! that set up connections, [`icrc`] the check at the end of every packet, [`capture`] reads and writes pcap and
//! pcapng.
//!
//! # What panics
//!
//! Nothing that parses panics or reads out of bounds, whatever the bytes: the answer is a [`Malformed`] with the reason.
//! What emits panics when the slice it writes to is shorter than the length that it states, or when values contradict
//! each other; that is a mistake of the caller. Values wider than their field (a 24-bit number in a `u32`) are cut
//! to the field.
//!
//! # Example
//!
//! ```
//! use railnet_core::{Psn, QueuePairNumber};
//! use railnet_wire::{Aeth, Extended, Headers, Opcode, Syndrome};
//!
//! let bytes = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x67, 0, 0, 0, 9, 0x1f, 0, 0, 1];
//! let parsed = Headers::parse(&bytes)?;
//! assert_eq!(parsed.headers.bth.opcode, Opcode::RcAcknowledge);
//! assert_eq!(parsed.headers.bth.destination, QueuePairNumber::new(0x67));
//! assert_eq!(parsed.headers.bth.psn, Psn::new(9));
//! assert_eq!(parsed.headers.extended, Extended::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 }));
//!
//! let mut again = [0; 16];
//! parsed.headers.emit(&mut again, parsed.pad);
//! assert_eq!(again, bytes);
//! assert_eq!(
//!     Headers::parse(&bytes[..14]).unwrap_err().to_string(),
//!     "AETH needs 4 bytes, 2 are there",
//! );
//! # Ok::<(), railnet_wire::Malformed>(())
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod authentication;
mod bytes;
pub mod capture;
mod ethernet;
mod frame;
mod gid;
pub mod icrc;
mod infiniband;
mod ipv4;
mod ipv6;
pub mod mad;
mod malformed;
mod network;
mod opcode;
mod pfc;
pub mod router;
mod tcp;
mod transport;
mod udp;

pub use authentication::Authentication;
pub use ethernet::{EtherType, Ethernet, Mac, VlanTag};
pub use frame::{
    Authenticate, DATAGRAM_BYTES_MAX, Datagram, Frame, HEADROOM, Icrc, Other, RocePacket, datagram_length,
    emit_around, emit_datagram_around, parse_datagram, parse_packet, seal_datagram, seal_datagram_with,
};
pub use gid::Gid;
pub use icrc::{Fronts, ICRC_LENGTH, Identification, PayloadSum, SEGMENTS_MAX};
pub use infiniband::{
    Framing, Grh, InfinibandPacket, Lid, Link, Lrh, Route, VCRC_LENGTH, Vcrc, emit_route_around,
    forward_infiniband, roce_v1_ethernet, seal_link, vcrc,
};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use malformed::{Layer, Malformed};
pub use network::{GRH_LENGTH, Ip, Network};
pub use opcode::{Opcode, Position, Transport};
pub use pfc::{PRIORITIES, Pause};
pub use tcp::{
    SACK_BLOCKS_MAX, SackBlocks, TCP_PROTOCOL, Tcp, TcpFlags, TcpOptions, TcpPacket, TcpRoute, tcp_packet,
};
pub use transport::{
    Aeth, AtomicEth, Bth, CongestionEcho, Deth, Extended, Extension, Headers, Hop, Layout, NakCode,
    ParsedHeaders, Reth, SelectiveAck, Syndrome, Telemetry, TelemetryBlock, pad_length,
};
pub use udp::{ROCE_PORT, UDP_PROTOCOL, Udp, fill_udp_checksum, udp_source_port};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
