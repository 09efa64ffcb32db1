use super::*;

fn compute(model: &str) -> Compute {
    match gpu(model) {
        Some(DeviceKind::Gpu { compute: Some(compute), .. }) => compute,
        _ => panic!("{model} is missing"),
    }
}

#[test]
fn every_gpu_computes_no_faster_than_its_data_sheet_says_and_has_sources() {
    for (name, sources) in Catalogue::built_in().gpus() {
        let compute = compute(name);
        assert!(compute.half_sustained <= compute.half_best && compute.half_best < compute.half, "{name}");
        assert!(compute.attention_backward < compute.attention_forward, "{name}");
        assert!(compute.attention_forward < compute.half_sustained, "{name}");
        assert!(!sources.is_empty(), "{name}");
    }
    assert_eq!(compute("H100 SXM5").half, 989_400_000_000_000);
    assert_eq!(compute("H200 SXM5"), compute("H100 SXM5"));
    assert!(gpu("abacus").is_none());
    for (name, title) in hosts() {
        assert!(!title.is_empty() && !Catalogue::built_in().host_sources(name).is_empty(), "{name}");
    }
}

const OWN: &str = "
[[gpu]]
name = \"X1\"
memory = \"64GB\"
bandwidth = { nominal = \"2TB/s\", percent = 90 }
compute_capability = 90
pcie = 5
multiprocessors = 100
half = { nominal = 500.0, best = 400.0, sustained = 350.0 }
single = 100.0
attention = { forward = 200.0, backward = 150.0 }

[[machine]]
name = \"box\"
gpu = \"X1\"
sockets = [0]
processor = \"sapphire-rapids\"
[[machine.bridge]]
numa = 0
switch = 1
gpus = 2
nics = [{ name = \"eth0\", nic = \"connectx-7\" }]

[[model]]
anything = true
";

#[test]
fn a_file_of_ones_own_adds_servers_of_known_parts() {
    let mut own = Catalogue::built_in().clone();
    own.extend(OWN).unwrap();
    let host = own.host("box").unwrap();
    assert_eq!((host.gpus().len(), host.compute_nics().len()), (2, 1));
    assert!(matches!(&host.device(host.gpus()[0]).kind, DeviceKind::Gpu { model, .. } if model == "X1"));
    assert!(own.host("dgx-h100").is_some() && Catalogue::built_in().host("box").is_none());
}

#[test]
fn what_is_wrong_with_a_file_is_marked() {
    let cases = [
        (
            OWN.replace("gpu = \"X1\"", "gpu = \"X2\""),
            "no GPU is called \"X2\": one of V100 SXM2, ",
            "\"X2\"",
        ),
        (OWN.replace("connectx-7", "connectx-8"), "no NIC is called \"connectx-8\"", "\"connectx-8\""),
        (
            OWN.replace("\"box\"", "\"dgx-h100\""),
            "there is a server called \"dgx-h100\" already",
            "\"dgx-h100\"",
        ),
        (OWN.replace("numa = 0", "numa = 1"), "there are NUMA nodes 0 to 0", "1"),
        (OWN.replace("\"64GB\"", "64"), "a text with its unit", "64"),
    ];
    for (text, message, marked) in cases {
        let error = Catalogue::built_in().clone().extend(&text).unwrap_err();
        assert!(error.message.contains(message), "{error}");
        assert_eq!(&text[error.span.unwrap()], marked, "{}", error.message);
    }
    let near = Catalogue::built_in().clone().extend(&OWN.replace("connectx-7", "connectx-77")).unwrap_err();
    assert_eq!(near.meant.as_deref(), Some("connectx-7"));
}
