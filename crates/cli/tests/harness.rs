//! What the tests of the command share: starting it, its output as text and JSON, files of a test's own, programs that may be missing.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The command with these words; to run, or to change first.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railnet"));
    command.args(arguments);
    command
}

/// Runs the command to its end.
pub(crate) fn railnet(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs the command in the root of the repository, with nothing of NCCL's set but this.
pub(crate) fn railnet_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = command(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NCCL_") {
            command.env_remove(name);
        }
    }
    command.current_dir(root()).envs(variables.iter().copied()).output().unwrap()
}

/// Runs the command, which must succeed, and reads the JSON that it prints.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = railnet(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Output as text, which it must be.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A recorded conversation with Soft-RoCE.
pub(crate) fn golden(name: &str) -> String {
    root().join("testdata/rxe").join(name).to_str().unwrap().to_owned()
}

/// Where a test may write a file of this name, which is not there yet.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

/// A file of this name with these contents; its path.
pub(crate) fn written(name: &str, contents: &(impl AsRef<[u8]> + ?Sized)) -> String {
    let path = scratch(name);
    fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_owned()
}

/// An empty directory of this name.
pub(crate) fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// A TCP port of this host that was free a moment ago.
pub(crate) fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Whether a program that tests use can be started. Says so where it cannot, and fails where it must.
pub(crate) fn is_installed(program: &str) -> bool {
    let is_there =
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        left_out(&format!("{program} is not on PATH"));
    }
    is_there
}

/// Says that a test is left out, and why; fails where nothing may be.
pub(crate) fn left_out(why: &str) {
    assert!(std::env::var("RAILNET_REQUIRE_TOOLS").as_deref() != Ok("1"), "required: {why}");
    #[allow(clippy::print_stderr, reason = "a test that is left out must say so")]
    {
        eprintln!("SKIPPED: {why}");
    }
}
