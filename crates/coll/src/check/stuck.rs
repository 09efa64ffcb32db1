//! Why a run stands still, and what is left when it is over.

use super::error::{Awaited, CheckError, Waiting};
use super::links::Name;
use super::run::{Run, Waits};
use crate::schedule::{Connection, Peer};

/// Why not everybody has come to the end.
pub(super) fn reason(run: &Run<'_>) -> CheckError {
    let first = run.workers.iter().position(|worker| worker.done < worker.steps);
    let mut at = first.expect("somebody is not done") as u32;
    let mut path: Vec<(u32, Waiting)> = Vec::new();
    loop {
        if let Some(begin) = path.iter().position(|(worker, _)| *worker == at) {
            let cycle = path[begin..].iter().map(|(_, waiting)| *waiting).collect();
            return CheckError::Deadlock { cycle };
        }
        let worker = &run.workers[at as usize];
        let place = run.place(at, worker.done);
        let (what, next) = awaited(run, worker.waits);
        path.push((at, Waiting { place, what }));
        match next {
            Ok(next) => at = next,
            Err(why) => return CheckError::Never { place, what, why },
        }
    }
}

/// What a worker waits for, and the worker that should bring it about, or why nobody will.
fn awaited(run: &Run<'_>, waits: Waits) -> (Awaited, Result<u32, String>) {
    match waits {
        Waits::Nothing => unreachable!("a worker that stands waits for something"),
        Waits::Step { worker, step } => {
            (Awaited::Step { worker: run.workers[worker as usize].number, step }, Ok(worker))
        }
        Waits::Chunk { link } => {
            let name = run.links.name(link);
            (Awaited::Chunk { from: name.seen_by_receiver() }, feeder(run, link))
        }
        Waits::Room { link } => {
            let name = run.links.name(link);
            (Awaited::Room { to: name.seen_by_sender() }, drainer(run, link))
        }
    }
}

/// Who should put something into this link.
fn feeder(run: &Run<'_>, link: u32) -> Result<u32, String> {
    let name = run.links.name(link);
    match name.from {
        Peer::Rank(rank) => user(run, rank, name, true).ok_or_else(|| {
            format!("rank {rank} sends no {} there", more(run.links.all[link as usize].sender))
        }),
        Peer::Switch(_) => through_switch(run, run.links.all[link as usize].switch),
    }
}

/// Who should take something out of this link.
fn drainer(run: &Run<'_>, link: u32) -> Result<u32, String> {
    let name = run.links.name(link);
    match name.to {
        Peer::Rank(rank) => user(run, rank, name, false).ok_or_else(|| {
            format!("rank {rank} receives no {} from there", more(run.links.all[link as usize].receiver))
        }),
        Peer::Switch(_) => through_switch(run, run.links.all[link as usize].switch),
    }
}

fn more(worker: u32) -> &'static str {
    if worker == super::links::NONE { "chunk" } else { "more chunks" }
}

/// The worker of a rank that has yet to use a connection.
fn user(run: &Run<'_>, rank: u32, name: Name, sends: bool) -> Option<u32> {
    let is_it = |on: &Connection| {
        let other = if sends { Name::sent_by(rank, on) } else { Name::received_by(rank, on) };
        other == name
    };
    run.workers_of(rank).find(|worker| {
        let one = &run.workers[*worker as usize];
        (one.done..one.steps).any(|number| {
            let step = run.schedule.program.step(rank, one.number, number);
            if sends { step.sends.iter().any(is_it) } else { step.receives.iter().any(is_it) }
        })
    })
}

/// Who keeps a switch from going on: a sender who has not given, or a receiver who has not taken.
fn through_switch(run: &Run<'_>, switch: u32) -> Result<u32, String> {
    let here = &run.links.switches[switch as usize];
    if let Some(up) = here.ups.iter().find(|up| run.links.all[**up as usize].queued == 0) {
        return feeder(run, *up);
    }
    let is_full = |down: &&u32| run.links.all[**down as usize].queued == run.links.room;
    let down = here.downs.iter().find(is_full).expect("a switch that stands waits for somebody");
    drainer(run, *down)
}

/// Something that was sent and is still under way at the end.
pub(super) fn left_over(run: &Run<'_>) -> Option<CheckError> {
    let link = run.links.all.iter().position(|link| link.queued > 0)? as u32;
    let (worker, step) = run.links.chunks[run.links.front(link) as usize].from;
    let name = run.links.name(link);
    Some(CheckError::LeftOver {
        place: run.place(worker, step),
        to: name.seen_by_sender(),
        chunks: run.links.all[link as usize].queued,
    })
}
