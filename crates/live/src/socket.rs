//! Sockets with deadlines: listening, connecting, polling, and a connection that carries messages.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::message::{Decoder, Malformed, Message, preamble};
use crate::seal::{Seal, Seals};

/// The backlog of listeners; the kernel may allow less.
const BACKLOG: i32 = 4096;
/// Bytes read at a time.
const READ_SIZE: usize = 16 * 1024;
/// Reads in a row from one connection, so that one that never stops does not starve the others.
const READS_MAX: usize = 64;

/// A socket bound to a port. With `is_shared` (SO_REUSEPORT), others of this user may bind it too: so a launcher holds a port
/// for a rank. Nobody can connect until one of them listens.
fn bound(address: SocketAddr, is_shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // All addresses of IPv6 include those of IPv4.
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    if is_shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Reserves a free port for a process that will listen there, as long as the returned socket lives.
pub(crate) fn reserve(address: IpAddr) -> io::Result<(OwnedFd, u16)> {
    let socket = bound(SocketAddr::new(address, 0), true)?;
    let name = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, name.port()))
}

/// Listens; `accept` does not block.
pub(crate) fn listen(address: SocketAddr, is_shared: bool) -> io::Result<TcpListener> {
    let socket = match bound(address, is_shared) {
        // A kernel without IPv6.
        Err(error) if error.kind() != ErrorKind::AddrInUse && address.ip() == Ipv6Addr::UNSPECIFIED => {
            bound(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()), is_shared)?
        }
        other => other?,
    };
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The addresses of a host. The resolver has no timeout, so a thread of its own asks it.
pub(crate) fn resolve(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (sender, answers) = mpsc::channel();
    let name = host.to_owned();
    let thread = crate::thread::spawn("railnet-resolve", move || {
        let _ = sender.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    });
    if thread.is_err() {
        // Without a thread this one asks: ranks that lack threads report that at the rendezvous.
        return (host, port).to_socket_addrs().map(Vec::from_iter);
    }
    let late = || io::Error::new(ErrorKind::TimedOut, "no answer from the resolver");
    answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|_| late())?
}

/// Polls until one of them is ready or the deadline has passed.
pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: left.as_secs().min(86_400) as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("its connection was closed")]
    Closed,
    #[error("its connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("it sent {0}")]
    Malformed(#[from] Malformed),
    #[error("it does not read what it is sent")]
    Stuck,
}

/// A connection that carries messages both ways, and never blocks.
pub(crate) struct Connection {
    stream: TcpStream,
    pub(crate) decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    is_over: bool,
    /// The MACs of its messages, if it is authenticated.
    seal: Option<Seal>,
    pub(crate) last_heard: Instant,
    pub(crate) last_said: Instant,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, limit: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let now = Instant::now();
        let out = preamble().to_vec();
        Ok(Self {
            stream,
            decoder: Decoder::new(limit),
            out,
            sent: 0,
            is_over: false,
            seal: None,
            last_heard: now,
            last_said: now,
        })
    }

    /// From here on a MAC follows each message, both ways.
    pub(crate) fn authenticate(&mut self, seals: Seals) {
        self.seal = Some(seals.send);
        self.decoder.expect_codes(seals.receive);
    }

    /// Queues a message, and writes what can be written.
    pub(crate) fn say(&mut self, message: &Message, queue_max: usize) -> Result<(), Broken> {
        if self.is_over {
            return Err(Broken::Closed);
        }
        let start = self.out.len();
        message.write(&mut self.out);
        if let Some(seal) = &mut self.seal {
            let code = seal.code(&[&self.out[start..]]);
            self.out.extend(code);
        }
        self.last_said = Instant::now();
        self.flush()?;
        if self.out.len() - self.sent > queue_max { Err(Broken::Stuck) } else { Ok(()) }
    }

    /// Writes what can be written.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Reads what has arrived. The end of the stream is reported after all before it was parsed.
    pub(crate) fn fill(&mut self) -> Result<(), Broken> {
        let mut buffer = [0; READ_SIZE];
        for _ in 0..READS_MAX {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => {
                    self.last_heard = Instant::now();
                    self.decoder.push(&buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Closes it, both ways.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.out = Vec::new();
        self.sent = 0;
        // The peer may have closed it already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// The local address.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|address| address.ip().to_canonical())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The events to poll for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.is_flushed() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.as_fd(), self.interest())
    }

    /// Writes what is queued, until the deadline.
    pub(crate) fn drain(&mut self, deadline: Instant) {
        while !self.is_flushed() && Instant::now() < deadline && self.flush().is_ok() {
            if wait(&mut [self.poll_fd()], deadline).is_err() {
                return;
            }
        }
    }

    /// The next message; `None` when the deadline has passed.
    pub(crate) fn hear(&mut self, deadline: Instant) -> Result<Option<Message>, Broken> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            wait(&mut [self.poll_fd()], deadline)?;
            self.flush()?;
            match self.fill() {
                // What arrived before the end is parsed.
                Err(Broken::Closed) => return self.decoder.next()?.map(Some).ok_or(Broken::Closed),
                other => other?,
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Connects to the first address that answers.
pub(crate) fn connect(addresses: &[SocketAddr], each: Duration, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).min(each);
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "no answer in time"));
        }
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Has the kernel close a connection whose other host has not answered for so long: keepalive probes while idle (SO_KEEPALIVE),
/// and TCP_USER_TIMEOUT for unacknowledged data.
pub(crate) fn set_dead_peer_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    const PROBES: u32 = 4;
    let interval = (timeout / PROBES).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, interval)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    sockopt::set_tcp_user_timeout(socket, crate::rendezvous::millis(timeout))?;
    Ok(())
}

/// Connects inside this host, where nothing is congested. A congestion control that paces packets (BBR, the default of some
/// systems) costs a timer for each, so Reno is chosen, which every kernel has and permits. It has to be chosen before the
/// connection is opened: a paced one stays paced.
pub(crate) fn connect_here(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Without it a connection is only slower.
    let _ = sockopt::set_tcp_congestion(&socket, "reno");
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
            let deadline = Instant::now() + limit;
            while fds[0].revents().is_empty() {
                if Instant::now() >= deadline {
                    return Err(ErrorKind::TimedOut.into());
                }
                wait(&mut fds, deadline)?;
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
