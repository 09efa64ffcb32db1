//! Receiving from any source.
//!
//! A sender does not know of a receive from any source: each pair of ranks has connections of its own, and some transports send
//! nothing before the receiver asks for it. So the receiver asks all other ranks on the control channel whether they have
//! entered the next transfer to it; their control threads answer while they compute. A rank that leaves reports it unasked.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::handle::GoOn;
use super::{Communicator, Error, Pair};

/// Interval of these questions, at first and at most.
const FIRST: Duration = Duration::from_micros(50);
const MOST: Duration = Duration::from_millis(5);

impl Communicator {
    /// Waits until a rank sends to this one under a tag, and returns that rank: the next receive from it gets the data. The
    /// default timeout is that of the communicator.
    pub fn await_sender(
        &self,
        tag: u64,
        timeout: Option<Duration>,
        goes_on: &mut GoOn<'_>,
    ) -> Result<usize, Error> {
        let began = Instant::now();
        let limit = timeout.or_else(|| self.timeout()).unwrap_or(self.process.origin().1.limit);
        let own = self.rank.0;
        let others = (0..self.size() as u32).filter(|rank| *rank != own);
        let pairs: Vec<_> = others.map(|from| Pair { from, to: own, tag }).collect();
        let leases: Vec<_> = pairs.iter().map(|pair| (*pair, self.pair(*pair))).collect();
        let mut pause = FIRST;
        loop {
            for (pair, handle) in &leases {
                match self.process.with(|engine| engine.probe(handle.context)) {
                    Ok(true) => return Ok(pair.from as usize),
                    Ok(false) => {}
                    Err(failure) => return Err(self.pair_failed(&Arc::clone(&failure), *pair)),
                }
            }
            let (rank, waited) = (self.rank(), began.elapsed());
            let tag = if tag == 0 { String::new() } else { format!(" under tag {tag}") };
            let has_left = |pair: &Pair| {
                let world = self.members[pair.from as usize];
                self.process.with(|engine| engine.has_left(world))
            };
            if pairs.iter().all(has_left) {
                return Err(Error::AllLeft { rank, tag });
            }
            if waited > limit {
                return Err(Error::NoSender { rank, tag, waited });
            }
            if !goes_on() {
                return Err(Error::Interrupted { rank: self.rank() });
            }
            thread::sleep(pause);
            self.process.with(crate::engine::Engine::poll_notices);
            pause = (pause * 2).min(MOST);
        }
    }
}
