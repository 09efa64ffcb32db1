//! Protocol Buffers, as far as traces use them (protobuf.dev, "Encoding").

use super::ChakraError;

/// The most bytes of a varint.
const VARINT_MAX: usize = 10;

/// A part of a file, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    file: &'a [u8],
    at: usize,
    end: usize,
}

/// What a field has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    Number(u64),
    Bytes(Part<'a>),
    /// Four or eight bytes.
    Fixed(u64),
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Number(i128),
    Text(String),
    /// A list, a fraction, bytes.
    Other,
    /// Nothing: some writers leave out what is zero.
    Missing,
}

impl Value {
    /// A number of 0 or more.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Text(text) => text.parse().ok(),
            Self::Missing => Some(0),
            Self::Other => None,
        }
    }

    /// A name, which may be a number.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::Number(number) => Some(number.to_string()),
            Self::Text(text) => Some(text.clone()),
            Self::Other | Self::Missing => None,
        }
    }
}

/// The fields of a message.
pub(super) struct Fields<'a>(Part<'a>);

/// The messages of a file, each after its length.
pub(super) fn delimited(file: &[u8]) -> impl Iterator<Item = Result<Fields<'_>, ChakraError>> {
    let mut rest = Part { file, at: 0, end: file.len() };
    std::iter::from_fn(move || {
        if rest.at >= rest.end {
            return None;
        }
        let found = rest.varint().and_then(|length| rest.take(length));
        if found.is_err() {
            rest.at = rest.end;
        }
        Some(found.map(Fields))
    })
}

impl Part<'_> {
    fn damaged(&self, what: &'static str) -> ChakraError {
        ChakraError::Damaged { what, at: self.at }
    }

    fn varint(&mut self) -> Result<u64, ChakraError> {
        let mut value = 0_u64;
        for place in 0..VARINT_MAX {
            let Some(byte) = self.file[..self.end].get(self.at).copied() else {
                return Err(self.damaged("it ends in the middle of a number"));
            };
            self.at += 1;
            value |= u64::from(byte & 0x7f).checked_shl(7 * place as u32).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged("a number has too many bytes"))
    }

    fn take(&mut self, length: u64) -> Result<Self, ChakraError> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        match end.filter(|end| *end <= self.end) {
            Some(end) => {
                let part = Self { file: self.file, at: self.at, end };
                self.at = end;
                Ok(part)
            }
            None => Err(self.damaged("a message is longer than what is left")),
        }
    }

    fn fixed(&mut self, length: usize) -> Result<u64, ChakraError> {
        let part = self.take(length as u64)?;
        let bytes = &part.file[part.at..part.end];
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// As text: what is none is shown as such.
    pub(super) fn text(self) -> String {
        String::from_utf8_lossy(&self.file[self.at..self.end]).into_owned()
    }

    /// The numbers of a packed list.
    pub(super) fn packed(mut self) -> Result<Vec<u64>, ChakraError> {
        let mut numbers = Vec::new();
        while self.at < self.end {
            numbers.push(self.varint()?);
        }
        Ok(numbers)
    }

    /// The name and the value of an attribute.
    pub(super) fn attribute(self) -> Result<(String, Value), ChakraError> {
        let (mut name, mut value) = (String::new(), Value::Missing);
        for field in Fields(self) {
            let (number, field) = field?;
            match (number, field) {
                (1, Field::Bytes(text)) => name = text.text(),
                (29, Field::Bytes(text)) => value = Value::Text(text.text()),
                // Signed numbers in the plain encoding, and in the zigzag one.
                (7 | 9, Field::Number(number)) | (25, Field::Fixed(number)) => {
                    value = Value::Number(i128::from(number as i64));
                }
                (15 | 17, Field::Number(number)) => {
                    value = Value::Number(i128::from((number >> 1) as i64 ^ -((number & 1) as i64)));
                }
                (11 | 13 | 27, Field::Number(number)) | (19 | 21, Field::Fixed(number)) => {
                    value = Value::Number(i128::from(number));
                }
                (23, Field::Fixed(number)) => value = Value::Number(i128::from(number as u32 as i32)),
                // The description of an attribute, which nobody reads.
                (2, _) => {}
                _ => value = Value::Other,
            }
        }
        Ok((name, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), ChakraError>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = &mut self.0;
        if part.at >= part.end {
            return None;
        }
        let field = part.varint().and_then(|tag| {
            let field = match tag & 7 {
                0 => Field::Number(part.varint()?),
                1 => Field::Fixed(part.fixed(8)?),
                2 => {
                    let length = part.varint()?;
                    Field::Bytes(part.take(length)?)
                }
                5 => Field::Fixed(part.fixed(4)?),
                _ => return Err(part.damaged("a field has a type that nothing has")),
            };
            Ok((tag >> 3, field))
        });
        if field.is_err() {
            part.at = part.end;
        }
        Some(field)
    }
}
