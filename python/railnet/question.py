"""A question to the simulator, as plain data that a worker elsewhere can answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Union

from railnet.errors import UsageError

#: A path, the name of a scenario that ships, the text of one, or its keys.
Scenario = Union[str, "PathLike[str]", Mapping[str, Any]]


@dataclass(frozen=True)
class Question:
    """What to simulate."""

    scenario: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario, changes: Mapping[str, Any] | None = None, **options: Any) -> Question:
        given = {name: value for name, value in options.items() if value is not None}
        return cls(_source(scenario), dict(changes or {}), given)

    @property
    def name(self) -> str:
        return str(self.scenario.get("path", "scenario"))

    def text(self, **more: Any) -> str:
        try:
            return json.dumps({**self.scenario, "changes": self.changes, **self.options, **more})
        except TypeError as error:
            raise UsageError(f"a value of the scenario cannot be written: {error}") from None


def _source(scenario: Scenario) -> dict[str, Any]:
    if isinstance(scenario, Mapping):
        return {"value": dict(scenario)}
    if not isinstance(scenario, (str, PathLike)):
        raise UsageError(f"a scenario is a path, a text or a dict, not {type(scenario).__name__}")
    text = fspath(scenario)
    # A path has no line of its own; a scenario in one line has at least an equals sign.
    is_text = isinstance(scenario, str) and ("\n" in text or "=" in text)
    return {"text": text} if is_text else {"path": text}
