//! `railnet perf`: collectives between real processes, measured as nccl-tests does it.

pub(crate) mod data;
pub(crate) mod measure;
mod put;
mod serve;
mod table;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use railnet_coll::{Call, Collective};
use railnet_core::parse::ParseError;
use railnet_core::{Bytes, DataType, Rank, ReduceOp, Scalar, Span};
use railnet_formats::nccl_tests::{self, Measurement, Row};
use railnet_live::calls::Calls;
use railnet_live::communicator::RoceCounters;
use railnet_live::launch::{Launch, Launcher};
use railnet_live::supervisor::{self, Output, Plan, Stream};
use railnet_live::{Communicator, Conduit};

use crate::live_record::{self, Folder};
use crate::{Outcome, Usage, processor, report};
use measure::{Bench, Measured, call_of};
use put::PutBench;
use table::Point;

const EXAMPLES: &str = "\
Examples:
  railnet perf all_reduce -n 2 -b 8 -e 256M -f 8           two ranks here, from 8 B to 256 MiB
  railnet perf all_gather -n 4 --conduit tcp -e 1M         over TCP
  railnet perf alltoall -n 4 --nodes 2                     as if on two hosts
  railnet perf put -n 2 --conduit tcp                      puts and signals into windows
  railnet perf all_reduce -n 4 --trace calls.pftrace       who called what when, for ui.perfetto.dev
  railnet perf all_reduce -n 2 --conduit roce --record run.rail   the same and packets, for railnet view
  srun -n 16 railnet perf all_reduce                       under a launcher: its ranks

The table is that of nccl-tests, and so are options and their long names (--minbytes, --maxbytes, --iters and so on), but for these:
-n is the number of ranks (with -t or -g, which say it too, it is --iters as there), sizes grow by a factor of 2 unless -i or -f say
otherwise, and -w is 5. Times are
those of one call, averaged over the iterations and over ranks (-a); every element of every result is checked after new
data was put in. put: every rank puts into the memory of the next one, signals, and waits for the signal of the one before;
out-of-place is a window that Railnet made, in-place memory that the program had already and registered.";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Call(Collective),
    /// Puts into windows.
    Put,
}

impl Subject {
    fn test_name(self) -> &'static str {
        match self {
            Self::Call(collective) => collective.test_name(),
            Self::Put => "put",
        }
    }

    const fn has_root(self) -> bool {
        matches!(self, Self::Call(collective) if collective.has_root())
    }

    /// The collective that it is, or that counts its bytes.
    const fn collective(self) -> Collective {
        match self {
            Self::Call(collective) => collective,
            Self::Put => Collective::SendReceive,
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "put" => Ok(Self::Put),
            _ => text.parse().map(Self::Call).map_err(|error: ParseError| format!("{error}; or put")),
        }
    }
}

#[derive(clap::Args, Clone)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("kept").args(["record", "trace"]).multiple(true))]
pub(crate) struct Arguments {
    /// What to measure, such as all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv, put
    #[arg(required_unless_present = "serve")]
    collective: Option<Subject>,
    /// Start so many ranks on this machine; under a launcher, its ranks are taken. With -t or -g it is --iters, as in nccl-tests
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<u32>,
    /// Spread them over so many host groups: no shared memory between these
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u32,
    /// The smallest size
    #[arg(short = 'b', long, alias = "minbytes", value_name = "SIZE", default_value = "8", value_parser = size)]
    minimum: u64,
    /// The largest size
    #[arg(short = 'e', long, alias = "maxbytes", value_name = "SIZE", default_value = "128M", value_parser = size)]
    maximum: u64,
    /// Each size is so many times the one before
    #[arg(short = 'f', long, alias = "stepfactor", value_name = "FACTOR", default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Each size is so much more than the one before, in place of a factor
    #[arg(short = 'i', long, alias = "stepbytes", value_name = "SIZE", value_parser = size, conflicts_with = "factor")]
    step: Option<u64>,
    /// The type of the elements, by its name in NCCL or in PyTorch, or all
    #[arg(short = 'd', long = "type", alias = "datatype", value_name = "TYPE", default_value = "f32")]
    dtype: Types,
    /// How they are put together: sum, prod, min, max, avg, mulsum, or all
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum")]
    op: String,
    /// The root, where there is one; sendrecv goes from it to the next rank
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Calls that are timed, for each size; fewer where a call takes long
    #[arg(long, alias = "iters", value_name = "N", default_value_t = 20)]
    iterations: u32,
    /// Calls before those
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// The conduit between all ranks: shm, tcp or roce; without it, the best for each pair
    #[arg(long, value_name = "NAME")]
    conduit: Option<Conduit>,
    /// Measure what is asked for at this socket
    #[arg(long, value_name = "SOCKET", hide = true, conflicts_with_all = ["collective", "ranks"])]
    serve: Option<PathBuf>,
    /// Check every element of so many calls before and after those that are timed; 0 checks none
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1, num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    check: u32,
    /// The time of a call: 0 that of rank 0, 1 the average over ranks, 2 the least, 3 the most
    #[arg(short = 'a', long, value_name = "0-3", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    average: u8,
    #[command(flatten)]
    theirs: Theirs,
    #[command(flatten)]
    record: live_record::Options,
    /// Replace regular files that are there
    #[arg(long, requires = "kept")]
    force: bool,
    /// Print JSON in place of the table
    #[arg(long)]
    json: bool,
    /// Print a table with commas in place of the other
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Options of nccl-tests that are about threads, GPUs and CUDA. Those that have a meaning here have theirs.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Options of nccl-tests")]
struct Theirs {
    /// Ranks are processes here: -t × -g of them are started, as -n does
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// See -t
    #[arg(short = 'g', long = "ngpus", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    gpus: Option<u32>,
    /// End the ranks that were started after so many seconds
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    /// Calls that are one operation: 1, because nothing is grouped here
    #[arg(short = 'm', long = "agg_iters", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    aggregated: u32,
    /// No effect: ranks are processes, and each makes its own communicator
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", hide_short_help = true)]
    parallel_init: Option<u8>,
    /// No effect: every call waits until it is over
    #[arg(short = 'z', long, value_name = "0|1", hide_short_help = true)]
    blocking: Option<u8>,
    /// No effect: there are no streams
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", hide_short_help = true)]
    stream_null: Option<u8>,
    /// No effect: there are no CUDA graphs
    #[arg(short = 'G', long = "cudagraph", value_name = "N", hide_short_help = true)]
    cuda_graph: Option<u32>,
    /// No effect: the processor's time is in the JSON and CSV anyway
    #[arg(short = 'C', long = "report_cputime", value_name = "0|1", hide_short_help = true)]
    report_cpu_time: Option<u8>,
    /// No effect: buffers are registered where the conduit needs it
    #[arg(short = 'R', long = "local_register", value_name = "0|1|2", hide_short_help = true)]
    local_register: Option<u8>,
}

impl Arguments {
    /// With -t or -g, which say how many ranks there are, -n is what it is in nccl-tests.
    fn with_iterations_of_theirs(mut self) -> Result<Self, Usage> {
        if let (Some(_), Some(iterations)) = (self.theirs.ranks(), self.ranks) {
            if iterations == 0 {
                return Err(Usage("-n 0: with -t or -g it is the number of calls that are timed".to_owned()));
            }
            (self.iterations, self.ranks) = (iterations, None);
        }
        Ok(self)
    }
}

impl Theirs {
    /// The ranks that -t and -g make.
    fn ranks(&self) -> Option<u32> {
        match (self.threads, self.gpus) {
            (None, None) => None,
            (threads, gpus) => threads.unwrap_or(1).checked_mul(gpus.unwrap_or(1)),
        }
    }

    fn check(&self) -> Result<(), Usage> {
        if self.aggregated > 1 {
            return Err(Usage(format!(
                "-m {}: calls are not grouped here, each is an operation of its own",
                self.aggregated
            )));
        }
        let given = [
            ("-p (--parallel_init)", self.parallel_init.is_some(), "each rank makes its own communicator"),
            ("-z (--blocking)", self.blocking.is_some(), "every call waits until it is over"),
            ("-y (--stream_null)", self.stream_null.is_some(), "there are no streams"),
            ("-G (--cudagraph)", self.cuda_graph.is_some(), "there are no CUDA graphs"),
            ("-C (--report_cputime)", self.report_cpu_time.is_some(), "--json and --csv have it anyway"),
            ("-R (--local_register)", self.local_register.is_some(), "the conduit registers what it needs"),
        ];
        for (option, _, why) in given.into_iter().filter(|(_, is_given, _)| *is_given) {
            report(&format!("note: {option} has no effect: {why}"));
        }
        Ok(())
    }
}

/// `8`, `64K`, `1MiB` and so on: as nccl-tests reads sizes, in powers of 1024, or with a unit.
fn size(text: &str) -> Result<u64, String> {
    let plain = text.trim();
    let shift = match plain.chars().last().map(|unit| unit.to_ascii_uppercase()) {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => {
            if let Ok(number) = plain.parse::<u64>() {
                return Ok(number);
            }
            return plain.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string());
        }
    };
    let number: u64 =
        plain[..plain.len() - 1].trim().parse().map_err(|_| "write 8, 64K, 1M or 1MiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is too much".to_owned())
}

/// The types that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Types {
    One(DataType),
    All,
}

impl Types {
    fn list(self) -> Vec<DataType> {
        match self {
            Self::One(dtype) => vec![dtype],
            Self::All => DataType::ALL.to_vec(),
        }
    }
}

impl FromStr for Types {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == ALL { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

/// Every operation, or every type.
const ALL: &str = "all";

/// The operations of this name; of a call that reduces nothing, there is one.
fn operations(
    name: &str,
    collective: Collective,
    dtype: DataType,
    rank: usize,
) -> Result<Vec<ReduceOp>, Usage> {
    let scalar = Scalar::from_f32(dtype, 1.0);
    let all = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Average,
        ReduceOp::PreMulSum(scalar),
    ];
    let of_rank = |op: &ReduceOp| data::of_rank(*op, dtype, rank as u32);
    if name == ALL {
        let count = if collective.reduces() { all.len() } else { 1 };
        return Ok(all[..count].iter().map(of_rank).collect());
    }
    let found = all.iter().find(|op| op.name() == name);
    found.map(|op| vec![of_rank(op)]).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|op| op.name()).collect();
        let meant = crate::words::nearest(name, &names).map(|meant| format!("; did you mean \"{meant}\"?"));
        Usage(format!(
            "there is no operation {name:?}: one of {}, or all{}",
            names.join(", "),
            meant.unwrap_or_default()
        ))
    })
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let arguments = &arguments.clone().with_iterations_of_theirs()?;
    operations(&arguments.op, Collective::AllReduce, DataType::F32, 0)?;
    let is_first = Launch::from_env().is_ok_and(|launch| match launch.launcher {
        Launcher::Alone => true,
        // The one who started it has said it.
        Launcher::Railnet => false,
        _ => launch.rank == Rank(0),
    });
    if is_first {
        arguments.theirs.check()?;
    }
    if arguments.minimum > arguments.maximum {
        let (least, most) = (arguments.minimum, arguments.maximum);
        let text =
            format!("the smallest size is {least} B, and the largest {most} B: -b must not be more than -e");
        return Err(Usage(text).into());
    }
    arguments.record.check(arguments.force)?;
    let launch = Launch::from_env()?;
    if let Some(socket) = &arguments.serve {
        serve::serve(&joined(&launch, arguments)?, socket)?;
        return Ok(Outcome::Done);
    }
    let Some(subject) = arguments.collective else {
        return Err(Usage("what is to be measured? railnet perf all_reduce -n 2".to_owned()).into());
    };
    match arguments.ranks.or_else(|| arguments.theirs.ranks()) {
        Some(ranks) if launch.launcher == Launcher::Alone => start(arguments, ranks, out),
        Some(ranks) if ranks != launch.world_size => {
            let (world, launcher) = (launch.world_size, launch.launcher);
            Err(Usage(format!("-n {ranks}, but {launcher} has started {world} ranks: leave -n out")).into())
        }
        _ => measured(arguments, subject, &joined(&launch, arguments)?, out),
    }
}

fn joined(launch: &Launch, arguments: &Arguments) -> anyhow::Result<Communicator> {
    let mut options = railnet_live::Options::from_env()?;
    options.conduit = arguments.conduit.or(options.conduit);
    options.traces_calls = arguments.record.is_on();
    Ok(Communicator::meet(&railnet_live::rendezvous::Config::from_env(launch)?, &options)?)
}

/// Prints what ranks print, as it is.
struct Plain<'a>(&'a mut dyn Write);

impl Output for Plain<'_> {
    fn line(&mut self, _rank: u32, stream: Stream, line: &[u8]) -> std::io::Result<()> {
        match stream {
            Stream::Out => {
                self.0.write_all(line)?;
                self.0.write_all(b"\n")
            }
            Stream::Error => {
                self.0.flush()?;
                let mut line = line.to_vec();
                line.push(b'\n');
                std::io::stderr().write_all(&line)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Starts ranks that do the same again.
fn start(arguments: &Arguments, ranks: u32, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let slots =
        supervisor::place_on_nodes(ranks, arguments.nodes).map_err(|error| Usage(error.to_string()))?;
    let program = std::env::current_exe().context("cannot find this program itself")?;
    let folder = arguments.record.has_packets().then(Folder::new).transpose()?;
    let plan = Plan {
        program: program.into_os_string(),
        arguments: std::env::args_os().skip(1).collect::<Vec<OsString>>(),
        slots,
        variables: folder.as_ref().map(Folder::packet_variables).unwrap_or_default(),
        grace: std::time::Duration::from_secs(2),
        limit: (arguments.theirs.timeout > 0).then(|| Duration::from_secs(arguments.theirs.timeout)),
    };
    let outcome = supervisor::run(&plan, &mut Plain(out))?;
    if let Some(folder) = &folder {
        arguments.record.add_packets(folder)?;
    }
    crate::run::judge(&outcome, &plan)
}

fn measured(
    arguments: &Arguments,
    subject: Subject,
    world: &Communicator,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let ranks = world.size() as u32;
    let (root, collective) = (arguments.root, subject.collective());
    if subject.has_root() && root >= ranks {
        return Err(
            Usage(format!("rank {root} does not exist: there are {ranks}, from 0 to {}", ranks - 1)).into()
        );
    }
    let mut bases = Vec::new();
    for dtype in arguments.dtype.list() {
        for op in operations(&arguments.op, collective, dtype, world.rank())? {
            let (root, peer) = (Rank(root), Rank((root + 1) % ranks));
            bases.push(Call { dtype, op, root, peer, ..Call::new(collective, 0) });
        }
    }
    let is_first = world.rank() == 0;
    if is_first && arguments.csv {
        writeln!(out, "{}", table::CSV)?;
    } else if is_first && !arguments.json {
        preamble(arguments, world, out)?;
    }
    let outputs = if is_first { Some(arguments.record.claim(arguments.force)?) } else { None };
    world.set_call_trace(false);
    let mut rows = Vec::new();
    for (base, bytes) in
        bases.iter().flat_map(|base| sizes(arguments, collective).map(move |bytes| (base, bytes)))
    {
        let point = point(arguments, world, subject, &call_of(base, bytes, ranks))?;
        if is_first && arguments.csv {
            point.write_csv(out)?;
        } else if is_first && !arguments.json {
            writeln!(out, "{point}")?;
            out.flush()?;
        }
        rows.push(point);
    }
    if arguments.record.is_on() {
        let noted = gathered(world)?;
        if let Some(outputs) = outputs {
            outputs.write(&live_record::assemble(&command(), &noted))?;
        }
    }
    let packets = packets_of_all(world)?;
    if is_first {
        if arguments.json {
            writeln!(out, "{:#}", table::json(subject, world, &rows, packets))?;
        } else if !arguments.csv {
            if let Some(packets) = packets {
                writeln!(out, "{}", table::packets_line(packets))?;
            }
            let rows: Vec<Row> = rows.iter().map(|point| point.row.clone()).collect();
            writeln!(out, "{}", nccl_tests::footer_of(&rows, subject.test_name()))?;
        }
    }
    let wrong = rows.iter().flat_map(|point| [point.row.out_of_place, point.row.in_place]).flatten();
    let wrong: u64 = wrong.filter_map(|one| one.wrong).sum();
    Ok(if wrong == 0 { Outcome::Done } else { Outcome::CheckFailed })
}

/// The sizes that are measured, in bytes.
fn sizes(arguments: &Arguments, collective: Collective) -> impl Iterator<Item = u64> {
    let Arguments { minimum, maximum, factor, step, .. } = *arguments;
    let next = move |bytes: &u64| match step {
        Some(step) => bytes.checked_add(step.max(1)),
        None => (*bytes).max(1).checked_mul(factor),
    };
    let most = if collective == Collective::Barrier { 1 } else { usize::MAX };
    std::iter::successors(Some(minimum), next).take_while(move |bytes| *bytes <= maximum).take(most)
}

fn preamble(arguments: &Arguments, world: &Communicator, out: &mut dyn Write) -> anyhow::Result<()> {
    let Arguments { minimum, maximum, factor, step, warmup, iterations, check, .. } = arguments;
    let growth = match step {
        Some(step) => format!("step: {step}(bytes)"),
        None => format!("step: {factor}(factor)"),
    };
    writeln!(
        out,
        "# nThread 1 nGpus 0 minBytes {minimum} maxBytes {maximum} {growth} warmup iters: {warmup} iters: {iterations} validation: {check}"
    )?;
    writeln!(out, "#")?;
    let mut kinds: Vec<Conduit> = (1..world.size()).map(|rank| world.conduit(rank)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kinds: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    let how = if kinds.is_empty() { "alone".to_owned() } else { kinds.join(" and ") };
    writeln!(
        out,
        "# {} ranks, rank 0 is process {} on {}; conduit: {how}",
        world.size(),
        std::process::id(),
        railnet_live::host::host_name()
    )?;
    writeln!(out, "#")?;
    if arguments.collective == Some(Subject::Put) {
        writeln!(
            out,
            "# out-of-place: into a window that Railnet made; in-place: into memory that was registered"
        )?;
        writeln!(out, "#")?;
    }
    write!(out, "{}", table::header())?;
    Ok(())
}

/// Packets of all ranks, where the conduit is RoCE.
fn packets_of_all(world: &Communicator) -> anyhow::Result<Option<RoceCounters>> {
    let Some(own) = world.roce_counters() else { return Ok(None) };
    let mut all = [own.sent, own.resent, own.timeouts, own.received, own.refused];
    world.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
    let [sent, resent, timeouts, received, refused] = all;
    Ok(Some(RoceCounters { sent, resent, timeouts, received, refused }))
}

/// How long all calls of a size may take, about.
const BUDGET: Span = Span::from_secs(2);

/// One size, out of place and in place.
fn point(
    arguments: &Arguments,
    world: &Communicator,
    subject: Subject,
    call: &Call,
) -> anyhow::Result<Point> {
    let ranks = world.size() as u32;
    let is_checked = arguments.check > 0;
    let (mut processor, mut moved) = (0.0, 0.0);
    let mut row = Row { call: call.clone(), ranks, out_of_place: None, in_place: None };
    for in_place in [false, true] {
        let mut bench: Box<dyn Measured> = match subject {
            Subject::Put => Box::new(PutBench::new(world, call.bytes(ranks).0 as usize, in_place)?),
            Subject::Call(collective) if in_place && !collective.has_in_place() => continue,
            Subject::Call(_) => Box::new(Bench::new(world, Call { in_place, ..call.clone() })),
        };
        let mut wrong = 0;
        for number in 0..arguments.check {
            wrong += bench.check(u64::from(in_place) + 1 + 8 * u64::from(number))?;
        }
        let first = mean(world, bench.time(arguments.warmup.max(1))?)?;
        let fits = BUDGET.as_ps() / first.as_ps().max(1);
        let calls = u64::from(arguments.iterations).min(fits.max(2)) as u32;
        world.barrier()?;
        let used = processor::seconds();
        world.set_call_trace(true);
        let time = bench.time(calls)?;
        world.set_call_trace(false);
        let mut used = [processor::seconds() - used];
        let time = overall(world, time, arguments.average)?;
        world.all_reduce_in_place(&mut used, ReduceOp::Sum)?;
        processor += used[0];
        moved += f64::from(calls) * f64::from(ranks) * call.bytes(ranks).0 as f64;
        for number in 0..arguments.check {
            wrong += bench.check(u64::from(in_place) + 5 + 8 * u64::from(number))?;
        }
        bench.end()?;
        let mut all = [wrong];
        world.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
        let measured = Some(Measurement { time, wrong: is_checked.then_some(all[0]) });
        if in_place {
            row.in_place = measured;
        } else {
            row.out_of_place = measured;
        }
    }
    let processor_ns = if moved > 0.0 { processor * 1e9 / moved } else { 0.0 };
    Ok(Point { subject, row, processor_ns })
}

/// What all ranks noted, at each of them.
fn gathered(world: &Communicator) -> anyhow::Result<Vec<Calls>> {
    let own = world.traced_calls().unwrap_or_default().to_string().into_bytes();
    let mut lengths = vec![0_u64; world.size()];
    world.all_gather(&[own.len() as u64], &mut lengths)?;
    let lengths: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
    let mut all = vec![0; lengths.iter().sum()];
    world.all_gather_v(&own, &mut all, &lengths)?;
    let mut rest = all.as_slice();
    let mut noted = Vec::new();
    for length in lengths {
        let (text, more) = rest.split_at(length);
        rest = more;
        let calls = std::str::from_utf8(text).ok().and_then(Calls::parse);
        noted.push(calls.context("what a rank noted of its calls cannot be read")?);
    }
    Ok(noted)
}

/// The command line, as somebody typed it.
fn command() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    format!("railnet {}", words.join(" "))
}

/// The time of all ranks in one, as `-a` says.
fn overall(world: &Communicator, time: Span, average: u8) -> anyhow::Result<Span> {
    let mut one = [time.as_ps()];
    match average {
        0 => world.broadcast(&mut one, 0)?,
        2 => world.all_reduce_in_place(&mut one, ReduceOp::Min)?,
        3 => world.all_reduce_in_place(&mut one, ReduceOp::Max)?,
        _ => return mean(world, time),
    }
    Ok(Span::from_ps(one[0]))
}

/// The mean over all ranks.
fn mean(world: &Communicator, time: Span) -> anyhow::Result<Span> {
    let mut sum = [time.as_ps()];
    world.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    Ok(Span::from_ps(sum[0] / world.size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_nccl_tests_and_people_write_them() {
        let read = ["8", "64K", "1M", "2g", "1MiB", "3KB"].map(|text| size(text).unwrap());
        assert_eq!(read, [8, 65_536, 1 << 20, 2 << 30, 1 << 20, 3000]);
        assert!(size("many").is_err() && size("99999999999G").is_err());
    }
}
