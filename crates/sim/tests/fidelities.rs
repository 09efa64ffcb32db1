//! Formulas against packets: what the analytic fidelity says of small jobs and collectives is within a tenth of what packets say for
//! most, and within a quarter for all but those of which the run itself says why. docs/validation.md has the table;
//! `UPDATE_DOCS=1 cargo test -p railnet-sim fidelities` writes it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use railnet_core::event::NoSink;
use railnet_job::run::analytic::Caveat;
use railnet_sim::{Run, Scenario, run_jobs};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/validation.md");
const BEGIN: &str = "<!-- formulas against packets -->";
const END: &str = "<!-- end of formulas against packets -->";

/// Rows may differ by so much.
const ALL: f64 = 0.25;
/// Most rows differ by no more than this.
const MOST: f64 = 0.10;

#[derive(Clone, Copy)]
enum Shape {
    Rails,
    LeafSpine(u32, &'static str),
    FatTree(&'static str),
}

struct Row {
    what: &'static str,
    servers: u32,
    shape: Shape,
    gbps: u32,
    /// Keys of `[cluster]`.
    host: &'static str,
    /// Further sections.
    rest: String,
    /// Whether nothing was settled or fitted with this row in sight.
    is_held_out: bool,
}

impl Row {
    fn scenario(&self, fidelity: &str) -> String {
        let Self { servers, shape, gbps, host, rest, .. } = self;
        let (topology, routing) = match shape {
            Shape::Rails => (
                format!(
                    "kind = \"rail-optimised\", nodes = {servers}, rails = 8, nodes_per_group = {servers}, spines = 1"
                ),
                "ecmp",
            ),
            Shape::LeafSpine(spines, routing) => (
                format!("kind = \"leaf-spine\", leaves = {servers}, hosts_per_leaf = 8, spines = {spines}"),
                *routing,
            ),
            Shape::FatTree(routing) => ("kind = \"fat-tree\", k = 4".to_owned(), *routing),
        };
        let fidelity =
            if rest.contains("[model]") { format!("fidelity = \"{fidelity}\"\n") } else { String::new() };
        let delay = if self.what.contains("10 µs links") { "10us" } else { "1us" };
        format!(
            "{fidelity}[cluster]\nserver = \"dgx-h100\"\n{host}\n[fabric]\ntopology = {{ {topology} }}\nrouting = \"{routing}\"\n\
             link = {{ rate = \"{gbps}Gbps\", delay = \"{delay}\" }}\n{rest}"
        )
    }

    fn fabric(&self) -> String {
        let host = match self.host {
            "" => "RDMA",
            "gpudirect = false" => "bounced",
            _ => "TCP",
        };
        let shape = match self.shape {
            Shape::Rails => "rails".to_owned(),
            Shape::LeafSpine(spines, routing) => format!("leaf-spine {}:1, {routing}", 8 / spines),
            Shape::FatTree(routing) => format!("fat-tree, {routing}"),
        };
        format!("{shape}, {} Gbps, {host}", self.gbps)
    }

    /// Microseconds by packets and by formulas, what ran, and the notices of the run.
    fn times(&self) -> (f64, f64, String, Vec<Caveat>) {
        let parse = |fidelity: &str| {
            let text = self.scenario(fidelity);
            Scenario::parse(&text).unwrap_or_else(|error| panic!("{}: {}\n{text}", self.what, error.message))
        };
        let scenario = parse("packet");
        if scenario.has_jobs() {
            let [packets, formulas] = ["packet", "analytic"].map(|fidelity| {
                let mut outcome = run_jobs(&parse(fidelity)).unwrap_or_else(|error| panic!("{error}"));
                let job = outcome.jobs.remove(0);
                (job.steps[0].as_us_f64(), job.first.caveats)
            });
            let caveats = formulas.1.into_iter().map(|(_, caveat)| caveat).collect();
            return (packets.0, formulas.0, "step".to_owned(), caveats);
        }
        let (outcome, _) = Run::new(&scenario, NoSink).unwrap().finish().unwrap();
        let call = &outcome.collectives[0];
        let formulas = call.predicted.unwrap_or_else(|| panic!("{}: nothing is predicted", self.what));
        let by = format!("{}/{}", call.algorithm, call.protocol);
        (call.time.as_us_f64(), formulas.as_us_f64(), by, call.caveat.into_iter().collect())
    }
}

fn collective(what: &'static str, servers: u32, shape: Shape, gbps: u32, host: &'static str) -> Row {
    let mut words = what.split(' ');
    let kind = match words.next().unwrap() {
        "AllReduce" => "all_reduce",
        "AllGather" => "all_gather",
        "ReduceScatter" => "reduce_scatter",
        _ => "alltoall",
    };
    let size = format!("{}MiB", words.next().unwrap());
    let mut rest = format!("[[collective]]\nkind = \"{kind}\"\nsize = \"{size}\"\nplacement = \"out\"\n");
    if let Some(algorithm) = what.split("by ").nth(1) {
        let _ = writeln!(rest, "algorithm = \"{}\"", algorithm.to_lowercase());
        if algorithm.starts_with("CollNet") {
            rest = format!("switch = {{ aggregation = {{}} }}\n{rest}");
        }
    }
    Row { what, servers, shape, gbps, host, rest, is_held_out: false }
}

fn job(what: &'static str, servers: u32, shape: Shape, gbps: u32, host: &'static str, keys: &str) -> Row {
    let rest = format!("[model]\n{keys}");
    Row { what, servers, shape, gbps, host, rest, is_held_out: false }
}

/// The same where switches reduce, and NCCL may use them.
fn with_sharp(mut row: Row) -> Row {
    row.rest.insert_str(0, "switch = { aggregation = {} }\n");
    row.rest.push_str("[env]\nNCCL_COLLNET_ENABLE = 1\n");
    row
}

const TCP: &str = "transport = \"tcp\"";
const BOUNCED: &str = "gpudirect = false";
const DATA: &str = "name = \"tiny\"\n[training]\nglobal_batch = 32\n";
const PIPELINE: &str = "name = \"tiny\"\n[parallel]\ntp = 4\npp = 2\n[training]\nglobal_batch = 16\n";
const SHARDED: &str = "name = \"tiny\"\n[parallel]\nzero = 3\n[training]\nglobal_batch = 32\n";
const EXPERTS: &str = "name = \"moe\"\nlayers = 4\nhidden = 512\nheads = 8\nffn = 1024\nvocabulary = 1000\nsequence = 512\n\
                       experts = { count = 16, top_k = 2 }\n[parallel]\nep = 16\n[training]\nmicro_batch = 1\n";

const LAYERS: &str = "name = \"middling\"\nlayers = 4\nhidden = 1024\nheads = 16\nffn = 4096\nvocabulary = 2000\nsequence = 512\n";

fn rows() -> Vec<Row> {
    use Shape::{FatTree, LeafSpine, Rails};
    let mut rows = Vec::new();
    for servers in [2, 4, 8] {
        for gbps in [50, 100, 400] {
            rows.push(collective("AllReduce 64 MiB", servers, Rails, gbps, ""));
        }
    }
    for (servers, gbps) in [(2, 200), (4, 200), (4, 800)] {
        rows.push(collective("AllGather 64 MiB", servers, Rails, gbps, ""));
    }
    rows.push(collective("AllGather 64 MiB", 2, Rails, 800, ""));
    for (servers, gbps) in [(2, 50), (4, 100), (8, 100), (4, 400)] {
        rows.push(collective("AllReduce 16 MiB by Ring", servers, Rails, gbps, ""));
    }
    for (servers, gbps) in [(2, 100), (4, 400)] {
        rows.push(collective("AllReduce 16 MiB by Tree", servers, Rails, gbps, ""));
    }
    rows.push(collective("AllReduce 64 MiB by CollNetDirect", 4, Rails, 100, ""));
    rows.push(collective("AllReduce 64 MiB by CollNetDirect", 4, Rails, 400, ""));
    rows.push(collective("AllReduce 1 MiB, 10 µs links", 2, Rails, 400, ""));
    rows.push(collective("AllReduce 1 MiB, 10 µs links", 4, Rails, 400, ""));
    for (servers, gbps) in [(2, 100), (2, 400), (4, 100), (4, 400)] {
        rows.push(collective("AlltoAll 64 MiB", servers, Rails, gbps, ""));
    }
    for servers in [2, 4] {
        for host in [BOUNCED, TCP] {
            rows.push(collective("AllReduce 64 MiB", servers, Rails, 400, host));
            rows.push(collective("AllReduce 64 MiB by Ring", servers, Rails, 400, host));
            rows.push(collective("AllGather 64 MiB", servers, Rails, 400, host));
        }
    }
    rows.push(collective("AllReduce 1 MiB", 2, Rails, 400, BOUNCED));
    for servers in [2, 4, 8] {
        rows.push(collective("AllReduce 1 MiB", servers, Rails, 400, TCP));
    }
    rows.push(collective("AllReduce 64 MiB by Ring", 8, Rails, 400, TCP));
    rows.push(collective("AllReduce 64 MiB by Tree", 4, Rails, 400, ""));
    rows.push(collective("AllReduce 64 MiB by Tree", 8, Rails, 400, ""));
    rows.push(with_sharp(collective("AllReduce 64 MiB", 4, Rails, 400, "")));
    for spines in [8, 2] {
        for routing in ["ecmp", "adaptive"] {
            rows.push(collective("AllReduce 64 MiB", 2, LeafSpine(spines, routing), 400, ""));
            rows.push(collective("AllGather 64 MiB", 2, LeafSpine(spines, routing), 400, ""));
        }
    }
    rows.push(collective("AllReduce 16 MiB by Ring", 2, FatTree("ecmp"), 400, ""));
    rows.push(collective("AllReduce 16 MiB by Ring", 2, FatTree("adaptive"), 400, ""));
    for gbps in [50, 400] {
        rows.push(job("tiny, data × 16", 2, Rails, gbps, "", DATA));
        rows.push(job("tiny, tensor × 4, pipeline × 2, data × 2", 2, Rails, gbps, "", PIPELINE));
        rows.push(job("tiny, data × 16, zero 3", 2, Rails, gbps, "", SHARDED));
        rows.push(job("16 experts on 16 GPUs", 2, Rails, gbps, "", EXPERTS));
    }
    rows.push(job("tiny, data × 16", 2, Rails, 400, BOUNCED, DATA));
    rows.push(job("tiny, data × 16", 2, Rails, 400, TCP, DATA));
    rows.push(job("tiny, data × 16", 2, LeafSpine(2, "ecmp"), 100, "", DATA));
    rows.extend(further());
    rows.extend(held_out().into_iter().map(|row| Row { is_held_out: true, ..row }));
    rows
}

/// Server counts, sizes and rates that the rows above do not have.
fn further() -> Vec<Row> {
    use Shape::{LeafSpine, Rails};
    let data = format!("{LAYERS}[training]\nglobal_batch = 24\n");
    let wide = format!("{LAYERS}[training]\nglobal_batch = 40\n");
    let tensor = format!("{LAYERS}[parallel]\ntp = 8\n[training]\nglobal_batch = 6\n");
    vec![
        collective("AllReduce 24 MiB by Tree", 3, Rails, 200, ""),
        collective("AllReduce 8 MiB by Tree", 6, Rails, 400, BOUNCED),
        collective("AllReduce 128 MiB by Ring", 3, Rails, 200, TCP),
        collective("ReduceScatter 32 MiB", 3, Rails, 200, ""),
        collective("ReduceScatter 128 MiB", 6, Rails, 400, ""),
        collective("ReduceScatter 64 MiB", 2, Rails, 400, TCP),
        collective("AllGather 16 MiB", 6, Rails, 200, BOUNCED),
        collective("AllReduce 128 MiB", 6, Rails, 200, ""),
        collective("AllReduce 4 MiB", 3, Rails, 400, TCP),
        collective("AllReduce 32 MiB by CollNetDirect", 6, Rails, 200, ""),
        collective("AlltoAll 32 MiB", 3, Rails, 200, TCP),
        collective("ReduceScatter 64 MiB", 2, LeafSpine(4, "adaptive"), 200, ""),
        job("4 layers of 1,024, data × 24", 3, Rails, 200, "", &data),
        job("4 layers of 1,024, tensor × 8, data × 3", 3, Rails, 200, "", &tensor),
        collective("AllReduce 2 MiB", 3, Rails, 400, TCP),
        collective("AllReduce 8 MiB", 7, Rails, 100, TCP),
        collective("AllReduce 48 MiB by Ring", 5, Rails, 400, TCP),
        collective("AllReduce 96 MiB by Tree", 5, Rails, 400, ""),
        collective("AllReduce 32 MiB by Tree", 7, Rails, 100, ""),
        collective("AllGather 32 MiB", 3, Rails, 800, ""),
        collective("AllGather 96 MiB", 5, Rails, 400, ""),
        collective("AllReduce 96 MiB", 5, Rails, 200, ""),
        collective("AllReduce 48 MiB by CollNetDirect", 3, Rails, 400, ""),
        with_sharp(collective("AllReduce 32 MiB", 3, Rails, 400, "")),
        collective("ReduceScatter 24 MiB", 5, Rails, 400, BOUNCED),
        collective("AlltoAll 16 MiB", 5, Rails, 200, ""),
        collective("AllGather 48 MiB", 2, LeafSpine(4, "ecmp"), 100, ""),
        job("4 layers of 1,024, data × 40", 5, Rails, 100, "", &wide),
    ]
}

/// Rows that were chosen before they were run for the first time, and after the formulas had been settled.
fn held_out() -> Vec<Row> {
    use Shape::{LeafSpine, Rails};
    let data = format!("{LAYERS}[training]\nglobal_batch = 56\n");
    let sharded = format!("{LAYERS}[parallel]\nzero = 3\n[training]\nglobal_batch = 24\n");
    vec![
        collective("AllReduce 12 MiB by Tree", 3, Rails, 100, ""),
        collective("AllReduce 40 MiB", 7, Rails, 400, ""),
        collective("AllReduce 3 MiB", 6, Rails, 400, TCP),
        collective("AllReduce 20 MiB by Ring", 5, Rails, 200, ""),
        collective("AllReduce 80 MiB by Ring", 6, Rails, 100, TCP),
        collective("AllReduce 48 MiB by Tree", 6, Rails, 400, BOUNCED),
        collective("AllGather 24 MiB", 7, Rails, 400, BOUNCED),
        collective("AllGather 6 MiB", 3, Rails, 100, ""),
        collective("ReduceScatter 48 MiB", 3, Rails, 100, TCP),
        collective("ReduceScatter 10 MiB", 2, Rails, 50, ""),
        collective("AlltoAll 24 MiB", 3, LeafSpine(4, "adaptive"), 200, ""),
        with_sharp(collective("AllReduce 24 MiB", 5, Rails, 200, "")),
        job("4 layers of 1,024, data × 56", 7, Rails, 200, "", &data),
        job("4 layers of 1,024, data × 24, zero 3", 3, Rails, 100, "", &sharded),
    ]
}

/// Counts of rows: all, within a tenth, and beyond a quarter.
#[derive(Default)]
struct Counts([usize; 3]);

impl Counts {
    fn add(&mut self, difference: f64) {
        let kinds = [true, difference.abs() <= MOST, difference.abs() > ALL];
        for (count, is_one) in self.0.iter_mut().zip(kinds) {
            *count += usize::from(is_one);
        }
    }
}

/// The table as the page has it, and what is wrong with it.
fn table() -> (String, Vec<String>) {
    let mut text = String::from(
        "| what | servers | network | runs by | packets µs | formulas µs | difference | notice of the run |\n\
         | --- | ---: | --- | --- | ---: | ---: | ---: | --- |\n",
    );
    let (mut wrong, mut settled, mut held_out) = (Vec::new(), Counts::default(), Counts::default());
    for row in rows() {
        let (packets, formulas, by, caveats) = row.times();
        let difference = formulas / packets - 1.0;
        let notices: Vec<String> = caveats.iter().map(Caveat::reason).collect();
        let (fabric, percent) = (row.fabric(), difference * 100.0);
        let mark = if row.is_held_out { " (held out)" } else { "" };
        let _ = writeln!(
            text,
            "| {}{mark} | {} | {fabric} | {by} | {packets:.1} | {formulas:.1} | {percent:+.0} % | {} |",
            row.what,
            row.servers,
            notices.join("; ")
        );
        if row.is_held_out { &mut held_out } else { &mut settled }.add(difference);
        let mut complain = |what: &str| {
            wrong.push(format!("{} on {} servers, {fabric}: {percent:+.0} %, {what}", row.what, row.servers));
        };
        if difference.abs() > ALL && caveats.is_empty() {
            complain("and the run does not say why");
        }
        // The mean over hashes may be what one hash gives; NCCL's figures either decide or do not.
        // A step has more in it than the calls of which the notice is.
        let is_of_nccl = |caveat: &Caveat| !matches!(caveat, Caveat::Collisions(_));
        if by != "step" && difference.abs() <= MOST && caveats.iter().any(is_of_nccl) {
            complain("and the run says that they differ");
        }
        if by != "step" && difference < 0.0 && caveats.iter().any(is_of_nccl) {
            complain("and the run says that packets take less");
        }
    }
    let ([all, close, far], [others, others_close, others_far]) = (settled.0, held_out.0);
    if (close + others_close) * 2 <= all + others {
        wrong.push("most rows are not within a tenth".to_owned());
    }
    let _ = write!(
        text,
        "\n{close} of {all} rows are within 10 %, {far} beyond 25 %; of {others} that were held out, {others_close} and {others_far}.\n"
    );
    (text, wrong)
}

#[test]
fn formulas_agree_with_packets() {
    let (table, wrong) = table();
    assert!(wrong.is_empty(), "{}\n{table}", wrong.join("\n"));
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("docs/validation.md has the place for the table");
    let (_, after) = rest.split_once(END).expect("and its end");
    let whole = format!("{before}{BEGIN}\n\n{table}\n{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, whole).unwrap();
    } else {
        assert!(page == whole, "docs/validation.md is not what runs give: UPDATE_DOCS=1 writes it\n{table}");
    }
}
