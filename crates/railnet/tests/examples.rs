//! The examples, as people run them: several processes that find each other by their variables.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Beside the tests, cargo builds the examples.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().join("examples").join(name)
}

fn run(name: &str, ranks: usize, conduit: &str) -> Vec<Output> {
    run_in_groups(name, ranks, |_, command| _ = command.env("RAILNET_CONDUIT", conduit))
}

fn run_in_groups(name: &str, ranks: usize, settings: impl Fn(usize, &mut Command)) -> Vec<Output> {
    let port = railnet_live::launch::free_port().unwrap();
    let start = |rank: usize| {
        let mut command = Command::new(example(name));
        command.env("RAILNET_RANK", rank.to_string()).env("RAILNET_WORLD_SIZE", ranks.to_string());
        command.env("RAILNET_RENDEZVOUS", format!("127.0.0.1:{port}"));
        command.env("RAILNET_TIMEOUT", "30s");
        settings(rank, &mut command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..ranks).map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn printed(outputs: &[Output]) -> String {
    let mut text = String::new();
    for output in outputs {
        text += &String::from_utf8_lossy(&output.stdout);
        text += &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }
    text
}

#[test]
fn ranks_train_to_the_weights_that_one_process_reaches() {
    for conduit in ["shm", "tcp", "roce"] {
        let text = printed(&run("train", 3, conduit));
        assert!(text.contains("3 ranks reached the weights that one process reaches"), "{conduit}: {text}");
    }
}

#[test]
fn everybody_says_hello_and_something_goes_around() {
    let text = printed(&run("hello", 4, "shm"));
    assert_eq!(text.matches("all met in 1 host group, the ranks add up to 6").count(), 4, "{text}");
    let text = printed(&run("ring", 4, "tcp"));
    assert!(text.contains("4 ranks have seen it"), "{text}");
}

#[test]
fn borders_are_put_into_the_memory_of_neighbours() {
    for conduit in ["shm", "tcp", "roce"] {
        let text = printed(&run("window", 3, conduit));
        assert!(text.contains("3 ranks reached what one process reaches"), "{conduit}: {text}");
    }
    // Two hosts of two ranks: shared memory inside, TCP between them.
    let grouped = run_in_groups("window", 4, |rank, command| {
        command.env("RAILNET_HOST_GROUP", format!("host{}", rank / 2));
    });
    let text = printed(&grouped);
    assert!(text.contains("4 ranks reached what one process reaches"), "{text}");
}

#[test]
fn a_message_goes_back_and_forth_between_two_nics() {
    let port = railnet_live::launch::free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let start = |words: &[&str]| {
        Command::new(example("pingpong"))
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut server = start(&[&address]);
    // The server says nothing when it listens: a client that comes too early ends at once, and another one is sent.
    let client = loop {
        let client = start(&[&address, "client"]).wait_with_output().unwrap();
        let is_early = String::from_utf8_lossy(&client.stderr).contains("ConnectionRefused");
        if !is_early || server.try_wait().unwrap().is_some() {
            break client;
        }
    };
    let text = printed(&[server.wait_with_output().unwrap(), client]);
    assert_eq!(text.matches("1000 messages of 4096 bytes each way").count(), 2, "{text}");
}

#[test]
fn an_incast_built_in_code_is_the_one_of_a_file() {
    let output = Command::new(example("incast")).output().unwrap();
    let text = printed(&[output]);
    for control in ["none", "dcqcn", "swift", "hpcc"] {
        assert!(text.contains(&format!("\n{control} ")), "{text}");
    }
    let file = &text[text.find("[fabric").unwrap()..];
    let outcome = railnet::sim::simulate(&railnet::sim::Scenario::parse(file).unwrap()).unwrap();
    let line = text.lines().find(|line| line.starts_with("dcqcn")).unwrap();
    let completed = outcome.completion.since(railnet::units::Time::ZERO).as_us_f64();
    assert!(line.contains(&format!("{completed:.1} us")), "{line}: {completed}");
}

#[test]
fn a_job_built_in_code_is_laid_out_in_three_ways() {
    let text = printed(&[Command::new(example("job")).output().unwrap()]);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().skip(1).all(|line| line.matches(" s").count() >= 2), "{text}");
}
