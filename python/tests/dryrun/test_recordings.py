"""What scripts leave as recordings when they run with a pretended GPU. Each is a process of its own, as `railnet dryrun` starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", minversion="2.10")

MODULES = Path(__file__).parents[2] / "railnet" / "dryrun"
GPU = {
    "name": "NVIDIA H100 SXM5", "memory": 80 << 30, "multiprocessors": 132, "capability": [9, 0], "count": 8, "flops": 6e14,
    "bandwidth": 3e12,
}  # fmt: skip

HEAD = """
import os, torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""


def run(folder: Path, script: str, *, rank: int = 0, ranks: int = 16, item: str = "1.0") -> subprocess.CompletedProcess[str]:
    python = folder / "python"
    if not python.exists():
        shutil.copytree(MODULES, python / "railnet_dryrun", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(MODULES / "start_with_torch.py", python / "sitecustomize.py")
    (folder / "train.py").write_text(textwrap.dedent(script))
    told = {"path": str(folder / f"role-{rank}.json"), "steps": 3, "item": item, "gpu": GPU}
    environment = {
        **os.environ, "PYTHONPATH": str(python), "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % 8),
        "RAILNET_DRYRUN": json.dumps(told),
    }  # fmt: skip
    environment.pop("RAILNET_DRYRUN_PROCESS", None)
    command = [sys.executable, "train.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def recorded(folder: Path, script: str, **options: Any) -> dict[str, Any]:
    ended = run(folder, script, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads((folder / f"role-{options.get('rank', 0)}.json").read_text())
    return found


def calls(found: dict[str, Any], kind: str) -> list[list[Any]]:
    return [one for one in found["operations"] if one[0] == kind]


def test_ddp_reduces_its_gradients_while_it_computes_and_waits_at_the_end(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        HEAD
        + """
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda(), bucket_cap_mb=4)
optimiser = torch.optim.AdamW(model.parameters())
while True:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    print(loss.item())
""",
    )
    assert len(found["steps"]) == 3
    parameters = 2 * 512 * 2048 + 2048 + 512
    reduces = calls(found, "c")
    assert {one[5] for one in reduces} == {"AllReduce"} and sum(one[7] for one in reduces) == 4 * parameters
    assert found["groups"] == [{"name": "", "ranks": list(range(16))}]
    assert {found["lines"][one[1]] for one in reduces} == {"train.py:12"}
    # In automatic mixed precision: forward two products, backward three (nobody needs the gradient of the input).
    products = [found["kernels"][one[4]] for one in calls(found, "k") if found["kernels"][one[4]][0] == "p"]
    assert len(products) == 5 and {one[5] for one in products} == {"half"}
    assert sum(2 * one[1] * one[2] * one[3] for one in products) == 5 * 2 * 64 * 512 * 2048
    kinds = [one[0] for one in found["operations"]]
    # The first bucket goes before the last product; the wait comes after all of them.
    last = max(place for place, one in enumerate(found["operations"]) if one[0] == "k" and one[3] == 2)
    assert kinds.index("c") < last < kinds.index("w")
    assert found["memory"]["parameters"] == 4 * parameters == found["memory"]["gradients"]
    assert any("train.py:15 reads a number from the GPU: it gets 1" in note for note in found["notes"])


def test_streams_and_events_are_those_of_the_script(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        HEAD
        + """
side, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimiser = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    event.record()
    with torch.cuda.stream(side):
        side.wait_event(event)
        work = dist.all_reduce(torch.ones(1 << 20, device="cuda"), async_op=True)
    torch.cuda.current_stream().wait_stream(side)
    work.wait()
    (weight @ weight).sum().backward()
    optimiser.step()
assert torch.cuda.device_count() == 8 and torch.cuda.get_device_properties(0).multi_processor_count == 132
assert torch.cuda.memory_allocated() >= weight.numel() * 4 and weight.device == torch.device("cuda", 0) and weight.is_cuda
""",
    )
    order = [(one[0], one[1] if one[0] in "vew" else one[2]) for one in found["operations"] if one[0] in "evcw"]
    assert order == [("e", 0), ("v", 1), ("c", 1), ("e", 1), ("v", 0), ("w", 0)]


def test_tied_parameters_stay_tied_on_the_gpu(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        HEAD
        + """
words, head = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
head.weight = words.weight
model = nn.ModuleList([words, head]).cuda()
assert model[0].weight is model[1].weight
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    head(words(torch.arange(8, device="cuda"))).sum().backward()
    optimiser.step()
""",
    )
    assert found["memory"]["parameters"] == 4 * 64 * 1000


def test_known_numbers_are_followed_and_others_are_refused_with_the_line(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        HEAD
        + """
counted = torch.tensor([3, 4], device="cuda")
dist.all_reduce(counted)
assert counted.sum().item() == 7 * 16
torch.randint(0, 9, (1,), device="cuda").item()
""",
    )
    assert ended.returncode != 0
    assert "train.py:9: a number of type torch.int64 is read from the GPU" in ended.stderr, ended.stderr


def test_stages_of_a_pipeline_send_and_receive(tmp_path: Path) -> None:
    script = (
        HEAD
        + """
stage = dist.get_rank() // 8
layer = nn.Linear(256, 256).cuda()
optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    given = torch.randn(32, 256, device="cuda", requires_grad=True)
    if stage == 0:
        out = layer(given)
        dist.send(out.detach(), dist.get_rank() + 8)
        gradient = torch.empty_like(out)
        dist.recv(gradient, dist.get_rank() + 8)
        out.backward(gradient)
    else:
        dist.recv(given.detach(), dist.get_rank() - 8)
        layer(given).sum().backward()
        dist.send(given.grad, dist.get_rank() - 8)
    optimiser.step()
"""
    )
    first, second = recorded(tmp_path, script), recorded(tmp_path, script, rank=8)
    bytes_ = 4 * 32 * 256
    assert [one[5:] for one in calls(first, "s") + calls(first, "r")] == [[8, bytes_], [8, bytes_]]
    assert [one[5:] for one in calls(second, "s") + calls(second, "r")] == [[0, bytes_], [0, bytes_]]
