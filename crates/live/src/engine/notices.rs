//! Notices of rank machines as bytes: what ranks tell each other on the control channel when something is wrong.

use std::sync::Arc;

use railnet_coll::machine::{
    Answer, Failure, Layout, Mark, Notice, OperationId, Signature, Standing, Wait, WaitingFor,
};
use railnet_coll::{Algorithm, Call, Collective, Counts, Fifo, Peer, Protocol};
use railnet_core::{Bytes, DataType, Rank, ReduceOp, Scalar, Span, Time};

use crate::message::fields::{Reader, put_ranks, put_text};
use crate::message::{Malformed, NOTICE_MAX};

/// To all other ranks.
const EVERYBODY: u32 = u32::MAX;
/// The most waits that are described: more would not be read.
const WAITS: usize = 8;
/// Past operations in an answer.
const HISTORY: usize = 16;
/// The most members of a communicator that are listed.
const FEW: usize = 16;
/// The most bytes of a verdict as text.
const WORDS: usize = NOTICE_MAX - 512;

/// A notice with its communicator, sender and receiver.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) context: u64,
    pub(crate) to: Option<Rank>,
    pub(crate) from: Rank,
    /// The members of the communicator, if they are few: some may not have used it yet.
    pub(crate) members: Vec<u32>,
    pub(crate) notice: Notice,
}

impl Envelope {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = self.context.to_le_bytes().to_vec();
        out.extend(self.to.map_or(EVERYBODY, |rank| rank.0).to_le_bytes());
        out.extend(self.from.0.to_le_bytes());
        put_ranks(&mut out, if self.members.len() <= FEW { &self.members } else { &[] });
        match &self.notice {
            Notice::Ask(operation) => {
                out.push(0);
                out.extend(operation.0.to_le_bytes());
            }
            Notice::Answer(operation, answer) => {
                out.push(1);
                out.extend(operation.0.to_le_bytes());
                put_signature(&mut out, answer.signature.as_deref());
                put_standing(&mut out, &answer.standing);
                let history = &answer.history[answer.history.len().saturating_sub(HISTORY)..];
                out.extend((history.len() as u32).to_le_bytes());
                for mark in history {
                    out.extend(mark.0.to_le_bytes());
                }
            }
            Notice::Verdict(failure) => {
                out.push(2);
                let ranks: Vec<u32> = failure.culprits().iter().map(|rank| rank.0).collect();
                put_ranks(&mut out, &ranks[..ranks.len().min(FEW)]);
                put_ranks(&mut out, &failure.outsiders()[..failure.outsiders().len().min(FEW)]);
                put_text(&mut out, cut(&failure.to_string()));
            }
        }
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let context = reader.long("communicator")?;
        let to = reader.number("receiver")?;
        let from = Rank(reader.number("sender")?);
        let members = reader.list("members", |reader| reader.number("member"))?;
        let notice = match reader.byte("notice")? {
            0 => Notice::Ask(OperationId(reader.long("operation")?)),
            1 => {
                let operation = OperationId(reader.long("operation")?);
                let signature = signature(&mut reader)?;
                let standing = standing(&mut reader)?;
                let history = reader.list("history", |reader| Ok(Mark(reader.long("mark")?)))?;
                Notice::Answer(operation, Answer { signature, standing, history })
            }
            2 => {
                let ranks = reader.list("ranks", |reader| Ok(Rank(reader.number("rank")?)))?;
                let outsiders = reader.list("ranks", |reader| reader.number("rank"))?;
                let text = reader.text("verdict", NOTICE_MAX)?;
                Notice::Verdict(Arc::new(Failure::Told { by: from, ranks, outsiders, text }))
            }
            _ => return Err(Malformed::Field("notice")),
        };
        reader.finish()?;
        Ok(Self { context, to: (to != EVERYBODY).then_some(Rank(to)), from, members, notice })
    }
}

/// As much of a text as is sent.
pub(super) fn cut(text: &str) -> &str {
    let end = (0..=WORDS.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// All algorithms, those from files last.
fn algorithms() -> Vec<Algorithm> {
    Algorithm::BUILT.into_iter().chain([Algorithm::Custom]).collect()
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).unwrap_or(usize::from(u8::MAX)) as u8
}

fn pick<T: Copy>(all: &[T], number: u8, what: &'static str) -> Result<T, Malformed> {
    all.get(usize::from(number)).copied().ok_or(Malformed::Field(what))
}

/// Scalars differ between ranks: signatures have none.
fn operations(dtype: DataType) -> Vec<ReduceOp> {
    let scaled = ReduceOp::PreMulSum(Scalar::from_bits(dtype, 0));
    ReduceOp::PLAIN.into_iter().chain([scaled]).collect()
}

fn put_signature(out: &mut Vec<u8>, signature: Option<&Signature>) {
    let Some(Signature { operation, call, algorithm, channels, layout }) = signature else {
        out.push(0);
        return;
    };
    out.push(1);
    out.extend(operation.0.to_le_bytes());
    out.push(place(&Collective::ALL, &call.collective));
    out.push(place(&DataType::ALL, &call.dtype));
    let names: Vec<&str> = operations(call.dtype).into_iter().map(ReduceOp::name).collect();
    out.push(place(&names, &call.op.name()));
    let (kind, counts): (u8, &[u64]) = match &call.counts {
        Counts::Each(count) => (0, &[*count]),
        Counts::PerRank(counts) => (1, counts),
        Counts::PerPair(counts) => (2, counts),
    };
    out.push(kind);
    out.extend((counts.len() as u32).to_le_bytes());
    for count in counts {
        out.extend(count.to_le_bytes());
    }
    for number in [call.root.0, call.peer.0, *channels, layout.fifo.depth] {
        out.extend(number.to_le_bytes());
    }
    out.push(place(&algorithms(), algorithm));
    out.push(place(&Protocol::ALL, &layout.protocol));
    out.extend(layout.fifo.slot.0.to_le_bytes());
    out.extend(layout.fifo.slots_per_slice.to_le_bytes());
    out.extend(layout.fifo.slices_per_chunk.to_le_bytes());
}

fn signature(reader: &mut Reader<'_>) -> Result<Option<Arc<Signature>>, Malformed> {
    if reader.byte("signature")? == 0 {
        return Ok(None);
    }
    let operation = OperationId(reader.long("operation")?);
    let collective = pick(&Collective::ALL, reader.byte("collective")?, "collective")?;
    let dtype = pick(&DataType::ALL, reader.byte("type")?, "type")?;
    let op = pick(&operations(dtype), reader.byte("reduction")?, "reduction")?;
    let kind = reader.byte("counts")?;
    let list = reader.list("counts", |reader| reader.long("count"))?;
    let counts = match (kind, &list[..]) {
        (0, [count]) => Counts::Each(*count),
        (1, _) => Counts::PerRank(list.into()),
        (2, _) => Counts::PerPair(list.into()),
        _ => return Err(Malformed::Field("counts")),
    };
    let (root, peer) = (Rank(reader.number("root")?), Rank(reader.number("peer")?));
    let (channels, depth) = (reader.number("channels")?, reader.number("slots")?);
    let algorithm = pick(&algorithms(), reader.byte("algorithm")?, "algorithm")?;
    let protocol = pick(&Protocol::ALL, reader.byte("protocol")?, "protocol")?;
    let fifo = Fifo {
        slot: Bytes(reader.long("slot")?),
        depth,
        slots_per_slice: reader.number("slots")?,
        slices_per_chunk: reader.number("slices")?,
    };
    let call = Call { collective, counts, dtype, op, root, peer, in_place: false };
    let layout = Layout { protocol, fifo };
    Ok(Some(Arc::new(Signature { operation, call, algorithm, channels, layout })))
}

fn put_standing(out: &mut Vec<u8>, standing: &Standing) {
    match standing {
        Standing::NotEntered { last, ago, waits_elsewhere } => {
            out.push(0);
            put_signature(out, last.as_deref());
            out.extend(ago.as_ps().to_le_bytes());
            out.push(u8::from(*waits_elsewhere));
        }
        Standing::Entered { since, idle, waits } => {
            out.push(1);
            out.extend(since.as_ps().to_le_bytes());
            out.extend(idle.as_ps().to_le_bytes());
            put_waits(out, waits);
        }
        Standing::Finished => out.push(2),
        Standing::Behind { idle, waits } => {
            out.push(3);
            out.extend(idle.as_ps().to_le_bytes());
            put_waits(out, waits);
        }
    }
}

fn put_waits(out: &mut Vec<u8>, waits: &[Wait]) {
    let waits = &waits[..waits.len().min(WAITS)];
    out.extend((waits.len() as u32).to_le_bytes());
    for wait in waits {
        out.extend(wait.worker.to_le_bytes());
        out.extend(wait.step.to_le_bytes());
        let peer = |peer: &Peer| match peer {
            Peer::Rank(rank) => *rank,
            Peer::Switch(group) => *group,
        };
        let (kind, number, channel) = match &wait.what {
            WaitingFor::Data(from, channel) => (0, peer(from), *channel),
            WaitingFor::Room(at, channel) => (1, peer(at), *channel),
            WaitingFor::Worker(other) => (2, *other, 0),
            WaitingFor::Work => (3, 0, 0),
        };
        out.push(kind);
        out.extend(number.to_le_bytes());
        out.extend(u32::from(channel).to_le_bytes());
    }
}

fn waits(reader: &mut Reader<'_>) -> Result<Vec<Wait>, Malformed> {
    reader.list("waits", |reader| {
        let (worker, step) = (reader.number("worker")?, reader.long("step")?);
        let kind = reader.byte("wait")?;
        let (number, channel) = (reader.number("peer")?, reader.number("channel")? as u16);
        let what = match kind {
            0 => WaitingFor::Data(Peer::Rank(number), channel),
            1 => WaitingFor::Room(Peer::Rank(number), channel),
            2 => WaitingFor::Worker(number),
            3 => WaitingFor::Work,
            _ => return Err(Malformed::Field("wait")),
        };
        // The time is of another process's clock: of no use here.
        Ok(Wait { worker, step, what, since: Time::ZERO })
    })
}

fn standing(reader: &mut Reader<'_>) -> Result<Standing, Malformed> {
    Ok(match reader.byte("standing")? {
        0 => {
            let last = signature(reader)?;
            let ago = Span::from_ps(reader.long("time")?);
            let waits_elsewhere = match reader.byte("wait")? {
                0 => false,
                1 => true,
                _ => return Err(Malformed::Field("wait")),
            };
            Standing::NotEntered { last, ago, waits_elsewhere }
        }
        1 => {
            let since = Span::from_ps(reader.long("time")?);
            let idle = Span::from_ps(reader.long("time")?);
            Standing::Entered { since, idle, waits: waits(reader)? }
        }
        2 => Standing::Finished,
        3 => {
            let idle = Span::from_ps(reader.long("time")?);
            Standing::Behind { idle, waits: waits(reader)? }
        }
        _ => return Err(Malformed::Field("standing")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_coll::{Choice, Wiring, build};

    fn envelope(notice: Notice) -> Envelope {
        Envelope { context: 7, to: Some(Rank(2)), from: Rank(1), members: vec![4, 5, 6], notice }
    }

    fn some_signature() -> Arc<Signature> {
        let mut call = Call::new(Collective::AllToAll, 0);
        call.counts = Counts::PerPair((0..9).collect());
        call.dtype = DataType::Bf16;
        let choice = Choice::new(Algorithm::PointToPoint, Protocol::Simple);
        let schedule = build(&call, &choice, &Wiring::flat(3)).unwrap();
        Arc::new(Signature::new(OperationId(118), &schedule))
    }

    #[test]
    fn what_is_said_arrives_as_it_was() {
        let wait = Wait { worker: 3, step: 9, what: WaitingFor::Data(Peer::Rank(2), 1), since: Time::ZERO };
        let standings = [
            Standing::NotEntered {
                last: Some(some_signature()),
                ago: Span::from_secs(3),
                waits_elsewhere: true,
            },
            Standing::Entered { since: Span::from_secs(2), idle: Span::from_secs(1), waits: vec![wait] },
            Standing::Finished,
            Standing::Behind { idle: Span::from_secs(1), waits: vec![wait] },
        ];
        for standing in standings {
            let history = vec![Mark(7), Mark(9 << 40)];
            let answer = Answer { signature: Some(some_signature()), standing, history };
            let bytes = envelope(Notice::Answer(OperationId(118), answer.clone())).write();
            let Notice::Answer(operation, read) = Envelope::read(&bytes).unwrap().notice else { panic!() };
            assert_eq!(
                (operation, read.signature, read.standing, read.history),
                (OperationId(118), answer.signature, answer.standing, answer.history)
            );
            for length in 0..bytes.len() {
                assert!(Envelope::read(&bytes[..length]).is_err(), "cut after {length} bytes");
            }
        }
    }

    #[test]
    fn a_verdict_keeps_its_words_and_whose_fault_it_is() {
        let failure =
            Failure::Lost { rank: Rank(3), cause: "killed".to_owned(), during: Some(some_signature()) };
        let text = failure.to_string();
        let bytes = envelope(Notice::Verdict(Arc::new(failure))).write();
        let Notice::Verdict(read) = Envelope::read(&bytes).unwrap().notice else { panic!() };
        assert_eq!(read.to_string(), text);
        assert_eq!(text, "rank 3 is lost during AlltoAll #118: killed");
        assert_eq!(read.culprits(), [Rank(3)]);
    }
}
