"""Railnet beside Gloo, in the same processes and by turns: `python -m railnet.bench`.

Each round makes every call with both backends, one after the other; the table has medians over the rounds, so that what else the
machine does meets both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
# PyTorch documents it, but gives it no types and leaves it out of the names that it exports.
from torch.multiprocessing import spawn  # type: ignore[attr-defined]

import railnet.torch
from railnet import _railnet

SIZES = [1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20]
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BACKENDS = ("railnet", "gloo")
#: Bytes that the calls of one measurement move, at the most, and how many calls it has.
BYTES, CALLS = 64 << 20, 200


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            spawn(_rank, (ranks, f"file://{folder}/store", options), nprocs=ranks)  # type: ignore[no-untyped-call]
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m railnet.bench", description="Railnet beside Gloo on this machine.")
    names = [*calls(), "ddp"]
    parser.add_argument("--ranks", type=_listed(_ranks), default=[2, 4], help="numbers of ranks (2,4)")
    parser.add_argument("--sizes", type=_listed(_size), default=SIZES, help="bytes of the largest buffer, such as 1KiB,64KiB,4MiB")
    parser.add_argument("--types", type=_listed(_one_of(TYPES)), default=list(TYPES), help=",".join(TYPES))
    parser.add_argument("--calls", type=_listed(_one_of(names)), default=names, help=",".join(names))
    parser.add_argument("--rounds", type=_rounds, default=9, help="rounds of which the median is shown (9)")
    parser.add_argument("--json", action="store_true", help="one JSON object for each row")
    return parser


Value = TypeVar("Value")


def _listed(read: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Reads values with commas between them."""
    return lambda text: [read(part.strip()) for part in text.split(",")]


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f'there is no "{text}": use {", ".join(names)}')
        return text

    return read


def _at_least(least: int, text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f'"{text}" is no number of {what}: use {least} or more')
    return int(text)


def _ranks(text: str) -> int:
    return _at_least(1, text, "ranks")


def _rounds(text: str) -> int:
    return _at_least(1, text, "rounds")


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)(B|KiB|MiB|GiB)", text)
    size = int(found[1]) << {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]] if found else 0
    if size == 0:
        raise argparse.ArgumentTypeError(f'"{text}" is no size of a buffer: use a number with B, KiB, MiB or GiB, such as 64KiB')
    return size


Call = Callable[[int, torch.dtype, int, dist.ProcessGroup], Callable[[], Any]]


def calls() -> dict[str, Call]:
    """How each call is made, with buffers of so many bytes at the most."""

    def buffer(size: int, dtype: torch.dtype, ranks: int) -> torch.Tensor:
        # A block for each rank, of one element at least.
        return torch.zeros(max(1, size // dtype.itemsize // ranks) * ranks, dtype=dtype)

    def all_reduce(size: int, dtype: torch.dtype, ranks: int, group: dist.ProcessGroup) -> Callable[[], Any]:
        data = buffer(size, dtype, ranks)
        return lambda: dist.all_reduce(data, group=group)

    def all_gather(size: int, dtype: torch.dtype, ranks: int, group: dist.ProcessGroup) -> Callable[[], Any]:
        whole = buffer(size, dtype, ranks)
        part = whole.new_zeros(whole.numel() // ranks)
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)

    def reduce_scatter(size: int, dtype: torch.dtype, ranks: int, group: dist.ProcessGroup) -> Callable[[], Any]:
        whole = buffer(size, dtype, ranks)
        part = whole.new_zeros(whole.numel() // ranks)
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)

    def all_to_all(size: int, dtype: torch.dtype, ranks: int, group: dist.ProcessGroup) -> Callable[[], Any]:
        given = buffer(size, dtype, ranks)
        taken = torch.zeros_like(given)
        return lambda: dist.all_to_all_single(taken, given, group=group)

    return {
        "all_reduce": all_reduce,
        "all_gather_into_tensor": all_gather,
        "reduce_scatter_tensor": reduce_scatter,
        "all_to_all_single": all_to_all,
    }


def _rank(rank: int, ranks: int, place: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    dist.init_process_group("railnet", init_method=place, rank=rank, world_size=ranks)
    groups = {"railnet": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0 and not options.json:
        print(f"{ranks} ranks on {os.cpu_count()} cores, PyTorch {torch.__version__}, medians of {options.rounds} rounds")
        print(f"{'call':<24} {'type':<5} {'bytes':>10} {'railnet us':>12} {'gloo us':>12} {'gloo / railnet':>15}", flush=True)
    for row in _rows(rank, ranks, groups, options):
        if rank != 0:
            continue
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            shown = f"{row['bytes']:>10,}" if row["bytes"] else f"{'':>10}"
            times = f"{row['railnet_us']:>12,.1f} {row['gloo_us']:>12,.1f} {row['ratio']:>15.2f}"
            print(f"{row['call']:<24} {row['type']:<5} {shown} {times}", flush=True)
    if rank == 0 and not options.json and "all_reduce" in options.calls:
        print(f"overhead of Python for a call: {_overhead():.1f} us (an AllReduce of 4 B by one rank, less the engine's)")
    dist.destroy_process_group()


def _rows(rank: int, ranks: int, groups: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.calls:
        if name == "ddp":
            steps = {backend: _ddp_step(group) for backend, group in groups.items()}
            yield _row("ddp step of a small GPT", "f32", 0, ranks, _measured(steps, 5, options.rounds))
            continue
        for dtype in options.types:
            for size in options.sizes:
                # Gloo reduces and scatters no bf16 in some versions: then there is nothing to compare with.
                made = {backend: calls()[name](size, TYPES[dtype], ranks, group) for backend, group in groups.items()}
                times = _measured(made, max(3, min(CALLS, BYTES // size)), options.rounds)
                yield _row(name, dtype, size, ranks, times)


def _row(call: str, dtype: str, size: int, ranks: int, times: dict[str, float]) -> dict[str, Any]:
    ratio = times["gloo"] / times["railnet"]
    return {
        "call": call, "type": dtype, "bytes": size, "ranks": ranks,
        "railnet_us": times["railnet"], "gloo_us": times["gloo"], "ratio": ratio,
    }  # fmt: skip


def _measured(made: dict[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, float]:
    """The median time of a call, in microseconds, for each backend."""
    times: dict[str, list[float]] = {backend: [] for backend in made}
    for call in made.values():
        call()
    for _ in range(rounds):
        for backend, call in made.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(count):
                call()
            times[backend].append((time.perf_counter() - began) / count * 1e6)
    return {backend: statistics.median(some) for backend, some in times.items()}


def _ddp_step(group: Any) -> Callable[[], Any]:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(192, 6, 768, batch_first=True, dropout=0.0)
    body = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = torch.nn.Sequential(torch.nn.Embedding(4096, 192), body, torch.nn.Linear(192, 4096))
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 4096, (2, 65))

    def step() -> None:
        optimiser.zero_grad()
        logits = parallel(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward([loss])
        optimiser.step()

    return step


def _overhead() -> float:
    """What a call takes in Python and PyTorch, beyond the same call of the engine."""
    kind = railnet.torch.tensors.kind(torch.float32).number
    alone = railnet.torch.Group(_alone(), 0, 1, "alone", timedelta(minutes=5))
    data = torch.zeros(1)
    options = dist.AllreduceOptions()
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    asked = (_railnet.collectives()["all_reduce"], kind, 0, 0.0, 0, 1, data.data_ptr(), data.data_ptr())
    engine, python = alone._communicator.run, alone.allreduce
    best = []
    for call in (lambda: engine(asked), lambda: python([data], options).wait()):
        times = []
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(500):
                call()
            times.append((time.perf_counter() - began) / 500 * 1e6)
        best.append(min(times))
    return best[1] - best[0]


def _alone() -> _railnet.Communicator:
    return railnet.torch.rendezvous.alone()


if __name__ == "__main__":
    sys.exit(main())
