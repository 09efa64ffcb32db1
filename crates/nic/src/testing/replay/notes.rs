//! The notes beside a capture: the two commands, and what they printed.
//!
//! Three kinds of program are known: `rnx`, the verbs exerciser that most captures were made with and which prints
//! everything; the `ibv_*_pingpong` examples; and perftest's `ib_*` tools. Of any other program (`rping`,
//! `rdma_server`) only the command is known, and the rest is learned from the capture.

use std::net::IpAddr;

use railnet_core::{Psn, QueuePairNumber};
use railnet_wire::GRH_LENGTH;

use crate::config::Mtu;

/// Why notes are not understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotesError {
    /// Nothing in them looks like notes.
    #[error(
        "the notes fit no known format: they begin with `# server (ADDRESS): COMMAND` and `# client (ADDRESS): COMMAND`, \
         then have the output of rnx, ibv_*_pingpong or perftest (ib_*) under `## server output` and `## client output`; \
         leave them away to learn all from the capture"
    )]
    Unknown,
    /// A line begins like a known one and goes on otherwise.
    #[error("line {line} of the notes: {what} is missing or is no number: {text:?}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What was looked for.
        what: &'static str,
        /// The line.
        text: String,
    },
}

/// The options of `rnx` that say how the responder is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Exerciser {
    pub(super) mtu: Mtu,
    pub(super) size: u32,
    pub(super) receives: u32,
    pub(super) receive_length: Option<u32>,
    /// The receives are posted after a delay.
    pub(super) posts_late: bool,
    pub(super) min_rnr_timer: u8,
    /// Verbs access bits.
    pub(super) access: u8,
    pub(super) reads: u8,
    pub(super) traffic_class: u8,
    pub(super) flow_label: u32,
    pub(super) shared: bool,
}

/// What ran on one side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Program {
    Exerciser(Exerciser),
    Pingpong {
        shared: bool,
        /// Bytes of each message.
        size: u32,
    },
    Perftest,
    #[default]
    Other,
}

/// One connected queue pair, as its program printed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    pub(super) number: QueuePairNumber,
    pub(super) peer: Option<QueuePairNumber>,
    /// The sequence number that the peer starts with.
    pub(super) expected: Option<Psn>,
    pub(super) key: Option<u32>,
    pub(super) address: Option<u64>,
}

/// A completion, as `rnx` printed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Noted {
    pub(super) work: u64,
    pub(super) status: u8,
    pub(super) kind: u8,
    pub(super) length: u32,
    pub(super) flags: u32,
    pub(super) immediate: u32,
    pub(super) source: u32,
}

/// One side of the conversation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Side {
    /// It was told whom to connect to.
    pub(super) is_client: bool,
    pub(super) address: Option<IpAddr>,
    pub(super) program: Program,
    pub(super) ends: Vec<End>,
    pub(super) mtu: Option<Mtu>,
    /// READs and atomics at once.
    pub(super) reads: Option<u8>,
    pub(super) completions: Vec<Noted>,
    pub(super) addresses: Vec<[u8; GRH_LENGTH]>,
    /// How many messages went each way, where the program told that at its end.
    pub(super) iterations: Option<u32>,
    /// The final state, and the first eight bytes of memory: only a serving `rnx` tells them, at its end.
    pub(super) end: Option<(u8, u64)>,
}

/// All notes: server and client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Notes {
    pub(super) sides: [Side; 2],
}

const NAMES: [&str; 2] = ["server", "client"];

impl Notes {
    pub(super) fn parse(text: &str) -> Result<Self, NotesError> {
        let mut notes = Self::default();
        notes.sides[1].is_client = true;
        let mut is_known = false;
        let mut section = None;
        let mut locals: [Vec<Told>; 2] = Default::default();
        let mut remotes: [Vec<Told>; 2] = Default::default();
        for (index, line) in text.lines().enumerate() {
            let at = Line { number: index + 1, text: line };
            if let Some((side, address, command)) = command_line(line) {
                is_known = true;
                notes.sides[side].address = address;
                notes.sides[side].take_command(command);
                continue;
            }
            if let Some(side) = NAMES.iter().position(|name| line.trim() == format!("## {name} output")) {
                (is_known, section) = (true, Some(side));
                continue;
            }
            let Some(side) = section else {
                continue;
            };
            let trimmed = line.trim();
            if trimmed.starts_with("local address:") {
                locals[side].push(at.told()?);
            } else if trimmed.starts_with("remote address:") {
                remotes[side].push(at.told()?);
            } else {
                notes.sides[side].take_line(&at, NAMES[side])?;
            }
        }
        if !is_known {
            return Err(NotesError::Unknown);
        }
        for (side, (local, remote)) in notes.sides.iter_mut().zip(locals.iter().zip(&remotes)) {
            for (own, other) in local.iter().zip(remote) {
                side.reads = side.reads.or(own.reads);
                side.ends.push(End {
                    number: own.number,
                    peer: Some(other.number),
                    expected: Some(other.psn),
                    key: own.key,
                    address: own.address,
                });
            }
        }
        Ok(notes)
    }

    /// The side that a queue pair belongs to.
    pub(super) fn side_of(&self, gid: IpAddr, number: QueuePairNumber) -> Option<&Side> {
        let both = || self.sides.iter();
        let has_end = |side: &&Side| side.end_of(number).is_some();
        let has_address = |side: &&Side| side.address == Some(gid);
        // Both sides may have the same number: then the address tells. It may also be one that the notes do not name.
        both()
            .find(|side| has_end(side) && has_address(side))
            .or_else(|| both().find(has_end))
            .or_else(|| both().find(has_address))
    }
}

/// `# server (10.77.0.2): /usr/bin/program options`
fn command_line(line: &str) -> Option<(usize, Option<IpAddr>, &str)> {
    let rest = line.strip_prefix("# ")?;
    let side = NAMES.iter().position(|name| rest.starts_with(name))?;
    let rest = rest[NAMES[side].len()..].trim_start().strip_prefix('(')?;
    let (address, command) = rest.split_once("):")?;
    Some((side, address.trim().parse().ok(), command.trim()))
}

/// What a "local address" or "remote address" line tells.
#[derive(Clone, Copy)]
struct Told {
    number: QueuePairNumber,
    psn: Psn,
    key: Option<u32>,
    address: Option<u64>,
    reads: Option<u8>,
}

struct Line<'a> {
    number: usize,
    text: &'a str,
}

impl Line<'_> {
    fn wrong(&self, what: &'static str) -> NotesError {
        NotesError::Line { line: self.number, what, text: self.text.trim().to_owned() }
    }

    /// The words after the `nth` word that is `name`, less punctuation.
    fn word(&self, name: &str, nth: usize) -> Option<&str> {
        let mut words = self.text.split_whitespace().map(|word| word.trim_end_matches([',', ':', ';']));
        for _ in 0..=nth {
            words.find(|word| *word == name)?;
        }
        words.next()
    }

    fn number_after(&self, name: &'static str, nth: usize, radix: u32) -> Result<u64, NotesError> {
        let word = self.word(name, nth).ok_or_else(|| self.wrong(name))?;
        let digits = word.strip_prefix("0x");
        let radix = if digits.is_some() { 16 } else { radix };
        u64::from_str_radix(digits.unwrap_or(word), radix).map_err(|_| self.wrong(name))
    }

    fn told(&self) -> Result<Told, NotesError> {
        let optional = |name| match self.word(name, 0) {
            Some(_) => self.number_after(name, 0, 16).map(Some),
            None => Ok(None),
        };
        Ok(Told {
            number: QueuePairNumber::new(self.number_after("QPN", 0, 16)? as u32),
            psn: Psn::new(self.number_after("PSN", 0, 16)? as u32),
            key: optional("RKey")?.map(|key| key as u32),
            address: optional("VAddr")?,
            reads: optional("OUT")?.map(|reads| reads as u8),
        })
    }
}

impl Side {
    /// What the program printed about this queue pair of its own.
    pub(super) fn end_of(&self, number: QueuePairNumber) -> Option<&End> {
        self.ends.iter().find(|end| end.number == number)
    }

    fn take_command(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let Some((&path, options)) = words.split_first() else {
            return;
        };
        let name = path.rsplit('/').next().unwrap_or(path);
        if name == "rnx" {
            let exerciser = Exerciser::new(options);
            self.mtu = Some(exerciser.mtu);
            self.program = Program::Exerciser(exerciser);
        } else if name.starts_with("ibv_") && name.ends_with("_pingpong") {
            let shared = name.contains("srq");
            // The examples of rdma-core send so much where no option says otherwise.
            let usual = if name.contains("_ud_") { 2048 } else { 4096 };
            let size = value_of(options, "-s").map_or(usual, strtol);
            self.program = Program::Pingpong { shared, size };
            // They take 1024; datagrams have no path MTU.
            let asked = value_of(options, "-m").and_then(|value| value.parse().ok());
            self.mtu = Mtu::from_bytes(asked.unwrap_or(1024));
        } else if name.starts_with("ib_") {
            self.program = Program::Perftest;
        }
    }

    fn take_line(&mut self, line: &Line<'_>, name: &str) -> Result<(), NotesError> {
        let text = line.text.trim();
        if text.starts_with("Mtu") {
            let bytes = text.split_once(':').and_then(|(_, value)| value.trim().strip_suffix("[B]"));
            let mtu = bytes.and_then(|bytes| Mtu::from_bytes(bytes.parse().ok()?));
            self.mtu = Some(mtu.ok_or_else(|| line.wrong("an MTU"))?);
        } else if text.starts_with(name) && text.split_whitespace().nth(1) == Some("qpn") {
            self.ends.push(End {
                number: QueuePairNumber::new(line.number_after("qpn", 0, 16)? as u32),
                peer: Some(QueuePairNumber::new(line.number_after("qpn", 1, 16)? as u32)),
                expected: Some(Psn::new(line.number_after("psn", 1, 16)? as u32)),
                key: Some(line.number_after("rkey", 0, 16)? as u32),
                address: Some(line.number_after("addr", 0, 16)?),
            });
        } else if text.starts_with("cqe wr") && text.contains("src_qp") {
            self.completions.push(Noted {
                work: line.number_after("wr", 0, 10)?,
                status: status_of(text).ok_or_else(|| line.wrong("a status in brackets"))?,
                kind: line.number_after("opcode", 0, 10)? as u8,
                length: line.number_after("len", 0, 10)? as u32,
                flags: line.number_after("flags", 0, 16)? as u32,
                immediate: line.number_after("imm", 0, 16)? as u32,
                source: line.number_after("src_qp", 0, 16)? as u32,
            });
        } else if let Some(words) = text.strip_prefix("GRH:") {
            let bytes: Option<Vec<u8>> = words
                .split_whitespace()
                .map(|word| u32::from_str_radix(word, 16).ok().map(u32::to_be_bytes))
                .collect::<Option<Vec<_>>>()
                .map(|words| words.concat());
            let area = bytes.and_then(|bytes| bytes.try_into().ok());
            self.addresses.push(area.ok_or_else(|| line.wrong("40 bytes of hexadecimal digits"))?);
        } else if text.contains(" iters in ") && matches!(self.program, Program::Pingpong { .. }) {
            self.iterations = Some(atoi(text));
        } else if text.starts_with("server qp state") {
            let state = line.number_after("state", 0, 10)? as u8;
            self.end = Some((state, line.number_after("buf[0..8]", 0, 16)?));
        }
        Ok(())
    }
}

/// The number in brackets: `success (0)`.
fn status_of(text: &str) -> Option<u8> {
    let (_, rest) = text.split_once('(')?;
    rest.split_once(')')?.0.parse().ok()
}

fn value_of<'a>(options: &[&'a str], name: &str) -> Option<&'a str> {
    let at = options.iter().position(|option| *option == name)?;
    options.get(at + 1).copied()
}

/// A number as C's `atoi` reads it: `0x2a` is 0.
fn atoi(text: &str) -> u32 {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().unwrap_or(0)
}

/// A number as C's `strtol` reads it with base 0.
fn strtol(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap_or(0),
        None => atoi(text),
    }
}

impl Exerciser {
    /// Options that have a value.
    const WITH_VALUE: &str = "dgmpnrwRTtMAqozPkODSFl";

    fn new(words: &[&str]) -> Self {
        let mut options = Self {
            mtu: Mtu::Mtu1024,
            size: 64,
            receives: 16,
            receive_length: None,
            posts_late: false,
            min_rnr_timer: 12,
            access: 15,
            reads: 4,
            traffic_class: 0,
            flow_label: 0,
            shared: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(letters) = word.strip_prefix('-') else {
                continue;
            };
            for (at, letter) in letters.char_indices() {
                if !Self::WITH_VALUE.contains(letter) {
                    options.shared |= letter == 'Q';
                    continue;
                }
                let rest = &letters[at + letter.len_utf8()..];
                let value = if rest.is_empty() { words.next().copied().unwrap_or_default() } else { rest };
                options.take(letter, value);
                break;
            }
        }
        options
    }

    fn take(&mut self, letter: char, value: &str) {
        match letter {
            // rnx takes any MTU that it does not know for 4096.
            'm' => self.mtu = Mtu::from_bytes(atoi(value)).unwrap_or(Mtu::Mtu4096),
            'z' => self.size = atoi(value),
            'r' => self.receives = atoi(value),
            'l' => self.receive_length = Some(atoi(value)),
            'w' => self.posts_late = atoi(value) > 0,
            'M' => self.min_rnr_timer = atoi(value) as u8,
            'A' => self.access = atoi(value) as u8 & 15,
            'D' => self.reads = atoi(value) as u8,
            'S' => self.traffic_class = atoi(value) as u8,
            'F' => self.flow_label = strtol(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_getopt_and_atoi_would() {
        let options =
            Exerciser::new(&["-bz", "100", "-F", "0xabcde", "-S", "0x2a", "-Q", "-l50", "10.0.0.1"]);
        assert_eq!((options.size, options.flow_label), (100, 0xabcde));
        assert_eq!((options.traffic_class, options.receive_length), (0, Some(50)), "atoi stops at the x");
        assert!(options.shared);
    }

    #[test]
    fn lines_of_all_three_kinds_of_program_are_understood() {
        let text = "# server (10.0.0.2): ibv_srq_pingpong -m 512\n## server output\n  \
                    local address:  LID 0x0000, QPN 0x00004a, PSN 0xe2dc5e: GID ::ffff:10.0.0.2\n  \
                    remote address: LID 0x0000, QPN 0x000044, PSN 0x9c48a8, GID ::ffff:10.0.0.3\n\
                    ## client output\n Mtu             : 1024[B]\n \
                    local address: LID 0000 QPN 0x0049 PSN 0x88939 OUT 0x02 RKey 0x0039cf VAddr 0x005647fc261000\n \
                    remote address: LID 0000 QPN 0x004f PSN 0x453c1b OUT 0x02 RKey 0x003fa1 VAddr 0x0055b652e8e000\n";
        let notes = Notes::parse(text).unwrap();
        let [server, client] = &notes.sides;
        assert_eq!((server.mtu, server.ends[0].expected), (Some(Mtu::Mtu512), Some(Psn::new(0x9c_48a8))));
        assert_eq!(server.program, Program::Pingpong { shared: true, size: 4096 });
        assert_eq!((client.mtu, client.reads), (Some(Mtu::Mtu1024), Some(2)));
        assert_eq!((client.ends[0].key, client.ends[0].address), (Some(0x39cf), Some(0x5647_fc26_1000)));
    }

    #[test]
    fn what_are_no_notes_is_refused_with_a_hint() {
        assert_eq!(Notes::parse("hello\nworld\n"), Err(NotesError::Unknown));
        let broken = "## server output\nserver qpn 0x3 psn x\n";
        assert!(matches!(Notes::parse(broken), Err(NotesError::Line { line: 2, .. })));
    }
}
