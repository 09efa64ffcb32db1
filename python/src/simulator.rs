//! Questions to the simulator. They are JSON, and so are the answers: Python has no second copy of a default, a unit or a name.
//!
//! The GIL is released while Rust works, and taken now and then to hear of Ctrl-C.
#![expect(clippy::needless_pass_by_value, reason = "arguments that come from Python are owned")]

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use railnet::sim::{Coupled, Span, Time};
use railnet_cli::ask::{self, Question, Source};
use serde_json::Value;

use crate::failure::{exception, raised};

/// Time between two looks at what Python wants.
const INTERVAL: Duration = Duration::from_millis(50);
/// Virtual time between two of them in a network that is driven from outside.
const STRIDE: Span = Span::from_ms(1);

/// Runs the command with these words, and gives what it prints.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, words: Vec<String>) -> PyResult<String> {
    py.detach(|| ask::command(&words)).map_err(|failure| raised(py, failure))
}

/// The text of the scenario of a question; None where it is in a file.
#[pyfunction]
pub(crate) fn text(py: Python<'_>, question: &str) -> PyResult<Option<String>> {
    let question = parse(py, question)?;
    ask::text(&question.source).map_err(|failure| raised(py, failure))
}

/// Reads the scenario of a question, and says what is wrong with it.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, question: &str) -> PyResult<()> {
    let question = parse(py, question)?;
    py.detach(|| ask::check(&question)).map_err(|failure| raised(py, failure))
}

/// Runs the scenario of a question. `goes_on` hears how far it is, from 0 to 1. Ctrl-C ends it, and the answer is what is known
/// by then.
#[pyfunction]
#[pyo3(signature = (question, goes_on=None))]
pub(crate) fn simulate(py: Python<'_>, question: &str, goes_on: Option<Py<PyAny>>) -> PyResult<Answer> {
    let question = parse(py, question)?;
    let watch = Watch::new(goes_on);
    let answer = py.detach(|| ask::simulate(&question, &|part| watch.goes_on(part)));
    let answer = answer.map_err(|failure| raised(py, failure))?;
    let is_interrupted = match watch.into_raised() {
        Some(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => true,
        Some(error) => return Err(error),
        None => false,
    };
    Ok(Answer { answer, is_interrupted })
}

/// A question as Python writes it.
fn parse(py: Python<'_>, text: &str) -> PyResult<Question> {
    let wrong = |why: &str| PyValueError::new_err(format!("a question: {why}"));
    let mut value: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    let source = match (value["path"].take(), value["text"].take(), value["value"].take()) {
        (Value::String(path), Value::Null, Value::Null) => Source::Path(path),
        (Value::Null, Value::String(text), Value::Null) => Source::Text(text),
        (Value::Null, Value::Null, value @ Value::Object(_)) => Source::Value(value),
        _ => return Err(wrong("it has one of path, text and value")),
    };
    let mut question = Question::new(source);
    if let Value::Object(changes) = value["changes"].take() {
        question.changes = changes.into_iter().collect();
    }
    question.seed = number(py, &value, "seed", 0..=u64::MAX)?;
    question.fidelity = text_of(py, &value, "fidelity")?;
    question.sample = text_of(py, &value, "sample")?;
    question.memo = value["memo"].as_bool().unwrap_or(true);
    question.threads = number(py, &value, "threads", 1..=1 << 16)?.map(|threads| threads as u32);
    question.recorded = number(py, &value, "recorded", 0..=1 << 32)?.map(|packets| packets as usize);
    Ok(question)
}

/// A whole number in these bounds, where there is one.
fn number(py: Python<'_>, value: &Value, name: &str, bounds: RangeInclusive<u64>) -> PyResult<Option<u64>> {
    let found = &value[name];
    match found.as_u64().filter(|number| bounds.contains(number)) {
        None if !found.is_null() => {
            let message = format!("{name} is a whole number, {} or more, not {found}", bounds.start());
            Err(exception(py, "UsageError", (message,)))
        }
        number => Ok(number),
    }
}

/// A text, where there is one.
fn text_of(py: Python<'_>, value: &Value, name: &str) -> PyResult<Option<String>> {
    match &value[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(exception(py, "UsageError", (format!("{name} is a text, not {other}"),))),
    }
}

/// Asks Python now and then whether a run goes on.
struct Watch {
    callback: Option<Py<PyAny>>,
    state: Mutex<(Instant, Option<PyErr>)>,
}

impl Watch {
    fn new(callback: Option<Py<PyAny>>) -> Self {
        Self { callback, state: Mutex::new((Instant::now(), None)) }
    }

    fn goes_on(&self, part: f64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, raised) = &mut *state;
        if raised.is_some() {
            return false;
        }
        if asked.elapsed() < INTERVAL {
            return true;
        }
        *asked = Instant::now();
        let answer = Python::attach(|py| {
            py.check_signals()?;
            match &self.callback {
                Some(callback) => callback.call1(py, (part,))?.extract::<Option<bool>>(py),
                None => Ok(None),
            }
        });
        match answer {
            Ok(goes_on) => goes_on.unwrap_or(true),
            Err(error) => {
                *raised = Some(error);
                false
            }
        }
    }

    fn into_raised(self) -> Option<PyErr> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// What came of a run.
#[pyclass(frozen, module = "railnet._railnet")]
pub(crate) struct Answer {
    answer: ask::Answer,
    /// Whether Ctrl-C ended it.
    #[pyo3(get)]
    is_interrupted: bool,
}

#[pymethods]
impl Answer {
    /// All of it, as JSON.
    #[getter]
    fn value(&self) -> &str {
        &self.answer.json
    }

    /// What the command would print.
    #[getter]
    fn screen(&self) -> &str {
        &self.answer.screen
    }

    /// Why the run failed, if it did.
    #[getter]
    fn failure(&self) -> Option<&str> {
        self.answer.failure.as_deref()
    }

    /// Whether there can be a page of it.
    #[getter]
    fn is_recorded(&self) -> bool {
        self.answer.is_recorded()
    }

    /// The page with this run in it.
    fn page(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.answer.page())
    }

    /// Writes the page (`.html`) or the run file of `railnet view`.
    fn write(&self, py: Python<'_>, path: PathBuf, force: bool) -> PyResult<()> {
        py.detach(|| self.answer.write(&path, force)).map_err(|failure| raised(py, failure))
    }
}

/// A fabric in which transfers start while it runs.
#[pyclass(frozen, module = "railnet._railnet")]
pub(crate) struct Network(Mutex<Coupled>);

/// A transfer that has ended: number, source, target, bytes, and when it started and ended in seconds.
type Ended = (u32, u32, u32, u64, f64, f64);

impl Network {
    fn inner(&self) -> MutexGuard<'_, Coupled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Network {
    #[new]
    fn new(py: Python<'_>, question: &str) -> PyResult<Self> {
        let question = parse(py, question)?;
        let made = py.detach(|| ask::couple(&question));
        made.map(|inner| Self(Mutex::new(inner))).map_err(|failure| raised(py, failure))
    }

    /// Senders and receivers, numbered from 0.
    #[getter]
    fn hosts(&self) -> u32 {
        self.inner().ends()
    }

    /// The present, in seconds.
    #[getter]
    fn now(&self) -> f64 {
        seconds(self.inner().now())
    }

    /// Transfers that have not ended.
    #[getter]
    fn unfinished(&self) -> usize {
        self.inner().unfinished()
    }

    /// Events handled so far.
    #[getter]
    fn events(&self) -> u64 {
        self.inner().events()
    }

    /// Has a transfer start at `at` seconds, or now. Returns its number.
    #[pyo3(signature = (source, target, bytes, at=None))]
    fn start(&self, py: Python<'_>, source: u32, target: u32, bytes: u64, at: Option<f64>) -> PyResult<u32> {
        let mut network = self.inner();
        let at = at.map_or(Ok(network.now()), time)?;
        // What was rounded to the present is the present.
        let is_present = seconds(at).to_bits() == seconds(network.now()).to_bits();
        let at = if is_present { network.now() } else { at };
        let started = network.start(source, target, bytes, at);
        started.map_err(|error| exception(py, "UsageError", (error.to_string(),)))
    }

    /// Goes on until transfers end, or until `until` seconds, and says which ended.
    #[pyo3(signature = (until=None))]
    fn advance(&self, py: Python<'_>, until: Option<f64>) -> PyResult<Vec<Ended>> {
        let until = until.map_or(Ok(Time::NEVER), time)?;
        let mut asked = Instant::now();
        loop {
            let ended = py.detach(|| {
                let mut network = self.inner();
                loop {
                    let is_waiting = network.unfinished() > 0;
                    if !is_waiting && until == Time::NEVER {
                        return Ok(Some(Vec::new()));
                    }
                    let stage = if is_waiting { until.min(network.now() + STRIDE) } else { until };
                    let ended = network.advance(stage)?;
                    if !ended.is_empty() || network.now() >= until {
                        return Ok(Some(ended));
                    }
                    if asked.elapsed() >= INTERVAL {
                        return Ok(None);
                    }
                }
            });
            let ended: Result<Option<Vec<railnet::sim::Finished>>, railnet::sim::RunError> = ended;
            match ended.map_err(|error| exception(py, "RunError", (error.to_string(),)))? {
                Some(ended) => {
                    let row = |one: railnet::sim::Finished| {
                        let (started, finished) = (seconds(one.started), seconds(one.finished));
                        (one.transfer, one.source, one.target, one.bytes, started, finished)
                    };
                    return Ok(ended.into_iter().map(row).collect());
                }
                None => {
                    py.check_signals()?;
                    asked = Instant::now();
                }
            }
        }
    }
}

/// Picoseconds in a second.
const PS: f64 = 1e12;

fn seconds(time: Time) -> f64 {
    time.since(Time::ZERO).as_ps() as f64 / PS
}

fn time(seconds: f64) -> PyResult<Time> {
    // A run lasts at most 213 days of virtual time: that is what picoseconds in 64 bits hold.
    if !(0.0..=1.8e7).contains(&seconds) {
        return Err(PyValueError::new_err(format!("{seconds} s is no time of a run: 0 to 1.8e7 s are")));
    }
    Ok(Time::ZERO + Span::from_ps(picoseconds(seconds)))
}

/// The first picosecond that is not before `seconds`. Rounding down would leave the present before the moment that was asked
/// for, and a loop that waits for that moment would never end; a time that came from here comes back as itself.
fn picoseconds(seconds: f64) -> u64 {
    let mut at = (seconds * PS).round() as u64;
    while (at as f64 / PS) < seconds {
        at += 1;
    }
    at
}
