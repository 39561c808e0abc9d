"""`ctx doctor`: look at everything that CortexFS needs, and say how to mend what is missing.

Rules: a check is a function from `Subject` to one `Finding`; the tables in system_checks and
mount_checks are the list, and docs/commands.md repeats it. A check never raises, never hangs, never
mends anything, and blames one thing. What only matters to some is a warning, not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from cortexfs.cli import mounts, output, progress
from cortexfs.cli.daemons import places_of
from cortexfs.cli.mount import mount_checks, report, system_checks
from cortexfs.cli.mount.checks import FAIL, Check, Finding, Subject, fail
from cortexfs.cli.parser import JSON, PLACES, Command, arg
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, exit_status, os_faults

CHECKS: dict[str, Check] = {**system_checks.CHECKS, **mount_checks.CHECKS}


def run(options: argparse.Namespace) -> int:
    where = places_of(options)
    root = ""  # where no mount is meant, which is for a check to say
    with contextlib.suppress(Fault):
        root = mounts.root(options.root)
    subject = Subject(root, where, os.getuid())
    found = {}
    with progress.shown("checking") as now:
        for name, check in CHECKS.items():
            now(f"checking: {name}")
            found[name] = _checked(check, subject)
    if options.report:
        _write(options.report, report.text(subject, found))
    elif options.json:
        output.emit([{"check": name, **finding._asdict()} for name, finding in found.items()])
    else:
        output.table(("check", "result", "why"), [(name, one.level, one.told) for name, one in found.items()])
    if found["mount answers"].level == FAIL:
        return exit_status("EHOSTDOWN")
    return EXIT_FAILED if any(finding.level == FAIL for finding in found.values()) else EXIT_OK


def _write(path: str, text: str) -> None:
    """Never over a file that is there."""
    if path == "-":
        sys.stdout.write(text)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os_faults(f"{path} cannot be written"), open(os.open(path, flags, 0o600), "w") as file:
        file.write(text)
    output.say(f"wrote {path}; read it before you send it")


def _checked(check: Check, subject: Subject) -> Finding:
    try:
        return check(subject)
    except OSError as problem:
        return fail(f"it could not be checked: {problem}", "see the message")


COMMANDS = {
    "doctor": Command(
        run,
        (
            *PLACES,
            JSON,
            arg("--report", "FILE", "write all that a report of a fault needs; - prints it"),
        ),
        (
            "ctx doctor",
            "ctx doctor --json | jq '.[] | select(.level != \"ok\")'",
            "ctx doctor --report report.txt",
        ),
    ),
}
