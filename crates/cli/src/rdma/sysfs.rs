//! What the kernel would show of the devices below `/sys` and `/dev`: files for programs that read them past libibverbs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use railnet_live::roce::Device;

/// Something below `/`.
#[derive(Hash)]
pub(super) enum Entry {
    File { path: String, text: String },
    Link { path: String, target: String },
}

/// Everything for these devices. What the kernel counts for a device (`counters`, `hw_counters`) is not there: no
/// number here could be true.
pub(super) fn entries(devices: &[Device]) -> Vec<Entry> {
    let mut entries = vec![
        file("sys/class/infiniband_verbs/abi_version", "6"),
        file("sys/class/misc/rdma_cm/abi_version", "4"),
    ];
    for device in devices {
        entries.extend(of_device(device));
    }
    entries
}

fn file(path: &str, text: &str) -> Entry {
    Entry::File { path: path.to_owned(), text: format!("{text}\n") }
}

fn of_device(device: &Device) -> Vec<Entry> {
    let Device { name, index, interface, .. } = device;
    let own = format!("sys/devices/virtual/infiniband/{name}");
    let port = format!("{own}/ports/1");
    let verbs = format!("sys/class/infiniband_verbs/uverbs{index}");
    let guid = grouped(&device.guid().to_ne_bytes());
    let gid = grouped(&device.gid().0);
    let rate_gbps = f64::from(device.link().rate_mbps) / 1000.0;
    let mut entries = vec![
        Entry::Link {
            path: format!("sys/class/infiniband/{name}"),
            target: format!("../../devices/virtual/infiniband/{name}"),
        },
        // UCX takes a device for accessible where this is a character device that it may write; nothing opens it.
        Entry::Link { path: format!("dev/infiniband/uverbs{index}"), target: "/dev/null".to_owned() },
        file(&format!("{own}/node_type"), "1: CA"),
        file(&format!("{own}/node_desc"), name),
        file(&format!("{own}/fw_ver"), env!("CARGO_PKG_VERSION")),
        file(&format!("{own}/node_guid"), &guid),
        file(&format!("{own}/sys_image_guid"), &guid),
        file(&format!("{port}/state"), "4: ACTIVE"),
        file(&format!("{port}/phys_state"), "5: LinkUp"),
        file(&format!("{port}/link_layer"), "Ethernet"),
        file(&format!("{port}/rate"), &format!("{rate_gbps} Gb/sec")),
        file(&format!("{port}/lid"), "0x0"),
        file(&format!("{port}/lid_mask_count"), "0"),
        file(&format!("{port}/sm_lid"), "0x0"),
        file(&format!("{port}/sm_sl"), "0"),
        file(&format!("{port}/pkeys/0"), "0xffff"),
        file(&format!("{port}/gids/0"), &gid),
        file(&format!("{port}/gid_attrs/types/0"), "RoCE v2"),
        file(&format!("{port}/gid_attrs/ndevs/0"), interface),
        file(&format!("{verbs}/ibdev"), name),
        file(&format!("{verbs}/abi_version"), "1"),
    ];
    // What stands behind the interface in the PCI tree; where that is software, a device that has the interface.
    let network = format!("/sys/class/net/{interface}");
    match fs::canonicalize(format!("{network}/device")) {
        Ok(hardware) => {
            let target = hardware.display().to_string();
            entries.push(Entry::Link { path: format!("{own}/device"), target: target.clone() });
            entries.push(Entry::Link { path: format!("{verbs}/device"), target });
        }
        Err(_) => {
            entries.push(Entry::Link { path: format!("{own}/device/net/{interface}"), target: network });
            let device = format!("../../infiniband/{name}/device");
            entries.push(Entry::Link { path: format!("{verbs}/device"), target: device });
        }
    }
    entries
}

/// Bytes as sysfs groups them: `0252:4eff:0a00:0007`.
fn grouped(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

pub(super) fn write(entries: &[Entry], root: &Path) -> io::Result<()> {
    for entry in entries {
        let (Entry::File { path, .. } | Entry::Link { path, .. }) = entry;
        let path = root.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match entry {
            Entry::File { text, .. } => fs::write(path, text)?,
            Entry::Link { target, .. } => symlink(target, path)?,
        }
    }
    // A host without devices has the directory, and nothing in it.
    fs::create_dir_all(root.join("sys/class/infiniband"))
}
