"""Programs as launchers start them."""

import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import sys, torch, torch.distributed as dist
import railnet.torch
dist.init_process_group("railnet")
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {tensor.item():.0f}", flush=True)
dist.destroy_process_group()
"""


def started(words, tmp_path, program=PROGRAM, **variables):
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    environment.update(OMP_NUM_THREADS="1", **variables)
    done = subprocess.run([*words, str(script)], env=environment, capture_output=True, text=True, timeout=180)
    return done, done.stdout + done.stderr


def torchrun(*words):
    # Alone on a port of its own, so that several runs of the tests stand beside each other.
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]


def test_torchrun(tmp_path):
    # PyTorch finds backends by name from 2.15 on.
    finds = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    program = PROGRAM.replace("import railnet.torch\n", "") if finds else PROGRAM
    done, text = started(torchrun(), tmp_path, program)
    assert done.returncode == 0, text
    assert "rank 0 of 2: 2" in text and "rank 1 of 2: 2" in text


def test_railnet_run(tmp_path, command):
    done, text = started([command, "run", "-n", "2", "--", sys.executable], tmp_path)
    assert done.returncode == 0, text
    assert "rank 0 of 2: 2" in text and "rank 1 of 2: 2" in text


def test_torchrun_starts_ranks_again_after_one_has_failed(tmp_path):
    mark = tmp_path / "failed"
    program = f"""
import os, pathlib
mark = pathlib.Path({str(mark)!r})
if int(os.environ["RANK"]) == 1 and not mark.exists():
    mark.write_text("once")
    import torch.distributed as dist, railnet.torch
    dist.init_process_group("railnet")
    os._exit(5)
{PROGRAM}"""
    done, text = started(torchrun("--max-restarts", "1", "--monitor-interval", "0.2"), tmp_path, program)
    assert done.returncode == 0, text
    assert mark.exists() and "rank 0 of 2: 2" in text, text


def test_calls_are_recorded_for_railnet_view(tmp_path, command):
    record = tmp_path / "calls"
    done, text = started(torchrun(), tmp_path, RAILNET_RECORD=str(record))
    assert done.returncode == 0, text
    files = sorted(path.name for path in tmp_path.glob("calls*"))
    assert files == ["calls.rank0", "calls.rank1"], text
    page = tmp_path / "calls.html"
    shown = subprocess.run([command, "view", str(record), "--report", str(page)], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    # The page has the run in it, under the name of its files.
    assert str(record) in page.read_text()


def test_pytorchs_analyser_reads_the_flight_recorder(tmp_path):
    analyser = pytest.importorskip("torch.distributed.flight_recorder.fr_trace", reason="it came with PyTorch 2.9")
    program = PROGRAM.replace(
        "dist.destroy_process_group()",
        "if dist.get_rank() == 0: dist.barrier()\n"
        "else: dist.broadcast(tensor, 0)\n",
    ).replace("dist.all_reduce(tensor)", "dist.all_reduce(tensor); dist.all_gather_into_tensor(torch.empty(2), tensor)")
    traces = tmp_path / "traces"
    traces.mkdir()
    done, text = started(
        torchrun(), tmp_path, program, TORCH_FR_BUFFER_SIZE="100", TORCH_FR_DUMP_TEMP_FILE=f"{traces}/rank_"
    )
    assert done.returncode != 0 and "CommunicationError" in text, text
    assert sorted(path.name for path in traces.iterdir()) == ["rank_0", "rank_1"], text
    said = subprocess.run(
        [sys.executable, "-m", analyser.__name__, str(traces)], capture_output=True, text=True, timeout=120
    )
    output = said.stdout + said.stderr
    assert said.returncode == 0, output
    # It finds the call in which the ranks differ.
    assert "all_reduce_barrier" in output and "broadcast" in output, output
