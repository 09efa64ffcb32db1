"""The backend: PyTorch's collectives as calls of the engine."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from railnet import _railnet
from railnet.torch import recorder
from railnet.torch.failure import CommunicationError
from railnet.torch.rendezvous import rendezvous
from railnet.torch.tensors import (
    Tensors,
    as_list,
    check,
    check_device,
    copy,
    flattened,
    kind,
    contiguous,
    reduction,
    flat_output,
    single,
    split,
    contiguous_output,
)
from railnet.torch.work import FromAny, Work

log = logging.getLogger("railnet.torch")

#: The name under which PyTorch knows the backend.
NAME = "railnet"

_COLLECTIVES = _railnet.collectives()
_ALL_REDUCE = _COLLECTIVES["all_reduce"]
_BROADCAST = _COLLECTIVES["broadcast"]
_REDUCE = _COLLECTIVES["reduce"]
_ALL_GATHER = _COLLECTIVES["all_gather"]
_REDUCE_SCATTER = _COLLECTIVES["reduce_scatter"]
_ALL_TO_ALL = _COLLECTIVES["alltoall"]
_GATHER = _COLLECTIVES["gather"]
_SCATTER = _COLLECTIVES["scatter"]
_BARRIER = _COLLECTIVES["barrier"]

After = list[Callable[[], Any]]

if TYPE_CHECKING:

    class _Ranked:
        """What `Calls` stands before: either of the two classes of PyTorch."""

        def __init__(self, rank: int, size: int) -> None: ...

else:
    _Ranked = object


class Options(NamedTuple):
    """What PyTorch's objects of options have, for calls that are made without one, such as `group.broadcast(tensor, root)`."""

    rootRank: int = 0  # noqa: N815
    rootTensor: int = 0  # noqa: N815
    reduceOp: Any = dist.ReduceOp.SUM  # noqa: N815
    asyncOp: bool = True  # noqa: N815


def _options(given: Any, op: Any = None) -> Any:
    """The options of a call, which may be given as the root or the reduction alone."""
    if given is None:
        given = Options()
    elif isinstance(given, int):
        given = Options(rootRank=given)
    elif isinstance(given, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        given = Options(reduceOp=given)
    return given._replace(reduceOp=op) if op is not None else given


class Calls(_Ranked):
    """A group of ranks: what is the same whether PyTorch takes it for a process group or for a backend inside one."""

    def __init__(
        self,
        communicator: _railnet.Communicator,
        rank: int,
        size: int,
        name: str,
        timeout: timedelta,
        ranks: list[int] | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._communicator = communicator
        self._rank, self._size, self._name = rank, size, name
        self._timeout = timeout
        self._sequence = 0
        #: Operations since coalescing began, where it has.
        self._coalesced: tuple[list[_railnet.Operation], list[torch.Tensor], After] | None = None
        self._ranks = ranks or list(range(size))
        communicator.set_global_ranks(self._ranks)
        self._recorder = recorder.of_group(name, self._ranks, rank)
        weakref.finalize(self, communicator.close)

    # What PyTorch asks of a group.

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    _get_backend_name = name = getBackendName

    def getRank(self) -> int:  # noqa: N802
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        return self._size

    rank, size = getRank, getSize

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def options(self) -> Any:
        return c10d.Backend.Options(NAME, self._timeout)

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._communicator.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        self._communicator.abort()

    def shutdown(self) -> None:
        self._communicator.close()

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        self.barrier()

    def _wait_for_pending_works(self) -> None:
        self.barrier().wait()

    # Calls.

    def _call(
        self,
        collective: int,
        dtype: torch.dtype,
        counts: int | list[int],
        sendbuff: torch.Tensor | None,
        recvbuff: torch.Tensor | None,
        result: list[torch.Tensor],
        *,
        op: tuple[int, float] = (0, 0.0),
        root: int = 0,
        after: After | None = None,
        options: Any = None,
    ) -> Work:
        """Makes a call: at once where nobody wants to wait for it later, else it goes on while the program computes."""
        number, each, _ = kind(dtype)
        if each != 1:
            counts = counts * each if isinstance(counts, int) else [count * each for count in counts]
        source = sendbuff if sendbuff is not None else recvbuff
        target = recvbuff if recvbuff is not None else sendbuff
        addresses = (
            source.data_ptr() if source is not None else 0,
            target.data_ptr() if target is not None else 0,
        )
        asked = (collective, number, op[0], op[1], root, counts, *addresses)
        self._sequence += 1
        entry = self._recorder and self._recorder.entered(collective, sendbuff, recvbuff, self._timeout)
        if not getattr(options, "asyncOp", True) and self._coalesced is None:
            self._communicator.run(asked)
            for finish in after or ():
                finish()
            if entry:
                entry.ended()
            return Work((), result)
        operation = self._communicator.start(asked, (sendbuff, recvbuff))
        if entry:
            entry.watch(operation)
        return self._work([operation], result, after or [])

    def _work(self, operations: list[_railnet.Operation], result: list[torch.Tensor], after: After) -> Work:
        if self._coalesced is not None:
            for mine, more in zip(self._coalesced, (operations, result, after)):
                mine.extend(more)  # type: ignore[attr-defined]
        return Work(operations, result, after)

    # PyTorch calls these with its objects of options; programs also with a tensor, a root or a reduction in their place.

    def broadcast(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> Work:
        tensors, opts = as_list(tensors), _options(opts)
        check(tensors)
        after: After = []
        memory = contiguous_output(tensors[opts.rootTensor], after, filled=self._rank == opts.rootRank)
        if self._rank == opts.rootRank:
            after.clear()
        return self._call(
            _BROADCAST, memory.dtype, memory.numel(), memory, memory, tensors,
            root=opts.rootRank, after=after, options=opts,
        )  # fmt: skip

    def allreduce(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> Work:
        tensors, opts = as_list(tensors), _options(opts)
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self._allreduce_sparse(tensors[0], opts)
        tensor = single(tensors, "allreduce")
        after: After = []
        memory = contiguous_output(tensor, after, filled=True)
        return self._call(
            _ALL_REDUCE, tensor.dtype, tensor.numel(), memory, memory, tensors,
            op=reduction(opts.reduceOp, tensor.dtype), after=after, options=opts,
        )  # fmt: skip

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        """Gathers the elements of all ranks, of which each may have another number, and adds those in the same position up. It waits."""
        check_device(tensor.device)
        if reduction(opts.reduceOp, tensor.dtype) != reduction(dist.ReduceOp.SUM, tensor.dtype):
            raise TypeError("railnet: sparse tensors can only be added up: use SUM, or make them dense with .to_dense()")
        own = tensor.coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        self.all_gather_single(counts, torch.tensor([own._nnz()])).wait()
        # By position first, so that the positions of one rank after another are one tensor.
        parts = []
        for part in (own.indices().t().contiguous(), own.values()):
            whole = torch.empty((int(counts.sum()), *part.shape[1:]), dtype=part.dtype)
            self.allgather([split(whole, counts.tolist())], [part]).wait()
            parts.append(whole)
        tensor.copy_(torch.sparse_coo_tensor(parts[0].t(), parts[1], tensor.shape).coalesce())
        return Work((), [tensor])

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        check(tensors)
        return self._together((self.allreduce([tensor], opts) for tensor in tensors), tensors)

    def reduce(self, tensors: Tensors, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Work:
        tensors, opts = as_list(tensors), _options(opts, op)
        tensor = single(tensors, "reduce")
        after: After = []
        if self._rank == opts.rootRank:
            recvbuff = contiguous_output(tensor, after, filled=True)
            sendbuff = recvbuff
        else:
            sendbuff = contiguous(tensor)
            # What a rank that is not the root gets is undefined, and its tensor stays as it was.
            recvbuff = None
        return self._call(
            _REDUCE, tensor.dtype, tensor.numel(), sendbuff, recvbuff, tensors,
            op=reduction(opts.reduceOp, tensor.dtype), root=opts.rootRank, after=after, options=opts,
        )  # fmt: skip

    def allgather(
        self,
        outputs: list[list[torch.Tensor]] | list[torch.Tensor],
        inputs: Tensors,
        opts: Any = None,
    ) -> Work:
        sendbuff = contiguous(single(as_list(inputs), "allgather"))
        lists = self._lists(outputs, "allgather")
        after: After = []
        recvbuff = flat_output(lists, after)
        counts = _counts([tensor.numel() for tensor in lists])
        _same(sendbuff, lists[self._rank], "the input and the output of this rank")
        return self._call(_ALL_GATHER, sendbuff.dtype, counts, sendbuff, recvbuff, lists, after=after, options=opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        check([output, input])
        sendbuff = contiguous(input)
        after: After = []
        recvbuff = contiguous_output(output, after, filled=False)
        _blocks(output, input, self._size, "output")
        return self._call(_ALL_GATHER, sendbuff.dtype, sendbuff.numel(), sendbuff, recvbuff, [output], after=after, options=opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        pairs = _zipped(outputs, inputs)
        return self._together((self.all_gather_single(output, own, opts) for output, own in pairs), outputs)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        # One list for each rank, with a tensor for each input.
        if len(outputs) != self._size or any(len(row) != len(inputs) for row in outputs):
            raise ValueError(f"railnet: {self._size} lists of {len(inputs)} tensors are needed, one list for each rank")
        works = (
            self.allgather([[row[index] for row in outputs]], [inputs[index]], opts) for index in range(len(inputs))
        )
        return self._together(works, [tensor for row in outputs for tensor in row])

    def reduce_scatter(
        self,
        outputs: Tensors,
        inputs: list[list[torch.Tensor]] | list[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        outputs, opts = as_list(outputs), _options(opts)
        output = single(outputs, "reduce_scatter")
        lists = self._lists(inputs, "reduce_scatter")
        after: After = []
        recvbuff = contiguous_output(output, after, filled=False)
        _same(output, lists[self._rank], "the output and the input of this rank")
        sendbuff = flattened(lists)
        counts = _counts([tensor.numel() for tensor in lists])
        return self._call(
            _REDUCE_SCATTER, output.dtype, counts, sendbuff, recvbuff, outputs,
            op=reduction(opts.reduceOp, output.dtype), after=after, options=opts,
        )  # fmt: skip

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        check([output, input])
        opts = _options(opts)
        after: After = []
        sendbuff, recvbuff = contiguous(input), contiguous_output(output, after, filled=False)
        _blocks(input, output, self._size, "input")
        return self._call(
            _REDUCE_SCATTER, output.dtype, output.numel(), sendbuff, recvbuff, [output],
            op=reduction(opts.reduceOp, output.dtype), after=after, options=opts,
        )  # fmt: skip

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        pairs = _zipped(outputs, inputs)
        return self._together((self.reduce_scatter_single(output, own, opts) for output, own in pairs), outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        check([output, input])
        after: After = []
        sendbuff, recvbuff = contiguous(input), contiguous_output(output, after, filled=False)
        if not output_splits and not input_splits and input.numel() == output.numel():
            if input.numel() % self._size:
                raise ValueError(
                    f"railnet: all_to_all of {input.numel()} elements among {self._size} ranks: the first dimension has to be "
                    "a multiple of the ranks, or splits have to be given"
                )
            count = input.numel() // self._size
            if sendbuff.data_ptr() == recvbuff.data_ptr():
                sendbuff = sendbuff.clone()
            return self._call(_ALL_TO_ALL, sendbuff.dtype, count, sendbuff, recvbuff, [output], after=after, options=opts)
        parts = [_split(recvbuff, output_splits, self._size, "output"), _split(sendbuff, input_splits, self._size, "input")]
        return self._exchange(parts[0], parts[1], [output], after, opts)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        check([*outputs, *inputs])
        for what, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self._size:
                raise ValueError(f"railnet: all_to_all has {len(tensors)} {what}: {self._size} are needed, one for each rank")
        after: After = []
        recvbuff = [contiguous_output(tensor, after, filled=False) for tensor in outputs]
        return self._exchange(recvbuff, [contiguous(tensor) for tensor in inputs], outputs, after, opts)

    def _exchange(
        self, recvbuff: list[torch.Tensor], sendbuff: list[torch.Tensor], result: list[torch.Tensor], after: After, opts: Any
    ) -> Work:
        """Sends a part to each rank and gets one from each, of any length."""
        own = self._rank
        if recvbuff[own].numel() != sendbuff[own].numel():
            raise ValueError(
                f"railnet: rank {own} sends itself {sendbuff[own].numel()} elements and expects {recvbuff[own].numel()}"
            )
        operations = []
        # Each begins with its neighbour, so that not all send to rank 0 first.
        for step in range(1, self._size):
            to, source = (own + step) % self._size, (own - step) % self._size
            for peer, part, sends in ((to, sendbuff[to], True), (source, recvbuff[source], False)):
                if part.numel():
                    operations.append(self._transfer(peer, _EXCHANGE, part, sends=sends))
        copy(sendbuff[own], recvbuff[own])
        work = self._work(operations, result, after)
        if not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    def gather(
        self,
        outputs: list[list[torch.Tensor]] | list[torch.Tensor],
        inputs: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        sendbuff, opts = contiguous(single(as_list(inputs), "gather")), _options(opts)
        after: After = []
        recvbuff, lists = None, []
        if self._rank == opts.rootRank:
            lists = self._lists(outputs, "gather")
            for tensor in lists:
                _same(sendbuff, tensor, "the input and each output")
            recvbuff = flat_output(lists, after)
        return self._call(
            _GATHER, sendbuff.dtype, sendbuff.numel(), sendbuff, recvbuff, lists, root=opts.rootRank, after=after, options=opts
        )

    def gather_single(self, output: torch.Tensor | None, input: torch.Tensor, opts: Any = None) -> Work:
        sendbuff, opts = contiguous(single([input], "gather_single")), _options(opts)
        after: After = []
        recvbuff, result = None, []
        if self._rank == opts.rootRank:
            if output is None:
                raise ValueError(f"railnet: rank {self._rank} gathers, and its output is None: a tensor is needed there")
            check([output])
            _blocks(output, input, self._size, "output")
            recvbuff, result = contiguous_output(output, after, filled=False), [output]
        return self._call(
            _GATHER, sendbuff.dtype, sendbuff.numel(), sendbuff, recvbuff, result, root=opts.rootRank, after=after, options=opts
        )

    def scatter(
        self,
        outputs: Tensors,
        inputs: list[list[torch.Tensor]] | list[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        outputs, opts = as_list(outputs), _options(opts)
        output = single(outputs, "scatter")
        after: After = []
        recvbuff = contiguous_output(output, after, filled=False)
        sendbuff = None
        if self._rank == opts.rootRank:
            lists = self._lists(inputs, "scatter")
            for tensor in lists:
                _same(output, tensor, "the output and each input")
            sendbuff = flattened(lists)
        return self._call(
            _SCATTER, output.dtype, output.numel(), sendbuff, recvbuff, outputs, root=opts.rootRank, after=after, options=opts
        )

    def barrier(self, opts: Any = None) -> Work:
        return self._call(_BARRIER, torch.uint8, 0, None, None, [], options=opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Raises on every rank, and names all ranks that have not come, with and without `wait_all_ranks`.

        The timeout comes as it is, or from inside PyTorch's group in an object of options.
        """
        timeout = getattr(timeout, "timeout", timeout)
        operation = self._communicator.start((_BARRIER, kind(torch.uint8).number, 0, 0.0, 0, 0, 0, 0), ())
        self._sequence += 1
        limit = timeout if timeout is not None and timeout > timedelta(0) else None
        try:
            operation.wait(limit)
        except CommunicationError as error:
            if error.ranks:
                # PyTorch's words for it come first: programs look for them.
                who = f"Rank{'s' if len(error.ranks) > 1 else ''} {', '.join(map(str, error.ranks))}"
                took = (limit or self._timeout).total_seconds() * 1000
                error.args = (f"{who} failed to pass monitoredBarrier in {took:.0f} ms: {error}",)
            raise

    # Point to point.

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        memory = contiguous(single(tensors, "send"))
        return self._work([self._transfer(dst, _tag(tag), memory, sends=True)], tensors, [])

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        after: After = []
        memory = contiguous_output(single(tensors, "recv"), after, filled=False)
        operation = self._transfer(src, _tag(tag), memory, sends=False)
        work = self._work([operation], tensors, after)
        work._source = src
        return work

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        tensor = single(tensors, "recv_anysource")

        def begin(timeout: timedelta | None) -> Work:
            return self.recv([tensor], self._communicator.await_sender(_tag(tag), timeout), tag)

        return FromAny(begin, tensors)

    def _transfer(self, peer: int, tag: int, memory: torch.Tensor, *, sends: bool) -> _railnet.Operation:
        number, each, _ = kind(memory.dtype)
        count = memory.numel() * each
        self._sequence += 1
        entry = self._recorder and self._recorder.transferred(peer, memory, self._timeout, sends=sends)
        operation = self._communicator.transfer(peer, tag, number, count, memory.data_ptr(), memory, sends=sends)
        if entry:
            entry.watch(operation)
        return operation

    # Several calls as one.

    def _together(self, started: Iterable[Work], result: list[torch.Tensor]) -> Work:
        works = list(started)
        operations = [operation for work in works for operation in work._operations]
        return Work(operations, result, [copy for work in works for copy in work._after])

    def _start_coalescing(self, *_: Any) -> None:
        self._coalesced = ([], [], [])

    def _end_coalescing(self, *_: Any) -> Work:
        if self._coalesced is None:
            raise RuntimeError("railnet: the end of coalescing without its beginning")
        operations, result, after = self._coalesced
        self._coalesced = None
        return Work(operations, result, after)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # Groups of some of its ranks.

    def split(self, store: Any, ranks: list[int], opts: Any) -> Calls:
        """What PyTorch asks of a backend that stands beside others. PyTorch 2.15 ends with a segmentation fault where this gives None."""
        if self._rank not in ranks:
            raise RuntimeError(
                f"railnet: rank {self._rank} is in none of the groups that are split off, which PyTorch lets no backend made in Python "
                "say: give each rank a group in split_ranks, or use new_group"
            )
        name = getattr(opts, "group_name", "") or f"{self._name}/{ranks}"
        timeout = getattr(opts, "_timeout", self._timeout)
        return self._subset(list(ranks), name, timeout)

    def _subset(self, ranks: list[int], name: str, timeout: timedelta, kind: type[Calls] | None = None) -> Calls:
        communicator = self._communicator.subset(ranks, name, timeout)
        world = [self._ranks[rank] for rank in ranks]
        return (kind or type(self))(communicator, ranks.index(self._rank), len(ranks), name, timeout, world)

    # Shapes.

    def _lists(self, lists: list[list[torch.Tensor]] | list[torch.Tensor], what: str) -> list[torch.Tensor]:
        rows = [as_list(row) for row in lists]
        # One list of tensors, or the tensors without the list around them.
        tensors = [tensor for row in rows for tensor in row]
        plain = all(isinstance(row, torch.Tensor) for row in lists)
        if len(tensors) != self._size or not (plain or len(rows) == 1):
            has = [len(row) for row in rows]
            raise ValueError(f"railnet: {what} needs one list of {self._size} tensors, one for each rank, and has {has}")
        check(tensors)
        return tensors

    # The names that older versions of PyTorch use.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


#: The tag of what an all-to-all sends: no tag of a program's.
_EXCHANGE = 1 << 40


def _tag(tag: int) -> int:
    if not 0 <= tag < _EXCHANGE:
        raise ValueError(f"railnet: the tag {tag} is none: 0 to {_EXCHANGE - 1} are")
    return tag


def _counts(counts: list[int]) -> int | list[int]:
    """One count, where all are the same."""
    return counts[0] if len(set(counts)) == 1 else counts


def _same(one: torch.Tensor, other: torch.Tensor, what: str) -> None:
    if one.numel() != other.numel() or one.dtype != other.dtype:
        raise ValueError(
            f"railnet: {what} have to agree: {one.numel()} elements of {one.dtype} and {other.numel()} of {other.dtype}"
        )


def _blocks(whole: torch.Tensor, block: torch.Tensor, size: int, what: str) -> None:
    if whole.numel() != block.numel() * size or whole.dtype != block.dtype:
        raise ValueError(
            f"railnet: the {what} has {whole.numel()} elements of {whole.dtype}: {block.numel() * size} of {block.dtype} are "
            f"needed, a block for each of {size} ranks"
        )


def _zipped(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(outputs) != len(inputs):
        raise ValueError(f"railnet: {len(outputs)} outputs and {len(inputs)} inputs: as many are needed")
    return list(zip(outputs, inputs))


def _split(tensor: torch.Tensor, splits: Sequence[int], size: int, what: str) -> list[torch.Tensor]:
    """The parts of a tensor along its first dimension, one for each rank."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            raise ValueError(f"railnet: the {what} has {rows} rows: a multiple of {size} is needed, or splits for each rank")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"railnet: the {what} splits are {list(splits)}: {size} are needed, {rows} in all")
    return split(tensor, list(splits))


class Group(Calls, dist.ProcessGroup):
    """A whole process group: what Python calls comes here without a detour, and what it gets back is `Work`."""

    _described = ""
    #: What its ranks met through.
    _store: c10d.Store | None = None

    # PyTorch keeps the name and the description in the backends of a group, of which this has none.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        self._described = text

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._described

    def get_group_store(self) -> c10d.Store:
        if self._store is None:
            raise RuntimeError("railnet: the group was made without a store")
        return self._store

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> Group | None:
        """A group of some of its ranks, in this order; None on the others."""
        if self._rank not in new_ranks:
            return None
        name = group_name or f"{self._name}/{new_ranks}"
        group = cast("Group", self._subset(list(new_ranks), name, timeout or self._timeout))
        group.setGroupDesc(group_desc or "")
        if self._store is not None:
            group._store = c10d.PrefixStore(f"{name}/", self._store)
        return group

    def _get_backend(self, device: torch.device) -> Any:
        # The group itself answers what PyTorch asks of a backend. PyTorch asks for backends of other devices too, and expects this
        # error where there is none.
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"railnet: the group has no backend for {device}: it moves memory of the host")
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]


def _has_backends() -> bool:
    """Whether Python can make a backend that stands beside others in a group."""
    try:
        type("Probe", (_BackendBase,), {})(0, 1)
    except TypeError:
        return False
    return True


_BackendBase: Any = getattr(dist, "BackendBase", c10d.Backend)

#: The backend that stands beside others in a group, where PyTorch lets Python make one. What Python gets back of it is a wrapper of
#: PyTorch's, which knows no sender and, in PyTorch 2.15, not whether a call has ended: so it is used only where a group needs it.
Backend: type[Calls] | None = type("Backend", (Calls, _BackendBase), {}) if _has_backends() else None

#: The group of all ranks, of which others are parts: they need no rendezvous of their own.
_world: weakref.ref[Calls] | None = None
_world_lock = threading.Lock()


def create(opts: Any, options: Any = None) -> Calls:
    """Makes a group, as `init_process_group` and `new_group` ask for it."""
    global _world
    rank, size, name = opts.group_rank, opts.group_size, str(opts.group_id)
    ranks = list(opts.global_ranks_in_group)
    kind = _kind(sys._getframe(1).f_locals.get("backend_config"))
    with _world_lock:
        world = _world() if _world is not None else None
        if ranks and world is not None and max(ranks) < world._size and ranks[rank] == world._rank:
            return _with_store(world._subset(ranks, name, opts.timeout, kind), opts.store)
        communicator = rendezvous(opts.store, rank, size, opts.timeout)
        group = _with_store(kind(communicator, rank, size, name, opts.timeout, ranks), opts.store)
        if not ranks:
            _world = weakref.ref(group)
    launcher, base = _railnet.Communicator.launcher(), kind.__mro__[2]
    log.info(
        "rank %d of %d, started by %s, data by %s; a %s.%s", rank, size, launcher, _conduits(communicator), base.__module__, base.__name__
    )
    return group


def _with_store(group: Calls, store: c10d.Store) -> Calls:
    # PyTorch keeps the store of the groups that it makes itself.
    if isinstance(group, Group):
        group._store = store
    return group


def _conduits(communicator: _railnet.Communicator) -> str:
    conduits = [conduit for conduit in communicator.conduits() if conduit]
    return ", ".join(f"{conduit} to {conduits.count(conduit)}" for conduit in sorted(set(conduits))) or "nothing: it is alone"


def _kind(config: Any) -> type[Calls]:
    """A process group, unless another backend stands beside this one: PyTorch would leave the other one out silently."""
    others = sorted(set(config.get_device_backend_map().values()) - {NAME}) if config is not None else []
    if not others:
        return Group
    if Backend is None:
        raise RuntimeError(
            f"railnet: PyTorch {torch.__version__} cannot use Railnet beside {', '.join(others)}: Python code cannot make a backend "
            f'there, only a whole process group. Use init_process_group("{NAME}") for CPUs and a group of its own for GPUs, or '
            "PyTorch 2.15"
        )
    return Backend


def register() -> None:
    """Makes the name known to PyTorch, and to `env://` who this process is, where Slurm, MPI or `railnet run` started it."""
    for name, value in _railnet.launch_variables():
        os.environ.setdefault(name, value)
    # Where PyTorch would record calls, they are recorded here.
    recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add(NAME)
    if NAME.upper() not in dist.Backend._plugins:
        # `Calls` comes only as one of two classes: `Group` is a process group, `Backend` a backend of PyTorch's.
        maker = cast("Callable[..., dist.ProcessGroup]", create)
        dist.Backend.register_backend(NAME, maker, extended_api=True, devices=["cpu"])
