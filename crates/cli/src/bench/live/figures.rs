//! What was measured, and what it comes to.

use super::contestant::{Contestant, Family};
use super::goals::goal;
use super::point::{Place, Point};
use super::protocol::Times;

/// The median of some values, and how far they lie apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Some(Self { median, min, max })
    }
}

/// A contestant at a place.
pub(crate) struct Member {
    pub(crate) who: Contestant,
    /// With its version, where its ranks have said it.
    pub(crate) name: String,
    /// Why it has no figures, or no more of them.
    pub(crate) trouble: Option<String>,
    /// Bytes that the loopback interface carried in its turns, for each byte that it had to move.
    pub(crate) carried: Tally,
    /// Seconds of a processor that the busy process had in its turns, for each second.
    pub(crate) left_over: Tally,
    /// Seconds of a processor that its ranks took while they should wait, for each second.
    pub(crate) waiting: Tally,
}

impl Member {
    pub(crate) fn new(who: Contestant, name: String, trouble: Option<String>) -> Self {
        let none = Tally::default();
        Self { who, name, trouble, carried: none, left_over: none, waiting: none }
    }
}

/// So much of one thing for so much of another, over many turns.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Tally {
    pub(crate) amount: f64,
    pub(crate) of: f64,
}

impl Tally {
    pub(crate) fn ratio(self) -> Option<f64> {
        (self.of > 0.0).then(|| self.amount / self.of)
    }
}

/// One collective of one size, by every member, pass after pass.
pub(crate) struct Row {
    pub(crate) point: Point,
    pub(crate) cells: Vec<Cell>,
}

/// What one member did.
#[derive(Default)]
pub(crate) struct Cell {
    /// Of each pass.
    pub(crate) passes: Vec<Option<Times>>,
    /// Why it has none.
    pub(crate) unsupported: Option<String>,
}

impl Cell {
    pub(crate) fn wrong(&self) -> u64 {
        self.passes.iter().flatten().map(|times| times.wrong).sum()
    }
}

/// Everything at one place.
pub(crate) struct Group {
    pub(crate) place: Place,
    pub(crate) members: Vec<Member>,
    pub(crate) rows: Vec<Row>,
    /// What a cache line took before each pass, in nanoseconds.
    pub(crate) probes: Vec<Option<f64>>,
    /// With a third process beside: then it matters how long ranks were kept from working, and the mean says that.
    pub(crate) is_loaded: bool,
}

/// Railnet against the best of a family.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Verdict {
    /// Time of the best of the family by Railnet's, both in the same pass.
    pub(crate) ratio: Option<Spread>,
    /// The least that it should be.
    pub(crate) goal: Option<f64>,
}

impl Verdict {
    /// Whether the median is what it should be, to the hundredth that is printed: nothing here is more exact.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some((self.ratio?.median * 100.0).round() >= (self.goal? * 100.0).round())
    }
}

impl Group {
    /// The time that counts.
    pub(crate) fn time(&self, times: &Times) -> f64 {
        if self.is_loaded { times.mean_us } else { times.median_us }
    }

    /// Microseconds per call over the passes.
    pub(crate) fn spread(&self, cell: &Cell) -> Option<Spread> {
        Spread::of(cell.passes.iter().flatten().map(|times| self.time(times)))
    }

    /// Bus bandwidth in GB/s, as nccl-tests has it.
    pub(crate) fn bus(&self, point: Point, time_us: f64) -> f64 {
        let factor = point.collective.bus_factor(self.place.ranks);
        point.bytes as f64 / time_us.max(1e-6) / 1e3 * factor
    }

    pub(crate) fn verdict(&self, row: &Row, against: Family) -> Verdict {
        let best = |family: Family, pass: usize| {
            let of_family = self.members.iter().zip(&row.cells);
            let times = of_family.filter(|(member, _)| member.who.family() == family);
            let times = times.filter_map(|(_, cell)| cell.passes.get(pass)?.as_ref());
            times.map(|times| self.time(times)).min_by(f64::total_cmp)
        };
        let passes = row.cells.iter().map(|cell| cell.passes.len()).max().unwrap_or(0);
        let ratios = (0..passes).filter_map(|pass| Some(best(against, pass)? / best(Family::Railnet, pass)?));
        Verdict {
            ratio: Spread::of(ratios),
            goal: goal(against, self.place, row.point.collective, row.point.bytes),
        }
    }

    /// The families that Railnet is held against here.
    pub(crate) fn rivals(&self) -> Vec<Family> {
        let is_here = |family: &Family| self.members.iter().any(|member| member.who.family() == *family);
        [Family::Mpi, Family::Gloo].into_iter().filter(is_here).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::live::point::Transport;
    use railnet_coll::Collective;

    /// No time where there is none.
    fn times(median_us: f64, mean_us: f64) -> Option<Times> {
        let is_there = median_us > 0.0;
        is_there.then_some(Times { median_us, least_us: median_us, mean_us, processor_us: 0.0, wrong: 1 })
    }

    fn group(cells: [Vec<Option<Times>>; 4]) -> Group {
        let members =
            [Contestant::Railnet, Contestant::OpenMpi, Contestant::Mpich, Contestant::Gloo].map(|who| {
                let name = who.name().to_owned();
                Member::new(who, name, None)
            });
        let cells = cells.into_iter().map(|passes| Cell { passes, unsupported: None }).collect();
        let point = Point { collective: Collective::AllReduce, bytes: 1 << 20 };
        Group {
            place: Place { ranks: 2, transport: Transport::Tcp },
            members: members.into(),
            rows: vec![Row { point, cells }],
            probes: Vec::new(),
            is_loaded: false,
        }
    }

    #[test]
    fn each_pass_is_held_against_the_best_of_the_same_pass() {
        // The machine was slow in the second pass, for everyone; MPICH failed in the third.
        let mut group = group([
            vec![times(10.0, 1.0), times(40.0, 1.0), times(10.0, 1.0)],
            vec![times(30.0, 1.0), times(60.0, 1.0), times(11.0, 1.0)],
            vec![times(20.0, 5.0), times(80.0, 5.0), times(0.0, 0.0)],
            vec![None, times(4.0, 2.0), times(5.0, 2.0)],
        ]);
        let verdict = group.verdict(&group.rows[0], Family::Mpi);
        assert_eq!(verdict.ratio, Some(Spread { median: 1.5, min: 1.1, max: 2.0 }));
        assert_eq!((verdict.goal, verdict.is_met()), (Some(1.0), Some(true)));
        let verdict = group.verdict(&group.rows[0], Family::Gloo);
        assert_eq!(verdict.ratio, Some(Spread { median: 0.3, min: 0.1, max: 0.5 }));
        assert_eq!((verdict.goal, verdict.is_met()), (Some(1.2), Some(false)));
        let even = |median| Some(Spread { median, min: 0.9, max: 1.1 });
        let met = |median| Verdict { ratio: even(median), goal: Some(1.0) }.is_met();
        assert_eq!((met(0.996), met(0.994), met(1.0)), (Some(true), Some(false), Some(true)));
        assert_eq!(group.rows[0].cells[2].wrong(), 2);
        assert_eq!(group.rivals(), [Family::Mpi, Family::Gloo]);
        // With a third process beside, the mean counts.
        group.is_loaded = true;
        let verdict = group.verdict(&group.rows[0], Family::Gloo);
        assert_eq!(verdict.ratio, Some(Spread { median: 2.0, min: 2.0, max: 2.0 }));
    }

    #[test]
    fn without_railnet_there_is_no_verdict() {
        let group = group([vec![None], vec![times(30.0, 1.0)], vec![times(20.0, 1.0)], vec![None]]);
        let verdict = group.verdict(&group.rows[0], Family::Mpi);
        assert_eq!((verdict.ratio, verdict.is_met()), (None, None));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        let group = group([const { Vec::new() }; 4]);
        let bus = |collective, bytes, time_us| group.bus(Point { collective, bytes }, time_us);
        assert!((bus(Collective::AllReduce, 2_000_000, 500.0) - 4.0).abs() < 1e-9);
        assert!((bus(Collective::AllGather, 2_000_000, 500.0) - 2.0).abs() < 1e-9);
    }
}
