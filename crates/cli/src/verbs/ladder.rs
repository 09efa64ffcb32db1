//! Prints the steps as a ladder: A on the left, B on the right, the wire between them; and as JSON.

use std::io::Write;
use std::path::Path;

use railnet_core::{Psn, Time};
use railnet_wire::Framing;
use serde_json::{Map, Value, json};

use super::steps::{Actor, Step, StepKind};
use super::verdict::Verdict;
use super::words;
use super::world::{A, B, Entry, Record, Side};
use super::{Kind, Trouble};

/// Columns of a page.
const WIDTH: usize = 110;
/// Columns between the two NICs.
const MIDDLE: usize = 82;
/// Of steps that are alike, so many are shown first and last when there are more than `LIKE_MAX`.
const LIKE_FIRST: usize = 3;
const LIKE_LAST: usize = 2;
const LIKE_MAX: usize = 6;

const ACCENT: &str = "\x1b[36m";
const BAD: &str = "\x1b[31m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";

/// How to print.
pub(super) struct View<'a> {
    pub(super) colour: bool,
    pub(super) all: bool,
    pub(super) pcap: Option<&'a Path>,
}

impl View<'_> {
    pub(super) fn print(
        &self,
        out: &mut dyn Write,
        record: &Record,
        steps: &[Step],
        verdict: &Verdict,
    ) -> anyhow::Result<()> {
        self.title(out, record)?;
        self.set_up(out, record)?;
        self.ladder(out, steps)?;
        self.outcome(out, record, steps, verdict)?;
        self.differences(out, record.plan.kind)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("{code}{text}\x1b[0m") } else { text.to_owned() }
    }

    fn title(&self, out: &mut dyn Write, record: &Record) -> anyhow::Result<()> {
        let plan = &record.plan;
        let what = match plan.kind {
            Kind::Write => "RDMA WRITE: A puts",
            Kind::Read => "RDMA READ: A takes",
            Kind::Send => "SEND: A sends",
            Kind::WriteImm => "RDMA WRITE with immediate: A puts",
            Kind::Atomic => "Fetch-and-add: A adds to",
        };
        let where_to = match plan.kind {
            Kind::Write | Kind::WriteImm => "into B's memory",
            Kind::Read => "out of B's memory",
            Kind::Send => "into a buffer that B has posted",
            Kind::Atomic => "of B's memory",
        };
        let packets = match plan.packets() {
            1 => "1 packet".to_owned(),
            count => format!("{count} packets of at most {} B", plan.mtu.bytes()),
        };
        let title = format!("{what} {} B {where_to}", plan.bytes);
        writeln!(out, "{} · {packets}", self.paint(BOLD, &title))?;
        let trouble = match plan.trouble {
            Trouble::None => String::new(),
            Trouble::WrongKey => " · trouble: A uses a key that B never gave".to_owned(),
            Trouble::NoPermission => " · trouble: B's region does not grant this access".to_owned(),
            Trouble::OutOfRange => " · trouble: the range runs past the region's end".to_owned(),
            Trouble::NoReceive => " · trouble: B is late with its receive".to_owned(),
            Trouble::Drop(packet) if plan.kind == Kind::Read => {
                format!(" · trouble: packet {packet} of the answer gets lost")
            }
            Trouble::Drop(packet) => format!(" · trouble: packet {packet} gets lost"),
        };
        let behaviour = if plan.is_rxe { " · as Linux Soft-RoCE" } else { "" };
        let framing = match plan.framing {
            Framing::RoceV2 => String::new(),
            framing => format!(" · {}", framing.name()),
        };
        writeln!(
            out,
            "{} each way, {} of wire · seed {}{framing}{behaviour}{trouble}",
            record.rate,
            words::span(record.latency),
            plan.seed
        )?;
        Ok(())
    }

    fn set_up(&self, out: &mut dyn Write, record: &Record) -> anyhow::Result<()> {
        writeln!(out)?;
        writeln!(
            out,
            "{}  a reliable connection (RC) was made, path MTU {} B; the two exchanged addresses, QPNs and PSNs",
            self.paint(BOLD, "Before"),
            record.plan.mtu.bytes()
        )?;
        for (index, side) in record.sides.iter().enumerate() {
            writeln!(out, "  {}", side_line(record, index, side))?;
        }
        let told = match record.remote {
            Some(_) => format!(
                "B told A: its data is at {:#x}, and rkey {:#x} opens it",
                record.sides[B].address, record.sides[B].key.0
            ),
            None => "A knows nothing of B's memory: a SEND needs no address and no key of it".to_owned(),
        };
        writeln!(out, "     {told}")?;
        Ok(())
    }

    fn ladder(&self, out: &mut dyn Write, steps: &[Step]) -> anyhow::Result<()> {
        writeln!(out)?;
        // A lane's name is three letters around it.
        let wire = format!("{:^1$}", "the wire", MIDDLE - 22);
        let line = format!("{:>14} CPU NIC   host A{wire}  host B   NIC CPU", "time");
        writeln!(out, "{}", self.paint(BOLD, &line))?;
        let shown = if self.all { steps.iter().map(|_| Shown::Yes).collect() } else { choose(steps) };
        for (step, shown) in steps.iter().zip(shown) {
            match shown {
                Shown::Yes => self.step(out, step)?,
                Shown::No => {}
                Shown::Instead { count, last } => self.more(out, step, count, last)?,
            }
        }
        Ok(())
    }

    /// One row: time, the lanes of A, the middle, the lanes of B.
    fn row(
        &self,
        out: &mut dyn Write,
        at: Option<Time>,
        lanes: [char; 4],
        middle: &str,
        is_bad: bool,
    ) -> anyhow::Result<()> {
        let time = at.map(words::moment).unwrap_or_default();
        let [cpu_a, nic_a, nic_b, cpu_b] = lanes.map(|lane| {
            let code = if lane == '●' { ACCENT } else { DIM };
            self.paint(code, &lane.to_string())
        });
        let width = middle.chars().count();
        let mut text = middle.to_owned();
        text.extend(std::iter::repeat_n(' ', MIDDLE.saturating_sub(width)));
        if is_bad {
            text = self.paint(BAD, &text);
        }
        let line =
            format!("{}  {cpu_a}   {nic_a}{text}{nic_b}   {cpu_b}", self.paint(DIM, &format!("{time:>14}")));
        writeln!(out, "{}", line.trim_end())?;
        Ok(())
    }

    fn step(&self, out: &mut dyn Write, step: &Step) -> anyhow::Result<()> {
        if let Actor::Wire { from, lost } = step.actor {
            return self.wire(out, step, from, lost);
        }
        let (lane, is_left) = match step.actor {
            Actor::Cpu(A) => (0, true),
            Actor::Nic(A) => (1, true),
            Actor::Nic(_) => (2, false),
            _ => (3, false),
        };
        for (index, line) in block(&step.lines, is_left).iter().enumerate() {
            let mut lanes = idle();
            if index == 0 {
                lanes[lane] = '●';
            }
            let at = (index == 0).then_some(step.at);
            self.row(out, at, lanes, line, step.is_bad)?;
        }
        Ok(())
    }

    fn wire(&self, out: &mut dyn Write, step: &Step, from: usize, lost: bool) -> anyhow::Result<()> {
        let (text, more) = fit(step.lines.first().map_or("", String::as_str));
        let rest = MIDDLE.saturating_sub(text.chars().count() + 4);
        let line = |count: usize| "─".repeat(count);
        let mut lanes = idle();
        let middle = match (from, lost) {
            (A, false) => format!("─ {text} {}▶", line(rest)),
            (A, true) => format!("─ {text} {}╳ lost", line(rest.saturating_sub(30))),
            (_, false) => format!("◀{} {text} ─", line(rest)),
            (_, true) => {
                let gap = " ".repeat(24);
                format!("{gap}lost ╳{} {text} ─", line(rest.saturating_sub(29)))
            }
        };
        lanes[if from == A { 1 } else { 2 }] = if from == A { '├' } else { '┤' };
        self.row(out, Some(step.at), lanes, &middle, step.is_bad)?;
        let below: Vec<String> = more.into_iter().chain(step.lines.iter().skip(1).cloned()).collect();
        for line in block(&below, from == A) {
            self.row(out, None, idle(), &line, step.is_bad)?;
        }
        Ok(())
    }

    fn more(&self, out: &mut dyn Write, step: &Step, count: usize, last: Option<Psn>) -> anyhow::Result<()> {
        let numbers = match (step.psn, last) {
            (Some(first), Some(last)) if first != last => format!(", PSN {first} to {last}"),
            (Some(first), _) => format!(", PSN {first}"),
            _ => String::new(),
        };
        let (what, is_left) = match step.actor {
            Actor::Wire { from, .. } => ("more packets like this", from == A),
            Actor::Nic(host) if step.kind == StepKind::Gather => ("more such reads", host == A),
            Actor::Nic(host) if step.is_bad => ("more thrown away like this", host == A),
            Actor::Nic(host) => ("more taken in like this", host == A),
            Actor::Cpu(host) => ("more like this", host == A),
        };
        let text = format!("… {count} {what}{numbers} …");
        for line in block(&[text], is_left) {
            self.row(out, None, idle(), &line, false)?;
        }
        Ok(())
    }

    fn outcome(
        &self,
        out: &mut dyn Write,
        record: &Record,
        steps: &[Step],
        verdict: &Verdict,
    ) -> anyhow::Result<()> {
        writeln!(out)?;
        let code = if verdict.is_good() { ACCENT } else { BAD };
        self.fact(out, "Outcome", &verdict.outcome, code)?;
        self.fact(out, "Check", &verdict.memory, "")?;
        for problem in &verdict.problems {
            self.fact(out, "PROBLEM", problem, BAD)?;
        }
        self.fact(out, "B's CPU", &involvement(record), "")?;
        self.fact(out, "Time", &duration(steps), "")?;
        self.fact(out, "Packets", &self.packets(record), "")?;
        let digest = format!("{} · the same command gives the same run on every machine", record.digest);
        self.fact(out, "Digest", &digest, "")
    }

    fn fact(&self, out: &mut dyn Write, name: &str, text: &str, code: &str) -> anyhow::Result<()> {
        for (index, line) in wrap(text, WIDTH - 9).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let line = if code.is_empty() { line.clone() } else { self.paint(code, line) };
            writeln!(out, "{} {line}", self.paint(BOLD, &format!("{name:<8}")))?;
        }
        Ok(())
    }

    fn packets(&self, record: &Record) -> String {
        let sent = |side| record.frames.iter().filter(|frame| frame.from == side).count();
        let lost = record.frames.iter().filter(|frame| frame.lost).count();
        let mut text = format!("{} from A, {} from B, {lost} lost", sent(A), sent(B));
        if let Some(path) = self.pcap {
            text = format!("{text}; all of them in {}", path.display());
        }
        text
    }

    /// What is different between the operations, in plain words.
    fn differences(&self, out: &mut dyn Write, kind: Kind) -> anyhow::Result<()> {
        writeln!(out)?;
        let head =
            ["", "names B's address", "B's CPU", "receive used", "who learns", "data travels", "answer"];
        writeln!(out, "{}", self.paint(BOLD, &columns("", &head)))?;
        let rows = [
            (Kind::Write, ["WRITE", "A", "not involved", "no", "A", "A→B, requests", "ACK"]),
            (Kind::Read, ["READ", "A", "not involved", "no", "A", "B→A, answers", "the data"]),
            (
                Kind::Send,
                ["SEND", "B, in its receive", "posts and polls", "yes", "A and B", "A→B, requests", "ACK"],
            ),
            (Kind::WriteImm, ["WRITE imm", "A", "posts and polls", "yes", "A and B", "A→B, requests", "ACK"]),
            (Kind::Atomic, ["atomic", "A", "not involved", "no", "A", "8 B in headers", "the old value"]),
        ];
        for (row, cells) in rows {
            let line = columns(if row == kind { "▶" } else { "" }, &cells);
            let code = if row == kind { ACCENT } else { "\x1b[0m" };
            writeln!(out, "{}", self.paint(code, &line))?;
        }
        Ok(())
    }
}

fn columns(mark: &str, cells: &[&str; 7]) -> String {
    let [name, address, cpu, receive, learns, data, answer] = cells;
    format!("{mark:<1} {name:<10} {address:<18} {cpu:<16} {receive:<13} {learns:<11} {data:<15} {answer}")
        .trim_end()
        .to_owned()
}

/// The lanes when nobody acts: CPUs rest, NICs are there.
fn idle() -> [char; 4] {
    ['·', '│', '│', '·']
}

/// Lines of one side: A's stand on the left, B's as a block on the right.
fn block(lines: &[String], is_left: bool) -> Vec<String> {
    let width = MIDDLE - 4;
    let lines: Vec<String> = lines.iter().flat_map(|line| wrap(line, width)).collect();
    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let indent = if is_left { 2 } else { MIDDLE - 2 - widest };
    lines.iter().map(|line| format!("{}{line}", " ".repeat(indent))).collect()
}

/// What fits on an arrow, and what has to go below it: words between dots stay together.
fn fit(text: &str) -> (&str, Option<String>) {
    let mut head = text;
    while head.chars().count() > MIDDLE - 5 {
        match head.rfind(" · ") {
            Some(dot) => head = &head[..dot],
            None => break,
        }
    }
    let rest = text[head.len()..].trim_start_matches(" · ");
    (head, (!rest.is_empty()).then(|| rest.to_owned()))
}

/// Breaks a line at spaces; what follows is indented.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let indent: String = line.chars().take_while(|&letter| letter == ' ').collect();
    let mut current = indent.clone();
    let mut is_fresh = true;
    for word in line.split_whitespace() {
        if !is_fresh && current.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut current, format!("{indent}  ")));
            is_fresh = true;
        }
        if !is_fresh {
            current.push(' ');
        }
        current += word;
        is_fresh = false;
    }
    lines.push(current);
    lines
}

/// Whether a step is printed.
#[derive(Clone, Copy)]
enum Shown {
    Yes,
    No,
    /// A line stands for it and others like it.
    Instead {
        count: usize,
        last: Option<Psn>,
    },
}

/// Of many steps that are alike shows the first and the last ones.
fn choose(steps: &[Step]) -> Vec<Shown> {
    let mut shown = vec![Shown::Yes; steps.len()];
    let mut seen = Vec::new();
    for step in steps {
        let Some(likeness) = step.likeness else {
            continue;
        };
        if seen.contains(&likeness) {
            continue;
        }
        seen.push(likeness);
        let alike: Vec<usize> =
            (0..steps.len()).filter(|&index| steps[index].likeness == Some(likeness)).collect();
        // Reading memory is the same before each packet: one line tells it.
        let (first, last, limit) = match step.kind {
            StepKind::Gather => (1, 0, 4),
            _ => (LIKE_FIRST, LIKE_LAST, LIKE_MAX),
        };
        if alike.len() <= limit {
            continue;
        }
        let hidden = &alike[first..alike.len() - last];
        for &index in hidden {
            shown[index] = Shown::No;
        }
        if let (Some(&start), Some(&end)) = (hidden.first(), hidden.last()) {
            shown[start] = Shown::Instead { count: hidden.len(), last: steps[end].psn };
        }
    }
    shown
}

/// What a side is addressed by.
fn address_of(record: &Record, index: usize) -> String {
    match record.plan.framing {
        Framing::RoceV2 | Framing::RoceV1 => record.sides[index].gid.to_ip().to_string(),
        Framing::Infiniband => format!("LID {}", index + 1),
    }
}

fn side_line(record: &Record, index: usize, side: &Side) -> String {
    let key = match index {
        A => format!("lkey {:#x}", side.key.0),
        _ if record.plan.kind == Kind::Send => {
            format!("lkey {:#x}, {}", side.key.0, words::rights(side.access))
        }
        _ => format!("rkey {:#x}, {}", side.key.0, words::rights(side.access)),
    };
    format!(
        "{}  {}  QPN {}, PSN {:<8}  memory {:#x}, {} B, {key}",
        words::host(index),
        address_of(record, index),
        side.queue_pair,
        side.psn.value(),
        side.region,
        side.region_bytes
    )
}

/// What B's application did, counted.
fn involvement(record: &Record) -> String {
    let (mut posts, mut polls) = (0, 0);
    for (_, entry) in &record.entries {
        match entry {
            Entry::PostReceive(_) => posts += 1,
            Entry::Polled(B, _) => polls += 1,
            _ => {}
        }
    }
    if posts + polls == 0 {
        return "not involved: its NIC did everything, no program on B made a call".to_owned();
    }
    format!("took part: {posts} receive posted, {polls} completion polled; the data itself went by its NIC")
}

fn duration(steps: &[Step]) -> String {
    let end = steps.iter().find(|step| step.kind == StepKind::Poll && step.actor == Actor::Cpu(A));
    let took =
        end.map_or("never done".to_owned(), |step| format!("{} from post to poll", words::moment(step.at)));
    format!("{took}, all of it on the wire or waiting: CPUs and NICs take none here")
}

/// One object per step, with the set-up before and the outcome after.
pub(super) fn print_json(
    out: &mut dyn Write,
    record: &Record,
    steps: &[Step],
    verdict: &Verdict,
) -> anyhow::Result<()> {
    let plan = &record.plan;
    let sides: Vec<Value> = record
        .sides
        .iter()
        .enumerate()
        .map(|(index, side)| {
            json!({ "host": words::host(index), "address": address_of(record, index),
                "qp": side.queue_pair.value(), "first_psn": side.psn.value(), "key": side.key.0,
                "region": side.region, "region_bytes": side.region_bytes })
        })
        .collect();
    let setup = json!({ "step": "setup", "operation": plan.kind.name(), "bytes": plan.bytes,
        "mtu": plan.mtu.bytes(), "seed": plan.seed, "framing": plan.framing.name(), "behaviour": if plan.is_rxe { "rxe" } else { "spec" },
        "rate_bps": record.rate.as_bps(), "latency_ps": record.latency.as_ps(), "hosts": sides });
    writeln!(out, "{setup}")?;
    for step in steps {
        let (host, who) = match step.actor {
            Actor::Cpu(host) => (host, "cpu"),
            Actor::Nic(host) => (host, "nic"),
            Actor::Wire { from, .. } => (from, "wire"),
        };
        let mut object = Map::new();
        object.insert("step".to_owned(), step.kind.name().into());
        object.insert("time_ps".to_owned(), step.at.as_ps().into());
        object.insert("host".to_owned(), words::host(host).into());
        object.insert("who".to_owned(), who.into());
        let lines: Vec<&str> = step.lines.iter().map(|line| line.trim()).collect();
        object.insert("text".to_owned(), lines.join("; ").into());
        object.extend(step.fields.clone());
        writeln!(out, "{}", Value::Object(object))?;
    }
    let result = json!({ "step": "result", "as_expected": verdict.is_good(),
        "status": verdict.status.map(railnet_nic::Status::verbs_name),
        "expected_status": verdict.expected.verbs_name(), "outcome": verdict.outcome,
        "memory": verdict.memory, "bytes_equal": verdict.bytes_equal, "problems": verdict.problems,
        "packets": record.frames.len(), "digest": record.digest.to_string() });
    writeln!(out, "{result}")?;
    Ok(())
}
