//! `railnet run` from outside: real processes, signals and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use railnet_formats::run_file::RunFile;

use crate::harness;
use crate::harness::{directory, text};

/// Longer than anything takes that goes well.
const LONG: Duration = Duration::from_secs(20);

fn railnet(arguments: &[&str]) -> Command {
    let mut command = harness::command::<&str>(&[]);
    // Whatever started these tests is none of their business.
    for name in ["RANK", "WORLD_SIZE", "RAILNET_SECRET", "RAILNET_LAUNCHER", "OMP_NUM_THREADS"] {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    railnet(arguments).output().unwrap()
}

fn shell(options: &[&str], script: &str) -> Output {
    run(&[&["run"], options, &["--", "sh", "-c", script]].concat())
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn ranks_know_their_place_in_both_languages() {
    let output = shell(
        &["-n", "3", "--nodes", "2", "--env", "COLOUR=red", "--env", "ROLE_NAME=mine"],
        "echo $RAILNET_RANK/$RAILNET_WORLD_SIZE $RAILNET_LOCAL_RANK/$RAILNET_LOCAL_SIZE \
         $RAILNET_NODE/$RAILNET_NODES $RAILNET_HOST_GROUP = $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK \
         $MASTER_ADDR $OMP_NUM_THREADS $COLOUR $ROLE_NAME",
    );
    assert!(output.status.success());
    assert_eq!(
        sorted(&output.stdout),
        [
            "[0] 0/3 0/2 0/2 node0 = 0/3 0/2 0 127.0.0.1 1 red mine",
            "[1] 1/3 1/2 0/2 node0 = 1/3 1/2 0 127.0.0.1 1 red mine",
            "[2] 2/3 0/1 1/2 node1 = 2/3 0/1 1 127.0.0.1 1 red mine",
        ]
    );
    // The two places to meet are not the same, and a secret is there.
    let output = shell(&["-n", "1"], "echo $MASTER_PORT ${RAILNET_RENDEZVOUS##*:} ${#RAILNET_SECRET}");
    let line = text(&output.stdout);
    let words: Vec<u32> = line.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
    assert!(words[0] != words[1] && words[0] > 0 && words[1] > 0, "{line}");
    assert_eq!(words[2], 32);
}

#[test]
fn a_host_file_makes_host_groups() {
    let file = directory("run-hosts").join("hosts");
    fs::write(&file, "alpha slots=2\nbeta:1 # the last\n").unwrap();
    let file = file.to_str().unwrap();
    let script = "echo $RAILNET_HOST_GROUP $RAILNET_LOCAL_RANK";
    let output = shell(&["--hostfile", file], script);
    assert_eq!(sorted(&output.stdout), ["[0] alpha 0", "[1] alpha 1", "[2] beta 0"]);
    let output = shell(&["-n", "4", "--hostfile", file], script);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("4 ranks, but the hosts take 3"), "{}", text(&output.stderr));
}

#[test]
fn lines_are_never_mixed_and_each_stream_stays_its_own() {
    // Each line is written in three pieces, and the last has no end.
    let script = "i=0; while [ $i -lt 200 ]; do printf 'a%s-' $i; printf '%s' bbbb; printf -- '-c%s\\n' $i; \
        echo \"error $i\" >&2; i=$((i+1)); done; printf end";
    let output = shell(&["-n", "4"], script);
    assert!(output.status.success());
    for (stream, count, prefix) in [(&output.stdout, 4 * 201, "a"), (&output.stderr, 4 * 200, "error ")] {
        let lines = text(stream);
        assert_eq!(lines.lines().count(), count);
        for rank in 0..4 {
            let mark = format!("[{rank}] ");
            let own: Vec<&str> = lines.lines().filter_map(|line| line.strip_prefix(&mark)).collect();
            for (number, line) in (0..200).zip(&own) {
                let whole = if prefix == "a" {
                    format!("a{number}-bbbb-c{number}")
                } else {
                    format!("error {number}")
                };
                assert_eq!(*line, whole);
            }
            assert_eq!(own.len(), count / 4);
        }
    }
}

#[test]
fn output_goes_to_files_of_each_rank_and_not_over_others() {
    let path = directory("run-output").join("logs");
    let options = ["-n", "2", "--output", path.to_str().unwrap()];
    let output = shell(&options, "echo out $RANK; echo err $RANK >&2");
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
    for rank in 0..2 {
        let read = |kind: &str| fs::read_to_string(path.join(format!("rank-{rank}.{kind}"))).unwrap();
        assert_eq!((read("out"), read("err")), (format!("out {rank}\n"), format!("err {rank}\n")));
    }
    let again = shell(&options, "true");
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--force replaces it"), "{}", text(&again.stderr));
    assert!(shell(&[&options[..], &["--force"]].concat(), "true").status.success());
    assert_eq!(fs::read_to_string(path.join("rank-0.out")).unwrap(), "");
}

#[test]
fn standard_input_is_rank_0s() {
    let mut command = railnet(&["run", "-n", "2", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello\n").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "[0] hello\n");
}

#[test]
fn a_rank_that_fails_is_named_and_the_others_are_ended() {
    let output = shell(&["-n", "3"], "[ $RANK != 1 ] || exit 7; exec sleep 1000");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message.starts_with("error: rank 1 (pid ") && message.contains(") ended with exit status 7\n"),
        "{message}"
    );
    assert!(message.contains("ranks 0, 2 then ended by SIGTERM"), "{message}");
    let output = shell(&["-n", "2", "--nodes", "2"], "[ $RANK != 1 ] || kill -SEGV $$; exec sleep 1000");
    let message = text(&output.stderr);
    assert!(message.contains(", node1) was killed by SIGSEGV (it touched memory"), "{message}");
}

#[test]
fn those_who_do_not_listen_are_killed_after_the_grace() {
    // Rank 0 fails once rank 1 does not listen any more.
    let mark = directory("deaf").join("mark");
    let script = "trap '' TERM; if [ $RANK = 1 ]; then : > $MARK; while :; do sleep 0.05; done; fi; \
                  while [ ! -e $MARK ]; do sleep 0.02; done; exit 1";
    let variable = format!("MARK={}", mark.display());
    let output = shell(&["-n", "2", "--grace", "200ms", "--env", &variable], script);
    assert!(text(&output.stderr).contains("rank 1 then ended by SIGKILL"), "{}", text(&output.stderr));
}

#[test]
fn a_time_limit_ends_the_run() {
    let output = shell(&["-n", "2", "--timeout", "200ms"], "[ $RANK = 0 ] || exec sleep 1000");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("took longer than 200ms\n  rank 1 then ended by SIGTERM"), "{message}");
}

#[test]
fn wrong_usage_is_2_and_a_missing_program_127() {
    for wrong in [
        &["run"][..],
        &["run", "-n", "2"],
        &["run", "-n", "0", "--", "true"],
        &["run", "-n", "2", "--nodes", "3", "--", "true"],
        &["run", "-n", "2", "--timeout", "5", "--", "true"],
        &["run", "-n", "2", "--env", "X", "--", "true"],
        &["run", "-n", "2", "--hostfile", "/no/such/file", "--", "true"],
        &["run", "-n", "2", "--force", "--", "true"],
        &["run", "-n", "2", "--conduit", "pigeons", "--", "true"],
        &["run", "-n", "2", "--conduct", "tcp", "--", "true"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let unknown = run(&["run", "-n", "2", "--conduct", "tcp", "--", "true"]);
    assert!(
        text(&unknown.stderr).contains("railnet run has no option --conduct"),
        "{}",
        text(&unknown.stderr)
    );
    let folder = directory("run-missing");
    let plain = folder.join("plain");
    fs::write(&plain, "x").unwrap();
    let script = folder.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (program, part) in [
        ("no-such-program", "cannot run no-such-program: there is no such program in the folders of PATH"),
        ("./no-such-program", "cannot run ./no-such-program: there is no such file"),
        (plain.to_str().unwrap(), "chmod +x"),
        (script.to_str().unwrap(), "its interpreter"),
    ] {
        let output = run(&["run", "-n", "2", "--", program]);
        assert_eq!(output.status.code(), Some(127), "{program}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

#[test]
fn a_conduit_is_for_all_ranks() {
    let output = shell(&["-n", "2", "--conduit", "TCP"], "echo $RAILNET_CONDUIT");
    assert_eq!(sorted(&output.stdout), ["[0] tcp", "[1] tcp"]);
}

/// A run whose ranks have all said that they are there. Each prints its process and that of a child of its own.
struct Started {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    processes: Vec<u32>,
}

/// Starts two ranks. What they do when they are signalled is up to `trap`.
fn started(options: &[&str], trap: &str) -> Started {
    let script = format!("{trap}; sleep 1000 & echo $$ $!; while :; do wait; sleep 0.02; done");
    let arguments = [&["run", "-n", "2"], options, &["--", "sh", "-c", &script]].concat();
    let mut child = railnet(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut processes = Vec::new();
    for _ in 0..2 {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        processes.extend(line.split_whitespace().skip(1).map(|word| word.parse::<u32>().unwrap()));
    }
    assert_eq!(processes.len(), 4);
    Started { child, lines, processes }
}

impl Started {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end and returns its status, what the ranks printed besides, and what it says.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut error) = (String::new(), String::new());
        self.lines.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        let status = self.child.wait().unwrap();
        assert_gone(&self.processes);
        (status.code(), out, error)
    }
}

/// Every one of these processes ends.
fn assert_gone(processes: &[u32]) {
    let deadline = Instant::now() + LONG;
    for process in processes {
        while is_alive(*process) {
            assert!(Instant::now() < deadline, "process {process} is still there");
            std::thread::yield_now();
        }
    }
}

/// Whether a process is there and not just waiting to be buried.
fn is_alive(process: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{process}/stat")) else {
        return false;
    };
    // After the name, which stands in brackets: the state.
    !matches!(text.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('Z' | 'X') | None)
}

#[test]
fn signals_are_passed_on_and_all_ends() {
    for (name, said) in [("INT", "SIGINT"), ("TERM", "SIGTERM")] {
        let run = started(&[], "trap 'echo heard; exit 9' INT TERM");
        run.signal(name);
        let (status, out, error) = run.end();
        assert_eq!(status, Some(1));
        assert_eq!(sorted(out.as_bytes()), ["[0] heard", "[1] heard"]);
        assert!(
            error.contains(&format!("stopped by {said}\n  ranks 0, 1 then ended with exit status 9")),
            "{error}"
        );
    }
}

#[test]
fn other_signals_only_pass_through() {
    let mut run = started(&[], "trap 'echo heard' USR1");
    run.signal("USR1");
    let mut line = String::new();
    for _ in 0..2 {
        run.lines.read_line(&mut line).unwrap();
    }
    assert_eq!(sorted(line.as_bytes()), ["[0] heard", "[1] heard"]);
    run.signal("TERM");
    assert_eq!(run.end().0, Some(1));
}

#[test]
fn a_second_interrupt_kills() {
    // The first is heard and ignored; the grace is longer than this test.
    let mut run = started(&["--grace", "1000s"], "trap 'echo heard' INT");
    run.signal("INT");
    let mut line = String::new();
    for _ in 0..2 {
        run.lines.read_line(&mut line).unwrap();
    }
    run.signal("INT");
    let (status, _, error) = run.end();
    assert_eq!(status, Some(1));
    assert!(error.contains("ranks 0, 1 then ended by SIGKILL"), "{error}");
}

#[test]
fn nothing_survives_a_launcher_that_is_killed() {
    let mut run = started(&[], ":");
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    assert_gone(&run.processes);
}

#[test]
fn nothing_survives_a_reader_that_goes_away() {
    let run = started(&[], "trap 'while :; do echo more; done' TERM");
    let Started { mut child, lines, processes } = run;
    drop(lines);
    let sent = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    // As after `railnet … | head`: no failure.
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_gone(&processes);
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    // It holds the output open too, and is not waited for.
    let output = shell(&["-n", "2"], "sleep 1000 & echo $!");
    assert!(output.status.success());
    let left = text(&output.stdout);
    let left: Vec<u32> =
        left.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(left.len(), 2);
    assert_gone(&left);
}

#[test]
fn the_doctor_sees_who_started_it() {
    let output = run(&["run", "-n", "2", "--nodes", "2", "--", env!("CARGO_BIN_EXE_railnet"), "doctor"]);
    let lines = text(&output.stdout);
    assert!(output.status.success(), "{lines}");
    for part in [
        "[1]   ok    launcher        railnet run\n",
        "[1]   ok    rank            1 of 2 · 0 on its node of 1 · node 1 · host group node1\n",
        "[0]   ok    rendezvous      127.0.0.1:",
        "RoCEv2 over UDP port 4791",
        "socket buffers  at most",
    ] {
        assert!(lines.contains(part), "{part} is missing in\n{lines}");
    }
    assert!(lines.lines().count() / 2 <= 24, "more than a screen:\n{lines}");
}

#[test]
fn the_doctors_json_is_json_and_says_what_is_wrong() {
    let output = railnet(&["doctor", "--json"]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["launch"]["launcher"], &value["launch"]["world_size"]), (&"alone".into(), &1.into()));
    assert!(value["checks"].as_array().unwrap().iter().all(|check| check["state"] != "bad"), "{value}");
    let output = railnet(&["doctor"]).env("RAILNET_RANK", "3").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("RAILNET_RANK is set but RAILNET_WORLD_SIZE is not"));
}

#[test]
fn a_job_is_written_for_slurm_and_handed_over() {
    let folder = directory("submit");
    fs::write(folder.join("train.toml"), "[launch]\nprogram = [\"./train\"]\nnodes = 2\n").unwrap();
    let submit = |more: &[&str], path: &str| {
        let arguments = [&["submit", "train.toml"], more].concat();
        railnet(&arguments).current_dir(&folder).env("PATH", path).output().unwrap()
    };
    let printed = submit(&["--print"], "");
    let script = text(&printed.stdout);
    assert!(script.ends_with(" rank ./train\n"), "{script}");
    assert!(script.contains("export MASTER_PORT=") && script.contains("RANK=$SLURM_PROCID"), "{script}");
    assert!(!folder.join("train.sbatch").exists());
    // Without Slurm.
    let written = submit(&[], "");
    assert!(written.status.success() && text(&written.stdout).contains("there is no sbatch here"));
    assert_eq!(fs::read(folder.join("train.sbatch")).unwrap(), printed.stdout);
    // With something that calls itself sbatch.
    fs::write(folder.join("sbatch"), "#!/bin/sh\n[ -s \"$1\" ] && echo Submitted batch job 7\n").unwrap();
    fs::set_permissions(folder.join("sbatch"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let submitted = submit(&[], folder.to_str().unwrap());
    assert_eq!(text(&submitted.stdout), "Submitted batch job 7 (train.sbatch)\n");
    fs::write(folder.join("sbatch"), "#!/bin/sh\nexit 1\n").unwrap();
    let refused = submit(&[], folder.to_str().unwrap());
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("sbatch refused the job"), "{}", text(&refused.stderr));
    // What somebody else wrote is left alone.
    fs::write(folder.join("train.sbatch"), "#!/bin/sh\n").unwrap();
    let kept = submit(&[], "");
    assert!(text(&kept.stderr).contains("--force replaces it"), "{}", text(&kept.stderr));
}

/// What ranks called is in a file and in a trace, under the names of their host groups; a program that calls nothing has none.
#[test]
fn the_calls_of_a_program_are_recorded() {
    let folder = directory("recorded");
    let [record, trace, hosts] =
        ["run.rail", "run.pftrace", "hosts"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    fs::write(&hosts, "alpha slots=2\nbeta\n").unwrap();
    let options = ["--hostfile", &hosts, "--record", &record, "--trace", &trace];
    let program =
        [env!("CARGO_BIN_EXE_railnet"), "perf", "sendrecv", "-b", "4K", "-e", "4K", "--iterations", "6"];
    let output = run(&[&["run"], &options[..], &["--"], &program].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recorded = RunFile::parse(&fs::read(&record).unwrap()).unwrap();
    let names: Vec<&str> = recorded.meta["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["alpha", "beta"]);
    let rows = |name: &str| recorded.table(name).unwrap().rows;
    // Rank 0 sends to rank 1; the third rank is in the calls and has nothing to do.
    assert_eq!((rows("operations"), rows("calls"), rows("slices")), (18, 6, 6));
    let trace = fs::read(&trace).unwrap();
    let times = |word: &str| trace.windows(word.len()).filter(|part| *part == word.as_bytes()).count();
    assert_eq!(
        (times("alpha"), times("beta"), times("rank 0 sends"), times("rank 1 receives")),
        (1, 1, 1, 1)
    );
    assert_eq!(
        run(&["run", "-n", "1", "--record", &record, "--", "true"]).status.code(),
        Some(2),
        "it is there"
    );
    let quiet = folder.join("quiet.rail");
    let output = run(&["run", "-n", "2", "--record", quiet.to_str().unwrap(), "--", "true"]);
    assert!(output.status.success() && !quiet.exists());
    assert!(text(&output.stderr).contains("nothing is recorded: no rank made a call of Railnet's"));
}

/// Where something else starts the ranks, each leaves a file: they are one run, by the name they share or that of any of them.
#[test]
fn calls_that_ranks_wrote_to_files_of_their_own_are_shown_as_one_run() {
    let folder = directory("record-files");
    let calls = folder.join("calls").to_str().unwrap().to_owned();
    let program =
        [env!("CARGO_BIN_EXE_railnet"), "perf", "all_reduce", "-b", "4K", "-e", "4K", "--iterations", "2"];
    let record = format!("RAILNET_RECORD={calls}");
    let output = run(&[&["run", "-n", "2", "--env", &record, "--"], &program[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    // A rank that was killed leaves an empty file.
    let whole = fs::read_to_string(folder.join("calls.rank1")).unwrap();
    fs::write(folder.join("calls.rank1"), "").unwrap();
    for (number, name) in [calls.clone(), format!("{calls}.rank0"), calls.clone()].iter().enumerate() {
        let page = folder.join(format!("{number}.html"));
        let output = run(&["view", name, "--report", page.to_str().unwrap()]);
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains(&calls), "{name}");
        fs::write(folder.join("calls.rank1"), &whole).unwrap();
    }
    // What no rank of Railnet's wrote is a file like any other.
    fs::write(folder.join("mine.rank0"), "railnet calls 1\nrank 0\nranks 4294967295\n").unwrap();
    for name in ["none", "mine", "mine.rank0"] {
        let output = run(&["view", folder.join(name).to_str().unwrap(), "--report", "never.html"]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(text(&output.stderr).contains(name), "{}", text(&output.stderr));
    }
}
