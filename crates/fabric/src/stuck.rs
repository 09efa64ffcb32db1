//! Who waits for whom, when nothing moves any more.

use railnet_core::event::Sink;
use railnet_topology::Vertex;

use crate::network::Network;

/// Why a network stands still.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stuck {
    /// Channels that wait for each other in a circle, each for the next and the last for the first: a deadlock.
    pub cycle: Vec<(Vertex, Vertex)>,
    /// Channels that are paused, or have packets waiting that they have no credit for.
    pub paused: Vec<(Vertex, Vertex)>,
}

impl<S: Sink> Network<S> {
    /// Looks for pauses, or wants of credit, that hold each other up.
    ///
    /// A channel that is held back waits for the switch at its far end to get rid of what came in by it. That is queued in front of
    /// other channels; where one of those is held back too, the first waits for it. A circle of such waits never ends.
    pub fn stuck(&self) -> Stuck {
        let ends = |channel: u32| {
            let channel = &self.channels[channel as usize];
            (channel.from, channel.to)
        };
        let is_held = |channel: &u32| self.is_held_back(*channel);
        let all = 0..self.channels.len() as u32;
        let paused: Vec<u32> = all.clone().filter(is_held).collect();
        let waits: Vec<Vec<u32>> =
            all.map(|channel| if is_held(&channel) { self.waits_for(channel) } else { Vec::new() }).collect();
        Stuck {
            cycle: cycle(&waits).into_iter().map(ends).collect(),
            paused: paused.into_iter().map(ends).collect(),
        }
    }

    /// Whether the far end of a channel holds its sender back: by a pause, or by giving no credit for what waits.
    fn is_held_back(&self, channel: u32) -> bool {
        let state = &self.channels[channel as usize];
        state.paused != 0 || state.occupied != 0 && self.sendable(channel).is_none()
    }

    /// The held channels behind which packets wait that came in by `ingress`.
    fn waits_for(&self, ingress: u32) -> Vec<u32> {
        let Vertex::Switch(switch) = self.channels[ingress as usize].to else { return Vec::new() };
        let holds = |egress: &u32| {
            let channel = &self.channels[*egress as usize];
            let mut waiting = channel.queues.iter().flat_map(|queue| queue.iter(&self.packets));
            self.is_held_back(*egress)
                && waiting.any(|packet| self.packets.facts[packet as usize].ingress == ingress)
        };
        self.switches[switch as usize].ports.iter().copied().filter(holds).collect()
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
