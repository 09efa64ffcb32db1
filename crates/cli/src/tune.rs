//! `railnet tune`: which algorithm and protocol runs a call, and why.

pub(crate) mod cluster;
mod json;
mod sweep;
mod table;

use std::io::{IsTerminal as _, Write};
use std::path::PathBuf;

use railnet_coll::init_log::Start;
use railnet_coll::search::search;
use railnet_coll::tuner::{Inputs, Request, Table, choose};
use railnet_coll::variables::{Place, TUNED};
use railnet_coll::{Call, Collective};
use railnet_core::{Bytes, DataType, ReduceOp};

use crate::{Outcome, catalogue, environment, report, words};
use cluster::Target;

const EXAMPLES: &str = "\
Examples:
  railnet tune allreduce 64MiB --cluster dgx-h100x8          what each algorithm would cost, and who wins
  railnet tune allreduce --sweep --cluster dgx-h100          the winner at all sizes
  railnet tune allgather 1MiB --cluster dgx-a100x4 --proto ^LL128
  NCCL_ALGO=ring railnet tune allreduce 1GiB --cluster dgx-h100x2
  NCCL_DEBUG=INFO railnet tune allreduce 1GiB --cluster dgx-h100x2   and NCCL's lines about channels and paths

NCCL's variables count where they mean something: railnet knobs lists them.";

/// The largest size that crossovers and sweeps look at.
const MOST: Bytes = Bytes(1 << 34);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The collective, such as allreduce
    #[arg(value_parser = collective)]
    collective: Collective,
    /// Bytes of the largest buffer, such as 64MiB
    #[arg(required_unless_present = "sweep", allow_hyphen_values = true)]
    size: Option<Bytes>,
    /// The cluster: a name such as dgx-h100x8, a scenario with [cluster], or an NCCL topology file (XML)
    #[arg(long, value_name = "FILE|NAME", value_parser = Target::parse)]
    cluster: Option<Target>,
    #[command(flatten)]
    catalogue: catalogue::Files,
    /// How many servers, where the cluster is an NCCL topology file: it describes one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    nodes: Option<u32>,
    /// The type of the elements
    #[arg(long = "type", default_value = "f32")]
    dtype: DataType,
    /// How contributions are put together: sum, prod, min, max or avg
    #[arg(long, default_value = "sum", value_parser = operation)]
    op: ReduceOp,
    /// The same as NCCL_ALGO, and wins over it
    #[arg(long, value_name = "LIST")]
    algo: Option<String>,
    /// The same as NCCL_PROTO, and wins over it
    #[arg(long, value_name = "LIST")]
    proto: Option<String>,
    /// A file of NCCL's variables, lines of NAME=VALUE; the environment wins over it
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// The winner at each power of two
    #[arg(long)]
    sweep: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is asked, and all that the answer follows from.
struct Question {
    name: String,
    inputs: Inputs,
    request: Request,
    bold: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let named = |name: &str, value: &Option<String>| value.clone().map(|value| (name.to_owned(), value));
    let options = [named("NCCL_ALGO", &arguments.algo), named("NCCL_PROTO", &arguments.proto)];
    let scenario = arguments.cluster.as_ref().map_or(Ok(Vec::new()), Target::variables)?;
    let file = arguments.env_file.as_deref();
    let variables =
        environment::variables(Place::Tune, scenario, file, options.into_iter().flatten().collect())?;
    let known = arguments.catalogue.read()?.servers;
    let target = arguments.cluster.as_ref();
    if let Some(Target::File(path)) = target {
        arguments.catalogue.refuse_beside(path)?;
    }
    let cluster = cluster::resolve(&known, target, variables.topology_file(), arguments.nodes)?;
    let graphs = search(&cluster.host, cluster.nodes, &variables.topology())?;
    let inputs = Inputs::of(&cluster, &graphs, variables.settings(), variables.collnet());
    let bytes = arguments.size.unwrap_or(Bytes::ZERO);
    let request =
        Request { dtype: arguments.dtype, op: arguments.op, ..Request::new(arguments.collective, bytes) };
    let start = Start::new(&cluster, &graphs, &inputs, &variables);
    // All ranks would say much the same; a person wants to read one.
    start.lines(0).iter().for_each(|line| report(line));
    if arguments.size.is_some()
        && let Ok(decision) = choose(&inputs, &request)
        && let Some(line) = start.decision(&request, &decision)
    {
        report(&line);
    }
    let is_plain = std::env::var_os("NO_COLOR").is_some();
    let bold = std::io::stdout().is_terminal() && !is_plain;
    let question = Question { name: cluster.name.clone(), inputs: inputs.clone(), request, bold };
    question.answer(arguments, out)?;
    Ok(Outcome::Done)
}

impl Question {
    fn answer(&self, arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
        if arguments.json {
            let value = json::object(self, arguments.sweep)?;
            writeln!(out, "{value:#}")?;
            return Ok(());
        }
        if arguments.sweep {
            return sweep::print(self, out);
        }
        if TUNED.contains(&self.request.collective) {
            let table = Table::new(&self.inputs, &self.request);
            return table::print(self, &table, out);
        }
        let decision = choose(&self.inputs, &self.request)?;
        writeln!(out, "{}", self.headline())?;
        writeln!(out, "{}", table::transfers(&self.request, &decision, self.inputs.ranks))?;
        Ok(())
    }

    /// `AllReduce, 64 MiB, 64 ranks on 8 nodes`.
    fn headline(&self) -> String {
        let Inputs { ranks, nodes, .. } = self.inputs;
        let size = if self.request.bytes == Bytes::ZERO {
            String::new()
        } else {
            format!(", {}", size(self.request.bytes))
        };
        format!(
            "{}{size}, {} on {} ({})",
            self.request.collective,
            words::count(u64::from(ranks), "rank", "ranks"),
            words::count(u64::from(nodes), "node", "nodes"),
            self.name,
        )
    }

    fn bold(&self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Reads a collective, and says which one was meant.
fn collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|error: railnet_core::parse::ParseError| {
        let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
        let names = Collective::ALL.map(|one| one.test_name().replace('_', ""));
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        match words::nearest(&plain, &known) {
            Some(meant) => format!("{error}; did you mean \"{meant}\"?"),
            None => error.to_string(),
        }
    })
}

fn operation(text: &str) -> Result<ReduceOp, String> {
    let all = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::Average];
    let found = all.into_iter().find(|op| op.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("write {}", all.map(ReduceOp::name).join(", ")))
}

/// An amount of data in binary units with three digits or more: `64 MiB`, `91.3 KiB`.
fn size(bytes: Bytes) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes.0 >= *unit) else {
        return format!("{} B", bytes.0);
    };
    let value = bytes.0 as f64 / unit as f64;
    let digits = if bytes.0.is_multiple_of(unit) { 0 } else { 2 - (value.log10() as usize).min(2) };
    format!("{value:.digits$} {name}")
}

/// What a call of so many bytes reaches on the bus, in GB/s.
fn bus_bandwidth(collective: Collective, ranks: u32, bytes: u64, time_us: f32) -> f64 {
    let factor = collective.bus_factor(ranks);
    if time_us > 0.0 { bytes as f64 / f64::from(time_us) / 1000.0 * factor } else { 0.0 }
}

/// What one rank gives to another in grouped sends and receives.
fn per_peer(request: &Request, ranks: u32) -> Bytes {
    let each = Call::new(request.collective, 1).bytes(ranks).0
        / Call::new(request.collective, 1).dtype.size() as u64;
    Bytes(request.bytes.0.checked_div(each).unwrap_or(0))
}
