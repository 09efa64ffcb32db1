//! Fabrics link by link, and what shapes can be told besides.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use railnet_core::event::NoSink;
use railnet_core::{Rate, Span};
use railnet_sim::{BlockingCause, Run, RunError, Scenario, ScenarioError, graph};

const SEND: &str = "[[traffic]]\nkind = \"permutation\"\nbytes = \"100KB\"\n";

fn list(rest: &str) -> String {
    format!("[fabric.topology]\nkind = \"list\"\n{rest}\n{SEND}")
}

fn parse(text: &str) -> Scenario {
    Scenario::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A scenario whose fabric is in a file of this content.
fn filed(content: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse_with(&list("file = \"links.csv\""), |path: &str| {
        assert_eq!(path, "links.csv");
        Ok(content.to_owned())
    })
}

#[test]
fn a_list_is_built_as_it_is_written() {
    let text = list(
        "hosts = 3\nswitches = [\"a\", \"b\"]\nlinks = [[\"a\", \"host2\"], [\"host0\", \"a\"], [\"host1\", \"b\"],\n\
         { between = [\"a\", \"b\"], rate = \"400Gbps\", delay = \"5us\" }]",
    );
    let scenario = parse(&text);
    let graph = graph(&scenario).unwrap();
    let names: Vec<&str> = graph.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["host0", "host1", "host2"], "numbered by name, not by the order of links");
    assert_eq!(graph.link_name(3), "a - b");
    assert_eq!((graph.links[3].rate, graph.links[3].delay), (Rate::gbps(400), Span::from_us(5)));
    assert_eq!((graph.links[0].rate, graph.links[0].delay), (Rate::gbps(100), Span::from_us(1)));
    assert!(railnet_sim::run(&scenario, NoSink).is_ok());
    let named = list("hosts = [\"x\", \"y\"]\nlinks = [[\"x\", \"y\"]]")
        + "[[traffic]]\nkind = \"flow\"\nfrom = \"y\"\nto = \"x\"\nbytes = \"1MB\"\n";
    let (outcome, _) = railnet_sim::run(&parse(&named), NoSink).unwrap();
    assert_eq!((outcome.flows[2].flow.source, outcome.flows[2].flow.target), (1, 0));
}

#[test]
fn a_nic_is_as_fast_as_its_link() {
    let us = |rate: &str| {
        let text = list(&format!(
            "hosts = 2\nswitches = [\"s\"]\nlinks = [{{ between = [\"host0\", \"s\"], rate = \"{rate}\" }}, [\"host1\", \"s\"]]"
        ));
        let text = text.replace("permutation\"", "flow\"\nfrom = 0\nto = 1").replace("100KB", "8MB");
        railnet_sim::run(&parse(&text), NoSink).unwrap().0.completion.as_ps() as f64 / 1e6
    };
    let (full, tenth) = (us("100Gbps"), us("10Gbps"));
    assert!((9.8..10.2).contains(&(tenth / full)), "{tenth} and {full}");
}

#[test]
fn a_file_of_links_is_read_and_hosts_are_those_with_one_link() {
    let content =
        "from,to,rate,delay\nb0, leaf ,,\nb1,leaf,25Gbps\n\n# more\nleaf,spine,400Gbps,5us\nspine,c0\n";
    let graph = graph(&filed(content).unwrap()).unwrap();
    let names: Vec<&str> = graph.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["b0", "b1", "c0"]);
    assert_eq!(graph.switches.len(), 2);
    assert_eq!((graph.links[1].rate, graph.links[2].delay), (Rate::gbps(25), Span::from_us(5)));
    assert!(railnet_sim::run(&filed(content).unwrap(), NoSink).is_ok());
}

#[test]
fn the_topology_files_of_hpcc_are_read() {
    let content = "6 2 5\n4 5\n0 4 100Gbps 1us 0\n1 4 100Gbps 0.001ms 0.000000\n2 5 25Gbps 1us 0\n3 5 25Gbps 1us 0\n\
                   4 5 400Gbps 1us 0\n";
    let graph = graph(&filed(content).unwrap()).unwrap();
    assert_eq!((graph.hosts.len(), graph.switches.len(), graph.links.len()), (4, 2, 5));
    assert_eq!(graph.link_name(4), "switch4 - switch5");
    assert_eq!((graph.links[2].rate, graph.links[1].delay), (Rate::gbps(25), Span::from_us(1)));
    for (bad, hint) in [
        (content.replace("6 2 5", "6 2 7"), "7 links are announced and 5 are there"),
        (content.replace("4 5\n0", "4 9\n0"), "there is no node 9"),
        (content.replace("1us 0\n1", "1us 0.1\n1"), "error rates are not taken"),
        (content.replace("0 4 100Gbps", "0 4 fast"), "cannot read \"fast\" as a rate"),
    ] {
        let error = railnet_sim::graph(&filed(&bad).unwrap()).unwrap_err();
        assert!(error.message.contains(hint), "{error}");
    }
}

#[test]
fn bad_lists_are_refused_with_their_place() {
    for (rest, hint, place) in [
        ("hosts = 2\nlinks = [[\"host0\", \"hots1\"]]", "\"hots1\" is neither", "\"hots1\""),
        (
            "hosts = 2\nswitches = [\"a\"]\nlinks = [{ between = [\"host0\", \"b\"] }]",
            "\"b\" is neither",
            "\"b\"",
        ),
        ("hosts = 2\nswitches = [\"host1\"]", "there twice", "\"host1\""),
        ("hosts = 2\nswitches = [\"a:1\"]", "is no name", "\"a:1\""),
        ("links = [[\"a\", \"b\"]]", "how many hosts", "\"list\""),
        ("hosts = true", "how many hosts there are", "true"),
        ("hosts = 2\nlinks = [[\"host0\"]]", "two ends", "host0"),
        (
            "hosts = 2\nlinks = [{ between = [\"host0\", \"host1\"], rate = \"0bps\" }]",
            "moves nothing",
            "\"0bps\"",
        ),
        (
            "hosts = 2\nlinks = [{ between = [\"host0\", \"host1\"], speed = 1 }]",
            "unknown field `speed`",
            "speed",
        ),
        ("hosts = 2\nlinks = [{ between = [\"host0\", \"host1\"], rate = \"1\" }]", "no unit", "1"),
        (
            "hosts = 2\nlinks = [{ between = [\"host0\", \"host1\"], delay = \"9s\" }]",
            "the link host0 - host1: 9 s of delay",
            "[fabric.topology]",
        ),
        (
            "hosts = 3\nswitches = [\"s\"]\nlinks = [[\"host0\", \"s\"], [\"host1\", \"s\"]]",
            "host2 has no link",
            "",
        ),
        ("hosts = 2\nlinks = [[\"host0\", \"host1\"], [\"host1\", \"host0\"]]", "has 2 links", ""),
        ("file = \"x.csv\"", "cannot read x.csv", "\"x.csv\""),
        ("hosts = 0", "no hosts", ""),
    ] {
        let text = list(rest);
        let error = match Scenario::parse(&text) {
            Err(error) => error,
            Ok(scenario) => graph(&scenario).unwrap_err().located(&text),
        };
        assert!(error.message.contains(hint), "{rest}: {error}");
        let found = &text[error.span.clone().unwrap()];
        assert!(place.is_empty() || found == place, "{rest}: {error} at {found}");
    }
    let both =
        Scenario::parse_with(&list("file = \"x.csv\"\nhosts = 2"), |_: &str| Ok(String::new())).unwrap();
    assert!(graph(&both).unwrap_err().message.contains("leave out `hosts`"));
}

#[test]
fn a_bad_line_of_a_file_is_shown_with_the_file() {
    for (content, hint, place) in [
        ("a,s\nb,s,fast\n", "cannot read \"fast\" as a rate", "fast"),
        ("a,s\nb\n", "two ends", "b"),
        ("a,s\nb,s,,,x\n", "a line has two names", "x"),
        ("a,s\nb c,s\n", "is no name", "b c"),
        ("a,s\nb,s,0Gbps\n", "moves nothing", "0Gbps"),
        ("# nothing\n", "no links here", ""),
    ] {
        let error = graph(&filed(content).unwrap()).unwrap_err();
        let file = error.file.as_ref().unwrap_or_else(|| panic!("{error}"));
        assert_eq!((file.path.as_str(), file.text.as_ref()), ("links.csv", content));
        assert!(error.message.contains(hint), "{error}");
        assert_eq!(&content[error.span.unwrap()], place);
    }
}

#[test]
fn shapes_are_oversubscribed_as_they_are_told() {
    let count = |rest: &str| {
        let graph = graph(&parse(&format!("[fabric]\n{rest}\n{SEND}"))).unwrap();
        (graph.hosts.len(), graph.switches.len(), graph.links.len())
    };
    assert_eq!(count("topology = { kind = \"fat-tree\", k = 8 }"), (128, 80, 384));
    assert_eq!(count("topology = { kind = \"fat-tree\", k = 8, oversubscription = 2 }"), (128, 72, 320));
    assert_eq!(
        count("topology = { kind = \"fat-tree\", k = 8, oversubscription = \"4/3\" }"),
        (128, 76, 352)
    );
    let spines = "kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 2";
    assert_eq!(count(&format!("topology = {{ {spines}, links_per_spine = 3 }}")), (4, 4, 16));
    let rails = "kind = \"rail-optimised\", nodes = 2, rails = 2, nodes_per_group = 2, spines = 1";
    assert_eq!(count(&format!("topology = {{ {rails}, links_per_spine = 2 }}")), (4, 3, 8));
    let odd = parse(&format!(
        "[fabric]\ntopology = {{ kind = \"fat-tree\", k = 8, oversubscription = 3 }}\n{SEND}"
    ));
    assert!(graph(&odd).unwrap_err().message.contains("whole number of the 4 uplinks; possible with k = 8"));
}

#[test]
fn links_of_a_kind_can_differ_from_the_rest() {
    let shape =
        "[fabric]\ntopology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, spines = 1 }\n";
    let text = format!(
        "{shape}link = {{ rate = \"100Gbps\", up = {{ rate = \"400Gbps\", delay = \"3us\" }}, edge = {{ delay = \"50ns\" }} }}\n{SEND}"
    );
    let graph = graph(&parse(&text)).unwrap();
    assert_eq!((graph.links[0].rate, graph.links[0].delay), (Rate::gbps(100), Span::from_ns(50)));
    assert_eq!((graph.links[4].rate, graph.links[4].delay), (Rate::gbps(400), Span::from_us(3)));
    for (link, hint) in [
        ("up = { rate = \"0bps\" }", "moves nothing"),
        ("up = { delay = \"1s\" }", "three delays"),
        ("up = { speed = \"1Gbps\" }", "unknown field"),
        ("top = { rate = \"1Gbps\" }", "unknown field"),
    ] {
        let error = Scenario::parse(&format!("{shape}link = {{ {link} }}\n{SEND}")).unwrap_err();
        assert!(error.message.contains(hint) && error.span.is_some(), "{link}: {error}");
    }
    // A NIC takes its rate from its own link.
    let slow = parse(&format!("{shape}link = {{ edge = {{ rate = \"25Gbps\" }} }}\n{SEND}"));
    assert_eq!(slow.edge_rate(), Rate::gbps(25));
}

#[test]
fn a_circle_of_links_that_wait_for_each_other_is_named() {
    let text = include_str!("../../../scenarios/deadlock.toml");
    for control in ["pfc", "credits"] {
        let text =
            text.replace("buffer = \"4MB\"", &format!("buffer = \"4MB\", flow_control = \"{control}\""));
        let error = Run::new(&parse(&text), NoSink).unwrap().finish().err().unwrap();
        let RunError::Stuck(found) = error else { panic!("{error}") };
        let BlockingCause::Deadlock { links, priority: 0 } = &found.cause else { panic!("{found}") };
        assert_eq!(links.len(), 5);
        for (index, (_, to)) in links.iter().enumerate() {
            assert_eq!(*to, links[(index + 1) % 5].0, "each waits for the next");
        }
        assert_eq!(found.waiting.len(), 10);
        let words = found.to_string();
        assert!(words.starts_with("deadlock: s") && words.contains(" → "), "{words}");
        assert!(words.contains("10 flows wait behind them: host 0 to host 4 (PSN "), "{words}");
    }
    let lossy = text.replace("buffer = \"4MB\"", "buffer = \"4MB\", flow_control = \"none\"");
    assert!(railnet_sim::run(&parse(&lossy), NoSink).is_ok());
}
