//! Tables of columns: what a run file is made of, and what the page is given.

use std::fmt;

/// Stands for a moment that never came.
pub const MISSING: u64 = u64::MAX;

/// What the cells of a column are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
}

impl Kind {
    /// Its name in the header of a block.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// Bytes of a cell.
    pub const fn width(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    fn find(name: &str) -> Option<Self> {
        [Self::U8, Self::U16, Self::U32, Self::U64].into_iter().find(|kind| kind.name() == name)
    }
}

/// The names and kinds of the columns of a table.
pub type Schema = &'static [(&'static str, Kind)];

/// A column: its cells one after the other, little endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What its cells are.
    pub kind: Kind,
    bytes: Vec<u8>,
}

impl Column {
    fn push(&mut self, value: u64) {
        let width = self.kind.width();
        self.bytes.extend_from_slice(&value.to_le_bytes()[..width]);
    }

    /// A cell.
    pub fn get(&self, row: usize) -> u64 {
        let width = self.kind.width();
        let mut value = [0; 8];
        value[..width].copy_from_slice(&self.bytes[row * width..(row + 1) * width]);
        u64::from_le_bytes(value)
    }

    fn set(&mut self, row: usize, value: u64) {
        let width = self.kind.width();
        self.bytes[row * width..(row + 1) * width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// Rows in columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// What it is called.
    pub name: String,
    /// Its columns, all of the same length.
    pub columns: Vec<Column>,
    /// How many rows there are.
    pub rows: usize,
}

impl Table {
    /// An empty one.
    pub fn new(name: &str, schema: Schema) -> Self {
        let column =
            |(name, kind): &(&str, Kind)| Column { name: (*name).to_owned(), kind: *kind, bytes: Vec::new() };
        Self { name: name.to_owned(), columns: schema.iter().map(column).collect(), rows: 0 }
    }

    /// A table of one column, of bytes.
    pub(super) fn of_bytes(name: &str, bytes: Vec<u8>) -> Self {
        let rows = bytes.len();
        Self {
            name: name.to_owned(),
            columns: vec![Column { name: "byte".to_owned(), kind: Kind::U8, bytes }],
            rows,
        }
    }

    /// Adds a row: a value for each column, of which as many bytes are kept as the column has. Gives its number.
    pub fn push<const N: usize>(&mut self, values: [u64; N]) -> u32 {
        assert_eq!(N, self.columns.len(), "a value for each column of {}", self.name);
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(value);
        }
        self.rows += 1;
        self.rows as u32 - 1
    }

    /// The place of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// A cell.
    pub fn get(&self, row: usize, column: usize) -> u64 {
        self.columns[column].get(row)
    }

    /// All cells of a column, little endian.
    pub fn bytes(&self, column: usize) -> &[u8] {
        &self.columns[column].bytes
    }

    /// Changes a cell.
    pub fn set(&mut self, row: u32, column: usize, value: u64) {
        self.columns[column].set(row as usize, value);
    }

    /// The rows with these numbers, in this order.
    #[must_use]
    pub fn take(&self, rows: &[u32]) -> Self {
        let column = |from: &Column| {
            let width = from.kind.width();
            let mut bytes = Vec::with_capacity(rows.len() * width);
            for &row in rows {
                let start = row as usize * width;
                bytes.extend_from_slice(&from.bytes[start..start + width]);
            }
            Column { name: from.name.clone(), kind: from.kind, bytes }
        };
        let columns = self.columns.iter().map(column).collect();
        Self { name: self.name.clone(), columns, rows: rows.len() }
    }

    /// With one more column, `row`: the numbers that its rows have in the table they were taken from.
    #[must_use]
    pub fn numbered(mut self, rows: &[u32]) -> Self {
        let bytes = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        self.columns.push(Column { name: "row".to_owned(), kind: Kind::U32, bytes });
        self
    }

    /// As bytes: the length of a header, the header as JSON, and the columns, each from a multiple of eight on. `total` is
    /// how many rows there were before some were left out.
    pub fn block(&self, total: usize) -> Vec<u8> {
        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|column| format!(r#"{{"name":"{}","type":"{}"}}"#, column.name, column.kind.name()))
            .collect();
        let header = format!(
            r#"{{"table":"{}","rows":{},"total":{total},"columns":[{}]}}"#,
            self.name,
            self.rows,
            columns.join(",")
        );
        let mut block = Vec::with_capacity(4 + header.len());
        block.extend_from_slice(&(header.len() as u32).to_le_bytes());
        block.extend_from_slice(header.as_bytes());
        pad(&mut block);
        for column in &self.columns {
            block.extend_from_slice(&column.bytes);
            pad(&mut block);
        }
        block
    }

    /// The table at the beginning of these bytes, and how many of them it takes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), BlockError> {
        let length = bytes.first_chunk::<4>().ok_or(BlockError::Short)?;
        let length = u32::from_le_bytes(*length) as usize;
        let header = bytes[4..].get(..length).ok_or(BlockError::Short)?;
        let header: serde_json::Value =
            serde_json::from_slice(header).map_err(|error| BlockError::Header(error.to_string()))?;
        let field = |name: &str| header.get(name).ok_or_else(|| BlockError::Header(format!("no {name}")));
        let rows = field("rows")?.as_u64().ok_or_else(|| BlockError::Header("rows".to_owned()))? as usize;
        let name = field("table")?.as_str().unwrap_or_default().to_owned();
        let mut at = (4 + length).next_multiple_of(8);
        let mut columns = Vec::new();
        for column in field("columns")?.as_array().into_iter().flatten() {
            let text = |key: &str| column.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
            let kind = Kind::find(text("type")).ok_or_else(|| BlockError::Kind(text("type").to_owned()))?;
            let length = rows.checked_mul(kind.width()).ok_or(BlockError::Short)?;
            let cells = at.checked_add(length).and_then(|end| bytes.get(at..end)).ok_or(BlockError::Short)?;
            columns.push(Column { name: text("name").to_owned(), kind, bytes: cells.to_vec() });
            at = (at + length).next_multiple_of(8);
        }
        // Without a column no length vouches for the rows, and row numbers have 32 bits.
        if (columns.is_empty() && rows > 0) || u32::try_from(rows).is_err() {
            return Err(BlockError::Header(format!("{rows} rows of {} columns", columns.len())));
        }
        Ok((Self { name, columns, rows }, at))
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// Why bytes are no table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// They end too early.
    #[error("it ends in the middle of a table: the file was cut short")]
    Short,
    /// The header is not one.
    #[error("the header of a table cannot be read: {0}")]
    Header(String),
    /// A column of a kind that is not known.
    #[error("a column of unknown type \"{0}\": the file is of a later version")]
    Kind(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
