//! `railnet calc`: the calculations of a plan, one at a time, with the same formulas.

use std::io::Write;

use railnet_coll::Collective;
use railnet_core::{Bytes, Span};
use railnet_job::plan::{CallTraffic, Copies};
use railnet_topology::Cluster;
use railnet_topology::catalogue::Catalogue;
use serde_json::{Value, json};

use crate::words::{self, time};
use crate::{Outcome, Usage, plan};

const EXAMPLES: &str = "\
Examples:
  railnet calc copies 64MiB                                   what GPUDirect saves for one message
  railnet calc rails 1GiB --gpus 64                           how an AllReduce spreads over the NICs of a server, and stays on rails
  railnet calc rails 64MiB --gpus 64 --call alltoall
  railnet calc parallel --model llama-3-70b --gpus 256 --tp 8 --zero 1 --batch 512
  railnet calc allreduce 140GB --gpus 64 --within 200ms       the bandwidth needed to hide it, and the bandwidth available

railnet plan puts all of it together for a job; docs/planning.md has the formulas.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The copies that GPUDirect saves for one message between GPUs of two servers
    Copies(Message),
    /// How what a collective sends between servers is split over their rails
    Rails(Call),
    /// What data, tensor, pipeline and other parallelism say in a step
    Parallel(Box<plan::Arguments>),
    /// The bandwidth that an AllReduce needs, and the bandwidth available
    #[command(visible_alias = "all_reduce")]
    Allreduce(Reduce),
}

#[derive(clap::Args)]
struct Message {
    /// The message, such as 64MiB
    size: Bytes,
    /// The servers at both ends
    #[arg(long, value_name = "NAME", default_value = "dgx-h100")]
    cluster: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Servers {
    /// GPUs, in whole servers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 19))]
    gpus: Option<u32>,
    /// The servers, such as dgx-h100, or with how many of them, as in dgx-h100x8
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

impl Servers {
    fn cluster(&self) -> anyhow::Result<Cluster> {
        plan::cluster_of(Catalogue::built_in(), self.cluster.as_deref(), self.gpus, None)
    }
}

#[derive(clap::Args)]
struct Call {
    /// Bytes of the call's largest buffer, such as 1GiB
    size: Bytes,
    #[command(flatten)]
    servers: Servers,
    /// The collective
    #[arg(long = "call", value_name = "NAME", default_value = "all_reduce")]
    collective: Collective,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Reduce {
    /// Bytes that are added up, such as 140GB
    size: Bytes,
    #[command(flatten)]
    servers: Servers,
    /// The time it has to be over in, such as that of the backward pass
    #[arg(long, value_name = "SPAN")]
    within: Option<Span>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match &arguments.what {
        What::Copies(message) => copies(message, out)?,
        What::Rails(call) => rails(call, out)?,
        What::Parallel(job) => plan::print_dimensions(job, out)?,
        What::Allreduce(reduce) => all_reduce(reduce, out)?,
    }
    Ok(Outcome::Done)
}

fn line(out: &mut dyn Write, what: &str, number: &str, reason: &str) -> std::io::Result<()> {
    writeln!(out, "  {}", format!("{what:<20}{number:<16}{reason}").trim_end())
}

fn bytes(amount: f64) -> String {
    words::bytes(amount.round() as u64)
}

fn speed(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second))
}

fn show(value: &Value, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{value:#}")
}

/// Prices a call among all GPUs.
fn traffic(cluster: &Cluster, call: Collective, size: Bytes) -> anyhow::Result<CallTraffic> {
    if size == Bytes::ZERO {
        return Err(Usage("a call of 0 B sends nothing: give it a size, such as 1GiB".to_owned()).into());
    }
    let found = CallTraffic::new(&plan::ground_of(cluster)?, call, size);
    Ok(found.map_err(|error| Usage(error.to_string()))?)
}

fn copies(message: &Message, out: &mut dyn Write) -> anyhow::Result<()> {
    let known = Catalogue::built_in();
    let host = known.cluster(&message.cluster).map_err(|error| Usage(format!("--cluster: {error}")))?.host;
    let cluster = Cluster::new(host, 2);
    let carries = plan::ground_of(&cluster)?.costs().carries();
    let Some(copies) = Copies::new(message.size.as_u64() as f64, carries, 1) else {
        return Err(Usage(format!("{} has no GPUs or NICs, or the message no bytes", message.cluster)).into());
    };
    if message.json {
        let value = json!({
            "bytes": message.size.as_u64(),
            "copied_bytes": copies.copied,
            "host_memory_bytes": copies.through_memory,
            "nic_us": copies.direct.as_us_f64(),
            "nic_without_us": copies.bounced.as_us_f64(),
        });
        return Ok(show(&value, out)?);
    }
    let size = bytes(message.size.as_u64() as f64);
    writeln!(out, "A message of {size} between GPUs of two {}, through one NIC\n", message.cluster)?;
    line(out, "With GPUDirect", "0 copies", "NICs read and write the memory of GPUs")?;
    line(out, "Without", "2 copies", "GPU to host memory at the sender, host memory to GPU at the receiver")?;
    line(out, "Saved", &bytes(copies.copied), "copied at both ends together")?;
    line(
        out,
        "",
        &bytes(copies.through_memory),
        "through the memory of hosts: each copy is written once and read once",
    )?;
    let slower = copies.bounced.as_secs_f64() / copies.direct.as_secs_f64().max(f64::MIN_POSITIVE);
    let reason = match slower {
        slower if slower > 1.005 => {
            format!("on the NIC, instead of {} without: {slower:.2} times", time(copies.bounced))
        }
        _ => "on the NIC, with and without: the host's memory keeps up".to_owned(),
    };
    line(out, "Takes", &time(copies.direct), &reason)?;
    Ok(())
}

fn rails(call: &Call, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = call.servers.cluster()?;
    let traffic = traffic(&cluster, call.collective, call.size)?;
    let (stays, nics) = (traffic.out_of_node * traffic.on_rails, traffic.carries.nics);
    if call.json {
        let value = json!({
            "call": call.collective.name(),
            "bytes": traffic.bytes.as_u64(),
            "ranks": traffic.ranks,
            "nodes": traffic.nodes,
            "rails": nics,
            "node_bytes": traffic.out_of_node,
            "rail_bytes": traffic.through_nic(),
            "on_rails": traffic.on_rails,
            "across_rails_bytes": traffic.out_of_node - stays,
        });
        return Ok(show(&value, out)?);
    }
    title(call.collective, &traffic, &cluster, out)?;
    if traffic.out_of_node == 0.0 {
        return Ok(line(out, "Leaves a server", "nothing", "all ranks are in one server")?);
    }
    let line_rate = traffic.carries.line;
    line(out, "Leaves a server", &bytes(traffic.out_of_node), "through all its NICs")?;
    line(out, "On each rail", &bytes(traffic.through_nic()), &format!("{nics} NICs of {line_rate}"))?;
    line(
        out,
        "Stays on its rail",
        &words::percent(traffic.on_rails),
        &format!("{}: from NIC to NIC of the same number, under one switch", bytes(stays)),
    )?;
    line(
        out,
        "Changes rails",
        &words::percent(1.0 - traffic.on_rails),
        &format!("{}: over a spine", bytes(traffic.out_of_node - stays)),
    )?;
    let least = traffic.through_nic() / traffic.carries.nic;
    line(
        out,
        "Takes at least",
        &time(span(least)),
        &format!("of a rail that carries {}", speed(traffic.carries.nic)),
    )?;
    Ok(())
}

fn all_reduce(reduce: &Reduce, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = reduce.servers.cluster()?;
    let traffic = traffic(&cluster, Collective::AllReduce, reduce.size)?;
    if reduce.within == Some(Span::ZERO) {
        return Err(Usage("--within is a time, such as 200ms: nothing is over in none".to_owned()).into());
    }
    let needs = reduce.within.map(|within| {
        let seconds = within.as_secs_f64();
        (within, [traffic.through_gpu, traffic.out_of_node, traffic.through_nic()].map(|sent| sent / seconds))
    });
    if reduce.json {
        let needed = needs.map(|(_, [gpu, node, nic])| json!({ "gpu": gpu, "node": node, "nic": nic }));
        let value = json!({
            "bytes": traffic.bytes.as_u64(),
            "ranks": traffic.ranks,
            "nodes": traffic.nodes,
            "gpu_bytes": traffic.through_gpu,
            "node_bytes": traffic.out_of_node,
            "nic_bytes": traffic.through_nic(),
            "needed_bytes_per_s": needed,
            "available_bytes_per_s": { "gpu": traffic.carries.gpu, "node": traffic.carries.node(), "nic": traffic.carries.nic },
            "time_us": traffic.time.as_us_f64(),
        });
        return Ok(show(&value, out)?);
    }
    title(Collective::AllReduce, &traffic, &cluster, out)?;
    let ranks = traffic.ranks;
    let factor = format!("2 × {} / {ranks} × {}", ranks - 1, bytes(traffic.bytes.as_u64() as f64));
    line(out, "A GPU sends", &bytes(traffic.through_gpu), &factor)?;
    if traffic.out_of_node > 0.0 {
        line(out, "A server sends", &bytes(traffic.out_of_node), "through all its NICs")?;
        line(
            out,
            "A NIC sends",
            &bytes(traffic.through_nic()),
            &format!("{} of them", traffic.carries.nics),
        )?;
    }
    if let Some((within, [gpu, node, nic])) = needs {
        writeln!(out)?;
        let available = |carries: f64| format!("available {}", speed(carries));
        line(out, "Bandwidth to end in", &time(within), "")?;
        line(out, "needed per GPU", &speed(gpu), &available(traffic.carries.gpu))?;
        if traffic.out_of_node > 0.0 {
            line(out, "needed per server", &speed(node), &available(traffic.carries.node()))?;
            line(out, "needed per NIC", &speed(nic), &available(traffic.carries.nic))?;
        }
    }
    writeln!(out)?;
    let verdict = match reduce.within {
        Some(within) if traffic.time <= within => "by NCCL's cost model: in time",
        Some(_) => "by NCCL's cost model: not in time",
        None => "by NCCL's cost model",
    };
    line(out, "Takes", &time(traffic.time), verdict)?;
    Ok(())
}

fn title(
    call: Collective,
    traffic: &CallTraffic,
    cluster: &Cluster,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let size = bytes(traffic.bytes.as_u64() as f64);
    let nodes = words::count(u64::from(traffic.nodes), "server", "servers");
    let name = &cluster.host.name;
    writeln!(
        out,
        "{call} of {size} among {} GPUs in {nodes} ({name})\n",
        words::grouped(u64::from(traffic.ranks))
    )
}

fn span(seconds: f64) -> Span {
    Span::from_ps((seconds * 1e12).round() as u64)
}
