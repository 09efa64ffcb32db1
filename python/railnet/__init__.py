"""Railnet: the AI training network in software.

Ask the simulator from Python, or run `torch.distributed` over its engine (`import railnet.torch`).

>>> import railnet
>>> railnet.simulate("scenarios/llama-70b.toml").step_time        # doctest: +SKIP
"""

from railnet._railnet import VERSION as __version__
from railnet.errors import Error, RunError, ScenarioError, UsageError
from railnet.network import Network, Transfer
from railnet.quantity import Time
from railnet.run import Run
from railnet.simulator import Answer, Point, plan, simulate, sweep, tune
from railnet.table import Table

__all__ = [
    "Answer",
    "Error",
    "Network",
    "Point",
    "Run",
    "RunError",
    "ScenarioError",
    "Table",
    "Time",
    "Transfer",
    "UsageError",
    "__version__",
    "plan",
    "simulate",
    "sweep",
    "tune",
]
