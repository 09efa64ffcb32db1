"""The last calls of a rank in the form of PyTorch's flight recorder, which `torchfrtrace` analyses.

On where PyTorch's own variable says how many calls to keep (`TORCH_FR_BUFFER_SIZE`, `TORCH_NCCL_TRACE_BUFFER_SIZE`). A failed call writes
them to the file that `TORCH_FR_DUMP_TEMP_FILE` (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) begins, with the rank at its end; `dump_flight_recorder`
does so at any time.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from railnet import _railnet

#: The version of the form of the entries that is written.
VERSION = "2.10"
#: Frames of a call's stack that are kept.
FRAMES = 16

_NAMES = {
    number: {"alltoall": "all_to_all", "barrier": "all_reduce_barrier"}.get(name, name)
    for name, number in _railnet.collectives().items()
}
#: Collectives whose contributions lie one after the other in one tensor.
_FLAT = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
_TYPES = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
          torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool"}  # fmt: skip


def _capacity() -> int:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


class Recorder:
    """The calls of all groups of a process."""

    def __init__(self, capacity: int, rank: int) -> None:
        #: The rank of the world that this process is.
        self.rank = rank
        self.entries: deque[Entry] = deque(maxlen=capacity)
        self.groups: dict[str, list[int]] = {}
        self.count = 0
        self.lock = threading.Lock()

    def add(self, entry: Entry) -> None:
        with self.lock:
            entry.number = self.count
            self.count += 1
            self.entries.append(entry)

    def dump(self) -> dict[str, Any]:
        with self.lock:
            entries, groups = list(self.entries), dict(self.groups)
        config = {name: {"name": name, "desc": _described(name), "ranks": str(ranks)} for name, ranks in groups.items()}
        return {"version": VERSION, "pg_config": config, "comm_lib_version": f"railnet {_railnet.VERSION}",
                "entries": [entry.row() for entry in entries]}  # fmt: skip


_recorder: Recorder | None = None
_dumping = threading.Lock()


class GroupRecorder:
    """The calls of one group."""

    def __init__(self, recorder: Recorder, name: str, ranks: list[int], rank: int) -> None:
        self.recorder, self.name, self.rank = recorder, name, rank
        self.calls = self.transfers = 0
        recorder.groups[name] = ranks

    def entered(
        self, collective: int, given: torch.Tensor | None, taken: torch.Tensor | None, timeout: timedelta
    ) -> Entry:
        self.calls += 1
        name = _NAMES[collective]
        return self._entry(_FLAT.get(name, name), given, taken, timeout, is_transfer=False)

    def transferred(self, peer: int, memory: torch.Tensor, timeout: timedelta, *, sends: bool) -> Entry:
        self.transfers += 1
        name = f"send {self.rank}->{peer}" if sends else f"recv {self.rank}<-{peer}"
        return self._entry(name, memory if sends else None, None if sends else memory, timeout, is_transfer=True)

    def _entry(
        self, name: str, given: torch.Tensor | None, taken: torch.Tensor | None, timeout: timedelta, *, is_transfer: bool
    ) -> Entry:
        entry = Entry(self, name, given, taken, timeout, is_transfer)
        self.recorder.add(entry)
        return entry


class Entry:
    """A call."""

    def __init__(
        self,
        group: GroupRecorder,
        name: str,
        given: torch.Tensor | None,
        taken: torch.Tensor | None,
        timeout: timedelta,
        is_transfer: bool,
    ) -> None:
        self.number = 0
        self.group, self.name, self.timeout, self.is_transfer = group, name, timeout, is_transfer
        self.calls, self.transfers = group.calls, group.transfers
        self.begun, self.end = time.time_ns(), 0
        # A call in place has one tensor, which both sides of the entry show.
        self.sides = [_side(side) for side in (given, taken)]
        self.frames = traceback.extract_stack(limit=FRAMES)[:-3]

    def ended(self) -> None:
        self.end = time.time_ns()

    def watch(self, operation: _railnet.Operation) -> None:
        """Notes when the operation ends, unless it fails: a call that failed is shown as one that never ended."""

        def settle() -> None:
            try:
                operation.wait()
            except RuntimeError:
                return
            self.ended()

        operation.on_end(settle)

    def row(self) -> dict[str, Any]:
        frames = [{"name": frame.name, "filename": frame.filename, "line": frame.lineno} for frame in reversed(self.frames)]
        (inputs, input_types), (outputs, output_types) = self.sides
        return {
            "frames": frames,
            "record_id": self.number,
            "pg_id": 0,
            "process_group": (self.group.name, _described(self.group.name)),
            "collective_seq_id": self.calls,
            "p2p_seq_id": self.transfers,
            "op_id": self.calls + self.transfers,
            "profiling_name": f"railnet:{self.name}",
            "time_created_ns": self.begun,
            "input_sizes": inputs,
            "input_dtypes": input_types,
            "output_sizes": outputs,
            "output_dtypes": output_types,
            "state": "completed" if self.end else "scheduled",
            "time_discovered_started_ns": self.begun,
            "time_discovered_completed_ns": self.end or None,
            "retired": bool(self.end),
            "timeout_ms": int(self.timeout.total_seconds() * 1000),
            "is_p2p": self.is_transfer,
        }


def _side(tensor: torch.Tensor | None) -> tuple[list[list[int]], list[str]]:
    if tensor is None:
        return [], []
    return [list(tensor.shape)], [_TYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))]


def _described(name: str) -> str:
    return "default_pg" if name in ("", "0") else name


def of_group(name: str, ranks: list[int], rank: int) -> GroupRecorder | None:
    """The recorder of a new group, where calls are to be recorded."""
    global _recorder
    capacity = _capacity()
    if not capacity:
        return None
    if _recorder is None:
        _recorder = Recorder(capacity, ranks[rank])
    return GroupRecorder(_recorder, name, ranks, rank)


def dump_flight_recorder(file: str | os.PathLike[str] | None = None) -> bytes:
    """The last calls as PyTorch's flight recorder has them; written to a file, too, if one is given.

    Name it with the rank at its end, such as `trace_3`: that is how `torchfrtrace` finds out whose it is.
    """
    if _recorder is None:
        raise RuntimeError("railnet: no calls are recorded: set TORCH_FR_BUFFER_SIZE to how many are to be kept")
    # One at a time: several calls may fail at once, and write to the same file.
    with _dumping:
        text = pickle.dumps(_recorder.dump())
        if file is not None:
            Path(file).write_bytes(text)
    return text


def failed() -> None:
    """A call has failed: writes the last calls, where PyTorch's variable says where to."""
    if _recorder is None:
        return
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        if os.environ.get(name):
            dump_flight_recorder(f"{os.environ[name]}{_recorder.rank}")
            return
