//! From a cluster and some calls to what they take in the simulator.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, anyhow, ensure};
use railnet_core::Span;
use railnet_core::event::{NoSink, Sink};
use railnet_formats::nccl_tests::Bandwidth;
use railnet_sim::{CollectiveResult, Outcome, Run, Scenario};
use railnet_topology::catalogue;

use crate::interrupt::Interrupt;

/// A cluster, and who of it takes part.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) server: &'static str,
    pub(super) nodes: u32,
    /// Ports with memory right behind them, in place of servers.
    pub(super) is_bare: bool,
    /// The shape of the fabric; one large switch where nothing is said, which no traffic can crowd.
    pub(super) topology: Option<String>,
    pub(super) rate_gbps: u32,
    /// More lines of `[fabric]`, and sections.
    pub(super) more: &'static str,
    /// Lines of `[env]`.
    pub(super) env: &'static str,
    /// The ranks, as scenarios write them; all where nothing is said.
    pub(super) ranks: Option<String>,
    pub(super) groups: Option<&'static str>,
    /// The seed of the run, where it matters.
    pub(super) seed: Option<u64>,
}

impl Setup {
    pub(super) fn new(server: &'static str, nodes: u32) -> Self {
        let rate_gbps = if server == "dgx-a100" { 200 } else { 400 };
        Self {
            server,
            nodes,
            is_bare: false,
            topology: None,
            rate_gbps,
            more: "",
            env: "",
            ranks: None,
            groups: None,
            seed: None,
        }
    }

    /// Just the first so many GPUs of each server.
    pub(super) fn gpus(mut self, gpus: u32) -> Self {
        let each = catalogue::host(self.server).map_or(8, |host| host.gpus().len() as u32);
        let part = |node: u32| format!("{}..{}", node * each, node * each + gpus - 1);
        self.ranks = Some((0..self.nodes).map(part).collect::<Vec<_>>().join(","));
        self
    }

    /// With these of NCCL's variables.
    pub(super) fn env(mut self, env: &'static str) -> Self {
        self.env = env;
        self
    }

    fn scenario(&self, calls: &[Ask]) -> anyhow::Result<String> {
        let host = catalogue::host(self.server).with_context(|| format!("no server {}", self.server))?;
        let hosts = self.nodes * host.compute_nics().len() as u32;
        let single = format!("{{ kind = \"single-switch\", hosts = {hosts} }}");
        let topology = self.topology.as_ref().unwrap_or(&single);
        let cluster =
            if self.is_bare { String::new() } else { format!("[cluster]\nserver = \"{}\"\n", self.server) };
        let seed = self.seed.map(|seed| format!("seed = {seed}\n")).unwrap_or_default();
        let mut text = format!(
            "{seed}[fabric]\ntopology = {topology}\nlink = {{ rate = \"{}Gbps\", delay = \"500ns\" }}\n{}\n\
             {cluster}[env]\n{}\n",
            self.rate_gbps, self.more, self.env
        );
        for call in calls {
            let _ = writeln!(
                text,
                "[[collective]]\nkind = \"{}\"\nsize = \"{}\"\nplacement = \"out\"",
                call.kind, call.size
            );
            for (key, value) in [("algorithm", call.algorithm), ("protocol", call.protocol)] {
                let _ = writeln!(text, "{key} = \"{}\"", if value.is_empty() { "auto" } else { value });
            }
            if let Some(channels) = call.channels {
                let _ = writeln!(text, "channels = {channels}");
            }
            if let Some(slot) = call.slot {
                let _ = writeln!(text, "slot = \"{slot}\"");
            }
            if let Some(ranks) = &self.ranks {
                let _ = writeln!(text, "ranks = \"{ranks}\"");
            }
            if let Some(groups) = self.groups {
                let _ = writeln!(text, "groups = {groups}");
            }
        }
        Ok(text)
    }

    /// What these calls take, one after the other.
    pub(super) fn measure(&self, calls: &[Ask]) -> anyhow::Result<Vec<Measured>> {
        let text = self.scenario(calls)?;
        let scenario = Scenario::parse(&text).map_err(|error| anyhow!("{}\n{text}", error.message))?;
        let run = Run::new(&scenario, NoSink).map_err(|error| anyhow!("{}\n{text}", error.message))?;
        let (outcome, _) = completed(run, &text)?;
        ensure!(outcome.collectives.len() == calls.len(), "a call gave no result");
        let measured = outcome.collectives.into_iter().map(|result| {
            ensure!(result.wrong == 0, "{} elements are wrong\n{text}", result.wrong);
            Ok(Measured {
                bus: Bandwidth::of(&result.call, result.ranks, result.time).bus,
                us: result.time.as_us_f64(),
                result,
            })
        });
        measured.collect()
    }
}

/// A call that is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) kind: &'static str,
    pub(super) size: &'static str,
    /// Empty for NCCL's choice.
    pub(super) algorithm: &'static str,
    pub(super) protocol: &'static str,
    pub(super) channels: Option<u32>,
    /// What one message carries, where it is a whole step.
    pub(super) slot: Option<&'static str>,
}

impl Ask {
    pub(super) const fn all_reduce(size: &'static str, algorithm: &'static str) -> Self {
        Self { kind: "all_reduce", size, algorithm, protocol: "", channels: None, slot: None }
    }

    /// By this protocol.
    pub(super) const fn by(mut self, protocol: &'static str) -> Self {
        self.protocol = protocol;
        self
    }
}

/// What a call took.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) bus: f64,
    pub(super) us: f64,
    pub(super) result: CollectiveResult,
}

/// Virtual time between two looks at whether a run shall go on.
const STEP: Span = Span::from_us(100);

/// The run was asked to stop.
#[derive(Debug)]
struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped before its end")
    }
}

impl std::error::Error for Stopped {}

/// Runs to the end, unless it is asked to stop. `text` is its scenario, for errors.
pub(super) fn completed<S: Sink>(mut run: Run<S>, text: &str) -> anyhow::Result<(Outcome, S)> {
    let interrupt = Interrupt::catch()?;
    while !run.advance(STEP) {
        if interrupt.is_set() {
            return Err(Stopped.into());
        }
    }
    run.finish().map_err(|error| anyhow!("{error}\n{text}"))
}

/// Does something with each, on all cores; the results are in the order of the list. Where the command is asked to stop, they are
/// those of the first so many.
pub(super) fn each<T: Sync, R: Send>(
    list: &[T],
    work: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let (next, interrupt) = (AtomicUsize::new(0), Interrupt::catch()?);
    let done: Mutex<Vec<Option<anyhow::Result<R>>>> = Mutex::new(list.iter().map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(list.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !interrupt.is_set()
                    && let Some((index, one)) =
                        list.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = work(one);
                    done.lock().expect("no thread panics while it holds it")[index] = Some(result);
                }
            });
        }
    });
    let done = done.into_inner().expect("all threads have ended");
    let is_stopped = |result: &anyhow::Result<R>| result.as_ref().is_err_and(anyhow::Error::is::<Stopped>);
    done.into_iter().map_while(|result| result.filter(|result| !is_stopped(result))).collect()
}
