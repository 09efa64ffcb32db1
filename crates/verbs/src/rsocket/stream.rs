//! The stream of a connection: WRITEs into the peer's receive buffer, and immediate data that tells of them.
//!
//! A side writes into one target, half of the peer's buffer, until that is full; the peer publishes the other half by a WRITE
//! into this side's target list. Messages take a receive of the peer's each, so they are counted as credits.

use std::collections::VecDeque;

use super::messages::{Hello, Mapped, Message, TARGETS, Target};
use super::pointer::Pointer;
use crate::abi::*;
use crate::{completion, memory, object, post};
use libc::c_int;

/// Messages of data in flight, and control messages besides.
const QUEUE: u32 = 384;
const CONTROLS: u32 = 4;

/// Kinds of work, in the upper half of their numbers; the lower one has the bytes of the send buffer.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const CONTROL: u64 = 2;
const LAST: u64 = 3;

/// How large the buffers are, and what else a socket asks for before it connects.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) send: u32,
    pub(super) receive: u32,
    pub(super) maps: u32,
}

/// How far a direction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    Open,
    /// No more data comes this way.
    Closed,
}

/// Registered memory.
struct Buffer {
    bytes: Box<[u64]>,
    region: Pointer<ibv_mr>,
}

impl Buffer {
    fn new(pd: *mut ibv_pd, length: usize, access: c_int) -> Result<Self, c_int> {
        let mut bytes = vec![0_u64; length.div_ceil(8)].into_boxed_slice();
        let region = memory::register_region(pd, bytes.as_mut_ptr().cast(), length, access);
        if region.is_null() {
            return Err(crate::errors::last());
        }
        Ok(Self { bytes, region: Pointer::new(region) })
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    fn key(&self) -> u32 {
        object::read(self.region.get()).map_or(0, |region| region.lkey)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        memory::deregister_region(self.region.get());
    }
}

/// Memory of the application that the peer may write into.
struct Exposed {
    /// Its entry of the peer's map, where it has one.
    index: Option<u32>,
    region: Pointer<ibv_mr>,
    address: u64,
}

/// A stream.
pub(super) struct Stream {
    id: Pointer<rdma_cm_id>,
    pub(super) channel: Pointer<ibv_comp_channel>,
    queue: Pointer<ibv_cq>,
    send: Buffer,
    receive: Buffer,
    sizes: Sizes,
    /// The peer writes here: its targets, then its map.
    lists: Buffer,
    /// This side's next target, of those.
    target: u32,
    /// The peer's target list, and the entry that is written next.
    peer: Hello,
    peer_target: u32,
    /// Messages sent, and up to which number the peer has receives.
    sent: u16,
    allowed: u16,
    /// Data messages that were read, and at which number the peer is told.
    taken: u16,
    tell_at: u16,
    /// Work that may be posted.
    sends_left: u32,
    controls_left: u32,
    /// The send buffer is a ring.
    send_at: u32,
    send_left: u32,
    /// The receive buffer is one, too: where the next byte is read, how many bytes are free that the peer was not told of, and
    /// where the half begins that it is told of next.
    read_at: u32,
    read: u32,
    publish_at: u32,
    arrived: VecDeque<u32>,
    exposed: Vec<Exposed>,
    /// Entries of the map that the peer does not know yet.
    unannounced: VecDeque<(u32, Mapped)>,
    /// The peer can receive.
    pub(super) is_up: bool,
    is_left: bool,
    pub(super) incoming: Flow,
    pub(super) outgoing: Flow,
    pub(super) error: c_int,
}

impl Stream {
    /// A stream on an identifier that has a device: makes its queue pair and its buffers, and posts its receives.
    pub(super) fn new(id: *mut rdma_cm_id, sizes: Sizes) -> Result<Self, c_int> {
        const REMOTE: c_int = 1 << 0 | 1 << 1;
        const LOCAL: c_int = 1 << 0;
        let (verbs, pd) = object::read(id).map(|c| (c.verbs, c.pd))?;
        let channel = completion::create_channel(verbs);
        let queue = completion::create(verbs, 2 * QUEUE as c_int, std::ptr::null_mut(), channel, 0);
        let mut init: ibv_qp_init_attr = object::zeroed();
        (init.send_cq, init.recv_cq) = (queue, queue);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (QUEUE, QUEUE);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        init.cap.max_inline_data = 64;
        (init.qp_type, init.sq_sig_all) = (IBV_QPT_RC, 1);
        if queue.is_null() || crate::cma::queue_pair::create(id, pd, &raw mut init) != 0 {
            return Err(crate::errors::last());
        }
        let list = TARGETS as usize * size_of::<Target>() + sizes.maps as usize * size_of::<Mapped>();
        let stream = Self {
            id: Pointer::new(id),
            channel: Pointer::new(channel),
            queue: Pointer::new(queue),
            send: Buffer::new(pd, sizes.send as usize, LOCAL)?,
            receive: Buffer::new(pd, sizes.receive as usize, REMOTE)?,
            lists: Buffer::new(pd, list, REMOTE)?,
            sizes,
            target: 0,
            peer: Hello { credits: 0, maps: 0, list: Target::default(), buffer: Target::default() },
            peer_target: 1,
            sent: 0,
            allowed: 0,
            taken: 0,
            tell_at: QUEUE as u16 / 2,
            sends_left: QUEUE - CONTROLS,
            controls_left: CONTROLS,
            send_at: 0,
            send_left: sizes.send,
            read_at: 0,
            // The peer knows the first half from the beginning; the second one is published first.
            read: sizes.receive / 2,
            publish_at: sizes.receive / 2,
            arrived: VecDeque::new(),
            exposed: Vec::new(),
            unannounced: VecDeque::new(),
            is_up: false,
            is_left: false,
            incoming: Flow::Open,
            outgoing: Flow::Open,
            error: 0,
        };
        for _ in 0..QUEUE {
            stream.post_receive()?;
        }
        Ok(stream)
    }

    /// What the peer is told when the stream connects.
    pub(super) fn hello(&self) -> Hello {
        let target =
            |buffer: &Buffer, length| Target { address: buffer.address(), key: buffer.key(), length };
        Hello {
            credits: QUEUE as u16,
            maps: self.sizes.maps,
            list: target(&self.lists, TARGETS),
            buffer: target(&self.receive, self.half()),
        }
    }

    /// What the peer told.
    pub(super) fn meet(&mut self, peer: Hello) {
        (self.peer, self.allowed) = (peer, peer.credits);
        self.set_target(0, peer.buffer);
    }

    fn half(&self) -> u32 {
        self.sizes.receive / 2
    }

    fn target_at(&self, index: u32) -> *mut Target {
        (self.lists.address() as *mut Target).wrapping_add(index as usize)
    }

    fn target(&self) -> Target {
        object::load(self.target_at(self.target)).unwrap_or_default()
    }

    fn set_target(&self, index: u32, target: Target) {
        object::store(self.target_at(index), target);
    }

    fn post_receive(&self) -> Result<(), c_int> {
        let mut wr = ibv_recv_wr {
            wr_id: RECEIVE << 32,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        let qp = object::read(self.id.get())?.qp;
        match post::post_receive(qp, &raw mut wr, std::ptr::null_mut()) {
            0 => Ok(()),
            number => Err(number),
        }
    }

    /// Writes to the peer, with a message or without one.
    fn post(
        &self,
        kind: u64,
        (address, length, flags): (u64, u32, u32),
        message: Option<Message>,
        remote: (u64, u32),
    ) -> Result<(), c_int> {
        let key = if flags == 0 { self.send.key() } else { 0 };
        let mut sge = ibv_sge { addr: address, length, lkey: key };
        let mut wr: ibv_send_wr = object::zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) =
            (kind << 32 | u64::from(length), &raw mut sge, (length > 0).into());
        (wr.opcode, wr.send_flags) = (IBV_WR_RDMA_WRITE, flags);
        if let Some(message) = message {
            (wr.opcode, wr.imm_data) = (IBV_WR_RDMA_WRITE_WITH_IMM, message.to_immediate().to_be());
        }
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = remote;
        let qp = object::read(self.id.get())?.qp;
        match post::post_send(qp, &raw mut wr, std::ptr::null_mut()) {
            0 => Ok(()),
            number => Err(number),
        }
    }

    /// Whether a data message can be sent now.
    pub(super) fn can_send(&self) -> bool {
        self.can_write() && self.target().length > 0
    }

    /// The same for one that goes to a map.
    fn can_write(&self) -> bool {
        self.is_up && self.sends_left > 0 && self.send_left > 0 && self.sent != self.allowed
    }

    /// Whether there is something to read, if only the end.
    pub(super) fn can_read(&self) -> bool {
        !self.arrived.is_empty() || self.incoming == Flow::Closed
    }

    pub(super) fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The peer did not tell of itself yet.
    pub(super) fn hello_is_due(&self) -> bool {
        self.peer.credits == 0
    }

    /// The peer reads nothing any more.
    pub(super) fn leave(&mut self) {
        (self.incoming, self.outgoing, self.is_left) = (Flow::Closed, Flow::Closed, true);
    }

    /// Whether something was sent that the peer may yet take.
    pub(super) fn has_unsent(&self) -> bool {
        !self.is_left && self.is_busy()
    }

    fn is_busy(&self) -> bool {
        self.sends_left < QUEUE - CONTROLS || self.controls_left < CONTROLS
    }

    /// Room in the send buffer, in one piece; the data is copied there.
    fn buffered(&mut self, data: &[u8]) -> (u64, u32) {
        let room = self.send_left.min(self.sizes.send - self.send_at);
        let length = room.min(data.len() as u32);
        let address = self.send.address() + u64::from(self.send_at);
        for (index, byte) in data[..length as usize].chunks(1 << 16).enumerate() {
            let to = (address as *mut u8).wrapping_add(index << 16);
            // The buffer is this stream's, and the NIC reads only what was posted.
            let _ = object::fill(to, byte);
        }
        self.send_at = (self.send_at + length) % self.sizes.send;
        self.send_left -= length;
        (address, length)
    }

    /// Sends what can be sent now; how much that is.
    pub(super) fn send(&mut self, data: &[u8]) -> Result<usize, c_int> {
        let mut done = 0;
        self.announce_maps()?;
        while done < data.len() && self.can_send() {
            let target = self.target();
            let most = (data.len() - done).min(target.length as usize);
            let (address, length) = self.buffered(&data[done..done + most]);
            // The entry is changed first: as soon as the peer has the last byte of its memory, it may write the next one there.
            let left = target.length - length;
            let rest = Target { address: target.address + u64::from(length), length: left, ..target };
            self.set_target(self.target, rest);
            if left == 0 {
                self.target = (self.target + 1) % TARGETS;
            }
            self.post(SEND, (address, length, 0), Some(Message::Data(length)), (target.address, target.key))?;
            (self.sends_left, self.sent) = (self.sends_left - 1, self.sent.wrapping_add(1));
            done += length as usize;
        }
        Ok(done)
    }

    /// Reads what arrived; how much that is. With `peek` it stays.
    pub(super) fn read(
        &mut self,
        room: &mut dyn FnMut(&[u8]),
        most: usize,
        peek: bool,
    ) -> Result<usize, c_int> {
        let (mut done, mut at, mut next) = (0, self.read_at, 0);
        while done < most && next < self.arrived.len() {
            let message = self.arrived[next];
            let length = message.min((most - done) as u32).min(self.sizes.receive - at);
            room(object::bytes(self.receive.address() + u64::from(at), length as usize)?);
            at = (at + length) % self.sizes.receive;
            done += length as usize;
            if peek {
                // Only whole messages are looked past.
                if length < message {
                    break;
                }
                next += 1;
                continue;
            }
            self.read += length;
            if length == message {
                self.arrived.pop_front();
                self.taken = self.taken.wrapping_add(1);
            } else {
                self.arrived[0] = message - length;
            }
        }
        if !peek {
            self.read_at = at;
            self.publish()?;
        }
        Ok(done)
    }

    /// Tells the peer of receives and of room, when there is enough of it.
    fn publish(&mut self) -> Result<(), c_int> {
        loop {
            let has_room = self.read >= self.half();
            let has_credits = self.taken.wrapping_sub(self.tell_at) < 1 << 15;
            if !self.is_up
                || !(has_room || has_credits)
                || self.controls_left == 0
                || self.outgoing == Flow::Closed && !has_room
            {
                return Ok(());
            }
            self.controls_left -= 1;
            self.tell_at = self.taken.wrapping_add(QUEUE as u16 / 2);
            let credits = Message::Credits(self.taken.wrapping_add(QUEUE as u16));
            let list = self.peer.list;
            if !has_room {
                self.post(CONTROL, (0, 0, IBV_SEND_INLINE), Some(credits), (list.address, list.key))?;
                continue;
            }
            let address = self.receive.address() + u64::from(self.publish_at);
            let half = Target { address, key: self.receive.key(), length: self.half() };
            let to = list.address + u64::from(self.peer_target) * size_of::<Target>() as u64;
            let inline = (&raw const half as u64, size_of::<Target>() as u32, IBV_SEND_INLINE);
            self.post(CONTROL, inline, Some(credits), (to, list.key))?;
            self.read -= self.half();
            self.publish_at = (self.publish_at + self.half()) % (2 * self.half());
            self.peer_target = (self.peer_target + 1) % list.length.max(1);
        }
    }

    /// Sends a control message; false where none can be sent now.
    pub(super) fn control(&mut self, message: Message) -> Result<bool, c_int> {
        if self.controls_left == 0 {
            return Ok(false);
        }
        self.controls_left -= 1;
        let kind = if message == Message::Disconnect { LAST } else { CONTROL };
        let list = self.peer.list;
        self.post(kind, (0, 0, IBV_SEND_INLINE), Some(message), (list.address, list.key))?;
        Ok(true)
    }

    /// Lets the peer write into memory of the application by an offset.
    pub(super) fn map(
        &mut self,
        address: u64,
        length: usize,
        is_writable: bool,
        offset: u64,
    ) -> Result<(), c_int> {
        let pd = object::read(self.id.get())?.pd;
        let is_free = |index: &u32| self.exposed.iter().all(|one| one.index != Some(*index));
        let index = match is_writable {
            true => Some((0..self.peer.maps).find(is_free).ok_or(libc::ENOMEM)?),
            false => None,
        };
        let access = if is_writable { 0b11 } else { 0b01 };
        let region = memory::register_region(pd, address as *mut libc::c_void, length, access);
        if region.is_null() {
            return Err(crate::errors::last());
        }
        self.exposed.push(Exposed { index, region: Pointer::new(region), address });
        if let Some(index) = index {
            let key = object::read(region)?.rkey;
            let target = Target { address, key, length: length as u32 };
            self.unannounced.push_back((index, Mapped { offset, target }));
        }
        self.announce_maps()
    }

    pub(super) fn unmap(&mut self, address: u64) -> Result<(), c_int> {
        let index = self.exposed.iter().position(|one| one.address == address).ok_or(libc::EINVAL)?;
        let exposed = self.exposed.remove(index);
        self.unannounced.retain(|(index, _)| Some(*index) != exposed.index);
        memory::deregister_region(exposed.region.get());
        Ok(())
    }

    fn announce_maps(&mut self) -> Result<(), c_int> {
        while self.can_write()
            && let Some((index, mapped)) = self.unannounced.pop_front()
        {
            let list = self.peer.list;
            let to = list.address
                + u64::from(list.length) * size_of::<Target>() as u64
                + u64::from(index) * size_of::<Mapped>() as u64;
            let inline = (&raw const mapped as u64, size_of::<Mapped>() as u32, IBV_SEND_INLINE);
            // Its bytes are not of the send buffer: they are counted as none.
            self.send_left -= size_of::<Mapped>() as u32;
            self.post(SEND, inline, Some(Message::Map(index)), (to, list.key))?;
            (self.sends_left, self.sent) = (self.sends_left - 1, self.sent.wrapping_add(1));
        }
        Ok(())
    }

    /// The peer's memory behind an offset: its address, key, and bytes that are left.
    fn mapped(&self, offset: u64) -> Option<(u64, u32, u64)> {
        let first = (self.target_at(TARGETS)).cast::<Mapped>();
        (0..self.sizes.maps as usize).find_map(|index| {
            let Mapped { offset: begins, target } = object::load(first.wrapping_add(index)).ok()?;
            let into = offset.checked_sub(begins).filter(|into| *into < u64::from(target.length))?;
            Some((target.address + into, target.key, u64::from(target.length) - into))
        })
    }

    /// Writes into memory that the peer mapped; how much could be written now.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) -> Result<usize, c_int> {
        let mut done = 0;
        self.announce_maps()?;
        while done < data.len() && self.sends_left > 0 && self.send_left > 0 {
            let Some((address, key, left)) = self.mapped(offset + done as u64) else { break };
            let most = (data.len() - done).min(left as usize);
            let (from, length) = self.buffered(&data[done..done + most]);
            self.post(SEND, (from, length, 0), None, (address, key))?;
            self.sends_left -= 1;
            done += length as usize;
        }
        Ok(done)
    }

    /// Takes what completed.
    pub(super) fn pump(&mut self) {
        let mut batch: [ibv_wc; 16] = [object::zeroed(); 16];
        loop {
            let count = completion::poll(self.queue.get(), batch.len() as c_int, batch.as_mut_ptr());
            let Ok(count) = usize::try_from(count) else { return self.fail(libc::EIO) };
            for wc in &batch[..count] {
                self.take(wc);
            }
            if count < batch.len() {
                break;
            }
        }
        if self.error == 0
            && let Err(number) = self.publish().and_then(|()| self.announce_maps())
        {
            self.fail(number);
        }
    }

    pub(super) fn fail(&mut self, number: c_int) {
        (self.incoming, self.outgoing) = (Flow::Closed, Flow::Closed);
        self.error = number;
    }

    fn take(&mut self, wc: &ibv_wc) {
        let is_fine = wc.status == 0;
        match wc.wr_id >> 32 {
            RECEIVE if is_fine => {
                self.on_message(Message::parse(u32::from_be(wc.imm_data)));
                if let Err(number) = self.post_receive() {
                    self.fail(number);
                }
            }
            RECEIVE => {}
            SEND => {
                self.sends_left += 1;
                self.send_left += wc.wr_id as u32;
            }
            _ => self.controls_left += 1,
        }
        if !is_fine && self.outgoing == Flow::Open {
            self.fail(libc::EIO);
        }
    }

    fn on_message(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Data(bytes)) if bytes > 0 => self.arrived.push_back(bytes),
            Some(Message::Credits(number)) => self.allowed = number,
            Some(Message::Disconnect) => self.leave(),
            Some(Message::Shutdown) => self.incoming = Flow::Closed,
            Some(Message::Data(_) | Message::Map(_) | Message::KeepAlive) | None => {}
        }
    }

    /// Has the completion channel tell of the next completion.
    pub(super) fn arm(&self) {
        completion::request_notification(self.queue.get(), 0);
    }

    /// Takes the events of the completion channel, which is readable.
    pub(super) fn acknowledge(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        if completion::get_event(self.channel.get(), &raw mut queue, &raw mut context) == 0 {
            completion::ack_events(queue, 1);
        }
    }

    /// Destroys its queue pair and its queues.
    pub(super) fn close(&mut self) {
        for exposed in self.exposed.drain(..) {
            memory::deregister_region(exposed.region.get());
        }
        crate::cma::queue_pair::destroy(self.id.get());
        completion::destroy(self.queue.get());
        completion::destroy_channel(self.channel.get());
    }
}
