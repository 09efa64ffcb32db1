"""PyTorch's own tests of a backend, which its wheel brings, with Railnet as the backend: `python upstream.py [--ranks 4] [NAME ...]`.

Prints a line for each test: its outcome, and for a test that does not pass, why, and its outcome under Gloo. Tests that PyTorch runs for
Gloo or MPI only are run with Railnet in their place, but for the profiler's events, which are named after the backend. The exit status is 1
if a test fails that is not in the list of known failures below, or if a known failure passes.

Ranks are forked from one process that has imported PyTorch, where PyTorch spawns each: the imports would cost most of the time.
"""

import argparse
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

TIMED_OUT = "it asks for a text with “timed out”; Railnet says which ranks have not entered the barrier, and for how long"
#: Tests that fail, each with the reason.
KNOWN = {
    "test_barrier_timeout_full_group": TIMED_OUT,
    "test_barrier_timeout_global": TIMED_OUT,
    "test_barrier_timeout_group": TIMED_OUT,
    "test_monitored_barrier_failure_order": "it asks that only the first missing rank is named; here all of them are, on every rank",
    "test_monitored_barrier_gloo": "it asks that only rank 0 names the missing rank; here every rank does",
    "test_monitored_barrier_gloo_rank_0_timeout": "it asks for an error of a timeout of 0, which here is the group's own timeout",
}

#: Backends for CPUs, in whose place Railnet runs the tests that are for one of them only.
PLACES = {"mpi": re.compile(r"\bMPI\b"), "gloo": re.compile(r"(?i)\bgloo\b")}

#: Ranks that tests of which PyTorch says "small world size" need.
MANY = 8

#: PyTorch's test class, which processes that are forked share.
CASE = None


def build(ranks, backend, name=None):
    """PyTorch's test class. `name` is what its tests take the backend for."""
    os.environ.update(BACKEND=name or backend, WORLD_SIZE=str(ranks), TEMP_DIR=tempfile.gettempdir(), INIT_METHOD=f"file://{tempfile.gettempdir()}/railnet-upstream-{os.getpid()}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    from torch.testing._internal.common_distributed import DistTestCases

    if backend == "railnet":
        import railnet.torch  # noqa: F401

        for feature in ("ddp", "subgroup"):
            DistTestCases.backend_feature[feature].add("railnet")
    # It asks for the features when it is imported.
    from torch.testing._internal.distributed import distributed_test as upstream

    torch.set_num_threads(1)
    if name not in (None, backend):
        replace(name, backend)

    class TestBackend(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def _spawn_processes(self):
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    return TestBackend


def replace(name, backend):
    """Makes groups of one backend where a test asks for those of another."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test as upstream

    # Events that are named after a backend are not looked for.
    upstream.PROFILING_SUPPORTED_BACKENDS.clear()
    upstream.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

    def replaced(make):
        def call(*arguments, **options):
            if options.get("backend") == name:
                options["backend"] = backend
            return make(*arguments, **options)

        return call

    for make in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration"):
        setattr(dist, make, replaced(getattr(dist, make)))
    get_backend = dist.get_backend
    dist.get_backend = lambda *group: name if get_backend(*group) == backend else get_backend(*group)


def fork(case, name, limit):
    """Runs a test in a process group of its own: its outcome and why."""
    with tempfile.TemporaryFile("w+") as output:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                status = single(case, name)
            finally:
                os._exit(status)
        deadline, status = time.monotonic() + limit, None
        while time.monotonic() < deadline and status is None:
            pid, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
            time.sleep(0.02)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if status is None:
            os.waitpid(child, 0)
            return "failed", f"did not end within {limit} s"
        output.seek(0)
        return outcome(status, output.read())


def single(case, name):
    """Runs one test as unittest does, and gives the exit status."""
    import unittest

    # Folders for ranks to meet in, which the tests take from this variable.
    os.environ["TEMP_DIR"] = folder = tempfile.mkdtemp()
    os.mkdir(os.path.join(folder, "barrier"))
    try:
        case.setUpClass()
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=0).run(case(name))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if result.skipped:
        print("SKIPPED", result.skipped[0][1])
    sys.stdout.flush()
    return 0 if result.wasSuccessful() else 1


def outcome(status, text):
    """What came of a test that printed this. Its text is kept where UPSTREAM_OUTPUT says."""
    skipped = re.search(r"^SKIPPED (.*)", text, re.M)
    if skipped:
        return "skipped", skipped[1]
    if status == 0:
        return "passed", ""
    errors = [line for line in text.splitlines() if re.match(r"^(\w+\.)*\w*(Error|Exception)\b", line)]
    if os.environ.get("UPSTREAM_OUTPUT"):
        with open(os.environ["UPSTREAM_OUTPUT"], "a") as file:
            file.write(f"{'=' * 80}\n{text}\n")
    said = [line for line in errors if not line.startswith("RuntimeError: Process")] or errors
    return "failed", (said[0] if said else (text.strip() or "no output").splitlines()[-1])[:300]


def elsewhere(name, options, backend, ranks=None, place=None):
    """The outcome of a test in a Python of its own."""
    command = [sys.executable, __file__, "--single", name, "--backend", backend, "--ranks", str(ranks or options.ranks)]
    if place is not None:
        command += ["--as", place]
    try:
        # The limit is for the test, and PyTorch has to be imported before.
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit + 60, start_new_session=True)
    except subprocess.TimeoutExpired:
        return "failed", f"did not end within {options.limit + 60} s"
    return outcome(done.returncode, done.stdout + done.stderr)


def attempt(name, options):
    """A test's outcome with Railnet, the lines to print of it, and whether it is as expected."""
    state, why = fork(CASE, name, options.limit)
    ranks, place = options.ranks, None
    while state == "skipped" and options.backend == "railnet":
        other = next((other for other, text in PLACES.items() if text.search(why)), None)
        if other and place is None:
            place = other
        elif "small world size" in why and ranks < MANY:
            ranks = MANY
        else:
            break
        state, why = elsewhere(name, options, "railnet", ranks, place)
    where = [f"in the place of {place}"] * (place is not None) + [f"with {ranks} ranks"] * (ranks != options.ranks)
    why = "; ".join([*where, *([why] if why else [])])
    gloo = ""
    lines, expected = [f"{state:<8} {name}" + (f": {why}" if why else "")], True
    if state == "failed" and options.backend != "gloo":
        gloo, cause = elsewhere(name, options, "gloo", ranks)
        lines.append(f"         with Gloo: {gloo} {cause}".rstrip())
        if name in KNOWN:
            lines.append(f"         known: {KNOWN[name]}")
        expected = name in KNOWN or gloo == "failed"
    elif state == "passed" and name in KNOWN:
        lines.append("         it is in the list of known failures: take it out")
        expected = False
    return (name, why, gloo), state, lines, expected


def counted(results):
    return ", ".join(f"{len(tests)} {state}" for state, tests in results.items())


def page(results, options):
    """The outcome as a page of the documentation."""
    import torch

    lines = [
        "# PyTorch's own tests of a backend",
        "",
        f"`python/tests/torch/upstream.py --page docs/torch-upstream.md` makes this page: PyTorch {torch.__version__.split('+')[0]}, "
        f"{options.ranks} ranks, {counted(results)}.",
        "",
        "The tests are those of `torch.testing._internal.distributed.distributed_test`, which PyTorch's wheel brings, for CPUs: point to point,",
        "collectives, objects, subgroups, DistributedDataParallel, model averaging, monitored barriers. The files `test_c10d_*.py` of PyTorch's",
        "repository are not in the wheel. Tests that PyTorch runs for Gloo or MPI only are run with Railnet in their place, and those for more",
        f"ranks with {MANY}. Events of PyTorch's profiler that are named after a backend are not looked for: Railnet records none.",
        "",
        "## Failed",
        "",
        "| test | with Gloo | why it is no fault |",
        "| --- | --- | --- |",
        *(f"| `{name}` | {gloo} | {KNOWN.get(name, 'not known: ' + why)} |" for name, why, gloo in results["failed"]),
        "",
        "## Skipped",
        "",
        "| PyTorch's reason | tests |",
        "| --- | --- |",
    ]
    reasons = {}
    for name, why, _ in results["skipped"]:
        reason = re.sub(r"^(in the place of \w+|with \d+ ranks)(; (with \d+ ranks))?; ", "", why)
        reasons.setdefault(reason, []).append(f"`{name}`")
    lines += [f"| {reason} | {len(names)}: {', '.join(names)} |" for reason, names in sorted(reasons.items(), key=lambda one: -len(one[1]))]
    lines += ["", "## Passed", ""]
    places = {}
    for name, why, _ in results["passed"]:
        places.setdefault(why or f"with {options.ranks} ranks", []).append(f"`{name}`")
    lines += [f"- {place}, {len(names)}: {', '.join(names)}" for place, names in sorted(places.items(), key=lambda one: -len(one[1]))]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="tests, or parts of their names (all)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="railnet")
    parser.add_argument("--limit", type=int, default=180, help="seconds for a test")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--page", help="also write the outcome as a page in Markdown")
    parser.add_argument("--single", help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="place", help=argparse.SUPPRESS)
    options = parser.parse_args()
    global CASE
    CASE = build(options.ranks, options.backend, options.place)
    if options.single:
        os._exit(single(CASE, options.single))
    names = sorted(name for name in dir(CASE) if name.startswith("test_"))
    if options.names:
        names = [name for name in names if any(part in name for part in options.names)]
    results = {"passed": [], "skipped": [], "failed": []}
    wrong = []
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
        for test, state, lines, expected in pool.map(partial(attempt, options=options), names):
            results[state].append(test)
            if not expected:
                wrong.append(test[0])
            print("\n".join(lines), flush=True)
    print(counted(results))
    if options.page:
        with open(options.page, "w") as file:
            file.write(page(results, options))
    if wrong:
        print("not as expected:", ", ".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
