//! NCCL's topology files: those of the catalogue there and back, two files in NCCL's manner, and bad ones.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use railnet_coll::TopologyOptions;
use railnet_coll::search::{Graph, search};
use railnet_core::{Rate, Span};
use railnet_formats::nccl_graph;
use railnet_formats::nccl_topology::{read, write};
use railnet_topology::catalogue;
use railnet_topology::host::{DeviceId, DeviceKind, Host, PathType, Processor};

const HGX: &str = include_str!("../../../testdata/nccl/hgx-h100.xml");
const BRIDGE: &str = include_str!("../../../testdata/nccl/two-a100-bridge.xml");

/// How all GPUs and NICs reach each other.
fn paths(host: &Host) -> Vec<(PathType, Rate)> {
    let devices: Vec<_> = host.gpus().into_iter().chain(host.nics()).collect();
    let all = devices.iter().flat_map(|from| {
        let paths = host.paths_from(*from);
        let to = |to: &DeviceId| (paths[to.0 as usize].kind, paths[to.0 as usize].bandwidth);
        devices.iter().map(to).collect::<Vec<_>>()
    });
    all.collect()
}

fn kinds(host: &Host) -> Vec<(String, DeviceKind)> {
    let ids = host.gpus().into_iter().chain(host.nics()).chain(host.drives());
    ids.map(|id| (host.device(id).name.clone(), host.device(id).kind.clone())).collect()
}

#[test]
fn every_server_of_the_catalogue_survives_the_way_there_and_back() {
    for (name, _) in catalogue::hosts() {
        let host = catalogue::host(name).unwrap();
        let text = write(&host);
        let again = read(name, &text).unwrap();
        assert!(kinds(&again) == kinds(&host), "{name}: devices differ");
        assert!(paths(&again) == paths(&host), "{name}: paths differ");
        assert_eq!(again.processor(), host.processor(), "{name}");
        assert_eq!(write(&again).lines().count(), text.lines().count(), "{name}");
        if host.gpus().len() == 8 {
            let found = |host: &Host| search(host, 2, &TopologyOptions::default()).unwrap();
            assert_eq!(found(&again), found(&host), "{name}");
        }
    }
}

fn figures(graph: &Graph) -> (usize, f32, f32) {
    (graph.channels.len(), graph.bw_intra, graph.bw_inter)
}

#[test]
fn a_server_as_nccl_dumps_it_is_read() {
    let host = read("hgx", HGX).unwrap();
    let (gpus, nics) = (host.gpus(), host.compute_nics());
    assert_eq!((gpus.len(), nics.len(), host.cpus().len()), (8, 8, 2));
    assert_eq!(host.processor(), Some(Processor::SAPPHIRE_RAPIDS));
    assert_eq!((host.nvlinks(gpus[5]), host.compute_capability(), host.has_nvls()), (18, Some(90), true));
    let switch = DeviceKind::NvSwitch { chips: 4, reduces: true };
    assert!(host.devices.iter().any(|device| device.kind == switch));
    let near = host.path(gpus[3], nics[3]);
    assert_eq!((near.kind, near.bandwidth), (PathType::Pix, Rate::gbps(48 * 8)));
    assert_eq!(host.path(gpus[3], nics[2]).kind, PathType::Phb);
    assert_eq!(host.path(gpus[3], nics[4]).kind, PathType::Sys);
    assert_eq!(host.path(gpus[0], gpus[7]).bandwidth, Rate::mbps(370_800 * 8));
    assert!(matches!(&host.device(gpus[0]).kind, DeviceKind::Gpu { model, .. } if model == "H100 SXM5"));
    let options = TopologyOptions::default();
    assert_eq!(figures(&search(&host, 1, &options).unwrap().ring), (12, 30.0, 30.0));
    assert_eq!(figures(&search(&host, 4, &options).unwrap().ring), (8, 48.0, 48.0));
}

#[test]
fn gpus_come_in_the_order_of_their_numbers_and_nics_without_a_bus_are_local() {
    let host = read("workstation", BRIDGE).unwrap();
    let (gpus, nics) = (host.gpus(), host.nics());
    assert_eq!((gpus.len(), nics.len(), host.drives().len()), (2, 1, 1));
    let nvlink = host.path(gpus[0], gpus[1]);
    assert_eq!((nvlink.kind, nvlink.bandwidth), (PathType::Nvl, Rate::gbps(240 * 8)));
    let DeviceKind::Nic { rate, gpudirect, latency, .. } = host.device(nics[0]).kind else {
        panic!("it is a NIC")
    };
    assert_eq!((rate, gpudirect, latency), (Rate::gbps(25), false, Span::from_ns(1_500)));
    assert_eq!(host.path(gpus[0], nics[0]).kind, PathType::Phb);
    // The card of device id 0x20b5 is not in the catalogue; its compute capability is.
    assert!(matches!(&host.device(gpus[0]).kind, DeviceKind::Gpu { model, .. } if model == "A100 SXM4"));
    let graphs = search(&host, 2, &TopologyOptions::default()).unwrap();
    assert_eq!(graphs.ring.latency_inter, Span::from_ns(1_500));
}

#[test]
fn bad_files_are_refused_with_the_line_and_what_to_do() {
    let pci = |inside: &str| {
        let cpu = "<cpu numaid=\"0\" arch=\"x86_64\" familyid=\"6\" modelid=\"143\">";
        format!("<system version=\"1\">\n{cpu}\n{inside}\n</cpu>\n</system>")
    };
    let gpu = |attributes: &str| {
        pci(&format!("<pci busid=\"0000:01:00.0\" class=\"0x030200\"><gpu {attributes}/></pci>"))
    };
    let net = "<nic><net name=\"a\" speed=\"1000\"/></nic>";
    let many = (b'a'..=b'q').map(|letter| format!(" {}=\"1\"", letter as char)).collect::<Vec<_>>().concat();
    let nvlink = |count: u16| format!("<nvlink target=\"0\" count=\"{count}\" tclass=\"0x068000\"/>");
    let links = gpu("dev=\"0\" sm=\"90\"");
    let links = links.replace("/></pci>", &format!(">{}\n{}</gpu></pci>", nvlink(u16::MAX), nvlink(1)));
    let cases = [
        ("nonsense".to_owned(), "line 1: this is not XML", "NCCL_TOPO_DUMP_FILE"),
        ("<system version=\"1\">\n<cpu></gpu>".to_owned(), "line 2: this is not XML", "NCCL_TOPO_DUMP_FILE"),
        ("<graphs version=\"1\"/>".to_owned(), "line 1: the file begins with <graphs>", "<system version"),
        ("<system/>".to_owned(), "line 1: <system> has no version", "write version="),
        ("<system version=\"2\"/>".to_owned(), "version 2 of the format", "version 1"),
        ("<system version=\"1\"/>".to_owned(), "there is no <cpu>", "inside the <cpu>"),
        (pci(""), "line 1: there are no GPUs and no NICs", "a GPU is <pci"),
        (pci("<pci class=\"0x030200\"/>"), "line 3: <pci> has no busid", "busid=\"0000:17:00.0\""),
        (gpu("sm=\"90\""), "line 3: <gpu> has no dev", "a number"),
        (gpu("dev=\"0\" sm=\"ninety\""), "line 3: sm=\"ninety\" of <gpu> is not a number", "plain number"),
        (pci(&format!("{net}\n{net}")), "line 4: two NICs are called a", "its own"),
        (gpu("dev=\"0\" sm=\"90\"").replace("x86_64", "vax"), "line 2: no architecture is called", "ppc64"),
        (pci(&format!("<pci{many}/>")), "line 3: <pci> has more than 16 attributes", "leave some out"),
        (gpu(&format!("dev=\"{}\"", "0".repeat(256))), "longer than 255 characters", "shorten"),
        (links.replace("0x068000", "0x068001"), "line 4: a GPU with more than 65535 NVLinks", "18 at most"),
        (links, "line 4: a GPU with more than 65535 NVLinks", "18 at most"),
    ];
    for (text, what, help) in cases {
        let message = read("bad", &text).unwrap_err().to_string();
        assert!(message.contains(what), "{message}\nshould say {what}");
        assert!(message.contains("help: ") && message.contains(help), "{message}\nshould say {help}");
    }
}

#[test]
fn graphs_are_written_as_nccl_dumps_them() {
    let host = catalogue::host("dgx-h100").unwrap();
    let alone = nccl_graph::write(&search(&host, 1, &TopologyOptions::default()).unwrap());
    let ring = "<graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"12\" speedintra=\"30\" speedinter=\"30\" \
                latencyinter=\"0\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"1\">";
    assert!(alone.starts_with("<graphs version=\"1\">\n") && alone.contains(ring), "{alone}");
    assert!(!alone.contains("<net"), "{alone}");
    let options = TopologyOptions { collnet_enable: true, ..TopologyOptions::default() };
    let many = nccl_graph::write(&search(&host, 2, &options).unwrap());
    for id in 0..5 {
        assert_eq!(many.matches(&format!("<graph id=\"{id}\"")).count(), 1, "{many}");
    }
    assert_eq!(many.matches("<channel>").count(), 5 * 8, "{many}");
    assert!(many.contains("<net dev=\"0x7\"/>\n      <gpu dev=\"0x7\"/>"), "{many}");
}
