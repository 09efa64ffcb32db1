//! What is said of a connection: its state, why it ended, what is due, and what it sent.

use railnet_wire::Tcp;

/// The states of RFC 9293, 3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are the names of the specification")]
pub enum State {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// Why a connection is no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The peer sent RST.
    Reset,
    /// Nothing was acknowledged in all of the timeouts.
    TimedOut,
}

/// What a deadline is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TimeoutReason {
    /// What was sent is not acknowledged.
    Retransmission,
    /// An acknowledgement has waited long enough.
    DelayedAck,
    /// The peer's window is closed, and it may have opened it unheard.
    Probe,
    /// The connection may be forgotten.
    TimeWait,
}

/// A segment on its way, and the ECN bits of its IP header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its header.
    pub tcp: Tcp,
    /// Its data.
    pub payload: Vec<u8>,
    /// 0 not capable, 2 capable, 3 congestion experienced.
    pub ecn: u8,
    /// It was sent before.
    pub is_again: bool,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Segments sent.
    pub segments: u64,
    /// Of those, sent again.
    pub resent: u64,
    /// Acknowledgements without data.
    pub acks: u64,
    /// Times that loss recovery began from acknowledgements.
    pub recoveries: u64,
    /// Times that the retransmission timer ran out.
    pub timeouts: u64,
    /// Segments that came with a congestion mark.
    pub marked: u64,
}
