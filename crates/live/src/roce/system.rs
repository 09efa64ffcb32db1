//! The system calls that the standard library has no words for: UDP with segmentation offload and the traffic class.
#![expect(unsafe_code, reason = "sendmsg, recvmsg and setsockopt take pointers")]

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;

use libc::{c_int, c_void};

/// Room for control messages, aligned as their headers want it. A traffic class and a segment size fit many times.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// A UDP socket that is never connected, and never waits.
///
/// It says "do not fragment" and gives the IPv4 ID 0 to what it sends: Linux does so for sockets that are not connected
/// and discover the path MTU, and the ICRC covers the ID. Segments of one send get the IDs 0, 1, 2 and so on.
#[derive(Debug)]
pub struct Endpoint {
    socket: UdpSocket,
    local: SocketAddr,
    /// The traffic class of what is sent without saying one.
    class: u8,
}

/// What came with the bytes of a receive.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Bytes of all of it.
    pub length: usize,
    /// Bytes of each datagram in it but the last, which may be shorter; 0 only where there are none.
    pub segment: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// Its DSCP and ECN bits, as the network left them.
    pub traffic_class: u8,
}

/// Where to send to, as the kernel wants it.
#[derive(Clone, Copy)]
pub struct Target {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Endpoint {
    /// A socket at this address; port 0 lets the system choose.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::from_socket(UdpSocket::bind(address)?)
    }

    /// A socket that shares its address with others of this user: the kernel chooses among them for each datagram
    /// (`SO_REUSEPORT`), by the program of [`Endpoint::steer`] where one is attached.
    pub(super) fn bind_shared(address: SocketAddr) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        Self::from_socket(socket.into())
    }

    /// Attaches a classic BPF program to all sockets that share this one's address: its result is the index of the socket
    /// that gets the datagram, in the order in which they were bound.
    pub(super) fn steer(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        // SAFETY: the kernel reads the program while it is lent, and keeps a copy.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn from_socket(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let endpoint = Self { socket, local, class: 0 };
        if local.is_ipv4() {
            endpoint.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        } else {
            endpoint.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            endpoint.set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
        }
        Ok(endpoint)
    }

    /// Makes it ready to receive: traffic classes, segments in one piece, and packets without a UDP checksum over IPv6,
    /// which is what Soft-RoCE sends. Tells the bytes that the kernel will keep.
    pub fn prepare_receive(&self, buffer_bytes: usize, merge: bool) -> io::Result<usize> {
        // Linux counts twice what is asked for, its own bookkeeping included, and silently takes the limit for more.
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, buffer_bytes.min(1 << 30) as c_int)?;
        if self.local.is_ipv4() {
            self.set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        } else {
            self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            self.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        if merge {
            // Where the kernel has no such thing, datagrams come one by one.
            let _ = self.set(libc::SOL_UDP, libc::UDP_GRO, 1);
        }
        self.receive_buffer()
    }

    /// Sets the traffic class and the hop limit of what it sends.
    pub(super) fn set_class(&mut self, class: u8, hop_limit: u8) -> io::Result<()> {
        if self.local.is_ipv4() {
            self.set(libc::IPPROTO_IP, libc::IP_TOS, class.into())?;
            self.set(libc::IPPROTO_IP, libc::IP_TTL, hop_limit.max(1).into())?;
        } else {
            self.set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class.into())?;
            self.set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hop_limit.max(1).into())?;
        }
        self.class = class;
        Ok(())
    }

    /// Makes room for as little as possible: for a socket that only sends.
    pub(super) fn refuse_input(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 0)
    }

    /// Whether the kernel can cut one send into datagrams.
    pub(super) fn can_segment(&self) -> bool {
        // Asking for segments of 0 bytes turns it off, which it is, and fails where it is not known.
        self.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
    }

    /// Its address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends `bytes` in datagrams of `segment` bytes, the last one perhaps shorter.
    pub fn send(&self, to: &Target, bytes: &[u8], segment: usize, class: u8) -> io::Result<()> {
        let mut control = Control([0; 128]);
        let mut used = 0;
        if segment < bytes.len() {
            used =
                append(&mut control, used, libc::SOL_UDP, libc::UDP_SEGMENT, &(segment as u16).to_ne_bytes());
        }
        if class != self.class {
            let (level, kind) = match self.local {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            used = append(&mut control, used, level, kind, &c_int::from(class).to_ne_bytes());
        }
        let mut piece = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
        // SAFETY: a message header of zeros is a valid one; its fields follow.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw const to.storage) as *mut c_void;
        message.msg_namelen = to.length;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if used > 0 {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = used as _;
        }
        loop {
            // SAFETY: all that the header points to lives until the call returns, and sendmsg only reads it.
            let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// What has come, if anything has.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Arrival>> {
        let mut control = Control([0; 128]);
        // SAFETY: an address of zeros is a valid one, of no family.
        let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: a message header of zeros is a valid one; its fields follow.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        let received = loop {
            // SAFETY: all that the header points to is ours to be written, and lives until the call returns.
            let received =
                unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
            if received >= 0 {
                break received as usize;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(None),
                _ => return Err(error),
            }
        };
        let Some(from) = address(&name) else {
            return Err(io::Error::other("a datagram came from no internet address"));
        };
        let mut arrival = Arrival { length: received, segment: received, from, traffic_class: 0 };
        for (level, kind, value) in ControlMessages(&control.0[..message.msg_controllen as usize]) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => arrival.segment = number(value).max(1) as usize,
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    arrival.traffic_class = value.first().copied().unwrap_or_default();
                }
                _ => {}
            }
        }
        Ok(Some(arrival))
    }

    fn receive_buffer(&self) -> io::Result<usize> {
        let (mut value, mut length): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: both places are ours and as large as stated.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        if done == 0 { Ok(value as usize) } else { Err(io::Error::last_os_error()) }
    }

    fn set(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        // SAFETY: the value lives until the call returns, and its length is stated.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<c_int>() as libc::socklen_t,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message of a process of this host, and what the kernel says of its sender.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) length: usize,
    /// The process; 0 where this one does not see it.
    pub(super) process: u32,
    pub(super) user: u32,
    /// The abstract name of its socket, where it has one.
    pub(super) name: Option<Vec<u8>>,
    /// Files that came with it.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// What has come to a unix socket that asks for credentials (`SO_PASSCRED`), if anything has.
pub(super) fn receive_told(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<Option<Told>> {
    let mut control = Control([0; 128]);
    // SAFETY: an address of zeros is a valid one.
    let mut from: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a message header of zeros is a valid one; its fields follow.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as _;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all that the header points to is ours to be written, and lives until the call returns.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    let mut told =
        Told { length: received as usize, process: 0, user: u32::MAX, name: None, descriptors: Vec::new() };
    for (level, kind, value) in ControlMessages(&control.0[..message.msg_controllen as usize]) {
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                (told.process, told.user) = (number(value) as u32, value.get(4..).map_or(-1, number) as u32);
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                let numbers = value.chunks_exact(size_of::<c_int>()).map(number);
                // SAFETY: the kernel made these descriptors for this message, and nobody else knows of them.
                told.descriptors.extend(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
            _ => {}
        }
    }
    // An abstract name begins with a zero, which is not part of it.
    let used =
        (message.msg_namelen as usize).saturating_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path));
    let name = from.sun_path[..used.min(from.sun_path.len())].split_first();
    let name = name.filter(|(first, _)| **first == 0);
    told.name = name.map(|(_, name)| name.iter().map(|byte| *byte as u8).collect());
    Ok(Some(told))
}

/// Sends a message with files to the unix socket of an abstract name. It does not wait.
pub(super) fn send_with(
    socket: &UnixDatagram,
    name: &[u8],
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let address = SocketAddrUnix::new_abstract_name(name)?;
    sendmsg_addr(socket, &address, &[io::IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT)?;
    Ok(())
}

/// Take IPv6 packets whose UDP checksum is 0, from `linux/udp.h`.
const UDP_NO_CHECK6_RX: c_int = 102;

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: an address of zeros is a valid one, of no family.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let length = match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as _,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is large and aligned enough for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as _,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: the storage is large and aligned enough for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
                size_of::<libc::sockaddr_in6>()
            }
        };
        Self { storage, length: length as libc::socklen_t }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", address(&self.storage))
    }
}

fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Bytes of a control message's header: its length, its level and its kind.
const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();

/// Appends a control message behind the first `used` bytes; tells how many are used then.
fn append(control: &mut Control, used: usize, level: c_int, kind: c_int, value: &[u8]) -> usize {
    let message = &mut control.0[used..];
    message[..ALIGN].copy_from_slice(&(HEADER + value.len()).to_ne_bytes());
    message[ALIGN..][..4].copy_from_slice(&level.to_ne_bytes());
    message[ALIGN + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
    message[HEADER..][..value.len()].copy_from_slice(value);
    used + (HEADER + value.len()).next_multiple_of(ALIGN)
}

/// The control messages in a buffer: level, kind and value.
struct ControlMessages<'a>(&'a [u8]);

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_at_checked(HEADER)?;
        let length = usize::from_ne_bytes(header[..ALIGN].try_into().expect("cut to a word"));
        let value = self.0.get(HEADER..length)?;
        let (level, kind) = (number(&header[ALIGN..]), number(&header[ALIGN + 4..]));
        self.0 = self.0.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((level, kind, value))
    }
}

/// The number at the front of a value; 0 where it is too short for one.
fn number(value: &[u8]) -> c_int {
    value.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes))
}

// The layout that `append` and `ControlMessages` take for granted, as on every 64-bit Linux.
const _: () = assert!(HEADER == ALIGN + 8 && size_of::<c_int>() == 4);
