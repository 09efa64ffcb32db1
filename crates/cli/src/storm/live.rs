//! `railnet storm live`: random collectives between real ranks over real sockets and real memory, every element of every
//! result compared with a reference.

use std::io::Write;
use std::panic::resume_unwind;
use std::time::Duration;

use anyhow::Context as _;
use railnet_coll::{Call, Collective};
use railnet_core::{DataType, Fold, Random, Rank, ReduceOp, RunDigest, Scalar};
use railnet_live::communicator::{Options, RoceOptions};
use railnet_live::launch::{Launch, Launcher, RendezvousAddress, free_port};
use railnet_live::rendezvous::Config;
use railnet_live::roce::Faults;
use railnet_live::{Communicator, Conduit};

use super::Extent;
use crate::Outcome;
use crate::perf::data::of_rank;
use crate::perf::measure::Bench;

const EXAMPLES: &str = "\
Examples:
  railnet storm live --seeds 100                         10,000 collectives, over one conduit and another
  railnet storm live --seeds 100 --conduit roce          over RoCEv2, with 5 % lost, 5 % overtaken and 5 % damaged
  railnet storm live --conduit roce --faults drop=0.2    with a worse wire
  railnet storm live --seeds 1 --seed 0x5eed             one seed again";

/// What happens to packets unless told otherwise.
const FAULTS: &str = "drop=0.05,reorder=0.05,corrupt=0.05";
/// How long a call may stand still: far longer than anything takes that goes well.
const LIMIT: Duration = Duration::from_mins(1);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    extent: Extent,
    /// Collectives of each seed, between ranks that meet anew
    #[arg(long, default_value_t = 100)]
    calls: u32,
    /// The conduit: shm, tcp or roce; without it, seeds take turns
    #[arg(long, value_name = "NAME")]
    conduit: Option<Conduit>,
    /// What happens to RoCEv2 packets, by share of what is sent; the seed is that of the run
    #[arg(long, value_name = "FAULTS", default_value = FAULTS)]
    faults: Faults,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let conduit = arguments.conduit.map_or_else(String::new, |conduit| format!(" --conduit {conduit}"));
    let replay =
        format!("railnet storm live --calls {}{conduit} --faults {}", arguments.calls, arguments.faults);
    let one = |seed| {
        let conduit = arguments.conduit.unwrap_or(Conduit::ALL[(seed % 3) as usize]);
        let faults = Faults { seed, ..arguments.faults };
        storm(seed, conduit, arguments.calls, faults).map_err(|error| format!("seed {seed:#x}: {error:#}"))
    };
    super::storm::<Totals>(&arguments.extent, &replay, one, out)
}

/// What came of one seed.
struct Summary {
    conduit: Conduit,
    ranks: u32,
    calls: u64,
    bytes: u64,
    damaged: u64,
    digest: RunDigest,
}

/// What a rank says at the end.
struct Report {
    bytes: u64,
    damaged: u64,
    digest: u128,
}

/// Ranks in threads meet, make random calls, and leave.
fn storm(seed: u64, conduit: Conduit, calls: u32, faults: Faults) -> anyhow::Result<Summary> {
    let ranks = Random::stream(seed, "live ranks", 0).between(2, 4) as u32;
    let port = free_port().context("cannot find a free port")?;
    let options = Options {
        limit: LIMIT,
        conduit: Some(conduit),
        roce: RoceOptions { faults, ..RoceOptions::default() },
        ..Options::default()
    };
    let reports = std::thread::scope(|scope| {
        let start = |rank| {
            let launch = Launch {
                launcher: Launcher::Torchrun,
                rank: Rank(rank),
                world_size: ranks,
                rendezvous: Some(RendezvousAddress::new("127.0.0.1", port)),
                job: format!("storm {seed:#x}"),
                ..Launch::alone()
            };
            let config = Config { limit: LIMIT, ..Config::new(&launch) };
            let options = options.clone();
            scope.spawn(move || play(&Communicator::meet(&config, &options)?, seed, calls))
        };
        let started: Vec<_> = (0..ranks).map(start).collect();
        let ended = started.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    });
    let mut summary = Summary {
        conduit,
        ranks,
        calls: calls.into(),
        bytes: 0,
        damaged: 0,
        digest: RunDigest::from_u128(0),
    };
    for (rank, report) in reports.into_iter().enumerate() {
        let Report { bytes, damaged, digest } =
            report.with_context(|| format!("rank {rank} of {ranks} ({conduit})"))?;
        summary.bytes += bytes;
        summary.damaged += damaged;
        summary.digest = RunDigest::from_u128(digest);
    }
    Ok(summary)
}

/// What one rank does.
fn play(world: &Communicator, seed: u64, calls: u32) -> anyhow::Result<Report> {
    let (rank, ranks) = (world.rank() as u32, world.size() as u32);
    // All ranks draw the same random numbers.
    let mut random = Random::stream(seed, "live calls", 0);
    let (mut bytes, mut fold) = (0, Fold::new());
    for number in 0..calls {
        let call = random_call(&mut random, ranks);
        let salt = random.below(1000);
        for word in [call.collective as u64, call.dtype as u64, call.block_of(0, ranks), salt] {
            fold.push(word);
        }
        bytes += call.bytes(ranks).0;
        let own = Call { op: of_rank(call.op, call.dtype, rank), ..call.clone() };
        let what = || {
            let Call { collective, dtype, op, root, in_place, .. } = &call;
            let count = call.block_of(0, ranks);
            let place = if *in_place { ", in place" } else { "" };
            format!("call {number}: {collective} of {count} {dtype}, {}, root {}{place}", op.name(), root.0)
        };
        let wrong = Bench::new(world, own).check(salt).with_context(what)?;
        anyhow::ensure!(wrong == 0, "{}: {wrong} elements are wrong", what());
    }
    world.barrier()?;
    Ok(Report { bytes, damaged: world.unauthenticated_refused(), digest: fold.finish_wide() })
}

fn random_call(random: &mut Random, ranks: u32) -> Call {
    let collective = *random.pick(&Collective::ALL);
    let dtype = *random.pick(&DataType::ALL);
    let scalar = Scalar::from_f32(dtype, 1.0);
    let ops = [
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Product,
        ReduceOp::Sum,
        ReduceOp::Average,
        ReduceOp::PreMulSum(scalar),
    ];
    // Sums of more than two are not exact with two bits of fraction: what comes out depends on the order.
    let exact = if dtype == DataType::F8E5M2 { 3 } else { ops.len() };
    let op = *random.pick(&ops[..exact]);
    let count = match random.below(10) {
        0 => random.below(3),
        1..=5 => random.below(100),
        6..=8 => random.below(5_000),
        _ => random.below(60_000),
    };
    let root = random.below(u64::from(ranks)) as u32;
    let cannot = matches!(collective, Collective::AllToAll | Collective::SendReceive | Collective::Barrier);
    let in_place = random.below(2) == 0 && !cannot;
    let (root, peer) = (Rank(root), Rank((root + 1) % ranks));
    Call { dtype, op, root, peer, in_place, ..Call::new(collective, count) }
}

impl super::Summary for Summary {
    fn digest(&self) -> RunDigest {
        self.digest
    }

    fn line(&self) -> String {
        let Self { conduit, ranks, calls, bytes, damaged, .. } = self;
        format!(
            "{ranks} ranks over {conduit}, {calls} collectives, {bytes} bytes, {damaged} packets thrown away"
        )
    }
}

/// All seeds together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    ranks: u64,
    bytes: u64,
    damaged: u64,
    calls: [u64; Conduit::ALL.len()],
}

impl super::Totals for Totals {
    type One = Summary;

    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.ranks += u64::from(summary.ranks);
        self.bytes += summary.bytes;
        self.damaged += summary.damaged;
        self.calls[summary.conduit as usize] += summary.calls;
    }

    fn print(&self, out: &mut dyn Write, failed: usize) -> std::io::Result<()> {
        let calls = Conduit::ALL.iter().zip(self.calls).filter(|(_, calls)| *calls > 0);
        let calls: Vec<String> = calls.map(|(conduit, calls)| format!("{calls} over {conduit}")).collect();
        writeln!(out, "seeds           {} passed, {failed} failed", self.seeds)?;
        writeln!(out, "ranks           {}", self.ranks)?;
        writeln!(out, "collectives     {}", calls.join(", "))?;
        writeln!(out, "data            {} bytes, every element checked", self.bytes)?;
        writeln!(out, "thrown away     {} packets, damaged on the way", self.damaged)
    }
}
