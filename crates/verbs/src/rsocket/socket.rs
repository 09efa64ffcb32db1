//! A socket: an identifier of connection management, and the stream on it once it connects.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use libc::{c_int, c_short};

use super::messages::{Hello, Message};
use super::pointer::Pointer;
use super::stream::{Flow, Sizes, Stream};
use crate::abi::*;
use crate::cma::{connect, event, identifier, resolve};
use crate::object;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    New,
    Listening,
    /// The peer has not answered yet.
    Connecting,
    Connected,
    /// The connection failed, and the number was not asked for yet.
    Failed(c_int),
}

/// A socket.
pub(super) struct Socket {
    pub(super) id: Pointer<rdma_cm_id>,
    channel: Pointer<rdma_event_channel>,
    pub(super) phase: Phase,
    pub(super) is_nonblocking: bool,
    pub(super) sizes: Sizes,
    /// Options that are kept and have no effect: level, name, value.
    pub(super) options: Vec<(c_int, c_int, c_int)>,
    pub(super) stream: Option<Stream>,
    /// A request that waits to be accepted.
    request: Option<Pointer<rdma_cm_event>>,
}

/// What rdma-core takes.
const SIZES: Sizes = Sizes { send: 1 << 17, receive: 1 << 17, maps: 0 };

const RETRIES: u8 = 7;

fn failed(returned: c_int) -> Result<(), c_int> {
    if returned == 0 { Ok(()) } else { Err(crate::errors::last()) }
}

impl Socket {
    pub(super) fn new() -> Result<Self, c_int> {
        let channel = event::create_channel();
        let mut id = std::ptr::null_mut();
        failed(identifier::create(channel, &raw mut id, std::ptr::null_mut(), RDMA_PS_TCP))?;
        Self::on(id, channel, SIZES)
    }

    fn on(id: *mut rdma_cm_id, channel: *mut rdma_event_channel, sizes: Sizes) -> Result<Self, c_int> {
        // The application polls the descriptor with `rpoll` only; waiting is done there.
        let descriptor = object::read(channel)?.fd;
        let channel_fd = object::descriptor(&descriptor);
        rustix::fs::fcntl_setfl(channel_fd, rustix::fs::OFlags::NONBLOCK)
            .map_err(rustix::io::Errno::raw_os_error)?;
        Ok(Self {
            id: Pointer::new(id),
            channel: Pointer::new(channel),
            phase: Phase::New,
            is_nonblocking: false,
            sizes,
            options: Vec::new(),
            stream: None,
            request: None,
        })
    }

    /// The number that the application knows the socket by.
    pub(super) fn descriptor(&self) -> c_int {
        object::read(self.channel.get()).map_or(-1, |channel| channel.fd)
    }

    /// The descriptors that become readable when something happens.
    pub(super) fn descriptors(&self) -> Vec<c_int> {
        let completions = self.stream.as_ref().and_then(|stream| object::read(stream.channel.get()).ok());
        std::iter::once(self.descriptor()).chain(completions.map(|channel| channel.fd)).collect()
    }

    pub(super) fn bind(&mut self, address: SocketAddr, reuses: bool) -> Result<(), c_int> {
        let mut flag = c_int::from(reuses);
        let value = (&raw mut flag).cast();
        let option = RDMA_OPTION_ID_REUSEADDR;
        failed(identifier::set_option(self.id.get(), RDMA_OPTION_ID, option, value, size_of::<c_int>()))?;
        resolve::bind(self.id.get(), address)
    }

    pub(super) fn listen(&mut self, backlog: c_int) -> Result<(), c_int> {
        failed(resolve::listen(self.id.get(), backlog))?;
        self.phase = Phase::Listening;
        Ok(())
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, peer: SocketAddr) -> Result<(), c_int> {
        if self.phase != Phase::New {
            return Err(if self.phase == Phase::Connected { libc::EISCONN } else { libc::EALREADY });
        }
        resolve::resolve(self.id.get(), None, peer)?;
        self.expect(RDMA_CM_EVENT_ADDR_RESOLVED)?;
        failed(resolve::resolve_route(self.id.get(), 0))?;
        self.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)?;
        let stream = Stream::new(self.id.get(), self.sizes)?;
        let hello = stream.hello().to_bytes();
        self.stream = Some(stream);
        let mut param = greeting(&hello);
        failed(connect::connect(self.id.get(), &raw mut param))?;
        self.phase = Phase::Connecting;
        Ok(())
    }

    /// The event that a call led to at once.
    fn expect(&self, kind: c_int) -> Result<(), c_int> {
        let told = event::next(self.channel.get())?;
        let (found, status) = object::read(told).map(|told| (told.event, told.status))?;
        event::acknowledge(told)?;
        match (found == kind, status) {
            (true, _) => Ok(()),
            (false, 0) => Err(libc::EIO),
            (false, status) => Err(status.abs()),
        }
    }

    /// Accepts the connection that a peer asked for; `None` while there is none.
    pub(super) fn accept(&mut self) -> Result<Option<Self>, c_int> {
        if self.phase != Phase::Listening {
            return Err(libc::EINVAL);
        }
        self.pump();
        let Some(request) = self.request.take() else { return Ok(None) };
        let told = object::read(request.get())?;
        let id = told.id;
        let peer = Hello::parse(private_of(told));
        let accepted = self.take_request(id, peer);
        event::acknowledge(request.get())?;
        if accepted.is_err() {
            identifier::destroy(id);
        }
        accepted.map(Some)
    }

    fn take_request(&self, id: *mut rdma_cm_id, peer: Option<Hello>) -> Result<Self, c_int> {
        let Some(peer) = peer else {
            connect::reject(id, std::ptr::null(), 0);
            return Err(libc::EPROTO);
        };
        let channel = event::create_channel();
        failed(identifier::migrate(id, channel))?;
        let mut new = Self::on(id, channel, self.sizes)?;
        let mut stream = Stream::new(id, self.sizes)?;
        stream.meet(peer);
        let hello = stream.hello().to_bytes();
        new.stream = Some(stream);
        let mut param = greeting(&hello);
        failed(connect::accept(id, &raw mut param))?;
        new.phase = Phase::Connecting;
        Ok(new)
    }

    /// Takes what happened, without waiting.
    pub(super) fn pump(&mut self) {
        while self.request.is_none()
            && event::is_waiting(self.channel.get())
            && let Ok(told) = event::next(self.channel.get())
        {
            if object::read(told).is_ok_and(|told| told.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
                // It is acknowledged when it is accepted.
                self.request = Some(Pointer::new(told));
                return;
            }
            self.on_event(told);
            let _ = event::acknowledge(told);
        }
        if let Some(stream) = &mut self.stream {
            stream.pump();
        }
    }

    fn on_event(&mut self, told: *mut rdma_cm_event) {
        let Ok(told) = object::read(told) else { return };
        let Some(stream) = &mut self.stream else { return };
        match told.event {
            RDMA_CM_EVENT_ESTABLISHED if self.phase == Phase::Connecting => {
                self.phase = Phase::Connected;
                stream.is_up = true;
                // Who accepted knows the peer already.
                if stream.hello_is_due() {
                    match Hello::parse(private_of(told)) {
                        Some(peer) => stream.meet(peer),
                        None => self.phase = Phase::Failed(libc::EPROTO),
                    }
                }
            }
            RDMA_CM_EVENT_REJECTED => self.phase = Phase::Failed(libc::ECONNREFUSED),
            RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR if self.phase == Phase::Connecting => {
                let number = if told.status == 0 { libc::EIO } else { told.status.abs() };
                self.phase = Phase::Failed(number);
            }
            RDMA_CM_EVENT_DISCONNECTED => {
                // What arrived before is taken first.
                stream.pump();
                stream.leave();
            }
            _ => {}
        }
    }

    /// The events of `poll` that are true now.
    pub(super) fn ready(&mut self) -> c_short {
        self.pump();
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        match (self.phase, &self.stream) {
            (Phase::Listening, _) => flag(self.request.is_some(), libc::POLLIN),
            (Phase::Connected, Some(stream)) => {
                // Who finds data reads it before it learns of the end.
                let closed =
                    stream.incoming == Flow::Closed && stream.outgoing == Flow::Closed && !stream.has_data();
                flag(stream.can_read(), libc::POLLIN)
                    | flag(stream.can_send() || stream.outgoing == Flow::Closed, libc::POLLOUT)
                    | flag(closed, libc::POLLHUP)
                    | flag(stream.error != 0, libc::POLLERR)
            }
            (Phase::Failed(_), _) => libc::POLLIN | libc::POLLOUT | libc::POLLERR,
            (Phase::New, _) => libc::POLLHUP,
            _ => 0,
        }
    }

    /// Has the descriptors tell of what happens next; what happened meanwhile is to be looked for again.
    pub(super) fn arm(&self) {
        if let Some(stream) = &self.stream {
            if object::read(stream.channel.get()).is_ok_and(|channel| is_readable(channel.fd)) {
                stream.acknowledge();
            }
            stream.arm();
        }
    }

    /// The stream of a socket that is connected.
    pub(super) fn connected(&mut self) -> Result<Option<&mut Stream>, c_int> {
        self.pump();
        match self.phase {
            Phase::Connected => Ok(self.stream.as_mut()),
            Phase::Connecting => Ok(None),
            Phase::Failed(number) => Err(number),
            Phase::New | Phase::Listening => Err(libc::ENOTCONN),
        }
    }

    /// Closes directions of the stream, and tells the peer.
    pub(super) fn shut_down(&mut self, reads: bool, writes: bool) -> Result<(), c_int> {
        let Some(stream) = self.connected()? else { return Err(libc::ENOTCONN) };
        let was_open = stream.outgoing == Flow::Open;
        if reads {
            stream.incoming = Flow::Closed;
        }
        if writes {
            stream.outgoing = Flow::Closed;
        }
        let message = match (stream.incoming, stream.outgoing) {
            (Flow::Closed, Flow::Closed) => Message::Disconnect,
            (Flow::Open, Flow::Closed) => Message::Shutdown,
            _ => return Ok(()),
        };
        if was_open && stream.error == 0 {
            stream.control(message)?;
        }
        Ok(())
    }

    /// Destroys it.
    pub(super) fn close(mut self) {
        if let Some(request) = self.request.take() {
            let id = object::read(request.get()).map(|told| told.id);
            let _ = event::acknowledge(request.get());
            if let Ok(id) = id {
                identifier::destroy(id);
            }
        }
        if let Some(stream) = &mut self.stream {
            connect::disconnect(self.id.get());
            stream.close();
        }
        identifier::destroy(self.id.get());
        event::destroy_channel(self.channel.get());
    }
}

/// Private data of an event.
fn private_of(told: &rdma_cm_event) -> &[u8] {
    let param = object::conn_param(told);
    object::array(param.private_data.cast::<u8>(), param.private_data_len.into()).unwrap_or_default()
}

fn greeting(hello: &[u8; Hello::LENGTH]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: hello.as_ptr().cast(),
        private_data_len: Hello::LENGTH as u8,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        ..connect::no_param()
    }
}

fn is_readable(descriptor: c_int) -> bool {
    let fd: BorrowedFd<'_> = object::descriptor(&descriptor);
    let mut ready = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
}
