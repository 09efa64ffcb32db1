//! Paths and tables of the servers of the catalogue, and of some that are not in it.

use railnet_core::{Bytes, Rate, Span};

use super::*;
use crate::catalogue;

fn gpu(host: &mut Host, id: u32) -> DeviceId {
    let kind = DeviceKind::Gpu {
        model: "test".into(),
        memory: Bytes::gib(80),
        memory_bandwidth: gigabytes(3_350),
        compute_capability: 90,
        compute: None,
    };
    host.add(format!("GPU{id}"), kind)
}

fn nic(host: &mut Host, id: u32) -> DeviceId {
    let kind = DeviceKind::Nic {
        rate: Rate::gbps(400),
        role: NicRole::Compute,
        gpudirect: true,
        latency: Span::ZERO,
    };
    host.add(format!("mlx5_{id}"), kind)
}

fn gigabytes(bytes: u64) -> Rate {
    Rate::gbps(bytes * 8)
}

#[test]
fn every_server_of_the_catalogue_is_sound() {
    for (name, title) in catalogue::hosts() {
        let host = catalogue::host(name).unwrap();
        assert_eq!(host.check(), Ok(()), "{title}");
        for a in 0..host.devices.len() as u32 {
            for b in 0..host.devices.len() as u32 {
                let (there, back) =
                    (host.path(DeviceId(a), DeviceId(b)), host.path(DeviceId(b), DeviceId(a)));
                assert_eq!((there.kind, there.bandwidth), (back.kind, back.bandwidth), "{name} {a} {b}");
                assert_eq!(there.kind == PathType::Loc, a == b);
            }
        }
    }
    assert_eq!(catalogue::host("dgx-x"), None);
}

#[test]
fn dgx_a100_is_as_nvidia_smi_shows_it() {
    let host = catalogue::host("dgx-a100").unwrap();
    assert_eq!((host.gpus().len(), host.nics().len(), host.compute_nics().len()), (8, 12, 8));
    assert_eq!((host.cpus().len(), host.drives().len()), (8, 8));
    let text = topo_matrix(&host);
    let row = |label: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(label)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect()
    };
    let first = row("GPU0 ");
    assert_eq!(&first[..2], ["X", "NV12"]);
    assert_eq!(
        &first[8..],
        ["PXB", "PXB", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS", "3"]
    );
    let numa: Vec<_> = (0..8).map(|id| row(&format!("GPU{id} ")).pop().unwrap()).collect();
    assert_eq!(numa, ["3", "3", "1", "1", "7", "7", "5", "5"]);
}

#[test]
fn dgx_h100_pairs_each_gpu_with_a_nic() {
    let host = catalogue::host("dgx-h100").unwrap();
    let (gpus, nics) = (host.gpus(), host.compute_nics());
    for (gpu, nic) in gpus.iter().zip(&nics) {
        assert_eq!(host.nearest_nics(*gpu), [*nic]);
        let path = host.path(*gpu, *nic);
        assert_eq!((path.kind, path.bandwidth), (PathType::Pix, gigabytes(48)));
    }
    let nvlink = host.path(gpus[0], gpus[5]);
    assert_eq!(nvlink.kind, PathType::Nvl);
    // 18 × 20.6 GB/s.
    assert_eq!(nvlink.bandwidth, Rate::from_bps(3_708 * 800_000_000));
    assert_eq!(host.path(gpus[0], nics[1]).kind, PathType::Phb);
    let far = host.path(gpus[0], nics[4]);
    assert_eq!((far.kind, far.bandwidth), (PathType::Sys, gigabytes(22)));
    let helped = host.path_with_pxn(gpus[0], nics[4]);
    assert_eq!((helped.kind, helped.bandwidth), (PathType::Pxn, gigabytes(48)));
    assert!(helped.devices.contains(&gpus[4]));
    assert_eq!(host.path_with_pxn(gpus[0], nics[0]).kind, PathType::Pix);
    assert_eq!((host.numa_of(gpus[3]), host.numa_of(gpus[4])), (Some(0), Some(1)));
    let text = topo_matrix(&host);
    let first = text.lines().find(|line| line.starts_with("GPU0 ")).unwrap();
    assert!(
        first.contains("NV18") && first.contains("PXB") && first.contains("NODE") && first.contains("SYS")
    );
    assert!(text.contains("370.8"), "{text}");
    assert!(text.contains("NIC3: mlx5_3 (400 Gbps, compute)"), "{text}");
}

#[test]
fn hgx_h200_crosses_one_switch_to_its_nic() {
    let text = topo_matrix(&catalogue::host("hgx-h200").unwrap());
    let first = text.lines().find(|line| line.starts_with("GPU0 ")).unwrap();
    assert_eq!(first.split_whitespace().nth(9), Some("PIX"));
    assert_eq!(first.split_whitespace().nth(10), Some("NODE"));
}

#[test]
fn a_plain_box_shares_one_nic() {
    let host = catalogue::host("pcie-4gpu").unwrap();
    let (gpus, nics) = (host.gpus(), host.nics());
    let kinds: Vec<_> = gpus.iter().map(|gpu| host.path(*gpu, nics[0]).kind).collect();
    assert_eq!(kinds, [PathType::Phb, PathType::Phb, PathType::Sys, PathType::Sys]);
    assert_eq!(host.path(gpus[0], nics[0]).bandwidth, Rate::gbps(100));
    assert_eq!(host.path_with_pxn(gpus[3], nics[0]).kind, PathType::Sys);
    let text = topo_matrix(&host);
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("GPU")).take(4).collect();
    assert_eq!(
        rows[0].split_whitespace().collect::<Vec<_>>(),
        ["GPU0", "X", "NODE", "SYS", "SYS", "NODE", "0"]
    );
    assert_eq!(
        rows[1].split_whitespace().collect::<Vec<_>>(),
        ["GPU1", "NODE", "X", "SYS", "SYS", "PHB", "0"]
    );
}

#[test]
fn a_server_without_gpus_still_has_a_table() {
    let text = topo_matrix(&catalogue::host("cpu").unwrap());
    assert!(text.contains("NIC0: mlx5_0 (100 Gbps, compute)"), "{text}");
    assert!(topo_matrix(&Host::new("empty")).contains("no GPUs and no NICs"));
}

#[test]
fn nvlink_by_way_of_a_gpu_is_nvb() {
    // A square of GPUs, as in a DGX-1: neighbours are linked, diagonals are not.
    let mut host = Host::new("square");
    let cpu = host.add("CPU0", DeviceKind::Cpu { socket: 0, processor: Processor::EPYC_ROME });
    let gpus: Vec<_> = (0..4).map(|id| gpu(&mut host, id)).collect();
    for (id, gpu) in gpus.iter().enumerate() {
        host.join_pcie(cpu, *gpu, 3, 16, Some(id as u8));
        let links = HostLinkKind::NvLink { links: 2 };
        host.join(*gpu, gpus[(id + 1) % 4], links, gigabytes(40), gigabytes(50));
    }
    assert_eq!(host.path(gpus[0], gpus[1]).kind, PathType::Nvl);
    let across = host.path(gpus[0], gpus[2]);
    assert_eq!((across.kind, across.bandwidth), (PathType::Nvb, gigabytes(40)));
    let text = topo_matrix(&host);
    assert!(text.contains("NV2") && text.contains("NODE"), "{text}");
}

#[test]
fn switches_below_switches_are_pxb() {
    let mut host = Host::new("tree");
    let cpu = host.add("CPU0", DeviceKind::Cpu { socket: 0, processor: Processor::EPYC_ROME });
    let switches: Vec<_> =
        (0..3).map(|id| host.add(format!("PCI{id}"), DeviceKind::PciSwitch { two_levels: false })).collect();
    host.join_pcie(cpu, switches[0], 4, 16, Some(0));
    host.join_pcie(switches[0], switches[1], 4, 16, None);
    host.join_pcie(switches[0], switches[2], 4, 8, None);
    let (a, b) = (gpu(&mut host, 0), nic(&mut host, 0));
    host.join_pcie(switches[1], a, 4, 16, None);
    host.join_pcie(switches[2], b, 4, 16, None);
    let path = host.path(a, b);
    assert_eq!((path.kind, path.bandwidth), (PathType::Pxb, gigabytes(12)));
    assert!(topo_matrix(&host).contains("PXB"));
}

#[test]
fn a_gpu_in_one_package_with_its_cpu_reaches_nics_over_it() {
    let mut host = Host::new("superchip");
    let cpu = host.add("CPU0", DeviceKind::Cpu { socket: 0, processor: Processor::EPYC_ROME });
    let (gpu, nic) = (gpu(&mut host, 0), nic(&mut host, 0));
    host.join(cpu, gpu, HostLinkKind::C2c, gigabytes(400), gigabytes(450));
    host.join_pcie(cpu, nic, 5, 16, Some(0));
    assert_eq!(host.path(gpu, cpu).kind, PathType::C2c);
    assert_eq!(host.path(gpu, nic).kind, PathType::P2c);
    assert_eq!(host.path(nic, gpu).kind, PathType::P2c);
}

#[test]
fn what_is_not_linked_is_not_reached() {
    let mut host = Host::new("loose");
    let (a, b) = (gpu(&mut host, 0), gpu(&mut host, 1));
    let path = host.path(a, b);
    assert_eq!((path.kind, path.bandwidth), (PathType::Dis, Rate::ZERO));
    assert_eq!(host.check().unwrap_err().to_string(), "nothing leads to GPU0 of loose");
    host.join_pcie(a, DeviceId(9), 4, 16, None);
    assert_eq!(
        host.check().unwrap_err().to_string(),
        "link 0 of loose ends at device 9, which does not exist"
    );
}

#[test]
fn pcie_carries_what_nccl_expects() {
    assert_eq!(pcie_bandwidth(3, 16), gigabytes(12));
    assert_eq!(pcie_bandwidth(4, 16), gigabytes(24));
    assert_eq!(pcie_bandwidth(5, 16), gigabytes(48));
    assert_eq!(pcie_bandwidth(6, 16), gigabytes(96));
    assert_eq!(pcie_bandwidth(4, 4), gigabytes(6));
    assert!(pcie_line_rate(5, 16) > gigabytes(62) && pcie_line_rate(5, 16) < gigabytes(64));
}

#[test]
fn what_gpus_send_through_nics_is_what_the_best_path_carries() {
    for (name, _) in catalogue::hosts() {
        if name == "gb200-nvl72" {
            // Path by path it takes seconds.
            continue;
        }
        let host = catalogue::host(name).unwrap();
        let best = |gpu: &DeviceId| {
            let nics = host.compute_nics().into_iter();
            nics.map(|nic| host.path_with_pxn(*gpu, nic).bandwidth).max().unwrap_or(Rate::ZERO)
        };
        let best: Vec<Rate> = host.gpus().iter().map(best).collect();
        assert_eq!(host.rates_to_nics(), best, "{name}");
    }
}
