//! `railnet rdma` from outside: unmodified RDMA programs of Debian move data between two processes of this host.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::harness;
use crate::harness::{directory, free_port};

/// Longer than anything takes that goes well, on a machine that does much else.
const LONG: Duration = Duration::from_secs(100);

/// The only address that every host has.
const ADDRESS: &str = "127.0.0.1";

fn railnet(arguments: &[&str]) -> Command {
    let mut command = harness::command::<&str>(&[]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["RAILNET_FAULTS", "RAILNET_PCAP", "LD_LIBRARY_PATH", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.env("RAILNET_RDMA_ADDRESSES", ADDRESS);
    command
}

/// One test at a time has the address, in all programs of tests: a process that joins or leaves it may cost others a packet, and
/// unreliable services do not send it again.
fn take_turn() {
    static TURN: OnceLock<fs::File> = OnceLock::new();
    TURN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder).unwrap();
        let file = fs::File::create(folder.join("rdma-tests.lock")).unwrap();
        file.lock().unwrap();
        file
    });
}

/// A program on the software NIC, with options of `exec`.
fn exec(options: &[&str], words: &[&str]) -> Command {
    take_turn();
    let mut command = railnet(&[&["rdma", "exec"], options, &["--"], words].concat());
    // UCX has to be told what else it may not use, and that a device of software is meant.
    command.env("UCX_TLS", "rc_verbs,ud_verbs").env("UCX_NET_DEVICES", "railnet0:1");
    command
}

fn is_installed(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("LEFT OUT: {program} is not installed");
    }
    found
}

/// What a program printed, and how it ended.
struct Ended {
    status: ExitStatus,
    text: String,
}

/// Waits for a process, and ends it when that takes too long. What it prints is read, unless somebody took it.
fn wait(mut child: Child) -> Ended {
    // Both streams are drained while the process runs: a full pipe would stop it.
    let drain = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stream.map(|mut stream| stream.read_to_string(&mut text));
            text
        })
    };
    let out = drain(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let errors = drain(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let end = Instant::now() + LONG;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ended { status, text: out.join().unwrap() + &errors.join().unwrap() }
}

/// Whether a process listens on a TCP port, as `/proc/net/tcp` tells it: a connection would be taken for the client's.
fn is_listening(port: &str) -> bool {
    let wanted = format!(":{:04X}", port.parse::<u16>().unwrap());
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&wanted) && fields[3] == "0A"
        })
    })
}

/// Waits until a process listens, or ends.
fn wait_for_listener(process: &mut Child, port: &str) {
    let end = Instant::now() + LONG;
    while !is_listening(port) && Instant::now() < end && process.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program as server and as client of this host, both with these options of `exec`; the client gets the server's address
/// behind its words. Both have to end well.
fn pair(options: &[&str], program: &str, words: &[&str], port_option: &str) -> Option<[String; 2]> {
    if !is_installed(program) {
        return None;
    }
    let port = free_port();
    let words = [&[program], words, &[port_option, &port]].concat();
    let mut server = exec(options, &words).spawn().unwrap();
    wait_for_listener(&mut server, &port);
    let client = exec(options, &[&words[..], &[ADDRESS]].concat()).spawn().unwrap();
    let ended = [wait(client), wait(server)];
    for Ended { status, text } in &ended {
        assert!(status.success(), "{words:?} with {options:?} ended with {status}:\n{text}");
    }
    Some(ended.map(|one| one.text))
}

fn pingpong(program: &str, words: &[&str]) {
    pair(&[], program, &[&["-d", "railnet0", "-g", "0", "-n", "100"], words].concat(), "-p");
}

#[test]
fn devices_are_listed() {
    let ended = wait(railnet(&["rdma", "devices"]).spawn().unwrap());
    assert!(
        ended.status.success() && ended.text.contains("railnet0") && ended.text.contains(ADDRESS),
        "{}",
        ended.text
    );
    let json = wait(railnet(&["rdma", "devices", "--json"]).spawn().unwrap());
    let json: serde_json::Value = serde_json::from_str(&json.text).unwrap();
    assert_eq!(json["devices"][0]["gid"], "::ffff:127.0.0.1");
    assert_eq!(json["devices"][0]["can_open"], true);
}

#[test]
fn ibv_devinfo_shows_a_device() {
    if !is_installed("ibv_devinfo") {
        return;
    }
    let Ended { status, text } = wait(exec(&[], &["ibv_devinfo", "-v"]).spawn().unwrap());
    assert!(status.success(), "{text}");
    for expected in ["railnet0", "PORT_ACTIVE (4)", "4096 (5)", "Ethernet", "::ffff:127.0.0.1, RoCE v2"] {
        assert!(text.contains(expected), "{expected} in:\n{text}");
    }
}

#[test]
fn pingpongs_of_every_service() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        pingpong(program, &[]);
        pingpong(program, &["-e"]);
    }
    pingpong("ibv_rc_pingpong", &["-N"]);
}

fn perftest(program: &str, words: &[&str]) -> Option<[String; 2]> {
    pair(&[], program, &[&["-d", "railnet0", "-x", "0", "-F"], words].concat(), "-p")
}

#[test]
fn perftest_measures_bandwidth() {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        perftest(program, &["-n", "64", "-s", "65536"]);
        perftest(program, &["-n", "64", "-s", "8192", "-q", "4", "-b"]);
        perftest(program, &["-n", "64", "-s", "4097", "--use_old_post_send"]);
    }
    perftest("ib_atomic_bw", &["-n", "64"]);
    perftest("ib_atomic_bw", &["-n", "64", "-A", "FETCH_AND_ADD"]);
}

#[test]
fn perftest_measures_latency() {
    for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat"] {
        perftest(program, &["-n", "100", "-s", "8"]);
    }
    perftest("ib_send_lat", &["-n", "100", "-e"]);
    perftest("ib_atomic_lat", &["-n", "100"]);
}

#[test]
fn perftest_uses_unreliable_services() {
    perftest("ib_write_bw", &["-n", "64", "-c", "UC"]);
    perftest("ib_send_bw", &["-n", "64", "-c", "UC", "-r", "512"]);
    perftest("ib_send_lat", &["-n", "100", "-c", "UD"]);
    perftest("ib_send_bw", &["-n", "64", "-c", "UD", "-s", "2048", "-r", "512"]);
}

#[test]
fn programs_survive_a_lossy_network() {
    let faults: &[&str] =
        &["--drop", "0.01", "--reorder", "0.01", "--corrupt", "0.005", "--duplicate", "0.01", "--seed", "7"];
    let common = ["-d", "railnet0", "-x", "0", "-F", "-n", "50", "-u", "15"];
    // These end together. A program that ends when it has its own result, as the pingpongs do, may take the acknowledgement of its
    // peer's last message with it.
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"] {
        pair(faults, program, &common, "-p");
    }
}

#[test]
fn ucx_moves_data() {
    for test in ["ucp_put_bw", "ucp_get", "tag_lat", "ucp_am_bw"] {
        pair(&[], "ucx_perftest", &["-t", test, "-n", "100", "-w", "10", "-s", "65536"], "-p");
    }
}

/// An address of this host that is not the loopback's.
fn network_address() -> Option<String> {
    let mut command = railnet(&["rdma", "devices", "--json"]);
    let json = wait(command.env_remove("RAILNET_RDMA_ADDRESSES").spawn().unwrap());
    let json: serde_json::Value = serde_json::from_str(&json.text).unwrap();
    let devices = json["devices"].as_array().unwrap().iter();
    let mut others = devices.filter(|one| one["interface"] != "lo").filter_map(|one| one["address"].as_str());
    others.find(|address| !address.contains(':')).map(str::to_owned)
}

#[test]
fn libfabric_moves_data() {
    if !is_installed("fi_pingpong") {
        return;
    }
    // Its verbs provider leaves the loopback out.
    let Some(address) = network_address() else {
        eprintln!("LEFT OUT: libfabric needs an address that is not the loopback's");
        return;
    };
    for words in
        [["-p", "verbs", "-e", "msg"], ["-p", "verbs;ofi_rxm", "-e", "rdm"], ["-p", "verbs", "-e", "dgram"]]
    {
        let port = free_port();
        let with = |more: &[&str]| {
            let mut command = exec(&[], &[&["fi_pingpong"], &words[..], &["-I", "50", "-c"], more].concat());
            command.env("RAILNET_RDMA_ADDRESSES", &address).spawn().unwrap()
        };
        let mut server = with(&["-B", &port]);
        wait_for_listener(&mut server, &port);
        let client = with(&["-P", &port, &address]);
        for Ended { status, text } in [wait(client), wait(server)] {
            assert!(status.success(), "{words:?}: {status}:\n{text}");
        }
    }
}

#[test]
fn tshark_finds_no_malformed_packet_in_captures() {
    if !is_installed("tshark") || !is_installed("ibv_rc_pingpong") {
        return;
    }
    let folder = directory("rdma-captures");
    let name = folder.join("run.pcapng");
    let port = free_port();
    let words = ["ibv_rc_pingpong", "-d", "railnet0", "-g", "0", "-n", "20", "-p", &port];
    let mut server = exec(&["--pcap", name.to_str().unwrap()], &words).spawn().unwrap();
    wait_for_listener(&mut server, &port);
    // The client captures, too: beside the file, because that is there.
    let mut client = exec(&[], &[&words[..], &[ADDRESS]].concat());
    client.env("RAILNET_PCAP", &name);
    for Ended { status, text } in [wait(client.spawn().unwrap()), wait(server)] {
        assert!(status.success(), "{text}");
    }
    let captures: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(captures.len(), 2, "{captures:?}");
    for capture in captures {
        let tshark = |filter: &str| {
            let output =
                Command::new("tshark").arg("-r").arg(&capture).args(["-Y", filter]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().lines().count()
        };
        assert!(
            tshark("infiniband.bth.opcode == 4 || infiniband.bth.opcode == 2") >= 20,
            "{}",
            capture.display()
        );
        assert_eq!(tshark("_ws.malformed"), 0, "{}", capture.display());
    }
}

#[test]
fn a_peer_that_is_killed_is_noticed() {
    if !is_installed("ib_write_bw") {
        return;
    }
    let port = free_port();
    // It prints a line a second, at once.
    let words =
        ["stdbuf", "-oL", "ib_write_bw", "-d", "railnet0", "-x", "0", "-F", "--run_infinitely", "-D", "1"];
    let words = [&words[..], &["-u", "14", "-p", &port]].concat();
    let mut server = exec(&[], &words).spawn().unwrap();
    wait_for_listener(&mut server, &port);
    let mut client = exec(&[], &[&words[..], &[ADDRESS]].concat()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let is_result = |line: &str| line.trim_start().starts_with("65536 ");
    assert!(lines.any(|line| is_result(&line.unwrap())), "the client ended before data flowed");
    server.kill().unwrap();
    server.wait().unwrap();
    let printed: Vec<_> = lines.map_while(Result::ok).collect();
    let Ended { status, text } = wait(client);
    let text = printed.join("\n") + &text;
    assert!(!status.success() && status.signal().is_none(), "{status}: {text}");
    assert!(text.contains("Completion with error") || text.contains("Failed status 12"), "{text}");
}

#[test]
fn files_below_sys_are_answered() {
    let words = ["cat", "/sys/class/infiniband/railnet0/ports/1/gid_attrs/types/0"];
    let Ended { status, text } = wait(exec(&[], &words).spawn().unwrap());
    assert!(status.success() && text == "RoCE v2\n", "{text}");
    let Ended { text, .. } = wait(exec(&[], &["ls", "/sys/class/infiniband"]).spawn().unwrap());
    assert_eq!(text, "railnet0\n");
    let Ended { text, .. } =
        wait(exec(&[], &["realpath", "/sys/class/infiniband/railnet0"]).spawn().unwrap());
    assert_eq!(text, "/sys/devices/virtual/infiniband/railnet0\n");
    // Other paths are the kernel's.
    let Ended { text, .. } = wait(exec(&[], &["cat", "/sys/class/net/lo/ifindex"]).spawn().unwrap());
    assert_eq!(text, "1\n");
}

#[test]
fn a_shell_takes_the_variables() {
    let command = env!("CARGO_BIN_EXE_railnet");
    let script = format!(
        "eval \"$({command} rdma env --drop 0.25)\" && echo $RAILNET_FAULTS && cat /sys/class/infiniband/railnet0/node_type"
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("RAILNET_RDMA_ADDRESSES", ADDRESS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ended { status, text } = wait(shell.spawn().unwrap());
    assert!(status.success(), "{text}");
    assert_eq!(text, "drop=0.25,seed=1\n1: CA\n");
}

#[test]
fn the_exit_status_is_the_programs() {
    let status = |words: &[&str]| wait(exec(&[], words).spawn().unwrap()).status.code();
    assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(status(&["no-such-program-anywhere"]), Some(127));
}

#[test]
fn wrong_options_are_told() {
    for (options, expected) in [
        (&["--mtu", "1500"] as &[&str], "RAILNET_RDMA_MTU"),
        (&["--drop", "2"], "a share is 1 at most"),
        (&["--seed", "3"], "no effect"),
        (&["--control", "swift"], "none or dcqcn"),
        (&["--address", "192.0.2.77"], "192.0.2.77"),
        (&["--pcap", "/no/such/directory/x.pcapng"], "no such directory"),
    ] {
        let Ended { status, text } = wait(exec(options, &["true"]).spawn().unwrap());
        assert_eq!(status.code(), Some(2), "{options:?}: {text}");
        assert!(text.contains(expected), "{options:?}: {text}");
    }
    let existing = directory("rdma-existing").join("run.pcapng");
    fs::write(&existing, "mine").unwrap();
    let name = existing.to_str().unwrap();
    let Ended { status, .. } = wait(exec(&["--pcap", name], &["true"]).spawn().unwrap());
    assert_eq!((status.code(), fs::read_to_string(&existing).unwrap().as_str()), (Some(2), "mine"));
}
