//! `railnet bench rdma`: unmodified RDMA programs on the software NIC, against the NIC by itself and against UCX over TCP, in the same
//! run and interleaved.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use railnet_live::roce::Settings;

use super::roce;
use crate::Outcome;

#[derive(clap::Args)]
#[command(
    after_help = "The programs are perftest's, UCX's and rdma-core's own (Debian: perftest, ucx-utils, rdmacm-utils); \
                        what is not installed is left out and named."
)]
pub(crate) struct Arguments {
    /// How often each is measured, interleaved; the table shows median, min and max
    #[arg(long, value_name = "N", value_parser = super::times, default_value_t = 5)]
    repeat: usize,
    /// The address to use
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
}

/// No program runs longer.
const LIMIT: Duration = Duration::from_mins(1);
const IN_PROCESS: Duration = Duration::from_millis(300);

/// What a program measures.
#[derive(Clone, Copy)]
enum Figure {
    /// perftest's average bandwidth, in MiB/s, as GB/s.
    Bandwidth,
    /// perftest's message rate, in millions a second.
    Rate,
    /// perftest's typical latency, in microseconds.
    Latency,
    /// UCX's bandwidth over the whole run, in MiB/s, as GB/s.
    UcxBandwidth,
    /// How long the client ran, in seconds.
    Time,
}

impl Figure {
    const fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth | Self::UcxBandwidth => "GB/s",
            Self::Rate => "M/s",
            Self::Latency => "µs",
            Self::Time => "s",
        }
    }

    /// Finds it in what a client printed.
    fn read(self, text: &str, took: Duration) -> Option<f64> {
        const MIB_GB: f64 = 1_048_576.0 / 1e9;
        let field = |line: &str, index: usize| line.split_whitespace().nth(index)?.parse::<f64>().ok();
        let is_row =
            |line: &&str| line.split_whitespace().next().is_some_and(|word| word.parse::<u64>().is_ok());
        let row = || text.lines().rfind(is_row);
        match self {
            Self::Bandwidth => Some(field(row()?, 3)? * MIB_GB),
            // The last column of perftest's bandwidth, and the typical one of its latency.
            Self::Rate | Self::Latency => field(row()?, 4),
            Self::UcxBandwidth => {
                let total = text.lines().find(|line| line.trim_start().starts_with("Final:"))?;
                Some(field(total, 6)? * MIB_GB)
            }
            Self::Time => Some(took.as_secs_f64()),
        }
    }
}

/// A program, its options, and what it measures.
struct Row {
    name: &'static str,
    words: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    figure: Figure,
    /// Whether it runs on the software NIC.
    is_ours: bool,
}

const PERFTEST: [&str; 4] = ["-d", "railnet0", "-x", "0"];
const UCX: &[&str] = &["ucx_perftest", "-t", "ucp_put_bw", "-s", "1048576", "-n", "2000", "-w", "50"];

const ROWS: [Row; 6] = [
    Row {
        name: "ib_write_bw, 1 MiB",
        words: &["ib_write_bw", "-s", "1048576", "-n", "1000", "-F"],
        variables: &[],
        figure: Figure::Bandwidth,
        is_ours: true,
    },
    Row {
        name: "ib_write_lat, 8 B, half a round",
        words: &["ib_write_lat", "-s", "8", "-n", "10000", "-F"],
        variables: &[],
        figure: Figure::Latency,
        is_ours: true,
    },
    Row {
        name: "ib_send_bw, 64 B, messages",
        words: &["ib_send_bw", "-s", "64", "-n", "100000", "-F"],
        variables: &[],
        figure: Figure::Rate,
        is_ours: true,
    },
    Row {
        name: "ucx_perftest put_bw, 1 MiB, rc_verbs",
        words: UCX,
        variables: &[("UCX_TLS", "rc_verbs,ud_verbs"), ("UCX_NET_DEVICES", "railnet0:1")],
        figure: Figure::UcxBandwidth,
        is_ours: true,
    },
    Row {
        name: "ucx_perftest put_bw, 1 MiB, UCX's tcp",
        words: UCX,
        variables: &[("UCX_TLS", "tcp")],
        figure: Figure::UcxBandwidth,
        is_ours: false,
    },
    Row {
        name: "ucmatose, 100 connections by RDMA-CM, all of it",
        words: &["ucmatose", "-c", "100"],
        variables: &[],
        figure: Figure::Time,
        is_ours: true,
    },
];

/// Quotients: what of them, the row above, the row below, the goal. The rows of the NIC by itself come after the programs'.
const QUOTIENTS: [(&str, usize, usize, &str); 3] = [
    ("ib_write_bw, of what the NIC has by itself", 0, ROWS.len(), "goal: at least 0.80"),
    ("ib_write_lat, times that of the NIC by itself", 1, ROWS.len() + 1, "goal: at most 1.25"),
    ("put_bw over rc_verbs, of what UCX's tcp has", 3, 4, "goal: at least 0.80"),
];

/// Rows of the NIC by itself: two threads of this process.
const BY_ITSELF: [(&str, &str); 2] =
    [("the NIC by itself, WRITE 1 MiB", "GB/s"), ("the NIC by itself, WRITE 8 B, half a round", "µs")];

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let Arguments { repeat, address } = *arguments;
    writeln!(
        out,
        "RDMA programs on the software NIC at {address}, two processes; {repeat} times, interleaved: median, min – max\n"
    )?;
    out.flush()?;
    let socket = SocketAddr::new(address, 0);
    let mut values: [Vec<f64>; ROWS.len() + BY_ITSELF.len()] = Default::default();
    let mut missing: Vec<&str> = Vec::new();
    for _ in 0..repeat {
        for (row, values) in ROWS.iter().zip(&mut values) {
            match measure(row, address)? {
                Some(value) => values.push(value),
                None if missing.contains(&row.words[0]) => {}
                None => missing.push(row.words[0]),
            }
        }
        values[ROWS.len()].push(roce::write_bandwidth(socket, IN_PROCESS)?[0]);
        values[ROWS.len() + 1].push(roce::back_and_forth(socket, IN_PROCESS, 8)?.median);
    }
    let names = ROWS.iter().map(|row| (row.name, row.figure.unit())).chain(BY_ITSELF);
    for ((name, unit), values) in names.zip(&values).filter(|(_, values)| !values.is_empty()) {
        let [median, min, max] = roce::spread(values.clone());
        writeln!(out, "  {name:<48} {median:>8.2} {unit:<5} {min:>7.2} – {max:<7.2}")?;
    }
    writeln!(out)?;
    let has_both = |(_, above, below, _): &&(&str, usize, usize, &str)| {
        !values[*above].is_empty() && !values[*below].is_empty()
    };
    for (name, above, below, goal) in QUOTIENTS.iter().filter(has_both) {
        let quotients = values[*above].iter().zip(&values[*below]).map(|(above, below)| above / below);
        let [median, min, max] = roce::spread(quotients.collect());
        writeln!(out, "  {name:<48} {median:>8.2}       {min:>7.2} – {max:<7.2} {goal}")?;
    }
    for program in missing {
        writeln!(out, "\nLeft out: {program} is not installed")?;
    }
    Ok(Outcome::Done)
}

/// Runs a program as server and client; `None` where it is not installed.
fn measure(row: &Row, address: IpAddr) -> anyhow::Result<Option<f64>> {
    let program = row.words[0];
    let is_installed = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !is_installed {
        return Ok(None);
    }
    let port = TcpListener::bind((address, 0))?.local_addr()?.port().to_string();
    let mut words: Vec<&str> = row.words.to_vec();
    if program.starts_with("ib_") {
        words.extend(PERFTEST);
    }
    let target = address.to_string();
    // ucmatose's port is one of RDMA-CM, and its server says by `-b` where it listens.
    let is_cm = program == "ucmatose";
    words.extend(["-p", &port]);
    let server_words = if is_cm { [&words[..], &["-b", &target]].concat() } else { words.clone() };
    let client_words =
        if is_cm { [&words[..], &["-s", &target]].concat() } else { [&words[..], &[&target]].concat() };
    let mut server = Running(start(row, &server_words, address)?);
    wait_until_ready(&mut server.0, &port, is_cm)?;
    let began = Instant::now();
    let mut client = Running(start(row, &client_words, address)?);
    let text = client.finish().with_context(|| format!("{} as client", words.join(" ")))?;
    let took = began.elapsed();
    server.finish().with_context(|| format!("{} as server", words.join(" ")))?;
    let value = row.figure.read(&text, took);
    value.with_context(|| format!("{} printed no result:\n{text}", words.join(" "))).map(Some)
}

fn start(row: &Row, words: &[&str], address: IpAddr) -> anyhow::Result<Child> {
    let mut command = if row.is_ours {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["rdma", "exec", "--"]).args(words);
        command
    } else {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    command.env(Settings::ADDRESSES, address.to_string()).envs(row.variables.iter().copied());
    command.env("UCX_WARN_UNUSED_ENV_VARS", "n");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("cannot run {}", words[0]))
}

/// A process that is ended when it is no longer looked after.
struct Running(Child);

impl Running {
    /// What it printed, once it has ended well.
    fn finish(&mut self) -> anyhow::Result<String> {
        let out = drained(self.0.stdout.take());
        let errors = drained(self.0.stderr.take());
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                bail!("it ran longer than {} s", LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let text = out.join().unwrap_or_default();
        ensure!(status.success(), "{status}: {}", errors.join().unwrap_or_default());
        Ok(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads a stream while the process runs: a full pipe would stop it.
fn drained(stream: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stream.map(|mut stream| stream.read_to_string(&mut text));
        text
    })
}

/// Waits until the server listens: at a TCP port, as the kernel's table tells, or on a port of RDMA-CM, which has a socket's name.
fn wait_until_ready(server: &mut Child, port: &str, is_cm: bool) -> anyhow::Result<()> {
    let number: u16 = port.parse()?;
    let (tables, wanted): (&[&str], String) = match is_cm {
        true => (&["/proc/net/unix"], format!("/service/0x0106{number:04x}")),
        false => (&["/proc/net/tcp", "/proc/net/tcp6"], format!(":{number:04X} ")),
    };
    let is_listening = |line: &str| line.contains(&wanted) && (is_cm || line.contains(" 0A "));
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let has = |table: &&str| std::fs::read_to_string(table).unwrap_or_default().lines().any(is_listening);
        if tables.iter().any(has) {
            return Ok(());
        }
        if server.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("the server does not listen after {} s", LIMIT.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_programs_print() {
        let none = Duration::ZERO;
        let perftest = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                        1048576    1000             3620.20            3299.81\t\t   0.003300\n---\n";
        assert_eq!(
            Figure::Bandwidth.read(perftest, none).map(|value| (value * 1000.0).round()),
            Some(3460.0)
        );
        assert_eq!(Figure::Rate.read(perftest, none), Some(0.0033));
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
                       8       20000          3.70           257.24       12.10    \t       12.79\n";
        assert_eq!(Figure::Latency.read(latency, none), Some(12.10));
        let ucx =
            "Final:     100     15.767    56.701    56.701     1102.28    1000.00       17636       17636\n";
        assert_eq!(Figure::UcxBandwidth.read(ucx, none).map(|value| (value * 1000.0).round()), Some(1049.0));
        assert_eq!(Figure::Bandwidth.read("nothing", none), None);
    }
}
