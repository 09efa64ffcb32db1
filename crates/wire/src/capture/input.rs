//! A reader that knows how far it is, and numbers in either byte order.

use std::io::{BufReader, Read};

use super::CaptureError;

/// The order of the bytes of numbers in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    pub(super) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(bytes),
            Self::Little => u64::from_le_bytes(bytes),
        }
    }
}

#[derive(Debug)]
pub(super) struct Input<R> {
    read: BufReader<R>,
    offset: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(read: R) -> Self {
        Self { read: BufReader::new(read), offset: 0 }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next `N` bytes; `None` where the file ends right before them.
    pub(super) fn array_or_end<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<Option<[u8; N]>, CaptureError> {
        let mut bytes = Vec::with_capacity(N);
        match self.fill(N, &mut bytes)? {
            0 => Ok(None),
            _ => match bytes.try_into() {
                Ok(array) => Ok(Some(array)),
                Err(_) => Err(self.truncated(what)),
            },
        }
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CaptureError> {
        self.array_or_end(what)?.ok_or_else(|| self.truncated(what))
    }

    /// The next `length` bytes. Memory grows with what is there, not with what a length field promises.
    pub(super) fn bytes(&mut self, length: usize, what: &'static str) -> Result<Vec<u8>, CaptureError> {
        let mut bytes = Vec::new();
        if self.fill(length, &mut bytes)? == length { Ok(bytes) } else { Err(self.truncated(what)) }
    }

    fn fill(&mut self, length: usize, bytes: &mut Vec<u8>) -> Result<usize, CaptureError> {
        let read = (&mut self.read).take(length as u64).read_to_end(bytes);
        let count = read.map_err(|source| CaptureError::Read { offset: self.offset, source })?;
        self.offset += count as u64;
        Ok(count)
    }

    fn truncated(&self, what: &'static str) -> CaptureError {
        CaptureError::Truncated { offset: self.offset, what }
    }
}
