"""The report of a step that has queued its update: numbers that the update makes are waited for when they are read."""
from __future__ import annotations

import weakref
from typing import Any

from sherd.engine import Engine as Core, Report
from sherd.errors import SherdError, StateError


class Queued(Report):
    """Such a report. What is known before the update is there from the beginning, and `complete` adds the rest.

    Reading an attribute that is not there yet completes the report. It does not keep the engine alive.
    """

    __slots__ = ("_core", "_failure")

    def __init__(self, core: Core, **known: Any) -> None:
        super().__init__(**known)
        self._core: weakref.ref[Core] | None = weakref.ref(core)  # None: the report is complete, or the update has failed
        self._failure: SherdError | None = None

    @property
    def is_pending(self) -> bool:
        """Whether nobody has waited for the update yet. Local."""
        return self._core is not None

    def complete(self) -> None:
        """Waits for the update, at the first call, and adds its numbers. It has to come before the next boundary.

        Raises the failure of the update, again at each call, and StateError where the engine has ended.
        """
        if self._core is not None:
            core = self._core()
            if core is None or not core.is_open:
                raise StateError("the engine ended before this report of a step was complete: call engine.wait() before, or read it before")
            try:
                vars(self).update(vars(core.wait()))
            except SherdError as failure:
                self._failure = failure
            self._core = None
        if self._failure is not None:
            raise self._failure

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            self.complete()
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"the report of a step has no {name}")

    def __reduce__(self) -> Any:  # a copy, and what pickle writes, is complete
        self.complete()
        return Report, (), dict(vars(self))
