"""A rank that is missing, dead, stopped, or makes another call: every other rank names it, with the call."""

import contextlib
import datetime
import os
import pickle
import signal
import time

import pytest
import torch
import torch.distributed as dist

import railnet.torch

SHORT = datetime.timedelta(seconds=3)


def lives(rank):
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).set_timeout(SHORT)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor


@contextlib.contextmanager
def leaving_together(rank, ranks):
    """Holds a rank that has failed until all have: one that ends is lost to those that still wait."""
    try:
        yield
    finally:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"failed/{rank}", "")
        store.wait([f"failed/{other}" for other in ranks])


def test_a_rank_that_dies_is_named(failing):
    def body(rank):
        lives(rank)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1000))

    results = failing(3, body, wait_for=[0, 2])
    for rank in (0, 2):
        assert results[rank].ranks == [1], results[rank]
        assert "rank 1" in results[rank].text and "AllReduce" in results[rank].text, results[rank]


def test_a_rank_that_is_stopped_is_named_with_its_state(failing):
    def body(rank):
        lives(rank)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.broadcast(torch.ones(1000), 2)

    results = failing(3, body, wait_for=[0, 1])
    for rank in (0, 1):
        assert results[rank].ranks == [2], results[rank]
        assert "stopped" in results[rank].text, results[rank]


def test_a_rank_that_makes_another_call_is_named(failing):
    def body(rank):
        lives(rank)
        store = dist.distributed_c10d._get_default_store()
        with leaving_together(rank, [0, 1, 2]):
            if rank == 0:
                # The call of the other two is the usual one once both have made it.
                store.wait(["entered/1", "entered/2"])
                dist.all_reduce(torch.ones(4, dtype=torch.float64))
            else:
                work = dist.all_reduce(torch.ones(4), async_op=True)
                store.set(f"entered/{rank}", "")
                work.wait()

    for result in failing(3, body):
        assert result.ranks == [0], result
        assert "f64" in result.text and "f32" in result.text, result


def test_a_rank_that_does_not_come_is_named_by_a_wait_with_a_timeout(failing):
    def body(rank):
        lives(rank)
        if rank == 1:
            # It comes to no barrier, and is alive.
            time.sleep(6)
            return
        # The group's own method: older versions of PyTorch let their function call it for Gloo only.
        group = dist.distributed_c10d._get_default_group()
        with leaving_together(rank, [0, 2]):
            group.monitored_barrier(datetime.timedelta(seconds=1), wait_all_ranks=True)

    results = failing(3, body, wait_for=[0, 2])
    for rank in (0, 2):
        assert results[rank].ranks == [1], results[rank]
        assert "Rank 1 failed to pass monitoredBarrier in 1000 ms: rank 1 has not entered Barrier" in results[rank].text


def test_the_exception_of_a_call_that_was_started_is_on_its_future(failing):
    def body(rank):
        lives(rank)
        if rank == 1:
            os._exit(3)
        work = dist.all_reduce(torch.ones(8), async_op=True)
        future = work.get_future()
        with pytest.raises(RuntimeError, match="rank 1"):
            future.wait()
        assert work.is_completed() and not work.is_success()
        work.wait()

    assert failing(2, body, wait_for=[0])[0].ranks == [1]


def test_the_flight_recorder_shows_a_call_that_failed_as_one_that_did_not_complete(failing):
    def body(rank, place):
        os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
        dist.init_process_group("railnet", init_method=place, rank=rank, world_size=2)
        lives(rank)
        if rank == 1:
            os._exit(3)
        with pytest.raises(RuntimeError, match="rank 1"):
            # The callbacks of a call run one after the other: the recorder's has before the future's.
            dist.all_reduce(torch.ones(8), async_op=True).get_future().wait()
        entries = pickle.loads(railnet.torch.dump_flight_recorder())["entries"]
        return [entry["state"] for entry in entries]

    assert failing(2, body, backend=None, wait_for=[0])[0] == ["completed", "scheduled"]


def test_abort_frees_a_call_that_waits(failing):
    def body(rank):
        import threading

        lives(rank)
        if rank == 1:
            time.sleep(4)
            return
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        backend.set_timeout(datetime.timedelta(minutes=5))
        threading.Timer(0.3, backend.abort).start()
        dist.recv(torch.empty(1), 1)

    assert "aborted" in failing(2, body, wait_for=[0])[0].text


def test_ctrl_c_ends_a_wait(failing):
    def body(rank):
        lives(rank)
        if rank == 1:
            time.sleep(4)
            return
        # Forked inside pytest, which has its own handler.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        dist.recv(torch.empty(1), 1)

    assert failing(2, body, wait_for=[0])[0].text.startswith("KeyboardInterrupt")


def test_ranks_that_never_call_init_are_named(failing):
    def body(rank, place):
        if rank == 2:
            time.sleep(5)
            return
        limit = datetime.timedelta(seconds=2)
        dist.init_process_group("railnet", init_method=place, rank=rank, world_size=3, timeout=limit)

    results = failing(3, body, backend=None, wait_for=[0, 1])
    for rank in (0, 1):
        assert results[rank].ranks == [2] and "rank 2 has not made the group" in results[rank].text, results[rank]
