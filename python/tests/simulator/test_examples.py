"""The examples run, and say what they are for; so do those in the documentation."""

import ast
import doctest
import json
import re
import runpy
import sys

import pytest
import railnet
import railnet.network
import railnet.quantity
import railnet.simulator
import railnet.table
from conftest import ROOT

EXAMPLES = ROOT / "python" / "examples"


@pytest.mark.parametrize("module", [railnet.network, railnet.quantity, railnet.simulator, railnet.table])
def test_examples_in_the_code_are_true(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0


def test_examples_in_the_documentation_run():
    text = (ROOT / "docs" / "python.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) >= 5
    names = {"__name__": "__main__"}
    for program in programs:
        exec(compile(program, "docs/python.md", "exec"), names)  # noqa: S102


def test_serving_waits_longer_where_more_is_asked(capsys):
    # Few requests: every packet of every transfer is simulated.
    serving = runpy.run_path(str(EXAMPLES / "serving.py"))
    serving["main"](count=2)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 3
    waits = []
    for per_second in (1, 2000):
        served = serving["requests"](6, per_second)
        serving["serve"](served, railnet.Network(serving["NETWORK"]))
        assert all(one.arrival < one.prefilled < one.moved < one.finished for one in served)
        waits.append(sum(one.moved - one.prefilled for one in served))
    assert waits[1] > 1.5 * waits[0]


def test_dask_example(capsys):
    pytest.importorskip("distributed")
    runpy.run_path(str(EXAMPLES / "dask_sweep.py"), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_the_notebook_runs():
    cells = json.loads((EXAMPLES / "simulator.ipynb").read_text())["cells"]
    names = {}
    for cell in cells:
        assert not cell.get("outputs"), "a notebook is kept without outputs"
        if cell["cell_type"] != "code":
            continue
        parts = ast.parse("".join(cell["source"])).body
        last = parts.pop() if isinstance(parts[-1], ast.Expr) else None
        exec(compile(ast.Module(parts, []), "cell", "exec"), names)  # noqa: S102
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
            assert shown is None or repr(shown)
            assert not hasattr(shown, "_repr_html_") or shown._repr_html_()
    assert sys.modules["railnet"] is names["railnet"]
