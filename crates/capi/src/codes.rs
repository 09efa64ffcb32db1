//! Result codes and enumerations, under their names in `railnet.h`: NCCL's numbers where NCCL has the thing.

use std::ffi::{CStr, c_int};

use railnet_coll::machine::Failure as Broken;
use railnet_core::{DataType, ReduceOp};
use railnet_live::ReachError;
use railnet_live::communicator::Error;
use railnet_live::message::{Trouble, TroubleKind};
use railnet_live::rendezvous::MeetError;

/// What a function of the library returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum Code {
    /// It is done.
    Success = 0,
    /// The kernel refuses something.
    SystemError = 2,
    /// A bug of Railnet's.
    InternalError = 3,
    /// One value is wrong.
    InvalidArgument = 4,
    /// The values are right, and the call is not.
    InvalidUsage = 5,
    /// Another rank died, left, or cannot be reached.
    RemoteError = 6,
    /// It goes on.
    InProgress = 7,
    /// A rank did not come in time.
    Timeout = 8,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Success,
        Self::SystemError,
        Self::InternalError,
        Self::InvalidArgument,
        Self::InvalidUsage,
        Self::RemoteError,
        Self::InProgress,
        Self::Timeout,
    ];

    /// Its name in C.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "railnetSuccess",
            Self::SystemError => "railnetSystemError",
            Self::InternalError => "railnetInternalError",
            Self::InvalidArgument => "railnetInvalidArgument",
            Self::InvalidUsage => "railnetInvalidUsage",
            Self::RemoteError => "railnetRemoteError",
            Self::InProgress => "railnetInProgress",
            Self::Timeout => "railnetTimeout",
        }
    }

    /// What it means, in words.
    pub(crate) fn text(number: c_int) -> &'static CStr {
        match Self::ALL.into_iter().find(|code| *code as c_int == number) {
            Some(Self::Success) => c"no error",
            Some(Self::SystemError) => c"the kernel refused something",
            Some(Self::InternalError) => c"internal error: a bug of Railnet's",
            Some(Self::InvalidArgument) => c"invalid argument",
            Some(Self::InvalidUsage) => c"invalid usage",
            Some(Self::RemoteError) => c"another rank died, left or cannot be reached",
            Some(Self::InProgress) => c"the operation is in progress",
            Some(Self::Timeout) => c"a rank did not come in time",
            None => c"unknown result code",
        }
    }
}

/// One more than the largest code.
pub const RESULTS: c_int = Code::Timeout as c_int + 1;

/// The data types: each is at its number.
pub const DATA_TYPES: [(&str, DataType); 14] = [
    ("railnetInt8", DataType::I8),
    ("railnetUint8", DataType::U8),
    ("railnetInt32", DataType::I32),
    ("railnetUint32", DataType::U32),
    ("railnetInt64", DataType::I64),
    ("railnetUint64", DataType::U64),
    ("railnetFloat16", DataType::F16),
    ("railnetFloat32", DataType::F32),
    ("railnetFloat64", DataType::F64),
    ("railnetBfloat16", DataType::Bf16),
    ("railnetFloat8e4m3", DataType::F8E4M3),
    ("railnetFloat8e5m2", DataType::F8E5M2),
    ("railnetInt16", DataType::I16),
    ("railnetUint16", DataType::U16),
];

/// The reductions: each is at its number. Those that a program makes have the numbers after them.
pub const REDUCTIONS: [(&str, ReduceOp); 8] = [
    ("railnetSum", ReduceOp::Sum),
    ("railnetProd", ReduceOp::Product),
    ("railnetMax", ReduceOp::Max),
    ("railnetMin", ReduceOp::Min),
    ("railnetAvg", ReduceOp::Average),
    ("railnetBand", ReduceOp::BitAnd),
    ("railnetBor", ReduceOp::BitOr),
    ("railnetBxor", ReduceOp::BitXor),
];

/// The version as one number: 10,000 for the major one, 100 for the minor one.
pub const VERSION: c_int = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(text: &str) -> c_int {
    let (bytes, mut index, mut sum) = (text.as_bytes(), 0, 0);
    while index < bytes.len() {
        sum = 10 * sum + (bytes[index] - b'0') as c_int;
        index += 1;
    }
    sum
}

/// The code of an error of the engine's.
pub(crate) fn code(error: &Error) -> Code {
    match error {
        Error::Failed { failure, .. } => broken(failure),
        Error::Meet(error) => meeting(error),
        Error::Reach(ReachError::Io(_)) => Code::SystemError,
        Error::Call(_) | Error::Length { .. } | Error::Window(_) | Error::Scalar { .. } => {
            Code::InvalidArgument
        }
        Error::Launch(_)
        | Error::Config(_)
        | Error::NoChoice(_)
        | Error::LeftOut { .. }
        | Error::ToItself { .. }
        | Error::Repeated { .. } => Code::InvalidUsage,
        Error::NoSender { .. } | Error::NoAgreement { .. } => Code::Timeout,
        Error::Reach(_) | Error::OneSided { .. } | Error::NoQuorum { .. } | Error::Excluded { .. } => {
            Code::RemoteError
        }
        _ => Code::InternalError,
    }
}

fn broken(failure: &Broken) -> Code {
    match failure {
        Broken::Mismatch(_) => Code::InvalidUsage,
        Broken::Missing(_) | Broken::Stuck(_) => Code::Timeout,
        _ => Code::RemoteError,
    }
}

fn meeting(error: &MeetError) -> Code {
    match error {
        MeetError::Trouble(Trouble { kind, .. }) => match kind {
            TroubleKind::Missing => Code::Timeout,
            TroubleKind::Gone | TroubleKind::Local => Code::RemoteError,
            _ => Code::InvalidUsage,
        },
        MeetError::Nowhere { .. } | MeetError::BlobTooLong(_) => Code::InvalidUsage,
        MeetError::Unreachable { .. } => Code::Timeout,
        MeetError::HubGone { .. } => Code::RemoteError,
        _ => Code::SystemError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_reduction_of_the_engine_has_one_number() {
        for dtype in DataType::ALL {
            assert_eq!(DATA_TYPES.iter().filter(|(_, one)| *one == dtype).count(), 1, "{dtype}");
        }
        for op in ReduceOp::PLAIN {
            assert_eq!(REDUCTIONS.iter().filter(|(_, one)| *one == op).count(), 1, "{op}");
        }
    }

    #[test]
    fn every_code_has_words_of_its_own() {
        let texts: std::collections::BTreeSet<_> = (-1..=RESULTS).map(Code::text).collect();
        assert_eq!(texts.len(), Code::ALL.len() + 1);
    }
}
