//! Connections, and what is under way on them.

use railnet_nic::memory::GhostRuns;

use super::error::Target;
use crate::schedule::{Connection, Peer, Schedule};

/// No worker, no chunk, no switch.
pub(super) const NONE: u32 = u32::MAX;

/// A connection in one direction.
#[derive(Debug)]
pub(super) struct Link {
    name: Name,
    /// The worker that sends, once it has shown itself; none where a switch does.
    pub(super) sender: u32,
    /// The worker that receives.
    pub(super) receiver: u32,
    first: u32,
    last: u32,
    /// Chunks that are in it.
    pub(super) queued: u32,
    pub(super) sender_waits: bool,
    pub(super) receiver_waits: bool,
    /// The switch that is at the other end.
    pub(super) switch: u32,
    /// The last steps that named it, to find steps that do so twice.
    pub(super) sent_at: u64,
    pub(super) received_at: u64,
}

/// Who is at either end: a rank, or a switch's group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Name {
    pub(super) channel: u16,
    pub(super) lane: u8,
    pub(super) from: Peer,
    pub(super) to: Peer,
}

impl Name {
    /// Of a connection that a rank sends on.
    pub(super) fn sent_by(rank: u32, on: &Connection) -> Self {
        Self { channel: on.channel, lane: on.lane, from: Peer::Rank(rank), to: on.peer }
    }

    /// Of a connection that a rank receives on.
    pub(super) fn received_by(rank: u32, on: &Connection) -> Self {
        Self { channel: on.channel, lane: on.lane, from: on.peer, to: Peer::Rank(rank) }
    }

    /// The connection as its sender sees it.
    pub(super) fn seen_by_sender(self) -> Target {
        Target(Connection { channel: self.channel, lane: self.lane, peer: self.to })
    }

    /// The connection as its receiver sees it.
    pub(super) fn seen_by_receiver(self) -> Target {
        Target(Connection { channel: self.channel, lane: self.lane, peer: self.from })
    }

    fn hash(self) -> u64 {
        let end = |peer: Peer| match peer {
            Peer::Rank(rank) => u64::from(rank) << 1,
            Peer::Switch(group) => u64::from(group) << 1 | 1,
        };
        let ends = end(self.from) << 33 ^ end(self.to);
        let number =
            (u64::from(self.channel) << 8 | u64::from(self.lane)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (ends ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A chunk that is under way.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) count: u64,
    pub(super) runs: GhostRuns,
    /// The worker that sent it, and its step.
    pub(super) from: (u32, u64),
    /// When it was sent, in rounds.
    pub(super) round: u32,
    next: u32,
}

/// A switch on one channel and lane: chunks wait in front of it, and leave when all are there.
#[derive(Debug)]
pub(super) struct Switch {
    /// The links of the senders and of the receivers.
    pub(super) ups: Vec<u32>,
    pub(super) downs: Vec<u32>,
    /// Senders' links with something in them, receivers' links that are full.
    pub(super) filled: u32,
    pub(super) full: u32,
}

/// All connections: found by an open table, so that no step of a run allocates.
pub(super) struct Links {
    pub(super) all: Vec<Link>,
    pub(super) switches: Vec<Switch>,
    /// Chunks under way, and free places for chunks, linked from `free` on.
    pub(super) chunks: Vec<Chunk>,
    free: u32,
    table: Vec<u32>,
    /// Chunks that fit into a connection.
    pub(super) room: u32,
}

impl Links {
    pub(super) fn new(room: u32) -> Self {
        Self {
            all: Vec::new(),
            switches: Vec::new(),
            chunks: Vec::new(),
            free: NONE,
            table: vec![NONE; 64],
            room,
        }
    }

    pub(super) fn name(&self, link: u32) -> Name {
        self.all[link as usize].name
    }

    /// The link of this name, if it was ever used.
    pub(super) fn find(&self, name: Name) -> Option<u32> {
        let mask = self.table.len() - 1;
        let mut at = (name.hash() >> 32) as usize & mask;
        while self.table[at] != NONE {
            let link = self.table[at];
            if self.all[link as usize].name == name {
                return Some(link);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// The link of this name; a new one where there is none, with all the links of its switch. `None` where the rank is
    /// not in the group of the switch.
    pub(super) fn get(&mut self, name: Name, schedule: &Schedule) -> Option<u32> {
        if let Some(link) = self.find(name) {
            return Some(link);
        }
        let ((Peer::Switch(group), _) | (_, Peer::Switch(group))) = (name.from, name.to) else {
            return Some(self.add(name, NONE));
        };
        let number = self.switches.len() as u32;
        let is_new = !self.knows(name, group, schedule);
        if is_new {
            let group_of = &schedule.groups[group as usize];
            let (channel, lane) = (name.channel, name.lane);
            let ups = group_of.senders.iter().map(|rank| {
                let (from, to) = (Peer::Rank(*rank), Peer::Switch(group));
                self.add(Name { channel, lane, from, to }, number)
            });
            let ups = ups.collect();
            let downs = group_of.receivers.iter().map(|rank| {
                let (from, to) = (Peer::Switch(group), Peer::Rank(*rank));
                self.add(Name { channel, lane, from, to }, number)
            });
            let downs = downs.collect();
            self.switches.push(Switch { ups, downs, filled: 0, full: 0 });
        }
        self.find(name)
    }

    /// Whether the switch of a group has been set up on this channel and lane.
    fn knows(&self, name: Name, group: u32, schedule: &Schedule) -> bool {
        let group_of = &schedule.groups[group as usize];
        let up = group_of.senders.first().map(|rank| Name {
            from: Peer::Rank(*rank),
            to: Peer::Switch(group),
            ..name
        });
        up.is_none_or(|up| self.find(up).is_some())
    }

    fn add(&mut self, name: Name, switch: u32) -> u32 {
        let number = self.all.len() as u32;
        self.all.push(Link {
            name,
            sender: NONE,
            receiver: NONE,
            first: NONE,
            last: NONE,
            queued: 0,
            sender_waits: false,
            receiver_waits: false,
            switch,
            sent_at: u64::MAX,
            received_at: u64::MAX,
        });
        if self.all.len() * 2 > self.table.len() {
            let size = self.table.len() * 4;
            self.table.clear();
            self.table.resize(size, NONE);
            for link in 0..number {
                self.enter(link);
            }
        }
        self.enter(number);
        number
    }

    fn enter(&mut self, link: u32) {
        let mask = self.table.len() - 1;
        let mut at = (self.all[link as usize].name.hash() >> 32) as usize & mask;
        while self.table[at] != NONE {
            at = (at + 1) & mask;
        }
        self.table[at] = link;
    }

    /// Puts a chunk into a link, and gives its place there.
    pub(super) fn push(
        &mut self,
        link: u32,
        count: u64,
        runs: &GhostRuns,
        from: (u32, u64),
        round: u32,
    ) -> u32 {
        let slot = if self.free == NONE {
            let slot = self.chunks.len() as u32;
            self.chunks.push(Chunk { count, runs: runs.clone(), from, round, next: NONE });
            slot
        } else {
            let slot = self.free;
            let chunk = &mut self.chunks[slot as usize];
            self.free = chunk.next;
            (chunk.count, chunk.from, chunk.round, chunk.next) = (count, from, round, NONE);
            chunk.runs.clone_from(runs);
            slot
        };
        let link = &mut self.all[link as usize];
        if link.queued == 0 {
            link.first = slot;
        } else {
            self.chunks[link.last as usize].next = slot;
        }
        link.last = slot;
        link.queued += 1;
        slot
    }

    /// The place of the first chunk of a link that has one.
    pub(super) fn front(&self, link: u32) -> u32 {
        self.all[link as usize].first
    }

    /// Takes the first chunk out of a link; its place is free from now on.
    pub(super) fn pop(&mut self, link: u32) {
        let link = &mut self.all[link as usize];
        let slot = link.first;
        let chunk = &mut self.chunks[slot as usize];
        link.first = chunk.next;
        link.queued -= 1;
        chunk.next = self.free;
        self.free = slot;
    }
}
