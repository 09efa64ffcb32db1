//! A dragonfly as a circle of groups.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use super::canvas::{BLUE, BORDER, Canvas, GREEN, GREY, INK, MUTED, ORANGE, Point, SHADE};
use super::{ITEMS_MAX, Legend, count_of, headline, least_rate, stroke, total_rate};
use crate::graph::{FabricGraph, Link, LinkKind, Vertex};

/// More routers than this are not drawn one by one.
const ROUTERS_MAX: usize = 160;
const ROUTER_RADIUS: f64 = 11.0;

/// A group, or several that are drawn as one.
struct Group {
    name: String,
    routers: Vec<u32>,
    hosts: usize,
    centre: Point,
}

pub(super) fn draw(graph: &FabricGraph) -> String {
    let groups = gather(graph);
    let each = graph.switches.len() <= ROUTERS_MAX;
    let most = groups.iter().map(|group| group.routers.len()).max().unwrap_or(1);
    let ring = if each { (most as f64 * 30.0 / TAU).max(20.0) } else { 30.0 };
    let radius = if each { ring + ROUTER_RADIUS + 9.0 } else { 46.0 };
    let circle = (groups.len() as f64 * (radius * 2.0 + 30.0) / TAU).max(radius * 2.0 + 20.0);
    let picture = Picture { graph, each, ring, radius, circle };
    picture.draw(groups)
}

fn gather(graph: &FabricGraph) -> Vec<Group> {
    let pods = graph.switches.iter().map(|switch| switch.pod as usize + 1).max().unwrap_or(1);
    let share = pods.div_ceil(ITEMS_MAX);
    let mut groups: Vec<Group> = Vec::new();
    for first in (0..pods).step_by(share) {
        let last = (first + share - 1).min(pods - 1);
        let name = if share == 1 { format!("group {first}") } else { format!("groups {first}–{last}") };
        groups.push(Group { name, routers: Vec::new(), hosts: 0, centre: (0.0, 0.0) });
    }
    for (id, switch) in graph.switches.iter().enumerate() {
        groups[switch.pod as usize / share].routers.push(id as u32);
    }
    for link in graph.links.iter().filter(|link| link.kind == LinkKind::Edge) {
        if let Some(switch) = link.ends.iter().find_map(|end| switch_of(end.vertex)) {
            groups[graph.switches[switch as usize].pod as usize / share].hosts += 1;
        }
    }
    groups
}

fn switch_of(vertex: Vertex) -> Option<u32> {
    match vertex {
        Vertex::Switch(switch) => Some(switch),
        Vertex::Host(_) => None,
    }
}

struct Picture<'a> {
    graph: &'a FabricGraph,
    /// Whether routers are drawn one by one.
    each: bool,
    /// The radius on which the routers of a group stand.
    ring: f64,
    /// The radius of a group.
    radius: f64,
    /// The radius on which the groups stand.
    circle: f64,
}

impl Picture<'_> {
    fn draw(&self, mut groups: Vec<Group>) -> String {
        let half = self.circle + self.radius + 64.0;
        let middle = (half.max(320.0), 60.0 + half);
        let count = groups.len();
        for (place, group) in groups.iter_mut().enumerate() {
            group.centre = on_circle(middle, self.circle, place, count);
        }
        let mut spots = vec![(0.0, 0.0); self.graph.switches.len()];
        for group in &groups {
            for (place, router) in group.routers.iter().enumerate() {
                spots[*router as usize] = match self.each {
                    true => on_circle(group.centre, self.ring, place, group.routers.len()),
                    false => group.centre,
                };
            }
        }
        let bundles = self.bundles(&groups);
        let legend = legend(&bundles);
        let bottom = middle.1 + half;
        let mut canvas = Canvas::new(middle.0 * 2.0, bottom + legend.height() + 16.0);
        let title = headline(self.graph);
        canvas.text((24.0, 34.0), 17.0, "start", INK, &title);
        for group in &groups {
            canvas.circle(group.centre, self.radius, SHADE, "#d5dde5", &group.name);
        }
        self.paint_links(&mut canvas, &bundles, &spots, middle);
        self.paint_routers(&mut canvas, &groups, &spots, middle);
        legend.draw(&mut canvas, 24.0, bottom);
        canvas.finish(&title)
    }

    /// The links between two spots, told apart by kind.
    fn bundles(&self, groups: &[Group]) -> BTreeMap<(LinkKind, u32, u32), Vec<&Link>> {
        let mut leaders = vec![0; self.graph.switches.len()];
        for group in groups {
            for router in &group.routers {
                leaders[*router as usize] = if self.each { *router } else { group.routers[0] };
            }
        }
        let mut bundles: BTreeMap<_, Vec<&Link>> = BTreeMap::new();
        for link in &self.graph.links {
            let ends = link.ends.map(|end| switch_of(end.vertex).map(|switch| leaders[switch as usize]));
            let (a, b) = match ends {
                [Some(a), Some(b)] => (a.min(b), a.max(b)),
                [Some(a), None] | [None, Some(a)] => (a, a),
                [None, None] => continue,
            };
            bundles.entry((link.kind, a, b)).or_default().push(link);
        }
        bundles
    }

    fn paint_links(
        &self,
        canvas: &mut Canvas,
        bundles: &BTreeMap<(LinkKind, u32, u32), Vec<&Link>>,
        spots: &[Point],
        middle: Point,
    ) {
        let least = least_rate(self.graph);
        let global = bundles.keys().filter(|(kind, ..)| *kind == LinkKind::Global).count();
        for ((kind, a, b), links) in bundles.iter().filter(|((_, a, b), _)| a != b) {
            let (from, to) = (spots[*a as usize], spots[*b as usize]);
            let (_, _, colour) = look(*kind);
            let width = stroke(total_rate(links), least);
            if *kind == LinkKind::Global {
                // Bent towards the middle, so that lines between neighbours do not run through other groups.
                let between = (f64::midpoint(from.0, to.0), f64::midpoint(from.1, to.1));
                let by =
                    (between.0 + (middle.0 - between.0) * 0.35, between.1 + (middle.1 - between.1) * 0.35);
                canvas.curve([from, to], by, colour, width, if global > 120 { 0.35 } else { 0.7 });
            } else {
                canvas.line(from, to, colour, width, 0.7);
            }
        }
    }

    fn paint_routers(&self, canvas: &mut Canvas, groups: &[Group], spots: &[Point], middle: Point) {
        for group in groups {
            let hosts = count_of(group.hosts, "host", "hosts");
            if !self.each {
                let (x, y) = group.centre;
                canvas.circle(group.centre, self.radius - 8.0, "#dbeaf5", BORDER, &group.name);
                canvas.text((x, y - 9.0), 12.0, "middle", INK, &group.name);
                let routers = count_of(group.routers.len(), "router", "routers");
                canvas.text((x, y + 6.0), 11.0, "middle", MUTED, &routers);
                canvas.text((x, y + 20.0), 11.0, "middle", MUTED, &hosts);
                continue;
            }
            for (place, router) in group.routers.iter().enumerate() {
                let (x, y) = spots[*router as usize];
                let name = &self.graph.switches[*router as usize].name;
                canvas.circle((x, y), ROUTER_RADIUS, "#dbeaf5", BORDER, name);
                canvas.text((x, y + 4.0), 11.0, "middle", INK, &place.to_string());
            }
            // Outside the circle of groups, where no line runs.
            let out = (self.radius + 30.0) / self.circle;
            let x = group.centre.0 + (group.centre.0 - middle.0) * out;
            let y = group.centre.1 + (group.centre.1 - middle.1) * out;
            canvas.text((x, y - 2.0), 13.0, "middle", INK, &group.name);
            canvas.text((x, y + 13.0), 11.0, "middle", MUTED, &hosts);
        }
    }
}

fn legend(bundles: &BTreeMap<(LinkKind, u32, u32), Vec<&Link>>) -> Legend {
    let mut legend = Legend::default();
    for ((kind, a, b), links) in bundles {
        let (order, what, colour) = look(*kind);
        if a == b {
            // Not drawn: the legend only counts them.
            for link in links {
                legend.add(order, &format!("{what} (not drawn)"), colour, &[*link]);
            }
        } else {
            legend.add(order, what, colour, links);
        }
    }
    legend
}

fn look(kind: LinkKind) -> (usize, &'static str, &'static str) {
    match kind {
        LinkKind::Global => (0, "between groups", ORANGE),
        LinkKind::Local => (1, "inside groups", GREEN),
        LinkKind::Up => (2, "between tiers", BLUE),
        LinkKind::Edge => (3, "to hosts", GREY),
    }
}

/// The `place`-th of `count` points around a circle, from the top on, clockwise.
fn on_circle(middle: Point, radius: f64, place: usize, count: usize) -> Point {
    let turn = place as f64 / count.max(1) as f64;
    (middle.0 + radius * sine(turn), middle.1 - radius * sine(turn + 0.25))
}

/// The sine of so many turns, by its series: the platform's own differs in the last digits from machine to machine.
fn sine(turns: f64) -> f64 {
    let mut turns = turns % 1.0;
    if turns > 0.5 {
        turns -= 1.0;
    }
    let x = turns * TAU;
    let (mut term, mut sum) = (x, x);
    for step in 1..14_u32 {
        let n = f64::from(2 * step);
        term *= -x * x / (n * (n + 1.0));
        sum += term;
    }
    sum
}
