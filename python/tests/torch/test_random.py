"""Random programs of collectives: the same results as Gloo's, and a rank that is lost in the middle of one is named."""

import datetime
import os
import random
import signal

import pytest
import torch
import torch.distributed as dist

TYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float16]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]


def program(seed, ranks):
    """Calls, the same on every rank."""
    rng = random.Random(seed)
    calls = []
    for _ in range(12):
        name = rng.choice(
            ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "ring"]
        )
        calls.append(
            {
                "name": name,
                "count": rng.choice([0, 1, 2, 7, 64, 1000, 5000, 70_000]),
                "dtype": rng.randrange(len(TYPES)),
                "op": rng.randrange(len(OPS)),
                "root": rng.randrange(ranks),
                "splits": [[rng.randrange(4) for _ in range(ranks)] for _ in range(ranks)],
                "wait": rng.random() < 0.5,
                "group": rng.random() < 0.25 and ranks > 2,
            }
        )
    return calls


def play(rank, ranks, calls, world, part, lost_before=None, signal_number=signal.SIGKILL):
    """What every call gave this rank. It sends itself a signal before the call with the number `lost_before`."""
    outputs, pending = [], []
    for number, call in enumerate(calls):
        if number == lost_before:
            os.kill(os.getpid(), signal_number)
        group, members = (part, [0, ranks - 1]) if call["group"] else (world, list(range(ranks)))
        if rank not in members:
            continue
        size, own, root = len(members), members.index(rank), members[call["root"] % len(members)]
        dtype, op, count = TYPES[call["dtype"]], OPS[call["op"]], call["count"]
        given = ((torch.arange(count) * 7 + rank * 3 + number) % 3).to(dtype)
        every = [((torch.arange(count) + rank + other) % 2).to(dtype) for other in range(size)]
        work, result = None, [given]
        match call["name"]:
            case "all_reduce":
                work = dist.all_reduce(given, op=op, group=group, async_op=True)
            case "broadcast":
                work = dist.broadcast(given, root, group=group, async_op=True)
            case "reduce":
                work = dist.reduce(given, root, op=op, group=group, async_op=True)
                result = [given] if rank == root else []
            case "all_gather":
                result = [torch.empty_like(given) for _ in range(size)]
                work = dist.all_gather(result, given, group=group, async_op=True)
            case "reduce_scatter":
                # Gloo has it for tensors in one piece.
                result = [torch.empty_like(given)]
                work = dist.reduce_scatter_tensor(result[0], torch.cat(every), op=op, group=group, async_op=True)
            case "all_to_all":
                splits = [row[:size] for row in call["splits"][:size]]
                mine, theirs = splits[own], [splits[other][own] for other in range(size)]
                source = (torch.arange(sum(mine)) + rank).to(dtype)
                result = [torch.empty(sum(theirs), dtype=dtype)]
                work = dist.all_to_all_single(result[0], source, theirs, mine, group=group, async_op=True)
            case "gather":
                result = [torch.empty_like(given) for _ in range(size)] if rank == root else []
                work = dist.gather(given, result or None, dst=root, group=group, async_op=True)
            case "scatter":
                result = [torch.empty_like(given)]
                work = dist.scatter(result[0], every if rank == root else None, src=root, group=group, async_op=True)
            case "ring":
                result = [torch.empty_like(given)]
                sent = dist.isend(given, members[(own + 1) % size], group=group, tag=number)
                dist.recv(result[0], members[(own - 1) % size], group=group, tag=number)
                sent.wait()
        if work is not None and call["wait"]:
            work.wait()
        elif work is not None:
            pending.append(work)
        outputs.append((number, call["name"], result))
    for work in pending:
        work.wait()
    return outputs


def compare(ranks, seeds, count):
    def body(rank):
        world = dist.group.WORLD
        part = dist.new_group([0, count - 1])
        gloo, gloo_part = dist.new_group(backend="gloo"), dist.new_group([0, count - 1], backend="gloo")
        for seed in seeds:
            calls = program(seed, count)
            mine = play(rank, count, calls, world, part)
            theirs = play(rank, count, calls, gloo, gloo_part)
            for (number, name, own), (_, _, other) in zip(mine, theirs):
                for left, right in zip(own, other):
                    assert torch.equal(left, right), f"seed {seed}, call {number} {name}: {left} instead of {right}"

    ranks(count, body, limit=600)


#: Before, Gloo has no reduce_scatter_tensor (2.1), or takes every reduction of it for SUM (2.6).
needs_gloo = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15), reason="this PyTorch's Gloo is no reference"
)


@needs_gloo
@pytest.mark.parametrize("count", [2, 4])
def test_random_programs_give_what_gloo_gives(ranks, count):
    compare(ranks, range(10), count)


@needs_gloo
@pytest.mark.full
@pytest.mark.parametrize("count", [2, 3, 4])
def test_two_hundred_random_programs_give_what_gloo_gives(ranks, count):
    compare(ranks, range(100, 300), count)


def lose_a_rank(failing, seeds, count, signal_number):
    """In each program another rank is killed or stopped before another call: all others name it, and only it."""
    for seed in seeds:
        rng = random.Random(seed)
        victim, call = rng.randrange(count), rng.randrange(12)

        def body(rank, seed=seed, victim=victim, call=call):
            part = dist.new_group([0, count - 1], timeout=LIMIT)
            world = dist.group.WORLD
            world._get_backend(torch.device("cpu")).set_timeout(LIMIT)
            lost_before = call if rank == victim else None
            play(rank, count, program(seed, count), world, part, lost_before, signal_number)
            # A program whose remaining calls did without the lost rank ends here.
            dist.all_reduce(torch.ones(1))

        survivors = [rank for rank in range(count) if rank != victim]
        results = failing(count, body, wait_for=survivors)
        for rank in survivors:
            blamed = getattr(results[rank], "ranks", "none: it ended without an error")
            assert blamed == [victim], f"seed {seed}: rank {rank} blames {blamed}, rank {victim} was lost before call {call}: {results[rank]!r}"


#: The limit of the calls in which a rank is lost.
LIMIT = datetime.timedelta(seconds=3)
SIGNALS = [signal.SIGKILL, signal.SIGSTOP]


@pytest.mark.parametrize("signal_number", SIGNALS)
def test_a_rank_that_is_lost_in_a_random_program_is_named(failing, signal_number):
    lose_a_rank(failing, range(3), 3, signal_number)


@pytest.mark.full
@pytest.mark.parametrize("signal_number", SIGNALS)
@pytest.mark.parametrize(("count", "seeds"), [(2, range(100, 150)), (4, range(100, 300))])
def test_a_rank_that_is_lost_in_each_of_two_hundred_random_programs_is_named(failing, count, seeds, signal_number):
    lose_a_rank(failing, seeds, count, signal_number)
