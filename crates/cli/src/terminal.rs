//! A terminal in front of the command: lines wrap at words, and what a line is about has a colour. A pipe gets neither.

use std::io::{self, Write};
use std::os::fd::AsFd;

/// Narrower terminals wrap by themselves.
const COLUMNS_LEAST: usize = 60;
/// The width of text where nothing says how wide it may be.
const COLUMNS_USUAL: usize = 118;

/// Columns of a terminal; none where it is something else.
fn columns_of(stream: &(impl AsFd + io::IsTerminal)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stream.as_fd()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col).max(COLUMNS_LEAST))
}

/// How wide text is written that nothing else has a width for.
pub(crate) fn text_columns() -> usize {
    columns_of(&io::stdout()).map_or(COLUMNS_USUAL, |columns| columns.min(COLUMNS_USUAL))
}

/// Whether a stream takes colours: a terminal, and nobody has said no (no-color.org).
pub(crate) fn has_colour(stream: &impl io::IsTerminal) -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    stream.is_terminal() && !is_refused && !is_dumb
}

const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";
const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// A message on standard error, wrapped and coloured where a terminal shows it.
pub(crate) fn message(text: &str) -> String {
    let stream = io::stderr();
    let columns = columns_of(&stream);
    let mut shown = String::new();
    for line in text.lines() {
        // An excerpt of a file has marks below its letters.
        let is_excerpt =
            line.trim_start().chars().next().is_some_and(|letter| letter.is_ascii_digit() || letter == '|');
        match columns.filter(|_| !is_excerpt) {
            Some(columns) => shown.push_str(&wrapped(line, columns)),
            None => shown.push_str(line),
        }
        shown.push('\n');
    }
    shown.pop();
    if !has_colour(&stream) {
        return shown;
    }
    let kinds = [("error:", RED), ("note:", YELLOW), ("Careful:", YELLOW), ("warning:", YELLOW)];
    match kinds.into_iter().find(|(kind, _)| shown.starts_with(kind)) {
        Some((kind, colour)) => format!("{colour}{kind}{PLAIN}{}", &shown[kind.len()..]),
        None => shown,
    }
}

/// As much of a line as fits into one of standard error's.
pub(crate) fn cut(line: &str) -> String {
    match columns_of(&io::stderr()) {
        Some(columns) => line.chars().take(columns - 1).collect(),
        None => line.to_owned(),
    }
}

/// What a command prints, on its way to a terminal.
pub(crate) struct Screen<W: Write> {
    out: W,
    columns: Option<usize>,
    is_coloured: bool,
    line: Vec<u8>,
    lines: u64,
    /// What is printed is for programs, or has a form of its own.
    is_raw: bool,
}

impl<W: Write> Screen<W> {
    /// What `is_raw` is left as it is.
    pub(crate) fn new(out: W, is_raw: bool) -> Self {
        let stream = io::stdout();
        let (columns, is_coloured) = (columns_of(&stream), has_colour(&stream));
        Self::with(out, columns, is_coloured, is_raw)
    }

    fn with(out: W, columns: Option<usize>, is_coloured: bool, is_raw: bool) -> Self {
        let is_raw = is_raw || columns.is_none() && !is_coloured;
        Self { out, columns, is_coloured, line: Vec::new(), lines: 0, is_raw }
    }

    fn line(&mut self) -> io::Result<()> {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        self.lines += 1;
        if line.contains('\x1b') {
            return self.out.write_all(line.as_bytes());
        }
        let text = line.trim_end_matches('\n');
        let wrapped = self.columns.map_or_else(|| text.to_owned(), |columns| wrapped(text, columns));
        let shown = if self.is_coloured { coloured(&wrapped, self.lines == 1) } else { wrapped };
        self.out.write_all(shown.as_bytes())?;
        self.out.write_all(&line.as_bytes()[text.len()..])
    }
}

impl<W: Write> Write for Screen<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_start = self.lines == 0 && self.line.is_empty();
        if is_start && matches!(bytes.first(), Some(b'{' | b'[')) {
            self.is_raw = true;
        }
        if self.is_raw {
            return self.out.write(bytes);
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.line()?;
        }
        self.out.flush()
    }
}

/// A line in several that fit, cut between words; they begin where its last column does.
fn wrapped(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let letters: Vec<char> = line.chars().collect();
    let indent = indent_of(&letters, columns);
    let (mut text, mut start, mut room) = (String::new(), 0, columns);
    while letters.len() - start > room {
        let window = &letters[start..=start + room];
        // Not inside what a line begins with.
        let least = if start == 0 { indent } else { 0 };
        let Some(at) = window.iter().rposition(|letter| *letter == ' ').filter(|at| *at > least) else {
            break;
        };
        text.extend(&window[..at]);
        text.truncate(text.trim_end().len());
        text.push('\n');
        text.push_str(&" ".repeat(indent));
        start += at + 1;
        while letters.get(start) == Some(&' ') {
            start += 1;
        }
        room = columns - indent;
    }
    text.extend(&letters[start..]);
    text
}

/// Where the last column of a line begins that leaves half of the terminal to it.
fn indent_of(letters: &[char], columns: usize) -> usize {
    let begins =
        |at: usize| at >= 2 && letters[at] != ' ' && letters[at - 1] == ' ' && letters[at - 2] == ' ';
    let first = letters.iter().position(|letter| *letter != ' ').unwrap_or(0);
    let most = (columns / 2).min(letters.len());
    (0..most).rev().find(|at| begins(*at)).unwrap_or(first + 2).max(first)
}

/// The title of a screen is bold, and what a line is about has a colour.
fn coloured(text: &str, is_first: bool) -> String {
    if is_first && text.starts_with("Railnet ") {
        return format!("{BOLD}{text}{PLAIN}");
    }
    if text.starts_with("PARTIAL") {
        return format!("{RED}{text}{PLAIN}");
    }
    let Some(rest) = text.strip_prefix("  ") else { return text.to_owned() };
    let is_label = rest.starts_with(|letter: char| letter.is_ascii_uppercase());
    match rest.find("  ").filter(|_| is_label) {
        Some(end) => format!("  {CYAN}{}{PLAIN}{}", &rest[..end], &rest[end..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, columns: Option<usize>, is_coloured: bool) -> String {
        let mut out = Vec::new();
        let mut screen = Screen::with(&mut out, columns, is_coloured, false);
        // However the pieces come.
        for byte in text.as_bytes() {
            screen.write_all(&[*byte]).unwrap();
        }
        screen.flush().unwrap();
        drop(screen);
        String::from_utf8(out).unwrap()
    }

    const LINE: &str =
        "  Marked      3 packets     ECN, on 0.1 % of packet-hops; 14 congestion notifications and more\n";

    #[test]
    fn lines_wrap_between_words_under_their_last_column() {
        let text = shown(LINE, Some(60), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  Marked      3 packets     ECN, on 0.1 % of packet-hops; 14");
        assert_eq!(lines[1], "                            congestion notifications and");
        assert_eq!(lines[2], "                            more");
        assert!(lines.iter().all(|line| line.chars().count() <= 60));
        assert_eq!(shown(LINE, Some(120), false), LINE);
    }

    #[test]
    fn a_pipe_and_programs_get_what_was_printed() {
        let json = format!("{{ \"long\": \"{}\" }}\n", "word ".repeat(40));
        assert_eq!(shown(&json, Some(60), true), json);
        assert_eq!(shown(LINE, None, false), LINE);
    }

    #[test]
    fn labels_have_a_colour_and_words_without_spaces_are_left_whole() {
        let text = shown("Railnet 0.1 · x\n  Marked   3\n  plain words\n", Some(60), true);
        assert_eq!(text, "\x1b[1mRailnet 0.1 · x\x1b[0m\n  \x1b[36mMarked\x1b[0m   3\n  plain words\n");
        let long = format!("{}\n", "x".repeat(200));
        assert_eq!(shown(&long, Some(60), false), long);
    }
}
