//! Random connections on a wire that does its worst: every byte has to arrive, once and in its place, and both ends have to close.
//!
//! ```
//! use railnet_tcp::testing::storm;
//!
//! let summary = storm::run(7, false)?;
//! assert_eq!(summary.digest, storm::run(7, true)?.digest, "segments that travel as bytes are the same");
//! # Ok::<(), String>(())
//! ```

use railnet_core::{Bytes, Fold, Random, Rate, RunDigest, Span, Time};

use super::{Faults, Pair};
use crate::config::Config;
use crate::connection::Connection;
use crate::control::ControlKind;
use crate::state::{Counters, State};

/// A stream has so many bytes at most.
const STREAM_MAX: u64 = 100_000;
/// Nothing takes so many steps but an endless loop.
const STEPS_MAX: u64 = 3_000_000;
/// Nor so long.
const LIMIT: Span = Span::from_secs(10_000);

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Of all segments and when they left, and of what was read when.
    pub digest: RunDigest,
    /// The congestion control of each end.
    pub controls: [ControlKind; 2],
    /// Bytes that arrived.
    pub bytes: u64,
    /// What both ends counted.
    pub counters: Counters,
    /// Segments that the wire lost, and that a full queue dropped.
    pub lost: u64,
    /// How long it took in virtual time.
    pub virtual_time: Span,
}

/// Runs a seed; an error is what was violated. `as_bytes` has every segment travel as the bytes of its IP packet.
pub fn run(seed: u64, as_bytes: bool) -> Result<Summary, String> {
    let mut random = Random::stream(seed, "tcp storm", 0);
    let configs = [config(&mut random, 49_152), config(&mut random, 5_000)];
    let controls = configs.each_ref().map(|config| config.control);
    let streams = [0, 1].map(|_| {
        let length = if random.below(8) == 0 { 0 } else { random.below(STREAM_MAX) };
        (0..length).map(|_| random.next_u32() as u8).collect::<Vec<u8>>()
    });
    let mut pair = pair(configs, &mut random, seed);
    pair.as_bytes = as_bytes;
    pair.tap = Some(Vec::new());
    let run = Exchange { written: [0; 2], read: [Vec::new(), Vec::new()], fold: Fold::new(), random };
    run.finish(pair, &streams, controls).map_err(|what| format!("seed {seed:#x}: {what}"))
}

fn config(random: &mut Random, port: u16) -> Config {
    let mut config = Config::new(port);
    config.control = *random.pick(&ControlKind::ALL);
    config.sack = random.below(4) > 0;
    config.timestamps = random.below(3) > 0;
    config.ecn = random.below(2) > 0;
    config.nagle = random.below(2) > 0;
    config.segment_size = *random.pick(&[100, 536, 1460, 8960]);
    config.receive_buffer = *random.pick(&[2 << 10, 16 << 10, 256 << 10, 4 << 20]);
    config.send_buffer = *random.pick(&[4 << 10, 64 << 10, 4 << 20]);
    config.timeout_least = *random.pick(&[Span::from_us(200), Span::from_ms(5), Span::from_ms(200)]);
    config.delayed_ack = *random.pick(&[Span::from_us(50), Span::from_ms(40)]);
    // Nobody gives up here.
    config.retries = 1000;
    config.timeout_most = Span::from_secs(2);
    config
}

fn pair([client, server]: [Config; 2], random: &mut Random, seed: u64) -> Pair {
    let port = server.port;
    let ends = [
        Connection::connect(client, random.next_u32()).to_port(port),
        Connection::listen(server, random.next_u32()),
    ];
    let mut pair = Pair::new(ends, seed);
    pair.rate = *random.pick(&[Rate::gbps(1), Rate::gbps(10), Rate::gbps(100)]);
    pair.delay = Span::from_us(random.between(1, 500));
    let mut chance = |most: u64| if random.below(2) == 0 { 0 } else { random.below(most) as u32 };
    pair.faults = Faults { loss: chance(150_000), duplicate: chance(100_000), reorder: chance(200_000) };
    pair.queue = (random.below(2) == 0).then(|| Bytes(random.between(20_000, 300_000)));
    pair.marks_above = (random.below(2) == 0).then(|| Bytes(random.between(3_000, 60_000)));
    pair
}

struct Exchange {
    written: [usize; 2],
    read: [Vec<u8>; 2],
    fold: Fold,
    random: Random,
}

impl Exchange {
    /// Both programs write, read and close; what they do is random, too.
    fn programs(&mut self, pair: &mut Pair, streams: &[Vec<u8>; 2], buffer: &mut [u8]) {
        for end in 0..2 {
            let rest = &streams[end][self.written[end]..];
            let part = rest.len().min(self.random.between(1, 20_000) as usize);
            self.written[end] += pair.ends[end].write(&rest[..part]);
            if self.written[end] == streams[end].len() {
                pair.ends[end].close();
            }
            // A slow reader closes the window.
            if self.random.below(4) > 0 {
                let most = self.random.between(1, buffer.len() as u64) as usize;
                let count = pair.ends[end].read(&mut buffer[..most]);
                if count > 0 {
                    self.fold.push(pair.now.as_ps());
                    self.fold.push(count as u64);
                }
                self.read[end].extend_from_slice(&buffer[..count]);
            }
        }
    }

    fn finish(
        mut self,
        mut pair: Pair,
        streams: &[Vec<u8>; 2],
        controls: [ControlKind; 2],
    ) -> Result<Summary, String> {
        let mut buffer = vec![0; 32 << 10];
        let mut lost = 0;
        for step in 0.. {
            self.programs(&mut pair, streams, &mut buffer);
            let goes_on = pair.step();
            for tapped in pair.tap.iter_mut().flat_map(|tap| tap.drain(..)) {
                self.fold.push(tapped.at.as_ps());
                self.fold
                    .push(u64::from(tapped.segment.tcp.sequence) << 32 | tapped.segment.payload.len() as u64);
                self.fold.push(
                    u64::from(tapped.segment.tcp.acknowledgement) << 8
                        | u64::from(tapped.segment.tcp.flags.0),
                );
                lost += u64::from(tapped.is_lost);
            }
            if let Some(what) = pair.misread.take() {
                return Err(what);
            }
            for (came, written) in self.read.iter().rev().zip(streams) {
                if !written.starts_with(came) {
                    let place = came.iter().zip(written).take_while(|(a, b)| a == b).count();
                    return Err(format!(
                        "byte {place} of a stream of {} is another one, or too many",
                        written.len()
                    ));
                }
            }
            let is_over = (0..2).all(|end| self.read[1 - end].len() == streams[end].len());
            let is_written = (0..2).all(|end| self.written[end] == streams[end].len());
            if !goes_on && is_over && is_written {
                break;
            }
            if !goes_on && stalls(&pair) {
                return Err(format!("nothing will happen, and not all has arrived: {:?}", pair.ends));
            }
            if step > STEPS_MAX || pair.now.since(Time::ZERO) > LIMIT {
                return Err(format!("no end after {step} steps and {}: {:?}", pair.now, pair.ends));
            }
        }
        let mut counters = Counters::default();
        for end in &pair.ends {
            if end.state() != State::Closed || end.failure().is_some() {
                return Err(format!("an end is {:?}, {:?}", end.state(), end.failure()));
            }
            let one = end.counters();
            counters.segments += one.segments;
            counters.resent += one.resent;
            counters.acks += one.acks;
            counters.recoveries += one.recoveries;
            counters.timeouts += one.timeouts;
            counters.marked += one.marked;
        }
        Ok(Summary {
            digest: RunDigest::from_u128(self.fold.finish_wide()),
            controls,
            bytes: streams.iter().map(|stream| stream.len() as u64).sum(),
            counters,
            lost,
            virtual_time: pair.now.since(Time::ZERO),
        })
    }
}

/// Whether programs have nothing to do, either: what can be read will be, and gives windows again.
fn stalls(pair: &Pair) -> bool {
    pair.ends.iter().all(|end| end.readable() == 0 && end.unacknowledged() > 0)
        || pair.ends.iter().any(|end| end.failure().is_some())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hundred_seeds_pass_in_both_forms() {
        for seed in 0..100 {
            let values = super::run(seed, false).unwrap_or_else(|what| panic!("{what}"));
            let bytes = super::run(seed, true).unwrap_or_else(|what| panic!("{what}"));
            assert_eq!(values.digest, bytes.digest, "seed {seed}");
        }
    }
}
