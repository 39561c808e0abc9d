"""`ctx doctor`: check everything that CortexFS needs, and say how to mend what is missing.

Rules: the table in checks.py is the list, and docs/commands.md repeats it. A check never raises, never hangs,
never mends anything, and blames one thing. A fault that matters only to some users is a warning, not a
failure. A report has all that a report of a fault needs, and no secret: it names settings, providers,
servers, plugins and variables, and never has a value. If one part cannot be read, it says so, and the others
are there. A report is text, as its sender reads it first.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cortexfs.cli import mounts, output, progress
from cortexfs.cli.daemons import places_of
from cortexfs.cli.mount.checks import CHECKS
from cortexfs.cli.mount.mount_checks import FAIL, OK, Check, Finding, Subject, fail
from cortexfs.cli.parser import JSON, PLACES, Command, arg, flag
from cortexfs.config import FILE
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, exit_status, os_faults
from cortexfs.core.mountinfo import FSTYPE, TABLE
from cortexfs.core.safe_text import within
from cortexfs.core.wire import PROTOCOL
from cortexfs.state import no_links
from cortexfs.version import VERSION

MAX_LOG = 64 << 10  # bytes of its end
FOLDERS = ("providers", "mcp")  # folders of the configuration; their files are named
# Our own log never has such text. A plugin's name may, or a plugin's message about its failure.
_HIDDEN = re.compile(r"(?<=://)[^/\s@]+(?=@)|\b(?:sk|pk|key|ghp|gho|xox[abp]|AIza)[-_]?[\w-]{16,}")


def run(options: argparse.Namespace) -> int:
    where = places_of(options)
    root = ""  # no mount is meant; a check reports that
    with contextlib.suppress(Fault):
        root = mounts.root(options.root)
    subject = Subject(root, where, os.getuid())
    found = {}
    with progress.shown("checking") as now:
        for name, check in CHECKS.items():
            now(f"checking: {name}")
            found[name] = _checked(check, subject)
    if options.fix:
        _fix(found, subject)
    if options.report:
        _write(options.report, _report(subject, found))
    else:
        values = [
            {"check": name, "level": finding.level, "why": finding.why, "mend": finding.mend}
            for name, finding in found.items()
        ]
        rows = [(name, finding.level, finding.text) for name, finding in found.items()]
        output.print_rows(options.json, values, ("check", "result", "why"), rows)
    if found["mount answers"].level == FAIL:
        return exit_status("EHOSTDOWN")
    return EXIT_FAILED if any(each.level == FAIL for each in found.values()) else EXIT_OK


def _fix(found: dict[str, Finding], subject: Subject) -> None:
    """Run the commands that mend the findings, each after a question, and check again."""
    if not sys.stdin.isatty():
        raise Fault("EINVAL", "--fix asks before each command, so run it on a terminal")
    for name, finding in found.items():
        if finding.level == OK or not finding.fix:
            continue
        output.say(f"{name}: {finding.why}")
        words = ("sudo", *finding.fix) if finding.by_root and subject.uid else finding.fix
        if not shutil.which(words[0]):
            output.say(f"let root run: {shlex.join(finding.fix)}")
        elif output.sure(f"run: {shlex.join(words)}"):
            subprocess.run(words, stdout=sys.stderr.fileno(), check=False)
            found[name] = again = _checked(CHECKS[name], subject)
            output.say(f"{name}: {again.level}: {again.text}")


def _write(path: str, text: str) -> None:
    """Write the report, but never over an existing file."""
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


def _report(subject: Subject, found: Mapping[str, Finding]) -> str:
    where = subject.where
    parts: dict[str, Callable[[], Iterable[str]]] = {
        "this machine": _machine,
        "doctor": lambda: (f"{finding.level} {name}: {finding.text}" for name, finding in found.items()),
        "status": lambda: mounts.status_text(subject.root).splitlines() if subject.root else (),
        "mounts": _mounts,
        "settings that are set": lambda: sorted(_keys(tomllib.loads((where.config / FILE).read_text()))),
        "files of the configuration": lambda: _names(where.config),
        "plugins": lambda: sorted(os.listdir(where.state / "plugins")),
        "Python packages": _packages,
        "variables that are set": lambda: sorted(name for name in os.environ if name.startswith("CTX_")),
        "end of daemon.log": lambda: (
            no_links.read(where.state / "daemon.log", -MAX_LOG, MAX_LOG).decode(errors="replace").splitlines()
        ),
    }
    lines = [line for name, part in parts.items() for line in ("", f"## {name}", "", *_lines_of(part))]
    report = ("# Report of CortexFS. Read it before you send it.", *lines)
    return "".join(f"{within(_HIDDEN.sub('(hidden)', line))}\n" for line in report)


def _lines_of(part: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return [*part()] or ["(nothing)"]
    except FileNotFoundError:
        return ["(nothing)"]
    except (OSError, Fault, ValueError) as problem:
        return [f"(cannot be read: {problem})"]


def _machine() -> Iterator[str]:
    yield f"time: {time.strftime('%Y-%m-%d %H:%M:%S %z')}"
    yield f"version: {VERSION}, protocol {PROTOCOL}"
    yield f"kernel: {platform.platform()}"
    yield f"Python: {platform.python_version()}, {' '.join(platform.libc_ver()) or 'another C library'}"
    yield f"uid: {os.getuid()}, effective {os.geteuid()}"
    yield f"cores: {os.cpu_count()}"


def _mounts() -> Iterator[str]:
    with open(TABLE, encoding="utf-8", errors="replace") as table:
        yield from (line.rstrip("\n") for line in table if f" - {FSTYPE} " in line)


def _keys(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{name}.")
        else:
            yield before + name


def _names(config: Path) -> Iterator[str]:
    for folder in ("", *FOLDERS):
        with contextlib.suppress(FileNotFoundError):
            yield from sorted(os.path.join(folder, name) for name in os.listdir(config / folder))


def _packages() -> Iterator[str]:
    requirements = [
        requirement
        for requirement in importlib.metadata.requires("cortexfs") or ()
        if "dev" not in requirement
    ]
    for name in sorted({re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}):
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed"


COMMANDS = {
    "doctor": Command(
        run,
        (
            *PLACES,
            JSON,
            flag("--fix", "run the command that mends each finding, after a question"),
            arg("--report", "FILE", "write all that a report of a fault needs; - prints it"),
        ),
        (
            "ctx doctor",
            "ctx doctor --json | jq '.[] | select(.level != \"ok\")'",
            "ctx doctor --report report.txt",
            "ctx doctor --fix",
        ),
    ),
}
