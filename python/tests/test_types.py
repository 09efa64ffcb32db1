"""The types of the compiled part are what they are said to be."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def test_the_stubs_have_what_the_compiled_part_has(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    # From elsewhere than the sources, which have no compiled part.
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "railnet._railnet", "--concise", "--mypy-config-file", PROJECT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
