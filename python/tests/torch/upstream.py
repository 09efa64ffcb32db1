"""PyTorch's own tests of a backend, which its wheel brings, with Railnet as the backend: `python upstream.py [--ranks 3] [NAME ...]`.

Prints a line for each test: what came of it, and for what does not pass, why, and what Gloo makes of it. The exit status is 1 if a test
fails that is not in the list of known ones below, or if a known one passes.

Ranks are forked, where PyTorch starts each from nothing: otherwise most of the time would go into importing it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

#: Tests that fail, and why that is no fault.
KNOWN = {}


def build(ranks, backend):
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(ranks), TEMP_DIR=tempfile.mkdtemp(), INIT_METHOD="env")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    from torch.testing._internal.common_distributed import DistTestCases
    from torch.testing._internal.distributed import distributed_test as upstream

    if backend == "railnet":
        import railnet.torch  # noqa: F401

        for feature in ("ddp", "subgroup"):
            DistTestCases.backend_feature[feature].add("railnet")
    for name in ("barrier", "temp"):
        os.makedirs(os.path.join(os.environ["TEMP_DIR"], name), exist_ok=True)

    class TestBackend(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def _spawn_processes(self):
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    return TestBackend


def single(name, ranks, backend):
    """Runs one test in this process, as unittest does."""
    import unittest

    case = build(ranks, backend)
    result = unittest.TextTestRunner(verbosity=0).run(case(name))
    if result.skipped:
        print("SKIPPED", result.skipped[0][1])
    sys.exit(0 if result.wasSuccessful() else 1)


def attempt(name, ranks, backend, limit):
    words = [sys.executable, __file__, "--single", name, "--ranks", str(ranks), "--backend", backend]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, start_new_session=True)
    except subprocess.TimeoutExpired:
        return "failed", f"did not end within {limit} s"
    text = done.stdout + done.stderr
    skipped = re.search(r"^SKIPPED (.*)", done.stdout, re.M)
    if skipped:
        return "skipped", skipped[1]
    if done.returncode == 0:
        return "passed", ""
    errors = [line for line in text.splitlines() if re.match(r"^(\w+\.)*\w*(Error|Exception)\b", line)]
    return "failed", (errors[0] if errors else text.strip().splitlines()[-1] if text.strip() else "no output")[:300]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="tests, or parts of their names (all)")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--backend", default="railnet")
    parser.add_argument("--limit", type=int, default=180, help="seconds for a test")
    parser.add_argument("--single", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.single:
        single(options.single, options.ranks, options.backend)
    case = build(options.ranks, options.backend)
    names = sorted(name for name in dir(case) if name.startswith("test_"))
    if options.names:
        names = [name for name in names if any(part in name for part in options.names)]
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    wrong = []
    for name in names:
        state, why = attempt(name, options.ranks, options.backend, options.limit)
        counts[state] += 1
        line = f"{state:<8} {name}" + (f": {why}" if why else "")
        if state == "failed":
            gloo, gloo_why = attempt(name, options.ranks, "gloo", options.limit)
            line += f"\n         with Gloo: {gloo} {gloo_why}".rstrip()
            if name in KNOWN:
                line += f"\n         known: {KNOWN[name]}"
            elif gloo == "passed":
                wrong.append(name)
        elif state == "passed" and name in KNOWN:
            wrong.append(name)
            line += "\n         it is in the list of those that fail: take it out"
        print(line, flush=True)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
