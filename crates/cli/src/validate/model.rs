//! Every algorithm with every protocol: the simulator against NCCL's cost model, and against what no schedule can beat.

use anyhow::ensure;
use railnet_coll::tuner::Constants;
use railnet_coll::{Algorithm, Collective, Protocol};
use railnet_core::Span;

use super::measure::{Ask, Measured, Setup, each};
use super::sizes::geometric_mean;
use super::{Cell, Part};

/// An algorithm, and where it is run.
struct Way {
    kind: &'static str,
    algorithm: &'static str,
    protocols: &'static [&'static str],
    servers: &'static [u32],
    /// GPUs of each server that take part.
    gpus: u32,
    /// Whether switches of the network reduce.
    sharp: bool,
}

const ALL: &[&str] = &["ll", "ll128", "simple"];
const SIMPLE: &[&str] = &["simple"];

const WAYS: [Way; 8] = [
    Way { kind: "all_reduce", algorithm: "ring", protocols: ALL, servers: &[1, 2], gpus: 8, sharp: false },
    Way { kind: "all_reduce", algorithm: "tree", protocols: ALL, servers: &[1, 2], gpus: 8, sharp: false },
    Way { kind: "all_reduce", algorithm: "nvls", protocols: SIMPLE, servers: &[1], gpus: 8, sharp: false },
    Way {
        kind: "all_reduce",
        algorithm: "nvlstree",
        protocols: SIMPLE,
        servers: &[2],
        gpus: 8,
        sharp: false,
    },
    Way {
        kind: "all_reduce",
        algorithm: "collnetdirect",
        protocols: SIMPLE,
        servers: &[2],
        gpus: 8,
        sharp: true,
    },
    Way {
        kind: "all_reduce",
        algorithm: "collnetchain",
        protocols: SIMPLE,
        servers: &[2],
        gpus: 8,
        sharp: true,
    },
    Way { kind: "all_gather", algorithm: "pat", protocols: SIMPLE, servers: &[4], gpus: 1, sharp: false },
    Way { kind: "reduce_scatter", algorithm: "pat", protocols: SIMPLE, servers: &[4], gpus: 1, sharp: false },
];
const SIZES: [&str; 4] = ["1KiB", "1MiB", "32MiB", "256MiB"];

/// What NVLink carries for a GPU of a DGX H100 as NCCL calculates, and one of its NICs at line rate, in bytes per µs.
const NVLINK: f64 = 18.0 * 20_600.0;
const NIC: f64 = 50_000.0;

struct Job {
    servers: u32,
    ask: Ask,
    way: &'static Way,
}

impl Job {
    fn measure(&self) -> anyhow::Result<Measured> {
        let mut setup = Setup::new("dgx-h100", self.servers);
        if self.way.gpus < 8 {
            setup = setup.gpus(self.way.gpus);
        }
        if self.way.sharp {
            setup = setup.env("NCCL_COLLNET_ENABLE = 1");
            setup.more = "switch = { aggregation = {} }";
        }
        let measured = setup.measure(&[self.ask])?.remove(0);
        ensure!(measured.result.fell_back.is_none(), "{} fell back", self.way.algorithm);
        Ok(measured)
    }
}

/// The least time of a call: what starting it costs, and the bytes of its busiest port. In a ring or a tree a GPU sends
/// 2 (n - 1) / n of the data, in a switch that adds up all of it once and a share of the result; a server sends
/// 2 (N - 1) / N of it over its NICs, all rails together, and all of it once where the network's switches add up. Who
/// gathers or scatters sends (n - 1) / n. Flags of the protocol count.
fn bound_us(measured: &Measured, servers: u32) -> f64 {
    let result = &measured.result;
    let (n, nodes) = (f64::from(result.ranks), f64::from(servers));
    let bytes = result.call.bytes(result.ranks).as_u64() as f64;
    let on_the_way = result.protocol.on_the_way(1 << 20) as f64 / f64::from(1 << 20) * bytes;
    let local = n / nodes;
    let is_switch = matches!(result.algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    let in_server = if is_switch { (local + 1.0) / local } else { 2.0 * (local - 1.0) / local };
    let is_sharp = matches!(result.algorithm, Algorithm::CollNetDirect | Algorithm::CollNetChain);
    let both_ways = if result.call.collective == Collective::AllReduce { 2.0 } else { 1.0 };
    let between = if is_sharp { 1.0 } else { both_ways * (nodes - 1.0) / nodes };
    let nics = NIC * local.min(8.0);
    let row = Algorithm::TUNED.iter().position(|one| *one == result.algorithm).unwrap_or(0);
    let start = Constants::NCCL.base[row][protocol_index(result.protocol)];
    f64::from(start) + (in_server * on_the_way / NVLINK).max(between * on_the_way / nics)
}

fn protocol_index(protocol: Protocol) -> usize {
    Protocol::ALL.iter().position(|one| *one == protocol).unwrap_or(0)
}

pub(super) fn part(_: bool) -> anyhow::Result<Part> {
    let mut jobs = Vec::new();
    for way in &WAYS {
        for servers in way.servers {
            for protocol in way.protocols {
                // What carries flags is for short messages: long ones tell nothing new.
                let sizes = SIZES.iter().filter(|size| *protocol == "simple" || **size != "256MiB");
                let asks = sizes.map(|size| Ask { kind: way.kind, ..Ask::all_reduce(size, way.algorithm) });
                jobs.extend(asks.map(|ask| Job { servers: *servers, ask: ask.by(protocol), way }));
            }
        }
    }
    let measured = each(&jobs, Job::measure)?;
    let (mut rows, mut ratios, mut least) = (Vec::new(), Vec::new(), f64::MAX);
    for (job, measured) in jobs.iter().zip(&measured) {
        let bound = bound_us(measured, job.servers);
        least = least.min(measured.us / bound);
        let predicted = measured.result.estimated.map(Span::as_us_f64);
        let ratio = predicted.map(|predicted| measured.us / predicted);
        ratios.extend(ratio.map(|ratio| ratio.max(1.0 / ratio)));
        rows.push(vec![
            Cell::text(format!(
                "{} {}/{}",
                measured.result.call.collective, measured.result.algorithm, measured.result.protocol
            )),
            Cell::text(format!("{} × {}", job.servers, job.way.gpus)),
            Cell::text(job.ask.size),
            Cell::number(f64::from(measured.result.channels), 0),
            Cell::number(bound, 1),
            predicted.map_or_else(Cell::none, |predicted| Cell::number(predicted, 1)),
            Cell::number(measured.us, 1),
            ratio.map_or_else(Cell::none, |ratio| Cell::number(ratio, 2)),
        ]);
    }
    let worst = ratios.iter().copied().fold(1.0, f64::max);
    let remarks = vec![
        format!(
            "Against NCCL's model: a factor of {:.2} in the geometric mean, {worst:.2} at worst.",
            geometric_mean(&ratios)
        ),
        format!("No call is faster than its bound; the nearest takes {least:.2} times as long."),
        "NCCL's model adds up latencies and divides bytes by bandwidths; the simulator carries out steps, which overlap."
            .to_owned(),
        "Besides memory and links, threads take time in the simulator, as NCCL's model has it; the figures are those of `railnet tune` \
         (2.30.7, src/graph/tuning.cc). They are bus bandwidths: what a GPU sends, without flags. With LL all threads of a GPU \
         send at most `llMaxBws`, 141 GB/s in a server of H100, since each stores and polls 8 bytes of data at a time. Between \
         servers it is 39 GB/s, or 20 with more than two: LL's buffers for the network lie in the memory of the host, where a proxy \
         looks at every flag. With LL128 the threads of a channel send at most `perChMaxRingLL128Bws` or \
         `perChMaxTreeLL128Bws`, in trees by Simple `perChMaxTreeBws`, and by LL that over 3.8; half of it for each channel, \
         since NCCL runs two for each that its search counts. Flags are bytes like others: LL doubles them, LL128 adds one to fifteen."
            .to_owned(),
        "Not taken over from the model: its 0.92 and 0.85 for trees, 0.92 for LL128 (here 120 of 128 bytes) and its factors of 0.4 to 1 by \
         size for trees. They stand for what the simulator carries out: steps that wait for each other, GPUs with more neighbours \
         than others. Nor its limit for channels of NVLSTree, a total of several thread blocks with different work."
            .to_owned(),
    ];
    Ok(Part {
        name: "model",
        title: "Every algorithm and protocol",
        intro: "DGX H100, in microseconds: the least that any schedule takes (starting, and the bytes of\n\
                the busiest port), what NCCL's cost model says (`railnet tune`), and the simulator.",
        columns: vec![
            "by",
            "servers × GPUs",
            "size",
            "channels",
            "bound",
            "NCCL's model",
            "Railnet",
            "Railnet / model",
        ],
        rows,
        remarks,
    })
}
