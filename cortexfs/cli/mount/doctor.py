"""`ctx doctor`: look at everything that CortexFS needs, and say how to mend what is missing.

Rules: a check is a function from `Subject` to one `Finding`; the tables in system_checks and
mount_checks are the list, and docs/commands.md repeats it. A check never raises, never hangs, never
mends anything, and blames one thing. What only matters to some is a warning, not a failure.
"""

from __future__ import annotations

import argparse
import os
import sys

from cortexfs.cli import mounts, output, parser
from cortexfs.cli.mount import mount_checks, report, system_checks
from cortexfs.cli.mount.checks import FAIL, Check, Finding, Subject, fail
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, code_of, exit_status
from cortexfs.state.directories import places

CHECKS: dict[str, Check] = {**system_checks.CHECKS, **mount_checks.CHECKS}


def declare(into: parser.CommandParser) -> None:
    parser.places_options(into)
    parser.json_option(into)
    into.add_argument(
        "--report", metavar="FILE", help="write all that a report of a fault needs; - prints it"
    )
    parser.examples(
        into,
        "ctx doctor",
        "ctx doctor --json | jq '.[] | select(.level != \"ok\")'",
        "ctx doctor --report report.txt",
    )


def run(options: argparse.Namespace) -> int:
    where = places(os.environ, os.getuid(), state=options.state, config=options.config)
    subject = Subject(_root(options.root), where, os.getuid())
    found = {name: _checked(check, subject) for name, check in CHECKS.items()}
    if options.report:
        _write(options.report, report.text(subject, found))
    elif options.json:
        output.emit([{"check": name, **finding._asdict()} for name, finding in found.items()])
    else:
        cells = [
            (name, one.level, f"{one.why}{f'; {one.mend}' if one.mend else ''}")
            for name, one in found.items()
        ]
        output.table(("check", "result", "why"), cells)
    return _status(found)


def _write(path: str, text: str) -> None:
    """Never over a file that is there."""
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{path} cannot be written: {problem.strerror}") from None
    output.say(f"wrote {path}; read it before you send it")


def _root(given: str | None) -> str:
    """The mount that is meant; nothing where none is, which is for a check to say."""
    try:
        return mounts.root(given)
    except Fault:
        return ""


def _checked(check: Check, subject: Subject) -> Finding:
    try:
        return check(subject)
    except OSError as problem:
        return fail(f"it could not be checked: {problem}", "see the message")


def _status(found: dict[str, Finding]) -> int:
    """0 when nothing failed; 69 when the mount does not answer; 1 for any other failure."""
    if found["mount answers"].level == FAIL:
        return exit_status("EHOSTDOWN")
    return EXIT_FAILED if any(finding.level == FAIL for finding in found.values()) else EXIT_OK
