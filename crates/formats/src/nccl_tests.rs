//! The table of nccl-tests: what people paste into tickets, and what their scripts read.
//!
//! Layout and number formats are those of nccl-tests 2.19 (src/common.cu, src/util.cu).

use std::fmt::{self, Write as _};

use railnet_coll::{Call, Collective};
use railnet_core::Span;

/// One way of running a call: out of place, or in place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measurement {
    /// How long one call took.
    pub time: Span,
    /// Elements that were wrong; `None` where nobody looked.
    pub wrong: Option<u64>,
}

/// One row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What was called.
    pub call: Call,
    /// Among how many ranks.
    pub ranks: u32,
    /// Out of place, where that was run.
    pub out_of_place: Option<Measurement>,
    /// In place, where that was run.
    pub in_place: Option<Measurement>,
}

/// What a call moves, over the time it took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bandwidth {
    /// Bytes of the call over time, in GB/s.
    pub algorithm: f64,
    /// What the busiest link would have carried, whatever the number of ranks, in GB/s.
    pub bus: f64,
}

impl Bandwidth {
    /// What nccl-tests would call it (doc/PERFORMANCE.md).
    pub fn of(call: &Call, ranks: u32, time: Span) -> Self {
        let seconds = time.as_secs_f64();
        let bytes = call.bytes(ranks).as_u64() as f64;
        let algorithm = if seconds > 0.0 { bytes / seconds / 1e9 } else { 0.0 };
        Self { algorithm, bus: algorithm * call.collective.bus_factor(ranks) }
    }
}

impl Row {
    /// Elements as nccl-tests counts them: of the block where each rank has one, and of the longest where they differ.
    fn count(&self) -> u64 {
        match self.call.collective {
            Collective::Barrier => 0,
            _ => self.call.longest_block(),
        }
    }
}

impl Row {
    /// The row of something between all ranks, which has no root although what stands for it has.
    pub fn without_root(&self) -> String {
        const ROOT: std::ops::Range<usize> = 46..52;
        let mut text = self.to_string();
        text.replace_range(ROOT, "    -1");
        text
    }
}

/// The three lines above the rows.
pub const HEADER: &str = "\
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let collective = self.call.collective;
        let redop = if collective.reduces() { self.call.op.name() } else { "none" };
        let root = if collective.has_root() { i64::from(self.call.root.0) } else { -1 };
        let (bytes, dtype) = (self.call.bytes(self.ranks).as_u64(), self.call.dtype.nccl_name());
        write!(f, "{bytes:>12}  {:>12}  {dtype:>8}  {redop:>6}  {root:>6}", self.count())?;
        for measured in [self.out_of_place, self.in_place] {
            match measured {
                Some(Measurement { time, wrong }) => {
                    let Bandwidth { algorithm, bus } = Bandwidth::of(&self.call, self.ranks, time);
                    let time = time.as_us_f64();
                    let wrong = wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
                    write!(
                        f,
                        "  {}  {}  {}  {wrong:>6}",
                        fitted(time, 7),
                        fitted(algorithm, 6),
                        fitted(bus, 6)
                    )?;
                }
                None => write!(f, "  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A")?,
            }
        }
        Ok(())
    }
}

/// What the bus carried on average over all that was measured, in GB/s: the last line of nccl-tests.
pub fn average_bus_bandwidth(rows: &[Row]) -> f64 {
    let measured = rows.iter().flat_map(|row| {
        let both = [row.out_of_place, row.in_place].into_iter().flatten();
        both.map(|measured| Bandwidth::of(&row.call, row.ranks, measured.time).bus)
    });
    let (sum, many) = measured.fold((0.0, 0_u32), |(sum, many), bus| (sum + bus, many + 1));
    if many == 0 { 0.0 } else { sum / f64::from(many) }
}

/// The lines below the rows.
pub fn footer(rows: &[Row], collective: Collective) -> String {
    footer_of(rows, collective.test_name())
}

/// The same of a test that is no collective.
pub fn footer_of(rows: &[Row], test_name: &str) -> String {
    let measured = rows.iter().flat_map(|row| [row.out_of_place, row.in_place]).flatten();
    let wrong: u64 = measured.filter_map(|measured| measured.wrong).sum();
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    let mut text = String::new();
    let _ = writeln!(text, "# {:<20} : {wrong} {verdict}", "Out of bounds values");
    let _ = writeln!(text, "# {:<20} : {} ", "Avg bus bandwidth", six_digits(average_bus_bandwidth(rows)));
    let _ = writeln!(text, "#\n# Collective test concluded: {test_name}_perf");
    text
}

/// A number with six significant digits and no zeros at the end, as C's `%g` writes those of everyday size.
fn six_digits(value: f64) -> String {
    let whole = format!("{:.0}", value.abs().trunc()).len();
    let text = format!("{value:.*}", 6_usize.saturating_sub(whole));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number with as many decimals as fit into `width`, two at most.
fn fitted(value: f64, width: usize) -> String {
    let mut digits = 0;
    let mut power = 1.0;
    while value >= power {
        digits += 1;
        power *= 10.0;
    }
    let decimals = (width - 1).saturating_sub(digits).min(2);
    if digits > width {
        return format!("{value:>width$.0e}");
    }
    format!("{value:>width$.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_core::DataType;

    fn row(bytes: u64, time: Span) -> Row {
        let call = Call { dtype: DataType::F32, ..Call::new(Collective::AllReduce, bytes / 4) };
        let measured = Measurement { time, wrong: Some(0) };
        Row { call, ranks: 8, out_of_place: Some(measured), in_place: None }
    }

    #[test]
    fn a_row_has_the_columns_of_nccl_tests() {
        let line = row(1 << 30, Span::from_us(5_000)).to_string();
        assert_eq!(
            line,
            "  1073741824     268435456     float     sum      -1  5000.00  214.75  375.81       0      N/A     N/A     N/A     N/A"
        );
        let columns = HEADER.lines().nth(1).unwrap_or_default();
        assert_eq!(columns.len(), line.len() + 1, "a row is as wide as its header");
    }

    #[test]
    fn a_row_without_a_root_says_so_in_its_column() {
        let call = Call { root: railnet_core::Rank(3), ..Call::new(Collective::SendReceive, 8) };
        let row = Row { call, ranks: 8, out_of_place: None, in_place: None };
        assert!(
            row.to_string().starts_with("          32             8     float    none       3 "),
            "{row}"
        );
        assert!(row.without_root().starts_with("          32             8     float    none      -1 "));
        assert!(footer_of(&[row], "put").ends_with("# Collective test concluded: put_perf\n"));
    }

    #[test]
    fn numbers_give_up_decimals_before_their_width() {
        let texts = [0.314, 9_999.0, 12_345.6, 1_234_567.0, 12_345_678.0].map(|value| fitted(value, 7));
        assert_eq!(texts, ["   0.31", "9999.00", "12345.6", "1234567", "    1e7"]);
    }

    #[test]
    fn the_average_is_over_all_that_was_measured() {
        let rows = [row(1 << 20, Span::from_us(100)), row(1 << 20, Span::from_us(50))];
        let each = Bandwidth::of(&rows[0].call, 8, Span::from_us(100)).bus;
        assert!((average_bus_bandwidth(&rows) - each * 1.5).abs() < 1e-9);
        assert!(footer(&rows, Collective::AllReduce).starts_with("# Out of bounds values : 0 OK\n"));
    }
}
