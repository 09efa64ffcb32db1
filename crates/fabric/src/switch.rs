//! A switch's packet memory and its choice of path.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Random, Time};

use crate::channel::Channel;
use crate::config::{FlowControl, Routing, SwitchConfig};

/// Bytes that a queue must fall below its threshold before the sender may go on.
const RESUME_OFFSET: u64 = 3_000;

/// Entries of the table of recent connections, for flowlets.
const FLOWLETS: usize = 1 << 12;

/// One switch.
#[derive(Debug)]
pub(crate) struct Switch {
    /// The channel that leaves by each port.
    pub(crate) ports: Vec<u32>,
    /// Ports that have more to send when they are free again, where they are woken by their switch.
    pub(crate) awake: Vec<u32>,
    /// The same while they are woken in the order of time: when, and which.
    pub(crate) in_line: BinaryHeap<Reverse<(Time, u32)>>,
    /// Whether they are.
    pub(crate) is_in_line: bool,
    /// Priorities of all ports whose senders were told to stop, and not yet to go on.
    pub(crate) stopped: u32,
    /// Bytes in the shared part of the memory.
    pub(crate) shared_used: u64,
    /// Memory that is neither reserve nor headroom.
    shared_max: u64,
    shift: u32,
    pub(crate) reserve: u32,
    dice: Random,
    seed: u32,
    /// (time of the last packet, port) of recent connections.
    flowlets: Vec<(Time, u16)>,
}

/// Whether a packet fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    Fits,
    Dropped,
}

impl Switch {
    /// A switch with these ports; the headroom of each ingress channel is set on the channel.
    pub(crate) fn new(config: &SwitchConfig, ports: Vec<u32>, headroom: u64, mut dice: Random) -> Self {
        let lossless = u64::from(config.lossless.count_ones());
        let set_aside = ports.len() as u64 * 8 * config.reserve.0
            + if config.flow_control == FlowControl::Pfc { headroom * lossless } else { 0 };
        let seed = dice.next_u32();
        let flowlets = match config.routing {
            Routing::Flowlet(_) => vec![(Time::ZERO, u16::MAX); FLOWLETS],
            _ => Vec::new(),
        };
        Self {
            ports,
            awake: Vec::new(),
            in_line: BinaryHeap::new(),
            is_in_line: false,
            stopped: 0,
            shared_used: 0,
            shared_max: config.buffer.0.saturating_sub(set_aside),
            shift: config.shift,
            reserve: config.reserve.0 as u32,
            dice,
            seed,
            flowlets,
        }
    }

    #[inline]
    fn threshold(&self) -> u64 {
        self.shared_max.saturating_sub(self.shared_used) >> self.shift
    }

    #[inline]
    fn shared_of(&self, ingress: &Channel, priority: usize) -> u64 {
        u64::from(ingress.shared[priority].saturating_sub(self.reserve))
    }

    /// Counts a packet in, if that would fit, and nobody be told to stop, though some of what it holds may have left.
    #[inline]
    pub(crate) fn admit_surely(&mut self, ingress: &mut Channel, priority: usize, bytes: u32) -> bool {
        let held = ingress.shared[priority] + bytes;
        let over = u64::from(held.saturating_sub(self.reserve));
        let used = self.shared_used + over.min(u64::from(bytes));
        let fits =
            over < self.shared_max.saturating_sub(used) >> self.shift && ingress.headroom[priority] == 0;
        if fits {
            self.shared_used = used;
            ingress.shared[priority] = held;
        }
        fits
    }

    /// Counts a packet in, if there is room for it.
    #[inline]
    pub(crate) fn admit(&mut self, ingress: &mut Channel, priority: usize, bytes: u32) -> Admission {
        let threshold = self.threshold();
        let held = ingress.shared[priority] + bytes;
        let over = u64::from(held.saturating_sub(self.reserve));
        if over > threshold {
            // Beyond its share: only the headroom is left, which exists where senders can be told to stop.
            let is_lossless = ingress.lossless & 1 << priority != 0;
            if !is_lossless || ingress.headroom[priority] + bytes > ingress.headroom_max {
                return Admission::Dropped;
            }
            ingress.headroom[priority] += bytes;
            return Admission::Fits;
        }
        self.shared_used += over.min(u64::from(bytes));
        ingress.shared[priority] = held;
        Admission::Fits
    }

    /// Counts a packet out: headroom empties first.
    #[inline]
    pub(crate) fn release(&mut self, ingress: &mut Channel, priority: usize, bytes: u32) {
        let from_headroom = ingress.headroom[priority].min(bytes);
        ingress.headroom[priority] -= from_headroom;
        let rest = bytes - from_headroom;
        let from_shared = self.shared_of(ingress, priority).min(u64::from(rest));
        self.shared_used -= from_shared;
        ingress.shared[priority] -= rest;
    }

    /// Whether the sender of this ingress should stop.
    #[inline]
    pub(crate) fn should_stop(&self, ingress: &Channel, priority: usize) -> bool {
        ingress.headroom[priority] > 0 || self.shared_of(ingress, priority) >= self.threshold().max(1)
    }

    /// Whether a sender that was stopped may go on.
    #[inline]
    pub(crate) fn may_resume(&self, ingress: &Channel, priority: usize) -> bool {
        let shared = self.shared_of(ingress, priority);
        ingress.headroom[priority] == 0 && (shared == 0 || shared + RESUME_OFFSET <= self.threshold())
    }

    /// Which of `ports` a packet takes.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        routing: Routing,
        ports: &[u16],
        hash: u32,
        now: Time,
        queued: impl Fn(u32) -> u64,
    ) -> u16 {
        let [first, rest @ ..] = ports else { return 0 };
        if rest.is_empty() {
            return *first;
        }
        let spread = mix(hash ^ self.seed);
        let by_hash = ports[((u64::from(spread) * ports.len() as u64) >> 32) as usize];
        match routing {
            Routing::Ecmp | Routing::Valiant => by_hash,
            Routing::Spray => *self.dice.pick(ports),
            Routing::Adaptive => self.least_loaded(ports, queued),
            Routing::Flowlet(gap) => {
                let slot = spread as usize % FLOWLETS;
                let (last, port) = self.flowlets[slot];
                let keeps = ports.contains(&port) && now.since(last) < gap;
                let port = if keeps { port } else { self.least_loaded(ports, queued) };
                self.flowlets[slot] = (now, port);
                port
            }
        }
    }

    /// The port with the shortest queue; among equals any. By hash, connections that share a path would keep sharing it
    /// while queues here are short, and meet further on, where this switch does not see.
    fn least_loaded(&mut self, ports: &[u16], queued: impl Fn(u32) -> u64) -> u16 {
        let start = self.dice.below(ports.len() as u64) as usize;
        let turned = ports[start..].iter().chain(&ports[..start]);
        *turned
            .min_by_key(|&&port| queued(self.ports[usize::from(port)]))
            .expect("there are ports to choose from")
    }
}

/// Spreads the bits of a hash, so that the choices of switches on a path do not follow from each other.
#[inline]
pub(crate) fn mix(value: u32) -> u32 {
    let value = (value ^ value >> 16).wrapping_mul(0x85eb_ca6b);
    let value = (value ^ value >> 13).wrapping_mul(0xc2b2_ae35);
    value ^ value >> 16
}
