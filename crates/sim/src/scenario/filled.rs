//! A scenario as it was written, with what it left open filled in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use railnet_core::{Bytes, Rate, Span};
use railnet_job::graph::Job;
use railnet_job::parallel::{Axis, Schedule};
use toml::{Table, Value};

use super::trace::LAUNCH;
use super::{Fidelity, PlacedJob, Scenario, ScenarioError, Topology};

/// A scenario with every default.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filled {
    /// All keys.
    pub table: Table,
    /// Those that were not written, such as `nic.mtu` or `faults.0.at`.
    pub defaults: BTreeSet<String>,
    /// What names stand for, by their keys.
    pub notes: BTreeMap<String, String>,
}

impl Filled {
    /// Fills a key in, unless it is there.
    pub(super) fn put(&mut self, path: &str, value: impl Into<Value>) {
        let mut parts: Vec<&str> = path.split('.').collect();
        let Some(last) = parts.pop() else { return };
        let mut table = &mut self.table;
        let mut parts = parts.into_iter();
        while let Some(part) = parts.next() {
            let mut next = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Array(list) = next {
                let index = parts.next().and_then(|index| index.parse::<usize>().ok());
                let Some(one) = index.and_then(|index| list.get_mut(index)) else { return };
                next = one;
            }
            // What is written in another form than a table, such as `ecn = false`, has nothing left open.
            let Value::Table(next) = next else { return };
            table = next;
        }
        if !table.contains_key(last) {
            table.insert(last.to_owned(), value.into());
            self.defaults.insert(path.to_owned());
        }
    }

    /// The value of a key, such as `job.0.storage`, where it is there.
    fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let mut found = parts.next().and_then(|part| self.table.get(part));
        for part in parts {
            found = match found {
                Some(Value::Table(table)) => table.get(part),
                Some(Value::Array(list)) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
                _ => None,
            };
        }
        found
    }

    pub(super) fn whole(&mut self, path: &str, number: u64) {
        self.put(path, i64::try_from(number).unwrap_or(i64::MAX));
    }
}

fn bytes(amount: Bytes) -> String {
    amount.to_string().replace(' ', "")
}

fn rate(rate: Rate) -> String {
    rate.to_string().replace(' ', "")
}

pub(super) fn span(span: Span) -> String {
    format!("{span:#}").replace(' ', "")
}

/// The name of a value as scenarios write it: `GoBackN` is `go-back-n`.
pub(super) fn name(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let word = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    let mut name = String::new();
    for letter in word.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

impl Scenario {
    /// The scenario as it was written, with every default of the file, of its sections and of its lists of tables.
    pub fn filled(&self, written: Table) -> Result<Filled, ScenarioError> {
        let mut filled = Filled { table: written, ..Filled::default() };
        filled.whole("seed", self.seed);
        self.fill_fabric(&mut filled);
        self.fill_nic(&mut filled);
        self.fill_cluster(&mut filled);
        if self.has_jobs() {
            filled.put("fidelity", self.fidelity.name());
            if let (Some(section), [placed]) = (&self.trace, &self.jobs()?[..]) {
                filled.whole("trace.ranks", u64::from(placed.ranks()));
                if section.recording.is_some() {
                    let launch = section.launch.as_ref().map_or(LAUNCH, |launch| launch.0);
                    filled.put("trace.launch", span(launch));
                }
            }
            let jobs = if self.trace.is_some() { Vec::new() } else { self.jobs()? };
            for (index, placed) in jobs.iter().enumerate() {
                let at = if self.job.is_empty() { String::new() } else { format!("job.{index}.") };
                fill_job(placed, &at, &mut filled);
            }
        }
        self.fill_lists(&mut filled);
        if self.fidelity != Fidelity::Analytic {
            let usual = if self.has_jobs() { Span::from_secs(3_600) } else { Span::from_secs(60) };
            filled.put("limit", span(self.limit.map_or(usual, |limit| limit.0)));
        }
        Ok(filled)
    }

    fn fill_fabric(&self, filled: &mut Filled) {
        if let Topology::RailOptimised {
            nodes,
            rails,
            nodes_per_group,
            spines,
            links_per_spine,
            groups_per_pod,
            cores,
            links_per_core,
        } = self.fabric.topology
        {
            filled.put("fabric.topology.kind", "rail-optimised");
            let numbers = [
                ("nodes", nodes),
                ("rails", rails),
                ("nodes_per_group", nodes_per_group),
                ("spines", spines),
                ("links_per_spine", links_per_spine),
            ];
            for (key, number) in numbers {
                filled.whole(&format!("fabric.topology.{key}"), u64::from(number));
            }
            if let (Some(groups), Some(cores)) = (groups_per_pod, cores) {
                filled.whole("fabric.topology.groups_per_pod", u64::from(groups));
                filled.whole("fabric.topology.cores", u64::from(cores));
                filled.whole("fabric.topology.links_per_core", u64::from(links_per_core));
            }
        }
        let link = &self.fabric.link;
        filled.put("fabric.link.rate", rate(link.rate.0));
        filled.put("fabric.link.delay", span(link.delay.0));
        filled.put("fabric.link.loss", link.loss);
        filled.put("fabric.link.bit_error_rate", link.bit_error_rate);
        filled.put("fabric.routing", name(&self.routing_name()));
        filled.put("fabric.hash", name(&self.fabric.hash));
        filled.put("fabric.framing", name(&self.framing_name()));
        if self.is_infiniband() {
            filled.whole("fabric.infiniband.lmc", u64::from(self.fabric.infiniband.lmc));
        }
        let switch = self.switch_config();
        filled.put("fabric.switch.buffer", bytes(switch.buffer));
        filled.put("fabric.switch.reserve", bytes(switch.reserve));
        filled.put("fabric.switch.flow_control", name(&self.flow_control_name()));
        filled.put("fabric.switch.marks_at", name(&self.fabric.switch.marks_at));
        filled.put("fabric.switch.cut_through", switch.cut_through);
        match switch.marking.filter(|_| switch.marks) {
            Some(marking) => {
                filled.put("fabric.switch.ecn.kmin", bytes(marking.low));
                filled.put("fabric.switch.ecn.kmax", bytes(marking.high));
                filled.put("fabric.switch.ecn.pmax", f64::from(marking.most) / 1e6);
            }
            None => filled.put("fabric.switch.ecn", switch.marks),
        }
    }

    fn fill_nic(&self, filled: &mut Filled) {
        filled.put("nic.rate", rate(self.edge_rate()));
        filled.whole("nic.mtu", u64::from(self.nic.mtu));
        filled.whole("nic.burst", u64::from(self.nic.burst));
        filled.put("nic.control", name(&self.control_name()));
        filled.put("nic.recovery", name(&self.recovery()));
        filled.whole("nic.ack_interval", u64::from(self.nic.ack_interval));
        filled.whole("nic.timeout", u64::from(self.timeout()));
        filled.whole("nic.retry_count", u64::from(self.nic.retry_count));
        filled.put("nic.credits", self.nic.credits);
    }

    fn fill_cluster(&self, filled: &mut Filled) {
        let Some(section) = &self.cluster else { return };
        if let Ok(cluster) = self.servers()
            && section.groups.is_empty()
        {
            filled.whole("cluster.nodes", u64::from(cluster.nodes));
            if cluster.gpus() > 0 {
                filled.whole("cluster.gpus_per_node", u64::from(cluster.ranks().count(0)));
            }
        }
        self.note_servers(filled);
        filled.put("cluster.transport", name(&section.transport()));
        filled.put("cluster.gpudirect", section.gpudirect);
        filled.put("cluster.slice", bytes(section.slice.0));
        filled.whole("cluster.slots", u64::from(section.slots));
        filled.put("cluster.copy_start", span(section.copy_start.0));
        filled.whole("cluster.tcp.cores", u64::from(section.tcp.cores));
        filled.put("cluster.tcp.system_call", span(section.tcp.system_call.0));
        filled.put("cluster.tcp.interrupt", span(section.tcp.interrupt.0));
        filled.put("cluster.tcp.per_packet", span(section.tcp.per_packet.0));
        filled.put("cluster.tcp.copy", rate(section.tcp.copy.0));
    }
}

fn fill_job(placed: &PlacedJob, at: &str, filled: &mut Filled) {
    let resolved = &placed.resolved;
    fill_model(&resolved.job, at, filled);
    fill_training(&resolved.job, at, filled);
    fill_parallel(&resolved.job, at, filled);
    if !filled.table.contains_key("steps") {
        filled.whole(&format!("{at}training.steps"), u64::from(resolved.steps));
    }
    filled.whole(&format!("{at}launch.nodes"), u64::from(placed.cluster.nodes));
    if let Some(warning) = placed.straddling() {
        filled.notes.insert(format!("{at}parallel.tp"), warning);
    }
    if let Some(each) = placed.cluster.ranks().each() {
        filled.whole(&format!("{at}launch.ranks_per_node"), u64::from(each));
    }
    let recovery = &resolved.recovery;
    filled.whole(&format!("{at}launch.spares"), u64::from(placed.spares));
    filled.put(&format!("{at}launch.timeout"), span(recovery.timeout));
    filled.put(&format!("{at}launch.restart"), span(recovery.restart));
    if filled.get(&format!("{at}storage")).is_some() {
        if let Some(rate) = filled.get(&format!("{at}storage.rate")).cloned() {
            filled.put(&format!("{at}storage.read"), rate);
        }
        filled.put(&format!("{at}storage.servers"), 0);
        filled.put(&format!("{at}storage.gpudirect"), false);
        if let Some((_, each)) = resolved.checkpoint {
            filled.put(&format!("{at}storage.checkpoint"), bytes(each * u64::from(placed.ranks())));
        }
    }
}

fn fill_model(job: &Job, at: &str, filled: &mut Filled) {
    let model = &job.model;
    filled.put(&format!("{at}model.name"), model.name.clone());
    let numbers = [
        ("layers", u64::from(model.layers)),
        ("hidden", model.hidden),
        ("heads", model.heads),
        ("kv_heads", model.kv_heads),
        ("head_size", model.head_size),
        ("ffn", model.ffn),
        ("vocabulary", model.vocabulary),
        ("sequence", model.sequence),
    ];
    for (key, number) in numbers {
        filled.whole(&format!("{at}model.{key}"), number);
    }
    filled.put(&format!("{at}model.gated"), model.gated);
    filled.put(&format!("{at}model.tied"), model.tied);
    if let Some(experts) = model.experts {
        let numbers = [
            ("count", experts.count),
            ("top_k", experts.top_k),
            ("shared", experts.shared),
            ("ffn", experts.ffn),
            ("dense_layers", u64::from(experts.dense_layers)),
        ];
        for (key, number) in numbers {
            filled.whole(&format!("{at}model.experts.{key}"), number);
        }
    }
}

fn fill_training(job: &Job, at: &str, filled: &mut Filled) {
    let training = &job.training;
    filled.whole(&format!("{at}training.micro_batch"), training.micro_batch);
    filled.whole(&format!("{at}training.global_batch"), training.global_batch);
    filled.put(&format!("{at}training.precision"), "bf16");
    filled.put(&format!("{at}training.gradients"), if training.gradients_f32 { "fp32" } else { "same" });
    filled.put(&format!("{at}training.recompute"), name(&training.recompute));
    filled.put(&format!("{at}training.attention"), name(&training.attention));
    filled.put(&format!("{at}training.optimiser"), name(&training.optimiser));
}

fn fill_parallel(job: &Job, at: &str, filled: &mut Filled) {
    let parallel = &job.parallel;
    let numbers = [
        ("tp", parallel.tensor),
        ("pp", parallel.pipeline),
        ("cp", parallel.context),
        ("dp", parallel.data),
        ("ep", parallel.expert),
        ("prefetch", parallel.prefetch),
    ];
    for (key, number) in numbers {
        filled.whole(&format!("{at}parallel.{key}"), u64::from(number));
    }
    filled.whole(&format!("{at}parallel.zero"), parallel.sharding as u64);
    filled.put(&format!("{at}parallel.sp"), parallel.sequence);
    filled.put(&format!("{at}parallel.overlap"), parallel.overlap);
    filled.put(&format!("{at}parallel.bucket"), bytes(parallel.bucket));
    filled.put(&format!("{at}parallel.hot_expert"), job.hot_expert);
    let schedule = match parallel.schedule {
        Schedule::GPipe => "gpipe",
        Schedule::OneForwardOneBackward => "1f1b",
        Schedule::Interleaved { chunks } => {
            filled.whole(&format!("{at}parallel.chunks"), u64::from(chunks));
            "interleaved"
        }
    };
    filled.put(&format!("{at}parallel.schedule"), schedule);
    let order = parallel.order.map(|axis| match axis {
        Axis::Tensor => "tp",
        Axis::Context => "cp",
        Axis::Data => "dp",
        Axis::Pipeline => "pp",
    });
    filled.put(&format!("{at}parallel.order"), order.map(Value::from).to_vec());
}
