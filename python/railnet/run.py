"""What came of a run."""

from __future__ import annotations

import html
import json
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from railnet import _railnet
from railnet.errors import RunError, UsageError
from railnet.quantity import Time
from railnet.table import Table

if TYPE_CHECKING:
    from railnet.question import Question

#: Packets that are kept for the page, as with the command.
RECORDED = 20_000


class Run:
    """The result of a simulation. It is plain data: it can be pickled, and outlives everything it came from.

    Numbers of time are `Time`, a float of seconds with `us` and `ms`; everything that the command writes with `--json` is in
    `value`, with units in its names. `print(run)` is the command's screen, a notebook shows the summary.
    """

    def __init__(self, question: Question, value: dict[str, Any], screen: str, is_interrupted: bool) -> None:
        self._question = question
        self._screen = screen
        self._answer: _railnet.Answer | None = None
        #: Everything, as `railnet sim --json` has it.
        self.value = value
        #: Whether Ctrl-C ended it: all there is was known by then.
        self.is_interrupted = is_interrupted

    @classmethod
    def _of(cls, question: Question, answer: _railnet.Answer) -> Run:
        run = cls(question, json.loads(answer.value), answer.screen, answer.is_interrupted)
        run._answer = answer if answer.is_recorded else None
        if answer.failure is not None:
            raise RunError(answer.failure, run)
        return run

    # What every run has.

    @property
    def digest(self) -> str:
        """Equal where all that happened was equal."""
        return str(self.value["digest"])

    @property
    def seed(self) -> int:
        return int(self.value["seed"])

    @property
    def is_partial(self) -> bool:
        """Whether it was stopped before its end."""
        return bool(self.value.get("partial", False))

    @property
    def fidelity(self) -> str:
        """"packet" or "analytic"."""
        return str(self.value.get("fidelity", "packet"))

    @property
    def wall_time(self) -> Time:
        """How long this computer took."""
        return Time(self.value["wall_s"])

    @property
    def without_effect(self) -> dict[str, str]:
        """Keys and variables that were set and did nothing in this run, and why."""
        return {one["key"]: one["why"] for one in self.value["without_effect"]}

    # Jobs.

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """What came of each training job; empty where the scenario has none."""
        return list(self.value.get("jobs", []))

    @property
    def job(self) -> dict[str, Any]:
        """The job that took longest."""
        if not self.jobs:
            raise UsageError("this run has no training job: a scenario with a [model] has one")
        return max(self.jobs, key=lambda job: job["total_us"])

    @property
    def step_time(self) -> Time:
        """How long the first step took."""
        return Time.of_us(self.job["step_us"])

    @property
    def total_time(self) -> Time:
        """How long all steps took, with what failures cost."""
        return Time.of_us(self.job["total_us"])

    @property
    def exposed(self) -> Time:
        """Communication that no computation hides, in a step of an average rank."""
        return Time.of_us(sum(self.job["average_us"]["exposed"].values()))

    @property
    def breakdown(self) -> dict[str, Time]:
        """Where the time of a step goes, of an average rank."""
        parts = dict(self.job["average_us"])
        exposed = parts.pop("exposed")
        times = {name: Time.of_us(us) for name, us in parts.items()}
        return {**times, **{f"waiting for {name} traffic": Time.of_us(us) for name, us in exposed.items()}}

    @property
    def critical_path(self) -> dict[str, Time]:
        """What the longest chain of a step consists of."""
        return {name: Time.of_us(us) for name, us in self.job["critical_path_us"].items()}

    @property
    def busy(self) -> float:
        """The part of a step in which GPUs compute, from 0 to 1."""
        return float(self.job["busy"])

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, from 0 to 1; None of a part of a step."""
        return _number(self.job["mfu"])

    @property
    def tokens_per_s(self) -> float | None:
        """None of a part of a step."""
        return _number(self.job["tokens_per_s"])

    # Traffic and collectives.

    @property
    def completion(self) -> Time:
        """When the last flow or call had ended, in virtual time; of jobs, when the last was over."""
        if self.jobs:
            return Time.of_us(max(job["completion_us"] for job in self.jobs))
        return Time.of_us(self.value["completion_us"])

    @property
    def flows(self) -> Table:
        """A row for each flow that finished."""
        if "flows" not in self.value:
            raise UsageError("flows are what [[traffic]] has: this run is of a job, see run.jobs and run.links")
        return Table.of_rows(self.value["flows"])

    @property
    def collectives(self) -> Table:
        """A row for each call of [[collective]]."""
        rows = self.value.get("collectives", [])
        return Table.of_rows(rows if isinstance(rows, list) else [])

    @property
    def links(self) -> Table:
        """A row for each direction of each link: bytes, utilisation, longest queue, marks, pauses, drops."""
        fabric = self.value.get("network", self.value)
        if "links" not in fabric:
            raise UsageError('formulas send no packets, so links have nothing to count: simulate(…, fidelity="packet")')
        return Table.of_rows(fabric["links"])

    def series(self, what: str) -> Table:
        """What happened over time: "queue", "throughput" or "paused" of links, "connections" for bits a second of each.

        The run has to be sampled: `simulate(…, sample="10us")`.
        """
        series = self.value.get("series")
        if series is None:
            raise UsageError('the run was not sampled: simulate(…, sample="10us")')
        if what == "connections":
            return _long(series["connections"], ("source", "target", "dscp"), "throughput_bps")
        first: dict[str, Any] = next(iter(series["links"]), {})
        known = {name.split("_")[0]: name for name in first if isinstance(first[name], list) and name != "time_us"}
        if first and what not in known:
            raise UsageError(f"there is no series {what!r}: there are {', '.join(known)} and connections")
        return _long(series["links"], ("from", "to"), known.get(what, what))

    # The page.

    def report(self, path: str | PathLike[str], force: bool = False) -> None:
        """Writes the page with this run in it: one file that opens in any browser. With another ending than `.html` it is the
        run file that `railnet view` shows. A run that was not recorded runs again for it: it comes to the same."""
        self._recorded().write(fspath(path), force)

    def _recorded(self) -> _railnet.Answer:
        if self._answer is None:
            if self.is_partial:
                raise UsageError("the run was stopped before its end, and cannot be repeated: simulate(…, record=True)")
            answer = _railnet.simulate(self._question.text(recorded=RECORDED))
            if answer.is_interrupted:
                raise KeyboardInterrupt
            digest = json.loads(answer.value)["digest"]
            if digest != self.digest:
                raise RunError(f"the run came to {digest} when it ran again for the page, not to {self.digest}", self)
            self._answer = answer
        return self._answer

    def __str__(self) -> str:
        return self._screen

    def __repr__(self) -> str:
        what = f"step {self.step_time}" if self.jobs else f"completion {self.completion}"
        partial = " partial" if self.is_partial else ""
        return f"<railnet.Run {self._question.name}:{partial} {what}, digest {self.digest}>"

    def _repr_html_(self) -> str:
        return _summary(self)

    def __getstate__(self) -> dict[str, Any]:
        # The recording is of Rust, and can be made again.
        return {**self.__dict__, "_answer": None}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _long(groups: list[dict[str, Any]], keys: tuple[str, ...], value: str) -> Table:
    """Series of many links as one table, a row for each sample."""
    columns: dict[str, list[Any]] = {name: [] for name in ("time_us", *keys, value)}
    for group in groups:
        columns["time_us"] += group["time_us"]
        columns[value] += group[value]
        for key in keys:
            columns[key] += [group[key]] * len(group["time_us"])
    return Table(columns)


#: Colours that people tell apart whatever their eyes are like (Okabe and Ito).
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#f0e442", "#e69f00", "#d55e00", "#cc79a7", "#999999")


def _summary(run: Run) -> str:
    """The summary for a notebook: what matters, where the time goes, and the whole screen behind a click."""
    if run.jobs:
        figures = [("step", run.step_time), ("exposed communication", run.exposed), ("GPUs busy", f"{run.busy:.0%}")]
    else:
        totals = run.value
        figures = [
            ("completion", run.completion),
            ("99 % of flows within", Time.of_us(totals["flow_us_p99"])),
            ("ECN marks", f"{totals['marks']:,}"),
            ("pauses", f"{totals['pauses']:,}"),
            ("drops", f"{totals['drops']:,}"),
        ]
    cells = "".join(
        f'<td style="text-align:left;padding-right:2em"><small>{name}</small><br><b>{html.escape(str(value))}</b></td>'
        for name, value in figures
    )
    notes = "".join(
        f"<p><b>Careful:</b> {html.escape(key)} has {html.escape(why)}</p>" for key, why in run.without_effect.items()
    )
    partial = "<p><b>Partial:</b> stopped before its end; this was known by then.</p>" if run.is_partial else ""
    return (
        f"<div><p>{html.escape(run._question.name)} · {run.fidelity} fidelity · seed {run.seed} · digest "
        f"<code>{run.digest}</code></p>{partial}{notes}<table><tr>{cells}</tr></table>{_bar(run)}"
        f"<details><summary>All of it</summary><pre>{html.escape(run._screen)}</pre></details></div>"
    )


def _bar(run: Run) -> str:
    if not run.jobs:
        return ""
    parts = {name: part for name, part in run.breakdown.items() if part > 0}
    whole = sum(parts.values())
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(parts)}
    bars = "".join(
        f'<div title="{name}: {part}" style="width:{100 * part / whole:.2f}%;background:{colours[name]}"></div>'
        for name, part in parts.items()
    )
    legend = " ".join(
        f'<span style="white-space:nowrap"><span style="color:{colours[name]}">■</span> {name} {part}</span>'
        for name, part in parts.items()
    )
    return f'<div style="display:flex;height:1.2em;max-width:60em">{bars}</div><p><small>{legend}</small></p>'
