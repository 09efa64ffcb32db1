//! Extended lookahead: epochs that are longer than a link's delay.
//!
//! When no packet is under way, no NIC's timer is due and the application posts nothing between servers, no host group
//! reaches another through links. What is left is the application, and the time it needs at least to make one group act on
//! what another did is its lookahead bound ([`Network::partition_by_host`]). Until then each host group runs hundreds of
//! epochs alone.

use railnet_core::event::Sink;
use railnet_core::{Span, Time};

use crate::engine::scheduler::Scheduler;
use crate::network::Network;

/// What bounds the lookahead, besides links.
#[derive(Debug)]
pub(crate) struct Lookahead {
    /// The application needs this time at least to make a host group act on what another did.
    pub(crate) bound: Span,
    /// Traffic phases that have begun and not ended; none where the application does not announce them.
    traffic_phases: Option<u32>,
    /// No timer of a NIC is due before that.
    timers_from: Time,
}

impl Lookahead {
    pub(crate) const NONE: Self = Self { bound: Span::ZERO, traffic_phases: None, timers_from: Time::ZERO };

    /// Whether the application announces traffic phases.
    pub(crate) fn is_extended(&self) -> bool {
        self.traffic_phases.is_some()
    }

    /// A timer of a NIC was set.
    #[inline]
    pub(crate) fn note_timer(&mut self, at: Time) {
        self.timers_from = self.timers_from.min(at);
    }
}

impl Scheduler {
    /// The last moment of the epoch of `at`, or of the last epoch before the horizon of an extended lookahead.
    pub(crate) fn epoch_end(&self, at: Time, horizon: Option<Time>) -> Time {
        match (&self.epochs, horizon) {
            (None, _) => at,
            (Some(epochs), None) => epochs.end_of(at),
            (Some(epochs), Some(horizon)) => epochs.end_before(at, horizon),
        }
    }
}

impl<S: Sink> Network<S> {
    /// The last moment of the epoch of `at`, or of the last epoch before the horizon of an extended lookahead.
    pub fn epoch_end(&self, at: Time, horizon: Option<Time>) -> Time {
        self.scheduler.epoch_end(at, horizon)
    }

    /// The application announces traffic phases: it has NICs send something between [`Network::begin_traffic_phase`] and
    /// [`Network::end_traffic_phase`], and at no other time. Call it before the first event.
    pub fn enable_extended_lookahead(&mut self) {
        if let Some(epochs) = &mut self.scheduler.epochs {
            epochs.enable_extended_lookahead();
            self.scheduler.lookahead.traffic_phases = Some(0);
        }
    }

    /// From now on, the application may post to NICs.
    pub fn begin_traffic_phase(&mut self) {
        if let Some(phases) = &mut self.scheduler.lookahead.traffic_phases {
            *phases += 1;
        }
    }

    /// All work of one traffic phase was posted. It need not have completed.
    pub fn end_traffic_phase(&mut self) {
        if let Some(phases) = &mut self.scheduler.lookahead.traffic_phases {
            *phases = phases.saturating_sub(1);
        }
    }

    /// Until when no host group reaches another, from the next event at `at` on, where the application can make none act on
    /// another before `interaction`. `None` without extended lookahead: then an epoch is all there is.
    pub fn extended_lookahead(&mut self, at: Time, interaction: Time) -> Option<Time> {
        let has_messages =
            self.scheduler.partition.as_ref().is_some_and(|partition| partition.has_messages());
        if self.scheduler.lookahead.traffic_phases != Some(0)
            || self.fabric.packets.in_use() > 0
            || has_messages
        {
            return None;
        }
        let called = self.scheduler.calendar.next_time().unwrap_or(Time::NEVER);
        let until = interaction.min(called).max(at) + self.scheduler.lookahead.bound;
        if self.scheduler.lookahead.timers_from <= until {
            self.scheduler.lookahead.timers_from =
                self.endpoints.hosts.iter().map(|host| host.timer_at).min().unwrap_or(Time::NEVER);
        }
        Some(self.scheduler.lookahead.timers_from.min(until))
    }
}
