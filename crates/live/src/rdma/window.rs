//! One-sided windows on the NIC of this process: `railnet_coll::window` over queue pairs of their own.
//!
//! What is put is copied to memory that the NIC knows and leaves from there, so that the caller's buffer is its own again
//! at once. Everything else is the NIC's: the target's process does nothing.

use std::io;

use railnet_coll::conduit::SlotMemory;
use railnet_coll::window::{At, GroupId, Rma, RmaOutput, WindowError, WindowHandle, WindowId, Windows};
use railnet_core::{Bytes, Psn, QueuePairNumber, Rank};
use railnet_nic::memory::SpaceId;
use railnet_nic::{Access, Completion, Connection, Key, Path, QueuePairConfig, Remote, Service};
use railnet_wire::Gid;

use super::Rdma;
use crate::memory::Buffer;
use crate::message::Malformed;
use crate::message::fields::Reader;

/// Completions with this bit in their token belong to windows.
pub(super) const WINDOWS: u32 = 1 << 31;
/// The window of all ranks, and the memory from which this rank puts: the two that each of these knows.
pub(crate) const SHARED: WindowId = WindowId(0);
pub(crate) const STAGING: WindowId = WindowId(1);
/// READs and atomics to a peer at once.
const READS: u8 = 8;

/// Counts of signals of a rank's part of a window: a word for each rank that may signal, and one more for the NIC.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// Memory that other processes of the host have mapped: that of the window's data, or of signals alone.
    pub(crate) memory: Buffer,
    /// Where they begin in it.
    pub(crate) start: usize,
}

impl Signals {
    /// How often a rank has signalled.
    pub(crate) fn count(&self, rank: usize) -> u64 {
        self.memory.load(self.start + 8 * rank)
    }

    /// A rank signals, after all that this thread wrote before.
    pub(crate) fn add(&self, rank: usize) {
        self.memory.add(self.start + 8 * rank, 1);
    }
}

/// What other ranks have to know of this rank's part of a window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WindowCard {
    data: WindowHandle,
    signals: Remote,
    psn: Psn,
    /// The queue pair for each rank.
    queue_pairs: Vec<QueuePairNumber>,
}

impl WindowCard {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for long in [self.data.address, self.data.length.0, self.signals.address] {
            out.extend(long.to_le_bytes());
        }
        for number in [self.data.key.0, self.signals.key.0, self.psn.value()] {
            out.extend(number.to_le_bytes());
        }
        for number in &self.queue_pairs {
            out.extend(number.value().to_le_bytes());
        }
        out
    }

    pub(crate) fn read(reader: &mut Reader<'_>, ranks: usize) -> Result<Self, Malformed> {
        let (address, length) = (reader.long("window")?, Bytes(reader.long("window")?));
        let signals = reader.long("signals")?;
        let (key, signals_key) = (Key(reader.number("key")?), Key(reader.number("key")?));
        let psn = Psn::new(reader.number("sequence number")?);
        let mut queue_pairs = Vec::with_capacity(ranks);
        for _ in 0..ranks {
            queue_pairs.push(QueuePairNumber::new(reader.number("queue pair")?));
        }
        let signals = Remote { address: signals, key: signals_key };
        Ok(Self { data: WindowHandle { address, length, key }, signals, psn, queue_pairs })
    }
}

/// The end of a window at this NIC.
#[derive(Debug)]
pub(super) struct End {
    windows: Windows,
    /// The ranks of the world that its ranks are.
    members: Vec<u32>,
    card: WindowCard,
    rank: usize,
    spaces: Vec<SpaceId>,
    keys: Vec<Key>,
    /// Groups that are over.
    finished: u64,
    failure: Option<String>,
}

impl End {
    /// Takes what has come of it.
    fn drain(&mut self) {
        while let Some(output) = self.windows.poll_output() {
            match output {
                RmaOutput::Finished(GroupId(group)) => self.finished = group + 1,
                RmaOutput::Failed(error) => self.failure = Some(error.to_string()),
            }
        }
    }

    /// Whether all that was posted is done, as far as ranks are there.
    pub(super) fn is_drained(&self, gone: &[u32]) -> bool {
        let is_hopeless = self.failure.is_some() || self.members.iter().any(|member| gone.contains(member));
        self.windows.unfinished() == 0 || is_hopeless
    }

    pub(super) fn queue_pairs(&self) -> &[QueuePairNumber] {
        &self.card.queue_pairs
    }

    pub(super) fn has_peers(&self, gone: &[u32]) -> bool {
        let others = self.members.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        others.into_iter().any(|(_, member)| !gone.contains(member))
    }
}

impl Rdma {
    /// This rank's part of a window among these ranks of the world. What is put leaves from `staging`.
    pub(crate) fn open_window(
        &mut self,
        rank: u32,
        members: &[u32],
        memory: &Buffer,
        length: u64,
        counts: &Signals,
        staging: &Buffer,
    ) -> io::Result<(u32, WindowCard)> {
        let ranks = members.len() as u32;
        let token = WINDOWS | self.windows.len() as u32;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let counted = self.driver.memory_mut().add(&counts.memory);
        let space = self.driver.memory_mut().add(memory);
        // A region is not empty: that of a window without data is the first byte of its signals, which nobody can name.
        let data = match length {
            0 => self.register(counted, counts.memory.address(), 1, access)?,
            _ => self.register(space, memory.address(), length, access)?,
        };
        let (start, bytes) = (counts.memory.address() + counts.start as u64, Windows::signal_bytes(ranks));
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let signals = self.register(counted, start, bytes, access)?;
        let staged = self.driver.memory_mut().add(staging);
        let from = self.register(staged, staging.address(), staging.len() as u64, Access::LOCAL_WRITE)?;
        let mut windows = Windows::new(Rank(rank), ranks, token, signals);
        let handle = |memory: &SlotMemory, length: u64| WindowHandle {
            address: memory.address,
            length: Bytes(length),
            key: memory.key,
        };
        let own = handle(&data, length);
        for part in [own, handle(&from, staging.len() as u64)] {
            windows.register_unaligned(part);
        }
        let mut queue_pairs = Vec::with_capacity(members.len());
        for _ in members {
            let config = QueuePairConfig::new(Service::ReliableConnection, self.queue);
            let made = self.driver.nic_mut().create_qp(self.domain, &config);
            queue_pairs.push(made.map_err(io::Error::other)?);
        }
        let psn = Psn::new(self.dice.next_u32());
        let signals = Remote { address: signals.address, key: signals.key };
        let keys = vec![data.key, signals.key, from.key];
        let card = WindowCard { data: own, signals, psn, queue_pairs };
        let end = End {
            windows,
            members: members.to_vec(),
            card: card.clone(),
            rank: rank as usize,
            spaces: vec![space, counted, staged],
            keys,
            finished: 0,
            failure: None,
        };
        self.windows.push(Some(end));
        Ok((token, card))
    }

    /// Connects it to the parts of all other ranks.
    pub(crate) fn connect_window(&mut self, token: u32, cards: &[WindowCard]) -> io::Result<()> {
        let Some(Some(end)) = self.windows.get_mut((token & !WINDOWS) as usize) else { return Ok(()) };
        for (rank, card) in cards.iter().enumerate().filter(|(rank, _)| *rank != end.rank) {
            let address = self.peers[end.members[rank] as usize];
            let own = end.card.queue_pairs[rank];
            let connection = Connection {
                mtu: self.mtu,
                send_psn: end.card.psn,
                receive_psn: card.psn,
                reads: READS,
                timeout: self.options.timeout,
                retry_count: self.options.retry_count,
                rnr_retry: 7,
                ..Connection::to(Gid::from_ip(address.ip()), card.queue_pairs[end.rank])
            };
            let path = Path { traffic_class: self.options.traffic_class, ..connection.path };
            let connection = Connection { path, ..connection };
            let guard = self.guards[end.members[rank] as usize];
            self.driver.connect_guarded(own, address, &connection, guard).map_err(io::Error::other)?;
            let signals = Remote { address: card.signals.address + 8 * end.rank as u64, ..card.signals };
            let peer = Rank(rank as u32);
            end.windows.connect(peer, own, signals);
            end.windows.registered(SHARED, peer, card.data).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Begins a group of operations. Gives how many groups are over when it is.
    pub(crate) fn submit(&mut self, token: u32, operations: Vec<Rma>) -> Result<u64, WindowError> {
        let (nic, mut cx) = self.driver.lend();
        let end = self.windows[(token & !WINDOWS) as usize].as_mut().expect("it was not closed");
        let GroupId(group) = end.windows.submit(nic, &mut cx, operations)?;
        end.drain();
        Ok(group + 1)
    }

    /// How many groups are over, or why none will be any more.
    pub(crate) fn finished(&self, token: u32) -> Result<u64, String> {
        let end = self.windows[(token & !WINDOWS) as usize].as_ref().expect("it was not closed");
        let failure = end.failure.as_ref().or(self.failure.as_ref());
        failure.map_or(Ok(end.finished), |failure| Err(failure.clone()))
    }

    /// A completion of a window's.
    pub(super) fn window_completed(&mut self, completion: &Completion) {
        let index = (completion.work >> 32) as u32 & !WINDOWS;
        let Some(Some(end)) = self.windows.get_mut(index as usize) else { return };
        let (nic, mut cx) = self.driver.lend();
        end.windows.completed(nic, &mut cx, completion);
        end.drain();
    }

    /// Forgets a window that no other rank uses any more.
    pub(crate) fn close_window(&mut self, token: u32) {
        let Some(end) = self.windows[(token & !WINDOWS) as usize].take() else { return };
        for queue_pair in end.card.queue_pairs {
            let gone = self.driver.destroy(queue_pair);
            debug_assert!(gone.is_ok(), "it was made here");
        }
        for key in end.keys {
            let gone = self.driver.nic_mut().dereg_mr(key);
            debug_assert!(gone.is_ok(), "it was registered here");
        }
        for space in end.spaces {
            self.driver.memory_mut().remove(space);
        }
    }
}

/// A place in the window of all ranks.
pub(crate) const fn shared(offset: usize) -> At {
    At { window: SHARED, offset: offset as u64 }
}

/// A place in the memory from which this rank puts.
pub(crate) const fn staged(offset: usize) -> At {
    At { window: STAGING, offset: offset as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let data = WindowHandle { address: 0x7f00_0000_1000, length: Bytes(77), key: Key(5) };
        let signals = Remote { address: 0x7f00_0000_2000, key: Key(6) };
        let queue_pairs = [0x12_3456, 7, 8].map(QueuePairNumber::new).to_vec();
        let card = WindowCard { data, signals, psn: Psn::new(0xff_fffe), queue_pairs };
        let bytes = card.write();
        let read = |bytes: &[u8]| WindowCard::read(&mut Reader::new(bytes), 3);
        assert_eq!(read(&bytes).unwrap(), card);
        assert!((0..bytes.len()).all(|length| read(&bytes[..length]).is_err()));
    }
}
