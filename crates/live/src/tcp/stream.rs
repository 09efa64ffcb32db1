//! The two ends of a stream: slots in memory, each with room for its header in front, so that a slice goes to the kernel and
//! comes from it in one piece.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use railnet_coll::machine::Mark;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_nodelay, set_tcp_quickack};

use super::Stream;
use super::header::{HEADER, HELD, Header, check, covered, header_bytes};
use crate::seal::Seal;
use crate::transport::limits::{DEPTH, TCP_SLOT as SLOT};
use crate::transport::{Arrival, PostedBuffer, StableSource};

/// Bytes of a read while the length of the slice is unknown: what follows the slice is copied to its own slot.
const READ_BYTES: usize = 128 << 10;
/// Bytes from slot to slot. Data is aligned to 64.
const STRIDE: usize = 64 + SLOT;

/// Delayed acknowledgements are switched on again after so many small slices (the kernel forgets it after a pause): nothing is
/// sent the other way that could carry an acknowledgement, and a packet for it costs as much as one with data.
const QUICKACK_INTERVAL: u64 = 16;
/// The most bytes of a small slice. Senders of longer ones wait for acknowledgements.
const SMALL_MAX: usize = 16 << 10;

/// Bytes of the send buffer (SO_SNDBUF); on this host less, because what exceeds the caches is slower. With 4 MiB an AlltoAll
/// of 8 MiB took 1.25 times as long, with 256 KiB a Broadcast of 2 MiB. Where ranks share cores, it limits how far a rank runs
/// before it yields: four on two cores take 1.05 and 4.4 ms for Broadcasts of 2 and 8 MiB with 256 KiB, and 1.6 and 7.0 with 4
/// MiB.
const SEND_BUFFER: usize = 4 << 20;
const SEND_BUFFER_HERE: usize = 512 << 10;
const SEND_BUFFER_SHARED: usize = 256 << 10;

/// The receive coalescing delay: polls that find nothing, some 4 µs, after which a receiver acknowledges the latest held slice.
/// With 1 each slice costs an acknowledgement packet and a stream of small Broadcasts takes half as long again; with 32 the
/// last of four ranks on two cores ends 0.4 ms after the root in place of 0.25.
const POLLS_BEFORE_ACK: u32 = 8;

fn memory() -> Box<[u8]> {
    vec![0; DEPTH as usize * STRIDE].into_boxed_slice()
}

fn data(memory: &mut [u8], slot: u32, length: usize) -> *mut u8 {
    memory[slot as usize * STRIDE + 64..][..length].as_mut_ptr()
}

/// The sending end of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    stream: TcpStream,
    seal: Option<Seal>,
    /// Bytes before the data of a slice.
    header: usize,
    memory: Box<[u8]>,
    /// Slices that are not all with the kernel.
    unsent: VecDeque<Slice>,
    /// The caller's buffer that has the data of the next slice of a slot, if it is sent zero-copy.
    source: [Option<StableSource>; DEPTH as usize],
    /// Bytes of the first of them that are with the kernel, header included.
    written: usize,
    /// Slices that were handed to the kernel since the last question.
    handed_over: u64,
    /// How many slices the kernel may publish_held until one before them is acknowledged (Nagle's algorithm); `None` with TCP_NODELAY.
    held: Option<u32>,
}

/// A slice that waits for the kernel.
#[derive(Clone, Copy, Debug)]
struct Slice {
    slot: u32,
    length: usize,
    source: Option<StableSource>,
}

impl Sender {
    pub(super) fn new(stream: Stream, shares_cores: bool) -> io::Result<Self> {
        let Stream { stream, seals } = stream;
        let seal = seals.map(|seals| seals.send);
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // A buffer that holds less than a slice makes every slice wait for an acknowledgement, which is delayed. The kernel
        // uses its own limit if this is more.
        let is_here =
            matches!((stream.peer_addr(), stream.local_addr()), (Ok(peer), Ok(own)) if peer.ip() == own.ip());
        let size = match (is_here, shares_cores) {
            (true, true) => SEND_BUFFER_SHARED,
            (true, false) => SEND_BUFFER_HERE,
            (false, _) => SEND_BUFFER,
        };
        set_socket_send_buffer_size(&stream, size)?;
        Ok(Self {
            stream,
            header: header_bytes(seal.as_ref()),
            seal,
            memory: memory(),
            unsent: VecDeque::with_capacity(DEPTH as usize),
            source: Default::default(),
            written: 0,
            handed_over: 0,
            held: None,
        })
    }

    /// Sends the next slice of a slot zero-copy: its data stays in this buffer until the kernel has it.
    pub(crate) fn send_from(&mut self, slot: u32, source: StableSource) {
        self.source[slot as usize] = Some(source);
    }

    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        data(&mut self.memory, slot, length)
    }

    /// Queues the next slice. True if it is small and has to be pushed before anything is waited for; others go with the next
    /// [`Sender::flush`], together.
    pub(crate) fn publish(&mut self, slot: u32, length: usize, mark: Mark) -> bool {
        let whole = &mut self.memory[slot as usize * STRIDE..][..STRIDE];
        let (header, data) = whole[64 - self.header..].split_at_mut(self.header);
        header[..8].copy_from_slice(&(length as u64).to_le_bytes());
        header[8..HEADER].copy_from_slice(&mark.0.to_le_bytes());
        let source = self.source[slot as usize].take();
        if let Some(seal) = &mut self.seal {
            let data = source.as_ref().map_or(&data[..length], |source| source.bytes(length));
            let code = seal.code(&[&covered(header), data]);
            header[HEADER..].copy_from_slice(&code);
        }
        self.unsent.push_back(Slice { slot, length, source });
        length <= SMALL_MAX
    }

    /// Writes what the kernel takes. If more will follow soon, the kernel may publish_held that until this is acknowledged: the header
    /// tells the receiver, which acknowledges when it is idle.
    pub(crate) fn push(&mut self, more: bool) {
        // A header that is partly written cannot be changed.
        let more = more && self.written == 0;
        if more {
            for slice in &self.unsent {
                self.memory[slice.slot as usize * STRIDE + 64 - self.header + 7] |= (HELD >> 56) as u8;
            }
        } else {
            self.flush_held();
        }
        // An error is returned by the next write too, and handled there.
        let _ = self.write();
        match &mut self.held {
            Some(held) => *held += 1,
            // Not before the write: a receiver that knows of no held slice would delay the acknowledgement.
            None if more && set_tcp_nodelay(&self.stream, false).is_ok() => self.held = Some(0),
            None => {}
        }
    }

    /// Whether the kernel may publish_held slices.
    #[inline]
    pub(crate) const fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Has the kernel send what it holds, and each slice that follows at once. How many slices it may have held, if any.
    pub(crate) fn flush_held(&mut self) -> Option<u32> {
        let held = self.held.take()?;
        // If that fails, so does the next write.
        let _ = set_tcp_nodelay(&self.stream, true);
        Some(held)
    }

    /// Whether slices wait for the kernel.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// How many slices were handed to the kernel since the last question.
    #[inline]
    pub(crate) fn handed_over(&mut self) -> u64 {
        std::mem::take(&mut self.handed_over)
    }

    /// Writes what the kernel takes. Returns how many slices were handed to it since the last question.
    pub(crate) fn flush(&mut self) -> io::Result<u64> {
        // The end of a long slice would be held.
        if !self.unsent.is_empty() {
            self.flush_held();
        }
        self.write()?;
        Ok(self.handed_over())
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let Self { stream, memory, unsent, written, handed_over, header, .. } = self;
            let header = *header;
            let mut pieces = [IoSlice::new(&[]); 2 * DEPTH as usize];
            let mut count = 0;
            for slice in unsent.iter() {
                let own = if slice.source.is_some() { header } else { header + slice.length };
                pieces[count] = IoSlice::new(&memory[slice.slot as usize * STRIDE + 64 - header..][..own]);
                count += 1;
                if let Some(source) = &slice.source {
                    pieces[count] = IoSlice::new(source.bytes(slice.length));
                    count += 1;
                }
            }
            let mut pieces = &mut pieces[..count];
            IoSlice::advance_slices(&mut pieces, *written);
            let outcome = match &*pieces {
                [one] => stream.write(one),
                several => stream.write_vectored(several),
            };
            match outcome {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => *written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            while let Some(Slice { length, .. }) = unsent.front()
                && *written >= header + length
            {
                *written -= header + length;
                unsent.pop_front();
                *handed_over += 1;
            }
        }
        Ok(())
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    stream: TcpStream,
    seal: Option<Seal>,
    /// Bytes before the data of a slice.
    header: usize,
    memory: Box<[u8]>,
    arrived: u64,
    taken: u64,
    /// Bytes of the incomplete slice that were read, header included.
    filled: usize,
    /// Bytes that were read beyond the end of a slice, and how many of them were moved to slots since.
    excess: Vec<u8>,
    used: usize,
    /// The posted receive buffer of the next slice.
    posted: Option<PostedBuffer>,
    /// Whether the oldest slice is in its posted buffer.
    is_in_posted: bool,
    /// The number of the slice at which delayed acknowledgements were last switched on; 0 where they are off.
    quickack_off_at: u64,
    /// Whether the sender's kernel may publish_held slices behind the latest one, and polls without success since.
    is_held: bool,
    polls: u32,
}

impl Receiver {
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        let Stream { stream, seals } = stream;
        let seal = seals.map(|seals| seals.receive);
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            header: header_bytes(seal.as_ref()),
            seal,
            memory: memory(),
            arrived: 0,
            taken: 0,
            filled: 0,
            excess: Vec::new(),
            used: 0,
            posted: None,
            is_in_posted: false,
            quickack_off_at: 0,
            is_held: false,
            polls: 0,
        })
    }

    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        data(&mut self.memory, slot, length)
    }

    /// Gives the slot of the oldest slice back.
    pub(crate) fn release(&mut self) {
        self.taken += 1;
        self.is_in_posted = false;
    }

    /// Posts a buffer for the data of the next slice, if nothing of it has arrived yet.
    pub(crate) fn post(&mut self, posted: PostedBuffer) {
        if self.arrived == self.taken && self.filled == 0 && self.used == self.excess.len() {
            self.posted = Some(posted);
        }
    }

    /// Whether the oldest slice is in its posted buffer.
    #[inline]
    pub(crate) const fn is_in_posted(&self) -> bool {
        self.is_in_posted
    }

    /// Receives the next slice into the posted buffer. A slice of another length goes to its slot: then the calls of the ranks
    /// differ, which the rank machine reports.
    fn receive_posted(&mut self) -> io::Result<Arrival> {
        let start = (self.arrived % u64::from(DEPTH)) as usize * STRIDE + 64 - self.header;
        let before = self.header;
        while let Some(posted) = &mut self.posted {
            let whole = &mut self.memory[start..][..before + SLOT];
            if let Some(Header { mark, length, is_held }) = Header::read(&whole[..self.filled.min(before)])? {
                if length != posted.length() {
                    let there = self.filled.saturating_sub(before);
                    whole[before..][..there].copy_from_slice(&posted.bytes()[..there]);
                    self.posted = None;
                    break;
                }
                if self.filled == before + length {
                    if let Some(seal) = &mut self.seal {
                        check(seal, &whole[..before], posted.bytes())?;
                    }
                    (self.posted, self.is_in_posted) = (None, true);
                    self.filled = 0;
                    self.arrived += 1;
                    self.is_held = is_held;
                    self.set_acknowledgement(length);
                    return Ok(Arrival::Slice(mark));
                }
            }
            let header = &mut whole[self.filled.min(before)..before];
            let data = &mut posted.bytes()[self.filled.saturating_sub(before)..];
            match self.stream.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(data)]) {
                Ok(0) => return Ok(Arrival::End),
                Ok(length) => {
                    self.filled += length;
                    self.polls = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.poll_failed();
                    return Ok(Arrival::Nothing);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.arrived()
    }

    /// Sets how the kernel acknowledges: small slices delayed, long ones at once.
    fn set_acknowledgement(&mut self, length: usize) {
        let is_small = length <= SMALL_MAX;
        let is_due = if is_small {
            self.arrived >= self.quickack_off_at + QUICKACK_INTERVAL
        } else {
            self.quickack_off_at > 0
        };
        if is_due {
            self.quickack_off_at = if is_small { self.arrived } else { 0 };
            // A hint: nothing depends on it.
            let _ = set_tcp_quickack(&self.stream, !is_small);
        }
    }

    /// A poll found nothing. If the sender's kernel may publish_held slices until the latest is acknowledged, it is acknowledged after
    /// so many polls.
    #[inline]
    fn poll_failed(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.is_held && self.polls == POLLS_BEFORE_ACK {
            // The first call acknowledges what was not, the second keeps acknowledgements delayed. If they fail, so does the
            // next read.
            let _ = set_tcp_quickack(&self.stream, true);
            let _ = set_tcp_quickack(&self.stream, false);
        }
    }

    /// Whether slices have been small lately.
    #[inline]
    pub(crate) const fn is_of_small(&self) -> bool {
        self.quickack_off_at > 0
    }

    /// Polls for the next slice.
    pub(crate) fn arrived(&mut self) -> io::Result<Arrival> {
        // What follows a slice in a posted buffer may go to a posted buffer too, once that was released.
        if self.arrived - self.taken == u64::from(DEPTH) || self.is_in_posted {
            return Ok(Arrival::Nothing);
        }
        if self.posted.is_some() {
            return self.receive_posted();
        }
        let start = (self.arrived % u64::from(DEPTH)) as usize * STRIDE + 64 - self.header;
        let Self { stream, memory, filled, excess, used, seal, header: before, .. } = self;
        let before = *before;
        let whole = &mut memory[start..][..before + SLOT];
        loop {
            let header = Header::read(&whole[..*filled])?;
            let end = before + header.map_or(0, |header| header.length);
            if let Some(Header { mark, length, is_held }) = header
                && *filled >= end
            {
                if let Some(seal) = seal {
                    let (header, data) = whole[..end].split_at(before);
                    check(seal, header, data)?;
                }
                // Bytes beyond the end belong to the next slice.
                if *filled > end {
                    excess.clear();
                    excess.extend_from_slice(&whole[end..*filled]);
                    *used = 0;
                }
                *filled = 0;
                self.arrived += 1;
                self.is_held = is_held;
                self.set_acknowledgement(length);
                return Ok(Arrival::Slice(mark));
            }
            let size = &excess[*used..];
            if !size.is_empty() {
                let length = size.len().min(end - *filled);
                whole[*filled..][..length].copy_from_slice(&size[..length]);
                *used += length;
                *filled += length;
                continue;
            }
            match stream.read(&mut whole[*filled..end.max(before + READ_BYTES)]) {
                Ok(0) => return Ok(Arrival::End),
                Ok(length) => {
                    *filled += length;
                    self.polls = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.poll_failed();
                    return Ok(Arrival::Nothing);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::super::header::SEALED_HEADER;
    use super::*;
    use crate::seal::Seals;

    fn pair() -> (Sender, Receiver) {
        pair_that_shares(false)
    }

    fn pair_that_shares(cores: bool) -> (Sender, Receiver) {
        let (there, here) = streams(false);
        (Sender::new(there, cores).unwrap(), Receiver::new(here).unwrap())
    }

    fn streams(are_sealed: bool) -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let seals = are_sealed.then(|| Seals { send: Seal::new(&[1; 16]), receive: Seal::new(&[1; 16]) });
        let accepted = listener.accept().unwrap().0;
        (Stream { stream, seals: seals.clone() }, Stream { stream: accepted, seals })
    }

    fn sealed_pair() -> (Sender, Receiver) {
        let (there, here) = streams(true);
        (Sender::new(there, false).unwrap(), Receiver::new(here).unwrap())
    }

    fn slot(memory: &[u8], number: u64, length: usize) -> &[u8] {
        &memory[(number % 8) as usize * STRIDE + 64..][..length]
    }

    #[test]
    fn where_ranks_share_cores_send_buffers_are_smaller() {
        let size = |stream: &TcpStream| rustix::net::sockopt::socket_send_buffer_size(stream).unwrap();
        for (shares_cores, wanted) in [(false, SEND_BUFFER_HERE), (true, SEND_BUFFER_SHARED)] {
            let (sender, receiver) = pair_that_shares(shares_cores);
            // The kernel may have a lower limit.
            set_socket_send_buffer_size(&receiver.stream, wanted).unwrap();
            assert_eq!(size(&sender.stream), size(&receiver.stream));
        }
    }

    /// A pair with five small slices in flight, of which one has arrived: the others are held.
    fn pair_that_holds() -> (Sender, Receiver) {
        // The kernel acknowledges by itself after a while, possibly before all are sent.
        let tries = (0..100).map(|_| {
            let (mut sender, receiver) = pair();
            set_tcp_quickack(&receiver.stream, false).unwrap();
            (0..5).for_each(|number| publish_held(&mut sender, number));
            (sender, receiver)
        });
        let mut holding = tries.filter(|(_, receiver)| unread(receiver) == (HEADER + 100) as u64);
        holding.next().expect("the system holds back what follows what was not acknowledged")
    }

    /// A small slice of a burst: the kernel may publish_held what follows.
    fn publish_held(sender: &mut Sender, number: u64) {
        let slot = (number % u64::from(DEPTH)) as u32;
        assert!(sender.publish(slot, 100, Mark(number)));
        sender.push(true);
        assert_eq!((sender.handed_over(), sender.has_unsent(), sender.is_holding()), (1, false, true));
    }

    /// Bytes that have arrived and were not read.
    fn unread(receiver: &Receiver) -> u64 {
        rustix::io::ioctl_fionread(&receiver.stream).unwrap()
    }

    /// Receives so many slices, which must arrive.
    fn take(receiver: &mut Receiver, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let deadline = Instant::now() + Duration::from_mins(1);
            loop {
                match receiver.arrived().unwrap() {
                    Arrival::Slice(mark) => break assert_eq!(mark, Mark(number)),
                    Arrival::Nothing => assert!(Instant::now() < deadline, "slice {number} has not come"),
                    _ => panic!("the stream is over"),
                }
            }
            receiver.release();
        }
    }

    #[test]
    fn held_slices_are_sent_when_the_receiver_polls() {
        let (mut sender, mut receiver) = pair_that_holds();
        take(&mut receiver, 0..1);
        // Only the receiver runs.
        let polls = (0..=POLLS_BEFORE_ACK)
            .take_while(|_| matches!(receiver.arrived().unwrap(), Arrival::Nothing))
            .count();
        assert!(polls <= POLLS_BEFORE_ACK as usize, "it is not there after {polls} polls");
        receiver.release();
        take(&mut receiver, 2..5);
        (5..8).for_each(|number| publish_held(&mut sender, number));
        take(&mut receiver, 5..8);
    }

    #[test]
    fn held_slices_are_sent_when_flushed() {
        let (mut sender, receiver) = pair_that_holds();
        assert_eq!((sender.flush_held(), sender.flush_held()), (Some(4), None));
        assert_eq!(unread(&receiver), 5 * (HEADER + 100) as u64);
    }

    #[test]
    fn held_slices_are_sent_with_others() {
        let (mut sender, receiver) = pair_that_holds();
        sender.publish(5, 100, Mark(5));
        sender.push(false);
        assert!(!sender.is_holding());
        assert_eq!(unread(&receiver), 6 * (HEADER + 100) as u64);
    }

    /// The end of a long slice is not held behind small ones.
    #[test]
    fn held_slices_are_sent_before_a_longer_one() {
        let (mut sender, mut receiver) = pair_that_holds();
        assert!(!sender.publish(5, SMALL_MAX + 1, Mark(5)));
        assert_eq!(sender.flush().unwrap(), 1);
        assert!(!sender.is_holding());
        assert_eq!(unread(&receiver), (6 * HEADER + 500 + SMALL_MAX + 1) as u64);
        take(&mut receiver, 0..6);
    }

    #[test]
    fn held_slices_are_sent_when_the_sender_is_dropped() {
        let (sender, mut receiver) = pair_that_holds();
        drop(sender);
        take(&mut receiver, 0..5);
        assert!(matches!(receiver.arrived().unwrap(), Arrival::End));
    }

    /// Slices of all lengths, sent in bursts, arrive whole and in order, and never more than there are slots.
    #[test]
    fn slices_arrive_whole_and_in_order() {
        for (mut sender, mut receiver) in [pair(), sealed_pair()] {
            whole_and_in_order(&mut sender, &mut receiver);
            drop(sender);
            assert!(matches!(receiver.arrived().unwrap(), Arrival::End));
        }
    }

    fn whole_and_in_order(sender: &mut Sender, receiver: &mut Receiver) {
        let mut random = railnet_core::Random::from_seed(3);
        let lengths: Vec<usize> =
            (0..400).map(|_| *random.pick(&[0, 1, 8, 100, 4000, SLOT - 1, SLOT])).collect();
        let (mut sent, mut freed, mut taken) = (0, 0, 0);
        while taken < lengths.len() as u64 {
            while sent < lengths.len() as u64 && sent - freed < 8 {
                let (at, length) = ((sent % 8) as usize * STRIDE + 64, lengths[sent as usize]);
                sender.memory[at..at + length].fill(sent as u8);
                sender.publish((sent % 8) as u32, length, Mark(sent));
                sent += 1;
            }
            freed += sender.flush().unwrap();
            for _ in 0..random.below(12) {
                let Arrival::Slice(mark) = receiver.arrived().unwrap() else { break };
                let number = receiver.arrived - 1;
                assert_eq!(mark, Mark(number));
                let length = lengths[number as usize];
                assert!(slot(&receiver.memory, number, length).iter().all(|byte| *byte == number as u8));
            }
            while taken < receiver.arrived {
                receiver.release();
                taken += 1;
            }
        }
    }

    /// Slices go to their posted buffers if these were posted in time and are as long as the slice; others go to slots.
    #[test]
    fn slices_go_to_posted_buffers() {
        for (sender, receiver) in [pair(), sealed_pair()] {
            go_to_posted_buffers(sender, receiver);
        }
    }

    fn go_to_posted_buffers(mut sender: Sender, mut receiver: Receiver) {
        let mut random = railnet_core::Random::from_seed(4);
        let mut place = vec![0; SLOT];
        let (mut receive_posted, mut others) = (0, 0);
        for number in 0..600_u64 {
            let length = *random.pick(&[100, 20_000, SLOT]);
            let said = *random.pick(&[length, length, length, 50_000]);
            let is_said = random.below(4) > 0;
            let mut send = || {
                let at = (number % 8) as usize * STRIDE + 64;
                sender.memory[at..at + length].fill(number as u8);
                sender.publish((number % 8) as u32, length, Mark(number));
                sender.flush().unwrap();
            };
            let is_early = random.below(2) == 0;
            if is_early {
                send();
            }
            place.fill(!(number as u8));
            if is_said {
                receiver.post(PostedBuffer::of(&mut place, said));
            }
            if !is_early {
                assert!(matches!(receiver.arrived().unwrap(), Arrival::Nothing));
                send();
            }
            let mark = loop {
                sender.flush().unwrap();
                match receiver.arrived().unwrap() {
                    Arrival::Slice(mark) => break mark,
                    Arrival::Nothing => std::thread::yield_now(),
                    _ => panic!("it is not over"),
                }
            };
            assert_eq!(mark, Mark(number));
            assert_eq!(receiver.is_in_posted(), is_said && said == length, "slice {number}");
            let found = if receiver.is_in_posted() {
                receive_posted += 1;
                &place[..length]
            } else {
                others += 1;
                slot(&receiver.memory, number, length)
            };
            assert!(found.iter().all(|byte| *byte == number as u8), "slice {number}");
            assert!(place[said..].iter().all(|byte| *byte == !(number as u8)));
            receiver.release();
            assert!(!receiver.is_in_posted());
        }
        assert!(receive_posted > 200 && others > 100, "{receive_posted} and {others}");
    }

    #[test]
    fn a_length_that_cannot_be_is_an_error() {
        let (sender, mut receiver) = pair();
        let mut header = (SLOT as u64 + 1).to_le_bytes().to_vec();
        header.extend([0; 8]);
        (&sender.stream).write_all(&header).unwrap();
        let refused = (0..10_000).any(|_| {
            std::thread::yield_now();
            receiver.arrived().is_err()
        });
        assert!(refused);
    }

    /// Data of a stream, changed by a man in the middle.
    #[test]
    fn a_slice_that_was_changed_left_out_repeated_or_put_in_is_an_error() {
        type Change = fn(&mut Vec<u8>, usize);
        let changes: [(&str, Change); 5] = [
            ("nothing", |_, _| {}),
            ("a byte of data", |bytes, whole| bytes[whole + SEALED_HEADER + 3] ^= 1),
            ("the mark", |bytes, whole| bytes[whole + 9] ^= 1),
            ("the first left out", |bytes, whole| drop(bytes.drain(..whole))),
            ("the first repeated", |bytes, whole| {
                let first = bytes[..whole].to_vec();
                bytes.splice(whole..whole, first);
            }),
        ];
        for (what, change) in changes {
            for posts in [false, true] {
                let (mut sender, between) = {
                    let (there, here) = streams(true);
                    (Sender::new(there, false).unwrap(), here)
                };
                let (mut forward, here) = {
                    let (there, here) = streams(true);
                    (there.stream, here)
                };
                let mut receiver = Receiver::new(here).unwrap();
                for number in 0..3 {
                    sender.publish(number, 100, Mark(u64::from(number)));
                }
                sender.flush().unwrap();
                let whole = SEALED_HEADER + 100;
                let mut bytes = vec![0; 3 * whole];
                (&between.stream).read_exact(&mut bytes).unwrap();
                change(&mut bytes, whole);
                forward.write_all(&bytes).unwrap();
                drop(forward);
                let mut place = vec![0; 100];
                let mut taken = 0;
                let end = loop {
                    if posts {
                        receiver.post(PostedBuffer::of(&mut place, 100));
                    }
                    match receiver.arrived() {
                        Ok(Arrival::Slice(_)) => {
                            taken += 1;
                            receiver.release();
                        }
                        Ok(Arrival::Nothing) => std::thread::yield_now(),
                        Ok(_) => break None,
                        Err(error) => break Some(error.kind()),
                    }
                };
                let expected = match what {
                    "nothing" => (None, 3),
                    "the first left out" => (Some(io::ErrorKind::InvalidData), 0),
                    _ => (Some(io::ErrorKind::InvalidData), 1),
                };
                assert_eq!((end, taken), expected, "{what}, posted: {posts}");
            }
        }
    }
}
