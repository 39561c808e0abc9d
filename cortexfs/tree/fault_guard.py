"""The one guard around every handler that can fail: any exception but FUSEError would end the mount for all.

Rules: a Fault becomes its errno; a bug becomes EIO for whoever met it and a line in the log, which is
counted (daemon/status.py), and is raised only where tests want to see it.
This file must never know what a handler does.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyfuse3 import FUSEError

from cortexfs.core.errors import Fault, errno_of

log = logging.getLogger("cortexfs.tree.fuse")


class StrictMode(Protocol):
    strict: bool


S = TypeVar("S", bound=StrictMode)
P = ParamSpec("P")
T = TypeVar("T")


def guarded(
    handler: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    @functools.wraps(handler)
    async def guard(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(self, *args, **kwargs)
        except FUSEError:
            raise
        except Fault as fault:
            raise FUSEError(fault.errno) from None
        except Exception:  # pyfuse3 would unmount; whoever asked gets EIO, the log the traceback
            log.exception("%s failed; please report this", handler.__name__)
            if self.strict:
                raise
            raise FUSEError(errno_of("EIO")) from None

    return guard
