//! What stands before the data of a slice in a stream.

use std::io;

use railnet_coll::machine::Mark;

use crate::seal::Seal;
use crate::transport::limits::TCP_SLOT as SLOT;

/// Bytes before the data of a slice: its length, and its mark. On streams that are authenticated a code follows.
pub(super) const HEADER: usize = 16;
pub(super) const SEALED_HEADER: usize = HEADER + Seal::LENGTH;
/// Set in the length of a slice behind which the kernel may hold others back until this one is acknowledged.
pub(super) const PATIENT: u64 = 1 << 63;
/// Bytes before the data of a slice, by whether it is authenticated.
pub(super) fn header_bytes(seal: Option<&Seal>) -> usize {
    if seal.is_some() { SEALED_HEADER } else { HEADER }
}

/// What the code of a slice covers of its header: not the hint that it may be set after the code was made.
pub(super) fn covered(header: &[u8]) -> [u8; HEADER] {
    let mut covered: [u8; HEADER] = *header.first_chunk().expect("a header begins with length and mark");
    covered[7] &= !((PATIENT >> 56) as u8);
    covered
}

/// Whether a slice is what the other end sent next.
pub(super) fn check(seal: &mut Seal, header: &[u8], data: &[u8]) -> io::Result<()> {
    match seal.is_code(&header[HEADER..], &[&covered(header), data]) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a slice was forged or damaged on its way: its code is wrong",
        )),
    }
}

/// What stands before the data of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) mark: Mark,
    pub(super) length: usize,
    /// Whether what follows may be held back until this is acknowledged.
    pub(super) is_patient: bool,
}

impl Header {
    /// Of a slice that begins with these bytes, once they are enough for it.
    pub(super) fn read(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
        let word = |at: usize| {
            header[at..at + 8].iter().rev().fold(0, |value: u64, byte| value << 8 | u64::from(*byte))
        };
        let (length, mark, is_patient) = (word(0) & !PATIENT, word(8), word(0) & PATIENT != 0);
        if length > SLOT as u64 {
            let text = format!("a slice of {length} bytes was announced, and {SLOT} is the most");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Some(Self { mark: Mark(mark), length: length as usize, is_patient }))
    }
}
