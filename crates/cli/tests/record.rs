//! `--record`, `--report`, `--trace` and `railnet view` from outside: what the files say, and what the server answers.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read and write their files and open sockets themselves"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use railnet_formats::run_file::schema::NOBODY;
use railnet_formats::run_file::{MISSING, RunFile, Table};
use serde_json::Value;

use crate::harness;
use crate::harness::{railnet, text};

const INCAST: &str = "# Five send to one\nseed = 1\n[fabric]\n\
    topology = { kind = \"leaf-spine\", leaves = 2, hosts_per_leaf = 3, spines = 2 }\n\
    switch = { buffer = \"3MB\", ecn = { kmin = \"20KB\", kmax = \"80KB\", pmax = 0.5 } }\n\
    [nic]\ncontrol = \"dcqcn\"\n[[traffic]]\nkind = \"incast\"\nfrom = \"0..4\"\nto = 5\nbytes = \"400KB\"\n";

const JOB: &str = "steps = 2\n[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric.link]\nrate = \"400Gbps\"\n\
                   [model]\nname = \"tiny\"\n";

fn scratch(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path.to_str().unwrap().to_owned()
}

/// Runs a scenario and records it: the file, and what `--json -` says.
fn recorded(name: &str, scenario: &str) -> (String, RunFile, Value) {
    let (toml, file) = (scratch(&format!("{name}.toml")), scratch(&format!("{name}.rail")));
    fs::write(&toml, scenario).unwrap();
    let output = railnet(&["sim", &toml, "--record", &file, "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = RunFile::parse(&fs::read(&file).unwrap()).unwrap();
    (file, run, serde_json::from_slice(&output.stdout).unwrap())
}

fn sum(table: &Table, column: &str) -> u64 {
    let column = table.column(column).unwrap();
    (0..table.rows).map(|row| table.get(row, column)).sum()
}

#[test]
fn a_record_has_the_numbers_of_the_run() {
    let (_, run, said) = recorded("numbers", INCAST);
    assert_eq!(run.meta["report"]["digest"], said["digest"]);
    assert_eq!(run.meta["title"], "Five send to one");
    // Nobody changes a run by watching it.
    let plain = railnet(&["sim", &scratch_with("plain.toml", INCAST), "--json", "-"]);
    let plain: Value = serde_json::from_slice(&plain.stdout).unwrap();
    assert_eq!(plain["digest"], said["digest"]);
    let links = said["links"].as_array().unwrap();
    let total = |key: &str| links.iter().map(|link| link[key].as_u64().unwrap()).sum::<u64>();
    let load = run.table("load").unwrap();
    assert_eq!(sum(load, "marks"), said["marks"].as_u64().unwrap());
    assert_eq!(sum(load, "bytes"), total("bytes"));
    let queue = load.column("queue").unwrap();
    let longest = (0..load.rows).map(|row| load.get(row, queue)).max().unwrap();
    assert!(longest > 0 && longest <= said["max_queue_bytes"].as_u64().unwrap(), "{longest}");
    let operations = run.table("operations").unwrap();
    assert_eq!(operations.rows, 5);
    assert_eq!(sum(operations, "bytes"), 2_000_000);
    let packets = run.table("packets").unwrap();
    assert_eq!(run.meta["kept"]["packets_sent"], packets.rows);
    let received = packets.column("received").unwrap();
    assert!((0..packets.rows).all(|row| packets.get(row, received) != MISSING), "nothing was lost");
    let connections = run.table("connections").unwrap();
    assert_eq!(sum(connections, "packets"), packets.rows as u64);
}

/// Notifications to the same sender have no numbers of their own, and several are under way at once here.
#[test]
fn the_way_of_every_packet_leads_from_its_sender_to_its_receiver() {
    let scenario =
        INCAST.replace("control = \"dcqcn\"", "control = \"dcqcn\"\nnotification_interval = \"200ns\"");
    let (_, run, said) = recorded("ways", &scenario);
    let [packets, hops] = ["packets", "hops"].map(|name| run.table(name).unwrap());
    let of = |table: &Table, row: usize, name: &str| table.get(row, table.column(name).unwrap());
    let far = |channel: u64| {
        let link = &run.meta["fabric"]["links"][channel as usize / 2];
        link[if channel.is_multiple_of(2) { "b" } else { "a" }].as_u64().unwrap()
    };
    let mut ways: Vec<Vec<usize>> = vec![Vec::new(); packets.rows];
    for hop in 0..hops.rows {
        ways[of(hops, hop, "packet") as usize].push(hop);
    }
    let (mut notifications, mut together) = (0, 0);
    for (row, way) in ways.iter().enumerate() {
        let (mut place, mut time) = (of(packets, row, "host"), of(packets, row, "sent"));
        for &hop in way {
            assert_eq!(of(hops, hop, "vertex"), place, "packet {row}");
            assert!(of(hops, hop, "time") >= time, "packet {row}");
            (place, time) = (far(of(hops, hop, "channel")), of(hops, hop, "time"));
        }
        assert_eq!(place, of(packets, row, "to"), "packet {row}");
        if of(packets, row, "opcode") == 0x81 {
            notifications += 1;
            let is_alike = |other: &usize| {
                ["host", "queue_pair", "opcode"]
                    .iter()
                    .all(|name| of(packets, *other, name) == of(packets, row, name))
            };
            let before = (0..row).rev().find(is_alike);
            together += usize::from(
                before.is_some_and(|other| of(packets, other, "received") > of(packets, row, "sent")),
            );
        }
    }
    assert_eq!(notifications, said["notifications"].as_u64().unwrap());
    assert!(together > 10, "{together} were under way with another");
}

/// An acknowledgement says how many messages are done: all of them in the end.
#[test]
fn acknowledgements_are_recorded_with_their_verdict() {
    let (_, run, _) = recorded("verdicts", INCAST);
    let packets = run.table("packets").unwrap();
    let [opcode, syndrome, messages, host] =
        ["opcode", "syndrome", "messages", "host"].map(|name| packets.column(name).unwrap());
    let mut done = std::collections::BTreeMap::new();
    for row in 0..packets.rows {
        let (is_ack, verdict) = (packets.get(row, opcode) == 0x11, packets.get(row, syndrome));
        // Credits are not in use: 31 in the low five bits of an ACK.
        assert_eq!(verdict, if is_ack { 31 } else { 255 }, "packet {row}");
        if is_ack {
            assert_eq!(packets.get(row, host), 5);
            done.insert(packets.get(row, packets.column("target").unwrap()), packets.get(row, messages));
        }
    }
    assert!(!done.is_empty() && done.values().all(|messages| *messages == 1), "{done:?}");
}

/// A NIC that stops its switch breaks the connections of a job, or of calls alone: what ranks did until then is there.
#[test]
fn a_job_that_fails_leaves_what_its_ranks_did() {
    let servers = "[cluster]\nserver = \"dgx-h100\"\nnodes = 2\n[fabric.link]\nrate = \"400Gbps\"\n[nic]\ntimeout = 6\n";
    let calls = format!("{servers}[[collective]]\nkind = \"all-reduce\"\nsize = \"8MB\"\n");
    let job = format!("steps = 2\n{servers}[model]\nname = \"tiny\"\n");
    for (name, scenario, at) in [("broken-calls", calls, "50us"), ("broken-job", job, "300us")] {
        let scenario = format!("{scenario}[[faults]]\nkind = \"pause-storm\"\nhost = 3\nat = \"{at}\"\n");
        let (toml, file) =
            (scratch_with(&format!("{name}.toml"), &scenario), scratch(&format!("{name}.rail")));
        let output = railnet(&["sim", &toml, "--record", &file, "--json", "-"]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let why = said["error"]["message"].as_str().unwrap();
        assert!(why.contains("transport retry count exceeded"), "{name}: {why}");
        assert!(text(&output.stderr).contains(why), "{name}");
        let run = RunFile::parse(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(run.meta["report"]["error"], said["error"]);
        let operations = run.table("operations").unwrap();
        assert!(operations.rows >= 16, "{name}: {} operations", operations.rows);
        assert!(run.meta["duration"].as_u64().unwrap() < 100_000_000_000, "it ends when it is broken");
        // It broke in its first step: what ranks were in lasts until the end.
        let ended = operations.column("ended").unwrap();
        let last = (0..operations.rows).map(|row| operations.get(row, ended)).max();
        assert_eq!(last, run.meta["duration"].as_u64(), "{name}");
    }
}

/// Links without credit wait, and the tree of them begins at the host that cannot take more; nobody changes a run by looking at it.
#[test]
fn who_waits_for_credit_of_whom_is_recorded() {
    let scenario = INCAST.replace("buffer = \"3MB\"", "flow_control = \"credits\", buffer = \"3MB\"");
    let (_, run, said) = recorded("link-credits", &scenario);
    let plain = railnet(&["sim", &scratch_with("link-credits-plain.toml", &scenario), "--json", "-"]);
    let plain: Value = serde_json::from_slice(&plain.stdout).unwrap();
    assert_eq!(plain["digest"], said["digest"]);
    assert_eq!((&run.meta["credits"], &said["pauses"]), (&true.into(), &0.into()));
    let pauses = run.table("pauses").unwrap();
    let [begun, ended, cause] = ["begun", "ended", "cause"].map(|name| pauses.column(name).unwrap());
    let roots = (0..pauses.rows).filter(|row| pauses.get(*row, cause) == NOBODY).count();
    assert!(roots > 0 && roots < pauses.rows, "{roots} of {}", pauses.rows);
    assert!((0..pauses.rows).all(|row| pauses.get(row, begun) <= pauses.get(row, ended)));
    assert!(sum(run.table("load").unwrap(), "paused") > 0);
}

/// Behind a global link packets have the next priority: what holds them back there is the cause of what the link is told.
#[test]
fn trees_of_pauses_go_on_behind_global_links() {
    let scenario = "[fabric]\ntopology = { kind = \"dragonfly\", groups = 5, routers = 4, hosts = 2, global_links = 1 }\n\
        link = { rate = \"100Gbps\", delay = \"500ns\" }\nswitch = { buffer = \"1MB\", ecn = false }\n[nic]\ncontrol = \"none\"\n\
        [[traffic]]\nkind = \"incast\"\nfrom = \"8..39\"\nto = 0\nbytes = \"400KB\"\n";
    let (_, run, _) = recorded("global-links", scenario);
    let fabric = &run.meta["fabric"];
    let hosts = fabric["hosts"].as_array().unwrap().len() as u64;
    let group = |vertex: &Value| {
        let switch = vertex.as_u64().unwrap().checked_sub(hosts)?;
        Some(fabric["switches"][switch as usize]["pod"].clone())
    };
    let is_global = |channel: u64| {
        let link = &fabric["links"][channel as usize / 2];
        group(&link["a"]).zip(group(&link["b"])).is_some_and(|(one, two)| one != two)
    };
    let pauses = run.table("pauses").unwrap();
    let [channel, cause] = ["channel", "cause"].map(|name| pauses.column(name).unwrap());
    let global: Vec<usize> = (0..pauses.rows).filter(|row| is_global(pauses.get(*row, channel))).collect();
    let caused = global.iter().filter(|row| pauses.get(**row, cause) != NOBODY).count();
    assert!(caused * 2 > global.len() && !global.is_empty(), "{caused} of {}", global.len());
}

/// With credits each acknowledgement says how many more messages may come, and all come through all the same.
#[test]
fn credits_are_in_the_acknowledgements_where_they_are_in_use() {
    let (head, traffic) = INCAST.split_once("[[traffic]]").unwrap();
    let traffic = format!("[[traffic]]{traffic}").repeat(4);
    let scenario = format!("{}{traffic}", head.replace("[nic]\n", "[nic]\ncredits = true\n"));
    let (_, run, said) = recorded("credits", &scenario);
    assert_eq!(said["flows"].as_array().unwrap().len(), 20);
    let packets = run.table("packets").unwrap();
    let [opcode, syndrome] = ["opcode", "syndrome"].map(|name| packets.column(name).unwrap());
    let codes = (0..packets.rows).filter(|row| packets.get(*row, opcode) == 0x11);
    let codes: std::collections::BTreeSet<u64> = codes.map(|row| packets.get(row, syndrome)).collect();
    assert!(codes.iter().all(|code| *code < 31) && codes.contains(&0) && codes.len() > 1, "{codes:?}");
}

/// One host stops its switch for good: what happened until then is there all the same.
#[test]
fn a_run_that_fails_leaves_what_happened_until_then() {
    let scenario = format!("{INCAST}[[faults]]\nkind = \"pause-storm\"\nhost = 5\nat = \"10us\"\n");
    let toml = scratch_with("failed.toml", &scenario);
    let files = ["failed.rail", "failed.html", "failed.trace", "failed.json"].map(scratch);
    let [record, report, trace, json] = &files;
    let asked = ["--record", record, "--report", report, "--trace", trace, "--json", json];
    let output = railnet(&[&["sim", &toml][..], &asked].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: host5 keeps its switch paused"), "{:?}", output.stderr);
    let said: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!((&said["error"]["kind"], &said["partial"]), (&"pause-storm".into(), &true.into()));
    let run = RunFile::parse(&fs::read(record).unwrap()).unwrap();
    let told = |value: &Value| (value["error"].clone(), value["digest"].clone(), value["links"].clone());
    assert_eq!(told(&run.meta["report"]), told(&said));
    assert!(text(&fs::read(report).unwrap()).contains("\"kind\":\"pause-storm\""));
    let trace = fs::read(trace).unwrap();
    let marked = b"failed: host5 keeps its switch paused";
    assert_eq!(trace.windows(marked.len()).filter(|part| part == marked).count(), 1);
    // What never arrived lasts until the end.
    let operations = run.table("operations").unwrap();
    let ended = operations.column("ended").unwrap();
    assert_eq!(operations.rows, 5);
    assert!((0..5).all(|row| operations.get(row, ended) == run.meta["duration"].as_u64().unwrap()));
    // Each link was held back for as long as its pauses lasted, and each cause lies ahead of what it caused.
    let pauses = run.table("pauses").unwrap();
    let [begun, until, channel, priority, cause] =
        ["begun", "ended", "channel", "priority", "cause"].map(|name| pauses.column(name).unwrap());
    let ends = |channel: u64| {
        let link = &run.meta["fabric"]["links"][channel as usize / 2];
        if channel.is_multiple_of(2) {
            (link["a"].clone(), link["b"].clone())
        } else {
            (link["b"].clone(), link["a"].clone())
        }
    };
    let name = |vertex: &Value| {
        let (vertex, fabric) = (vertex.as_u64().unwrap() as usize, &run.meta["fabric"]);
        let named = if vertex < 6 { &fabric["hosts"][vertex] } else { &fabric["switches"][vertex - 6] };
        named["name"].clone()
    };
    let mut held = std::collections::BTreeMap::new();
    let mut caused = 0;
    for row in 0..pauses.rows {
        let cell = |column: usize| pauses.get(row, column);
        if cell(priority) == 0 {
            *held.entry(cell(channel)).or_insert(0) += cell(until) - cell(begun);
        }
        if cell(cause) != NOBODY {
            assert_eq!(ends(cell(cause)).0, ends(cell(channel)).1, "row {row}");
            caused += 1;
        }
    }
    assert!(caused > 2, "{caused} of {}", pauses.rows);
    for link in said["links"].as_array().unwrap() {
        let of = |(channel, _): &(&u64, &u64)| {
            let (from, to) = ends(**channel);
            name(&from) == link["from"] && name(&to) == link["to"]
        };
        let seen = held.iter().find(of).map_or(0, |(_, time)| *time);
        assert!((seen as f64 / 1e6 - link["paused_us"].as_f64().unwrap()).abs() < 1e-6, "{link}: {seen}");
    }
}

fn scratch_with(name: &str, contents: &str) -> String {
    let path = scratch(name);
    fs::write(&path, contents).unwrap();
    path
}

#[test]
fn a_job_tells_what_every_rank_did_and_which_slices_moved() {
    let (_, run, said) = recorded("job", JOB);
    let job = &said["jobs"][0];
    assert_eq!(run.meta["kind"], "job");
    let operations = run.table("operations").unwrap();
    let [rank, ended, critical] = ["rank", "ended", "critical"].map(|name| operations.column(name).unwrap());
    for number in 0..job["ranks"].as_u64().unwrap() {
        assert!((0..operations.rows).any(|row| operations.get(row, rank) == number), "rank {number}");
    }
    let last = (0..operations.rows).map(|row| operations.get(row, ended)).max().unwrap();
    let total = job["total_us"].as_f64().unwrap();
    assert!((last as f64 / 1e6 - total).abs() < 1e-3 * total, "{last} and {total}");
    assert!(sum(operations, "critical") > 0 && operations.get(0, critical) <= 1);
    let slices = run.table("slices").unwrap();
    let [via, arrived] = ["via", "arrived"].map(|name| slices.column(name).unwrap());
    let by_nic = (0..slices.rows).filter(|row| slices.get(*row, via) == 1).count();
    assert!(by_nic > 0 && by_nic < slices.rows, "{by_nic} of {}", slices.rows);
    let to = slices.column("to").unwrap();
    let is_for_rank = |row: &usize| slices.get(*row, to) != NOBODY;
    assert!(
        (0..slices.rows).filter(is_for_rank).all(|row| slices.get(row, arrived) != MISSING),
        "all arrived"
    );
    assert!(run.table("frames").unwrap().rows > 0);
}

#[test]
fn a_file_that_is_there_is_not_lost() {
    let (toml, file) = (scratch_with("kept.toml", INCAST), scratch("kept.rail"));
    fs::write(&file, "dear to me").unwrap();
    for option in ["--record", "--report", "--trace"] {
        let output = railnet(&["sim", &toml, option, &file]);
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(text(&output.stderr).contains("is there already: --force replaces it"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "dear to me");
    }
    for (arguments, words) in [
        (&["--record", "no/such/run.rail"][..], "cannot write no/such/run.rail: there is no such directory"),
        (&["--report", "x.html", "--beside", "nonsense"], "--beside nonsense: write a key and its value"),
        (
            &["--report", "x.html", "--beside", "nic.control=dcqnc"],
            "--beside nic.control=dcqnc: unknown value",
        ),
        (&["--beside", "nic.control=none"], "--beside is for the page"),
    ] {
        let output = railnet(&[&["sim", &toml], arguments].concat());
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "before anything is run: {arguments:?}"
        );
        assert!(text(&output.stderr).contains(words), "{arguments:?}: {}", text(&output.stderr));
    }
    let output = railnet(&["view", &file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not a run file: `railnet sim SCENARIO --record FILE` writes one"));
}

/// A page of a recording is the page that the run itself writes.
#[test]
fn a_recording_becomes_a_report() {
    let toml = scratch_with("report-of-record.toml", INCAST);
    let files =
        ["report-of-record.rail", "report-of-record.html", "report-of-record-later.html"].map(scratch);
    let [record, report, later] = &files;
    let output = railnet(&["sim", &toml, "--record", record, "--report", report]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = railnet(&["view", record, "--report", later]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("report-of-record-later.html"));
    assert!(fs::read(report).unwrap() == fs::read(later).unwrap(), "the two are the same");
    let output = railnet(&["view", record, "--report", later]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is there already: --force replaces it"));
    assert!(railnet(&["view", record, "--report", later, "--force"]).status.success());
}

/// Whoever opens a connection wants to know what it began with, and what it writes to: also where most packets are not kept.
#[test]
fn connections_say_what_they_begin_with_and_write_to() {
    let (toml, file) = (scratch_with("regions.toml", JOB), scratch("regions.rail"));
    let output = railnet(&["sim", &toml, "--record", &file, "--record-packets", "500", "--beside", "none"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let run = RunFile::parse(&fs::read(&file).unwrap()).unwrap();
    assert!(run.meta["kept"]["packets"].as_u64() < run.meta["kept"]["packets_sent"].as_u64());
    let connections = run.table("connections").unwrap();
    let [bytes, first, address, key] =
        ["bytes", "first", "address", "rkey"].map(|name| connections.column(name).unwrap());
    let senders: Vec<usize> = (0..connections.rows).filter(|row| connections.get(*row, bytes) > 0).collect();
    assert!(!senders.is_empty());
    for row in senders {
        assert_eq!(connections.get(row, first), 0, "row {row}");
        assert!(connections.get(row, address) != MISSING && connections.get(row, key) != NOBODY, "row {row}");
    }
    assert_eq!(run.meta["fabric"]["hosts"][0]["ip"], "10.0.0.1");
}

/// The other transport is another run, with the numbers that it has by itself.
#[test]
fn a_job_that_takes_seconds_has_the_other_transport_beside_it() {
    let other = JOB.replace("[cluster]\n", "[cluster]\ntransport = \"tcp\"\n");
    let (_, rdma, _) = recorded("by-rdma", JOB);
    let (_, tcp, _) = recorded("by-tcp", &other);
    let came = |report: &Value| {
        let job = &report["jobs"][0];
        (report["digest"].clone(), job["step_us"].clone(), job["average_us"].clone())
    };
    for (one, two, value) in [(&rdma, &tcp, "tcp"), (&tcp, &rdma, "rdma")] {
        let beside = &one.meta["other"];
        assert_eq!((&beside["key"], &beside["value"]), (&"cluster.transport".into(), &value.into()));
        assert_eq!(came(&beside["report"]), came(&two.meta["report"]));
        // All of it is there, under its name.
        let [other] = &one.others[..] else { panic!("one beside it") };
        assert_eq!(other.meta["transport"], value);
        assert_eq!(other.meta["change"]["name"], format!("cluster.transport = {value}"));
        assert_eq!(
            other.meta["change"]["was"],
            format!("cluster.transport = {}", one.meta["transport"].as_str().unwrap())
        );
        for table in ["operations", "load", "slices"] {
            assert_eq!(other.table(table).unwrap().rows, two.table(table).unwrap().rows, "{table}");
        }
    }
    // The seed of the command line holds for both, and nobody has to have it.
    let (toml, file) = (scratch_with("beside.toml", JOB), scratch("beside.rail"));
    for (option, seed) in [(&["--seed", "7"][..], Some(7)), (&["--beside", "none"], None)] {
        let output = railnet(&[&["sim", &toml, "--record", &file, "--force"], option].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let run = RunFile::parse(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(run.meta["other"]["report"]["seed"].as_u64(), seed);
    }
}

#[test]
fn a_report_is_one_file_that_needs_nothing_else() {
    let hostile = INCAST.replace("# Five", "# </script><script>alert(1)</script> Five");
    let (toml, page) = (scratch_with("report.toml", &hostile), scratch("report.html"));
    let output = railnet(&["sim", &toml, "--report", &page]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(page).unwrap();
    assert!(!page.contains("</script><script>alert(1)"), "texts of the run stay texts");
    for outside in ["src=\"/", "href=\"/", "src=\"http", "href=\"http"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let between = |from: &str| page.split(from).nth(1).unwrap().split("</script>").next().unwrap();
    let meta: Value = serde_json::from_str(between("id=\"railnet-run\">")).unwrap();
    assert_eq!(meta["report"]["bytes"], 2_000_000);
    let packets: Value = serde_json::from_str(between("id=\"railnet-packets\">")).unwrap();
    let headers = &packets["stories"]["0"]["layers"];
    let layers = packets["shapes"][headers["shape"].as_u64().unwrap() as usize].as_array().unwrap();
    let fields: usize = layers.iter().map(|layer| layer["fields"].as_array().unwrap().len()).sum();
    assert!(layers.len() >= 6, "{layers:?}");
    assert_eq!(headers["values"].as_array().unwrap().len(), fields, "{headers}");
}

/// A server that ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn of(file: &str) -> Self {
        let mut child =
            harness::command::<&str>(&[]).args(["view", file]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        Self { child, address }
    }

    /// The status and the body of an answer.
    fn ask(&self, method: &str, path: &str, host: &str, body: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let head = text(&answer[..end]);
        (head.split(' ').nth(1).unwrap().parse().unwrap(), answer[end..].to_vec())
    }

    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        self.ask("GET", path, &self.address, "")
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.get(path).1).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_server_answers_its_page_and_nobody_else() {
    let (file, run, said) = recorded("served", INCAST);
    let server = Server::of(&file);
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    assert_eq!(server.json("/api/run")["report"]["digest"], said["digest"]);
    let (status, block) = server.get("/api/rows?table=load&most=50");
    let (table, taken) = Table::parse(&block).unwrap();
    assert_eq!((status, taken), (200, block.len()));
    assert!(table.rows <= 60 && table.rows > 0, "{} of {}", table.rows, run.table("load").unwrap().rows);
    let (_, block) = server.get("/api/rows?table=packets&host=2");
    let (table, _) = Table::parse(&block).unwrap();
    let host = table.column("host").unwrap();
    assert!(table.rows > 0 && (0..table.rows).all(|row| table.get(row, host) == 2));
    for (path, status) in [
        ("/api/rows?table=nothing", 404),
        ("/api/rows?table=load&color=3", 400),
        ("/api/run?run=7", 404),
        ("/api/packet?packet=999999999", 404),
        ("/../../etc/passwd", 404),
        ("/api/rerun?run=3", 404),
    ] {
        assert_eq!(server.get(path).0, status, "{path}");
    }
    let ask = |body: &str| server.ask("POST", "/api/plan", &server.address, body);
    let (status, body) = ask("{\"params\":\"70B\",\"gpus\":\"64\",\"compute\":\"200ms\",\"tp\":\"\"}");
    let plan: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (status, &plan["gpus"], &plan["dimensions"][0]["dimension"]),
        (200, &64.into(), &"data_parallel".into())
    );
    for body in ["{\"file\":\"/etc/passwd\"}", "{\"params\":\"many\",\"gpus\":\"64\"}", "[]"] {
        let (status, said) = ask(body);
        assert_eq!(status, 400, "{body}: {}", text(&said));
    }
    assert_eq!(server.ask("DELETE", "/", &server.address, "").0, 405);
    assert_eq!(server.ask("GET", "/api/run", "evil.example", "").0, 421);
}

#[test]
fn a_packet_is_told_hop_by_hop_and_byte_by_byte() {
    let (file, run, _) = recorded("packet", INCAST);
    let server = Server::of(&file);
    let packets = run.table("packets").unwrap();
    let [host, marked] = ["host", "marked"].map(|name| packets.column(name).unwrap());
    // From another leaf, and marked on the way.
    let row = (0..packets.rows).find(|row| packets.get(*row, host) == 0 && packets.get(*row, marked) == 1);
    let packet = server.json(&format!("/api/packet?packet={}", row.unwrap()));
    let hops = packet["hops"].as_array().unwrap();
    let names: Vec<&str> = hops.iter().map(|hop| hop["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[1], names[3]), ("host0", "leaf0", "leaf1"), "{names:?}");
    let all = hops.iter().flat_map(|hop| hop["changes"].as_array().unwrap());
    let all: Vec<&str> = all.map(|change| change.as_str().unwrap()).collect();
    for change in ["TTL 64 → 63", "TTL 63 → 62", "ECN 10 → 11", "the ICRC did not change"] {
        assert!(all.contains(&change), "{change}: {all:?}");
    }
    let layers = packet["layers"].as_array().unwrap();
    let names: Vec<&str> = layers.iter().map(|layer| layer["name"].as_str().unwrap()).collect();
    assert_eq!(&names[..3], ["Ethernet", "IPv4", "UDP"], "{names:?}");
    assert_eq!(names.last(), Some(&"ICRC"));
    // Layer after layer, without a gap.
    let mut at = 0;
    for layer in layers {
        assert_eq!(layer["from"], at, "{layer}");
        at = layer["to"].as_u64().unwrap();
    }
    assert_eq!(packet["length"], at);
    let answer = packet["answer"]["row"].as_u64().unwrap();
    assert!(
        server.json(&format!("/api/packet?packet={answer}"))["words"]
            .as_str()
            .unwrap()
            .contains("Acknowledge")
    );
}

#[test]
fn a_run_is_made_again_with_another_control() {
    let (file, _, said) = recorded("again", INCAST);
    let server = Server::of(&file);
    let ask = |body: &str| server.ask("POST", "/api/rerun", &server.address, body);
    assert_eq!(ask("{\"key\":\"seed\",\"value\":\"2\"}").0, 400);
    assert_eq!(ask("{\"key\":\"nic.control\",\"value\":\"dcqnc\"}").0, 400);
    let (status, body) = ask("{\"key\":\"nic.control\",\"value\":\"none\"}");
    assert_eq!((status, text(&body)), (200, "{\"run\":1}".to_owned()));
    let mut tries = 0;
    while server.json("/api/rerun?run=1")["state"] == "running" {
        std::thread::sleep(Duration::from_millis(20));
        tries += 1;
        assert!(tries < 1_000, "it takes too long");
    }
    assert_eq!(server.json("/api/rerun?run=1")["state"], "done");
    let again = server.json("/api/run?run=1");
    assert_ne!(again["report"]["digest"], said["digest"]);
    let plain = INCAST.replace("dcqcn", "none");
    let output = railnet(&["sim", &scratch_with("none.toml", &plain), "--json", "-"]);
    let plain: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(again["report"]["digest"], plain["digest"]);
}
