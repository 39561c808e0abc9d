"""Signals to the daemon: SIGTERM and SIGINT end it, SIGHUP makes it read its configuration again, and SIGUSR1
makes it write its tasks and threads' stacks to its log.

This file must never know what ends or is read.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator

import trio

MOST = 256 << 10  # bytes of a report

log = logging.getLogger("cortexfs")


async def hear(
    stop: Callable[[], None],
    reload: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Handle the signals until one ends the daemon."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1
    with trio.open_signal_receiver(*numbers) as received:
        # Threads' stacks are written at once, even if the loop is stuck and never writes its tasks.
        faulthandler.register(signal.SIGUSR1, chain=True)
        try:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    await reload()
                elif number == signal.SIGUSR1:
                    root = trio.lowlevel.current_root_task()
                    assert root is not None  # this code runs in it
                    log.warning("tasks:\n%s", "\n".join(tasks(root))[:MOST])
                else:
                    stop()
                    return
        finally:
            faulthandler.unregister(signal.SIGUSR1)


def tasks(task: trio.lowlevel.Task, indent: str = "") -> Iterator[str]:
    """Yields the tree of tasks, each with the lines where it waits. No values of variables are shown."""
    yield f"{indent}{task.name}"
    for frame, line in task.iter_await_frames():
        code = frame.f_code
        if "/trio/" not in code.co_filename:
            yield f"{indent}  | {code.co_filename}:{line} {code.co_name}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks(child, f"{indent}    ")
