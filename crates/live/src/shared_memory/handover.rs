//! Ranks of one host hand each other their segments, and the descriptors that wake them, over unix sockets without a name
//! in the file system. Who asks has to know the token of the rank it asks, which only the ranks of the job have heard.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// What a rank has to know of another to ask it.
pub(crate) type Token = [u8; 16];

/// How long one conversation may take: a stranger that says nothing must not hold up the others for long.
const CONVERSATION: Duration = Duration::from_secs(2);
/// Between two looks for callers.
const PAUSE: Duration = Duration::from_micros(200);

/// Where a rank hands over its descriptors.
#[derive(Debug)]
pub(crate) struct Counter {
    listener: UnixListener,
    token: Token,
}

fn address(token: &Token) -> io::Result<SocketAddr> {
    let mut name = b"railnet-".to_vec();
    // Half of the token names the socket, the other half has to be known: names of sockets are listed in /proc.
    for byte in &token[..8] {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    SocketAddr::from_abstract_name(name)
}

impl Counter {
    pub(crate) fn open(token: Token) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(&token)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, token })
    }

    /// Hands the descriptors to so many callers, until the deadline. Gives how many came. Strangers change nothing.
    pub(crate) fn serve(
        &self,
        callers: usize,
        give: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<usize> {
        let mut served = 0;
        while served < callers && Instant::now() < deadline {
            match self.listener.accept() {
                Ok((stream, _)) => served += usize::from(self.talk(&stream, give).is_ok()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(served)
    }

    fn talk(&self, stream: &UnixStream, give: &[BorrowedFd<'_>]) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CONVERSATION))?;
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

/// Fetches the two descriptors of a rank of this host. Fails at once where there is no such rank here.
pub(crate) fn fetch(token: &Token, limit: Duration) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut stream = UnixStream::connect_addr(&address(token)?)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(token)?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(stream.as_fd(), &mut bytes, &mut ancillary, flags)?;
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "no descriptors came");
    let mut fds = fds.next().ok_or_else(missing)?;
    fds.next().zip(fds.next()).ok_or_else(missing)
}

/// The ranks of this host exchange descriptors: each serves the others while it asks them. Gives those that it reached.
pub(crate) fn exchange(
    counter: &Counter,
    others: &BTreeMap<u32, Token>,
    give: &[BorrowedFd<'_>],
    deadline: Instant,
) -> io::Result<BTreeMap<u32, (OwnedFd, OwnedFd)>> {
    std::thread::scope(|scope| {
        let served = scope.spawn(|| counter.serve(others.len(), give, deadline));
        let mut reached = BTreeMap::new();
        for (rank, token) in others {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            // One that cannot be reached is in another container: another conduit will do.
            if let Ok(fds) = fetch(token, left) {
                reached.insert(*rank, fds);
            }
        }
        served.join().map_err(|_| io::Error::other("handing over shared memory failed"))??;
        Ok(reached)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_the_token_gets_the_descriptors_and_strangers_nothing() {
        let token: Token = std::array::from_fn(|index| index as u8 ^ std::process::id() as u8);
        let counter = Counter::open(token).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| counter.serve(1, &[null.as_fd(), null.as_fd()], deadline).unwrap());
            let mut wrong = token;
            wrong[15] ^= 1;
            assert!(fetch(&wrong, Duration::from_secs(5)).is_err());
            fetch(&token, Duration::from_secs(5)).unwrap();
            assert_eq!(served.join().unwrap(), 1);
        });
    }
}
