"""Calls under way, as PyTorch waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from railnet import _railnet


#: Where PyTorch's C++ code forgets the Python object of a call that it is about to wait for (2.1 to 2.6, as far as tried), and would
#: wait forever on its own: the calls that were not waited for, until they are.
_kept: dict[int, Work] | None = {} if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15) else None
#: Beyond so many, those that have ended are let go.
KEPT = 256


class Work(dist.Work):
    """One or several operations under way. Results that need a copy get it when the wait is over, or before the future is set."""

    def __init__(
        self,
        operations: Sequence[_railnet.Operation],
        result: list[torch.Tensor],
        after: Sequence[Callable[[], Any]] = (),
        source: int = -1,
    ) -> None:
        super().__init__()
        self._operations = operations
        self._result = result
        self._after = after
        self._source = source
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._left = 0
        if _kept is not None:
            _keep(_kept, self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout if timeout is not None and timeout > timedelta(0) else None
        for operation in self._operations:
            operation.wait(limit)
        self._finish()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        try:
            return all(operation.is_done() for operation in self._operations)
        except RuntimeError:
            return True

    def is_success(self) -> bool:
        try:
            return all(operation.is_done() for operation in self._operations)
        except RuntimeError:
            return False

    def exception(self) -> Exception | None:
        try:
            for operation in self._operations:
                operation.is_done()
        except RuntimeError as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is not None:
                return self._future
            future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            self._future = future
            self._left = len(self._operations)
        self._when_ended(future)
        return future

    def _when_ended(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        for operation in self._operations:
            operation.on_end(self._ended)
        if not self._operations:
            self._settle(future)

    def _ended(self) -> None:
        """Called by a thread of the engine's, once for each operation."""
        with self._lock:
            self._left -= 1
            future = self._future
            if self._left or future is None:
                return
        self._settle(future)

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        try:
            self.wait()
        except Exception as error:
            # PyTorch's stub has the type of results here, where its text asks for an exception.
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(self._result)

    def _finish(self) -> None:
        with self._lock:
            after, self._after = self._after, ()
        for copy in after:
            copy()
        if _kept is not None:
            _kept.pop(id(self), None)


def _keep(kept: dict[int, Work], work: Work) -> None:
    if len(kept) >= KEPT:
        for key, old in list(kept.items()):
            if type(old) is Work and old.is_completed():
                kept.pop(key, None)
    kept[id(work)] = work


class FromAny(Work):
    """A receive from whichever rank sends first: which one that is, is settled by the wait."""

    def __init__(self, begin: Callable[[timedelta | None], Work], result: list[torch.Tensor]) -> None:
        super().__init__((), result)
        self._begin = begin
        self._work: Work | None = None
        self._failure: Exception | None = None
        #: Held by the thread that waits for a sender: a second one must not receive as well.
        self._begins = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout if timeout is not None and timeout > timedelta(0) else None
        with self._begins:
            if self._work is None:
                try:
                    self._work = self._begin(limit)
                except Exception as error:
                    self._failure = error
                    raise
                self._source = self._work._source
        done = self._work.wait(limit)
        self._finish()
        return done

    def is_completed(self) -> bool:
        return self._failure is not None or (self._work is not None and self._work.is_completed())

    def is_success(self) -> bool:
        return self._failure is None and self._work is not None and self._work.is_success()

    def exception(self) -> Exception | None:
        return self._failure or (self._work.exception() if self._work is not None else None)

    def _when_ended(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        # A thread of its own has to wait for the sender.
        try:
            threading.Thread(target=self._settle, args=(future,), name="railnet-recv", daemon=True).start()
        except RuntimeError as error:
            # PyTorch's stub, as above.
            future.set_exception(error)  # type: ignore[arg-type]
