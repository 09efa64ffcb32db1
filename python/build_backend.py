"""Builds the wheel: maturin, with the `railnet` command made first, so that it comes along as a binary.

`pip install ./python` and `python -m build` come here. `maturin build` by itself takes what is in `railnet.data/scripts`:
`python build_backend.py` puts it there.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403 the hooks that need nothing of ours

HERE = Path(__file__).resolve().parent
# What maturin puts beside the interpreter: `data` of pyproject.toml.
SCRIPTS = HERE / "railnet.data" / "scripts"
# The command, and the libraries that `railnet rdma exec` looks for beside it. Cargo builds them with it, and leaves what is not
# asked for by name among the dependencies.
SHIPPED = ["railnet", "deps/librailnet_verbs.so", "deps/librailnet_sysfs.so"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # Maturin looks for the folder already here; what goes into it is built later.
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    add_command()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def add_command():
    """Builds the command and puts it where maturin takes the scripts of a wheel from."""
    # Both builds have to agree, or all crates are built twice; symbols for a debugger would make a wheel of 100 MB.
    os.environ.setdefault("CARGO_PROFILE_RELEASE_DEBUG", "0")
    cargo = os.environ.get("CARGO", "cargo")
    # Of the whole workspace: with fewer packages cargo would choose other features of what they share, and build it all twice.
    build = [cargo, "build", "--release", "--locked", "--workspace", "--bin", "railnet"]
    subprocess.run(build, cwd=HERE, check=True)
    query = [cargo, "metadata", "--format-version", "1", "--no-deps", "--locked"]
    metadata = json.loads(subprocess.run(query, cwd=HERE, check=True, stdout=subprocess.PIPE).stdout)
    built = Path(metadata["target_directory"]) / "release"
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    for name in SHIPPED:
        shutil.copy2(built / name, SCRIPTS)


if __name__ == "__main__":
    add_command()
