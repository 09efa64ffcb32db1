//! Packets as frames: what a driver that moves bytes does with a packet at either end of its way.
//!
//! Ghost payload goes as a pattern, with its tag beside the frame. A driver that moves values and one that moves frames
//! come to the same run, which is the proof that the two are one machine.

use railnet_core::GhostRun;
use railnet_core::event::Sink;
use railnet_wire::{
    Ethernet, Extension, Frame, HEADROOM, Headers, Ipv4, Network, RocePacket, Udp, datagram_length,
    emit_around,
};

use crate::context::Context;
use crate::error::DropReason;
use crate::memory::{Memory, Segments};
use crate::nic::Nic;
use crate::packet::{Inbound, Payload};

/// How packets travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WireForm {
    /// As header values and payload.
    #[default]
    Values,
    /// As bytes: every packet is emitted, and parsed again.
    Bytes,
}

/// Makes a frame of a packet. `buffer` holds the payload from [`HEADROOM`] on where that has bytes, and nothing behind
/// it where it is a ghost; the frame begins at the place that is returned.
pub fn emit(
    buffer: &mut Vec<u8>,
    ethernet: &Ethernet,
    network: &Network,
    headers: &Headers,
    extension: &Extension,
    ghost: Option<&[GhostRun]>,
) -> usize {
    debug_assert!(ghost.is_none() || buffer.len() == HEADROOM, "a ghost has no bytes");
    if let Some(runs) = ghost {
        Segments::append_pattern(runs, buffer);
    }
    emit_around(buffer, Some(ethernet), network, headers, extension)
}

/// How many bits behind the UDP header of a packet the ICRC covers: those that [`flip`] may hit.
pub fn covered_bits(headers: &Headers, extension: &Extension, payload: u32) -> u64 {
    (datagram_length(headers, extension, payload as usize) - extension.varying_bytes()) as u64 * 8
}

/// Flips bit `bit` of those that the ICRC covers, in a frame over IPv4 without a VLAN tag that has `extension`.
pub fn flip(frame: &mut [u8], extension: &Extension, bit: u64) {
    let mut covered = (0..).filter(|at| !extension.varies(*at));
    let byte = covered.nth((bit / 8) as usize).expect("most bytes of a packet do not vary");
    frame[Ethernet::LENGTH + Ipv4::LENGTH + Udp::LENGTH + byte] ^= 1 << (bit % 8);
}

/// What the bytes of a frame do not say.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// The ghost payload that its pattern stands for.
    pub ghost: Option<&'a [GhostRun]>,
    /// Its addressing when it was sent.
    pub network: &'a Network,
    /// Its headers when it was sent.
    pub headers: &'a Headers,
    /// A bit of it was flipped on the way.
    pub is_damaged: bool,
}

/// Hands a frame to a NIC, as a driver of real frames does: parsed, and with its ICRC checked.
///
/// A damaged frame may name another queue pair, or nobody. It is reported under what it was, so that a run is the same
/// in both forms; the NIC looks at nothing else of a packet that is not intact.
///
/// # Panics
/// When a frame that nothing touched is not read back.
pub fn deliver<M: Memory, S: Sink>(
    nic: &mut Nic,
    cx: &mut Context<'_, M, S>,
    frame: &[u8],
    sent: &Sent<'_>,
) -> Result<(), DropReason> {
    let parsed = match Frame::parse(frame) {
        Ok(Frame::Roce(packet)) if packet.icrc.is_good() => Some(packet),
        _ => None,
    };
    assert!(
        parsed.is_some() || sent.is_damaged,
        "a frame that nothing touched is not read back: {:?}",
        sent.headers
    );
    let network = parsed.as_ref().map_or(*sent.network, RocePacket::network);
    let inbound = match &parsed {
        Some(packet) => Inbound {
            network: &network,
            headers: &packet.headers,
            extension: (!packet.extension.is_none()).then_some(&packet.extension),
            payload: sent.ghost.map_or(Payload::Bytes(packet.payload), Payload::Ghost),
            intact: true,
        },
        None => Inbound {
            network: &network,
            headers: sent.headers,
            extension: None,
            payload: Payload::Bytes(&[]),
            intact: false,
        },
    };
    nic.receive(cx, &inbound)
}
