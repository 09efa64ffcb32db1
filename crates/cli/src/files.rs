//! Files that a command writes. An [`Output`] is claimed before the run that it is for: a path that cannot be written is known by
//! then, and no second run claims it. Its contents go to a temporary file beside it, which takes its name once it is complete.

use std::collections::BTreeMap;
use std::fs::{File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::Usage;

/// Attempts to claim a temporary file that another run renames or removes at the same moment.
const CLAIMS_MAX: u32 = 100;
/// The sticky bit of a directory: only its owner, and that of a file, may rename the file.
const STICKY: u32 = 0o1000;

/// Temporary files that this process has claimed.
static CLAIMED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is to be written. Dropped without [`Output::finish`], it leaves what was there before.
#[derive(Debug)]
pub(crate) struct Output {
    /// As the command line has it.
    name: PathBuf,
    /// Behind links.
    path: PathBuf,
    temporary: PathBuf,
    /// Locked for as long as it is open: a second run sees that the path is taken.
    file: File,
    force: bool,
}

impl Output {
    /// Claims a path. A regular file that is there is replaced only where `force` says so, anything else never.
    pub(crate) fn claim(name: &Path, force: bool) -> anyhow::Result<Self> {
        let path = check(name, force)?;
        let temporary = temporary_of(&path);
        if CLAIMED.lock().expect("nothing panics while it is held").contains(&temporary) {
            return Err(Usage(format!("two outputs of this run are called {}", name.display())).into());
        }
        let file = claim_temporary(name, &temporary)?;
        CLAIMED.lock().expect("nothing panics while it is held").push(temporary.clone());
        let claimed = Self { name: name.to_owned(), path, temporary, file, force };
        // Another run may have finished in between.
        check(name, force)?;
        Ok(claimed)
    }

    /// The claim of a path that an option names, where it is given.
    pub(crate) fn claim_given(name: Option<&Path>, force: bool) -> anyhow::Result<Option<Self>> {
        name.map(|name| Self::claim(name, force)).transpose()
    }

    /// The name that the user gave.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Writes the whole file.
    pub(crate) fn write(
        self,
        contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let written = || -> io::Result<()> {
            let mut file = BufWriter::new(&self.file);
            contents(&mut file)?;
            file.flush()
        };
        written().with_context(|| format!("cannot write {}", self.name.display()))?;
        self.finish()
    }

    /// A handle for a writer that fills the file bit by bit; [`Output::finish`] follows.
    pub(crate) fn handle(&self) -> anyhow::Result<File> {
        self.file.try_clone().with_context(|| format!("cannot write {}", self.name.display()))
    }

    /// The contents are complete: the file appears under its name.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let name = self.name.display();
        let is_replaced = match std::fs::symlink_metadata(&self.path) {
            Ok(before) if self.force && before.is_file() => {
                let _ = self.file.set_permissions(before.permissions());
                true
            }
            _ => false,
        };
        let renamed = if is_replaced {
            std::fs::rename(&self.temporary, &self.path)
        } else {
            rename_new(&self.temporary, &self.path)
        };
        match renamed {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                anyhow::bail!("{name} appeared while this run was going on: it is left as it is")
            }
            renamed => renamed.with_context(|| format!("cannot write {name}")),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        CLAIMED.lock().expect("nothing panics while it is held").retain(|one| *one != self.temporary);
        // After a rename the name may be another run's by now.
        let is_own = |there: Metadata| self.file.metadata().is_ok_and(|own| is_same(&own, &there));
        if std::fs::symlink_metadata(&self.temporary).is_ok_and(is_own) {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Removes what was claimed: the command ends in the middle of a run.
pub(crate) fn abandon() {
    for temporary in CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = std::fs::remove_file(temporary);
    }
}

/// The tables of `--csv DIR`.
#[derive(Debug, Default)]
pub(crate) struct Tables(BTreeMap<String, Output>);

impl Tables {
    /// Makes the directory and claims these files in it.
    pub(crate) fn claim(directory: &Path, names: &[&str], force: bool) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .map_err(|error| Usage(format!("cannot make the directory {}: {error}", directory.display())))?;
        let claim = |name: &&str| Ok(((*name).to_owned(), Output::claim(&directory.join(name), force)?));
        Ok(Self(names.iter().map(claim).collect::<anyhow::Result<_>>()?))
    }

    /// Writes one of them.
    pub(crate) fn write(
        &mut self,
        name: &str,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let output = self.0.remove(name).with_context(|| format!("{name} was not claimed"))?;
        output.write(|out| contents(out))
    }
}

/// Whether a path can be written, before a run begins; and where it is, behind links of this user.
pub(crate) fn check(name: &Path, force: bool) -> Result<PathBuf, Usage> {
    let shown = name.display();
    let refused = |why: &str| Usage(format!("cannot write {shown}: {why}"));
    let path = match std::fs::symlink_metadata(name) {
        Ok(link) if link.is_symlink() => {
            if ![0, own_user()].contains(&link.uid()) {
                return Err(refused("it is a symbolic link of another user"));
            }
            std::fs::canonicalize(name).map_err(|_| refused("it is a symbolic link that leads nowhere"))?
        }
        _ => name.to_owned(),
    };
    let file_name = path.file_name().ok_or_else(|| refused("it is a directory"))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = match std::fs::canonicalize(folder) {
        Ok(folder) if folder.is_dir() => folder,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(refused("its directory may not be entered"));
        }
        _ => return Err(refused("there is no such directory")),
    };
    let path = folder.join(file_name);
    let Ok(there) = std::fs::symlink_metadata(&path) else { return Ok(path) };
    if let Some(kind) = kind_of(there.file_type()) {
        let advice = if kind == "directory" { "" } else { "; for standard output, redirect or give \"-\"" };
        return Err(refused(&format!("it is a {kind}{advice}")));
    }
    if !force {
        return Err(Usage(format!("{shown} is there already: --force replaces it")));
    }
    let is_sticky = |folder: &Metadata| folder.mode() & STICKY != 0 && !may_replace(folder.uid());
    if !may_replace(there.uid()) && std::fs::metadata(&folder).is_ok_and(|folder| is_sticky(&folder)) {
        return Err(refused("it belongs to another user"));
    }
    Ok(path)
}

/// Removes a regular file that [`check`] was forced to allow; none there is as good.
pub(crate) fn remove(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Opens a file that ranks write themselves, as a log that can be followed.
pub(crate) fn open_log(name: &Path, force: bool) -> anyhow::Result<File> {
    let path = check(name, force)?;
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags);
    let options = if force { options.create(true) } else { options.create_new(true) };
    let file = options.open(&path).with_context(|| format!("cannot write {}", name.display()))?;
    if !lock(&file)? {
        return Err(taken(name));
    }
    file.set_len(0).with_context(|| format!("cannot write {}", name.display()))?;
    Ok(file)
}

/// What a file is that is not a regular one.
fn kind_of(kind: FileType) -> Option<&'static str> {
    let kinds = [
        (kind.is_dir(), "directory"),
        (kind.is_fifo(), "pipe"),
        (kind.is_socket(), "socket"),
        (kind.is_file(), ""),
    ];
    match kinds.into_iter().find(|(is_it, _)| *is_it) {
        Some((_, "")) => None,
        Some((_, name)) => Some(name),
        None => Some("device"),
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this user may rename files of that owner in a sticky directory.
fn may_replace(owner: u32) -> bool {
    [owner, 0].contains(&own_user())
}

fn temporary_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".railnet-part");
    path.with_file_name(name)
}

/// Opens and locks a temporary file. One that a run left behind that was killed is not locked, and taken over.
fn claim_temporary(name: &Path, temporary: &Path) -> anyhow::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
    for _ in 0..CLAIMS_MAX {
        let file = options
            .open(temporary)
            .map_err(|error| Usage(format!("cannot write {}: {}", name.display(), reason(&error))))?;
        if !lock(&file)? {
            return Err(taken(name));
        }
        let own = file.metadata()?;
        // It may have been renamed or removed between the two calls.
        if !std::fs::symlink_metadata(temporary).is_ok_and(|there| is_same(&own, &there)) {
            continue;
        }
        // Somebody else's, or a second name of a file that is none of ours.
        if !own.is_file() || own.uid() != own_user() || own.nlink() != 1 {
            let what = temporary.display();
            return Err(Usage(format!("cannot write {}: {what} is in the way", name.display())).into());
        }
        file.set_len(0).with_context(|| format!("cannot write {}", name.display()))?;
        return Ok(file);
    }
    Err(taken(name))
}

/// Whether the lock is ours; on a file system without locks it is.
fn lock(file: &File) -> anyhow::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => match Errno::from_io_error(&error) {
            Some(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => Ok(true),
            _ => Err(error.into()),
        },
    }
}

fn taken(name: &Path) -> anyhow::Error {
    Usage(format!("another run is writing {}: wait for it, or give another name", name.display())).into()
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "its directory may not be written".to_owned(),
        ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
        ErrorKind::InvalidFilename => "its name is too long".to_owned(),
        _ => error.to_string(),
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Renames to a name that nothing has.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot do that in one call can link.
        Err(Errno::INVAL | Errno::NOSYS) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}
