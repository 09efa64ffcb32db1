//! What the processes of a seed do: a pure function of the seed, which every process computes for itself.

use railnet_core::Random;

/// Bytes at the beginning of every region that peers read.
pub(super) const STATIC_BYTES: u32 = 4096;
/// Words behind them for atomics: the first is added to, the second compared and swapped.
pub(super) const WORDS: u32 = STATIC_BYTES;
const WORDS_BYTES: u32 = 64;
/// Bytes of a receive buffer that any message may land in.
pub(super) const POOL_BYTES: u32 = 8192;
/// What a datagram has in front of it.
pub(super) const GRH_BYTES: u32 = 40;
/// Bytes of inline data that queue pairs are made for.
pub(super) const INLINE_BYTES: u32 = 64;
/// Scatter-gather entries of a work request.
pub(super) const PIECES_MAX: u32 = 4;
/// Work of one thread on one queue pair in a round.
const WORKS_MAX: u64 = 6;

/// A seed's processes, threads, connections and work.
#[derive(Debug)]
pub struct Program {
    pub(super) seed: u64,
    /// Processes, each with its own device.
    pub processes: u32,
    /// Threads of each process.
    pub threads: u32,
    pub(super) rounds: u32,
    pub(super) links: Vec<Link>,
    /// Killed in the last round.
    pub(super) victim: Option<u32>,
    /// How each process makes its completion queues.
    pub(super) queues: Vec<Vec<QueueKind>>,
}

/// Transport services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Reliable,
    Unreliable,
    Datagram,
}

/// How completions are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueKind {
    /// `ibv_poll_cq`.
    Polled,
    /// `ibv_start_poll` and its kin.
    Extended,
    /// `ibv_poll_cq` after an event of a completion channel.
    Events,
}

/// Two queue pairs that are connected, or send datagrams to each other.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) transport: Transport,
    pub(super) ends: [End; 2],
    /// The code of the path MTU.
    pub(super) mtu: u32,
    /// Receives are posted after the sends: the sender waits for the receiver (RNR).
    pub(super) is_late: bool,
    pub(super) ending: Ending,
}

/// One queue pair.
#[derive(Debug)]
pub(super) struct End {
    pub(super) process: u32,
    pub(super) thread: u32,
    /// Receives come from the shared receive queue of the process.
    pub(super) is_shared: bool,
    /// Posts with `ibv_wr_*`.
    pub(super) is_extended: bool,
    /// Every send is signaled.
    pub(super) signals_all: bool,
    /// The region is named by other addresses than its own.
    pub(super) is_renamed: bool,
    /// Places of the completion queues in those of the process.
    pub(super) queues: [usize; 2],
    /// Work by round, then by the thread that posts it: one, or two on the same queue pair.
    pub(super) rounds: Vec<Vec<Vec<Work>>>,
    /// Bytes of its region.
    pub(super) room: u32,
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// It is destroyed.
    Clean,
    /// A WRITE with a key of nothing.
    WrongKey,
    /// A READ beyond the end of the region.
    BeyondEnd,
    /// A SEND from memory with a local key of nothing.
    WrongLocalKey,
    /// A SEND that is longer than the receive.
    TooLong,
    /// A WRITE from memory that was unmapped.
    Unmapped,
    /// The queue pair is put into the error state with receives posted.
    Flushed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
}

/// One work request.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Of all of the program; what identifies its data.
    pub(super) id: u32,
    pub(super) kind: Kind,
    pub(super) length: u32,
    /// Where its data are in the region of the end that posts it, or where they go for READs and atomics.
    pub(super) local: u32,
    /// Where they are or go in the peer's region, for all but SENDs.
    pub(super) remote: u32,
    /// Its identifier as immediate data: it takes a receive of the peer.
    pub(super) has_immediate: bool,
    pub(super) is_inline: bool,
    pub(super) is_signaled: bool,
    pub(super) is_fenced: bool,
    pub(super) is_solicited: bool,
    pub(super) pieces: u32,
    /// What is added, or the new value, by which the old one is known.
    pub(super) operand: u64,
}

impl Work {
    /// Takes a receive of the peer.
    pub(super) fn takes_receive(&self) -> bool {
        self.kind == Kind::Send || self.has_immediate
    }
}

impl Link {
    /// Messages arrive in the order of one thread, each in the receive that is posted for it.
    pub(super) fn is_ordered(&self, side: usize) -> bool {
        self.transport == Transport::Reliable
            && !self.ends[side].is_shared
            && self.ends[1 - side].rounds.iter().all(|lanes| lanes.len() == 1)
    }

    /// Receives that the work of a round takes at this side.
    pub(super) fn receives(&self, side: usize, round: usize) -> impl Iterator<Item = &Work> {
        self.ends[1 - side].rounds[round].iter().flatten().filter(|work| work.takes_receive())
    }

    pub(super) fn touches(&self, process: Option<u32>) -> bool {
        self.ends.iter().any(|end| Some(end.process) == process)
    }
}

impl Program {
    /// The program of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::stream(seed, "verbs storm", 0);
        let processes = random.between(1, 3) as u32;
        let threads = random.between(1, 3) as u32;
        let rounds = random.between(1, 4) as u32;
        let has_victim = processes > 1 && random.chance(150_000);
        let victim = has_victim.then(|| random.below(processes.into()) as u32);
        let kinds = [QueueKind::Polled, QueueKind::Extended, QueueKind::Events];
        let queues: Vec<Vec<_>> = (0..processes)
            .map(|_| (0..random.between(1, 3)).map(|_| *random.pick(&kinds)).collect())
            .collect();
        let count = random.between(1, 6);
        let mut program = Self { seed, processes, threads, rounds, links: Vec::new(), victim, queues };
        let mut ids = 0;
        for _ in 0..count {
            let link = program.link(&mut random, &mut ids);
            program.links.push(link);
        }
        program
    }

    /// The process that is killed, when this meeting of all is over.
    pub fn kills_after(&self, meeting: &str) -> Option<u32> {
        self.victim.filter(|_| meeting == start_of(self.rounds - 1))
    }

    /// Work requests of it, without those that end connections in errors.
    pub fn works(&self) -> u64 {
        let ends = self.links.iter().flat_map(|link| &link.ends);
        ends.flat_map(|end| end.rounds.iter().flatten()).map(|works| works.len() as u64).sum()
    }

    /// Connections that end in an error on purpose.
    pub fn failures(&self) -> u64 {
        self.links.iter().filter(|link| link.ending != Ending::Clean).count() as u64
    }

    /// Whether a process is killed.
    pub fn kills(&self) -> bool {
        self.victim.is_some()
    }

    fn link(&self, random: &mut Random, ids: &mut u32) -> Link {
        let transports =
            [Transport::Reliable, Transport::Reliable, Transport::Unreliable, Transport::Datagram];
        let transport = *random.pick(&transports);
        let mtu = random.between(1, 5) as u32;
        let mut ends = [0, 1].map(|_| self.end(random));
        for round in 0..self.rounds as usize {
            for side in 0..2 {
                let has_helper = self.threads > 1 && random.chance(200_000);
                for lane in 0..=usize::from(has_helper) {
                    let works = Self::works_of(random, ids, transport, mtu, &mut ends, side, lane, round);
                    ends[side].rounds[round].push(works);
                }
            }
        }
        for end in &mut ends {
            end.room = end.room.next_multiple_of(4096);
        }
        let mut link = Link { transport, ends, mtu, is_late: false, ending: Ending::Clean };
        let is_plain = transport == Transport::Reliable && !link.touches(self.victim);
        if is_plain {
            link.is_late = random.chance(250_000);
        }
        if is_plain && link.ends.iter().all(|end| !end.is_shared) && random.chance(400_000) {
            let endings = [
                Ending::WrongKey,
                Ending::BeyondEnd,
                Ending::WrongLocalKey,
                Ending::TooLong,
                Ending::Unmapped,
                Ending::Flushed,
            ];
            link.ending = *random.pick(&endings);
        }
        link
    }

    fn end(&self, random: &mut Random) -> End {
        let process = random.below(self.processes.into()) as u32;
        let queues = self.queues[process as usize].len() as u64;
        End {
            process,
            thread: random.below(self.threads.into()) as u32,
            is_shared: random.chance(300_000),
            is_extended: random.chance(500_000),
            signals_all: random.chance(200_000),
            is_renamed: random.chance(300_000),
            queues: [0, 1].map(|_| random.below(queues) as usize),
            rounds: vec![Vec::new(); self.rounds as usize],
            room: STATIC_BYTES + WORDS_BYTES,
        }
    }

    /// The work of one thread on one queue pair in a round; the last of it is signaled.
    #[expect(clippy::too_many_arguments, reason = "where the work belongs")]
    fn works_of(
        random: &mut Random,
        ids: &mut u32,
        transport: Transport,
        mtu: u32,
        ends: &mut [End; 2],
        side: usize,
        lane: usize,
        round: usize,
    ) -> Vec<Work> {
        let count = random.between(0, WORKS_MAX);
        let mut works = Vec::new();
        for index in 0..count {
            *ids += 1;
            let kind = match transport {
                Transport::Reliable => *random.pick(&[
                    Kind::Send,
                    Kind::Send,
                    Kind::Write,
                    Kind::Write,
                    Kind::Read,
                    Kind::FetchAdd,
                ]),
                Transport::Unreliable => *random.pick(&[Kind::Send, Kind::Write]),
                Transport::Datagram => Kind::Send,
            };
            // Values are exchanged in an order that only one thread has, and in the first round.
            let swaps = kind == Kind::FetchAdd && lane == 0 && round == 0 && random.chance(400_000);
            let kind = if swaps { Kind::CompareSwap } else { kind };
            works.push(place(random, *ids, kind, transport, mtu, ends, side, index + 1 == count));
        }
        works
    }
}

/// The name of the meeting at which a round begins.
pub(super) fn start_of(round: u32) -> String {
    format!("start-{round}")
}

/// One work request, with places for its data.
#[expect(clippy::too_many_arguments, reason = "where the work belongs")]
fn place(
    random: &mut Random,
    id: u32,
    kind: Kind,
    transport: Transport,
    mtu: u32,
    ends: &mut [End; 2],
    side: usize,
    is_last: bool,
) -> Work {
    const LENGTHS: [u32; 12] = [0, 1, 8, 31, 64, 200, 1000, 4095, 4096, 5000, 20_000, 60_000];
    let is_atomic = matches!(kind, Kind::FetchAdd | Kind::CompareSwap);
    let has_immediate = match kind {
        Kind::Send | Kind::Write => random.chance(300_000),
        _ => false,
    };
    let limit = match (kind, transport) {
        (_, Transport::Datagram) => 128 << mtu,
        (Kind::Read, _) => STATIC_BYTES,
        (Kind::Send, _) => POOL_BYTES - GRH_BYTES,
        _ => u32::MAX,
    };
    // A message that may land anywhere names itself in its first bytes.
    let least = if kind == Kind::Send { 8 } else { 0 };
    let length = if is_atomic { 8 } else { (*random.pick(&LENGTHS)).clamp(least, limit) };
    let local = take(&mut ends[side].room, length, if is_atomic { 0 } else { random.below(8) as u32 });
    let remote = match kind {
        Kind::Send => 0,
        Kind::Write => take(&mut ends[1 - side].room, length, random.below(8) as u32),
        Kind::Read => random.below(u64::from(STATIC_BYTES - length) + 1) as u32,
        Kind::FetchAdd => WORDS,
        Kind::CompareSwap => WORDS + 8,
    };
    let is_inline = length <= INLINE_BYTES && !is_atomic && kind != Kind::Read && random.chance(400_000);
    Work {
        id,
        kind,
        length,
        local,
        remote,
        has_immediate,
        is_inline,
        is_signaled: is_last || random.chance(400_000),
        is_fenced: random.chance(100_000),
        is_solicited: random.chance(300_000),
        pieces: if is_atomic { 1 } else { random.between(1, PIECES_MAX.into()) as u32 },
        operand: random.between(1, 1 << 40),
    }
}

/// Room for so many bytes, at this distance from a multiple of eight.
fn take(room: &mut u32, length: u32, distance: u32) -> u32 {
    let at = room.next_multiple_of(8) + distance;
    *room = at + length;
    at
}

/// The bytes of a message: its identifier, then what follows from it.
pub(super) fn pattern(seed: u64, id: u32, length: u32) -> Vec<u8> {
    let mut random = Random::stream(seed, "verbs storm data", id.into());
    let mut bytes = u64::from(id).to_le_bytes().to_vec();
    while bytes.len() < length as usize {
        bytes.extend(random.next_u64().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// The identifier of what peers read at one end of a link.
pub(super) fn static_id(link: usize, side: usize) -> u32 {
    0x8000_0000 | (link * 2 + side) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_program() {
        for seed in 0..50 {
            assert_eq!(format!("{:?}", Program::of(seed)), format!("{:?}", Program::of(seed)));
        }
        assert_ne!(format!("{:?}", Program::of(1)), format!("{:?}", Program::of(2)));
    }

    /// No two pieces of work have a byte in common, and all lie in their regions.
    #[test]
    fn work_has_places_of_its_own() {
        for seed in 0..200 {
            for link in &Program::of(seed).links {
                for side in 0..2 {
                    let own = link.ends[side].rounds.iter().flatten().flatten();
                    let peers = link.ends[1 - side].rounds.iter().flatten().flatten();
                    let mut places: Vec<_> = own.map(|work| (work.local, work.length)).collect();
                    places.extend(
                        peers.filter(|work| work.kind == Kind::Write).map(|work| (work.remote, work.length)),
                    );
                    places.sort_unstable();
                    for pair in places.windows(2) {
                        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "seed {seed}: {pair:?}");
                    }
                    assert!(places.iter().all(|(at, length)| at + length <= link.ends[side].room));
                }
            }
        }
    }

    #[test]
    fn all_kinds_occur() {
        let programs: Vec<_> = (0..300).map(Program::of).collect();
        let links = || programs.iter().flat_map(|program| &program.links);
        for transport in [Transport::Reliable, Transport::Unreliable, Transport::Datagram] {
            assert!(links().any(|link| link.transport == transport));
        }
        assert!(programs.iter().any(Program::kills) && programs.iter().any(|program| program.failures() > 0));
        assert!(links().any(|link| link.is_late) && links().any(|link| link.is_ordered(0)));
    }
}
