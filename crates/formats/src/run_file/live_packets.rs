//! Packets of a live run, from what the NICs of ranks saw of them at both ends.

use std::collections::{BTreeMap, BTreeSet};

use super::RunFile;
use super::packets::kept_of;
use super::schema::{self, NO_SYNDROME, NOBODY};
use super::table::{MISSING, Table};

/// Incidents that packets tell of.
const SENT_AGAIN: u64 = 6;
const NAK: u64 = 12;

/// A packet as one NIC saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LivePacket {
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// The rank that saw it.
    pub rank: u32,
    /// The rank it goes to.
    pub to: u32,
    /// The queue pair there.
    pub target: u32,
    /// Its sequence number.
    pub psn: u32,
    /// Its opcode.
    pub opcode: u8,
    /// Whether it answers a request.
    pub is_answer: bool,
    /// Bytes of payload.
    pub length: u32,
    /// The verdict, and how many messages are done, of an acknowledgement.
    pub verdict: Option<(u8, u32)>,
    /// All of it, from the IP header on.
    pub bytes: Vec<u8>,
}

impl LivePacket {
    /// Whether the NIC that saw it sent it: what it receives goes to itself.
    fn is_sent(&self) -> bool {
        self.rank != self.to
    }
}

/// Packets from one rank to a queue pair of another.
type Stream = (u32, u32, u32);

/// Adds packets to a live run, at most so many. `is_all` where the NICs noted all of theirs.
pub fn add_packets(run: &mut RunFile, packets: &mut [LivePacket], most: usize, is_all: bool) {
    let start = run.meta["began_ns"].as_u64().unwrap_or(0);
    packets.sort_by_key(|packet| packet.at_ns);
    let pairs = pairs(packets);
    let mut made = Made::new();
    // Before the first call that was noted ranks met, or did something that nobody asked about.
    for packet in packets.iter().filter(|packet| packet.at_ns >= start) {
        let at = packet.at_ns.saturating_sub(start) * 1_000;
        if packet.is_sent() {
            let own = pairs.get(&(packet.rank, packet.to, packet.target)).copied().unwrap_or(0);
            made.sent(at, packet, own);
        } else {
            made.received(at, packet);
        }
    }
    let end = made.end;
    let sent = made.packets.rows;
    run.tables.extend(made.finish());
    for table in &run.tables {
        run.meta["tables"][&table.name] = table.rows.into();
    }
    let duration = run.meta["duration"].as_u64().unwrap_or(0).max(end);
    run.meta["duration"] = duration.into();
    run.meta["kept"]["packets"] = sent.into();
    run.meta["kept"]["packets_sent"] = sent.into();
    for host in 0..run.meta["ranks"].as_array().map_or(0, Vec::len) {
        run.meta["ranks"][host]["host"] = host.into();
    }
    if !is_all && let Some(notes) = run.meta["kept"]["notes"].as_array_mut() {
        notes.push("packets: the first ones that each NIC sent and received".into());
    }
    *run = run.with_fewer_packets(most);
}

/// The queue pair at the near end of each stream: answers to its requests come with the same sequence numbers.
fn pairs(packets: &[LivePacket]) -> BTreeMap<Stream, u32> {
    let mut seen: BTreeMap<Stream, [BTreeSet<u32>; 2]> = BTreeMap::new();
    for packet in packets.iter().filter(|packet| packet.is_sent()) {
        let stream = seen.entry((packet.rank, packet.to, packet.target)).or_default();
        stream[usize::from(packet.is_answer)].insert(packet.psn);
    }
    let mut pairs = BTreeMap::new();
    for (&(from, to, target), [asked, answered]) in &seen {
        let back = seen.range((to, from, 0)..=(to, from, u32::MAX));
        let alike = |[other_asked, other_answered]: &[BTreeSet<u32>; 2]| {
            asked.intersection(other_answered).count() + answered.intersection(other_asked).count()
        };
        let best = back.map(|((_, _, near), other)| (alike(other), *near)).max();
        if let Some((1.., near)) = best {
            pairs.insert((from, to, target), near);
        }
    }
    pairs
}

/// The tables that come of it.
struct Made {
    packets: Table,
    frames: Table,
    incidents: Table,
    heap: Vec<u8>,
    /// Rows of packets under way by rank and queue pair they go to, sequence number and opcode.
    under_way: BTreeMap<(u32, u32, u32, u8), Vec<u32>>,
    /// How often each was sent.
    copies: BTreeMap<(u32, u32, u32, u32, u8), u64>,
    talks: BTreeMap<(u32, u32, u32, u32), [u64; 3]>,
    end: u64,
}

impl Made {
    fn new() -> Self {
        Self {
            packets: Table::new("packets", schema::PACKETS),
            frames: Table::new("frames", schema::FRAMES),
            incidents: Table::new("incidents", schema::INCIDENTS),
            heap: Vec::new(),
            under_way: BTreeMap::new(),
            copies: BTreeMap::new(),
            talks: BTreeMap::new(),
            end: 0,
        }
    }

    fn sent(&mut self, at: u64, packet: &LivePacket, own: u32) {
        let LivePacket { rank, to, target, psn, opcode, length, .. } = *packet;
        let copies = self.copies.entry((rank, to, target, psn, opcode)).or_default();
        let transmission = *copies;
        *copies += 1;
        let (syndrome, messages) =
            packet.verdict.map_or((NO_SYNDROME, 0), |(one, two)| (one.into(), two.into()));
        let numbers = [rank, own, target, to, psn].map(u64::from);
        let row = self.packets.push([
            at,
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3],
            numbers[4],
            u64::from(opcode),
            transmission,
            u64::from(length),
            MISSING,
            0,
            0,
            0,
            0,
            syndrome,
            messages,
        ]);
        self.under_way.entry((to, target, psn, opcode)).or_default().push(row);
        let talk = self.talks.entry((rank, own, to, target)).or_default();
        talk[0] += 1;
        talk[1] += u64::from(length);
        talk[2] += u64::from(transmission > 0);
        let kept = kept_of(&packet.bytes);
        let (offset, length) = (self.heap.len() as u64, packet.bytes.len() as u64);
        self.heap.extend_from_slice(&kept);
        self.frames.push([u64::from(row), at, NOBODY, offset, kept.len() as u64, length]);
        let is_nak = packet.verdict.is_some_and(|(syndrome, _)| syndrome >> 5 & 3 == 3);
        for (kind, is_it) in [(SENT_AGAIN, transmission > 0), (NAK, is_nak)] {
            if is_it {
                // A NAK is about the queue pair that it goes to.
                let (host, queue_pair) = if kind == NAK { (to, target) } else { (rank, own) };
                let [host, queue_pair, psn] = [host, queue_pair, psn].map(u64::from);
                self.incidents.push([at, kind, host, NOBODY, queue_pair, psn, 0]);
            }
        }
        self.end = self.end.max(at);
    }

    /// The last copy that was sent is the one that came.
    fn received(&mut self, at: u64, packet: &LivePacket) {
        let key = (packet.rank, packet.target, packet.psn, packet.opcode);
        if let Some(row) = self.under_way.get_mut(&key).and_then(Vec::pop) {
            self.packets.set(row, 9, at);
        }
        self.end = self.end.max(at);
    }

    fn finish(self) -> Vec<Table> {
        let mut connections = Table::new("connections", schema::CONNECTIONS);
        for ((host, own, to, target), [packets, bytes, resent]) in self.talks {
            let ends = [host, own, to, target].map(u64::from);
            // What it began with, and the memory that it writes to, its packets say.
            let (first, address, key) = (NOBODY, MISSING, NOBODY);
            let [host, own, to, target] = ends;
            connections.push([host, own, to, target, packets, bytes, resent, first, address, key]);
        }
        vec![self.packets, self.frames, self.incidents, connections, Table::of_bytes("heap", self.heap)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::{LiveRank, live};
    use super::*;

    /// A packet at a NIC: a request of rank 0, which has queue pair 7, or an answer of rank 1, which has 9.
    fn seen(at_ns: u64, rank: u32, is_answer: bool, psn: u32, syndrome: Option<u8>) -> LivePacket {
        let (to, target) = if is_answer { (0, 7) } else { (1, 9) };
        let (opcode, verdict) = (if is_answer { 0x11 } else { 4 }, syndrome.map(|syndrome| (syndrome, 1)));
        LivePacket {
            at_ns,
            rank,
            to,
            target,
            psn,
            opcode,
            is_answer,
            length: 64,
            verdict,
            bytes: vec![0x45; 120],
        }
    }

    #[test]
    fn both_ends_of_packets_are_put_together() {
        let mut run = live("two ranks", &[LiveRank::default(), LiveRank::default()]);
        let mut packets = [
            // The first one is lost, the second is refused for that, and both are sent again.
            seen(10, 0, false, 5, None),
            seen(11, 0, false, 6, None),
            seen(20, 1, false, 6, None),
            seen(21, 1, true, 5, Some(0x60)),
            seen(30, 0, true, 5, Some(0x60)),
            seen(31, 0, false, 5, None),
            seen(32, 0, false, 6, None),
            seen(40, 1, false, 5, None),
            seen(41, 1, false, 6, None),
            seen(42, 1, true, 6, Some(0x1f)),
            seen(50, 0, true, 6, Some(0x1f)),
        ];
        add_packets(&mut run, &mut packets, 100, true);
        let rows = |name: &str, columns: &[&str]| -> Vec<Vec<u64>> {
            let table = run.table(name).unwrap();
            let places: Vec<usize> = columns.iter().map(|column| table.column(column).unwrap()).collect();
            (0..table.rows).map(|row| places.iter().map(|place| table.get(row, *place)).collect()).collect()
        };
        let found = rows("packets", &["sent", "queue_pair", "target", "psn", "transmission", "received"]);
        let wanted: [[u64; 6]; 6] = [
            [10_000, 7, 9, 5, 0, MISSING],
            [11_000, 7, 9, 6, 0, 20_000],
            [21_000, 9, 7, 5, 0, 30_000],
            [31_000, 7, 9, 5, 1, 40_000],
            [32_000, 7, 9, 6, 1, 41_000],
            [42_000, 9, 7, 6, 0, 50_000],
        ];
        assert_eq!(found, wanted);
        // Of queue pair 7: its packet was refused, and two were sent again.
        assert_eq!(
            rows("incidents", &["kind", "vertex", "queue_pair", "psn"]),
            [[NAK, 0, 7, 5], [SENT_AGAIN, 0, 7, 5], [SENT_AGAIN, 0, 7, 6]]
        );
        assert_eq!(
            rows("connections", &["host", "packets", "bytes", "resent"]),
            [[0, 4, 256, 2], [1, 2, 128, 0]]
        );
        assert_eq!((run.table("frames").unwrap().rows, &run.meta["kept"]["packets"]), (6, &6.into()));
    }
}
