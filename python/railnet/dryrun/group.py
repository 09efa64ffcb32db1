"""Process groups that move nothing: every call is recorded, and its result has the right shape."""

from __future__ import annotations

import os
import pickle
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from . import kernels

if TYPE_CHECKING:
    from .recorder import Recorder

_record: Recorder
#: Work of the current backward pass for whose end PyTorch's C++ waits: DDP's gradients.
_futures: list[int] = []
#: Work of functional collectives that was not waited for, by the storage of its result.
_pending: dict[int, int] = {}

_DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int8: "i8", torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "u8",
}  # fmt: skip


def _dtype(tensor: torch.Tensor) -> str:
    known = _DTYPES.get(tensor.dtype)
    if known is not None:
        return known
    return "f8e5m2" if "e5m2" in str(tensor.dtype) else "f8e4m3" if "float8" in str(tensor.dtype) else "u8"


def _bytes(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tree_leaves(tensors) if isinstance(one, torch.Tensor))


def _on_gpu(tensors: Any) -> torch.Tensor | None:
    found = [one for one in tree_leaves(tensors) if isinstance(one, torch.Tensor)]
    return next((one for one in found if isinstance(one, FakeTensor) and one.fake_device.type == "cuda"), None)


class Work(dist.Work):
    """A call that is recorded: waiting for it is, too."""

    def __init__(self, numbers: list[int], result: list[torch.Tensor], source: int = -1) -> None:
        super().__init__()
        self._numbers, self._result, self._from = numbers, result, source

    def wait(self, timeout: timedelta | None = None) -> bool:
        for number in self._numbers:
            _record.wait(number)
        return True

    def block_current_stream(self) -> None:
        self.wait()

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Exception | None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._from

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if _record.backward:
            _futures.extend(self._numbers)
        else:
            self.wait()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._result)
        return future


def _list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _option(opts: Any, name: str, default: Any = None) -> Any:
    return getattr(opts, name, default) if not isinstance(opts, (int, type(None))) else default


class Group(dist.ProcessGroup):
    """Some ranks, of which this process is one and the others are not there."""

    def __init__(self, rank: int, size: int, ranks: list[int], name: str, store: Any, timeout: Any) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._ranks, self._name = rank, size, tuple(ranks), name
        self._store, self._timeout, self._described = store, timeout, ""
        self._sequence = 0
        self._coalesced: list[int] | None = None
        self.bound_device = None

    # What PyTorch asks of a group.

    def getBackendName(self) -> str:  # noqa: N802
        return "nccl"

    _get_backend_name = name = getBackendName

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size  # noqa: N815

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._described = text
        if text and text not in ("default_pg", "undefined"):
            _record.names.setdefault(self._ranks, text.removeprefix("mesh_"))

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._described

    def get_group_store(self) -> Any:
        return self._store

    def _get_backend(self, device: Any) -> Any:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_tensor_alloc(self) -> bool:
        return False

    @property
    def supports_time_estimate(self) -> bool:
        return False

    @property
    def options(self) -> Any:
        return c10d.Backend.Options("nccl", self._timeout)

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def set_timeout(self, timeout: Any) -> None:
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        pass

    shutdown = abort

    def eager_connect_single_device(self, device: Any = None) -> None:
        pass

    def _wait_for_pending_works(self) -> None:
        pass

    def split_group(self, new_ranks: list[int], timeout: Any = None, opts: Any = None, group_name: str | None = None,
                    group_desc: str | None = None, device_types: Any = None) -> Group | None:  # fmt: skip
        if self._rank not in new_ranks:
            return None
        ranks = [self._ranks[one] for one in new_ranks]
        group = Group(new_ranks.index(self._rank), len(ranks), ranks, group_name or f"{self._name}/{ranks}", self._store, self._timeout)
        group.setGroupDesc(group_desc or "")
        return group

    # Calls.

    def _call(self, what: str, tensors: Any, bytes_: int, result: Any, opts: Any = None) -> Work:
        self._sequence += 1
        one = _on_gpu(tensors)
        if one is None:
            _record.note("collectives on memory of the host are not priced")
            return Work([], _list(result))
        number = _record.collective(what, self._ranks, bytes_, _dtype(one))
        if self._coalesced is not None:
            self._coalesced.append(number)
        work = Work([number], _list(result))
        if not _option(opts, "asyncOp", True) and self._coalesced is None:
            work.wait()
        return work

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        for one in _list(tensors):
            if isinstance(one, FakeTensor):
                one._railnet_value = _reduced(one, _option(opts, "reduceOp", "sum"), self._size)  # type: ignore[attr-defined]
        return self._call("AllReduce", tensors, _bytes(tensors), tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return self._call("AllReduce", tensors, _bytes(tensors), tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        return self._call("Broadcast", tensors, _bytes(tensors), tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        return self._call("Reduce", tensors, _bytes(tensors), tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        self._same(outputs, inputs)
        return self._call("AllGather", inputs, _bytes(outputs), tree_leaves(outputs), opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        if _on_gpu(input) is None:
            output.view(self._size, -1).copy_(input.reshape(1, -1).expand(self._size, -1))
        return self._call("AllGather", input, _bytes(output), output, opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._call("AllGather", inputs, _bytes(outputs), outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        self._same(outputs, inputs)
        return self._call("AllGather", inputs, _bytes(outputs), tree_leaves(outputs), opts)

    def _same(self, outputs: Any, inputs: Any) -> None:
        """On the host, other ranks have what this one has."""
        if _on_gpu(inputs) is None:
            for row in outputs:
                for place, one in enumerate(_list(row)):
                    one.copy_(_list(inputs)[0 if len(_list(inputs)) == 1 else place])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        return self._call("ReduceScatter", inputs, _bytes(inputs), outputs, opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self._call("ReduceScatter", input, _bytes(input), output, opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._call("ReduceScatter", inputs, _bytes(inputs), outputs, opts)

    def all_to_all_single(self, output: Any, input: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None) -> Work:
        if _on_gpu(input) is None:
            output.copy_(input) if output.shape == input.shape else None
        else:
            known = getattr(input, "_railnet_value", None)
            if known is not None and output.shape == input.shape:
                # Ranks that are alike send each other what they have for themselves.
                size = self._size
                output._railnet_value = known.reshape(size, -1)[self._rank].repeat(size).reshape(known.shape)
        return self._call("AllToAll", input, max(_bytes(input), _bytes(output)), output, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._call("AllToAll", inputs, max(_bytes(inputs), _bytes(outputs)), outputs, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        return self._call("Gather", inputs, _bytes(inputs) * self._size, tree_leaves(outputs), opts)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self._call("Gather", input, _bytes(input) * self._size, output if output is not None else [], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        return self._call("Scatter", outputs, _bytes(outputs) * self._size, outputs, opts)

    def barrier(self, opts: Any = None) -> Work:
        self._sequence += 1
        number = _record.collective("Barrier", self._ranks, 4, "f32")
        _record.wait(number)
        _record.synchronise()
        return Work([], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.barrier()

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        return self._message(True, dst, tensors)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        return self._message(False, src, tensors)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        raise RuntimeError(f"{_record.script_line()}: a receive from any rank cannot be dry-run: name the rank that sends")

    def _message(self, sends: bool, peer: int, tensors: Any) -> Work:
        self._sequence += 1
        if _on_gpu(tensors) is None:
            _record.note("messages between memory of the host are not priced")
            return Work([], _list(tensors), peer)
        number = _record.message(sends, self._ranks[peer], _bytes(tensors))
        if self._coalesced is not None:
            self._coalesced.append(number)
        return Work([number], _list(tensors), peer)

    def _start_coalescing(self, *_: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, *_: Any) -> Work:
        numbers, self._coalesced = self._coalesced or [], None
        return Work(numbers, [])

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _create(opts: Any, options: Any = None) -> Group:
    ranks = list(opts.global_ranks_in_group) or list(range(opts.group_size))
    return Group(opts.group_rank, opts.group_size, ranks, str(opts.group_id), opts.store, opts.timeout)


# Functional collectives: operators of PyTorch.

_FUNCTIONAL = {
    "all_reduce": "AllReduce", "all_reduce_": "AllReduce", "all_reduce_coalesced": "AllReduce", "all_reduce_coalesced_": "AllReduce",
    "all_gather_into_tensor": "AllGather", "all_gather_into_tensor_coalesced": "AllGather", "all_gather_into_tensor_out": "AllGather",
    "reduce_scatter_tensor": "ReduceScatter", "reduce_scatter_tensor_coalesced": "ReduceScatter",
    "reduce_scatter_tensor_out": "ReduceScatter", "all_to_all_single": "AllToAll", "broadcast": "Broadcast", "broadcast_": "Broadcast",
}  # fmt: skip


def _group_of(args: Any, kwargs: Any) -> Group:
    for one in reversed((*args, *kwargs.values())):
        if isinstance(one, Group):
            return one
        if isinstance(one, str):
            try:
                return dist.distributed_c10d._resolve_process_group(one)  # type: ignore[return-value, arg-type]
            except Exception:
                continue
    raise RuntimeError(f"{_record.script_line()}: a functional collective names no process group")


def _reduced(tensor: torch.Tensor, op: Any, size: int) -> Any:
    """What ranks that are alike make of a known value."""
    known = getattr(tensor, "_railnet_value", None)
    if known is None:
        return None
    name = str(getattr(op, "op", op)).lower()
    return known * size if "sum" in name else known


def functional(func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
    """Runs one, in a tuple; None where it is none."""
    from . import mode

    name = func._schema.name.split("::")[1]
    if name in ("wait_tensor", "wait_tensors"):
        for one in tree_leaves(args):
            number = _pending.pop(one.untyped_storage()._cdata, None)
            if number is not None:
                _record.wait(number)
        return (args[0],)
    if name == "_wrap_tensor_autograd":
        with mode.current().fakes:
            wrapped = func(*args, **kwargs)
        wrapped._railnet_value = getattr(args[0], "_railnet_value", None)
        return (wrapped,)
    what = _FUNCTIONAL.get(name)
    if what is None:
        return None
    group = _group_of(args, kwargs)
    with mode.current().fakes:
        out = func(*args, **kwargs)
    for one in tree_leaves(out):
        if isinstance(one, FakeTensor):
            _record.memory.add(one.untyped_storage())
    largest = max(_bytes(args[0]), _bytes(out))
    number = _record.collective(what, group._ranks, largest, _dtype(tree_leaves(args[0])[0]))
    if what == "AllReduce" and isinstance(out, torch.Tensor):
        out._railnet_value = _reduced(args[0], args[1], group._size)  # type: ignore[attr-defined]
    if what == "AllToAll":
        known = getattr(args[0], "_railnet_value", None)
        if known is not None and out.shape == args[0].shape:
            out._railnet_value = known.reshape(group._size, -1)[group._rank].repeat(group._size).reshape(known.shape)
    for one in tree_leaves(out):
        if isinstance(one, torch.Tensor):
            _pending[one.untyped_storage()._cdata] = number
    return (out,)


def settle(func: Any, args: Any) -> None:
    """The first use of what a functional collective gives waits for it; a view of it is none."""
    if not _pending or kernels.is_view(func):
        return
    for one in tree_leaves(args):
        if isinstance(one, FakeTensor):
            number = _pending.pop(one.untyped_storage()._cdata, None)
            if number is not None:
                _record.wait(number)


def _install_objects() -> None:
    """Collectives of Python objects: other ranks have what this one has."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        if any(one is None for one in object_list):
            _record.note(f"{_record.script_line()} broadcasts Python objects, which other ranks would have: they stay as they are")

    def scatter_object_list(output: list[Any], scattered: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if scattered:
            output[0] = scattered[0]

    # Messages are few and small, such as the shapes that stages of a pipeline tell each other: they go to the other process.
    counts: dict[tuple[int, int], int] = {}

    def place(source: int, target: int) -> str:
        number = counts[source, target] = counts.get((source, target), 0) + 1
        return os.path.join(os.path.dirname(_record.path), f"message-{source}-{target}-{number}")

    def peer(given: Any, group: Any, group_given: Any) -> int:
        if given is None and group_given is not None:
            return dist.get_global_rank(group or dist.distributed_c10d._get_default_group(), group_given)
        return int(given)

    def send_object_list(object_list: list[Any], dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None,
                         use_batch: bool = False) -> None:  # fmt: skip
        path = place(_record.rank, peer(dst, group, group_dst))
        with open(path + ".part", "wb") as file:
            pickle.dump(object_list, file)
        os.replace(path + ".part", path)

    def recv_object_list(object_list: list[Any], src: Any = None, group: Any = None, device: Any = None, group_src: Any = None,
                         use_batch: bool = False) -> int:  # fmt: skip
        source = peer(src, group, group_src)
        path = place(source, _record.rank)
        if not os.path.exists(path):
            # The command starts that rank, where it does not run.
            open(os.path.join(os.path.dirname(_record.path), f"wants-{source}"), "w").close()
        while not os.path.exists(path):
            # The command ends this process when its time is over, or the other fails.
            time.sleep(0.01)
        with open(path, "rb") as file:
            object_list[:] = pickle.load(file)
        return source

    for function in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list, send_object_list, recv_object_list):
        for module in (dist, dist.distributed_c10d):
            setattr(module, function.__name__, function)


def install(record: Recorder) -> None:
    """Puts the recording groups in the place of NCCL and Gloo."""
    global _record
    _record = record
    if not dist.is_available():
        return
    for name in ("nccl", "gloo", "mpi", "ucc"):
        if name.upper() not in dist.Backend._plugins:
            dist.Backend._ensure_backend_registered(name) if hasattr(dist.Backend, "_ensure_backend_registered") else None
        dist.Backend._plugins[name.upper()] = dist.Backend._BackendPlugin(_create, True)  # type: ignore[arg-type]
    # PyTorch would record the calls of these in a flight recorder.
    recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.update(("nccl", "gloo", "mpi", "ucc"))
    dist.is_nccl_available = dist.distributed_c10d.is_nccl_available = lambda: True
    os.environ["TORCH_NCCL_AVOID_RECORD_STREAMS"] = "1"
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    init = dist.init_process_group

    def init_process_group(backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
                           store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None, **_: Any) -> None:  # fmt: skip
        # Nobody else is there to meet.
        limit = timeout if timeout is not None else timedelta(minutes=10)
        init(backend or "cpu:gloo,cuda:nccl", timeout=limit, world_size=record.ranks, rank=record.rank, store=dist.HashStore())

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    dist.distributed_c10d._verify_params_across_processes = lambda *_, **__: None  # type: ignore[attr-defined]
    dist._verify_params_across_processes = lambda *_, **__: None  # type: ignore[attr-defined]
    import torch.distributed.utils as utils

    utils._verify_param_shape_across_processes = lambda *_, **__: None  # type: ignore[assignment]
    _install_objects()
    end = record.end_backward

    def end_backward() -> None:
        if record.backward == 1:
            # DDP's C++ waits for the gradients that are under way.
            record.backward = 0
            record.after_backward = True
            for number in _futures:
                record.wait(number)
            _futures.clear()
            record.backward = 1
        end()

    record.end_backward = end_backward  # type: ignore[method-assign]
