"""The processes of an ESM plugin: which of them a call may have, and the wait until it is there.

This file must never know how a process is started.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host.esm import child

_LOOK_SECONDS = 0.1  # between two looks of who waits for a start, whether he is to leave


class ProcessPlace(NamedTuple):
    """The facts about a call that decide which process may have it."""

    directory: str
    umask: int


ANYWHERE = ProcessPlace("", 0o077)


def place_of(directory: str) -> ProcessPlace:
    umask = os.umask(0o077)  # of this thread alone
    os.umask(umask)
    return ProcessPlace(directory, umask)


class DenoChild:
    """A process, as soon as there is one."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._process: child.DenoProcess | None = None
        self._fault: Fault | None = None

    @property
    def is_open(self) -> bool:
        return not self._done.is_set() or (self._process is not None and self._process.is_open)

    def end(self, process: child.DenoProcess | None, fault: Fault | None) -> None:
        self._process, self._fault = process, fault
        self._done.set()

    def process(self, runtime: sdk.ToolRuntime | None) -> child.DenoProcess:
        while not self._done.wait(_LOOK_SECONDS):
            if runtime is not None and runtime.cancelled:
                raise sdk.ExecutionFailed("cancelled", "ECANCELED")
        if self._process is None:
            assert self._fault is not None
            raise Fault(self._fault.code, self._fault.message)
        return self._process
