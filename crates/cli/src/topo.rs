//! `railnet topo`: what a fabric or a server amounts to.

mod channels;
mod fabric;
mod host;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use railnet_coll::search::search;
use railnet_coll::transport::Transports;
use railnet_coll::variables::Place;
use railnet_formats::{nccl_graph, nccl_topology};
use railnet_topology::catalogue::Catalogue;
use railnet_topology::{Cluster, ClusterError};

use crate::files::Output;
use crate::sim::problem::File;
use crate::{Outcome, Usage, catalogue, environment, input, shipped, words};

const EXAMPLES: &str = "\
Examples:
  railnet topo scenarios/permutation.toml                  the fabric of a scenario
  railnet topo scenarios/permutation.toml --svg fabric.svg   and a picture of it
  railnet topo scenarios/leaf-spine.toml --links             and every link, by number and ends
  railnet topo dgx-h100                                    the GPUs and NICs of a server
  railnet topo dgx-h100x4 --channels                       the rings and trees NCCL would run on four of them
  railnet topo dgx-h100x2 --transports                     how its ranks reach each other, and why
  railnet topo topology.xml --nodes 2 --channels           the same for a file that NCCL wrote";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("output").args(["svg", "nccl_xml", "nccl_graph"]).multiple(true))]
pub(crate) struct Arguments {
    /// A scenario (a TOML file, the name of one that ships, or - for standard input), a server of the catalogue by name, so many of them (dgx-h100x4), or a topology file of
    /// NCCL (XML)
    #[arg(value_name = "FILE|NAME")]
    what: PathBuf,
    #[command(flatten)]
    catalogue: catalogue::Files,
    /// How many such servers there are, where the name does not say it
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65536))]
    nodes: Option<u32>,
    /// Print the channels that NCCL would find, with the NIC of each; NCCL's variables are read from the environment
    #[arg(long)]
    channels: bool,
    /// Print how ranks reach each other, and why
    #[arg(long)]
    transports: bool,
    /// Write the server as a topology file of NCCL
    #[arg(long, value_name = "FILE")]
    nccl_xml: Option<PathBuf>,
    /// Write the channels as a graph file of NCCL
    #[arg(long, value_name = "FILE")]
    nccl_graph: Option<PathBuf>,
    /// List every link with its number and the names of its ends
    #[arg(long)]
    links: bool,
    /// Draw the fabric into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write over the file that is there
    #[arg(long, requires = "output")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let path = arguments.what.as_path();
    if let Some(cluster) = cluster(arguments)? {
        let name = &cluster.host.name;
        let of_fabrics = [
            (arguments.svg.is_some(), "--svg draws fabrics"),
            (arguments.links, "--links lists the links of fabrics"),
        ];
        if let Some((_, what)) = of_fabrics.iter().find(|(is_set, _)| *is_set) {
            return Err(Usage(format!("{what}: {name} is a server")).into());
        }
        servers(arguments, &cluster, out)?;
        return Ok(Outcome::Done);
    }
    let of_servers = [
        (arguments.channels, "--channels"),
        (arguments.transports, "--transports"),
        (arguments.nccl_xml.is_some(), "--nccl-xml"),
        (arguments.nccl_graph.is_some(), "--nccl-graph"),
        (arguments.nodes.is_some(), "--nodes"),
    ];
    if let Some((_, option)) = of_servers.iter().find(|(is_set, _)| *is_set) {
        let advice = "give a name such as dgx-h100x4 or an XML file, not a scenario";
        return Err(Usage(format!("{option} is about servers: {advice}")).into());
    }
    let file = File::read(path)?;
    let graph = railnet_sim::graph(&file.scenario).map_err(|error| file.problem(error))?;
    let picture = Output::claim_given(arguments.svg.as_deref(), arguments.force)?;
    fabric::print(&file, &graph, arguments.json, arguments.links, out)?;
    if let Some(output) = picture {
        let name = output.name().to_owned();
        output.write(|file| file.write_all(railnet_topology::draw(&graph).as_bytes()))?;
        if !arguments.json {
            writeln!(out, "  Picture      {}", name.display())?;
        }
    }
    Ok(Outcome::Done)
}

/// The servers that are meant; none where it is a scenario.
fn cluster(arguments: &Arguments) -> anyhow::Result<Option<Cluster>> {
    let path = arguments.what.as_path();
    let nodes = arguments.nodes.unwrap_or(1);
    if !path.exists() && path.as_os_str() != input::STANDARD {
        let name = path.display().to_string();
        let known = arguments.catalogue.read()?.servers;
        return match known.cluster(&name) {
            Ok(found) if arguments.nodes.is_some() && found.nodes > 1 => {
                Err(Usage(format!("{name} are {} servers already: leave --nodes out", found.nodes)).into())
            }
            Ok(found) => Ok(Some(Cluster::new(found.host, found.nodes.max(nodes)))),
            Err(ClusterError::Unknown { .. }) if shipped::find(path).is_some() => Ok(None),
            Err(ClusterError::Unknown { .. }) => Err(unknown(&known, path).into()),
            Err(error) => Err(Usage(error.to_string()).into()),
        };
    }
    arguments.catalogue.refuse_beside(path)?;
    if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("xml")) {
        return Ok(None);
    }
    let name = path.display();
    let text = input::text(path)?;
    let stem = path.file_stem().map_or("server".into(), |stem| stem.to_string_lossy());
    let host = nccl_topology::read(&stem, &text).map_err(|error| Usage(format!("{name}, {error}")))?;
    Ok(Some(Cluster::new(host, nodes)))
}

/// Servers: their devices, and what was asked for besides.
fn servers(arguments: &Arguments, cluster: &Cluster, out: &mut dyn Write) -> anyhow::Result<()> {
    let (server, nodes) = (&cluster.host, cluster.nodes);
    let xml = Output::claim_given(arguments.nccl_xml.as_deref(), arguments.force)?;
    let graph = Output::claim_given(arguments.nccl_graph.as_deref(), arguments.force)?;
    let variables = environment::variables(Place::Tune, Vec::new(), None, Vec::new())?;
    let options = variables.topology();
    let wants_graphs = arguments.channels || arguments.nccl_graph.is_some();
    let graphs = if wants_graphs { Some(search(server, nodes, &options)?) } else { None };
    let told = graphs.as_ref().filter(|_| arguments.channels);
    let transports = arguments.transports.then(|| Transports::new(server, nodes, &options));
    let per_node = cluster.ranks().count(0);
    if arguments.json {
        let mut value = host::object(server);
        if let Some(graphs) = told {
            value["channels"] = channels::object(graphs);
        }
        if let Some(transports) = &transports {
            value["transports"] = channels::transports_object(transports, per_node);
        }
        writeln!(out, "{value}")?;
    } else {
        host::print(server, out)?;
        if let Some(graphs) = told {
            channels::print(graphs, server, out)?;
        }
        if let Some(transports) = &transports {
            channels::print_transports(transports, per_node, out)?;
        }
    }
    if let Some(output) = xml {
        output.write(|file| file.write_all(nccl_topology::write(server).as_bytes()))?;
    }
    if let (Some(output), Some(graphs)) = (graph, &graphs) {
        output.write(|file| file.write_all(nccl_graph::write(graphs).as_bytes()))?;
    }
    Ok(())
}

fn unknown(servers: &Catalogue, path: &Path) -> Usage {
    let name = path.display().to_string();
    let known: Vec<&str> = servers.hosts().map(|(name, _)| name).collect();
    let shipped = shipped::ALL.iter().map(|one| one.name);
    let all: Vec<&str> = known.iter().copied().chain(shipped).collect();
    let width = known.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut text = format!("there is no file, server or scenario called {name}\n  servers of the catalogue:");
    for (name, title) in servers.hosts() {
        let _ = write!(text, "\n    {name:<width$}  {title}");
    }
    if let Some(meant) = words::nearest(&name, &all) {
        let _ = write!(text, "\n  = did you mean \"{meant}\"?");
    }
    text.push_str("\n  = several of them are written as dgx-h100x4");
    text.push_str("\n  = or give a scenario: a file, or one that ships, such as permutation (railnet list)");
    Usage(text)
}
