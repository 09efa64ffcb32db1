//! The application: what runs on the hosts, and how it is notified.

use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_nic::Completion;

use crate::model::aggregation::{Group, Notification, ReductionFailure};
use crate::network::Network;

/// What runs on the hosts. The network notifies it, and it posts work to the NICs.
pub trait Application<S> {
    /// Work of a host completed.
    fn completed(&mut self, network: &mut Network<S>, host: u32, completion: &Completion);

    /// A call that was scheduled with [`Network::call_at`] is due.
    fn called(&mut self, network: &mut Network<S>, token: u32);

    /// A slice sent with [`Network::carry`] has arrived. Applications without buses never hear of one.
    fn carried(&mut self, _network: &mut Network<S>, _token: u32) {}

    /// A packet wrote to bytes that are watched ([`railnet_nic::memory::Segments::watch`], on [`Network::memory`]). It is
    /// notified before the completions of the same packet.
    fn touched(&mut self, _network: &mut Network<S>, _token: u64) {}

    /// The result of a contribution ([`Network::contribute`]) has reached the member; or, where the member gets none, its
    /// contribution has been used.
    fn reduced(&mut self, _network: &mut Network<S>, _group: Group, _member: u32, _token: u64) {}

    /// The earliest time at which it may hear of something that makes one host group act on another, unless it is called:
    /// see [`Network::enable_extended_lookahead`].
    fn earliest_interaction(&self) -> Time {
        Time::ZERO
    }

    /// Whether the run may end: then [`Network::run`] returns as soon as it can, with hosts and switches at different times.
    /// Nothing can be run after that.
    fn is_stopped(&self) -> bool {
        false
    }

    /// A group has failed and will have no result. It is notified once; only releasing the group is left to do.
    fn reduction_failed(&mut self, _network: &mut Network<S>, _group: Group, _failure: &ReductionFailure) {}
}

impl<S: Sink> Network<S> {
    /// Notifies the application: of watched bytes that were written, then of completions.
    #[inline]
    pub(crate) fn notify(&mut self, application: &mut impl Application<S>) {
        if self.endpoints.has_notifications {
            self.notify_all(application);
        }
    }

    fn notify_all(&mut self, application: &mut impl Application<S>) {
        self.endpoints.has_notifications = false;
        while !self.endpoints.ready.is_empty()
            || self.memory.is_touched()
            || !self.endpoints.reducing.is_empty()
        {
            while let Some(token) = self.memory.take_touched() {
                application.touched(self, token);
            }
            if let Some(host) = self.endpoints.ready.pop() {
                self.notify_completions(application, host);
            }
            if let Some(host) = self.endpoints.reducing.pop() {
                self.reduce(host);
                self.notify_results(application);
            }
        }
    }

    fn notify_results(&mut self, application: &mut impl Application<S>) {
        while let Some(notification) =
            self.aggregation.as_mut().and_then(|groups| groups.notifications.pop_front())
        {
            match notification {
                Notification::Reduced { group, member, token } => {
                    application.reduced(self, group, member, token);
                }
                Notification::Failed { group, failure } => {
                    application.reduction_failed(self, group, &failure);
                }
            }
        }
    }

    fn notify_completions(&mut self, application: &mut impl Application<S>, host: u32) {
        self.endpoints.hosts[host as usize].is_ready = false;
        let Some(queue) = self.endpoints.hosts[host as usize].watched else { return };
        let mut some = [Completion::EMPTY; 8];
        loop {
            let count = self.endpoints.hosts[host as usize].nic.poll_cq(queue, &mut some);
            for completion in &some[..count] {
                application.completed(self, host, completion);
            }
            if count < some.len() {
                break;
            }
        }
    }
}
