"""`torch.cuda` and `torch.accelerator` of a GPU that is not there: they answer as it would, and streams and events are recorded."""

from __future__ import annotations

import contextlib
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .recorder import Recorder

#: What PyTorch's C++ takes the pretended GPU for: a device that needs no driver.
NAME = "railnet_gpu"


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return False

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Module(types.ModuleType):
    """The module of that device, which nobody but PyTorch itself asks."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def device_count(self) -> int:
        return 1


def _register() -> None:
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module(NAME))
    keep.extend([_Hooks(), _Guard()])
    torch._C._acc.register_python_privateuseone_hook(keep[0])
    torch._C._acc.register_python_privateuseone_device_guard(keep[1])


#: PyTorch holds these by their addresses.
keep: list[Any] = []


class Stream:
    """A stream of the pretended GPU."""

    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, number: int | None = None, **_: Any) -> None:
        self.priority = priority
        self.number = _record.new_stream() if number is None else number
        self.device = torch.device("cuda", _current[0])
        self.stream_id = self.cuda_stream = self.number
        self.device_index = self.device.index
        self._before: list[int] = []

    def wait_stream(self, other: Stream) -> None:
        if other.number != self.number:
            self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        _record.synchronise(self.number)

    def __enter__(self) -> Stream:
        self._before.append(_record.stream)
        _record.stream = self.number
        return self

    def __exit__(self, *_: Any) -> None:
        _record.stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.number:#x}>"


class Event:
    """An event of the pretended GPU."""

    def __init__(self, device: Any = None, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self.number: int | None = None
        self.clock = 0.0
        self.device = torch.device("cuda", _current[0])
        self.event_id = self.cuda_event = 0

    def record(self, stream: Stream | None = None) -> None:
        self.number = _record.record_event(_record.stream if stream is None else stream.number)
        self.clock = _record.clock

    def wait(self, stream: Stream | None = None) -> None:
        if self.number is not None:
            _record.wait_event(_record.stream if stream is None else stream.number, self.number)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        _record.note("the times between CUDA events are those of computing alone, by the rates of the GPU")
        return max((end.clock - self.clock) * 1e3, 1e-3)

    def synchronize(self) -> None:
        _record.synchronise()

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.number}>"


class _Using:
    """`with torch.cuda.stream(...)`."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


class _Graph:
    """CUDA graphs, which a dry run does not have."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(
            f"railnet: {_record.script_line()}: a dry run has no CUDA graphs: turn them off in the script, and use --launch 0ns, which prices "
            "kernels as a graph starts them"
        )


class _Device:
    """`with torch.cuda.device(...)`."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx, _current[0] = _current[0], self.idx

    def __exit__(self, *_: Any) -> None:
        _current[0] = self.prev_idx


_record: Recorder
#: The index of the current device.
_current = [0]


def _index(device: Any) -> int:
    if device is None or isinstance(device, torch.Tensor):
        return _current[0]
    if isinstance(device, int):
        return device if device >= 0 else _current[0]
    found = torch.device(device).index
    return _current[0] if found is None else found


def current_device() -> int:
    return _current[0]


def _set_device(device: Any) -> None:
    index = _index(device)
    count = _record.gpu["count"]
    if index >= count:
        raise RuntimeError(f"CUDA error: invalid device ordinal: this server has {count} GPUs, 0 to {count - 1}")
    _current[0] = index


def _properties(device: Any = None) -> Any:
    gpu = _record.gpu
    return types.SimpleNamespace(
        name=gpu["name"],
        major=gpu["capability"][0],
        minor=gpu["capability"][1],
        total_memory=gpu["memory"],
        multi_processor_count=gpu["multiprocessors"],
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid=f"GPU-{_current[0]}",
        pci_bus_id=_current[0],
    )


def _statistics(*_: Any) -> Any:
    memory = _record.memory
    block = 2 << 20
    reserved = -(-memory.peak // block) * block
    found: Any = OrderedDict()
    for pool in ("all", "large_pool", "small_pool"):
        for what, now, peak in (
            ("allocated_bytes", memory.allocated, memory.step_peak),
            ("active_bytes", memory.allocated, memory.step_peak),
            ("reserved_bytes", reserved, reserved),
            ("requested_bytes", memory.allocated, memory.step_peak),
        ):
            share = 0 if pool == "small_pool" else 1
            found[f"{what}.{pool}.current"] = now * share
            found[f"{what}.{pool}.peak"] = peak * share
            found[f"{what}.{pool}.allocated"] = found[f"{what}.{pool}.freed"] = 0
    found.update(num_alloc_retries=0, num_ooms=0, num_sync_all_streams=0, num_device_alloc=0, num_device_free=0)
    return found


def _reset_peak(*_: Any) -> None:
    _record.memory.step_peak = _record.memory.allocated


def _nothing(*_: Any, **__: Any) -> None:
    return None


def pretend(record: Recorder) -> None:
    """Puts the pretended GPU in the place of the real one."""
    global _record
    _record = record
    _register()
    gpu, cuda = record.gpu, torch.cuda
    cuda_functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "init": _nothing,
        "_lazy_init": _nothing,
        "_lazy_call": lambda call, **_: None,
        "is_bf16_supported": lambda *_, **__: gpu["capability"][0] >= 8,
        "is_tf32_supported": lambda: gpu["capability"][0] >= 8,
        "device_count": lambda: gpu["count"],
        "current_device": current_device,
        "set_device": _set_device,
        "get_device_name": lambda device=None: gpu["name"],
        "get_device_capability": lambda device=None: tuple(gpu["capability"]),
        "get_device_properties": _properties,
        "get_arch_list": lambda: [f"sm_{gpu['capability'][0]}{gpu['capability'][1]}"],
        "can_device_access_peer": lambda *_: True,
        "synchronize": lambda device=None: record.synchronise(),
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "CUDAGraph": _Graph,
        "graph": _Graph,
        "StreamContext": _Using,
        "stream": _Using,
        "set_stream": lambda stream: setattr(record, "stream", stream.number),
        "current_stream": lambda device=None: Stream(number=record.stream),
        "default_stream": lambda device=None: Stream(number=0),
        "device": _Device,
        "device_of": _Device,
        "_DeviceGuard": _Device,
        "_exchange_device": _exchange,
        "_maybe_exchange_device": _exchange,
        "ipc_collect": _nothing,
        "manual_seed": _nothing,
        "manual_seed_all": _nothing,
        "seed": _nothing,
        "seed_all": _nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)] * gpu["count"],
        "set_rng_state": _nothing,
        "set_rng_state_all": _nothing,
        "utilization": lambda device=None: 100,
        "_sleep": _nothing,
        "is_current_stream_capturing": lambda: False,
    }
    memory_functions: dict[str, Any] = {
        "empty_cache": _nothing,
        "memory_stats": _statistics,
        "memory_allocated": lambda device=None: record.memory.allocated,
        "max_memory_allocated": lambda device=None: record.memory.step_peak,
        "memory_reserved": lambda device=None: _statistics()["reserved_bytes.all.current"],
        "max_memory_reserved": lambda device=None: _statistics()["reserved_bytes.all.peak"],
        "reset_peak_memory_stats": _reset_peak,
        "reset_accumulated_memory_stats": _nothing,
        "reset_max_memory_allocated": _reset_peak,
        "mem_get_info": lambda device=None: (gpu["memory"] - record.memory.allocated, gpu["memory"]),
        "set_per_process_memory_fraction": _nothing,
        "memory_summary": lambda *_, **__: f"allocated {record.memory.allocated} bytes, peak {record.memory.peak}",
        "_record_memory_history": _nothing,
        "_dump_snapshot": _nothing,
        "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
    }
    for name, value in {**cuda_functions, **memory_functions}.items():
        setattr(cuda, name, value)
    for name, value in memory_functions.items():
        setattr(torch.cuda.memory, name, value)
    for module in (torch.cuda.random, torch.cuda.streams):
        for name, value in cuda_functions.items():
            if hasattr(module, name) and name not in ("device", "stream"):
                setattr(module, name, value)
    if hasattr(torch.cuda, "nvtx"):
        for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
            setattr(torch.cuda.nvtx, name, _nothing)
        torch.cuda.nvtx.range = lambda *_, **__: contextlib.nullcontext()
    device = torch.device("cuda")
    accelerator: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: device,
        "device_count": cuda_functions["device_count"],
        "current_device_index": current_device,
        "current_device_idx": current_device,
        "set_device_index": _set_device,
        "set_device_idx": _set_device,
        "current_stream": cuda_functions["current_stream"],
        "set_stream": cuda_functions["set_stream"],
        "synchronize": cuda_functions["synchronize"],
        "empty_cache": _nothing,
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},
        "get_memory_info": memory_functions["mem_get_info"],
    }
    for name in ("memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        accelerator[name] = memory_functions[name]
    accelerator["reset_peak_memory_stats"] = _reset_peak
    for name, value in accelerator.items():
        setattr(torch.accelerator, name, value)
    torch._C._get_accelerator = lambda *_: device
    torch.Stream, torch.Event = Stream, Event  # type: ignore[misc]
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        torch._C._cuda_getDeviceCount = cuda_functions["device_count"]
    torch.version.cuda = torch.version.cuda or "12.8"
    _tensors()


def _exchange(device: int) -> int:
    before = _current[0]
    if device >= 0:
        _current[0] = device
    return before


def _tensors() -> None:
    """Tensors say that they are on the GPU, also those that are made of others."""
    base = torch._C.TensorBase
    inner_device, inner_is_cuda = base.device, base.is_cuda

    def device(self: Any) -> torch.device:
        found = inner_device.__get__(self)
        return torch.device("cuda", _current[0]) if found.type == NAME else found

    def is_cuda(self: Any) -> bool:
        return bool(inner_is_cuda.__get__(self)) or self.device.type == "cuda"

    torch.Tensor.device = property(device)  # type: ignore[method-assign, assignment]
    torch.Tensor.is_cuda = property(is_cuda)  # type: ignore[method-assign, assignment]
    make = torch.Tensor._make_wrapper_subclass

    def make_wrapper(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and torch.device(device).type == "cuda":
            device = torch.device(NAME, 0)
        return make(cls, *args, device=device, **kwargs)

    torch.Tensor._make_wrapper_subclass = staticmethod(make_wrapper)  # type: ignore[method-assign, assignment]
    resize = torch.UntypedStorage.resize_

    def resized(self: Any, size: int) -> Any:
        found = resize(self, size)
        _record.memory.resized(self)
        return found

    # FSDP frees parameters that it has gathered this way.
    torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign, assignment]
    torch.Tensor.is_pinned = lambda self, *_: False  # type: ignore[method-assign, assignment]
    torch.Tensor.record_stream = _nothing  # type: ignore[method-assign, assignment]
