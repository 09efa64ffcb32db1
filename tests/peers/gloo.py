"""One rank of Gloo, through torch.distributed, as a contestant of `railnet bench live`.

Every rank has a connection of its own to the runner and waits in a read between turns. The conversation is described in
crates/cli/src/bench/live/protocol.rs.

    python gloo.py SOCKET RANK RANKS FILE       (FILE: where the ranks meet; it must not be there yet)
"""

import datetime
import json
import os
import resource
import signal
import socket
import sys
import time

# A rank that hangs inside the library ends after this long, whatever has become of the runner.
LIMIT_SECONDS = 180
# Larger buffers are given back after each turn, so that contestants do not need memory all at once.
KEPT_BYTES = 64 << 20


class Rank:
    def __init__(self, torch, rank, ranks):
        self.torch, self.dist = torch, torch.distributed
        self.rank, self.ranks = rank, ranks
        self.room = 0

    def reserve(self, count):
        if count > self.room:
            self.input, self.output = self.torch.empty(count), self.torch.empty(count)
            self.room = count

    def values(self, owner, count, salt, start=0):
        """What a rank gives: small whole numbers, so that sums are exact in any order."""
        index = self.torch.arange(start, start + count, dtype=self.torch.int64)
        return ((index * 2654435761) % 1048573 + owner * 389 + salt * 211).remainder_(1021).to(self.torch.float32)

    def fill(self, collective, count, salt):
        self.input[:count] = self.values(self.rank, count, salt)
        self.output[:count] = float("nan")
        if collective == "all_reduce" or (collective == "broadcast" and self.rank == 0):
            self.output[:count] = self.input[:count]

    def expected(self, collective, count, salt):
        block = count // self.ranks
        start = self.rank * block
        if collective == "all_reduce":
            return sum(self.values(owner, count, salt) for owner in range(self.ranks))
        if collective == "reduce_scatter":
            return sum(self.values(owner, block, salt, start) for owner in range(self.ranks))
        if collective == "broadcast":
            return self.values(0, count, salt)
        if collective == "sendrecv":
            return self.values(1 - self.rank, count if self.rank < 2 else 0, salt)
        start = start if collective == "alltoall" else 0
        return self.torch.cat([self.values(owner, block, salt, start) for owner in range(self.ranks)])

    def wrong(self, collective, count, salt):
        expected = self.expected(collective, count, salt)
        return int((self.output[: len(expected)] != expected).sum())

    def caller(self, collective, count):
        """One call, without arguments. The count is that of the largest buffer, as nccl-tests has it."""
        dist, block = self.dist, count // self.ranks
        whole_in, whole_out = self.input[:count], self.output[:count]
        if collective == "all_reduce":
            # In place is all that there is: over many calls it sums its own sums, so only the last, fresh one is checked.
            return lambda: dist.all_reduce(whole_out)
        if collective == "all_gather":
            return lambda: dist.all_gather_into_tensor(whole_out, whole_in[:block])
        if collective == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(whole_out[:block], whole_in)
        if collective == "broadcast":
            return lambda: dist.broadcast(whole_out, 0)
        if collective == "alltoall":
            return lambda: dist.all_to_all_single(whole_out, whole_in)
        if collective == "sendrecv":
            return [
                lambda: (dist.send(whole_in, 1), dist.recv(whole_out, 1)),
                lambda: (dist.recv(whole_out, 0), dist.send(whole_in, 0)),
            ][self.rank] if self.rank < 2 else lambda: None
        return None

    def measure(self, collective, size, warmup, batches, calls, salt):
        count = size // 4
        self.reserve(count)
        call = self.caller(collective, count)
        if call is None:
            return {"unsupported": "this program cannot do it"}
        self.fill(collective, count, salt)
        try:
            for _ in range(max(warmup, 1)):
                call()
            if collective != "sendrecv":
                self.dist.barrier()
        except (RuntimeError, NotImplementedError) as error:
            if "support" in str(error):
                return {"unsupported": str(error).splitlines()[0]}
            raise
        share = calls * (2 if collective == "sendrecv" else 1)
        times = []
        processor, began = processor_us(), time.perf_counter()
        last = began
        for _ in range(batches):
            for _ in range(calls):
                call()
            now = time.perf_counter()
            times.append((now - last) * 1e6 / share)
            last = now
        processor = processor_us() - processor
        bad = 0 if collective == "all_reduce" else self.wrong(collective, count, salt)
        # The next answer must not pass for the last one.
        self.fill(collective, count, salt + 1)
        call()
        bad += self.wrong(collective, count, salt + 1)
        times.sort()
        if size >= KEPT_BYTES:
            del self.input, self.output
            self.room = 0
        return {
            "median_us": times[len(times) // 2],
            "least_us": times[0],
            "mean_us": (last - began) * 1e6 / (share * batches),
            "processor_us": processor / (share * batches),
            "wrong": bad,
        }


def processor_us():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


def main():
    path, rank, ranks, meeting = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # Loading torch alone can take minutes on a busy machine.
    signal.alarm(3 * LIMIT_SECONDS)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="file://" + meeting,
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
    )
    runner = socket.socket(socket.AF_UNIX)
    runner.connect(path)
    lines = runner.makefile("rw")

    def say(answer):
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    me = Rank(torch, rank, ranks)
    say({"rank": rank, "ranks": ranks, "name": "Gloo (torch %s)" % torch.__version__.split("+")[0]})
    while True:
        signal.alarm(0)
        line = lines.readline()
        signal.alarm(LIMIT_SECONDS)
        words = line.split()
        if not words:
            os._exit(1)  # the runner is gone
        if words == ["quit"]:
            break
        try:
            say(me.measure(words[1], *(int(word) for word in words[2:])))
        except Exception as error:  # whatever it is, the runner has to hear of it
            say({"error": "%s: %s" % (type(error).__name__, str(error).splitlines()[0])})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
