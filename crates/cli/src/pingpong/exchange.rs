//! How two ends of a ping-pong get to know each other: the exchange of `ibv_rc_pingpong`, over TCP.
//!
//! The client connects and sends its end as 52 bytes of text, `LLLL:QQQQQQ:PPPPPP:` and 32 hexadecimal digits of GID, with
//! a zero behind it; the server answers with its own; the client says `done`, and both may begin (rdma-core,
//! libibverbs/examples/rc_pingpong.c). On Ethernet the local id (LLLL) means nothing and is 0: a Railnet puts the UDP port
//! there at which it receives, which only another Railnet looks at.
//!
//! Operations that need memory of the peer have no place in that exchange: for them both send a second text. Foreign
//! peers hang up after the exchange; two Railnets keep the connection, and each says `done` when it has everything, so
//! that a peer that dies is told from one that has finished.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use railnet_core::{Psn, QueuePairNumber};
use railnet_nic::{Key, Remote};
use railnet_wire::{Gid, ROCE_PORT};

/// Bytes of an end as text, the zero at its end counted.
const END_BYTES: usize = 52;

/// What the client says last.
const DONE: &[u8; 5] = b"done\0";

/// The second text begins with it: Railnets of another version know each other by it.
const VERSION: &str = "railnet1";

/// How long a client tries again when nobody is there: the two are often started at once.
const START: Duration = Duration::from_secs(3);

/// One end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    /// The UDP port it receives at.
    pub(super) port: u16,
    /// It is a Railnet: one that told its port.
    pub(super) is_railnet: bool,
    pub(super) queue_pair: QueuePairNumber,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
}

impl End {
    fn local_id(&self) -> u16 {
        if self.is_railnet { self.port } else { 0 }
    }

    fn to_text(self) -> String {
        let gid = u128::from_be_bytes(self.gid.0);
        format!(
            "{:04x}:{:06x}:{:06x}:{gid:032x}\0",
            self.local_id(),
            self.queue_pair.value(),
            self.psn.value()
        )
    }

    fn from_text(text: &[u8; END_BYTES]) -> anyhow::Result<Self> {
        let wrong = || anyhow!("it reads {:?}", String::from_utf8_lossy(text));
        let text = std::str::from_utf8(text).map_err(|_| wrong())?.trim_end_matches('\0');
        let fields: Vec<_> = text.split(':').collect();
        let [local_id, queue_pair, psn, gid] = fields[..] else {
            return Err(wrong());
        };
        let number = |field: &str| u32::from_str_radix(field, 16).map_err(|_| wrong());
        let local_id = u16::try_from(number(local_id)?).map_err(|_| wrong())?;
        let (is_railnet, port) = (local_id != 0, if local_id == 0 { ROCE_PORT } else { local_id });
        let gid = u128::from_str_radix(gid, 16).ok().filter(|_| gid.len() == 32).ok_or_else(wrong)?;
        let (queue_pair, psn) = (QueuePairNumber::new(number(queue_pair)?), Psn::new(number(psn)?));
        Ok(Self { port, is_railnet, queue_pair, psn, gid: Gid(gid.to_be_bytes()) })
    }

    /// Where it receives, where the GID says so.
    pub(super) fn address(&self, scope: u32) -> anyhow::Result<SocketAddr> {
        if self.gid == Gid::default() {
            bail!("the peer told no GID: start it with -g and the index of its RoCEv2 address");
        }
        let mut address = SocketAddr::new(self.gid.to_ip(), self.port);
        if let SocketAddr::V6(v6) = &mut address
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(scope);
        }
        Ok(address)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid.0);
        let (local_id, queue_pair, psn) = (self.local_id(), self.queue_pair.value(), self.psn.value());
        write!(f, "LID 0x{local_id:04x}, QPN 0x{queue_pair:06x}, PSN 0x{psn:06x}, GID {gid}")
    }
}

/// The connection over which the two ends talk before they play.
pub(super) struct Meeting {
    stream: TcpStream,
    /// The other end of it.
    peer: SocketAddr,
    timeout: Duration,
    /// What the peer said since the exchange; no more than its last word.
    said: Vec<u8>,
    peer_has_left: bool,
}

impl Meeting {
    /// Waits for a client.
    pub(super) fn serve(address: SocketAddr, timeout: Duration) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("cannot wait for a client at {address}"))?;
        listener.set_nonblocking(true)?;
        let limit = Instant::now() + timeout;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::new(stream, timeout),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot take a client"),
            }
            if Instant::now() >= limit {
                bail!("no client came to port {} in {timeout:?}", address.port());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Goes to a server.
    pub(super) fn call(host: &str, port: u16, timeout: Duration) -> anyhow::Result<Self> {
        let found = (host, port).to_socket_addrs().with_context(|| format!("cannot find the host {host}"))?;
        let found: Vec<_> = found.collect();
        let limit = Instant::now() + timeout.min(START);
        loop {
            let mut last = anyhow!("the host {host} has no address");
            let mut is_refused = false;
            for address in &found {
                match TcpStream::connect_timeout(address, timeout) {
                    Ok(stream) => return Self::new(stream, timeout),
                    Err(error) => {
                        is_refused |= error.kind() == io::ErrorKind::ConnectionRefused;
                        let context = format!("no server answers at {address}: is it started?");
                        last = anyhow!(error).context(context);
                    }
                }
            }
            if !is_refused || Instant::now() >= limit {
                return Err(last);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn new(stream: TcpStream, timeout: Duration) -> anyhow::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let peer = canonical(stream.peer_addr().context("the peer was gone before a word was said")?);
        Ok(Self { stream, peer, timeout, said: Vec::new(), peer_has_left: false })
    }

    /// The peer's address, for those who want to know who it is.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address by which the peer reaches this end.
    pub(super) fn local(&self) -> anyhow::Result<SocketAddr> {
        Ok(canonical(self.stream.local_addr()?))
    }

    fn read<const N: usize>(&mut self, what: &str) -> anyhow::Result<[u8; N]> {
        let (mut bytes, mut read, limit) = ([0; N], 0, Instant::now() + self.timeout);
        while read < N {
            let peer = self.peer;
            let late = || anyhow!("the peer at {peer} did not send {what} in {:?}", self.timeout);
            // The limit is for all of it: a peer that sends a byte now and then does not get another.
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut bytes[read..]) {
                Ok(0) => {
                    self.peer_has_left = true;
                    bail!("the peer at {peer} hung up before it sent {what}");
                }
                Ok(count) => read += count,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(late()),
                    _ => {
                        return Err(error)
                            .with_context(|| format!("cannot read {what} of the peer at {peer}"));
                    }
                },
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        // In words, not as a cause: the command takes a broken pipe for a reader of its output that has gone.
        self.stream.write_all(bytes).map_err(|error| anyhow!("the peer at {} is gone: {error}", self.peer))
    }

    fn read_end(&mut self) -> anyhow::Result<End> {
        let text = self.read::<END_BYTES>("its end of the connection")?;
        let what = || format!("what the peer at {} sent is not an end of a connection", self.peer);
        End::from_text(&text).with_context(what)
    }

    /// The client's side: the ends are exchanged.
    pub(super) fn ask(&mut self, own: End) -> anyhow::Result<End> {
        self.write(own.to_text().as_bytes())?;
        let peer = self.read_end().map_err(|error| match self.peer_has_left {
            // What ibv_rc_pingpong does when its NIC does not take the address.
            true => error.context(format!(
                "this end told the address {}: that of the peer (its -g) must be of the same version of IP, or --address \
                 tell another",
                own.gid.to_ip()
            )),
            false => error,
        })?;
        self.write(DONE)?;
        Ok(peer)
    }

    /// The server's side: `ready` brings the own end up to the client's before that may begin.
    pub(super) fn answer(
        &mut self,
        own: End,
        ready: impl FnOnce(&End) -> anyhow::Result<()>,
    ) -> anyhow::Result<End> {
        let peer = self.read_end()?;
        ready(&peer)?;
        self.write(own.to_text().as_bytes())?;
        let done = self.read::<5>("the word that it is ready")?;
        if done != *DONE {
            bail!("the peer at {} said {:?} and not \"done\"", self.peer, String::from_utf8_lossy(&done));
        }
        Ok(peer)
    }

    /// Both sides: what is to be done to which memory is exchanged.
    pub(super) fn exchange_memory(
        &mut self,
        operation: &str,
        size: u32,
        own: Remote,
    ) -> anyhow::Result<Remote> {
        const BYTES: usize = 53;
        let text = |remote: Remote| {
            let (address, key) = (remote.address, remote.key.0);
            let text = format!("{VERSION}:{operation:>8}:{size:08x}:{address:016x}:{key:08x}\0");
            debug_assert_eq!(text.len(), BYTES, "the peer reads that many");
            text
        };
        self.write(text(own).as_bytes())?;
        let bytes = self.read::<BYTES>("what is to be done: is it a Railnet with the same --op?")?;
        let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
        let wrong = || anyhow!("what the peer at {} sent is no description of memory: {text:?}", self.peer);
        let fields: Vec<_> = text.split(':').collect();
        if fields[0].starts_with("railnet") && fields[0] != VERSION {
            bail!(
                "the peer at {} is a Railnet of another version: it speaks {}, this one {VERSION}",
                self.peer,
                fields[0]
            );
        }
        let [VERSION, their_operation, their_size, address, key] = fields[..] else {
            return Err(wrong());
        };
        let number = |field: &str| u64::from_str_radix(field, 16).map_err(|_| wrong());
        let (their_operation, their_size) = (their_operation.trim(), number(their_size)?);
        if their_operation != operation || their_size != u64::from(size) {
            bail!(
                "the two ends differ: {operation} of {size} bytes here, {their_operation} of {their_size} at {}: \
                 give both the same --op and --size",
                self.peer
            );
        }
        Ok(Remote { address: number(address)?, key: Key(number(key)? as u32) })
    }

    /// Tells the peer that this end is finished.
    pub(super) fn leave(&mut self) {
        // Who has hung up already does not want to know.
        let _ = self.stream.write_all(DONE);
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.set_nonblocking(true);
    }

    /// Whether the peer has finished, or hung up. `ibv_rc_pingpong` hangs up right after the exchange.
    pub(super) fn peer_has_left(&mut self) -> bool {
        if !self.peer_has_left {
            let _ = self.stream.set_nonblocking(true);
            let mut words = [0; 16];
            self.peer_has_left = match self.stream.read(&mut words) {
                Ok(0) => true,
                Ok(count) => {
                    self.said.extend_from_slice(&words[..count]);
                    // It has nothing more to say, and what an unauthenticated peer says is not to be kept.
                    self.said.len() >= DONE.len()
                }
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
        }
        self.peer_has_left
    }

    /// Whether the peer has left without a word that it has everything.
    pub(super) fn peer_is_lost(&mut self) -> bool {
        self.peer_has_left() && self.said != *DONE
    }
}

/// A socket for both versions of IP shows IPv4 in IPv6's clothes.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(v6.ip().to_canonical(), v6.port())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(port: u16, is_railnet: bool) -> End {
        let gid = Gid::from_ip("10.77.0.2".parse().unwrap());
        End { port, is_railnet, queue_pair: QueuePairNumber::new(0x45), psn: Psn::new(0xe9_cedf), gid }
    }

    #[test]
    fn an_end_is_written_as_ibv_rc_pingpong_writes_it() {
        let text = "0000:000045:e9cedf:00000000000000000000ffff0a4d0002\0";
        assert_eq!(end(4791, false).to_text(), text);
        assert_eq!(End::from_text(text.as_bytes().try_into().unwrap()).unwrap(), end(4791, false));
        let shown = "LID 0x0000, QPN 0x000045, PSN 0xe9cedf, GID ::ffff:10.77.0.2";
        assert_eq!(end(4791, false).to_string(), shown);
    }

    #[test]
    fn a_port_of_its_own_survives_and_nonsense_is_refused() {
        let text = end(40_000, true).to_text();
        let bytes: &[u8; END_BYTES] = text.as_bytes().try_into().unwrap();
        assert_eq!(End::from_text(bytes).unwrap(), end(40_000, true));
        for at in [0, 4, 5, 20, 45] {
            let mut broken = *bytes;
            broken[at] = b'x';
            assert!(End::from_text(&broken).is_err(), "byte {at}");
        }
        assert!(End::from_text(&[0xff; END_BYTES]).is_err());
        let nameless = End { gid: Gid::default(), ..end(1, true) };
        assert!(nameless.address(0).unwrap_err().to_string().contains("-g"));
    }
}
