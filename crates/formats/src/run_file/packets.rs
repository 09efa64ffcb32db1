//! Packets of a run, and their way through the fabric: all of a short run, a sample of a long one ([`super::sample`]).

use std::collections::{BTreeMap, BTreeSet};

use railnet_core::event::{PacketId, SentPacket};
use railnet_core::{Label, PacketSample, QueuePairNumber};
use smallvec::SmallVec;

use super::follow::Followed;
use super::sample::{HOST, PINNED, PSN, QUEUE_PAIR, TARGET, Windows, depth, halvings_of, is_urgent};
use super::schema::{self, NOBODY};
use super::table::{MISSING, Table};

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

/// No verdict, of a packet that may carry one yet.
const NO_VERDICT: u8 = schema::NO_SYNDROME as u8;

/// Columns that are filled in later.
const TO: usize = 4;
const RECEIVED: usize = 9;
const MARKED: usize = 10;
const SYNDROME: usize = 14;
const MESSAGES: usize = 15;

/// A packet that was just sent: when, by whom, which, to whom, how long, and what it is about.
type Fresh = (u64, u32, PacketId, QueuePairNumber, u32, Label);

/// How many of the packets under way have a sequence number and a queue pair like these: most events are about others, and are
/// told so soon.
#[derive(Debug)]
struct Sieve(Vec<u32>);

impl Sieve {
    const PLACES: usize = 1 << 14;

    fn new() -> Self {
        Self(vec![0; Self::PLACES])
    }

    fn place(&mut self, queue_pair: u32, psn: u32) -> &mut u32 {
        &mut self.0[(queue_pair.wrapping_mul(0x9e37_79b1) ^ psn.wrapping_mul(0x85eb_ca6b)) as usize >> 7
            & (Self::PLACES - 1)]
    }
}

#[derive(Debug)]
pub(super) struct Packets {
    /// How many are wanted, and how many there may be before some are left out.
    most: usize,
    limit: usize,
    /// All that were sent.
    pub(super) all: u64,
    windows: Windows,
    /// The connection that is kept whole, once others are not.
    pub(super) followed: Option<Followed>,
    /// When the last one was sent.
    now: u64,
    pub(super) table: Table,
    pub(super) hops: Table,
    pub(super) frames: Table,
    pub(super) heap: Vec<u8>,
    rows: BTreeMap<Key, u32>,
    /// Packets on their way by the queue pair they go to, their sequence number and opcode, with where they last were.
    under_way: BTreeMap<Target, SmallVec<[Place; 1]>>,
    /// The same by the queue pair that sent them, and by the one they go to.
    from: Sieve,
    to: Sieve,
    /// The first ones of their connections, while they are under way: they tell where it leads.
    first: BTreeSet<u32>,
    /// Hops whose frames may still come, by channel and time.
    passing: BTreeMap<(u32, u64), u32>,
    /// The packet that was sent last: its row where it was kept, and what it was where it was not.
    last: Result<u32, Option<Fresh>>,
}

impl Packets {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            limit: most + most / 4,
            all: 0,
            windows: Windows::new(most),
            followed: None,
            now: 0,
            table: Table::new("packets", schema::PACKETS),
            hops: Table::new("hops", schema::HOPS),
            frames: Table::new("frames", schema::FRAMES),
            heap: Vec::new(),
            rows: BTreeMap::new(),
            under_way: BTreeMap::new(),
            from: Sieve::new(),
            to: Sieve::new(),
            first: BTreeSet::new(),
            passing: BTreeMap::new(),
            last: Err(None),
        }
    }

    /// What is kept now.
    pub(super) fn sample(&mut self) -> PacketSample {
        PacketSample::halved(self.windows.halved(self.now))
    }

    /// A packet leaves its NIC; `is_first` of those of its connection.
    pub(super) fn sent(
        &mut self,
        at: u64,
        host: u32,
        packet: PacketId,
        (target, length, label): (QueuePairNumber, u32, Label),
        is_first: bool,
    ) {
        self.all += 1;
        self.now = at;
        let fresh = (at, host, packet, target, length, label);
        let halvings = halvings_of(packet.psn, [packet.queue_pair, target], packet.transmission, NO_VERDICT);
        let is_followed = self.follows(fresh, NO_VERDICT);
        if !is_first && !is_followed && halvings < self.windows.halved(at) {
            self.last = Err(Some(fresh));
            return;
        }
        let row = self.keep(fresh, is_followed);
        if is_first {
            self.first.insert(row);
        }
    }

    /// Whether it belongs to the connection that is kept whole.
    fn follows(&mut self, (at, host, packet, ..): Fresh, syndrome: u8) -> bool {
        let is_urgent = is_urgent(packet.transmission.into(), syndrome.into());
        let end = (host, packet.queue_pair.value());
        self.followed.as_mut().is_some_and(|one| one.takes(at, end, is_urgent, self.most))
    }

    fn keep(&mut self, (at, host, packet, target, length, label): Fresh, is_followed: bool) -> u32 {
        if self.table.rows >= self.limit {
            self.thin_out();
            // What is pinned may be more than what is wanted.
            self.limit = self.limit.max(self.table.rows + self.table.rows / 4);
        }
        if !is_followed {
            self.windows.keep(at);
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
        self.last = Ok(row);
        self.rows.insert(key(host, packet), row);
        let psn = packet.psn.value();
        self.under_way.entry((target.value(), psn, packet.opcode)).or_default().push((row, u32::MAX));
        *self.from.place(packet.queue_pair.value(), psn) += 1;
        *self.to.place(target.value(), psn) += 1;
        row
    }

    /// The packet that was just sent carries a verdict.
    pub(super) fn answered(&mut self, syndrome: u8, messages: u32) {
        let row = match self.last {
            Ok(row) => row,
            Err(Some(fresh @ (at, _, packet, target, ..))) => {
                let halvings =
                    halvings_of(packet.psn, [packet.queue_pair, target], packet.transmission, syndrome);
                let is_followed = self.follows(fresh, syndrome);
                if !is_followed && halvings < self.windows.halved(at) {
                    return;
                }
                self.keep(fresh, is_followed)
            }
            Err(None) => return,
        };
        self.table.set(row, SYNDROME, u64::from(syndrome));
        self.table.set(row, MESSAGES, u64::from(messages));
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
        let psn = packet.packet.psn.value();
        if *self.from.place(packet.packet.queue_pair.value(), psn) == 0 {
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
        if *self.to.place(queue_pair, psn) == 0 {
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
        self.first.remove(&row);
        let sender = [HOST, QUEUE_PAIR].map(|column| self.table.get(row as usize, column) as u32);
        *self.from.place(sender[1], psn) -= 1;
        *self.to.place(queue_pair, psn) -= 1;
        Some(sender.into())
    }

    pub(super) fn marked(&mut self, packet: SentPacket) {
        if *self.from.place(packet.packet.queue_pair.value(), packet.packet.psn.value()) == 0 {
            return;
        }
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

    /// Leaves out packets until there are not more than there should be, with all that is known of them.
    pub(super) fn thin_out(&mut self) {
        if self.table.rows > self.most && self.windows.has_all {
            self.followed = Followed::of(&self.table).map(|one| one.shorter(&self.table, self.most));
        }
        let Self { table, windows, first, .. } = self;
        let depth = |row: usize| if first.contains(&(row as u32)) { PINNED } else { depth(table, row) };
        let rows = windows.choose(table, self.followed, depth);
        if rows.len() == self.table.rows {
            return;
        }
        let places = places(&rows, self.table.rows);
        self.table = self.table.take(&rows);
        self.hops = renumbered(&self.hops, 1, &places);
        self.frames = renumbered(&self.frames, 0, &places);
        self.heap = squeezed(&mut self.frames, &self.heap);
        let moved = |row: u32| Some(places[row as usize]).filter(|place| *place != u32::MAX);
        let known = std::mem::take(&mut self.rows);
        self.rows = known.into_iter().filter_map(|(key, row)| Some((key, moved(row)?))).collect();
        let passing = std::mem::take(&mut self.passing);
        self.passing = passing.into_iter().filter_map(|(key, row)| Some((key, moved(row)?))).collect();
        self.first = std::mem::take(&mut self.first).into_iter().filter_map(moved).collect();
        self.last = self.last.and_then(|row| moved(row).ok_or(None));
        (self.from, self.to) = (Sieve::new(), Sieve::new());
        let under_way = std::mem::take(&mut self.under_way);
        for (key, list) in under_way {
            let kept: SmallVec<[Place; 1]> =
                list.into_iter().filter_map(|(row, far)| Some((moved(row)?, far))).collect();
            for (row, _) in &kept {
                let cell = |column| self.table.get(*row as usize, column) as u32;
                *self.from.place(cell(QUEUE_PAIR), cell(PSN)) += 1;
                *self.to.place(cell(TARGET), cell(PSN)) += 1;
            }
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

/// The new place of each packet, `u32::MAX` for those that go.
pub(super) fn places(rows: &[u32], all: usize) -> Vec<u32> {
    let mut places = vec![u32::MAX; all];
    for (place, row) in rows.iter().enumerate() {
        places[*row as usize] = place as u32;
    }
    places
}

/// The bytes of these frames, one after the other, and where they are now.
pub(super) fn squeezed(frames: &mut Table, heap: &[u8]) -> Vec<u8> {
    let mut squeezed = Vec::new();
    for row in 0..frames.rows {
        let (offset, kept) = (frames.get(row, 3) as usize, frames.get(row, 4) as usize);
        frames.set(row as u32, 3, squeezed.len() as u64);
        squeezed.extend_from_slice(&heap[offset..offset + kept]);
    }
    squeezed
}

/// The rows of packets that are still there, with their new numbers.
pub(super) fn renumbered(table: &Table, column: usize, places: &[u32]) -> Table {
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
