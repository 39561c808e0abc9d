"""One request to an ESM plugin's process, and what the process says to it, until it has ended.

Rules: who waits may be another thread than who reads the process (leading.py); what is over the limit is not
kept, so that no call piles up more than OUTPUT_BYTES. A cancellation may come at any time, from any thread.
This file must never know how lines travel.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host.leading import Leading
from cortexfs.host.runtime import shielded

OUTPUT_BYTES = 16 << 20  # of one call, in all its lines


class Said(msgspec.Struct, frozen=True):
    id: int = 0
    result: Any = msgspec.UNSET
    error: str | None = None
    delta: str | None = None
    progress: str | None = None
    ack: int = 0
    ask: int = 0
    what: str = ""
    args: tuple[Any, ...] = ()
    fatal: str | None = None

    @property
    def is_last(self) -> bool:
        return self.result is not msgspec.UNSET or self.error is not None


class Failed(Exception):
    """What the plugin's code has thrown."""


class _Cancelled(NamedTuple):
    pass


_Item: TypeAlias = Said | Fault | _Cancelled


class Call:
    """One request, and what was said to it that was not yet passed on."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self._nudge = nudge
        self.id = 0
        self.is_sent = False
        self.ended = False
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._heard = 0

    def cancel(self) -> None:
        """Called from another thread, at any time."""
        self._items.put(_Cancelled())
        self._nudge()

    def waits(self) -> bool:
        return self._items.empty()

    def put(self, item: Said | Fault, size: int = 0) -> None:
        """From the process's thread. What is over the limit is not kept."""
        if self._heard > OUTPUT_BYTES:
            return
        self._heard += size
        if self._heard > OUTPUT_BYTES:
            item = Fault("EIO", f"it said over {OUTPUT_BYTES >> 20} MiB to one call")
        self._items.put(item)

    def follow(self, runtime: sdk.ToolRuntime | None, until: float, leading: Leading) -> Any:
        while True:
            if runtime is not None and self.waits():
                with shielded(runtime):
                    leading.lead(self.waits, until)
            said = self._next(until)
            if runtime is not None and said.progress is not None:
                runtime.emit_progress(said.progress)
            if runtime is not None and said.delta is not None:
                runtime.emit(said.delta)
            if said.error is not None:
                raise Failed(said.error)
            if said.is_last:
                return said.result

    def _next(self, until: float) -> Said:
        try:
            item = self._items.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise sdk.ExecutionFailed("timed out", "ETIMEDOUT") from None
        if isinstance(item, Fault):
            raise item
        if isinstance(item, _Cancelled):
            raise sdk.ExecutionFailed("cancelled", "ECANCELED")
        return item
