//! From XML to thread blocks: everything that can be said of a file without running it.

use std::collections::BTreeMap;

use railnet_coll::{Buffer, Protocol};
use railnet_core::{Bytes, Rank};
use roxmltree::{Document, Node};

use super::program::Facts;
use super::refusal::ReadError;
use super::{COLLECTIVES, File, Gpu, Location, Operation, ThreadBlock, has_blocks_in, has_blocks_out};

/// More of anything than this is a mistake in the file.
const SANE: u32 = 1 << 16;

/// An element of the file, with what to say about it.
struct Item<'a, 'b> {
    node: Node<'a, 'b>,
    line: u32,
    /// `gpu 3, thread block 1, `, as far as it is known.
    place: String,
}

impl<'a, 'b> Item<'a, 'b> {
    fn new(node: Node<'a, 'b>, place: String) -> Self {
        let line = node.document().text_pos_at(node.range().start).row;
        Self { node, line, place }
    }

    fn wrong(&self, reason: impl Into<String>) -> ReadError {
        ReadError::Wrong { line: self.line, place: self.place.clone(), reason: reason.into() }
    }

    fn text(&self, name: &str) -> Result<&'a str, ReadError> {
        let tag = self.node.tag_name().name();
        self.node.attribute(name).ok_or_else(|| self.wrong(format!("<{tag}> has no {name}=")))
    }

    /// A number, or -1 for none.
    fn optional(&self, name: &str) -> Result<Option<u32>, ReadError> {
        let text = self.text(name)?.trim();
        if text == "-1" {
            return Ok(None);
        }
        let number: Option<u32> = text.parse().ok().filter(|number| *number < SANE);
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(format!("{name}=\"{text}\" should be a number below {SANE}, or -1"))),
        }
    }

    fn number(&self, name: &str) -> Result<u32, ReadError> {
        self.optional(name)?.ok_or_else(|| self.wrong(format!("{name}=\"-1\" should be 0 or more")))
    }

    /// A number that may be left out.
    fn number_or(&self, name: &str, default: u32) -> Result<u32, ReadError> {
        if self.node.attribute(name).is_some() { self.number(name) } else { Ok(default) }
    }

    fn bytes(&self, name: &str) -> Result<Option<Bytes>, ReadError> {
        let Some(text) = self.node.attribute(name) else { return Ok(None) };
        let amount =
            text.trim().parse().map_err(|_| self.wrong(format!("{name}=\"{text}\" should be bytes")))?;
        Ok(Some(Bytes(amount)))
    }

    fn flag(&self, name: &str) -> Result<bool, ReadError> {
        match self.text(name)?.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            other => Err(self.wrong(format!("{name}=\"{other}\" should be 0 or 1"))),
        }
    }

    /// Its children of this name; any other is a mistake.
    fn children(&self, name: &str) -> Result<Vec<Node<'a, 'b>>, ReadError> {
        let children: Vec<_> = self.node.children().filter(Node::is_element).collect();
        if let Some(other) = children.iter().find(|child| !child.has_tag_name(name)) {
            let found = other.tag_name().name();
            let item = Item::new(*other, self.place.clone());
            return Err(item.wrong(format!("<{found}> has no place here: <{name}> is expected")));
        }
        Ok(children)
    }
}

pub(super) fn parse(text: &str) -> Result<File, ReadError> {
    let document = Document::parse(text).map_err(|error| {
        let at = error.pos();
        ReadError::Xml { line: at.row, column: at.col, reason: error.to_string() }
    })?;
    let algo = Item::new(document.root_element(), String::new());
    if !algo.node.has_tag_name("algo") {
        let name = algo.node.tag_name().name();
        return Err(algo.wrong(format!("this is <{name}>, and an algorithm is <algo>")));
    }
    let name = algo.text("coll")?;
    let collective = COLLECTIVES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let Some((_, collective)) = collective else {
        let known = COLLECTIVES.map(|(name, _)| name).join(", ");
        return Err(
            algo.wrong(format!("coll=\"{name}\" cannot be proved: what it should do is known of {known}"))
        );
    };
    let protocol = algo.text("proto")?;
    let protocol: Protocol = protocol.parse().map_err(|error| algo.wrong(format!("proto: {error}")))?;
    let ranks = algo.number("ngpus")?;
    let chunks = algo.number("nchunksperloop")?;
    if ranks == 0 || chunks == 0 {
        return Err(algo.wrong("ngpus and nchunksperloop should be 1 or more"));
    }
    let has_blocks = has_blocks_in(collective) || has_blocks_out(collective);
    if has_blocks && !chunks.is_multiple_of(ranks) {
        return Err(algo.wrong(format!(
            "nchunksperloop=\"{chunks}\" should be a multiple of ngpus=\"{ranks}\": each rank has a block in {collective}"
        )));
    }
    let root = algo.number_or("root", 0)?;
    if root >= ranks {
        return Err(algo.wrong(format!("root=\"{root}\" should be below ngpus=\"{ranks}\"")));
    }
    let mut file = File {
        name: algo.node.attribute("name").unwrap_or("unnamed").to_owned(),
        collective,
        protocol,
        ranks,
        channels: algo.number("nchannels")?,
        in_place: algo.flag("inplace")?,
        root: Rank(root),
        meant_for: (algo.bytes("minBytes")?.unwrap_or(Bytes(0)), algo.bytes("maxBytes")?),
        chunks: if has_blocks { chunks / ranks } else { chunks },
        gpus: Vec::new(),
        facts: Facts::default(),
    };
    let mut gpus: BTreeMap<u32, Gpu> = BTreeMap::new();
    for node in algo.children("gpu")? {
        let id = Item::new(node, String::new()).number("id")?;
        let item = Item::new(node, format!("gpu {id}: "));
        if id >= ranks {
            return Err(item.wrong(format!("there are {ranks} GPUs, from 0 to {}", ranks - 1)));
        }
        if gpus.contains_key(&id) {
            return Err(item.wrong("it is there twice"));
        }
        gpus.insert(id, gpu(&item, id, &file, chunks)?);
    }
    if let Some(missing) = (0..ranks).find(|rank| !gpus.contains_key(rank)) {
        return Err(algo.wrong(format!("gpu {missing} of {ranks} is missing")));
    }
    file.gpus = gpus.into_values().collect();
    Ok(file)
}

fn gpu(item: &Item<'_, '_>, rank: u32, file: &File, per_loop: u32) -> Result<Gpu, ReadError> {
    for (name, is_part) in [
        ("i_chunks", has_blocks_out(file.collective) && !has_blocks_in(file.collective)),
        ("o_chunks", has_blocks_in(file.collective) && !has_blocks_out(file.collective)),
    ] {
        let wanted = if is_part { file.chunks } else { per_loop };
        let found = item.number(name)?;
        // A rank that has no such buffer, or has it in the other one, writes 0.
        if found != 0 && found != wanted {
            return Err(item.wrong(format!(
                "{name}=\"{found}\" does not go with nchunksperloop=\"{per_loop}\" of {}: it should be {wanted}",
                file.collective
            )));
        }
    }
    let scratch = item.number("s_chunks")?;
    let mut blocks: BTreeMap<u32, (ThreadBlock, Vec<RawStep>)> = BTreeMap::new();
    for node in item.children("tb")? {
        let number = Item::new(node, item.place.clone()).number("id")?;
        let one = Item::new(node, format!("gpu {rank}, thread block {number}: "));
        if blocks.contains_key(&number) {
            return Err(one.wrong("it is there twice"));
        }
        blocks.insert(number, thread_block(&one, rank, number, file)?);
    }
    let numbers: Vec<u32> = blocks.keys().copied().collect();
    let lists: Vec<Vec<RawStep>> = blocks.values().map(|(_, steps)| steps.clone()).collect();
    let mut blocks: Vec<ThreadBlock> = blocks.into_values().map(|(block, _)| block).collect();
    exclusive(&blocks, rank)?;
    for (block, steps) in blocks.iter_mut().zip(&lists) {
        let place = format!("gpu {rank}, thread block {}, ", block.number);
        for step in steps {
            operations(step, &place, &numbers, &lists, &mut block.operations)?;
        }
    }
    Ok(Gpu { scratch, blocks })
}

/// Only one thread block sends to a peer on a channel, and only one receives from it.
fn exclusive(blocks: &[ThreadBlock], rank: u32) -> Result<(), ReadError> {
    for (index, block) in blocks.iter().enumerate() {
        for other in &blocks[..index] {
            let same = |one: Option<u32>, other: Option<u32>| one.is_some() && one == other;
            let shares = same(block.send, other.send) || same(block.receive, other.receive);
            if shares && block.channel == other.channel {
                return Err(ReadError::Wrong {
                    line: block.line,
                    place: format!("gpu {rank}, thread block {}: ", block.number),
                    reason: format!(
                        "thread block {} has the same peer on channel {} already",
                        other.number, block.channel
                    ),
                });
            }
        }
    }
    Ok(())
}

/// A step as it is written.
#[derive(Clone, Debug)]
struct RawStep {
    line: u32,
    number: u32,
    kind: Kind,
    source: Location,
    target: Location,
    count: u32,
    /// Thread block and step.
    after: Option<(u32, u32)>,
    is_awaited: bool,
}

/// What a step does: receives, takes from the source, adds the target, stores to the target, sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    receives: bool,
    takes: bool,
    adds_target: bool,
    stores: bool,
    sends: bool,
}

const fn kind(receives: bool, takes: bool, adds_target: bool, stores: bool, sends: bool) -> Kind {
    Kind { receives, takes, adds_target, stores, sends }
}

/// All types of steps.
const KINDS: [(&str, Kind); 9] = [
    ("s", kind(false, true, false, false, true)),
    ("r", kind(true, false, false, true, false)),
    ("rcs", kind(true, false, false, true, true)),
    ("rrs", kind(true, true, false, false, true)),
    ("rrc", kind(true, true, false, true, false)),
    ("rrcs", kind(true, true, false, true, true)),
    ("cpy", kind(false, true, false, true, false)),
    ("re", kind(false, true, true, true, false)),
    ("nop", kind(false, false, false, false, false)),
];

fn thread_block(
    item: &Item<'_, '_>,
    rank: u32,
    number: u32,
    file: &File,
) -> Result<(ThreadBlock, Vec<RawStep>), ReadError> {
    let (send, receive) = (item.optional("send")?, item.optional("recv")?);
    for (name, peer) in [("send", send), ("recv", receive)] {
        match peer {
            Some(peer) if peer >= file.ranks => {
                return Err(item.wrong(format!("{name}=\"{peer}\": there are {} GPUs", file.ranks)));
            }
            Some(peer) if peer == rank => {
                return Err(item.wrong(format!("{name}=\"{peer}\" is the GPU itself")));
            }
            _ => {}
        }
    }
    let channel = item.number("chan")?;
    if channel >= file.channels {
        return Err(item.wrong(format!("chan=\"{channel}\": there are {} channels", file.channels)));
    }
    let mut steps: Vec<RawStep> = Vec::new();
    for node in item.children("step")? {
        let written = node.attribute("s").unwrap_or("?");
        let place = format!("gpu {rank}, thread block {number}, step {written}: ");
        let step = raw_step(&Item::new(node, place), steps.len() as u32, send, receive)?;
        steps.push(step);
    }
    let channel = channel as u16;
    let block = ThreadBlock { number, line: item.line, send, receive, channel, operations: Vec::new() };
    Ok((block, steps))
}

fn raw_step(
    item: &Item<'_, '_>,
    expected: u32,
    send: Option<u32>,
    receive: Option<u32>,
) -> Result<RawStep, ReadError> {
    let number = item.number("s")?;
    if number != expected {
        return Err(item.wrong(format!("steps are numbered one after the other: this is number {expected}")));
    }
    let name = item.text("type")?;
    let Some((_, kind)) = KINDS.into_iter().find(|(known, _)| *known == name) else {
        let known = KINDS.map(|(name, _)| name).join(", ");
        return Err(item.wrong(format!("type=\"{name}\" should be one of {known}")));
    };
    if kind.sends && send.is_none() {
        return Err(item.wrong(format!("type=\"{name}\" sends, and the thread block has send=\"-1\"")));
    }
    if kind.receives && receive.is_none() {
        return Err(item.wrong(format!("type=\"{name}\" receives, and the thread block has recv=\"-1\"")));
    }
    let is_nop = name == "nop";
    let location = |buffer: &str, offset: &str, matters: bool| -> Result<Location, ReadError> {
        if !matters {
            return Ok(Location { buffer: Buffer::Input, index: 0 });
        }
        let buffer = match item.text(buffer)? {
            "i" => Buffer::Input,
            "o" => Buffer::Output,
            "s" => Buffer::Scratch,
            other => return Err(item.wrong(format!("{buffer}=\"{other}\" should be i, o or s"))),
        };
        Ok(Location { buffer, index: item.number(offset)? })
    };
    let source = location("srcbuf", "srcoff", kind.takes)?;
    let target = location("dstbuf", "dstoff", kind.stores)?;
    let count = item.number("cnt")?;
    if count == 0 && !is_nop {
        return Err(item.wrong("cnt=\"0\" moves nothing"));
    }
    let after = match (item.optional("depid")?, item.optional("deps")?) {
        (Some(block), Some(step)) => Some((block, step)),
        (None, None) => None,
        _ => return Err(item.wrong("depid and deps go together: both are -1, or neither")),
    };
    let count = if is_nop { 1 } else { count };
    let is_awaited = item.flag("hasdep")?;
    Ok(RawStep { line: item.line, number, kind, source, target, count, after, is_awaited })
}

/// A step as operations on one chunk each. Who waits for a step waits for the last of its chunks.
fn operations(
    step: &RawStep,
    place: &str,
    numbers: &[u32],
    lists: &[Vec<RawStep>],
    into: &mut Vec<Operation>,
) -> Result<(), ReadError> {
    let wrong = |reason: String| {
        let place = format!("{place}step {}: ", step.number);
        ReadError::Wrong { line: step.line, place, reason }
    };
    let mut after = None;
    if let Some((block, number)) = step.after {
        let Ok(target) = numbers.binary_search(&block) else {
            return Err(wrong(format!("waits for thread block {block}, which does not exist")));
        };
        let Some(awaited) = lists[target].get(number as usize) else {
            return Err(wrong(format!(
                "waits for step {number} of thread block {block}, which does not exist"
            )));
        };
        if !awaited.is_awaited {
            return Err(wrong(format!(
                "waits for step {number} of thread block {block} (line {}), which has hasdep=\"0\" and tells nobody",
                awaited.line
            )));
        }
        let before: u32 = lists[target][..=number as usize].iter().map(|step| step.count).sum();
        after = Some((target, before as usize - 1));
    }
    let Kind { receives, takes, adds_target, stores, sends } = step.kind;
    for chunk in 0..step.count {
        let at = |from: Location| Location { index: from.index + chunk, ..from };
        let mut sources = Vec::new();
        if takes {
            sources.push(at(step.source));
        }
        if adds_target {
            sources.push(at(step.target));
        }
        into.push(Operation {
            step: step.number,
            line: step.line,
            receives,
            sends,
            sources,
            stores: if stores { vec![at(step.target)] } else { Vec::new() },
            after: after.take(),
        });
    }
    Ok(())
}
