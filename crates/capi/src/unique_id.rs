//! What a program tells all of its ranks so that they can meet: an address, a port that this process holds, and a secret.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use railnet_core::{Fold, Rank};
use railnet_live::communicator::own_address;
use railnet_live::launch::{HeldPort, Launch, RendezvousAddress};
use railnet_live::rendezvous::Config;
use railnet_live::{Options, Secret};

use crate::failure::Failure;

/// Bytes of an id, as in NCCL.
pub const UNIQUE_ID_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"railnet1";
const SECRET: usize = 32;
/// The fields, one after the other: magic, number of the meeting, address, port, secret, check.
const NUMBER_AT: usize = MAGIC.len();
const ADDRESS_AT: usize = NUMBER_AT + 16;
const PORT_AT: usize = ADDRESS_AT + 16;
const SECRET_AT: usize = PORT_AT + 2;
const CHECK_AT: usize = SECRET_AT + SECRET;

/// `railnetUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; UNIQUE_ID_BYTES]);

/// What is in one.
struct Invitation {
    /// What tells it from others, and is no secret.
    number: [u8; 16],
    address: IpAddr,
    port: u16,
    secret: [u8; SECRET],
}

/// The ports of ids that were made here and not yet used.
static HELD: Mutex<BTreeMap<[u8; 16], HeldPort>> = Mutex::new(BTreeMap::new());

fn held() -> MutexGuard<'static, BTreeMap<[u8; 16], HeldPort>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UniqueId {
    /// A fresh one; its port is held until rank 0 has used it.
    pub(crate) fn fresh() -> Result<Self, Failure> {
        // How to meet does not depend on which rank this is.
        let address = match Config::from_env(&Launch::alone())?.bind {
            Some(address) => address,
            None => own_address(&Options::from_env()?)?,
        };
        let port = HeldPort::new(address)?;
        let mut number = [0; 16];
        let digits = Secret::fresh()?;
        number.copy_from_slice(&digits.as_bytes()[..16]);
        let mut secret = [0; SECRET];
        secret.copy_from_slice(Secret::fresh()?.as_bytes());
        let invitation = Invitation { number, address, port: port.port, secret };
        held().insert(number, port);
        Ok(invitation.write())
    }

    /// How a rank meets the others. Rank 0 listens at the port that was held for it, so it is in the process that made the id.
    pub(crate) fn config(&self, rank: u32, ranks: u32) -> Result<(Config, IdInUse), Failure> {
        let Invitation { number, address, port, secret } = Invitation::read(self)?;
        let in_use = IdInUse((rank == 0).then_some(number));
        if rank == 0 && !held().contains_key(&number) {
            return Err(Failure::usage(
                "rank 0 has to be in the process that called railnetGetUniqueId, and each id is for one communicator: call \
                 railnetGetUniqueId there, once for each, and send what it gives to the other ranks",
            ));
        }
        let address = RendezvousAddress::new(&address.to_string(), port);
        let job = format!("id {}", String::from_utf8_lossy(&number));
        let mut config = Config::from_env(&Launch::told(Rank(rank), ranks, address, job))?;
        if !config.secret.is_given() {
            config.secret = Secret::new(&secret);
        }
        config.is_port_held = true;
        Ok((config, in_use))
    }
}

/// An id that rank 0 meets the others with: when this is dropped, it is used up.
pub(crate) struct IdInUse(Option<[u8; 16]>);

impl Drop for IdInUse {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            held().remove(&number);
        }
    }
}

impl Invitation {
    fn write(&self) -> UniqueId {
        let mut bytes = [0; UNIQUE_ID_BYTES];
        let address = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        bytes[..NUMBER_AT].copy_from_slice(&MAGIC);
        bytes[NUMBER_AT..ADDRESS_AT].copy_from_slice(&self.number);
        bytes[ADDRESS_AT..PORT_AT].copy_from_slice(&address.octets());
        bytes[PORT_AT..SECRET_AT].copy_from_slice(&self.port.to_le_bytes());
        bytes[SECRET_AT..CHECK_AT].copy_from_slice(&self.secret);
        let check = check(&bytes[..CHECK_AT]);
        bytes[CHECK_AT..CHECK_AT + 8].copy_from_slice(&check.to_le_bytes());
        UniqueId(bytes)
    }

    fn read(UniqueId(bytes): &UniqueId) -> Result<Self, Failure> {
        let is_whole = bytes[..NUMBER_AT] == MAGIC
            && bytes[CHECK_AT..CHECK_AT + 8] == check(&bytes[..CHECK_AT]).to_le_bytes();
        if !is_whole {
            return Err(Failure::argument(format!(
                "commId is none that railnetGetUniqueId has made: all {UNIQUE_ID_BYTES} bytes of what it gave one rank have to reach \
                 the others"
            )));
        }
        let field =
            |from: usize| <[u8; 16]>::try_from(&bytes[from..from + 16]).expect("16 bytes are 16 bytes");
        let address = Ipv6Addr::from(field(ADDRESS_AT));
        let mut secret = [0; SECRET];
        secret.copy_from_slice(&bytes[SECRET_AT..CHECK_AT]);
        Ok(Self {
            number: field(NUMBER_AT),
            address: address.to_ipv4_mapped().map_or(IpAddr::V6(address), Ipv4Addr::into),
            port: u16::from_le_bytes([bytes[PORT_AT], bytes[PORT_AT + 1]]),
            secret,
        })
    }
}

/// Finds out damage, such as an id that was sent as text.
fn check(bytes: &[u8]) -> u64 {
    let mut fold = Fold::new();
    for byte in bytes {
        fold.push(u64::from(*byte));
    }
    fold.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invitation(address: &str) -> Invitation {
        let address = address.parse().expect("an address");
        Invitation { number: *b"0123456789abcdef", address, port: 29_500, secret: [b'7'; SECRET] }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["10.0.0.1", "127.0.0.1", "fd00::7"] {
            let read = Invitation::read(&invitation(text).write()).expect("it is whole");
            assert_eq!((read.address.to_string().as_str(), read.port), (text, 29_500));
            assert_eq!((read.number, read.secret), (*b"0123456789abcdef", [b'7'; SECRET]));
        }
    }

    #[test]
    fn any_byte_that_changes_is_found_out() {
        for index in 0..CHECK_AT + 8 {
            let mut id = invitation("10.0.0.1").write();
            id.0[index] ^= 1;
            let Err(failure) = Invitation::read(&id) else { panic!("byte {index} may be anything") };
            assert_eq!(failure.code, crate::codes::Code::InvalidArgument);
        }
    }
}
