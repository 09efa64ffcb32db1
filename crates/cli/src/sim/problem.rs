//! What is wrong with a scenario, shown the way compilers do it: the line, the place in it, and what would be right.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use railnet_coll::CustomAlgorithm;
use railnet_formats::{chakra, msccl, nccl_topology, recording};
use railnet_job::trace::{RankTrace, Recording};
use railnet_sim::{Files, Scenario, ScenarioError};
use railnet_topology::host::Host;

use crate::{Usage, input, shipped, words};

/// A scenario file that was read.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) scenario: Scenario,
}

impl File {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        Self::parse(path, Scenario::parse_with)
    }

    /// A scenario whose jobs are planned, not run.
    pub(crate) fn read_to_plan(path: &Path) -> anyhow::Result<Self> {
        Self::parse(path, Scenario::parse_to_plan)
    }

    fn parse(
        path: &Path,
        parse: impl FnOnce(&str, Beside) -> Result<Scenario, ScenarioError>,
    ) -> anyhow::Result<Self> {
        let (name, text) = read(path)?;
        match parse(&text, reader(path)) {
            Ok(scenario) => Ok(Self { path: name, text, scenario }),
            Err(error) => Err(shown(error, &name, &text)),
        }
    }

    /// A scenario that has no file: other files that it names are in the current directory.
    pub(crate) fn of_text(name: &str, text: String) -> anyhow::Result<Self> {
        match Scenario::parse_with(&text, Beside::Folder(PathBuf::new())) {
            Ok(scenario) => Ok(Self { path: name.to_owned(), text, scenario }),
            Err(error) => Err(shown(error, name, &text)),
        }
    }

    /// A scenario that comes with the command.
    pub(crate) fn built_in(name: &str, text: &str) -> anyhow::Result<Self> {
        let scenario = Scenario::parse(text).map_err(|error| shown(error, name, text))?;
        Ok(Self { path: name.to_owned(), text: text.to_owned(), scenario })
    }

    /// A scenario that was made from the one at this place; `text` says how.
    pub(crate) fn of_table(path: &Path, text: String, table: toml::Table) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let scenario =
            Scenario::from_table(table, reader(path)).map_err(|error| shown(error, &name, &text))?;
        Ok(Self { path: name, text, scenario })
    }

    /// Reads a scenario that was made from this one.
    pub(crate) fn variant(&self, table: toml::Table) -> Result<Scenario, ScenarioError> {
        Scenario::from_table(table, reader(Path::new(&self.path)))
    }

    /// An error about this file, with its line.
    pub(crate) fn problem(&self, error: ScenarioError) -> anyhow::Error {
        shown(error, &self.path, &self.text)
    }
}

/// A scenario's name and text: a file, standard input, or one that ships.
fn read(path: &Path) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    if let Some(found) = shipped::find(path) {
        return Ok((name, found.text.to_owned()));
    }
    if name == input::STANDARD {
        return Ok(("standard input".to_owned(), input::text(path)?));
    }
    if path.is_dir() {
        return Err(Usage(format!("{name} is a directory: name a scenario, a TOML file")).into());
    }
    if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(no_scenario(&name).into());
    }
    Ok((name, input::text(path)?))
}

/// What is wrong with a scenario: the whole of it for people, and its parts for programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    text: String,
    /// What is wrong, in a line.
    pub message: String,
    /// The file that it is about.
    pub file: String,
    /// The line of the file, counted from 1, where it is about one.
    pub line: Option<usize>,
    /// The letter in that line, counted from 1.
    pub column: Option<usize>,
    /// The key that it is about, such as `fabric.link.rate`; empty where it is about no key in particular.
    pub key: String,
    /// What would be right, as far as that is known.
    pub advice: Vec<String>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Problem {}

/// Neither a file nor one that ships.
pub(crate) fn no_scenario(name: &str) -> Usage {
    let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
    let known: Vec<&str> = shipped::ALL.iter().map(|one| one.name).collect();
    let mut text = format!("there is no file {name}, and no scenario of that name ships");
    if let Some(meant) = known.iter().copied().find(|one| *one == stem).or(words::nearest(&stem, &known)) {
        let _ = write!(text, "\n  = did you mean \"{meant}\"?");
    }
    text.push_str("\n  = railnet list names those that ship, railnet new FILE.toml writes one to begin with");
    Usage(text)
}

/// The files that a scenario names: they are where it is, unless it says otherwise.
enum Beside {
    Folder(PathBuf),
    Shipped,
}

impl Beside {
    fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        match self {
            Self::Folder(folder) => std::fs::read(folder.join(name)).map_err(|error| input::reason(&error)),
            Self::Shipped => {
                shipped::file(name).map(<[u8]>::to_vec).ok_or_else(|| "no such file ships".to_owned())
            }
        }
    }
}

impl Files for Beside {
    fn text(&mut self, name: &str) -> Result<String, String> {
        input::decoded(self.bytes(name)?)
    }

    fn server(&mut self, name: &str) -> Result<Host, String> {
        let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
        nccl_topology::read(&stem, &self.text(name)?).map_err(|error| error.to_string())
    }

    fn trace(&mut self, name: &str) -> Result<RankTrace, String> {
        chakra::read(&self.bytes(name)?).map_err(|error| error.to_string())
    }

    fn recording(&mut self, name: &str) -> Result<Recording, String> {
        recording::read(&self.text(name)?).map_err(|error| error.to_string())
    }

    fn algorithm(&mut self, name: &str) -> Result<Arc<dyn CustomAlgorithm>, String> {
        let file = msccl::read(&self.text(name)?).map_err(|error| error.to_string())?;
        Ok(Arc::new(file))
    }
}

/// A server from a topology file of NCCL's.
pub(crate) fn server(path: &Path) -> anyhow::Result<Host> {
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let server = Beside::Folder(folder).server(&name);
    server.map_err(|reason| Usage(format!("{}: {reason}", path.display())).into())
}

fn reader(scenario: &Path) -> Beside {
    match shipped::find(scenario) {
        Some(_) => Beside::Shipped,
        None => Beside::Folder(scenario.parent().map(Path::to_owned).unwrap_or_default()),
    }
}

/// An error with the line it is about.
fn shown(error: ScenarioError, path: &str, text: &str) -> anyhow::Error {
    let error = error.located(text);
    let (path, text) = match &error.file {
        Some(file) => (beside(path, &file.path), file.text.as_ref()),
        None => (path.to_owned(), text),
    };
    if error.message.contains('\n') {
        // It has a layout of its own, and is about more than one line of the file.
        let (message, advice) = (error.message.clone(), Vec::new());
        let (line, column, key) = (None, None, error.key);
        return Problem { text: error.message, message, file: path, line, column, key, advice }.into();
    }
    let advice = Advice::of(&error.message);
    let mut shown = advice.headline.clone();
    let place = error.span.as_ref().map(|span| place(span, text));
    match (&error.span, &advice.label) {
        (Some(span), label) => shown.push_str(&excerpt(span, &path, text, label.as_deref())),
        (None, label) => {
            let _ = write!(shown, "\n --> {path}");
            if let Some(label) = label {
                let _ = write!(shown, "\n  = {label}");
            }
        }
    }
    let meant = advice.meant.or(error.meant).map(|meant| format!("did you mean \"{meant}\"?"));
    if let Some(meant) = &meant {
        let _ = write!(shown, "\n  = {meant}");
    }
    let key = if error.key.is_empty() { written_key(error.span.as_ref(), text) } else { error.key };
    Problem {
        text: shown,
        message: advice.headline,
        file: path,
        line: place.map(|(line, _)| line),
        column: place.map(|(_, column)| column),
        key,
        advice: advice.label.into_iter().chain(meant).collect(),
    }
    .into()
}

/// The key of a line that says `key = value`; without a table, as it is written there.
fn written_key(span: Option<&Range<usize>>, text: &str) -> String {
    let line = span.and_then(|span| text.lines().nth(place(span, text).0 - 1)).unwrap_or_default();
    let key = line.split_once('=').map_or("", |(key, _)| key.trim());
    let is_key = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if key.chars().all(is_key) { key.to_owned() } else { String::new() }
}

/// Where a file that a scenario names is.
fn beside(scenario: &str, name: &str) -> String {
    let folder = Path::new(scenario).parent().map(Path::to_owned).unwrap_or_default();
    folder.join(name).display().to_string()
}

/// Where a span begins, between two letters.
fn start_of(span: &Range<usize>, text: &str) -> usize {
    (0..=span.start.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Line and column where a span begins, both counted from 1.
fn place(span: &Range<usize>, text: &str) -> (usize, usize) {
    let before = &text[..start_of(span, text)];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The line of a span with a mark under it.
pub(crate) fn excerpt(span: &Range<usize>, path: &str, text: &str, label: Option<&str>) -> String {
    let start = start_of(span, text);
    let (before, after) = text.split_at(start);
    let (number, column) = place(span, text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or("");
    let rest = after.lines().next().unwrap_or("");
    // A span over several lines is shown by its first one.
    let length = span.end.saturating_sub(start).min(rest.len());
    let width = rest.char_indices().filter(|(at, _)| *at < length).count().max(1);
    // Tabs stay tabs below, so that the mark stands where the eye looks for it.
    let pad: String = before[line_start..].chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let gutter = " ".repeat(number.to_string().len());
    let label = label.map(|label| format!(" {label}")).unwrap_or_default();
    format!(
        "\n {gutter}--> {path}:{number}:{column}\n {gutter} |\n {number} | {line}\n {gutter} | {pad}{}{label}",
        "^".repeat(width)
    )
}

/// A message of the reader, in the words of this command.
pub(crate) struct Advice {
    pub(crate) headline: String,
    /// What would be right.
    pub(crate) label: Option<String>,
    /// What was probably meant.
    pub(crate) meant: Option<String>,
}

impl Advice {
    pub(crate) fn of(message: &str) -> Self {
        let kinds = [("unknown field `", "unknown key"), ("unknown variant `", "unknown value")];
        for (prefix, name) in kinds {
            let Some((word, rest)) = message.strip_prefix(prefix).and_then(|rest| rest.split_once('`'))
            else {
                continue;
            };
            let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
            return Self {
                headline: format!("{name} \"{word}\""),
                label: (!known.is_empty()).then(|| format!("one of: {}", known.join(", "))),
                meant: words::nearest(word, &known).map(str::to_owned),
            };
        }
        if let Some((word, "")) =
            message.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'))
        {
            let label = Some("it belongs in here".to_owned());
            return Self { headline: format!("the key \"{word}\" is missing"), label, meant: None };
        }
        Self { headline: railnet_core::without_types(message.trim_end()), label: None, meant: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> String {
        shown(Scenario::parse(text).unwrap_err(), "my.toml", text).to_string()
    }

    #[test]
    fn a_wrong_name_is_marked_with_those_that_exist() {
        let text =
            "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n[nic]\ncontrol   = \"dcqnc\"\n";
        let shown = rendered(text);
        assert!(shown.starts_with("unknown value \"dcqnc\"\n  --> my.toml:4:14\n"), "{shown}");
        assert!(
            shown.contains(" 4 | control   = \"dcqnc\"\n   |              ^^^^^ one of: none, dcqcn"),
            "{shown}"
        );
        assert!(shown.ends_with("\n  = did you mean \"dcqcn\"?"), "{shown}");
    }

    #[test]
    fn a_wrong_value_is_marked_where_it_stands_inside_a_table_with_a_kind() {
        let text = "[fabric]\ntopology = { kind = \"fat-tree\", kk = 4 }\n";
        assert!(rendered(text).contains("my.toml:2:33\n"), "{}", rendered(text));
        let text = "[fabric]\ntopology = { kind = \"fat-tree\", k = 4 }\n[[traffic]]\nkind = \"permutation\"\nbytes = \"8\"\n";
        assert!(rendered(text).contains("my.toml:5:10\n"), "{}", rendered(text));
    }

    #[test]
    fn marks_survive_letters_of_several_bytes_and_ends_of_files() {
        for text in ["é = \"ü", "seed = ", "[fabric]\n\tü = 1", "seed = \"\u{1f600}\"", "", "\n\n", "[fabric"]
        {
            assert!(rendered(text).contains("my.toml"), "{text:?}");
        }
    }
}
