"""Tensors as the engine sees them: a type, a number of elements and an address."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import torch
import torch.distributed as dist

from railnet import _railnet

_TYPES = _railnet.data_types()
_OPS = _railnet.reductions()


class Kind(NamedTuple):
    """How the engine sees elements of a type of PyTorch."""

    #: The number of the engine's type.
    number: int
    #: How many of them an element is: complex numbers are pairs.
    each: int
    #: Whether they can be reduced, and not only moved.
    reduces: bool


def _kinds() -> dict[torch.dtype, Kind]:
    names = {
        "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
        "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
        "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
        "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "u8",
    }  # fmt: skip
    pairs = {"complex32": "f16", "complex64": "f32", "complex128": "f64"}
    # Older versions lack some of them.
    known = {getattr(torch, name): Kind(_TYPES[own], 1, True) for name, own in names.items() if hasattr(torch, name)}
    known |= {getattr(torch, name): Kind(_TYPES[own], 2, True) for name, own in pairs.items() if hasattr(torch, name)}
    return known


_KINDS = _kinds()


def kind(dtype: torch.dtype) -> Kind:
    """Types that the engine does not know are moved as bytes."""
    found = _KINDS.get(dtype)
    if found is None:
        found = _KINDS[dtype] = Kind(_TYPES["u8"], dtype.itemsize, False)
    return found


#: A list of tensors, or one alone.
Tensors = Union[list[torch.Tensor], torch.Tensor]


def as_list(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def check(tensors: list[torch.Tensor]) -> None:
    """Refuses what has no memory of this host."""
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise TypeError(f"railnet: a {tensor.layout} tensor cannot be sent: make it dense with .to_dense()")
        check_device(tensor.device)


def check_device(device: torch.device | str) -> None:
    kind = device.type if isinstance(device, torch.device) else device
    if kind != "cpu":
        raise TypeError(
            f"railnet: the tensor is on {device}, and railnet moves memory of the host: move it with .cpu(), or make the group "
            'with "cpu:railnet,cuda:nccl"'
        )


def single(tensors: list[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"railnet: {what} takes one tensor for each process, not {len(tensors)}")
    check(tensors)
    return tensors[0]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory has its values, in order: not where it is a view that PyTorch conjugates or negates when it is read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in one piece: the tensor itself where it is."""
    if is_plain(tensor):
        return tensor
    return movable(tensor.resolve_conj().resolve_neg()).contiguous().view(tensor.dtype)


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes where it has a type that PyTorch has no copies of, such as integers of four bits."""
    is_opaque = tensor.dtype.itemsize == 1 and not kind(tensor.dtype).reduces
    return tensor.view(torch.uint8) if is_opaque else tensor


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    movable(target).copy_(movable(source))


def contiguous_output(tensor: torch.Tensor, after: list[Callable[[], Any]], *, filled: bool) -> torch.Tensor:
    """Memory in one piece for a result: of the tensor itself where it can be, else some of which a copy is made after the call."""
    if is_plain(tensor):
        return tensor
    memory = torch.empty(tensor.shape, dtype=tensor.dtype)
    if filled:
        copy(tensor, memory)
    after.append(lambda: copy(memory, tensor))
    return memory


def adjacent(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """The memory that tensors make up, where they lie one after the other in one piece."""
    first = tensors[0]
    if not all(is_plain(tensor) and tensor.dtype == first.dtype for tensor in tensors):
        return None
    end = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or tensor.untyped_storage().data_ptr() != storage:
            return None
        end += tensor.numel() * tensor.element_size()
    count = sum(tensor.numel() for tensor in tensors)
    return first.as_strided((count,), (1,), first.storage_offset())


def split(tensor: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
    """Its parts along the first dimension."""
    # PyTorch gives `Tensor.split` no types.
    parts: Sequence[torch.Tensor] = tensor.split(counts)  # type: ignore[no-untyped-call]
    return list(parts)


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Their elements one after the other: where they lie, if they do so already."""
    found = adjacent(tensors)
    if found is not None:
        return found
    return torch.cat([movable(contiguous(tensor)).reshape(-1) for tensor in tensors]).view(tensors[0].dtype)


def flat_output(tensors: list[torch.Tensor], after: list[Callable[[], Any]]) -> torch.Tensor:
    """Memory for their elements one after the other, which a copy brings to where they belong unless they lie so already."""
    found = adjacent(tensors)
    if found is not None:
        return found
    memory = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)

    def spread() -> None:
        parts = split(memory, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts):
            copy(part.view(tensor.shape), tensor)

    after.append(spread)
    return memory


#: PyTorch's reductions by number, each with its name there and here.
_REDUCTIONS = {
    op.value: (op.name, own)
    for op, own in (
        (dist.ReduceOp.SUM, "sum"),
        (dist.ReduceOp.AVG, "avg"),
        (dist.ReduceOp.PRODUCT, "prod"),
        (dist.ReduceOp.MIN, "min"),
        (dist.ReduceOp.MAX, "max"),
        (dist.ReduceOp.BAND, "band"),
        (dist.ReduceOp.BOR, "bor"),
        (dist.ReduceOp.BXOR, "bxor"),
        (dist.ReduceOp.PREMUL_SUM, "mulsum"),
    )
}
#: What reductions of truth values are: a sum of them is whether any is true, as NCCL has it.
_OF_BOOL = {"SUM": "max", "PRODUCT": "min", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor", "BXOR": "bxor"}
_OF_COMPLEX = ("SUM", "AVG", "PREMUL_SUM")
_PREMULTIPLIED = _OPS["mulsum"]


def reduction(op: Any, dtype: torch.dtype) -> tuple[int, float]:
    """The number of a reduction and the scalar of a pre-multiplied sum."""
    number = _reduction(int(op.op if hasattr(op, "op") else op), dtype)
    return number, _factor(op) if number == _PREMULTIPLIED else 0.0


@functools.lru_cache(maxsize=None)
def _reduction(op: int, dtype: torch.dtype) -> int:
    if op not in _REDUCTIONS:
        raise ValueError(f"railnet: there is no reduction {op}: use {', '.join(name for name, _ in _REDUCTIONS.values())}")
    name, own = _REDUCTIONS[op]
    if dtype is torch.bool:
        if name not in _OF_BOOL:
            raise TypeError(f"railnet: {name} of truth values has no meaning: convert them to numbers first")
        return _OPS[_OF_BOOL[name]]
    if dtype.is_complex and name not in _OF_COMPLEX:
        raise TypeError(f"railnet: {name} of complex numbers has no meaning: SUM, AVG and PREMUL_SUM have")
    if not kind(dtype).reduces:
        raise TypeError(f"railnet: elements of {dtype} can be sent, but not reduced: convert them first")
    if name in ("BAND", "BOR", "BXOR") and (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"railnet: {name} combines the bits of integers, not of {dtype}: use an integer type")
    return _OPS[own]


def _factor(op: Any) -> float:
    factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        return float(factor.item())
    return float(factor)
