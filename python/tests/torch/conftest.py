"""Ranks as forked processes: PyTorch is imported once, and a test takes a fraction of a second."""

import os
import pickle
import select
import signal
import time
import traceback

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install './python[torch]'")
dist = pytest.importorskip("torch.distributed")

import railnet.torch  # noqa: E402

#: The longest that a test may take, on a machine where others build.
LIMIT = 120.0


class Ranks:
    """What ranks returned, by number; an exception where they raised one."""

    def __init__(self, results):
        self.results = results

    def __iter__(self):
        return iter(self.results)

    def __getitem__(self, rank):
        return self.results[rank]


def run(count, body, tmp_path, backend="railnet", arguments=(), limit=LIMIT, wait_for=None):
    """Forks ranks, which make a group and call `body(rank, *arguments)`."""
    place = tmp_path / f"store-{time.monotonic_ns()}"
    pipes, children = [], []
    for rank in range(count):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(rank, count, body, f"file://{place}", backend, arguments, write)
        os.close(write)
        pipes.append(read)
        children.append(child)
    waited = range(count) if wait_for is None else wait_for
    try:
        texts = _read(pipes, waited, limit)
    finally:
        for child in children:
            for kind in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(child, kind)
                except ProcessLookupError:
                    pass
            os.waitpid(child, 0)
        for pipe in pipes:
            os.close(pipe)
    results = [pickle.loads(text) if text else None for text in texts]
    return Ranks(results)


def _child(rank, count, body, place, backend, arguments, write):
    torch.set_num_threads(1)
    try:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "PMI"))]:
            del os.environ[name]
        if backend is not None:
            dist.init_process_group(backend, init_method=place, rank=rank, world_size=count)
        result = body(rank, *arguments) if backend is not None else body(rank, place, *arguments)
        if backend is not None and dist.is_initialized():
            dist.destroy_process_group()
        answer = pickle.dumps(result)
    except BaseException as error:  # The parent raises it.
        answer = pickle.dumps(Failed(f"{type(error).__name__}: {error}", traceback.format_exc(), getattr(error, "ranks", [])))
    with os.fdopen(write, "wb") as pipe:
        pipe.write(answer)
    os._exit(0)


class Failed:
    """What a rank raised."""

    def __init__(self, text, trace, ranks):
        self.text, self.trace, self.ranks = text, trace, ranks

    def __repr__(self):
        return self.trace


def _read(pipes, waited, limit):
    texts = [b""] * len(pipes)
    open_pipes = {pipes[rank]: rank for rank in waited}
    deadline = time.monotonic() + limit
    while open_pipes:
        left = deadline - time.monotonic()
        ready, _, _ = select.select(list(open_pipes), [], [], max(left, 0))
        if not ready:
            pytest.fail(f"ranks {sorted(open_pipes.values())} did not end within {limit:.0f} s")
        for pipe in ready:
            part = os.read(pipe, 1 << 20)
            if part:
                texts[open_pipes[pipe]] += part
            else:
                del open_pipes[pipe]
    return texts


@pytest.fixture
def ranks(tmp_path):
    """`ranks(4, body)`: what each of four ranks returned; the test fails if one raised anything."""

    def call(count, body, *arguments, **options):
        results = run(count, body, tmp_path, arguments=arguments, **options)
        for rank, result in enumerate(results):
            if isinstance(result, Failed):
                pytest.fail(f"rank {rank}: {result.trace}")
        return results

    return call


@pytest.fixture
def failing(tmp_path):
    """The same, where ranks are expected to raise: `Failed` is among the results."""

    def call(count, body, *arguments, **options):
        return run(count, body, tmp_path, arguments=arguments, **options)

    return call
