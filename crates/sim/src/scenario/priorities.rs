//! Priorities: the eight classes that packets travel in.

use serde::Deserialize;

use super::ScenarioError;

/// How many there are.
pub(crate) const PRIORITIES: u8 = 8;

/// A list of priorities, such as `[3]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(transparent)]
pub struct PriorityList(Vec<u8>);

impl PriorityList {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        match self.0.iter().find(|priority| **priority >= PRIORITIES) {
            None => Ok(()),
            Some(priority) => {
                Err(ScenarioError::new(format!("there is no priority {priority}: they are 0 to 7")))
            }
        }
    }

    /// One bit for each.
    pub(crate) fn mask(&self) -> u8 {
        self.0.iter().fold(0, |mask, priority| mask | 1 << (priority & 7))
    }
}
