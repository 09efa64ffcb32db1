//! The ready heap of host groups, by the time of their next event: when the application is called in the middle of an epoch,
//! only groups with events before the call run first, however many others there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::Time;

/// A ready heap of host groups, for one epoch at most.
#[derive(Debug, Default)]
pub(crate) struct ReadyGroups {
    is_tracked: bool,
    heap: BinaryHeap<Reverse<(Time, u32)>>,
}

impl ReadyGroups {
    /// Whether each group with an event before the end of the epoch is in the heap.
    #[inline]
    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// Another epoch begins: the heap is no longer kept up to date.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.is_tracked {
            self.is_tracked = false;
            self.heap.clear();
        }
    }

    /// From now on the heap is kept up to date; these are the first events of groups in this epoch.
    pub(crate) fn track(&mut self, first: impl Iterator<Item = (Time, u32)>) {
        self.is_tracked = true;
        self.heap.clear();
        self.heap.extend(first.map(Reverse));
    }

    /// A group has an event at `at`. It may be in the heap more than once.
    pub(crate) fn push(&mut self, at: Time, group: u32) {
        self.heap.push(Reverse((at, group)));
    }

    /// Takes out the groups that have an event by `limit`, in their order.
    pub(crate) fn take_by(&mut self, limit: Time, groups: &mut Vec<u32>) {
        groups.clear();
        while let Some(Reverse((at, _))) = self.heap.peek()
            && *at <= limit
        {
            groups.extend(self.heap.pop().map(|Reverse((_, group))| group));
        }
        groups.sort_unstable();
        groups.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::application::Application;
    use crate::model::config::SwitchConfig;
    use crate::network::Network;
    use crate::testing::World;
    use railnet_core::event::Sink;
    use railnet_core::{Rate, Span};
    use railnet_nic::Completion;
    use railnet_topology::fabric::{FabricKind, LinkSpec, SingleSwitch};

    const HOSTS: u32 = 256;
    const CALLS: u32 = 100;

    /// Is called about all hosts again and again, and then asks to be called about one.
    #[derive(Default)]
    struct Caller {
        heard: Vec<(Time, u32)>,
    }

    impl<S: Sink> Application<S> for Caller {
        fn completed(&mut self, _network: &mut Network<S>, _host: u32, _completion: &Completion) {}

        fn called(&mut self, network: &mut Network<S>, token: u32) {
            self.heard.push((network.now, token));
            if token < CALLS {
                // At once, before the next call, and after some.
                for (number, later) in (1..).zip([0, 1_500, 7_100]) {
                    let at = network.now + Span::from_ps(later);
                    network.call_on(token * 37 % HOSTS, at, number * 1_000 + token);
                }
            }
        }
    }

    fn world() -> World {
        let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
        let graph =
            FabricKind::SingleSwitch(SingleSwitch { hosts: HOSTS }).build(&links).expect("one switch");
        let mut world = World::new(&graph, SwitchConfig::default());
        for call in 0..CALLS {
            world.network.call_at(Time::from_ps(500_000 + u64::from(call) * 2_000), call);
        }
        world
    }

    #[test]
    fn a_call_costs_as_much_as_the_groups_that_have_events_before_it() {
        let (mut together, mut apart) = (world(), world());
        together.network.use_one_calendar();
        apart.network.use_epochs();
        apart.network.partition_by_host((0..HOSTS).collect(), Span::MAX);
        let [in_order, by_group] = [together, apart].map(|mut world| {
            let mut caller = Caller::default();
            world.network.run(&mut caller, Time::from_ps(900_000));
            let opened = world.network.scheduler.epochs.as_ref().map_or(0, |epochs| epochs.opened);
            // Groups run one after the other.
            caller.heard.sort_unstable();
            (caller.heard, opened)
        });
        assert_eq!(in_order.0.len() as u32, 4 * CALLS);
        assert_eq!(in_order.0, by_group.0);
        // Each call has made three events; a hundred calls that activate 256 groups each would be far more.
        let opened = by_group.1;
        assert!((u64::from(CALLS)..=u64::from(4 * CALLS + 4 * HOSTS)).contains(&opened), "{opened}");
    }

    #[test]
    fn groups_come_once_each_in_their_order_when_they_are_due() {
        let at = Time::from_ps;
        let mut ready = ReadyGroups::default();
        assert!(!ready.is_tracked());
        ready.track([(at(5), 7), (at(9), 1), (at(3), 8)].into_iter());
        ready.push(at(4), 7);
        let mut groups = Vec::new();
        ready.take_by(at(2), &mut groups);
        assert!(groups.is_empty());
        ready.take_by(at(5), &mut groups);
        assert_eq!(groups, [7, 8]);
        ready.take_by(at(9), &mut groups);
        assert_eq!(groups, [1]);
        ready.push(at(9), 2);
        ready.reset();
        assert!(!ready.is_tracked());
        ready.take_by(Time::NEVER, &mut groups);
        assert!(groups.is_empty());
    }
}
