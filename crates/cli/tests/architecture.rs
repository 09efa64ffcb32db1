//! The layers, as a test: which crate may use which. A new arrow is a decision about the design, so it has to be made
//! here, in the table, and not in passing in a `Cargo.toml`. `docs/ARCHITECTURE.md` says why the arrows point this way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Every crate there is or will be, without its `railnet-`, and those it may use.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("core", &[]),
    ("wire", &["core"]),
    ("topology", &["core"]),
    ("nic", &["core", "wire"]),
    ("tcp", &["core", "wire"]),
    ("coll", &["core", "topology", "nic"]),
    ("fabric", &["core", "wire", "topology", "nic"]),
    ("flow", &["core"]),
    ("job", &["core", "topology", "coll"]),
    ("sim", &["core", "wire", "topology", "nic", "coll", "fabric", "flow", "job"]),
    ("formats", &["core", "wire", "topology", "nic", "coll", "fabric", "flow", "job", "sim"]),
    ("live", &["core", "wire", "topology", "nic", "coll"]),
    ("verbs", &["core", "wire", "nic", "live"]),
    ("sysfs", &[]),
    ("capi", &["core", "coll", "live"]),
    ("railnet", LIBRARIES),
    ("cli", COMMAND),
    ("python", &["railnet", "cli"]),
];

/// What the library for users and the command may use: everything below them.
const LIBRARIES: &[&str] = &[
    "core", "wire", "topology", "nic", "coll", "fabric", "flow", "job", "sim", "formats", "live", "railnet",
];

/// The command has the shared objects beside it, too.
const COMMAND: &[&str] = &[
    "core", "wire", "topology", "nic", "coll", "fabric", "flow", "job", "sim", "formats", "live", "railnet",
    "verbs", "sysfs", "capi", "tcp",
];

/// The crates that may touch the world: sockets, clocks, threads, files.
const IMPURE: [&str; 6] = ["live", "verbs", "sysfs", "capi", "cli", "python"];

/// The crates that may have unsafe code, in files that are listed. In `core` that is the prefetch instruction and nothing else.
const UNSAFE: [&str; 6] = ["core", "live", "verbs", "sysfs", "capi", "python"];

/// What the library of a pure crate says, so that clippy refuses what `clippy.toml` lists.
const PURE_LINE: &str = "#![deny(clippy::disallowed_methods, clippy::disallowed_types)]";

/// What the checker needs to know of a crate.
#[derive(Clone)]
struct Crate {
    package: String,
    /// Railnet's own crates among its dependencies, and whether only its tests need them.
    uses: Vec<(String, bool)>,
    /// Its `Cargo.toml`.
    manifest: String,
    /// Its `src/lib.rs`, where it is a library.
    library: Option<String>,
}

/// The name without its prefix. The library for users is called just `railnet`.
fn short(package: &str) -> &str {
    package.strip_prefix("railnet-").unwrap_or(package)
}

fn allowed(package: &str) -> Option<&'static [&'static str]> {
    ALLOWED.iter().find(|(name, _)| *name == short(package)).map(|(_, uses)| *uses)
}

/// Everything that is wrong with these crates, one sentence each.
fn violations(crates: &[Crate]) -> Vec<String> {
    crates
        .iter()
        .flat_map(|one| match allowed(&one.package) {
            Some(uses) => [wrong_arrows(one, uses), wrong_lints(one), wrong_purity(one)].concat(),
            None => vec![format!(
                "{} is not in the table of crates: decide what it may use and add it",
                one.package
            )],
        })
        .collect()
}

fn wrong_arrows(one: &Crate, allowed: &[&str]) -> Vec<String> {
    let is_fine = |package: &str, only_tests: bool| {
        // A crate's tests may ask for its own test helpers.
        (only_tests && package == one.package) || allowed.contains(&short(package))
    };
    one.uses
        .iter()
        .filter(|(package, only_tests)| !is_fine(package, *only_tests))
        .map(|(package, _)| {
            let names = if allowed.is_empty() { "none of ours".to_owned() } else { allowed.join(", ") };
            format!("{} uses {package}, but may use only: {names}", one.package)
        })
        .collect()
}

fn wrong_lints(one: &Crate) -> Vec<String> {
    // See `crates_with_unsafe_code_have_the_workspaces_other_lints`.
    if UNSAFE.contains(&short(&one.package)) || has_workspace_lints(&one.manifest) {
        return Vec::new();
    }
    vec![format!(
        "{} does not opt in to the workspace's lints, which forbid unsafe code: write `[lints]` and `workspace = true`",
        one.package
    )]
}

fn has_workspace_lints(manifest: &str) -> bool {
    let mut table = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            table = line;
        }
        let line: String = line.split_whitespace().collect();
        (table == "[lints]" && line == "workspace=true")
            || (table.is_empty() && line == "lints.workspace=true")
    })
}

fn wrong_purity(one: &Crate) -> Vec<String> {
    let is_impure = IMPURE.contains(&short(&one.package));
    let says_so = |library: &String| library.lines().any(|line| line.trim() == PURE_LINE);
    if is_impure || one.library.as_ref().is_some_and(says_so) {
        return Vec::new();
    }
    vec![format!("{} is a pure crate: its src/lib.rs must say `{PURE_LINE}`", one.package)]
}

/// The crates of this workspace, as cargo sees them.
fn workspace() -> Vec<Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs this test, so it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    packages.iter().map(read_crate).collect()
}

fn read_crate(package: &Value) -> Crate {
    let text = |value: &Value| value.as_str().expect("names and paths are strings").to_owned();
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let dependencies = package["dependencies"].as_array().expect("packages list dependencies");
    // Those of the workspace have a path.
    let ours = dependencies.iter().filter(|dependency| dependency["path"].is_string());
    let uses = ours.map(|dependency| (text(&dependency["name"]), dependency["kind"] == "dev"));
    let library = manifest.parent().map(|folder| folder.join("src/lib.rs")).filter(|path| path.exists());
    Crate {
        package: text(&package["name"]),
        uses: uses.collect(),
        manifest: read(&manifest),
        library: library.as_deref().map(read),
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_workspace_keeps_to_its_layers() {
    let crates = workspace();
    assert!(crates.iter().any(|one| one.package == "railnet-core"), "no crates were found");
    let found = violations(&crates);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// The tables of lints below a heading, as cargo reads them.
/// Where one program has all tests of a crate, a file that is not named in it would never run.
#[test]
fn every_file_of_tests_is_run() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut checked = 0;
    for one in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let is_one_program = read(&one.join("Cargo.toml")).contains("autotests = false");
        if !is_one_program {
            continue;
        }
        let all = read(&one.join("tests/all.rs"));
        for file in fs::read_dir(one.join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let is_named = all.lines().any(|line| line == format!("mod {name};"));
            assert!(is_named || name == "all", "{} is not in tests/all.rs", file.display());
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} files of tests");
}

fn lints(manifest: &str, heading: &[&str]) -> toml::Table {
    let mut table: toml::Table = manifest.parse().expect("a manifest is TOML");
    for name in heading {
        table = table.remove(*name).and_then(|value| value.try_into().ok()).unwrap_or_default();
    }
    table
}

/// `core` has the prefetch instruction, `live` calls the kernel, `verbs` and `capi` serve programs in C: that takes unsafe code. Where the workspace forbids
/// it, they deny it, so that a small file may say `expect` with its reason; each is listed here. Cargo cannot change one lint
/// of an inherited table, so they repeat the others.
#[test]
fn crates_with_unsafe_code_have_the_workspaces_other_lints() {
    const UNSAFE_FILES: [&str; 33] = [
        "../python/src/communicator.rs",
        "capi/src/export.rs",
        "capi/src/operation.rs",
        "capi/src/pointer.rs",
        "capi/src/process.rs",
        "capi/src/window.rs",
        "core/src/prefetch.rs",
        "live/src/communicator/at_exit.rs",
        "live/src/communicator/element.rs",
        "live/src/communicator/operation.rs",
        "live/src/communicator/window/setup.rs",
        "live/src/engine/executor.rs",
        "live/src/engine/streaming.rs",
        "live/src/engine/work.rs",
        "live/src/engine/zero_copy.rs",
        "live/src/memory/application.rs",
        "live/src/memory/copy.rs",
        "live/src/memory/given.rs",
        "live/src/memory/sum.rs",
        "live/src/roce/shared_payload.rs",
        "live/src/roce/system.rs",
        "live/src/shared_memory/peer_process.rs",
        "live/src/shared_memory/segment.rs",
        "live/src/supervisor/parent_death.rs",
        "live/src/transport/buffer.rs",
        "sysfs/src/lib.rs",
        "verbs/src/cma/address_info.rs",
        "verbs/src/errors.rs",
        "verbs/src/export.rs",
        "verbs/src/fork.rs",
        "verbs/src/object.rs",
        "verbs/src/post.rs",
        "verbs/src/storm/calls.rs",
    ];
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let mut workspace = lints(&read(crates.join("../Cargo.toml")), &["workspace", "lints"]);
    assert_eq!(workspace["rust"]["unsafe_code"].as_str(), Some("forbid"));
    workspace["rust"]["unsafe_code"] = "deny".into();
    let mut found = Vec::new();
    for name in UNSAFE {
        let home = crates.join(if name == "python" { "../python" } else { name });
        assert_eq!(lints(&read(home.join("Cargo.toml")), &["lints"]), workspace, "{name}");
        let mut folders = vec![home.join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder of sources") {
                let path = entry.expect("an entry of it").path();
                if path.is_dir() {
                    folders.push(path);
                } else if read(path.clone()).contains("unsafe_code") {
                    found.push(path.strip_prefix(&crates).expect("below it").display().to_string());
                }
            }
        }
    }
    found.sort();
    assert_eq!(found, UNSAFE_FILES, "a file with unsafe code is a decision, made in this list");
}

/// docs/security.md names the test that attacks each guarantee: all of them exist.
#[test]
fn every_guarantee_has_the_test_that_it_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = read(&root.join("docs/security.md"));
    let mut sources = String::new();
    let mut folders = ["wire", "nic", "coll", "live"].map(|name| root.join("crates").join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry of it").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                sources += &read(&path);
            }
        }
    }
    // Code in the text that is a path of modules and ends in a test.
    let code = text.split('`').skip(1).step_by(2);
    let tests: Vec<&str> = code.filter_map(|code| Some(code.rsplit_once("::")?.1)).collect();
    assert!(tests.len() >= 15, "{tests:?}");
    for test in tests {
        assert!(
            sources.contains(&format!("#[test]\nfn {test}()"))
                || sources.contains(&format!("    #[test]\n    fn {test}()")),
            "there is no test {test}"
        );
    }
}

#[test]
fn the_table_has_no_circles() {
    // Every crate uses only crates above it in the table, so no chain of arrows comes back.
    for (index, (name, uses)) in ALLOWED.iter().enumerate() {
        for used in *uses {
            let place = ALLOWED.iter().position(|(other, _)| other == used);
            let is_above = place.is_some_and(|place| place < index || used == name);
            assert!(is_above, "{name} uses {used}, which is not above it");
        }
    }
}

/// A crate that breaks no rule.
fn good(package: &str, uses: &[&str]) -> Crate {
    Crate {
        package: package.to_owned(),
        uses: uses.iter().map(|name| ((*name).to_owned(), false)).collect(),
        manifest: "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n".to_owned(),
        library: Some(format!("//! Documentation.\n{PURE_LINE}\n")),
    }
}

#[test]
fn a_good_graph_passes() {
    let mut own_helpers = good("railnet-nic", &["railnet-core", "railnet-wire"]);
    own_helpers.uses.push(("railnet-nic".to_owned(), true));
    let mut short_form = good("railnet-core", &[]);
    short_form.manifest = "lints.workspace = true\n[package]\n".to_owned();
    let mut command = good("railnet-cli", &["railnet-core", "railnet-live", "railnet"]);
    command.library = None;
    let mut live = good("railnet-live", &["railnet-coll"]);
    live.manifest.clear();
    assert_eq!(violations(&[own_helpers, short_form, command, live]), Vec::<String>::new());
}

#[test]
fn a_wrong_arrow_is_named() {
    let graph = [good("railnet-core", &[]), good("railnet-nic", &["railnet-core", "railnet-fabric"])];
    assert_eq!(violations(&graph), ["railnet-nic uses railnet-fabric, but may use only: core, wire"]);
    assert_eq!(violations(&[good("railnet-core", &["railnet-wire"])]).len(), 1);
    assert_eq!(violations(&[good("railnet-live", &["railnet-sim"])]).len(), 1);
    assert_eq!(violations(&[good("railnet-sim", &["railnet-live"])]).len(), 1);
}

#[test]
fn tests_are_no_way_around_the_table() {
    let mut wire = good("railnet-wire", &["railnet-core"]);
    wire.uses.push(("railnet-nic".to_owned(), true));
    assert_eq!(violations(&[wire]).len(), 1);
    // A crate that uses itself outside its tests is a mistake of another kind, and still one.
    assert_eq!(violations(&[good("railnet-wire", &["railnet-wire"])]).len(), 1);
}

#[test]
fn an_unknown_crate_is_named() {
    let found = violations(&[good("railnet-extra", &[])]);
    assert_eq!(found, ["railnet-extra is not in the table of crates: decide what it may use and add it"]);
}

#[test]
fn missing_lints_and_a_missing_line_are_named() {
    let mut careless = good("railnet-wire", &[]);
    careless.manifest = "[package]\nworkspace = true\n".to_owned();
    careless.library = Some("//! Documentation.\n".to_owned());
    let found = violations(&[careless.clone()]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("lints") && found[1].contains("pure"));
    careless.package = "railnet-live".to_owned();
    assert!(violations(&[careless]).is_empty());
}
