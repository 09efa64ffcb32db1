//! The questions of the command for programs that have it as a library: the same checks, the same answers, the same words where
//! something is wrong. Nothing here prints, ends the process or catches signals.

use std::path::Path;

use crate::files::Output;
use crate::sim::asked;
pub use crate::sim::asked::{Answer, Question, Source};
pub use crate::sim::problem::Problem;
use crate::{Outcome, is_usage, view, whole_number};

/// Why there is no answer.
#[derive(Debug)]
pub struct Failure {
    /// What is wrong, for people; it may have several lines.
    pub message: String,
    /// What is wrong with the scenario, where that is it.
    pub problem: Option<Box<Problem>>,
    /// Whether the question is wrong, and not the run.
    pub is_usage: bool,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            message: format!("{error:#}"),
            problem: error.downcast_ref::<Problem>().cloned().map(Box::new),
            is_usage: is_usage(&error),
        }
    }
}

/// Runs the command with these words behind its name, and gives what it prints.
///
/// ```
/// let words = ["tune", "allreduce", "64MiB", "--cluster", "dgx-h100x8", "--json"].map(str::to_owned);
/// assert!(railnet_cli::ask::command(&words).unwrap().contains("chosen"));
/// ```
pub fn command(words: &[String]) -> Result<String, Failure> {
    let usage = |message: String| Failure { message, problem: None, is_usage: true };
    let all = std::iter::once("railnet").chain(words.iter().map(String::as_str)).map(Into::into);
    let arguments = crate::parse(all).map_err(|error| {
        let text = whole_number(&error).unwrap_or_else(|| error.to_string());
        usage(text.trim().trim_start_matches("error: ").to_owned())
    })?;
    let mut out = Vec::new();
    let outcome = crate::run(arguments.command, &mut out).map_err(Failure::from)?;
    let text = String::from_utf8_lossy(&out).into_owned();
    match outcome {
        Outcome::Done => Ok(text),
        Outcome::CheckFailed | Outcome::Exit(_) => {
            Err(Failure { message: text, problem: None, is_usage: false })
        }
    }
}

/// The text of a scenario that is in no file, as one would have it.
pub fn text(source: &Source) -> Result<Option<String>, Failure> {
    asked::text(source).map_err(Failure::from)
}

/// Reads the scenario of a question, and says what is wrong with it.
pub fn check(question: &Question) -> Result<(), Failure> {
    asked::read(question).map(|_| ()).map_err(Failure::from)
}

/// Runs a scenario. `goes_on` hears how far it is, from 0 to 1, and says whether it goes on.
pub fn simulate(question: &Question, goes_on: &dyn Fn(f64) -> bool) -> Result<Answer, Failure> {
    asked::answer(question, goes_on).map_err(Failure::from)
}

/// A network for another simulator.
pub fn couple(question: &Question) -> Result<railnet_sim::Coupled, Failure> {
    asked::coupled(question).map_err(Failure::from)
}

impl Answer {
    /// Whether the run was recorded, so that there can be a page of it.
    pub const fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// The page with this run in it.
    pub fn page(&self) -> Option<String> {
        self.recording.as_ref().map(view::report)
    }

    /// Writes the page, or with a name that does not end in `.html` the run file of `railnet view`.
    pub fn write(&self, path: &Path, force: bool) -> Result<(), Failure> {
        let Some(run) = &self.recording else {
            let message = "the run was not recorded".to_owned();
            return Err(Failure { message, problem: None, is_usage: true });
        };
        let output = Output::claim(path, force).map_err(Failure::from)?;
        let is_page = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("html"));
        let written = output.write(|file| match is_page {
            true => std::io::Write::write_all(file, view::report(run).as_bytes()),
            false => run.write(file),
        });
        written.map_err(Failure::from)
    }
}
