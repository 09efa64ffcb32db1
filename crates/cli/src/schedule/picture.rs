//! The schedule as a picture: ranks as lanes, rounds downward, an arrow for each chunk, coloured by chunk.

use std::fmt::Write as _;

use railnet_coll::{Peer, SwitchKind};

use super::moves::{Move, name};
use super::summary::Shown;

/// Okabe and Ito's colours without yellow, which is hard to see on white: people with any kind of sight tell them apart.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
const INK: &str = "#1f2933";
const MUTED: &str = "#52606d";
const LANE: &str = "#cbd2d9";

/// More lanes or rounds than this cannot be told apart in a picture.
const LANES_MAX: usize = 72;
const ROUNDS_MAX: u32 = 80;

const TOP: f64 = 96.0;
const LEFT: f64 = 92.0;
const ROW: f64 = 54.0;

/// Where things are.
struct Layout {
    ranks: u32,
    lane: f64,
    /// The lane of each group of a switch, and what each of these lanes is called.
    switches: Vec<usize>,
    names: Vec<String>,
}

impl Layout {
    /// Groups of one switch share a lane: the switch of a node, or the network.
    fn new(shown: &Shown<'_>) -> Self {
        let mut names: Vec<String> = Vec::new();
        let switches = shown.schedule.groups.iter().map(|group| {
            let first = group.senders.iter().chain(&group.receivers).min().copied().unwrap_or(0);
            let name = match group.kind {
                SwitchKind::Network => "network".to_owned(),
                SwitchKind::NvLink if shown.nodes == 1 => "switch".to_owned(),
                SwitchKind::NvLink => format!("switch {}", shown.node(first)),
            };
            names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            })
        });
        let switches = switches.collect();
        let lanes = shown.schedule.ranks as usize + names.len();
        let lane = if lanes > 20 { 46.0 } else { 84.0 };
        Self { ranks: shown.schedule.ranks, lane, switches, names }
    }

    fn lanes(&self) -> usize {
        self.ranks as usize + self.names.len()
    }

    fn x(&self, peer: Peer) -> f64 {
        match peer {
            Peer::Rank(rank) => LEFT + f64::from(rank) * self.lane,
            Peer::Switch(group) => self.switch_x(self.switches[group as usize]),
        }
    }

    /// Switches stand apart.
    fn switch_x(&self, lane: usize) -> f64 {
        LEFT + (f64::from(self.ranks) + lane as f64 + 0.5) * self.lane
    }

    fn y(round: u32) -> f64 {
        TOP + 30.0 + f64::from(round) * ROW
    }

    /// How far to the side a chunk begins, where its sender has several in a round.
    fn aside(here: &[Move], one: &Move) -> f64 {
        let mut chunks: Vec<(u16, u32)> = here
            .iter()
            .filter(|other| other.from == one.from)
            .map(|other| (other.channel, other.chunk))
            .collect();
        chunks.sort_unstable();
        chunks.dedup();
        let at = chunks.iter().position(|chunk| *chunk == (one.channel, one.chunk)).unwrap_or(0);
        (at as f64 - (chunks.len() as f64 - 1.0) / 2.0) * 20.0
    }
}

pub(super) fn draw(shown: &Shown<'_>) -> anyhow::Result<String> {
    let layout = Layout::new(shown);
    let lanes = layout.lanes();
    if lanes > LANES_MAX {
        let text = format!("{lanes} ranks and switches are too many for a picture: {LANES_MAX} fit");
        return Err(crate::Usage(text).into());
    }
    let rounds = shown.moves.rounds.min(ROUNDS_MAX);
    let wide = LEFT + lanes as f64 * layout.lane + 40.0;
    let width = wide.max(48.0 + text_width(&shown.title(), 16.0)).max(560.0);
    let height = Layout::y(rounds) + 62.0;
    let mut body = String::new();
    text(&mut body, (24.0, 34.0), 16.0, "start", INK, &shown.title());
    text(
        &mut body,
        (24.0, 54.0),
        12.0,
        "start",
        MUTED,
        "An arrow is a chunk on its way: colour and number tell which.",
    );
    if shown.reduces() {
        text(
            &mut body,
            (24.0, 70.0),
            12.0,
            "start",
            MUTED,
            "The number in a circle counts the contributions in it.",
        );
    }
    let ranks = (0..shown.schedule.ranks).map(|rank| {
        let name = if lanes > 20 { rank.to_string() } else { format!("rank {rank}") };
        (layout.x(Peer::Rank(rank)), name)
    });
    let switches = layout.names.iter().enumerate().map(|(lane, name)| (layout.switch_x(lane), name.clone()));
    for (x, name) in ranks.chain(switches) {
        let _ = writeln!(
            body,
            r#"<line x1="{x:.1}" y1="{:.1}" x2="{x:.1}" y2="{:.1}" stroke="{LANE}" stroke-width="2"/>"#,
            TOP + 8.0,
            height - 40.0
        );
        text(&mut body, (x, TOP), 13.0, "middle", INK, &name);
    }
    for round in 0..rounds {
        let here = shown.moves.of(round);
        text(&mut body, (24.0, Layout::y(round) + 4.0), 12.0, "start", MUTED, &format!("{}", round + 1));
        for one in here {
            arrow(&mut body, one, &layout, Layout::aside(here, one));
        }
        for one in here.iter().filter(|one| matches!(one.from, Peer::Rank(_))) {
            dot(&mut body, one, &layout, Layout::aside(here, one), shown.reduces());
        }
    }
    if rounds < shown.moves.rounds {
        let more = format!("and {} rounds more", shown.moves.rounds - rounds);
        text(&mut body, (24.0, height - 16.0), 12.0, "start", MUTED, &more);
    }
    Ok(document(&body, width, height, &shown.title()))
}

fn colour(chunk: u32) -> &'static str {
    COLOURS[chunk as usize % COLOURS.len()]
}

/// From its sender in its round to its receiver in the next. A switch gets its chunk in the first half of a round, and
/// passes it on in the second.
fn arrow(body: &mut String, one: &Move, layout: &Layout, aside: f64) {
    let top = Layout::y(one.round);
    let (from, to) = match (one.from, one.to) {
        (_, Peer::Switch(_)) => (top, top + ROW * 0.5),
        (Peer::Switch(_), _) => (top + ROW * 0.5, top + ROW - 9.0),
        _ => (top, top + ROW - 9.0),
    };
    let aside = if matches!(one.from, Peer::Rank(_)) { aside } else { 0.0 };
    let (x1, x2) = (layout.x(one.from) + aside, layout.x(one.to));
    let colour = colour(one.chunk);
    let number = one.chunk as usize % COLOURS.len();
    let title = format!(
        "round {}: {} sends chunk {} to {}, {} elements",
        one.round + 1,
        name(one.from),
        one.chunk,
        name(one.to),
        one.count
    );
    let _ = writeln!(
        body,
        r#"<line x1="{x1:.1}" y1="{from:.1}" x2="{x2:.1}" y2="{to:.1}" stroke="{colour}" stroke-width="1.8" stroke-opacity="0.85" marker-end="url(#a{number})"><title>{}</title></line>"#,
        escape(&title)
    );
    // The number of the chunk, a third of the way along.
    let (x, y) = (x1 + (x2 - x1) * 0.3, from + (to - from) * 0.3);
    let _ = writeln!(
        body,
        r##"<text x="{x:.1}" y="{:.1}" font-size="12" text-anchor="middle" fill="{colour}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{}</text>"##,
        y + 4.0,
        one.chunk
    );
}

/// What the sender has at this time.
fn dot(body: &mut String, one: &Move, layout: &Layout, aside: f64, is_counted: bool) {
    let (x, y) = (layout.x(one.from) + aside, Layout::y(one.round));
    let colour = colour(one.chunk);
    let radius = if is_counted { 9.0 } else { 5.0 };
    let _ = writeln!(
        body,
        r##"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="#ffffff" stroke="{colour}" stroke-width="2"/>"##
    );
    if is_counted {
        text(body, (x, y + 4.0), 11.0, "middle", INK, &one.contributions.to_string());
    }
}

fn text(body: &mut String, at: (f64, f64), size: f64, anchor: &str, colour: &str, text: &str) {
    let text = escape(text);
    let _ = writeln!(
        body,
        r#"<text x="{:.1}" y="{:.1}" font-size="{size:.0}" text-anchor="{anchor}" fill="{colour}">{text}</text>"#,
        at.0, at.1
    );
}

fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn document(body: &str, width: f64, height: f64, label: &str) -> String {
    let mut heads = String::new();
    for (number, colour) in COLOURS.iter().enumerate() {
        let _ = writeln!(
            heads,
            r#"<marker id="a{number}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M 0 0.5 L 8 4 L 0 7.5 z" fill="{colour}"/></marker>"#
        );
    }
    let label = escape(label);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" font-family="system-ui, 'DejaVu Sans', sans-serif">
<title>{label}</title>
<defs>
{heads}</defs>
<rect width="100%" height="100%" fill="#ffffff"/>
{body}</svg>
"##
    )
}
