//! What the documents show of a command is what it prints: a block that begins with `$ railnet` is run and compared.
//! `docs/update-questions` writes such blocks anew.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::harness::{command, directory, root};

/// Lines that say how long it took here, which is no answer.
const VARYING: [&str; 3] = ["Wall time", "took ", "Wrote "];

/// A directory of a document's own in which its commands find the files of the repository, and leave theirs.
fn workplace(name: &str) -> PathBuf {
    let place = directory(&format!("documents-{}", name.replace('/', "-")));
    let root = root().canonicalize().unwrap();
    for folder in ["scenarios", "testdata"] {
        symlink(root.join(folder), place.join(folder)).unwrap();
    }
    place
}

/// What a command prints; what it says when it fails too, where the document shows an error.
fn printed(place: &Path, words: &str, shown: &str) -> String {
    let words: Vec<&str> = words.split_whitespace().collect();
    let output = command(&words).current_dir(place).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let may_fail = shown.lines().any(|line| line.starts_with("error: "));
    assert!(output.status.success() != may_fail, "{words:?}: {}, {said}", output.status);
    let mut text = String::from_utf8(output.stdout).unwrap();
    if may_fail {
        text.push_str(&said);
    }
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

/// The words behind `$ railnet` in the first line of a block.
fn words(block: &str) -> Option<&str> {
    let first = block.lines().nth(1)?.strip_prefix("$ railnet")?;
    // Those that need a peer or a shell, and several commands, cannot be run here.
    let is_alone = !block.lines().skip(2).any(|line| line.starts_with("$ "));
    let runs = first.is_empty() || first.starts_with(' ');
    let can_run = ![" pingpong", " run "].iter().any(|word| first.starts_with(word));
    (runs && is_alone && can_run).then_some(first)
}

/// Runs the commands of a document, of which there are so many at least, and compares what it shows of them, or writes it anew.
fn check(name: &str, blocks_min: usize) {
    let path = root().join(name);
    let contents = fs::read_to_string(&path).unwrap();
    let place = workplace(name);
    let is_update = std::env::var_os("RAILNET_UPDATE").is_some();
    let (mut written, mut blocks) = (String::new(), 0);
    for (index, part) in contents.split("```").enumerate() {
        if index > 0 {
            written.push_str("```");
        }
        let Some(words) = words(part).filter(|_| index % 2 == 1) else {
            written.push_str(part);
            continue;
        };
        blocks += 1;
        let shown = joined(part.lines().skip(2));
        let output = printed(&place, words, &shown);
        if is_update && !shows(&shown, &output) {
            written.extend(["text\n$ railnet", words, "\n", &output]);
            continue;
        }
        assert!(
            shows(&shown, &output),
            "{name}: `railnet{words}` prints\n{output}\nRun docs/update-questions, and read what it changed."
        );
        written.push_str(part);
    }
    if is_update {
        fs::write(&path, written).unwrap();
    }
    assert!(blocks >= blocks_min, "only {blocks} blocks of commands were found in {name}");
}

#[test]
fn every_answer_is_what_its_command_prints() {
    check("docs/questions.md", 10);
}

#[test]
fn every_correction_is_what_its_command_prints() {
    check("docs/corrections.md", 10);
}

#[test]
fn the_first_page_shows_what_is_printed() {
    check("README.md", 1);
}

#[test]
fn planning_shows_what_is_printed() {
    check("docs/planning.md", 2);
}

#[test]
fn the_list_of_commands_shows_what_is_printed() {
    check("docs/commands.md", 1);
}

#[test]
fn lesson_1_shows_what_is_printed() {
    check("docs/lessons/01-one-packet.md", 8);
}

#[test]
fn lesson_3_shows_what_is_printed() {
    check("docs/lessons/03-collectives.md", 3);
}

#[test]
fn lesson_4_shows_what_is_printed() {
    check("docs/lessons/04-connections.md", 3);
}

#[test]
fn lesson_5_shows_what_is_printed() {
    check("docs/lessons/05-congestion.md", 3);
}

#[test]
fn lesson_6_shows_what_is_printed() {
    check("docs/lessons/06-rails-and-ecmp.md", 3);
}

#[test]
fn lesson_7_shows_what_is_printed() {
    check("docs/lessons/07-parallelism.md", 3);
}

#[test]
fn lesson_8_shows_what_is_printed() {
    check("docs/lessons/08-stragglers-and-failures.md", 3);
}

#[test]
fn every_link_of_a_document_leads_to_a_file() {
    let folders = ["", "docs", "docs/architecture", "docs/lessons", "docs/notebook"];
    let mut links = 0;
    for folder in folders.map(|folder| root().join(folder)) {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.extension().is_none_or(|end| end != "md") {
                continue;
            }
            let contents = fs::read_to_string(&entry).unwrap();
            for target in contents.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap();
                if target.contains("://") || file.is_empty() || file.contains(char::is_whitespace) {
                    continue;
                }
                links += 1;
                assert!(folder.join(file).exists(), "{}: there is no {file}", entry.display());
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
}

/// Addresses of views in the lessons have levels and words that the page knows.
#[test]
fn views_that_lessons_name_are_those_of_the_page() {
    let view = fs::read_to_string(root().join("web/src/model/view.ts")).unwrap();
    let mut views = 0;
    for entry in fs::read_dir(root().join("docs/lessons")).unwrap().map(|entry| entry.unwrap().path()) {
        let contents = fs::read_to_string(&entry).unwrap();
        for fragment in contents.split(":8080/#").skip(1).filter_map(|rest| rest.split('`').next()) {
            views += 1;
            let (level, words) = fragment.split_once('?').unwrap_or((fragment, ""));
            let known = |name: &str| view.contains(&format!("'{name}'"));
            assert!(known(level), "{}: the page has no level {level}", entry.display());
            for (name, value) in words.split('&').filter_map(|word| word.split_once('=')) {
                assert!(known(name) || view.contains(&format!("`{name}=$")), "{}: {name}", entry.display());
                assert!(value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'), "{fragment}");
            }
        }
    }
    assert!(views >= 6, "only {views} views were found");
}
