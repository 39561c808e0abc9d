"""An agent's run as a child process, for `ctx run --fail-on-denied`, which has to read the frames of the run.

Rules: standard input is the run's own, and its frames are printed as exec prints them. A Ctrl-C reaches the
run too, and the run reports its end. Other signals that end this program are passed on to it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess

from cortexfs.chat.calls import Show
from cortexfs.chat.state import Talk
from cortexfs.cli import talking
from cortexfs.client import Failed, new_id
from cortexfs.client.execution import Run
from cortexfs.core.errors import EXIT_FAILED

PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def watch(path: str, words: list[str], output: str | None) -> int:
    """Run it. Returns the exit status, which is 13 if a call was denied."""
    name = os.path.basename(path)
    heard, show = talking.printing(talking.output(argparse.Namespace(output=output)))
    talk, denials = Talk(name, "", "private", new_id), talking.DeniedCalls(True)
    environ = {**os.environ, "CTX_OUTPUT": "jsonl"}
    process = subprocess.Popen([path, *words], stdout=subprocess.PIPE, env=environ, bufsize=0)
    before = {
        number: signal.signal(number, lambda number, _: process.send_signal(number)) for number in PASSED_ON
    }
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Run(process, path) as run:
            for frame in run:
                denials.hear(frame)
                heard(frame)
                for deed in talk.hear(frame):
                    if isinstance(deed, Show):
                        show(deed)
    except Failed:
        if not run.status:  # else its runner has reported why it ended, as after a signal
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return denials.status(EXIT_FAILED if run.status is None else run.status)
