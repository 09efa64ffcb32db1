//! Splits bytes into lines.

/// The longest line; a longer one is split.
const LINE_MAX: usize = 64 * 1024;

/// Collects bytes until a line is complete.
#[derive(Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Appends bytes, and passes on the lines that they complete, without newlines.
    pub(super) fn push<E>(
        &mut self,
        mut bytes: &[u8],
        mut line: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = bytes.split_at(at);
            bytes = &rest[1..];
            self.add(head, &mut line)?;
            line(&std::mem::take(&mut self.partial))?;
        }
        self.add(bytes, &mut line)
    }

    fn add<E>(&mut self, mut bytes: &[u8], line: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        while self.partial.len() + bytes.len() > LINE_MAX {
            let (head, rest) = bytes.split_at(LINE_MAX - self.partial.len());
            self.partial.extend_from_slice(head);
            line(&std::mem::take(&mut self.partial))?;
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    /// The end of the stream: an incomplete line is passed on too.
    pub(super) fn finish<E>(&mut self, mut line: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let partial = std::mem::take(&mut self.partial);
        if partial.is_empty() { Ok(()) } else { line(&partial) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        let mut take = |line: &[u8]| -> Result<(), ()> {
            found.push(line.to_vec());
            Ok(())
        };
        for piece in pieces {
            lines.push(piece, &mut take).unwrap();
        }
        lines.finish(&mut take).unwrap();
        found
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300), size in 1_usize..50) {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let mut expected: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            if expected.last().is_some_and(Vec::is_empty) {
                expected.pop();
            }
            prop_assert_eq!(lines(&pieces), expected);
        }
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let long = vec![b'x'; 2 * LINE_MAX + 5];
        let found = lines(&[&long, b"\ny"]);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [LINE_MAX, LINE_MAX, 5, 1]);
    }
}
