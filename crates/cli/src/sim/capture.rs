//! `--pcap`: the frames that pass chosen links, in a file for Wireshark.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use railnet_coll::machine::Tag;
use railnet_core::event::Sink;
use railnet_core::{Label, Span, Time};
use railnet_fabric::Tapped;
use railnet_sim::Run;
use railnet_topology::{FabricGraph, LinkKind, Vertex};
use railnet_wire::Framing;
use railnet_wire::capture::{CaptureError, InterfaceId, PcapngWriter, Timestamp};

use crate::Usage;
use crate::files::Output;
use crate::links;
use crate::words::{self, grouped};

/// So many hosts are all listened to where nobody says which: more would be a file for nobody.
const HOSTS_MAX: usize = 16;
/// Neighbours that an error names.
const NAMED: usize = 8;

#[derive(clap::Args)]
pub(super) struct Options {
    /// Write the packets that pass the taps to a new file, for Wireshark
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    pcap: Option<PathBuf>,
    /// Listen to the link of a host (host3), to all links of a switch (leaf0), or to one link (leaf0:spine1), in both
    /// directions; may be given several times. Without it, to all hosts' links where there are at most 16
    #[arg(long, value_name = "WHERE", requires = "pcap")]
    tap: Vec<String>,
    /// Keep only packets between two hosts, in both directions, such as host0:host3; may be given several times
    #[arg(long, value_name = "A:B", requires = "pcap")]
    flow: Vec<String>,
    /// Keep only packets of a part of the run, such as 10us..25us, 1ms.. or ..5us
    #[arg(long, value_name = "FROM..TO", requires = "pcap", value_parser = window)]
    between: Option<(Time, Time)>,
    /// Keep only the first so many bytes of each packet; 96 are all headers
    #[arg(long, value_name = "BYTES", requires = "pcap")]
    snaplen: Option<usize>,
}

/// A part of a run.
fn window(text: &str) -> Result<(Time, Time), String> {
    let (from, to) = text.split_once("..").ok_or("write a window such as 10us..25us")?;
    let moment = |text: &str, otherwise: Time| match text.trim() {
        "" => Ok(otherwise),
        text => text.parse::<Span>().map(|span| Time::ZERO + span).map_err(|error| error.to_string()),
    };
    let (from, to) = (moment(from, Time::ZERO)?, moment(to, Time::NEVER)?);
    if from > to { Err("the window ends before it begins".to_owned()) } else { Ok((from, to)) }
}

impl Options {
    /// Whether packets are asked for.
    pub(super) fn is_on(&self) -> bool {
        self.pcap.is_some()
    }

    /// Where they go.
    pub(super) fn path(&self) -> Option<&Path> {
        self.pcap.as_deref()
    }
}

/// A capture that is being written.
pub(super) struct Capture {
    output: Output,
    writer: PcapngWriter<BufWriter<File>>,
    graph: FabricGraph,
    framing: Framing,
    /// Pairs of hosts; all where there are none.
    flows: Vec<[u32; 2]>,
    between: (Time, Time),
    snaplen: usize,
    /// The interface of each tapped link.
    interfaces: Vec<Option<InterfaceId>>,
    frames: u64,
    broken: Option<CaptureError>,
}

impl Capture {
    /// The capture that the command line asks for, with its taps opened; nothing where it asks for none.
    pub(super) fn open<S: Sink>(
        options: &Options,
        graph: FabricGraph,
        output: Option<Output>,
        run: &mut Run<S>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(output) = output else { return Ok(None) };
        let links = taps(options, &graph).map_err(Usage::of)?;
        let flows = options.flow.iter().map(|flow| pair(flow, &graph)).collect::<anyhow::Result<_>>();
        let flows = flows.map_err(Usage::of)?;
        let (name, file, framing) = (output.name().to_owned(), output.handle()?, run.framing());
        let mut capture = Self::new(output, file, (graph, framing), &links)
            .with_context(|| format!("cannot write {}", name.display()))?;
        capture.flows = flows;
        capture.between = options.between.unwrap_or(capture.between);
        capture.snaplen = options.snaplen.unwrap_or(capture.snaplen);
        for link in links {
            run.tap(link);
        }
        Ok(Some(capture))
    }

    fn new(
        output: Output,
        file: File,
        (graph, framing): (FabricGraph, Framing),
        tapped: &BTreeSet<u32>,
    ) -> Result<Self, CaptureError> {
        let mut writer = PcapngWriter::new(BufWriter::new(file))?;
        let mut interfaces = vec![None; graph.links.len()];
        for &link in tapped {
            let digits = PcapngWriter::<File>::PICOSECONDS;
            let interface = writer.interface(&name(&graph, link), links::link_type(framing), digits)?;
            interfaces[link as usize] = Some(interface);
        }
        let (flows, between, snaplen) = (Vec::new(), (Time::ZERO, Time::NEVER), usize::MAX);
        Ok(Self {
            output,
            writer,
            graph,
            framing,
            flows,
            between,
            snaplen,
            interfaces,
            frames: 0,
            broken: None,
        })
    }

    /// Writes what has passed since the last time.
    pub(super) fn take<S: Sink>(&mut self, run: &mut Run<S>) -> anyhow::Result<()> {
        run.drain_taps(|tapped| {
            if self.broken.is_none() {
                self.broken = self.write(tapped).err();
            }
        });
        match self.broken.take() {
            Some(error) => {
                Err(error).with_context(|| format!("cannot write {}", self.output.name().display()))
            }
            None => Ok(()),
        }
    }

    fn write(&mut self, tapped: &Tapped<'_>) -> Result<(), CaptureError> {
        let Some(interface) = self.interfaces[tapped.link as usize] else { return Ok(()) };
        let is_of = |pair: &[u32; 2]| tapped.flow.is_some_and(|[a, b]| *pair == [a, b] || *pair == [b, a]);
        if !(self.between.0..=self.between.1).contains(&tapped.at)
            || !self.flows.is_empty() && !self.flows.iter().any(is_of)
        {
            return Ok(());
        }
        let mut comment = format!("{} → {}", self.graph.name(tapped.from), self.graph.name(tapped.to));
        if tapped.label != Label::default() {
            let Tag { sequence, chunk, step } = tapped.label.into();
            let _ = write!(comment, " · call {sequence}, chunk {chunk}, step {step}");
        }
        if tapped.is_corrupt {
            comment += " · CORRUPTED on an earlier link";
        }
        if tapped.is_lost {
            comment += " · LOST on this link";
        }
        let time = Timestamp::new(0, tapped.at.as_ps());
        let record = links::record(self.framing, time, tapped.frame);
        let most = self.snaplen.saturating_add(links::front(self.framing));
        self.writer.write_cut(interface, time, (&record, most), &[&comment])?;
        self.frames += 1;
        Ok(())
    }

    /// Ends the file.
    pub(super) fn finish(self) -> anyhow::Result<Written> {
        let Self { output, writer, interfaces, frames, .. } = self;
        let path = output.name().to_owned();
        writer.finish().with_context(|| format!("cannot write {}", path.display()))?;
        output.finish()?;
        Ok(Written { path, links: interfaces.iter().flatten().count() as u64, frames })
    }
}

/// A capture that was written.
pub(super) struct Written {
    path: PathBuf,
    links: u64,
    frames: u64,
}

impl Written {
    /// As a line of the summary.
    pub(super) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let number = words::count(self.frames, "frame", "frames");
        let links = words::count(self.links, "link", "links");
        writeln!(out, "  {:<12}{number:<22} of {links} in {}", "Captured", self.path.display())
    }
}

/// What a link is called in the capture: by its ends, and by their ports too where several join the two.
fn name(graph: &FabricGraph, link: u32) -> String {
    let [a, b] = graph.links[link as usize].ends;
    if graph.links_between(a.vertex, b.vertex).len() == 1 {
        return graph.link_name(link);
    }
    format!("{}:{} - {}:{}", graph.name(a.vertex), a.port, graph.name(b.vertex), b.port)
}

/// The links to listen to.
fn taps(options: &Options, graph: &FabricGraph) -> anyhow::Result<BTreeSet<u32>> {
    let mut links = BTreeSet::new();
    for place in &options.tap {
        links.extend(links_at(place, graph)?);
    }
    if !options.tap.is_empty() {
        return Ok(links);
    }
    if graph.hosts.len() > HOSTS_MAX {
        bail!(
            "--pcap: the fabric has {} hosts: say where to listen, such as --tap {}\n  = up to {HOSTS_MAX} hosts are \
             all listened to without --tap",
            grouped(graph.hosts.len() as u64),
            graph.hosts[0].name
        );
    }
    let edges = graph.links.iter().enumerate().filter(|(_, link)| link.kind == LinkKind::Edge);
    links.extend(edges.map(|(link, _)| link as u32));
    Ok(links)
}

/// The two hosts of a flow such as `host0:host3`.
fn pair(flow: &str, graph: &FabricGraph) -> anyhow::Result<[u32; 2]> {
    let (a, b) =
        flow.split_once(':').ok_or_else(|| anyhow!("--flow {flow}: write two hosts, host0:host3"))?;
    let host = |name: &str| match find(&format!("--flow {flow}"), name, graph)? {
        Vertex::Host(host) => Ok(host),
        Vertex::Switch(_) => Err(anyhow!("--flow {flow}: {name} is a switch; flows are between hosts")),
    };
    Ok([host(a)?, host(b)?])
}

/// The links that `host3`, `leaf0` or `leaf0:spine1` stand for.
fn links_at(place: &str, graph: &FabricGraph) -> anyhow::Result<Vec<u32>> {
    let option = format!("--tap {place}");
    let Some((near, far)) = place.split_once(':') else {
        let vertex = find(&option, place, graph)?;
        return Ok(graph.neighbours(vertex).iter().map(|neighbour| neighbour.link).collect());
    };
    let (a, b) = (find(&option, near, graph)?, find(&option, far, graph)?);
    let links = graph.links_between(a, b);
    if links.is_empty() {
        let mut peers: Vec<Vertex> =
            graph.neighbours(a).iter().map(|neighbour| neighbour.peer.vertex).collect();
        peers.sort_by_key(|peer| matches!(peer, Vertex::Host(_)));
        let peers: Vec<&str> = peers.into_iter().map(|peer| graph.name(peer)).collect();
        let more = if peers.len() > NAMED { ", …" } else { "" };
        let named = peers[..peers.len().min(NAMED)].join(", ");
        bail!("--tap {place}: no link joins {near} and {far}\n  = {near} is joined to {named}{more}");
    }
    Ok(links)
}

fn find(option: &str, name: &str, graph: &FabricGraph) -> anyhow::Result<Vertex> {
    if let Some(vertex) = graph.find(name) {
        return Ok(vertex);
    }
    let hosts: Vec<&str> = graph.hosts.iter().map(|host| host.name.as_str()).collect();
    let switches: Vec<&str> = graph.switches.iter().map(|switch| switch.name.as_str()).collect();
    let mut text = format!("{option}: there is no host or switch called \"{name}\"");
    let known = [hosts.clone(), switches.clone()].concat();
    if let Some(meant) = words::nearest(name, &known) {
        let _ = write!(text, "\n  = did you mean \"{meant}\"?");
    }
    for (what, names) in [("hosts", &hosts), ("switches", &switches)] {
        if let [first, .., last] = names[..] {
            let _ = write!(text, "\n  = {what} are {first} to {last}");
        } else if let [only] = names[..] {
            let _ = write!(text, "\n  = the one of the {what} is {only}");
        }
    }
    Err(anyhow!(text))
}
