//! Packets of a run, and their way through the fabric: all of a short run, a sample of a long one.
//!
//! The sample is of runs of consecutive sequence numbers ([`PsnSample`]).

use std::collections::BTreeMap;

use railnet_core::event::{PacketId, SentPacket};
use railnet_core::{Label, Psn, PsnSample, QueuePairNumber};
use smallvec::SmallVec;

use super::schema::{self, NOBODY};
use super::table::{MISSING, Table};

/// The rarest sample: one run in so many.
const THINNEST: u32 = 1 << 10;
/// Bytes of each frame that are kept: the headers of all but the longest.
const FRAME_BYTES: usize = 96;

/// What is kept of a frame: its first bytes, and of a long one its last ones too, the check sequence.
pub fn kept_of(frame: &[u8]) -> SmallVec<[u8; FRAME_BYTES + 4]> {
    let mut kept = SmallVec::from_slice(&frame[..frame.len().min(FRAME_BYTES)]);
    kept.extend_from_slice(&frame[FRAME_BYTES.max(frame.len().saturating_sub(4)).min(frame.len())..]);
    kept
}

/// Who sent it, on which queue pair, its sequence number, opcode and transmission.
type Key = (u32, u32, u32, u8, u16);

/// The queue pair it goes to, its sequence number and opcode.
type Target = (u32, u32, u8);

/// The row of a packet, and where it goes to from where it was last.
type Place = (u32, u32);

/// Congestion notifications have this opcode, and no sequence number of their own.
pub(super) const NOTIFICATION: u8 = 0x81;

/// Columns that are filled in later.
const TO: usize = 4;
const RECEIVED: usize = 9;
const MARKED: usize = 10;
const SYNDROME: usize = 14;
const MESSAGES: usize = 15;

#[derive(Debug)]
pub(super) struct Packets {
    /// The most packets that are kept.
    most: usize,
    /// What is kept.
    pub(super) sample: PsnSample,
    /// From when on nothing is kept any more.
    pub(super) full: Option<u64>,
    pub(super) table: Table,
    pub(super) hops: Table,
    pub(super) frames: Table,
    pub(super) heap: Vec<u8>,
    rows: BTreeMap<Key, u32>,
    /// Packets on their way by the queue pair they go to, their sequence number and opcode, with where they last were.
    under_way: BTreeMap<Target, SmallVec<[Place; 1]>>,
    /// Hops whose frames may still come, by channel and time.
    passing: BTreeMap<(u32, u64), u32>,
    /// The row of the packet that was sent last, where it was kept.
    last: Option<u32>,
}

impl Packets {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            sample: PsnSample::ALL,
            full: None,
            table: Table::new("packets", schema::PACKETS),
            hops: Table::new("hops", schema::HOPS),
            frames: Table::new("frames", schema::FRAMES),
            heap: Vec::new(),
            rows: BTreeMap::new(),
            under_way: BTreeMap::new(),
            passing: BTreeMap::new(),
            last: None,
        }
    }

    pub(super) fn sent(
        &mut self,
        at: u64,
        host: u32,
        packet: PacketId,
        (target, length, label): (QueuePairNumber, u32, Label),
    ) {
        self.last = None;
        if self.full.is_some() || !self.sample.has(packet.psn) {
            return;
        }
        if self.table.rows >= self.most {
            if self.sample.one_in() == THINNEST {
                self.full = Some(at);
                return;
            }
            self.sample = self.sample.halved();
            self.thin_out();
            if !self.sample.has(packet.psn) {
                return;
            }
        }
        let tag = railnet_coll::machine::Tag::from(label);
        let row = self.table.push([
            at,
            u64::from(host),
            u64::from(packet.queue_pair.value()),
            u64::from(target.value()),
            NOBODY,
            u64::from(packet.psn.value()),
            u64::from(packet.opcode),
            u64::from(packet.transmission),
            u64::from(length),
            MISSING,
            0,
            tag.sequence,
            u64::from(tag.chunk),
            tag.step,
            schema::NO_SYNDROME,
            0,
        ]);
        self.last = Some(row);
        self.rows.insert(key(host, packet), row);
        let to = (target.value(), packet.psn.value(), packet.opcode);
        self.under_way.entry(to).or_default().push((row, u32::MAX));
    }

    /// The packet that was just sent carries a verdict.
    pub(super) fn answered(&mut self, syndrome: u8, messages: u32) {
        if let Some(row) = self.last {
            self.table.set(row, SYNDROME, u64::from(syndrome));
            self.table.set(row, MESSAGES, u64::from(messages));
        }
    }

    /// A packet leaves by a port.
    pub(super) fn started(
        &mut self,
        at: u64,
        packet: SentPacket,
        (vertex, channel): (u32, u32),
        (bytes, waiting): (u32, u64),
        far: u32,
    ) {
        // Most are not in the sample: they are not looked for.
        if !self.sample.has(packet.packet.psn) {
            return;
        }
        let Some(&newest) = self.rows.get(&key(packet.sender.0, packet.packet)) else { return };
        let to = (self.table.get(newest as usize, 3) as u32, packet.packet.psn.value(), packet.packet.opcode);
        let Some(waiting_there) = self.under_way.get_mut(&to) else { return };
        // Notifications to the same queue pair have the same name: the one that left first is here first.
        let here = if vertex == packet.sender.0 { u32::MAX } else { vertex };
        let is_it = |(row, far): &&mut Place| match packet.packet.opcode {
            NOTIFICATION => *far == here,
            _ => *row == newest,
        };
        let Some((row, place)) = waiting_there.iter_mut().find(is_it) else { return };
        *place = far;
        let row = *row;
        let hop = [at, u64::from(row), u64::from(vertex), u64::from(channel), u64::from(bytes), waiting];
        self.hops.push(hop);
        self.passing.insert((channel, at), row);
    }

    /// A packet is at its target: gives its sender and the sender's queue pair.
    pub(super) fn received(
        &mut self,
        at: u64,
        host: u32,
        (queue_pair, psn, opcode): (u32, u32, u8),
    ) -> Option<(u32, u32)> {
        if !self.sample.has(Psn::new(psn)) {
            return None;
        }
        let waiting = self.under_way.get_mut(&(queue_pair, psn, opcode))?;
        let place = waiting.iter().position(|(_, far)| *far == host)?;
        let (row, _) = waiting.remove(place);
        if waiting.is_empty() {
            self.under_way.remove(&(queue_pair, psn, opcode));
        }
        self.table.set(row, RECEIVED, at);
        self.table.set(row, TO, u64::from(host));
        let sender = |column| self.table.get(row as usize, column) as u32;
        Some((sender(1), sender(2)))
    }

    pub(super) fn marked(&mut self, packet: SentPacket) {
        if let Some(&row) = self.rows.get(&key(packet.sender.0, packet.packet)) {
            self.table.set(row, MARKED, 1);
        }
    }

    /// A frame as it passed a link: what is kept of it, and how long it was.
    pub(super) fn frame(&mut self, at: u64, channel: u32, kept: &[u8], length: usize) {
        let Some(row) = self.passing.remove(&(channel, at)) else { return };
        let offset = self.heap.len() as u64;
        self.heap.extend_from_slice(kept);
        let (row, channel) = (u64::from(row), u64::from(channel));
        self.frames.push([row, at, channel, offset, kept.len() as u64, length as u64]);
    }

    /// All frames that have passed so far were shown.
    pub(super) fn forget_passing(&mut self) {
        self.passing.clear();
    }

    /// Leaves out what the sample does not have any more.
    fn thin_out(&mut self) {
        let rows: Vec<u32> = (0..self.table.rows as u32)
            .filter(|row| self.sample.has(Psn::new(self.table.get(*row as usize, 5) as u32)))
            .collect();
        let mut places = vec![u32::MAX; self.table.rows];
        for (place, row) in rows.iter().enumerate() {
            places[*row as usize] = place as u32;
        }
        self.table = self.table.take(&rows);
        self.hops = renumbered(&self.hops, 1, &places);
        self.frames = renumbered(&self.frames, 0, &places);
        // The heap keeps bytes of frames that are gone: they are few beside those that follow.
        let moved = |row: u32| Some(places[row as usize]).filter(|place| *place != u32::MAX);
        let known = std::mem::take(&mut self.rows);
        self.rows = known.into_iter().filter_map(|(key, row)| Some((key, moved(row)?))).collect();
        let passing = std::mem::take(&mut self.passing);
        self.passing = passing.into_iter().filter_map(|(key, row)| Some((key, moved(row)?))).collect();
        let under_way = std::mem::take(&mut self.under_way);
        for (key, list) in under_way {
            let kept: SmallVec<[Place; 1]> =
                list.into_iter().filter_map(|(row, far)| Some((moved(row)?, far))).collect();
            if !kept.is_empty() {
                self.under_way.insert(key, kept);
            }
        }
    }
}

fn key(host: u32, packet: PacketId) -> Key {
    let PacketId { queue_pair, psn, transmission, opcode } = packet;
    (host, queue_pair.value(), psn.value(), opcode, transmission)
}

/// The rows of packets that are still there, with their new numbers.
fn renumbered(table: &Table, column: usize, places: &[u32]) -> Table {
    let rows: Vec<u32> = (0..table.rows as u32)
        .filter(|row| places[table.get(*row as usize, column) as usize] != u32::MAX)
        .collect();
    let mut kept = table.take(&rows);
    for row in 0..kept.rows {
        let place = places[kept.get(row, column) as usize];
        kept.set(row as u32, column, u64::from(place));
    }
    kept
}
