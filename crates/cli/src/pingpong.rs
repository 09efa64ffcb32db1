//! `railnet pingpong`: messages back and forth over RoCEv2, with `ibv_rc_pingpong` or another Railnet as the peer.

mod exchange;
mod play;

use std::io::{BufWriter, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use railnet_core::{Bytes, Psn, Random, Span};
use railnet_live::roce::{Config, Driver, Error, Faults, share};
use railnet_nic::{Behaviour, Connection, Mtu, Path};
use railnet_wire::{Gid, Identification, ROCE_PORT};

use crate::files::Output;
use crate::run::duration;
use crate::words::grouped;
use crate::{Outcome, Usage};
use exchange::{End, Meeting};
use play::{Player, Score};

const EXAMPLES: &str = "\
Without HOST it is the server and waits for a client. The peer may be ibv_rc_pingpong on a machine with an RDMA NIC or \
Linux Soft-RoCE (give that one -g and the index of its RoCEv2 address), or another Railnet; --op other than send needs a \
Railnet. No privilege is needed, but UDP port 4791 must be free for a foreign peer.

Examples:
  railnet pingpong                          the server
  railnet pingpong 10.77.0.2                the client of it
  railnet pingpong -s 65536 -n 100 HOST     as ibv_rc_pingpong
  railnet pingpong --op write -m 4096 HOST
  railnet pingpong --drop 0.05 --corrupt 0.01 --pcap run.pcapng HOST";

/// The command line of `pingpong`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The server's name or address; without it this is the server
    host: Option<String>,
    /// TCP port on which the two ends exchange what they are
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Bytes of a message
    #[arg(short, long, default_value = "4096", value_parser = size)]
    size: u32,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
    /// Receives that are posted at once
    #[arg(short, long, default_value_t = 500)]
    rx_depth: u32,
    /// Messages each way
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u32,
    /// Sleep until something comes, instead of looking for some time first
    #[arg(short, long)]
    events: bool,
    /// Service level: the DSCP of packets is eight times this
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    sl: u8,
    /// Compare what comes back with what was sent
    #[arg(short, long)]
    chk: bool,
    /// Taken and not needed: the address is that of the TCP connection, or --address
    #[arg(short, long)]
    gid_idx: Option<u32>,
    /// What to do
    #[arg(long, value_enum, default_value = "send")]
    op: Op,
    /// The address to use, where the host has several
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// UDP port to receive at; 0 lets the system choose [default: 4791, or what the system chooses where that is taken]
    #[arg(long, value_name = "PORT")]
    udp_port: Option<u16>,
    /// The longest wait for the peer
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    timeout: Duration,
    /// Code of the acknowledgement timeout: 4.096 µs × 2 to this power
    #[arg(long, value_name = "CODE", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    ack_timeout: u8,
    /// Write what goes over the wire to this file, as pcapng
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Overwrite the capture that is there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    faults: FaultArguments,
}

/// What shall go wrong on the way out.
#[derive(Args)]
#[command(next_help_heading = "Faults, as a share of what is sent (0.05, 1/20)")]
struct FaultArguments {
    /// Lose packets
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0")]
    drop: u32,
    /// Send packets twice
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0")]
    duplicate: u32,
    /// Let packets be overtaken by up to eight others
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0")]
    reorder: u32,
    /// Hold packets up
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0")]
    delay: u32,
    /// How long
    #[arg(long, value_name = "SPAN", default_value = "200us")]
    hold: Span,
    /// Flip a bit in packets
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0")]
    corrupt: u32,
    /// Seed of the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What each message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Op {
    /// SEND, back and forth: what ibv_rc_pingpong does
    Send,
    /// WRITE with immediate data, back and forth
    Write,
    /// The client READs from the server
    Read,
    /// The client adds to a word of the server
    Atomic,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let timeout = arguments.timeout;
    if arguments.iters == 0 || arguments.rx_depth == 0 {
        return Err(Usage("nothing to do: --iters and --rx-depth are 1 at least".to_owned()).into());
    }
    let capture = Output::claim_given(arguments.pcap.as_deref(), arguments.force)?;
    let mut meeting = match &arguments.host {
        Some(host) => Meeting::call(host, arguments.port, timeout)?,
        None => {
            let address = arguments.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
            match Meeting::serve(SocketAddr::new(address, arguments.port), timeout) {
                // A host without IPv6 waits at its IPv4 addresses.
                Err(_) if arguments.address.is_none() && !has_ipv6() => {
                    Meeting::serve(SocketAddr::new([0, 0, 0, 0].into(), arguments.port), timeout)?
                }
                outcome => outcome?,
            }
        }
    };
    let mut player = Player::new(open(arguments, &meeting)?, arguments, timeout)?;
    if let Some(output) = &capture {
        player.driver().capture(Box::new(BufWriter::new(output.handle()?)))?;
    }
    let outcome = connect_and_play(arguments, &mut player, &mut meeting, out);
    player.driver().finish_capture().context("the capture is not complete")?;
    capture.map(Output::finish).transpose()?;
    let score = outcome?;
    print_score(out, arguments, &player, &score)?;
    Ok(Outcome::Done)
}

fn connect_and_play(
    arguments: &Arguments,
    player: &mut Player,
    meeting: &mut Meeting,
    out: &mut dyn Write,
) -> anyhow::Result<Score> {
    let local = player.driver().local();
    let scope = match meeting.local()? {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    let own = End {
        port: local.port(),
        is_railnet: true,
        queue_pair: player.queue_pair(),
        // The number of the queue pair is one that nobody guesses: so is what is made from it.
        psn: Psn::new(Random::from_seed(u64::from(player.queue_pair().value())).next_u32()),
        gid: player.driver().gid(),
    };
    writeln!(out, "  local address:  {own}")?;
    let connect = |player: &mut Player, peer: &End| {
        let connection = connection(arguments, &own, peer);
        player.connect(peer.address(scope)?, &connection)
    };
    let peer = if arguments.host.is_some() {
        let peer = meeting.ask(own)?;
        connect(player, &peer)?;
        peer
    } else {
        meeting.answer(own, |peer| connect(player, peer))?
    };
    writeln!(out, "  remote address: {peer}")?;
    out.flush()?;
    player.play(arguments, meeting, &peer)
}

/// Opens the NIC at the address by which the peer reaches this host.
fn open(arguments: &Arguments, meeting: &Meeting) -> anyhow::Result<Driver> {
    let mut address = meeting.local()?;
    if let Some(ip) = arguments.address {
        address.set_ip(ip);
    }
    address.set_port(arguments.udp_port.unwrap_or(ROCE_PORT));
    let mut config = Config::new(address);
    config.faults = arguments.faults.faults();
    if arguments.events {
        config.spin = Duration::ZERO;
    }
    // Who the peer is cannot be known: others number their packets, and may not have room for more than Soft-RoCE
    // itself sends at once.
    config.accepted = Identification::Any;
    config.nic.behaviour.unacked_packets_max = Behaviour::RXE.unacked_packets_max;
    // A slow peer is not a dead one: --timeout tells them apart.
    config.nic.behaviour.retry_seven_is_infinite = true;
    let driver = match Driver::open(&config, railnet_live::memory::ProcessMemory::default()) {
        Err(Error::Bind { source, .. })
            if source.kind() == std::io::ErrorKind::AddrInUse && arguments.udp_port.is_none() =>
        {
            config.address.set_port(0);
            Driver::open(&config, railnet_live::memory::ProcessMemory::default())
        }
        outcome => outcome,
    };
    Ok(driver?)
}

fn connection(arguments: &Arguments, own: &End, peer: &End) -> Connection {
    let path = Path { traffic_class: arguments.sl << 5 | 0b10, ..Path::to(peer.gid) };
    Connection {
        path,
        mtu: arguments.mtu,
        send_psn: own.psn,
        receive_psn: peer.psn,
        timeout: arguments.ack_timeout,
        ..Connection::to(Gid::default(), peer.queue_pair)
    }
}

fn print_score(
    out: &mut dyn Write,
    arguments: &Arguments,
    player: &Player,
    score: &Score,
) -> anyhow::Result<()> {
    let seconds = score.elapsed.as_secs_f64();
    let megabits = score.bytes as f64 * 8.0 / 1e6 / seconds;
    writeln!(out, "{} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec", score.bytes)?;
    let each = seconds * 1e6 / f64::from(arguments.iters);
    writeln!(out, "{} iters in {seconds:.2} seconds = {each:.2} usec/iter", arguments.iters)?;
    if score.checked {
        writeln!(out, "All that came back was as it should be.")?;
    }
    let (driver, nic) = (player.counters(), player.nic_counters());
    if !arguments.faults.faults().is_none() || nic.resent > 0 {
        let faults = driver.faults;
        writeln!(
            out,
            "Sent {} packets, {} of them again; on the way out {} lost, {} doubled, {} overtaken, {} held up, {} damaged",
            grouped(nic.sent),
            grouped(nic.resent),
            faults.dropped,
            faults.duplicated,
            faults.reordered,
            faults.delayed,
            faults.corrupted
        )?;
    }
    if let Some(unauthenticated) = player.unauthenticated() {
        writeln!(out, "Thrown away {unauthenticated}")?;
    }
    Ok(())
}

fn has_ipv6() -> bool {
    std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok()
}

impl FaultArguments {
    fn faults(&self) -> Faults {
        Faults {
            drop: self.drop,
            duplicate: self.duplicate,
            reorder: self.reorder,
            delay: self.delay,
            corrupt: self.corrupt,
            hold: self.hold,
            seed: self.seed,
        }
    }
}

/// Bytes as a bare number, as `ibv_rc_pingpong` has it, or with a unit.
fn size(text: &str) -> Result<u32, String> {
    const MOST: u64 = 1 << 30;
    let bytes = match text.parse::<u64>() {
        Ok(bytes) => bytes,
        Err(_) => text.parse::<Bytes>().map_err(|error| error.to_string())?.as_u64(),
    };
    if bytes > MOST {
        return Err("a message has 1 GiB at most".to_owned());
    }
    Ok(bytes as u32)
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let found = text.parse().ok().and_then(Mtu::from_bytes);
    found.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}
