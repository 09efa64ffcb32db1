#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use proptest::prelude::*;

use super::*;
use crate::Collective;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn environment(list: &[(&str, &str)]) -> Result<Variables, VariableError> {
    Variables::merge([(Source::Environment, pairs(list))])
}

fn message(name: &str, value: &str) -> String {
    environment(&[(name, value)]).unwrap_err().to_string()
}

/// The algorithms that a text allows for a collective, by their numbers.
fn algorithms(text: &str, collective: Collective) -> Vec<usize> {
    let settings = environment(&[("NCCL_ALGO", text)]).unwrap().settings();
    (0..7).filter(|index| settings.algorithms.allows(collective, *index)).collect()
}

#[test]
fn algorithms_are_listed_left_out_or_given_for_one_collective() {
    use Collective::{AllGather, AllReduce, Broadcast};
    let all = vec![0, 1, 2, 3, 4, 5, 6];
    let cases = [
        ("ring", AllReduce, vec![1]),
        ("Tree,RING", Broadcast, vec![0, 1]),
        ("^NVLS, NVLSTree", AllReduce, vec![0, 1, 2, 3, 6]),
        ("ring;allreduce:tree,collnetchain", AllReduce, vec![0, 3]),
        ("ring;allreduce:tree,collnetchain", AllGather, vec![1]),
        ("allreduce:^tree", AllReduce, vec![1, 2, 3, 4, 5, 6]),
        ("allreduce:^tree", AllGather, all.clone()),
        (";allgather:pat", AllGather, vec![6]),
        (";allgather:pat", AllReduce, all),
    ];
    for (text, collective, expected) in cases {
        assert_eq!(algorithms(text, collective), expected, "{text} {collective}");
    }
}

#[test]
fn a_wrong_value_is_told_with_what_would_be_right() {
    let cases = [
        (
            "NCCL_ALGO",
            "rign",
            "NCCL_ALGO=rign (the environment): unknown algorithm \"rign\": one of Tree, Ring,",
        ),
        ("NCCL_ALGO", "rign", "did you mean \"Ring\"?"),
        ("NCCL_ALGO", "", "an algorithm is missing: one of Tree"),
        (
            "NCCL_ALGO",
            "ring;tree",
            "\"tree\" does not say for which collective: write it like allreduce:tree",
        ),
        ("NCCL_ALGO", "alreduce:ring", "unknown collective \"alreduce\": one of Broadcast"),
        ("NCCL_PROTO", "LL,", "a protocol is missing: one of LL, LL128, Simple"),
        ("NCCL_PROTO", "LL126", "did you mean \"LL128\"?"),
        ("NCCL_P2P_DISABLE", "yes", "0 or 1 is wanted"),
        (
            "NCCL_BUFFSIZE",
            "4MiB",
            "a whole number of bytes from 4096 to 1073741824 is wanted, without a unit",
        ),
        ("NCCL_MAX_CTAS", "65", "a whole number from 1 to 64 is wanted"),
        ("NCCL_NTHREADS", "100", "threads come in warps of 32"),
        ("NCCL_P2P_LEVEL", "PXX", "unknown distance \"PXX\": one of LOC, NVL, PIX, PXB, PHB, SYS"),
        ("NCCL_IB_HCA", "mlx5_0,,mlx5_1", "a name is missing"),
        ("NCCL_IB_HCA", "mlx5_0:one", "\"mlx5_0:one\" is not of the form name:port:rail:plane"),
        ("NCCL_DEBUG", "LOUD", "unknown level \"LOUD\""),
        ("NCCL_DEBUG_SUBSYS", "TUNIGN", "did you mean \"TUNING\"?"),
        ("NCCL_IB_TIMEOUT", "0", "from 1 to 31"),
    ];
    for (name, value, expected) in cases {
        let told = message(name, value);
        assert!(told.contains(expected), "{expected} is missing in {told}");
    }
    let crossed =
        environment(&[("NCCL_MIN_CTAS", "8"), ("NCCL_MAX_NCHANNELS", "4")]).unwrap_err().to_string();
    assert!(crossed.starts_with("NCCL_MIN_CTAS=8 is more than NCCL_MAX_NCHANNELS=4"), "{crossed}");
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_the_scenario() {
    let variables = Variables::merge([
        (Source::Environment, pairs(&[("NCCL_IB_TC", "3"), ("PATH", "/bin")])),
        (
            Source::Scenario,
            pairs(&[("NCCL_IB_TC", "1"), ("NCCL_BUFFSIZE", "8388608"), ("NCCL_MAX_CTAS", "4")]),
        ),
        (Source::File, pairs(&[("NCCL_IB_TC", "2"), ("NCCL_MAX_CTAS", "8")])),
    ])
    .unwrap();
    assert_eq!(variables.number("NCCL_IB_TC"), Some(3));
    assert_eq!(variables.channels_max(), Some(8));
    assert_eq!(variables.settings().buffers[2], Bytes(8 << 20));
    let set: Vec<_> = variables.set().map(|(name, text, source)| format!("{name}={text} {source}")).collect();
    assert_eq!(
        set,
        [
            "NCCL_BUFFSIZE=8388608 the scenario's [env]",
            "NCCL_IB_TC=3 the environment",
            "NCCL_MAX_CTAS=8 the file of --env-file"
        ]
    );
}

#[test]
fn a_name_without_effect_is_reported_once_and_others_are_left_alone() {
    let names = [("NCCL_ALOG", "ring"), ("NCCL_LAUNCH_MODE", "GROUP"), ("NCCL_IB_TC", "106"), ("HOME", "/")];
    let variables = Variables::merge([
        (Source::File, pairs(&names)),
        (Source::Environment, pairs(&[("NCCL_LAUNCH_MODE", "PARALLEL")])),
    ])
    .unwrap();
    assert_eq!(
        variables.without_effect(Place::Tune),
        [
            "NCCL_ALOG (the file of --env-file) has no effect in Railnet; did you mean NCCL_ALGO?",
            "NCCL_LAUNCH_MODE (the environment) has no effect in Railnet",
            "NCCL_IB_TC (the file of --env-file) has no effect in railnet tune",
        ]
    );
    assert_eq!(variables.without_effect(Place::Sim).len(), 2);
}

#[test]
fn files_are_read_as_nccl_conf_is() {
    let text = "# the lab's\n\n  NCCL_ALGO = ring \nNCCL_IB_HCA==mlx5_0\n";
    assert_eq!(
        Variables::parse_file(text).unwrap(),
        pairs(&[("NCCL_ALGO", "ring"), ("NCCL_IB_HCA", "=mlx5_0")])
    );
    // Or as a shell script has them.
    assert_eq!(
        Variables::parse_file("export NCCL_ALGO=\"^ring\"\nNCCL_PROTO='LL'\n").unwrap(),
        pairs(&[("NCCL_ALGO", "^ring"), ("NCCL_PROTO", "LL")])
    );
    assert!(Variables::parse_file("set NCCL_ALGO=ring").is_err());
    let wrong = Variables::parse_file("NCCL_ALGO=ring\nexport\n").unwrap_err().to_string();
    assert_eq!(wrong, "line 2: \"export\" is not of the form NAME=VALUE");
    assert!(Variables::parse_file("=ring").is_err());
}

#[test]
fn the_search_gets_what_is_set_and_defaults_else() {
    assert_eq!(environment(&[]).unwrap().topology(), TopologyOptions::default());
    let set = [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_SHM_DISABLE", "0"),
        ("NCCL_NET_GDR_LEVEL", "PHB"),
        ("NCCL_NET_GDR_READ", "0"),
        ("NCCL_CROSS_NIC", "1"),
        ("NCCL_IB_HCA", "^=mlx5_1:1"),
        ("NCCL_COLLNET_ENABLE", "1"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_NCHANNELS", "4"),
    ];
    let expected = TopologyOptions {
        p2p_disable: true,
        net_gdr_level: Some(PathType::Phb),
        net_gdr_read: Some(false),
        cross_nic: CrossNic::Always,
        ib_hca: NicFilter::new("^=mlx5_1"),
        collnet_enable: true,
        nvls_enable: false,
        channels_min: 4,
        channels_max: 4,
        ..TopologyOptions::default()
    };
    assert_eq!(environment(&set).unwrap().topology(), expected);
}

#[test]
fn levels_have_names_and_old_numbers() {
    let level =
        |text: &str| environment(&[("NCCL_NET_GDR_LEVEL", text)]).unwrap().level("NCCL_NET_GDR_LEVEL");
    let cases = [("phb", PathType::Phb), ("SYS", PathType::Sys), ("0", PathType::Loc), ("2", PathType::Pxb)];
    for (text, expected) in cases {
        assert_eq!(level(text), Some(expected), "{text}");
    }
    assert_eq!(level("9"), Some(PathType::Sys));
}

#[test]
fn info_tells_of_the_start_and_more_where_asked() {
    let debug = |list: &[(&str, &str)]| environment(list).unwrap().debug();
    assert!(!debug(&[]).tells(&[Subsystem::Init]));
    assert!(!debug(&[("NCCL_DEBUG", "WARN")]).tells(&[Subsystem::Init]));
    let info = debug(&[("NCCL_DEBUG", "info")]);
    assert!(
        info.tells(&[Subsystem::Init]) && info.tells(&[Subsystem::Env]) && !info.tells(&[Subsystem::Tuning])
    );
    let tuning = debug(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING")]);
    assert!(tuning.tells(&[Subsystem::Tuning]) && !tuning.tells(&[Subsystem::Init]));
    let most = debug(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "^GRAPH,INIT")]);
    assert!(most.tells(&[Subsystem::Net]) && !most.tells(&[Subsystem::Graph]));
    assert!(most.tells(&[Subsystem::Graph, Subsystem::Tuning]));
}

#[test]
fn every_declaration_takes_its_default_and_is_there_once() {
    for one in DECLARATIONS {
        assert_eq!(DECLARATIONS.iter().filter(|other| other.name == one.name).count(), 1, "{}", one.name);
        assert!(one.name.starts_with("NCCL_") && !one.text.is_empty());
        if one.default.bytes().all(|letter| letter.is_ascii_digit() || letter == b'-') {
            assert!(environment(&[(one.name, one.default)]).is_ok(), "{}", one.name);
        }
    }
}

proptest! {
    #[test]
    fn no_value_panics(
        index in 0..DECLARATIONS.len(),
        value in "[-^=;:,0-9a-zA-Z_ x]{0,16}|\\PC{0,8}|(ring|tree|\\^|;|:|,|allreduce){0,8}",
    ) {
        let _ = environment(&[(DECLARATIONS[index].name, &value)]);
        let _ = Variables::parse_file(&value);
    }
}
