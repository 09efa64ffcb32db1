//! Efficiency by size and number of servers, as SimAI's authors measured NCCL on real clusters.

use super::measure::{Ask, Setup, each};
use super::{Cell, Part};

/// SimAI, inputs/ratio: the share of the line rate that NCCL reached, by size and number of servers.
const OVER_NICS: [(&str, [f64; 3]); 4] = [
    ("16MiB", [0.32, 0.24, 0.13]),
    ("64MiB", [0.50, 0.53, 0.39]),
    ("256MiB", [0.85, 0.77, 0.69]),
    ("1GiB", [0.92, 0.93, 0.90]),
];
const SERVERS: [u32; 3] = [2, 4, 8];
/// The same in one server, over NVLink.
const OVER_NVLINK: [(&str, f64); 4] = [("16MiB", 0.45), ("64MiB", 0.65), ("256MiB", 0.73), ("1GiB", 0.77)];
/// All-to-all over NICs.
const ALL_TO_ALL: [(&str, [f64; 3]); 2] = [("16MiB", [0.52, 0.67, 0.64]), ("256MiB", [0.79, 0.92, 0.87])];

/// Line rates in GB/s: 18 NVLinks, 8 NICs of 400 Gb/s.
const NVLINK: f64 = 450.0;
const NICS: f64 = 400.0;

/// The bus bandwidth of an all-to-all when every GPU's NIC carries 50 GB/s: what it sends to its own server is not on it.
fn all_to_all_line(servers: u32) -> f64 {
    let ranks = f64::from(8 * servers);
    50.0 * (ranks - 1.0) / (ranks - 8.0)
}

struct Job {
    what: &'static str,
    servers: u32,
    ask: Ask,
    line: f64,
    published: f64,
}

fn jobs(is_full: bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (size, published) in OVER_NVLINK {
        jobs.push(Job {
            what: "all-reduce",
            servers: 1,
            ask: Ask::all_reduce(size, "ring"),
            line: NVLINK,
            published,
        });
    }
    for (size, published) in OVER_NICS {
        for (servers, published) in SERVERS.into_iter().zip(published) {
            let is_long =
                servers == 8 && size != "16MiB" && size != "64MiB" || servers == 4 && size == "1GiB";
            if is_full || !is_long {
                jobs.push(Job {
                    what: "all-reduce",
                    servers,
                    ask: Ask::all_reduce(size, "ring"),
                    line: NICS,
                    published,
                });
            }
        }
    }
    for (size, published) in ALL_TO_ALL {
        for (servers, published) in SERVERS.into_iter().zip(published) {
            if is_full || servers < 8 {
                let ask = Ask { kind: "alltoall", ..Ask::all_reduce(size, "") };
                jobs.push(Job {
                    what: "all-to-all",
                    servers,
                    ask,
                    line: all_to_all_line(servers),
                    published,
                });
            }
        }
    }
    jobs
}

pub(super) fn part(is_full: bool) -> anyhow::Result<Part> {
    let jobs = jobs(is_full);
    let measured = each(&jobs, |job| Ok(Setup::new("dgx-h100", job.servers).measure(&[job.ask])?.remove(0)))?;
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for (job, measured) in jobs.iter().zip(&measured) {
        let ours = measured.bus / job.line;
        let ratio = ours / job.published;
        errors.push((job, ratio));
        rows.push(vec![
            Cell::text(job.what),
            Cell::number(f64::from(job.servers), 0),
            Cell::text(job.ask.size),
            Cell::text(format!("{}/{}", measured.result.algorithm, measured.result.protocol)),
            Cell::number(job.published, 2),
            Cell::number(ours, 2),
            Cell::difference(ratio - 1.0),
        ]);
    }
    let mut remarks = Vec::new();
    for (what, wanted) in [("all-reduce", true), ("all-to-all", false)] {
        let all: Vec<f64> = errors
            .iter()
            .filter(|(job, _)| (job.what == "all-reduce") == wanted)
            .map(|(_, ratio)| ratio.max(1.0 / ratio))
            .collect();
        let mean = geometric_mean(&all);
        let worst = all.iter().copied().fold(1.0, f64::max);
        remarks.push(format!(
            "{what}: off by a factor of {mean:.2} in the geometric mean, {worst:.2} at worst."
        ));
    }
    remarks.push(
        "Long messages agree; short ones are faster here. The model has NCCL's latencies, what its threads reach with LL128, and nothing \
         else: ranks start at the same moment, kernels are never late, and no other job is on the fabric."
            .to_owned(),
    );
    Ok(Part {
        name: "sizes",
        title: "Efficiency by size",
        intro: "The share of the line rate that calls of a size reach: of 450 GB/s of NVLink in one server, of 8 × 50 GB/s of NICs\n\
                between servers; for all-to-all, of what 50 GB/s for each GPU allow. SimAI ships these tables as measured with NCCL on\n\
                real clusters (inputs/ratio), without saying on which GPUs, with which algorithm or version; here they are DGX H100\n\
                and rings.",
        columns: vec!["what", "servers", "size", "by", "SimAI measured", "Railnet", "difference"],
        rows,
        remarks,
    })
}

/// By repeated square roots, so that it is the same everywhere: the number whose power is the product.
pub(super) fn geometric_mean(numbers: &[f64]) -> f64 {
    if numbers.is_empty() {
        return 1.0;
    }
    let product: f64 = numbers.iter().product();
    let (mut low, mut high) = (0.0, product.max(1.0));
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        let power: f64 = numbers.iter().map(|_| middle).product();
        if power < product {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_factors_is_geometric() {
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-9);
        assert!((geometric_mean(&[1.5; 30]) - 1.5).abs() < 1e-9);
        assert!((geometric_mean(&[]) - 1.0).abs() < 1e-9);
    }
}
