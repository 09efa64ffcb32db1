//! The one vocabulary of what happens in a run.
//!
//! Each event is defined once, here, and carries identity: which component, which queue pair, which packet, which work
//! request. Statistics, captures, traces, the page, tests and the digest are [`Sink`]s of this stream. A sink is a type
//! parameter: with [`NoSink`] the compiler removes every trace of it.

use crate::id::{Component, Label, Port, QueuePairNumber};
use crate::psn::Psn;
use crate::time::Time;
use crate::units::Rate;

/// Which packet: the queue pair that sent it, its sequence number, and the how-manieth transmission of it this was.
///
/// Responses carry the sequence numbers of the requests they answer; the opcode tells the two spaces apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketId {
    /// The queue pair that sent it.
    pub queue_pair: QueuePairNumber,
    /// Its sequence number.
    pub psn: Psn,
    /// 0 for the first transmission, then counting.
    pub transmission: u16,
    /// The opcode byte of its base transport header.
    pub opcode: u8,
}

/// A packet on its way through a fabric: whose it is, and which. Two NICs may use the same queue pair numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentPacket {
    /// The NIC that sent it.
    pub sender: Component,
    /// Which of its packets it is.
    pub packet: PacketId,
}

/// A check that a NIC makes before it acts on a packet or a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// The queue pair exists, is in a state to receive, and belongs to the sender.
    QueuePair,
    /// The sequence number is the expected one.
    Sequence,
    /// First, middle and last packets come in an order that makes a message.
    OpcodeOrder,
    /// The queue pair allows this kind of access.
    QueuePairAccess,
    /// A receive is posted, or a responder resource is free.
    Resources,
    /// The length is what the headers and the buffer allow.
    Length,
    /// The key is valid here, of the right protection domain.
    Key,
    /// The region or window grants this kind of access.
    Permission,
    /// Every byte lies inside the region or window.
    Range,
    /// The address is aligned as atomics need it.
    Alignment,
}

/// Why a requester goes back and sends again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryReason {
    /// No acknowledgement in time.
    Timeout,
    /// The responder asked for a sequence number.
    SequenceNak,
    /// A later answer shows that a READ or atomic response was lost.
    ResponseLost,
    /// The responder had no receive posted; its wait is over.
    ReceiverNotReady,
    /// Packets that were sent later have arrived and this one has not: it alone is sent again.
    Missing,
}

/// Why a switch threw a packet away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwitchDropReason {
    /// Its share of the memory was full, and so was the headroom.
    NoMemory,
    /// No path leads to its target.
    NoRoute,
}

impl SwitchDropReason {
    /// The reason in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoMemory => "no memory",
            Self::NoRoute => "no route",
        }
    }
}

/// Something that happened. Lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The application handed a work request to a send queue.
    WorkPosted {
        /// The queue it was posted to.
        queue_pair: QueuePairNumber,
        /// The application's name for it.
        work: u64,
        /// Bytes of the message.
        length: u32,
        /// What its packets will be labelled.
        label: Label,
    },
    /// The application handed a buffer to a receive queue.
    ReceivePosted {
        /// The queue pair, or `None` for a shared receive queue.
        queue_pair: Option<QueuePairNumber>,
        /// The application's name for it.
        work: u64,
        /// Bytes it can take.
        length: u32,
    },
    /// The NIC began to execute a work request.
    WorkStarted {
        /// Its queue pair.
        queue_pair: QueuePairNumber,
        /// The application's name for it.
        work: u64,
        /// The sequence number of its first packet.
        first: Psn,
        /// How many sequence numbers it takes.
        packets: u32,
    },
    /// A packet left the NIC.
    PacketSent {
        /// The packet.
        packet: PacketId,
        /// The queue pair it goes to.
        target: QueuePairNumber,
        /// Bytes of payload.
        length: u32,
        /// Hash of its headers, length and ghost tag: what the run digest is made of.
        fingerprint: u64,
        /// The label of the work request it belongs to.
        label: Label,
    },
    /// The packet that was just sent carries a verdict on requests of the other side.
    Answered {
        /// The syndrome of its acknowledgement header, as it is on the wire: credits, or why not.
        syndrome: u8,
        /// How many messages this side has completed, in 24 bits.
        messages: u32,
    },
    /// A packet arrived at its NIC and was not dropped at the door.
    PacketReceived {
        /// The queue pair it is for.
        queue_pair: QueuePairNumber,
        /// Its sequence number.
        psn: Psn,
        /// Its opcode byte.
        opcode: u8,
        /// Bytes of payload.
        length: u32,
    },
    /// A NIC threw a packet away.
    PacketDropped {
        /// The queue pair in its header.
        queue_pair: QueuePairNumber,
        /// Its sequence number.
        psn: Psn,
        /// Its opcode byte.
        opcode: u8,
        /// Why, in words.
        reason: &'static str,
    },
    /// A check was made.
    Checked {
        /// On which queue pair.
        queue_pair: QueuePairNumber,
        /// For which packet.
        psn: Psn,
        /// What was checked.
        check: Check,
        /// What came of it.
        passed: bool,
    },
    /// Payload of a packet was read from memory.
    DataGathered {
        /// By which queue pair.
        queue_pair: QueuePairNumber,
        /// For which packet.
        psn: Psn,
        /// Where the first byte of it was.
        address: u64,
        /// How many bytes.
        length: u32,
    },
    /// Payload was written to memory.
    DataPlaced {
        /// By which queue pair.
        queue_pair: QueuePairNumber,
        /// From which packet.
        psn: Psn,
        /// Where the payload begins in memory.
        address: u64,
        /// How many bytes.
        length: u32,
    },
    /// A completion was put on a completion queue.
    Completed {
        /// The queue pair whose work it was.
        queue_pair: QueuePairNumber,
        /// The completion queue.
        queue: u32,
        /// The application's name for the work.
        work: u64,
        /// The verbs status number; 0 is success.
        status: u8,
    },
    /// A queue pair changed its state; the numbers are those of the verbs interface.
    StateChanged {
        /// The queue pair that changed.
        queue_pair: QueuePairNumber,
        /// The old state.
        from: u8,
        /// The new one.
        to: u8,
    },
    /// A requester was told that the target has no receive posted: it waits.
    ReceiverWait {
        /// The queue pair that waits.
        queue_pair: QueuePairNumber,
        /// The sequence number that found no receive.
        psn: Psn,
        /// When it will try again.
        until: Time,
    },
    /// A requester goes back to send again.
    Retransmitting {
        /// The queue pair that goes back.
        queue_pair: QueuePairNumber,
        /// From which sequence number on.
        from: Psn,
        /// What made it go back.
        reason: RetryReason,
    },
    /// Congestion control set another sending rate.
    RateChanged {
        /// Of which queue pair.
        queue_pair: QueuePairNumber,
        /// The new rate.
        rate: Rate,
    },
    /// A packet began to leave by a port: of the NIC that sent it, or of a switch on its way.
    PacketStarted {
        /// Which; `None` for a pause frame.
        packet: Option<SentPacket>,
        /// The port it leaves by.
        port: Port,
        /// Bytes on the wire, all framing counted.
        bytes: u32,
        /// Bytes that wait behind it there.
        waiting: u64,
    },
    /// A switch marked a packet as having met congestion: the queue that it joined was long.
    Marked {
        /// The packet that was marked.
        packet: SentPacket,
        /// The port it will leave by.
        port: Port,
        /// Bytes that waited there before it.
        depth: u64,
    },
    /// A switch threw a packet away.
    DroppedBySwitch {
        /// The packet that was dropped.
        packet: SentPacket,
        /// The port it came in by.
        port: Port,
        /// Bytes on the wire, all framing counted.
        bytes: u32,
        /// Why the switch dropped it.
        reason: SwitchDropReason,
    },
    /// A packet was lost on the link behind a port.
    PacketLost {
        /// Which; `None` for a pause frame.
        packet: Option<SentPacket>,
        /// The port it had left by.
        port: Port,
        /// Bytes on the wire, all framing counted.
        bytes: u32,
    },
    /// A bit of a packet was flipped on the link behind a port.
    PacketCorrupted {
        /// Which; `None` for a pause frame, which its receiver throws away.
        packet: Option<SentPacket>,
        /// The port it had left by.
        port: Port,
    },
    /// The other end of a link told this one to stop sending packets of a priority.
    Paused {
        /// The port that stops.
        port: Port,
        /// Of which priority.
        priority: u8,
    },
    /// A port may send packets of a priority again: it was told so, or the pause ran out.
    Resumed {
        /// The port that goes on.
        port: Port,
        /// With which priority.
        priority: u8,
    },
    /// A port has packets of a priority, and no credit for them: the other end of its link has no room.
    CreditAwaited {
        /// The port that waits.
        port: Port,
        /// Of which priority.
        priority: u8,
    },
    /// A port that waited has credit again, or nothing to send any more.
    CreditFound {
        /// The port that goes on.
        port: Port,
        /// With which priority.
        priority: u8,
    },
    /// A link stopped carrying anything.
    LinkDown {
        /// Which, by its number in the fabric.
        link: u32,
    },
    /// A link works again.
    LinkUp {
        /// Which, by its number in the fabric.
        link: u32,
    },
    /// Switches learned which links work, and route accordingly.
    Rerouted {
        /// Links that do not.
        dead: u32,
    },
    /// A rank made a call that others make too.
    CallMade {
        /// Which call of whom.
        call: CallId,
        /// What is called, such as AllReduce.
        name: &'static str,
        /// By which algorithm.
        algorithm: &'static str,
        /// By which protocol.
        protocol: &'static str,
        /// Bytes of its largest buffer.
        bytes: u64,
    },
    /// The call of a rank is over.
    CallOver {
        /// Which call of whom.
        call: CallId,
    },
    /// A rank put a slice of a chunk on its way.
    SliceSent {
        /// On what way.
        way: SliceWay,
        /// Which slice of which call: what the packets that carry it are labelled.
        label: Label,
        /// How much of it there is.
        bytes: u32,
        /// Whether NICs carry it; NVLink or host memory does otherwise.
        by_nic: bool,
    },
    /// The next slice on its way was seen by the rank that it was for.
    SliceArrived {
        /// On what way.
        way: SliceWay,
    },
}

/// Which call of which rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallId {
    /// The communicator, by its place among those of the run.
    pub communicator: u32,
    /// The rank in it.
    pub rank: u32,
    /// The GPU or port that the rank has.
    pub endpoint: u32,
    /// How many calls it made before, in this communicator.
    pub sequence: u64,
}

/// One direction of a connection between two ranks: slices on it arrive in the order in which they were sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SliceWay {
    /// The communicator, by its place among those of the run.
    pub communicator: u32,
    /// The channel.
    pub channel: u16,
    /// Which of several connections for the same channel.
    pub lane: u8,
    /// The sender in the communicator; nobody where a switch sends what it reduced.
    pub from: Option<u32>,
    /// The receiver in the communicator; nobody where a switch reduces.
    pub to: Option<u32>,
}

impl Event {
    /// Whether this is a step inside a NIC, of a packet through the fabric or of a collective, that follows from the events around
    /// it.
    pub const fn is_detail(&self) -> bool {
        matches!(
            self,
            Self::Checked { .. }
                | Self::Answered { .. }
                | Self::DataPlaced { .. }
                | Self::DataGathered { .. }
                | Self::PacketStarted { .. }
                | Self::CreditAwaited { .. }
                | Self::CreditFound { .. }
                | Self::CallMade { .. }
                | Self::CallOver { .. }
                | Self::SliceSent { .. }
                | Self::SliceArrived { .. }
        )
    }
}

/// Something that takes events in.
pub trait Sink: Send {
    /// Whether events need to be made at all. Code that builds them sits behind this constant.
    const ENABLED: bool = true;

    /// Whether small steps are wanted too ([`Event::is_detail`]): there are many for each packet.
    const DETAIL: bool = true;

    /// Whether events of different components must come in the order of time. Those of one component always do.
    const IN_ORDER: bool = true;

    /// Take in what happened at `at` in `source`.
    fn record(&mut self, at: Time, source: Component, event: &Event);

    /// One more of its kind, for another thread on which some components are; none where one has to see all of them.
    fn fork(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// The sink of those who do not watch: costs nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoSink;

impl Sink for NoSink {
    const ENABLED: bool = false;
    const DETAIL: bool = false;
    const IN_ORDER: bool = false;

    fn record(&mut self, _at: Time, _source: Component, _event: &Event) {}

    fn fork(&self) -> Option<Self> {
        Some(Self)
    }
}

impl<S: Sink> Sink for &mut S {
    const ENABLED: bool = S::ENABLED;
    const DETAIL: bool = S::DETAIL;
    const IN_ORDER: bool = S::IN_ORDER;

    fn record(&mut self, at: Time, source: Component, event: &Event) {
        (**self).record(at, source, event);
    }
}

/// Both sinks see everything, the first one first.
impl<A: Sink, B: Sink> Sink for (A, B) {
    const ENABLED: bool = A::ENABLED || B::ENABLED;
    const DETAIL: bool = A::DETAIL || B::DETAIL;
    const IN_ORDER: bool = A::IN_ORDER || B::IN_ORDER;

    fn record(&mut self, at: Time, source: Component, event: &Event) {
        self.0.record(at, source, event);
        self.1.record(at, source, event);
    }
}

/// Keeps everything, for tests and short runs.
impl Sink for Vec<(Time, Component, Event)> {
    fn record(&mut self, at: Time, source: Component, event: &Event) {
        self.push((at, source, *event));
    }
}
