//! Enumerations in words, rates as numbers, files of devices.

use std::ffi::CStr;

use libc::{c_char, c_int};

use crate::errors::set;
use crate::object;

fn word(words: &'static [&'static CStr], index: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(index).ok().and_then(|index| words.get(index)).copied().unwrap_or(unknown).as_ptr()
}

pub(crate) extern "C" fn node_type(kind: c_int) -> *const c_char {
    word(
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ],
        kind,
        c"unknown",
    )
}

pub(crate) extern "C" fn port_state(state: c_int) -> *const c_char {
    word(
        &[
            c"no state change (NOP)",
            c"PORT_DOWN (1)",
            c"PORT_INIT (2)",
            c"PORT_ARMED (3)",
            c"PORT_ACTIVE (4)",
            c"PORT_ACTIVE_DEFER (5)",
        ],
        state,
        c"invalid state",
    )
}

pub(crate) extern "C" fn event_type(event: c_int) -> *const c_char {
    word(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
        ],
        event,
        c"unknown",
    )
}

pub(crate) extern "C" fn completion_status(status: c_int) -> *const c_char {
    word(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"TM error",
            c"TM software rendezvous",
        ],
        status,
        c"unknown",
    )
}

/// (code, multiple of 2.5 Gb/s, Mb/s) of every static rate.
const RATES: [(c_int, c_int, c_int); 21] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
];

pub(crate) extern "C" fn rate_to_multiple(rate: c_int) -> c_int {
    RATES.into_iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, multiple, _)| multiple)
}

pub(crate) extern "C" fn multiple_to_rate(multiple: c_int) -> c_int {
    RATES.into_iter().find(|(_, one, _)| *one == multiple && multiple > 0).map_or(0, |(code, ..)| code)
}

pub(crate) extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    RATES.into_iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, _, mbps)| mbps)
}

pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    RATES.into_iter().find(|(.., one)| *one == mbps).map_or(0, |(code, ..)| code)
}

pub(crate) extern "C" fn sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `directory/file`, without the newline at its end.
pub(crate) extern "C" fn read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    room: usize,
) -> c_int {
    crate::errors::guard(-1, || {
        let path = format!("{}/{}", object::string(directory), object::string(file));
        let Ok(mut contents) = std::fs::read(path) else {
            set(libc::ENOENT);
            return -1;
        };
        if contents.last() == Some(&b'\n') {
            contents.pop();
        }
        contents.truncate(room.saturating_sub(1));
        let length = contents.len();
        contents.push(0);
        let filled = if room == 0 { Ok(()) } else { object::fill(buffer.cast::<u8>(), &contents) };
        filled.map_or(-1, |()| length as c_int)
    })
}
