//! The order in which a run's events happen.

use crate::id::Component;
use crate::time::Time;

/// Where an event stands in the calendar: by time, then priority, then component, then the component's own sequence.
///
/// Every part is known to the component that schedules the event. A counter shared by all of them would settle ties
/// too, but by who happened to ask first, and then two components that run at the same time on two threads could not
/// reproduce it. Two events of one run never have the same order, so the calendar needs no further rule.
///
/// ```
/// use railnet_core::{Component, Order, Time};
///
/// let at = |priority, component, sequence| Order {
///     time: Time::from_ps(80),
///     priority,
///     component: Component(component),
///     sequence,
/// };
/// assert!(at(0, 9, 9) < at(1, 0, 0));
/// assert!(at(1, 0, 9) < at(1, 1, 0));
/// ```
// The fields are compared from top to bottom: their order is the meaning of this type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Order {
    /// The time of the event.
    pub time: Time,
    /// Among events of the same moment, lower comes first.
    pub priority: u8,
    /// Who scheduled it.
    pub component: Component,
    /// What tells it from others that the component scheduled for the moment: how many it had scheduled before, or a number that
    /// does not depend on which of several things it did first.
    pub sequence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(time: u64, priority: u8, component: u32, sequence: u64) -> Order {
        Order { time: Time::from_ps(time), priority, component: Component(component), sequence }
    }

    #[test]
    fn each_part_decides_only_when_the_ones_before_it_are_equal() {
        let sorted = [
            order(1, 9, 9, 9),
            order(2, 0, 9, 9),
            order(2, 1, 0, 9),
            order(2, 1, 1, 0),
            order(2, 1, 1, 1),
            order(3, 0, 0, 0),
        ];
        assert!(sorted.is_sorted());
        let mut shuffled = [5, 2, 0, 4, 1, 3].map(|index: usize| sorted[index]);
        shuffled.sort_unstable();
        assert_eq!(shuffled, sorted);
    }
}
