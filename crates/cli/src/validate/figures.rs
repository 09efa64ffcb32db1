//! Figures that people measured on real servers and clusters, one by one.

use super::measure::{Ask, Measured, Setup, each};
use super::{Cell, Part};

/// A published figure, and what gives it here.
struct Figure {
    what: &'static str,
    /// From and to; the same where there is one number.
    published: (f64, f64),
    source: &'static str,
    setup: Setup,
    ask: Ask,
    /// In microseconds, not GB/s.
    is_time: bool,
    is_long: bool,
}

impl Figure {
    fn new(what: &'static str, published: (f64, f64), source: &'static str, setup: Setup, ask: Ask) -> Self {
        Self { what, published, source, setup, ask, is_time: false, is_long: false }
    }

    /// Only with `--full`.
    fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    /// Published as a time, in microseconds.
    fn time(mut self) -> Self {
        self.is_time = true;
        self
    }

    /// How far from the nearest of what was published: nothing inside its range.
    fn difference(&self, value: f64) -> f64 {
        let (low, high) = self.published;
        if value < low {
            value / low - 1.0
        } else if value > high {
            value / high - 1.0
        } else {
            0.0
        }
    }

    fn row(&self, measured: &Measured) -> Vec<Cell> {
        let value = if self.is_time { measured.us } else { measured.bus };
        let (low, high) = self.published;
        let unit = if self.is_time { " µs" } else { "" };
        let published = if low < high { format!("{low}–{high}{unit}") } else { format!("{low}{unit}") };
        let how = format!("{}/{}", measured.result.algorithm, measured.result.protocol);
        vec![
            Cell::text(self.what),
            Cell::text(self.ask.size),
            Cell::text(how),
            Cell::text(published),
            Cell::number(value, 1),
            Cell::difference(self.difference(value)),
            Cell::text(self.source),
        ]
    }
}

const COLUMNS: [&str; 7] = ["what", "size", "by", "published", "Railnet", "difference", "source"];

fn part(
    (name, title, intro): (&'static str, &'static str, &'static str),
    figures: Vec<Figure>,
    is_full: bool,
    reasons: &[&str],
) -> anyhow::Result<Part> {
    let figures: Vec<Figure> = figures.into_iter().filter(|figure| is_full || !figure.is_long).collect();
    let measured = each(&figures, |figure| Ok(figure.setup.measure(&[figure.ask])?.remove(0)))?;
    let rows: Vec<_> = figures.iter().zip(&measured).map(|(figure, measured)| figure.row(measured)).collect();
    let differences = figures.iter().zip(&measured).filter(|(figure, _)| !figure.is_time);
    let mut differences: Vec<f64> =
        differences.map(|(figure, measured)| figure.difference(measured.bus).abs()).collect();
    differences.sort_by(f64::total_cmp);
    let mut remarks = Vec::new();
    if let Some(worst) = differences.last() {
        let within = differences.iter().filter(|difference| **difference <= 0.05).count();
        remarks.push(format!(
            "Of {} bandwidths, {within} are within 5 % of what was measured; half are within {:.1} %, the worst is {:.1} % off.",
            differences.len(),
            100.0 * differences[differences.len() / 2],
            100.0 * worst
        ));
    }
    remarks.extend(reasons.iter().map(|reason| (*reason).to_owned()));
    Ok(Part { name, title, intro, columns: COLUMNS.to_vec(), rows, remarks })
}

/// One server.
pub(super) fn servers(is_full: bool) -> anyhow::Result<Part> {
    let h100 = || Setup::new("dgx-h100", 1);
    let a100 = || Setup::new("dgx-a100", 1);
    let ring = |what, gpus| {
        let ask = Ask::all_reduce("2GiB", "ring");
        Figure::new(what, (365.0, 370.0), "nccl#1455, nccl-tests#212", h100().gpus(gpus), ask)
    };
    let nvls = |what, gpus, bus| {
        let ask = Ask::all_reduce("2GiB", "nvls");
        Figure::new(what, (bus, bus), "nccl#1455, nccl-tests#212", h100().gpus(gpus), ask)
    };
    let scatter = Ask { kind: "reduce_scatter", ..Ask::all_reduce("2GiB", "ring") };
    let b200 = Setup::new("dgx-b200", 1);
    let ll128 = |what, gpus, bus| {
        let ask = Ask::all_reduce("1GiB", "ring").by("ll128");
        Figure::new(what, bus, "nccl#2343", Setup::new("dgx-b200", 1).gpus(gpus), ask)
    };
    let figures = vec![
        ring("2 H100, ring", 2),
        ring("4 H100, ring", 4),
        ring("8 H100, ring", 8),
        nvls("2 H100, NVLS", 2, 370.0),
        nvls("4 H100, NVLS", 4, 370.0),
        nvls("5 H100, NVLS", 5, 420.0),
        nvls("6 H100, NVLS", 6, 440.0),
        nvls("7 H100, NVLS", 7, 460.0),
        nvls("8 H100, NVLS", 8, 480.0),
        Figure::new("8 H100, reduce-scatter", (366.0, 366.0), "README of NCCL's Inspector", h100(), scatter),
        Figure::new("8 B200", (830.0, 830.0), "nccl#1807", b200, Ask::all_reduce("2GiB", "")),
        Figure::new(
            "8 A100, ring",
            (200.0, 200.0),
            "nccl-tests#149",
            a100(),
            Ask::all_reduce("1GiB", "ring"),
        ),
        Figure::new(
            "2 A100, ring",
            (208.0, 208.0),
            "nccl-tests#178",
            a100().gpus(2),
            Ask::all_reduce("1GiB", "ring"),
        ),
        ll128("2 B200, ring by LL128", 2, (382.0, 386.0)),
        ll128("3 B200, ring by LL128", 3, (479.0, 479.0)),
        Figure::new(
            "72 GB200",
            (681.0, 681.0),
            "coreweave/nccl-tests#43",
            Setup::new("gb200-nvl72", 1),
            Ask::all_reduce("1GiB", "nvls"),
        )
        .long(),
        Figure::new(
            "72 GB200",
            (839.0, 839.0),
            "coreweave/nccl-tests#43",
            Setup::new("gb200-nvl72", 1),
            Ask::all_reduce("4GiB", "nvls"),
        )
        .long(),
    ];
    let about = (
        "servers",
        "One server",
        "All-reduce unless a row says otherwise. Where a source gives several sizes or servers, the published figure is a range,\n\
         and the difference is that to its nearer end.",
    );
    part(about, figures, is_full, &SERVER_REASONS)
}

const SERVER_REASONS: [&str; 3] = [
    "Two GPUs by NVLS: each sends all of its data to the switch and half of the result, so 371 / 1.5 = 247 GB/s is the most that \
     NVLink allows. What was measured as 370 with `NCCL_ALGO=NVLS` must be another algorithm.",
    "A100: NCCL calculates with 20 GB/s for each of 12 NVLinks, and so does the simulator; the servers that people measured \
     reach 83 to 87 % of it. For a DGX A100 230 GB/s is often quoted, 96 %.",
    "B200 by LL128: NCCL's model has 40 GB/s for a channel, and so has the simulator; NCCL finds 12 channels for three GPUs, 480 GB/s, and \
     16 for two, 640. Railnet's search finds 16 for both. That two GPUs reach 60 % of it is what the source is about: no constant says \
     so yet.",
];

/// Few bytes.
pub(super) fn latency(is_full: bool) -> anyhow::Result<Part> {
    let figure =
        |what, published, source, setup, ask| Figure::new(what, published, source, setup, ask).time();
    let a100 = |gpus| Setup::new("dgx-a100", 1).gpus(gpus);
    let ring = Ask { channels: Some(1), ..Ask::all_reduce("128B", "ring").by("ll") };
    let nvls = Ask::all_reduce("512B", "nvls");
    let tree = Ask::all_reduce("1KiB", "nvlstree");
    let figures = vec![
        figure("2 A100, ring, 1 channel", (10.0, 10.0), "nccl-tests#123", a100(2), ring),
        figure("4 A100, ring, 1 channel", (16.9, 16.9), "nccl-tests#123", a100(4), ring),
        figure("8 A100, ring, 1 channel", (33.7, 33.7), "nccl-tests#123", a100(8), ring),
        figure(
            "2 H100, NVLS, in a CUDA graph",
            (5.6, 6.0),
            "nccl#1259",
            Setup::new("dgx-h100", 1).gpus(2),
            nvls,
        ),
        figure(
            "2 × 1 A100",
            (19.0, 19.0),
            "nccl-tests#150",
            Setup::new("dgx-a100", 2).gpus(1),
            Ask::all_reduce("8B", ""),
        ),
        figure("2 × 8 GPUs, NVLSTree", (46.0, 48.0), "H20 in nccl#1244", Setup::new("dgx-h100", 2), tree),
    ];
    let about = ("latency", "Few bytes", "All-reduce, in microseconds: nothing but starting and steps.");
    part(about, figures, is_full, &LATENCY_REASONS)
}

const LATENCY_REASONS: [&str; 3] = [
    "Rings: NCCL's table has 0.6 µs for a step over NVLink with LL, and the simulator takes that; the posted times grow by 2 µs \
     with each step.",
    "NVLS: NCCL's table has 25 µs for it, whatever the size; inside a CUDA graph a call starts sooner.",
    "NVLSTree: NCCL's table has 20.9 µs for each way over the network; the simulator takes what packets, PCIe and CPUs need, \
     which is less.",
];

/// Several servers.
pub(super) fn clusters(is_full: bool) -> anyhow::Result<Part> {
    let h100 = |nodes| Setup::new("dgx-h100", nodes);
    let a100 = |nodes| Setup::new("dgx-a100", nodes);
    // Four of the eight NICs.
    let h100_4 = |nodes| h100(nodes).env("NCCL_IB_HCA = \"=mlx5_0,mlx5_4,mlx5_6,mlx5_10\"");
    let a100_4 = |nodes| a100(nodes).env("NCCL_IB_HCA = \"=mlx5_0,mlx5_2,mlx5_6,mlx5_8\"");
    let all_to_all = Ask { kind: "alltoall", ..Ask::all_reduce("64MiB", "") };
    let ring = |size| Ask::all_reduce(size, "ring");
    let tree = |size, bus| {
        let ask = Ask::all_reduce(size, "tree").by("simple");
        Figure::new("2 × 1 H100, tree", (bus, bus), "nccl-tests#232", h100(2).gpus(1), ask)
    };
    let figures = vec![
        Figure::new(
            "2 × 8 H100, 8 × 400G, ring",
            (370.0, 390.0),
            "nccl-tests#290, #196",
            h100(2),
            ring("512MiB"),
        ),
        Figure::new(
            "2 × 8 H100, 8 × 400G, NVLSTree",
            (470.0, 470.0),
            "nccl#2409, nccl-tests#309",
            h100(2),
            Ask::all_reduce("512MiB", "nvlstree"),
        ),
        Figure::new(
            "4 × 8 H100, 8 × 400G, NVLSTree",
            (370.0, 380.0),
            "GTC 2024 slides in nccl#1649",
            h100(4),
            Ask::all_reduce("512MiB", "nvlstree"),
        ),
        Figure::new(
            "4 × 8 H100, 8 × 400G, ring",
            (380.0, 380.0),
            "GTC 2024 slides in nccl#1649",
            h100(4),
            ring("512MiB"),
        ),
        Figure::new(
            "4 × 8 A100, 8 × 200G, ring",
            (192.0, 192.0),
            "NVIDIA, nccl#812",
            a100(4),
            ring("512MiB"),
        ),
        Figure::new("3 × 8 A100, 4 × 200G", (96.0, 96.0), "nccl-tests#119", a100_4(3), ring("512MiB")),
        Figure::new(
            "2 × 8 A100, 4 × 200G",
            (91.0, 91.0),
            "nccl-tests#100",
            a100_4(2),
            Ask::all_reduce("512MiB", ""),
        ),
        Figure::new(
            "5 × 8 H100, 4 × 400G, ring",
            (190.0, 190.0),
            "nccl#1368",
            h100_4(5),
            ring("512MiB").by("simple"),
        ),
        Figure::new(
            "5 × 8 H100, 4 × 400G, tree",
            (150.0, 150.0),
            "nccl#1368",
            h100_4(5),
            Ask::all_reduce("512MiB", "tree"),
        ),
        Figure::new(
            "2 × 1 H100, tree",
            (50.0, 50.0),
            "nccl-tests#232",
            h100(2).gpus(1),
            Ask::all_reduce("256MiB", "tree"),
        ),
        tree("2MiB", 18.5),
        tree("4MiB", 27.0),
        tree("8MiB", 36.0),
        tree("16MiB", 40.0),
        tree("32MiB", 41.0),
        Figure::new("4 × 8 H100, all-to-all", (59.4, 63.3), "rule in nccl-tests#267", h100(4), all_to_all),
        Figure::new("8 × 8 H100, all-to-all", (51.8, 55.1), "rule in nccl-tests#267", h100(8), all_to_all)
            .long(),
        Figure::new("8 × 8 H100, 8 × 400G, ring", (370.0, 390.0), "nccl-tests#290", h100(8), ring("512MiB"))
            .long(),
    ];
    let about = (
        "clusters",
        "Several servers",
        "All-reduce unless a row says otherwise, over one large switch: the sources say little about their fabrics.",
    );
    part(about, figures, is_full, &CLUSTER_REASONS)
}

const CLUSTER_REASONS: [&str; 4] = [
    "Trees: what keeps short ones from the rate of long ones is how fast the threads of a channel are (`perChMaxTreeBws`, under \
     \"Every algorithm and protocol\"), and that a step hands on a whole slot of 512 KiB. Which protocol ran between two GPUs is not \
     said: Simple is assumed. NCCL's model would take LL128 from 4 to 32 MiB, which has no such large slots, and would be 4 to 37 % \
     faster than measured.",
    "NVLSTree on two servers: NCCL's model lets its channels carry 461 GB/s and no more. That is a total of several thread blocks that \
     scatter, reduce and gather, so it says nothing about any of them, and the simulator leaves it out.",
    "All-to-all: a NIC carries 46 to 49 GB/s (nccl-tests#267), and of what a rank sends, the share for its own server does not \
     go over it: the published figure is 31/24 of that with four servers, 63/56 with eight.",
    "Which NICs the four of a server with eight GPUs are is not said in the sources: here they are every other one.",
];
