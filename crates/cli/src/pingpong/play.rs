//! The play itself: who sends when, and what is waited for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use railnet_core::{QueuePairNumber, Random};
use railnet_live::memory::Buffer;
use railnet_live::roce::{self, Driver, STRANGE};
use railnet_nic::{
    Access, Completion, CompletionQueue, Connection, Counters, Key, Operation, QueuePairConfig,
    ReceiveRequest, Remote, SendRequest, Service, Sge, Status,
};

use super::exchange::{End, Meeting};
use super::{Arguments, Op};

/// How long an end whose peer has hung up stays when nothing comes, to acknowledge again what the peer may have missed.
const LINGER: Duration = Duration::from_millis(50);

/// How often a server that only answers looks whether its client has finished.
const LOOK: Duration = Duration::from_millis(1);

/// How long an end that waits for a message lets pass before it looks whether its peer still lives.
const PATIENCE: Duration = Duration::from_millis(20);

/// Names of work, as in `ibv_rc_pingpong`.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// What came of a play.
pub(super) struct Score {
    /// Bytes moved, both ways.
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    /// What came back was compared with what was sent.
    pub(super) checked: bool,
}

/// One end.
pub(super) struct Player {
    driver: Driver,
    queue: CompletionQueue,
    queue_pair: QueuePairNumber,
    /// What is sent comes first, then the place for what is received.
    buffer: Buffer,
    key: Key,
    size: u32,
    timeout: Duration,
    /// Where the peer receives, once it is known.
    peer: Option<SocketAddr>,
    /// How long to stay when the peer cannot be asked whether it has everything.
    linger: Duration,
}

impl Player {
    pub(super) fn new(mut driver: Driver, arguments: &Arguments, timeout: Duration) -> anyhow::Result<Self> {
        let size = if arguments.op == Op::Atomic { 8 } else { arguments.size };
        let buffer = Buffer::new(2 * place(size));
        let space = driver.memory_mut().add(&buffer);
        let domain = driver.nic_mut().alloc_pd();
        let key = driver.register(domain, space, buffer.address(), buffer.len() as u64, Access::ALL)?;
        let depth = arguments.rx_depth;
        let queue = driver.nic_mut().create_cq(depth.saturating_add(16))?;
        let config = QueuePairConfig {
            receive_depth: depth,
            send_depth: 8,
            ..QueuePairConfig::new(Service::ReliableConnection, queue)
        };
        let queue_pair = driver.nic_mut().create_qp(domain, &config).context("--rx-depth")?;
        // Where acknowledgements get lost on purpose, the peer's timeout must have time to ask for them again.
        let ack_timeout =
            railnet_nic::ack_timeout(arguments.ack_timeout).map_or(0, |span| span.as_ps() / 1000);
        let linger = match arguments.faults.faults().is_none() {
            true => LINGER,
            false => LINGER + Duration::from_nanos(ack_timeout) * 4,
        };
        Ok(Self { driver, queue, queue_pair, buffer, key, size, timeout, peer: None, linger })
    }

    pub(super) fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    pub(super) fn queue_pair(&self) -> QueuePairNumber {
        self.queue_pair
    }

    pub(super) fn counters(&self) -> roce::Counters {
        self.driver.counters()
    }

    pub(super) fn nic_counters(&self) -> &Counters {
        self.driver.nic().counters()
    }

    pub(super) fn connect(&mut self, peer: SocketAddr, connection: &Connection) -> anyhow::Result<()> {
        self.peer = Some(peer);
        Ok(self.driver.connect(self.queue_pair, peer, connection)?)
    }

    pub(super) fn play(
        &mut self,
        arguments: &Arguments,
        meeting: &mut Meeting,
        end: &End,
    ) -> anyhow::Result<Score> {
        let is_client = arguments.host.is_some();
        // A foreign peer has hung up by now: only of a Railnet does the connection say that it lives.
        let mut watch = Watch { meeting, is_railnet: end.is_railnet };
        let mut peer = Remote { address: 0, key: Key(0) };
        if arguments.op != Op::Send {
            let own = Remote { address: self.buffer.address() + self.inbox() as u64, key: self.key };
            peer = watch.meeting.exchange_memory(arguments.op.name(), self.size, own)?;
        }
        let started = Instant::now();
        let checked = is_client && (arguments.chk || arguments.op == Op::Atomic);
        match (arguments.op, is_client) {
            (Op::Send | Op::Write, _) => self.back_and_forth(arguments, peer, &mut watch)?,
            (Op::Read | Op::Atomic, true) => self.ask(arguments, peer, &mut watch)?,
            (Op::Read | Op::Atomic, false) => self.answer(arguments, watch.meeting)?,
        }
        let elapsed = started.elapsed();
        self.leave(watch.meeting)?;
        let ways = if matches!(arguments.op, Op::Send | Op::Write) { 2 } else { 1 };
        let bytes = u64::from(self.size) * u64::from(arguments.iters) * ways;
        Ok(Score { bytes, elapsed, checked })
    }

    /// Where what is received goes.
    fn inbox(&self) -> usize {
        place(self.size)
    }

    /// SEND or WRITE with immediate data: each end sends when the other's message and its own completion are there.
    fn back_and_forth(
        &mut self,
        arguments: &Arguments,
        peer: Remote,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        let is_client = arguments.host.is_some();
        // A server sends back what it has received, as ibv_rc_pingpong does, which has one buffer.
        let outbox = if is_client { 0 } else { self.inbox() };
        let operation = match arguments.op {
            Op::Write => Operation::WriteImmediate(peer, 0),
            _ => Operation::Send,
        };
        let mut pattern = Pattern::new(self.size);
        let mut posted = 0;
        self.refill(arguments, &mut posted)?;
        let (mut received, mut sent, mut pending) = (0, 0, [true, false]);
        if is_client {
            self.buffer.write(0, pattern.bytes(0));
            self.send(operation, outbox)?;
            pending[1] = true;
        }
        while received < arguments.iters || sent < arguments.iters {
            let what = || format!("message {} of {}", received + 1, arguments.iters);
            // Who has received everything waits for the last acknowledgement: its peer may have left by then.
            watch.is_railnet &= received < arguments.iters;
            for done in self.completions(&what, watch)? {
                if done.work == SEND {
                    sent += 1;
                    pending[1] = false;
                    continue;
                }
                if is_client && arguments.chk {
                    self.check(&pattern, received, done.length)?;
                }
                received += 1;
                pending[0] = false;
                posted -= 1;
                if posted <= 1 {
                    self.refill(arguments, &mut posted)?;
                }
            }
            if sent < arguments.iters && pending == [false; 2] {
                if is_client && arguments.chk {
                    self.buffer.write(0, pattern.bytes(sent));
                }
                self.send(operation, outbox)?;
                pending = [true; 2];
            }
        }
        Ok(())
    }

    /// READ and atomics: the client asks, one after the other.
    fn ask(&mut self, arguments: &Arguments, peer: Remote, watch: &mut Watch<'_>) -> anyhow::Result<()> {
        let expected = Pattern::new(self.size);
        for iteration in 0..arguments.iters {
            let operation = match arguments.op {
                Op::Atomic => Operation::FetchAdd { remote: peer, add: 1 },
                _ => Operation::Read(peer),
            };
            self.send(operation, self.inbox())?;
            let what = || format!("answer {} of {}", iteration + 1, arguments.iters);
            self.completions(&what, watch)?;
            if arguments.op == Op::Atomic {
                let old = self.buffer.load(self.inbox());
                if old != u64::from(iteration) {
                    bail!(
                        "the word was {old} before addition {}: it should have been {iteration}",
                        iteration + 1
                    );
                }
            } else if arguments.chk {
                self.compare(expected.base(), iteration)?;
            }
        }
        Ok(())
    }

    /// The server of READs and atomics: its NIC answers, until the client has finished.
    fn answer(&mut self, arguments: &Arguments, meeting: &mut Meeting) -> anyhow::Result<()> {
        let (mut limit, mut received) = (Instant::now() + self.timeout, 0);
        if arguments.op == Op::Read {
            self.buffer.write(self.inbox(), Pattern::new(self.size).base());
        }
        while !meeting.peer_has_left() {
            // The answers go from here; looking at the connection each time would cost more than they do.
            let look = Instant::now() + LOOK;
            while Instant::now() < look {
                self.step()?;
            }
            let now_received = self.heard();
            if now_received != received {
                (received, limit) = (now_received, Instant::now() + self.timeout);
            }
            if Instant::now() > limit {
                bail!("nothing came from the client at {} for {:?}", meeting.peer(), self.timeout);
            }
        }
        if meeting.peer_is_lost() {
            bail!("the client at {} hung up before it had all of its answers", meeting.peer());
        }
        Ok(())
    }

    /// Stays until the peer has what it needs.
    fn leave(&mut self, meeting: &mut Meeting) -> anyhow::Result<()> {
        let is_there = !meeting.peer_has_left();
        meeting.leave();
        let limit = Instant::now() + self.timeout;
        let (mut received, mut quiet) = (0, Instant::now());
        self.driver.progress()?;
        while Instant::now() < limit {
            self.driver.wait(LOOK)?;
            if self.heard() != received {
                (received, quiet) = (self.heard(), Instant::now());
            }
            let may_go = if is_there { meeting.peer_has_left() } else { quiet.elapsed() > self.linger };
            if may_go {
                break;
            }
        }
        Ok(())
    }

    fn refill(&mut self, arguments: &Arguments, posted: &mut u32) -> anyhow::Result<()> {
        let length = if arguments.op == Op::Write { 0 } else { self.size };
        while *posted < arguments.rx_depth {
            let request = ReceiveRequest::new(RECEIVE).with(self.sge(self.inbox(), length));
            self.driver.post_recv(self.queue_pair, request)?;
            *posted += 1;
        }
        Ok(())
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.buffer.address() + offset as u64, length, key: self.key }
    }

    fn send(&mut self, operation: Operation, offset: usize) -> anyhow::Result<()> {
        let request = SendRequest::new(SEND, operation).with(self.sge(offset, self.size));
        Ok(self.driver.post_send(self.queue_pair, request)?)
    }

    /// Drives the NIC for a moment.
    fn step(&mut self) -> anyhow::Result<()> {
        self.driver.wait(LOOK)?;
        Ok(())
    }

    /// Waits for completions, which must be good.
    fn completions(
        &mut self,
        what: &dyn Fn() -> String,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Vec<Completion>> {
        let mut out = [Completion::EMPTY; 16];
        let now = Instant::now();
        let (limit, mut look, mut is_lost) = (now + self.timeout, now + PATIENCE, false);
        loop {
            let count = self.driver.poll_cq(self.queue, &mut out);
            if let Some(bad) = out[..count].iter().find(|done| done.status != Status::Success) {
                let (status, name) = (bad.status, bad.status.verbs_name());
                bail!("{} with {} failed: {status} ({name}){}", what(), self.peer_name(), self.advice());
            }
            if count > 0 {
                return Ok(out[..count].to_vec());
            }
            if is_lost {
                bail!("{} did not come: the peer at {} hung up", what(), watch.meeting.peer());
            }
            self.step()?;
            let now = Instant::now();
            if now > limit {
                let (peer, advice) = (self.peer_name(), self.advice());
                bail!("{} did not come from {peer} in {:?}{advice}", what(), self.timeout);
            }
            if now > look && watch.is_railnet {
                look = now + PATIENCE;
                // What it sent before it left has come: that is looked at once more.
                is_lost = watch.meeting.peer_is_lost();
            }
        }
    }

    fn peer_name(&self) -> String {
        self.peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string())
    }

    /// What may be the reason that nothing comes.
    fn advice(&self) -> String {
        let (driver, nic) = (self.driver.counters(), self.driver.nic().counters());
        let unauthenticated = self.unauthenticated();
        match self.driver.last_refusal() {
            Some(error) if error.raw_os_error() == Some(EMSGSIZE) => {
                "; the network refuses packets of this size: try a smaller --mtu".to_owned()
            }
            Some(error) => format!("; the kernel refused {} sends, the last with: {error}", driver.refused),
            None if driver.received == 0 => {
                let port = self.driver.local().port();
                format!("; nothing came from the peer at all: is UDP port {port} open between the two?")
            }
            None => {
                let thrown = unauthenticated
                    .map_or_else(String::new, |unauthenticated| format!(", thrown away {unauthenticated}"));
                format!("; {} packets came, {} were sent again{thrown}", driver.received, nic.resent)
            }
        }
    }

    /// Packets that came from the peer: what others send is no sign of life.
    fn heard(&self) -> u64 {
        let strange: u64 = self.strange().iter().map(|(count, _)| count).sum();
        self.driver.counters().received.saturating_sub(strange)
    }

    /// Packets that no peer sent, or that the network damaged, by the reason to throw them away.
    fn strange(&self) -> [(u64, &'static str); STRANGE.len() + 1] {
        let nic = self.driver.nic().counters();
        let mut found = [(self.driver.counters().malformed, "no RoCEv2"); STRANGE.len() + 1];
        for (place, reason) in found.iter_mut().zip(STRANGE) {
            *place = (nic.dropped(reason), reason.text());
        }
        found
    }

    /// What came that no peer sent, or that the network damaged; `None` where nothing did.
    pub(super) fn unauthenticated(&self) -> Option<String> {
        let found = self.strange().into_iter().filter(|(count, _)| *count > 0);
        let words: Vec<_> = found.clone().map(|(count, text)| format!("{count} {text}")).collect();
        let all: u64 = found.map(|(count, _)| count).sum();
        (all > 0).then(|| format!("{all} packets: {}", words.join(", ")))
    }

    /// Whether what was received is what was sent.
    fn check(&self, pattern: &Pattern, iteration: u32, length: u32) -> anyhow::Result<()> {
        if length != self.size {
            bail!("message {} has {length} bytes, {} were expected", iteration + 1, self.size);
        }
        self.compare(&pattern.at(iteration), iteration)
    }

    fn compare(&self, expected: &[u8], iteration: u32) -> anyhow::Result<()> {
        let mut found = vec![0; expected.len()];
        self.buffer.read(self.inbox(), &mut found);
        match found.iter().zip(expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => bail!(
                "byte {at} of message {} is {:#04x}, not {:#04x}",
                iteration + 1,
                found[at],
                expected[at]
            ),
        }
    }
}

/// The connection to the peer, and whether it says anything about it.
struct Watch<'a> {
    meeting: &'a mut Meeting,
    is_railnet: bool,
}

/// "Message too long", the same number on every Linux that Rust has.
const EMSGSIZE: i32 = 90;

/// The room that a message takes in the buffer.
fn place(size: u32) -> usize {
    (size as usize).next_multiple_of(4096).max(4096)
}

/// What is sent: bytes that tell where they belong, the first of them the iteration.
struct Pattern {
    base: Vec<u8>,
    now: Vec<u8>,
}

impl Pattern {
    fn new(size: u32) -> Self {
        let mut random = Random::from_seed(u64::from(size));
        let base: Vec<u8> = (0..(size as usize).div_ceil(8))
            .flat_map(|_| random.next_u64().to_le_bytes())
            .take(size as usize)
            .collect();
        Self { now: base.clone(), base }
    }

    fn base(&self) -> &[u8] {
        &self.base
    }

    fn at(&self, iteration: u32) -> Vec<u8> {
        let mut bytes = self.base.clone();
        let stamp = iteration.to_le_bytes();
        let length = stamp.len().min(bytes.len());
        bytes[..length].copy_from_slice(&stamp[..length]);
        bytes
    }

    fn bytes(&mut self, iteration: u32) -> &[u8] {
        self.now = self.at(iteration);
        &self.now
    }
}
