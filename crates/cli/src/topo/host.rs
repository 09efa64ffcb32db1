//! A server: how its GPUs and NICs reach each other.

use std::io::Write;

use railnet_core::Rate;
use railnet_topology::host::{DeviceId, DeviceKind, Host, NicRole, topo_matrix};
use serde_json::{Value, json};

pub(super) fn print(host: &Host, out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "{}", topo_matrix(host))?;
    Ok(())
}

pub(super) fn object(host: &Host) -> Value {
    let (gpus, nics) = (host.gpus(), host.nics());
    let paths = gpus.iter().flat_map(|from| {
        let others = gpus.iter().chain(&nics).filter(move |to| *to != from);
        others.map(move |to| path(host, *from, *to))
    });
    json!({
        "name": host.name,
        "gpus": gpus.iter().map(|id| device(host, *id)).collect::<Vec<_>>(),
        "nics": nics.iter().map(|id| device(host, *id)).collect::<Vec<_>>(),
        "paths": paths.collect::<Vec<_>>(),
    })
}

fn device(host: &Host, id: DeviceId) -> Value {
    let device = host.device(id);
    let mut value = json!({ "name": device.name, "numa": host.numa_of(id) });
    match &device.kind {
        DeviceKind::Gpu { model, memory, memory_bandwidth, compute_capability, .. } => {
            value["model"] = model.as_str().into();
            value["memory_bytes"] = memory.as_u64().into();
            value["memory_bandwidth_bps"] = memory_bandwidth.as_bps().into();
            value["compute_capability"] = (*compute_capability).into();
        }
        DeviceKind::Nic { rate, role, .. } => {
            value["rate_bps"] = rate.as_bps().into();
            value["role"] = if *role == NicRole::Compute { "compute" } else { "storage" }.into();
        }
        _ => {}
    }
    value
}

fn path(host: &Host, from: DeviceId, to: DeviceId) -> Value {
    let path = host.path(from, to);
    let bandwidth = (path.bandwidth != Rate::ZERO).then(|| path.bandwidth.as_bps());
    json!({
        "from": host.device(from).name,
        "to": host.device(to).name,
        "type": path.kind.to_string(),
        "bandwidth_bps": bandwidth,
    })
}
