//! Files of lines and columns that a scenario names: fields apart by commas or by space, `#` before a remark.

use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

use crate::scenario::{ScenarioError, SourceFile};

/// One line with something on it.
pub(crate) struct Row<'a> {
    file: &'a SourceFile,
    /// Where each field is in the text.
    fields: Vec<Range<usize>>,
}

/// The lines of a file with something on them.
pub(crate) fn rows(file: &SourceFile) -> impl Iterator<Item = Row<'_>> {
    let mut start = 0;
    let lines = file.text.split_inclusive('\n').map(move |line| {
        let row = Row { file, fields: fields(line, start) };
        start += line.len();
        row
    });
    lines.filter(|row| !row.fields.is_empty())
}

/// Where the fields of a line are, which begins at `start`.
fn fields(line: &str, start: usize) -> Vec<Range<usize>> {
    let line = line.split('#').next().unwrap_or_default().trim_end();
    if line.is_empty() {
        return Vec::new();
    }
    let has_commas = line.contains(',');
    let mut fields = Vec::new();
    let mut begin = 0;
    for piece in line.split(|letter: char| if has_commas { letter == ',' } else { letter.is_whitespace() }) {
        let trimmed = piece.trim_start();
        let at = start + begin + piece.len() - trimmed.len();
        begin += piece.len() + 1;
        // Between commas there may be nothing; several spaces are one.
        if has_commas || !trimmed.is_empty() {
            fields.push(at..at + trimmed.trim_end().len());
        }
    }
    fields
}

impl<'a> Row<'a> {
    /// How many fields there are.
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// A field as it is written; nothing where there is none, or an empty one.
    pub(crate) fn text(&self, place: usize) -> Option<&'a str> {
        let field = self.fields.get(place)?;
        self.file.text.get(field.clone()).filter(|text| !text.is_empty())
    }

    /// A field as a value; nothing where there is none.
    pub(crate) fn optional<T>(&self, place: usize) -> Result<Option<T>, ScenarioError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let parse = |text: &str| text.parse().map_err(|error| self.wrong(place, format!("{error}")));
        self.text(place).map(parse).transpose()
    }

    /// A field that must be there, as a number; `what` says what it is.
    pub(crate) fn number<T: FromStr>(&self, place: usize, what: &str) -> Result<T, ScenarioError> {
        match self.text(place) {
            None => Err(self.wrong_line(format!("{what} is missing"))),
            Some(text) => {
                text.parse().map_err(|_| self.wrong(place, format!("{what} is a number, not \"{text}\"")))
            }
        }
    }

    /// An error about a field.
    pub(crate) fn wrong(&self, place: usize, message: impl Into<String>) -> ScenarioError {
        match self.fields.get(place) {
            Some(field) => self.file.wrong(field.clone(), message),
            None => self.wrong_line(message),
        }
    }

    /// An error about the line.
    pub(crate) fn wrong_line(&self, message: impl Into<String>) -> ScenarioError {
        let (first, last) = (self.fields.first(), self.fields.last());
        let span = first.zip(last).map_or(0..0, |(first, last)| first.start..last.end);
        self.file.wrong(span, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SourceFile {
        SourceFile { path: "list.csv".to_owned(), text: text.into() }
    }

    #[test]
    fn fields_are_apart_by_commas_or_by_space_and_know_their_place() {
        let file = file("a, b ,c\r\n\n  # a remark\n d  e\tf # more\n,x\n");
        let rows: Vec<_> = rows(&file).collect();
        let texts =
            |row: &Row<'_>| (0..3).map(|place| row.text(place).map(str::to_owned)).collect::<Vec<_>>();
        assert_eq!(rows.len(), 3);
        assert_eq!(texts(&rows[0]), [Some("a".to_owned()), Some("b".to_owned()), Some("c".to_owned())]);
        assert_eq!(texts(&rows[1])[2].as_deref(), Some("f"));
        assert_eq!(texts(&rows[2])[..2], [None, Some("x".to_owned())]);
        let error = rows[1].wrong(1, "no e");
        assert_eq!(&file.text[error.span.unwrap()], "e");
        assert_eq!(&file.text[rows[0].wrong_line("all").span.unwrap()], "a, b ,c");
        assert!(rows[0].number::<u32>(1, "the second").is_err());
    }
}
