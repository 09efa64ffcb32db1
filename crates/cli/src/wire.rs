//! `--wire`: how simulated packets travel.

use clap::ValueEnum;
use railnet_nic::frame::WireForm;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    /// As header values and payload
    Values,
    /// As bytes: every packet is emitted, and parsed again
    Bytes,
}

impl Wire {
    pub(crate) fn form(self) -> WireForm {
        match self {
            Self::Values => WireForm::Values,
            Self::Bytes => WireForm::Bytes,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Bytes => "bytes",
        }
    }
}
