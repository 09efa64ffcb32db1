"""A sweep on a Ray cluster: of this machine here, of yours where `ray.init` is told its address.

    pip install railnet ray
    python ray_sweep.py
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import railnet
import ray

INCAST = """
[fabric]
topology = { kind = "single-switch", hosts = 17 }
[[traffic]]
kind = "incast"
from = "0..15"
to = 16
bytes = "1MB"
"""


class RayExecutor(Executor):
    """What a sweep asks of an executor: Ray's tasks have futures, and no executor of their own."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        task: Future[Any] = ray.remote(function).remote(*arguments, **named).future()
        return task


def main() -> None:
    ray.init(num_cpus=2)
    values = {"nic.control": ["none", "dcqcn", "swift"], "fabric.link.rate": ["100Gbps", "400Gbps"]}
    for point in railnet.sweep(INCAST, values, executor=RayExecutor()):
        print(*point.values.values(), point.run.completion, f"{point.run.value['pauses']:,} pauses", sep="   ")
    ray.shutdown()


if __name__ == "__main__":
    main()
