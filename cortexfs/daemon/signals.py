"""Signals to the daemon: SIGTERM and SIGINT end it, SIGHUP has it read its configuration again, and SIGUSR1
has it write to its log what it is doing.

This file must never know what is ended or read.
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
    """Hear them until one ends the daemon."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1
    with trio.open_signal_receiver(*numbers) as received:
        # Threads show their stacks at once, also where the loop is stuck and the tasks never come.
        faulthandler.register(signal.SIGUSR1, chain=True)
        try:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    await reload()
                elif number == signal.SIGUSR1:
                    root = trio.lowlevel.current_root_task()
                    assert root is not None  # we are in one
                    log.warning("tasks:\n%s", "\n".join(tasks(root))[:MOST])
                else:
                    stop()
                    return
        finally:
            faulthandler.unregister(signal.SIGUSR1)


def tasks(task: trio.lowlevel.Task, indent: str = "") -> Iterator[str]:
    """Yields the tree of tasks, each with the lines that it waits in. No value of a variable is shown."""
    yield f"{indent}{task.name}"
    for frame, line in task.iter_await_frames():
        code = frame.f_code
        if "/trio/" not in code.co_filename:
            yield f"{indent}  | {code.co_filename}:{line} {code.co_name}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks(child, f"{indent}    ")
