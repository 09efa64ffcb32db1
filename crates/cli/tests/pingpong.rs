//! `railnet pingpong` as people start it: two processes on the loopback interface, and peers that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness;
use crate::harness::{free_port, is_installed, left_out, text};

fn railnet(arguments: &[&str]) -> Command {
    let mut command = harness::command(&["pingpong"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server and its client, with these arguments each.
fn play(server: &[&str], client: &[&str]) -> [Output; 2] {
    play_at("127.0.0.1", server, client)
}

fn play_at(address: &str, server: &[&str], client: &[&str]) -> [Output; 2] {
    let port = free_port();
    let common = ["-p", &port, "--timeout", "20s"];
    let server = railnet(&[&common, server].concat()).spawn().unwrap();
    let client = railnet(&[&common, client, &[address]].concat()).output().unwrap();
    [server.wait_with_output().unwrap(), client]
}

/// The operations, each with a size of several packets.
const OPERATIONS: [&[&str]; 4] = [
    &["--op", "send", "-s", "9001"],
    &["--op", "write", "-s", "9001"],
    &["--op", "read", "-s", "9001"],
    &["--op", "atomic"],
];

#[test]
fn every_operation_is_played_between_two_processes() {
    let cases: [(&[&str], &str); 5] = [
        (&["-n", "20"], "163840 bytes in"),
        (&["-n", "5", "-s", "100001", "-m", "4096", "-e"], "1000010 bytes in"),
        (&["-n", "20", "--op", "write", "-s", "0"], "0 bytes in"),
        (&["-n", "20", "--op", "read", "-s", "5000"], "100000 bytes in"),
        (&["-n", "20", "--op", "atomic"], "160 bytes in"),
    ];
    for (arguments, expected) in cases {
        let [server, client] = play(arguments, &[arguments, &["--chk"]].concat());
        for output in [&server, &client] {
            let (out, error) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{arguments:?}: {error}");
            assert!(out.starts_with("  local address:  LID 0x"), "{out}");
            assert!(out.contains(expected) && out.contains("usec/iter"), "{arguments:?}: {out}");
        }
        assert!(text(&client.stdout).contains("All that came back was as it should be."));
    }
}

#[test]
fn every_operation_is_played_over_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        left_out("this host has no IPv6");
        return;
    }
    for operation in OPERATIONS {
        let arguments = [operation, &["-n", "20", "-m", "2048"]].concat();
        let [server, client] = play_at("::1", &arguments, &[&arguments[..], &["--chk"]].concat());
        let out = text(&client.stdout);
        assert!(server.status.success(), "{operation:?}: {}", text(&server.stderr));
        assert!(
            out.contains("GID ::1\n") && out.contains("as it should be"),
            "{out}{}",
            text(&client.stderr)
        );
    }
}

#[test]
fn faults_are_survived_and_told() {
    let rates = ["--drop", "--duplicate", "--reorder", "--delay", "--corrupt"].map(|fault| [fault, "1/15"]);
    for operation in OPERATIONS {
        let common = [operation, &["-n", "100", "-m", "256", "--ack-timeout", "8"], &rates.concat()].concat();
        let [server, client] = play(&common, &[&common[..], &["--chk", "--seed", "2"]].concat());
        assert!(server.status.success(), "{operation:?}: {}", text(&server.stderr));
        let out = text(&client.stdout);
        assert!(out.contains("as it should be"), "{operation:?}: {out}{}", text(&client.stderr));
        let (_, told) = out.split_once("on the way out").unwrap();
        for never in [" 0 lost", " 0 doubled", " 0 overtaken", " 0 held up", " 0 damaged"] {
            assert!(!told.contains(never), "{operation:?}: {told}");
        }
        // What the server damaged, the client threw away.
        assert!(told.contains("Thrown away"), "{operation:?}: {told}");
    }
}

#[test]
fn tshark_reads_what_went_over_the_wire() {
    if !is_installed("tshark") {
        return;
    }
    // All of 127.0.0.0/8 is this host: at addresses of our own port 4791 is free, which is where tshark looks.
    let number = std::process::id();
    let [here, there] = [1, 2].map(|last| format!("127.{}.{}.{last}", 1 + (number >> 8 & 63), number & 0xff));
    let path = std::env::temp_dir().join(format!("railnet-pingpong-{number}.pcapng"));
    let file = path.to_str().unwrap();
    let server = ["-n", "3", "--op", "write", "--address", &there];
    let client = ["-n", "3", "--op", "write", "--address", &here, "--pcap", file, "-l", "5"];
    let [server, client] = play_at(&there, &server, &client);
    assert!(server.status.success(), "{}{}", text(&server.stderr), text(&client.stderr));
    let output = Command::new("tshark")
        .args(["-r", file, "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "ip.dsfield"])
        .args(["-e", "ip.src", "-e", "_ws.malformed"])
        .output();
    std::fs::remove_file(&path).unwrap();
    let lines = text(&output.unwrap().stdout);
    // A WRITE of four packets: first, middle, middle, last with immediate data. DSCP is eight times the level, and the
    // packets may be marked.
    let ours: Vec<_> = lines.lines().filter(|line| line.contains(&here)).collect();
    for (opcode, count) in [(6, 3), (7, 6), (9, 3)] {
        let expected = format!("{opcode}\t0xa2\t{here}\t");
        assert_eq!(
            ours.iter().filter(|line| line.trim_end() == expected.trim_end()).count(),
            count,
            "{lines}"
        );
    }
    assert!(lines.lines().any(|line| line.starts_with("17\t") && line.contains(&there)), "{lines}");
}

/// A line of a process that is running, up to which it came.
fn wait_for_line(child: &mut Child, start: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with(start)), "no line starts with {start:?}");
}

#[test]
fn a_peer_that_is_killed_is_named_long_before_the_time_limit() {
    for operation in OPERATIONS {
        for client_dies in [false, true] {
            let port = free_port();
            let common = [&["-p", &port, "--timeout", "60s", "-n", "4000000000"], operation].concat();
            let mut server = railnet(&common).spawn().unwrap();
            let mut client = railnet(&[&common[..], &["127.0.0.1"]].concat()).spawn().unwrap();
            wait_for_line(&mut server, "  remote address");
            wait_for_line(&mut client, "  remote address");
            let (mut dead, alive) = if client_dies { (client, server) } else { (server, client) };
            dead.kill().unwrap();
            dead.wait().unwrap();
            let alive = alive.wait_with_output().unwrap();
            let error = text(&alive.stderr);
            assert_eq!(alive.status.code(), Some(1), "{operation:?}");
            // At the time limit it would say for how long nothing came.
            let causes = ["hung up", "is gone", "cannot read"];
            let is_told = causes.iter().any(|cause| error.contains(cause));
            assert!(is_told && error.contains("127.0.0.1:"), "{operation:?}: {error}");
        }
    }
}

#[test]
fn unauthenticated_peers_change_nothing_and_are_reported() {
    let port = free_port();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let common = ["-p", &port, "--timeout", "20s"];
    let server = railnet(&[&common[..], &["--udp-port", &udp]].concat()).spawn().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&is_over);
    let peer = thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let garbage = [0x5a; 64];
        while !stop.load(Ordering::Relaxed) {
            // A SEND to a queue pair that is not there, with a wrong ICRC, and what is no packet at all.
            let mut packet = [0; 64];
            packet[0] = 4;
            for bytes in [&packet[..], &garbage, &[]] {
                socket.send_to(bytes, format!("127.0.0.1:{udp}")).unwrap();
            }
            thread::yield_now();
        }
    });
    let client = railnet(&[&common[..], &["--chk", "127.0.0.1"]].concat()).output().unwrap();
    let server = server.wait_with_output().unwrap();
    is_over.store(true, Ordering::Relaxed);
    peer.join().unwrap();
    assert!(client.status.success(), "{}", text(&client.stderr));
    let out = text(&server.stdout);
    assert!(server.status.success(), "{}", text(&server.stderr));
    let (_, told) = out.split_once("Thrown away").unwrap();
    assert!(told.contains("bad ICRC") && told.contains("no RoCEv2"), "{out}");
}

#[test]
fn ends_that_want_different_things_say_so() {
    let [server, client] = play(&["--op", "read"], &["--op", "write"]);
    for output in [server, client] {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(error.contains("give both the same --op"), "{error}");
    }
}

/// What the client says when the server does this.
fn with_server(behave: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = thread::spawn(move || behave(listener.accept().unwrap().0));
    let output = railnet(&["-p", &port, "--timeout", "300ms", "127.0.0.1"]).output().unwrap();
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    text(&output.stderr)
}

#[test]
fn a_peer_that_misbehaves_is_an_error_with_words_and_never_a_hang() {
    let wait = |mut stream: TcpStream| {
        // Until the other side hangs up.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let error = with_server(wait);
    assert!(error.contains("the peer at 127.0.0.1:"), "{error}");
    assert!(error.contains("did not send its end of the connection in 300ms"), "{error}");
    let error = with_server(drop);
    assert!(error.contains("hung up") || error.contains("gone") || error.contains("cannot read"), "{error}");
    let error = with_server(|mut stream| {
        stream.write_all(&[b'x'; 52]).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(error.contains("is not an end of a connection"), "{error}");
    let error = with_server(|mut stream| {
        let _ = stream.read_exact(&mut [0; 52]);
        stream.write_all(b"0000:000045:e9cedf:00000000000000000000000000000000\0").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(error.contains("start it with -g"), "{error}");
    // A well-formed end at which no NIC is.
    let error = with_server(|mut stream| {
        let _ = stream.read_exact(&mut [0; 52]);
        stream.write_all(b"0009:000045:e9cedf:00000000000000000000ffff7f000001\0").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(error.contains("did not come from 127.0.0.1:9 in 300ms; nothing came from the peer"), "{error}");
}

/// What the server says when a client sends this and then waits.
fn with_client(arguments: &[&str], words: &[u8]) -> String {
    let port = free_port();
    let server = railnet(&[&["-p", &port, "--timeout", "1s"], arguments].concat()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    let mut stream = loop {
        match TcpStream::connect(format!("127.0.0.1:{port}")) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
    };
    stream.write_all(words).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    let output = server.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    text(&output.stderr)
}

#[test]
fn an_unauthenticated_peer_at_the_tcp_port_is_an_error_that_names_it() {
    let end = "0009:000045:e9cedf:00000000000000000000ffff7f000001\0";
    let cases: [(&[&str], String, &str); 6] = [
        (&[], "GET / HTTP/1.1\r\nHost: railnet\r\nAccept: everything at all\r\n\r\n".into(), "is not an end"),
        (&[], String::new(), "did not send its end of the connection in 1s"),
        (&[], format!("{end}what\0"), "and not \"done\""),
        (&[], format!("{end}done\0"), "message 1 of 1000 did not come"),
        (&["--op", "read"], format!("{end}done\0{}", "x".repeat(53)), "no description of memory"),
        (
            &["--op", "read"],
            format!("{end}done\0railnet9:    read:00001000:{:016x}:{:08x}\0", 0, 0),
            "it speaks railnet9, this one railnet1",
        ),
    ];
    for (arguments, words, expected) in cases {
        let error = with_client(arguments, words.as_bytes());
        assert!(error.contains(expected) && error.contains("127.0.0.1:"), "{words:?}: {error}");
    }
}

#[test]
fn nobody_there_and_wrong_usage_are_told_apart() {
    let output = railnet(&["-p", &free_port(), "--timeout", "100ms", "127.0.0.1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is it started?"), "{}", text(&output.stderr));
    let output = railnet(&["-p", &free_port(), "--timeout", "100ms"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no client came"), "{}", text(&output.stderr));
    for arguments in [["-m", "1000"], ["--drop", "2"], ["--op", "swap"], ["-s", "4kib"], ["--timeout", "10"]]
    {
        let output = railnet(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
