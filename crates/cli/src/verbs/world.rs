//! Two NICs, two applications and a wire: runs the operation and records what each of them did.

use anyhow::Context as _;
use railnet_core::event::{Event, Sink};
use railnet_core::{Component, Digest, Psn, QueuePairNumber, Random, RunDigest, Span, Time};
use railnet_nic::memory::SpaceId;
use railnet_nic::testing::{Fate, Lab, Peer, Tapped, WireForm, connect, loopback_gid};
use railnet_nic::{
    Access, Completion, CompletionQueue, Key, Nic, Operation, QueuePairConfig, ReceiveRequest, Remote,
    SendRequest, Service, Sge, ack_timeout,
};
use railnet_wire::Gid;

use super::{Kind, Plan, Trouble};

/// The initiator.
pub(super) const A: usize = 0;
/// The target.
pub(super) const B: usize = 1;

/// The name that A's application gives to its work request.
pub(super) const SEND_WORK: u64 = 1;
/// The name that B's application gives to its receive.
pub(super) const RECEIVE_WORK: u64 = 7;
/// What a WRITE with immediate hands over.
pub(super) const IMMEDIATE: u32 = 0xcafe_0001;
/// What the atomic adds.
pub(super) const ADD: u64 = 5;

/// A page: the data lies one page into its region, so that memory around it can be seen to stay as it was.
const PAGE: u64 = 4096;
/// Where the two regions begin.
const BASES: [u64; 2] = [0x7f10_0000_0000, 0x7f20_0000_0000];
/// The first queue pair number of each NIC.
const QUEUE_PAIRS: [u32; 2] = [0x11, 0x22];
/// The acknowledgement timer of both ends: 4.096 µs × 2^8.
const TIMEOUT_CODE: u8 = 8;
/// So many times B says that it has no receive before it posts one.
const LATE_AFTER: u64 = 3;
/// Nothing here takes longer, in virtual time.
const LIMIT: Span = Span::from_secs(30);

/// Something that somebody did.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// An event of a NIC.
    Nic(usize, Event),
    /// A's application posts its work request.
    Post(SendRequest),
    /// The call is back.
    PostReturned,
    /// B's application posts a receive.
    PostReceive(ReceiveRequest),
    /// An application polled and found this.
    Polled(usize, Completion),
}

/// Keeps everything in its order.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    entries: Vec<(Time, Entry)>,
    digest: Digest,
}

impl Sink for Recorder {
    fn record(&mut self, at: Time, source: Component, event: &Event) {
        self.digest.record(at, source, event);
        self.entries.push((at, Entry::Nic(source.0 as usize, *event)));
    }
}

/// What one side has, and what it told the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) gid: Gid,
    pub(super) queue_pair: QueuePairNumber,
    pub(super) psn: Psn,
    pub(super) key: Key,
    pub(super) access: Access,
    /// The registered region.
    pub(super) region: u64,
    pub(super) region_bytes: u64,
    /// Where the data is, or goes to.
    pub(super) address: u64,
    space: SpaceId,
    queue: CompletionQueue,
}

impl Side {
    fn sge(&self, length: u32) -> Sge {
        Sge { address: self.address, length, key: self.key }
    }

    /// The data's place in the bytes of the region.
    pub(super) fn range(&self, length: u32) -> std::ops::Range<usize> {
        let start = (self.address - self.region) as usize;
        start..start + length as usize
    }
}

/// All that happened.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) plan: Plan,
    pub(super) sides: [Side; 2],
    /// What A's request names, where it names something of B.
    pub(super) remote: Option<Remote>,
    pub(super) entries: Vec<(Time, Entry)>,
    /// The packets, in the order in which they left.
    pub(super) frames: Vec<Tapped>,
    pub(super) before: [Vec<u8>; 2],
    pub(super) after: [Vec<u8>; 2],
    pub(super) completions: [Vec<Completion>; 2],
    /// Completions that nobody asked for, by side.
    pub(super) unpolled: [usize; 2],
    pub(super) ack_timeout: Span,
    pub(super) latency: Span,
    pub(super) rate: railnet_core::Rate,
    pub(super) rnr_naks: u64,
    pub(super) digest: RunDigest,
}

/// Runs the operation.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Record> {
    let mut lab = lab(plan);
    let sides = set_up(&mut lab, plan)?;
    let (latency, rate) = (lab.latency, lab.rate);
    // Connecting is no part of the story.
    lab.sink.entries.clear();
    lab.tap = Some(Vec::new());
    let before = [A, B].map(|side| lab.memory.bytes(sides[side].space).to_vec());
    if let Trouble::Drop(packet) = plan.trouble {
        lose_once(&mut lab, plan.kind, sides[A].psn.plus(packet));
    }
    let remote = remote(plan, &sides[B]);
    let mut applications =
        Applications { plan, sides: &sides, receive_posted: false, completions: [Vec::new(), Vec::new()] };
    if plan.kind.consumes_receive() && plan.trouble != Trouble::NoReceive {
        applications.post_receive(&mut lab)?;
    }
    applications.post_send(&mut lab, request(plan, &sides[A], remote))?;
    loop {
        let more = lab.step();
        applications.act(&mut lab)?;
        if !more || lab.now.since(Time::ZERO) > LIMIT {
            break;
        }
    }
    let completions = applications.completions;
    Ok(Record {
        plan: *plan,
        remote: (plan.kind != Kind::Send).then_some(remote),
        before,
        after: [A, B].map(|side| lab.memory.bytes(sides[side].space).to_vec()),
        completions,
        unpolled: [A, B].map(|side| lab.nics[side].completions(sides[side].queue)),
        ack_timeout: ack_timeout(TIMEOUT_CODE).unwrap_or(Span::MAX),
        latency,
        rate,
        rnr_naks: lab.nics[B].counters().rnr_naks,
        digest: lab.sink.digest.finish(),
        frames: lab.tap.take().unwrap_or_default(),
        entries: lab.sink.entries,
        sides,
    })
}

fn lab(plan: &Plan) -> Lab<Recorder> {
    let nics = [A, B].map(|side| {
        let mut config = Lab::<Recorder>::nic_config(side, plan.seed);
        config.behaviour = plan.behaviour;
        config.framing = plan.framing;
        config.queue_pairs = QUEUE_PAIRS[side]..1 << 24;
        Nic::new(config)
    });
    let mut lab = Lab::new(nics.into(), plan.seed, Recorder::default());
    // What is shown was on the wire as bytes, and was read from them.
    lab.form = WireForm::Bytes;
    lab.framing = plan.framing;
    lab
}

/// Memory, keys and queue pairs of both sides, connected.
fn set_up(lab: &mut Lab<Recorder>, plan: &Plan) -> anyhow::Result<[Side; 2]> {
    let a = set_up_side(lab, plan, A).context("setting up A")?;
    let b = set_up_side(lab, plan, B).context("setting up B")?;
    let ends = [(A, a), (B, b)].map(|(nic, side)| Peer { nic, queue_pair: side.queue_pair, psn: side.psn });
    connect(lab, ends, plan.mtu, |_, change| {
        if change.timeout.is_some() {
            change.timeout = Some(TIMEOUT_CODE);
        }
    })
    .context("connecting A and B")?;
    Ok([a, b])
}

fn set_up_side(lab: &mut Lab<Recorder>, plan: &Plan, index: usize) -> anyhow::Result<Side> {
    let mut random = Random::stream(plan.seed, "verbs", index as u64);
    let psn = Psn::new(random.next_u32());
    let region_bytes = u64::from(plan.bytes).next_multiple_of(PAGE) + 2 * PAGE;
    let is_source = (index == A) != matches!(plan.kind, Kind::Read | Kind::Atomic);
    let mut bytes = vec![0; region_bytes as usize];
    if plan.kind == Kind::Atomic && index == B {
        bytes[PAGE as usize..][..8].copy_from_slice(&random.below(1_000).to_le_bytes());
    } else if is_source {
        bytes.fill_with(|| random.next_u32() as u8);
    }
    let region = BASES[index];
    let space = lab.memory.add_bytes(region, bytes);
    let access = if index == B { granted(plan) } else { Access::LOCAL_WRITE };
    let nic = &mut lab.nics[index];
    let domain = nic.alloc_pd();
    let queue = nic.create_cq(16)?;
    let key = nic.reg_mr(&lab.memory, domain, space, region, region_bytes, access, None)?;
    let config = QueuePairConfig::new(Service::ReliableConnection, queue);
    let queue_pair = nic.create_qp(domain, &config)?;
    Ok(Side {
        gid: loopback_gid(index),
        queue_pair,
        psn,
        key,
        access,
        region,
        region_bytes,
        address: region + PAGE,
        space,
        queue,
    })
}

/// What B's region lets others do: just what is needed, or everything else.
fn granted(plan: &Plan) -> Access {
    let needed = match plan.kind {
        Kind::Write | Kind::WriteImm => Access::REMOTE_WRITE,
        Kind::Read => Access::REMOTE_READ,
        Kind::Atomic => Access::REMOTE_ATOMIC,
        Kind::Send => Access::NONE,
    };
    if plan.trouble != Trouble::NoPermission {
        return Access::LOCAL_WRITE | needed;
    }
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    Access::from_bits(all.bits() & !needed.bits()) | Access::LOCAL_WRITE
}

/// What of B the request names.
fn remote(plan: &Plan, target: &Side) -> Remote {
    let end = target.region + target.region_bytes;
    let address = match (plan.trouble, plan.kind) {
        (Trouble::OutOfRange, Kind::Atomic) => end,
        (Trouble::OutOfRange, _) => end - u64::from(plan.bytes / 2),
        _ => target.address,
    };
    let key = match plan.trouble {
        // Another index: the lower eight bits alone would be a key that has been in use.
        Trouble::WrongKey => Key(target.key.0 ^ 0x0005_0000),
        _ => target.key,
    };
    Remote { address, key }
}

fn request(plan: &Plan, source: &Side, remote: Remote) -> SendRequest {
    let operation = match plan.kind {
        Kind::Write => Operation::Write(remote),
        Kind::Read => Operation::Read(remote),
        Kind::Send => Operation::Send,
        Kind::WriteImm => Operation::WriteImmediate(remote, IMMEDIATE),
        Kind::Atomic => Operation::FetchAdd { remote, add: ADD },
    };
    let request = SendRequest::new(SEND_WORK, operation);
    if plan.bytes == 0 { request } else { request.with(source.sge(plan.bytes)) }
}

/// Loses the first transmission of a packet: a request's, or a READ's answer.
fn lose_once(lab: &mut Lab<Recorder>, kind: Kind, psn: Psn) {
    let mut is_lost = false;
    let sender = if kind == Kind::Read { B } else { A };
    lab.set_judge(move |_, from, transmit| {
        if is_lost || from != sender || transmit.headers.bth.psn != psn {
            return Fate::Deliver;
        }
        is_lost = true;
        Fate::Lose
    });
}

/// The two programs. A waits for its completion; B only looks when it has posted a receive.
struct Applications<'a> {
    plan: &'a Plan,
    sides: &'a [Side; 2],
    receive_posted: bool,
    completions: [Vec<Completion>; 2],
}

impl Applications<'_> {
    fn post_send(&self, lab: &mut Lab<Recorder>, request: SendRequest) -> anyhow::Result<()> {
        let now = lab.now;
        lab.sink.entries.push((now, Entry::Post(request.clone())));
        let (nic, mut cx) = lab.nic(A);
        nic.post_send(&mut cx, self.sides[A].queue_pair, request)?;
        lab.sink.entries.push((now, Entry::PostReturned));
        Ok(())
    }

    fn post_receive(&mut self, lab: &mut Lab<Recorder>) -> anyhow::Result<()> {
        let needs_memory = self.plan.kind == Kind::Send && self.plan.bytes > 0;
        let mut request = ReceiveRequest::new(RECEIVE_WORK);
        if needs_memory {
            request = request.with(self.sides[B].sge(self.plan.bytes));
        }
        let now = lab.now;
        lab.sink.entries.push((now, Entry::PostReceive(request.clone())));
        let (nic, mut cx) = lab.nic(B);
        nic.post_recv(&mut cx, self.sides[B].queue_pair, request)?;
        self.receive_posted = true;
        Ok(())
    }

    /// What the programs do at this moment.
    fn act(&mut self, lab: &mut Lab<Recorder>) -> anyhow::Result<()> {
        let is_late = self.plan.trouble == Trouble::NoReceive && !self.receive_posted;
        if is_late && lab.nics[B].counters().rnr_naks >= LATE_AFTER {
            self.post_receive(lab)?;
        }
        for side in [A, B] {
            if side == B && !self.receive_posted {
                continue;
            }
            let now = lab.now;
            for completion in lab.completions(side, self.sides[side].queue) {
                lab.sink.entries.push((now, Entry::Polled(side, completion)));
                self.completions[side].push(completion);
            }
        }
        Ok(())
    }
}
