//! The authentication trailer: a packet counter and a message authentication code between padding and ICRC.
//!
//! ```text
//!  BTH, headers, payload, padding | counter | tag      | ICRC
//!                                 | 8 bytes | 16 bytes |
//! ```
//!
//! The opcode stays what it is, so that other tools still read the packet, with 24 bytes more of payload. The lowest
//! reserved bit behind the acknowledgement request of the BTH says that the trailer is there: peers that know nothing of
//! it neither send nor look at that bit (IBTA 9.2). The code covers everything from the BTH to the counter but for what
//! may change on the way, which the ICRC leaves out too. The key, and who may have sent which counter, is the drivers'
//! business.

use crate::malformed::{Layer, Malformed};
use crate::transport::{Bth, extension};

/// An authentication trailer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Authentication {
    /// The number of the packet under its key: it never repeats, also where a packet is sent again.
    pub counter: u64,
    /// The message authentication code.
    pub tag: [u8; 16],
}

impl Authentication {
    /// Bytes of the trailer.
    pub const LENGTH: usize = 24;

    /// The trailer as bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.counter.to_be_bytes());
        bytes[8..].copy_from_slice(&self.tag);
        bytes
    }

    /// Reads a trailer. Every combination of its bytes means something.
    pub fn read(bytes: &[u8; Self::LENGTH]) -> Self {
        let (counter, tag) = bytes.split_at(8);
        Self {
            counter: u64::from_be_bytes(counter.try_into().expect("split at eight")),
            tag: tag.try_into().expect("sixteen are left"),
        }
    }

    /// Calls `update` with the bytes that the code covers, in order, of a packet from its BTH to the end of its padding. The
    /// counter, which is covered too, comes before or behind them, as the driver likes.
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH.
    #[inline]
    pub fn covered(packet: &[u8], mut update: impl FnMut(&[u8])) {
        let (base, rest) = packet.split_at(Bth::LENGTH);
        let mut masked = [0; Bth::LENGTH];
        masked.copy_from_slice(base);
        Bth::mask(&mut masked);
        update(&masked);
        match extension::masked(base, rest) {
            None => update(rest),
            Some(front) => {
                update(&front);
                update(&rest[front.len()..]);
            }
        }
    }

    /// The trailer at the end of a packet that begins with its BTH and ends before its ICRC, where it says that it has one.
    #[inline]
    pub(crate) fn of_packet(packet: &[u8]) -> Result<Option<Self>, Malformed> {
        if !Bth::has_trailer(packet) {
            return Ok(None);
        }
        let bytes = packet.get(Bth::LENGTH..).and_then(<[u8]>::last_chunk).ok_or(Malformed::Truncated {
            layer: Layer::Authentication,
            needed: Self::LENGTH,
            found: packet.len().saturating_sub(Bth::LENGTH),
        })?;
        Ok(Some(Self::read(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use railnet_core::{Psn, QueuePairNumber};

    use super::*;
    use crate::{
        Extended, Extension, Fronts, Gid, Headers, ICRC_LENGTH, Identification, Network, Opcode, PayloadSum,
        ROCE_PORT, datagram_length, parse_datagram, seal_datagram_with,
    };

    fn network() -> Network {
        Network {
            source: Gid::from_ip("10.0.0.1".parse().unwrap()),
            target: Gid::from_ip("10.0.0.2".parse().unwrap()),
            source_port: 0xc000,
            target_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            identification: 3,
            flow_label: 0,
        }
    }

    fn headers() -> Headers {
        let bth = Bth::new(Opcode::RcWriteMiddle, QueuePairNumber::new(0x11), Psn::new(7));
        Headers { bth, extended: Extended::None }
    }

    const TRAILER: Authentication = Authentication { counter: 0x0102_0304_0506_0708, tag: [9; 16] };

    fn sealed(payload: &[u8], sum: Option<(PayloadSum, &mut Fronts)>) -> Vec<u8> {
        let headers = headers();
        let length = datagram_length(&headers, &Extension::NONE, payload.len()) + Authentication::LENGTH;
        let mut datagram = vec![0; length];
        datagram[Bth::LENGTH..][..payload.len()].copy_from_slice(payload);
        let mut make = |_: &[u8]| TRAILER;
        let (bytes, none) = (payload.len(), Extension::NONE);
        seal_datagram_with(&mut datagram, &network(), &headers, &none, bytes, sum, Some(&mut make));
        datagram
    }

    #[test]
    fn a_trailer_is_read_as_it_was_written_and_is_no_payload() {
        for length in [0, 1, 3, 256, 1021] {
            let payload: Vec<u8> = (0..length).map(|index| index as u8).collect();
            let datagram = sealed(&payload, None);
            let parsed = parse_datagram(&network(), &datagram, Identification::Known).unwrap();
            assert!(parsed.icrc_is_good());
            assert_eq!(&datagram[parsed.payload.clone()], payload);
            assert_eq!((parsed.authentication, parsed.headers), (Some(TRAILER), headers()));
        }
    }

    #[test]
    fn a_packet_is_built_from_layers_as_it_is_sealed_and_read() {
        let packet =
            crate::RocePacket::new(None, &network(), headers(), b"some payload").with_authentication(TRAILER);
        let bytes = packet.to_bytes();
        let crate::Frame::Roce(read) = crate::Frame::parse_ip(&bytes).unwrap() else {
            panic!("it is RoCEv2")
        };
        assert_eq!(read, packet);
        assert!(read.icrc.is_good());
        assert_eq!(&bytes[28..], sealed(b"some payload", None));
    }

    #[test]
    fn a_known_sum_of_the_payload_gives_the_same_packet() {
        let payload: Vec<u8> = (0..1024_u32).map(|index| index as u8).collect();
        let sum = PayloadSum::of(payload.len(), &payload).unwrap();
        assert_eq!(sealed(&payload, Some((sum, &mut Fronts::default()))), sealed(&payload, None));
    }

    #[test]
    fn a_packet_too_short_for_the_trailer_that_it_announces_is_malformed() {
        let mut datagram = sealed(&[], None);
        datagram.truncate(Bth::LENGTH + Authentication::LENGTH - 4 + ICRC_LENGTH);
        let error = parse_datagram(&network(), &datagram, Identification::Known).unwrap_err();
        assert_eq!(error.to_string(), "authentication trailer needs 24 bytes, 20 are there");
    }

    #[test]
    fn the_code_covers_all_but_the_congestion_bits() {
        let of = |datagram: &[u8]| {
            let mut covered = Vec::new();
            Authentication::covered(&datagram[..datagram.len() - 28], |bytes| {
                covered.extend_from_slice(bytes);
            });
            covered
        };
        let good = sealed(b"some payload", None);
        for at in 0..good.len() - 28 {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(of(&bad) == of(&good), at == Bth::VARYING, "byte {at}");
        }
    }
}
