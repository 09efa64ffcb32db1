//! A fabric as a picture that a person can read.
//!
//! Tiers are bands: the top tier above, leaves below it, hosts at the bottom. Where a band has more than a picture can
//! hold, boxes stand for many ("64 hosts"), and where many links run between two boxes, one line stands for them, the
//! wider the more it carries. A dragonfly is drawn as a circle of groups.

mod bands;
mod canvas;
mod groups;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use railnet_core::{Rate, Span};

use crate::graph::{FabricGraph, Link, LinkKind};
use canvas::{Canvas, MUTED};

/// More items than this in a band are drawn as boxes that stand for several.
const ITEMS_MAX: usize = 40;
/// How many boxes a band without pods is cut into when it has too many items.
const CHUNKS: usize = 16;

/// The fabric, whose graph passes [`FabricGraph::check`], as an SVG document.
pub fn draw(graph: &FabricGraph) -> String {
    if graph.links.iter().any(|link| link.kind == LinkKind::Global) {
        groups::draw(graph)
    } else {
        bands::draw(graph)
    }
}

/// `1 switch`, `4 switches`.
fn count_of(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

fn headline(graph: &FabricGraph) -> String {
    let hosts = count_of(graph.hosts.len(), "host", "hosts");
    let switches = count_of(graph.switches.len(), "switch", "switches");
    format!("{hosts}, {switches}, {}", count_of(graph.links.len(), "link", "links"))
}

/// A line of the legend: links that look alike and are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LegendKey {
    /// Where lines of this kind are in the order of the legend.
    order: usize,
    what: String,
    colour: &'static str,
    rate: Rate,
    delay: Span,
}

/// How many links each line of the legend is about, and how many of them a drawn line stands for: fewest, most.
#[derive(Default)]
struct Legend {
    rows: BTreeMap<LegendKey, (usize, usize, usize)>,
}

impl Legend {
    /// A bundle of links that is drawn as one line.
    fn add(&mut self, order: usize, what: &str, colour: &'static str, links: &[&Link]) {
        let mut alike: BTreeMap<(Rate, Span), usize> = BTreeMap::new();
        for link in links {
            *alike.entry((link.rate, link.delay)).or_insert(0) += 1;
        }
        for ((rate, delay), count) in alike {
            let key = LegendKey { order, what: what.to_owned(), colour, rate, delay };
            let row = self.rows.entry(key).or_insert((0, usize::MAX, 0));
            *row = (row.0 + count, row.1.min(count), row.2.max(count));
        }
    }

    const ROW: f64 = 22.0;

    fn height(&self) -> f64 {
        self.rows.len() as f64 * Self::ROW + 10.0
    }

    fn draw(&self, canvas: &mut Canvas, x: f64, y: f64) {
        for (row, (key, (count, fewest, most))) in self.rows.iter().enumerate() {
            let y = y + row as f64 * Self::ROW + 12.0;
            canvas.line((x, y), (x + 28.0, y), key.colour, 3.0, 1.0);
            let mut text =
                format!("{}: {} of {}, {}", key.what, count_of(*count, "link", "links"), key.rate, key.delay);
            if *most > 1 && fewest == most {
                let _ = write!(text, "; a line stands for {most}");
            } else if *most > 1 {
                let _ = write!(text, "; a line stands for {fewest} to {most}");
            }
            canvas.text((x + 38.0, y + 4.5), 13.0, "start", MUTED, &text);
        }
    }
}

/// How wide a line is that carries `rate`, where the narrowest link of the picture carries `least`.
fn stroke(rate: Rate, least: Rate) -> f64 {
    let times = rate.as_bps() / least.as_bps().max(1);
    (1.2 + 0.7 * f64::from(times.max(1).ilog2())).min(5.5)
}

/// What the links of a bundle carry together.
fn total_rate(links: &[&Link]) -> Rate {
    Rate::from_bps(links.iter().fold(0, |sum, link| sum.saturating_add(link.rate.as_bps())))
}

fn least_rate(graph: &FabricGraph) -> Rate {
    graph.links.iter().map(|link| link.rate).min().unwrap_or(Rate::ZERO)
}
