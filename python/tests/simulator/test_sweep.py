"""Many runs, here and on other workers."""

import os
import signal
from concurrent.futures import Executor, Future, ProcessPoolExecutor

import pytest
import railnet

KEYS = {"nic.control": ["dcqcn", "swift"], "fabric.link.rate": ["100Gbps", "200Gbps"]}


def test_a_sweep_has_every_combination_in_order(incast):
    points = list(railnet.sweep(incast, KEYS))
    assert [tuple(point.values.values()) for point in points] == [
        ("dcqcn", "100Gbps"),
        ("dcqcn", "200Gbps"),
        ("swift", "100Gbps"),
        ("swift", "200Gbps"),
    ]
    for point in points:
        assert point.run.digest == railnet.simulate(incast, point.values).digest


def test_processes_come_to_the_same(incast):
    here = [point.run.digest for point in railnet.sweep(incast, KEYS)]
    with ProcessPoolExecutor(2) as pool:
        assert [point.run.digest for point in railnet.sweep(incast, KEYS, executor=pool)] == here


def test_a_wrong_point_is_told_before_any_runs(incast):
    with pytest.raises(railnet.ScenarioError, match="dcqnc"):
        railnet.sweep(incast, {"nic.control": ["dcqcn", "dcqnc"]})
    with pytest.raises(railnet.UsageError, match="list of values"):
        railnet.sweep(incast, {"nic.control": "dcqcn"})


def test_a_point_that_fails_is_not_the_end_of_the_others(incast):
    points = list(railnet.sweep(incast, {"limit": ["20us", "1s"]}))
    assert isinstance(points[0].error, railnet.RunError) and points[0].run.is_partial
    assert points[1].error is None and not points[1].run.is_partial


def test_a_point_of_which_nothing_is_known_raises_why_where_its_run_is_asked_for():
    why = railnet.RunError("the run failed at once")
    with pytest.raises(railnet.RunError, match="at once"):
        railnet.Point({"seed": 1}, None, why).run


class Unlucky(Executor):
    """A cluster whose workers die at their first pieces of work."""

    def __init__(self, deaths):
        self.deaths, self.submitted = deaths, 0

    def submit(self, function, *arguments):
        self.submitted += 1
        future = Future()
        if self.submitted <= self.deaths:
            future.set_exception(OSError("the worker died"))
        else:
            future.set_result(function(*arguments))
        return future


def test_a_worker_that_dies_costs_a_retry(incast):
    unlucky = Unlucky(deaths=1)
    with pytest.warns(UserWarning, match="runs again"):
        points = list(railnet.sweep(incast, {"seed": [1, 2]}, executor=unlucky))
    assert unlucky.submitted == 3 and all(point.run for point in points)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_pool_that_breaks_leaves_its_points_to_this_process(incast):
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(Exception):
            pool.submit(die).result()
        points = list(railnet.sweep(incast, {"seed": [1, 2]}, executor=pool))
    assert [point.run.digest for point in points] == [
        railnet.simulate(incast, {"seed": seed}).digest for seed in (1, 2)
    ]


def test_dask_spreads_a_sweep(incast):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            points = list(railnet.sweep(incast, KEYS, executor=client.get_executor()))
    assert [point.run.digest for point in points] == [point.run.digest for point in railnet.sweep(incast, KEYS)]
