//! `railnet rdma devices`: what `ibv_devinfo` would list, and what limits it.

use std::io::Write;
use std::net::IpAddr;

use railnet_live::host::{self, PortHolder};
use railnet_live::roce::{Device, Settings, devices};
use serde_json::{Value, json};

use crate::{Outcome, Usage, words};

const EXAMPLES: &str = "\
Examples:
  railnet rdma devices
  railnet rdma devices --json
  RAILNET_RDMA_ADDRESSES=10.0.0.7 railnet rdma devices";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a socket should be able to buffer: a window of 1 MiB from each of four senders.
const RECEIVE_BUFFER: u64 = 4 << 20;

/// A device, and who holds its port.
struct Row {
    device: Device,
    holders: Vec<PortHolder>,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let settings = Settings::from_env().map_err(Usage)?;
    let found = devices(&settings).map_err(|error| Usage(error.to_string()))?;
    let row = |device: Device| {
        let holders = host::roce_port_holders(device.address)?;
        Ok(Row { device, holders })
    };
    let rows = found.into_iter().map(row).collect::<std::io::Result<Vec<_>>>()?;
    let limits = limits(&rows, host::limits().receive_buffer);
    if arguments.json {
        let all: Vec<_> = rows.iter().map(object).collect();
        let against = settings.against_shared_memory();
        let shared = json!({ "is_used": against.is_none(), "is_turned_off_by": against });
        writeln!(out, "{:#}", json!({ "devices": all, "limits": limits, "shared_memory": shared }))?;
    } else {
        print(&rows, &limits, &payload(&settings), out)?;
    }
    let is_usable = |row: &Row| state(&row.holders).is_ok();
    Ok(if rows.iter().any(is_usable) { Outcome::Done } else { Outcome::CheckFailed })
}

fn print(rows: &[Row], limits: &[String], payload: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    if rows.is_empty() {
        writeln!(out, "No device: this host has no address that can carry RoCEv2.")?;
        return Ok(());
    }
    let width = |text: &dyn Fn(&Row) -> usize, least| rows.iter().map(text).max().unwrap_or(0).max(least);
    let address = width(&|row| row.device.address.to_string().len(), 7);
    let interface = width(&|row| row.device.interface.len(), 9);
    writeln!(
        out,
        "  {:<10} {:<address$}  {:<interface$}  {:>10}  {:>9}  UDP port 4791",
        "Device", "Address", "Interface", "MTU", "Rate"
    )?;
    for Row { device, holders } in rows {
        let (Ok(state) | Err(state)) = state(holders);
        let gbps = f64::from(device.link().rate_mbps) / 1000.0;
        writeln!(
            out,
            "  {:<10} {:<address$}  {:<interface$}  {:>10}  {:>9}  {state}",
            device.name,
            device.address.to_string(),
            device.interface,
            format!("{} bytes", words::grouped(device.mtu.bytes().into())),
            format!("{gbps} Gb/s"),
        )?;
    }
    writeln!(out)?;
    for limit in limits {
        writeln!(out, "  {limit}")?;
    }
    writeln!(out, "  {payload}")?;
    writeln!(out, "  Run a program on them: railnet rdma exec -- ibv_devinfo")?;
    Ok(())
}

/// Whether a program of this user can open a device whose port has these holders, in words.
fn state(holders: &[PortHolder]) -> Result<String, String> {
    let user = rustix::process::geteuid().as_raw();
    if holders.iter().any(|holder| holder.is_kernel) {
        return Err("held by the kernel (rdma_rxe): unload it, or use another network namespace".to_owned());
    }
    if let Some(other) = holders.iter().find(|holder| holder.user != user) {
        return Err(format!("held by user {}: only one user at a time can have an address", other.user));
    }
    Ok(match holders.len() {
        0 => "free".to_owned(),
        some => format!("shared by {}", words::count(some as u64, "process", "processes")),
    })
}

/// How payload gets from one process of this host to another, in words.
fn payload(settings: &Settings) -> String {
    match settings.against_shared_memory() {
        None => {
            let name = Settings::SHARED_MEMORY;
            format!(
                "Payload of 512 bytes and more goes through shared memory between your processes of this host; {name}=off sends it."
            )
        }
        Some(name) => {
            format!("Payload between your processes of this host goes through sockets, because of {name}.")
        }
    }
}

/// What keeps devices from more, one sentence each.
fn limits(rows: &[Row], receive_buffer: Option<u64>) -> Vec<String> {
    let mut limits = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for Row { device, .. } in rows {
        let is_small = device.mtu.bytes() < 4096;
        if let Some(mtu) =
            device.interface_mtu.filter(|_| is_small && !seen.contains(&device.interface.as_str()))
        {
            limits.push(format!(
                "{} carries IP packets of {} bytes, which hold {} of data: a larger MTU there, 4,172 for 4,096",
                device.interface,
                words::grouped(mtu.into()),
                words::grouped(device.mtu.bytes().into()),
            ));
            seen.push(&device.interface);
        }
    }
    if rows.iter().any(|row| row.device.rate_mbps.is_none()) {
        limits.push(
            "An interface that tells no rate is listed with 10 Gb/s; nothing is held to it.".to_owned(),
        );
    }
    if let Some(bytes) = receive_buffer.filter(|bytes| *bytes < RECEIVE_BUFFER) {
        limits.push(format!(
            "A socket buffers {} bytes at most, which limits packets on their way: sysctl net.core.rmem_max={RECEIVE_BUFFER}",
            words::grouped(bytes)
        ));
    }
    if rows.iter().all(|row| row.device.is_loopback) {
        limits.push(
            "Only this host's own addresses: programs on other hosts cannot reach these devices.".to_owned(),
        );
    }
    limits
}

fn object(row: &Row) -> Value {
    let Row { device, holders } = row;
    let port = state(holders);
    let gid: IpAddr = match device.address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 @ IpAddr::V6(_) => v6,
    };
    json!({
        "name": device.name,
        "address": device.address,
        "gid": gid,
        "interface": device.interface,
        "interface_mtu": device.interface_mtu,
        "mtu": device.mtu.bytes(),
        "rate_mbps": device.link().rate_mbps,
        "can_open": port.is_ok(),
        "port_4791": port.unwrap_or_else(|why| why),
    })
}
