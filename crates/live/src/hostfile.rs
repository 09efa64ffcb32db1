//! Host files as MPI has them: a host on each line, with its slots.
//!
//! ```
//! let nodes = railnet_live::hostfile::parse("node01 slots=2\nnode02:2  # two more\nnode03\n")?;
//! assert_eq!(nodes.iter().map(|node| node.slots).collect::<Vec<_>>(), [2, 2, 1]);
//! # Ok::<(), railnet_live::hostfile::HostfileError>(())
//! ```

use crate::launch::WORLD_SIZE_MAX;

/// A line of a host file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its slots: the ranks that it can run.
    pub slots: u32,
}

/// What is wrong with a host file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostfileError {
    /// A line that cannot be parsed.
    #[error("line {line}: {text:?} is no host: write `name`, `name slots=4` or `name:4`")]
    Line {
        /// The number of the line.
        line: usize,
        /// The line.
        text: String,
    },
    /// A host that is listed twice.
    #[error("line {line}: {name} was there before: give it more slots instead")]
    Twice {
        /// The number of the second line.
        line: usize,
        /// The host.
        name: String,
    },
    /// A file without hosts.
    #[error("there is no host in it")]
    Empty,
}

/// Parses a host file.
pub fn parse(text: &str) -> Result<Vec<Host>, HostfileError> {
    let mut hosts: Vec<Host> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let host = host(line).ok_or_else(|| HostfileError::Line { line: number, text: line.to_owned() })?;
        if hosts.iter().any(|other| other.name == host.name) {
            return Err(HostfileError::Twice { line: number, name: host.name });
        }
        hosts.push(host);
    }
    if hosts.is_empty() { Err(HostfileError::Empty) } else { Ok(hosts) }
}

fn host(line: &str) -> Option<Host> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let (name, slots) = match first.split_once(':') {
        Some((name, slots)) => (name, Some(slots)),
        None => (first, None),
    };
    let mut slots = slots.map(str::parse::<u32>);
    for word in words {
        match word.split_once('=')? {
            ("slots", count) if slots.is_none() => slots = Some(count.parse()),
            // Open MPI's `max_slots` is ignored.
            ("max_slots" | "max-slots", _) => {}
            _ => return None,
        }
    }
    let slots = slots.unwrap_or(Ok(1)).ok()?;
    ((1..=WORLD_SIZE_MAX).contains(&slots) && !name.is_empty()).then(|| Host { name: name.to_owned(), slots })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_read() {
        let host = |name: &str, slots| Host { name: name.to_owned(), slots };
        let text = "# a comment\n\n a slots=3 max_slots=4\nb:2\n  c # one\n";
        assert_eq!(parse(text).unwrap(), [host("a", 3), host("b", 2), host("c", 1)]);
    }

    #[test]
    fn what_is_wrong_is_shown_with_its_line() {
        for (text, part) in [
            ("", "no host in it"),
            ("a\nb slots=x", "line 2: \"b slots=x\""),
            ("a:0", "line 1"),
            ("a:1 slots=2", "line 1"),
            ("a cpus=2", "line 1"),
            (":2", "line 1"),
            ("a\na", "line 2: a was there before"),
        ] {
            assert!(parse(text).unwrap_err().to_string().contains(part), "{text}");
        }
    }
}
