//! What commands write: checked before a run, complete or not there at all, and never over something else.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read and write their files themselves"
)]

use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness;

/// A run of milliseconds.
const SHORT: &str = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 3 }\n\
                     [[traffic]]\nkind = \"incast\"\nfrom = \"0..1\"\nto = 2\nbytes = \"1MB\"\n";
/// One that nobody waits for.
const LONG: &str = "[fabric]\ntopology = { kind = \"single-switch\", hosts = 3 }\n\
                    [[traffic]]\nkind = \"incast\"\nfrom = \"0..1\"\nto = 2\nbytes = \"1000GB\"\n";

/// An empty directory of a test's own, with both scenarios.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outputs").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("short.toml"), SHORT).unwrap();
    std::fs::write(path.join("long.toml"), LONG).unwrap();
    path
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = harness::command::<&str>(&[]);
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command
}

fn railnet(directory: &Path, arguments: &[&str]) -> Output {
    command(directory, arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Files of a directory besides the scenarios.
fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .filter(|name| Path::new(name).extension().is_none_or(|extension| extension != "toml"))
        .collect();
    names.sort();
    names
}

/// Every option that names a file to write, with a command that writes it.
const WRITERS: [&[&str]; 11] = [
    &["sim", "short.toml", "--json"],
    &["sim", "short.toml", "--record"],
    &["sim", "short.toml", "--report"],
    &["sim", "short.toml", "--trace"],
    &["sim", "short.toml", "--pcap"],
    &["topo", "short.toml", "--svg"],
    &["topo", "dgx-h100", "--nccl-xml"],
    &["topo", "dgx-h100", "--nccl-graph"],
    &["schedule", "allreduce", "--ranks", "4", "--algo", "ring", "--svg"],
    &["verbs", "write", "--pcap"],
    &["run", "-n", "1", "--record"],
];

fn full(writer: &[&str], options: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = writer.iter().chain(options).map(|word| (*word).to_owned()).collect();
    if writer[0] == "run" {
        words.extend(["--".to_owned(), "true".to_owned()]);
    }
    words
}

fn write(directory: &Path, writer: &[&str], options: &[&str]) -> Output {
    let words = full(writer, options);
    railnet(directory, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn nothing_that_is_there_is_replaced_unasked_and_only_regular_files_are_when_asked() {
    let place = directory("there");
    for writer in WRITERS {
        std::fs::write(place.join("out"), "mine").unwrap();
        let refused = write(&place, writer, &["out"]);
        assert_eq!(refused.status.code(), Some(2), "{writer:?}: {}", said(&refused));
        assert!(said(&refused).contains("out is there already: --force replaces it"), "{}", said(&refused));
        assert_eq!(std::fs::read_to_string(place.join("out")).unwrap(), "mine", "{writer:?}");
        if writer[0] != "run" {
            let forced = write(&place, writer, &["out", "--force"]);
            assert!(forced.status.success(), "{writer:?}: {}", said(&forced));
            assert_ne!(std::fs::read(place.join("out")).unwrap(), b"mine", "{writer:?}");
        }
        for (name, what) in [("/dev/null", "device"), ("folder", "directory"), ("pipe", "pipe")] {
            let _ = std::fs::create_dir(place.join("folder"));
            if !place.join("pipe").exists() {
                assert!(Command::new("mkfifo").arg(place.join("pipe")).status().unwrap().success());
            }
            let refused = write(&place, writer, &[name, "--force"]);
            assert_eq!(refused.status.code(), Some(2), "{writer:?} {name}: {}", said(&refused));
            let words = format!("cannot write {name}: it is a {what}");
            assert!(said(&refused).contains(&words), "{writer:?} {name}: {}", said(&refused));
        }
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let nowhere = write(&place, writer, &["no/such/out"]);
        assert!(said(&nowhere).contains("there is no such directory"), "{writer:?}: {}", said(&nowhere));
        assert_eq!(files(&place), ["folder", "out", "pipe"], "{writer:?} leaves nothing else");
    }
}

#[test]
fn a_link_of_this_user_is_followed_and_stays_a_link() {
    let place = directory("links");
    std::fs::write(place.join("kept.json"), "old").unwrap();
    symlink("kept.json", place.join("link.json")).unwrap();
    symlink("nothing.json", place.join("broken.json")).unwrap();
    let forced = railnet(&place, &["sim", "short.toml", "--json", "link.json", "--force"]);
    assert!(forced.status.success(), "{}", said(&forced));
    assert!(place.join("link.json").is_symlink());
    assert!(std::fs::read_to_string(place.join("kept.json")).unwrap().starts_with('{'));
    let broken = railnet(&place, &["sim", "short.toml", "--json", "broken.json", "--force"]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(said(&broken).contains("a symbolic link that leads nowhere"), "{}", said(&broken));
}

#[test]
fn two_outputs_of_one_name_are_refused_and_so_is_a_second_run() {
    let place = directory("two");
    let twice = railnet(&place, &["sim", "short.toml", "--record", "x", "--trace", "./x"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(said(&twice).contains("two outputs of this run are called ./x"), "{}", said(&twice));
    // A run that goes on for as long as it is let.
    let mut first = command(&place, &["sim", "long.toml", "--json", "x", "--force"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let temporary = place.join(".x.railnet-part");
    while !temporary.exists() {
        std::thread::yield_now();
    }
    for force in [&[][..], &["--force"]] {
        // The file is there a moment before its lock.
        let second = loop {
            let second = railnet(&place, &[&["sim", "short.toml", "--json", "x"], force].concat());
            if !second.status.success() {
                break second;
            }
            std::fs::remove_file(place.join("x")).unwrap();
        };
        assert_eq!(second.status.code(), Some(2), "{}", said(&second));
        assert!(said(&second).contains("another run is writing x"), "{}", said(&second));
    }
    // What a killed run leaves is in nobody's way.
    first.kill().unwrap();
    first.wait().unwrap();
    let third = railnet(&place, &["sim", "short.toml", "--json", "x", "--force"]);
    assert!(third.status.success(), "{}", said(&third));
    assert_eq!(files(&place), ["x"]);
}

#[test]
fn tables_are_checked_before_the_run_and_written_whole() {
    let place = directory("tables");
    std::fs::create_dir(place.join("out")).unwrap();
    std::fs::write(place.join("out/links.csv"), "mine").unwrap();
    // The run would not end.
    let refused = railnet(&place, &["sim", "long.toml", "--csv", "out"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("out/links.csv is there already"), "{}", said(&refused));
    assert_eq!(files(&place.join("out")), ["links.csv"]);
    let forced = railnet(&place, &["sim", "short.toml", "--csv", "out", "--force"]);
    assert!(forced.status.success(), "{}", said(&forced));
    assert_eq!(files(&place.join("out")), ["flows.csv", "links.csv"]);
}

#[test]
fn the_report_of_the_built_in_job_has_a_name_of_its_own_or_the_status_says_so() {
    let place = directory("report");
    let built_in = |temporary: &str, directory: &Path| {
        command(directory, &[]).env("TMPDIR", temporary).output().unwrap()
    };
    let written = built_in(place.to_str().unwrap(), &place);
    assert!(written.status.success(), "{}", said(&written));
    let [name] = &files(&place)[..] else { panic!("{:?}", files(&place)) };
    assert!(
        name.starts_with("railnet-life-of-a-job-")
            && Path::new(name).extension().is_some_and(|it| it == "html"),
        "{name}"
    );
    // Something else under its name is left alone, and the next name is taken.
    std::fs::remove_file(place.join(name)).unwrap();
    std::fs::create_dir(place.join(name)).unwrap();
    let next = built_in(place.to_str().unwrap(), &place);
    assert!(next.status.success() && place.join(name).is_dir(), "{}", said(&next));
    assert!(files(&place).contains(&name.replace(".html", "-2.html")), "{:?}", files(&place));
    // `/proc` cannot be written by anybody.
    let nowhere = built_in("/proc", Path::new("/proc"));
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(said(&nowhere).contains("error: no report: cannot write"), "{}", said(&nowhere));
}
