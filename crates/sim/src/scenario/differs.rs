//! `[[collective.differs]]`: a rank that makes another call than the others, or none.

use railnet_coll::Collective;
use railnet_core::{Bytes, DataType};
use serde::Deserialize;

use super::ScenarioError;
use super::collective::{CollectiveSection, OpName, Sizes};
use crate::written::Written;

/// What one rank does instead.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffersSection {
    /// Who, by its place in the group.
    pub rank: u32,
    /// It makes no call at all.
    #[serde(default)]
    pub absent: bool,
    /// It calls something else.
    #[serde(default)]
    pub call: Option<Written<Collective>>,
    /// It has buffers of another size.
    #[serde(default)]
    pub size: Option<Written<Bytes>>,
    /// It has elements of another type.
    #[serde(default, rename = "type")]
    pub dtype: Option<Written<DataType>>,
    /// It puts contributions together otherwise.
    #[serde(default)]
    pub op: Option<OpName>,
    /// It takes another rank for the special one.
    #[serde(default)]
    pub root: Option<u32>,
}

impl DiffersSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let Self { call, size, dtype, op, root, absent, .. } = self;
        let calls = call.is_some() || size.is_some() || dtype.is_some() || op.is_some() || root.is_some();
        if *absent == calls {
            let message = "say in what its call differs (call, size, type, op, root), or that it is absent";
            return Err(ScenarioError::new(message).at(if *absent { "absent" } else { "rank" }));
        }
        Ok(())
    }

    /// The section as this rank has it.
    pub(crate) fn of(&self, section: &CollectiveSection) -> CollectiveSection {
        let mut own = section.clone();
        own.kind = self.call.unwrap_or(own.kind);
        if let Some(size) = self.size {
            (own.size, own.counts) = (Sizes(vec![size.0]), None);
        }
        own.dtype = self.dtype.unwrap_or(own.dtype);
        own.op = self.op.unwrap_or(own.op);
        own.root = self.root.unwrap_or(own.root);
        own
    }
}
