//! One connection of which every packet is kept, both ways, where of the others some go.
//!
//! It is chosen when the first packets have to go: until then all of them are there. From then on its packets stay, until there are
//! as many as it may have; of what comes later, those that are sent again or refuse others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use railnet_core::QueuePairNumber;
use serde_json::{Value, json};

use super::sample::{HOST, LENGTH, QUEUE_PAIR, SENT, SYNDROME, TARGET, TO, TRANSMISSION, is_urgent};
use super::schema::NOBODY;
use super::table::{MISSING, Table};

/// The most packets of it, however many there may be of all: more than a picture can show.
const MOST: usize = 10_000;

/// A connection that is kept whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Followed {
    /// Host and queue pair of both ends; first the one that sends more.
    pub(super) ends: [(u32, u32); 2],
    /// All of its packets that were sent up to here are kept.
    until: u64,
    /// Those to which something happened that were sent up to here are.
    trouble_until: u64,
    packets: usize,
}

/// What an end of a connection sent so far.
#[derive(Default)]
struct Sent {
    other: Option<(u32, u32)>,
    bytes: u64,
    is_resent: bool,
}

impl Followed {
    /// The one of these packets' connections that is most telling: something was sent again on it, or else it carries most; of
    /// several the first. All of its packets have to be here.
    pub(super) fn of(packets: &Table) -> Option<Self> {
        let mut ends: BTreeMap<(u32, u32), Sent> = BTreeMap::new();
        for row in 0..packets.rows {
            let cell = |column| packets.get(row, column);
            let end = ends.entry(sender(packets, row)).or_default();
            if cell(TO) != NOBODY {
                end.other.get_or_insert((cell(TO) as u32, cell(TARGET) as u32));
            }
            end.bytes += cell(LENGTH);
            end.is_resent |= cell(TRANSMISSION) > 0;
        }
        let known = ends.iter().filter_map(|(end, sent)| Some(([*end, sent.other?], sent)));
        let best = known.max_by_key(|(ends, sent)| (sent.is_resent, sent.bytes, Reverse(ends[0])));
        best.map(|(ends, _)| {
            Self { ends, until: MISSING, trouble_until: MISSING, packets: 0 }.counted(packets)
        })
    }

    fn counted(mut self, packets: &Table) -> Self {
        self.packets = (0..packets.rows).filter(|row| self.has(packets, *row)).count();
        self
    }

    /// So many packets may be of it where there may be `most` of all.
    pub(super) fn share(most: usize) -> usize {
        (most / 2).min(MOST)
    }

    /// Whether a packet that is sent now belongs to it; there may be `most` of all.
    pub(super) fn takes(&mut self, at: u64, end: (u32, u32), is_urgent: bool, most: usize) -> bool {
        if !self.ends.contains(&end) {
            return false;
        }
        // What both send at this moment stays or goes together.
        let share = Self::share(most);
        if self.packets >= share {
            self.until = self.until.min(at.saturating_sub(1));
        }
        if self.packets >= share + share / 4 {
            self.trouble_until = self.trouble_until.min(at.saturating_sub(1));
        }
        let is_taken = at <= if is_urgent { self.trouble_until } else { self.until };
        self.packets += usize::from(is_taken);
        is_taken
    }

    /// Whether this packet belongs to it.
    pub(super) fn has(&self, packets: &Table, row: usize) -> bool {
        let is_urgent = is_urgent(packets.get(row, TRANSMISSION), packets.get(row, SYNDROME));
        self.ends.contains(&sender(packets, row))
            && packets.get(row, SENT) <= if is_urgent { self.trouble_until } else { self.until }
    }

    /// The same with no more packets than it may have where there may be `most` of all.
    pub(super) fn shorter(mut self, packets: &Table, most: usize) -> Self {
        let share = Self::share(most);
        let rows: Vec<usize> = (0..packets.rows).filter(|row| self.has(packets, *row)).collect();
        if let Some(row) = rows.get(share) {
            self.until = self.until.min(packets.get(*row, SENT).saturating_sub(1));
        }
        self.packets = 0;
        let mut short = self.counted(packets);
        if short.packets > share + share / 4 {
            short.trouble_until = short.until;
            short = short.counted(packets);
        }
        short
    }

    /// Both ends, for taps.
    pub(super) fn tapped(&self) -> [(u32, QueuePairNumber); 2] {
        self.ends.map(|(host, queue_pair)| (host, QueuePairNumber::new(queue_pair)))
    }

    /// What is said about it.
    pub(super) fn meta(&self) -> Value {
        let [(host, queue_pair), (to, target)] = self.ends;
        let until = (self.until != MISSING).then_some(self.until);
        json!({
            "host": host, "queue_pair": queue_pair, "to": to, "target": target,
            "until": until, "packets": self.packets,
        })
    }

    /// The one that a run says it has.
    pub(super) fn read(meta: &Value, packets: &Table) -> Option<Self> {
        let number = |name: &str| Some(meta.get(name)?.as_u64()? as u32);
        let ends = [(number("host")?, number("queue_pair")?), (number("to")?, number("target")?)];
        let until = meta["until"].as_u64().unwrap_or(MISSING);
        Some(Self { ends, until, trouble_until: MISSING, packets: 0 }.counted(packets))
    }
}

fn sender(packets: &Table, row: usize) -> (u32, u32) {
    (packets.get(row, HOST) as u32, packets.get(row, QUEUE_PAIR) as u32)
}

#[cfg(test)]
mod tests {
    use railnet_core::event::PacketId;
    use railnet_core::{Label, Psn};

    use super::super::packets::Packets;
    use super::super::schema;
    use super::*;

    /// Many connections with the same numbers between other hosts, in which each message of sixteen packets is acknowledged; one
    /// packet in a hundred is sent again. `busy` sends twice as much as the others.
    fn run_of(most: usize, messages: u64, busy: u32) -> Packets {
        let mut packets = Packets::new(most);
        let mut send =
            |at: u64, (host, to): (u32, u32), psn: u64, (opcode, length): (u8, u32), again: u16| {
                let id = PacketId {
                    queue_pair: QueuePairNumber::new(20),
                    psn: Psn::new(psn as u32),
                    transmission: again,
                    opcode,
                };
                packets.sent(at, host, id, (QueuePairNumber::new(20), length, Label::default()), psn == 0);
                if opcode == 0x11 {
                    packets.answered(31, 1);
                }
                let sent =
                    railnet_core::event::SentPacket { sender: railnet_core::Component(host), packet: id };
                packets.started(at, sent, (host, host), (length, 0), to);
                packets.received(at + 500_000, to, (20, psn as u32, opcode));
            };
        for message in 0..messages {
            for pair in 0..8 {
                let ends = (pair, pair + 8);
                for turn in 0..if pair == busy { 32 } else { 16 } {
                    let psn = if pair == busy { message * 32 } else { message * 16 } + turn;
                    send(message * 100_000_000 + turn * 100_000, ends, psn, (7, 4_096), 0);
                    if psn % 100 == 99 {
                        send(message * 100_000_000 + turn * 100_000 + 50_000, ends, psn, (7, 4_096), 1);
                    }
                }
                let last = if pair == busy { message * 32 + 31 } else { message * 16 + 15 };
                send(message * 100_000_000 + 50_000_000, (ends.1, ends.0), last, (0x11, 0), 0);
            }
        }
        packets.thin_out();
        packets
    }

    /// Sequence numbers of first transmissions from a host up to a moment.
    fn numbers(packets: &Table, host: u64, until: u64) -> Vec<u64> {
        let is_it = |row: &usize| {
            packets.get(*row, HOST) == host
                && packets.get(*row, TRANSMISSION) == 0
                && packets.get(*row, SENT) <= until
        };
        (0..packets.rows).filter(is_it).map(|row| packets.get(row, 5)).collect()
    }

    #[test]
    fn all_packets_of_one_connection_stay_while_others_are_thinned() {
        let packets = run_of(2_000, 400, 3);
        assert!(packets.table.rows <= 2_500, "{}", packets.table.rows);
        let followed = packets.followed.unwrap();
        assert_eq!(followed.ends, [(3, 20), (11, 20)]);
        let [sent, answered] = [3, 11].map(|host| numbers(&packets.table, host, followed.until));
        assert!(sent.len() > 900 && answered.len() > 25, "{} and {}", sent.len(), answered.len());
        assert_eq!(sent, (0..sent.len() as u64).collect::<Vec<_>>(), "no gap");
        assert_eq!(answered, (0..answered.len() as u64).map(|each| each * 32 + 31).collect::<Vec<_>>());
        // What was sent again is there of the whole run.
        let again =
            |row: &usize| packets.table.get(*row, HOST) == 3 && packets.table.get(*row, TRANSMISSION) > 0;
        assert_eq!((0..packets.table.rows).filter(again).count(), 400 * 32 / 100);
        // Each with its way.
        let hops = (0..packets.hops.rows).filter(|row| packets.hops.get(*row, 2) == 3).count();
        assert!(hops >= sent.len(), "{hops}");
        // Of the others some are left, of every part of the run.
        let mut others = [0; 8];
        for row in (0..packets.table.rows).filter(|row| !followed.has(&packets.table, *row)) {
            others[(packets.table.get(row, SENT) / (50 * 100_000_000)) as usize] += 1;
        }
        assert!(others.iter().all(|some| *some > 50), "{others:?}");
    }

    #[test]
    fn a_run_with_fewer_packets_has_less_of_it_but_no_gap() {
        let packets = run_of(2_000, 400, 0);
        let meta = serde_json::json!({
            "tables": {},
            "kept": {
                "packets": packets.table.rows, "packets_sent": packets.all, "followed": packets.followed.map(|one| one.meta()),
            },
        });
        let run = super::super::RunFile { meta, tables: vec![packets.table], others: Vec::new() };
        let small = run.with_fewer_packets(600);
        let table = small.table("packets").unwrap();
        assert!(table.rows <= 600, "{}", table.rows);
        let followed = Followed::read(&small.meta["kept"]["followed"], table).unwrap();
        let sent = numbers(table, 0, followed.until);
        assert!(sent.len() > 200, "{}", sent.len());
        assert_eq!(sent, (0..sent.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn one_on_which_something_was_sent_again_is_more_telling() {
        let mut table = Table::new("packets", schema::PACKETS);
        for (host, length, again) in [(0, 4_096, 0), (1, 8_192, 0), (2, 64, 1), (3, 0, 0)] {
            table.push([0, host, 17, 18, host + 4, 0, 7, again, length, 1, 0, 0, 0, 0, 255, 0]);
        }
        assert_eq!(Followed::of(&table).unwrap().ends, [(2, 17), (6, 18)]);
        let calm = table.take(&[0, 1, 3]);
        assert_eq!(Followed::of(&calm).unwrap().ends, [(1, 17), (5, 18)]);
    }
}
