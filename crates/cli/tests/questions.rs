//! The answers of docs/questions.md and the numbers of docs/corrections.md are what the commands print.
//! `docs/update-questions` writes them anew.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write their files, start commands and read their environment themselves"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Lines that say how long it took here, which is no answer.
const VARYING: [&str; 2] = ["Wall time", "took "];

/// What a command prints, from the root of the repository.
fn printed(root: &Path, command: &str) -> String {
    let words = command.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_railnet")).args(words).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !VARYING.iter().any(|word| line.contains(word)));
    joined(lines.map(str::trim_end))
}

/// Lines with their ends.
fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Whether the lines of a document are those of an output, in order; a line "…" stands for any that are left out.
fn shows(document: &str, output: &str) -> bool {
    let mut rest = output.lines();
    document.lines().filter(|line| line.trim() != "…").all(|line| rest.any(|printed| printed == line))
}

/// Runs the commands of a document and compares what it shows of them, or writes it anew.
fn check(name: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs").join(name);
    let contents = fs::read_to_string(&path).unwrap();
    let is_update = std::env::var_os("RAILNET_UPDATE").is_some();
    let (mut written, mut answers) = (String::new(), 0);
    for (index, part) in contents.split("```").enumerate() {
        if index > 0 {
            written.push_str("```");
        }
        let command = part.lines().nth(1).and_then(|line| line.strip_prefix("$ railnet "));
        let Some(command) = command.filter(|_| index % 2 == 1) else {
            written.push_str(part);
            continue;
        };
        answers += 1;
        let output = printed(&root, command);
        let shown = joined(part.lines().skip(2));
        if is_update && !shows(&shown, &output) {
            written.extend(["text\n$ railnet ", command, "\n", &output]);
            continue;
        }
        assert!(
            shows(&shown, &output),
            "docs/{name}: `railnet {command}` prints\n{output}\nRun docs/update-questions, and read what it changed."
        );
        written.push_str(part);
    }
    if is_update {
        fs::write(&path, written).unwrap();
    }
    assert!(answers >= 10, "only {answers} answers were found in docs/{name}");
}

#[test]
fn every_answer_is_what_its_command_prints() {
    check("questions.md");
}

#[test]
fn every_correction_is_what_its_command_prints() {
    check("corrections.md");
}
