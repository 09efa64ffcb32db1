//! Fields of messages: numbers, texts, blobs, lists.

use super::Malformed;

/// Parses fields one after the other, and never past the end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Refuses bytes that are left over.
    pub(crate) fn finish(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Field("message")) }
    }

    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Field(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let bytes = self.take(N, what)?;
        Ok(bytes.try_into().expect("as many as were taken"))
    }

    pub(crate) fn byte(&mut self, what: &'static str) -> Result<u8, Malformed> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn number(&mut self, what: &'static str) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn long(&mut self, what: &'static str) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn blob(&mut self, what: &'static str, limit: usize) -> Result<Vec<u8>, Malformed> {
        let length = self.number(what)? as usize;
        if length > limit {
            return Err(Malformed::Field(what));
        }
        Ok(self.take(length, what)?.to_vec())
    }

    pub(crate) fn text(&mut self, what: &'static str, limit: usize) -> Result<String, Malformed> {
        let bytes = self.blob(what, limit)?;
        String::from_utf8(bytes).map_err(|_| Malformed::Field(what))
    }

    /// A list, preceded by its length. The length is believed only as far as there are bytes: an item has at least one.
    pub(crate) fn list<T>(
        &mut self,
        what: &'static str,
        item: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.number(what)? as usize;
        if length > self.rest.len() {
            return Err(Malformed::Field(what));
        }
        (0..length).map(|_| item(self)).collect()
    }
}

pub(crate) fn put_blob(out: &mut Vec<u8>, blob: &[u8]) {
    out.extend((blob.len() as u32).to_le_bytes());
    out.extend(blob);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_blob(out, text.as_bytes());
}

pub(crate) fn put_ranks(out: &mut Vec<u8>, ranks: &[u32]) {
    out.extend((ranks.len() as u32).to_le_bytes());
    for rank in ranks {
        out.extend(rank.to_le_bytes());
    }
}
