//! The directory that stands in front of the loader's path: the library under every name that programs load, the preload, and
//! what stands for the kernel's files.
//!
//! Its name follows from what is in it, so that many programs share one, and it need not be removed when they end.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use railnet_live::roce::Device;

use super::sysfs;
use crate::Usage;

/// The names that programs load verbs and connection management by.
const NAMES: [&str; 4] = ["libibverbs.so", "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"];

pub(super) const VERBS: &str = "librailnet_verbs.so";
const PRELOAD: &str = "librailnet_sysfs.so";

/// Names the directory that stands for `/` where a kernel's devices would be, for the preload.
pub(super) const ROOT_VARIABLE: &str = "RAILNET_RDMA_ROOT";

/// What NCCL needs to be told unless the user says otherwise. Its GPUs cannot ring the doorbells of a NIC of software, and 2.28
/// ends with a segmentation fault where it tries to find out (2: its proxy does that work).
pub(super) const NCCL_GIN_TYPE: (&str, &str) = ("NCCL_GIN_TYPE", "2");

/// Where a program finds the software NIC.
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Makes the directory for these devices, or finds it.
    pub(super) fn prepare(devices: &[Device]) -> anyhow::Result<Self> {
        let (verbs, preload) = (library(VERBS)?, library(PRELOAD)?);
        let entries = sysfs::entries(devices);
        let mut hasher = DefaultHasher::new();
        (&verbs, &preload, &entries).hash(&mut hasher);
        let base = base()?;
        let path = base.join(format!("{:016x}", hasher.finish()));
        if !path.join(PRELOAD).exists() {
            let unfinished = base.join(format!("{:016x}.{}", hasher.finish(), std::process::id()));
            let fill = || -> io::Result<()> {
                fs::create_dir(&unfinished)?;
                for name in NAMES {
                    symlink(&verbs, unfinished.join(name))?;
                }
                symlink(&preload, unfinished.join(PRELOAD))?;
                sysfs::write(&entries, &unfinished.join("root"))?;
                match fs::rename(&unfinished, &path) {
                    // Another process was faster: what is in it is the same.
                    Err(_) if path.join(PRELOAD).exists() => fs::remove_dir_all(&unfinished),
                    outcome => outcome,
                }
            };
            fill().with_context(|| format!("cannot fill {}", path.display()))?;
        }
        Ok(Self(path))
    }

    /// Variables with the paths that go in front of what they hold already.
    pub(super) fn search_paths(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_LIBRARY_PATH", self.0.clone()), ("LD_PRELOAD", self.0.join(PRELOAD))]
    }

    pub(super) fn root(&self) -> PathBuf {
        self.0.join("root")
    }
}

/// A directory that belongs to this user alone.
fn base() -> anyhow::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let path = match runtime {
        Some(runtime) => runtime.join("railnet-rdma"),
        None => std::env::temp_dir().join(format!("railnet-rdma-{user}")),
    };
    let made = fs::DirBuilder::new().mode(0o700).create(&path);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error).with_context(|| format!("cannot make {}", path.display()));
    }
    let found = fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(
        found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0,
        "{} is not a directory that only this user can write: remove it, or set XDG_RUNTIME_DIR to another",
        path.display()
    );
    Ok(path)
}

/// A shared object of this build: beside the command, where `cargo build` and packages put it. The newest of several, because
/// cargo leaves old ones in place.
pub(super) fn library(name: &str) -> anyhow::Result<PathBuf> {
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let folders =
        [folder.to_owned(), folder.join("deps"), folder.join("../lib/railnet"), folder.join("../lib")];
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let found =
        folders.iter().map(|folder| folder.join(name)).filter(|path| path.is_file()).max_by_key(modified);
    let Some(path) = found else {
        return Err(Usage(format!(
            "{name} is not beside this command ({}): `cargo build --release` makes it, and it has to be copied along",
            folder.display()
        ))
        .into());
    };
    fs::canonicalize(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The shared objects of this build.
pub(super) fn libraries() -> anyhow::Result<[PathBuf; 2]> {
    Ok([library(VERBS)?, library(PRELOAD)?])
}
