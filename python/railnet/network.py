"""A network for other simulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from railnet import _railnet
from railnet.quantity import Time
from railnet.question import Question, Scenario


class Transfer(NamedTuple):
    """A transfer that has ended."""

    id: int
    src: int
    dst: int
    bytes: int
    start: Time
    end: Time


class Network:
    """A fabric, packet by packet, in which transfers start while it runs: for simulators that have no network of their own.

    They say which transfer starts when, advance time, and learn which ended. Traffic of the scenario runs beside theirs.

    >>> network = Network("[fabric]\\ntopology = { kind = 'single-switch', hosts = 4 }")
    >>> first = network.start(src=0, dst=1, bytes=1 << 20, at=0.0)
    >>> [ended.id == first for ended in network.advance()]
    [True]
    >>> second = network.start(src=1, dst=2, bytes=1 << 20)     # at once: now is when the first ended
    >>> [ended.start > 0 for ended in network.advance(until=1.0)]
    [True]
    """

    def __init__(
        self, scenario: Scenario, changes: Mapping[str, Any] | None = None, *, seed: int | None = None
    ) -> None:
        self._inner = _railnet.Network(Question.of(scenario, changes, seed=seed).text())

    @property
    def hosts(self) -> int:
        """Senders and receivers, numbered from 0: hosts of the fabric, or GPUs where the scenario has servers."""
        return self._inner.hosts

    @property
    def now(self) -> Time:
        """The present, in virtual time."""
        return Time(self._inner.now)

    @property
    def in_flight(self) -> int:
        """Transfers that have not ended, those not yet started included."""
        return self._inner.unfinished

    @property
    def events(self) -> int:
        """Events handled so far."""
        return self._inner.events

    def start(self, src: int, dst: int, bytes: int, at: float | None = None) -> int:
        """Has a transfer start at `at` seconds of virtual time, or now. Returns its number."""
        return self._inner.start(src, dst, bytes, at)

    def advance(self, until: float | None = None) -> list[Transfer]:
        """Goes on to the moment at which the next transfers end and returns them, or to `until` seconds if that comes first.

        An empty list says that `until` has come, or that nothing is under way.
        """
        ended = self._inner.advance(until)
        return [
            Transfer(number, src, dst, size, Time(start), Time(end)) for number, src, dst, size, start, end in ended
        ]
