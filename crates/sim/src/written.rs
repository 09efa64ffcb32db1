//! Values that a person writes with their unit.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};

/// A value in its written form: "400Gbps", "64KiB", "2us". It is read as in the sections of a job; this crate's own type,
/// because it turns into the parameters of congestion controls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written<T>(pub T);

impl<'de, T> Deserialize<'de> for Written<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        railnet_job::file::Written::deserialize(deserializer).map(|read| Self(read.0))
    }
}
