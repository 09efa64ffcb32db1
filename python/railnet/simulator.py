"""Ask the simulator."""

from __future__ import annotations

import html
import itertools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from railnet import _railnet
from railnet.errors import Error, RunError, ScenarioError, UsageError
from railnet.question import Question, Scenario
from railnet.run import RECORDED, Run

#: Seconds before a run is long enough to say how far it is.
PATIENCE = 1.0


def simulate(
    scenario: Scenario,
    changes: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    fidelity: str | None = None,
    sample: str | None = None,
    threads: int | None = None,
    memo: bool = True,
    record: bool = False,
    progress: bool | Callable[[float], bool | None] | None = None,
) -> Run:
    """Runs a scenario: a path, the name of one that ships, its text, or a dict of its keys.

    `changes` has other values for keys, with dots: `{"nic.control": "swift"}`. `sample="10us"` keeps series over time;
    `record=True` keeps what the page shows, so that `run.report()` need not run again. `progress` is a function that hears how
    far the run is (0 to 1) and may return False to stop it; without one a terminal or notebook shows a line.

    Ctrl-C stops the run and gives what there is, with a warning: `run.is_partial`.

    >>> run = simulate("[fabric]\\ntopology = { kind = 'single-switch', hosts = 4 }\\n"
    ...                "[[traffic]]\\nkind = 'incast'\\nfrom = '0..2'\\nto = 3\\nbytes = '1MB'", {"seed": 7})
    >>> run.completion.us > 240, len(run.flows)
    (True, 3)
    """
    recorded = RECORDED if record else None
    question = Question.of(
        scenario, changes, seed=seed, fidelity=fidelity, sample=sample, threads=threads, memo=memo, recorded=recorded
    )
    watch = _Progress(question.name) if progress is None or progress is True else progress or None
    try:
        run = answer(question, watch)
    finally:
        if isinstance(watch, _Progress):
            watch.clear()
    if run.is_interrupted:
        warnings.warn("stopped before its end: the result is what was known by then", stacklevel=2)
    return run


def answer(question: Question, watch: Callable[[float], bool | None] | None = None) -> Run:
    """Answers a question, here or on another machine: it and the answer can be pickled."""
    return Run._of(question, _railnet.simulate(question.text(), watch))


class _Progress:
    """A line that says how far a run is, where someone looks."""

    def __init__(self, name: str) -> None:
        self.name, self.began, self.shown = name, time.monotonic(), 0
        self.is_shown = sys.stderr.isatty() or "ipykernel" in sys.modules

    def __call__(self, part: float) -> None:
        passed = time.monotonic() - self.began
        if not self.is_shown or passed < PATIENCE:
            return
        left = f", about {passed / part * (1 - part):,.0f} s left" if part > 0.02 else ""
        line = f"{self.name}: {part:.0%}{left}"
        print(f"\r{line:<{self.shown}}", end="", file=sys.stderr, flush=True)
        self.shown = len(line)

    def clear(self) -> None:
        if self.shown:
            print(f"\r{'':<{self.shown}}\r", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Point:
    """A point of a sweep."""

    #: The value of each key.
    values: dict[str, Any]
    _run: Run | None
    #: Why it failed, if it did.
    error: Error | None = None

    @property
    def run(self) -> Run:
        """What came of it; of a point that failed, what was known by then. Raises `error` where that is nothing."""
        if self._run is None:
            raise self.error or Error("this point has no run")
        return self._run


def sweep(
    scenario: Scenario,
    values: Mapping[str, Sequence[Any]],
    *,
    executor: Executor | None = None,
    retries: int = 2,
    **options: Any,
) -> Iterator[Point]:
    """Runs a scenario once for each combination of values, the last key fastest, and gives the points in that order.

    All points are checked before the first runs. They run in threads of this process, one for each core (Rust needs no GIL), or
    where `executor` puts them: anything with `submit`, such as a `ProcessPoolExecutor` or Dask's `client.get_executor()`.
    A worker that dies costs its points a retry, `retries` at the most, then the point runs here. A run that fails is a point with
    `error`. `options` are those of `simulate`.

    >>> text = "[fabric]\\ntopology = { kind = 'single-switch', hosts = 4 }\\n[[traffic]]\\nkind = 'permutation'\\nbytes = '64KB'"
    >>> [point.values["seed"] for point in sweep(text, {"seed": [1, 2]})]
    [1, 2]
    """
    for key, some in values.items():
        if isinstance(some, str) or not isinstance(some, Sequence) or not some:
            raise UsageError(f"sweep: {key} has to have a list of values, not {some!r}")
    fixed = options.pop("changes", None) or {}
    if "progress" in options or "record" in options:
        raise UsageError("sweep: progress and record are for single runs: simulate(…)")
    questions = []
    for combination in itertools.product(*values.values()):
        point = dict(zip(values, combination))
        questions.append((point, Question.of(scenario, {**fixed, **point}, **options)))
    for _, question in questions:
        _railnet.check(question.text())
    return _points(questions, executor, retries)


def _points(
    questions: list[tuple[dict[str, Any], Question]], executor: Executor | None, retries: int
) -> Iterator[Point]:
    own = None
    if executor is None:
        executor = own = ThreadPoolExecutor(max_workers=min(len(questions), os.cpu_count() or 1))
    try:
        futures = [_submit(executor, question) for _, question in questions]
        for (point, question), future in zip(questions, futures):
            yield _point(point, question, future, executor, retries)
    finally:
        if own is not None:
            own.shutdown(wait=True, cancel_futures=True)


def _submit(executor: Executor, question: Question) -> Future[Run] | None:
    """None where the executor has broken: the point runs here."""
    try:
        # A run of a sweep has a thread: the points share the cores.
        return executor.submit(answer, Question(question.scenario, question.changes, {"threads": 1, **question.options}))
    except BrokenExecutor:
        return None


def _point(
    values: dict[str, Any], question: Question, future: Future[Run] | None, executor: Executor, retries: int
) -> Point:
    for left in range(retries, -1, -1):
        try:
            run = future.result() if future is not None and left else answer(question)
            return Point(values, run)
        except RunError as error:
            return Point(values, error.run, error)
        except Error as error:
            return Point(values, None, error)
        except Exception as error:  # Whatever the executor says when a worker dies.
            if not left:
                raise
            warnings.warn(f"the worker of {values} failed ({type(error).__name__}: {error}): it runs again", stacklevel=3)
            future = _submit(executor, question)
    raise AssertionError("the last try either returns or raises")


class Answer(Mapping[str, Any]):
    """The answer of a command: a mapping of what its `--json` has, also by attribute; `print()` is its screen.

    >>> answer = tune("allreduce", "64MiB", cluster="dgx-h100x8")
    >>> answer.ranks, answer["chosen"]["algorithm"] in ("Tree", "Ring", "NVLSTree")
    (64, True)
    """

    def __init__(self, command: _Command) -> None:
        self._command = command
        self.value: dict[str, Any] = json.loads(command.run("--json"))

    def __getitem__(self, name: str) -> Any:
        return self.value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__.get("value", {})
        if not name.startswith("_") and name in value:
            return value[name]
        raise AttributeError(f"the answer has no {name!r}: it has {', '.join(value)}")

    def __str__(self) -> str:
        return self._command.run()

    def __repr__(self) -> str:
        return f"<railnet.Answer {' '.join(self._command.words)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def plan(scenario: Scenario | None = None, **options: Any) -> Answer:
    """What a job needs of its network, what there is, and which layout is best. Options are those of `railnet plan`.

    >>> answer = plan(model="llama-3-70b", gpus=64)
    >>> answer.nodes, answer.step_us > 1e6
    (8, True)
    """
    if scenario is None:
        return Answer(_Command("plan", [], options))
    question = Question.of(scenario)
    text = _railnet.text(question.text())
    return Answer(_Command("plan", [question.name] if text is None else [], options, text))


def tune(collective: str, size: str | int | None = None, **options: Any) -> Answer:
    """Which algorithm and protocol NCCL would choose, and what the others would cost. Options are those of `railnet tune`."""
    words = [collective] if size is None else [collective, f"{size}B" if isinstance(size, int) else size]
    return Answer(_Command("tune", words, options))


class _Command:
    """A command with its words; `text` is a file for it that exists as long as it runs."""

    def __init__(self, name: str, words: list[str], options: Mapping[str, Any], text: str | None = None) -> None:
        self.words, self.text = [name, *words], text
        for option, value in options.items():
            flag = "--" + option.rstrip("_").replace("_", "-")
            if value is True:
                self.words.append(flag)
            elif value is not None and value is not False:
                self.words.append(f"{flag}={fspath(value) if isinstance(value, PathLike) else value}")

    def run(self, *more: str) -> str:
        if self.text is None:
            return _railnet.command([*self.words, *more])
        with tempfile.TemporaryDirectory(prefix="railnet-") as folder:
            path = os.path.join(folder, "scenario.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.text)
            try:
                return _railnet.command([*self.words, path, *more]).replace(path, "scenario")
            except ScenarioError as error:
                # Nobody gave a file: its name would only puzzle.
                message = str(error).replace(path, "scenario")
                place = (error.line, error.column, error.key, error.advice)
                raise ScenarioError(message, "scenario", *place) from None
