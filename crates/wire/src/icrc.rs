//! The invariant CRC: the last four bytes of every RoCEv2 packet.
//!
//! It is the CRC-32 of Ethernet and zlib over eight bytes of ones (where native InfiniBand has its local route
//! header), the IP header, the UDP header, and everything after it up to the ICRC itself, with all that a router may
//! change set to ones: traffic class, hop limit, IPv4 checksum, IPv6 flow label, UDP checksum, and the byte of
//! the BTH that holds the congestion bits (IBTA annex A17). It is stored with its lowest byte first. In a packet with
//! Railnet's extension header, the telemetry that switches write on the way is set to ones too.
//!
//! Without IP, on InfiniBand links and in RoCE v1, it covers the LRH but for the virtual lane, or ones and the GRH where the packet has
//! one (IBTA volume 1, 7.8.1).
//!
//! The IPv4 ID is covered. A UDP socket does not see the ID of what it receives, so [`recover_identification`]
//! finds it: a CRC is linear, and the difference between the ICRC of a packet and that of the same packet with
//! ID 0 is the ID as a polynomial, times a power of x that follows from the length alone.

use crc32fast::Hasher;

use crate::infiniband::{Grh, Lrh};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::malformed::{Layer, Malformed};
use crate::network::{Ip, Network};
use crate::transport::{Bth, extension, pad_length};
use crate::udp::Udp;

/// Bytes of the ICRC.
pub const ICRC_LENGTH: usize = 4;

/// Segments of one send: Linux takes so many on every kernel that can segment.
pub const SEGMENTS_MAX: u16 = 64;

/// The CRC of the eight bytes of ones that stand for the local route header.
const CRC_OF_ROUTE_HEADER: u32 = 0x2144_df1c;

/// The largest IP, UDP and base transport headers together.
const HEADERS_MAX: usize = Ipv6::LENGTH + Udp::LENGTH + Bth::LENGTH;

/// The ICRC of a whole packet: from the first byte of its IP header to the last before its ICRC.
pub fn of_packet(packet: &[u8]) -> Result<u32, Malformed> {
    let is_ipv6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
    let (layer, ip_length) = if is_ipv6 { (Layer::Ipv6, Ipv6::LENGTH) } else { (Layer::Ipv4, Ipv4::LENGTH) };
    let needed = ip_length + Udp::LENGTH + Bth::LENGTH;
    let Some((front, rest)) = packet.split_at_checked(needed) else {
        return Err(Malformed::Truncated { layer, needed, found: packet.len() });
    };
    let mut headers = [0; HEADERS_MAX];
    headers[..needed].copy_from_slice(front);
    mask(&mut headers[..needed], ip_length);
    Ok(finish(&headers[..needed], rest))
}

/// The ICRC of a packet that lies in pieces: its addressing, its transport headers as bytes, and its payload, to which
/// the padding is added here.
///
/// # Panics
/// When `transport` is shorter than a BTH.
pub fn of_parts(network: &Network, transport: &[u8], payload: &[&[u8]]) -> u32 {
    let payload_bytes = payload.iter().map(|slice| slice.len()).sum();
    let pad = pad_length(payload_bytes);
    let (base, extended) = transport.split_at(Bth::LENGTH);
    let datagram_bytes = transport.len() + payload_bytes + pad + ICRC_LENGTH;
    let (headers, length) = masked(network, base, datagram_bytes);
    let mut hasher = start(&headers[..length], extended);
    for slice in payload {
        hasher.update(slice);
    }
    hasher.update(&[0; 3][..pad]);
    hasher.finalize()
}

/// The ICRC of a UDP payload, BTH to padding, that travels with this addressing.
///
/// # Panics
/// When `covered` is shorter than a BTH. More than a UDP payload can hold is the caller's mistake as well.
#[inline]
pub fn of_datagram(network: &Network, covered: &[u8]) -> u32 {
    let (base, rest) = covered.split_at(Bth::LENGTH);
    let (headers, length) = masked(network, base, covered.len() + ICRC_LENGTH);
    finish(&headers[..length], rest)
}

/// What the payload of a full packet adds to its ICRC, whatever stands in front of it.
///
/// A CRC is linear, so that a driver can find it while it copies the payload, before there are headers.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSum {
    crc: u32,
    behind: &'static Shift,
}

impl PayloadSum {
    /// That of a payload of `length` bytes, from bytes that are the same to a CRC that starts with 0: the payload itself,
    /// or what is left of it when pieces were folded. `None` where no full packet has that length, by
    /// [`PayloadSum::is_for`].
    #[inline]
    pub fn of(length: usize, bytes: &[u8]) -> Option<Self> {
        let behind = shift_by(length)?;
        let mut hasher = Hasher::new_with_initial(!0);
        hasher.update(bytes);
        Some(Self { crc: !hasher.finalize(), behind })
    }

    /// Whether payloads of `length` bytes have one: 1, 2 and 4 KiB, as full packets have.
    #[inline]
    pub fn is_for(length: usize) -> bool {
        shift_by(length).is_some()
    }

    /// The bytes of the payload.
    pub(crate) fn length(self) -> usize {
        self.behind.bytes
    }
}

/// What CRCs have come to in front of the BTH, by IPv4 ID: packets of one length to one peer differ in nothing else up to
/// there, so that a sender finds it once for many.
#[derive(Clone, Debug, Default)]
pub struct Fronts {
    /// The addressing of those packets, with ID 0, and the bytes of their UDP payload.
    of: Option<(Network, usize)>,
    /// For the IDs from 0 on, as far as they were asked for.
    crcs: Vec<u32>,
}

impl Fronts {
    #[inline]
    fn crc(&mut self, network: &Network, datagram_bytes: usize) -> u32 {
        let of = Some((Network { identification: 0, ..*network }, datagram_bytes));
        if self.of != of {
            self.of = of;
            self.crcs.clear();
        }
        let known = self.crcs.get(usize::from(network.identification));
        known.copied().unwrap_or_else(|| self.find(network, datagram_bytes))
    }

    #[cold]
    fn find(&mut self, network: &Network, datagram_bytes: usize) -> u32 {
        let front = |identification| {
            let network = Network { identification, ..*network };
            let (headers, length) = masked(&network, &[0; Bth::LENGTH], datagram_bytes);
            let mut hasher = Hasher::new_with_initial(CRC_OF_ROUTE_HEADER);
            hasher.update(&headers[..length - Bth::LENGTH]);
            !hasher.finalize()
        };
        let known = self.crcs.len() as u16;
        let most = network.identification.min(SEGMENTS_MAX - 1);
        self.crcs.extend((known..=most).map(front));
        front(network.identification)
    }
}

/// The ICRC of a packet without padding: its addressing, its transport headers as bytes, and what its payload adds.
///
/// # Panics
/// When `transport` is shorter than a BTH.
#[inline]
pub fn of_sum(
    fronts: &mut Fronts,
    network: &Network,
    transport: &[u8],
    payload: PayloadSum,
    trailer: &[u8],
) -> u32 {
    let (base, extended) = transport.split_at(Bth::LENGTH);
    let datagram_bytes = transport.len() + payload.behind.bytes + trailer.len() + ICRC_LENGTH;
    // Within a CRC all is complemented.
    let crc = if extended.is_empty() {
        let mut masked = [0; Bth::LENGTH];
        masked.copy_from_slice(base);
        Bth::mask(&mut masked);
        let (words, _) = masked.as_chunks();
        let front = fronts.crc(network, datagram_bytes);
        words.iter().fold(front, |crc, word| OVER_A_WORD.apply(crc ^ u32::from_le_bytes(*word)))
    } else {
        let (headers, length) = masked(network, base, datagram_bytes);
        !start(&headers[..length], extended).finalize()
    };
    let crc = !(payload.behind.apply(crc) ^ payload.crc);
    if trailer.is_empty() {
        return crc;
    }
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(trailer);
    hasher.finalize()
}

/// Which IPv4 IDs a receiver takes for true when it cannot see the real one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identification {
    /// The one in [`Network`].
    Known,
    /// Any from 0 to this one: with few of them the check stays nearly as sharp as 32 bits allow. Railnet sends
    /// 0 or the index of a segment of one send, see [`Identification::SEGMENTS`].
    AtMost(u16),
    /// Any at all: what is left is a check of 16 bits. For peers that number their packets.
    Any,
}

impl Identification {
    /// What Railnet sends: Linux gives the segments of one send the IDs 0, 1, 2, and so on.
    pub const SEGMENTS: Self = Self::AtMost(SEGMENTS_MAX - 1);
}

/// Checks a UDP payload, BTH to ICRC, against its ICRC. The answer is the IPv4 ID with which it is right (over IPv6,
/// and for a known one, that of `network`), or `None` where it is wrong. Where others will do, that of `network` is a
/// guess, and a right one makes the check cheaper.
///
/// # Panics
/// When `datagram` is shorter than a BTH and an ICRC.
pub fn verify(network: &Network, datagram: &[u8], accepted: Identification) -> Option<u16> {
    let (covered, found) = datagram.split_at(datagram.len() - ICRC_LENGTH);
    let found = u32::from_le_bytes(found.try_into().expect("split at the length of an ICRC"));
    let most = match accepted {
        Identification::Known => None,
        _ if !network.is_ipv4() => None,
        Identification::AtMost(most) => Some(most),
        Identification::Any => Some(u16::MAX),
    };
    let Some(most) = most else {
        return (of_datagram(network, covered) == found).then_some(network.identification);
    };
    // A CRC is linear: what is recovered is how the ID differs from the one that `network` guesses.
    let difference = of_datagram(network, covered) ^ found;
    let id = recover_identification(difference, datagram.len())? ^ network.identification;
    (id <= most).then_some(id)
}

/// The check for a receiver that does not see the IPv4 ID: [`verify`], with any ID up to `most`.
pub fn verify_unknown_id(network: &Network, datagram: &[u8], most: u16) -> Option<u16> {
    verify(network, datagram, Identification::AtMost(most))
}

/// The IPv4 ID that explains a difference between the ICRC of a packet and the one computed with ID 0, where there
/// is such an ID. `udp_payload_bytes` are those from BTH to ICRC.
pub fn recover_identification(difference: u32, udp_payload_bytes: usize) -> Option<u16> {
    if difference == 0 {
        return Some(0);
    }
    // A CRC shifts what it has read by eight powers of x for each byte that follows, and by 32 more at the end.
    // The ICRC itself is not read, and its four bytes are those 32 powers. Undone, only the ID's 16 bits are left.
    let shifts = Ipv4::AFTER_IDENTIFICATION + Udp::LENGTH + udp_payload_bytes;
    let polynomial = multiply(difference, inverse_shift(shifts)?);
    // Bit 31 is the power 0, so the ID's two bytes stand in the upper half, the first of them lower.
    let (id, higher_powers) = (polynomial >> 16, polynomial as u16);
    (higher_powers == 0).then_some((id as u16).swap_bytes())
}

/// The masked IP, UDP and base transport headers of a packet, and how many bytes they are.
#[inline]
fn masked(network: &Network, base: &[u8], datagram_bytes: usize) -> ([u8; HEADERS_MAX], usize) {
    let mut headers = [0; HEADERS_MAX];
    let ip: Ip = network.ip(datagram_bytes);
    let ip_length = ip.length();
    match ip {
        // Its checksum is masked: no need to find it.
        Ip::V4(header) => headers[..Ipv4::LENGTH].copy_from_slice(&header.without_checksum()),
        Ip::V6(_) => ip.emit(&mut headers),
    }
    headers[ip_length..][..Udp::LENGTH].copy_from_slice(&network.udp(datagram_bytes).to_bytes());
    let length = ip_length + Udp::LENGTH + Bth::LENGTH;
    headers[ip_length + Udp::LENGTH..length].copy_from_slice(base);
    mask(&mut headers[..length], ip_length);
    (headers, length)
}

#[inline]
fn mask(headers: &mut [u8], ip_length: usize) {
    if ip_length == Ipv4::LENGTH {
        Ipv4::mask(headers);
    } else {
        Ipv6::mask(headers);
    }
    Udp::mask(&mut headers[ip_length..]);
    Bth::mask(&mut headers[ip_length + Udp::LENGTH..]);
}

/// The ICRC of a packet with this GRH, whose variable fields are ones, over the bytes from BTH to padding. Ones stand for its LRH,
/// which routers replace.
///
/// # Panics
/// When `covered` is shorter than a BTH.
pub(crate) fn of_global(masked_grh: &[u8; Grh::LENGTH], covered: &[u8]) -> u32 {
    behind(Hasher::new_with_initial(CRC_OF_ROUTE_HEADER), masked_grh, covered)
}

/// The same for a packet within its subnet, whose LRH is covered but for the virtual lane.
///
/// # Panics
/// When `covered` is shorter than a BTH.
pub(crate) fn of_local(masked_lrh: [u8; Lrh::LENGTH], covered: &[u8]) -> u32 {
    behind(Hasher::new(), &masked_lrh, covered)
}

fn behind(mut hasher: Hasher, masked_route: &[u8], covered: &[u8]) -> u32 {
    let (base, rest) = covered.split_at(Bth::LENGTH);
    let mut masked: [u8; Bth::LENGTH] = base.try_into().expect("split at its length");
    Bth::mask(&mut masked);
    hasher.update(masked_route);
    read(hasher, &masked, rest).finalize()
}

/// Reads the masked headers up to the BTH, and what follows it.
#[inline]
fn start(masked_headers: &[u8], rest: &[u8]) -> Hasher {
    read(Hasher::new_with_initial(CRC_OF_ROUTE_HEADER), masked_headers, rest)
}

#[inline]
fn read(mut hasher: Hasher, masked_headers: &[u8], rest: &[u8]) -> Hasher {
    hasher.update(masked_headers);
    let base = &masked_headers[masked_headers.len() - Bth::LENGTH..];
    match extension::masked(base, rest) {
        None => hasher.update(rest),
        Some(front) => {
            hasher.update(&front);
            hasher.update(&rest[front.len()..]);
        }
    }
    hasher
}

#[inline]
fn finish(masked_headers: &[u8], rest: &[u8]) -> u32 {
    start(masked_headers, rest).finalize()
}

/// The generator polynomial of CRC-32, like all polynomials here with the power 0 in the highest bit.
const GENERATOR: u32 = 0xedb8_8320;

const ONE: u32 = 1 << 31;

/// The product of two polynomials modulo the generator.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = if b & 1 != 0 { b >> 1 ^ GENERATOR } else { b >> 1 };
    }
    product
}

/// `x` to the power of minus eight times `bytes`; `None` beyond what IP packets can have.
fn inverse_shift(bytes: usize) -> Option<u32> {
    let high = INVERSE_SHIFTS_HIGH.get(bytes >> 8)?;
    Some(multiply(*high, INVERSE_SHIFTS_LOW[bytes & 0xff]))
}

/// Inverse shifts by 0 to 255 bytes.
static INVERSE_SHIFTS_LOW: [u32; 256] = powers(inverse_of_a_byte());

/// Inverse shifts by 0 to 255 times 256 bytes.
static INVERSE_SHIFTS_HIGH: [u32; 256] = {
    let last = powers(inverse_of_a_byte())[255];
    powers(multiply(last, inverse_of_a_byte()))
};

const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut at = 1;
    while at < table.len() {
        table[at] = multiply(table[at - 1], base);
        at += 1;
    }
    table
}

/// One divided by `x` to the power of 8.
const fn inverse_of_a_byte() -> u32 {
    let mut polynomial = ONE;
    let mut shift = 0;
    while shift < 8 {
        // Undoes one step of multiplication by x: the generator's own highest bit tells whether it was subtracted.
        polynomial = if polynomial & ONE != 0 { (polynomial ^ GENERATOR) << 1 | 1 } else { polynomial << 1 };
        shift += 1;
    }
    polynomial
}

/// What becomes of a CRC when so many bytes of zeros follow, by each of its bytes.
#[derive(Debug)]
struct Shift {
    bytes: usize,
    table: [[u32; 256]; 4],
}

impl Shift {
    const fn new(bytes: usize) -> Self {
        // Squaring doubles the power: lengths are powers of two.
        let (mut factor, mut shifted) = (ONE >> 8, 1);
        while shifted < bytes {
            factor = multiply(factor, factor);
            shifted *= 2;
        }
        assert!(shifted == bytes, "a power of two");
        let mut table = [[0; 256]; 4];
        let mut at = 0;
        while at < 4 * 256 {
            table[at / 256][at % 256] = multiply(((at % 256) << (at / 256 * 8)) as u32, factor);
            at += 1;
        }
        Self { bytes, table }
    }

    #[inline]
    fn apply(&self, crc: u32) -> u32 {
        let [a, b, c, d] = crc.to_le_bytes().map(usize::from);
        self.table[0][a] ^ self.table[1][b] ^ self.table[2][c] ^ self.table[3][d]
    }
}

/// A CRC with a word added to it that becomes one over both.
static OVER_A_WORD: Shift = Shift::new(4);

static SHIFTS: [Shift; 3] = [Shift::new(4096), Shift::new(2048), Shift::new(1024)];

#[inline]
fn shift_by(bytes: usize) -> Option<&'static Shift> {
    SHIFTS.iter().find(|shift| shift.bytes == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::Gid;
    use std::net::Ipv4Addr;

    fn network(identification: u16) -> Network {
        Network {
            source: Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1)),
            target: Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 2)),
            source_port: 0xc123,
            target_port: crate::udp::ROCE_PORT,
            traffic_class: 2,
            hop_limit: 64,
            identification,
            flow_label: 0,
        }
    }

    #[test]
    fn the_start_value_is_the_crc_of_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), CRC_OF_ROUTE_HEADER);
    }

    #[test]
    fn every_identification_is_recovered_and_a_limit_is_kept() {
        for id in (0..=u16::MAX).step_by(7).chain([u16::MAX]) {
            let length = 12 + usize::from(id % 61) * 37 % 4200 / 4 * 4;
            let mut datagram = vec![0x5a; length];
            let crc = of_datagram(&network(id), &datagram);
            datagram.extend(crc.to_le_bytes());
            assert_eq!(verify(&network(0), &datagram, Identification::Any), Some(id));
            assert_eq!(verify(&network(id), &datagram, Identification::Known), Some(id));
            assert_eq!(verify(&network(id ^ 0x1234), &datagram, Identification::Any), Some(id));
            let bounded = verify(&network(9), &datagram, Identification::SEGMENTS);
            assert_eq!(bounded, (id <= 63).then_some(id));
        }
    }

    #[test]
    fn the_sum_of_a_payload_makes_the_icrc_of_the_whole() {
        let mut fronts = Fronts::default();
        for length in [0, 4, 512, 1024, 1028, 2048, 4092, 4096, 8192] {
            let payload: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            let sum = PayloadSum::of(length, &payload);
            assert_eq!(sum.is_some(), PayloadSum::is_for(length));
            assert_eq!(sum.is_some(), [1024, 2048, 4096].contains(&length), "{length} bytes");
            for headers in [Bth::LENGTH, 28] {
                let transport: Vec<u8> = (0..headers as u8).map(|at| at ^ 0x35).collect();
                let whole = [&transport[..], &payload].concat();
                // What is remembered of one must not serve for another.
                for id in [5, 0, 6, 5, 63, 64, u16::MAX, 5] {
                    for network in [network(id), Network { target_port: 5000, ..network(id) }] {
                        let found = sum.map(|sum| of_sum(&mut fronts, &network, &transport, sum, &[]));
                        assert_eq!(found, sum.map(|_| of_datagram(&network, &whole)));
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_have_the_icrc_of_the_whole() {
        let transport = [7; 28];
        for length in 0..9 {
            let payload: Vec<u8> = (1..=length).collect();
            let mut whole = [&transport[..], &payload].concat();
            whole.resize(whole.len().next_multiple_of(4), 0);
            let (front, back) = payload.split_at(payload.len() / 2);
            assert_eq!(of_parts(&network(5), &transport, &[front, back]), of_datagram(&network(5), &whole));
        }
    }
}
