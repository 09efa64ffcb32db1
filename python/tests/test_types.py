"""The types of the package: of its compiled part, and as programs see them that use it."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

PROJECT = ROOT / "python" / "pyproject.toml"


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


def test_programs_that_use_the_package_are_right_for_a_type_checker(tmp_path):
    """Those of the documentation and the examples; one that is wrong is found out."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    programs = sorted((ROOT / "python" / "examples").glob("*.py"))
    for page in ("python", "torch"):
        parts = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
        programs.append(tmp_path / f"{page}_page.py")
        programs[-1].write_text("\n".join(parts))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import railnet\nrailnet.simulate('incast', sed=3)\nrailnet.simulate('incast').step_time.minutes\n")
    assert len(programs) >= 5 and all(program.stat().st_size > 100 for program in programs)
    # With the settings and the cache of the package's own check, so that PyTorch is read once.
    options = ["--config-file", PROJECT, "--cache-dir", PROJECT.parent / ".mypy_cache", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, *programs, wrong]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2 and all(line.startswith("wrong.py:") for line in errors), done.stdout + done.stderr
