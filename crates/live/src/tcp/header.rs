//! The header of a slice in a stream.

use std::io;

use railnet_coll::machine::Mark;

use crate::seal::Seal;
use crate::transport::limits::TCP_SLOT as SLOT;

/// Bytes of the header: length and operation tag. On authenticated streams a MAC follows.
pub(super) const HEADER: usize = 16;
pub(super) const SEALED_HEADER: usize = HEADER + Seal::LENGTH;
/// A flag in the length: the sender's kernel may hold further slices until this one is acknowledged.
pub(super) const HELD: u64 = 1 << 63;
/// Bytes before the data of a slice.
pub(super) fn header_bytes(seal: Option<&Seal>) -> usize {
    if seal.is_some() { SEALED_HEADER } else { HEADER }
}

/// The part of the header that the MAC covers: not the flag, which may be set after the MAC was made.
pub(super) fn covered(header: &[u8]) -> [u8; HEADER] {
    let mut covered: [u8; HEADER] = *header.first_chunk().expect("a header begins with length and mark");
    covered[7] &= !((HELD >> 56) as u8);
    covered
}

/// Checks the MAC of a slice.
pub(super) fn check(seal: &mut Seal, header: &[u8], data: &[u8]) -> io::Result<()> {
    match seal.is_code(&header[HEADER..], &[&covered(header), data]) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a slice was forged or damaged on its way: its code is wrong",
        )),
    }
}

/// The header of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) mark: Mark,
    pub(super) length: usize,
    /// Whether further slices may be held until this one is acknowledged.
    pub(super) is_held: bool,
}

impl Header {
    /// Parses the header, once all of its bytes are there.
    pub(super) fn read(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
        let word = |at: usize| {
            header[at..at + 8].iter().rev().fold(0, |value: u64, byte| value << 8 | u64::from(*byte))
        };
        let (length, mark, is_held) = (word(0) & !HELD, word(8), word(0) & HELD != 0);
        if length > SLOT as u64 {
            let text = format!("a slice of {length} bytes was announced, and {SLOT} is the most");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Some(Self { mark: Mark(mark), length: length as usize, is_held }))
    }
}
