//! Sets that come with the command: shipped scenarios, with some of their keys changed, and what is to be learned from them.

use anyhow::Context as _;
use railnet_core::Span;
use toml::Table;

use super::{Contestant, Part, Ran};
use crate::check::shown;
use crate::sim::problem::File;
use crate::sim::sweep::set;
use crate::{shipped, words};

const RDMA_OR_TCP: &str = shipped::text("rdma-or-tcp");
const RACKS: &str = shipped::text("life-of-a-job-racks");
const RAILS: &str = shipped::text("life-of-a-job-rails");
const PRESETS: &str = shipped::text("presets");
const INCAST: &str = shipped::text("incast");
const SPRAY: &str = shipped::text("spray");

/// A key and what it becomes; nothing takes it out.
type Change = (&'static str, Option<&'static str>);

/// What all contestants run, and what is changed in it for all of them.
#[derive(Clone, Copy)]
struct Base {
    title: &'static str,
    text: &'static str,
    changes: &'static [Change],
}

/// Whose changes make the difference. With bases of its own it runs those.
struct Entry {
    name: &'static str,
    bases: &'static [Base],
    changes: &'static [Change],
}

/// A ready-made comparison.
pub(super) struct Set {
    pub(super) name: &'static str,
    entries: &'static [Entry],
    /// What follows from the numbers.
    pub(super) lesson: fn(&[Ran]) -> String,
}

const TRANSPORTS: &[Base] = &[
    Base {
        title: "A message of 8 B from GPU to GPU",
        text: RDMA_OR_TCP,
        changes: &[("traffic.0.bytes", Some("8B"))],
    },
    Base { title: "A flow of 64 MB from GPU to GPU", text: RDMA_OR_TCP, changes: &[] },
    Base {
        title: "A training step on two servers",
        text: RAILS,
        changes: &[
            ("fabric.topology.nodes", Some("2")),
            ("fabric.topology.nodes_per_group", Some("2")),
            ("parallel.dp", Some("16")),
            ("model.layers", Some("4")),
        ],
    },
];
const CROWDS: &[Base] = &[
    Base {
        title: "A permutation of 128 hosts: every host to one other",
        text: PRESETS,
        changes: &[("preset", None)],
    },
    Base {
        title: "An incast: 16 hosts to one",
        text: INCAST,
        changes: &[("fabric.switch", None), ("fabric.routing", None), ("nic.control", None)],
    },
];
const PATHS: &[Base] = &[Base {
    title: "A permutation of 128 hosts: every host to one other",
    text: SPRAY,
    changes: &[("fabric.topology.k", Some("8"))],
}];
// A few layers say as much as all of them.
const ON_RACKS: &[Base] =
    &[Base { title: "A training step", text: RACKS, changes: &[("model.layers", Some("4"))] }];
const ON_RAILS: &[Base] =
    &[Base { title: "A training step", text: RAILS, changes: &[("model.layers", Some("4"))] }];

const ADAPTIVE: &[Change] = &[
    ("preset", Some("\"infiniband\"")),
    ("fabric.routing", Some("\"adaptive\"")),
    ("nic.recovery", Some("\"reorder\"")),
];

const SETS: [Set; 4] = [
    Set {
        name: "transports",
        entries: &[
            Entry { name: "tcp", bases: TRANSPORTS, changes: &[("cluster.transport", Some("tcp"))] },
            Entry {
                name: "rdma-bounced",
                bases: TRANSPORTS,
                changes: &[("cluster.gpudirect", Some("false"))],
            },
            Entry { name: "gpudirect", bases: TRANSPORTS, changes: &[] },
        ],
        lesson: transports,
    },
    Set {
        name: "rails",
        entries: &[
            Entry { name: "racks", bases: ON_RACKS, changes: &[] },
            Entry { name: "rails", bases: ON_RAILS, changes: &[] },
            Entry {
                name: "racks, ¼ spine",
                bases: ON_RACKS,
                changes: &[("fabric.topology.links_per_spine", Some("2"))],
            },
            Entry {
                name: "rails, ¼ spine",
                bases: ON_RAILS,
                changes: &[("fabric.topology.spines", Some("1"))],
            },
        ],
        lesson: rails,
    },
    Set {
        name: "infiniband-roce",
        entries: &[
            Entry { name: "infiniband", bases: CROWDS, changes: &[("preset", Some("\"infiniband\""))] },
            Entry { name: "infiniband-adaptive", bases: CROWDS, changes: ADAPTIVE },
            Entry { name: "roce-dcqcn", bases: CROWDS, changes: &[("preset", Some("\"roce-dcqcn\""))] },
        ],
        lesson: infiniband_roce,
    },
    Set {
        name: "routing",
        entries: &[
            Entry { name: "ecmp", bases: PATHS, changes: &[("fabric.routing", Some("ecmp"))] },
            Entry { name: "adaptive", bases: PATHS, changes: &[("fabric.routing", Some("adaptive"))] },
            Entry { name: "spray", bases: PATHS, changes: &[("fabric.routing", Some("spray"))] },
        ],
        lesson: routing,
    },
];

/// All of them.
pub(super) const fn all() -> [Set; 4] {
    SETS
}

/// Their names, in words.
pub(super) fn names() -> String {
    let names: Vec<&str> = SETS.iter().map(|set| set.name).collect();
    names.join(", ")
}

impl Set {
    pub(super) fn contestants(&self) -> anyhow::Result<Vec<Contestant>> {
        self.entries.iter().map(Entry::contestant).collect()
    }
}

impl Entry {
    fn contestant(&self) -> anyhow::Result<Contestant> {
        let parts = self.bases.iter().map(|base| {
            let mut table: Table = base.text.parse().context("a shipped scenario is TOML")?;
            for (key, value) in base.changes.iter().chain(self.changes) {
                match value {
                    Some(value) => set(&mut table, key, value)?,
                    None => take_out(&mut table, key),
                }
            }
            let lines: Vec<String> =
                table.iter().map(|(key, value)| format!("{key} = {}", shown(value))).collect();
            let file = File::built_in(self.name, &lines.join("\n"))?;
            Ok(Part { title: base.title, file })
        });
        let parts = parts.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Contestant { name: self.name.to_owned(), parts })
    }
}

fn take_out(table: &mut Table, key: &str) {
    let (inside, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut parts = inside.split('.').filter(|part| !part.is_empty());
    let place = parts.try_fold(table, |table, part| table.get_mut(part)?.as_table_mut());
    if let Some(table) = place {
        table.remove(last);
    }
}

fn time(us: f64) -> String {
    words::time(Span::from_ps((us * 1e6).round() as u64))
}

/// How many times as much.
fn times(more: f64, less: f64) -> String {
    format!("{:.1} times", more / less.max(f64::MIN_POSITIVE))
}

fn transports(ran: &[Ran]) -> String {
    let of = |part: usize, key: &str| [0, 1, 2].map(|place| ran[place].number(part, key));
    let (latency, step) = (of(0, "completion_us"), of(2, "step_us"));
    let (copies, cpu, written) = (of(2, "copies"), of(2, "cpu_us"), of(2, "host_memory_bytes"));
    format!(
        "TCP copies each byte {:.0} times and keeps cores busy for {} of CPU time in a step; without GPUDirect RDMA copies it {:.0} \
         times, with it {:.0}, and both leave the CPU alone. A short message takes {}, {} and {}. Each step writes {} to the memory of \
         hosts with TCP and bounced, {} with GPUDirect, and takes {}, {} and {}: {} as long over TCP as with GPUDirect.",
        copies[0],
        time(cpu[0]),
        copies[1],
        copies[2],
        time(latency[0]),
        time(latency[1]),
        time(latency[2]),
        words::bytes(written[1] as u64),
        words::bytes(written[2] as u64),
        time(step[0]),
        time(step[1]),
        time(step[2]),
        times(step[0], step[2])
    )
}

fn rails(ran: &[Ran]) -> String {
    let of = |key: &str| [0, 1, 2, 3].map(|place| ran[place].number(0, key));
    let (step, hops, exposed) = (of("step_us"), of("packet_hops"), of("exposed_us"));
    let fewer = (1.0 - hops[1] / hops[0].max(1.0)) * 100.0;
    let alike = (step[0] / step[1] - 1.0).abs() < 0.02;
    let full = if alike {
        format!(
            "With as many spine links as anybody could use, a step is much the same ({} and {})",
            time(step[0]),
            time(step[1])
        )
    } else {
        format!("A step takes {} in racks and {} on rails", time(step[0]), time(step[1]))
    };
    // What is printed alike is alike.
    let waits = |without: f64, with: f64| match time(without) == time(with) {
        true => format!("wait {}, as with all of it", time(without)),
        false => format!("wait {} for communication instead of {}", time(without), time(with)),
    };
    let needs = if exposed[3] < exposed[1] * 1.02 { "they do not need it" } else { "they need some of it" };
    format!(
        "{full}, but on rails packets cross {fewer:.0} % fewer links: data goes between NICs of the same number, under one switch. With \
         a quarter of the spine racks {} and a step takes {}; rails {}: {needs}.",
        waits(exposed[2], exposed[0]),
        time(step[2]),
        waits(exposed[3], exposed[1])
    )
}

fn infiniband_roce(ran: &[Ran]) -> String {
    let of = |part: usize, key: &str| [0, 1, 2].map(|place| ran[place].number(part, key));
    let (all, p99) = (of(0, "completion_us"), of(0, "flow_us_p99"));
    let (incast, queue) = (of(1, "completion_us"), of(1, "max_queue_bytes"));
    let (marks, pauses) = (of(1, "marks"), of(1, "pauses"));
    let ends = match incast[2] / incast[0] {
        ratio if ratio > 1.02 => format!(
            "and ends {:.0} % later ({} instead of {}), since senders slow down more than they would have to",
            (ratio - 1.0) * 100.0,
            time(incast[2]),
            time(incast[0])
        ),
        _ => format!("and ends at the same time ({})", time(incast[2])),
    };
    format!(
        "Static routes put flows on the same links whoever carries them: the permutation takes {} with credits and {} with RoCE (p99 {} \
         and {}). Packets that go around what is full change that: {} with adaptive routing. In the incast nobody drops a packet: \
         credits hold senders back at once and keep the longest queue at {}, without a mark or a pause; RoCE lets it grow to {}, needs {} \
         marks and {} pauses, {ends}.",
        time(all[0]),
        time(all[2]),
        time(p99[0]),
        time(p99[2]),
        time(all[1]),
        words::bytes(queue[0] as u64),
        words::bytes(queue[2] as u64),
        words::grouped(marks[2] as u64),
        words::grouped(pauses[2] as u64),
    )
}

fn routing(ran: &[Ran]) -> String {
    let of = |key: &str| [0, 1, 2].map(|place| ran[place].number(0, key));
    let (all, median) = (of("completion_us"), of("flow_us_median"));
    let (marks, queue) = (of("marks"), of("max_queue_bytes"));
    format!(
        "ECMP gives each flow one path by a hash, so some share one while others are free: the median flow takes {}, the last {}. \
         Spraying gives each packet any of them: {} and {}, all done {} sooner; adaptive routing is done after {}. The longest queue is \
         {} instead of {}, with {} marks instead of {}. The price: receivers have to put packets in order again (`recovery`), which \
         plain RoCE does not.",
        time(median[0]),
        time(all[0]),
        time(median[2]),
        time(all[2]),
        times(all[0], all[2]),
        time(all[1]),
        words::bytes(queue[2] as u64),
        words::bytes(queue[0] as u64),
        words::grouped(marks[2] as u64),
        words::grouped(marks[0] as u64),
    )
}
