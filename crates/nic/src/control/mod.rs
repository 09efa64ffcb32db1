//! Congestion control: how fast a queue pair may send. One trait, one file each.

mod dcqcn;
mod dctcp;
mod hpcc;
mod samples;
mod swift;
mod timely;

use railnet_core::{Bytes, Psn, Rate, Span, Time};
use railnet_wire::{CongestionEcho, Telemetry};

pub use dcqcn::{Dcqcn, DcqcnParameters};
pub use dctcp::{Dctcp, DctcpParameters};
pub use hpcc::{Hpcc, HpccParameters};
pub use swift::{Swift, SwiftParameters};
pub use timely::{Timely, TimelyParameters};

pub(crate) use samples::Samples;

use crate::config::Mtu;

/// What an acknowledgement tells.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged<'a> {
    /// Bytes that are acknowledged now and were not before, in full packets.
    pub bytes: Bytes,
    /// Time from sending to acknowledgement, where it was measured: on a packet that asked for it and was sent once
    /// (Karn's rule), on a few packets in each round trip.
    pub round_trip: Option<Span>,
    /// Routers that the acknowledgement passed, taking the peer to start with the same hop limit.
    pub hops: u8,
    /// The oldest sequence number that is not acknowledged now.
    pub unacked: Psn,
    /// One past the newest sequence number that was sent.
    pub sent: Psn,
    /// What the switches wrote into the newest packet that the peer received, where the peer tells it.
    pub telemetry: Option<&'a Telemetry>,
    /// How many packets reached the peer with a mark, where the peer tells it.
    pub congestion: Option<CongestionEcho>,
}

impl Acknowledged<'_> {
    /// An acknowledgement that tells nothing.
    pub const NOTHING: Self = Self {
        bytes: Bytes::ZERO,
        round_trip: None,
        hops: 0,
        unacked: Psn::new(0),
        sent: Psn::new(0),
        telemetry: None,
        congestion: None,
    };
}

/// A congestion control algorithm as the sending side runs it. Parameters are shared by all queue pairs of a NIC and
/// handed in, so that the state of an idle one stays small.
pub trait CongestionControl {
    /// What can be set.
    type Parameters;

    /// The state of a queue pair that has not sent anything on a port of this rate; `mtu` is the payload of a full
    /// packet.
    fn new(parameters: &Self::Parameters, line: Rate, mtu: Bytes) -> Self;

    /// Bytes went to the wire.
    fn on_sent(&mut self, parameters: &Self::Parameters, now: Time, bytes: Bytes);

    /// Bytes were acknowledged.
    fn on_ack(&mut self, parameters: &Self::Parameters, now: Time, acknowledged: &Acknowledged<'_>);

    /// The receiver notified congestion.
    fn on_notification(&mut self, parameters: &Self::Parameters, now: Time);

    /// No acknowledgement came in time.
    fn on_timeout(&mut self, parameters: &Self::Parameters, now: Time);

    /// The answers show that a packet was lost. Told once for each time of going back.
    fn on_loss(&mut self, _parameters: &Self::Parameters, _now: Time) {}

    /// The algorithm's own clock: called at or after [`CongestionControl::next_timer`].
    fn handle_timer(&mut self, parameters: &Self::Parameters, now: Time);

    /// When the algorithm wants to be called; `NEVER` when it does not.
    fn next_timer(&self) -> Time;

    /// The sending rate, or `None` for as fast as the port goes.
    fn rate(&self) -> Option<Rate>;

    /// How many bytes may be in flight, or `None` for no limit.
    fn window(&self) -> Option<Bytes>;

    /// After how many packets at the latest one must ask for an acknowledgement, or `None` for as the NIC likes it.
    #[inline]
    fn ack_interval(&self) -> Option<u16> {
        None
    }

    /// Whether round trips are worth measuring.
    #[inline]
    fn wants_round_trips(&self) -> bool {
        self.ack_interval().is_some()
    }
}

/// Which algorithm, with its parameters.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ControlConfig {
    /// As fast as the port goes.
    None,
    /// DCQCN.
    Dcqcn(DcqcnParameters),
    /// TIMELY.
    Timely(TimelyParameters),
    /// Swift.
    Swift(SwiftParameters),
    /// HPCC, for which switches must write telemetry, and both ends must be Railnet's.
    Hpcc(HpccParameters),
    /// DCTCP, for which both ends must be Railnet's.
    Dctcp(DctcpParameters),
}

impl ControlConfig {
    /// Whether a receiver counts the marks of what comes, to tell them with its acknowledgements.
    #[inline]
    pub(crate) fn counts_marks(&self) -> bool {
        matches!(self, Self::Dctcp(_))
    }
}

/// The state of one queue pair's algorithm: an enum rather than a box, because there are thousands. Which it is stands in
/// a byte of its own: every packet asks several times, and a tag hidden among the values of a field takes time to find.
#[derive(Clone, Debug)]
#[repr(u8)]
pub(crate) enum Controller {
    None,
    Dcqcn(Dcqcn),
    Timely(Timely),
    Swift(Swift),
    Hpcc(Hpcc),
    Dctcp(Dctcp),
}

/// Calls the algorithm with its parameters.
macro_rules! dispatch {
    ($self:ident, $config:ident, |$state:ident, $parameters:ident| $call:expr) => {
        match ($self, $config) {
            (Controller::Dcqcn($state), ControlConfig::Dcqcn($parameters)) => $call,
            (Controller::Timely($state), ControlConfig::Timely($parameters)) => $call,
            (Controller::Swift($state), ControlConfig::Swift($parameters)) => $call,
            (Controller::Hpcc($state), ControlConfig::Hpcc($parameters)) => $call,
            (Controller::Dctcp($state), ControlConfig::Dctcp($parameters)) => $call,
            _ => {}
        }
    };
}

/// Asks the algorithm; without one the answer is `$none`.
macro_rules! ask {
    ($self:ident, $none:expr, |$state:ident| $call:expr) => {
        match $self {
            Controller::None => $none,
            Controller::Dcqcn($state) => $call,
            Controller::Timely($state) => $call,
            Controller::Swift($state) => $call,
            Controller::Hpcc($state) => $call,
            Controller::Dctcp($state) => $call,
        }
    };
}

impl Controller {
    pub(crate) fn new(config: &ControlConfig, line: Rate, mtu: Mtu) -> Self {
        let mtu = Bytes(u64::from(mtu.bytes()));
        match config {
            ControlConfig::None => Self::None,
            ControlConfig::Dcqcn(parameters) => Self::Dcqcn(Dcqcn::new(parameters, line, mtu)),
            ControlConfig::Timely(parameters) => Self::Timely(Timely::new(parameters, line, mtu)),
            ControlConfig::Swift(parameters) => Self::Swift(Swift::new(parameters, line, mtu)),
            ControlConfig::Hpcc(parameters) => Self::Hpcc(Hpcc::new(parameters, line, mtu)),
            ControlConfig::Dctcp(parameters) => Self::Dctcp(Dctcp::new(parameters, line, mtu)),
        }
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    #[inline]
    pub(crate) fn on_sent(&mut self, config: &ControlConfig, now: Time, bytes: Bytes) {
        dispatch!(self, config, |state, parameters| state.on_sent(parameters, now, bytes));
    }

    #[inline]
    pub(crate) fn on_ack(&mut self, config: &ControlConfig, now: Time, acknowledged: &Acknowledged<'_>) {
        dispatch!(self, config, |state, parameters| state.on_ack(parameters, now, acknowledged));
    }

    pub(crate) fn on_notification(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.on_notification(parameters, now));
    }

    pub(crate) fn on_timeout(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.on_timeout(parameters, now));
    }

    pub(crate) fn on_loss(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.on_loss(parameters, now));
    }

    pub(crate) fn handle_timer(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.handle_timer(parameters, now));
    }

    #[inline]
    pub(crate) fn next_timer(&self) -> Time {
        ask!(self, Time::NEVER, |state| state.next_timer())
    }

    #[inline]
    pub(crate) fn rate(&self) -> Option<Rate> {
        ask!(self, None, |state| state.rate())
    }

    #[inline]
    pub(crate) fn window(&self) -> Option<Bytes> {
        ask!(self, None, |state| state.window())
    }

    #[inline]
    pub(crate) fn ack_interval(&self) -> Option<u16> {
        ask!(self, None, |state| state.ack_interval())
    }
    #[inline]
    pub(crate) fn wants_round_trips(&self) -> bool {
        ask!(self, false, |state| state.wants_round_trips())
    }

    /// Whether data packets shall have room for what switches write.
    #[inline]
    pub(crate) fn wants_telemetry(&self) -> bool {
        matches!(self, Self::Hpcc(_))
    }
}
