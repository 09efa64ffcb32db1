//! How the two ends of a connection tell each other their queue pairs: over a stream of its own, which is closed after it.
//!
//! ```text
//!   sender                         receiver
//!     ── greeting, handle ──────▶    taken when the receiver's machine asks for the connection
//!     ◀───────────── handle ──
//!   connects, and says so
//!     ── ready ─────────────────▶  connects, and asks for data
//! ```
//!
//! Nobody waits in it: each step is taken when what it needs has come. The receiver asks for nothing before the sender
//! can answer, so that nothing has to be sent again.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use railnet_coll::conduit::net::Handle;
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::{Key, Remote};

use crate::message::Malformed;
use crate::message::fields::Reader;
use crate::seal::{Seal, Seals};
use crate::tcp::Stream;

/// What a handle begins with.
const MAGIC: [u8; 4] = *b"RNH1";
/// The most queue pairs of a connection.
pub(super) const QUEUE_PAIRS: usize = 8;
/// Bytes of a handle.
pub(crate) const LENGTH: usize = 4 + 1 + 1 + 4 + 8 + 4 + 4 * QUEUE_PAIRS;
/// What a sender says when it is connected.
const READY: u8 = 1;

/// A handle as bytes.
pub(crate) fn write(handle: &Handle) -> [u8; LENGTH] {
    assert!(handle.queue_pairs.len() <= QUEUE_PAIRS, "a connection has few queue pairs");
    let mut out = Vec::with_capacity(LENGTH);
    out.extend(MAGIC);
    out.push(u8::from(handle.ring.is_some()));
    out.push(handle.queue_pairs.len() as u8);
    out.extend(handle.psn.value().to_le_bytes());
    let ring = handle.ring.unwrap_or(Remote { address: 0, key: Key(0) });
    out.extend(ring.address.to_le_bytes());
    out.extend(ring.key.0.to_le_bytes());
    for number in &handle.queue_pairs {
        out.extend(number.value().to_le_bytes());
    }
    out.resize(LENGTH, 0);
    out.try_into().expect("it was made that long")
}

/// A handle from its bytes.
pub(crate) fn read(bytes: &[u8]) -> Result<Handle, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.array("handle")? != MAGIC {
        return Err(Malformed::Field("handle"));
    }
    let has_ring = reader.byte("ring")?;
    let count = usize::from(reader.byte("queue pairs")?);
    let psn = Psn::new(reader.number("sequence number")?);
    let (address, key) = (reader.long("ring")?, Key(reader.number("ring")?));
    let mut numbers = [0; QUEUE_PAIRS];
    for number in &mut numbers {
        *number = reader.number("queue pair")?;
    }
    reader.finish()?;
    if count == 0 || count > QUEUE_PAIRS || has_ring > 1 {
        return Err(Malformed::Field("handle"));
    }
    let queue_pairs = numbers.into_iter().take(count).map(QueuePairNumber::new).collect();
    Ok(Handle { queue_pairs, psn, ring: (has_ring == 1).then_some(Remote { address, key }) })
}

/// What has come of a handshake.
pub(super) enum Step {
    /// Nothing new.
    Nothing,
    /// The other end's queue pairs.
    Handle(Handle),
    /// The sender is connected to what was told of this end: its queue pairs.
    Ready(Handle),
}

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Handshake {
    /// The end here that it is for.
    pub(super) token: u32,
    stream: TcpStream,
    /// Codes of what is said, where the way leaves the host.
    seals: Option<Seals>,
    bytes: Vec<u8>,
    /// What the other end said, while it is waited for to be ready.
    peer: Option<Handle>,
}

impl Handshake {
    pub(super) fn new(token: u32, stream: Stream) -> io::Result<Self> {
        let Stream { stream, seals } = stream;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { token, stream, seals, bytes: Vec::new(), peer: None })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Tells the other end this end's queue pairs. So few bytes always fit into the system's buffer.
    pub(super) fn tell(&mut self, handle: &Handle) -> io::Result<()> {
        self.say(&write(handle))
    }

    /// Tells the receiver that it may ask.
    pub(super) fn tell_ready(&mut self) -> io::Result<()> {
        self.say(&[READY])
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.to_vec();
        if let Some(seals) = &mut self.seals {
            let code = seals.send.code(&[&bytes]);
            bytes.extend(code);
        }
        self.stream.write_all(&bytes)
    }

    /// The sender's queue pairs are known: from now on it is waited for to be ready.
    pub(super) fn await_ready(&mut self, peer: Handle) {
        self.peer = Some(peer);
    }

    /// Reads on.
    pub(super) fn step(&mut self) -> io::Result<Step> {
        let stated = if self.peer.is_some() { 1 } else { LENGTH };
        let needed = stated + if self.seals.is_some() { Seal::LENGTH } else { 0 };
        let mut buffer = [0; LENGTH + Seal::LENGTH];
        while self.bytes.len() < needed {
            match self.stream.read(&mut buffer[..needed - self.bytes.len()]) {
                Ok(0) => {
                    return Err(io::Error::other("the other end hung up before queue pairs were exchanged"));
                }
                Ok(length) => self.bytes.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        if let Some(seals) = &mut self.seals {
            let code = bytes.split_off(stated);
            if !seals.receive.is_code(&code, &[&bytes]) {
                return Err(io::Error::other(
                    "what the other end said was changed on its way: its code is wrong",
                ));
            }
        }
        match self.peer.take() {
            Some(peer) if bytes == [READY] => Ok(Step::Ready(peer)),
            Some(_) => Err(io::Error::other(
                "the other end speaks something else: do all ranks run the same version?",
            )),
            None => {
                let wrong = |error| {
                    io::Error::other(format!("the other end told nonsense of its queue pairs ({error})"))
                };
                read(&bytes).map(Step::Handle).map_err(wrong)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(numbers: &[u32], psn: u32, ring: Option<Remote>) -> Handle {
        let queue_pairs = numbers.iter().map(|number| QueuePairNumber::new(*number)).collect();
        Handle { queue_pairs, psn: Psn::new(psn), ring }
    }

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        let ring = Remote { address: 0x7fff_1234_5678, key: Key(0xabcd_ef01) };
        for handle in [handle(&[0x12_3456, 7], 0xff_fffe, Some(ring)), handle(&[2], 0, None)] {
            let bytes = write(&handle);
            assert_eq!(read(&bytes).unwrap(), handle);
            assert!((0..LENGTH).all(|length| read(&bytes[..length]).is_err()));
        }
    }

    #[test]
    fn nonsense_is_no_handle() {
        let good = write(&handle(&[9], 1, None));
        for (at, value) in [(0, b'X'), (4, 2), (5, 0), (5, 9)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(read(&bytes).is_err(), "byte {at} is {value}");
        }
    }
}
