"""A sweep on a Dask cluster. Here it is two processes of this machine; with `Client("scheduler:8786")` it is yours.

    pip install "railnet[tables]" distributed
    python dask_sweep.py
"""

import railnet
from distributed import Client, LocalCluster

INCAST = """
[fabric]
topology = { kind = "single-switch", hosts = 17 }
[[traffic]]
kind = "incast"
from = "0..15"
to = 16
bytes = "1MB"
"""


def main() -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        values = {"nic.control": ["none", "dcqcn", "swift"], "fabric.link.rate": ["100Gbps", "400Gbps"]}
        for point in railnet.sweep(INCAST, values, executor=client.get_executor()):
            print(*point.values.values(), point.run.completion, f"{point.run.value['pauses']:,} pauses", sep="   ")


if __name__ == "__main__":
    main()
