"""The examples run, and say what they are for; so do those in the documentation."""

import doctest
import re
import runpy

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


def test_ray_example(capsys):
    pytest.importorskip("ray", reason="Ray is not installed: it is large")
    runpy.run_path(str(EXAMPLES / "ray_sweep.py"), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_the_notebook_runs():
    """In a kernel of Jupyter's, as a reader runs it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / "simulator.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) >= 5 and not any(cell.outputs for cell in cells), "a notebook is kept without outputs"
    # A cell that raises is an exception here.
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [output.data["text/html"] for cell in cells for output in cell.outputs if "text/html" in output.get("data", {})]
    # A run, a table, a plan and a choice.
    assert len(shown) == 4 and "waiting for" in shown[0] and "<table" in shown[1]
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert "dcqcn" in printed and "swift" in printed
