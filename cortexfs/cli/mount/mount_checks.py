"""The checks of `ctx doctor` of the mount that runs, and what every check is given and finds.

Rules: a child process, which may hang, makes each access to a mount (bounded.ask).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from cortexfs.cli import mounts, objects
from cortexfs.cli.bounded import ask
from cortexfs.core.arguments.schema import unknown_required
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.manifest.mcp_server import without
from cortexfs.core.names import REMOTE
from cortexfs.core.safe_text import one_line
from cortexfs.core.wire import SOCKET_NAME
from cortexfs.run import shebang
from cortexfs.state import no_links
from cortexfs.state.directories import Places, place_of

OK, WARN, FAIL = "ok", "warn", "fail"
LOG_READ = 256 << 10  # bytes of the end of a daemon's log
SCHEMA_SECONDS = 10.0  # there may be thousands of tools
REFUSED = " stays as it is: "  # in the daemon's log: it refused a control's value


class Subject(NamedTuple):
    root: str
    where: Places
    uid: int


class Finding(NamedTuple):
    level: str
    why: str  # the finding
    mend: str = ""  # the advice
    fix: tuple[str, ...] = ()  # the command that follows the advice, if there is one
    by_root: bool = False  # True if root has to run the command

    @property
    def text(self) -> str:
        return f"{self.why}{f'; {self.mend}' if self.mend else ''}"


Check: TypeAlias = Callable[[Subject], Finding]


ok, warn, fail = partial(Finding, OK), partial(Finding, WARN), partial(Finding, FAIL)


def answers(subject: Subject) -> Finding:
    try:
        mounts.status_text(subject.root or mounts.root(None))
    except Fault as fault:
        why, _, mend = fault.message.partition("; ")
        is_free = subject.root and not mounts.mounted_at(subject.root)
        return fail(why, mend, (shebang.program("ctx"), "mount", subject.root) if is_free else ())
    return ok(f"{subject.root} answers")


def run_socket(subject: Subject) -> Finding:
    if _silent(subject):
        return ok("no mount to ask")
    try:
        ask(lambda: _connected(f"{subject.root}/{SOCKET_NAME}"), mounts.ANSWER_SECONDS)
    except OSError as problem:
        return fail(f"{SOCKET_NAME} does not take connections: {problem.strerror}", "see: ctx status")
    return ok(f"{SOCKET_NAME} takes connections")


def object_sockets(subject: Subject) -> Finding:
    """An object that is declared, but cannot talk now, refuses connections (abi.md 5.6)."""
    if isinstance(refusing := _seen(subject, _refusing, mounts.ANSWER_SECONDS), Finding):
        return refusing
    if refusing:
        return warn(f"{refusing} take no connections", "see their .d/status, and: ctx status")
    return ok("every object's socket takes connections")


def _refusing(root: Path) -> bytes:
    found = []
    for path in (*root.glob("model/*/*.sock"), *root.glob("agent/*.sock")):
        try:
            _connected(str(path))
        except OSError:
            found.append(str(path.relative_to(root)))
    return ", ".join(found).encode()


def _seen(subject: Subject, look: Callable[[Path], bytes], seconds: float) -> str | Finding:
    """Returns what `look` finds in the mount, as text, or the finding that it cannot look."""
    if _silent(subject):
        return ok("no mount to ask")
    try:
        return ask(lambda: look(Path(subject.root)), seconds).decode()
    except OSError as problem:
        return fail(f"{subject.root} cannot be read: {problem.strerror}", "see: ctx status")


def _silent(subject: Subject) -> bool:
    """Returns True if further questions are useless; `answers` reports the reason."""
    return answers(subject).level == FAIL


def _connected(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as runner:
        # Connect by a descriptor of the directory: the path of a socket may have 107 bytes only (unix(7)).
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        runner.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    return b""


def refused_controls(subject: Subject) -> Finding:
    """An editor only shows an errno. The end of the log has the reason."""
    log = subject.where.state / "daemon.log"
    try:
        lines = no_links.read(log, -LOG_READ, LOG_READ).decode(errors="replace").splitlines()
    except (OSError, Fault):
        lines = [] if _silent(subject) else objects.refusals(subject.root)
        return ok(f"{'; '.join(map(one_line, lines)) or 'none was refused'} (in your home)")
    if not (found := [line for line in lines if REFUSED in line]):
        return ok("none was refused")
    when, _, message = found[-1].partition(",")
    return ok(f"{when}: {one_line(message.partition(' ')[2].partition(' ')[2])}")


def broken_plugins(subject: Subject) -> Finding:
    if _silent(subject):
        return ok("no mount to ask")
    if broken := mounts.by_name(mounts.facts(mounts.status_text(subject.root)), "broken plugin"):
        message = " / ".join(map(": ".join, broken.items()))
        return warn(message, f"mend it, or do without it: {'; '.join(map(without, broken))}")
    return ok("every enabled plugin is sound")


def broken_others(subject: Subject) -> Finding:
    facts = {} if _silent(subject) else mounts.facts(mounts.status_text(subject.root))
    if found := mounts.by_name(facts, "broken provider") | mounts.by_name(facts, "broken agent"):
        message = " / ".join(map(": ".join, found.items()))
        return warn(message, "mend each, or: ctx provider remove NAME, ctx agent rm NAME")
    return ok("every provider and agent is sound")


def tool_schemas(subject: Subject) -> Finding:
    """No caller is told of a required name without a property, so each call fails."""
    if isinstance(wrong := _seen(subject, _unknown, SCHEMA_SECONDS), Finding):
        return wrong
    if wrong:
        return warn(wrong, "mend the names in required, or add the properties")
    return ok("every required name of a tool's schema is a property")


def _unknown(root: Path) -> bytes:
    found = []
    for path in sorted(root.glob("tool/*.d/schema")):
        try:
            schema = msgspec.json.decode(path.read_bytes())
        except (OSError, *UNREADABLE):
            continue  # the tool has just gone, or is broken, which its status says
        if isinstance(schema, dict) and (names := unknown_required(schema)):
            found.append(f"{path.parent.name[:-2]} requires {', '.join(names)}, and has no such property")
    return one_line(" / ".join(found)).encode()


def reserved_names(subject: Subject) -> Finding:
    """Older objects, and those of plugins, may have names that are for objects of other machines."""
    if isinstance(found := _seen(subject, _with_plus, SCHEMA_SECONDS), Finding):
        return found
    if found:
        return warn(f"{found} have a +, as objects of other machines", "give them other names")
    return ok("no object of this machine has the name of another machine's")


def _with_plus(root: Path) -> bytes:
    found = []
    for pattern in ("tool/*+*.d", "agent/*+*.d", "model/*+*/*.d", "model/*/*+*.d"):
        for path in sorted(root.glob(pattern)):
            with suppress(OSError):  # the object has just gone
                if not (path / "origin").read_text(errors="replace").startswith(REMOTE):
                    found.append(str(path.relative_to(root))[:-2])
    return ", ".join(dict.fromkeys(found)).encode()


def plugin_copies(subject: Subject) -> Finding:
    """Under root, hosts run as other users, and must pass through every folder above."""
    copies = place_of(subject.where.state)
    if subject.uid != 0 or not copies.is_dir():
        return ok("plugins run as users that can read them")
    closed = [str(above) for above in (copies, *copies.parents) if not above.stat().st_mode & 0o001]
    if closed:
        words = ("chmod", "o+x", *closed)
        return warn(f"others cannot pass through {closed[-1]} to plugins", " ".join(words), words)
    return ok(f"others can pass to {copies}")
