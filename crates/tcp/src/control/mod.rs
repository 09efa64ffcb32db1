//! Congestion control: how many bytes may be on their way.

mod cubic;
mod dctcp;
mod reno;

use std::fmt::Debug;

use railnet_core::{Span, Time};

pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use reno::Reno;

/// The algorithms there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ControlKind {
    /// RFC 5681.
    Reno,
    /// RFC 9438, the default of Linux.
    #[default]
    Cubic,
    /// RFC 8257; it needs ECN.
    Dctcp,
}

impl ControlKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Reno, Self::Cubic, Self::Dctcp];

    /// The algorithm, for segments of this size and a first window of so many.
    pub(crate) fn start(self, segment_size: u64, segments: u32) -> Box<dyn CongestionControl> {
        let first = segment_size * u64::from(segments);
        match self {
            Self::Reno => Box::new(Reno::new(segment_size, first)),
            Self::Cubic => Box::new(Cubic::new(segment_size, first)),
            Self::Dctcp => Box::new(Dctcp::new(segment_size, first)),
        }
    }

    /// Its name, as Linux has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
            Self::Dctcp => "dctcp",
        }
    }
}

/// An acknowledgement of new data.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When.
    pub now: Time,
    /// Bytes that it acknowledged.
    pub bytes: u64,
    /// It says that congestion was met.
    pub is_marked: bool,
    /// All up to this position is acknowledged, and this is the next that will be sent.
    pub positions: (u64, u64),
    /// The smoothed round trip.
    pub round_trip: Option<Span>,
    /// The window was what held the sender back; otherwise it need not grow.
    pub is_limited: bool,
}

/// How many bytes a connection may have on their way.
pub trait CongestionControl: Debug + Send {
    /// The window.
    fn window(&self) -> u64;

    /// New data was acknowledged.
    fn on_ack(&mut self, acked: &Acked);

    /// A segment is lost, or switches said so with ECN: once for each window of data. So many bytes were on their way.
    fn on_congestion(&mut self, now: Time, in_flight: u64);

    /// The retransmission timer ran out.
    fn on_timeout(&mut self, now: Time, in_flight: u64);

    /// Whether it reads marks itself, and wants each told exactly (RFC 8257, 3.2).
    fn counts_marks(&self) -> bool {
        false
    }
}

/// The window and the threshold up to which it doubles each round trip: what all algorithms here have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) segment_size: u64,
    pub(crate) bytes: u64,
    pub(crate) threshold: u64,
}

impl Window {
    fn new(segment_size: u64, first: u64) -> Self {
        Self { segment_size, bytes: first, threshold: u64::MAX }
    }

    /// Slow start: grows by what was acknowledged (RFC 3465), up to the threshold. Returns what is left of it for congestion avoidance;
    /// nothing where the window is not what holds the sender back.
    fn slow_start(&mut self, acked: &Acked) -> u64 {
        if !acked.is_limited {
            return 0;
        }
        let grown = acked.bytes.min(self.threshold.saturating_sub(self.bytes));
        self.bytes += grown;
        acked.bytes - grown
    }

    /// Falls to a part of itself, and the threshold with it.
    fn reduce(&mut self, to: u64) {
        self.threshold = to.max(2 * self.segment_size);
        self.bytes = self.threshold;
    }

    /// A timeout: one segment, and slow start up to a part of what was.
    fn collapse(&mut self, to: u64) {
        self.threshold = to.max(2 * self.segment_size);
        self.bytes = self.segment_size;
    }
}
