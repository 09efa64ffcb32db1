//! One-sided windows over TCP: a rank sends what it puts and asks for along a stream, and a desk at the target does it.
//!
//! ```text
//!   source ── kind, offset, length · data ──▶ desk: writes, counts a signal, answers a flush, sends what was asked for
//! ```
//!
//! On streams that are authenticated a code follows the header and covers the data too, of which then only so much goes in one
//! request that the desk can keep it until the code was checked; answers end with a code.
//!
//! The desk is served by whoever waits for something of the window, and by a thread of its own while nobody does: the
//! target's program may compute.

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

/// Bytes before the data of a request: what it is, where in the window, how much.
const HEADER: usize = 24;
/// The most bytes that are asked for at once: so much a desk keeps for a reader that is slow.
const ASKED: usize = 256 << 10;
/// Bytes that a desk reads at once.
const PIECE: usize = 256 << 10;
/// Pieces of one stream before the next has its turn.
const TURNS: usize = 8;
/// What says that all before a flush was done.
const DONE: [u8; 1] = [1];
/// How long the thread of a desk leaves it to others that look after it, and sleeps at most.
const STEP_BACK: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_millis(200);
/// Bytes that the system shall keep of what is sent.
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

/// The stream from this rank to the desk of another.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    seals: Option<Seals>,
    /// It was left in the middle of something: nothing that comes after it could be understood.
    is_broken: bool,
    /// Whether something was sent since the last flush.
    is_dirty: bool,
}

/// Waits a moment, or says that it was too long: what a link does while the system takes and brings nothing.
pub(crate) type Pause<'a, E> = &'a mut dyn FnMut() -> Result<(), E>;

impl Link {
    pub(crate) fn new(stream: Stream) -> io::Result<Self> {
        let Stream { stream, seals } = stream;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
        Ok(Self { stream, seals, is_broken: false, is_dirty: false })
    }

    /// Writes to the target's window, and signals where asked to. Returns when the system has it all.
    pub(crate) fn put<E: From<io::Error>>(
        &mut self,
        offset: usize,
        data: &[u8],
        signals: bool,
        pause: Pause<'_, E>,
    ) -> Result<(), E> {
        self.is_dirty = true;
        if self.seals.is_some() {
            let mut offset = offset;
            for piece in data.chunks(ASKED) {
                self.request(&header(Kind::Put, offset, piece.len()), piece, pause)?;
                offset += piece.len();
            }
            return if signals { self.signal(pause) } else { Ok(()) };
        }
        let (first, last) = (header(Kind::Put, offset, data.len()), header(Kind::Signal, 0, 0));
        let mut pieces = [IoSlice::new(&first), IoSlice::new(data), IoSlice::new(&last)];
        self.send(&mut pieces[..if signals { 3 } else { 2 }], pause)
    }

    /// Sends a request, with its code where the stream has them.
    fn request<E: From<io::Error>>(
        &mut self,
        header: &[u8; HEADER],
        data: &[u8],
        pause: Pause<'_, E>,
    ) -> Result<(), E> {
        let code = self.seals.as_mut().map(|seals| seals.send.code(&[header, data]));
        let code = code.as_ref().map_or(&[][..], |code| code);
        self.send(&mut [IoSlice::new(header), IoSlice::new(code), IoSlice::new(data)], pause)
    }

    /// Receives an answer, and its code where the stream has them.
    fn answer<E: From<io::Error>>(&mut self, out: &mut [u8], pause: Pause<'_, E>) -> Result<(), E> {
        self.receive(out, pause)?;
        if self.seals.is_none() {
            return Ok(());
        }
        let mut code = [0; Seal::LENGTH];
        self.receive(&mut code, pause)?;
        let is_right = self.seals.as_mut().is_some_and(|seals| seals.receive.is_code(&code, &[out]));
        if is_right {
            return Ok(());
        }
        self.is_broken = true;
        let text = "an answer was forged or damaged on its way: its code is wrong";
        Err(io::Error::new(io::ErrorKind::InvalidData, text).into())
    }

    /// Adds to the target's count of signals.
    pub(crate) fn signal<E: From<io::Error>>(&mut self, pause: Pause<'_, E>) -> Result<(), E> {
        self.is_dirty = true;
        self.request(&header(Kind::Signal, 0, 0), &[], pause)
    }

    /// Returns when the target has done all that it was sent.
    pub(crate) fn flush<E: From<io::Error>>(&mut self, pause: Pause<'_, E>) -> Result<(), E> {
        if !self.is_dirty && !self.is_broken {
            return Ok(());
        }
        self.request(&header(Kind::Flush, 0, 0), &[], pause)?;
        self.answer(&mut [0; DONE.len()], pause)?;
        self.is_dirty = false;
        Ok(())
    }

    /// Reads from the target's window.
    pub(crate) fn get<E: From<io::Error>>(
        &mut self,
        offset: usize,
        out: &mut [u8],
        pause: Pause<'_, E>,
    ) -> Result<(), E> {
        let mut offset = offset;
        for piece in out.chunks_mut(ASKED) {
            self.request(&header(Kind::Get, offset, piece.len()), &[], pause)?;
            offset += piece.len();
            self.answer(piece, pause)?;
        }
        Ok(())
    }

    fn send<E: From<io::Error>>(&mut self, pieces: &mut [IoSlice<'_>], pause: Pause<'_, E>) -> Result<(), E> {
        let mut pieces = pieces;
        // Empty pieces would look like a system that takes nothing.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let written = (&self.stream).write_vectored(pieces);
            let length = self.went(written, pause)?;
            IoSlice::advance_slices(&mut pieces, length);
        }
        Ok(())
    }

    fn receive<E: From<io::Error>>(&mut self, out: &mut [u8], pause: Pause<'_, E>) -> Result<(), E> {
        let mut filled = 0;
        while filled < out.len() {
            let read = (&self.stream).read(&mut out[filled..]);
            filled += self.went(read, pause)?;
        }
        Ok(())
    }

    /// How far it went; not at all is a moment to wait.
    fn went<E: From<io::Error>>(
        &mut self,
        outcome: io::Result<usize>,
        pause: Pause<'_, E>,
    ) -> Result<usize, E> {
        if self.is_broken {
            return Err(io::Error::other("an earlier operation was not finished").into());
        }
        let outcome = match outcome {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(length) => Ok(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause().map(|()| 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        };
        self.is_broken = outcome.is_err();
        outcome
    }
}

/// Where the requests of other ranks are done.
#[derive(Debug)]
pub(crate) struct Desk {
    memory: Buffer,
    /// Bytes of the window.
    length: usize,
    signals: Signals,
    streams: Vec<TcpStream>,
    callers: Mutex<Callers>,
    /// Threads that look after it.
    served: AtomicUsize,
    bell: OwnedFd,
    ends: AtomicBool,
}

#[derive(Debug)]
struct Callers {
    list: Vec<Caller>,
    piece: Box<[u8]>,
}

/// A rank that may ask for something.
#[derive(Debug)]
struct Caller {
    rank: usize,
    header: Vec<u8>,
    /// What is still to come of a put: where to, and how much.
    offset: usize,
    left: usize,
    /// Codes of what comes and goes; and what has come of a put whose code was not checked.
    seals: Option<Seals>,
    unchecked: Vec<u8>,
    /// Answers, and how much of them is on its way.
    answers: Vec<u8>,
    sent: usize,
    is_over: bool,
}

/// A desk and its thread.
#[derive(Debug)]
pub(crate) struct Service {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Opens a desk for these ranks and their streams.
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
            list.push(Caller {
                rank: *rank,
                header: Vec::with_capacity(HEADER),
                offset: 0,
                left: 0,
                seals: seals.clone(),
                unchecked: Vec::new(),
                answers: Vec::new(),
                sent: 0,
                is_over: false,
            });
        }
        let desk = Arc::new(Desk {
            memory,
            length,
            signals,
            streams: streams.into_iter().map(|(_, stream)| stream.stream).collect(),
            callers: Mutex::new(Callers { list, piece: vec![0; PIECE].into_boxed_slice() }),
            served: AtomicUsize::new(0),
            bell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ends: AtomicBool::new(false),
        });
        let own = Arc::clone(&desk);
        let thread = crate::thread::spawn("railnet-window", move || own.run())?;
        Ok(Self { desk, thread: Some(thread) })
    }

    pub(crate) fn desk(&self) -> &Desk {
        &self.desk
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.desk.ends.store(true, Ordering::Release);
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.desk.bell, &1_u64.to_ne_bytes());
        // It has nothing to say; a panic of its was printed.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Desk {
    /// Whoever calls looks after it until it has called [`Desk::leave`].
    pub(crate) fn enter(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.served.fetch_sub(1, Ordering::Relaxed);
    }

    /// Does what others ask for, as far as it has come. Whether anything was.
    pub(crate) fn serve(&self) -> bool {
        // Somebody else does.
        let Ok(mut callers) = self.callers.try_lock() else { return false };
        let Callers { list, piece } = &mut *callers;
        let mut moved = false;
        for (caller, stream) in list.iter_mut().zip(&self.streams).filter(|(caller, _)| !caller.is_over) {
            match self.turn(caller, stream, piece) {
                Ok(has_moved) => moved |= has_moved,
                Err(_) => {
                    caller.is_over = true;
                    // Who speaks nonsense is not answered any more; one that is gone does not hear this.
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
            }
        }
        moved
    }

    fn turn(&self, caller: &mut Caller, stream: &TcpStream, piece: &mut [u8]) -> io::Result<bool> {
        let mut moved = caller.answer(stream)?;
        for _ in 0..TURNS {
            // Who does not take its answers has to wait.
            if !caller.answers.is_empty() {
                break;
            }
            let mut reader = stream;
            match reader.read(piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.take(caller, &piece[..length])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
            caller.answer(stream)?;
        }
        Ok(moved)
    }

    /// Takes bytes of a stream, wherever they begin and end.
    fn take(&self, caller: &mut Caller, bytes: &[u8]) -> io::Result<()> {
        let header = HEADER + if caller.seals.is_some() { Seal::LENGTH } else { 0 };
        let mut rest = bytes;
        while !rest.is_empty() {
            if caller.left > 0 {
                let (data, after) = rest.split_at(rest.len().min(caller.left));
                if caller.seals.is_some() {
                    caller.unchecked.extend_from_slice(data);
                } else {
                    self.memory.write(caller.offset, data);
                    caller.offset += data.len();
                }
                caller.left -= data.len();
                rest = after;
                if caller.left == 0 && caller.seals.is_some() {
                    self.finish_put(caller)?;
                }
                continue;
            }
            let (part, after) = rest.split_at(rest.len().min(header - caller.header.len()));
            caller.header.extend_from_slice(part);
            rest = after;
            if caller.header.len() == header {
                self.begin(caller)?;
                // A put whose code is still to be checked needs it.
                if caller.left == 0 || caller.seals.is_none() {
                    caller.header.clear();
                }
            }
        }
        Ok(())
    }

    /// All of a put with a code has come.
    fn finish_put(&self, caller: &mut Caller) -> io::Result<()> {
        caller.check()?;
        self.memory.write(caller.offset, &caller.unchecked);
        caller.unchecked.clear();
        caller.header.clear();
        Ok(())
    }

    fn begin(&self, caller: &mut Caller) -> io::Result<()> {
        let number = |at: usize| {
            let bytes = caller.header[at..at + 8].try_into().expect("eight bytes");
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (offset, length) = (number(8), number(16));
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == caller.header[0]);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let is_checked_later = kind == Some(Kind::Put) && length > 0;
        if caller.seals.is_some() && !is_checked_later {
            caller.check()?;
        }
        match kind {
            Some(Kind::Put) if is_inside && (caller.seals.is_none() || length <= ASKED) => {
                (caller.offset, caller.left) = (offset, length);
            }
            Some(Kind::Signal) => self.signals.add(caller.rank),
            Some(Kind::Flush) => {
                caller.answers.extend(DONE);
                caller.seal_answer(DONE.len());
            }
            Some(Kind::Get) if is_inside && length <= ASKED => {
                let start = caller.answers.len();
                caller.answers.resize(start + length, 0);
                self.memory.read(offset, &mut caller.answers[start..]);
                caller.seal_answer(length);
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    fn run(&self) {
        while !self.ends.load(Ordering::Acquire) {
            let is_served = self.served.load(Ordering::Relaxed) > 0;
            if !is_served && self.serve() {
                std::thread::yield_now();
                continue;
            }
            let mut fds = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
            if !is_served {
                fds.extend(self.watched());
            }
            let limit = if is_served { STEP_BACK } else { SLEEP };
            // That it cannot sleep is no reason to stop: it looks again.
            let _ = socket::wait(&mut fds, Instant::now() + limit);
        }
    }

    /// The streams of those that may ask for something, or wait for an answer.
    fn watched(&self) -> Vec<PollFd<'_>> {
        let callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let open = callers.list.iter().zip(&self.streams).filter(|(caller, _)| !caller.is_over);
        let flags = |caller: &Caller| if caller.answers.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        open.map(|(caller, stream)| PollFd::new(stream, flags(caller))).collect()
    }

    /// Sleeps until something comes, but not for long.
    pub(crate) fn sleep(&self, limit: Duration) {
        // That it cannot sleep is no reason to stop: it looks again.
        let _ = socket::wait(&mut self.watched(), Instant::now() + limit);
    }
}

impl Caller {
    /// Whether the request that has come whole is what the other end sent next.
    fn check(&mut self) -> io::Result<()> {
        let Self { seals, header, unchecked, .. } = self;
        let Some(seals) = seals else { return Ok(()) };
        let (header, code) = header.split_at(HEADER);
        match seals.receive.is_code(code, &[header, unchecked]) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The last so many bytes of the answers are one: its code follows.
    fn seal_answer(&mut self, length: usize) {
        if let Some(seals) = &mut self.seals {
            let start = self.answers.len() - length;
            let code = seals.send.code(&[&self.answers[start..]]);
            self.answers.extend(code);
        }
    }

    /// Sends answers, as far as the system takes them. Whether it took something.
    fn answer(&mut self, stream: &TcpStream) -> io::Result<bool> {
        let mut moved = false;
        let mut writer = stream;
        while self.sent < self.answers.len() {
            match writer.write(&self.answers[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            moved = true;
        }
        self.answers.clear();
        self.sent = 0;
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LENGTH: usize = 1 << 20;

    fn pair() -> (Link, Service, Buffer, TcpStream) {
        pair_with(None)
    }

    fn pair_with(seals: Option<Seals>) -> (Link, Service, Buffer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let raw = stream.try_clone().unwrap();
        let memory = Buffer::new(LENGTH + 64);
        let streams = vec![(3, Stream { stream: listener.accept().unwrap().0, seals: seals.clone() })];
        let signals = Signals { memory: memory.clone(), start: LENGTH };
        let service = Service::open(memory.clone(), LENGTH, signals, streams).unwrap();
        (Link::new(Stream { stream, seals }).unwrap(), service, memory, raw)
    }

    fn patience() -> impl FnMut() -> io::Result<()> {
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

    fn done_in_order((mut link, _service, memory, _): (Link, Service, Buffer, TcpStream)) {
        let mut pause = patience();
        let data: Vec<u8> = (0..LENGTH).map(|index| (index % 251) as u8).collect();
        link.put(0, &data, true, &mut pause).unwrap();
        link.put(5, &[9; 100], false, &mut pause).unwrap();
        link.put(7, &[], true, &mut pause).unwrap();
        link.signal(&mut pause).unwrap();
        link.flush(&mut pause).unwrap();
        let mut expected = data;
        expected[5..105].fill(9);
        let mut found = vec![0; LENGTH];
        memory.read(0, &mut found);
        assert!(found == expected);
        assert_eq!(memory.load(LENGTH + 8 * 3), 3);
        let mut out = vec![0; LENGTH - 3];
        link.get(3, &mut out, &mut pause).unwrap();
        assert!(out == expected[3..]);
    }

    #[test]
    fn nonsense_ends_a_stream_and_changes_nothing() {
        let wrong = [header(Kind::Put, LENGTH, 1), header(Kind::Get, usize::MAX, 2), [7; HEADER]];
        for nonsense in wrong {
            let (mut link, _service, memory, mut raw) = pair();
            link.signal(&mut patience()).unwrap();
            raw.write_all(&nonsense).unwrap();
            // The system may still take it: a flush is not answered.
            let refused = link.flush(&mut patience());
            assert_ne!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(memory.load(LENGTH), 0);
            assert!(link.put(0, &[1], false, &mut patience()).is_err(), "it stays broken");
        }
    }

    #[test]
    fn a_request_without_the_right_code_ends_a_stream_and_changes_nothing() {
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
            link.signal(&mut patience()).unwrap();
            raw.write_all(&bytes).unwrap();
            let refused = link.flush(&mut patience());
            assert_ne!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!((memory.load(0), memory.load(LENGTH + 24)), (0, 1));
        }
    }
}
