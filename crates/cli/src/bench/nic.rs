//! `railnet bench nic`: two NICs joined in memory, on one core.

use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use railnet_core::event::NoSink;
use railnet_core::{QueuePairNumber, Rate, Span, Time};
use railnet_nic::control::{ControlConfig, DcqcnParameters};
use railnet_nic::memory::{Segments, SpaceId};
use railnet_nic::testing::loopback_gid;
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Context, Inbound, Key, Nic, NicConfig, Operation,
    OutboundPayload, Payload, Priorities, QueuePairConfig, ReceiveRequest, Remote, SendRequest, Service, Sge,
    Status, Transmit,
};
use railnet_wire::{Extension, HEADROOM, emit_around, icrc, parse_packet};

use crate::Outcome;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each measurement runs, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds, default_value_t = 0.4)]
    seconds: f64,
    /// How often each is repeated; the table shows median, min and max
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 5)]
    repeat: usize,
    /// Only the rows whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

const BASE: u64 = 0x1000_0000;
const MESSAGE: u32 = 1 << 20;
const SMALL: u32 = 64;
const DEPTH: usize = 32;
const MANY: usize = 10_000;

/// What a queue pair does over and over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Write,
    Read,
    Send,
}

/// How the two NICs are joined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joint {
    /// Header values and ghost payload.
    Ghost,
    /// Real bytes: every packet is emitted with its ICRC, checked and parsed.
    Bytes,
}

#[derive(Clone, Copy)]
struct Case {
    work: Work,
    joint: Joint,
    length: u32,
    queue_pairs: usize,
    /// Of those, how many have something to do.
    active: usize,
    dcqcn: bool,
}

/// Two NICs and what stands between them.
struct Pair {
    case: Case,
    now: Time,
    nics: [Nic; 2],
    memory: Segments,
    queues: [CompletionQueue; 2],
    keys: [Key; 2],
    queue_pairs: Vec<[QueuePairNumber; 2]>,
    buffer: Vec<u8>,
    packet: Option<Transmit>,
    posted: u64,
    done: u64,
    packets: u64,
}

impl Pair {
    fn new(case: Case) -> anyhow::Result<Self> {
        let mut memory = Segments::new();
        let spaces: [SpaceId; 2] = std::array::from_fn(|_| match case.joint {
            Joint::Ghost => memory.add_ghost(BASE, u64::from(MESSAGE)),
            Joint::Bytes => memory.add_bytes(BASE, vec![0x5a; MESSAGE as usize]),
        });
        let mut nics: [Nic; 2] = std::array::from_fn(|index| {
            let component = railnet_core::Component(index as u32);
            let mut config = NicConfig::new(component, 1, loopback_gid(index));
            if case.dcqcn {
                config.control = ControlConfig::Dcqcn(DcqcnParameters::paper(Rate::gbps(100)));
            }
            Nic::new(config)
        });
        let mut queues = Vec::new();
        let mut keys = Vec::new();
        let mut domains = Vec::new();
        for (nic, &space) in nics.iter_mut().zip(&spaces) {
            let domain = nic.alloc_pd();
            queues.push(nic.create_cq(1 << 20)?);
            keys.push(nic.reg_mr(&memory, domain, space, BASE, u64::from(MESSAGE), Access::ALL, None)?);
            domains.push(domain);
        }
        let mut pair = Self {
            case,
            now: Time::ZERO,
            nics,
            memory,
            queues: [queues[0], queues[1]],
            keys: [keys[0], keys[1]],
            queue_pairs: Vec::new(),
            buffer: Vec::with_capacity(HEADROOM + 4096 + 8),
            packet: None,
            posted: 0,
            done: 0,
            packets: 0,
        };
        for _ in 0..case.queue_pairs {
            let mut numbers = [QueuePairNumber::default(); 2];
            for side in 0..2 {
                let config = QueuePairConfig::new(Service::ReliableConnection, pair.queues[side]);
                numbers[side] = pair.nics[side].create_qp(domains[side], &config)?;
            }
            pair.connect(numbers)?;
            pair.queue_pairs.push(numbers);
        }
        pair.start()?;
        Ok(pair)
    }

    fn connect(&mut self, numbers: [QueuePairNumber; 2]) -> anyhow::Result<()> {
        for side in 0..2 {
            let connection =
                Connection { timeout: 18, ..Connection::to(loopback_gid(1 - side), numbers[1 - side]) };
            let mut sink = NoSink;
            let mut cx = Context::new(self.now, &mut self.memory, &mut sink);
            for change in connection.transitions() {
                self.nics[side].modify_qp(&mut cx, numbers[side], &change)?;
            }
        }
        Ok(())
    }

    /// Fills the queues of the active queue pairs.
    fn start(&mut self) -> anyhow::Result<()> {
        for index in 0..self.case.active {
            let depth = if self.case.active > 1 { 2 } else { DEPTH };
            for _ in 0..depth {
                if self.case.work == Work::Send {
                    self.post_receive(self.queue_pairs[index][1], index as u64)?;
                    self.post_receive(self.queue_pairs[index][1], index as u64)?;
                }
                self.post(index)?;
            }
        }
        Ok(())
    }

    fn post(&mut self, index: usize) -> anyhow::Result<()> {
        let remote = Remote { address: BASE, key: self.keys[1] };
        let operation = match self.case.work {
            Work::Write => Operation::Write(remote),
            Work::Read => Operation::Read(remote),
            Work::Send => Operation::Send,
        };
        let sge = Sge { address: BASE, length: self.case.length, key: self.keys[0] };
        let mut sink = NoSink;
        let mut cx = Context::new(self.now, &mut self.memory, &mut sink);
        let request = SendRequest::new(index as u64, operation).with(sge);
        self.nics[0].post_send(&mut cx, self.queue_pairs[index][0], request)?;
        self.posted += 1;
        Ok(())
    }

    fn post_receive(&mut self, queue_pair: QueuePairNumber, work: u64) -> anyhow::Result<()> {
        let sge = Sge { address: BASE, length: self.case.length, key: self.keys[1] };
        let mut sink = NoSink;
        let mut cx = Context::new(self.now, &mut self.memory, &mut sink);
        self.nics[1].post_recv(&mut cx, queue_pair, ReceiveRequest::new(work).with(sge))?;
        Ok(())
    }

    /// Moves one packet from a NIC to the other. `false` when it has none.
    #[inline]
    fn hop(&mut self, from: usize) -> anyhow::Result<bool> {
        let mut sink = NoSink;
        let mut cx = Context::new(self.now, &mut self.memory, &mut sink);
        self.buffer.clear();
        self.buffer.resize(HEADROOM, 0);
        let (buffer, packet) = (&mut self.buffer, &mut self.packet);
        if !self.nics[from].poll_transmit_into(&mut cx, 0, Priorities::ALL, buffer, packet) {
            return Ok(false);
        }
        let Some(transmit) = packet else { return Ok(false) };
        self.packets += u64::from(transmit.payload.length() > 0);
        match (&transmit.payload, self.case.joint) {
            (OutboundPayload::Ghost(runs), _) => {
                let (network, headers, payload) =
                    (&transmit.network, &transmit.headers, Payload::Ghost(runs));
                let inbound = Inbound { network, headers, extension: None, payload, intact: true };
                let _ = self.nics[1 - from].receive(&mut cx, &inbound);
            }
            (OutboundPayload::Bytes(_), Joint::Ghost) => {
                let (network, headers) = (&transmit.network, &transmit.headers);
                let payload = Payload::Bytes(&[]);
                let inbound = Inbound { network, headers, extension: None, payload, intact: true };
                let _ = self.nics[1 - from].receive(&mut cx, &inbound);
            }
            (OutboundPayload::Bytes(_), Joint::Bytes) => {
                let (network, headers) = (&transmit.network, &transmit.headers);
                let start = emit_around(&mut self.buffer, None, network, headers, &Extension::NONE);
                let packet = &self.buffer[start..];
                let (network, datagram) = parse_packet(packet)?;
                let payload = Payload::Bytes(&packet[datagram.payload.clone()]);
                let intact = datagram.icrc_is_good();
                let (network, headers) = (&network, &datagram.headers);
                let inbound = Inbound { network, headers, extension: None, payload, intact };
                let _ = self.nics[1 - from].receive(&mut cx, &inbound);
            }
        }
        Ok(true)
    }

    /// Runs one round: packets both ways, completions, new work.
    fn round(&mut self) -> anyhow::Result<()> {
        for _ in 0..64 {
            let forth = self.hop(0)?;
            let back = self.hop(1)?;
            self.now += Span::from_ns(50);
            if !forth && !back {
                break;
            }
        }
        let mut some = [Completion::EMPTY; 64];
        if self.case.work == Work::Send {
            loop {
                let count = self.nics[1].poll_cq(self.queues[1], &mut some);
                for received in &some[..count] {
                    self.post_receive(received.queue_pair, received.work)?;
                }
                if count < some.len() {
                    break;
                }
            }
        }
        loop {
            let count = self.nics[0].poll_cq(self.queues[0], &mut some);
            for completion in &some[..count] {
                anyhow::ensure!(
                    completion.status == Status::Success,
                    "a benchmark run failed: {}",
                    completion.status
                );
                self.done += 1;
                self.post(completion.work as usize)?;
            }
            if count < some.len() {
                return Ok(());
            }
        }
    }
}

/// What one measurement gave, per second.
#[derive(Clone, Copy)]
struct Rates {
    bytes: f64,
    packets: f64,
    messages: f64,
}

fn measure(case: Case, arguments: &Arguments) -> anyhow::Result<Vec<Rates>> {
    let mut all = Vec::new();
    let mut pair = Pair::new(case)?;
    for _ in 0..200.max(case.active / 8) {
        pair.round()?;
    }
    for _ in 0..arguments.repeat.max(1) {
        let (packets, done) = (pair.packets, pair.done);
        let began = Instant::now();
        let until = began + Duration::from_secs_f64(arguments.seconds);
        while Instant::now() < until {
            for _ in 0..16 {
                pair.round()?;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let messages = (pair.done - done) as f64 / seconds;
        let packets = (pair.packets - packets) as f64 / seconds;
        all.push(Rates { bytes: messages * f64::from(case.length), packets, messages });
    }
    Ok(all)
}

/// Median, min and max of a measured quantity.
fn spread(rates: &[Rates], of: impl Fn(&Rates) -> f64) -> [f64; 3] {
    let mut values: Vec<f64> = rates.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

fn row(out: &mut dyn Write, name: &str, unit: &str, values: [f64; 3], target: &str) -> anyhow::Result<()> {
    let [median, min, max] = values;
    writeln!(out, "  {name:<58} {median:>8.2} {unit:<14} {min:>7.2} – {max:<7.2} {target}")?;
    Ok(())
}

/// How fast this core copies and checksums 4 KiB: the bounds of the row with real bytes.
fn bounds(arguments: &Arguments) -> [Vec<Rates>; 2] {
    let source = vec![7u8; 4096];
    let mut target = vec![0u8; 4096];
    let network = railnet_wire::Network {
        source: loopback_gid(0),
        target: loopback_gid(1),
        source_port: 0xc000,
        target_port: railnet_wire::ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        flow_label: 0,
    };
    let mut run = |work: &mut dyn FnMut(&[u8], &mut [u8])| {
        (0..arguments.repeat.max(1))
            .map(|_| {
                let (mut bytes, began) = (0u64, Instant::now());
                while began.elapsed().as_secs_f64() < arguments.seconds / 4.0 {
                    for _ in 0..256 {
                        work(black_box(&source), black_box(&mut target));
                        bytes += 4096;
                    }
                }
                Rates { bytes: bytes as f64 / began.elapsed().as_secs_f64(), packets: 0.0, messages: 0.0 }
            })
            .collect::<Vec<_>>()
    };
    [
        run(&mut |source, target| target.copy_from_slice(source)),
        run(&mut |source, _| {
            black_box(icrc::of_parts(&network, &[0; 12], &[source]));
        }),
    ]
}

/// Resident memory of this process, in bytes, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// Bytes that an idle queue pair takes: as laid out, and as the process grows.
fn idle_bytes() -> anyhow::Result<(usize, Option<f64>)> {
    const COUNT: usize = 200_000;
    let mut config = NicConfig::new(railnet_core::Component(0), 1, loopback_gid(0));
    config.control = ControlConfig::Dcqcn(DcqcnParameters::paper(Rate::gbps(100)));
    let mut nic = Nic::new(config);
    let domain = nic.alloc_pd();
    let queue = nic.create_cq(16)?;
    let before = resident();
    for _ in 0..COUNT {
        nic.create_qp(domain, &QueuePairConfig::new(Service::ReliableConnection, queue))?;
    }
    let grown =
        before.zip(resident()).map(|(before, after)| after.saturating_sub(before) as f64 / COUNT as f64);
    Ok((Nic::IDLE_QUEUE_PAIR_BYTES, grown))
}

/// A row of the table.
struct Line {
    name: &'static str,
    case: Case,
    unit: Unit,
    /// What is asked of it.
    goal: &'static str,
}

#[derive(Clone, Copy)]
enum Unit {
    Gigabytes,
    MegaPackets,
    MegaMessages,
}

impl Unit {
    fn of(self, rates: &Rates) -> f64 {
        match self {
            Self::Gigabytes => rates.bytes / 1e9,
            Self::MegaPackets => rates.packets / 1e6,
            Self::MegaMessages => rates.messages / 1e6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gigabytes => "GB/s",
            Self::MegaPackets => "M packets/s",
            Self::MegaMessages => "M messages/s",
        }
    }
}

const ONE: Case =
    Case { work: Work::Write, joint: Joint::Ghost, length: MESSAGE, queue_pairs: 1, active: 1, dcqcn: false };
const SMALL_SEND: Case = Case { work: Work::Send, length: SMALL, ..ONE };

const LINES: [Line; 6] = [
    Line {
        name: "WRITE 1 MiB, real bytes, ICRC made and checked",
        case: Case { joint: Joint::Bytes, ..ONE },
        unit: Unit::Gigabytes,
        goal: "goal 2.5",
    },
    Line {
        name: "READ 1 MiB, real bytes, ICRC made and checked",
        case: Case { joint: Joint::Bytes, work: Work::Read, ..ONE },
        unit: Unit::Gigabytes,
        goal: "",
    },
    Line { name: "WRITE 1 MiB, ghost memory", case: ONE, unit: Unit::MegaPackets, goal: "goal 8" },
    Line {
        name: "WRITE 1 MiB, ghost memory, DCQCN on",
        case: Case { dcqcn: true, ..ONE },
        unit: Unit::MegaPackets,
        goal: "",
    },
    Line {
        name: "SEND 64 B, real bytes, ICRC made and checked",
        case: Case { joint: Joint::Bytes, ..SMALL_SEND },
        unit: Unit::MegaMessages,
        goal: "",
    },
    Line { name: "SEND 64 B, ghost memory", case: SMALL_SEND, unit: Unit::MegaMessages, goal: "" },
];

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let lines = super::chosen(&LINES, arguments.only.as_deref(), |line| line.name)?;
    let idle = idle_bytes()?;
    writeln!(
        out,
        "Two NICs joined in memory, one core, RC, MTU 4096; {} × {} s each: median, min – max\n",
        arguments.repeat, arguments.seconds
    )?;
    let mut bases = Vec::new();
    for (_, line) in lines {
        let rates = measure(line.case, arguments)?;
        row(out, line.name, line.unit.name(), spread(&rates, |rates| line.unit.of(rates)), line.goal)?;
        bases.push((line.name, spread(&rates, |rates| rates.packets)[0]));
    }
    if arguments.only.is_none() {
        let gigabytes = |rates: &Rates| Unit::Gigabytes.of(rates);
        let [copy, crc] = bounds(arguments);
        row(
            out,
            "for comparison: memcpy of 4 KiB in cache",
            "GB/s",
            spread(&copy, gigabytes),
            "2 a byte above",
        )?;
        row(
            out,
            "for comparison: ICRC of 4 KiB in cache",
            "GB/s",
            spread(&crc, gigabytes),
            "2 a byte above",
        )?;
    }

    writeln!(
        out,
        "\nCost of a packet with {MANY} queue pairs, against one queue pair (goal: at most 1.20)\n"
    )?;
    for (name, base, case) in [
        ("WRITE 1 MiB, ghost: one busy", LINES[2].name, Case { queue_pairs: MANY, ..ONE }),
        ("WRITE 1 MiB, ghost: all busy", LINES[2].name, Case { queue_pairs: MANY, active: MANY, ..ONE }),
        ("SEND 64 B, ghost: one busy", LINES[5].name, Case { queue_pairs: MANY, ..SMALL_SEND }),
        ("SEND 64 B, ghost: all busy", LINES[5].name, Case { queue_pairs: MANY, active: MANY, ..SMALL_SEND }),
    ] {
        let Some((_, base)) = bases.iter().find(|(known, _)| *known == base) else {
            continue;
        };
        if !wanted(name) {
            continue;
        }
        // Packets, not messages: ten thousand messages of a megabyte complete long after the measurement.
        let many = measure(case, arguments)?;
        let [median, min, max] = spread(&many, |rates| rates.packets);
        row(out, name, "×", [base / median, base / max, base / min], "")?;
    }

    let (laid_out, grown) = idle;
    writeln!(out, "\nAn idle RC queue pair, ghost mode, DCQCN state included (goal: at most 512 bytes)\n")?;
    write!(out, "  {laid_out} bytes as laid out")?;
    match grown {
        Some(grown) => writeln!(out, "; the process grew by {grown:.0} bytes for each of 200,000")?,
        None => writeln!(out)?,
    }
    Ok(Outcome::Done)
}
