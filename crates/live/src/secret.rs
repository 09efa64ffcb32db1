//! The secret that all ranks of a job know, and proofs of knowing it that do not reveal it.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::message::{Nonce, Proof};
use crate::seal::{Key, Seal, Seals};

/// The secret of a job. It is never printed and never sent.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

/// Who proves, so that the proof of one end cannot be reflected to the other.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// Rank 0, which listens.
    Hub,
    /// A rank that connects.
    Caller { rank: u32, world_size: u32 },
}

impl Secret {
    /// From these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// A fresh random one, as hexadecimal digits.
    pub fn fresh() -> std::io::Result<String> {
        Ok(format!("{:032x}", u128::from_le_bytes(random()?)))
    }

    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        !self.0.is_empty()
    }

    pub(crate) fn prove(&self, side: Side, caller: &Nonce, hub: &Nonce) -> Proof {
        self.code(side, caller, hub).finalize().into_bytes().into()
    }

    /// Whether a proof is right, in constant time.
    pub(crate) fn is_proof(&self, proof: &Proof, side: Side, caller: &Nonce, hub: &Nonce) -> bool {
        self.code(side, caller, hub).verify_slice(proof).is_ok()
    }

    /// The MACs of a connection between rank 0 and another rank, for the end that is rank 0 or not; `None` without a secret.
    pub(crate) fn seals_of(&self, is_hub: bool, caller: &Nonce, hub: &Nonce) -> Option<Seals> {
        let key = |purpose: &[u8]| Seal::new(&self.key_of(purpose, &[caller, hub]));
        let (there, back) = (key(b"railnet to rank 0  "), key(b"railnet from rank 0"));
        let (send, receive) = if is_hub { (back, there) } else { (there, back) };
        self.is_given().then_some(Seals { send, receive })
    }

    /// An HMAC over some bytes, for one purpose. All parts but the last have lengths that follow from the purpose.
    pub(crate) fn code_of(&self, purpose: &[u8], parts: &[&[u8]]) -> Proof {
        self.hmac(purpose, parts).finalize().into_bytes().into()
    }

    /// A key derived for one purpose. All parts but the last have lengths that follow from the purpose.
    pub(crate) fn key_of(&self, purpose: &[u8], parts: &[&[u8]]) -> Key {
        *self.code_of(purpose, parts).first_chunk().expect("a code is longer than a key")
    }

    /// Whether an HMAC is right, in constant time.
    pub(crate) fn is_code(&self, code: &Proof, purpose: &[u8], parts: &[&[u8]]) -> bool {
        self.hmac(purpose, parts).verify_slice(code).is_ok()
    }

    fn hmac(&self, purpose: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        code.update(purpose);
        for part in parts {
            code.update(part);
        }
        code
    }

    fn code(&self, side: Side, caller: &Nonce, hub: &Nonce) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        code.update(b"railnet rendezvous");
        match side {
            Side::Hub => code.update(&[0]),
            Side::Caller { rank, world_size } => {
                code.update(&[1]);
                code.update(&rank.to_le_bytes());
                code.update(&world_size.to_le_bytes());
            }
        }
        code.update(caller);
        code.update(hub);
        code
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_given() { "Secret(given)" } else { "Secret(none)" })
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    let mut done = 0;
    while done < N {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_side_its_rank_and_its_numbers_only() {
        let secret = Secret::new(b"apple");
        let (first, second) = ([1; 16], [2; 16]);
        let side = Side::Caller { rank: 3, world_size: 4 };
        let proof = secret.prove(side, &first, &second);
        assert!(secret.is_proof(&proof, side, &first, &second));
        for other in
            [Side::Hub, Side::Caller { rank: 2, world_size: 4 }, Side::Caller { rank: 3, world_size: 5 }]
        {
            assert!(!secret.is_proof(&proof, other, &first, &second));
        }
        assert!(!secret.is_proof(&proof, side, &second, &first));
        assert!(!Secret::new(b"pear").is_proof(&proof, side, &first, &second));
        assert!(!Secret::default().is_proof(&proof, side, &first, &second));
    }

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new(b"apple")), "Secret(given)");
    }
}
