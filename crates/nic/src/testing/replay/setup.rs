//! How the recorded responder was set up: from the connection messages, the notes, and what the packets give away.

use std::collections::BTreeMap;

use railnet_core::{Psn, QueuePairNumber};
use railnet_wire::{Extended, GRH_LENGTH, Gid, NakCode, Position, Syndrome, udp_source_port};

use super::ReplayError;
use super::freedom::{Freedom, Freedoms};
use super::notes::{End, Exerciser, Noted, Notes, Program, Side};
use super::recording::{Connection, Recorded, Recording, Spoken};
use crate::config::Mtu;
use crate::queue_pair::{Path, Service};
use crate::region::{Access, Key};

/// The most bytes that one region may have: captures are small, their addresses need not be.
const REGION_BYTES_MAX: u64 = 64 << 20;
/// The most key indices between the smallest and the largest key.
const KEYS_MAX: u64 = 1 << 16;
/// The halves of `rnx`'s region: data, then receives.
const HALF: u64 = 1 << 20;
/// Where receives go whose place nothing tells: below all addresses that programs have.
const SCRATCH_ADDRESS: u64 = 0x1000;

/// A memory region of the responder.
#[derive(Clone, Debug)]
pub(super) struct RegionSetup {
    pub(super) key: Option<Key>,
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) access: Access,
    /// What the program kept in it is known from the start.
    pub(super) is_known: bool,
}

/// When receives are posted, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Posting {
    /// So many at the start.
    Early(u32),
    /// So many at once, later.
    Late(u32),
    /// One whenever one is needed.
    AsNeeded,
}

/// What the notes say about the end.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// A serving `rnx` prints everything.
    Exerciser {
        completions: Vec<Noted>,
        addresses: Vec<[u8; GRH_LENGTH]>,
        state: u8,
        first_bytes: u64,
        /// Where its peer writes to, and how much.
        target: (u64, u32),
    },
    /// A pingpong tells how many messages went each way.
    Pingpong { messages: u32, length: u32 },
}

/// All that a NIC needs to stand in for the recorded responder.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) gid: Gid,
    pub(super) number: QueuePairNumber,
    pub(super) peer: QueuePairNumber,
    pub(super) service: Service,
    pub(super) expected: Psn,
    pub(super) mtu: Mtu,
    pub(super) path: Path,
    pub(super) access: Access,
    pub(super) reads: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) queue_key: u32,
    pub(super) is_shared: bool,
    pub(super) posting: Posting,
    /// Where receives go: region, address and bytes.
    pub(super) buffer: (usize, u64, u32),
    pub(super) regions: Vec<RegionSetup>,
    pub(super) ending: Option<Ending>,
    pub(super) freedoms: Freedoms,
}

/// What is known about a responder, from whichever source.
struct Sources<'a> {
    recording: &'a Recording,
    spoken: &'a Spoken,
    connection: Option<(&'a Connection, usize)>,
    side: Option<&'a Side>,
    end: Option<&'a End>,
    exerciser: Option<&'a Exerciser>,
}

impl<'a> Sources<'a> {
    fn requests(&self) -> impl Iterator<Item = &'a Recorded> + '_ {
        self.spoken.requests.iter().map(|&index| &self.recording.packets[index])
    }
}

impl Setup {
    pub(super) fn new(
        recording: &Recording,
        spoken: &Spoken,
        notes: Option<&Notes>,
    ) -> Result<Self, ReplayError> {
        let side = notes.and_then(|notes| notes.side_of(spoken.responder.to_ip(), spoken.number));
        let sources = Sources {
            recording,
            spoken,
            connection: recording.connection(spoken.responder, spoken.number),
            side,
            end: side.and_then(|side| side.end_of(spoken.number)),
            exerciser: side.and_then(|side| match &side.program {
                Program::Exerciser(exerciser) => Some(exerciser),
                _ => None,
            }),
        };
        let mut freedoms = Freedoms::default();
        let peer = peer(&sources, &mut freedoms);
        let answers: Vec<&Recorded> =
            recording.answers(spoken, peer).into_iter().map(|index| &recording.packets[index]).collect();
        let mut regions = Vec::new();
        let mut posting = Posting::AsNeeded;
        let mut place = None;
        if let (Some(exerciser), Some(end)) = (sources.exerciser, sources.end)
            && let (Some(key), Some(address)) = (end.key, end.address)
            && address.checked_add(2 * HALF).is_some()
        {
            regions.push(exerciser_region(exerciser, &sources, key, address));
            let grh = if spoken.service == Service::Datagram { GRH_LENGTH as u32 } else { 0 };
            let length = exerciser.receive_length.unwrap_or(exerciser.size.saturating_add(grh));
            place = Some((0, address + HALF, length));
            posting = if exerciser.posts_late {
                freedoms.add(Freedom::PostingTime);
                Posting::Late(exerciser.receives)
            } else {
                Posting::Early(exerciser.receives)
            };
        }
        learn_regions(&sources, &answers, &mut regions, &mut freedoms)?;
        let buffer = place.unwrap_or_else(|| scratch(&sources, &mut regions));
        let (access, reads) = match sources.exerciser {
            Some(exerciser) => (Access::from_bits(exerciser.access), exerciser.reads),
            None => (Access::ALL, reads(&sources)),
        };
        Ok(Self {
            gid: spoken.responder,
            number: spoken.number,
            peer,
            service: spoken.service,
            expected: expected(&sources, &mut freedoms),
            mtu: mtu(&sources, &answers, &mut freedoms),
            path: path(&sources, peer, &answers, &mut freedoms),
            access,
            // rxe keeps a power of two of them.
            reads: reads.checked_next_power_of_two().unwrap_or(128).min(128),
            min_rnr_timer: rnr_timer(&sources, &answers, &mut freedoms),
            queue_key: queue_key(&sources, &mut freedoms),
            is_shared: sources.exerciser.map_or_else(
                || side.is_some_and(|side| matches!(side.program, Program::Pingpong { shared: true, .. })),
                |exerciser| exerciser.shared,
            ),
            posting,
            buffer,
            regions,
            ending: ending(&sources),
            freedoms,
        })
    }

    /// The key indices that the NIC must have: those of the recorded keys, and one for itself.
    pub(super) fn key_range(&self) -> Result<std::ops::Range<u32>, ReplayError> {
        let indices = || self.regions.iter().filter_map(|region| Some(region.key?.0 >> 8));
        let (least, most) = (indices().min().unwrap_or(1), indices().max().unwrap_or(1));
        if u64::from(most - least) > KEYS_MAX {
            return Err(ReplayError::TooLarge {
                queue_pair: self.number,
                what: "a table of all key indices between the keys in use",
                asked: u64::from(most - least),
                limit: KEYS_MAX,
            });
        }
        Ok(least..most + 2)
    }
}

fn peer(sources: &Sources<'_>, freedoms: &mut Freedoms) -> QueuePairNumber {
    if let Some((connection, end)) = sources.connection {
        return connection.ends[1 - end].number;
    }
    if let Some(peer) = sources.end.and_then(|end| end.peer) {
        return peer;
    }
    if sources.spoken.service == Service::ReliableConnection {
        freedoms.add(Freedom::QueuePair);
    }
    sources.recording.guess_peer(sources.spoken)
}

fn expected(sources: &Sources<'_>, freedoms: &mut Freedoms) -> Psn {
    let told = sources
        .connection
        .map(|(connection, end)| connection.ends[end].expected)
        .or_else(|| sources.end.and_then(|end| end.expected));
    if let Some(psn) = told {
        return psn;
    }
    if sources.spoken.service != Service::Datagram {
        freedoms.add(Freedom::QueuePair);
    }
    let first = sources.requests().next();
    first.map_or(Psn::new(0), |packet| packet.headers.bth.psn)
}

fn mtu(sources: &Sources<'_>, answers: &[&Recorded], freedoms: &mut Freedoms) -> Mtu {
    let told = sources
        .connection
        .and_then(|(connection, _)| connection.mtu)
        .or_else(|| sources.side.and_then(|side| side.mtu));
    if let Some(mtu) = told {
        return mtu;
    }
    // A First or Middle packet is full. Where there is none any MTU does that is large enough.
    let full = sources
        .requests()
        .chain(answers.iter().copied())
        .find(|packet| matches!(packet.headers.bth.opcode.position(), Position::First | Position::Middle))
        .and_then(|packet| Mtu::from_bytes(packet.payload.len() as u32));
    if sources.spoken.service != Service::Datagram {
        freedoms.add(Freedom::QueuePair);
    }
    let largest = sources.requests().map(|packet| packet.payload.len()).max();
    full.unwrap_or_else(|| {
        let fits = |mtu: &Mtu| mtu.bytes() as usize >= largest.unwrap_or(0).max(1024);
        Mtu::ALL.into_iter().find(fits).unwrap_or(Mtu::Mtu4096)
    })
}

fn path(
    sources: &Sources<'_>,
    peer: QueuePairNumber,
    answers: &[&Recorded],
    freedoms: &mut Freedoms,
) -> Path {
    let first = answers.first().map(|packet| packet.network);
    let mut path = Path {
        source: 0,
        target: sources.spoken.requester,
        flow_label: 0,
        traffic_class: first.map_or(0, |network| network.traffic_class),
        hop_limit: first.map_or(64, |network| network.hop_limit),
    };
    if first.is_some() {
        freedoms.add(Freedom::Path);
    }
    if let Some((connection, _)) = sources.connection {
        (path.flow_label, path.traffic_class) = (connection.flow_label, connection.traffic_class);
    } else if let Some(exerciser) = sources.exerciser {
        (path.flow_label, path.traffic_class) = (exerciser.flow_label, exerciser.traffic_class);
    } else if let Some(network) = first
        && sources.side.is_none_or(|side| side.program == Program::Other)
        && network.source_port != udp_source_port(0, sources.spoken.number, peer)
    {
        // Nothing tells the flow label: one that gives this port will do. A label of 0 would mean that there is none.
        const FOLDS_TO_ZERO: u32 = 1 << 14 | 1;
        freedoms.add(Freedom::Path);
        path.flow_label = match u32::from(network.source_port) & 0x3fff {
            0 => FOLDS_TO_ZERO,
            label => label,
        };
    }
    path
}

fn reads(sources: &Sources<'_>) -> u8 {
    const USUAL: u8 = 16;
    let told = sources.connection.map(|(connection, end)| connection.ends[end].reads);
    told.or_else(|| sources.side.and_then(|side| side.reads)).unwrap_or(USUAL)
}

fn rnr_timer(sources: &Sources<'_>, answers: &[&Recorded], freedoms: &mut Freedoms) -> u8 {
    if let Some(exerciser) = sources.exerciser {
        return exerciser.min_rnr_timer;
    }
    let seen = answers.iter().find_map(|packet| match syndrome(packet) {
        Some(Syndrome::RnrNak { timer }) => Some(timer),
        _ => None,
    });
    if seen.is_some() {
        freedoms.add(Freedom::QueuePair);
    }
    seen.unwrap_or(12)
}

fn queue_key(sources: &Sources<'_>, freedoms: &mut Freedoms) -> u32 {
    const EXERCISER_KEY: u32 = 0x1111_1111;
    if sources.spoken.service != Service::Datagram {
        return 0;
    }
    if sources.exerciser.is_some() {
        return EXERCISER_KEY;
    }
    freedoms.add(Freedom::QueuePair);
    let keys = |packet: &Recorded| match packet.headers.extended {
        Extended::Deth(deth) | Extended::DethImmediate(deth, _) => Some(deth.queue_key),
        _ => None,
    };
    sources.requests().find_map(keys).unwrap_or(0)
}

/// `rnx` registers two halves: a pattern, and zeros that it receives into.
fn exerciser_region(exerciser: &Exerciser, sources: &Sources<'_>, key: u32, address: u64) -> RegionSetup {
    let is_client = sources.side.is_some_and(|side| side.is_client);
    let mut bytes = exerciser_pattern(is_client, HALF as usize);
    bytes.resize(2 * HALF as usize, 0);
    RegionSetup {
        key: Some(Key(key)),
        address,
        bytes,
        access: Access::from_bits(exerciser.access),
        is_known: true,
    }
}

/// The bytes that `rnx` fills its memory with, and therefore sends.
pub(super) fn exerciser_pattern(is_client: bool, length: usize) -> Vec<u8> {
    let offset = if is_client { 1 } else { 101 };
    (0..length).map(|at| (at as u8).wrapping_mul(7).wrapping_add(offset)).collect()
}

pub(super) fn syndrome(packet: &Recorded) -> Option<Syndrome> {
    match packet.headers.extended {
        Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) => Some(aeth.syndrome),
        _ => None,
    }
}

/// A key that requests used with success was registered, over all that they reached.
fn learn_regions(
    sources: &Sources<'_>,
    answers: &[&Recorded],
    regions: &mut Vec<RegionSetup>,
    freedoms: &mut Freedoms,
) -> Result<(), ReplayError> {
    let is_refused = |psn: Psn| {
        answers.iter().any(|answer| {
            answer.headers.bth.psn == psn
                && matches!(syndrome(answer), Some(Syndrome::Nak(code)) if code != NakCode::Sequence)
        })
    };
    let mut reached: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for packet in sources.requests() {
        let (key, address, length) = match packet.headers.extended {
            Extended::Reth(reth) | Extended::RethImmediate(reth, _) => {
                (reth.key, reth.address, u64::from(reth.length))
            }
            Extended::Atomic(atomic) => (atomic.key, atomic.address, 8),
            _ => continue,
        };
        let is_known = regions.iter().any(|region| region.key == Some(Key(key)));
        if is_known || length == 0 || is_refused(packet.headers.bth.psn) {
            continue;
        }
        let range = reached.entry(key).or_insert((address, address));
        *range = (range.0.min(address), range.1.max(address.saturating_add(length)));
    }
    for (key, (start, end)) in reached {
        if end - start > REGION_BYTES_MAX {
            return Err(ReplayError::TooLarge {
                queue_pair: sources.spoken.number,
                what: "a region of all that was reached under one key",
                asked: end - start,
                limit: REGION_BYTES_MAX,
            });
        }
        freedoms.add(Freedom::Region);
        regions.push(RegionSetup {
            key: Some(Key(key)),
            address: start,
            bytes: vec![0; (end - start) as usize],
            access: Access::ALL,
            is_known: false,
        });
    }
    Ok(())
}

/// A buffer that any of the messages fits into.
fn scratch(sources: &Sources<'_>, regions: &mut Vec<RegionSetup>) -> (usize, u64, u32) {
    let all: usize = sources.requests().map(|packet| packet.payload.len()).sum();
    let length = all + GRH_LENGTH;
    regions.push(RegionSetup {
        key: None,
        address: SCRATCH_ADDRESS,
        bytes: vec![0; length],
        access: Access::LOCAL_WRITE,
        is_known: true,
    });
    (regions.len() - 1, SCRATCH_ADDRESS, length as u32)
}

fn ending(sources: &Sources<'_>) -> Option<Ending> {
    let (side, end) = (sources.side?, sources.end?);
    match side.program {
        Program::Exerciser(exerciser) => {
            let (state, first_bytes) = side.end?;
            Some(Ending::Exerciser {
                completions: side.completions.clone(),
                addresses: side.addresses.clone(),
                state,
                first_bytes,
                target: (end.address?.checked_add(HALF / 2)?, exerciser.size),
            })
        }
        Program::Pingpong { shared: false, size } => {
            let grh = if sources.spoken.service == Service::Datagram { GRH_LENGTH as u32 } else { 0 };
            Some(Ending::Pingpong { messages: side.iterations?, length: size.saturating_add(grh) })
        }
        // Queue pairs that share receives share the messages too: how many each got is not told.
        _ => None,
    }
}
