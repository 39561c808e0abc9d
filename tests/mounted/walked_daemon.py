"""A daemon whose calls of functions are written down: python walked_daemon.py ROOT STATE CONFIG

Prints "ready" when it serves. Then it hears lines: "begin" has it note each call and return of a function of
cortexfs on its main thread, "end" has it print them as JSON, [event, file, function] each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType

import trio

import cortexfs
from cortexfs import config as configuration
from cortexfs.daemon import daemon
from cortexfs.pool.starter_ends import begin
from cortexfs.state import directories, state_lock

PACKAGE = f"{Path(cortexfs.__file__).parent}/"
ROOT, STATE, CONFIG = map(Path, sys.argv[1:4])
seen: list[tuple[str, str, str]] = []


def note(frame: FrameType, event: str, argument: object) -> None:
    path = frame.f_code.co_filename
    if event in ("call", "return") and path.startswith(PACKAGE):
        seen.append((event, path.removeprefix(PACKAGE), frame.f_code.co_name))


async def hear() -> None:
    while word := (await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).strip():
        if word == "begin":
            seen.clear()
            sys.setprofile(note)
            print("begun", flush=True)
        else:
            sys.setprofile(None)
            print(json.dumps(seen), flush=True)


def ready(problem: str | None) -> None:
    if problem is None:
        trio.lowlevel.spawn_system_task(hear)
        print("ready", flush=True)
    elif problem:
        print(problem, file=sys.stderr, flush=True)


if __name__ == "__main__":
    configured = configuration.load(directories.Places(STATE, CONFIG))
    with state_lock.held(STATE):
        sys.exit(daemon.run(ROOT, configured, begin(ROOT, STATE, CONFIG), ready))
