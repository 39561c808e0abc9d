"""Dry runs: which call is one, and whether a call may do without.

A tool that has opted in (`dry_run_flag`) takes --dry-run, and is told so by its invocation: it then says what
would happen and does nothing. If it declares `required_before_execute` too, it runs after a dry run with the
same input alone. A host belongs to one caller, and so does what it remembers; a new one knows nothing.

Rules: --dry-run stands before any `--`. A tool whose input has a property of that name keeps the word. Of any
other tool that has not opted in, the word is EINVAL before the tool is called, whatever its effects say.
This file must never know how a call arrives.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from cortexfs import sdk
from cortexfs.core.arguments import dryrun
from cortexfs.core.errors import Fault
from cortexfs.core.policy.confirming import REQUIRED, DryRuns
from cortexfs.tools.support.locked import locked

_encode = msgspec.json.Encoder(order="deterministic").encode


class HostDryRuns:
    """The dry runs that this host has made, each good for one call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = DryRuns()

    def admit(self, tool: sdk.Tool, input: Mapping[str, Any]) -> None:
        """Before a call that is none: EPERM where one has to come first."""
        is_required = any(effect.dry_run == REQUIRED for effect in tool.capabilities.effects)
        if not is_required or not dryrun.is_offered(tool.dry_run_flag, tool.input_schema):
            return
        tried = locked(self._lock, partial(self._ended.use, _key(tool, input), time.monotonic()))
        if not tried:
            mend = "give the same input and --dry-run, and see what it says"
            raise Fault("EPERM", f"{tool.name} must be run dry first: {mend}")

    def ended(self, tool: sdk.Tool, input: Mapping[str, Any], result: sdk.ToolResult) -> None:
        """After a dry run: one that failed has shown nothing."""
        if not result.is_error:
            locked(self._lock, partial(self._ended.add, _key(tool, input), time.monotonic()))


def parted(tool: sdk.Tool, schema: Mapping[str, Any], args: Sequence[bytes]) -> tuple[Sequence[bytes], bool]:
    """Returns the arguments without the word, and whether it asked for a dry run. Raises EINVAL where the
    tool has none."""
    if not dryrun.is_among(args) or dryrun.is_taken(schema):
        return args, False
    if not tool.dry_run_flag:
        raise Fault("EINVAL", dryrun.lacking(tool.name))
    return dryrun.without(args), True


def _key(tool: sdk.Tool, input: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(_encode([tool.name, input])).digest()
