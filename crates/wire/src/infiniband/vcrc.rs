//! The variant CRC (VCRC): the last two bytes of a packet on an InfiniBand link, which every switch computes anew. IBTA volume 1, 7.8.2.

/// Bytes of the VCRC.
pub const VCRC_LENGTH: usize = 2;

/// x¹⁶ + x¹² + x³ + x + 1 (0x100b), with the power 0 in the highest bit.
const GENERATOR: u16 = 0xd008;

/// What a byte adds.
static TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u16, 0);
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ GENERATOR } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The VCRC over all bytes in front of it, LRH to ICRC. It is stored with its lowest byte first, as the ICRC is.
pub fn vcrc(bytes: &[u8]) -> u16 {
    !bytes.iter().fold(0xffff, |crc: u16, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}
