"""The program `ctx`: find the command, run it, and turn every outcome into an exit status.

Rules: this is the one guard of the command line. Every failure becomes one sentence on stderr and a status of
abi.md 4.23; a traceback is shown only if CTX_DEBUG is set. Nothing here imports trio, pyfuse3 or msgspec. If
a command has the process to itself, its modules are not garbage collected, and not taken apart at the end.
That was a fifth of the time of a listing.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from cortexfs.cli import output, parser
from cortexfs.core.errors import EXIT_OK, Fault, code_of, exit_status

SIGNALLED = 128
_NOTHING = argparse.Namespace(version=False, help=False, root=None)  # no options of ctx itself
SIGINT, SIGPIPE = 2, 13


def main(line: Sequence[str] | None = None) -> int:
    """Run one command line and return its status. Without one, run that of this process, and exit."""
    if line is None:
        gc.disable()  # until all modules are loaded; parser.run enables it again
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the status of a child is lost
        _end(_run_guarded(sys.argv[1:]))
    return _run_guarded(line)


def _end(status: int) -> NoReturn:
    """End the process at once, or by sys.exit if there are threads to wait for."""
    if "threading" in sys.modules and sys.modules["threading"].active_count() > 1:
        sys.exit(status)
    atexit._run_exitfuncs()
    with suppress(OSError):  # stderr may be closed
        sys.stderr.flush()
    os._exit(status)


def _run_guarded(line: Sequence[str]) -> int:
    output.prepare()
    words = list(line)
    prefix = parser.program()
    try:
        try:
            own, rest = parser.split(words)
            rest = parser.canonical(rest)
            top = parser.top().parse_args(own) if own else _NOTHING
            if rest:
                prefix = f"{prefix} {rest[0]}"
            return _run(top, rest)
        finally:
            _flush()  # and not at exit, where a closed pipe could no longer be reported quietly
    except SystemExit as exit_:  # argparse, after printing help
        return int(exit_.code or EXIT_OK)
    except Fault as fault:
        _say(f"{prefix}: {fault.message}")
        return exit_status(fault.code)
    except KeyboardInterrupt:
        return SIGNALLED + SIGINT
    except BrokenPipeError:  # no reader is left
        return SIGNALLED + SIGPIPE
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        _say(f"{prefix}: {where}{problem.strerror or problem}")
        return exit_status(code_of(problem.errno))
    except UnicodeEncodeError as problem:  # Python has a byte of an argument that is not UTF-8 as a surrogate
        if not (wrong := next((word for word in words if _is_not_text(word)), None)):
            return _bug(prefix, problem)
        _say(f"{prefix}: the argument {wrong!r} is not UTF-8")
        return exit_status("EINVAL")
    except Exception as bug:  # a bug of ours: a sentence and a status, no traceback unasked
        return _bug(prefix, bug)


def _bug(prefix: str, bug: Exception) -> int:
    if os.environ.get("CTX_DEBUG"):
        raise bug
    _say(f"{prefix}: a bug in CortexFS: {type(bug).__name__}: {bug}; CTX_DEBUG=1 shows where")
    return exit_status("EPROTO")


def _is_not_text(word: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in word)


def _say(why: str) -> None:
    with suppress(BrokenPipeError):  # the status is told, even if nobody reads why
        output.say(why)


def _flush() -> None:
    """Write what is left. A failure names standard output; the flush at exit then cannot fail aloud."""
    try:
        sys.stdout.flush()
    except OSError as problem:
        problem.filename = "standard output"
        output.to_nowhere(sys.stdout)
        raise


def _run(top: argparse.Namespace, rest: list[str]) -> int:
    if top.version:
        rest = ["version"]
    if top.help or not rest:
        parser.print_top(top.root)
        return EXIT_OK
    command, *words = rest
    if not parser.is_ours(command):
        from cortexfs.cli import plugin_commands  # a slow import that only commands of plugins need

        return plugin_commands.run(command, words, top.root)
    if command in parser.HIDDEN:
        options = argparse.Namespace(root=top.root, words=words)
    else:
        command_parser = parser.of_command(command, words[0] if words else "")
        options = command_parser.parse_args(words, argparse.Namespace(root=top.root))
    return parser.run(command, options)


if __name__ == "__main__":
    sys.exit(main())
