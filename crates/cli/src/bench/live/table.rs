//! The figures as tables for people.

use std::fmt::Write as _;
use std::io::Write;

use railnet_core::Bytes;

use super::contestant::Family;
use super::figures::{Cell, Group, Member, Row, Spread};
use super::point::{Point, Transport};
use super::probe;
use crate::words;

/// Columns of a contestant, a ratio and a verdict; a space goes before the first two, however long names are.
const CELL: usize = 19;
const RATIO: usize = 22;
const GOAL: usize = 11;
/// Of a core: more than this while waiting disturbs the others.
const RESTLESS: f64 = 0.02;

/// One place: who is there, the rows, and what is worth knowing of them.
pub(crate) fn print(group: &Group, out: &mut dyn Write) -> std::io::Result<()> {
    let place = group.place;
    write!(out, "{} ranks, {}", place.ranks, place.transport.words())?;
    if group.is_loaded {
        write!(out, ", beside a busy process: mean times")?;
    }
    if let Some(probe) = Spread::of(group.probes.iter().copied().flatten()) {
        let Spread { median, min, max } = probe;
        let distance = probe::distance(median);
        write!(
            out,
            "; a cache line takes {median:.0} ns to the next core ({distance}; {min:.0} – {max:.0})"
        )?;
    }
    writeln!(out, "\n")?;
    writeln!(out, "{}", heading(group).trim_end())?;
    let mut last = None;
    for row in &group.rows {
        let name = if last == Some(row.point.collective) { "" } else { row.point.collective.name() };
        last = Some(row.point.collective);
        let mut line = format!("  {name:<14}{:>9}", Bytes(row.point.bytes).to_string());
        for (member, cell) in group.members.iter().zip(&row.cells) {
            if is_shown(member) {
                let _ = write!(line, " {:>CELL$}", text(group, row.point, cell));
            }
        }
        for family in group.rivals() {
            line += &ratio(group, row, family);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out)?;
    for member in &group.members {
        remarks(group, member, out)?;
    }
    Ok(())
}

/// Those without figures have a line below instead of a column; Railnet is what all of it is about, and has both.
fn is_shown(member: &Member) -> bool {
    member.who.family() == Family::Railnet || member.carried.of > 0.0
}

fn heading(group: &Group) -> String {
    let mut line = format!("  {:<14}{:>9}", "µs (bus GB/s)", "");
    for member in group.members.iter().filter(|member| is_shown(member)) {
        let _ = write!(line, " {:>CELL$}", member.name);
    }
    for family in group.rivals() {
        let _ = write!(line, " {:>RATIO$}  {:<GOAL$}", format!("{} / Railnet", family_name(family)), "goal");
    }
    line
}

pub(crate) const fn family_name(family: Family) -> &'static str {
    match family {
        Family::Railnet => "Railnet",
        Family::Mpi => "best MPI",
        Family::Gloo => "Gloo",
    }
}

fn text(group: &Group, point: Point, cell: &Cell) -> String {
    let Some(Spread { median, .. }) = group.spread(cell) else { return "–".to_owned() };
    let mark = if cell.wrong() > 0 { " WRONG" } else { "" };
    format!("{} ({:.2}){mark}", three_digits(median), group.bus(point, median))
}

/// `0.37`, `12.4`, `200,473`.
fn three_digits(number: f64) -> String {
    match number {
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => words::grouped(number.round() as u64),
    }
}

fn ratio(group: &Group, row: &Row, family: Family) -> String {
    let verdict = group.verdict(row, family);
    let ratio = verdict.ratio.map_or_else(
        || "–".to_owned(),
        |Spread { median, min, max }| format!("{median:.2} ({min:.2} – {max:.2})"),
    );
    let goal = match (verdict.goal, verdict.is_met()) {
        (None, _) => String::new(),
        (Some(goal), None) => format!("{goal:.1}"),
        (Some(goal), Some(true)) => format!("{goal:.1} met"),
        (Some(goal), Some(false)) => format!("{goal:.1} not met"),
    };
    format!(" {ratio:>RATIO$}  {goal:<GOAL$}")
}

fn remarks(group: &Group, member: &Member, out: &mut dyn Write) -> std::io::Result<()> {
    let name = &member.name;
    if let Some(trouble) = &member.trouble {
        writeln!(out, "  {name}: {trouble}")?;
    }
    let wrong: u64 = cells_of(group, member).map(|(_, cell)| cell.wrong()).sum();
    if wrong > 0 {
        writeln!(out, "  {name}: {} elements were WRONG", words::grouped(wrong))?;
    }
    let mut told = Vec::new();
    for (row, cell) in cells_of(group, member) {
        if let Some(why) = &cell.unsupported
            && !told.contains(&row.point.collective)
        {
            told.push(row.point.collective);
            writeln!(out, "  {name}: no {}: {why}", row.point.collective)?;
        }
    }
    if let Some(share) = member.left_over.ratio() {
        writeln!(out, "  {name}: the busy process had {share:.2} of a core in its turns")?;
    }
    if let Some(share) = member.waiting.ratio().filter(|share| *share > RESTLESS) {
        writeln!(out, "  {name}: its ranks took {share:.2} of a core while others were measured")?;
    }
    if let Some(line) = member.carried.ratio().and_then(|carried| astray(group.place.transport, carried)) {
        writeln!(out, "  {name}: {line}")?;
    }
    Ok(())
}

/// Says so when data did not go where it should, by what the loopback interface carried for each byte of the calls.
fn astray(transport: Transport, carried: f64) -> Option<String> {
    match transport {
        Transport::Tcp if carried < 0.5 => Some(format!(
            "the loopback interface carried {carried:.2} bytes for each byte of its calls: this was not TCP"
        )),
        Transport::SharedMemory if carried > 0.5 => Some(format!(
            "the loopback interface carried {carried:.2} bytes for each byte of its calls: not all was shared memory, \
             unless others use it too"
        )),
        _ => None,
    }
}

fn cells_of<'a>(group: &'a Group, member: &'a Member) -> impl Iterator<Item = (&'a Row, &'a Cell)> {
    let index = group.members.iter().position(|other| other.who == member.who).unwrap_or(usize::MAX);
    group.rows.iter().filter_map(move |row| Some((row, row.cells.get(index)?)))
}

/// How many goals are met, over all places.
pub(crate) fn verdicts(groups: &[Group], out: &mut dyn Write) -> std::io::Result<()> {
    let (mut met, mut missed, mut open) = (0, Vec::new(), 0);
    for group in groups {
        for row in &group.rows {
            for family in group.rivals() {
                let verdict = group.verdict(row, family);
                match (verdict.goal, verdict.is_met()) {
                    (None, _) => {}
                    (Some(_), Some(true)) => met += 1,
                    (Some(_), None) => open += 1,
                    (Some(goal), Some(false)) => missed.push((group, row, family, goal, verdict.ratio)),
                }
            }
        }
    }
    writeln!(out, "Goals: {met} met, {} not met, {open} without figures on both sides", missed.len())?;
    for (group, row, family, goal, ratio) in missed {
        let Point { collective, bytes } = row.point;
        let median = ratio.map_or(0.0, |ratio| ratio.median);
        writeln!(
            out,
            "  not met: {collective} of {}, {} ranks, {}: {median:.2} of {goal:.1} against {}",
            Bytes(bytes),
            group.place.ranks,
            group.place.transport.words(),
            family_name(family)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::live::contestant::Contestant;
    use crate::bench::live::figures::Tally;
    use crate::bench::live::point::Place;
    use crate::bench::live::protocol::Times;
    use railnet_coll::Collective;

    #[test]
    fn a_table_has_times_bandwidths_ratios_goals_and_what_went_wrong() {
        let times =
            |us, wrong| Some(Times { median_us: us, least_us: us, mean_us: us, processor_us: us, wrong });
        let member = |who: Contestant, name: &str, trouble: Option<&str>, carried, of| Member {
            who,
            name: name.to_owned(),
            trouble: trouble.map(str::to_owned),
            carried: Tally { amount: carried, of },
            left_over: Tally::default(),
            waiting: Tally { amount: carried, of: 10.0 },
        };
        let cell = |passes: Vec<Option<Times>>| Cell { passes, unsupported: None };
        let none = || Cell { passes: vec![None], unsupported: Some("no support for it".to_owned()) };
        let row = |collective, bytes, cells| Row { point: Point { collective, bytes }, cells };
        let group = Group {
            place: Place { ranks: 2, transport: Transport::Tcp },
            members: vec![
                member(Contestant::Railnet, "Railnet 0.1.0", None, 1.0, 1.0),
                member(Contestant::OpenMpi, "Open MPI 4.1.4", None, 0.0, 1.0),
                member(Contestant::Mpich, "MPICH", Some("not installed"), 0.0, 0.0),
                member(Contestant::Gloo, "Gloo (torch 2.15.0)", None, 1.0, 1.0),
            ],
            rows: vec![
                row(
                    Collective::AllReduce,
                    2048,
                    vec![
                        cell(vec![times(8.0, 0), times(10.0, 0)]),
                        cell(vec![times(12.0, 0), times(12.0, 3)]),
                        Cell::default(),
                        cell(vec![times(600.0, 0), times(500.0, 0)]),
                    ],
                ),
                row(
                    Collective::AllReduce,
                    8 << 20,
                    vec![
                        cell(vec![times(6000.0, 0)]),
                        cell(vec![times(5000.0, 0)]),
                        Cell::default(),
                        cell(vec![times(12_000.0, 0)]),
                    ],
                ),
                row(
                    Collective::ReduceScatter,
                    8,
                    vec![cell(vec![times(0.5, 0)]), cell(vec![None]), Cell::default(), none()],
                ),
            ],
            probes: vec![Some(38.0), None, Some(240.0), Some(39.0)],
            is_loaded: false,
        };
        let mut printed = Vec::new();
        print(&group, &mut printed).unwrap();
        verdicts(&[group], &mut printed).unwrap();
        let expected = "\
2 ranks, TCP; a cache line takes 39 ns to the next core (near; 38 – 240)

  µs (bus GB/s)                 Railnet 0.1.0      Open MPI 4.1.4 Gloo (torch 2.15.0)     best MPI / Railnet  goal                Gloo / Railnet  goal
  AllReduce         2 KiB         9.00 (0.23)   12.0 (0.17) WRONG          550 (0.00)     1.35 (1.20 – 1.50)  1.0 met      62.50 (50.00 – 75.00)  3.0 met
                    8 MiB        6,000 (1.40)        5,000 (1.68)       12,000 (0.70)     0.83 (0.83 – 0.83)  1.0 not met     2.00 (2.00 – 2.00)  1.2 met
  ReduceScatter       8 B         0.50 (0.01)                   –                   –                      –  1.0                              –  3.0

  Railnet 0.1.0: its ranks took 0.10 of a core while others were measured
  Open MPI 4.1.4: 3 elements were WRONG
  Open MPI 4.1.4: the loopback interface carried 0.00 bytes for each byte of its calls: this was not TCP
  MPICH: not installed
  Gloo (torch 2.15.0): no ReduceScatter: no support for it
  Gloo (torch 2.15.0): its ranks took 0.10 of a core while others were measured
Goals: 3 met, 1 not met, 2 without figures on both sides
  not met: AllReduce of 8 MiB, 2 ranks, TCP: 0.83 of 1.0 against best MPI
";
        assert_eq!(String::from_utf8(printed).unwrap(), expected);
    }

    #[test]
    fn times_have_three_digits() {
        let all = [(0.368, "0.37"), (9.994, "9.99"), (9.996, "10.0"), (99.96, "100"), (200_473.2, "200,473")];
        for (number, text) in all {
            assert_eq!(three_digits(number), text);
        }
    }
}
