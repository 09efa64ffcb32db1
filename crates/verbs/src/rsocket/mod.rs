//! `rsocket`: the calls of stream sockets over RDMA, with the protocol of rdma-core.
//!
//! | module | what it is |
//! | --- | --- |
//! | `messages` | private data and immediate data |
//! | `stream` | data, credits, targets and maps of a connection |
//! | `socket` | connecting and accepting, and the state of a socket |
//! | `pointer` | pointers that threads share |
//!
//! A socket's number is the descriptor of its event channel. Only `rpoll` can wait for it. Datagrams, and calls that send or
//! receive messages with addresses or control data, are not there.

mod messages;
mod pointer;
mod socket;
mod stream;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{c_int, c_short, c_void, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t};

use crate::cma::socket_address;
use crate::errors::{guard, set};
use crate::object;
use socket::{Phase, Socket};
use stream::Flow;

type Shared = Arc<Mutex<Socket>>;

static SOCKETS: Mutex<BTreeMap<c_int, Shared>> = Mutex::new(BTreeMap::new());

/// A thread that waits looks again after this time: another thread may have taken the event that was for both.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// How long a socket that is closed waits for what was sent.
const LINGER: Duration = Duration::from_secs(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(number: c_int) -> Result<Shared, c_int> {
    lock(&SOCKETS).get(&number).cloned().ok_or(libc::EBADF)
}

fn insert(socket: Socket) -> c_int {
    let number = socket.descriptor();
    lock(&SOCKETS).insert(number, Arc::new(Mutex::new(socket)));
    number
}

/// A call: its result, or -1 and `errno`.
fn call<T: From<i8>>(body: impl FnOnce() -> Result<T, c_int>) -> T {
    guard(T::from(-1), || {
        body().unwrap_or_else(|number| {
            set(number);
            T::from(-1)
        })
    })
}

/// Tries until there is a result. A socket that does not block, or a call that must not, gets EAGAIN instead.
fn until<T>(
    shared: &Shared,
    is_nonblocking: bool,
    mut attempt: impl FnMut(&mut Socket) -> Result<Option<T>, c_int>,
) -> Result<T, c_int> {
    loop {
        let descriptors = {
            let mut socket = lock(shared);
            if let Some(result) = attempt(&mut socket)? {
                return Ok(result);
            }
            if is_nonblocking || socket.is_nonblocking {
                return Err(libc::EAGAIN);
            }
            socket.arm();
            // Between the attempt and the notification something may have come.
            if let Some(result) = attempt(&mut socket)? {
                return Ok(result);
            }
            socket.descriptors()
        };
        let mut waits: Vec<pollfd> =
            descriptors.iter().map(|fd| pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
        object::poll(&mut waits, WAIT_MAX);
    }
}

pub(crate) extern "C" fn open(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call(|| match (domain, kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            let mut socket = Socket::new()?;
            socket.is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
            Ok(insert(socket))
        }
        (libc::AF_INET | libc::AF_INET6, ..) => Err(libc::EPROTONOSUPPORT),
        _ => Err(libc::EAFNOSUPPORT),
    })
}

pub(crate) extern "C" fn bind(number: c_int, address: *const sockaddr, _length: socklen_t) -> c_int {
    call(|| {
        let shared = find(number)?;
        let mut socket = lock(&shared);
        let reuse = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        let reuses =
            socket.options.iter().any(|(level, name, value)| (*level, *name) == reuse && *value != 0);
        socket.bind(socket_address::parse(address)?, reuses)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn listen(number: c_int, backlog: c_int) -> c_int {
    call(|| {
        let shared = find(number)?;
        lock(&shared).listen(backlog)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn accept(number: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    call(|| {
        let shared = find(number)?;
        let accepted = until(&shared, false, Socket::accept)?;
        let id = accepted.id;
        let number = insert(accepted);
        if !address.is_null() {
            tell_address(&object::read(id.get())?.route.addr.dst_storage, address, length)?;
        }
        Ok(number)
    })
}

pub(crate) extern "C" fn connect(number: c_int, address: *const sockaddr, _length: socklen_t) -> c_int {
    call(|| {
        let shared = find(number)?;
        lock(&shared).connect(socket_address::parse(address)?)?;
        let done = until(&shared, false, |socket| Ok(socket.connected()?.map(|_| 0)));
        done.map_err(|error| if error == libc::EAGAIN { libc::EINPROGRESS } else { error })
    })
}

/// Writes an address of C where the application has room for it.
fn tell_address(
    address: &libc::sockaddr_storage,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    let size = socket_address::length(socket_address::parse(std::ptr::from_ref(address).cast())?);
    let room = object::write(length)?;
    let bytes = object::array(std::ptr::from_ref(address).cast::<u8>(), size.min(*room as usize))?;
    *room = size as socklen_t;
    object::fill(to.cast(), bytes)
}

pub(crate) extern "C" fn peer_name(number: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    call(|| {
        let shared = find(number)?;
        let id = lock(&shared).id;
        tell_address(&object::read(id.get())?.route.addr.dst_storage, address, length)
            .map_err(|_| libc::ENOTCONN)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn own_name(number: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    call(|| {
        let shared = find(number)?;
        let id = lock(&shared).id;
        tell_address(&object::read(id.get())?.route.addr.src_storage, address, length)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn receive(number: c_int, room: *mut c_void, length: usize, flags: c_int) -> ssize_t {
    call(|| {
        let shared = find(number)?;
        let peek = flags & libc::MSG_PEEK != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !peek;
        let mut done = 0;
        let outcome = until(&shared, flags & libc::MSG_DONTWAIT != 0, |socket| {
            let Some(stream) = socket.connected()? else { return Ok(None) };
            let to = room.cast::<u8>().wrapping_add(done);
            let mut written = 0;
            let mut copy = |bytes: &[u8]| {
                // The application vouches for the room.
                let _ = object::fill(to.wrapping_add(written), bytes);
                written += bytes.len();
            };
            stream.read(&mut copy, length - done, peek)?;
            done += written;
            let is_over = !stream.has_data() && stream.incoming == Flow::Closed;
            match stream.error {
                number if number != 0 && done == 0 => Err(number),
                _ => Ok((done == length || done > 0 && !wants_all || is_over).then_some(())),
            }
        });
        match outcome {
            Err(number) if number != libc::EAGAIN || done == 0 => Err(number),
            _ => Ok(done as ssize_t),
        }
    })
}

pub(crate) extern "C" fn read(number: c_int, room: *mut c_void, length: usize) -> ssize_t {
    receive(number, room, length, 0)
}

/// Sends with `attempt`, which says how much it could, until all is sent.
fn send_all(
    number: c_int,
    length: usize,
    flags: c_int,
    mut attempt: impl FnMut(&mut stream::Stream, usize) -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    let shared = find(number)?;
    let mut done = 0;
    let outcome = until(&shared, flags & libc::MSG_DONTWAIT != 0, |socket| {
        let Some(stream) = socket.connected()? else { return Ok(None) };
        match (stream.outgoing, stream.error) {
            (_, 0) => {}
            (_, number) => return Err(number),
        }
        if stream.outgoing == Flow::Closed {
            return Err(if stream.incoming == Flow::Closed { libc::ECONNRESET } else { libc::EPIPE });
        }
        done += attempt(stream, done)?;
        Ok((done == length).then_some(()))
    });
    match outcome {
        Err(number) if done == 0 => Err(number),
        _ => Ok(done),
    }
}

pub(crate) extern "C" fn send(number: c_int, data: *const c_void, length: usize, flags: c_int) -> ssize_t {
    call(|| {
        let data = object::array(data.cast::<u8>(), length)?;
        let sent = send_all(number, length, flags, |stream, done| stream.send(&data[done..]))?;
        Ok(sent as ssize_t)
    })
}

pub(crate) extern "C" fn write(number: c_int, data: *const c_void, length: usize) -> ssize_t {
    send(number, data, length, 0)
}

pub(crate) extern "C" fn map(
    number: c_int,
    address: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    call(|| {
        if protection & !libc::PROT_WRITE != 0 {
            return Err(libc::EINVAL);
        }
        let offset = if offset == -1 { address as off_t } else { offset };
        let is_writable = protection & libc::PROT_WRITE != 0;
        let shared = find(number)?;
        let mut socket = lock(&shared);
        let stream = socket.stream.as_mut().filter(|stream| !stream.hello_is_due()).ok_or(libc::ENOTCONN)?;
        stream.map(address as u64, length, is_writable, offset as u64)?;
        Ok(offset)
    })
}

pub(crate) extern "C" fn unmap(number: c_int, address: *mut c_void, _length: usize) -> c_int {
    call(|| {
        let shared = find(number)?;
        let mut socket = lock(&shared);
        socket.connected()?.ok_or(libc::ENOTCONN)?.unmap(address as u64)?;
        Ok(0)
    })
}

pub(crate) extern "C" fn write_mapped(
    number: c_int,
    data: *const c_void,
    length: usize,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    call(|| {
        let data = object::array(data.cast::<u8>(), length)?;
        let sent = send_all(number, length, flags, |stream, done| {
            stream.write(&data[done..], offset as u64 + done as u64)
        })?;
        Ok(sent as ssize_t)
    })
}

/// The events of entries that are true now; how many entries have some. Descriptors of the system are asked with the others.
fn look(entries: &mut [pollfd], sockets: &[Option<Shared>]) -> c_int {
    const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP;
    let mut count = 0;
    for (entry, socket) in entries.iter_mut().zip(sockets) {
        entry.revents = match socket {
            Some(socket) => lock(socket).ready() & (entry.events | ALWAYS),
            None => {
                let mut one = [pollfd { revents: 0, ..*entry }];
                object::poll(&mut one, Duration::ZERO);
                one[0].revents
            }
        };
        count += c_int::from(entry.revents != 0);
    }
    count
}

pub(crate) extern "C" fn poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    call(|| {
        let entries = object::array_mut(entries, count as usize)?;
        let sockets: Vec<Option<Shared>> = entries.iter().map(|entry| find(entry.fd).ok()).collect();
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let began = Instant::now();
        loop {
            let found = look(entries, &sockets);
            let left = limit.map_or(WAIT_MAX, |limit| limit.saturating_sub(began.elapsed()).min(WAIT_MAX));
            if found > 0 || left.is_zero() {
                return Ok(found);
            }
            let mut waits = Vec::new();
            for (entry, socket) in entries.iter().zip(&sockets) {
                match socket {
                    Some(socket) => {
                        let socket = lock(socket);
                        socket.arm();
                        let readable = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
                        waits.extend(socket.descriptors().into_iter().map(readable));
                    }
                    None => waits.push(*entry),
                }
            }
            // Between the look and the notifications something may have come.
            let found = look(entries, &sockets);
            if found > 0 {
                return Ok(found);
            }
            object::poll(&mut waits, left);
        }
    })
}

/// Waits until what was sent is acknowledged, or the connection is over.
fn drain(shared: &Shared) {
    let began = Instant::now();
    let drained = |socket: &mut Socket| {
        let is_done = match socket.connected() {
            Ok(Some(stream)) => !stream.has_unsent() || stream.error != 0,
            _ => true,
        };
        Ok((is_done || began.elapsed() > LINGER).then_some(()))
    };
    let was_nonblocking = std::mem::replace(&mut lock(shared).is_nonblocking, false);
    let _ = until(shared, false, drained);
    lock(shared).is_nonblocking = was_nonblocking;
}

pub(crate) extern "C" fn shut_down(number: c_int, how: c_int) -> c_int {
    call(|| {
        let shared = find(number)?;
        let (reads, writes) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(libc::EINVAL),
        };
        drain(&shared);
        lock(&shared).shut_down(reads, writes)?;
        drain(&shared);
        Ok(0)
    })
}

pub(crate) extern "C" fn close(number: c_int) -> c_int {
    call(|| {
        let shared = find(number)?;
        drain(&shared);
        let told = lock(&shared).shut_down(true, true).is_ok();
        if told {
            drain(&shared);
        }
        lock(&SOCKETS).remove(&number);
        // Other threads that are in a call on it end first.
        let mut shared = shared;
        let began = Instant::now();
        loop {
            match Arc::try_unwrap(shared) {
                Ok(socket) => {
                    socket.into_inner().unwrap_or_else(PoisonError::into_inner).close();
                    return Ok(0);
                }
                Err(_) if began.elapsed() > LINGER => return Err(libc::EBUSY),
                Err(used) => shared = used,
            }
            std::thread::yield_now();
        }
    })
}

/// Sizes are what the kernel's sockets have at least, and lengths that divide into halves.
fn size_of_option(value: c_int) -> Result<u32, c_int> {
    const LEAST: u32 = 1 << 12;
    const MOST: u32 = 1 << 28;
    let value = u32::try_from(value).map_err(|_| libc::EINVAL)?;
    Ok(value.clamp(LEAST, MOST).next_multiple_of(1 << 7))
}

pub(crate) extern "C" fn set_option(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    call(|| {
        let shared = find(number)?;
        let mut socket = lock(&shared);
        if (length as usize) < size_of::<c_int>() {
            return Err(libc::EINVAL);
        }
        let value: c_int = object::load(value.cast())?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.sizes.send = size_of_option(value)?,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.sizes.receive = size_of_option(value)?,
            (SOL_RDMA, RDMA_IOMAPSIZE) => {
                socket.sizes.maps = u32::try_from(value).map_err(|_| libc::EINVAL)?;
            }
            (
                libc::SOL_SOCKET,
                libc::SO_REUSEADDR | libc::SO_KEEPALIVE | libc::SO_LINGER | libc::SO_OOBINLINE,
            )
            | (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_KEEPIDLE | libc::TCP_MAXSEG)
            | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
            | (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE) => {
                socket.options.retain(|(known, one, _)| (*known, *one) != (level, name));
                socket.options.push((level, name, value));
            }
            _ => return Err(libc::ENOTSUP),
        }
        Ok(0)
    })
}

pub(crate) extern "C" fn get_option(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    call(|| {
        let shared = find(number)?;
        let mut socket = lock(&shared);
        let found = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => match socket.phase {
                Phase::Failed(number) => number,
                _ => socket.stream.as_mut().map_or(0, |stream| stream.error),
            },
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.sizes.send as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.sizes.receive as c_int,
            (SOL_RDMA, RDMA_IOMAPSIZE) => socket.sizes.maps as c_int,
            _ => {
                let known = socket.options.iter().find(|(known, one, _)| (*known, *one) == (level, name));
                known.map(|(.., value)| *value).ok_or(libc::ENOTSUP)?
            }
        };
        let room = object::write(length)?;
        if (*room as usize) < size_of::<c_int>() {
            return Err(libc::EINVAL);
        }
        *room = size_of::<c_int>() as socklen_t;
        *object::write(value.cast::<c_int>())? = found;
        Ok(0)
    })
}

/// `fcntl`, whose third argument is a number here.
pub(crate) extern "C" fn control(number: c_int, command: c_int, argument: c_int) -> c_int {
    call(|| {
        let shared = find(number)?;
        let mut socket = lock(&shared);
        match command {
            libc::F_GETFL => Ok(if socket.is_nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                socket.is_nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(libc::ENOTSUP),
        }
    })
}

const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
