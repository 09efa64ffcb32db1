//! TCP between ranks: a stream for each connection of the schedules, in one direction.
//!
//! The receiver reads a stream only as far as it has slots, and the kernel holds the sender back when its buffers are
//! full: nothing has to be asked for or given back. Whoever connects begins with a greeting that names the connection
//! and proves that it belongs to the job; streams that begin otherwise are closed and counted.

mod lent;
mod stream;
pub(crate) mod window;

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

pub(crate) use lent::{Landing, Lent};
pub(crate) use stream::{Receiver, SLOT, Sender};

use crate::socket;

/// What a rank has to know of another to connect to it.
pub(crate) type Token = [u8; 16];

const MAGIC: [u8; 8] = *b"RAILTCP1";
const GREETING: usize = 40;
/// How long a stranger may take for its greeting.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one address of a peer is tried.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The name of a stream at its receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Name {
    pub(crate) context: u64,
    pub(crate) from: u32,
    pub(crate) channel: u16,
    pub(crate) lane: u8,
}

/// Where a rank takes streams.
#[derive(Debug)]
pub(crate) struct Tcp {
    rank: u32,
    token: Token,
    listener: TcpListener,
    peers: BTreeMap<u32, Peer>,
    /// Whether ranks of this host share cores.
    shares_cores: bool,
    /// Streams whose greeting is not complete.
    fresh: Vec<Fresh>,
    /// Streams that nobody here has asked for yet.
    known: BTreeMap<Name, TcpStream>,
    strangers: u64,
}

/// How another rank is reached.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) token: Token,
}

#[derive(Debug)]
struct Fresh {
    stream: TcpStream,
    greeting: Vec<u8>,
    since: Instant,
}

impl Tcp {
    /// Listens at an address, or at all of them.
    pub(crate) fn listen(rank: u32, token: Token, bind: Option<IpAddr>) -> io::Result<Self> {
        let listener = listener(bind)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            rank,
            token,
            listener,
            peers: BTreeMap::new(),
            shares_cores: false,
            fresh: Vec::new(),
            known: BTreeMap::new(),
            strangers: 0,
        })
    }

    /// The port it listens at.
    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    pub(crate) fn set_peers(&mut self, peers: BTreeMap<u32, Peer>, shares_cores: bool) {
        (self.peers, self.shares_cores) = (peers, shares_cores);
    }

    /// Streams that were closed because they did not belong here.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Connects to a rank. It need not be ready: its system takes the stream for it.
    pub(crate) fn sender(&self, context: u64, to: u32, channel: u16, lane: u8) -> io::Result<Sender> {
        Sender::new(self.dial(to, Name { context, from: self.rank, channel, lane })?, self.shares_cores)
    }

    /// A stream to a rank, at the beginning of which stands this name.
    pub(crate) fn dial(&self, to: u32, name: Name) -> io::Result<TcpStream> {
        let peer = self.peers.get(&to).ok_or(io::ErrorKind::NotFound)?;
        let mut stream = connect(&peer.addresses)?;
        let mut greeting = Vec::with_capacity(GREETING);
        greeting.extend(MAGIC);
        greeting.extend(peer.token);
        greeting.extend(name.context.to_le_bytes());
        greeting.extend(name.from.to_le_bytes());
        greeting.extend(name.channel.to_le_bytes());
        greeting.extend([name.lane, 0]);
        stream.write_all(&greeting)?;
        Ok(stream)
    }

    /// The end at which slices of a rank arrive, once that rank has connected.
    pub(crate) fn receiver(
        &mut self,
        context: u64,
        from: u32,
        channel: u16,
        lane: u8,
    ) -> io::Result<Option<Receiver>> {
        self.take(Name { context, from, channel, lane })?.map(Receiver::new).transpose()
    }

    /// The stream of this name, once it has come.
    pub(crate) fn take(&mut self, name: Name) -> io::Result<Option<TcpStream>> {
        self.accept()?;
        Ok(self.known.remove(&name))
    }

    /// Closes streams of a communicator that nobody here will ask for any more.
    pub(crate) fn forget(&mut self, context: u64) {
        self.known.retain(|name, _| name.context != context);
    }

    /// The rank that it is.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Takes streams that wait.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.fresh.push(Fresh { stream, greeting: Vec::new(), since: Instant::now() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Somebody hung up before it was answered.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        for mut fresh in std::mem::take(&mut self.fresh) {
            match fresh.greet(&self.token) {
                Some(Ok(name)) => {
                    self.known.entry(name).or_insert(fresh.stream);
                }
                Some(Err(())) => self.strangers += 1,
                None if fresh.since.elapsed() > PATIENCE => self.strangers += 1,
                None => self.fresh.push(fresh),
            }
        }
        Ok(())
    }
}

impl Fresh {
    /// Reads on. `None` while the greeting is not complete.
    fn greet(&mut self, token: &Token) -> Option<Result<Name, ()>> {
        let mut bytes = [0; GREETING];
        let missing = &mut bytes[..GREETING - self.greeting.len()];
        match self.stream.read(missing) {
            Ok(0) => return Some(Err(())),
            Ok(length) => self.greeting.extend_from_slice(&missing[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => return Some(Err(())),
        }
        if self.greeting.len() < GREETING {
            return None;
        }
        let greeting = &self.greeting[..];
        let number = |at: usize, length: usize| {
            greeting[at..][..length].iter().rev().fold(0, |value: u64, byte| value << 8 | u64::from(*byte))
        };
        if greeting[..8] != MAGIC || greeting[8..24] != *token {
            return Some(Err(()));
        }
        Some(Ok(Name {
            context: number(24, 8),
            from: number(32, 4) as u32,
            channel: number(36, 2) as u16,
            lane: number(38, 1) as u8,
        }))
    }
}

/// A listener at a port that the system chooses, at an address or at all of them.
pub(crate) fn listener(bind: Option<IpAddr>) -> io::Result<TcpListener> {
    match bind {
        Some(address) => TcpListener::bind((address, 0)),
        // A machine without IPv6 has IPv4.
        None => TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")),
    }
}

fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "it has no address");
    for address in addresses {
        let connected = if address.ip().is_loopback() {
            socket::connect_here(*address, ATTEMPT)
        } else {
            TcpStream::connect_timeout(address, ATTEMPT)
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_inside_a_host_are_not_spaced_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect(&[address]).unwrap();
        assert_eq!(rustix::net::sockopt::tcp_congestion(&stream).unwrap(), "reno");
        drop((stream, listener));
        let error = connect(&[address]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
        assert!(error.to_string().starts_with(&address.to_string()), "{error}");
    }
}
