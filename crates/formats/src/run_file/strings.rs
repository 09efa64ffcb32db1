//! Texts that many rows share.

use std::collections::BTreeMap;

/// Texts and their numbers.
#[derive(Clone, Default, Debug)]
pub(super) struct Strings {
    numbers: BTreeMap<String, u32>,
}

impl Strings {
    /// The number of a text, which it gets when it is first met.
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The texts, by their numbers.
    pub(super) fn finish(self) -> Vec<String> {
        let mut texts = vec![String::new(); self.numbers.len()];
        for (text, number) in self.numbers {
            texts[number as usize] = text;
        }
        texts
    }
}
