//! What other people's crates the workspace is built from: each in one version, from crates.io, under a licence that lets programs under
//! MIT or Apache 2.0 contain it. `cargo deny` checks the same and known faults, where it is installed (`deny.toml`).

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// All packages that the workspace may be built from, on any platform.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs this test, so it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    metadata["packages"].as_array().expect("it lists packages").clone()
}

/// The licences that `deny.toml` allows.
fn allowed() -> Vec<String> {
    let text = include_str!("../../../deny.toml");
    let table: toml::Table = text.parse().expect("deny.toml is TOML");
    let list = table["licenses"]["allow"].as_array().expect("it lists licences");
    list.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

/// Whether a licence expression can be met with the allowed ones: of an OR one part, of an AND all. Old manifests write `/` for OR.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    // The expressions that occur have their ORs inside parentheses and their ANDs outside.
    expression
        .split(" AND ")
        .all(|part| part.split(" OR ").any(|one| allowed.iter().any(|is| is == one.trim())))
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = allowed();
    for package in packages() {
        let (name, licence) = (&package["name"], package["license"].as_str().unwrap_or("none"));
        assert!(is_met(licence, &allowed), "{name} is under {licence}: see deny.toml");
    }
}

#[test]
fn licences_are_read_as_they_are_written() {
    let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
    for good in ["MIT", "Apache-2.0 OR MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_met(good, &allowed), "{good}");
    }
    for bad in ["none", "GPL-3.0", "MIT AND GPL-3.0", "LGPL-2.1-or-later OR GPL-2.0"] {
        assert!(!is_met(bad, &allowed), "{bad}");
    }
}

#[test]
fn every_dependency_has_one_version_and_comes_from_crates_io() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let source = text("source");
        let is_ours = package["source"].is_null();
        assert!(is_ours || source.starts_with("registry+"), "{} comes from {source}", text("name"));
        versions.entry(text("name")).or_default().push(text("version"));
    }
    for (name, versions) in versions {
        assert_eq!(
            versions.len(),
            1,
            "two versions of a crate are two copies of its faults: {name} {versions:?}"
        );
    }
}
