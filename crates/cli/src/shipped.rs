//! The scenarios of this repository, in the binary: a name stands for one wherever a command takes a scenario.

use std::path::Path;

/// Letters of a summary: a line of `railnet list`.
const SUMMARY_MAX: usize = 88;

/// A scenario that ships.
#[derive(Clone, Copy)]
pub(crate) struct Shipped {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(Shipped { name: $name, text: include_str!(concat!("../embedded/scenarios/", $name, ".toml")) }),*]
    };
}

/// All of them, by name.
pub(crate) const ALL: &[Shipped] = shipped![
    "all-to-all",
    "allreduce-2-nodes",
    "allreduce-h100",
    "alltoall",
    "alltoallv",
    "bit-errors",
    "chakra",
    "control-parameters",
    "corruption",
    "deadlock",
    "dragonfly",
    "expert-groups",
    "fast-uplinks",
    "flap",
    "flows",
    "incast",
    "incast-credits",
    "incast-lossy",
    "job-crash",
    "job-flapping-link",
    "job-hot-expert",
    "job-lost-gpu",
    "job-lost-packet",
    "job-lost-packet-selective",
    "job-nvlink-lane",
    "job-pcie",
    "job-slow-gpu",
    "job-slow-nic",
    "job-wrong-numa",
    "kv-transfer",
    "leaf-spine",
    "life-of-a-job",
    "life-of-a-job-racks",
    "life-of-a-job-rails",
    "life-of-a-job-small",
    "link-down",
    "list",
    "list-file",
    "llama-405b",
    "llama-70b",
    "llama-70b-256",
    "lose-packet",
    "loss",
    "mixtral",
    "nccl-sizes",
    "oversubscribed",
    "parameter-servers",
    "pause-storm",
    "permutation",
    "presets",
    "priorities",
    "rails",
    "rdma-or-tcp",
    "ring",
    "series",
    "sharp",
    "slow-gpu",
    "slow-link",
    "slow-nic",
    "spray",
    "spray-go-back-n",
    "tensor-and-data-parallel",
    "textbook-congestion",
    "textbook-loss",
    "textbook-step",
    "unlike",
    "unlike-servers",
    "wrong-class",
];

/// The files that some of them name.
const FILES: &[(&str, &[u8])] = &[
    ("flows.csv", include_bytes!("../embedded/scenarios/flows.csv")),
    ("links.csv", include_bytes!("../embedded/scenarios/links.csv")),
    ("../testdata/chakra/two-servers.0.et", include_bytes!("../embedded/chakra/two-servers.0.et")),
    ("../testdata/chakra/two-servers.1.et", include_bytes!("../embedded/chakra/two-servers.1.et")),
    ("../testdata/chakra/two-servers.2.et", include_bytes!("../embedded/chakra/two-servers.2.et")),
    ("../testdata/chakra/two-servers.3.et", include_bytes!("../embedded/chakra/two-servers.3.et")),
    ("../testdata/chakra/two-servers.4.et", include_bytes!("../embedded/chakra/two-servers.4.et")),
    ("../testdata/chakra/two-servers.5.et", include_bytes!("../embedded/chakra/two-servers.5.et")),
    ("../testdata/chakra/two-servers.6.et", include_bytes!("../embedded/chakra/two-servers.6.et")),
    ("../testdata/chakra/two-servers.7.et", include_bytes!("../embedded/chakra/two-servers.7.et")),
    ("../testdata/chakra/two-servers.8.et", include_bytes!("../embedded/chakra/two-servers.8.et")),
    ("../testdata/chakra/two-servers.9.et", include_bytes!("../embedded/chakra/two-servers.9.et")),
    ("../testdata/chakra/two-servers.10.et", include_bytes!("../embedded/chakra/two-servers.10.et")),
    ("../testdata/chakra/two-servers.11.et", include_bytes!("../embedded/chakra/two-servers.11.et")),
    ("../testdata/chakra/two-servers.12.et", include_bytes!("../embedded/chakra/two-servers.12.et")),
    ("../testdata/chakra/two-servers.13.et", include_bytes!("../embedded/chakra/two-servers.13.et")),
    ("../testdata/chakra/two-servers.14.et", include_bytes!("../embedded/chakra/two-servers.14.et")),
    ("../testdata/chakra/two-servers.15.et", include_bytes!("../embedded/chakra/two-servers.15.et")),
];

/// The scenario that a command line names, where no file has that name.
pub(crate) fn find(path: &Path) -> Option<Shipped> {
    let name = path.to_str()?;
    ALL.iter().copied().find(|one| one.name == name).filter(|_| !path.exists())
}

/// The scenario of a name that is known to ship.
pub(crate) const fn text(name: &str) -> &'static str {
    let mut index = 0;
    while index < ALL.len() {
        if is_same(ALL[index].name.as_bytes(), name.as_bytes()) {
            return ALL[index].text;
        }
        index += 1;
    }
    panic!("no scenario of that name ships")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// A file that a scenario names.
pub(crate) fn file(name: &str) -> Option<&'static [u8]> {
    FILES.iter().find(|(known, _)| *known == name).map(|(_, contents)| *contents)
}

impl Shipped {
    /// What it is about: the first sentence of the comment that it opens with.
    pub(crate) fn summary(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix('#'));
        let comment = lines.map(str::trim).collect::<Vec<_>>().join(" ");
        let sentence = &comment[..comment.find(". ").unwrap_or(comment.len())];
        // Where that is long, as much of it as fits into a line.
        let mut ends = sentence.char_indices().filter(|(at, letter)| {
            *at <= SUMMARY_MAX && ",:;".contains(*letter) && sentence[at + 1..].starts_with(' ')
        });
        let end = if sentence.len() <= SUMMARY_MAX {
            Some(sentence.len())
        } else {
            ends.next_back().map(|(at, _)| at)
        };
        match end {
            Some(end) => sentence[..end].trim_end_matches('.').to_owned(),
            None => {
                let mut words =
                    sentence.char_indices().filter(|(at, letter)| *at < SUMMARY_MAX - 4 && *letter == ' ');
                format!("{} …", &sentence[..words.next_back().map_or(0, |(at, _)| at)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_repository_ships_and_says_what_it_is_about() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let scenarios = entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
        let mut names: Vec<String> =
            scenarios.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort();
        assert_eq!(names, ALL.iter().map(|one| one.name).collect::<Vec<_>>());
        for one in ALL {
            let summary = one.summary();
            assert!((10..=SUMMARY_MAX).contains(&summary.len()), "{}: {summary}", one.name);
        }
    }
}
