//! A third process that never waits, beside the ranks; and what goes over the loopback interface.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use super::weight;

/// Counts until whoever started it is gone, however that came about.
const COUNT: &str =
    "while kill -0 $PPID 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";

/// A busy process, as long as this value lives.
pub(crate) struct Load(Child);

impl Load {
    pub(crate) fn start(nice: i32) -> std::io::Result<Self> {
        let mut command = weight::command(Path::new("sh"));
        command.args(["-c", COUNT]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let load = Self(command.spawn()?);
        weight::share(&[load.0.id()], nice);
        Ok(load)
    }

    /// Seconds of a processor that it has had.
    pub(crate) fn seconds(&self) -> Option<f64> {
        weight::seconds(self.0.id())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes that the loopback interface has carried.
pub(crate) fn loopback_bytes() -> Option<u64> {
    carried(&fs::read_to_string("/proc/net/dev").ok()?)
}

fn carried(table: &str) -> Option<u64> {
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    row.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loopback_interface_carried_is_in_its_row() {
        let table = "Inter-|   Receive\n face |bytes    packets\n    lo: 1234567      99    0\n  eth0: 5 6 7";
        assert_eq!(carried(table), Some(1_234_567));
        assert_eq!(carried("eth0: 5 6 7"), None);
    }
}
