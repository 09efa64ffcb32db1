"""What a rank does: kernels, communication, streams, steps and memory, written to a file when enough steps are recorded."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import threading
import weakref
from typing import Any

import torch

FORWARD, RECOMPUTE, BACKWARD, OPTIMISER = range(4)

#: Bytes of a block that PyTorch's allocator rounds to.
_BLOCK = 512

#: Frames in these are not the script's.
_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {
        os.path.dirname(os.path.abspath(torch.__file__)),
        os.path.dirname(os.path.abspath(__file__)),
        sysconfig.get_paths()["stdlib"],
    }
)
_PACKAGES = (os.path.join("site-packages", ""), os.path.join("dist-packages", ""))


class Recorder:
    """Keeps what was done since the last step ended, and what was done in the step before."""

    def __init__(self, path: str, rank: int, ranks: int, steps: int, gpu: dict[str, Any], item: float | None) -> None:
        self.path, self.rank, self.ranks, self.steps, self.gpu, self.item = path, rank, ranks, steps, gpu, item
        self.lines: dict[str, int] = {}
        self.kernels: dict[tuple[Any, ...], int] = {}
        self.groups: dict[tuple[int, ...], int] = {}
        self.names: dict[tuple[int, ...], str] = {}
        self.operations: list[list[Any]] = []
        self.last_step: list[list[Any]] = []
        self.steps_done: list[int] = []
        self.notes: dict[str, None] = {}
        self.stream = 0
        self.streams = 1
        self._works = 0
        self._events = 0
        #: Seconds of computing so far, by the rates of the GPU: what events are compared by.
        self.clock = 0.0
        self.memory = Memory(gpu["memory"])
        # Where the script is in its step.
        self.backward = 0
        self.backward_line = ""
        self.in_optimiser = False
        self.after_backward = False
        #: Where operations ended with the last step of an optimiser.
        self.stepped: int | None = None
        self.stepped_since_backward = False
        self.done = False
        self.host_bytes = 0
        #: The line that made each node of the graph of autograd, by its number.
        self.made: dict[int, str] = {}
        self._written = False

    @classmethod
    def from_environment(cls) -> Recorder:
        told = json.loads(os.environ["RAILNET_DRYRUN"])
        item = told.get("item")
        return cls(
            told["path"],
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
            told["steps"],
            told["gpu"],
            None if item == "error" else float(item or 1.0),
        )

    def note(self, text: str) -> None:
        """Something that was assumed, or that has no effect."""
        if text not in self.notes:
            self.notes[text] = None

    # Where the script is.

    def script_line(self) -> str:
        """The innermost line outside of PyTorch and Python's own library, such as `train.py:88`."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(_LIBRARIES) and not name.startswith("<"):
                return f"{_short(name)}:{frame.f_lineno}"
            frame = frame.f_back
        return self.backward_line or "?"

    def line(self) -> str:
        """That of a kernel: backward, the line that made what it differentiates."""
        if self.backward:
            node = torch._C._current_autograd_node()
            if node is not None:
                made = self.made.get(node._sequence_nr())
                if made is not None:
                    return made
            if threading.current_thread() is not threading.main_thread():
                return self.backward_line or "?"
        return self.script_line()

    def part(self) -> int:
        """What part of the step this is."""
        if self.backward:
            return RECOMPUTE if torch.is_grad_enabled() else BACKWARD
        if self.in_optimiser or (self.after_backward and not torch.is_grad_enabled()):
            return OPTIMISER
        return FORWARD

    # What is done.

    def _origin(self, line: str) -> list[int]:
        number = self.lines.setdefault(line, len(self.lines))
        return [number, self.stream, self.part()]

    def kernel(self, kernel: tuple[Any, ...], seconds: float) -> None:
        line = self.line()
        if not self.backward and torch.is_grad_enabled():
            self.made[torch._C._autograd._get_sequence_nr() - 1] = line
        number = self.kernels.setdefault(kernel, len(self.kernels))
        self.operations.append(["k", *self._origin(line), number])
        self.clock += seconds

    def collective(self, what: str, ranks: tuple[int, ...], bytes_: int, dtype: str) -> int:
        group = self.groups.setdefault(ranks, len(self.groups))
        self._works += 1
        line = self.backward_line if self.backward and not self._in_script() else self.script_line()
        self.operations.append(["c", *self._origin(line), self._works, what, group, bytes_, dtype])
        return self._works

    def message(self, sends: bool, peer: int, bytes_: int) -> int:
        self._works += 1
        self.operations.append(["s" if sends else "r", *self._origin(self.script_line()), self._works, peer, bytes_])
        return self._works

    def _in_script(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    def wait(self, work: int) -> None:
        self.operations.append(["w", self.stream, work])

    def record_event(self, stream: int) -> int:
        self._events += 1
        self.operations.append(["e", stream, self._events])
        return self._events

    def wait_event(self, stream: int, event: int) -> None:
        self.operations.append(["v", stream, event])

    def synchronise(self, stream: int | None = None) -> None:
        self.operations.append(["h", stream])

    def new_stream(self) -> int:
        self.streams += 1
        return self.streams - 1

    # Steps.

    def begin_backward(self) -> None:
        # A step of the optimiser before this ended the step of training before this one.
        if self.backward == 0 and self.stepped_since_backward:
            self._end_step()
        if self.backward == 0:
            self.backward_line = self.script_line()
        self.backward += 1

    def end_backward(self) -> None:
        self.backward -= 1
        if self.backward == 0:
            self.after_backward = True

    def optimiser_begins(self) -> None:
        self.in_optimiser = True

    def optimiser_ends(self) -> None:
        self.in_optimiser = False
        self.after_backward = False
        self.made.clear()
        self.stepped = len(self.operations)
        self.stepped_since_backward = True
        self.memory.stepped()

    def _end_step(self) -> None:
        assert self.stepped is not None
        step, rest = self.operations[: self.stepped], self.operations[self.stepped :]
        self.stepped_since_backward, self.stepped = False, None
        self.steps_done.append(len(step))
        if len(self.steps_done) >= self.steps:
            self.operations = step
            self.write()
            _leave(0)
        self.operations, self.last_step = rest, step
        self.host_bytes = 0
        self.memory.next_step()

    def finish(self) -> None:
        """The script is over."""
        if self._written:
            return
        if self.stepped_since_backward and self.stepped is not None:
            self.operations = self.operations[: self.stepped]
            self.steps_done.append(self.stepped)
        elif self.steps_done:
            self.operations = self.last_step
        elif self.operations:
            self.note("no optimiser made a step: everything that the script did is taken for one step")
            self.steps_done.append(len(self.operations))
        self.write()

    def write(self) -> None:
        self._written = True
        if self.host_bytes > 1 << 20:
            self.note(f"{self.host_bytes / 1e6:.1f} MB a step that are copied between host and GPU take no time here")
        found = {
            "format": "railnet recording of a role",
            "version": 1,
            "rank": self.rank,
            "ranks": self.ranks,
            "torch": torch.__version__,
            "steps": self.steps_done,
            "lines": list(self.lines),
            "kernels": [list(kernel) for kernel in self.kernels],
            "groups": [{"name": self.names.get(ranks, ""), "ranks": list(ranks)} for ranks in self.groups],
            "operations": self.operations,
            "memory": self.memory.found(),
            "notes": list(self.notes),
        }
        with open(self.path + ".part", "w") as file:
            json.dump(found, file, separators=(",", ":"))
        os.replace(self.path + ".part", self.path)


def _short(name: str) -> str:
    for packages in _PACKAGES:
        if packages in name:
            return name.split(packages)[-1]
    here = os.path.relpath(name)
    return name if here.startswith("..") else here


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # The training loop does not end by itself, and other threads may wait for it.
    os._exit(status)


class Memory:
    """What lies in the memory of the GPU: storages that are alive."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.allocated = 0
        self.peak = 0
        self.step_peak = 0
        self._alive: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._optimisers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.parameters = self.gradients = self.optimiser = 0

    def add(self, storage: Any) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        known = self._alive.get(key)
        if known is not None:
            # It may have been resized.
            if known != size:
                self._alive[key] = size
                self._change(size - known)
            return
        self._alive[key] = size
        self._change(size)
        weakref.finalize(storage, self._freed, key)

    def resized(self, storage: Any) -> None:
        if storage._cdata in self._alive:
            self.add(storage)

    def _freed(self, key: int) -> None:
        size = self._alive.pop(key, 0)
        self.allocated -= size

    def _change(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.step_peak = max(self.step_peak, self.allocated)

    def saw_optimiser(self, optimiser: Any) -> None:
        self._optimisers.add(optimiser)

    def stepped(self) -> None:
        """An optimiser made its step: parameters, gradients and its state are there, unless gradients were taken already."""
        parameters: dict[int, int] = {}
        gradients: dict[int, int] = {}
        state: dict[int, int] = {}
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    _note_storages(parameter, parameters)
                    _note_storages(parameter.grad, gradients)
            for values in optimiser.state.values():
                if isinstance(values, dict):
                    for value in values.values():
                        _note_storages(value, state)
        self.parameters, self.optimiser = sum(parameters.values()), sum(state.values())
        self.gradients = sum(size for key, size in gradients.items() if key not in parameters)

    def next_step(self) -> None:
        self.step_peak = self.allocated

    def found(self) -> dict[str, int]:
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimiser": self.optimiser,
            "peak": self.step_peak,
        }


def _note_storages(tensor: Any, into: dict[int, int]) -> None:
    local = getattr(tensor, "_local_tensor", tensor)
    if isinstance(local, torch.Tensor) and local.device.type == "cuda":
        storage = local.untyped_storage()
        into[storage._cdata] = storage.nbytes()


def follow_steps(record: Recorder) -> None:
    """Finds out where steps begin and end: from the backward pass and the optimiser."""
    import atexit

    import torch.autograd
    import torch.autograd.graph
    from torch.optim import optimizer

    run = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        record.begin_backward()
        try:
            return run(*args, **kwargs)
        finally:
            record.end_backward()

    for module in (torch.autograd, torch.autograd.graph):
        if hasattr(module, "_engine_run_backward"):
            module._engine_run_backward = run_backward

    def before(one: Any, *_: Any) -> None:
        record.memory.saw_optimiser(one)
        record.optimiser_begins()

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(lambda *_: record.optimiser_ends())
    hook = sys.excepthook

    def failed(*error: Any) -> None:
        record._written = True
        hook(*error)

    sys.excepthook = failed
    atexit.register(record.finish)
