//! Every algorithm with every protocol: the simulator against NCCL's cost model, and against what no schedule can beat.

use railnet_coll::tuner::Constants;
use railnet_coll::{Algorithm, Protocol};
use railnet_core::Span;

use super::measure::{Ask, Measured, Setup, each};
use super::sizes::geometric_mean;
use super::{Cell, Part};

/// Protocols of each algorithm, and the numbers of servers that it is run on.
const WAYS: [(&str, &[&str], &[u32]); 4] = [
    ("ring", &["ll", "ll128", "simple"], &[1, 2]),
    ("tree", &["ll", "ll128", "simple"], &[1, 2]),
    ("nvls", &["simple"], &[1]),
    ("nvlstree", &["simple"], &[2]),
];
const SIZES: [&str; 4] = ["1KiB", "1MiB", "32MiB", "256MiB"];

/// What NVLink carries for a GPU of a DGX H100 as NCCL calculates, and its eight NICs at line rate, in bytes per µs.
const NVLINK: f64 = 18.0 * 20_600.0;
const NICS: f64 = 8.0 * 50_000.0;

struct Job {
    servers: u32,
    ask: Ask,
}

/// The least time of a call: what starting it costs, and the bytes of its busiest port. In a ring or a tree a GPU sends
/// 2 (n - 1) / n of the data, in a switch that adds up all of it once and a share of the result; a server sends
/// 2 (N - 1) / N of it over its NICs, all rails together. Flags of the protocol count.
fn bound_us(measured: &Measured, servers: u32) -> f64 {
    let result = &measured.result;
    let (n, nodes) = (f64::from(result.ranks), f64::from(servers));
    let bytes = result.call.bytes(result.ranks).as_u64() as f64;
    let on_the_way = result.protocol.on_the_way(1 << 20) as f64 / f64::from(1 << 20) * bytes;
    let local = n / nodes;
    let is_switch = matches!(result.algorithm, Algorithm::Nvls | Algorithm::NvlsTree);
    let in_server = if is_switch { (local + 1.0) / local } else { 2.0 * (local - 1.0) / local };
    let between = 2.0 * (nodes - 1.0) / nodes;
    let row = Algorithm::TUNED.iter().position(|one| *one == result.algorithm).unwrap_or(0);
    let start = Constants::NCCL.base[row][protocol_index(result.protocol)];
    f64::from(start) + (in_server * on_the_way / NVLINK).max(between * on_the_way / NICS)
}

fn protocol_index(protocol: Protocol) -> usize {
    Protocol::ALL.iter().position(|one| *one == protocol).unwrap_or(0)
}

pub(super) fn part(_: bool) -> anyhow::Result<Part> {
    let mut jobs = Vec::new();
    for (algorithm, protocols, servers) in WAYS {
        for servers in servers {
            for protocol in protocols {
                // What carries flags is for short messages: long ones tell nothing new.
                let sizes = SIZES.iter().filter(|size| *protocol == "simple" || **size != "256MiB");
                let asks = sizes.map(|size| Ask::all_reduce(size, algorithm).by(protocol));
                jobs.extend(asks.map(|ask| Job { servers: *servers, ask }));
            }
        }
    }
    let measured = each(&jobs, |job| Ok(Setup::new("dgx-h100", job.servers).measure(&[job.ask])?.remove(0)))?;
    let (mut rows, mut ratios, mut least) = (Vec::new(), Vec::new(), f64::MAX);
    for (job, measured) in jobs.iter().zip(&measured) {
        let bound = bound_us(measured, job.servers);
        least = least.min(measured.us / bound);
        let predicted = measured.result.predicted.map(Span::as_us_f64);
        let ratio = predicted.map(|predicted| measured.us / predicted);
        ratios.extend(ratio.map(|ratio| ratio.max(1.0 / ratio)));
        rows.push(vec![
            Cell::text(format!("{}/{}", measured.result.algorithm, measured.result.protocol)),
            Cell::number(f64::from(job.servers), 0),
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
        "LL of many bytes: NCCL's model has measured limits for it (`llMaxBw`: 141 GB/s in a server, 39 GB/s between two), the \
         simulator has not. NCCL does not choose LL for such sizes, so it shows only where LL is asked for."
            .to_owned(),
        "Trees between servers: the model multiplies their bandwidth by correction factors of 0.5 to 0.9 for most sizes. The \
         simulator has none, and the tree in \"Several servers\" suggests that it needs few."
            .to_owned(),
    ];
    Ok(Part {
        name: "model",
        title: "Every algorithm and protocol",
        intro: "All-reduce in one and in two DGX H100, in microseconds: the least that any schedule takes (starting, and the bytes of\n\
                the busiest port), what NCCL's cost model says (`railnet tune`), and the simulator.",
        columns: vec![
            "by",
            "servers",
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
