//! `railnet pingpong` as people start it: two processes on the loopback interface, and peers that misbehave.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

fn railnet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railnet"));
    command.arg("pingpong").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A TCP port that nobody has.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// A server and its client, with these arguments each.
fn play(server: &[&str], client: &[&str]) -> [Output; 2] {
    let port = free_port();
    let common = ["-p", &port, "--timeout", "20"];
    let server = railnet(&[&common, server].concat()).spawn().unwrap();
    let client = railnet(&[&common, client, &["127.0.0.1"]].concat()).output().unwrap();
    [server.wait_with_output().unwrap(), client]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

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
fn faults_are_survived_and_told() {
    let faults = ["-n", "50", "--drop", "0.05", "--corrupt", "1/20", "--ack-timeout", "8"];
    let [server, client] = play(&faults, &[&faults[..], &["--chk", "--seed", "2"]].concat());
    assert!(server.status.success(), "{}", text(&server.stderr));
    let out = text(&client.stdout);
    assert!(out.contains("on the way out") && !out.contains(" 0 lost"), "{out}{}", text(&client.stderr));
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
    let output = railnet(&["-p", &port, "--timeout", "0.3", "127.0.0.1"]).output().unwrap();
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
    assert!(error.contains("message 1 of 1000 did not come in 300ms; nothing came from the peer"), "{error}");
}

#[test]
fn nobody_there_and_wrong_usage_are_told_apart() {
    let output = railnet(&["-p", &free_port(), "--timeout", "0.1", "127.0.0.1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is it started?"), "{}", text(&output.stderr));
    let output = railnet(&["-p", &free_port(), "--timeout", "0.1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no client came"), "{}", text(&output.stderr));
    for arguments in [["-m", "1000"], ["--drop", "2"], ["--op", "swap"], ["-s", "4kib"]] {
        let output = railnet(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
