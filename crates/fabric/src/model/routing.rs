//! Which of several equal-cost ports a packet takes: ECMP, flowlets, adaptive routing, spraying.

use railnet_core::{Random, Time};

use crate::model::config::{Routing, SwitchConfig};
use crate::model::ecmp::EcmpSeed;

/// Entries of the flowlet table.
const FLOWLETS: usize = 1 << 12;

/// How one switch selects paths.
#[derive(Debug)]
pub(crate) struct PathSelection {
    random: Random,
    seed: EcmpSeed,
    /// (time of the last packet, port) of recent flows.
    flowlets: Vec<(Time, u16)>,
}

impl PathSelection {
    /// With the random stream of the switch.
    pub(crate) fn new(config: &SwitchConfig, mut random: Random) -> Self {
        let seed = EcmpSeed::draw(&mut random);
        let flowlets = match config.routing {
            Routing::Flowlet(_) => vec![(Time::ZERO, u16::MAX); FLOWLETS],
            _ => Vec::new(),
        };
        Self { random, seed, flowlets }
    }

    /// The port that a packet takes out of `ports`, whose queues are so long.
    #[inline]
    pub(crate) fn select(
        &mut self,
        routing: Routing,
        ports: &[u16],
        hash: u32,
        now: Time,
        queued: impl Fn(u16) -> u64,
    ) -> u16 {
        let [first, rest @ ..] = ports else { return 0 };
        if rest.is_empty() {
            return *first;
        }
        match routing {
            // A table has one port.
            Routing::Tables { .. } => *first,
            Routing::Ecmp | Routing::Murmur3 | Routing::Valiant => self.by_hash(ports, hash),
            Routing::Spray => *self.random.pick(ports),
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

    /// The port of a flow with this hash. `ports` is not empty.
    #[inline]
    pub(crate) fn by_hash(&self, ports: &[u16], hash: u32) -> u16 {
        self.seed.choose(ports, hash)
    }

    /// The port with the shortest queue; a random one among equals. By hash, flows that share a path would keep sharing it
    /// while queues here are short, and collide further on, where this switch does not see.
    fn least_loaded(&mut self, ports: &[u16], queued: impl Fn(u16) -> u64) -> u16 {
        let start = self.random.below(ports.len() as u64) as usize;
        let rotated = ports[start..].iter().chain(&ports[..start]);
        *rotated.min_by_key(|port| queued(**port)).expect("there are ports to select from")
    }
}
