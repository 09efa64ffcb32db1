//! TCP segments: the header with its options, the checksum, and whole packets. RFC 9293, 7323 (window scale, timestamps), 2018 (SACK).

use std::net::IpAddr;

use crate::bytes::{header, put_u16, put_u32, u16_at, u32_at};
use crate::ethernet::Ethernet;
use crate::gid::Gid;
use crate::malformed::{Layer, Malformed};
use crate::network::{Ip, Network};
use crate::udp::sum;

mod field {
    pub(super) const SOURCE_PORT: usize = 0;
    pub(super) const TARGET_PORT: usize = 2;
    pub(super) const SEQUENCE: usize = 4;
    pub(super) const ACKNOWLEDGEMENT: usize = 8;
    pub(super) const OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const WINDOW: usize = 14;
    pub(super) const CHECKSUM: usize = 16;
    pub(super) const URGENT: usize = 18;
}

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    pub(super) const SEGMENT_SIZE: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}

/// TCP as an IP protocol number.
pub const TCP_PROTOCOL: u8 = 6;
/// The most blocks of a SACK option; with timestamps there is room for three.
pub const SACK_BLOCKS_MAX: usize = 4;
/// Bytes that options have at most: the data offset has four bits.
const OPTIONS_MAX: usize = 40;

/// The flags of a segment, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// The first sequence number of a connection.
    pub const SYN: Self = Self(0x02);
    /// The connection is over at once.
    pub const RST: Self = Self(0x04);
    /// The program is to have the data without waiting for more.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x20);
    /// Congestion was met on the way here (RFC 3168); in a SYN, ECN is understood.
    pub const ECE: Self = Self(0x40);
    /// The window was reduced; in a SYN, ECN is understood.
    pub const CWR: Self = Self(0x80);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::SYN, "SYN"),
        (Self::FIN, "FIN"),
        (Self::RST, "RST"),
        (Self::PSH, "PSH"),
        (Self::ACK, "ACK"),
        (Self::URG, "URG"),
        (Self::ECE, "ECE"),
        (Self::CWR, "CWR"),
    ];

    /// Whether all of these are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and others.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their names, as in `SYN, ACK`.
    pub fn names(self) -> String {
        let names: Vec<&str> =
            Self::NAMES.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect();
        names.join(", ")
    }
}

/// The options of a segment; what is not one of these is skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// The longest segment that the sender takes; in a SYN.
    pub segment_size: Option<u16>,
    /// By how many bits the sender's windows are to be shifted; in a SYN.
    pub window_scale: Option<u8>,
    /// The sender understands SACK; in a SYN.
    pub sack_permitted: bool,
    /// The sender's clock, and what it last saw of the receiver's.
    pub timestamps: Option<(u32, u32)>,
    /// What has arrived out of order: first sequence number and that behind the last.
    pub sack: SackBlocks,
}

/// The blocks of a SACK option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    count: u8,
    blocks: [(u32, u32); SACK_BLOCKS_MAX],
}

impl SackBlocks {
    /// Adds a block; one for which there is no room is left out.
    pub fn push(&mut self, block: (u32, u32)) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = block;
            self.count += 1;
        }
    }

    /// The blocks, in their order.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }
}

impl FromIterator<(u32, u32)> for SackBlocks {
    fn from_iter<I: IntoIterator<Item = (u32, u32)>>(blocks: I) -> Self {
        let mut all = Self::default();
        blocks.into_iter().for_each(|block| all.push(block));
        all
    }
}

impl TcpOptions {
    /// Bytes of the options with their padding, laid out as Linux does.
    pub fn length(&self) -> usize {
        let size = if self.segment_size.is_some() { 4 } else { 0 };
        let pair = match (self.sack_permitted, self.timestamps) {
            (_, Some(_)) => 12,
            (true, None) => 4,
            (false, None) => 0,
        };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        let blocks = self.sack.as_slice().len();
        size + pair + scale + if blocks > 0 { 4 + 8 * blocks } else { 0 }
    }

    fn parse(mut rest: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        while let [kind, behind @ ..] = rest {
            match *kind {
                kind::END => break,
                kind::NO_OPERATION => {
                    rest = behind;
                    continue;
                }
                _ => {}
            }
            let stated = behind.first().map_or(0, |length| usize::from(*length));
            if stated < 2 || stated > rest.len() {
                let (least, most) = (2, rest.len());
                return Err(Malformed::Length { layer: Layer::TcpOption, stated, least, most });
            }
            let (option, behind) = rest.split_at(stated);
            options.read(*kind, option)?;
            rest = behind;
        }
        Ok(options)
    }

    /// Reads an option, its kind and its length in front.
    fn read(&mut self, kind: u8, option: &[u8]) -> Result<(), Malformed> {
        let stated = option.len();
        let wrong =
            |needed| Err(Malformed::Length { layer: Layer::TcpOption, stated, least: needed, most: needed });
        match kind {
            kind::SEGMENT_SIZE if stated == 4 => self.segment_size = Some(u16_at(option, 2)),
            kind::SEGMENT_SIZE => return wrong(4),
            kind::WINDOW_SCALE if stated == 3 => self.window_scale = Some(option[2]),
            kind::WINDOW_SCALE => return wrong(3),
            kind::SACK_PERMITTED if stated == 2 => self.sack_permitted = true,
            kind::SACK_PERMITTED => return wrong(2),
            kind::TIMESTAMPS if stated == 10 => {
                self.timestamps = Some((u32_at(option, 2), u32_at(option, 6)));
            }
            kind::SACK if stated > 2 && (stated - 2).is_multiple_of(8) => {
                let (blocks, _) = option[2..].as_chunks::<8>();
                self.sack = blocks.iter().map(|block| (u32_at(block, 0), u32_at(block, 4))).collect();
            }
            kind::TIMESTAMPS | kind::SACK => return wrong(10),
            _ => {}
        }
        Ok(())
    }

    /// Writes the options to exactly their bytes.
    fn emit(&self, out: &mut [u8]) {
        out.fill(kind::NO_OPERATION);
        let mut at = 0;
        let mut put = |bytes: &[u8], before: usize| {
            at += before;
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(size) = self.segment_size {
            let [high, low] = size.to_be_bytes();
            put(&[kind::SEGMENT_SIZE, 4, high, low], 0);
        }
        if self.sack_permitted {
            put(&[kind::SACK_PERMITTED, 2], if self.timestamps.is_some() { 0 } else { 2 });
        }
        if let Some((value, echo)) = self.timestamps {
            put(&[kind::TIMESTAMPS, 10], if self.sack_permitted { 0 } else { 2 });
            put(&value.to_be_bytes(), 0);
            put(&echo.to_be_bytes(), 0);
        }
        if let Some(scale) = self.window_scale {
            put(&[kind::WINDOW_SCALE, 3, scale], 1);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            put(&[kind::SACK, 2 + 8 * blocks.len() as u8], 2);
            for (first, behind) in blocks {
                put(&first.to_be_bytes(), 0);
                put(&behind.to_be_bytes(), 0);
            }
        }
    }
}

/// A TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tcp {
    /// Source port.
    pub source_port: u16,
    /// Target port.
    pub target_port: u16,
    /// The sequence number of the first byte, or of the SYN.
    pub sequence: u32,
    /// The sequence number that the sender expects next, with [`TcpFlags::ACK`].
    pub acknowledgement: u32,
    /// Its flags.
    pub flags: TcpFlags,
    /// Bytes behind the acknowledgement that the sender takes, before window scaling.
    pub window: u16,
    /// Where urgent data ends, with [`TcpFlags::URG`].
    pub urgent: u16,
    /// Its options.
    pub options: TcpOptions,
}

impl Tcp {
    /// Bytes of a header without options.
    pub const LENGTH: usize = 20;
    /// Bytes of the longest header.
    pub const MAX_LENGTH: usize = Self::LENGTH + OPTIONS_MAX;

    /// Reads the header at the front of `bytes`; also gives its length.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let raw: &[u8; Self::LENGTH] = header(bytes, Layer::Tcp)?;
        let stated = usize::from(raw[field::OFFSET] >> 4) * 4;
        if stated < Self::LENGTH || stated > bytes.len() {
            let (least, most) = (Self::LENGTH, bytes.len());
            return Err(Malformed::Length { layer: Layer::Tcp, stated, least, most });
        }
        let tcp = Self {
            source_port: u16_at(raw, field::SOURCE_PORT),
            target_port: u16_at(raw, field::TARGET_PORT),
            sequence: u32_at(raw, field::SEQUENCE),
            acknowledgement: u32_at(raw, field::ACKNOWLEDGEMENT),
            flags: TcpFlags(raw[field::FLAGS]),
            window: u16_at(raw, field::WINDOW),
            urgent: u16_at(raw, field::URGENT),
            options: TcpOptions::parse(&bytes[Self::LENGTH..stated])?,
        };
        Ok((tcp, stated))
    }

    /// Bytes of the header with its options.
    pub fn length(&self) -> usize {
        Self::LENGTH + self.options.length()
    }

    /// Writes the header to the front of `out`, without a checksum.
    ///
    /// # Panics
    /// When its options are longer than a header can have.
    pub fn emit(&self, out: &mut [u8]) {
        let length = self.length();
        assert!(length <= Self::MAX_LENGTH, "options of {} bytes", length - Self::LENGTH);
        let (raw, options) = out[..length].split_at_mut(Self::LENGTH);
        raw.fill(0);
        put_u16(raw, field::SOURCE_PORT, self.source_port);
        put_u16(raw, field::TARGET_PORT, self.target_port);
        put_u32(raw, field::SEQUENCE, self.sequence);
        put_u32(raw, field::ACKNOWLEDGEMENT, self.acknowledgement);
        raw[field::OFFSET] = (length as u8 / 4) << 4;
        raw[field::FLAGS] = self.flags.0;
        put_u16(raw, field::WINDOW, self.window);
        put_u16(raw, field::URGENT, self.urgent);
        self.options.emit(options);
    }
}

/// A TCP segment in its IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpPacket<'a> {
    /// The Ethernet header, where the packet came with one.
    pub ethernet: Option<Ethernet>,
    /// The IP header.
    pub ip: Ip,
    /// The TCP header.
    pub tcp: Tcp,
    /// The data.
    pub payload: &'a [u8],
    /// Whether the checksum is right. Hosts leave it to their NICs, so captures of what they send are often without.
    pub checksum_is_good: bool,
}

/// Where a segment comes from and goes to, and how the network is to treat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpRoute {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same family.
    pub target: IpAddr,
    /// DSCP (upper six bits) and ECN (lower two).
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// The IPv4 ID.
    pub identification: u16,
}

impl TcpRoute {
    /// The IP header in front of so many bytes of header and data.
    fn ip(&self, bytes: usize) -> Ip {
        let network = Network {
            source: Gid::from_ip(self.source),
            target: Gid::from_ip(self.target),
            // The TCP header has the ports.
            source_port: 0,
            target_port: 0,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            identification: self.identification,
            flow_label: 0,
        };
        network.ip_carrying(TCP_PROTOCOL, bytes)
    }
}

/// The bytes of a segment in its IP packet, checksum included, behind an Ethernet header where one is given.
///
/// ```
/// use railnet_wire::{Frame, Tcp, TcpFlags, TcpOptions, TcpRoute, tcp_packet};
///
/// let route = TcpRoute {
///     source: "10.0.0.1".parse()?,
///     target: "10.0.0.2".parse()?,
///     traffic_class: 2,
///     hop_limit: 64,
///     identification: 0,
/// };
/// let tcp = Tcp {
///     source_port: 49_152,
///     target_port: 5_000,
///     sequence: 1,
///     acknowledgement: 2,
///     flags: TcpFlags::ACK.with(TcpFlags::PSH),
///     window: 1_024,
///     urgent: 0,
///     options: TcpOptions { timestamps: Some((7, 6)), ..TcpOptions::default() },
/// };
/// let bytes = tcp_packet(None, &route, &tcp, b"hello");
/// let Frame::Tcp(packet) = Frame::parse_ip(&bytes)? else { panic!("a segment") };
/// assert_eq!((packet.tcp, packet.payload, packet.checksum_is_good), (tcp, &b"hello"[..], true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tcp_packet(ethernet: Option<&Ethernet>, route: &TcpRoute, tcp: &Tcp, payload: &[u8]) -> Vec<u8> {
    let segment_bytes = tcp.length() + payload.len();
    let ip = route.ip(segment_bytes);
    let link = ethernet.map_or(0, Ethernet::length);
    let mut bytes = vec![0; link + ip.length() + segment_bytes];
    if let Some(ethernet) = ethernet {
        ethernet.emit(&mut bytes);
    }
    ip.emit(&mut bytes[link..]);
    let segment = link + ip.length();
    tcp.emit(&mut bytes[segment..]);
    bytes[segment + tcp.length()..].copy_from_slice(payload);
    let checksum = checksum(&bytes[link..], &ip);
    put_u16(&mut bytes[segment..], field::CHECKSUM, checksum);
    bytes
}

/// Takes an IP packet of protocol 6 apart.
pub(crate) fn parse_packet(ethernet: Option<Ethernet>, bytes: &[u8]) -> Result<TcpPacket<'_>, Malformed> {
    let ip = Ip::parse(bytes)?;
    let segment = &bytes[ip.length()..ip.length() + ip.payload_length()];
    let (tcp, length) = Tcp::parse(segment)?;
    let checksum_is_good = checksum(bytes, &ip) == u16_at(segment, field::CHECKSUM);
    Ok(TcpPacket { ethernet, ip, tcp, payload: &segment[length..], checksum_is_good })
}

/// The checksum that belongs into a segment, whatever stands there now. RFC 9293, 3.1.
fn checksum(packet: &[u8], ip: &Ip) -> u16 {
    let (start, end) = (ip.length(), ip.length() + ip.payload_length());
    let addresses = match ip {
        Ip::V4(_) => start - 8..start,
        Ip::V6(_) => start - 32..start,
    };
    let segment = &packet[start..end];
    let found = u64::from(u16_at(segment, field::CHECKSUM));
    let mut total =
        sum(&packet[addresses]) + u64::from(TCP_PROTOCOL) + (end - start) as u64 + sum(segment) - found;
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !total as u16
}
