//! One scenario with some of its keys changed, point by point, on all cores or on a cluster.

mod slurm;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow, bail, ensure};
use railnet_sim::{RunError, Scenario, ScenarioError};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::outputs::Outputs;
use super::problem::{Advice, File};
use super::progress::Progress;
use super::report::{PacketTotals, Totals};
use super::{Arguments, job, simulate};
use crate::careful::{self, Notice};
use crate::cores::{self, Work};
use crate::interrupt::Interrupt;
use crate::wire::Wire;
use crate::words::{grouped, tenths};
use crate::{Outcome, Usage};

/// Where the points of a sweep run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Cluster {
    /// A job array of Slurm
    Slurm,
}

/// More points than a sweep has.
const POINTS_MAX: usize = 10_000;

/// A key and the values it takes, as written.
struct Axis {
    key: String,
    values: Vec<String>,
}

/// One combination of values.
struct Point {
    /// A value for each axis.
    values: Vec<String>,
    scenario: Scenario,
}

/// What came of a point, or why nothing did.
type Verdict = Result<Done, String>;

#[derive(Clone, Serialize, Deserialize)]
struct Done {
    totals: Came,
    digest: String,
    short_digest: String,
    wall_s: f64,
}

impl Done {
    /// Why packets may differ, of jobs.
    fn caveats(&self) -> Option<&[Notice]> {
        match &self.totals {
            Came::Job(totals) => Some(&totals.caveats),
            Came::Traffic(_) => None,
        }
    }
}

/// What is shown of a point: of traffic, or of a job.
#[derive(Serialize, Deserialize, Clone)]
#[serde(untagged)]
enum Came {
    Traffic(Totals),
    Job(job::Totals),
}

impl Came {
    /// What people see, under [`columns`].
    fn cells(&self) -> [String; 6] {
        let percent = |part: f64| format!("{:.1}", part * 100.0);
        match self {
            Self::Traffic(totals) => {
                let counted = |of: fn(&PacketTotals) -> u64| {
                    totals.packets.as_ref().map_or_else(|| "–".to_owned(), |packets| grouped(of(packets)))
                };
                [
                    tenths(totals.completion_us),
                    tenths(totals.flow_us_p99),
                    counted(|packets| packets.max_queue_bytes.div_ceil(1000)),
                    counted(|packets| packets.on_ethernet().pauses),
                    counted(|packets| packets.drops),
                    counted(|packets| packets.resent),
                ]
            }
            Self::Job(totals) => [
                tenths(totals.step_us),
                tenths(totals.compute_us),
                tenths(totals.exposed_us),
                percent(totals.busy),
                percent(totals.mfu),
                grouped(totals.tokens_per_s.round() as u64),
            ],
        }
    }

    /// A line of the table for programs, under [`fields`].
    fn fields(&self) -> String {
        match self {
            Self::Traffic(totals) => {
                let times = format!("{:.6},{:.6}", totals.completion_us, totals.flow_us_p99);
                match &totals.packets {
                    Some(packets @ PacketTotals { max_queue_bytes, drops, resent, .. }) => {
                        let pauses = packets.on_ethernet().pauses;
                        format!("{times},{max_queue_bytes},{pauses},{drops},{resent}")
                    }
                    None => format!("{times},,,,"),
                }
            }
            Self::Job(totals) => format!(
                "{:.6},{:.6},{:.6},{:.6},{:.6},{:.3}",
                totals.step_us,
                totals.compute_us,
                totals.exposed_us,
                totals.busy,
                totals.mfu,
                totals.tokens_per_s
            ),
        }
    }
}

const fn columns(has_jobs: bool) -> [&'static str; 7] {
    match has_jobs {
        false => {
            ["completion µs", "p99 flow µs", "longest queue KB", "pauses", "drops", "sent again", "digest"]
        }
        true => ["step µs", "compute µs", "exposed µs", "busy %", "MFU %", "tokens/s", "digest"],
    }
}

const fn fields(has_jobs: bool) -> &'static str {
    match has_jobs {
        false => "completion_us,flow_us_p99,max_queue_bytes,pauses,drops,resent",
        true => "step_us,compute_us,exposed_us,busy,mfu,tokens_per_s",
    }
}

pub(super) fn run(
    arguments: &Arguments,
    file: &File,
    mut outputs: Outputs,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let axes = arguments.sweep.iter().map(|text| Axis::parse(text)).collect::<anyhow::Result<Vec<_>>>();
    let axes = axes.map_err(Usage::of)?;
    let mut table: Table = file.text.parse().with_context(|| format!("cannot read {}", file.path))?;
    if let Some(seed) = arguments.seed {
        let seed =
            i64::try_from(seed).map_err(|_| Usage("--seed of a sweep is at most 2^63 - 1".to_owned()))?;
        table.insert("seed".to_owned(), Value::Integer(seed));
    }
    if let Some(fidelity) = arguments.fidelity {
        table.insert("fidelity".to_owned(), Value::String(fidelity.name().to_owned()));
    }
    let points = points(&axes, &table, |table| file.variant(table)).map_err(Usage::of)?;
    if arguments.work.is_some() && arguments.on.is_none() && arguments.point.is_none() {
        return Err(Usage("--work is for --on slurm: here, nothing is left of a point".to_owned()).into());
    }
    let interrupt = Interrupt::catch()?;
    if let Some(index) = arguments.point {
        return one_point(arguments, &points, index, &interrupt);
    }
    let (place, results) = match arguments.on {
        Some(Cluster::Slurm) => ("Slurm".to_owned(), slurm::run_all(arguments, file, &points, &interrupt)?),
        None => {
            let results = run_all(&points, arguments.wire, !arguments.no_memo, &interrupt);
            (format!("{} threads", cores::threads(points.len())), results)
        }
    };
    let has_jobs = file.scenario.has_jobs();
    let headlines = headlines(&axes, &points, &results);
    if let Some(target) = outputs.json.take() {
        target.write(out, &Sweep::of(&file.path, &axes, &points, &results, &headlines))?;
    }
    if let Some(tables) = &mut outputs.tables {
        tables.write("sweep.csv", |out| write_csv(out, has_jobs, &axes, &points, &results))?;
    }
    if !arguments.is_quiet() {
        writeln!(
            out,
            "Railnet {} · {} · {} fidelity · {} points on {place}\n",
            env!("CARGO_PKG_VERSION"),
            file.path,
            fidelities(&points),
            points.len()
        )?;
        let caveats =
            careful::caveats_of_all(results.iter().filter_map(|result| result.as_ref().ok()?.caveats()));
        for headline in headlines.iter().chain(&caveats) {
            writeln!(out, "  Careful: {headline}")?;
        }
        if !headlines.is_empty() || !caveats.is_empty() {
            writeln!(out)?;
        }
        print(has_jobs, &axes, &points, &results, out)?;
    }
    Ok(if results.iter().all(Result::is_ok) { Outcome::Done } else { Outcome::CheckFailed })
}

/// A task of a cluster: runs one point, and leaves what came of it where the sweep looks for it.
fn one_point(
    arguments: &Arguments,
    points: &[Point],
    index: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let point = points.get(index).ok_or_else(|| Usage(format!("the sweep has no point {index}")))?;
    let folder = arguments.work.as_deref().ok_or_else(|| Usage("--point needs --work DIR".to_owned()))?;
    let verdict = run_one(&point.scenario, arguments.wire, !arguments.no_memo, interrupt);
    if interrupt.is_set() {
        return Ok(Outcome::CheckFailed);
    }
    slurm::leave(arguments, point, index, &verdict, folder)?;
    Ok(if verdict.is_ok() { Outcome::Done } else { Outcome::CheckFailed })
}

/// The keys whose values make no difference, whatever the other keys are.
fn headlines(axes: &[Axis], points: &[Point], results: &[Verdict]) -> Vec<String> {
    let mut found = Vec::new();
    for (place, axis) in axes.iter().enumerate() {
        let mut by_rest: BTreeMap<Vec<&str>, Vec<Option<&str>>> = BTreeMap::new();
        for (point, result) in points.iter().zip(results) {
            let rest = point.values.iter().enumerate().filter(|(other, _)| *other != place);
            let digest = result.as_ref().ok().map(|done| done.digest.as_str());
            by_rest.entry(rest.map(|(_, value)| value.as_str()).collect()).or_default().push(digest);
        }
        let is_same = |digests: &Vec<Option<&str>>| {
            digests.iter().all(|digest| digest.is_some() && *digest == digests[0])
        };
        if axis.values.len() > 1 && by_rest.values().all(is_same) {
            let why = points.iter().find_map(|point| point.scenario.why_inert(&axis.key));
            found.push(careful::no_difference(&axis.key, axis.values.len(), why));
        }
    }
    found
}

/// What the points of a sweep are run with.
fn fidelities(points: &[Point]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for point in points {
        let name = point.scenario.fidelity.name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(" and ")
}

impl Axis {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let example = "such as --sweep nic.control=none,dcqcn";
        let (key, values) = text
            .split_once('=')
            .ok_or_else(|| anyhow!("--sweep {text}: write a key and its values, {example}"))?;
        let values = split(values);
        ensure!(!key.trim().is_empty(), "--sweep {text}: the key is missing, {example}");
        ensure!(
            values.iter().all(|value| !value.is_empty()),
            "--sweep {text}: a value is missing, {example}"
        );
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// Cuts at commas, but not inside braces, brackets and quotes: a value may be a whole table.
fn split(text: &str) -> Vec<String> {
    let (mut values, mut value, mut depth, mut quoted) = (Vec::new(), String::new(), 0, false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                values.push(std::mem::take(&mut value).trim().to_owned());
                continue;
            }
            _ => {}
        }
        value.push(letter);
    }
    values.push(value.trim().to_owned());
    values
}

/// Every combination, the last axis fastest.
fn points(
    axes: &[Axis],
    table: &Table,
    read: impl Fn(Table) -> Result<Scenario, ScenarioError>,
) -> anyhow::Result<Vec<Point>> {
    let count = axes.iter().try_fold(1_usize, |count, axis| count.checked_mul(axis.values.len()));
    let count = count.filter(|count| *count <= POINTS_MAX);
    let count =
        count.ok_or_else(|| anyhow!("the sweep has more than {} points", grouped(POINTS_MAX as u64)))?;
    (0..count)
        .map(|index| {
            let (mut rest, mut values) = (index, Vec::new());
            for axis in axes.iter().rev() {
                values.push(axis.values[rest % axis.values.len()].clone());
                rest /= axis.values.len();
            }
            values.reverse();
            let mut table = table.clone();
            for (axis, value) in axes.iter().zip(&values) {
                set(&mut table, &axis.key, value).map_err(|error| anyhow!("--sweep {error}"))?;
            }
            let mut scenario = read(table).map_err(|error| refused(axes, &values, &error.message))?;
            // A sweep writes no series.
            scenario.sample = None;
            Ok(Point { values, scenario })
        })
        .collect()
}

/// What is wrong with a point; the file by itself was in order.
fn refused(axes: &[Axis], values: &[String], message: &str) -> anyhow::Error {
    let advice = Advice::of(message);
    let mut text = format!("--sweep {}: {}", described(axes, values), advice.headline);
    for line in
        [advice.label, advice.meant.map(|meant| format!("did you mean \"{meant}\"?"))].into_iter().flatten()
    {
        text.push_str("\n  = ");
        text.push_str(&line);
    }
    anyhow!(text)
}

fn described(axes: &[Axis], values: &[String]) -> String {
    let pairs: Vec<String> =
        axes.iter().zip(values).map(|(axis, value)| format!("{}={value}", axis.key)).collect();
    pairs.join(" ")
}

/// Puts a value at a dotted path such as `fabric.link.rate` or `traffic.0.bytes`, as it is written on a command line.
pub(crate) fn set(table: &mut Table, path: &str, text: &str) -> anyhow::Result<()> {
    let place = place(table, path)?;
    *place = value(text, place);
    Ok(())
}

/// The value at a dotted path, made where there is none.
pub(crate) fn place<'a>(table: &'a mut Table, path: &str) -> anyhow::Result<&'a mut Value> {
    let parts: Vec<&str> = path.split('.').collect();
    let [first, rest @ ..] = parts.as_slice() else { bail!("the key is missing") };
    ensure!(parts.iter().all(|part| !part.is_empty()), "{path}: a part of the key is missing");
    let is_leaf = rest.is_empty();
    let mut place = table.entry(*first).or_insert_with(|| empty(is_leaf));
    for (index, part) in rest.iter().enumerate() {
        let so_far = parts[..=index].join(".");
        let is_leaf = index + 1 == rest.len();
        place = match place {
            Value::Table(table) => table.entry(*part).or_insert_with(|| empty(is_leaf)),
            Value::Array(list) => {
                let length = list.len();
                let entry = part.parse::<usize>().ok().and_then(|index| list.get_mut(index));
                entry.ok_or_else(|| {
                    anyhow!("{path}: {so_far} is a list of {length}: say which, as in {so_far}.0")
                })?
            }
            _ => bail!("{path}: {so_far} is a single value and has no key \"{part}\""),
        };
    }
    Ok(place)
}

fn empty(is_leaf: bool) -> Value {
    if is_leaf { Value::Boolean(false) } else { Value::Table(Table::new()) }
}

/// A text stays a text; what was none before is read as TOML where it can be.
fn value(text: &str, before: &Value) -> Value {
    let plain = || Value::String(text.trim_matches('"').to_owned());
    if before.is_str() {
        return plain();
    }
    let parsed = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(plain)
}

/// Runs the points on all cores; the results are in the order of the points, whoever was first.
fn run_all(points: &[Point], wire: Wire, memo: bool, interrupt: &Interrupt) -> Vec<Verdict> {
    let (done, progress) = (&AtomicUsize::new(0), &Progress::new());
    let work = points.iter().map(|point| -> Work<'_, Verdict> {
        Box::new(move || {
            let result = run_one(&point.scenario, wire, memo, interrupt);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress.show(&format!("{done} of {} points", points.len()));
            result
        })
    });
    let results = cores::all(work.collect());
    progress.clear();
    results
}

/// Why a point has no result that the sweep was stopped in.
const STOPPED: &str = "stopped before its end";

fn run_one(scenario: &Scenario, wire: Wire, memo: bool, interrupt: &Interrupt) -> Verdict {
    if interrupt.is_set() {
        return Err(STOPPED.to_owned());
    }
    let told = |error: RunError| match error {
        // A line of a table has no room for all who wait.
        RunError::Stuck(stall) => stall.headline(),
        error => error.to_string(),
    };
    let began = Instant::now();
    let (totals, digest) = if scenario.has_jobs() {
        let totals = job::totals(scenario, memo, interrupt).map_err(told)?;
        totals.map(|(totals, digest)| (Came::Job(totals), digest)).ok_or(STOPPED)?
    } else {
        let finished = simulate(scenario, wire, interrupt).map_err(told)?.ok_or(STOPPED)?;
        (Came::Traffic(Totals::of(&finished.outcome)), finished.digest)
    };
    Ok(Done {
        totals,
        digest: format!("{digest:?}"),
        short_digest: digest.to_string(),
        wall_s: began.elapsed().as_secs_f64(),
    })
}

/// One table: what was varied, what came of it.
fn print(
    has_jobs: bool,
    axes: &[Axis],
    points: &[Point],
    results: &[Verdict],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut rows = vec![axes.iter().map(|axis| axis.key.clone()).collect::<Vec<_>>()];
    rows[0].extend(columns(has_jobs).map(str::to_owned));
    for (point, result) in points.iter().zip(results) {
        let mut row = point.values.clone();
        match result {
            Ok(Done { totals, short_digest, .. }) => {
                row.extend(totals.cells());
                row.push(short_digest.clone());
            }
            Err(why) => row.push(format!("failed: {why}")),
        }
        rows.push(row);
    }
    let width = |column: usize| {
        // A failure takes the rest of its line.
        let cells = rows.iter().filter(|row| row.len() == rows[0].len() || column < axes.len());
        cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let is_text = column < axes.len() || row.len() < rows[0].len() || column + 1 == rows[0].len();
            let cell = if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            line.push_str("  ");
            line.push_str(&cell);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Sweep<'a> {
    scenario: &'a str,
    /// Keys whose values make no difference.
    without_effect: &'a [String],
    points: Vec<SweepPoint<'a>>,
}

#[derive(Serialize)]
struct SweepPoint<'a> {
    point: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    #[serde(flatten)]
    totals: Option<&'a Came>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> Sweep<'a> {
    fn of(
        scenario: &'a str,
        axes: &[Axis],
        points: &[Point],
        results: &'a [Verdict],
        without_effect: &'a [String],
    ) -> Self {
        let points = points.iter().zip(results).map(|(point, result)| {
            let pairs = axes.iter().zip(&point.values);
            let done = result.as_ref().ok();
            SweepPoint {
                point: pairs.map(|(axis, value)| (axis.key.clone(), value.clone().into())).collect(),
                digest: done.map(|done| done.digest.as_str()),
                totals: done.map(|done| &done.totals),
                wall_s: done.map(|done| done.wall_s),
                error: result.as_ref().err().map(String::as_str),
            }
        });
        Self { scenario, without_effect, points: points.collect() }
    }
}

fn write_csv(
    out: &mut dyn Write,
    has_jobs: bool,
    axes: &[Axis],
    points: &[Point],
    results: &[Verdict],
) -> std::io::Result<()> {
    for axis in axes {
        write!(out, "{},", cell(&axis.key))?;
    }
    writeln!(out, "{},digest,error", fields(has_jobs))?;
    for (point, result) in points.iter().zip(results) {
        for value in &point.values {
            write!(out, "{},", cell(value))?;
        }
        match result {
            Ok(Done { totals, digest, .. }) => writeln!(out, "{},{digest},", totals.fields())?,
            Err(why) => writeln!(out, ",,,,,,,{}", cell(why))?,
        }
    }
    Ok(())
}

/// A field of a CSV file: quoted where it has to be.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        "seed = 1\n[fabric]\ntopology = { kind = \"single-switch\", hosts = 4 }\n\
         [[traffic]]\nkind = \"incast\"\nfrom = \"0\"\nto = 3\nbytes = \"1KB\"\n"
            .parse()
            .unwrap()
    }

    #[test]
    fn values_may_be_tables_and_texts_with_commas() {
        assert_eq!(split("a, b,c"), ["a", "b", "c"]);
        assert_eq!(split("{ kind = \"x\", k = 4 },\"p,q\""), ["{ kind = \"x\", k = 4 }", "\"p,q\""]);
    }

    #[test]
    fn a_value_takes_the_place_of_the_old_one_with_its_type() {
        let mut table = table();
        for (key, value) in [
            ("seed", "7"),
            ("traffic.0.from", "2"),
            ("nic.control", "none"),
            ("fabric.link.rate", "200Gbps"),
            ("fabric.topology", "{ kind = \"fat-tree\", k = 4 }"),
        ] {
            set(&mut table, key, value).unwrap();
        }
        assert_eq!(table["seed"].as_integer(), Some(7));
        assert_eq!(table["traffic"][0]["from"].as_str(), Some("2"));
        assert_eq!(table["nic"]["control"].as_str(), Some("none"));
        assert_eq!(table["fabric"]["link"]["rate"].as_str(), Some("200Gbps"));
        assert_eq!(table["fabric"]["topology"]["k"].as_integer(), Some(4));
        assert!(read(table).is_ok());
    }

    fn read(table: Table) -> Result<Scenario, ScenarioError> {
        Scenario::from_table(table, |path: &str| Err(format!("{path} is not here")))
    }

    #[test]
    fn keys_that_lead_nowhere_are_named() {
        let message = |key: &str| {
            let axes = [Axis::parse(&format!("{key}=1")).unwrap()];
            points(&axes, &table(), read).err().unwrap().to_string()
        };
        assert!(message("seed.low").contains("seed is a single value"), "{}", message("seed.low"));
        assert!(message("traffic.bytes").contains("traffic is a list of 1"), "{}", message("traffic.bytes"));
        let near = message("nic.contrl");
        assert!(near.contains("nic.contrl=1: unknown key \"contrl\""), "{near}");
        assert!(near.contains("did you mean \"control\"?"), "{near}");
    }

    #[test]
    fn combinations_are_in_order_with_the_last_axis_fastest() {
        let axes = [Axis::parse("seed=1,2").unwrap(), Axis::parse("nic.mtu=1024,4096").unwrap()];
        let points = points(&axes, &table(), read).unwrap();
        let values: Vec<String> = points.iter().map(|point| described(&axes, &point.values)).collect();
        assert_eq!(
            values,
            ["seed=1 nic.mtu=1024", "seed=1 nic.mtu=4096", "seed=2 nic.mtu=1024", "seed=2 nic.mtu=4096"]
        );
        assert_eq!((points[2].scenario.seed, points[2].scenario.nic.mtu), (2, 1024));
        assert!(
            Axis::parse("seed").is_err() && Axis::parse("=1").is_err() && Axis::parse("seed=1,,2").is_err()
        );
    }
}
