//! Who waits for whom, when nothing moves any more.

use railnet_core::Rate;
use railnet_core::event::Sink;
use railnet_topology::Vertex;

use crate::channel::Channel;
use crate::config::FlowControl;
use crate::network::{CREDIT_PACKET, Network};
use crate::waiting::Waiting;

/// Why a network stands still.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stuck {
    /// Channels that wait for each other in a circle, each for the next and the last for the first: a deadlock.
    pub cycle: Vec<(Vertex, Vertex)>,
    /// The priority in which they do.
    pub priority: u8,
    /// Channels that may not send: paused, or out of credit with packets waiting.
    pub paused: Vec<(Vertex, Vertex)>,
    /// Hosts that hold their switch back by pauses.
    pub pausing_hosts: Vec<u32>,
    /// Links that are down.
    pub dead_links: Vec<u32>,
}

impl<S: Sink> Network<S> {
    /// Looks for pauses, or for want of credit, that hold each other up.
    ///
    /// A channel that is held waits for the switch at its far end to get rid of what came in by it. That is queued in front
    /// of other channels; where one of those is held too, the first waits for it. A circle of such waits never ends. Each
    /// priority of a channel waits by itself; a packet that goes up a priority waits for one of the next.
    pub fn stuck(&self) -> Stuck {
        let ends = |channel: u32| {
            let channel = &self.channels[channel as usize];
            (channel.from, channel.to)
        };
        let all = 0..self.channels.len() as u32;
        let is_held = |channel: u32| (0..8).any(|priority| self.is_held(channel, priority));
        let mut stuck = Stuck {
            paused: all.clone().filter(|channel| is_held(*channel)).map(ends).collect(),
            dead_links: self.dead_links(),
            ..Stuck::default()
        };
        for (_, to) in &stuck.paused {
            if let Vertex::Host(host) = to {
                stuck.pausing_hosts.push(*host);
            }
        }
        let lanes = all.flat_map(|channel| (0..8).map(move |priority| (channel, priority)));
        let waits: Vec<Vec<u32>> =
            lanes.map(|(channel, priority)| self.waits_for(channel, priority)).collect();
        let circle = cycle(&waits);
        if let Some(first) = circle.first() {
            stuck.priority = (first % 8) as u8;
        }
        stuck.cycle = circle.into_iter().map(|lane| ends(lane / 8)).collect();
        stuck
    }

    /// What the slowest channel carries now, faults counted.
    pub fn slowest(&self) -> Rate {
        self.channels.iter().map(Channel::rate).min().unwrap_or(Rate::ZERO)
    }

    /// Whether packets of a priority may not go out by this channel, though there are some.
    pub(crate) fn is_held(&self, channel: u32, priority: usize) -> bool {
        let channel = &self.channels[channel as usize];
        if self.config.flow_control != FlowControl::Credits {
            return channel.paused & 1 << priority != 0;
        }
        // What a host would send is in its NIC: that it has used up its credit says that there is more.
        let has_packets = matches!(channel.from, Vertex::Host(_)) || channel.occupied & 1 << priority != 0;
        has_packets && channel.credits[priority] < CREDIT_PACKET
    }

    /// Where packets wait that came in by `ingress` with this priority, if that is held: the held channels in front of them,
    /// as eight times the channel and the priority they wait in.
    fn waits_for(&self, ingress: u32, priority: usize) -> Vec<u32> {
        let Vertex::Switch(switch) = self.channels[ingress as usize].to else { return Vec::new() };
        if !self.is_held(ingress, priority) {
            return Vec::new();
        }
        let came_so = |waiting: Waiting| waiting.ingress() == ingress && waiting.held_as() == priority;
        let holds = |&(egress, priority): &(u32, usize)| {
            let queue = &self.channels[egress as usize].queues[priority];
            self.is_held(egress, priority) && queue.iter(&self.room).any(came_so)
        };
        let ports = self.switches[switch as usize].ports.iter();
        let lanes = ports.flat_map(|egress| (0..8).map(move |priority| (*egress, priority)));
        lanes.filter(holds).map(|(egress, priority)| egress * 8 + priority as u32).collect()
    }
}

/// A circle in a graph of waits, if there is one: found by walking down and noting who is on the way.
fn cycle(waits: &[Vec<u32>]) -> Vec<u32> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnTheWay,
        Done,
    }
    let mut marks = vec![Mark::New; waits.len()];
    for start in 0..waits.len() as u32 {
        let mut way: Vec<(u32, usize)> = Vec::new();
        if marks[start as usize] == Mark::New {
            marks[start as usize] = Mark::OnTheWay;
            way.push((start, 0));
        }
        while let Some((at, tried)) = way.last_mut() {
            let Some(&next) = waits[*at as usize].get(*tried) else {
                marks[*at as usize] = Mark::Done;
                way.pop();
                continue;
            };
            *tried += 1;
            match marks[next as usize] {
                Mark::New => {
                    marks[next as usize] = Mark::OnTheWay;
                    way.push((next, 0));
                }
                Mark::OnTheWay => {
                    let from = way.iter().position(|&(at, _)| at == next).unwrap_or(0);
                    return way[from..].iter().map(|&(at, _)| at).collect();
                }
                Mark::Done => {}
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_a_tree_is_none() {
        assert_eq!(cycle(&[vec![1, 2], vec![3], vec![3], vec![]]), [0; 0]);
        assert_eq!(cycle(&[vec![1], vec![2, 3], vec![4], vec![1], vec![]]), [1, 3]);
        assert_eq!(cycle(&[vec![0]]), [0]);
    }
}
