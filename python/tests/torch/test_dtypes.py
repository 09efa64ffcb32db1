"""Every type that PyTorch has on CPUs: each is moved, and each is reduced by all that has a meaning for it."""

import pytest
import torch
import torch.distributed as dist

#: Whole types and those that PyTorch has as packed or opaque bytes, but not those of its quantised tensors.
TYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bits"))},
    key=str,
)
COUNT = 6


def pattern(dtype, rank, count=COUNT):
    """Elements whose bytes tell ranks apart. Truth values are 0 or 1."""
    size = count * dtype.itemsize
    data = torch.arange(size, dtype=torch.int64) * 7 + 31 * rank
    return (data % 2 if dtype is torch.bool else data % 251).to(torch.uint8).view(dtype)


def same(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_there_are_as_many_types_as_known():
    names = {str(dtype).removeprefix("torch.") for dtype in TYPES}
    assert {"bool", "bfloat16", "complex32", "complex128", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"} <= names


@pytest.mark.parametrize("count", [3])
def test_every_type_is_moved_by_every_call(ranks, count):
    def body(rank):
        for dtype in TYPES:
            own, every = pattern(dtype, rank), [pattern(dtype, other) for other in range(count)]
            whole = torch.cat([part.view(torch.uint8) for part in every]).view(dtype)

            def empty(parts=1, dtype=dtype):
                return torch.zeros(COUNT * dtype.itemsize * parts, dtype=torch.uint8).view(dtype)

            flat = empty(count)
            dist.all_gather_into_tensor(flat, own)
            assert same(flat, whole), f"all_gather_into_tensor of {dtype}"
            lists = [empty() for _ in range(count)]
            dist.all_gather(lists, own)
            assert all(map(same, lists, every)), f"all_gather of {dtype}"
            one = pattern(dtype, rank)
            dist.broadcast(one, 1)
            assert same(one, every[1]), f"broadcast of {dtype}"
            lists = [empty() for _ in range(count)]
            dist.gather(own, lists if rank == 2 else None, dst=2)
            assert rank != 2 or all(map(same, lists, every)), f"gather of {dtype}"
            one = empty()
            dist.scatter(one, every if rank == 0 else None, src=0)
            assert same(one, own), f"scatter of {dtype}"
            flat = empty()
            dist.all_to_all_single(flat, own)
            part = COUNT // count * dtype.itemsize
            sent = [given.view(torch.uint8)[part * rank : part * (rank + 1)] for given in every]
            assert torch.equal(flat.view(torch.uint8), torch.cat(sent)), f"all_to_all_single of {dtype}"
            lists = [empty() for _ in range(count)]
            dist.all_to_all(lists, [pattern(dtype, rank + other) for other in range(count)])
            assert all(same(lists[other], pattern(dtype, other + rank)) for other in range(count)), f"all_to_all of {dtype}"
            one = empty()
            sent = dist.isend(own, (rank + 1) % count)
            dist.recv(one, (rank - 1) % count)
            sent.wait()
            assert same(one, every[rank - 1]), f"send of {dtype}"

    ranks(count, body)


#: The rest of the types that can be reduced: those of test_collectives.py are the usual ones.
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


def reduced(op, dtype):
    """What two ranks make of 1, 2, 1, 2 and 2, 2, 1, 1: numbers that the smallest types hold."""
    rows = torch.tensor([[1.0, 2.0, 1.0, 2.0], [2.0, 2.0, 1.0, 1.0]])
    bits = rows.to(torch.int64)
    whole = {
        "SUM": rows.sum(0), "PRODUCT": rows.prod(0), "MIN": rows.amin(0), "MAX": rows.amax(0),
        "AVG": rows.mean(0) if dtype.is_floating_point or dtype.is_complex else rows.mean(0).floor(),
        "BAND": bits[0] & bits[1], "BOR": bits[0] | bits[1], "BXOR": bits[0] ^ bits[1],
    }  # fmt: skip
    return rows, whole[op].to(torch.float64)


def wide(tensor):
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def test_unsigned_small_and_complex_numbers_are_reduced(ranks):
    arithmetic, bitwise = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"], ["BAND", "BOR", "BXOR"]
    cases = [(dtype, arithmetic + bitwise) for dtype in UNSIGNED] + [(dtype, arithmetic) for dtype in SMALL]

    def body(rank):
        for dtype, ops in cases:
            for op in ops:
                rows, wanted = reduced(op, dtype)
                tensor = rows[rank].to(dtype)
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
                assert wide(tensor).tolist() == wanted.tolist(), f"{op} of {dtype}"
        for dtype in COMPLEX:
            for op in ("SUM", "AVG"):
                rows, wanted = reduced(op, dtype)
                # Real parts of one kind, imaginary ones of the other.
                tensor = torch.complex(rows[rank].to(torch.float64), -rows[rank].to(torch.float64)).to(dtype)
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
                assert wide(tensor).tolist() == torch.complex(wanted, -wanted).tolist(), f"{op} of {dtype}"
                part = torch.empty(2, dtype=dtype)
                given = torch.complex(rows[rank].to(torch.float64), torch.zeros(4, dtype=torch.float64)).to(dtype)
                dist.reduce_scatter_tensor(part, given, op=getattr(dist.ReduceOp, op))
                assert wide(part).real.tolist() == wanted[2 * rank : 2 * rank + 2].tolist(), f"{op} of {dtype}, scattered"

    ranks(2, body)


def test_truth_values_are_reduced_by_all_that_has_a_meaning(ranks):
    rows = torch.tensor([[True, True, False, False], [True, False, True, False]])
    wanted = {"SUM": rows.any(0), "MAX": rows.any(0), "BOR": rows.any(0), "PRODUCT": rows.all(0), "MIN": rows.all(0),
              "BAND": rows.all(0), "BXOR": rows[0] ^ rows[1]}  # fmt: skip

    def body(rank):
        for op, whole in wanted.items():
            tensor = rows[rank].clone()
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
            assert tensor.tolist() == whole.tolist(), op
            part = torch.empty(2, dtype=torch.bool)
            dist.reduce_scatter_tensor(part, rows[rank].clone(), op=getattr(dist.ReduceOp, op))
            assert part.tolist() == whole[2 * rank : 2 * rank + 2].tolist(), f"{op}, scattered"

    ranks(2, body)
