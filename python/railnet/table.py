"""Rows of a run, by column."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import pandas
    import pyarrow

#: Rows that are shown of a long table.
SHOWN = 12


class Table:
    """Columns of equal length, which need no other library.

    >>> table = Table.of_rows([{"bytes": 8, "time_us": 1.5}, {"bytes": 16, "time_us": 2.5}])
    >>> table.columns
    ['bytes', 'time_us']
    >>> table["time_us"]
    [1.5, 2.5]
    >>> [row["bytes"] for row in table]
    [8, 16]
    """

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    @classmethod
    def of_rows(cls, rows: Sequence[dict[str, Any]]) -> Table:
        names = list(rows[0]) if rows else []
        return cls({name: [row[name] for row in rows] for name in names})

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, column: str) -> list[Any]:
        if column not in self._columns:
            raise KeyError(f"there is no column {column!r}: there are {', '.join(self._columns) or 'none'}")
        return self._columns[column]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = self.columns
        for values in zip(*self._columns.values()):
            yield dict(zip(names, values))

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns as lists."""
        return {name: list(values) for name, values in self._columns.items()}

    def to_numpy(self) -> dict[str, numpy.ndarray]:
        """The columns as arrays."""
        import numpy

        return {name: numpy.asarray(values) for name, values in self._columns.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame."""
        import pandas

        return pandas.DataFrame(self._columns)

    def to_arrow(self) -> pyarrow.Table:
        """A table of Arrow."""
        import pyarrow

        return pyarrow.table(self._columns)

    def __repr__(self) -> str:
        names = self.columns
        if not names:
            return "no rows"
        rows = [names] + [[_cell(row[name]) for name in names] for row in self._first()]
        widths = [max(len(row[place]) for row in rows) for place in range(len(names))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        return "\n".join(lines + [f"… {len(self):,} rows"] * (len(self) > SHOWN))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in self._first()
        )
        more = f"<p>… {len(self):,} rows</p>" if len(self) > SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _first(self) -> Iterator[dict[str, Any]]:
        for row, _ in zip(self, range(SHOWN)):
            yield row


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
