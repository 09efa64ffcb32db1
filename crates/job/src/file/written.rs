//! Values that a person writes with their unit.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Visitor};

/// A value in its written form: "400Gbps", "64KiB", "2us".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written<T>(pub T);

impl<'de, T> Deserialize<'de> for Written<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(PhantomData)).map(Self)
    }
}

struct FromText<T>(PhantomData<T>);

impl<T> Visitor<'_> for FromText<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text with its unit, such as \"100Gbps\", \"64KiB\" or \"2us\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
