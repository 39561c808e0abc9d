"""`ctx run`: become the object's runner, so that exit status, streams and signals are its own.

With --fail-on-denied, an agent's run is a child process, whose frames are read and printed as exec prints
them. Its standard input is ours. A Ctrl-C reaches the run too, and the run reports its end. Signals that
another process sends to end this program are passed on to it.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

from cortexfs.cli import mounts, objects, output
from cortexfs.cli.parser import FAIL_ON_DENIED, FAIL_ON_DENIED_FLAG, Command, arg
from cortexfs.core.errors import EXIT_FAILED, Fault

if TYPE_CHECKING:
    import subprocess

# By errno of execve(2) of an object: whose fault it is, and what to do.
FAULTS = {
    errno.ENOENT: ("EHOSTDOWN", "the runner that its first line names is not installed; see: ctx doctor"),
    errno.ENOTCONN: ("EHOSTDOWN", "its daemon is dead; see: ctx mount"),
    errno.EACCES: ("EACCES", "you may not execute it; its mode bits or its policy say so"),
    errno.ENOEXEC: ("EPROTO", "it is no program; see: ctx doctor"),
}
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_OUTPUT: dict[str, Any] = {"action": "store_const", "dest": "output"}  # of both options, the last one counts


def run(options: argparse.Namespace) -> int:
    is_path = options.runnable.startswith(("/", ".", "~"))  # a path names the mount
    form = output.form(options.output)
    root = "" if is_path else mounts.answering(options.root)
    path = objects.resolve(root, options.runnable)
    if is_path and not objects.is_object(path):
        raise objects.unrunnable(options.runnable)
    if _counts_denials(options, path):
        return _watch(path, options.words, options.output)
    try:
        become(path, [path, *options.words], **({"CTX_OUTPUT": form} if form else {}))
    except OSError as problem:
        code, why = FAULTS.get(problem.errno or 0, ("EIO", problem.strerror))
        named = options.runnable if is_path else objects.short(root, path)
        raise Fault(code, f"{named} cannot be run: {why}") from None


def _counts_denials(options: argparse.Namespace, path: str) -> bool:
    """Returns True if this process has to watch the run for denied calls; only agents have any."""
    is_counted = options.fail_on_denied or os.environ.get(FAIL_ON_DENIED) == "1"
    return is_counted and os.path.basename(os.path.dirname(os.path.realpath(path))) == "agent"


def _watch(path: str, words: list[str], chosen: str | None) -> int:
    """Run it. Returns the exit status, which is 13 if a call was denied."""
    import subprocess  # a plain run needs none of these modules

    from cortexfs.chat.calls import Show
    from cortexfs.chat.state import Talk
    from cortexfs.cli import talking
    from cortexfs.client import Failed, new_id
    from cortexfs.client.execution import Run

    print_frame, show = talking.printing(talking.output(chosen))
    talk, denials = Talk(os.path.basename(path), "", "private", new_id), talking.DeniedCalls(True)
    environ = {**os.environ, "CTX_OUTPUT": "jsonl"}
    process = subprocess.Popen([path, *words], stdout=subprocess.PIPE, env=environ, bufsize=0)
    before = {
        number: signal.signal(number, lambda number, _: process.send_signal(number)) for number in PASSED_ON
    }
    heard_of = _passing_on_interrupts(process)
    try:
        with Run(process, path) as run:
            for frame in run:
                denials.hear(frame)
                print_frame(frame)
                for deed in talk.hear(frame):
                    if isinstance(deed, Show):
                        show(deed)
    except Failed:
        if not run.status:  # else its runner has reported why it ended, as after a signal
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, heard_of)
    return denials.status(EXIT_FAILED if run.status is None else run.status)


def _passing_on_interrupts(process: subprocess.Popen[bytes]) -> set[int]:
    """Pass on each SIGINT that a process sends to this one alone. A terminal sends its own to the run, too.
    Returns the signals that were blocked before. If SIGINT is ignored here, the run ignores it, too."""
    import threading  # a slow import that a plain run does not need

    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))

    def pass_on() -> None:
        while True:
            if signal.sigwaitinfo((signal.SIGINT,)).si_code <= 0:  # of kill(2), and not of the kernel
                process.send_signal(signal.SIGINT)

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        threading.Thread(target=pass_on, daemon=True).start()
    return before


def become(path: str, words: list[str], **environ: str) -> NoReturn:
    """Call execve(2). First reset the signals that Python ignores, as for a program that a shell starts."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execve(path, words, os.environ | environ)
    finally:  # execve(2) failed: this program goes on
        for number, action in before.items():
            signal.signal(number, action)


COMMANDS = {
    "run": Command(
        run,
        (
            FAIL_ON_DENIED_FLAG,
            arg("runnable", "OBJECT", "fs.read, tool/fs.read, model/main, or a path"),
            arg("words", "ARGS", "passed on as they are", nargs=argparse.REMAINDER),
            arg("--text", None, "print text, also into a pipe (before OBJECT)", const="text", **_OUTPUT),
            arg(
                "--jsonl", None, "print frames, also at a terminal (before OBJECT)", const="jsonl", **_OUTPUT
            ),
        ),
        (
            "ctx run fs.read README.md",
            "ctx run tool/fs.read --path README.md",
            "echo hello | ctx run model/main",
            "ctx run --text fs.read README.md | wc -l",
            "ctx run fs.read --help",
        ),
    ),
}
