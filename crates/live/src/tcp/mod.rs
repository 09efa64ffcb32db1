//! TCP between ranks: one stream for each connection of a schedule, in one direction.
//!
//! Flow control is the kernel's: the receiver reads a stream only as far as it has slots, and full socket buffers hold the
//! sender back, so that there are no credits. The side that connects begins with a greeting that names the connection and
//! proves that it belongs to the job; streams that begin otherwise are closed and counted.

mod greeting;
mod header;
mod stream;
mod transport;
pub(crate) mod window;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

pub(crate) use stream::{Receiver, Sender};

use crate::seal::Seals;
use crate::secret::Secret;
use crate::socket;
use crate::transport::ConnectionName;
use greeting::{Acceptor, Fresh, Greeted, UNAUTHENTICATED_MAX};

/// Tells a process of one rendezvous from all others. It is no secret.
pub(crate) type Token = [u8; 16];

/// The timeout of connecting to one address of a peer.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The listener of a rank, and what it needs to connect to others.
#[derive(Debug)]
pub(crate) struct Tcp {
    acceptor: Acceptor,
    listener: TcpListener,
    peers: BTreeMap<u32, Peer>,
    /// Whether ranks of this host share cores.
    shares_cores: bool,
    /// Streams whose greeting is incomplete.
    fresh: Vec<Fresh>,
    /// Accepted streams that no receiver has asked for yet.
    known: BTreeMap<ConnectionName, Stream>,
    /// Streams of unauthenticated peers that were closed.
    refused: u64,
}

/// How another rank is reached.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) token: Token,
    /// Whether it is on this host.
    pub(crate) is_here: bool,
    /// Whether data to and from it is authenticated.
    pub(crate) is_sealed: bool,
}

/// An authenticated stream, and the MACs of its data if it carries any.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) stream: TcpStream,
    pub(crate) seals: Option<Seals>,
}

impl Tcp {
    /// Listens at an address, or at all of them.
    pub(crate) fn listen(secret: Secret, token: Token, bind: Option<IpAddr>) -> io::Result<Self> {
        let listener = listener(bind)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            acceptor: Acceptor::new(secret, token),
            listener,
            peers: BTreeMap::new(),
            shares_cores: false,
            fresh: Vec::new(),
            known: BTreeMap::new(),
            refused: 0,
        })
    }

    /// The port of the listener.
    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    pub(crate) fn set_peers(&mut self, peers: BTreeMap<u32, Peer>, shares_cores: bool) {
        (self.peers, self.shares_cores) = (peers, shares_cores);
    }

    /// Connects to a rank, and sends the greeting with this name.
    pub(crate) fn dial(&self, to: u32, name: ConnectionName) -> io::Result<Stream> {
        let peer = self.peers.get(&to).ok_or(io::ErrorKind::NotFound)?;
        let mut stream = connect(&peer.addresses, peer.is_here)?;
        let (greeting, seals) = greeting::write(&self.acceptor.secret, &peer.token, &name)?;
        stream.write_all(&greeting)?;
        Ok(Stream { stream, seals: peer.is_sealed.then_some(seals) })
    }

    /// The stream of this name, once it was accepted.
    pub(crate) fn take(&mut self, name: ConnectionName) -> io::Result<Option<Stream>> {
        self.poll_accept()?;
        Ok(self.known.remove(&name))
    }

    /// Accepts pending connections, and reads greetings that are incomplete.
    pub(crate) fn poll_accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    if self.fresh.len() >= UNAUTHENTICATED_MAX {
                        self.fresh.remove(0);
                        self.refused += 1;
                    }
                    self.fresh.push(Fresh::new(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The peer hung up before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        for fresh in std::mem::take(&mut self.fresh) {
            match self.acceptor.greet(fresh) {
                Greeted::Waits(fresh) => self.fresh.push(fresh),
                Greeted::Closed => self.refused += 1,
                Greeted::Belongs(name, stream, seals) => {
                    let is_sealed = self.peers.get(&name.from).is_some_and(|peer| peer.is_sealed);
                    let seals = is_sealed.then_some(seals);
                    self.known.entry(name).or_insert(Stream { stream, seals });
                }
            }
        }
        Ok(())
    }
}

/// A listener at an ephemeral port, at an address or at all of them.
pub(crate) fn listener(bind: Option<IpAddr>) -> io::Result<TcpListener> {
    match bind {
        Some(address) => TcpListener::bind((address, 0)),
        // A host without IPv6 has IPv4.
        None => TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")),
    }
}

fn connect(addresses: &[SocketAddr], is_here: bool) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "it has no address");
    for address in addresses {
        let connected = if is_here {
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
    use std::time::Instant;

    use super::*;

    #[test]
    fn streams_inside_a_host_are_not_spaced_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect(&[address], true).unwrap();
        assert_eq!(rustix::net::sockopt::tcp_congestion(&stream).unwrap(), "reno");
        drop((stream, listener));
        let error = connect(&[address], true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
        assert!(error.to_string().starts_with(&address.to_string()), "{error}");
    }

    const NAME: ConnectionName = ConnectionName { context: 7, from: 1, channel: 2, lane: 3 };

    /// Two ranks of a job with this secret, the second of which dials the first.
    fn ranks(secret: &[u8]) -> [Tcp; 2] {
        let mut ranks = [0, 1].map(|rank| {
            Tcp::listen(Secret::new(secret), [rank as u8; 16], Some(IpAddr::from([127, 0, 0, 1]))).unwrap()
        });
        let addresses = ranks.each_ref().map(|rank| vec![rank.listener.local_addr().unwrap()]);
        for (index, rank) in ranks.iter_mut().enumerate() {
            let other = 1 - index;
            let peer = Peer {
                addresses: addresses[other].clone(),
                token: [other as u8; 16],
                is_here: true,
                is_sealed: true,
            };
            rank.set_peers(BTreeMap::from([(other as u32, peer)]), false);
        }
        ranks
    }

    /// Accepts until the condition holds.
    fn until(rank: &mut Tcp, what: &str, is_so: impl Fn(&Tcp) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so(rank) {
            rank.poll_accept().unwrap();
            assert!(Instant::now() < deadline, "waited for {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_greeting_that_was_overheard_opens_no_stream() {
        let [mut acceptor, dialer] = ranks(b"apple");
        // Every byte that goes to the acceptor.
        let (overheard, _) = greeting::write(&dialer.acceptor.secret, &[0; 16], &NAME).unwrap();
        let address = acceptor.listener.local_addr().unwrap();
        let send = |bytes: &[u8]| TcpStream::connect(address).unwrap().write_all(bytes).unwrap();
        send(&overheard);
        until(&mut acceptor, "the stream", |rank| rank.known.contains_key(&NAME));
        acceptor.known.clear();
        send(&overheard);
        // One of another rendezvous, a changed one, one of another secret, garbage, and nothing at all.
        let (elsewhere, _) = greeting::write(&Secret::new(b"apple"), &[9; 16], &NAME).unwrap();
        let mut changed = greeting::write(&Secret::new(b"apple"), &[0; 16], &NAME).unwrap().0;
        changed[24] ^= 1;
        let (pear, _) = greeting::write(&Secret::new(b"pear"), &[0; 16], &NAME).unwrap();
        for bytes in [&elsewhere[..], &changed, &pear, b"GET / HTTP/1.1", b""] {
            send(bytes);
        }
        until(&mut acceptor, "all to be refused", |rank| rank.refused == 6);
        assert!(acceptor.known.is_empty() && acceptor.fresh.is_empty());
        drop(dialer);
    }

    #[test]
    fn unauthenticated_peers_are_limited_and_those_that_belong_get_through() {
        let [mut acceptor, dialer] = ranks(b"apple");
        let address = acceptor.listener.local_addr().unwrap();
        let mut idle = Vec::new();
        for _ in 0..UNAUTHENTICATED_MAX + 44 {
            idle.push(TcpStream::connect(address).unwrap());
            acceptor.poll_accept().unwrap();
        }
        until(&mut acceptor, "the limit", |rank| rank.refused == 44);
        assert_eq!(acceptor.fresh.len(), UNAUTHENTICATED_MAX);
        let sent = dialer.dial(0, NAME).unwrap();
        until(&mut acceptor, "the stream", |rank| rank.known.contains_key(&NAME));
        // Both ends have the same keys, each for its direction.
        let taken = acceptor.take(NAME).unwrap().unwrap();
        let (mut here, mut there) = (sent.seals.unwrap(), taken.seals.unwrap());
        assert_eq!(here.send.code(&[b"x"]), there.receive.code(&[b"x"]));
        assert_eq!(there.send.code(&[b"y"]), here.receive.code(&[b"y"]));
        assert_ne!(here.send.code(&[b"z"]), there.send.code(&[b"z"]));
    }
}
