//! The Python modules that pretend and record, which travel inside the command.

use std::path::Path;

use anyhow::Context as _;

macro_rules! module {
    ($name:literal) => {
        ($name, include_str!(concat!("../../embedded/dryrun/", $name, ".py")))
    };
}

const MODULES: &[(&str, &str)] = &[
    module!("__init__"),
    module!("autocast"),
    module!("gpu"),
    module!("group"),
    module!("kernels"),
    module!("mode"),
    module!("recorder"),
];

/// What Python runs before all else.
const START: &str = include_str!("../../embedded/dryrun/start_with_torch.py");

/// Writes them where `PYTHONPATH` will point.
pub(super) fn write(folder: &Path) -> anyhow::Result<()> {
    let package = folder.join("railnet_dryrun");
    let failed = || format!("cannot write into {}", folder.display());
    std::fs::create_dir_all(&package).with_context(failed)?;
    std::fs::write(folder.join("sitecustomize.py"), START).with_context(failed)?;
    for (name, text) in MODULES {
        std::fs::write(package.join(format!("{name}.py")), text).with_context(failed)?;
    }
    Ok(())
}
