"""The control `script` of a user's own tool: the path of its file, and the comment at the top of the file.

    /home/u/.local/bin/greet
    # held: agent/coder            only where an agent could have written the file
    # tool: Greet somebody.
    # arg who string: whom

Rules: the user writes the control. A host that has become this user reads the file at each call; the daemon
never does. A held script is no tool until its user has written the control again.
This file must never know the files on the disk.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.registry import Object

CONTROL = "script"
HELD = "# held: "
MAX_PATH = 4095


class OwnScript(NamedTuple):
    path: str = ""
    header: str = ""
    held: str = ""  # the agent that could have written the script

    @property
    def text(self) -> str:
        return "\n".join((self.path, *([HELD + self.held] if self.held else []), self.header, ""))


def read(text: str) -> OwnScript:
    path, _, header = text.rstrip("\n").partition("\n")
    held = ""
    if header.startswith(HELD):
        held, _, header = header.removeprefix(HELD).partition("\n")
    start, *names = path.split("/")
    is_plain = not start and names and not {"", ".", ".."}.intersection(names) and path.isprintable()
    if not is_plain or not held.isprintable() or len(path.encode(errors="replace")) > MAX_PATH:
        raise Fault("EINVAL", f"its first line must be its full path without links, not {shown(path)}")
    return OwnScript(path, header, held)


def check(text: str) -> None:
    """Raises EINVAL for a text that is no value of the control."""
    as_object("x", 0, text, 0.0)


def as_object(name: str, uid: int, text: str, registered: float) -> Object:
    """Returns the tool of a control. It is broken if the control is empty, or the script is held."""
    from cortexfs.core.manifest import (  # imported here, so that commands without tools do not pay
        script,
        targets,
    )

    own, why = read(text) if text else OwnScript(), ""
    facts = script.parsed(own.header) if text else script.Script()
    if not text:
        why = "its .d/script is empty; see: ctx tool add --help"
    elif own.held:
        why = f"{own.held} could write {own.path}; look at it, then: ctx tool add {own.path}"
    program = targets.ProgramTarget(
        name, facts.description, facts.schema, (own.path,), "", timeout=facts.timeout, effects=facts.effects
    )
    target = targets.target(targets.Programs((program,), "argv"))
    return Object(
        class_="tool",
        name=name,
        home=uid,
        description=facts.description,
        schema=msgspec.json.encode(facts.schema),
        capabilities=hostcalls.Capabilities(effects=facts.effects),
        timeout=facts.timeout,
        plugin=None if why else hostcalls.Plugin(f"script:{name}", "1", targets.PROCESS, target),
        origin=f"script:{own.path}",
        status=f"broken: {why}" if why else "ready",
        registered=registered,
    )
