//! Every parser and decoder on damaged input: whatever the bytes are, they are read or refused, without a panic and without an
//! arithmetic overflow, which tests check for.
//!
//! Each target has a corpus: true inputs of the repository, and `testdata/fuzz`. They are damaged at random, `FUZZ_ROUNDS` times for
//! each target, from the seed `FUZZ_SEED`; `tests/full/fuzz.sh` does so for longer.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use railnet_core::{QueuePairNumber, Random, Span, Time};
use railnet_formats::{chakra, msccl, nccl_topology};
use railnet_live::agreement::{Ballot, Decision, Message as Agreed, Vote};
use railnet_live::message::{BLOB_MAX, Decoder, Hello, Member, Message, Trouble, TroubleKind, preamble};
use railnet_nic::cm::{Call, Datagram, Event, Manager, Offer};
use railnet_nic::{Mtu, State};
use railnet_wire::capture::Reader;
use railnet_wire::mad::{CmaHeader, MAD_LENGTH, ServiceId};
use railnet_wire::{Extension, Frame, Gid, Identification, Network, ROCE_PORT, parse_datagram, parse_packet};

use crate::harness;
use crate::harness::root;

const ROUNDS: u64 = 1500;
/// The most bytes of an input that is made.
const BYTES_MAX: usize = 1 << 16;

/// Files of a folder of the repository, and of those below it, that end so.
fn files(folder: &str, end: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let below = paths.iter().filter(|path| path.is_dir());
    let below = below.flat_map(|path| files(path.strip_prefix(root()).unwrap().to_str().unwrap(), end));
    let here = paths.iter().filter(|path| path.is_file() && path.to_string_lossy().ends_with(end));
    here.map(|path| fs::read(path).unwrap()).chain(below.collect::<Vec<_>>()).collect()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Numbers that are the ends of something, as little-endian bytes and as text.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 53,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Damages an input, with parts of another of the same corpus.
fn damage(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..random.between(1, 6) {
        let at = random.below(input.len() as u64 + 1) as usize;
        let length = random.below(input.len() as u64 - at as u64 + 1).min(64) as usize;
        match random.below(9) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next_u32() as u8,
            2 => input.truncate(at),
            3 => drop(input.drain(at..at + length)),
            4 => {
                let piece = input[at..at + length].to_vec();
                input.splice(at..at, piece);
            }
            5 => {
                let width = 1 << random.below(4);
                let edge = random.pick(&EDGES).to_le_bytes();
                let end = input.len().min(at + width);
                input.splice(at..end, edge[..width].iter().copied());
            }
            6 => {
                // A number in a text becomes another one.
                let digits = input[at..].iter().position(u8::is_ascii_digit).map(|found| at + found);
                let Some(start) = digits else { continue };
                let end = input[start..]
                    .iter()
                    .position(|byte| !byte.is_ascii_digit())
                    .map_or(input.len(), |found| start + found);
                let edge = random.pick(&EDGES).to_string();
                input.splice(start..end, edge.bytes());
            }
            7 => {
                let from = random.below(other.len() as u64 + 1) as usize;
                let length = random.below((other.len() - from) as u64 + 1).min(256) as usize;
                input.splice(at..at, other[from..from + length].iter().copied());
            }
            _ => {
                let text: &[&[u8]] = &[
                    b"-1",
                    b"nan",
                    b"inf",
                    b"1e308",
                    b"\"",
                    b"<",
                    b"[[",
                    b"\xff",
                    b"\0",
                    b"18446744073709551616",
                ];
                input.splice(at..at, random.pick(text).iter().copied());
            }
        }
    }
    input.truncate(BYTES_MAX);
}

/// Tries a parser with its corpus and with what damage makes of it.
fn target(name: &str, corpus: Vec<Vec<u8>>, parse: impl Fn(&[u8])) {
    let found = files(&format!("testdata/fuzz/{name}"), "");
    let corpus: Vec<Vec<u8>> = corpus
        .into_iter()
        .chain(found)
        .map(|mut one| {
            one.truncate(BYTES_MAX);
            one
        })
        .collect();
    assert!(!corpus.is_empty(), "{name} has no corpus");
    let attempt = |input: &[u8], what: &str| {
        if catch_unwind(AssertUnwindSafe(|| parse(input))).is_ok() {
            return;
        }
        if let Ok(folder) = std::env::var("FUZZ_SAVE") {
            let path = Path::new(&folder).join(format!("{name}-{}", input.len()));
            fs::write(path, input).unwrap();
        }
        let (length, shown) = (input.len(), &input[..input.len().min(4096)]);
        panic!("{name} panics on {what}, {length} bytes: {shown:02x?}");
    };
    for (index, input) in corpus.iter().enumerate() {
        attempt(input, &format!("input {index} of its corpus"));
    }
    let seed = number("FUZZ_SEED", 1);
    let mut random = Random::from_seed(seed);
    for round in 0..number("FUZZ_ROUNDS", ROUNDS) {
        let mut input = random.pick(&corpus).clone();
        let other = random.pick(&corpus).clone();
        damage(&mut random, &mut input, &other);
        attempt(&input, &format!("round {round} of seed {seed}"));
    }
}

fn text(parse: impl Fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| parse(&String::from_utf8_lossy(bytes))
}

fn captures() -> Vec<Vec<u8>> {
    files("testdata/rxe", ".pcap")
}

/// The packets of all captures, from their Ethernet or IP headers on.
fn packets() -> Vec<Vec<u8>> {
    let captures = captures();
    let read = |bytes: &Vec<u8>| {
        let reader = Reader::new(&bytes[..]).unwrap();
        reader.map_while(Result::ok).map(|packet| packet.bytes).collect::<Vec<_>>()
    };
    captures.iter().flat_map(read).collect()
}

#[test]
fn captures_are_read_or_refused() {
    target("capture", captures(), |bytes| {
        let Ok(reader) = Reader::new(bytes) else { return };
        for packet in reader.take(10_000).map_while(Result::ok) {
            let _ = Frame::parse(&packet.bytes);
        }
    });
}

#[test]
fn packets_are_read_or_refused() {
    let network = Network {
        source: Gid::from_ip("10.0.0.1".parse().unwrap()),
        target: Gid::from_ip("10.0.0.2".parse().unwrap()),
        source_port: 0xc000,
        target_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        flow_label: 0,
    };
    target("packet", packets(), |bytes| {
        if let Ok(Frame::Roce(packet)) = Frame::parse(bytes) {
            // What was read is what is written, but for reserved bits: it is read as the same again.
            let again = packet.to_bytes();
            if let Ok(Frame::Roce(second)) = Frame::parse(&again) {
                assert_eq!(
                    (second.headers, second.payload, second.authentication),
                    (packet.headers, packet.payload, packet.authentication)
                );
            }
        }
        let _ = Frame::parse_ip(bytes);
        let _ = parse_packet(bytes);
        // From Ethernet on, from IP, and from BTH: a datagram may be any of these.
        for front in [0, 14, 42] {
            let Some(datagram) = bytes.get(front..) else { continue };
            for accepted in [Identification::Known, Identification::SEGMENTS, Identification::Any] {
                if let Ok(parsed) = parse_datagram(&network, datagram, accepted) {
                    let _ = Extension::parse(&datagram[parsed.extension]);
                    let _ = railnet_wire::mad::ConnectionMad::parse(&datagram[parsed.payload]);
                }
            }
            let _ = railnet_wire::mad::ConnectionMad::parse(datagram);
        }
    });
}

#[test]
fn run_files_are_read_or_refused() {
    let file = |command: &[&str]| {
        let path =
            std::env::temp_dir().join(format!("railnet-parsers-{}-{}", std::process::id(), command.len()));
        let done = harness::command::<&str>(&[]).args(command).arg(&path).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        bytes
    };
    let corpus = vec![file(&["sim", "incast", "--record"])];
    target("run-file", corpus, |bytes| {
        if let Ok(file) = railnet_formats::run_file::RunFile::parse(bytes) {
            let mut again = Vec::new();
            file.write(&mut again).unwrap();
        }
    });
}

#[test]
fn scenarios_are_read_or_refused() {
    let corpus =
        files("scenarios", ".toml").into_iter().chain(files("testdata/catalogue", ".toml")).collect();
    let none = |name: &str| Err(format!("there is no {name} here"));
    target(
        "scenario",
        corpus,
        text(|text| {
            let _ = railnet_sim::Scenario::parse_with(text, none);
            let _ = railnet_sim::Scenario::parse_to_plan(text, none);
        }),
    );
}

#[test]
fn msccl_algorithms_are_read_or_refused() {
    target("msccl", files("testdata/msccl", ".xml"), text(|text| drop(msccl::read(text))));
}

#[test]
fn nccl_topologies_are_read_or_refused() {
    target(
        "nccl-topology",
        files("testdata/nccl", ".xml"),
        text(|text| drop(nccl_topology::read("fuzz", text))),
    );
}

#[test]
fn chakra_traces_are_read_or_refused() {
    let corpus = files("testdata/chakra", ".et").into_iter().take(3).collect();
    target("chakra", corpus, |bytes| drop(chakra::read(bytes)));
}

#[test]
fn hosts_and_variables_are_read_or_refused() {
    let hosts = ["a slots=4\nb:2 # two\n\n10.0.0.1 slots=1 max_slots=2\n", "node[01-16,20] slots=8\n"];
    let corpus = hosts.iter().map(|text| text.as_bytes().to_vec()).collect();
    target("host-file", corpus, text(|text| drop(railnet_live::hostfile::parse(text))));
    let lists = ["gpu[001-128,256]", "a,b,c[1-3]-ib[0-1]", "n[0-99999999]", "x[1-"];
    let corpus = lists.iter().map(|text| text.as_bytes().to_vec()).collect();
    target("host-list", corpus, text(|text| drop(railnet_live::launch::expand(text, 4096))));
    let variables = ["NCCL_ALGO=Ring,Tree\n# comment\nNCCL_BUFFSIZE=4194304\nNCCL_IB_TIMEOUT=20\n"];
    let corpus = variables.iter().map(|text| text.as_bytes().to_vec()).collect();
    target("variables", corpus, text(|text| drop(railnet_coll::variables::Variables::parse_file(text))));
}

#[test]
fn messages_of_agreements_are_read_or_refused() {
    let ballot = Ballot { round: 7, leader: 3 };
    let decision = Decision { failed: BTreeSet::from([1, 4]), flags: 0xff };
    let vote = Vote { accepted: Some((ballot, decision.clone())), failed: BTreeSet::from([2]), flags: 1 };
    let messages = [
        Agreed::Ping,
        Agreed::Prepare(ballot),
        Agreed::Promise(ballot, vote),
        Agreed::Accept(ballot, decision.clone()),
        Agreed::Accepted(ballot),
        Agreed::Rejected(ballot),
        Agreed::Decided(decision),
        Agreed::NoQuorum(BTreeSet::from([0, 2])),
    ];
    target("agreement", messages.iter().map(Agreed::write).collect(), |bytes| {
        if let Ok(message) = Agreed::read(bytes) {
            assert_eq!(Agreed::read(&message.write()), Ok(message));
        }
    });
}

#[test]
fn messages_of_the_rendezvous_and_of_control_are_read_or_refused() {
    let hello = Hello {
        rank: 1,
        world_size: 4,
        job: 7,
        nonce: [3; 16],
        limit_ms: 1000,
        pid: 9,
        host: "host".to_owned(),
        group: "group".to_owned(),
    };
    let member = Member { pid: 1, host: "h".to_owned(), group: "g".to_owned(), blob: vec![5; 100] };
    let trouble = Trouble { kind: TroubleKind::Missing, ranks: vec![1, 2], text: "missing".to_owned() };
    let messages = [
        Message::Hello(hello),
        Message::Challenge { nonce: [1; 16], proof: [2; 32] },
        Message::Join { proof: [2; 32], blob: vec![1; 50] },
        Message::Welcome(vec![member.clone(), member]),
        Message::Refused(trouble.clone()),
        Message::Ping,
        Message::Gather { sequence: 1, limit_ms: 2, label: "l".to_owned(), blob: vec![3] },
        Message::Gathered { sequence: 1, blobs: vec![vec![1], vec![2, 3]] },
        Message::GatherFailed { sequence: 1, trouble },
        Message::Put { key: "k".to_owned(), value: vec![1] },
        Message::Get { ticket: 1, limit_ms: 5, key: "k".to_owned() },
        Message::Got { ticket: 1, value: Some(vec![9]) },
        Message::Notice { from: 1, kind: 0, body: vec![7; 30] },
        Message::Leave,
    ];
    let mut all = preamble().to_vec();
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    for message in &messages {
        let mut one = preamble().to_vec();
        message.write(&mut one);
        message.write(&mut all);
        corpus.push(one);
    }
    corpus.push(all);
    target("message", corpus, |bytes| {
        let mut decoder = Decoder::new(BLOB_MAX);
        for piece in bytes.chunks(97) {
            decoder.push(piece);
            while let Ok(Some(message)) = decoder.next() {
                let mut written = preamble().to_vec();
                message.write(&mut written);
                let mut second = Decoder::new(BLOB_MAX);
                second.push(&written);
                assert_eq!(second.next(), Ok(Some(message)));
            }
        }
    });
}

#[test]
fn what_ranks_say_of_themselves_is_read_or_refused() {
    for parser in &railnet_live::parsers::PARSERS {
        target(parser.name, Vec::new(), |bytes| {
            if let Some(again) = (parser.read)(bytes) {
                // Lists may be cut where they are written, and are not read longer than that.
                assert_eq!((parser.read)(&again).as_deref(), Some(&again[..]), "{}", parser.name);
            }
        });
    }
}

/// Where managers of connections live in these tests.
fn gid(host: u8) -> Gid {
    Gid::from_ip(format!("10.0.0.{host}").parse().unwrap())
}

/// The manager of an address, as `librdmacm` has it: it listens, has asked for a connection and for a queue pair of datagrams, and answers
/// whatever comes.
struct Managed {
    manager: Manager,
    now: Time,
    sent: Vec<Datagram>,
}

impl Managed {
    fn new(host: u8, other: u8) -> Self {
        let first = u32::from(host) << 22;
        let mut manager = Manager::new(gid(host), host.into(), first..first + 64, 7);
        let now = Time::from_ps(1);
        let private: Vec<u8> = (0..40).collect();
        for service in SERVICES {
            manager.listen(now, service).unwrap();
        }
        let call = Call {
            target: gid(other),
            service: SERVICES[0],
            is_unreliable: false,
            mtu: Mtu::Mtu2048,
            ack_timeout: 14,
            traffic_class: 0,
            offer: Offer {
                queue_pair: QueuePairNumber::new(9),
                private: private.clone(),
                ..Offer::default()
            },
        };
        manager.connect(now, &call).unwrap();
        manager.resolve(now, gid(other), SERVICES[1], &private).unwrap();
        Self { manager, now, sent: Vec::new() }
    }

    fn receive(&mut self, from: u8, bytes: &[u8]) {
        self.now += Span::from_ms(1);
        let _ = (Manager::addressed_id(bytes), Manager::asked_service(bytes));
        self.manager.receive(self.now, gid(from), bytes);
        self.drive();
    }

    /// What an application does.
    fn drive(&mut self) {
        let (now, manager) = (self.now, &mut self.manager);
        while let Some(event) = manager.poll_event() {
            // Calls are refused where the connection is over meanwhile.
            let _ = match event {
                Event::Requested { connection, offer, .. } => {
                    let _ = CmaHeader::parse(&offer.private);
                    let _ = manager.attributes(connection, State::ReadyToReceive);
                    manager.accept(now, connection, Offer::default())
                }
                Event::Replied { connection, .. } => manager.establish(connection),
                Event::Resolving { connection, private, .. } => {
                    let _ = CmaHeader::parse(&private);
                    manager.answer(now, connection, QueuePairNumber::new(5), 6, &[1; 30])
                }
                Event::Established(connection) => manager.disconnect(now, connection),
                _ => Ok(()),
            };
        }
        while let Some(datagram) = manager.poll_transmit() {
            self.sent.push(datagram);
        }
    }

    /// Whatever came, nothing is left to wait for in the end.
    fn end(&mut self) {
        for _ in 0..10_000 {
            let Some(due) = self.manager.poll_timeout() else { return };
            self.now = self.now.max(due);
            self.manager.handle_timeout(self.now);
            self.drive();
        }
        panic!("its timers never end");
    }
}

const SERVICES: [ServiceId; 2] = [ServiceId(0x0106_1234), ServiceId(0x0111_1234)];

/// Messages of management datagrams follow each other in an input.
const DATAGRAM: usize = MAD_LENGTH;

#[test]
fn conversations_of_connection_managers_end_whatever_comes() {
    let mut managers = [Managed::new(1, 2), Managed::new(2, 1)];
    let mut heard = [Vec::new(), Vec::new()];
    for _ in 0..20 {
        for host in 0..2 {
            managers[host].drive();
            for datagram in std::mem::take(&mut managers[host].sent) {
                heard[1 - host].extend(datagram.bytes);
                managers[1 - host].receive(host as u8 + 1, &datagram.bytes);
            }
        }
    }
    // Connections, questions and ends, both ways.
    assert!(heard.iter().all(|bytes| bytes.len() >= 6 * DATAGRAM), "{:?}", heard.each_ref().map(Vec::len));
    let [first, second] = heard;
    target("connection-manager", vec![first, second], |bytes| {
        let mut managed = Managed::new(1, 2);
        for datagram in bytes.chunks(DATAGRAM).take(64) {
            managed.receive(2, datagram);
        }
        managed.end();
    });
}
