//! Detects a stall: a run in which nothing moves any more, and what blocks it.

use std::fmt;

use railnet_core::event::Sink;
use railnet_core::{Bytes, Fold, Psn, QueuePairNumber, Span, Time};
use railnet_fabric::{Network, Stall};
use railnet_topology::{FabricGraph, Vertex};

use super::error::{RunError, StallReport};
use super::runner::Runner;

/// How long nothing may move where the scenario does not say.
const STALL: Span = Span::from_ms(10);
/// On slow links it is the time of so many packets: the longest pause, after which a link goes on by itself, takes a
/// thousand.
const STALL_PACKETS: u64 = 2_000;
/// Bytes of a packet.
const PACKET: Bytes = Bytes(4_178);
/// Flows that a message names.
const NAMED: usize = 5;

/// A flow that has started and not finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The number of the flow.
    pub flow: u32,
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// The sender's queue pair.
    pub queue_pair: QueuePairNumber,
    /// The sequence number that the receiver waits for.
    pub psn: Psn,
}

impl Waiting {
    pub(super) fn place(&self) -> String {
        format!("PSN {} of queue pair {}", self.psn, self.queue_pair)
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} to host {} ({})", self.from, self.to, self.place())
    }
}

/// Some of the flows, and how many more there are.
pub fn listed(flows: &[Waiting]) -> String {
    let mut text: Vec<String> = flows.iter().take(NAMED).map(ToString::to_string).collect();
    if flows.len() > NAMED {
        text.push(format!("and {} more", flows.len() - NAMED));
    }
    text.join(", ")
}

/// What blocks packets.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BlockingCause {
    /// Links that wait for each other in a circle.
    Deadlock {
        /// Each waits for the next one, and the last for the first: (from, to).
        links: Vec<(String, String)>,
        /// The priority in which they do.
        priority: u8,
    },
    /// Hosts that keep their switch paused.
    Storm {
        /// Their names.
        hosts: Vec<String>,
        /// Their numbers.
        numbers: Vec<u32>,
    },
    /// Links may not send, and it is neither of those.
    Paused {
        /// Which: (from, to).
        links: Vec<(String, String)>,
    },
    /// Links are down.
    Dead {
        /// Which, by their ends.
        links: Vec<String>,
    },
    /// Nothing is under way, and no timer is set.
    Silence,
    /// The fabric blocks nothing.
    Nothing,
}

impl BlockingCause {
    fn new(stuck: Stall, graph: &FabricGraph) -> Self {
        let name = |vertex: Vertex| graph.name(vertex).to_owned();
        let pairs = |links: Vec<(Vertex, Vertex)>| -> Vec<(String, String)> {
            links.into_iter().map(|(from, to)| (name(from), name(to))).collect()
        };
        if !stuck.cycle.is_empty() {
            return Self::Deadlock { links: pairs(stuck.cycle), priority: stuck.priority };
        }
        if !stuck.pausing_hosts.is_empty() {
            let hosts = stuck.pausing_hosts.iter().map(|host| name(Vertex::Host(*host))).collect();
            return Self::Storm { hosts, numbers: stuck.pausing_hosts };
        }
        if !stuck.paused.is_empty() {
            return Self::Paused { links: pairs(stuck.paused) };
        }
        if !stuck.dead_links.is_empty() {
            return Self::Dead {
                links: stuck.dead_links.into_iter().map(|link| graph.link_name(link)).collect(),
            };
        }
        Self::Nothing
    }

    /// Whether packets are held back by something that no timer of a NIC ends.
    pub(super) fn is_firm(&self) -> bool {
        matches!(self, Self::Deadlock { .. } | Self::Storm { .. } | Self::Paused { .. })
    }

    pub(super) fn them(&self) -> &'static str {
        match self {
            Self::Storm { hosts, .. } if hosts.len() == 1 => "it",
            _ => "them",
        }
    }
}

impl fmt::Display for BlockingCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let few = |names: &[String]| match names {
            [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            names => names.concat(),
        };
        match self {
            Self::Deadlock { links, priority } => {
                let way: Vec<&str> = links
                    .iter()
                    .map(|(from, _)| from.as_str())
                    .chain(links.first().map(|(from, _)| from.as_str()))
                    .collect();
                write!(f, "deadlock: {} wait for each other in priority {priority}", way.join(" → "))
            }
            Self::Storm { hosts, .. } if hosts.len() == 1 => {
                write!(f, "{} keeps its switch paused and does not let go", hosts[0])
            }
            Self::Storm { hosts, .. } => {
                write!(f, "{} keep their switches paused and do not let go", few(hosts))
            }
            Self::Paused { links } => {
                let links: Vec<String> =
                    links.iter().take(NAMED).map(|(from, to)| format!("{from} → {to}")).collect();
                write!(f, "links may not send: {}", links.join(", "))
            }
            Self::Dead { links } if links.len() == 1 => write!(f, "the link {} is down", links[0]),
            Self::Dead { links } => write!(f, "the links {} are down", few(links)),
            Self::Silence => f.write_str("nothing is under way, and no timer is set that could change that"),
            Self::Nothing => f.write_str("nothing holds packets back"),
        }
    }
}

/// What blocks packets of a network now.
pub(super) fn blocking_cause<S: Sink>(network: &Network<S>) -> BlockingCause {
    BlockingCause::new(network.stall(), network.graph())
}

/// Checks now and then whether anything moves.
pub(super) struct StallDetector {
    stall: Option<Span>,
    /// When to check next.
    pub(super) next: Time,
    /// The progress number when it last changed, and when that was.
    seen: u64,
    moved: Time,
}

impl StallDetector {
    pub(super) fn new(stall: Option<Span>) -> Self {
        let mut watch = Self { stall, next: Time::ZERO, seen: 0, moved: Time::ZERO };
        watch.next = Time::ZERO + watch.interval();
        watch
    }

    /// Checks twice in the time that nothing may move.
    fn interval(&self) -> Span {
        (self.stall.unwrap_or(STALL) / 2).max(Span::from_ps(1))
    }

    /// Checks. An error if nothing has moved for too long and nothing will.
    pub(super) fn check<S: Sink>(&mut self, network: &mut Network<S>, runner: &Runner) -> Option<RunError> {
        let now = network.now;
        self.next = now + self.interval();
        if runner.unfinished == 0 {
            // What is left are timers that find nothing to do.
            return None;
        }
        let seen = progress(network, runner);
        if seen != self.seen {
            (self.seen, self.moved) = (seen, now);
            return None;
        }
        // A fault changes what can move, and one that is still to come may mend it.
        let idle = now.since(self.moved.max(network.last_fault()));
        if idle < self.allowed(network) || network.has_faults_ahead() {
            return None;
        }
        let waiting = runner.waiting(network);
        let cause = blocking_cause(network);
        // A NIC that waits for an answer has a timer, and gives up by itself.
        (!waiting.is_empty() && cause.is_firm())
            .then(|| RunError::Stuck(Box::new(StallReport { cause, idle, waiting })))
    }

    fn allowed<S: Sink>(&self, network: &Network<S>) -> Span {
        self.stall.unwrap_or_else(|| STALL.max(network.slowest().serialize(PACKET) * STALL_PACKETS))
    }
}

/// A number that changes when any flow starts, gets on or ends.
fn progress<S: Sink>(network: &mut Network<S>, runner: &Runner) -> u64 {
    let mut fold = Fold::new();
    fold.push(runner.unfinished as u64);
    for (host, own) in runner.queue_pairs() {
        let (nic, _) = network.nic(host);
        if let Ok(info) = nic.query_qp(own) {
            fold.push(u64::from(info.receive_psn.value()) << 32 | u64::from(info.send_psn.value()));
        }
    }
    fold.finish()
}
