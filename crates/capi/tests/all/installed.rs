//! The library of this build, installed as users do it, and programs in C that are compiled against it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// This crate's folder, also from other crates' tests.
pub(crate) fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("capi")
}

/// Where it is installed.
pub(crate) struct Installed {
    pub(crate) prefix: PathBuf,
}

impl Installed {
    /// Installs it below a folder of this test's own; other crates have their folders beside it.
    pub(crate) fn new(name: &str) -> Self {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{name}"));
        let _ = fs::remove_dir_all(&prefix);
        let tests = std::env::current_exe().unwrap();
        let library = tests.parent().unwrap().join("librailnet_capi.so");
        let mut install = Command::new(home().join("install"));
        let output = install.arg("--prefix").arg(&prefix).arg("--library").arg(library).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { prefix }
    }

    /// What compilers need, as pkg-config tells it.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(["--cflags", "--libs", "railnet"]);
        let found = pkg_config.env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig")).output();
        let Ok(output) = found else {
            let (include, lib) = (self.prefix.join("include"), self.prefix.join("lib"));
            return vec![
                format!("-I{}", include.display()),
                format!("-L{}", lib.display()),
                "-lrailnet".to_owned(),
            ];
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a source in this crate's folder.
    pub(crate) fn compile(&self, source: &str) -> PathBuf {
        let source = home().join(source);
        let program = self.prefix.join(source.file_stem().unwrap());
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O1", "-pthread"]);
        compiler.args(["-Wall", "-Wextra", "-pedantic", "-Werror"]);
        let output = compiler.arg(&source).arg("-o").arg(&program).args(self.flags()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// A program that finds the library and nothing of what started these tests.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "RAILNET_SECRET", "RAILNET_LAUNCHER"] {
            command.env_remove(name);
        }
        command.env("LD_LIBRARY_PATH", self.prefix.join("lib")).env("RAILNET_TIMEOUT", "30s");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts ranks that find each other by the variables of PyTorch.
    pub(crate) fn ranks(&self, program: &Path, ranks: usize, set: impl Fn(&mut Command)) -> Vec<Output> {
        let port = railnet_live::launch::free_port().unwrap().to_string();
        let start = |rank: usize| {
            let mut command = self.command(program);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command.env("RAILNET_LAUNCHER", "torchrun");
            set(&mut command);
            command.spawn().unwrap()
        };
        let children: Vec<Child> = (0..ranks).map(start).collect();
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
    }
}

/// What all of them printed; they ended well.
pub(crate) fn printed(outputs: &[Output]) -> String {
    let said = |output: &Output| {
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let text: String = outputs.iter().map(said).collect();
    let ended: Vec<String> = outputs.iter().map(|output| output.status.to_string()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{}\n{text}", ended.join(", "));
    text
}
