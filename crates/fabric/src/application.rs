//! What runs on the hosts, and how it hears of what happened.

use railnet_core::Time;
use railnet_core::event::Sink;
use railnet_nic::Completion;

use crate::model::aggregation::{Group, Notification, ReductionFailure};
use crate::network::Network;

/// What runs on the hosts.
pub trait Application<S> {
    /// Work of a host completed.
    fn completed(&mut self, network: &mut Network<S>, host: u32, completion: &Completion);

    /// A time asked for with [`Network::call_at`] has come.
    fn called(&mut self, network: &mut Network<S>, token: u32);

    /// A slice handed to [`Network::carry`] is there. Applications that know nothing of the inside of hosts never hear it.
    fn carried(&mut self, _network: &mut Network<S>, _token: u32) {}

    /// A packet wrote to bytes that are watched ([`railnet_nic::memory::Segments::watch`], on [`Network::memory`]). It is
    /// told before the completions of the same packet.
    fn touched(&mut self, _network: &mut Network<S>, _token: u64) {}

    /// The result of a contribution ([`Network::contribute`]) is with the member; or, where the member gets none, its
    /// contribution has been used.
    fn reduced(&mut self, _network: &mut Network<S>, _group: Group, _member: u32, _token: u64) {}

    /// Before when it will hear of nothing that could make it have one island reach another, as far as it knows, unless it is
    /// called: see [`Network::enable_extended_lookahead`].
    fn earliest_interaction(&self) -> Time {
        Time::ZERO
    }

    /// Whether it wants nothing more to dispatch: then [`Network::run`] returns as soon as it can, with hosts and switches wherever
    /// they are. Nothing can be run after that.
    fn is_stopped(&self) -> bool {
        false
    }

    /// A group will never come to a result. It is told once; only releasing the group is left to do.
    fn reduction_failed(&mut self, _network: &mut Network<S>, _group: Group, _failure: &ReductionFailure) {}
}

impl<S: Sink> Network<S> {
    /// Tells the application what happened: words that were written, then work that completed.
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
                    application.reduced(self, group, member, token)
                }
                Notification::Failed { group, failure } => {
                    application.reduction_failed(self, group, &failure)
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
