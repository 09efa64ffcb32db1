//! One process of a program: its threads make their queue pairs, meet the others, and work round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

use railnet_core::{Fold, Random};

use super::calls::{Calls, Shared, why};
use super::completions::{Completions, Posted, RECEIVES};
use super::ending;
use super::endpoint::{Address, Common, Endpoint, zero};
use super::noise;
use super::program::{GRH_BYTES, Kind, Program, Transport, WORDS, Work, pattern, start_of, static_id};
use crate::abi::*;
use crate::object;

/// Receives of the shared queue.
const SHARED_DEPTH: u32 = 4096;
/// How long late receivers let the senders wait.
const LATE: Duration = Duration::from_millis(2);

/// What a process tells when all went as it must.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Of all that follows from the seed.
    pub digest: u128,
    /// Calls of the library.
    pub calls: u64,
    /// Bytes that were compared with what they must be.
    pub bytes: u64,
    /// Messages that came over unreliable services.
    pub datagrams: u64,
}

impl Report {
    fn write(&self) -> String {
        let Self { digest, calls, bytes, datagrams } = self;
        format!("report {digest:032x} {calls} {bytes} {datagrams}")
    }

    /// The report in a line that a process wrote.
    pub fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("report ")?.split(' ');
        let digest = u128::from_str_radix(words.next()?, 16).ok()?;
        let mut number = || words.next()?.parse().ok();
        Some(Self { digest, calls: number()?, bytes: number()?, datagrams: number()? })
    }
}

/// Where the processes meet: a line out, and a line in when all are there.
struct Meeting<R, W> {
    barrier: Barrier,
    wire: Mutex<(R, W)>,
}

impl<R: BufRead, W: Write> Meeting<R, W> {
    fn write(&self, line: &str) -> Result<(), String> {
        let mut wire = self.wire.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(wire.1, "{line}").and_then(|()| wire.1.flush()).map_err(|error| error.to_string())
    }

    fn read(&self) -> Result<String, String> {
        let mut wire = self.wire.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::new();
        match wire.0.read_line(&mut line) {
            Ok(0) => Err("the command that started this process is gone".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits until all threads of all processes are here.
    fn meet(&self, name: &str) -> Result<(), String> {
        if self.barrier.wait().is_leader() {
            self.write(&format!("meet {name}"))?;
            let answer = self.read()?;
            if answer != "go" {
                return Err(format!("the command answered {answer:?}"));
            }
        }
        self.barrier.wait();
        Ok(())
    }
}

/// What the threads of a process share.
pub(super) struct Process<'a> {
    pub(super) program: &'a Program,
    pub(super) number: u32,
    pub(super) common: Common<'a>,
    pub(super) completions: &'a Completions<'a>,
    pub(super) endpoints: Vec<Endpoint<'a>>,
    /// Every piece of work, by its identifier: the link, the side that posts it, and the round.
    works: BTreeMap<u32, (usize, usize, usize, &'a Work)>,
    /// Receives whose messages were compared, and the messages.
    checked: Mutex<(BTreeSet<u64>, BTreeSet<u32>)>,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    bytes: u64,
    datagrams: u64,
    /// Statuses of sends, by their identifiers.
    outcomes: BTreeMap<u32, i32>,
}

/// Plays one process of a seed's program with the library at `library`; speaks with the command through lines. Fails with a
/// sentence where anything is not as it must be.
pub fn play(
    library: &Path,
    seed: u64,
    number: u32,
    input: impl BufRead + Send,
    output: impl Write + Send,
) -> Result<(), String> {
    let program = Program::of(seed);
    let threads = program.threads;
    let meeting = Meeting { barrier: Barrier::new(threads as usize), wire: Mutex::new((input, output)) };
    let calls = Calls::open(library)?;
    let (context, gid) = open_device(&calls)?;
    let domain = Shared(calls.ibv_alloc_pd(context.0));
    let mut shared = ibv_srq_init_attr {
        srq_context: std::ptr::null_mut(),
        attr: ibv_srq_attr { max_wr: SHARED_DEPTH, max_sge: 4, srq_limit: 0 },
    };
    let shared_queue = Shared(calls.ibv_create_srq(domain.0, &raw mut shared));
    if domain.0.is_null() || shared_queue.0.is_null() {
        return Err(format!("ibv_alloc_pd or ibv_create_srq: {}", why()));
    }
    let completions = Completions::make(&calls, context, &program.queues[number as usize])?;
    let common = Common { calls: &calls, seed, context, domain, shared_queue, gid };
    let mut process = Process::make(&program, number, common, &completions)?;
    let own: Vec<_> = process.endpoints.iter().map(|one| one.address().write()).collect();
    meeting.write(&format!("ends {}", own.join(" ")))?;
    let all: Vec<_> = meeting.read()?.split(' ').filter_map(Address::read).collect();
    process.connect(&all)?;
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let (process, meeting) = (&process, &meeting);
        let start = |thread| scope.spawn(move || end_on_error(process.run(thread, meeting), meeting));
        let started: Vec<_> = (0..threads).map(start).collect();
        let ended = started.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|ended| ended.unwrap_or_else(|_| Err("a thread panicked".to_owned()))).collect()
    });
    outcomes.into_iter().collect::<Result<(), String>>()?;
    let report = process.end(&calls)?;
    zero(calls.ibv_destroy_srq(shared_queue.0), "ibv_destroy_srq")?;
    completions.destroy()?;
    zero(calls.ibv_dealloc_pd(domain.0), "ibv_dealloc_pd")?;
    zero(calls.ibv_close_device(context.0), "ibv_close_device")?;
    meeting.write(&Report { calls: calls.count(), ..report }.write())
}

/// The other threads wait for one that failed: the process ends at once, after it told why.
#[expect(clippy::exit, reason = "threads that wait at a barrier cannot be called back")]
fn end_on_error<R: BufRead, W: Write>(
    outcome: Result<(), String>,
    meeting: &Meeting<R, W>,
) -> Result<(), String> {
    if let Err(why) = &outcome {
        let _ = meeting.write(&format!("failed {why}"));
        std::process::exit(1);
    }
    outcome
}

fn open_device(calls: &Calls) -> Result<(Shared<ibv_context>, ibv_gid), String> {
    let mut count = 0;
    let list = calls.ibv_get_device_list(&raw mut count);
    let first = *object::read(list).map_err(|_| format!("ibv_get_device_list: {}", why()))?;
    let context = Shared(calls.ibv_open_device(first));
    calls.ibv_free_device_list(list);
    if context.0.is_null() {
        return Err(format!("ibv_open_device: {}", why()));
    }
    let mut gid = ibv_gid { raw: [0; 16] };
    match calls.ibv_query_gid(context.0, 1, 0, &raw mut gid) {
        0 => Ok((context, gid)),
        _ => Err(format!("ibv_query_gid: {}", why())),
    }
}

impl<'a> Process<'a> {
    fn make(
        program: &'a Program,
        number: u32,
        common: Common<'a>,
        completions: &'a Completions<'a>,
    ) -> Result<Self, String> {
        let (mut endpoints, mut works) = (Vec::new(), BTreeMap::new());
        for (index, link) in program.links.iter().enumerate() {
            for (side, end) in link.ends.iter().enumerate() {
                for (round, lanes) in end.rounds.iter().enumerate() {
                    works.extend(lanes.iter().flatten().map(|work| (work.id, (index, side, round, work))));
                }
                if end.process == number {
                    let queues = end.queues.map(|queue| completions.queues[queue].cq);
                    endpoints.push(Endpoint::make(common, &program.links, index, side, queues)?);
                }
            }
        }
        let silent = endpoints
            .iter()
            .filter(|one| !one.end.signals_all)
            .flat_map(|one| one.end.rounds.iter().flatten().flatten());
        let silent = silent.filter(|work| !work.is_signaled).map(|work| u64::from(work.id));
        completions.seen().silent = silent.collect();
        let (checked, tally) = (Mutex::default(), Mutex::default());
        Ok(Self { program, number, common, completions, endpoints, works, checked, tally })
    }

    fn connect(&mut self, all: &[Address]) -> Result<(), String> {
        for endpoint in &mut self.endpoints {
            let is_peer = |one: &&Address| one.link == endpoint.link && one.side != endpoint.side;
            let peer = all.iter().find(is_peer).ok_or("the peer of a queue pair told nothing")?;
            endpoint.connect(*peer)?;
        }
        Ok(())
    }

    fn owned(&self, thread: u32) -> impl Iterator<Item = (usize, &Endpoint<'a>)> {
        self.endpoints.iter().enumerate().filter(move |(_, one)| one.end.thread == thread)
    }

    /// What one thread does.
    fn run<R: BufRead, W: Write>(&self, thread: u32, meeting: &Meeting<R, W>) -> Result<(), String> {
        let mut random = Random::stream(
            self.program.seed,
            "verbs storm thread",
            u64::from(self.number) << 8 | u64::from(thread),
        );
        for round in 0..self.program.rounds {
            let is_last = round + 1 == self.program.rounds;
            let lost = if is_last { self.program.victim } else { None };
            for (index, endpoint) in self.owned(thread) {
                endpoint.fill(round as usize);
                if !endpoint.program.is_late {
                    self.post_receives(index, endpoint, round as usize)?;
                }
            }
            meeting.meet(&start_of(round))?;
            self.post_round(thread, round as usize, &mut random)?;
            let is_late = |one: &Endpoint<'_>| one.program.is_late;
            if self.owned(thread).any(|(_, one)| is_late(one)) {
                std::thread::sleep(LATE);
            }
            for (index, endpoint) in self.owned(thread).filter(|(_, one)| is_late(one)) {
                self.post_receives(index, endpoint, round as usize)?;
            }
            self.wait_for_sends(thread, round as usize, lost)?;
            self.wait_for_receives(thread, round as usize, lost)?;
            meeting.meet(&format!("sent-{round}"))?;
            self.completions.drain()?;
            for (_, endpoint) in self.owned(thread).filter(|(_, one)| !one.program.touches(lost)) {
                self.check_sends(endpoint, round as usize)?;
                self.check_memory(endpoint, round as usize)?;
            }
            self.check_receives(thread, lost)?;
            for _ in 0..random.between(0, 3) {
                noise::call(self, thread, &mut random)?;
            }
            meeting.meet(&format!("checked-{round}"))?;
        }
        for (_, endpoint) in self.owned(thread) {
            ending::prepare(self, endpoint)?;
        }
        meeting.meet("ending")?;
        for (_, endpoint) in self.owned(thread) {
            ending::play(self, endpoint)?;
        }
        meeting.meet("end")
    }

    /// Posts the receives of a round.
    fn post_receives(&self, index: usize, endpoint: &Endpoint<'_>, round: usize) -> Result<(), String> {
        let (link, side) = (endpoint.program, endpoint.side);
        let is_ordered = link.is_ordered(side);
        // Faults may have a packet arrive twice, and unreliable services do not know.
        let copies = if link.transport == Transport::Reliable { 1 } else { 2 };
        for work in link.receives(side, round) {
            for _ in 0..copies {
                let message = is_ordered.then_some(work);
                let bytes = Endpoint::buffer_bytes(message);
                let (offset, list) = endpoint.take_buffer(bytes);
                let posted = Posted { endpoint: index, offset, bytes, expected: message.map(|work| work.id) };
                let id = self.completions.seen().expect(posted);
                endpoint.post_receive(id, &list)?;
            }
        }
        Ok(())
    }

    /// Posts a thread's work of a round: a few requests of one queue pair, then of another.
    fn post_round(&self, thread: u32, round: usize, random: &mut Random) -> Result<(), String> {
        let mut left: Vec<(&Endpoint<'_>, &[Work])> = Vec::new();
        for endpoint in &self.endpoints {
            let lanes = &endpoint.end.rounds[round];
            for (lane, works) in lanes.iter().enumerate() {
                if (endpoint.end.thread + lane as u32) % self.program.threads == thread {
                    left.push((endpoint, works));
                }
            }
        }
        left.retain(|(_, works)| !works.is_empty());
        while !left.is_empty() {
            let at = random.below(left.len() as u64) as usize;
            let (endpoint, works) = &mut left[at];
            let (now, later) = works.split_at(random.between(1, works.len() as u64) as usize);
            endpoint.post(now)?;
            *works = later;
            if later.is_empty() {
                left.swap_remove(at);
            }
            if random.chance(300_000) {
                self.completions.drain()?;
            }
        }
        Ok(())
    }

    fn wait_for_sends(&self, thread: u32, round: usize, lost: Option<u32>) -> Result<(), String> {
        for (_, endpoint) in self.owned(thread) {
            for works in &endpoint.end.rounds[round] {
                let told = works.iter().filter(|work| work.is_signaled || endpoint.end.signals_all);
                let told: Vec<u64> = told.map(|work| work.id.into()).collect();
                let missing = |seen: &super::completions::Seen| {
                    told.iter().filter(|id| !seen.sends.contains_key(id)).count()
                };
                // With a peer that was killed, an error of one is the end of all.
                let may_fail = endpoint.program.touches(lost);
                let has_failed = |seen: &super::completions::Seen| {
                    may_fail
                        && works
                            .iter()
                            .any(|work| seen.sends.get(&u64::from(work.id)).is_some_and(|wc| wc.status != 0))
                };
                self.completions.wait(
                    |seen| missing(seen) == 0 || has_failed(seen),
                    |seen| format!("{} sends of {}", missing(seen), endpoint.name()),
                )?;
            }
        }
        Ok(())
    }

    /// Waits for the messages of reliable connections.
    fn wait_for_receives(&self, thread: u32, round: usize, lost: Option<u32>) -> Result<(), String> {
        for (_, endpoint) in self.owned(thread) {
            if endpoint.program.transport != Transport::Reliable || endpoint.program.touches(lost) {
                continue;
            }
            let wanted: usize =
                (0..=round).map(|round| endpoint.program.receives(endpoint.side, round).count()).sum();
            let number = endpoint.number();
            let arrived = |seen: &super::completions::Seen| {
                seen.receives.values().filter(|wc| wc.qp_num == number).count()
            };
            self.completions.wait(
                |seen| arrived(seen) >= wanted,
                |seen| format!("{} of {wanted} messages to {}", wanted - arrived(seen), endpoint.name()),
            )?;
        }
        Ok(())
    }

    fn check_sends(&self, endpoint: &Endpoint<'_>, round: usize) -> Result<(), String> {
        let mut added = Vec::new();
        for work in endpoint.end.rounds[round].iter().flatten() {
            let wc = self.completions.seen().sends.get(&work.id.into()).copied();
            let outcome = wc.map_or(0, |wc| wc.status);
            self.tally().outcomes.insert(work.id, outcome);
            if outcome != 0 {
                return Err(format!("{} of {} ended with status {outcome}", name(work), endpoint.name()));
            }
            if let Some(wc) = wc
                && (wc.qp_num != endpoint.number() || wc.opcode != opcode(work.kind))
            {
                return Err(format!(
                    "{} of {} completed with opcode {} of queue pair {:#x}",
                    name(work),
                    endpoint.name(),
                    wc.opcode,
                    wc.qp_num
                ));
            }
            match work.kind {
                Kind::Send | Kind::Write => {}
                Kind::Read => {
                    let all = pattern(self.program.seed, static_id(endpoint.link, 1 - endpoint.side), WORDS);
                    let expected = &all[work.remote as usize..][..work.length as usize];
                    self.compare(endpoint, work, work.local, expected)?;
                }
                Kind::FetchAdd => added.push((endpoint.pages.word(work.local), work.operand)),
                Kind::CompareSwap => {
                    let expected = super::endpoint::previous_swap(endpoint.end, work);
                    self.compare(endpoint, work, work.local, &expected.to_ne_bytes())?;
                }
            }
        }
        // Additions took effect one after the other.
        added.sort_unstable();
        let mut sum = endpoint.added_before(round);
        for (old, operand) in added {
            if old != sum {
                return Err(format!("{}: an addition found {old:#x} instead of {sum:#x}", endpoint.name()));
            }
            sum = sum.wrapping_add(operand);
        }
        Ok(())
    }

    /// What peers wrote.
    fn check_memory(&self, endpoint: &Endpoint<'_>, round: usize) -> Result<(), String> {
        let peer = &endpoint.program.ends[1 - endpoint.side];
        for work in peer.rounds[round].iter().flatten().filter(|work| work.kind == Kind::Write) {
            let expected = pattern(self.program.seed, work.id, work.length);
            if endpoint.program.transport == Transport::Reliable {
                self.compare(endpoint, work, work.remote, &expected)?;
                continue;
            }
            // Parts of it may be lost.
            let found = endpoint.pages.load(work.remote, work.length);
            if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at] && found[at] != 0) {
                return Err(format!("{} to {}: byte {at} is neither", name(work), endpoint.name()));
            }
            self.tally().bytes += u64::from(work.length);
        }
        if endpoint.program.transport == Transport::Reliable {
            let sum = peer.added_until(round);
            let found = endpoint.pages.word(WORDS);
            if found != sum {
                return Err(format!("{}: {found:#x} was added up instead of {sum:#x}", endpoint.name()));
            }
        }
        Ok(())
    }

    /// Messages that arrived at a thread's queue pairs.
    fn check_receives(&self, thread: u32, lost: Option<u32>) -> Result<(), String> {
        let arrived: Vec<(u64, ibv_wc, Posted)> = {
            let seen = self.completions.seen();
            let with_posted = |(id, wc): (&u64, &ibv_wc)| Some((*id, *wc, seen.posted.get(id)?.clone()));
            seen.receives.iter().filter_map(with_posted).collect()
        };
        for (id, wc, posted) in arrived {
            let Some((_, endpoint)) = self.owned(thread).find(|(_, one)| one.number() == wc.qp_num) else {
                continue;
            };
            let is_new = self.checked.lock().unwrap_or_else(PoisonError::into_inner).0.insert(id);
            if is_new && !endpoint.program.touches(lost) {
                self.check_receive(endpoint, &wc, &posted)
                    .map_err(|why| format!("receive {:#x} of {}: {why}", id - RECEIVES, endpoint.name()))?;
            }
        }
        Ok(())
    }

    fn check_receive(&self, endpoint: &Endpoint<'_>, wc: &ibv_wc, posted: &Posted) -> Result<(), String> {
        const RECV: i32 = 128;
        const RECV_WITH_IMM: i32 = 129;
        if wc.status != 0 {
            return Err(format!("status {}", wc.status));
        }
        let link = endpoint.program;
        let front = if link.transport == Transport::Datagram { GRH_BYTES } else { 0 };
        let memory = &self.endpoints[posted.endpoint].pages;
        let id = match posted.expected {
            Some(id) => id,
            None if wc.wc_flags & IBV_WC_WITH_IMM != 0 => u32::from_be(wc.imm_data),
            None => memory.word(posted.offset + front) as u32,
        };
        let found =
            self.works.get(&id).filter(|(at, side, ..)| *at == endpoint.link && *side != endpoint.side);
        let Some((_, _, _, work)) = found else { return Err(format!("message {id:#x} is not for it")) };
        let is_first = self.checked.lock().unwrap_or_else(PoisonError::into_inner).1.insert(id);
        if !is_first && link.transport == Transport::Reliable {
            return Err(format!("{} came twice", name(work)));
        }
        let expected_opcode = if work.kind == Kind::Send { RECV } else { RECV_WITH_IMM };
        let immediate = (wc.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data));
        if wc.opcode != expected_opcode
            || wc.byte_len != work.length + front
            || immediate != work.has_immediate.then_some(work.id)
        {
            let (opcode, length) = (wc.opcode, wc.byte_len);
            return Err(format!("{} came as opcode {opcode} of {length} bytes, {immediate:?}", name(work)));
        }
        if link.transport != Transport::Reliable {
            self.tally().datagrams += 1;
        }
        let expected = pattern(self.program.seed, work.id, work.length);
        match work.kind {
            Kind::Send if work.length + front > posted.bytes => {
                Err("it is longer than its buffer".to_owned())
            }
            Kind::Send => {
                self.compare(&self.endpoints[posted.endpoint], work, posted.offset + front, &expected)
            }
            // All of it is there before its immediate data are.
            _ => self.compare(endpoint, work, work.remote, &expected),
        }
    }

    fn compare(
        &self,
        endpoint: &Endpoint<'_>,
        work: &Work,
        offset: u32,
        expected: &[u8],
    ) -> Result<(), String> {
        let found = endpoint.pages.load(offset, expected.len() as u32);
        self.tally().bytes += expected.len() as u64;
        match (0..found.len()).find(|&at| found[at] != expected[at]) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{} in {}: byte {at} of {} is {:#04x} instead of {:#04x}",
                name(work),
                endpoint.name(),
                expected.len(),
                found[at],
                expected[at]
            )),
        }
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Destroys the queue pairs, and sums up.
    fn end(self, calls: &Calls) -> Result<Report, String> {
        // What has users cannot be destroyed.
        if !self.endpoints.is_empty() && calls.ibv_dealloc_pd(self.common.domain.0) != libc::EBUSY {
            return Err("a protection domain with queue pairs was destroyed".to_owned());
        }
        for endpoint in self.endpoints {
            endpoint.destroy()?;
        }
        let tally = self.tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut fold = Fold::new();
        for (id, status) in tally.outcomes {
            fold.push(id.into());
            fold.push(status as u64);
        }
        Ok(Report { digest: fold.finish_wide(), calls: 0, bytes: tally.bytes, datagrams: tally.datagrams })
    }
}

fn opcode(kind: Kind) -> i32 {
    match kind {
        Kind::Send => 0,
        Kind::Write => 1,
        Kind::Read => 2,
        Kind::CompareSwap => 3,
        Kind::FetchAdd => 4,
    }
}

/// A piece of work in words.
fn name(work: &Work) -> String {
    format!("{:?} {} of {} bytes", work.kind, work.id, work.length)
}

impl Endpoint<'_> {
    /// The queue pair in words.
    pub(super) fn name(&self) -> String {
        format!("link {} side {} ({:?})", self.link, self.side, self.program.transport)
    }

    fn added_before(&self, round: usize) -> u64 {
        if round == 0 { 0 } else { self.end.added_until(round - 1) }
    }
}

impl super::program::End {
    /// What this end's work has added to the peer's word after a round.
    fn added_until(&self, round: usize) -> u64 {
        let works = self.rounds[..=round].iter().flatten().flatten();
        let added = works.filter(|work| work.kind == Kind::FetchAdd).map(|work| work.operand);
        added.fold(0, u64::wrapping_add)
    }
}
