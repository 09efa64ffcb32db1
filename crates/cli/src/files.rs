//! Files that are written: nothing that is there is overwritten unasked.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::Usage;

/// Opens a file to write. One that is there is left alone unless `force` says otherwise.
pub(crate) fn create(path: &Path, force: bool) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    match options.open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} is there already: --force overwrites it", path.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Writes a file whose place was looked at before.
pub(crate) fn write(
    path: &Path,
    contents: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let written = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        contents(&mut file)?;
        file.flush()
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// Says so before a long run where its file could not be written. `help` is what to do about one that is there already.
pub(crate) fn check_place(path: &Path, force: bool, help: &str) -> Result<(), Usage> {
    let name = path.display();
    if path.exists() && !force {
        return Err(Usage(format!("{name} is there already: {help}")));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(Usage(format!("cannot write {name}: there is no such directory")));
    }
    Ok(())
}
