"""Numbers that know their unit."""

from __future__ import annotations


class Time(float):
    """A span of time: a float of seconds, with `ns`, `us` and `ms` beside it.

    >>> Time(0.0025).ms
    2.5
    >>> Time(0.0025)
    2.50 ms
    """

    __slots__ = ()

    @classmethod
    def of_us(cls, microseconds: float) -> Time:
        """So many microseconds.

        >>> Time.of_us(1500.0)
        1.50 ms
        """
        return cls(microseconds * 1e-6)

    @property
    def s(self) -> float:
        return float(self)

    @property
    def ms(self) -> float:
        return float(self) * 1e3

    @property
    def us(self) -> float:
        return float(self) * 1e6

    @property
    def ns(self) -> float:
        return float(self) * 1e9

    def __repr__(self) -> str:
        seconds = float(self)
        for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(seconds) >= unit:
                return f"{_three_digits(seconds / unit)} {name}"
        return f"{_three_digits(seconds / 1e-9)} ns" if seconds else "0 s"

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return repr(self) if not form else format(float(self), form)

    def __reduce__(self) -> tuple[type[Time], tuple[float]]:
        return type(self), (float(self),)


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
