"""The text of `status`: the daemon's report about itself.

Rules: everybody may read it, so it names no user's runs. Each guard logs a bug with its traceback, and no
other record has a traceback: that is how bugs are counted.
This file must never know how a part works.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

import msgspec

from cortexfs.core.models.usage import ToldLimit, UsageLimit
from cortexfs.core.safe_text import one_line
from cortexfs.daemon import deciding
from cortexfs.version import VERSION

if TYPE_CHECKING:
    from cortexfs.daemon.daemon import Daemon


class Bugs(logging.Handler):
    """A handler of our log that counts bugs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.met = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.met += bool(record.exc_info)


def _limit(limit: UsageLimit, currency: str) -> str:
    return msgspec.json.encode(ToldLimit(**msgspec.structs.asdict(limit), currency=currency)).decode()


def text(daemon: Daemon) -> str:
    """Returns the current status, one `key: value` line for each fact."""
    reload, logs = daemon.reload, daemon.logs
    counts = {class_: len(daemon.fs.tree.registry.names(class_)) for class_ in ("tool", "model", "agent")}
    unused = deciding.unused(daemon.config.directory, daemon.config.state)
    lines = [
        f"version: {VERSION}",
        f"uptime: {time.clock_gettime(time.CLOCK_BOOTTIME) - daemon.began_boottime:.0f} s",
        f"pid: {os.getpid()}",
        f"mount: {daemon.root}",
        f"state: {one_line(str(daemon.config.state))}",
        f"configuration: {one_line(str(daemon.config.directory))}",
        *(f"{class_}s: {count}" for class_, count in counts.items()),
        f"runs: {len(daemon.runs.active)} active, {daemon.runs.total} total",
        f"sessions: {len(daemon.conversations)} in memory",
        f"hosts: {len(daemon.pool)}",
        *daemon.middleware.status_lines(),
        f"engines: {len(daemon.engines)}",
        *(
            f"usage limit: {_limit(each, daemon.config.usage.currency)}"
            for each in daemon.config.usage.limits
        ),
        f"reloads: {reload.count}",
        *(["reloading: yes"] if reload.begun > reload.count else []),
        *([f"reload refused: {one_line(reload.refused)}"] if reload.refused else []),
        *(f"not used: {one_line(why)}" for why in unused),
        *(f"broken plugin: {name}: {one_line(why)}" for name, why in sorted(daemon.catalog.broken.items())),
        *(f"wrong tools: {name}: {one_line(why)}" for name, why in sorted(daemon.catalog.wrong.items())),
        *(f"taken names: {name}: {' '.join(names)}" for name, names in sorted(daemon.catalog.taken.items())),
        *(f"broken provider: {name}: {one_line(why)}" for name, why in reload.broken_providers.items()),
        *(f"broken agent: {name}: {one_line(why)}" for name, why in reload.broken_agents.items()),
        f"bugs met: {daemon.bugs.met}",
        f"last error: {one_line(logs.error or daemon.runs.last_error or logs.lost or 'none')}",
    ]
    return "\n".join(lines) + "\n"
