//! One-sided windows over TCP: a rank sends requests along a stream, and the RMA service of the target executes them.
//!
//! ```text
//!   source ── kind, offset, length · data ──▶ service: writes, counts a signal, responses a flush, sends what was read
//! ```
//!
//! On authenticated streams a MAC follows the header and covers the data too. A request then has at most as much data as the
//! service can buffer until it has checked the MAC; responses end with a MAC.
//!
//! The service runs in whichever thread waits for something of the window, and otherwise in a thread of its own: the program of
//! the target may compute.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::Stream;
use crate::memory::Buffer;
use crate::rdma::window::Signals;
use crate::seal::{Seal, Seals};
use crate::socket;

/// Bytes of a request header: kind, offset in the window, length.
const HEADER: usize = 24;
/// The most bytes of a read: the service buffers as much for a slow reader.
const READ_MAX: usize = 256 << 10;
/// Bytes that the service reads at once.
const BUFFER: usize = 256 << 10;
/// Reads from one stream before the next stream is served.
const READS_PER_TURN: usize = 8;
/// The response to a flush.
const DONE: [u8; 1] = [1];
/// How long the service's thread leaves the work to waiting threads, and how long it blocks at most.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);
const BLOCK_MAX: Duration = Duration::from_millis(200);
/// Bytes of the send buffer (SO_SNDBUF).
const SEND_BUFFER: usize = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Put = 1,
    Signal = 2,
    Flush = 3,
    Get = 4,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Put, Self::Signal, Self::Flush, Self::Get];
}

fn header(kind: Kind, offset: usize, length: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = kind as u8;
    bytes[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
    bytes[16..].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

/// The stream from this rank to the RMA service of another.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    seals: Option<Seals>,
    /// An operation was cut off: the stream has lost its framing.
    is_broken: bool,
    /// Whether anything was sent since the last flush.
    is_dirty: bool,
}

/// Backs off, or returns an error after a timeout: called while the socket is not ready.
pub(crate) type Backoff<'a, E> = &'a mut dyn FnMut() -> Result<(), E>;

impl Link {
    pub(crate) fn new(stream: Stream) -> io::Result<Self> {
        let Stream { stream, seals } = stream;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
        Ok(Self { stream, seals, is_broken: false, is_dirty: false })
    }

    /// Writes to the target's window, and signals if asked to. Returns when the kernel has all of it.
    pub(crate) fn put<E: From<io::Error>>(
        &mut self,
        offset: usize,
        data: &[u8],
        signals: bool,
        backoff: Backoff<'_, E>,
    ) -> Result<(), E> {
        self.is_dirty = true;
        if self.seals.is_some() {
            let mut offset = offset;
            for piece in data.chunks(READ_MAX) {
                self.request(&header(Kind::Put, offset, piece.len()), piece, backoff)?;
                offset += piece.len();
            }
            return if signals { self.signal(backoff) } else { Ok(()) };
        }
        let (first, last) = (header(Kind::Put, offset, data.len()), header(Kind::Signal, 0, 0));
        let mut pieces = [IoSlice::new(&first), IoSlice::new(data), IoSlice::new(&last)];
        self.send(&mut pieces[..if signals { 3 } else { 2 }], backoff)
    }

    /// Sends a request, with its MAC on an authenticated stream.
    fn request<E: From<io::Error>>(
        &mut self,
        header: &[u8; HEADER],
        data: &[u8],
        backoff: Backoff<'_, E>,
    ) -> Result<(), E> {
        let code = self.seals.as_mut().map(|seals| seals.send.code(&[header, data]));
        let code = code.as_ref().map_or(&[][..], |code| code);
        self.send(&mut [IoSlice::new(header), IoSlice::new(code), IoSlice::new(data)], backoff)
    }

    /// Receives a response, and checks its MAC on an authenticated stream.
    fn receive_response<E: From<io::Error>>(
        &mut self,
        out: &mut [u8],
        backoff: Backoff<'_, E>,
    ) -> Result<(), E> {
        self.receive(out, backoff)?;
        if self.seals.is_none() {
            return Ok(());
        }
        let mut code = [0; Seal::LENGTH];
        self.receive(&mut code, backoff)?;
        let is_right = self.seals.as_mut().is_some_and(|seals| seals.receive.is_code(&code, &[out]));
        if is_right {
            return Ok(());
        }
        self.is_broken = true;
        let text = "a response was forged or damaged on its way: its code is wrong";
        Err(io::Error::new(io::ErrorKind::InvalidData, text).into())
    }

    /// Adds to the target's count of signals.
    pub(crate) fn signal<E: From<io::Error>>(&mut self, backoff: Backoff<'_, E>) -> Result<(), E> {
        self.is_dirty = true;
        self.request(&header(Kind::Signal, 0, 0), &[], backoff)
    }

    /// Returns when the target has executed all requests before.
    pub(crate) fn flush<E: From<io::Error>>(&mut self, backoff: Backoff<'_, E>) -> Result<(), E> {
        if !self.is_dirty && !self.is_broken {
            return Ok(());
        }
        self.request(&header(Kind::Flush, 0, 0), &[], backoff)?;
        self.receive_response(&mut [0; DONE.len()], backoff)?;
        self.is_dirty = false;
        Ok(())
    }

    /// Reads from the target's window.
    pub(crate) fn get<E: From<io::Error>>(
        &mut self,
        offset: usize,
        out: &mut [u8],
        backoff: Backoff<'_, E>,
    ) -> Result<(), E> {
        let mut offset = offset;
        for piece in out.chunks_mut(READ_MAX) {
            self.request(&header(Kind::Get, offset, piece.len()), &[], backoff)?;
            offset += piece.len();
            self.receive_response(piece, backoff)?;
        }
        Ok(())
    }

    fn send<E: From<io::Error>>(
        &mut self,
        pieces: &mut [IoSlice<'_>],
        backoff: Backoff<'_, E>,
    ) -> Result<(), E> {
        let mut pieces = pieces;
        // A write of empty slices returns 0, which would be taken for a full socket.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let written = (&self.stream).write_vectored(pieces);
            let length = self.moved_bytes(written, backoff)?;
            IoSlice::advance_slices(&mut pieces, length);
        }
        Ok(())
    }

    fn receive<E: From<io::Error>>(&mut self, out: &mut [u8], backoff: Backoff<'_, E>) -> Result<(), E> {
        let mut filled = 0;
        while filled < out.len() {
            let read = (&self.stream).read(&mut out[filled..]);
            filled += self.moved_bytes(read, backoff)?;
        }
        Ok(())
    }

    /// How many bytes were moved. Backs off if the socket is not ready.
    fn moved_bytes<E: From<io::Error>>(
        &mut self,
        outcome: io::Result<usize>,
        backoff: Backoff<'_, E>,
    ) -> Result<usize, E> {
        if self.is_broken {
            return Err(io::Error::other("an earlier operation was not finished").into());
        }
        let outcome = match outcome {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(length) => Ok(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => backoff().map(|()| 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        };
        self.is_broken = outcome.is_err();
        outcome
    }
}

/// The RMA service of a window: executes requests of other ranks.
#[derive(Debug)]
pub(crate) struct RmaService {
    memory: Buffer,
    /// Bytes of the window.
    length: usize,
    signals: Signals,
    streams: Vec<TcpStream>,
    clients: Mutex<Clients>,
    /// Threads of the program that serve while they wait.
    served: AtomicUsize,
    doorbell: OwnedFd,
    is_stopping: AtomicBool,
}

#[derive(Debug)]
struct Clients {
    list: Vec<Client>,
    piece: Box<[u8]>,
}

/// A rank that may send requests.
#[derive(Debug)]
struct Client {
    rank: usize,
    header: Vec<u8>,
    /// The rest of a put: its offset, and how many bytes.
    offset: usize,
    left: usize,
    /// MACs of both directions, and the data of a put whose MAC was not checked yet.
    seals: Option<Seals>,
    unchecked: Vec<u8>,
    /// Responses, and how many bytes of them were written.
    responses: Vec<u8>,
    sent: usize,
    is_closed: bool,
}

/// An RMA service and its thread.
#[derive(Debug)]
pub(crate) struct ServiceThread {
    service: Arc<RmaService>,
    thread: Option<JoinHandle<()>>,
}

impl ServiceThread {
    /// Starts a service for these ranks and their streams.
    pub(crate) fn open(
        memory: Buffer,
        length: usize,
        signals: Signals,
        streams: Vec<(usize, Stream)>,
    ) -> io::Result<Self> {
        let mut list = Vec::with_capacity(streams.len());
        for (rank, Stream { stream, seals }) in &streams {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            list.push(Client {
                rank: *rank,
                header: Vec::with_capacity(HEADER),
                offset: 0,
                left: 0,
                seals: seals.clone(),
                unchecked: Vec::new(),
                responses: Vec::new(),
                sent: 0,
                is_closed: false,
            });
        }
        let service = Arc::new(RmaService {
            memory,
            length,
            signals,
            streams: streams.into_iter().map(|(_, stream)| stream.stream).collect(),
            clients: Mutex::new(Clients { list, piece: vec![0; BUFFER].into_boxed_slice() }),
            served: AtomicUsize::new(0),
            doorbell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopping: AtomicBool::new(false),
        });
        let own = Arc::clone(&service);
        let thread = crate::thread::spawn("railnet-window", move || own.run())?;
        Ok(Self { service, thread: Some(thread) })
    }

    pub(crate) fn service(&self) -> &RmaService {
        &self.service
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        self.service.is_stopping.store(true, Ordering::Release);
        // An eventfd whose counter is full wakes as well.
        let _ = rustix::io::write(&self.service.doorbell, &1_u64.to_ne_bytes());
        // The thread returns nothing; a panic was printed.
        self.thread.take().map(JoinHandle::join);
    }
}

impl RmaService {
    /// The calling thread serves until it calls [`RmaService::leave`].
    pub(crate) fn enter(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.served.fetch_sub(1, Ordering::Relaxed);
    }

    /// Executes the requests that have arrived. Whether there were any.
    pub(crate) fn serve(&self) -> bool {
        // Another thread is serving.
        let Ok(mut clients) = self.clients.try_lock() else { return false };
        let Clients { list, piece } = &mut *clients;
        let mut moved = false;
        for (client, stream) in list.iter_mut().zip(&self.streams).filter(|(client, _)| !client.is_closed) {
            match self.turn(client, stream, piece) {
                Ok(has_moved) => moved |= has_moved,
                Err(_) => {
                    client.is_closed = true;
                    // A malformed request is_stopping the stream.
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
            }
        }
        moved
    }

    fn turn(&self, client: &mut Client, stream: &TcpStream, piece: &mut [u8]) -> io::Result<bool> {
        let mut moved = client.respond(stream)?;
        for _ in 0..READS_PER_TURN {
            // A client that does not read its responses gets no more.
            if !client.responses.is_empty() {
                break;
            }
            let mut reader = stream;
            match reader.read(piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.take(client, &piece[..length])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
            client.respond(stream)?;
        }
        Ok(moved)
    }

    /// Parses bytes of a stream, wherever they begin and end.
    fn take(&self, client: &mut Client, bytes: &[u8]) -> io::Result<()> {
        let header = HEADER + if client.seals.is_some() { Seal::LENGTH } else { 0 };
        let mut rest = bytes;
        while !rest.is_empty() {
            if client.left > 0 {
                let (data, after) = rest.split_at(rest.len().min(client.left));
                if client.seals.is_some() {
                    client.unchecked.extend_from_slice(data);
                } else {
                    self.memory.write(client.offset, data);
                    client.offset += data.len();
                }
                client.left -= data.len();
                rest = after;
                if client.left == 0 && client.seals.is_some() {
                    self.finish_put(client)?;
                }
                continue;
            }
            let (part, after) = rest.split_at(rest.len().min(header - client.header.len()));
            client.header.extend_from_slice(part);
            rest = after;
            if client.header.len() == header {
                self.begin(client)?;
                // The header is still needed to check the MAC of the put.
                if client.left == 0 || client.seals.is_none() {
                    client.header.clear();
                }
            }
        }
        Ok(())
    }

    /// All of an authenticated put has arrived.
    fn finish_put(&self, client: &mut Client) -> io::Result<()> {
        client.check()?;
        self.memory.write(client.offset, &client.unchecked);
        client.unchecked.clear();
        client.header.clear();
        Ok(())
    }

    fn begin(&self, client: &mut Client) -> io::Result<()> {
        let number = |at: usize| {
            let bytes = client.header[at..at + 8].try_into().expect("eight bytes");
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (offset, length) = (number(8), number(16));
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == client.header[0]);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let is_checked_later = kind == Some(Kind::Put) && length > 0;
        if client.seals.is_some() && !is_checked_later {
            client.check()?;
        }
        match kind {
            Some(Kind::Put) if is_inside && (client.seals.is_none() || length <= READ_MAX) => {
                (client.offset, client.left) = (offset, length);
            }
            Some(Kind::Signal) => self.signals.add(client.rank),
            Some(Kind::Flush) => {
                client.responses.extend(DONE);
                client.seal_answer(DONE.len());
            }
            Some(Kind::Get) if is_inside && length <= READ_MAX => {
                let start = client.responses.len();
                client.responses.resize(start + length, 0);
                self.memory.read(offset, &mut client.responses[start..]);
                client.seal_answer(length);
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    fn run(&self) {
        while !self.is_stopping.load(Ordering::Acquire) {
            let is_served = self.served.load(Ordering::Relaxed) > 0;
            if !is_served && self.serve() {
                std::thread::yield_now();
                continue;
            }
            let mut fds = vec![PollFd::from_borrowed_fd(self.doorbell.as_fd(), PollFlags::IN)];
            if !is_served {
                fds.extend(self.watched());
            }
            let limit = if is_served { YIELD_INTERVAL } else { BLOCK_MAX };
            // An error of poll is no reason to stop: the loop polls again.
            let _ = socket::wait(&mut fds, Instant::now() + limit);
        }
    }

    /// The streams that are open, and what each waits for.
    fn watched(&self) -> Vec<PollFd<'_>> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let open = clients.list.iter().zip(&self.streams).filter(|(client, _)| !client.is_closed);
        let flags =
            |client: &Client| if client.responses.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        open.map(|(client, stream)| PollFd::new(stream, flags(client))).collect()
    }

    /// Blocks until a request arrives or the time has passed.
    pub(crate) fn block(&self, limit: Duration) {
        // An error of poll is no reason to stop: the client polls again.
        let _ = socket::wait(&mut self.watched(), Instant::now() + limit);
    }
}

impl Client {
    /// Checks the MAC of a request that has arrived whole.
    fn check(&mut self) -> io::Result<()> {
        let Self { seals, header, unchecked, .. } = self;
        let Some(seals) = seals else { return Ok(()) };
        let (header, code) = header.split_at(HEADER);
        match seals.receive.is_code(code, &[header, unchecked]) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Appends the MAC of a response, which is the last so many bytes.
    fn seal_answer(&mut self, length: usize) {
        if let Some(seals) = &mut self.seals {
            let start = self.responses.len() - length;
            let code = seals.send.code(&[&self.responses[start..]]);
            self.responses.extend(code);
        }
    }

    /// Writes responses as far as the kernel takes them. Whether it took any.
    fn respond(&mut self, stream: &TcpStream) -> io::Result<bool> {
        let mut moved = false;
        let mut writer = stream;
        while self.sent < self.responses.len() {
            match writer.write(&self.responses[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
        }
        self.responses.clear();
        self.sent = 0;
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LENGTH: usize = 1 << 20;

    fn pair() -> (Link, ServiceThread, Buffer, TcpStream) {
        pair_with(None)
    }

    fn pair_with(seals: Option<Seals>) -> (Link, ServiceThread, Buffer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let raw = stream.try_clone().unwrap();
        let memory = Buffer::new(LENGTH + 64);
        let streams = vec![(3, Stream { stream: listener.accept().unwrap().0, seals: seals.clone() })];
        let signals = Signals { memory: memory.clone(), start: LENGTH };
        let service = ServiceThread::open(memory.clone(), LENGTH, signals, streams).unwrap();
        (Link::new(Stream { stream, seals }).unwrap(), service, memory, raw)
    }

    fn backoff() -> impl FnMut() -> io::Result<()> {
        let began = Instant::now();
        move || match began.elapsed() < Duration::from_secs(30) {
            true => {
                std::thread::yield_now();
                Ok(())
            }
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    #[test]
    fn puts_are_done_in_order_and_what_was_put_is_there_when_a_flush_returns() {
        done_in_order(pair());
        done_in_order(pair_with(Some(seals())));
    }

    fn seals() -> Seals {
        Seals { send: Seal::new(&[1; 16]), receive: Seal::new(&[1; 16]) }
    }

    fn done_in_order((mut link, _service, memory, _): (Link, ServiceThread, Buffer, TcpStream)) {
        let mut backoff = backoff();
        let data: Vec<u8> = (0..LENGTH).map(|index| (index % 251) as u8).collect();
        link.put(0, &data, true, &mut backoff).unwrap();
        link.put(5, &[9; 100], false, &mut backoff).unwrap();
        link.put(7, &[], true, &mut backoff).unwrap();
        link.signal(&mut backoff).unwrap();
        link.flush(&mut backoff).unwrap();
        let mut expected = data;
        expected[5..105].fill(9);
        let mut found = vec![0; LENGTH];
        memory.read(0, &mut found);
        assert!(found == expected);
        assert_eq!(memory.load(LENGTH + 8 * 3), 3);
        let mut out = vec![0; LENGTH - 3];
        link.get(3, &mut out, &mut backoff).unwrap();
        assert!(out == expected[3..]);
    }

    #[test]
    fn a_malformed_request_ends_a_stream_and_changes_nothing() {
        let wrong = [header(Kind::Put, LENGTH, 1), header(Kind::Get, usize::MAX, 2), [7; HEADER]];
        for malformed in wrong {
            let (mut link, _service, memory, mut raw) = pair();
            link.signal(&mut backoff()).unwrap();
            raw.write_all(&malformed).unwrap();
            // The kernel may still take it: the flush gets no response.
            let refused = link.flush(&mut backoff());
            assert_ne!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(memory.load(LENGTH), 0);
            assert!(link.put(0, &[1], false, &mut backoff()).is_err(), "it stays broken");
        }
    }

    #[test]
    fn a_request_with_a_wrong_mac_ends_a_stream_and_changes_nothing() {
        let mut other = Seal::new(&[2; 16]);
        let mut forge = |header: [u8; HEADER], data: &[u8]| {
            let code = other.code(&[&header, data]);
            [&header[..], &code, data].concat()
        };
        let forged = [
            forge(header(Kind::Put, 0, 8), &[7; 8]),
            forge(header(Kind::Put, 0, 0), &[]),
            forge(header(Kind::Signal, 0, 0), &[]),
            forge(header(Kind::Flush, 0, 0), &[]),
            header(Kind::Put, 0, 8).into_iter().chain([7; 40]).collect(),
        ];
        for bytes in forged {
            let (mut link, _service, memory, mut raw) = pair_with(Some(seals()));
            link.signal(&mut backoff()).unwrap();
            raw.write_all(&bytes).unwrap();
            let refused = link.flush(&mut backoff());
            assert_ne!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!((memory.load(0), memory.load(LENGTH + 24)), (0, 1));
        }
    }
}
