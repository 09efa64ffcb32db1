//! Quantities as people write them: `400Gbps`, `64KiB`, `1.5 us`, `0.2`.
//!
//! Units are written, never guessed: a bare number is an error. Decimals are exact: text is read as integers, and what
//! is finer than the smallest unit (a byte, a bit per second, a picosecond) is an error rather than a rounding.
//! Letters matter where they change the meaning (`b` is a bit, `B` a byte); every error says what to write instead.
//!
//! ```
//! use railnet_core::{Bytes, Rate, Ratio, Span};
//!
//! assert_eq!("400Gbps".parse(), Ok(Rate::gbps(400)));
//! assert_eq!("1.5 MiB".parse(), Ok(Bytes::kib(1536)));
//! assert_eq!("2.5us".parse(), Ok(Span::from_ns(2_500)));
//! assert_eq!("1/256".parse(), Ok(Ratio::new(1, 256)));
//!
//! let error = "64kib".parse::<Bytes>().unwrap_err();
//! assert_eq!(error.to_string(), r#"unknown unit "kib" in "64kib": did you mean "KiB"?"#);
//! ```

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::time::Span;
use crate::units::{Bytes, Rate, Ratio};

/// What a text was read as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Quantity {
    /// A [`Span`].
    Span,
    /// An amount of [`Bytes`].
    Bytes,
    /// A [`Rate`].
    Rate,
    /// A [`Ratio`].
    Ratio,
}

/// Why a text is not the quantity it should be, and what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Nothing was written.
    #[error("{quantity} is missing: write it like {}", .quantity.example())]
    Empty {
        /// What was expected.
        quantity: Quantity,
    },
    /// It does not begin with a plain decimal number.
    #[error("cannot read \"{input}\" as {quantity}: write it like {}", .quantity.example())]
    NotANumber {
        /// What was written.
        input: String,
        /// What was expected.
        quantity: Quantity,
    },
    /// It begins with a minus sign.
    #[error("\"{input}\" is negative: {quantity} is zero or more, like {}", .quantity.example())]
    Negative {
        /// What was written.
        input: String,
        /// What was expected.
        quantity: Quantity,
    },
    /// A bare number.
    #[error("\"{input}\" has no unit: {quantity} is in {}, like {}", .quantity.units(), .quantity.example())]
    NoUnit {
        /// What was written.
        input: String,
        /// What was expected.
        quantity: Quantity,
    },
    /// The unit could be bits or bytes.
    #[error(
        "\"{unit}\" in \"{input}\" could be bits or bytes: write \"{bytes}\" for bytes, \"{rate}\" for a rate in bits"
    )]
    AmbiguousUnit {
        /// What was written.
        input: String,
        /// The unit in it.
        unit: String,
        /// The unit of data that may have been meant.
        bytes: String,
        /// The unit of rate that may have been meant.
        rate: String,
    },
    /// A unit that this quantity does not have.
    #[error("unknown unit \"{unit}\" in \"{input}\": {advice}")]
    UnknownUnit {
        /// What was written.
        input: String,
        /// The unit in it.
        unit: String,
        /// What to write instead.
        advice: String,
    },
    /// Finer than the smallest unit.
    #[error("\"{input}\" is too fine: {quantity} is {}", .quantity.grain())]
    TooFine {
        /// What was written.
        input: String,
        /// What was expected.
        quantity: Quantity,
    },
    /// More than 64 bits hold.
    #[error("\"{input}\" is too large: {quantity} is at most {}", .quantity.most())]
    TooLarge {
        /// What was written.
        input: String,
        /// What was expected.
        quantity: Quantity,
    },
    /// A fraction over zero.
    #[error("\"{input}\" divides by zero: write a ratio like {}", Quantity::Ratio.example())]
    ZeroDenominator {
        /// What was written.
        input: String,
    },
    /// A name that is not in the list.
    #[error("unknown {what} \"{input}\": {advice}")]
    UnknownName {
        /// What was expected.
        what: &'static str,
        /// What was written.
        input: String,
        /// What to write instead.
        advice: String,
    },
}

/// A unit: how it may be spelled, the usual spelling first, and how many of the smallest unit it is.
type Unit = (&'static [&'static str], u64);

const SPANS: &[Unit] = &[
    (&["ps"], 1),
    (&["ns"], 1_000),
    // The micro sign and the Greek letter look the same and are both typed.
    (&["us", "\u{b5}s", "\u{3bc}s"], 1_000_000),
    (&["ms"], 1_000_000_000),
    (&["s"], 1_000_000_000_000),
];

const AMOUNTS: &[Unit] = &[
    (&["B"], 1),
    (&["KiB"], 1 << 10),
    (&["MiB"], 1 << 20),
    (&["GiB"], 1 << 30),
    (&["TiB"], 1 << 40),
    (&["PiB"], 1 << 50),
    (&["KB", "kB"], 1_000),
    (&["MB"], 1_000_000),
    (&["GB"], 1_000_000_000),
    (&["TB"], 1_000_000_000_000),
    (&["PB"], 1_000_000_000_000_000),
];

const RATES: &[Unit] = &[
    (&["bps", "bit/s"], 1),
    (&["Kbps", "kbps", "Kbit/s", "kbit/s"], 1_000),
    (&["Mbps", "mbps", "Mbit/s"], 1_000_000),
    (&["Gbps", "gbps", "Gbit/s"], 1_000_000_000),
    (&["Tbps", "tbps", "Tbit/s"], 1_000_000_000_000),
    (&["B/s"], 8),
    (&["KB/s", "kB/s"], 8_000),
    (&["MB/s"], 8_000_000),
    (&["GB/s"], 8_000_000_000),
    (&["TB/s"], 8_000_000_000_000),
];

impl Quantity {
    const fn table(self) -> &'static [Unit] {
        match self {
            Self::Span => SPANS,
            Self::Bytes => AMOUNTS,
            Self::Rate => RATES,
            Self::Ratio => &[],
        }
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Span => "\"2us\"",
            Self::Bytes => "\"64KiB\"",
            Self::Rate => "\"400Gbps\"",
            Self::Ratio => "\"0.2\" or \"1/256\"",
        }
    }

    const fn grain(self) -> &'static str {
        match self {
            Self::Span => "a whole number of picoseconds",
            Self::Bytes => "a whole number of bytes",
            Self::Rate => "a whole number of bits per second",
            Self::Ratio => "a decimal of at most 18 digits, or a fraction like \"1/256\"",
        }
    }

    const fn most(self) -> &'static str {
        match self {
            Self::Span => "213 days",
            Self::Bytes => "16383 PiB",
            Self::Rate => "18446744 Tbps",
            Self::Ratio => "a fraction of two 64-bit numbers",
        }
    }

    /// The units, in words.
    fn units(self) -> String {
        let names: Vec<&str> = self.table().iter().map(|(spellings, _)| spellings[0]).collect();
        listed(&names)
    }
}

/// With its article, for error messages.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Span => "a span of time",
            Self::Bytes => "an amount of data",
            Self::Rate => "a rate",
            Self::Ratio => "a ratio",
        })
    }
}

impl FromStr for Span {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        with_unit(text, Quantity::Span).map(Self::from_ps)
    }
}

impl FromStr for Bytes {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        with_unit(text, Quantity::Bytes).map(Self)
    }
}

impl FromStr for Rate {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        with_unit(text, Quantity::Rate).map(Self::from_bps)
    }
}

/// A decimal like `0.2` or a fraction like `1/256`.
impl FromStr for Ratio {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let quantity = Quantity::Ratio;
        let input = present(text, quantity)?;
        if let Some((above, below)) = input.split_once('/') {
            let numerator = Decimal::read(above.trim(), input, quantity)?.times(1, input, quantity)?;
            let denominator = Decimal::read(below.trim(), input, quantity)?.times(1, input, quantity)?;
            if denominator == 0 {
                return Err(ParseError::ZeroDenominator { input: input.to_owned() });
            }
            return Ok(Self::new(numerator, denominator));
        }
        let number = Decimal::read(input, input, quantity)?;
        let (mut numerator, mut denominator) = (number.value, 10_u128.pow(number.digits));
        // In its lowest terms it may fit where its digits do not.
        for factor in [2, 5] {
            while numerator.is_multiple_of(factor) && denominator.is_multiple_of(factor) {
                (numerator, denominator) = (numerator / factor, denominator / factor);
            }
        }
        match (u64::try_from(numerator), u64::try_from(denominator)) {
            (Ok(numerator), Ok(denominator)) => Ok(Self::new(numerator, denominator)),
            _ => Err(ParseError::TooLarge { input: input.to_owned(), quantity }),
        }
    }
}

/// The text without the space around it; an error if nothing or a negative number is left.
fn present(text: &str, quantity: Quantity) -> Result<&str, ParseError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(ParseError::Empty { quantity });
    }
    if text.starts_with(['-', '\u{2212}']) {
        return Err(ParseError::Negative { input: text.to_owned(), quantity });
    }
    Ok(text)
}

/// A number and its unit, in the smallest unit of the quantity.
fn with_unit(text: &str, quantity: Quantity) -> Result<u64, ParseError> {
    let input = present(text, quantity)?;
    let end = input.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(input.len());
    let number = Decimal::read(&input[..end], input, quantity)?;
    let unit = input[end..].trim_start();
    if unit.is_empty() {
        return Err(ParseError::NoUnit { input: input.to_owned(), quantity });
    }
    match quantity.table().iter().find(|(spellings, _)| spellings.contains(&unit)) {
        Some(&(_, size)) => number.times(size, input, quantity),
        None => Err(unknown_unit(input, unit, quantity)),
    }
}

fn unknown_unit(input: &str, unit: &str, quantity: Quantity) -> ParseError {
    // "1,5ms" and "1e9B" are numbers gone wrong, not units.
    if unit.contains(|letter: char| letter.is_ascii_digit() || letter == ',' || letter == '_') {
        return ParseError::NotANumber { input: input.to_owned(), quantity };
    }
    let (input, unit) = (input.to_owned(), unit.to_owned());
    if let Some(prefix) = bits_or_bytes(&unit)
        && matches!(quantity, Quantity::Bytes | Quantity::Rate)
    {
        return ParseError::AmbiguousUnit {
            bytes: format!("{prefix}B"),
            rate: format!("{prefix}bps"),
            input,
            unit,
        };
    }
    let spellings = quantity.table().iter().flat_map(|(spellings, _)| spellings.iter());
    let advice = match spellings.copied().find(|spelling| spelling.eq_ignore_ascii_case(&unit)) {
        // "GBps": the capital may be the mistake, or the missing slash.
        Some(spelling) if spelling.ends_with("bps") && unit.contains('B') => {
            let bytes = format!("{}B/s", spelling.trim_end_matches("bps"));
            format!("did you mean \"{spelling}\" (bits) or \"{bytes}\" (bytes)?")
        }
        Some(spelling) => format!("did you mean \"{spelling}\"?"),
        None => format!("{quantity} is in {}", quantity.units()),
    };
    ParseError::UnknownUnit { input, unit, advice }
}

/// The prefix, as a capital, of a unit like `Gb` or `gb` that people write for bits and for bytes.
fn bits_or_bytes(unit: &str) -> Option<&'static str> {
    const PREFIXES: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let prefix = unit.strip_suffix('b')?;
    PREFIXES.into_iter().find(|known| known.eq_ignore_ascii_case(prefix))
}

/// A decimal number without its point: `1.25` is 125 with 2 digits.
struct Decimal {
    value: u128,
    digits: u32,
}

impl Decimal {
    /// More digits after the point than any value of any unit needs.
    const DIGITS_MAX: usize = 18;

    fn read(number: &str, input: &str, quantity: Quantity) -> Result<Self, ParseError> {
        let not_a_number = || ParseError::NotANumber { input: input.to_owned(), quantity };
        let (whole, fraction) = match number.split_once('.') {
            Some((_, "")) => return Err(not_a_number()),
            Some((whole, fraction)) => (whole, fraction.trim_end_matches('0')),
            None => (number, ""),
        };
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) {
            return Err(not_a_number());
        }
        if fraction.len() > Self::DIGITS_MAX {
            return Err(ParseError::TooFine { input: input.to_owned(), quantity });
        }
        // Only digits are left, so the only thing that can be wrong is their number.
        let too_large = |_| ParseError::TooLarge { input: input.to_owned(), quantity };
        let whole: u64 = whole.parse().map_err(too_large)?;
        let digits = fraction.len() as u32;
        let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(too_large)? };
        Ok(Self { value: u128::from(whole) * 10_u128.pow(digits) + u128::from(fraction), digits })
    }

    /// The number in units of which this one holds `size`. Whole or an error.
    fn times(&self, size: u64, input: &str, quantity: Quantity) -> Result<u64, ParseError> {
        let too_large = || ParseError::TooLarge { input: input.to_owned(), quantity };
        let scale = 10_u128.pow(self.digits);
        let product = self.value.checked_mul(u128::from(size)).ok_or_else(too_large)?;
        if !product.is_multiple_of(scale) {
            return Err(ParseError::TooFine { input: input.to_owned(), quantity });
        }
        u64::try_from(product / scale).map_err(|_| too_large())
    }
}

/// The error for a name that is not `known`: the nearest one if only case or punctuation differs, else those to choose
/// from.
pub fn unknown_name(what: &'static str, input: &str, known: &[&str], choice: &[&str]) -> ParseError {
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let advice = match known.iter().find(|name| plain(name) == plain(input)) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("write {}", listed(choice)),
    };
    ParseError::UnknownName { what, input: input.to_owned(), advice }
}

/// `a, b or c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message<T: FromStr<Err = ParseError> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().expect_err(text).to_string()
    }

    #[test]
    fn spans_are_read_exactly() {
        let cases = [
            ("800ps", 800),
            ("10ns", 10_000),
            ("2us", 2_000_000),
            ("2\u{b5}s", 2_000_000),
            ("2 \u{3bc}s", 2_000_000),
            ("67ms", 67_000_000_000),
            ("1.5s", 1_500_000_000_000),
            ("0s", 0),
            (" 1.250 ns ", 1_250),
            ("0.000000000001s", 1),
            ("18446744073709551615ps", u64::MAX),
        ];
        for (text, ps) in cases {
            assert_eq!(text.parse(), Ok(Span::from_ps(ps)), "{text}");
        }
    }

    #[test]
    fn amounts_are_read_exactly() {
        let cases = [
            ("64KiB", 65_536),
            ("1.5MiB", 1_572_864),
            ("8MB", 8_000_000),
            ("400KB", 400_000),
            ("400 kB", 400_000),
            ("1B", 1),
            ("0.5KiB", 512),
            ("1GiB", 1 << 30),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn rates_are_read_exactly() {
        let cases = [
            ("400Gbps", 400_000_000_000),
            ("100 Gbps", 100_000_000_000),
            ("25Mbps", 25_000_000),
            ("100gbps", 100_000_000_000),
            ("400 Gbit/s", 400_000_000_000),
            ("50GB/s", 400_000_000_000),
            ("2.5Gbps", 2_500_000_000),
            ("1.6Tbps", 1_600_000_000_000),
        ];
        for (text, bps) in cases {
            assert_eq!(text.parse(), Ok(Rate::from_bps(bps)), "{text}");
        }
    }

    #[test]
    fn ratios_are_read_exactly() {
        let cases = [
            ("0.2", (1, 5)),
            ("1/256", (1, 256)),
            ("1", (1, 1)),
            ("0", (0, 1)),
            ("3 / 2", (3, 2)),
            ("1.50", (3, 2)),
        ];
        for (text, (above, below)) in cases {
            assert_eq!(text.parse(), Ok(Ratio::new(above, below)), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_asked_for_its_unit() {
        assert_eq!(
            message::<Rate>("400"),
            "\"400\" has no unit: a rate is in bps, Kbps, Mbps, Gbps, Tbps, B/s, KB/s, MB/s, GB/s or TB/s, \
             like \"400Gbps\""
        );
        assert!(matches!("0".parse::<Span>(), Err(ParseError::NoUnit { .. })));
        assert!(matches!("1.5".parse::<Bytes>(), Err(ParseError::NoUnit { .. })));
    }

    #[test]
    fn case_mistakes_are_named() {
        assert_eq!(message::<Bytes>("64kib"), r#"unknown unit "kib" in "64kib": did you mean "KiB"?"#);
        assert_eq!(message::<Bytes>("64KIB"), r#"unknown unit "KIB" in "64KIB": did you mean "KiB"?"#);
        assert_eq!(message::<Span>("5MS"), r#"unknown unit "MS" in "5MS": did you mean "ms"?"#);
        assert_eq!(
            message::<Rate>("1GBPS"),
            r#"unknown unit "GBPS" in "1GBPS": did you mean "Gbps" (bits) or "GB/s" (bytes)?"#
        );
        assert_eq!(
            message::<Rate>("1GBIT/S"),
            r#"unknown unit "GBIT/S" in "1GBIT/S": did you mean "Gbit/s"?"#
        );
    }

    #[test]
    fn bits_and_bytes_are_never_guessed() {
        let expected =
            r#""Gb" in "400Gb" could be bits or bytes: write "GB" for bytes, "Gbps" for a rate in bits"#;
        assert_eq!(message::<Rate>("400Gb"), expected);
        assert_eq!(message::<Bytes>("400Gb"), expected);
        assert!(matches!("8mb".parse::<Bytes>(), Err(ParseError::AmbiguousUnit { .. })));
        assert!(matches!("8b".parse::<Bytes>(), Err(ParseError::AmbiguousUnit { .. })));
    }

    #[test]
    fn units_of_another_quantity_are_refused() {
        assert_eq!(
            message::<Span>("5KiB"),
            r#"unknown unit "KiB" in "5KiB": a span of time is in ps, ns, us, ms or s"#
        );
        assert!(matches!("5us".parse::<Bytes>(), Err(ParseError::UnknownUnit { .. })));
        assert!(matches!("5GB".parse::<Rate>(), Err(ParseError::UnknownUnit { .. })));
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        assert_eq!(
            message::<Bytes>("0.3B"),
            r#""0.3B" is too fine: an amount of data is a whole number of bytes"#
        );
        assert_eq!(
            message::<Span>("0.5ps"),
            r#""0.5ps" is too fine: a span of time is a whole number of picoseconds"#
        );
        assert!(matches!("0.3B/s".parse::<Rate>(), Err(ParseError::TooFine { .. })));
        assert!(matches!("0.1234567890123456789s".parse::<Span>(), Err(ParseError::TooFine { .. })));
        assert!(matches!("0.1234567890123456789".parse::<Ratio>(), Err(ParseError::TooFine { .. })));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(
            message::<Span>("1000000000s"),
            r#""1000000000s" is too large: a span of time is at most 213 days"#
        );
        for text in ["18446744073709551616B", "99999999999999999999999999999999999999999999B", "16384PiB"] {
            assert!(matches!(text.parse::<Bytes>(), Err(ParseError::TooLarge { .. })), "{text}");
        }
        assert!(matches!("19000000000.123456789".parse::<Ratio>(), Err(ParseError::TooLarge { .. })));
        assert_eq!("20699773995622900.875".parse(), Ok(Ratio::new(165_598_191_964_983_207, 8)));
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        assert_eq!(
            message::<Bytes>("many"),
            "cannot read \"many\" as an amount of data: write it like \"64KiB\""
        );
        for text in
            ["1,5ms", "1.5.2ms", ".5ms", "1.ms", "+1ms", "1e3ms", "1_000ms", "ms", "\u{b5}s", "0x10ms"]
        {
            assert!(matches!(text.parse::<Span>(), Err(ParseError::NotANumber { .. })), "{text}");
        }
        for text in ["/", "1/", "/2", "1/2/3", "20%", "half"] {
            assert!(matches!(text.parse::<Ratio>(), Err(ParseError::NotANumber { .. })), "{text}");
        }
        assert_eq!(message::<Span>(" "), "a span of time is missing: write it like \"2us\"");
        assert_eq!(
            message::<Span>("-2us"),
            "\"-2us\" is negative: a span of time is zero or more, like \"2us\""
        );
        assert!(matches!("1/0".parse::<Ratio>(), Err(ParseError::ZeroDenominator { .. })));
    }

    #[test]
    fn the_limits_in_the_messages_are_the_limits() {
        assert!("213days".parse::<Span>().is_err());
        assert!(Span::from_secs(213 * 24 * 3600) < Span::MAX);
        assert_eq!(Span::from_secs(214 * 24 * 3600), Span::MAX);
        assert!("16383PiB".parse::<Bytes>().is_ok());
        assert!("18446744Tbps".parse::<Rate>().is_ok() && "18446745Tbps".parse::<Rate>().is_err());
    }

    /// Numbers of every size, round ones more often than chance would have them.
    fn any_size() -> impl Strategy<Value = u64> {
        let shifted = (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift);
        let round = (0u64..5_000, 0u32..13).prop_map(|(value, zeros)| value * 10_u64.pow(zeros));
        let binary = (0u64..5_000, 0u32..50).prop_map(|(value, shift)| value << shift);
        prop_oneof![shifted, round, binary]
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(value in any_size(), below in any_size()) {
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(Rate::from_bps(value).to_string().parse(), Ok(Rate::from_bps(value)));
            prop_assert_eq!(format!("{:#}", Span::from_ps(value)).parse(), Ok(Span::from_ps(value)));
            let ratio = Ratio::new(value, below.max(1));
            prop_assert_eq!(ratio.to_string().parse(), Ok(ratio));
        }

        #[test]
        fn no_text_panics(text in "[-0-9./ KMGikmgbBps\u{b5}e]{0,12}|\\PC{0,8}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Span>();
            let _ = text.parse::<Ratio>();
        }
    }
}
