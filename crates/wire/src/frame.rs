//! Whole packets: from the bytes of a frame to typed layers, and back.
//!
//! Two ways in, two ways out. [`Frame`] takes any Ethernet frame apart and names what it is: for captures and tools.
//! [`parse_packet`] and [`parse_datagram`] take only RoCEv2, copy nothing, and say where the payload lies: for drivers.
//! [`RocePacket::to_bytes`] builds a frame from layers; [`emit_around`] and [`seal_datagram`] write headers and ICRC
//! around a payload that is already in place.

use std::fmt;
use std::ops::Range;

use crate::authentication::Authentication;
use crate::bytes::u16_at;
use crate::ethernet::{EtherType, Ethernet};
use crate::icrc::{self, Fronts, ICRC_LENGTH, Identification, PayloadSum};
use crate::infiniband::InfinibandPacket;
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::malformed::{Layer, Malformed};
use crate::network::{Ip, Network};
use crate::pfc::Pause;
use crate::tcp::{self, TCP_PROTOCOL, TcpPacket};
use crate::transport::{Bth, Extension, Headers, ParsedHeaders, pad_length};
use crate::udp::{ROCE_PORT, UDP_PROTOCOL, Udp};

/// Where the payload begins in a buffer for [`emit_around`]: room for the largest headers, and a multiple of a cache line.
pub const HEADROOM: usize = 192;

const _: () = assert!(HEADROOM >= Ethernet::TAGGED_LENGTH + Ipv6::LENGTH + Udp::LENGTH + Headers::MAX_LENGTH);

/// The most bytes of a UDP payload: what the length field of IPv4 leaves it.
pub const DATAGRAM_BYTES_MAX: usize = u16::MAX as usize - Ipv4::LENGTH - Udp::LENGTH;

/// An ICRC as found and as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Icrc {
    /// What stood at the end of the packet.
    pub found: u32,
    /// What belongs there.
    pub computed: u32,
}

impl Icrc {
    /// Whether the packet is as it was sent.
    pub const fn is_good(self) -> bool {
        self.found == self.computed
    }
}

/// A RoCEv2 packet, layer by layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RocePacket<'a> {
    /// The Ethernet header, where the packet came with one.
    pub ethernet: Option<Ethernet>,
    /// The IP header.
    pub ip: Ip,
    /// The UDP header.
    pub udp: Udp,
    /// The transport headers.
    pub headers: Headers,
    /// What RoCEv2 has no field for.
    pub extension: Extension,
    /// The payload, less padding.
    pub payload: &'a [u8],
    /// Its authentication trailer, where it has one.
    pub authentication: Option<Authentication>,
    /// Its ICRC.
    pub icrc: Icrc,
    /// What follows the IP packet in its frame: Ethernet's padding of short frames.
    pub trailer: &'a [u8],
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// A RoCEv2 packet.
    Roce(RocePacket<'a>),
    /// A packet of the InfiniBand transport without IP and UDP: on an InfiniBand link, or RoCE v1.
    Infiniband(InfinibandPacket<'a>),
    /// A TCP segment.
    Tcp(TcpPacket<'a>),
    /// A priority pause.
    Pause {
        /// Its Ethernet header.
        ethernet: Ethernet,
        /// What it pauses.
        pause: Pause,
    },
    /// Something else.
    Other {
        /// Its Ethernet header, where it has one.
        ethernet: Option<Ethernet>,
        /// What it is.
        kind: Other,
    },
}

/// What a frame is that does not carry the InfiniBand transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Other {
    /// Another protocol on Ethernet.
    EtherType(EtherType),
    /// A MAC control frame that is no priority pause.
    MacControl,
    /// Another protocol on IP.
    Protocol(u8),
    /// A fragment, and not the first: what it belongs to is not to be seen.
    Fragment,
    /// UDP for another port.
    Port(u16),
    /// A raw packet on an InfiniBand link: no InfiniBand transport in it.
    RawInfiniband,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EtherType(ether_type) => match ether_type.name() {
                Some(name) => f.write_str(name),
                None => write!(f, "Ethernet type {:#06x}", ether_type.0),
            },
            Self::MacControl => f.write_str("MAC control"),
            Self::Protocol(1) => f.write_str("ICMP"),
            Self::Protocol(2) => f.write_str("IGMP"),
            Self::Protocol(6) => f.write_str("TCP"),
            Self::Protocol(58) => f.write_str("ICMPv6"),
            Self::Protocol(number) => write!(f, "IP protocol {number}"),
            Self::Fragment => f.write_str("IP fragment"),
            Self::Port(port) => write!(f, "UDP port {port}"),
            Self::RawInfiniband => f.write_str("raw InfiniBand packet"),
        }
    }
}

impl<'a> Frame<'a> {
    /// Takes an Ethernet frame apart, without its check sequence.
    ///
    /// An error is about a frame that is RoCEv2 or a pause but not a right one; what is neither is `Other`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let ethernet = Ethernet::parse(bytes)?;
        let rest = &bytes[ethernet.length()..];
        let version = rest.first().map(|byte| byte >> 4);
        let wrong_version = |layer| {
            let value = version.unwrap_or_default().into();
            Err(Malformed::Field { layer, field: "version", value })
        };
        match ethernet.ether_type {
            EtherType::IPV4 if version == Some(6) => wrong_version(Layer::Ipv4),
            EtherType::IPV6 if version == Some(4) => wrong_version(Layer::Ipv6),
            EtherType::IPV4 | EtherType::IPV6 => Self::parse_layers(Some(ethernet), rest),
            EtherType::ROCE_V1 => Self::parse_roce_v1(ethernet, rest),
            EtherType::MAC_CONTROL if Pause::is_priority_pause(rest) => {
                Pause::parse(rest).map(|pause| Self::Pause { ethernet, pause })
            }
            EtherType::MAC_CONTROL => Ok(Self::Other { ethernet: Some(ethernet), kind: Other::MacControl }),
            other => Ok(Self::Other { ethernet: Some(ethernet), kind: Other::EtherType(other) }),
        }
    }

    /// Takes a packet apart that begins with its IP header.
    pub fn parse_ip(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_layers(None, bytes)
    }

    fn parse_layers(ethernet: Option<Ethernet>, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (ip, udp, datagram) = match other_than_roce(bytes) {
            // Processes that share an address have ports of their own: the ICRC tells RoCEv2 from other UDP there.
            Some(kind @ Other::Port(port)) => match parse_to_udp_port(bytes, port) {
                Ok(found) if has_good_icrc(bytes, &found.2) => found,
                _ => return Ok(Self::Other { ethernet, kind }),
            },
            // A segment of which not all is there is TCP still, but no more is known of it.
            Some(kind @ Other::Protocol(TCP_PROTOCOL)) => {
                let whole = tcp::parse_packet(ethernet, bytes);
                return Ok(whole.map_or(Self::Other { ethernet, kind }, Self::Tcp));
            }
            Some(kind) => return Ok(Self::Other { ethernet, kind }),
            None => parse_to_udp(bytes)?,
        };
        let (parsed, payload, authentication) = parse_transport(&bytes[datagram.clone()])?;
        let covered = datagram.end - ICRC_LENGTH;
        let icrc = Icrc {
            found: found_icrc(&bytes[covered..datagram.end]),
            computed: icrc::of_packet(&bytes[..covered])?,
        };
        Ok(Self::Roce(RocePacket {
            ethernet,
            ip,
            udp,
            headers: parsed.headers,
            extension: Extension::parse(&bytes[datagram.clone()][extension_of(&parsed)])?,
            payload: &bytes[datagram.clone()][payload],
            authentication,
            icrc,
            trailer: &bytes[datagram.end..],
        }))
    }
}

impl<'a> RocePacket<'a> {
    /// The packet that carries this payload.
    pub fn new(ethernet: Option<Ethernet>, network: &Network, headers: Headers, payload: &'a [u8]) -> Self {
        Self::with_extension(ethernet, network, headers, Extension::NONE, payload)
    }

    /// The packet that carries this payload and an extension header.
    pub fn with_extension(
        ethernet: Option<Ethernet>,
        network: &Network,
        headers: Headers,
        extension: Extension,
        payload: &'a [u8],
    ) -> Self {
        let datagram_bytes = datagram_length(&headers, &extension, payload.len());
        let mut packet = Self {
            ethernet,
            ip: network.ip(datagram_bytes),
            udp: network.udp(datagram_bytes),
            headers,
            extension,
            payload,
            authentication: None,
            icrc: Icrc { found: 0, computed: 0 },
            trailer: &[],
        };
        let bytes = packet.to_bytes();
        let found = found_icrc(&bytes[bytes.len() - ICRC_LENGTH..]);
        packet.icrc = Icrc { found, computed: found };
        packet
    }

    /// The same with an authentication trailer.
    #[must_use]
    pub fn with_authentication(mut self, authentication: Authentication) -> Self {
        let network = self.network();
        let plain = datagram_length(&self.headers, &self.extension, self.payload.len());
        let datagram_bytes = plain + Authentication::LENGTH;
        (self.ip, self.udp) = (network.ip(datagram_bytes), network.udp(datagram_bytes));
        self.authentication = Some(authentication);
        let bytes = self.to_bytes();
        let end = bytes.len() - self.trailer.len();
        let found = found_icrc(&bytes[end - ICRC_LENGTH..end]);
        self.icrc = Icrc { found, computed: found };
        self
    }

    /// Its addressing.
    pub fn network(&self) -> Network {
        self.ip.network(&self.udp)
    }

    /// The whole frame as bytes, with the ICRC that belongs there.
    pub fn to_bytes(&self) -> Vec<u8> {
        let pad = pad_length(self.payload.len());
        let mut bytes = vec![0; self.ethernet.map_or(0, |ethernet| ethernet.length())];
        if let Some(ethernet) = self.ethernet {
            ethernet.emit(&mut bytes);
        }
        let ip_start = bytes.len();
        let mut append = |length: usize, emit: &dyn Fn(&mut [u8])| {
            let start = bytes.len();
            bytes.resize(start + length, 0);
            emit(&mut bytes[start..]);
        };
        append(self.ip.length(), &|out| self.ip.emit(out));
        append(Udp::LENGTH, &|out| out.copy_from_slice(&self.udp.to_bytes()));
        let length = self.headers.length() + self.extension.length();
        let transport_start = ip_start + self.ip.length() + Udp::LENGTH;
        append(length, &|out| self.headers.emit_with(&self.extension, out, pad));
        bytes.extend_from_slice(self.payload);
        bytes.resize(bytes.len() + pad, 0);
        if let Some(authentication) = &self.authentication {
            Bth::announce_trailer(&mut bytes[transport_start..]);
            bytes.extend_from_slice(&authentication.to_bytes());
        }
        let crc = icrc::of_packet(&bytes[ip_start..]).expect("IP, UDP and BTH were just written");
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(self.trailer);
        bytes
    }
}

/// What a RoCEv2 driver wants to know of a UDP payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// The transport headers.
    pub headers: Headers,
    /// Where the extension header lies, for [`Extension::parse`]; empty where there is none.
    pub extension: Range<usize>,
    /// Where the payload lies, less padding.
    pub payload: Range<usize>,
    /// The authentication trailer, where there is one; whether it is right, the driver knows.
    pub authentication: Option<Authentication>,
    /// The IPv4 ID with which the ICRC is right (over IPv6 as in the addressing); `None` where the ICRC is wrong.
    pub identification: Option<u16>,
}

impl Datagram {
    /// Whether the packet is as it was sent.
    pub const fn icrc_is_good(&self) -> bool {
        self.identification.is_some()
    }
}

/// Reads the payload of a UDP datagram that came to the RoCEv2 port, BTH to ICRC.
///
/// A socket knows all of `network` but the IPv4 ID; `accepted` says which IDs will do.
#[inline]
pub fn parse_datagram(
    network: &Network,
    datagram: &[u8],
    accepted: Identification,
) -> Result<Datagram, Malformed> {
    let (parsed, payload, authentication) = parse_transport(datagram)?;
    let identification = icrc::verify(network, datagram, accepted);
    let extension = extension_of(&parsed);
    Ok(Datagram { headers: parsed.headers, extension, payload, authentication, identification })
}

/// Where in a UDP payload the extension header lies.
#[inline]
pub(crate) fn extension_of(parsed: &ParsedHeaders) -> Range<usize> {
    Bth::LENGTH..Bth::LENGTH + parsed.extension
}

/// Reads a RoCEv2 packet from its IP header on. The places in it count from the start of `bytes`.
pub fn parse_packet(bytes: &[u8]) -> Result<(Network, Datagram), Malformed> {
    let (ip, udp, place) = parse_to_udp(bytes)?;
    let network = ip.network(&udp);
    let (parsed, payload, authentication) = parse_transport(&bytes[place.clone()])?;
    let covered = place.end - ICRC_LENGTH;
    let is_good = icrc::of_packet(&bytes[..covered])? == found_icrc(&bytes[covered..place.end]);
    let moved = |range: Range<usize>| range.start + place.start..range.end + place.start;
    let (extension, payload) = (moved(extension_of(&parsed)), moved(payload));
    let identification = is_good.then_some(network.identification);
    let headers = parsed.headers;
    Ok((network, Datagram { headers, extension, payload, authentication, identification }))
}

/// Bytes of a UDP payload with these headers, a payload of so many bytes, its padding and the ICRC.
pub const fn datagram_length(headers: &Headers, extension: &Extension, payload_bytes: usize) -> usize {
    headers.length() + extension.length() + payload_bytes + pad_length(payload_bytes) + ICRC_LENGTH
}

/// Completes a UDP payload in which the payload already lies right behind the place of the headers: writes the headers,
/// the padding and the ICRC.
///
/// # Panics
/// When `datagram` does not have [`datagram_length`] bytes.
#[inline]
pub fn seal_datagram(
    datagram: &mut [u8],
    network: &Network,
    headers: &Headers,
    extension: &Extension,
    payload_bytes: usize,
) {
    seal_datagram_with(datagram, network, headers, extension, payload_bytes, None, None);
}

/// What makes the authentication trailer of a packet from its bytes, BTH to padding.
pub type Authenticate<'a> = &'a mut dyn FnMut(&[u8]) -> Authentication;

/// As [`seal_datagram`], with what the payload adds to the ICRC where that is known already and what packets before it left
/// to know, and with an authentication trailer where one is made.
///
/// # Panics
/// When `datagram` does not have [`datagram_length`] bytes and those of the trailer, or the sum is one of a payload of
/// another length.
#[inline]
pub fn seal_datagram_with(
    datagram: &mut [u8],
    network: &Network,
    headers: &Headers,
    extension: &Extension,
    payload_bytes: usize,
    sum: Option<(PayloadSum, &mut Fronts)>,
    authenticate: Option<Authenticate<'_>>,
) {
    let trailer = if authenticate.is_some() { Authentication::LENGTH } else { 0 };
    assert_eq!(
        datagram.len(),
        datagram_length(headers, extension, payload_bytes) + trailer,
        "room for headers, payload, pad, trailer and ICRC"
    );
    let pad = pad_length(payload_bytes);
    let covered = datagram.len() - ICRC_LENGTH;
    let padded = covered - trailer;
    headers.emit_with(extension, datagram, pad);
    datagram[padded - pad..padded].fill(0);
    if let Some(authenticate) = authenticate {
        Bth::announce_trailer(datagram);
        let authentication = authenticate(&datagram[..padded]);
        datagram[padded..covered].copy_from_slice(&authentication.to_bytes());
    }
    let crc = match sum {
        None => icrc::of_datagram(network, &datagram[..covered]),
        Some((sum, _)) if sum.length() != payload_bytes => panic!("the sum is of another payload"),
        Some((sum, fronts)) => {
            let (front, behind) = (&datagram[..padded - payload_bytes], &datagram[padded..covered]);
            icrc::of_sum(fronts, network, front, sum, behind)
        }
    };
    datagram[covered..].copy_from_slice(&crc.to_le_bytes());
}

/// Writes the transport headers in front of the payload that begins at [`HEADROOM`] and fills the rest of `buffer`, and
/// the padding and ICRC behind it. Returns where the UDP payload begins.
///
/// # Panics
/// When `buffer` is shorter than [`HEADROOM`].
#[inline]
pub fn emit_datagram_around(
    buffer: &mut Vec<u8>,
    network: &Network,
    headers: &Headers,
    extension: &Extension,
) -> usize {
    let payload_bytes = buffer.len().checked_sub(HEADROOM).expect("the payload begins at HEADROOM");
    let start = HEADROOM - headers.length() - extension.length();
    buffer.resize(start + datagram_length(headers, extension, payload_bytes), 0);
    seal_datagram(&mut buffer[start..], network, headers, extension, payload_bytes);
    start
}

/// Like [`emit_datagram_around`], with the UDP and IP headers in front, and the Ethernet header where one is given.
/// Returns where the frame begins.
///
/// ```
/// use railnet_core::{Psn, QueuePairNumber};
/// use railnet_wire::{
///     Bth, Extended, Extension, Gid, HEADROOM, Headers, Network, Opcode, ROCE_PORT, emit_around, parse_packet,
/// };
///
/// let network = Network {
///     source: Gid::from_ip("10.0.0.1".parse()?),
///     target: Gid::from_ip("10.0.0.2".parse()?),
///     source_port: 0xc000,
///     target_port: ROCE_PORT,
///     traffic_class: 0,
///     hop_limit: 64,
///     identification: 0,
///     flow_label: 0,
/// };
/// let bth = Bth {
///     opcode: Opcode::RcSendOnly,
///     solicited: false,
///     migrated: false,
///     fecn: false,
///     becn: false,
///     ack_request: true,
///     partition: 0xffff,
///     destination: QueuePairNumber::new(0x11),
///     psn: Psn::new(7),
/// };
/// let mut buffer = vec![0; HEADROOM];
/// buffer.extend_from_slice(b"hello");
/// let headers = Headers { bth, extended: Extended::None };
/// let start = emit_around(&mut buffer, None, &network, &headers, &Extension::NONE);
///
/// let (from, datagram) = parse_packet(&buffer[start..])?;
/// assert_eq!(from, network);
/// assert_eq!(&buffer[start..][datagram.payload.clone()], b"hello");
/// assert!(datagram.icrc_is_good());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn emit_around(
    buffer: &mut Vec<u8>,
    ethernet: Option<&Ethernet>,
    network: &Network,
    headers: &Headers,
    extension: &Extension,
) -> usize {
    let mut start = emit_datagram_around(buffer, network, headers, extension);
    let datagram_bytes = buffer.len() - start;
    start -= Udp::LENGTH;
    buffer[start..][..Udp::LENGTH].copy_from_slice(&network.udp(datagram_bytes).to_bytes());
    let ip = network.ip(datagram_bytes);
    start -= ip.length();
    ip.emit(&mut buffer[start..]);
    if let Some(ethernet) = ethernet {
        start -= ethernet.length();
        ethernet.emit(&mut buffer[start..]);
    }
    start
}

/// The IP and UDP headers of a RoCEv2 packet, and where its UDP payload lies.
fn parse_to_udp(bytes: &[u8]) -> Result<(Ip, Udp, Range<usize>), Malformed> {
    parse_to_udp_port(bytes, ROCE_PORT)
}

/// The same at another port.
fn parse_to_udp_port(bytes: &[u8], port: u16) -> Result<(Ip, Udp, Range<usize>), Malformed> {
    let ip = Ip::parse(bytes)?;
    if let Ip::V4(header) = ip
        && header.is_fragment()
    {
        let offset = usize::from(header.fragment_offset) * 8;
        return Err(Malformed::Fragment { offset, more: header.more_fragments });
    }
    if ip.protocol() != UDP_PROTOCOL {
        let layer = if matches!(ip, Ip::V4(_)) { Layer::Ipv4 } else { Layer::Ipv6 };
        return Err(Malformed::Field { layer, field: "protocol", value: ip.protocol().into() });
    }
    let start = ip.length();
    let end = start + ip.payload_length();
    let udp = Udp::parse(&bytes[start..end])?;
    let stated = Udp::LENGTH + usize::from(udp.payload_length);
    if stated != ip.payload_length() {
        let (least, most) = (ip.payload_length(), ip.payload_length());
        return Err(Malformed::Length { layer: Layer::Udp, stated, least, most });
    }
    if udp.target_port != port {
        return Err(Malformed::NotRocePort(udp.target_port));
    }
    Ok((ip, udp, start + Udp::LENGTH..end))
}

/// Whether a UDP payload is a RoCEv2 packet with the right ICRC.
fn has_good_icrc(bytes: &[u8], datagram: &Range<usize>) -> bool {
    parse_transport(&bytes[datagram.clone()]).is_ok() && {
        let covered = datagram.end - ICRC_LENGTH;
        icrc::of_packet(&bytes[..covered]) == Ok(found_icrc(&bytes[covered..datagram.end]))
    }
}

/// The transport headers of a UDP payload, where its own payload lies in it, and its authentication trailer.
pub(crate) fn parse_transport(
    datagram: &[u8],
) -> Result<(ParsedHeaders, Range<usize>, Option<Authentication>), Malformed> {
    if datagram.len() > DATAGRAM_BYTES_MAX {
        let (stated, most) = (datagram.len(), DATAGRAM_BYTES_MAX);
        return Err(Malformed::Length { layer: Layer::Udp, stated, least: 0, most });
    }
    let parsed = Headers::parse(datagram)?;
    let after = datagram.len() - parsed.length;
    let Some(padded) = after.checked_sub(ICRC_LENGTH) else {
        return Err(Malformed::Truncated { layer: Layer::Icrc, needed: ICRC_LENGTH, found: after });
    };
    let authentication = Authentication::of_packet(&datagram[..datagram.len() - ICRC_LENGTH])?;
    let trailer = if authentication.is_some() { Authentication::LENGTH } else { 0 };
    let Some(padded) = padded.checked_sub(trailer) else {
        let (layer, needed) = (Layer::Authentication, trailer);
        return Err(Malformed::Truncated { layer, needed, found: padded });
    };
    // IBTA 9.2.4: payload and padding together are whole words.
    if parsed.pad > padded || !padded.is_multiple_of(4) {
        return Err(Malformed::Pad { pad: parsed.pad, found: padded });
    }
    Ok((parsed, parsed.length..parsed.length + padded - parsed.pad, authentication))
}

pub(crate) fn found_icrc(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("cut to the length of an ICRC"))
}

/// What an IP packet is when it is not RoCEv2. It looks no further than it must: whether such a packet is well formed
/// is not asked here.
fn other_than_roce(bytes: &[u8]) -> Option<Other> {
    const IPV4_FRAGMENT: usize = 6;
    const IPV4_PROTOCOL: usize = 9;
    const IPV6_NEXT_HEADER: usize = 6;
    const TARGET_PORT: usize = 2;
    let (protocol, udp_start) = match bytes.first()? >> 4 {
        4 if bytes.len() >= Ipv4::LENGTH => {
            let is_later_fragment = u16_at(bytes, IPV4_FRAGMENT) & 0x1fff != 0;
            if is_later_fragment {
                return Some(Other::Fragment);
            }
            (bytes[IPV4_PROTOCOL], usize::from(bytes[0] & 0xf) * 4)
        }
        6 if bytes.len() >= Ipv6::LENGTH => (bytes[IPV6_NEXT_HEADER], Ipv6::LENGTH),
        _ => return None,
    };
    if protocol != UDP_PROTOCOL {
        return Some(Other::Protocol(protocol));
    }
    let port =
        bytes.get(udp_start + TARGET_PORT..).filter(|rest| rest.len() >= 2).map(|rest| u16_at(rest, 0))?;
    (port != ROCE_PORT).then_some(Other::Port(port))
}
