//! Connection management with the programs that clusters are tried with, and with a program in C that does everything wrong.
//!
//! The programs are those of Debian's `rdmacm-utils` and `perftest`; what is not installed is skipped, and says so.
#![expect(clippy::print_stderr, reason = "a test that is skipped must not look as if it had passed")]
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

const ADDRESS: &str = "127.0.0.1";
const LIMIT: Duration = Duration::from_secs(90);

/// Port spaces, as they stand in service ids.
const TCP: u32 = 0x0106;
const UDP: u32 = 0x0111;

/// One test at a time has the address, in all programs of tests: a process that joins or leaves it may cost others a packet, and
/// unreliable services do not send it again.
fn take_turn() {
    static TURN: OnceLock<fs::File> = OnceLock::new();
    TURN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder).expect("a folder of the target directory");
        let file = fs::File::create(folder.join("rdma-tests.lock")).expect("a file there");
        file.lock().expect("locks work there");
        file
    });
}

/// A folder in which the library has the names that programs load.
fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    take_turn();
    FOLDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a running program has a path");
        // Cargo puts the library beside the tests of its crate.
        let library = test.with_file_name("librailnet_verbs.so");
        assert!(library.exists(), "{} is not built", library.display());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("rdma-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder of the target directory");
        for name in ["libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"] {
            let link = folder.join(name);
            let _ = fs::remove_file(&link);
            symlink(&library, link).expect("a link in a folder of ours");
        }
        folder
    })
}

fn is_installed(program: &str) -> bool {
    let found = program.contains('/')
        || std::env::var("PATH")
            .is_ok_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    if !found {
        eprintln!("SKIPPED: {program} is not installed (apt-get install rdmacm-utils perftest)");
    }
    found
}

/// A program that runs over the library; it is killed with the test.
struct Program {
    child: Child,
    command: String,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Program {
    fn start(command: &str, faults: Option<&str>) -> Self {
        let mut words = command.split_whitespace();
        let mut child = Command::new(words.next().expect("a program"));
        child.args(words).env("LD_LIBRARY_PATH", libraries()).env("RAILNET_RDMA_ADDRESSES", ADDRESS);
        child.env_remove("RAILNET_FAULTS");
        if let Some(faults) = faults {
            child.env("RAILNET_FAULTS", faults);
        }
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap_or_else(|error| panic!("{command}: {error}"));
        let (send, lines) = mpsc::channel();
        let output: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("a pipe")), Box::new(child.stderr.take().expect("a pipe"))];
        for stream in output {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Self { child, command: command.to_owned(), lines, seen: Vec::new() }
    }

    fn text(&self) -> String {
        self.seen.join("\n")
    }

    /// Waits until the program says this.
    fn wait_for(&mut self, part: &str) {
        let began = Instant::now();
        while !self.seen.iter().any(|line| line.contains(part)) {
            let left = LIMIT.saturating_sub(began.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(why) => panic!("{}: it never says {part:?} ({why}):\n{}", self.command, self.text()),
            }
        }
    }

    /// Waits until the program ends; its exit status.
    fn wait(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            match self.lines.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(line) => self.seen.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("{}: it does not end:\n{}", self.command, self.text())
                }
            }
        }
        self.child.wait().expect("a child of ours").code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a process listens on a port: its claim is an abstract socket, which is connected then.
fn wait_for_listener(server: &mut Program, port_space: u32, port: u16) {
    let service = port_space << 16 & 0x01ff_0000 | u32::from(port);
    let claim = format!("@railnet-rdma/{ADDRESS}:4791/service/{service:#010x}");
    let is_listening = |line: &str| line.ends_with(&claim) && line.split_whitespace().nth(5) == Some("03");
    let began = Instant::now();
    while !fs::read_to_string("/proc/net/unix").is_ok_and(|table| table.lines().any(is_listening)) {
        let ended = server.child.try_wait().expect("a child of ours");
        assert!(ended.is_none() && began.elapsed() < LIMIT, "{}: it does not listen", server.command);
        std::thread::yield_now();
    }
}

/// Runs a server and a client to their ends, which must be good ones; what both said.
fn run_pair(
    server: &str,
    client: &str,
    (port_space, port): (u32, u16),
    faults: Option<&str>,
) -> Option<(String, String)> {
    if !is_installed(server.split(' ').next().unwrap_or_default()) {
        return None;
    }
    let mut server = Program::start(server, faults);
    wait_for_listener(&mut server, port_space, port);
    let mut client = Program::start(client, faults);
    let status = client.wait();
    if status != Some(0) {
        // A server waits for ever for a client that failed.
        server.child.kill().expect("it runs, or waits to be asked for its status");
    }
    let statuses = (status, server.wait());
    let said = format!("{}:\n{}\n{}:\n{}", server.command, server.text(), client.command, client.text());
    assert_eq!(statuses, (Some(0), Some(0)), "{said}");
    Some((server.text(), client.text()))
}

#[test]
fn rping_verifies_its_data_at_many_sizes() {
    for (index, size) in [23, 64, 100, 1000, 4096, 4097, 65535].into_iter().enumerate() {
        let port = 21000 + index as u16;
        let options = format!("-a {ADDRESS} -p {port} -V -C 10 -S {size}");
        run_pair(&format!("rping -s {options}"), &format!("rping -c {options}"), (TCP, port), None);
    }
}

#[test]
fn rping_survives_losses() {
    let options = format!("-a {ADDRESS} -p 21010 -v -V -C 10 -S 5000");
    let faults = "drop=0.03,reorder=0.05,duplicate=0.05,seed=11";
    let said =
        run_pair(&format!("rping -s {options}"), &format!("rping -c {options}"), (TCP, 21010), Some(faults));
    if let Some((_, client)) = said {
        assert!(client.contains("rdma-ping-9"), "{client}");
    }
}

#[test]
fn a_listener_on_all_addresses_takes_connections() {
    let server = "rping -s -p 21011 -C 3";
    run_pair(server, &format!("rping -c -a {ADDRESS} -p 21011 -C 3"), (TCP, 21011), None);
}

#[test]
fn a_hundred_connections_are_made_at_once() {
    let said = run_pair(
        "ucmatose -c 100 -p 21020",
        &format!("ucmatose -c 100 -p 21020 -s {ADDRESS}"),
        (TCP, 21020),
        None,
    );
    if let Some((server, client)) = said {
        assert!(
            server.contains("return status 0") && client.contains("return status 0"),
            "{server}\n{client}"
        );
    }
}

#[test]
fn connections_migrate_to_another_channel() {
    let server = format!("ucmatose -m -c 5 -C 10 -S 3000 -b {ADDRESS} -p 21021");
    run_pair(&server, &format!("ucmatose -m -c 5 -C 10 -S 3000 -p 21021 -s {ADDRESS}"), (TCP, 21021), None);
}

#[test]
fn datagram_services_are_resolved() {
    // It has one port.
    run_pair("udaddy -c 10", &format!("udaddy -c 10 -s {ADDRESS}"), (UDP, 7174), None);
}

#[test]
fn endpoints_connect() {
    run_pair("rdma_server -p 21040", &format!("rdma_client -p 21040 -s {ADDRESS}"), (TCP, 21040), None);
    let client = format!("rdma_xclient -c r -p 21041 -s {ADDRESS}");
    run_pair("rdma_xserver -c r -p 21041", &client, (TCP, 21041), None);
}

#[test]
fn perftest_connects_by_address() {
    let tests =
        ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_write_bw -q 4", "ib_send_bw -c UD"];
    for (index, test) in tests.into_iter().enumerate() {
        let port = 21050 + index as u16;
        let command = format!("{test} -R -F -n 100 -s 1000 -p {port}");
        let said = run_pair(&command, &format!("{command} {ADDRESS}"), (TCP, port), None);
        if let Some((_, client)) = said {
            assert!(client.contains(" 1000 "), "{client}");
        }
    }
}

#[test]
fn rsockets_carry_streams() {
    let tests = [
        "-T b -S 1000 -C 100 -I 5",
        "-T a -S 100000 -C 5 -I 3",
        "-T n -S 70001 -C 5 -I 3",
        "-B 5000 -S 100000 -C 5 -I 1",
    ];
    for (index, options) in tests.into_iter().enumerate() {
        let port = 21080 + index as u16;
        let command = format!("rstream -T v {options} -p {port}");
        run_pair(&command, &format!("{command} -s {ADDRESS}"), (TCP, port), None);
    }
}

#[test]
fn rsockets_write_into_mapped_memory() {
    let command = "riostream -T v -T b -S 10000 -C 5 -I 5 -p 21090";
    run_pair(command, &format!("{command} -s {ADDRESS}"), (TCP, 21090), None);
}

#[test]
fn a_port_without_a_listener_refuses() {
    if !is_installed("rping") {
        return;
    }
    let mut client = Program::start(&format!("rping -c -a {ADDRESS} -p 21060 -C 1 -v"), None);
    assert_ne!(client.wait(), Some(0));
    // Reason 8: invalid service id.
    assert!(client.text().contains("RDMA_CM_EVENT_REJECTED, error 8"), "{}", client.text());
}

#[test]
fn a_peer_that_is_killed_disconnects() {
    if !is_installed("rping") {
        return;
    }
    let mut server = Program::start(&format!("rping -s -a {ADDRESS} -p 21070"), None);
    wait_for_listener(&mut server, TCP, 21070);
    let mut client = Program::start(&format!("rping -c -a {ADDRESS} -p 21070 -v"), None);
    client.wait_for("ping data");
    server.child.kill().expect("it runs");
    client.wait();
    let said = client.text();
    assert!(said.contains("DISCONNECT EVENT") || said.contains("cq completion failed"), "{said}");
}

#[test]
fn a_second_process_cannot_listen_on_the_same_port() {
    if !is_installed("rping") {
        return;
    }
    let mut server = Program::start("rdma_server -p 21071", None);
    wait_for_listener(&mut server, TCP, 21071);
    let mut second = Program::start("rdma_server -p 21071", None);
    assert_ne!(second.wait(), Some(0));
    assert!(second.text().contains("Address already in use"), "{}", second.text());
}

#[test]
fn multicast_is_refused() {
    if !is_installed("mckey") {
        return;
    }
    let mut client = Program::start(&format!("mckey -m 239.1.1.1 -b {ADDRESS}"), None);
    assert_ne!(client.wait(), Some(0));
    assert!(client.text().contains("Operation not supported"), "{}", client.text());
}

/// A program in C of ours; `None` where it cannot be compiled, which is said.
fn compile(source: &str) -> Option<PathBuf> {
    let program = libraries().join(source.trim_end_matches(".c"));
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        eprintln!("SKIPPED: the headers of rdma-core are not installed (apt-get install librdmacm-dev)");
        return None;
    }
    let compiled = Command::new("cc")
        .args(["-Wall", "-O1", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source))
        .arg("-L")
        .arg(libraries())
        .args(["-lrdmacm", "-libverbs", "-lpthread"])
        .output();
    let Ok(compiled) = compiled else {
        eprintln!("SKIPPED: there is no C compiler");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

#[test]
fn misuse_is_an_errno() {
    let Some(program) = compile("connections.c") else { return };
    let mut misuse = Program::start(&program.display().to_string(), None);
    assert_eq!(misuse.wait(), Some(0), "{}", misuse.text());
}

/// A child that lives on has nothing of its parent's NIC: the peer learns of the death, and the port is free.
#[test]
fn a_child_does_not_keep_its_parents_connections() {
    let Some(program) = compile("fork.c") else { return };
    let start = |role: &str| Program::start(&format!("{} {role} 21075", program.display()), None);
    let mut server = start("server");
    server.wait_for("listening");
    let mut client = start("client");
    client.wait_for("connected");
    server.wait_for("accepted");
    server.child.kill().expect("it runs");
    client.wait_for("disconnected");
    let mut late = start("refused");
    assert_eq!(late.wait(), Some(0), "{}", late.text());
    let mut second = start("server");
    second.wait_for("listening");
}
