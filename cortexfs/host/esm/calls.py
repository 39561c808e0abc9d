"""One request to an ESM plugin's process, and what the process says to it, until it has ended.

Rules: who waits may be another thread than who reads the process (host/process/pipe_reader.py); what is
over the limit is not kept, so that no call piles up more than OUTPUT_BYTES. A cancellation may come at any
time, from any thread.
This file must never know how lines travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cortexfs import sdk
from cortexfs.host.call.runtime import shielded
from cortexfs.host.process import persistent
from cortexfs.host.process.pipe_reader import Leading

OUTPUT_BYTES = 16 << 20  # of one call, in all its lines


class EsmMessage(msgspec.Struct, frozen=True):
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


class EsmError(Exception):
    """The plugin's code has thrown this."""


class EsmCall(persistent.ChildCall[EsmMessage]):
    """One request."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        super().__init__(
            OUTPUT_BYTES, f"it said over {OUTPUT_BYTES >> 20} MiB to one call", "timed out", nudge
        )

    def follow(self, runtime: sdk.ToolRuntime | None, until: float, leading: Leading) -> Any:
        while True:
            if runtime is not None and self.waits():
                with shielded(runtime):
                    leading.lead(self.waits, until)
            said = self.next(until)
            if runtime is not None and said.progress is not None:
                runtime.emit_progress(said.progress)
            if runtime is not None and said.delta is not None:
                runtime.emit(said.delta)
            if said.error is not None:
                raise EsmError(said.error)
            if said.is_last:
                return said.result
