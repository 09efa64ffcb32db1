//! `[env]`: NCCL's variables, as the environment of a job would have them.

use std::collections::BTreeMap;

use railnet_coll::variables::{Source, VariableError, Variables, is_network_name};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::{Scenario, ScenarioError};

/// A value as written: text, or a whole number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a whole number, as in NCCL_ALGO = \"ring\" and NCCL_IB_TC = 106")]
enum Value {
    Text(String),
    Number(i64),
}

/// Reads names and values; a name of nobody is more likely a slip than a wish.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let values: BTreeMap<String, Value> = BTreeMap::deserialize(deserializer)?;
    let text = |(name, value): (String, Value)| {
        if !is_network_name(&name) {
            return Err(D::Error::custom(format!(
                "{name} is none of NCCL's variables: they begin with NCCL_"
            )));
        }
        Ok(match value {
            Value::Text(text) => (name, text),
            Value::Number(number) => (name, number.to_string()),
        })
    };
    values.into_iter().map(text).collect()
}

impl Scenario {
    /// What `[env]` says, for [`Variables::merge`].
    pub fn variables(&self) -> Vec<(String, String)> {
        self.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    pub(super) fn check_env(&self) -> Result<(), ScenarioError> {
        let Err(error) = Variables::merge([(Source::Scenario, self.variables())]) else { return Ok(()) };
        let (key, message) = match error {
            VariableError::Value { name, value, advice, .. } => {
                (format!("env.{name}"), format!("{name} cannot be \"{value}\": {advice}"))
            }
            other => ("env".to_owned(), other.to_string()),
        };
        Err(ScenarioError::new(message).at(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FABRIC: &str = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 2 }\n";

    #[test]
    fn variables_are_text_or_numbers_and_checked() {
        let text = format!("{FABRIC}[env]\nNCCL_ALGO = \"ring\"\nNCCL_IB_TC = 106\n");
        let scenario = Scenario::parse(&text).expect("it is right");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(scenario.variables(), [pair("NCCL_ALGO", "ring"), pair("NCCL_IB_TC", "106")]);
        let message = |line: &str| {
            let error = Scenario::parse(&format!("{FABRIC}[env]\n{line}\n")).expect_err(line);
            assert!(error.span.is_some(), "{error:?}");
            error.message
        };
        assert!(
            message("NCCL_ALGO = \"rign\"").starts_with("NCCL_ALGO cannot be \"rign\": unknown algorithm")
        );
        assert!(message("NCCL_IB_TC = true").contains("a text or a whole number"));
        assert!(message("ALGO = \"ring\"").contains("ALGO is none of NCCL's variables"));
    }
}
