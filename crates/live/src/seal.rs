//! Message authentication codes (MACs) of a stream: each covers its sequence number and the key, so that nothing can be
//! changed, left out, repeated or inserted.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// A key of SipHash.
pub(crate) type Key = [u8; 16];

/// One direction of a stream: SipHash-2-4 with 128 bits (see [`crate::roce::Guard`] for why that one).
#[derive(Clone)]
pub(crate) struct Seal {
    hasher: SipHasher24,
    counter: u64,
}

/// Both directions of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Seals {
    pub(crate) send: Seal,
    pub(crate) receive: Seal,
}

impl Seal {
    /// Bytes of a MAC.
    pub(crate) const LENGTH: usize = 16;

    pub(crate) fn new(key: &Key) -> Self {
        Self { hasher: SipHasher24::new_with_key(key), counter: 0 }
    }

    /// The MAC of the next message, which consists of these pieces. Their lengths must follow from their content.
    pub(crate) fn code(&mut self, pieces: &[&[u8]]) -> [u8; Self::LENGTH] {
        let mut hasher = self.hasher;
        hasher.write(&self.counter.to_le_bytes());
        self.counter += 1;
        for piece in pieces {
            hasher.write(piece);
        }
        hasher.finish128().as_bytes()
    }

    /// Whether that is the MAC of the next message, in constant time.
    pub(crate) fn is_code(&mut self, code: &[u8], pieces: &[&[u8]]) -> bool {
        let expected = self.code(pieces);
        let Ok(code) = <[u8; Self::LENGTH]>::try_from(code) else { return false };
        u128::from_ne_bytes(code) ^ u128::from_ne_bytes(expected) == 0
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seal({} so far)", self.counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_good_once_in_its_place_and_under_its_key() {
        let (mut sender, mut receiver) = (Seal::new(&[1; 16]), Seal::new(&[1; 16]));
        let (first, second) = (sender.code(&[b"one"]), sender.code(&[b"t", b"wo"]));
        assert!(!receiver.clone().is_code(&second, &[b"two"]), "one was left out");
        assert!(!receiver.clone().is_code(&first, &[b"One"]));
        assert!(!receiver.clone().is_code(&first[..15], &[b"one"]));
        assert!(!Seal::new(&[2; 16]).is_code(&first, &[b"one"]));
        assert!(receiver.is_code(&first, &[b"one"]));
        assert!(!receiver.clone().is_code(&first, &[b"one"]), "it came before");
        assert!(receiver.is_code(&second, &[b"two"]));
    }
}
