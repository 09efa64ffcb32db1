//! Lulls: times in which hosts have nothing to do with each other.
//!
//! Where nobody has anything to say and nothing is left of what was said, no island reaches another one by links. What is
//! left is the application, and that takes its time ([`Network::take_hosts_apart`]). So in a lull each island is taken through
//! many windows before the next one: what its GPUs do among themselves stays in the cache meanwhile.

use railnet_core::event::Sink;
use railnet_core::{Span, Time};

use crate::network::Network;

/// What is known about lulls.
#[derive(Debug)]
pub(crate) struct Lulls {
    /// How long it takes the application at least until what it hears of one island reaches another one.
    pub(crate) reaction: Span,
    /// Talks under way; none where the application does not tell.
    talks: Option<u32>,
    /// No timer of a NIC goes off before that.
    timers_from: Time,
}

impl Lulls {
    pub(crate) const NONE: Self = Self { reaction: Span::ZERO, talks: None, timers_from: Time::ZERO };

    /// The application tells when there are some.
    pub(crate) fn are_expected(&self) -> bool {
        self.talks.is_some()
    }

    /// A timer was set.
    #[inline]
    pub(crate) fn note_timer(&mut self, at: Time) {
        self.timers_from = self.timers_from.min(at);
    }
}

impl<S: Sink> Network<S> {
    /// The application will tell when it may have NICs send something: between [`Network::begin_talk`] and
    /// [`Network::end_talk`], and at no other time. Say so before anything happens.
    pub fn expect_lulls(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.expect_lulls();
            self.lulls.talks = Some(0);
        }
    }

    /// From now on, something may be posted to NICs.
    pub fn begin_talk(&mut self) {
        self.lulls.talks = self.lulls.talks.map(|talks| talks + 1);
    }

    /// All that belongs to one talk was posted. It need not have arrived.
    pub fn end_talk(&mut self) {
        self.lulls.talks = self.lulls.talks.map(|talks| talks.saturating_sub(1));
    }

    /// Until when no island reaches another one from `at` on, where something may happen then and the application will hear of
    /// nothing that could make it have one reach another before `heard`; none where one may at any time.
    pub fn lull_from(&mut self, at: Time, heard: Time) -> Option<Time> {
        let has_mail = self.share.as_ref().is_some_and(|share| share.has_mail());
        if self.lulls.talks != Some(0) || self.packets.in_use() > 0 || has_mail {
            return None;
        }
        let called = self.calendar.next_time().unwrap_or(Time::NEVER);
        let until = heard.min(called).max(at) + self.lulls.reaction;
        if self.lulls.timers_from <= until {
            self.lulls.timers_from = self.hosts.iter().map(|host| host.timer_at).min().unwrap_or(Time::NEVER);
        }
        Some(self.lulls.timers_from.min(until))
    }

    /// The last moment of the window in which `at` is, or of the last one that is over before the end of a lull.
    pub fn window_end(&self, at: Time, lull: Option<Time>) -> Time {
        match (&self.windows, lull) {
            (None, _) => at,
            (Some(windows), None) => windows.end_of(at),
            (Some(windows), Some(lull)) => windows.end_before(at, lull),
        }
    }
}
