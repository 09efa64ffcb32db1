//! Files that a command reads. One that cannot be read, or is not what it should be, is wrong usage.

use std::io::Read as _;
use std::path::Path;

use crate::Usage;

/// Standard input, where a command line names it in place of a file.
pub(crate) const STANDARD: &str = "-";

/// All bytes of a file.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, Usage> {
    let name = path.display();
    if path.is_dir() {
        return Err(Usage(format!("{name} is a directory, not a file")));
    }
    std::fs::read(path).map_err(|error| Usage(format!("cannot read {name}: {}", reason(&error))))
}

/// A text. `-` is standard input.
pub(crate) fn text(path: &Path) -> Result<String, Usage> {
    if path.as_os_str() != STANDARD {
        return decoded(bytes(path)?).map_err(|at| Usage(format!("{}:{at}", path.display())));
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| Usage(format!("cannot read standard input: {error}")))?;
    decoded(bytes).map_err(|at| Usage(format!("standard input:{at}")))
}

/// Bytes as text, or the position of the first that is none.
pub(crate) fn decoded(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let (before, byte) = (&error.as_bytes()[..valid], error.as_bytes()[valid]);
        let line = before.split(|byte| *byte == b'\n').count();
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[begin..]).chars().count() + 1;
        format!("{line}:{column}: this is no text: byte {byte:#04x} is not UTF-8")
    })
}

/// Why, without the number that the kernel gives it.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "it may not be read".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_named_with_their_position() {
        let wrong = decoded(b"seed = 1\n# \xc3\xa9 \xff".to_vec()).unwrap_err();
        assert_eq!(wrong, "2:5: this is no text: byte 0xff is not UTF-8");
    }
}
