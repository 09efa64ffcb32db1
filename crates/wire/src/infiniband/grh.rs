//! The global route header (GRH): the addresses of a packet between subnets, in RoCE v1 those of every packet. IBTA volume 1, 8.3.

use crate::gid::Gid;
use crate::ipv6::Ipv6;
use crate::malformed::{Layer, Malformed};

/// A BTH follows.
const NEXT_HEADER: u8 = 0x1b;

/// A global route header, without its length field, which follows from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// Routers that it may pass.
    pub hop_limit: u8,
    /// The port that sent it.
    pub source: Gid,
    /// The port that it is for.
    pub target: Gid,
}

impl Grh {
    /// Bytes of the header.
    pub const LENGTH: usize = Ipv6::LENGTH;

    /// Reads the header at the front of `bytes`; also gives the bytes behind it, BTH to ICRC, that it states. Its layout is that of
    /// IPv6.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let header = Ipv6::parse_as(bytes, Layer::GlobalRoute, "IPVer")?;
        if header.next_header != NEXT_HEADER {
            let value = header.next_header.into();
            return Err(Malformed::Field { layer: Layer::GlobalRoute, field: "NxtHdr", value });
        }
        let Ipv6 { traffic_class, flow_label, payload_length, hop_limit, source, target, .. } = header;
        let (source, target) = (Gid(source.octets()), Gid(target.octets()));
        Ok((Self { traffic_class, flow_label, hop_limit, source, target }, payload_length.into()))
    }

    /// The header as bytes, in front of so many from BTH to ICRC.
    pub fn to_bytes(&self, transport_bytes: usize) -> [u8; Self::LENGTH] {
        let header = Ipv6 {
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            payload_length: transport_bytes as u16,
            next_header: NEXT_HEADER,
            hop_limit: self.hop_limit,
            source: self.source.0.into(),
            target: self.target.0.into(),
        };
        header.to_bytes()
    }

    /// Sets to ones what routers may change, as the ICRC wants it.
    pub(crate) fn mask(raw: &mut [u8]) {
        Ipv6::mask(raw);
    }
}
