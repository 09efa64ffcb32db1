"""What goes wrong, as exceptions that say where and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from railnet.run import Run


class Error(Exception):
    """Every failure of Railnet."""


class UsageError(Error, ValueError):
    """The question is wrong: nothing ran."""


class ScenarioError(UsageError):
    """The scenario is wrong. `str()` shows the line with a mark under it, as the command does."""

    def __init__(
        self,
        message: str,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        key: str = "",
        advice: list[str] | None = None,
    ) -> None:
        super().__init__(message)
        #: The file that it is about; "scenario" where it was no file.
        self.file = file
        #: The line and the letter in it, both counted from 1; None where it is about no line in particular.
        self.line = line
        self.column = column
        #: The key, such as "fabric.link.rate"; empty where it is about none in particular.
        self.key = key
        #: What would be right, as far as that is known.
        self.advice = advice or []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.file, self.line, self.column, self.key, self.advice)


class RunError(Error, RuntimeError):
    """The run failed. `run` has what was known by then."""

    def __init__(self, message: str, run: Run | None = None) -> None:
        super().__init__(message)
        self.run = run

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.run)
