//! `railnet dryrun`: runs a training script of PyTorch as it is, without GPUs, and prices its step on a cluster.
//!
//! One process runs for each rank that differs in what it does, with a pretended GPU and process groups that move nothing
//! (`python/railnet/dryrun`). What they record becomes a scenario, which runs as any other does.

mod modules;
mod process;
mod roles;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser as _;
use railnet_core::Span;
use railnet_sim::Fidelity;
use railnet_topology::Cluster;
use railnet_topology::catalogue::Catalogue;
use railnet_topology::host::DeviceKind;
use serde_json::{Value, json};

use crate::interrupt::Interrupt;
use crate::run::duration;
use crate::tune::cluster::{self, Target};
use crate::words::{count, grouped};
use crate::{Outcome, Usage, sim};
use process::Processes;
use roles::{Record, Roles};

const EXAMPLES: &str = "\
Examples:
  railnet dryrun --cluster dgx-h100x8 -- python train.py                 a step on 64 H100, by formulas
  railnet dryrun --cluster dgx-h100x128 --ranks 512 -- python train.py   on half of the cluster
  railnet dryrun --cluster dgx-b200x4 --fidelity packet --report step.html -- python -m mypackage.train --config c.toml
  railnet dryrun --cluster my-cluster.toml --set fabric.link.rate=200Gbps -- python train.py
  railnet sim railnet-dryrun/job.toml --sweep cluster.nodes=8,16         again, without the script

No GPU is needed, and PyTorch 2.10 or later is (2.15 was tried). Each process finds RANK, WORLD_SIZE and LOCAL_RANK as torchrun sets them: write
python where torchrun stands. What the script prints goes to DIR/role-RANK.log. docs/dryrun.md says what is modelled and what is not.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "railnet dryrun --cluster CLUSTER [OPTIONS] -- PROGRAM [ARGUMENTS]...")]
pub(crate) struct Arguments {
    /// The cluster: a name such as dgx-h100x8, or a scenario with [cluster]
    #[arg(long, value_parser = Target::parse)]
    cluster: Target,
    /// How many ranks the script would have [default: one for each GPU]
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// Steps of training to run: the last one is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    steps: u32,
    /// The ranks that differ in what they do: auto (found from the messages between ranks), all, or a list such as 0,8,16
    #[arg(long, default_value = "auto")]
    roles: Roles,
    /// What every floating-point number is that the script reads from the GPU, such as its loss; error stops there
    #[arg(long, value_name = "NUMBER|error", default_value = "1.0", value_parser = item)]
    item: String,
    /// What the CPU takes to start a kernel [default: 5us]
    #[arg(long, value_name = "TIME")]
    launch: Option<Span>,
    /// Another value for a key of the scenario, such as nic.control=swift; several may be given
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where recordings, logs and the scenario go
    #[arg(long, value_name = "DIR", default_value = "railnet-dryrun")]
    out: PathBuf,
    /// The longest that a process may run
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = minutes)]
    timeout: Duration,
    /// Processes at the same time [default: one for each two cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// How the network is modelled: analytic, packet
    #[arg(long, value_name = "NAME", default_value = "analytic", value_parser = fidelity)]
    fidelity: Fidelity,
    /// Write everything as JSON to a file, or to standard output (and nothing else there) with "-"
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page about the step to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print all there is to say
    #[arg(long)]
    verbose: bool,
    /// Replace regular files that are there
    #[arg(long)]
    force: bool,
    /// The script, with what runs it
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn item(text: &str) -> Result<String, String> {
    match text.parse::<f64>() {
        _ if text == "error" => Ok(text.to_owned()),
        Ok(number) if number.is_finite() => Ok(text.to_owned()),
        _ => Err("write a number, or error".to_owned()),
    }
}

/// A time, of which minutes and hours are written as well.
fn minutes(text: &str) -> Result<Duration, String> {
    let scaled = |end: &str, times: u64| {
        let number: Option<u64> = text.strip_suffix(end).and_then(|number| number.parse().ok());
        number.and_then(|number| number.checked_mul(times)).filter(|seconds| *seconds > 0)
    };
    match scaled("m", 60).or_else(|| scaled("h", 3_600)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => duration(text),
    }
}

fn fidelity(text: &str) -> Result<Fidelity, String> {
    let all = [Fidelity::Analytic, Fidelity::Packet];
    all.into_iter().find(|one| one.name() == text).ok_or_else(|| "write analytic or packet".to_owned())
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    refuse_launcher(&arguments.program)?;
    let cluster = cluster::resolve(Catalogue::built_in(), Some(&arguments.cluster), None, None)?;
    let ranks = ranks(arguments, &cluster)?;
    let gpu = gpu(&cluster)?;
    let scenario = scenario(arguments, &cluster, ranks)?;
    let folder = prepare(&arguments.out, arguments.force)?;
    let interrupt = Interrupt::catch()?;
    let processes = Processes {
        program: &arguments.program,
        folder: &folder,
        ranks,
        gpus_of_node: cluster.host.gpus().len() as u32,
        told: json!({ "steps": arguments.steps, "item": arguments.item, "gpu": gpu }),
        timeout: arguments.timeout,
        jobs: arguments.jobs.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
        }),
        interrupt: &interrupt,
    };
    let records = roles::record(&arguments.roles, ranks, &processes)?;
    let command: Vec<String> =
        arguments.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let whole = json!({
        "format": "railnet recording",
        "version": 1,
        "ranks": ranks,
        "command": command.join(" "),
        "roles": records.iter().map(|record| &record.value).collect::<Vec<_>>(),
    });
    write(&folder.join("recording.json"), &serde_json::to_string(&whole)?)?;
    let path = folder.join("job.toml");
    write(&path, &scenario)?;
    let quiet = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !quiet {
        told(&command.join(" "), &records, arguments, ranks, began, out)?;
    }
    let outcome = simulate(arguments, &path, out)?;
    if !quiet {
        writeln!(out, "\n  Again   railnet sim {}", path.display())?;
    }
    Ok(outcome)
}

/// Programs that start ranks themselves would start all of them.
fn refuse_launcher(program: &[OsString]) -> anyhow::Result<()> {
    let name = program.first().map(|first| Path::new(first).file_name().unwrap_or_default());
    let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if ["torchrun", "srun", "mpirun", "mpiexec", "accelerate", "deepspeed"].contains(&name.as_str()) {
        let what = format!(
            "{name} would start ranks, and railnet dryrun does that itself: write `-- python train.py ...` in the place of `-- {name} ... \
             train.py ...`"
        );
        return Err(Usage(what).into());
    }
    Ok(())
}

fn ranks(arguments: &Arguments, cluster: &Cluster) -> anyhow::Result<u32> {
    let all = cluster.gpus();
    let ranks = arguments.ranks.unwrap_or(all);
    if ranks == 0 || ranks > all {
        return Err(Usage(format!("--ranks {ranks}: the cluster has {all} GPUs, one for each rank")).into());
    }
    let each = cluster.host.gpus().len() as u32;
    if ranks > each && !ranks.is_multiple_of(each) {
        let what = format!("--ranks {ranks}: a server has {each} GPUs, and ranks fill whole servers");
        return Err(Usage(what).into());
    }
    Ok(ranks)
}

/// What the pretended GPU answers.
fn gpu(cluster: &Cluster) -> anyhow::Result<Value> {
    let gpus = cluster.host.gpus();
    let kind = gpus.first().map(|first| &cluster.host.device(*first).kind);
    let Some(DeviceKind::Gpu { model, memory, memory_bandwidth, compute: Some(compute), .. }) = kind else {
        let what = format!(
            "{}: its servers have no GPUs whose speed the catalogue knows: name others with --cluster",
            cluster.name
        );
        return Err(Usage(what).into());
    };
    // NVIDIA, "CUDA GPU Compute Capability".
    let capabilities = [
        ("V100", [7, 0]),
        ("A100", [8, 0]),
        ("A800", [8, 0]),
        ("A10", [8, 6]),
        ("L4", [8, 9]),
        ("B300", [10, 3]),
        ("B200", [10, 0]),
    ];
    let known = capabilities.iter().find(|(name, _)| model.contains(name));
    Ok(json!({
        "name": format!("NVIDIA {model}"),
        "memory": memory.as_u64(),
        "multiprocessors": compute.multiprocessors,
        "capability": known.map_or([9, 0], |(_, capability)| *capability),
        "count": gpus.len(),
        "flops": compute.half_sustained,
        "bandwidth": memory_bandwidth.as_bps() as f64 / 8.0 * f64::from(compute.memory_percent) / 100.0,
    }))
}

/// The scenario that runs the recording beside it.
fn scenario(arguments: &Arguments, cluster: &Cluster, ranks: u32) -> anyhow::Result<String> {
    let mut table = match &arguments.cluster {
        Target::File(path) if path.extension().is_some_and(|end| end == "toml") => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let mut table: toml::Table =
                text.parse().map_err(|error| Usage(format!("{}: {error}", path.display())))?;
            for key in ["model", "training", "parallel", "launch", "storage", "parameters", "job", "trace"] {
                table.remove(key);
            }
            for key in ["traffic", "collective", "transfer"] {
                table.remove(key);
            }
            table
        }
        Target::File(path) => {
            let what = format!("{}: name a cluster, or a scenario (TOML) with [cluster]", path.display());
            return Err(Usage(what).into());
        }
        Target::Name(name) => {
            let server = name.rsplit_once('x').filter(|(_, number)| number.parse::<u32>().is_ok());
            let server = server.map_or(name.as_str(), |(server, _)| server);
            let each = cluster.host.gpus().len() as u32;
            let mut of = toml::Table::new();
            of.insert("server".to_owned(), server.into());
            of.insert("nodes".to_owned(), i64::from(ranks.div_ceil(each.max(1))).into());
            let mut table = toml::Table::new();
            table.insert("seed".to_owned(), 1.into());
            table.insert("cluster".to_owned(), of.into());
            table
        }
    };
    table.insert("fidelity".to_owned(), arguments.fidelity.name().into());
    let mut trace = toml::Table::new();
    trace.insert("recording".to_owned(), "recording.json".into());
    if let Some(launch) = arguments.launch {
        trace.insert("launch".to_owned(), format!("{}ns", launch.as_ps() / 1_000).into());
    }
    table.insert("trace".to_owned(), trace.into());
    for setting in &arguments.set {
        set(&mut table, setting)?;
    }
    Ok(format!(
        "# What railnet dryrun recorded, on a cluster: railnet sim runs it again, with keys changed as you like.\n{table}"
    ))
}

fn set(table: &mut toml::Table, setting: &str) -> anyhow::Result<()> {
    let wrong = || Usage(format!("--set {setting}: write KEY=VALUE, such as fabric.link.rate=200Gbps"));
    let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
    let parts: Vec<&str> = key.split('.').collect();
    let Some((last, sections)) = parts.split_last() else { return Err(wrong().into()) };
    if parts.iter().any(|part| part.is_empty()) {
        return Err(wrong().into());
    }
    let mut at = table;
    for section in sections {
        let inner = at.entry((*section).to_owned()).or_insert_with(|| toml::Table::new().into());
        at = inner.as_table_mut().ok_or_else(wrong)?;
    }
    // A number or a truth value where it reads as one, else a text.
    let parsed: Option<toml::Table> = format!("value = {value}").parse().ok();
    let parsed = parsed.and_then(|mut table| table.remove("value"));
    at.insert((*last).to_owned(), parsed.unwrap_or_else(|| value.into()));
    Ok(())
}

/// The folder for what is written: a new one, or one that an earlier dry run left.
fn prepare(path: &Path, force: bool) -> anyhow::Result<PathBuf> {
    let name = path.display();
    let is_ours = path.join("recording.json").is_file() || path.join("python/railnet_dryrun").is_dir();
    let is_empty = !path.exists() || path.read_dir().is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty && !is_ours && !force {
        let what = format!("{name} has other files: name another folder with --out, or use --force");
        return Err(Usage(what).into());
    }
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {name}"))?;
    let path = path.canonicalize().with_context(|| name.to_string())?;
    modules::write(&path.join("python"))?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What ran, before what came of it.
fn told(
    command: &str,
    records: &[Record],
    arguments: &Arguments,
    ranks: u32,
    began: Instant,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(first) = records.first() else { return Ok(()) };
    let roles: Vec<String> = records.iter().map(|record| record.rank.to_string()).collect();
    let shown = if roles.len() > 8 {
        format!("{}, …, {}", roles[..6].join(", "), roles[roles.len() - 1])
    } else {
        roles.join(", ")
    };
    let alike = if records.len() as u32 == ranks {
        "every one".to_owned()
    } else {
        format!("rank{} {shown}, of which the others are copies", if roles.len() == 1 { "" } else { "s" })
    };
    writeln!(out, "Railnet {} · dry run of {command}", env!("CARGO_PKG_VERSION"))?;
    writeln!(
        out,
        "  Ran        {alike}; {}; PyTorch {}; {:.1} s",
        count(u64::from(ranks), "rank", "ranks"),
        first.torch,
        began.elapsed().as_secs_f64()
    )?;
    let steps = first.steps.len() as u64;
    let last = first.steps.last().copied().unwrap_or(0);
    let other = first.steps.first().copied().unwrap_or(0);
    let warm = match other.cmp(&last) {
        _ if steps < 2 => String::new(),
        std::cmp::Ordering::Equal => "; the first one does the same".to_owned(),
        _ => format!("; the first one starts {} operations, this one {}", grouped(other), grouped(last)),
    };
    let asked = u64::from(arguments.steps);
    let fewer =
        if steps < asked { format!(" ({asked} were asked for: the script ended)") } else { String::new() };
    writeln!(out, "  Recorded   step {steps} of {steps}{fewer}{warm}")?;
    for (place, note) in roles::notes(records).iter().enumerate() {
        writeln!(out, "  {:<11}{note}", if place == 0 { "Assumed" } else { "" })?;
    }
    writeln!(out)?;
    Ok(())
}

/// Runs the scenario as `railnet sim` does.
fn simulate(arguments: &Arguments, path: &Path, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        arguments: sim::Arguments,
    }
    let mut words: Vec<OsString> = vec!["sim".into(), path.into()];
    for (option, value) in [("--json", &arguments.json), ("--report", &arguments.report)] {
        if let Some(value) = value {
            words.extend([option.into(), value.into()]);
        }
    }
    for (option, is_on) in [("--verbose", arguments.verbose), ("--force", arguments.force)] {
        if is_on {
            words.push(option.into());
        }
    }
    let parsed = Words::try_parse_from(words).context("the options of railnet sim")?;
    sim::run(&parsed.arguments, out)
}
