//! Quantities in scenarios: text with a unit, such as "400Gbps", in both directions.

use std::fmt;
use std::str::FromStr;

use railnet_core::{Bytes, Rate, Span};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A quantity with its exact text.
pub(super) trait Quantity: Copy + FromStr {
    fn text(self) -> String;
}

impl Quantity for Bytes {
    fn text(self) -> String {
        self.to_string()
    }
}

impl Quantity for Rate {
    fn text(self) -> String {
        self.to_string()
    }
}

impl Quantity for Span {
    fn text(self) -> String {
        // The plain form is rounded.
        format!("{self:#}")
    }
}

fn written(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_whitespace()).collect()
}

/// For `#[serde(with = …)]`: a quantity that has to be there.
pub(super) mod must {
    use super::{Deserialize, Deserializer, Quantity, Serialize, Serializer, fmt, written};
    use serde::de::Error as _;

    pub(in super::super) fn serialize<Q: Quantity, S: Serializer>(
        value: &Q,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        written(&value.text()).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, Q, D>(from: D) -> Result<Q, D::Error>
    where
        Q: Quantity<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// For `#[serde(with = …)]`: a quantity that may be left to its default.
#[allow(clippy::ref_option, reason = "serde calls it with a reference to the field")]
pub(super) fn serialize<Q: Quantity, S: Serializer>(value: &Option<Q>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|value| written(&value.text())).serialize(to)
}

pub(super) fn deserialize<'de, Q, D>(from: D) -> Result<Option<Q>, D::Error>
where
    Q: Quantity<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}
