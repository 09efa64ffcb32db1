"""AllReduce between NCCL ranks that share one GPU and take each other for different hosts, so that NCCL uses its network.

Prints one line of JSON a size: bytes, microseconds and bus bandwidth of the median of several runs, and whether every element
of the result was right.
"""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def is_right(rank, world, count):
    """Every rank contributes other numbers, and every element has its own sum."""
    own = torch.arange(count, device="cuda", dtype=torch.float32) % 1024 + rank
    dist.all_reduce(own)
    expected = (torch.arange(count, device="cuda", dtype=torch.float32) % 1024) * world + world * (world - 1) / 2
    return bool((own == expected).all().item())


def measure(size, world):
    data = torch.ones(size // 4, device="cuda")
    calls = 5 if size > 1 << 20 else 50
    for _ in range(3):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_main(rank, world, repeats):
    os.environ["NCCL_HOSTID"] = f"host{rank}"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    for size in SIZES:
        right = is_right(rank, world, size // 4)
        seconds = statistics.median(measure(size, world) for _ in range(repeats))
        verdict = torch.tensor([1 if right else 0], device="cuda")
        dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
        if rank == 0:
            bus = size / seconds / 1e9 * 2 * (world - 1) / world
            line = {"bytes": size, "us": round(seconds * 1e6, 1), "busbw_gbps": round(bus, 3)}
            print(json.dumps(line | {"right": bool(verdict.item())}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(free_port())
    mp.spawn(rank_main, (ranks, repeats), nprocs=ranks)
