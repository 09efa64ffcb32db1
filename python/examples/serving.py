"""An inference cluster coupled with Railnet's network: prefill here, decode there, and the KV cache through the fabric between.

Simulators of inference servers know when a GPU computes, and have no network of their own. This one is the smallest of that kind:
requests come, a prefill GPU works on each, its KV cache goes to a decode GPU, which makes tokens. The network says when the cache is
there: with many requests it is what they wait for.

    python serving.py
"""

import heapq
import random
from dataclasses import dataclass

import railnet

#: Hosts 0 to 3 prefill, hosts 4 to 7 decode; a rack switch for each four, and one link between the racks for every two hosts.
NETWORK = """
[fabric]
topology = { kind = "leaf-spine", leaves = 2, spines = 2, hosts_per_leaf = 4 }
link = { rate = "100Gbps", delay = "1us" }
"""
PREFILL, DECODE = range(0, 4), range(4, 8)
#: A model of 8 billion parameters: KV cache of a token (32 layers, 8 heads of 128, keys and values, bf16), and assumed speeds.
KV_BYTES = 32 * 8 * 128 * 2 * 2
PREFILL_S_PER_TOKEN, DECODE_S_PER_TOKEN = 20e-6, 8e-3


@dataclass
class Request:
    number: int
    arrival: float
    tokens: int
    new_tokens: int
    prefilled: float = 0.0
    moved: float = 0.0
    finished: float = 0.0


def serve(requests: list[Request], network: railnet.Network) -> None:
    """Runs all requests; an event is a time, and what to do then."""
    events: list[tuple[float, int, str]] = []
    moving: dict[int, Request] = {}
    free = {host: 0.0 for host in PREFILL}

    def at(time: float, what: str, request: Request) -> None:
        heapq.heappush(events, (time, request.number, what))

    by_number = {request.number: request for request in requests}
    for request in requests:
        at(request.arrival, "arrive", request)
    while events or moving:
        # The network may be the first to have news; nothing of ours happens before `until`.
        until = events[0][0] if events else None
        for ended in network.advance(until):
            request = moving.pop(ended.id)
            request.moved = ended.end
            at(ended.end + request.new_tokens * DECODE_S_PER_TOKEN, "finish", request)
        if not events or events[0][0] > network.now:
            continue
        time, number, what = heapq.heappop(events)
        request = by_number[number]
        if what == "arrive":
            host = min(free, key=lambda one: (max(free[one], time), one))
            free[host] = max(free[host], time) + request.tokens * PREFILL_S_PER_TOKEN
            request.prefilled = free[host]
            at(free[host], f"move {host}", request)
        elif what.startswith("move"):
            source, target = int(what.split()[1]), DECODE[number % len(DECODE)]
            moving[network.start(source, target, request.tokens * KV_BYTES, time)] = request
        else:
            request.finished = time


def requests(count: int, per_second: float, seed: int = 1) -> list[Request]:
    """Requests that come at random."""
    rng, time, made = random.Random(seed), 0.0, []
    for number in range(count):
        time += rng.expovariate(per_second)
        made.append(Request(number, time, tokens=rng.randrange(500, 8000), new_tokens=rng.randrange(20, 200)))
    return made


def mean(times: list[float]) -> railnet.Time:
    return railnet.Time(sum(times) / len(times))


def main(count: int = 60) -> None:
    print("requests/s   prefill   KV transfer   longest transfer   decode   (means)")
    for per_second in (10, 40, 80):
        served, network = requests(count, per_second), railnet.Network(NETWORK)
        serve(served, network)
        moves = [one.moved - one.prefilled for one in served]
        print(
            f"{per_second:>10}   {mean([one.prefilled - one.arrival for one in served])!s:>7}   {mean(moves)!s:>11}   "
            f"{railnet.Time(max(moves))!s:>16}   {mean([one.finished - one.moved for one in served])!s:>6}"
        )


if __name__ == "__main__":
    main()
