//! The two ends of a stream: slots in memory, each with room for its header in front, so that a slice goes to the kernel
//! and comes from it in one piece.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use railnet_coll::machine::Mark;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_nodelay, set_tcp_quickack};

use super::Stream;
use super::header::{HEADER, Header, PATIENT, check, covered, header_bytes};
use crate::seal::Seal;
use crate::transport::limits::{DEPTH, TCP_SLOT as SLOT};
use crate::transport::{Arrival, PostedBuffer, StableSource};

/// Bytes that are read at once where the slice that comes is not known to be longer: what follows it is moved to its own slot.
const READ: usize = 128 << 10;
/// Bytes from slot to slot. Data begins at a multiple of 64.
const STRIDE: usize = 64 + SLOT;

/// After so many small slices the system is asked again not to acknowledge each by itself: nothing is sent the other way
/// that could carry it, and a packet of its own costs as much as one with data. It forgets this after a pause.
const CALM: u64 = 16;
/// Bytes of a small slice. Senders of larger ones wait for acknowledgements.
const SMALL: usize = 16 << 10;

/// Bytes that the system shall keep of what is sent; and on this host, where more than the caches hold is of no use. With 4 MiB an
/// AlltoAll of 8 MiB took 1.25 times as long, with 256 KiB a Broadcast of 2 MiB. Where ranks share cores, it is how far a rank goes on
/// before it lets others run: four on two cores take 1.05 and 4.4 ms for Broadcasts of 2 and 8 MiB with 256 KiB, and 1.6 and 7.0 with
/// 4 MiB.
const SEND_BUFFER: usize = 4 << 20;
const SEND_BUFFER_HERE: usize = 512 << 10;
const SEND_BUFFER_SHARED: usize = 256 << 10;

/// Looks in vain, some 4 µs, after which a receiver acknowledges the latest such slice. With 1 each brings a packet of its own and a
/// stream of small Broadcasts takes half as long again; with 32 the last of four ranks on two cores has its end 0.4 ms after the root
/// in place of 0.25.
const LOOKS: u32 = 8;

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
    waiting: VecDeque<Slice>,
    /// Where the next slice of a slot lies, if that is not the slot.
    lent: [Option<StableSource>; DEPTH as usize],
    /// Bytes of the first of them that are, header included.
    written: usize,
    /// Slices that are all with the kernel, and that nobody has asked for since.
    gone: u64,
    /// How many slices the kernel may hold back until one before them is acknowledged; `None` where it sends each at once.
    held: Option<u32>,
}

/// A slice on its way to the kernel.
#[derive(Clone, Copy, Debug)]
struct Slice {
    slot: u32,
    length: usize,
    lent: Option<StableSource>,
}

impl Sender {
    pub(super) fn new(stream: Stream, shares_cores: bool) -> io::Result<Self> {
        let Stream { stream, seals } = stream;
        let seal = seals.map(|seals| seals.send);
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // A buffer that holds less than a slice makes every slice wait for an acknowledgement, which is sent late. The
        // system takes its limit for more than that.
        let is_here =
            matches!((stream.peer_addr(), stream.local_addr()), (Ok(peer), Ok(own)) if peer.ip() == own.ip());
        let kept = match (is_here, shares_cores) {
            (true, true) => SEND_BUFFER_SHARED,
            (true, false) => SEND_BUFFER_HERE,
            (false, _) => SEND_BUFFER,
        };
        set_socket_send_buffer_size(&stream, kept)?;
        Ok(Self {
            stream,
            header: header_bytes(seal.as_ref()),
            seal,
            memory: memory(),
            waiting: VecDeque::with_capacity(DEPTH as usize),
            lent: Default::default(),
            written: 0,
            gone: 0,
            held: None,
        })
    }

    /// The data of the next slice in a slot stays where it is until the kernel has taken it.
    pub(crate) fn lend(&mut self, slot: u32, lent: StableSource) {
        self.lent[slot as usize] = Some(lent);
    }

    pub(crate) fn data(&mut self, slot: u32, length: usize) -> *mut u8 {
        data(&mut self.memory, slot, length)
    }

    /// Hands over the next slice. Whether it is small and should go before anything is waited for; others go with the next
    /// [`Sender::flush`], together.
    pub(crate) fn publish(&mut self, slot: u32, length: usize, mark: Mark) -> bool {
        let whole = &mut self.memory[slot as usize * STRIDE..][..STRIDE];
        let (header, data) = whole[64 - self.header..].split_at_mut(self.header);
        header[..8].copy_from_slice(&(length as u64).to_le_bytes());
        header[8..HEADER].copy_from_slice(&mark.0.to_le_bytes());
        let lent = self.lent[slot as usize].take();
        if let Some(seal) = &mut self.seal {
            let data = lent.as_ref().map_or(&data[..length], |lent| lent.bytes(length));
            let code = seal.code(&[&covered(header), data]);
            header[HEADER..].copy_from_slice(&code);
        }
        self.waiting.push_back(Slice { slot, length, lent });
        length <= SMALL
    }

    /// Gives the kernel what it takes. Where more will follow soon, it may hold that back until this is acknowledged: its receiver
    /// is told, and acknowledges it when it has nothing else to do.
    pub(crate) fn push(&mut self, more: bool) {
        // A slice whose header is gone already can tell nothing.
        let more = more && self.written == 0;
        if more {
            for slice in &self.waiting {
                self.memory[slice.slot as usize * STRIDE + 64 - self.header + 7] |= (PATIENT >> 56) as u8;
            }
        } else {
            self.flush_held();
        }
        // What goes wrong goes wrong again when it is tried next, and is heard of then.
        let _ = self.write();
        match &mut self.held {
            Some(held) => *held += 1,
            // Only now: a receiver that does not know of any such slice would not acknowledge it.
            None if more && set_tcp_nodelay(&self.stream, false).is_ok() => self.held = Some(0),
            None => {}
        }
    }

    /// Whether the kernel may hold something back.
    #[inline]
    pub(crate) const fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Has the kernel send what it holds back, and each that follows at once. How many slices it may have held, if any.
    pub(crate) fn flush_held(&mut self) -> Option<u32> {
        let held = self.held.take()?;
        // If that fails, so will what is sent next.
        let _ = set_tcp_nodelay(&self.stream, true);
        Some(held)
    }

    /// Whether the kernel has not taken everything yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many slices are all with the kernel since the last question.
    #[inline]
    pub(crate) fn gone(&mut self) -> u64 {
        std::mem::take(&mut self.gone)
    }

    /// Gives the kernel what it takes. Tells how many slices are all with it now, and were not told of.
    pub(crate) fn flush(&mut self) -> io::Result<u64> {
        // The end of a longer slice would be held back.
        if !self.waiting.is_empty() {
            self.flush_held();
        }
        self.write()?;
        Ok(self.gone())
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let Self { stream, memory, waiting, written, gone, header, .. } = self;
            let header = *header;
            let mut pieces = [IoSlice::new(&[]); 2 * DEPTH as usize];
            let mut count = 0;
            for slice in waiting.iter() {
                let own = if slice.lent.is_some() { header } else { header + slice.length };
                pieces[count] = IoSlice::new(&memory[slice.slot as usize * STRIDE + 64 - header..][..own]);
                count += 1;
                if let Some(lent) = &slice.lent {
                    pieces[count] = IoSlice::new(lent.bytes(slice.length));
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
            while let Some(Slice { length, .. }) = waiting.front()
                && *written >= header + length
            {
                *written -= header + length;
                waiting.pop_front();
                *gone += 1;
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
    /// Bytes of the slice that arrives now, header included.
    filled: usize,
    /// Bytes that were read after the end of a slice, and how many of them have come to slots since.
    ahead: Vec<u8>,
    used: usize,
    /// Where the data of the next slice goes, if that is not its slot.
    landing: Option<PostedBuffer>,
    /// Whether the slice that is there is not in its slot.
    is_in_posted: bool,
    /// The number of the slice at which the system was last told to be in no hurry with acknowledgements; 0 where it is.
    calmed: u64,
    /// Whether others may be held back behind the latest slice, and looks in vain since the last bytes came.
    is_patient: bool,
    looks: u32,
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
            ahead: Vec::new(),
            used: 0,
            landing: None,
            is_in_posted: false,
            calmed: 0,
            is_patient: false,
            looks: 0,
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

    /// The data of the next slice goes here, if nothing of it has come yet.
    pub(crate) fn post(&mut self, landing: PostedBuffer) {
        if self.arrived == self.taken && self.filled == 0 && self.used == self.ahead.len() {
            self.landing = Some(landing);
        }
    }

    /// Whether the slice that is there is where it should go.
    #[inline]
    pub(crate) const fn is_in_posted(&self) -> bool {
        self.is_in_posted
    }

    /// The next slice, where it goes. A slice of another length goes to its slot: then ranks do not mean the same, and will be
    /// told so.
    fn landed(&mut self) -> io::Result<Arrival> {
        let start = (self.arrived % u64::from(DEPTH)) as usize * STRIDE + 64 - self.header;
        let before = self.header;
        while let Some(landing) = &mut self.landing {
            let whole = &mut self.memory[start..][..before + SLOT];
            if let Some(Header { mark, length, is_patient }) =
                Header::read(&whole[..self.filled.min(before)])?
            {
                if length != landing.length() {
                    let there = self.filled.saturating_sub(before);
                    whole[before..][..there].copy_from_slice(&landing.bytes()[..there]);
                    self.landing = None;
                    break;
                }
                if self.filled == before + length {
                    if let Some(seal) = &mut self.seal {
                        check(seal, &whole[..before], landing.bytes())?;
                    }
                    (self.landing, self.is_in_posted) = (None, true);
                    self.filled = 0;
                    self.arrived += 1;
                    self.is_patient = is_patient;
                    self.calm(length);
                    return Ok(Arrival::Slice(mark));
                }
            }
            let header = &mut whole[self.filled.min(before)..before];
            let data = &mut landing.bytes()[self.filled.saturating_sub(before)..];
            match self.stream.read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(data)]) {
                Ok(0) => return Ok(Arrival::End),
                Ok(length) => {
                    self.filled += length;
                    self.looks = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ask();
                    return Ok(Arrival::Nothing);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.arrived()
    }

    /// Tells the system how to acknowledge what comes: not each small slice by itself, large ones at once.
    fn calm(&mut self, length: usize) {
        let is_small = length <= SMALL;
        let is_due = if is_small { self.arrived >= self.calmed + CALM } else { self.calmed > 0 };
        if is_due {
            self.calmed = if is_small { self.arrived } else { 0 };
            // It is a wish, and nothing depends on it.
            let _ = set_tcp_quickack(&self.stream, !is_small);
        }
    }

    /// Nothing has come. If the kernel of the sender may hold something back until what came is acknowledged, and it was looked for
    /// in vain for a while, that is acknowledged.
    #[inline]
    fn ask(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.is_patient && self.looks == LOOKS {
            // The first has the system acknowledge what it has not, the second is how it should go on. If they fail, so will
            // what is read next.
            let _ = set_tcp_quickack(&self.stream, true);
            let _ = set_tcp_quickack(&self.stream, false);
        }
    }

    /// Whether slices are small now, as far as it can know.
    #[inline]
    pub(crate) const fn is_of_small(&self) -> bool {
        self.calmed > 0
    }

    /// The next slice, if it is there.
    pub(crate) fn arrived(&mut self) -> io::Result<Arrival> {
        // What comes behind a slice that has landed may land too, when that was taken.
        if self.arrived - self.taken == u64::from(DEPTH) || self.is_in_posted {
            return Ok(Arrival::Nothing);
        }
        if self.landing.is_some() {
            return self.landed();
        }
        let start = (self.arrived % u64::from(DEPTH)) as usize * STRIDE + 64 - self.header;
        let Self { stream, memory, filled, ahead, used, seal, header: before, .. } = self;
        let before = *before;
        let whole = &mut memory[start..][..before + SLOT];
        loop {
            let header = Header::read(&whole[..*filled])?;
            let end = before + header.map_or(0, |header| header.length);
            if let Some(Header { mark, length, is_patient }) = header
                && *filled >= end
            {
                if let Some(seal) = seal {
                    let (header, data) = whole[..end].split_at(before);
                    check(seal, header, data)?;
                }
                // What was read beyond the end is for the next.
                if *filled > end {
                    ahead.clear();
                    ahead.extend_from_slice(&whole[end..*filled]);
                    *used = 0;
                }
                *filled = 0;
                self.arrived += 1;
                self.is_patient = is_patient;
                self.calm(length);
                return Ok(Arrival::Slice(mark));
            }
            let kept = &ahead[*used..];
            if !kept.is_empty() {
                let length = kept.len().min(end - *filled);
                whole[*filled..][..length].copy_from_slice(&kept[..length]);
                *used += length;
                *filled += length;
                continue;
            }
            match stream.read(&mut whole[*filled..end.max(before + READ)]) {
                Ok(0) => return Ok(Arrival::End),
                Ok(length) => {
                    *filled += length;
                    self.looks = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ask();
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
    fn where_ranks_share_cores_the_kernel_keeps_less() {
        let kept = |stream: &TcpStream| rustix::net::sockopt::socket_send_buffer_size(stream).unwrap();
        for (shares_cores, wanted) in [(false, SEND_BUFFER_HERE), (true, SEND_BUFFER_SHARED)] {
            let (sender, receiver) = pair_that_shares(shares_cores);
            // The system may have a lower limit.
            set_socket_send_buffer_size(&receiver.stream, wanted).unwrap();
            assert_eq!(kept(&sender.stream), kept(&receiver.stream));
        }
    }

    /// A pair with five small slices of a stream on their way, of which one has come: the others are held back.
    fn pair_that_holds() -> (Sender, Receiver) {
        // The system acknowledges by itself after a while, which may be before this has sent all.
        let tries = (0..100).map(|_| {
            let (mut sender, receiver) = pair();
            set_tcp_quickack(&receiver.stream, false).unwrap();
            (0..5).for_each(|number| hold(&mut sender, number));
            (sender, receiver)
        });
        let mut holding = tries.filter(|(_, receiver)| unread(receiver) == (HEADER + 100) as u64);
        holding.next().expect("the system holds back what follows what was not acknowledged")
    }

    /// A small slice of a stream of calls: the kernel may hold back what follows.
    fn hold(sender: &mut Sender, number: u64) {
        let slot = (number % u64::from(DEPTH)) as u32;
        assert!(sender.publish(slot, 100, Mark(number)));
        sender.push(true);
        assert_eq!((sender.gone(), sender.is_waiting(), sender.is_holding()), (1, false, true));
    }

    /// Bytes that have come and were not read.
    fn unread(receiver: &Receiver) -> u64 {
        rustix::io::ioctl_fionread(&receiver.stream).unwrap()
    }

    /// Takes so many slices, which must come.
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
    fn what_is_held_back_goes_when_it_was_looked_for() {
        let (mut sender, mut receiver) = pair_that_holds();
        take(&mut receiver, 0..1);
        // Nobody but the receiver does anything.
        let looks =
            (0..=LOOKS).take_while(|_| matches!(receiver.arrived().unwrap(), Arrival::Nothing)).count();
        assert!(looks <= LOOKS as usize, "it is not there after {looks} looks");
        receiver.release();
        take(&mut receiver, 2..5);
        (5..8).for_each(|number| hold(&mut sender, number));
        take(&mut receiver, 5..8);
    }

    #[test]
    fn what_is_held_back_goes_when_it_is_let_go() {
        let (mut sender, receiver) = pair_that_holds();
        assert_eq!((sender.flush_held(), sender.flush_held()), (Some(4), None));
        assert_eq!(unread(&receiver), 5 * (HEADER + 100) as u64);
    }

    #[test]
    fn what_is_held_back_goes_with_what_is_not() {
        let (mut sender, receiver) = pair_that_holds();
        sender.publish(5, 100, Mark(5));
        sender.push(false);
        assert!(!sender.is_holding());
        assert_eq!(unread(&receiver), 6 * (HEADER + 100) as u64);
    }

    /// The end of a longer slice is not held back behind small ones.
    #[test]
    fn what_is_held_back_goes_before_a_longer_slice() {
        let (mut sender, mut receiver) = pair_that_holds();
        assert!(!sender.publish(5, SMALL + 1, Mark(5)));
        assert_eq!(sender.flush().unwrap(), 1);
        assert!(!sender.is_holding());
        assert_eq!(unread(&receiver), (6 * HEADER + 500 + SMALL + 1) as u64);
        take(&mut receiver, 0..6);
    }

    #[test]
    fn what_is_held_back_goes_when_the_sender_is_gone() {
        let (sender, mut receiver) = pair_that_holds();
        drop(sender);
        take(&mut receiver, 0..5);
        assert!(matches!(receiver.arrived().unwrap(), Arrival::End));
    }

    /// Slices of all lengths, sent in bursts: they come one by one, whole, in order, and never more than there are slots.
    #[test]
    fn slices_arrive_whole_and_in_order() {
        for (mut sender, mut receiver) in [pair(), sealed_pair()] {
            whole_and_in_order(&mut sender, &mut receiver);
            drop(sender);
            assert!(matches!(receiver.arrived().unwrap(), Arrival::End));
        }
    }

    fn whole_and_in_order(sender: &mut Sender, receiver: &mut Receiver) {
        let mut dice = railnet_core::Random::from_seed(3);
        let lengths: Vec<usize> =
            (0..400).map(|_| *dice.pick(&[0, 1, 8, 100, 4000, SLOT - 1, SLOT])).collect();
        let (mut sent, mut freed, mut taken) = (0, 0, 0);
        while taken < lengths.len() as u64 {
            while sent < lengths.len() as u64 && sent - freed < 8 {
                let (at, length) = ((sent % 8) as usize * STRIDE + 64, lengths[sent as usize]);
                sender.memory[at..at + length].fill(sent as u8);
                sender.publish((sent % 8) as u32, length, Mark(sent));
                sent += 1;
            }
            freed += sender.flush().unwrap();
            for _ in 0..dice.below(12) {
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

    /// Slices go where they should, if that was said in time and they are as long as was said; others go to slots.
    #[test]
    fn slices_land_where_they_go() {
        for (sender, receiver) in [pair(), sealed_pair()] {
            land_where_they_go(sender, receiver);
        }
    }

    fn land_where_they_go(mut sender: Sender, mut receiver: Receiver) {
        let mut dice = railnet_core::Random::from_seed(4);
        let mut place = vec![0; SLOT];
        let (mut landed, mut others) = (0, 0);
        for number in 0..600_u64 {
            let length = *dice.pick(&[100, 20_000, SLOT]);
            let said = *dice.pick(&[length, length, length, 50_000]);
            let is_said = dice.below(4) > 0;
            let mut send = || {
                let at = (number % 8) as usize * STRIDE + 64;
                sender.memory[at..at + length].fill(number as u8);
                sender.publish((number % 8) as u32, length, Mark(number));
                sender.flush().unwrap();
            };
            let is_early = dice.below(2) == 0;
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
                landed += 1;
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
        assert!(landed > 200 && others > 100, "{landed} and {others}");
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

    /// What goes along a stream, taken up by somebody in between who changes it.
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
            for lands in [false, true] {
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
                    if lands {
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
                assert_eq!((end, taken), expected, "{what}, landing: {lands}");
            }
        }
    }
}
