"""Every collective of PyTorch, against what it means."""

import datetime

import pytest
import torch
import torch.distributed as dist

import railnet.torch

REDUCED = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
}  # fmt: skip
#: A type that the engine does not know; older versions of PyTorch lack it.
UNKNOWN = getattr(torch, "float8_e4m3fnuz", None)
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def values(rank, dtype, count=7):
    """Small whole numbers: every order of additions gives the same."""
    return ((torch.arange(count) * 3 + rank) % 4 + 1).to(dtype)


def expected(op, dtype, count, ranks):
    stack = torch.stack([values(rank, torch.int64, count) for rank in range(ranks)])
    match op:
        case "SUM":
            wide = stack.sum(0)
        case "AVG":
            total = stack.sum(0)
            wide = total / ranks if dtype.is_floating_point else total // ranks
        case "PRODUCT":
            wide = stack.prod(0)
        case "MIN":
            wide = stack.min(0).values
        case "MAX":
            wide = stack.max(0).values
        case _:
            wide = stack[0].clone()
            for row in stack[1:]:
                wide = {"BAND": wide & row, "BOR": wide | row, "BXOR": wide ^ row}[op]
    return wide.to(dtype)


def is_meant(op, dtype):
    return not (op.startswith("B") and dtype.is_floating_point)


@pytest.mark.parametrize("count", [2, 3])
def test_all_reduce_of_every_type_and_operation(ranks, count):
    def body(rank):
        for dtype in REDUCED.values():
            for op in OPS:
                if not is_meant(op, dtype):
                    continue
                tensor = values(rank, dtype)
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
                torch.testing.assert_close(tensor, expected(op, dtype, 7, count), msg=f"{op} of {dtype}")

    ranks(count, body)


def test_premultiplied_sum(ranks):
    def body(rank):
        tensor = values(rank, torch.float32)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
        torch.testing.assert_close(tensor, expected("SUM", torch.float32, 7, 2) * 0.5)

    ranks(2, body)


def test_truth_values_complex_and_small_floats(ranks):
    def body(rank):
        truth = torch.tensor([rank == 0, False, True])
        any_true, all_true = truth.clone(), truth.clone()
        dist.all_reduce(any_true)
        dist.all_reduce(all_true, op=dist.ReduceOp.MIN)
        assert any_true.tolist() == [True, False, True]
        assert all_true.tolist() == [False, False, True]

        number = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
        dist.all_reduce(number)
        assert number.tolist() == [3 + 6j, 9 - 3j]
        both = torch.empty(4, dtype=torch.complex64)
        dist.all_gather_into_tensor(both, torch.tensor([1j * rank, 2.0]))
        assert both.tolist() == [0, 2, 1j, 2]

        small = torch.tensor([1.0, 2.0]).to(torch.float8_e5m2)
        dist.all_reduce(small)
        assert small.float().tolist() == [2.0, 4.0]
        if UNKNOWN is not None:
            moved = [torch.empty(1, dtype=UNKNOWN) for _ in range(2)]
            dist.all_gather(moved, torch.tensor([float(rank)]).to(UNKNOWN))
            assert [part.float().item() for part in moved] == [0.0, 1.0]

    ranks(2, body)


def test_what_has_no_meaning_is_refused_with_the_reason(ranks):
    def body(rank):
        wrong = [
            (torch.ones(2), dist.ReduceOp.BAND, "integer"),
            (torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG, "truth values"),
            (torch.ones(2, 2).to_sparse_csr(), dist.ReduceOp.SUM, "dense"),
        ]
        if UNKNOWN is not None:
            wrong.append((torch.ones(2).to(UNKNOWN), dist.ReduceOp.SUM, "reduced"))
        for tensor, op, word in wrong:
            with pytest.raises((TypeError, ValueError, RuntimeError), match=word):
                dist.all_reduce(tensor, op=op)
        with pytest.raises((TypeError, ValueError, RuntimeError), match="multiple|equal|split"):
            dist.all_to_all_single(torch.empty(3), torch.empty(3))
        # Nothing of that has broken the group.
        one = torch.ones(1)
        dist.all_reduce(one)
        return one.item()

    assert list(ranks(2, body)) == [2.0, 2.0]


@pytest.mark.parametrize("count", [2, 3])
def test_collectives_that_move(ranks, count):
    def body(rank):
        own = values(rank, torch.int32)
        every = [values(other, torch.int32) for other in range(count)]

        lists = [torch.empty(7, dtype=torch.int32) for _ in range(count)]
        dist.all_gather(lists, own)
        assert all(torch.equal(one, other) for one, other in zip(lists, every))

        flat = torch.empty(7 * count, dtype=torch.int32)
        dist.all_gather_into_tensor(flat, own)
        assert torch.equal(flat, torch.cat(every))

        for root in range(count):
            tensor = own.clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, every[root])
            tensor = own.clone()
            dist.reduce(tensor, root)
            if rank == root:
                assert torch.equal(tensor, expected("SUM", torch.int32, 7, count))
            gathered = [torch.empty_like(own) for _ in range(count)] if rank == root else None
            dist.gather(own, gathered, dst=root)
            if rank == root:
                assert all(torch.equal(one, other) for one, other in zip(gathered, every))
            out = torch.empty_like(own)
            dist.scatter(out, every if rank == root else None, src=root)
            assert torch.equal(out, every[rank])

        sums = torch.empty(7, dtype=torch.int32)
        dist.reduce_scatter_tensor(sums, torch.cat(every))
        assert torch.equal(sums, every[rank] * count)
        dist.reduce_scatter(sums, every)
        assert torch.equal(sums, every[rank] * count)

        given = torch.arange(count * 2) + 100 * rank
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given)
        assert taken.tolist() == [100 * other + 2 * rank + k for other in range(count) for k in range(2)]
        outs = [torch.empty(1 + other) for other in range(count)]
        dist.all_to_all(outs, [torch.full((1 + rank,), float(rank)) for _ in range(count)])
        assert [out.tolist() for out in outs] == [[float(other)] * (1 + other) for other in range(count)]
        dist.barrier()

    ranks(count, body)


def test_blocks_of_unequal_length(ranks):
    def body(rank):
        lists = [torch.empty(other + 1) for other in range(3)]
        dist.all_gather(lists, torch.full((rank + 1,), float(rank)))
        assert [part.tolist() for part in lists] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
        out = torch.empty(rank + 1)
        dist.reduce_scatter(out, [torch.full((other + 1,), float(rank)) for other in range(3)])
        assert out.tolist() == [3.0] * (rank + 1)
        # Rank r sends r + other rows to each other, so some send nothing.
        splits_in = [(rank * other) % 3 for other in range(3)]
        splits_out = [(other * rank) % 3 for other in range(3)]
        given = torch.arange(sum(splits_in)) + 10 * rank
        taken = torch.empty(sum(splits_out), dtype=torch.int64)
        dist.all_to_all_single(taken, given, splits_out, splits_in)
        return given.tolist(), taken.tolist(), splits_in

    results = ranks(3, body)
    for rank, (_, taken, _) in enumerate(results):
        wanted = []
        for given, _, splits in results:
            start = sum(splits[:rank])
            wanted += given[start : start + splits[rank]]
        assert taken == wanted


def test_tensors_that_are_not_in_one_piece(ranks):
    def body(rank):
        whole = torch.arange(12.0).reshape(3, 4) + rank
        column = whole.t()
        assert not column.is_contiguous()
        dist.all_reduce(column)
        assert torch.equal(whole, torch.arange(12.0).reshape(3, 4) * 2 + 1)
        target = torch.zeros(2, 6)[:, ::2]
        dist.all_gather_into_tensor(target, torch.full((1, 3), float(rank)))
        assert target.tolist() == [[0.0] * 3, [1.0] * 3]
        work = dist.broadcast(target.t(), 0, async_op=True)
        work.wait()
        received = torch.zeros(4, 2)[:, 0]
        if rank == 0:
            dist.send(torch.arange(8.0)[::2], 1)
        else:
            dist.recv(received, 0)
            assert received.tolist() == [0.0, 2.0, 4.0, 6.0]

    ranks(2, body)


def test_views_that_are_conjugated_or_negated_when_they_are_read(ranks):
    """Their memory has other values than they have."""

    def body(rank):
        # PyTorch's own functions refuse the first of them.
        group = dist.distributed_c10d._get_default_group()
        number = torch.tensor([1 + 2j, 3 - 4j])
        for view in (number.conj(), torch._neg_view(torch.tensor([1.0, -2.0]))):
            assert view.is_contiguous() and (view.is_conj() or view.is_neg())
            want, got = view.tolist(), torch.zeros(2, dtype=view.dtype)
            if rank == 0:
                group.send([view], 1, 0).wait()
            else:
                group.recv([got], 0, 0).wait()
                assert got.tolist() == want
                got.zero_()
            group.broadcast(view if rank == 0 else got, 0).wait()
            assert (view if rank == 0 else got).tolist() == want
            lists = [torch.zeros(2, dtype=view.dtype) for _ in range(2)]
            group.allgather(lists, view).wait()
            assert [one.tolist() for one in lists] == [want, want]
        # A result that goes to such a view.
        target = torch.zeros(2, dtype=torch.complex64)
        if rank == 0:
            group.send([number], 1, 0).wait()
        else:
            group.recv([target.conj()], 0, 0).wait()
            assert target.tolist() == [1 - 2j, 3 + 4j]

    ranks(2, body)


def test_no_elements(ranks):
    def body(rank):
        dist.all_reduce(torch.empty(0))
        dist.broadcast(torch.empty(0, 3), 1)
        out = torch.empty(0)
        dist.all_gather_into_tensor(out, torch.empty(0))
        dist.all_to_all_single(torch.empty(0), torch.empty(0))
        if rank == 0:
            dist.send(torch.empty(0), 1)
        else:
            assert dist.recv(torch.empty(0), 0) == 0

    ranks(2, body)


def test_calls_go_on_while_the_program_computes(ranks):
    def body(rank):
        tensors = [torch.full((1 << 16,), float(rank + step)) for step in range(8)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works[::2]]
        for work in reversed(works):
            work.wait()
            assert work.is_completed()
        for step, tensor in enumerate(tensors):
            assert tensor[0].item() == 1 + 2 * step
        results = torch.futures.wait_all(futures)
        assert torch.equal(results[1][0], tensors[2])
        chained = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda f: f.value()[0] * 10)
        return chained.wait().tolist()

    assert list(ranks(2, body)) == [[20.0] * 3] * 2


def test_point_to_point(ranks):
    def body(rank):
        # By tag, in another order than they were sent.
        if rank == 0:
            works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (0, 5, 7)]
            [work.wait() for work in works]
        elif rank == 1:
            seen = []
            for tag in (7, 0, 5):
                tensor = torch.empty(1)
                assert dist.recv(tensor, 0, tag=tag) == 0
                seen.append(tensor.item())
            assert seen == [7.0, 0.0, 5.0]
        dist.barrier()
        # All with all at once, in both directions.
        ops, got = [], [torch.empty(1000) for _ in range(3)]
        for other in range(3):
            if other != rank:
                ops.append(dist.P2POp(dist.isend, torch.full((1000,), float(rank)), other))
                ops.append(dist.P2POp(dist.irecv, got[other], other))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert all(got[other][0].item() == other for other in range(3) if other != rank)
        dist.barrier()
        # From whichever sends.
        if rank == 0:
            senders = []
            for _ in range(4):
                tensor = torch.empty(2)
                sender = dist.recv(tensor)
                assert tensor[0].item() == sender
                senders.append(sender)
            return sorted(senders)
        for _ in range(2):
            dist.send(torch.full((2,), float(rank)), 0)
        return None

    assert ranks(3, body)[0] == [1, 1, 2, 2]


def test_a_receive_from_any_rank_has_a_future_before_any_rank_sends(ranks):
    def body(rank):
        if rank == 1:
            dist.recv(torch.empty(1), 0, tag=1)
            dist.send(torch.full((1,), 7.0), 0, tag=2)
        else:
            got = torch.empty(1)
            work = dist.irecv(got, tag=2)
            future = work.get_future()
            assert not work.is_completed() and not future.done()
            # Now rank 1 may send.
            dist.send(torch.ones(1), 1, tag=1)
            future.wait()
            assert work.is_success() and work.source_rank() == 1 and got.item() == 7
        dist.barrier()

    ranks(2, body)


def test_groups_of_some_ranks(ranks):
    def body(rank):
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        own = pairs[rank % 2]
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=own)
        # Each pair by itself, and in another order.
        backwards = dist.new_group([3, 1] if rank % 2 else [2, 0], use_local_synchronization=True)
        out = torch.empty(2)
        dist.all_gather_into_tensor(out, torch.tensor([float(rank)]), group=backwards)
        order = sorted(out.tolist())
        short = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=30))
        if rank < 2:
            dist.barrier(group=short)
        dist.destroy_process_group(own)
        objects = [None] * 4
        dist.all_gather_object(objects, {"rank": rank})
        assert [one["rank"] for one in objects] == [0, 1, 2, 3]
        listed = [{"from": rank}, rank]
        dist.broadcast_object_list(listed, src=3)
        return tensor.item(), order, listed[1]

    results = ranks(4, body)
    assert [result[0] for result in results] == [2.0, 4.0, 2.0, 4.0]
    assert [result[1] for result in results] == [[0.0, 2.0], [1.0, 3.0]] * 2
    assert [result[2] for result in results] == [3] * 4


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15), reason="this PyTorch splits groups of one GPU each")
@pytest.mark.parametrize("backend", ["railnet", "cpu:railnet,cuda:gloo"])
def test_groups_that_are_split(ranks, backend):
    def body(rank):
        # The order of the list is that of the ranks.
        halves = dist.split_group(split_ranks=[[2, 0], [1, 3]], group_desc="halves")
        assert halves.size() == 2 and dist.get_group_rank(halves, rank) == (rank in (0, 3))
        out = torch.empty(2)
        dist.all_gather_into_tensor(out, torch.tensor([float(rank)]), group=halves)
        # Of those that are left, one more time, and of a part that was split.
        limit = datetime.timedelta(seconds=40)
        if rank in (1, 2):
            dist.barrier(group=dist.split_group(split_ranks=[[1, 2]], timeout=limit))
        elif backend == "railnet":
            assert dist.split_group(split_ranks=[[1, 2]], timeout=limit) is dist.GroupMember.NON_GROUP_MEMBER
        else:
            with pytest.raises(RuntimeError, match="give each rank a group"):
                dist.split_group(split_ranks=[[1, 2]], timeout=limit)
        alone = dist.split_group(halves, [[0], [1]])
        one = torch.tensor([float(rank)])
        dist.all_reduce(one, group=alone)
        assert one.item() == rank
        dist.destroy_process_group(halves)
        dist.barrier()
        return out.tolist()

    assert list(ranks(4, body, backend=backend)) == [[2.0, 0.0], [1.0, 3.0]] * 2


def test_coalesced_calls(ranks):
    def body(rank):
        ones = [torch.full((n,), float(rank + 1)) for n in (1, 5, 1000)]
        with dist.distributed_c10d._coalescing_manager():
            for tensor in ones:
                dist.all_reduce(tensor)
        assert all(tensor.eq(3).all() for tensor in ones)
        outs = [torch.empty(2 * n) for n in (1, 5)]
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for out in outs:
                dist.all_gather_into_tensor(out, torch.full((out.numel() // 2,), float(rank)))
        manager.wait()
        assert outs[1].tolist() == [0.0] * 5 + [1.0] * 5
        dist.all_reduce_coalesced(ones)
        assert all(tensor.eq(6).all() for tensor in ones)
        parts = [torch.empty(n) for n in (1, 5)]
        with dist.distributed_c10d._coalescing_manager():
            for part in parts:
                dist.reduce_scatter_tensor(part, torch.full((2 * part.numel(),), float(rank + 1)), op=dist.ReduceOp.AVG)
        assert [part.tolist() for part in parts] == [[1.5], [1.5] * 5]
        lists = [[torch.empty(3), torch.empty(2, 2)] for _ in range(2)]
        dist.all_gather_coalesced(lists, [torch.full((3,), float(rank)), torch.full((2, 2), 10.0 + rank)])
        assert [[part.flatten()[0].item() for part in row] for row in lists] == [[0.0, 10.0], [1.0, 11.0]]

    ranks(2, body)


def test_functional_collectives(ranks):
    """The calls that DTensor makes, with and without a list of tensors."""
    functional = pytest.importorskip("torch.distributed._functional_collectives")

    def body(rank):
        world, own = dist.group.WORLD, torch.arange(4.0) + rank
        whole = [2 * k + 1.0 for k in range(4)]
        assert functional.all_reduce(own, "sum", world).tolist() == whole
        assert functional.all_gather_tensor(own, 0, world).tolist() == [0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0]
        assert functional.reduce_scatter_tensor(own, "avg", 0, world).tolist() == [k / 2 for k in whole[2 * rank : 2 * rank + 2]]
        taken = functional.all_to_all_single(own, [1, 1] if rank == 0 else [3, 3], [1, 3], world)
        assert taken.tolist() == ([0.0, 1.0] if rank == 0 else [1.0, 2.0, 3.0, 2.0, 3.0, 4.0])
        if hasattr(functional, "broadcast"):
            assert functional.broadcast(own, 1, world).tolist() == [1.0, 2.0, 3.0, 4.0]
        two = [own, own + 10]
        assert [one.tolist() for one in functional.all_reduce_coalesced(two, "max", world)] == [[k + 1 for k in range(4)], [k + 11 for k in range(4)]]
        assert functional.all_gather_into_tensor_coalesced(two, world)[1].tolist() == [10.0, 11.0, 12.0, 13.0, 11.0, 12.0, 13.0, 14.0]
        parts = functional.reduce_scatter_tensor_coalesced(two, "sum", [0, 0], world)
        assert parts[0].tolist() == whole[2 * rank : 2 * rank + 2]
        # What DTensor waits for later than it asks for it.
        late = [functional.all_reduce(torch.full((1000,), float(step + rank)), "sum", world) for step in range(4)]
        assert [one[0].item() for one in late] == [1.0, 3.0, 5.0, 7.0]

    ranks(2, body)


def test_a_groups_methods_take_tensors_roots_and_reductions_as_they_are(ranks):
    """As PyTorch's own process groups do: without lists around single tensors, and without objects of options."""

    def body(rank):
        group = dist.distributed_c10d._get_default_group()
        one = torch.full((2,), float(rank + 1))
        group.allreduce(one, dist.ReduceOp.MAX).wait()
        assert one.tolist() == [3.0, 3.0]
        group.allreduce([one]).wait()
        assert one.tolist() == [9.0, 9.0]
        root = torch.full((1,), float(rank))
        group.broadcast(root, 2).wait()
        assert root.item() == 2
        total = torch.full((1,), float(rank + 1))
        group.reduce(total, 1, dist.ReduceOp.PRODUCT).wait()
        assert total.item() == (6.0 if rank == 1 else rank + 1)
        every = [torch.empty(1) for _ in range(3)]
        group.allgather(every, torch.full((1,), float(rank))).wait()
        assert [part.item() for part in every] == [0.0, 1.0, 2.0]
        every = [torch.empty(1) for _ in range(3)] if rank == 1 else []
        group.gather(every, torch.full((1,), float(rank)), 1).wait()
        assert [part.item() for part in every] == ([0.0, 1.0, 2.0] if rank == 1 else [])
        part = torch.empty(1)
        group.scatter(part, [torch.full((1,), float(other)) for other in range(3)] if rank == 0 else [], 0).wait()
        assert part.item() == rank
        group.reduce_scatter(part, [torch.full((1,), float(other)) for other in range(3)]).wait()
        assert part.item() == 3 * rank
        group.barrier().wait()

    ranks(3, body)


def test_gather_into_one_tensor(ranks):
    def body(rank):
        group = dist.distributed_c10d._get_default_group()
        rows = torch.empty(4, 3).t() if rank == 1 else torch.empty(0)
        group.gather_single(rows, torch.full((1, 4), float(rank)), 1).wait()
        assert rows.tolist() == ([[float(other)] * 4 for other in range(3)] if rank == 1 else [])
        if rank == 1:
            with pytest.raises(ValueError, match="12 of torch.float32 are needed"):
                group.gather_single(torch.empty(2), torch.ones(4), 1)
        if hasattr(dist, "gather_single"):
            whole = torch.empty(6) if rank == 2 else None
            dist.gather_single(torch.full((2,), float(rank)), whole, dst=2)
            assert rank != 2 or whole.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]

    ranks(3, body)


def test_a_group_has_no_backend_for_a_gpu(ranks):
    def body(rank):
        # PyTorch asks for it, and takes this error for an answer.
        with pytest.raises(RuntimeError, match="no backend for cuda"):
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))

    ranks(1, body)


def test_several_threads_with_a_group_each(ranks):
    def body(rank):
        import threading

        groups = [dist.new_group([0, 1]) for _ in range(3)]
        wrong = []

        def work(index):
            for step in range(50):
                tensor = torch.tensor([float(rank + step)])
                dist.all_reduce(tensor, group=groups[index])
                if tensor.item() != 1 + 2 * step:
                    wrong.append((index, step))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong

    ranks(2, body)


def test_a_thread_that_waits_lets_another_call(ranks):
    """Rank 0 receives in one thread what rank 1 sends only after it has heard from another thread of rank 0."""

    def body(rank):
        import threading

        groups = [dist.new_group([0, 1]) for _ in range(2)]
        if rank == 1:
            dist.recv(torch.empty(1), 0, group=groups[1])
            dist.send(torch.ones(1), 0, group=groups[0])
            return
        got = torch.empty(1)
        waits = threading.Thread(target=lambda: dist.recv(got, 1, group=groups[0]))
        waits.start()
        dist.send(torch.ones(1), 1, group=groups[1])
        waits.join()
        assert got.item() == 1

    ranks(2, body)


def test_a_second_group_after_the_first_was_destroyed(ranks, tmp_path):
    def body(rank, place):
        for round in range(2):
            store = dist.FileStore(f"{place.removeprefix('file://')}-{round}", 2)
            dist.init_process_group("railnet", store=store, rank=rank, world_size=2)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == 2
            dist.destroy_process_group()

    ranks(2, body, backend=None)


def test_the_same_store_serves_groups_made_one_after_the_other(ranks):
    def body(rank, place):
        store = dist.FileStore(place.removeprefix("file://"), 2)
        for _ in range(2):
            dist.init_process_group("railnet", store=store, rank=rank, world_size=2)
            dist.barrier()
            dist.destroy_process_group()

    ranks(2, body, backend=None)


@pytest.mark.skipif(railnet.torch.Backend is None, reason="this PyTorch lets Python make no backend beside others")
def test_beside_another_backend(ranks):
    """A backend inside PyTorch's own group, as with GPUs in the same job."""

    def body(rank):
        assert isinstance(dist.group.WORLD._get_backend(torch.device("cpu")), railnet.torch.Backend)
        one = torch.full((2,), float(rank + 1))
        dist.all_reduce(one)
        work = dist.all_reduce(one, op=dist.ReduceOp.MAX, async_op=True)
        work.wait()
        assert one.tolist() == [6.0, 6.0]
        future = dist.all_reduce(one, async_op=True).get_future()
        assert future.wait()[0].tolist() == [18.0, 18.0]
        every = [torch.empty(1) for _ in range(3)]
        dist.all_gather(every, torch.full((1,), float(rank)))
        assert [part.item() for part in every] == [0.0, 1.0, 2.0]
        whole = torch.empty(3)
        dist.all_gather_into_tensor(whole, torch.full((1,), float(rank)))
        dist.all_to_all_single(whole, torch.arange(3.0) + 10 * rank)
        assert whole.tolist() == [rank, 10.0 + rank, 20.0 + rank]
        part = torch.empty(1)
        dist.reduce_scatter_tensor(part, torch.arange(3.0))
        assert part.item() == 3 * rank
        dist.scatter(part, [torch.full((1,), float(other)) for other in range(3)] if rank == 1 else None, src=1)
        assert part.item() == rank
        dist.gather(part, every if rank == 2 else None, dst=2)
        dist.broadcast(part, 2)
        assert part.item() == 2
        dist.reduce(part, 0)
        assert part.item() == (6.0 if rank == 0 else 2.0)
        if rank == 0:
            dist.send(part, 1)
        elif rank == 1:
            dist.recv(part, 0)
            assert part.item() == 6
        objects = [None] * 3
        dist.all_gather_object(objects, rank)
        assert objects == [0, 1, 2]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        model(torch.full((1, 1), float(rank))).sum().backward()
        assert model.module.weight.grad.item() == 1
        dist.barrier()
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))

    ranks(3, body, backend="cpu:railnet,cuda:gloo")


def test_all_reduce_of_sparse_tensors(ranks):
    """As the gradients of a sparse embedding are: each rank has other rows, and another number of them."""

    def body(rank):
        rows = [[], [4], [1, 4, 4]][rank]
        values = torch.arange(len(rows) * 2, dtype=torch.float32).reshape(-1, 2) + rank
        mine = torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.int64), values, (6, 2))
        dense = mine.to_dense()
        dist.all_reduce(mine)
        dist.all_reduce(dense)
        assert torch.equal(mine.to_dense(), dense)
        with pytest.raises(TypeError, match="SUM"):
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)

    ranks(3, body)
