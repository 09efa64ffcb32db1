//! `railnet bench live`: Railnet against MPI and Gloo, on the same machine, in the same run, interleaved.
//!
//! Each contestant is started once for a number of ranks and a transport, and then waits in a read until it is its
//! turn; the [`protocol`] says how. A pass goes once through all collectives and sizes, and everyone measures each of
//! them before the next, so that what the machine does to one it does to all. Ratios are of one pass; the table has
//! their median and how far they lie apart.

mod contestant;
mod figures;
mod goals;
mod json;
mod load;
mod passes;
mod point;
mod probe;
pub(crate) mod protocol;
mod table;
mod team;
mod weight;

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use railnet_coll::Collective;
use railnet_core::Bytes;

use self::contestant::Contestant;
use self::figures::Group;
use self::load::Load;
use self::passes::{Found, Terms};
use self::point::{COLLECTIVES, Place, Point, Transport};
use crate::{Outcome, Usage};

const EXAMPLES: &str = "\
Examples:
  railnet bench live --quick
  railnet bench live --collectives all_reduce --sizes 8B,2KiB,32MiB --ranks 2 --transports shm
  railnet bench live --python ~/torch/bin/python --transports tcp
  railnet bench live --quick --loaded
  railnet bench live --nice -20                 on a machine where others work too

What is not installed is left out, and the output says how to get it (Debian):
  apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev; pip install torch

Sizes are of the largest buffer of a rank, as nccl-tests counts them; data is f32, reductions are sums, and results are
checked. A sendrecv goes back and forth between ranks 0 and 1, and its time is half of that. The exit status is 1 if
any result was wrong or Railnet failed; goals that are not met change nothing.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What ranks do: all_reduce, all_gather, reduce_scatter, broadcast, alltoall, sendrecv
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values_t = COLLECTIVES.map(Name))]
    collectives: Vec<Name>,
    /// How much data, such as 8B,2KiB,32MiB [default: ten sizes from 8B to 256MiB]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<Bytes>,
    /// How many ranks
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<u32>,
    /// What is between them
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["shm", "tcp"])]
    transports: Vec<Transport>,
    /// Whom to measure
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["railnet", "openmpi", "mpich", "gloo"])]
    peers: Vec<Contestant>,
    /// How many passes [default: 5]
    #[arg(long, value_name = "N")]
    repeat: Option<usize>,
    /// How long a turn takes, about, in seconds; three calls at least [default: 0.1]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Five sizes up to 32 MiB, three passes, short turns
    #[arg(long)]
    quick: bool,
    /// Keep a third process busy beside the ranks
    #[arg(long)]
    loaded: bool,
    /// How nice the ranks are to other sessions, from -20 to 19; below 0 only as root [default: that of this session]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
    /// The Python interpreter that has PyTorch
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A collective, printed as nccl-tests names it.
#[derive(Clone, Copy)]
struct Name(Collective);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.test_name())
    }
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let collective: Collective = text.parse().map_err(|error| format!("{error}"))?;
        if COLLECTIVES.contains(&collective) {
            return Ok(Self(collective));
        }
        Err(format!(
            "{collective} is not compared: one of {}",
            COLLECTIVES.map(Collective::test_name).join(", ")
        ))
    }
}

const MOST_RANKS: u32 = 64;
const MOST_BYTES: Bytes = Bytes::gib(4);

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let settings = Settings::of(arguments)?;
    let folder = Folder::new()?;
    let found: Vec<Found> = arguments
        .peers
        .iter()
        .map(|&who| {
            tell(&format!("looking for {}", who.name()));
            let is_wanted = arguments.transports.iter().any(|&transport| who.has(transport));
            let ready = if is_wanted {
                who.prepare(&folder.0, &arguments.python).map_err(|error| format!("{error:#}"))
            } else {
                Err("it has no such transport".to_owned())
            };
            (who, ready)
        })
        .collect();
    if found.iter().all(|(_, ready)| ready.is_err()) {
        tell("");
        let why = found
            .iter()
            .filter_map(|(who, ready)| Some(format!("  {}: {}", who.name(), ready.as_ref().err()?)));
        anyhow::bail!("nobody is here to be measured\n{}", why.collect::<Vec<_>>().join("\n"));
    }
    let nice = arguments.nice.or_else(|| weight::nice(std::process::id())).unwrap_or(0);
    let load =
        arguments.loaded.then(|| Load::start(nice)).transpose().context("cannot start a busy process")?;
    let terms = Terms {
        repeat: settings.repeat,
        seconds: settings.seconds,
        nice,
        folder: &folder.0,
        load: load.as_ref(),
    };
    if !arguments.json {
        writeln!(
            out,
            "f32, sums; {} interleaved passes of about {} s each; {} cores; sessions of nice {nice}\n",
            terms.repeat,
            terms.seconds,
            railnet_live::host::cores().usable
        )?;
        out.flush()?;
    }
    let mut groups = Vec::new();
    for &ranks in &arguments.ranks {
        for &transport in &arguments.transports {
            let collectives: Vec<Collective> = arguments.collectives.iter().map(|name| name.0).collect();
            let points = Point::all(&collectives, &settings.sizes, ranks);
            let group = passes::run(Place { ranks, transport }, &points, &found, &terms, tell);
            tell("");
            if !arguments.json {
                table::print(&group, out)?;
                writeln!(out)?;
                out.flush()?;
            }
            groups.push(group);
        }
    }
    if arguments.json {
        writeln!(out, "{:#}", json::of(&groups, nice))?;
    } else {
        table::verdicts(&groups, out)?;
    }
    Ok(if groups.iter().any(has_failed) { Outcome::CheckFailed } else { Outcome::Done })
}

/// Whether a result was wrong, or Railnet started and did not come to the end.
fn has_failed(group: &Group) -> bool {
    let is_wrong = group.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.wrong() > 0);
    let mut members = group.members.iter();
    is_wrong
        || members.any(|member| {
            member.who == Contestant::Railnet && member.trouble.is_some() && member.carried.of > 0.0
        })
}

/// What the options come to.
struct Settings {
    sizes: Vec<Bytes>,
    repeat: usize,
    seconds: f64,
}

impl Settings {
    fn of(arguments: &Arguments) -> Result<Self, Usage> {
        let sizes = match (&arguments.sizes[..], arguments.quick) {
            ([], true) => sizes(&["8B", "2KiB", "128KiB", "2MiB", "32MiB"]),
            ([], false) => {
                sizes(&["8B", "512B", "2KiB", "8KiB", "128KiB", "512KiB", "2MiB", "8MiB", "32MiB", "256MiB"])
            }
            (chosen, _) => chosen.to_vec(),
        };
        let repeat = arguments.repeat.unwrap_or(if arguments.quick { 3 } else { 5 });
        let seconds = arguments.seconds.unwrap_or(if arguments.quick { 0.02 } else { 0.1 });
        if let Some(size) = sizes.iter().find(|size| **size > MOST_BYTES) {
            return Err(Usage(format!("--sizes {size} is more than {MOST_BYTES}")));
        }
        if let Some(ranks) = arguments.ranks.iter().find(|ranks| !(2..=MOST_RANKS).contains(*ranks)) {
            return Err(Usage(format!("--ranks {ranks} is not between 2 and {MOST_RANKS}")));
        }
        for transport in &arguments.transports {
            if !arguments.peers.iter().any(|who| who.has(*transport)) {
                return Err(Usage(format!("none of --peers has the transport {}", transport.name())));
            }
        }
        if !(1..=1000).contains(&repeat) {
            return Err(Usage(format!("--repeat {repeat} is not between 1 and 1000")));
        }
        if !(seconds > 0.0 && seconds <= 10.0) {
            return Err(Usage(format!("--seconds {seconds} is not between 0 and 10")));
        }
        Ok(Self { sizes, repeat, seconds })
    }
}

fn sizes(all: &[&str]) -> Vec<Bytes> {
    all.iter().map(|size| size.parse().expect("sizes of our own are well written")).collect()
}

/// How far it is, on a terminal only. Nothing takes the line away.
fn tell(line: &str) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }
}

/// Sockets, logs and what was compiled: gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("railnet-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}
