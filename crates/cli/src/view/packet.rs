//! One packet: its way through the fabric with what changed on it, and its headers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use railnet_formats::run_file::{MISSING, RunFile, Table, schema::NOBODY};
use railnet_wire::{Ethernet, Ip, Lrh};
use serde_json::{Map, Value, json};

use super::layers::{Begins, ICRC_BYTES, layers};

/// Where tables speak of some packets, for those who look for many.
pub(super) struct Index {
    /// Work requests by host and queue pair.
    messages: BTreeMap<(u64, u64), Vec<usize>>,
    hops: BTreeMap<u64, Vec<usize>>,
    frames: BTreeMap<u64, Vec<usize>>,
}

impl Index {
    pub(super) fn of(run: &RunFile, packets: &BTreeSet<usize>) -> Self {
        let mut messages: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        if let Some(table) = run.table("messages") {
            let [host, queue_pair] = ["host", "queue_pair"].map(|name| table.column(name).unwrap_or(0));
            for row in 0..table.rows {
                messages.entry((table.get(row, host), table.get(row, queue_pair))).or_default().push(row);
            }
        }
        Self { messages, hops: rows_about(run, "hops", packets), frames: rows_about(run, "frames", packets) }
    }
}

/// The rows of a table about each of these packets.
fn rows_about(run: &RunFile, table: &str, packets: &BTreeSet<usize>) -> BTreeMap<u64, Vec<usize>> {
    let mut rows: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    if let Some(table) = run.table(table) {
        let of = table.column("packet").unwrap_or(0);
        for row in 0..table.rows {
            let packet = table.get(row, of);
            if packets.contains(&(packet as usize)) {
                rows.entry(packet).or_default().push(row);
            }
        }
    }
    rows
}

/// All that is known about a packet.
pub(super) fn describe(run: &RunFile, row: usize) -> Option<Value> {
    describe_with(run, row, &Index::of(run, &BTreeSet::from([row])))
}

/// The same, by one who knows where to look.
pub(super) fn describe_with(run: &RunFile, row: usize, index: &Index) -> Option<Value> {
    let packets = run.table("packets")?;
    if row >= packets.rows {
        return None;
    }
    let cell = |name: &str| packets.column(name).map_or(0, |column| packets.get(row, column));
    let rows = |of: &BTreeMap<u64, Vec<usize>>| of.get(&(row as u64)).cloned().unwrap_or_default();
    let is_live = run.meta["kind"] == "live";
    let begins = match run.meta["framing"].as_str() {
        Some("infiniband") => Begins::Infiniband,
        _ if is_live => Begins::Ip,
        _ => Begins::Ethernet,
    };
    let frames = Frames::of(run, &rows(&index.frames));
    let (mut hops, mut before): (Vec<Value>, Option<Vec<u8>>) = (Vec::new(), None);
    for hop in hops_of(run, &rows(&index.hops)) {
        let bytes = frames.at(hop.time, hop.channel);
        let vertex = hop.vertex;
        hops.push(json!({
            "vertex": vertex,
            "name": name(run, vertex),
            "arrived": arrived(run, hops.last()),
            "left": hop.time,
            "waiting": hop.waiting,
            "bytes": hop.bytes,
            "channel": hop.channel,
            "changes": before.as_ref().zip(bytes.as_ref()).map(|(before, now)| changes(before, now, begins)).unwrap_or_default(),
        }));
        before = bytes.or(before);
    }
    if is_live {
        // All that is known of its way is where it began.
        let (vertex, left) = (cell("host"), cell("sent"));
        hops.push(
            json!({ "vertex": vertex, "name": name(run, vertex), "arrived": Value::Null, "left": left, "waiting": 0, "changes": [] }),
        );
    }
    let first = frames.list.first();
    let received = Some(cell("received")).filter(|at| *at != MISSING);
    Some(json!({
        "row": row,
        "hops": hops,
        "received": received,
        "lost": received.is_none(),
        "bytes": first.map(|frame| hex(frame.head())),
        "length": first.map(|frame| frame.length),
        "layers": first.map(|frame| layers(&frame.whole(), frame.length, frame.icrc(), begins)).unwrap_or_default(),
        "answer": answer(packets, row),
        "message": message(run, &cell, index),
        "words": words(run, &cell),
    }))
}

struct Hop {
    time: u64,
    vertex: u64,
    channel: u64,
    bytes: u64,
    waiting: u64,
}

fn hops_of(run: &RunFile, rows: &[usize]) -> Vec<Hop> {
    let Some(table) = run.table("hops") else { return Vec::new() };
    let [time, vertex, channel, bytes, waiting] =
        ["time", "vertex", "channel", "bytes", "waiting"].map(|name| table.column(name).unwrap_or(0));
    let hop = |&row: &usize| Hop {
        time: table.get(row, time),
        vertex: table.get(row, vertex),
        channel: table.get(row, channel),
        bytes: table.get(row, bytes),
        waiting: table.get(row, waiting),
    };
    rows.iter().map(hop).collect()
}

/// When a packet that left the hop before was at this one: its first bit has come over the link. The NIC made it when it left.
fn arrived(run: &RunFile, before: Option<&Value>) -> Option<u64> {
    let last = before?;
    let link = &run.meta["fabric"]["links"][last["channel"].as_u64()? as usize / 2];
    Some(last["left"].as_u64()? + link["delay"].as_u64()?)
}

/// A frame as it passed a link.
struct Frame<'a> {
    time: u64,
    channel: u64,
    bytes: &'a [u8],
    length: usize,
}

impl<'a> Frame<'a> {
    fn is_cut(&self) -> bool {
        self.bytes.len() < self.length
    }

    /// Its first bytes.
    fn head(&self) -> &'a [u8] {
        if self.is_cut() { &self.bytes[..self.bytes.len() - ICRC_BYTES] } else { self.bytes }
    }

    /// All of it, with zeros for what was not kept: headers say how long the rest is, and are not read where it is missing.
    fn whole(&self) -> Vec<u8> {
        let mut whole = self.head().to_vec();
        if self.is_cut() {
            whole.resize(self.length - ICRC_BYTES, 0);
            whole.extend(self.icrc());
        }
        whole
    }

    /// Its last ones.
    fn icrc(&self) -> [u8; ICRC_BYTES] {
        self.bytes.last_chunk().copied().unwrap_or_default()
    }
}

struct Frames<'a> {
    list: Vec<Frame<'a>>,
}

impl<'a> Frames<'a> {
    fn of(run: &'a RunFile, rows: &[usize]) -> Self {
        let mut list = Vec::new();
        if let (Some(table), Some(heap)) = (run.table("frames"), run.table("heap")) {
            let columns = ["time", "channel", "offset", "kept", "length"];
            let [time, channel, offset, kept, length] = columns.map(|name| table.column(name).unwrap_or(0));
            for &row in rows {
                let start = table.get(row, offset) as usize;
                let bytes =
                    heap.bytes(0).get(start..start + table.get(row, kept) as usize).unwrap_or_default();
                if bytes.len() >= ICRC_BYTES {
                    list.push(Frame {
                        time: table.get(row, time),
                        channel: table.get(row, channel),
                        bytes,
                        length: table.get(row, length) as usize,
                    });
                }
            }
        }
        list.sort_by_key(|frame| frame.time);
        Self { list }
    }

    fn at(&self, time: u64, channel: u64) -> Option<Vec<u8>> {
        let found = self.list.iter().find(|frame| frame.time == time && frame.channel == channel);
        found.map(Frame::whole)
    }
}

/// What is different on the next link.
fn changes(before: &[u8], now: &[u8], begins: Begins) -> Vec<String> {
    let mut found = Vec::new();
    if begins == Begins::Infiniband {
        if let (Ok(Some((one, _))), Ok(Some((two, _)))) = (Lrh::parse(before), Lrh::parse(now))
            && one.virtual_lane != two.virtual_lane
        {
            found.push(format!("virtual lane {} → {}", one.virtual_lane, two.virtual_lane));
        }
        if before.last_chunk::<ICRC_BYTES>() == now.last_chunk::<ICRC_BYTES>() {
            found.push("the ICRC did not change; the switch wrote the VCRC anew".to_owned());
        }
        return found;
    }
    if let (Ok(one), Ok(two)) = (Ethernet::parse(before), Ethernet::parse(now)) {
        if one.source != two.source || one.target != two.target {
            found.push(format!("MAC {} → {} became {} → {}", one.source, one.target, two.source, two.target));
        }
        if let (Ok(Ip::V4(first)), Ok(Ip::V4(second))) =
            (Ip::parse(&before[one.length()..]), Ip::parse(&now[two.length()..]))
        {
            if first.hop_limit != second.hop_limit {
                found.push(format!("TTL {} → {}", first.hop_limit, second.hop_limit));
            }
            if first.traffic_class != second.traffic_class {
                let ecn = |class: u8| format!("{:02b}", class & 3);
                found.push(format!("ECN {} → {}", ecn(first.traffic_class), ecn(second.traffic_class)));
            }
        }
        if let (Ok(Ip::V6(first)), Ok(Ip::V6(second))) =
            (Ip::parse(&before[one.length()..]), Ip::parse(&now[two.length()..]))
        {
            if first.hop_limit != second.hop_limit {
                found.push(format!("hop limit {} → {}", first.hop_limit, second.hop_limit));
            }
            if first.traffic_class != second.traffic_class {
                found.push(format!(
                    "traffic class {:#04x} → {:#04x}",
                    first.traffic_class, second.traffic_class
                ));
            }
        }
    }
    if before.last_chunk::<ICRC_BYTES>() == now.last_chunk::<ICRC_BYTES>() {
        found.push("the ICRC did not change".to_owned());
    }
    found
}

fn name(run: &RunFile, vertex: u64) -> String {
    let fabric = &run.meta["fabric"];
    let hosts = fabric["hosts"].as_array().map_or(0, Vec::len) as u64;
    let named = match vertex.checked_sub(hosts) {
        None => &fabric["hosts"][vertex as usize]["name"],
        Some(switch) => &fabric["switches"][switch as usize]["name"],
    };
    named.as_str().unwrap_or("?").to_owned()
}

/// The acknowledgement of a packet: the first that its receiver sent back with its sequence number or a later one.
fn answer(packets: &Table, row: usize) -> Option<Value> {
    let names = ["sent", "host", "queue_pair", "to", "target", "psn", "opcode", "received"];
    let [sent, host, queue_pair, to, target, psn, opcode, received] =
        names.map(|name| packets.column(name).unwrap_or(0));
    let own = |column: usize| packets.get(row, column);
    if own(to) == NOBODY || is_answer(own(opcode)) {
        return None;
    }
    let found = (row + 1..packets.rows).find(|other| {
        let cell = |column: usize| packets.get(*other, column);
        cell(host) == own(to)
            && cell(queue_pair) == own(target)
            && cell(target) == own(queue_pair)
            && is_answer(cell(opcode))
            && cell(sent) >= own(received)
            && cell(psn).wrapping_sub(own(psn)) & 0xff_ffff < 1 << 23
    })?;
    Some(json!({ "row": found }))
}

/// Whether an opcode is a response of reliable connections.
fn is_answer(opcode: u64) -> bool {
    railnet_wire::Opcode::from_byte(opcode as u8).is_some_and(railnet_wire::Opcode::is_response)
}

/// The work request that a packet belongs to.
fn message(run: &RunFile, cell: &impl Fn(&str) -> u64, index: &Index) -> Option<Value> {
    let table = run.table("messages")?;
    let column = |name: &str| table.column(name).unwrap_or(0);
    let [first, packets] = ["first", "packets"].map(column);
    if is_answer(cell("opcode")) {
        return None;
    }
    let mut known = index.messages.get(&(cell("host"), cell("queue_pair")))?.iter().copied();
    let row = known.find(|row| {
        cell("psn").wrapping_sub(table.get(*row, first)) & 0xff_ffff < table.get(*row, packets)
    })?;
    let shown = |column: &railnet_formats::run_file::Column| {
        let value = column.get(row);
        (column.name.clone(), if value == MISSING { Value::Null } else { value.into() })
    };
    Some(Value::Object(table.columns.iter().map(shown).collect::<Map<_, _>>()))
}

fn words(run: &RunFile, cell: &impl Fn(&str) -> u64) -> String {
    let opcode = railnet_wire::Opcode::from_byte(cell("opcode") as u8);
    let what = opcode.map_or_else(|| format!("opcode {:#04x}", cell("opcode")), |opcode| opcode.to_string());
    let (from, to) = (name(run, cell("host")), cell("to"));
    let to = if to == NOBODY { "?".to_owned() } else { name(run, to) };
    let mut words = format!("{what}, PSN {}, {from} → {to}", cell("psn"));
    if run.meta["kind"] != "traffic" && run.meta["kind"] != "live" && !is_answer(cell("opcode")) {
        let _ = write!(words, "; call #{}, chunk {}, step {}", cell("sequence"), cell("chunk"), cell("step"));
    }
    words
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
