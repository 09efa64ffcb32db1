//! What the runner and the ranks of a contestant say to each other.
//!
//! The runner listens at a Unix socket. Every rank connects to it once it has met the others, and says who it is. From
//! then on the runner sends the same line to every rank and each answers with a line of its own; in between all of
//! them wait in a read, so that only one contestant has work at any time. The runner knows that a turn is over when
//! every rank has answered, and the end of a connection is the end of the rank, on either side.
//!
//! ```text
//! rank     {"rank": 0, "ranks": 2, "name": "MPICH 4.0.2"}
//! runner   run all_reduce 2048 100 400 16 7
//! rank     {"median_us": 1.36, "least_us": 1.3, "mean_us": 1.4, "processor_us": 1.4, "wrong": 0}
//! runner   quit
//! ```
//!
//! `run COLLECTIVE BYTES WARMUP BATCHES CALLS SALT`: the collective as nccl-tests names it; the bytes of the largest
//! buffer of a rank, a whole number of `f32` (and of `f32` a rank, where ranks have blocks); calls that are not timed;
//! batches, each timed as a whole, and calls in each; a number that makes the data new. Reductions are sums, the root
//! is rank 0, input and output are two buffers where the library can have two. `sendrecv` goes from rank 0 to rank 1 and
//! back, and counts half of that; other ranks have no part in it and answer with zeros.
//!
//! A rank answers with times per call: the median and the least of the batches, the mean of all, and the processor time
//! that it used. `wrong` counts elements that are not what they should be, in the last timed call and in one more on new
//! data into a cleared buffer. `{"unsupported": "why"}` and `{"error": "why"}` are answers too.
//!
//! A rank may free its buffers after a turn, and must end when it hears `quit`, when its connection ends, and after a
//! limit of its own inside a call. One in Rust reads a [`Request`] from each line and writes a [`Hello`], then
//! [`Answer`]s.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use railnet_coll::Collective;
use serde::{Deserialize, Serialize};

/// The first line of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Which rank it is.
    pub(crate) rank: u32,
    /// How many there are.
    pub(crate) ranks: u32,
    /// The library and its version.
    pub(crate) name: String,
}

/// A line of the runner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Measure something.
    Run(Work),
    /// End.
    Quit,
}

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    /// The collective.
    pub(crate) collective: Collective,
    /// Bytes of the largest buffer of a rank.
    pub(crate) bytes: u64,
    /// Calls before those that are timed.
    pub(crate) warmup: u32,
    /// How many times are taken.
    pub(crate) batches: u32,
    /// Calls in each.
    pub(crate) calls: u32,
    /// Makes the data new.
    pub(crate) salt: u32,
}

/// A line of a rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    /// It ran.
    Times(Times),
    /// The library has no such thing.
    Unsupported {
        /// What it says about that.
        unsupported: String,
    },
    /// It went wrong.
    Error {
        /// What went wrong, in words.
        error: String,
    },
}

/// Microseconds per call.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The median of the batches.
    pub(crate) median_us: f64,
    /// The least of the batches.
    pub(crate) least_us: f64,
    /// All batches together.
    pub(crate) mean_us: f64,
    /// Processor time of the rank, all its threads.
    pub(crate) processor_us: f64,
    /// Elements that are not what they should be.
    pub(crate) wrong: u64,
}

impl Times {
    /// What to expect of the next call: the usual, unless stalls take more of the time than calls do.
    pub(crate) fn typical_us(&self) -> f64 {
        if self.mean_us > 3.0 * self.median_us { self.mean_us } else { self.median_us }
    }

    /// What all ranks together took: as long as the slowest, with the processor time and the mistakes of all.
    pub(crate) fn of_all(ranks: &[Self]) -> Self {
        let most = |of: fn(&Self) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
        Self {
            median_us: most(|times| times.median_us),
            least_us: most(|times| times.least_us),
            mean_us: most(|times| times.mean_us),
            processor_us: ranks.iter().map(|times| times.processor_us).sum(),
            wrong: ranks.iter().map(|times| times.wrong).sum(),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(work) => {
                let Work { collective, bytes, warmup, batches, calls, salt } = work;
                let name = collective.test_name();
                write!(f, "run {name} {bytes} {warmup} {batches} {calls} {salt}")
            }
            Self::Quit => f.write_str("quit"),
        }
    }
}

impl FromStr for Request {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u32>().with_context(|| format!("{word} in {line:?}"));
        match words[..] {
            ["quit"] => Ok(Self::Quit),
            ["run", name, bytes, warmup, batches, calls, salt] => Ok(Self::Run(Work {
                collective: name.parse()?,
                bytes: bytes.parse().with_context(|| format!("{bytes} in {line:?}"))?,
                warmup: number(warmup)?,
                batches: number(batches)?,
                calls: number(calls)?,
                salt: number(salt)?,
            })),
            _ => anyhow::bail!("neither `quit` nor `run` with six words: {line:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        for collective in Collective::ALL {
            let request =
                Request::Run(Work { collective, bytes: 1 << 33, warmup: 0, batches: 3, calls: 16, salt: 7 });
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
        assert_eq!(Request::Quit.to_string().parse::<Request>().unwrap(), Request::Quit);
        let line = "run all_reduce 2048 100 400 16 7";
        assert_eq!(line.parse::<Request>().unwrap().to_string(), line);
        for line in
            ["", "run", "stop", "run all_reduce 8 1 1 1", "run nothing 8 1 1 1 1", "run alltoall 8 -1 1 1 1"]
        {
            assert!(line.parse::<Request>().is_err(), "{line}");
        }
    }

    #[test]
    fn answers_are_told_apart_by_what_they_carry() {
        let read = |line| serde_json::from_str::<Answer>(line).unwrap();
        let line = r#"{"median_us": 1.5, "least_us": 1, "mean_us": 2, "processor_us": 2.25, "wrong": 3}"#;
        let times = Times { median_us: 1.5, least_us: 1.0, mean_us: 2.0, processor_us: 2.25, wrong: 3 };
        assert_eq!(read(line), Answer::Times(times));
        assert_eq!(read(r#"{"unsupported": "no"}"#), Answer::Unsupported { unsupported: "no".to_owned() });
        assert_eq!(read(r#"{"error": "no"}"#), Answer::Error { error: "no".to_owned() });
        assert!(serde_json::from_str::<Answer>(r#"{"median_us": 1.5}"#).is_err());
        assert!(serde_json::from_str::<Answer>("Warning: no such device").is_err());
    }

    #[test]
    fn a_turn_takes_as_long_as_its_slowest_rank() {
        let one = Times { median_us: 2.0, least_us: 1.0, mean_us: 9.0, processor_us: 2.0, wrong: 1 };
        let other = Times { median_us: 3.0, least_us: 0.5, mean_us: 3.0, processor_us: 1.0, wrong: 2 };
        let all = Times { median_us: 3.0, least_us: 1.0, mean_us: 9.0, processor_us: 3.0, wrong: 3 };
        assert_eq!(Times::of_all(&[one, other]), all);
        assert!((one.typical_us() - 9.0).abs() < 1e-9 && (other.typical_us() - 3.0).abs() < 1e-9);
    }
}
