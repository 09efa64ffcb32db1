//! Faults on real sockets: what goes out is lost, doubled, held up, overtaken or damaged, by rate and seed.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use railnet_core::parse::{ParseError, unknown_name};
use railnet_core::{Random, Ratio, Span, Time};

use super::batch::Lane;

/// How often what happens to a datagram on its way out, in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// It is lost.
    pub drop: u32,
    /// It goes twice.
    pub duplicate: u32,
    /// Up to eight of those behind it go first.
    pub reorder: u32,
    /// It is held for [`Faults::hold`].
    pub delay: u32,
    /// One of its bits is flipped.
    pub corrupt: u32,
    /// How long a delayed one is held.
    pub hold: Span,
    /// The seed of the dice.
    pub seed: u64,
}

impl Faults {
    /// A perfect wire.
    pub const NONE: Self =
        Self { drop: 0, duplicate: 0, reorder: 0, delay: 0, corrupt: 0, hold: Span::from_us(200), seed: 1 };

    /// Whether anything can happen at all.
    pub const fn is_none(&self) -> bool {
        self.drop | self.duplicate | self.reorder | self.delay | self.corrupt == 0
    }
}

/// A share of what is sent (`0.05`, `1/20`) as parts of a million.
pub fn share(text: &str) -> Result<u32, String> {
    let ratio: Ratio = text.parse().map_err(|error: ParseError| error.to_string())?;
    let parts = ratio.of(1_000_000);
    if parts > 1_000_000 {
        return Err("a share is 1 at most".to_owned());
    }
    Ok(parts as u32)
}

impl FromStr for Faults {
    type Err = String;

    /// Settings after each other: `drop=0.05,reorder=0.05,corrupt=1/20,delay=0.01,hold=1ms,seed=7`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Self::NONE;
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("{setting:?} has no value: write drop=0.05"))?;
            let (name, value) = (name.trim(), value.trim());
            match name {
                "drop" => faults.drop = share(value)?,
                "duplicate" => faults.duplicate = share(value)?,
                "reorder" => faults.reorder = share(value)?,
                "delay" => faults.delay = share(value)?,
                "corrupt" => faults.corrupt = share(value)?,
                "hold" => faults.hold = value.parse().map_err(|error: ParseError| error.to_string())?,
                "seed" => faults.seed = value.parse().map_err(|_| format!("seed {value:?} is no number"))?,
                _ => {
                    let names = ["drop", "duplicate", "reorder", "delay", "corrupt", "hold", "seed"];
                    return Err(unknown_name("fault", name, &names, &names).to_string());
                }
            }
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    /// As it is read again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drop, duplicate, reorder, delay, corrupt, hold, seed } = self;
        let shares = [
            ("drop", drop),
            ("duplicate", duplicate),
            ("reorder", reorder),
            ("delay", delay),
            ("corrupt", corrupt),
        ];
        for (name, share) in shares.into_iter().filter(|(_, share)| **share > 0) {
            write!(f, "{name}={},", Ratio::new(u64::from(*share), 1_000_000))?;
        }
        if *hold != Self::NONE.hold {
            write!(f, "hold={hold},")?;
        }
        write!(f, "seed={seed}")
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}

/// What was done to datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounters {
    /// Lost.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Overtaken.
    pub reordered: u64,
    /// Held up.
    pub delayed: u64,
    /// Damaged.
    pub corrupted: u64,
}

/// Datagrams that wait at most this many: what is more goes at once.
const HELD_MAX: usize = 4096;

/// An overtaken datagram waits for others no longer than this.
const OVERTAKEN_MAX: Span = Span::from_ms(1);

struct Held {
    due: Time,
    /// How many datagrams may go before it.
    passes: u32,
    datagram: Datagram,
}

/// A datagram on its own.
pub(super) struct Datagram {
    pub(super) lane: Lane,
    pub(super) network: railnet_wire::Network,
    pub(super) bytes: Vec<u8>,
}

/// Throws the dice.
pub(super) struct Injector {
    faults: Faults,
    random: Random,
    held: VecDeque<Held>,
    pub(super) counters: FaultCounters,
}

impl Injector {
    pub(super) fn new(faults: Faults) -> Self {
        let random = Random::stream(faults.seed, "socket faults", 0);
        Self { faults, random, held: VecDeque::new(), counters: FaultCounters::default() }
    }

    /// What goes out now that `datagram` is to go.
    pub(super) fn pass(&mut self, now: Time, mut datagram: Datagram, out: &mut Vec<Datagram>) {
        let Self { faults, random, counters, .. } = self;
        // Every die is thrown every time, so that one rate does not change the luck of another.
        let mut happens = |rate| random.chance(rate);
        let (drop, duplicate) = (happens(faults.drop), happens(faults.duplicate));
        let (reorder, delay, corrupt) =
            (happens(faults.reorder), happens(faults.delay), happens(faults.corrupt));
        for held in &mut self.held {
            held.passes = held.passes.saturating_sub(1);
        }
        if drop {
            counters.dropped += 1;
        } else {
            if corrupt {
                counters.corrupted += 1;
                let bit = random.below(datagram.bytes.len() as u64 * 8);
                datagram.bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            if duplicate {
                counters.duplicated += 1;
                let (lane, network, bytes) = (datagram.lane, datagram.network, datagram.bytes.clone());
                out.push(Datagram { lane, network, bytes });
            }
            let has_room = self.held.len() < HELD_MAX;
            if delay && has_room {
                counters.delayed += 1;
                self.held.push_back(Held { due: now + faults.hold, passes: u32::MAX, datagram });
            } else if reorder && has_room {
                counters.reordered += 1;
                let passes = random.between(1, 8) as u32;
                self.held.push_back(Held { due: now + OVERTAKEN_MAX, passes, datagram });
            } else {
                out.push(datagram);
            }
        }
        self.release(now, out);
    }

    /// What has waited long enough.
    pub(super) fn release(&mut self, now: Time, out: &mut Vec<Datagram>) {
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].passes == 0 || self.held[at].due <= now {
                out.extend(self.held.remove(at).map(|held| held.datagram));
            } else {
                at += 1;
            }
        }
    }

    /// When the next one has waited long enough.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.held.iter().map(|held| held.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_people_write_them() {
        let faults: Faults = "drop=0.05, reorder=1/20,corrupt=0.01,hold=1ms,seed=7".parse().unwrap();
        let expected = Faults {
            drop: 50_000,
            reorder: 50_000,
            corrupt: 10_000,
            hold: Span::from_ms(1),
            seed: 7,
            ..Faults::NONE
        };
        assert_eq!(faults, expected);
        let delayed = Faults { delay: 333, ..faults };
        for faults in [faults, delayed, Faults::NONE] {
            assert_eq!(faults.to_string().parse().as_ref(), Ok(&faults), "{faults}");
        }
        assert_eq!("".parse(), Ok(Faults::NONE));
        for (text, error) in [
            ("drop", "has no value"),
            ("drop=2", "a share is 1 at most"),
            ("loss=0.1", "unknown fault"),
            ("seed=x", "is no number"),
        ] {
            let found = text.parse::<Faults>().unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
    }
}
