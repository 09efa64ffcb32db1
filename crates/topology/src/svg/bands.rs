//! Tiers as bands, hosts at the bottom.

use std::collections::BTreeMap;

use super::canvas::{BLUE, BORDER, Canvas, GREEN, GREY, INK, MUTED, ORANGE, SHADE, text_width};
use super::{CHUNKS, ITEMS_MAX, Legend, count_of, headline, least_rate, stroke, total_rate};
use crate::graph::{FabricGraph, Link, Vertex};

const MARGIN: f64 = 24.0;
const FONT: f64 = 13.0;
const SLOT_GAP: f64 = 22.0;

/// A box: one vertex, or what stands for several.
#[derive(Clone, Debug)]
struct Item {
    label: String,
    /// A second, smaller line.
    detail: String,
    tooltip: String,
    /// The pod it is drawn in; of several, the first.
    pod: u32,
    /// The server it is in, where servers have several NICs and those are drawn one by one.
    node: Option<u32>,
    x: f64,
}

/// A row of boxes.
struct Band {
    title: String,
    subtitle: String,
    items: Vec<Item>,
    width: f64,
    height: f64,
    y: f64,
}

impl Band {
    fn new(title: String, subtitle: String, items: Vec<Item>) -> Self {
        let label = items.iter().map(|item| text_width(&item.label, FONT)).fold(0.0, f64::max);
        let detail = items.iter().map(|item| text_width(&item.detail, FONT - 2.0)).fold(0.0, f64::max);
        let two_lines = items.iter().any(|item| !item.detail.is_empty());
        let width = (label.max(detail) + 12.0).max(26.0);
        Self { title, subtitle, items, width, height: if two_lines { 42.0 } else { 26.0 }, y: 0.0 }
    }

    /// The room below the boxes for the names of the servers they are in.
    fn foot(&self) -> f64 {
        if self.items.iter().any(|item| item.node.is_some()) { 22.0 } else { 0.0 }
    }

    fn pitch(&self) -> f64 {
        self.width + 8.0
    }
}

/// A band, and a box in it.
type Spot = (usize, usize);

/// Where each vertex is drawn.
struct Places {
    hosts: Vec<Spot>,
    switches: Vec<Spot>,
}

impl Places {
    fn of(&self, vertex: Vertex) -> Spot {
        match vertex {
            Vertex::Host(host) => self.hosts[host as usize],
            Vertex::Switch(switch) => self.switches[switch as usize],
        }
    }
}

pub(super) fn draw(graph: &FabricGraph) -> String {
    let mut places =
        Places { hosts: vec![(0, 0); graph.hosts.len()], switches: vec![(0, 0); graph.switches.len()] };
    let mut bands = Vec::new();
    for tier in (0..=graph.tiers()).rev() {
        let switches: Vec<u32> =
            (0..graph.switches.len() as u32).filter(|id| graph.switches[*id as usize].tier == tier).collect();
        if !switches.is_empty() {
            let items = switch_items(graph, &switches, bands.len(), &mut places);
            let (title, subtitle) = tier_title(graph, &switches, tier);
            bands.push(Band::new(title, subtitle, items));
        }
    }
    if !graph.hosts.is_empty() {
        let items = host_items(graph, &bands, &mut places);
        let nodes = graph.hosts.iter().map(|host| host.node + 1).max().unwrap_or(0) as usize;
        let servers =
            if nodes < graph.hosts.len() { count_of(nodes, "server", "servers") } else { String::new() };
        bands.push(Band::new(count_of(graph.hosts.len(), "host", "hosts"), servers, items));
    }
    let slots = lay_out(&mut bands);
    paint(graph, &bands, &places, &slots)
}

/// The letters a name begins with: what the switches of a tier are called.
fn role(name: &str) -> &str {
    name.find(|letter: char| !letter.is_alphabetic()).map_or(name, |end| &name[..end])
}

fn tier_title(graph: &FabricGraph, switches: &[u32], tier: u8) -> (String, String) {
    let mut roles: Vec<_> = switches.iter().map(|id| role(&graph.switches[*id as usize].name)).collect();
    roles.dedup();
    let (one, many) = match roles[..] {
        ["edge"] => ("edge switch", "edge switches"),
        ["agg"] => ("aggregation", "aggregation"),
        ["core"] => ("core switch", "core switches"),
        ["leaf"] => ("leaf", "leaves"),
        ["spine"] => ("spine", "spines"),
        _ => ("switch", "switches"),
    };
    (count_of(switches.len(), one, many), format!("tier {tier}"))
}

/// Boxes for the switches of a tier: one each, or by pod where there are too many, or in equal parts.
fn switch_items(graph: &FabricGraph, switches: &[u32], band: usize, places: &mut Places) -> Vec<Item> {
    let pod = |id: u32| graph.switches[id as usize].pod;
    let pods = switches.iter().map(|id| pod(*id)).max().map_or(1, |pod| pod as usize + 1);
    let key = |place: usize, id: u32| -> usize {
        if switches.len() <= ITEMS_MAX {
            place
        } else if pods > 1 && switches.len() > pods {
            pod(id) as usize / pods.div_ceil(ITEMS_MAX)
        } else {
            place / switches.len().div_ceil(CHUNKS)
        }
    };
    let mut members: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (place, id) in switches.iter().enumerate() {
        members.entry(key(place, *id)).or_default().push(*id);
    }
    let short = members.len() > 16;
    let mut items = Vec::new();
    for ids in members.into_values() {
        for id in &ids {
            places.switches[*id as usize] = (band, items.len());
        }
        let name = |id: u32| graph.switches[id as usize].name.as_str();
        let (first, last) = (name(ids[0]), name(ids[ids.len() - 1]));
        let (label, detail, tooltip) = if ids.len() == 1 {
            let label = if short { short_name(first) } else { first };
            (label.to_owned(), String::new(), first.to_owned())
        } else {
            let detail = format!("{}–{}", short_name(first), short_name(last));
            (format!("{} {}", ids.len(), role(first)), detail, format!("{first} to {last}"))
        };
        items.push(Item { label, detail, tooltip, pod: pod(ids[0]), node: None, x: 0.0 });
    }
    items
}

/// A name without the letters that all of its band share: `edge0.1` is `0.1`.
fn short_name(name: &str) -> &str {
    let rest = &name[role(name).len()..];
    if rest.is_empty() { name } else { rest }
}

/// Boxes for the hosts: one each, by server, or by the box of their leaf.
fn host_items(graph: &FabricGraph, bands: &[Band], places: &mut Places) -> Vec<Item> {
    let adjacency = graph.adjacency();
    let leaf = |id: u32| match adjacency.of(Vertex::Host(id)).first().map(|end| end.peer.vertex) {
        Some(Vertex::Switch(leaf)) => Some(leaf),
        _ => None,
    };
    let hosts = graph.hosts.len();
    let nodes = graph.hosts.iter().map(|host| host.node as usize + 1).max().unwrap_or(1);
    let by_node = nodes < hosts;
    let each = hosts <= ITEMS_MAX;
    let node_boxes = by_node && nodes <= ITEMS_MAX;
    // By what boxes are formed, and in what order they stand.
    let key = |id: u32| -> (usize, usize) {
        let at_leaf = leaf(id).map_or((0, 0), |leaf| places.switches[leaf as usize]);
        let leaf_order = if by_node { 0 } else { at_leaf.0 * graph.switches.len() + at_leaf.1 };
        match (each, node_boxes) {
            (true, _) => (leaf_order, id as usize),
            (false, true) => (0, graph.hosts[id as usize].node as usize),
            (false, false) => (at_leaf.0, at_leaf.1),
        }
    };
    let mut members: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
    for id in 0..hosts as u32 {
        members.entry(key(id)).or_default().push(id);
    }
    let mut items = Vec::new();
    for ids in members.into_values() {
        for id in &ids {
            places.hosts[*id as usize] = (bands.len(), items.len());
        }
        let pod = leaf(ids[0]).map_or(0, |leaf| {
            let (band, item) = places.switches[leaf as usize];
            bands[band].items[item].pod
        });
        items.push(host_item(graph, &ids, by_node, node_boxes, pod));
    }
    items
}

fn host_item(graph: &FabricGraph, ids: &[u32], by_node: bool, node_box: bool, pod: u32) -> Item {
    let (first, last) = (&graph.hosts[ids[0] as usize], &graph.hosts[ids[ids.len() - 1] as usize]);
    if ids.len() == 1 {
        let inside = first.name.rsplit_once('.').map(|(_, nic)| nic).filter(|_| by_node);
        let label = inside.unwrap_or(&first.name).to_owned();
        let node = by_node.then_some(first.node);
        return Item { label, detail: String::new(), tooltip: first.name.clone(), pod, node, x: 0.0 };
    }
    let (label, detail) = if node_box {
        (format!("node{}", first.node), format!("{} NICs", ids.len()))
    } else if ids[ids.len() - 1] - ids[0] + 1 == ids.len() as u32 {
        (format!("{} hosts", ids.len()), format!("{}–{}", ids[0], ids[ids.len() - 1]))
    } else {
        let rail = if ids.iter().all(|id| graph.hosts[*id as usize].rail == first.rail) {
            format!("rail {}", first.rail)
        } else {
            String::new()
        };
        (format!("{} hosts", ids.len()), rail)
    };
    let tooltip = format!("{} to {}", first.name, last.name);
    Item { label, detail, tooltip, pod, node: None, x: 0.0 }
}

/// The stretch of the picture that belongs to a pod.
struct Slot {
    pod: u32,
    start: f64,
    width: f64,
}

/// Gives every box its place; the pods, each in a stretch of its own, are the answer.
fn lay_out(bands: &mut [Band]) -> Vec<Slot> {
    let (top, below) = match bands.len() {
        0 => return Vec::new(),
        1 => (0, 0),
        _ => (1, 1),
    };
    let mut widths: BTreeMap<u32, f64> = BTreeMap::new();
    for band in &bands[below..] {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for item in &band.items {
            *counts.entry(item.pod).or_insert(0) += 1;
        }
        for (pod, count) in counts {
            let width = widths.entry(pod).or_insert(0.0);
            *width = width.max(count as f64 * band.pitch() + 8.0);
        }
    }
    // The titles of the bands stand to the left of everything.
    let titles = bands.iter().map(|band| text_width(&band.title, 14.0)).fold(90.0, f64::max) + 14.0;
    let left = MARGIN + titles;
    let mut slots = Vec::new();
    let mut x = 0.0;
    for (pod, width) in widths {
        slots.push(Slot { pod, start: left + x, width });
        x += width + SLOT_GAP;
    }
    let total = (x - SLOT_GAP).max(0.0);
    let needed = bands[..top].iter().map(|band| band.items.len() as f64 * band.pitch()).fold(300.0, f64::max);
    let spread = (needed - total).max(0.0) / slots.len().max(1) as f64;
    for (place, slot) in slots.iter_mut().enumerate() {
        slot.start += spread * place as f64;
        slot.width += spread;
    }
    let width = total.max(needed);
    for band in &mut bands[..top] {
        let step = width / band.items.len() as f64;
        for (place, item) in band.items.iter_mut().enumerate() {
            item.x = left + step * (place as f64 + 0.5);
        }
    }
    for band in &mut bands[below..] {
        for slot in &slots {
            let inside: Vec<_> = band.items.iter_mut().filter(|item| item.pod == slot.pod).collect();
            let step = slot.width / inside.len().max(1) as f64;
            for (place, item) in inside.into_iter().enumerate() {
                item.x = slot.start + step * (place as f64 + 0.5);
            }
        }
    }
    let gap = (width / 11.0).clamp(84.0, 190.0);
    let mut y = 76.0;
    for band in bands.iter_mut() {
        band.y = y + band.height / 2.0;
        y += band.height + gap;
    }
    slots
}

/// All links between two boxes.
struct Bundle<'a> {
    upper: Spot,
    lower: Spot,
    links: Vec<&'a Link>,
}

fn bundles<'a>(graph: &'a FabricGraph, places: &Places) -> Vec<Bundle<'a>> {
    let mut found: BTreeMap<(Spot, Spot), Vec<&Link>> = BTreeMap::new();
    for link in &graph.links {
        let [a, b] = link.ends.map(|end| places.of(end.vertex));
        found.entry((a.min(b), a.max(b))).or_default().push(link);
    }
    found.into_iter().map(|((upper, lower), links)| Bundle { upper, lower, links }).collect()
}

fn paint(graph: &FabricGraph, bands: &[Band], places: &Places, slots: &[Slot]) -> String {
    let bundles = bundles(graph, places);
    let mut legend = Legend::default();
    for bundle in &bundles {
        let (upper, lower) = (bundle.upper.0, bundle.lower.0);
        let what = format!("{} – {}", noun(&bands[upper]), noun(&bands[lower]));
        legend.add(upper * bands.len() + lower, &what, colour(bands, bundle), &bundle.links);
    }
    let right = slots.iter().map(|slot| slot.start + slot.width).fold(300.0, f64::max);
    let bottom = bands.last().map_or(60.0, |band| band.y + band.height / 2.0 + band.foot() + 36.0);
    let width = (right + MARGIN).max(620.0);
    let mut canvas = Canvas::new(width, bottom + 10.0 + legend.height());
    let title = headline(graph);
    canvas.text((MARGIN, 34.0), 17.0, "start", INK, &title);
    paint_pods(&mut canvas, graph, bands, slots);
    paint_nodes(&mut canvas, graph, bands);
    paint_links(&mut canvas, graph, bands, &bundles);
    for (depth, band) in bands.iter().enumerate() {
        canvas.text((MARGIN, band.y), 14.0, "start", INK, &band.title);
        canvas.text((MARGIN, band.y + 16.0), 11.0, "start", MUTED, &band.subtitle);
        let fill = if depth + 1 == bands.len() && !graph.hosts.is_empty() { "#ffffff" } else { "#dbeaf5" };
        for item in &band.items {
            let x = item.x;
            canvas.rect((x, band.y), (band.width, band.height), fill, BORDER, &item.tooltip);
            if item.detail.is_empty() {
                canvas.text((x, band.y + 4.5), FONT, "middle", INK, &item.label);
            } else {
                canvas.text((x, band.y - 2.0), FONT, "middle", INK, &item.label);
                canvas.text((x, band.y + 13.0), FONT - 2.0, "middle", MUTED, &item.detail);
            }
        }
    }
    legend.draw(&mut canvas, MARGIN, bottom);
    canvas.finish(&title)
}

/// What the things of a band are, without their number.
fn noun(band: &Band) -> &str {
    band.title.split_once(' ').map_or(&band.title, |(_, noun)| noun)
}

fn colour(bands: &[Band], bundle: &Bundle<'_>) -> &'static str {
    let (upper, lower) = (bundle.upper.0, bundle.lower.0);
    if upper == lower {
        GREEN
    } else if lower + 1 == bands.len() {
        GREY
    } else if upper == 0 && bands.len() > 3 {
        ORANGE
    } else {
        BLUE
    }
}

/// A shade behind each pod, where there are several.
fn paint_pods(canvas: &mut Canvas, graph: &FabricGraph, bands: &[Band], slots: &[Slot]) {
    if slots.len() < 2 || bands.len() < 2 {
        return;
    }
    let (first, last) = (&bands[1], &bands[bands.len() - 1]);
    let bottom = last.y + last.height / 2.0 + last.foot() + 24.0;
    let top = first.y - first.height / 2.0 - 12.0;
    let word = if graph.tiers() > 2 { "pod" } else { "group" };
    for (place, slot) in slots.iter().enumerate() {
        let x = slot.start;
        let size = (slot.width + 8.0, bottom - top);
        let centre = (x + slot.width / 2.0, f64::midpoint(top, bottom));
        canvas.rect(centre, size, SHADE, "#e1e7ed", "");
        let last = slots.get(place + 1).map(|next| next.pod - 1).filter(|last| *last > slot.pod);
        let name = match last {
            Some(last) => format!("{word}s {}–{last}", slot.pod),
            None => format!("{word} {}", slot.pod),
        };
        canvas.text((centre.0, bottom - 8.0), 12.0, "middle", MUTED, &name);
    }
}

/// A frame around the NICs of each server, where they are drawn one by one.
fn paint_nodes(canvas: &mut Canvas, graph: &FabricGraph, bands: &[Band]) {
    let Some(band) = bands.last() else { return };
    let mut spans: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for item in &band.items {
        if let Some(node) = item.node {
            let span = spans.entry(node).or_insert((item.x, item.x));
            *span = (span.0.min(item.x), span.1.max(item.x));
        }
    }
    for (node, (left, right)) in spans {
        let centre = (f64::midpoint(left, right), band.y + 9.0);
        let size = (right - left + band.width + 6.0, band.height + 26.0);
        canvas.rect(centre, size, "#fbf6ea", "#e3d9bd", "");
        let host = graph.hosts.iter().find(|host| host.node == node);
        let name = host.and_then(|host| host.name.rsplit_once('.')).map(|(name, _)| name.to_owned());
        let name = name.unwrap_or_else(|| format!("node{node}"));
        canvas.text((centre.0, band.y + band.height / 2.0 + 15.0), 11.0, "middle", MUTED, &name);
    }
}

fn paint_links(canvas: &mut Canvas, graph: &FabricGraph, bands: &[Band], bundles: &[Bundle<'_>]) {
    let least = least_rate(graph);
    let mut drawn: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for bundle in bundles {
        *drawn.entry((bundle.upper.0, bundle.lower.0)).or_insert(0) += 1;
    }
    let place = |(band, item): Spot, side: f64| {
        (bands[band].items[item].x, bands[band].y + side * bands[band].height / 2.0)
    };
    let mut counts = Vec::new();
    for bundle in bundles {
        let same_band = bundle.upper.0 == bundle.lower.0;
        let (upper, lower) =
            (place(bundle.upper, if same_band { -1.0 } else { 1.0 }), place(bundle.lower, -1.0));
        let lines = drawn[&(bundle.upper.0, bundle.lower.0)];
        // The more lines, the lighter: what is behind must stay visible.
        let (opacity, widest) = match lines {
            0..=60 => (0.85, 5.5),
            61..=150 => (0.55, 1.8),
            151..=400 => (0.4, 1.4),
            _ => (0.25, 1.2),
        };
        let width = stroke(total_rate(&bundle.links), least).min(widest);
        let colour = colour(bands, bundle);
        if bundle.upper == bundle.lower {
            continue;
        }
        if same_band {
            let by = (
                f64::midpoint(upper.0, lower.0),
                upper.1 - 30.0 - ((upper.0 - lower.0).abs() / 6.0).min(60.0),
            );
            canvas.curve([upper, lower], by, colour, width, opacity);
        } else {
            canvas.line(upper, lower, colour, width, opacity);
        }
        if bundle.links.len() > 1 && lines <= 24 {
            let at = (lower.0 + (upper.0 - lower.0) * 0.3, lower.1 + (upper.1 - lower.1) * 0.3 + 4.0);
            counts.push((at, format!("×{}", bundle.links.len())));
        }
    }
    for (at, text) in counts {
        canvas.text_over(at, 11.0, MUTED, &text);
    }
}
