"""Dry runs: how a call asks for a dry run, and when a tool requires one.

A tool that has opted in (`dry_run_flag`) takes --dry-run, and sees it in its invocation: it then describes
its effect and has none. If it also declares `required_before_execute`, it runs only after a dry run with the
same input. Dry runs belong to a host, and so to one caller; a new host has none.

Rules: --dry-run stands before any `--`. If a tool's input has a property of that name, the option sets it.
For any other tool without the flag, --dry-run is EINVAL before the call, whatever its effects are.
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
    """The dry runs of this host, each good for one call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = DryRuns()

    def admit(self, tool: sdk.Tool, input: Mapping[str, Any]) -> None:
        """Called before a call that is no dry run. Raises EPERM if a dry run has to come first."""
        is_required = any(effect.dry_run == REQUIRED for effect in tool.capabilities.effects)
        if not is_required or not dryrun.is_offered(tool.dry_run_flag, tool.input_schema):
            return
        was_tried = locked(self._lock, partial(self._ended.use, _key(tool, input), time.monotonic()))
        if not was_tried:
            mend = "call it with the same input and --dry-run, and read its answer"
            raise Fault("EPERM", f"{tool.name} needs a dry run first: {mend}")

    def ended(self, tool: sdk.Tool, input: Mapping[str, Any], result: sdk.ToolResult) -> None:
        """Called after a dry run. A failed one has shown nothing, so it does not count."""
        if not result.is_error:
            locked(self._lock, partial(self._ended.add, _key(tool, input), time.monotonic()))


def parted(tool: sdk.Tool, schema: Mapping[str, Any], args: Sequence[bytes]) -> tuple[Sequence[bytes], bool]:
    """Returns the arguments without --dry-run, and True if it was among them. Raises EINVAL if the tool takes
    none."""
    if not dryrun.is_among(args) or dryrun.is_taken(schema):
        return args, False
    if not tool.dry_run_flag:
        raise Fault("EINVAL", dryrun.lacking(tool.name))
    return dryrun.without(args), True


def _key(tool: sdk.Tool, input: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(_encode([tool.name, input])).digest()
