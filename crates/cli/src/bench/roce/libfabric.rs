//! libfabric's reliable messages over UDP (`udp;ofi_rxd`), measured by its own `fi_pingpong` where that is installed.

use std::io::Read;
use std::net::{IpAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The program, of Debian's libfabric-bin and others.
const PROGRAM: &str = "fi_pingpong";

/// Messages each way of one measurement.
const ITERATIONS: u32 = 20;

/// No measurement takes longer: on a busy machine it may be hundreds of times slower than on an idle one.
const LIMIT: Duration = Duration::from_mins(1);

/// Why it is not measured; `None` where it can be.
pub(super) fn is_missing(address: IpAddr) -> Option<String> {
    if !address.is_ipv4() {
        return Some("it is measured over IPv4 only".to_owned());
    }
    match Command::new(PROGRAM).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => None,
        Err(error) => Some(format!("there is no {PROGRAM} (Debian: libfabric-bin): {error}")),
    }
}

/// Messages of so many bytes back and forth between two processes: gigabytes a second.
pub(super) fn bandwidth(address: IpAddr, bytes: usize) -> anyhow::Result<f64> {
    let port = TcpListener::bind((address, 0))?.local_addr()?.port().to_string();
    let limit = Instant::now() + LIMIT;
    let mut server = Running::start(address, bytes, &["-B", &port])?;
    loop {
        let mut client = Running::start(address, bytes, &["-P", &port, &address.to_string()])?;
        let text = client.output(limit)?;
        if let Some(megabytes) = megabytes_per_second(&text) {
            server.output(limit)?;
            return Ok(megabytes / 1e3);
        }
        // A client gives up at once where the server does not listen yet.
        if server.0.try_wait()?.is_some() || Instant::now() > limit {
            bail!("{PROGRAM} over udp;ofi_rxd printed no figure: {text:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The figure in the column of that name.
fn megabytes_per_second(table: &str) -> Option<f64> {
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let column = lines.by_ref().find_map(|line| line.iter().position(|name| *name == "MB/sec"))?;
    lines.next()?.get(column)?.parse().ok()
}

/// A process that does not outlive this.
struct Running(Child);

impl Running {
    fn start(address: IpAddr, bytes: usize, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.args(["-p", "udp;ofi_rxd", "-e", "rdm"]);
        command.args(["-S", &bytes.to_string(), "-I", &ITERATIONS.to_string()]).args(arguments);
        if address.is_loopback() {
            command.env("FI_UDP_IFACE", "lo");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self(command.spawn().with_context(|| format!("cannot start {PROGRAM}"))?))
    }

    /// What it printed, once it has ended.
    fn output(&mut self, limit: Instant) -> anyhow::Result<String> {
        while self.0.try_wait()?.is_none() {
            if Instant::now() > limit {
                bail!("{PROGRAM} over udp;ofi_rxd took longer than {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut text = String::new();
        // A table of two lines: it fits in the pipe, so that nobody had to read it earlier.
        self.0.stdout.take().context("it has no output")?.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, or is to end now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found_in_the_table_that_fi_pingpong_prints() {
        // libfabric 1.17.
        let table = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                     1m      20      =20      40m         0.26s    161.92    6475.74       0.00\n";
        assert_eq!(megabytes_per_second(table), Some(161.92));
        assert_eq!(megabytes_per_second("fi_getinfo: -61"), None);
        assert_eq!(megabytes_per_second("bytes MB/sec\n"), None);
    }
}
