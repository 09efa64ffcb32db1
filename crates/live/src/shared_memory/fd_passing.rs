//! Ranks of one host pass each other the descriptors of their segments and doorbells (SCM_RIGHTS), over abstract unix sockets.
//! A client has to be a process of the same user (`SO_PEERCRED`, which the kernel vouches for before anything is read), and to
//! know the token of the rank that it asks.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// What a client has to know of a rank.
pub(crate) type Token = [u8; 16];

/// The timeout of one exchange: an unauthenticated peer that sends nothing must not delay the others for long.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts, if something fails that may pass.
const ATTEMPTS: usize = 5;
/// Interval between two accepts.
const PAUSE: Duration = Duration::from_micros(200);

/// Serves the descriptors of a rank.
#[derive(Debug)]
pub(crate) struct FdServer {
    listener: UnixListener,
    token: Token,
}

fn address(token: &Token) -> io::Result<SocketAddr> {
    let mut name = b"railnet-".to_vec();
    // Half of the token is the name of the socket, the other half has to be known: names of sockets are listed in /proc.
    for byte in &token[..8] {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    SocketAddr::from_abstract_name(name)
}

impl FdServer {
    pub(crate) fn bind(token: Token) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(&token)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, token })
    }

    /// Passes the descriptors to clients until `stop` is set. Returns how many got them.
    pub(crate) fn serve(&self, give: &[BorrowedFd<'_>], stop: &AtomicBool) -> usize {
        let mut served = 0;
        while !stop.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((stream, _)) => served += usize::from(self.answer(&stream, give).is_ok()),
                // Nobody is there, or a client has hung up, or this process has no descriptors left: a client that gets none
                // uses another transport.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        served
    }

    fn answer(&self, stream: &UnixStream, give: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !is_same_user(stream)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(EXCHANGE_TIMEOUT))?;
        let mut told = Token::default();
        let mut reader = stream;
        reader.read_exact(&mut told)?;
        if told != self.token {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(give));
        rustix::net::sendmsg(stream, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Whether a resource of the kernel is exhausted for this process: not the peer's fault, and no better with another peer.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS].iter().any(|one| number == Some(*one))
}

/// Makes sure that a descriptor is left with which clients can be accepted: they would wait for a process that has none.
pub(crate) fn check_spare() -> io::Result<()> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    Ok(())
}

/// Whether the other end is a process of this user, or of the superuser.
pub(crate) fn is_same_user(stream: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

/// Fetches the two descriptors of a rank of this host. Fails at once if there is no such rank here.
pub(crate) fn fetch(token: &Token, limit: Duration) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut outcome = fetch_once(token, limit);
    for _ in 1..ATTEMPTS {
        match &outcome {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused || is_exhaustion(error) => break,
            // On a loaded machine an exchange may time out.
            Err(_) => outcome = fetch_once(token, limit),
        }
    }
    outcome
}

fn fetch_once(token: &Token, limit: Duration) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut stream = UnixStream::connect_addr(&address(token)?)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(token)?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(stream.as_fd(), &mut bytes, &mut ancillary, flags)?;
    if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        // They were sent, but this process may open no more.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "no descriptors came");
    let mut fds = fds.next().ok_or_else(missing)?;
    fds.next().zip(fds.next()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_the_token_gets_the_descriptors_and_others_nothing() {
        let token: Token = std::array::from_fn(|index| index as u8 ^ std::process::id() as u8);
        let server = FdServer::bind(token).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| server.serve(&[null.as_fd(), null.as_fd()], &stop));
            let mut wrong = token;
            wrong[15] ^= 1;
            assert!(fetch(&wrong, Duration::from_secs(5)).is_err());
            fetch(&token, Duration::from_secs(5)).unwrap();
            stop.store(true, Ordering::Release);
            assert_eq!(served.join().unwrap(), 1);
        });
    }
}
