//! The call trace: what a rank called, and when, as a file.
//!
//! Times are nanoseconds since 1970 by the clock of the host: those of several hosts differ as their clocks do.
//!
//! ```
//! use railnet_live::calls::{Call, Calls};
//!
//! let call = Call { name: "AllReduce 4 KiB Ring/LL".into(), members: vec![0, 1], entered_ns: 10, ended_ns: 25, ..Call::default() };
//! let calls = Calls { rank: 1, ranks: 2, host: "alpha".into(), calls: vec![call], ..Calls::default() };
//! assert_eq!(Calls::parse(&calls.to_string()), Some(calls));
//! ```

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The most calls that are traced; later ones are only counted.
pub const CALLS_MAX: usize = 200_000;

const HEAD: &str = "railnet calls 1";

/// A call of a rank.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Call {
    /// The ranks of the world that make it.
    pub members: Vec<u32>,
    /// Identifies the communicator of these ranks.
    pub communicator: u64,
    /// Its number in the communicator: calls of the same number belong together.
    pub sequence: u64,
    /// When this rank entered it.
    pub entered_ns: u64,
    /// When this rank's part was over.
    pub ended_ns: u64,
    /// Bytes of the largest buffer.
    pub bytes: u64,
    /// The rank of the world that all data comes from, if there is one.
    pub from: Option<u32>,
    /// The rank of the world that all data goes to, if there is one.
    pub to: Option<u32>,
    /// Whether it failed.
    pub is_failed: bool,
    /// Its name, with size, algorithm and protocol.
    pub name: String,
}

/// The call trace of a rank.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Calls {
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Its pid.
    pub process: u32,
    /// The name of its host.
    pub host: String,
    /// Its host group.
    pub group: String,
    /// The conduit to each rank, by name; "-" to itself.
    pub conduits: Vec<String>,
    /// Its calls, in the order in which they ended.
    pub calls: Vec<Call>,
    /// Calls that were only counted.
    pub missing: u64,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, ranks, process, host, group, conduits, missing, .. } = self;
        writeln!(f, "{HEAD}\nrank {rank}\nranks {ranks}\nprocess {process}\nhost {host}\ngroup {group}")?;
        writeln!(f, "conduits {}\nmissing {missing}", conduits.join(" "))?;
        for call in &self.calls {
            let Call { communicator, sequence, entered_ns, ended_ns, bytes, is_failed, name, .. } = call;
            let members: Vec<String> = call.members.iter().map(u32::to_string).collect();
            let end = |rank: Option<u32>| rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            let how = if *is_failed { "failed" } else { "done" };
            writeln!(
                f,
                "call {} {communicator} {sequence} {entered_ns} {ended_ns} {bytes} {} {} {how} {name}",
                members.join(","),
                end(call.from),
                end(call.to)
            )?;
        }
        Ok(())
    }
}

impl Calls {
    /// Parses a call trace; `None` if it is malformed or truncated.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let mut calls = Self::default();
        for line in lines {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "rank" => calls.rank = rest.parse().ok()?,
                "ranks" => calls.ranks = rest.parse().ok()?,
                "process" => calls.process = rest.parse().ok()?,
                "host" => rest.clone_into(&mut calls.host),
                "group" => rest.clone_into(&mut calls.group),
                "conduits" => calls.conduits = rest.split_whitespace().map(str::to_owned).collect(),
                "missing" => calls.missing = rest.parse().ok()?,
                "call" => calls.calls.push(Call::parse(rest)?),
                _ => return None,
            }
        }
        Some(calls)
    }
}

impl Call {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(10, ' ');
        let members = words.next()?.split(',').map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let (communicator, sequence) = (number()?, number()?);
        let (entered_ns, ended_ns, bytes) = (number()?, number()?, number()?);
        let end = |word: &str| if word == "-" { Some(None) } else { word.parse().ok().map(Some) };
        let (from, to) = (end(words.next()?)?, end(words.next()?)?);
        let is_failed = words.next()? == "failed";
        let name = words.next()?.to_owned();
        Some(Self { members, communicator, sequence, entered_ns, ended_ns, bytes, from, to, is_failed, name })
    }
}

/// The file of a rank.
pub fn path_of(path: &Path, rank: u32) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".rank{rank}"));
    PathBuf::from(name)
}

/// Traces calls while a process runs, and writes them at its end.
#[derive(Debug)]
pub(crate) struct CallTrace {
    /// The same moment on the clock of the process and on that of the host.
    began: (Instant, u64),
    file: Mutex<Option<File>>,
    is_enabled: AtomicBool,
    calls: Mutex<Calls>,
}

impl CallTrace {
    /// Begins a trace with this header, in memory alone where there is no path.
    pub(crate) fn new(path: Option<&Path>, about: Calls) -> std::io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let create = |path: &Path| {
            let name = path_of(path, about.rank);
            File::create(&name).map_err(|error| {
                let text = format!("cannot write the calls to {}: {error}", name.display());
                std::io::Error::new(error.kind(), text)
            })
        };
        let file = Mutex::new(path.map(create).transpose()?);
        let (began, is_enabled) = ((Instant::now(), now.as_nanos() as u64), AtomicBool::new(true));
        Ok(Self { began, file, is_enabled, calls: Mutex::new(about) })
    }

    /// Whether calls are traced now.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Pauses or resumes it.
    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// The trace so far.
    pub(crate) fn calls(&self) -> Calls {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the file, once.
    pub(crate) fn close(&self) {
        let Some(mut file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // There is nobody to tell; a reader sees that the file is truncated.
        let _ = file.write_all(self.calls().to_string().as_bytes());
    }

    /// Adds a call that is over now.
    pub(crate) fn record(&self, begun: Instant, call: Call) {
        let ns = |moment: Instant| self.began.1 + moment.duration_since(self.began.0).as_nanos() as u64;
        let (entered_ns, ended_ns) = (ns(begun), ns(Instant::now()));
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.calls.len() < CALLS_MAX {
            calls.calls.push(Call { entered_ns, ended_ns, ..call });
        } else {
            calls.missing += 1;
        }
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        self.close();
    }
}
