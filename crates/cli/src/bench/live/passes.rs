//! The passes at one place: all contestants are started, then each in turn measures each point, again and again.

use std::path::Path;
use std::time::Instant;

use super::contestant::{Contestant, Ready};
use super::figures::{Cell, Group, Member, Row};
use super::load::{Load, loopback_bytes};
use super::point::{Place, Point};
use super::probe;
use super::protocol::{Times, Work};
use super::team::{Team, Turn};

/// What holds for all passes.
pub(crate) struct Terms<'a> {
    /// Passes of each contestant.
    pub(crate) repeat: usize,
    /// How long each turn takes, about.
    pub(crate) seconds: f64,
    /// How nice the session of each rank is to others.
    pub(crate) nice: i32,
    /// Where sockets and programs are.
    pub(crate) folder: &'a Path,
    /// The busy process, where one is wanted.
    pub(crate) load: Option<&'a Load>,
}

/// A contestant that was found, or why it was not.
pub(crate) type Found = (Contestant, Result<Ready, String>);

/// A member and what its turns need.
struct Player {
    member: Member,
    team: Option<Team>,
    /// What a call of each point takes, about, once that is known.
    call_us: Vec<Option<f64>>,
    /// When the last turn ended, and the processor time of the ranks until then.
    rested: Option<(Instant, f64)>,
}

/// Measures every point with every contestant that can go that way.
pub(crate) fn run(
    place: Place,
    points: &[Point],
    found: &[Found],
    terms: &Terms<'_>,
    mut tell: impl FnMut(&str),
) -> Group {
    let mut players: Vec<Player> = Vec::new();
    for (who, ready) in found.iter().filter(|(who, _)| who.has(place.transport)) {
        tell(&format!("{} ranks, {}: starting {}", place.ranks, place.transport.words(), who.name()));
        players.push(Player::start(*who, ready, place, points.len(), terms));
    }
    let rows =
        |point: &Point| Row { point: *point, cells: players.iter().map(|_| Cell::default()).collect() };
    let mut rows: Vec<Row> = points.iter().map(rows).collect();
    let mut probes = Vec::new();
    let mut salt = 0;
    for pass in 0..terms.repeat {
        probes.push(probe::cache_line());
        for (index, row) in rows.iter_mut().enumerate() {
            let Point { collective, bytes } = row.point;
            tell(&format!(
                "{} ranks, {}: pass {} of {}, {collective} of {}",
                place.ranks,
                place.transport.words(),
                pass + 1,
                terms.repeat,
                railnet_core::Bytes(bytes)
            ));
            // Each goes first in its turn: what the one before left in caches and clocks is nobody's for good.
            for turn in 0..players.len() {
                let who = (turn + pass + index) % players.len();
                salt += 2;
                let times = players[who].play(row.point, index, salt, terms, &mut row.cells[who]);
                row.cells[who].passes.push(times);
            }
        }
    }
    let members = players.into_iter().map(|player| player.member).collect();
    Group { place, members, rows, probes, is_loaded: terms.load.is_some() }
}

impl Player {
    fn start(
        who: Contestant,
        ready: &Result<Ready, String>,
        place: Place,
        points: usize,
        terms: &Terms<'_>,
    ) -> Self {
        let team = match ready {
            Ok(ready) => {
                let name = format!("{}-{}-{}", who.id(), place.ranks, place.transport.name());
                let commands = |socket: &Path| ready.commands(place, socket, terms.folder);
                Team::start(&name, place.ranks, terms.nice, terms.folder, commands)
                    .map_err(|error| error.to_string())
            }
            Err(why) => Err(why.clone()),
        };
        let (name, trouble, team) = match team {
            Ok(team) => (team.name.clone(), None, Some(team)),
            Err(why) => (who.name().to_owned(), Some(why), None),
        };
        let member = Member::new(who, name, trouble);
        Self { member, team, call_us: vec![None; points], rested: None }
    }

    /// One turn. None when there is nothing to show, and then the cell or the member says why.
    fn play(
        &mut self,
        point: Point,
        index: usize,
        salt: u32,
        terms: &Terms<'_>,
        cell: &mut Cell,
    ) -> Option<Times> {
        if cell.unsupported.is_some() {
            return None;
        }
        let call_us = match self.call_us[index] {
            Some(call_us) => call_us,
            None => self.turn(point.trial(salt), None, cell)?.median_us,
        };
        let times = self.turn(point.work(call_us, terms.seconds, salt), terms.load, cell)?;
        self.call_us[index] = Some(times.typical_us());
        Some(times)
    }

    fn turn(&mut self, work: Work, load: Option<&Load>, cell: &mut Cell) -> Option<Times> {
        let team = self.team.as_mut()?;
        if let Some(((since, before), after)) = self.rested.take().zip(team.seconds()) {
            self.member.waiting.amount += after - before;
            self.member.waiting.of += since.elapsed().as_secs_f64();
        }
        let (carried, had, began) = (loopback_bytes(), load.and_then(Load::seconds), Instant::now());
        let outcome = team.turn(work);
        match outcome {
            Ok(Turn::Times(times)) => {
                if let Some((before, after)) = carried.zip(loopback_bytes()) {
                    self.member.carried.amount += after.saturating_sub(before) as f64;
                    let calls =
                        f64::from(work.warmup) + f64::from(work.batches) * f64::from(work.calls) + 1.0;
                    self.member.carried.of += calls * work.bytes as f64;
                }
                if let Some((before, after)) = had.zip(load.and_then(Load::seconds)) {
                    self.member.left_over.amount += after - before;
                    self.member.left_over.of += began.elapsed().as_secs_f64();
                }
                self.rested = team.seconds().map(|seconds| (Instant::now(), seconds));
                Some(times)
            }
            Ok(Turn::Unsupported(why)) => {
                cell.unsupported = Some(why);
                None
            }
            Err(error) => {
                self.member.trouble = Some(error.to_string());
                self.team = None;
                None
            }
        }
    }
}
