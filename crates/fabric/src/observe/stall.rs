//! Why a network stalls: cycles of pauses or missing credit (deadlock), and what else blocks.

use railnet_core::Rate;
use railnet_core::event::Sink;
use railnet_topology::Vertex;

use crate::model::config::FlowControl;
use crate::model::fabric::CREDIT_PACKET;
use crate::model::fabric::Fabric;
use crate::model::queue::QueuedPacket;
use crate::network::Network;

/// Why a network stalls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stall {
    /// Channels that wait for each other in a cycle, each for the next and the last for the first: a deadlock.
    pub cycle: Vec<(Vertex, Vertex)>,
    /// The priority in which they do.
    pub priority: u8,
    /// Channels that are blocked: paused, or out of credit with packets waiting.
    pub paused: Vec<(Vertex, Vertex)>,
    /// Hosts that pause their switch.
    pub pausing_hosts: Vec<u32>,
    /// Links that are down.
    pub dead_links: Vec<u32>,
}

impl Fabric {
    /// Looks for a deadlock, and for whatever else blocks channels.
    ///
    /// A blocked channel waits until the switch at its far end has forwarded what came by it. That is queued in front of
    /// other channels; where one of those is blocked too, the first waits for it. A cycle of such waits never ends. Each
    /// priority of a channel waits by itself; a packet that goes up a priority waits for one of the next.
    pub(crate) fn stall(&self) -> Stall {
        let ends = |channel: u32| {
            let channel = &self.channels[channel as usize];
            (channel.from, channel.to)
        };
        let all = 0..self.channels.len() as u32;
        let is_held = |channel: u32| (0..8).any(|priority| self.is_held(channel, priority));
        let mut stall = Stall {
            paused: all.clone().filter(|channel| is_held(*channel)).map(ends).collect(),
            dead_links: self.faults.dead_links(),
            ..Stall::default()
        };
        for (_, to) in &stall.paused {
            if let Vertex::Host(host) = to {
                stall.pausing_hosts.push(*host);
            }
        }
        let queues = all.flat_map(|channel| (0..8).map(move |priority| (channel, priority)));
        let waits: Vec<Vec<u32>> =
            queues.map(|(channel, priority)| self.waits_for(channel, priority)).collect();
        let cycle_found = cycle(&waits);
        if let Some(first) = cycle_found.first() {
            stall.priority = (first % 8) as u8;
        }
        stall.cycle = cycle_found.into_iter().map(|queue| ends(queue / 8)).collect();
        stall
    }

    /// Whether packets of a priority are blocked on this channel.
    pub(crate) fn is_held(&self, channel: u32, priority: usize) -> bool {
        let channel = &self.channels[channel as usize];
        if self.config.flow_control != FlowControl::Credits {
            return channel.paused & 1 << priority != 0;
        }
        // A host's packets are in its NIC: that it has used up its credit says that it has more.
        let has_packets = matches!(channel.from, Vertex::Host(_)) || channel.occupied & 1 << priority != 0;
        has_packets && channel.credits[priority] < CREDIT_PACKET
    }

    /// The blocked channels in front of which packets wait that came by `ingress` with this priority, if that is blocked
    /// itself; as eight times the channel and the priority.
    fn waits_for(&self, ingress: u32, priority: usize) -> Vec<u32> {
        let Vertex::Switch(switch) = self.channels[ingress as usize].to else { return Vec::new() };
        if !self.is_held(ingress, priority) {
            return Vec::new();
        }
        let came_so =
            |packet: QueuedPacket| packet.ingress() == ingress && packet.ingress_priority() == priority;
        let holds = |&(egress, priority): &(u32, usize)| {
            let queue = &self.channels[egress as usize].queues[priority];
            self.is_held(egress, priority) && queue.iter(&self.pool).any(came_so)
        };
        let ports = self.switches[switch as usize].ports.iter();
        let queues = ports.flat_map(|egress| (0..8).map(move |priority| (*egress, priority)));
        queues.filter(holds).map(|(egress, priority)| egress * 8 + priority as u32).collect()
    }
}

impl<S: Sink> Network<S> {
    /// Looks for a deadlock, and for whatever else blocks channels.
    pub fn stall(&self) -> Stall {
        self.fabric.stall()
    }

    /// The present rate of the slowest channel, faults included.
    pub fn slowest(&self) -> Rate {
        self.fabric.slowest()
    }
}

/// A cycle in a graph of waits, if there is one, by depth-first search.
fn cycle(waits: &[Vec<u32>]) -> Vec<u32> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnTheWay,
        Done,
    }
    let mut marks = vec![Mark::New; waits.len()];
    for start in 0..waits.len() as u32 {
        let mut path: Vec<(u32, usize)> = Vec::new();
        if marks[start as usize] == Mark::New {
            marks[start as usize] = Mark::OnTheWay;
            path.push((start, 0));
        }
        while let Some((at, tried)) = path.last_mut() {
            let Some(&next) = waits[*at as usize].get(*tried) else {
                marks[*at as usize] = Mark::Done;
                path.pop();
                continue;
            };
            *tried += 1;
            match marks[next as usize] {
                Mark::New => {
                    marks[next as usize] = Mark::OnTheWay;
                    path.push((next, 0));
                }
                Mark::OnTheWay => {
                    let from = path.iter().position(|&(at, _)| at == next).unwrap_or(0);
                    return path[from..].iter().map(|&(at, _)| at).collect();
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
