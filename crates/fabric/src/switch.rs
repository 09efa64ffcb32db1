//! A switch's packet memory and its choice of path.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railnet_core::{Random, Time};

use crate::config::{FlowControl, Routing, SwitchConfig};
use crate::ecmp::EcmpSeed;

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
    /// The threshold is the free part of it, times eight, shifted right by this,
    shift: u32,
    /// and no more than this.
    pause_at: u64,
    resume_offset: u64,
    pub(crate) reserve: u32,
    dice: Random,
    seed: EcmpSeed,
    /// (time of the last packet, port) of recent connections.
    flowlets: Vec<(Time, u16)>,
}

/// Bytes that a switch holds of what came by one of its ports, of each priority: a line of the cache.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub(crate) struct Held {
    /// In the shared part of its memory.
    pub(crate) shared: [u32; 8],
    pub(crate) headroom: [u32; 8],
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
        let seed = EcmpSeed::draw(&mut dice);
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
            shift: (config.shift.clamp(-3, 7) + 3) as u32,
            pause_at: config.pause_at.map_or(u64::MAX, |bytes| bytes.0),
            resume_offset: config.resume_offset.0,
            reserve: config.reserve.0 as u32,
            dice,
            seed,
            flowlets,
        }
    }

    /// Whether its ports have to be woken in the order of time, because somebody waits to be told that there is room, or are.
    #[inline]
    pub(crate) fn needs_order(&self) -> bool {
        self.stopped > 0 || self.is_in_line
    }

    /// What one port and priority may hold above its reserve while so much of the shared memory is used.
    #[inline]
    fn threshold(&self, used: u64) -> u64 {
        (self.shared_max.saturating_sub(used) << 3 >> self.shift).min(self.pause_at)
    }

    #[inline]
    fn shared_of(&self, held: &Held, priority: usize) -> u64 {
        u64::from(held.shared[priority].saturating_sub(self.reserve))
    }

    /// Counts a packet in, if that would fit, and nobody be told to stop, though some of what it holds may have left.
    #[inline]
    pub(crate) fn admit_surely(&mut self, held: &mut Held, priority: usize, bytes: u32) -> bool {
        let shared = held.shared[priority] + bytes;
        let over = u64::from(shared.saturating_sub(self.reserve));
        let used = self.shared_used + over.min(u64::from(bytes));
        let fits = self.fits(used, over) && held.headroom[priority] == 0;
        if fits {
            self.shared_used = used;
            held.shared[priority] = shared;
        }
        fits
    }

    /// Whether nobody would have to be told to stop with so many bytes above the reserves, and so many of one port and priority.
    #[inline]
    pub(crate) fn fits(&self, used: u64, most: u64) -> bool {
        most < self.threshold(used)
    }

    /// Counts a packet in, if there is room for it, in `headroom` if need be.
    pub(crate) fn admit(&mut self, held: &mut Held, priority: usize, bytes: u32, headroom: u32) -> Admission {
        let threshold = self.threshold(self.shared_used);
        let shared = held.shared[priority] + bytes;
        let over = u64::from(shared.saturating_sub(self.reserve));
        if over > threshold {
            // Beyond its share: only the headroom is left, which exists where senders can be told to stop.
            if held.headroom[priority] + bytes > headroom {
                return Admission::Dropped;
            }
            held.headroom[priority] += bytes;
            return Admission::Fits;
        }
        self.shared_used += over.min(u64::from(bytes));
        held.shared[priority] = shared;
        Admission::Fits
    }

    /// Counts a packet out: headroom empties first.
    #[inline]
    pub(crate) fn release(&mut self, held: &mut Held, priority: usize, bytes: u32) {
        let from_headroom = held.headroom[priority].min(bytes);
        held.headroom[priority] -= from_headroom;
        self.release_shared(held, priority, bytes - from_headroom);
    }

    /// The same where there is nothing in the headroom: nobody is told to stop.
    #[inline]
    pub(crate) fn release_shared(&mut self, held: &mut Held, priority: usize, bytes: u32) {
        let from_shared = self.shared_of(held, priority).min(u64::from(bytes));
        self.shared_used -= from_shared;
        held.shared[priority] -= bytes;
    }

    /// Whether the sender of this ingress should stop.
    #[inline]
    pub(crate) fn should_stop(&self, held: &Held, priority: usize) -> bool {
        held.headroom[priority] > 0
            || self.shared_of(held, priority) >= self.threshold(self.shared_used).max(1)
    }

    /// Whether a sender that was stopped may go on.
    #[inline]
    pub(crate) fn may_resume(&self, held: &Held, priority: usize) -> bool {
        let shared = self.shared_of(held, priority);
        held.headroom[priority] == 0
            && (shared == 0 || shared + self.resume_offset <= self.threshold(self.shared_used))
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
        match routing {
            Routing::Ecmp | Routing::Murmur3 | Routing::Valiant => self.by_hash(ports, hash),
            Routing::Spray => *self.dice.pick(ports),
            Routing::Adaptive => self.least_loaded(ports, queued),
            Routing::Flowlet(gap) => {
                let slot = self.seed.spread(hash) as usize % FLOWLETS;
                let (last, port) = self.flowlets[slot];
                let keeps = ports.contains(&port) && now.since(last) < gap;
                let port = if keeps { port } else { self.least_loaded(ports, queued) };
                self.flowlets[slot] = (now, port);
                port
            }
        }
    }

    /// Which of `ports`, of which there are some, a packet of this hash takes.
    #[inline]
    pub(crate) fn by_hash(&self, ports: &[u16], hash: u32) -> u16 {
        self.seed.choose(ports, hash)
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
