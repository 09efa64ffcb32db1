//! A rank that lacks something of its own host says so, and so do all others of it: nobody hangs, and nobody else is accused.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use railnet_core::ReduceOp;
use railnet_live::Communicator;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The rank that lacks something.
const POOR: usize = 1;

/// What a rank does: it meets the others and sums, with fewer resources from the start or from then on.
#[test]
#[ignore = "a rank of the tests below, which start it as a process of its own"]
fn rank() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_poor = number("RAILNET_RANK") == Some(POOR as u64);
    let limit = |name: &str, resource: Resource, base: u64| {
        if let Some(more) = number(name).filter(|_| is_poor) {
            let current = Some(base + more);
            setrlimit(resource, Rlimit { current, maximum: getrlimit(resource).maximum }).unwrap();
        }
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    limit("FILES_AT_START", Resource::Nofile, descriptors);
    limit("MEMORY_AT_START", Resource::As, 0);
    let world = match Communicator::from_env() {
        Ok(world) => world,
        Err(error) => return println!("\nmeets: {}", error.to_string().replace('\n', " | ")),
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(64, Iterator::count) as u64;
    limit("FILES_LATER", Resource::Nofile, descriptors.saturating_sub(1));
    let outcome = (0..50).try_for_each(|_| {
        let part = world.split(Some(0), 0)?.unwrap();
        part.all_reduce_in_place(&mut [1_u8; 4000], ReduceOp::Sum)
    });
    match outcome {
        Ok(()) => println!("\nall is well"),
        Err(error) => println!("\ncalls: {}", error.to_string().replace('\n', " | ")),
    }
}

/// The last line that each rank said; all of them end in time.
fn run(ranks: usize, variables: &[(&str, String)]) -> Vec<String> {
    let port = railnet_live::launch::free_port().unwrap();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "rank", "--nocapture"]);
        command.env("RAILNET_RANK", rank.to_string()).env("RAILNET_WORLD_SIZE", ranks.to_string());
        command.env("RAILNET_RENDEZVOUS", format!("127.0.0.1:{port}"));
        command.env("RAILNET_TIMEOUT", "8s").env("RAILNET_SILENCE", "2s");
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut ranks: Vec<Child> = (0..ranks).map(start).collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    while ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_none()) {
        if Instant::now() > deadline {
            for rank in &mut ranks {
                rank.kill().unwrap();
            }
            panic!("{variables:?}: a rank hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = |rank: &mut Child| {
        let (mut out, mut error) = (String::new(), String::new());
        rank.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        rank.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(!error.contains("panicked"), "{variables:?}: {error}");
        let is_said =
            |line: &&str| ["meets: ", "calls: ", "all is well"].iter().any(|word| line.starts_with(word));
        out.lines().find(is_said).unwrap_or("nothing").to_owned()
    };
    ranks.iter_mut().map(said).collect()
}

fn check(variables: &[(&str, String)]) {
    let said = run(3, variables);
    let case = format!("{variables:?}: {said:#?}");
    if said.iter().all(|line| line == "all is well") {
        return;
    }
    assert!(said.iter().all(|line| line.starts_with("meets: ") || line.starts_with("calls: ")), "{case}");
    for line in said.iter().enumerate().filter(|(rank, _)| *rank != POOR).map(|(_, line)| line) {
        assert!(line.contains("rank 1"), "{case}");
        assert!(!line.contains("rank 0 ") && !line.contains("rank 2 "), "{case}");
    }
}

#[test]
fn a_rank_without_descriptors_is_reported_by_all() {
    for conduit in ["shm", "tcp", "roce"] {
        for more in [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20] {
            check(&[("RAILNET_CONDUIT", conduit.to_owned()), ("FILES_AT_START", more.to_string())]);
        }
        for more in [0, 1, 2, 4] {
            check(&[("RAILNET_CONDUIT", conduit.to_owned()), ("FILES_LATER", more.to_string())]);
        }
    }
}
