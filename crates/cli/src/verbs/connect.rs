//! `railnet verbs connect`: the objects of two hosts, the exchange, the states of a queue pair, and work on several queue pairs
//! that share one completion queue. Every object is one of the NIC's, and what is refused is refused by the NIC.

use anyhow::Context as _;
use railnet_core::event::NoSink;
use railnet_core::{Psn, QueuePairNumber, Random};
use railnet_nic::memory::SpaceId;
use railnet_nic::testing::{Lab, loopback_gid};
use railnet_nic::{
    Access, Attributes, Completion, CompletionQueue, Connection, Key, Mtu, Nic, Operation, QueuePairConfig,
    ReceiveRequest, Remote, SendRequest, Service, Sge, State, Status,
};

use super::connect_screen::Trial;

/// The initiator.
pub(super) const A: usize = 0;
/// The target.
pub(super) const B: usize = 1;
/// Where the two regions begin.
const BASES: [u64; 2] = [0x7f10_0000_0000, 0x7f20_0000_0000];
/// The first queue pair number of each NIC.
const QUEUE_PAIRS: [u32; 2] = [0x11, 0x22];
/// Completions that a queue holds.
pub(super) const QUEUE_DEPTH: u32 = 256;
/// Messages on a queue pair for each signalled one among them, times this.
const ROUNDS: u32 = 2;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) queue_pairs: u32,
    pub(super) signal_every: u32,
    pub(super) bytes: u32,
    pub(super) mtu: Mtu,
    pub(super) seed: u64,
}

impl Plan {
    /// WRITEs on each queue pair.
    pub(super) fn messages(&self) -> u32 {
        self.signal_every * ROUNDS
    }

    /// Bytes of each region.
    pub(super) fn region(&self) -> u64 {
        u64::from(self.queue_pairs) * u64::from(self.messages()) * u64::from(self.bytes)
    }
}

/// One queue pair, and what its peer has to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) number: QueuePairNumber,
    pub(super) psn: Psn,
}

/// The objects of one host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) region: u64,
    pub(super) key: Key,
    pub(super) access: Access,
    pub(super) queue: CompletionQueue,
    pub(super) ends: Vec<End>,
    space: SpaceId,
}

/// All that happened.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) plan: Plan,
    pub(super) hosts: [Host; 2],
    /// What the first queue pair of A was asked to do in which state, and what came of it.
    pub(super) trials: Vec<Trial>,
    /// What A polled after the WRITEs.
    pub(super) completions: Vec<Completion>,
    pub(super) packets: u64,
    /// Whether B's memory is A's now.
    pub(super) is_equal: bool,
    /// What A polled after an unsignalled WRITE with a wrong rkey, and after another one behind it.
    pub(super) failed: Vec<Completion>,
    /// The states of A's queue pairs at the end.
    pub(super) states: Vec<State>,
}

impl Record {
    /// Whether everything came as the specification has it.
    pub(super) fn is_good(&self) -> bool {
        let plan = &self.plan;
        let is_success = |one: &Completion| {
            one.status == Status::Success && one.work.is_multiple_of(u64::from(plan.signal_every))
        };
        let statuses: Vec<Status> = self.failed.iter().map(|one| one.status).collect();
        let (last, others) = self.states.split_last().expect("there is at least one queue pair");
        self.is_equal
            && self.completions.len() as u32 == plan.queue_pairs * ROUNDS
            && self.completions.iter().all(is_success)
            && statuses == [Status::RemoteAccess, Status::Flushed]
            && *last == State::Error
            && others.iter().all(|state| *state == State::ReadyToSend)
    }
}

/// Sets both hosts up, connects them, and has A write.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Record> {
    let mut lab = lab(plan);
    let hosts = [set_up(&mut lab, plan, A).context("A")?, set_up(&mut lab, plan, B).context("B")?];
    let trials = connect(&mut lab, plan, &hosts)?;
    for queue_pair in 0..plan.queue_pairs {
        post_writes(&mut lab, plan, &hosts, queue_pair)?;
    }
    lab.run();
    let completions = lab.completions(A, hosts[A].queue);
    let packets = lab.delivered;
    let is_equal = lab.memory.bytes(hosts[A].space) == lab.memory.bytes(hosts[B].space);
    let failed = fail(&mut lab, plan, &hosts)?;
    let states = hosts[A].ends.iter().map(|end| lab.nics[A].query_qp(end.number).map(|found| found.state));
    let states = states.collect::<Result<_, _>>()?;
    Ok(Record { plan: *plan, trials, completions, packets, is_equal, failed, states, hosts })
}

fn lab(plan: &Plan) -> Lab<NoSink> {
    let nics = [A, B].map(|host| {
        let mut config = Lab::<NoSink>::nic_config(host, plan.seed);
        config.queue_pairs = QUEUE_PAIRS[host]..1 << 24;
        Nic::new(config)
    });
    Lab::new(nics.into(), plan.seed, NoSink)
}

/// Protection domain, memory region, completion queue and queue pairs of a host.
fn set_up(lab: &mut Lab<NoSink>, plan: &Plan, index: usize) -> anyhow::Result<Host> {
    let mut random = Random::stream(plan.seed, "verbs", index as u64);
    let mut bytes = vec![0; plan.region() as usize];
    if index == A {
        bytes.fill_with(|| random.next_u32() as u8);
    }
    let region = BASES[index];
    let space = lab.memory.add_bytes(region, bytes);
    let local = Access::LOCAL_WRITE;
    let access = if index == B { local | Access::REMOTE_WRITE } else { local };
    let nic = &mut lab.nics[index];
    let domain = nic.alloc_pd();
    let queue = nic.create_cq(QUEUE_DEPTH)?;
    let key = nic.reg_mr(&lab.memory, domain, space, region, plan.region(), access, None)?;
    let config = QueuePairConfig::new(Service::ReliableConnection, queue);
    let mut ends = Vec::new();
    for _ in 0..plan.queue_pairs {
        let number = nic.create_qp(domain, &config)?;
        ends.push(End { number, psn: Psn::new(random.next_u32()) });
    }
    Ok(Host { region, key, access, queue, ends, space })
}

/// The attributes of the three steps from RESET to RTS, at one end.
fn steps(plan: &Plan, hosts: &[Host; 2], own: usize, queue_pair: usize) -> [Attributes; 3] {
    let other = 1 - own;
    let (here, there) = (hosts[own].ends[queue_pair], hosts[other].ends[queue_pair]);
    let connection = Connection {
        mtu: plan.mtu,
        send_psn: here.psn,
        receive_psn: there.psn,
        ..Connection::to(loopback_gid(other), there.number)
    };
    connection.transitions()
}

/// Takes all queue pairs from RESET to RTS, and tries on A's first one what its states allow.
fn connect(lab: &mut Lab<NoSink>, plan: &Plan, hosts: &[Host; 2]) -> anyhow::Result<Vec<Trial>> {
    let mut trials = vec![Trial::In(State::Reset)];
    try_work(lab, hosts, &mut trials)?;
    for step in 0..3 {
        for queue_pair in 0..plan.queue_pairs as usize {
            for own in [B, A] {
                let change = steps(plan, hosts, own, queue_pair)[step];
                modify(lab, own, hosts[own].ends[queue_pair].number, &change)?;
                if (own, queue_pair) == (A, 0) {
                    trials.push(Trial::Moved(change));
                }
            }
        }
        trials.push(Trial::In(lab.nics[A].query_qp(hosts[A].ends[0].number)?.state));
        if step == 0 {
            let to_rtr = steps(plan, hosts, A, 0)[1];
            let to_rts = Attributes { state: Some(State::ReadyToSend), ..Attributes::default() };
            try_change(lab, hosts, "RTS at once", &to_rts, &mut trials);
            let without = Attributes { destination: None, ..to_rtr };
            try_change(lab, hosts, "RTR without peer's QPN", &without, &mut trials);
        }
        try_work(lab, hosts, &mut trials)?;
    }
    Ok(trials)
}

fn modify(
    lab: &mut Lab<NoSink>,
    host: usize,
    number: QueuePairNumber,
    change: &Attributes,
) -> Result<(), railnet_nic::VerbsError> {
    let (nic, mut cx) = lab.nic(host);
    nic.modify_qp(&mut cx, number, change)
}

/// Asks for a change that the state machine has to refuse.
fn try_change(
    lab: &mut Lab<NoSink>,
    hosts: &[Host; 2],
    what: &'static str,
    change: &Attributes,
    trials: &mut Vec<Trial>,
) {
    let result = modify(lab, A, hosts[A].ends[0].number, change).map_err(|error| error.to_string());
    trials.push(Trial::Tried { what, result });
}

/// Posts an empty receive and, where it would be refused, an empty SEND.
fn try_work(lab: &mut Lab<NoSink>, hosts: &[Host; 2], trials: &mut Vec<Trial>) -> anyhow::Result<()> {
    let number = hosts[A].ends[0].number;
    let state = lab.nics[A].query_qp(number)?.state;
    let (nic, mut cx) = lab.nic(A);
    let received = nic.post_recv(&mut cx, number, ReceiveRequest::new(0)).map_err(|error| error.to_string());
    trials.push(Trial::Tried { what: "a receive", result: received });
    // In RTS it would go to a peer that has no receive for it: there the WRITEs below are the proof.
    if state != State::ReadyToSend {
        let request = SendRequest::new(0, Operation::Send);
        let sent = nic.post_send(&mut cx, number, request).map_err(|error| error.to_string());
        trials.push(Trial::Tried { what: "a send", result: sent });
    }
    Ok(())
}

/// A WRITE of message `number`, counted from 0, of a queue pair.
fn write(plan: &Plan, hosts: &[Host; 2], queue_pair: u32, number: u32) -> SendRequest {
    let place = u64::from(queue_pair * plan.messages() + number) * u64::from(plan.bytes);
    let remote = Remote { address: hosts[B].region + place, key: hosts[B].key };
    let local = Sge { address: hosts[A].region + place, length: plan.bytes, key: hosts[A].key };
    SendRequest::new(u64::from(number + 1), Operation::Write(remote)).with(local)
}

fn post_writes(lab: &mut Lab<NoSink>, plan: &Plan, hosts: &[Host; 2], queue_pair: u32) -> anyhow::Result<()> {
    let end = hosts[A].ends[queue_pair as usize];
    let (nic, mut cx) = lab.nic(A);
    for number in 0..plan.messages() {
        let request = write(plan, hosts, queue_pair, number);
        let is_signaled = (number + 1).is_multiple_of(plan.signal_every);
        let request = if is_signaled { request } else { request.unsignaled() };
        nic.post_send(&mut cx, end.number, request)?;
    }
    Ok(())
}

/// An unsignalled WRITE with a wrong rkey on the last queue pair, and one behind it; returns what completes.
fn fail(lab: &mut Lab<NoSink>, plan: &Plan, hosts: &[Host; 2]) -> anyhow::Result<Vec<Completion>> {
    let last = plan.queue_pairs - 1;
    let number = hosts[A].ends[last as usize].number;
    let mut all = Vec::new();
    for wrong in [true, false] {
        let mut request = write(plan, hosts, last, 0).unsignaled();
        request.work = u64::from(plan.messages()) + if wrong { 1 } else { 2 };
        if let (true, Operation::Write(remote)) = (wrong, &mut request.operation) {
            // Another index: the lower eight bits alone would be a key that has been in use.
            remote.key = Key(remote.key.0 ^ 0x0005_0000);
        }
        let (nic, mut cx) = lab.nic(A);
        nic.post_send(&mut cx, number, request)?;
        lab.run();
        all.extend(lab.completions(A, hosts[A].queue));
    }
    // The receives that were posted on this queue pair are flushed, too: they are not what is shown.
    all.retain(|one| one.work > 0);
    Ok(all)
}
