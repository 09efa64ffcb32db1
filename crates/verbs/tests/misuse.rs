//! A program in C that uses the library wrongly in every way that can be checked, and never crashes it.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stderr, reason = "a test that is left out says so")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with the shared object of this build under the names that programs load.
fn library_directory(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let object = tests.parent().unwrap().join("librailnet_verbs.so");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for name in ["libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"] {
        std::os::unix::fs::symlink(&object, folder.join(name)).unwrap();
    }
    folder
}

#[test]
fn mistakes_get_the_errors_of_the_manual_pages() {
    let has_compiler = Command::new("cc").arg("--version").output().is_ok();
    if !has_compiler || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("LEFT OUT: cc and libibverbs-dev are needed to compile a program that misuses the library");
        return;
    }
    let folder = library_directory("misuse");
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/misuse.c"), folder.join("misuse"));
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]).args([&program, &source]);
    let compiled = compiler.arg("-L").arg(&folder).arg("-libverbs").output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // One test at a time has the address: see connections.rs.
    let turn = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdma-tests.lock")).unwrap();
    turn.lock().unwrap();
    let output = Command::new("timeout")
        .arg("120")
        .arg(&program)
        .env("LD_LIBRARY_PATH", &folder)
        .env("RAILNET_RDMA_ADDRESSES", "127.0.0.1")
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("checks, 0 failed"), "{}\n{text}", output.status);
}
