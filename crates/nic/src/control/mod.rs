//! Congestion control: how fast a queue pair may send. One trait, one file each.

mod dcqcn;

use railnet_core::{Bytes, Rate, Span, Time};

pub use dcqcn::{Dcqcn, DcqcnParameters};

/// What an acknowledgement tells.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// Bytes that are acknowledged now and were not before, in full packets.
    pub bytes: Bytes,
    /// Time from sending to acknowledgement, where it was measured.
    pub round_trip: Option<Span>,
}

/// A congestion control algorithm as the sending side runs it. Parameters are shared by all queue pairs of a NIC and
/// handed in, so that the state of an idle one stays small.
pub trait CongestionControl {
    /// What can be set.
    type Parameters;

    /// The state of a queue pair that has not sent anything on a port of this rate.
    fn new(parameters: &Self::Parameters, line: Rate) -> Self;

    /// Bytes went to the wire.
    fn on_sent(&mut self, parameters: &Self::Parameters, now: Time, bytes: Bytes);

    /// Bytes were acknowledged.
    fn on_ack(&mut self, parameters: &Self::Parameters, now: Time, acknowledged: &Acknowledged);

    /// The receiver notified congestion.
    fn on_notification(&mut self, parameters: &Self::Parameters, now: Time);

    /// No acknowledgement came in time.
    fn on_timeout(&mut self, parameters: &Self::Parameters, now: Time);

    /// The algorithm's own clock: called at or after [`CongestionControl::next_timer`].
    fn handle_timer(&mut self, parameters: &Self::Parameters, now: Time);

    /// When the algorithm wants to be called; `NEVER` when it does not.
    fn next_timer(&self) -> Time;

    /// The sending rate, or `None` for as fast as the port goes.
    fn rate(&self) -> Option<Rate>;

    /// How many bytes may be in flight, or `None` for no limit.
    fn window(&self) -> Option<Bytes>;
}

/// Which algorithm, with its parameters.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ControlConfig {
    /// As fast as the port goes.
    None,
    /// DCQCN.
    Dcqcn(DcqcnParameters),
}

/// The state of one queue pair's algorithm: an enum rather than a box, because there are thousands.
#[derive(Clone, Debug)]
pub(crate) enum Controller {
    None,
    Dcqcn(Dcqcn),
}

/// Calls the algorithm with its parameters; `$else` stands for no control at all.
macro_rules! dispatch {
    ($self:ident, $config:ident, |$state:ident, $parameters:ident| $call:expr) => {
        match ($self, $config) {
            (Controller::Dcqcn($state), ControlConfig::Dcqcn($parameters)) => $call,
            _ => {}
        }
    };
}

impl Controller {
    pub(crate) fn new(config: &ControlConfig, line: Rate) -> Self {
        match config {
            ControlConfig::None => Self::None,
            ControlConfig::Dcqcn(parameters) => Self::Dcqcn(Dcqcn::new(parameters, line)),
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
    pub(crate) fn on_ack(&mut self, config: &ControlConfig, now: Time, acknowledged: &Acknowledged) {
        dispatch!(self, config, |state, parameters| state.on_ack(parameters, now, acknowledged));
    }

    pub(crate) fn on_notification(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.on_notification(parameters, now));
    }

    pub(crate) fn on_timeout(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.on_timeout(parameters, now));
    }

    pub(crate) fn handle_timer(&mut self, config: &ControlConfig, now: Time) {
        dispatch!(self, config, |state, parameters| state.handle_timer(parameters, now));
    }

    #[inline]
    pub(crate) fn next_timer(&self) -> Time {
        match self {
            Self::None => Time::NEVER,
            Self::Dcqcn(state) => state.next_timer(),
        }
    }

    #[inline]
    pub(crate) fn rate(&self) -> Option<Rate> {
        match self {
            Self::None => None,
            Self::Dcqcn(state) => state.rate(),
        }
    }

    #[inline]
    pub(crate) fn window(&self) -> Option<Bytes> {
        match self {
            Self::None => None,
            Self::Dcqcn(state) => state.window(),
        }
    }
}
