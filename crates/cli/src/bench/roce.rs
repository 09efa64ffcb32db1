//! `railnet bench roce`: the NIC on this host's UDP against UDP alone, interleaved, two threads on the loopback interface;
//! and against libfabric's reliable messages over UDP, where they are installed.

mod libfabric;

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use railnet_core::QueuePairNumber;
use railnet_live::memory::{Buffer, ProcessMemory};
use railnet_live::roce::{Config, Driver, Endpoint, Target};
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Key, Operation, QueuePairConfig, Remote, SendRequest,
    Service, Sge, Status,
};

use crate::Outcome;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each measurement runs, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds, default_value_t = 0.3)]
    seconds: f64,
    /// How often each is repeated, interleaved; the table shows median, min and max
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 7)]
    repeat: usize,
    /// The address to use
    #[arg(long, default_value = "127.0.0.1")]
    address: std::net::IpAddr,
}

const MESSAGE: usize = 1 << 20;
const SEGMENT: usize = 4096;
const SEGMENTS: usize = 15;
/// Messages that are posted at once.
const DEPTH: usize = 4;
/// Bytes of a receive.
const RECEIVE: usize = 1 << 16;
const RECEIVE_BUFFER: usize = 4 << 20;
/// No measurement waits longer for the other side.
const LIMIT: Duration = Duration::from_secs(10);

/// What is measured, in the order of the table; the last two only where libfabric's own measure is installed.
const ROWS: [(&str, &str); 8] = [
    ("UDP alone, 4 KiB segments, GSO and GRO", "GB/s"),
    ("  its middle MiB", "GB/s"),
    ("RC WRITE 1 MiB, one direction", "GB/s"),
    ("  its middle MiB", "GB/s"),
    ("UDP alone, 8 B back and forth, half a round", "µs"),
    ("RC WRITE 8 B back and forth, half a round", "µs"),
    ("libfabric udp;ofi_rxd, 1 MiB back and forth", "GB/s"),
    ("RC WRITE 1 MiB back and forth", "GB/s"),
];

/// Quotients of rows: what of them, the row above, the row below, the goal.
const QUOTIENTS: [(&str, usize, usize, &str); 5] = [
    ("Bandwidth, of what UDP alone has", 2, 0, "goal: at least 0.75"),
    ("  that of the middle MiB", 3, 1, "without interruptions"),
    ("Latency, times that of UDP alone", 5, 4, "goal: at most 1.50"),
    ("Bandwidth one way, times udp;ofi_rxd, interleaved", 2, 6, "goal: at least 5.00"),
    ("  both back and forth", 7, 6, ""),
];

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let time = Duration::from_secs_f64(arguments.seconds);
    let address = SocketAddr::new(arguments.address, 0);
    UdpSocket::bind(address).with_context(|| {
        format!(
            "cannot receive at {}: --address takes one of this host's, such as 127.0.0.1",
            arguments.address
        )
    })?;
    writeln!(
        out,
        "RoCEv2 over UDP at {}, MTU 4096, two threads; {} × {} s each, interleaved: median, min – max\n",
        arguments.address, arguments.repeat, arguments.seconds
    )?;
    out.flush()?;
    let missing = libfabric::is_missing(arguments.address);
    let mut values: [Vec<f64>; ROWS.len()] = Default::default();
    for _ in 0..arguments.repeat.max(1) {
        let [raw, raw_middle] = raw_bandwidth(address, time)?;
        let [ours, ours_middle] = write_bandwidth(address, time)?;
        for (values, value) in values.iter_mut().zip([raw, raw_middle, ours, ours_middle]) {
            values.push(value);
        }
        values[4].push(raw_latency(address, time)?.median);
        values[5].push(back_and_forth(address, time, 8)?.median);
        if missing.is_none() {
            values[6].push(libfabric::bandwidth(arguments.address, MESSAGE)?);
            // As libfabric's own measure counts: all of the time.
            values[7].push(MESSAGE as f64 / back_and_forth(address, time, MESSAGE)?.mean / 1e3);
        }
    }
    for ((name, unit), values) in ROWS.iter().zip(&values).filter(|(_, values)| !values.is_empty()) {
        let [median, min, max] = spread(values.clone());
        writeln!(out, "  {name:<46} {median:>8.2} {unit:<5} {min:>7.2} – {max:<7.2}")?;
    }
    writeln!(out)?;
    for (name, ours, other, goal) in QUOTIENTS.iter().filter(|(_, _, other, _)| !values[*other].is_empty()) {
        let quotients = values[*ours].iter().zip(&values[*other]).map(|(ours, other)| ours / other).collect();
        let [median, min, max] = spread(quotients);
        let line = format!("  {name:<46} {median:>8.2}       {min:>7.2} – {max:<7.2} {goal}");
        writeln!(out, "{}", line.trim_end())?;
    }
    if let Some(why) = missing {
        writeln!(out, "\nlibfabric's udp;ofi_rxd was not measured: {why}")?;
    }
    Ok(Outcome::Done)
}

pub(super) fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

/// What one thread sends as fast as it can and another receives.
fn raw_bandwidth(address: SocketAddr, time: Duration) -> anyhow::Result<[f64; 2]> {
    let (from, to) = (Endpoint::bind(address)?, Endpoint::bind(address)?);
    to.prepare_receive(RECEIVE_BUFFER, true)?;
    let target = Target::from(to.local());
    let stop = AtomicBool::new(false);
    let payload = vec![0x5a; SEGMENT * SEGMENTS];
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> std::io::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                match from.send(&target, &payload, SEGMENT, 0) {
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
        let mut buffer = vec![0; RECEIVE];
        let (mut bytes, mut laps, began) = (0, Laps::new(), Instant::now());
        let outcome = loop {
            match to.receive(&mut buffer) {
                Ok(arrival) => bytes += arrival.map_or(0, |arrival| arrival.length),
                Err(error) => break Err(error),
            }
            if bytes >= MESSAGE {
                laps.end(bytes as f64 / MESSAGE as f64);
                bytes = 0;
            }
            if began.elapsed() >= time {
                break Ok(laps);
            }
        };
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("the sender does not panic").context("UDP alone cannot send")?;
        outcome?.bandwidth()
    })
}

/// How long each message took after the one before it. The middle of that says what this code can do; on a machine with
/// other work, the mean says how often the threads were interrupted too.
struct Laps {
    began: Instant,
    last: Instant,
    messages: f64,
    seconds: Vec<f64>,
}

impl Laps {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, messages: 0.0, seconds: Vec::new() }
    }

    /// So many messages are there since the last time.
    fn end(&mut self, messages: f64) {
        let now = Instant::now();
        self.seconds.push((now - self.last).as_secs_f64() / messages);
        self.messages += messages;
        self.last = now;
    }

    /// Gigabytes a second of all, and of the middle message.
    fn bandwidth(self) -> anyhow::Result<[f64; 2]> {
        anyhow::ensure!(
            !self.seconds.is_empty(),
            "no message of 1 MiB came in that time: try more --seconds"
        );
        let mean = self.began.elapsed().as_secs_f64() / self.messages;
        Ok([mean, spread(self.seconds)[0]].map(|seconds| MESSAGE as f64 / seconds / 1e9))
    }
}

/// Round trips of 8 bytes, both sides looking all the time.
fn raw_latency(address: SocketAddr, time: Duration) -> anyhow::Result<Rounds> {
    let (here, there) = (UdpSocket::bind(address)?, UdpSocket::bind(address)?);
    here.set_nonblocking(true)?;
    there.set_nonblocking(true)?;
    let (home, target) = (here.local_addr()?, there.local_addr()?);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, _)) = there.recv_from(&mut buffer) {
                    let _ = there.send_to(&buffer[..length], home);
                }
            }
        });
        let rounds = rounds(time, |number| {
            here.send_to(&number.to_ne_bytes(), target)?;
            let (mut buffer, limit) = ([0; 8], Instant::now() + LIMIT);
            while !here.recv_from(&mut buffer).is_ok_and(|_| u64::from_ne_bytes(buffer) == number) {
                anyhow::ensure!(Instant::now() < limit, "a datagram did not come back");
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        rounds
    })
}

/// Half of what a round takes, in microseconds.
pub(super) struct Rounds {
    pub(super) median: f64,
    mean: f64,
}

/// Plays rounds for some time.
fn rounds(time: Duration, mut round: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<Rounds> {
    let mut times = Vec::new();
    let began = Instant::now();
    let mut last = began;
    for number in 1.. {
        round(number)?;
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6 / 2.0);
        last = now;
        if now - began >= time {
            break;
        }
    }
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    Ok(Rounds { median: spread(times)[0], mean })
}

/// One NIC with a buffer and a queue pair.
struct Side {
    driver: Driver,
    buffer: Buffer,
    key: Key,
    queue: CompletionQueue,
    queue_pair: QueuePairNumber,
}

impl Side {
    fn new(address: SocketAddr) -> anyhow::Result<Self> {
        // What is sent, and the place for what comes back.
        let buffer = Buffer::new(2 * MESSAGE);
        // The first touch of a page costs more than what is measured.
        buffer.write(0, &vec![0; 2 * MESSAGE]);
        let mut memory = ProcessMemory::default();
        let space = memory.add(&buffer);
        let mut driver = Driver::open(&Config::new(address), memory)?;
        let domain = driver.nic_mut().alloc_pd();
        let key = driver.register(domain, space, buffer.address(), 2 * MESSAGE as u64, Access::ALL)?;
        let queue = driver.nic_mut().create_cq(64)?;
        let config = QueuePairConfig::new(Service::ReliableConnection, queue);
        let queue_pair = driver.nic_mut().create_qp(domain, &config)?;
        Ok(Self { driver, buffer, key, queue, queue_pair })
    }

    fn pair(address: SocketAddr) -> anyhow::Result<[Self; 2]> {
        let mut sides = [Self::new(address)?, Self::new(address)?];
        for index in 0..2 {
            let peer = &sides[1 - index];
            let (target, connection) =
                (peer.driver.local(), Connection::to(peer.driver.gid(), peer.queue_pair));
            let side = &mut sides[index];
            side.driver.connect(side.queue_pair, target, &connection)?;
        }
        Ok(sides)
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.buffer.address() + offset as u64, key: self.key }
    }

    fn write(&mut self, target: Remote, length: usize, signaled: bool) -> anyhow::Result<()> {
        let sge = Sge { address: self.buffer.address(), length: length as u32, key: self.key };
        let mut request = SendRequest::new(1, Operation::Write(target)).with(sge);
        request.signaled = signaled;
        Ok(self.driver.post_send(self.queue_pair, request)?)
    }
}

/// What one thread writes to the memory of another.
pub(super) fn write_bandwidth(address: SocketAddr, time: Duration) -> anyhow::Result<[f64; 2]> {
    let [mut here, mut there] = Side::pair(address)?;
    let target = there.remote(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| -> anyhow::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                there.driver.progress()?;
            }
            Ok(())
        });
        let outcome = write_for(&mut here, target, time);
        stop.store(true, Ordering::Relaxed);
        other.join().expect("the target does not panic")?;
        outcome
    })
}

fn write_for(here: &mut Side, target: Remote, time: Duration) -> anyhow::Result<[f64; 2]> {
    for _ in 0..DEPTH {
        here.write(target, MESSAGE, true)?;
    }
    let (mut laps, mut out, began) = (Laps::new(), [Completion::EMPTY; DEPTH], Instant::now());
    while began.elapsed() < time {
        here.driver.progress()?;
        let count = here.driver.poll_cq(here.queue, &mut out);
        for completion in &out[..count] {
            anyhow::ensure!(completion.status == Status::Success, "a WRITE failed: {}", completion.status);
            here.write(target, MESSAGE, true)?;
        }
        if count > 0 {
            laps.end(count as f64);
        }
    }
    laps.bandwidth()
}

/// Round trips of two WRITEs, each seen by the last word that it changes.
pub(super) fn back_and_forth(address: SocketAddr, time: Duration, length: usize) -> anyhow::Result<Rounds> {
    let [mut here, mut there] = Side::pair(address)?;
    let (home, target) = (here.remote(length), there.remote(0));
    let last = length - size_of::<u64>();
    let stop = AtomicBool::new(false);
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let number = there.buffer.load(last);
                let answered = number == seen || there.write(home, length, false).is_ok();
                seen = number;
                if !answered || there.driver.progress().is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        });
        let rounds = rounds(time, |number| {
            here.buffer.store(last, number);
            here.write(target, length, false)?;
            let limit = Instant::now() + LIMIT;
            while here.buffer.load(length + last) != number {
                here.driver.progress()?;
                let lost = failed.load(Ordering::Relaxed) > 0 || Instant::now() > limit;
                anyhow::ensure!(!lost, "a WRITE did not come back");
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        rounds
    })
}
