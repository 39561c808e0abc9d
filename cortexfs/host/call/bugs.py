"""The line in a plugin's own files from which an unexpected exception comes, for the plugin's author.

Rules: a caller gets the file and the line (abi.md 4.62). The traceback goes to the daemon's log, as all
prints of a plugin. An exception may be of any class, and any of its methods may fail.
This file must never know what becomes of the call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType

from cortexfs.core import hostcalls
from cortexfs.core.safe_text import PAST

_PYTHON = "python"


def log_bug(plugin: hostcalls.Plugin, error: BaseException) -> str:
    """Log the traceback. Returns the end of the error's sentence: the innermost line of the plugin's own."""
    with contextlib.suppress(Exception):
        folder, files = _own(plugin)
        steps = list(_steps(error.__traceback__))
        own = [step for step in steps if step.tb_frame.f_code.co_filename.startswith(files)]
        if own:
            lines = traceback.format_exception(type(error), error, own[0])
            print(f"{plugin.name}: {''.join(lines)}{PAST}", end="", file=sys.stderr)
            where = os.path.relpath(own[-1].tb_frame.f_code.co_filename, folder)
            # A SyntaxError names file and line itself.
            return "" if isinstance(error, SyntaxError) else f" ({where}, line {own[-1].tb_lineno})"
    return ""


def _steps(trace: TracebackType | None) -> Iterable[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _own(plugin: hostcalls.Plugin) -> tuple[str, tuple[str, ...]]:
    """Returns the folder to which the files' names are relative, and the beginnings of their paths; both
    empty if the plugin is of another kind or ours."""
    top = plugin.target.partition(":")[0].partition(".")[0]
    if plugin.kind != _PYTHON or top == __package__.partition(".")[0]:
        return "", ()
    if plugin.path:
        return plugin.path, (f"{plugin.path}/",)
    spec = importlib.util.find_spec(top)
    if spec is None:
        return "", ()
    if places := [*(spec.submodule_search_locations or ())]:
        return os.path.dirname(places[0]), tuple(f"{place}/" for place in places)
    return os.path.dirname(spec.origin or ""), (spec.origin or "/",)
