//! `railnet schedule`: who sends what to whom in a collective, and the proof that it is right.

mod grid;
mod moves;
mod picture;
mod story;
mod summary;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use railnet_coll::check::{self, CheckError};
use railnet_coll::{Algorithm, Call, Choice, Collective, Protocol, Schedule, Wiring, build};
use railnet_core::{Bytes, Rank};
use railnet_formats::msccl;

use crate::files::Output;
use crate::{Outcome, Usage, input};
use moves::Moves;

const EXAMPLES: &str = "\
Examples:
  railnet schedule allreduce --algo ring --ranks 4                 the ring, step by step
  railnet schedule allreduce --algo tree --ranks 8 --nodes 4       a tree between nodes
  railnet schedule allgather --algo pat --ranks 8 --nodes 8 --size 1KiB --svg pat.svg
  railnet schedule broadcast --algo ring --ranks 8 --root 3 --rank 5   what rank 5 does
  railnet schedule allreduce --algo nvls --ranks 8 --msccl nvls.xml    write it for MSCCL
  railnet schedule --file testdata/msccl/allreduce-allpairs.xml --size 64KiB

What the output means is explained in docs/schedules.md.";

/// More ranks than this are not shown one by one.
const RANKS_MAX: u32 = 1 << 14;

/// The command line as it is written.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Raw {
    /// What the ranks do together: allreduce, broadcast, reduce, allgather, reducescatter, alltoall, gather, scatter,
    /// sendrecv or barrier
    #[arg(value_name = "COLLECTIVE", required_unless_present = "file", conflicts_with = "file")]
    collective: Option<Collective>,
    /// How: tree, ring, collnetdirect, collnetchain, nvls, nvlstree, pat, direct or p2p
    #[arg(long, value_name = "NAME", required_unless_present = "file", conflicts_with = "file")]
    algo: Option<Algorithm>,
    /// How many ranks
    #[arg(long, value_name = "N", required_unless_present = "file", conflicts_with = "file")]
    ranks: Option<u32>,
    /// On how many nodes, of the same size each
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u32,
    /// The protocol: ll, ll128 or simple
    #[arg(long, value_name = "NAME", default_value = "simple", conflicts_with = "file")]
    proto: Protocol,
    /// How much data, as nccl-tests counts it: the largest buffer of a rank
    #[arg(long, value_name = "BYTES", default_value = "1MiB")]
    size: Bytes,
    /// How many channels share the data
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    channels: u32,
    /// The rank that gives or gets, where one is special
    #[arg(long, value_name = "RANK", default_value_t = 0, conflicts_with = "file")]
    root: u32,
    /// The receiver of a sendrecv
    #[arg(long, value_name = "RANK", default_value_t = 1, conflicts_with = "file")]
    peer: u32,
    /// Input and output are the same memory
    #[arg(long, conflicts_with = "file")]
    in_place: bool,
    /// Read the algorithm from an MSCCL file (XML)
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The rank whose steps are told in words
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    rank: u32,
    /// Tell everything, however long it is
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write it as an MSCCL algorithm (XML) into this file
    #[arg(long, value_name = "FILE")]
    msccl: Option<PathBuf>,
    /// Overwrite files that are there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The command line of `schedule`, checked.
pub(crate) struct Arguments {
    from: From,
    nodes: u32,
    rank: u32,
    all: bool,
    svg: Option<PathBuf>,
    msccl: Option<PathBuf>,
    force: bool,
    json: bool,
}

/// Where the schedule comes from.
enum From {
    Built(Box<Schedule>),
    File { path: PathBuf, size: Bytes },
}

impl Args for Arguments {
    fn augment_args(command: Command) -> Command {
        Raw::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Raw::augment_args_for_update(command)
    }
}

impl FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Raw::from_arg_matches(matches)?
            .resolve()
            .map_err(|message| clap::Error::raw(ErrorKind::ValueValidation, message))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Raw {
    /// Checks what no single option can know, and builds what is asked for.
    fn resolve(self) -> Result<Arguments, String> {
        if self.nodes == 0 {
            return Err("--nodes 0: there is at least one node".into());
        }
        let from = match (self.collective, self.algo, self.ranks) {
            (Some(collective), Some(algorithm), Some(ranks)) => {
                From::Built(Box::new(self.built(collective, algorithm, ranks)?))
            }
            _ => From::File { path: self.file.clone().unwrap_or_default(), size: self.size },
        };
        let Self { nodes, rank, all, svg, msccl, force, json, .. } = self;
        Ok(Arguments { from, nodes, rank, all, svg, msccl, force, json })
    }

    fn built(&self, collective: Collective, algorithm: Algorithm, ranks: u32) -> Result<Schedule, String> {
        if ranks == 0 || ranks > RANKS_MAX {
            return Err(format!("--ranks {ranks}: from 1 to {RANKS_MAX} can be shown"));
        }
        let each = nodes_of(ranks, self.nodes)?;
        if self.rank >= ranks {
            return Err(format!("--rank {}: there are {ranks}, from 0 to {}", self.rank, ranks - 1));
        }
        let count = count(collective, self.size, ranks)?;
        let call = Call {
            root: Rank(self.root),
            peer: Rank(self.peer.min(ranks - 1)),
            in_place: self.in_place,
            ..Call::new(collective, count)
        };
        let choice = Choice::new(algorithm, self.proto).on(self.channels);
        build(&call, &choice, &Wiring::uniform(self.nodes, each)).map_err(|error| error.to_string())
    }
}

/// Ranks of each node.
fn nodes_of(ranks: u32, nodes: u32) -> Result<u32, String> {
    if ranks.is_multiple_of(nodes) {
        Ok(ranks / nodes)
    } else {
        Err(format!("{ranks} ranks cannot be shared out evenly over {nodes} nodes"))
    }
}

/// Elements of a call of this size.
fn count(collective: Collective, size: Bytes, ranks: u32) -> Result<u64, String> {
    let shared = match collective {
        Collective::Barrier => return Ok(0),
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendReceive => 1,
        _ => u64::from(ranks),
    };
    let element = Call::new(collective, 0).dtype.size() as u64;
    if size.0.is_multiple_of(element * shared) {
        return Ok(size.0 / element / shared);
    }
    Err(match shared {
        1 => format!("--size {} B: a whole number of floats of {element} bytes is needed", size.0),
        _ => format!(
            "--size {} B: a block for each of {ranks} ranks is needed, of floats of {element} bytes: a multiple of {}",
            size.0,
            element * shared
        ),
    })
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (schedule, origin) = match &arguments.from {
        From::Built(schedule) => ((**schedule).clone(), None),
        From::File { path, size } => {
            let (schedule, name) = read(path, *size)?;
            (schedule, Some(name))
        }
    };
    let nodes = if schedule.ranks.is_multiple_of(arguments.nodes) { arguments.nodes } else { 1 };
    if arguments.rank >= schedule.ranks {
        let message = format!("--rank {}: there are {} ranks", arguments.rank, schedule.ranks);
        return Err(Usage(message).into());
    }
    let svg = Output::claim_given(arguments.svg.as_deref(), arguments.force)?;
    let msccl_file = Output::claim_given(arguments.msccl.as_deref(), arguments.force)?;
    let (report, done) = match check::trace(&schedule) {
        Ok(traced) => traced,
        Err(error) => return Ok(refused(&error, out)?),
    };
    let moves = Moves::new(&schedule, &done);
    let shown = summary::Shown { schedule: &schedule, origin: origin.as_deref(), nodes, moves: &moves };
    if arguments.json {
        writeln!(out, "{}", summary::json(&shown, &report))?;
    } else {
        summary::head(&shown, out)?;
        grid::print(&shown, arguments.all, out)?;
        story::print(&shown, arguments.rank, &done, arguments.all, out)?;
        summary::print(&shown, &report, out)?;
    }
    let mut note = |output: Option<Output>, what: &str, text: &dyn Fn() -> anyhow::Result<String>| {
        let Some(output) = output else { return Ok(()) };
        let (name, text) = (output.name().to_owned(), text()?);
        output.write(|file| file.write_all(text.as_bytes()))?;
        if !arguments.json {
            writeln!(out, "  {what:<11}{}", name.display())?;
        }
        anyhow::Ok(())
    };
    note(svg, "Picture", &|| picture::draw(&shown))?;
    note(msccl_file, "MSCCL", &|| Ok(msccl::write(&schedule)?))?;
    Ok(Outcome::Done)
}

/// Reads an algorithm, which is proved in passing, and makes a schedule of it.
fn read(path: &Path, size: Bytes) -> anyhow::Result<(Schedule, String)> {
    let name = path.display();
    let text = input::text(path)?;
    let file = msccl::read(&text).map_err(|error| Usage(format!("{name} is refused\n  {error}")))?;
    let count = count(file.collective, size, file.ranks).map_err(Usage)?;
    let call = Call { root: file.root, in_place: file.in_place, ..Call::new(file.collective, count) };
    let schedule = file.schedule(&call, None).map_err(|error| Usage(format!("{name}: {error}")))?;
    Ok((schedule, format!("\"{}\" from {name}", file.name)))
}

/// A schedule that is wrong: with ours that is a mistake in Railnet.
fn refused(error: &CheckError, out: &mut dyn Write) -> std::io::Result<Outcome> {
    writeln!(out, "refused: {error}")?;
    Ok(Outcome::CheckFailed)
}
