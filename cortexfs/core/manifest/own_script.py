"""The control `script` of a tool of one's own: which file it is, and the comment at its top.

    /home/u/.local/bin/greet
    # held: agent/coder            only where an agent could have written the file
    # tool: Greet somebody.
    # arg who string: whom

Rules: the user writes it, and a host that has become this user looks at the file at each call; the daemon
never does. A held script is no tool until its user has written the control anew.
This file must never know what is on the disk.
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
    held: str = ""  # the agent that could have written it

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
        raise Fault("EINVAL", f"its first line is the script's whole path, without links: not {shown(path)}")
    return OwnScript(path, header, held)


def check(text: str) -> None:
    """EINVAL where it is no value of the control."""
    as_object("x", 0, text, 0.0)


def as_object(name: str, uid: int, text: str, registered: float) -> Object:
    """The tool that a control makes; broken, where nothing is written or it is held."""
    from cortexfs.core.manifest import (  # commands that only know the control do not pay for it
        script,
        targets,
    )

    said, why = read(text) if text else OwnScript(), ""
    facts = script.parsed(said.header) if text else script.Script()
    if not text:
        why = "its .d/script is empty; see: ctx tool add --help"
    elif said.held:
        why = f"{said.held} could write {said.path}; look at it, then: ctx tool add {said.path}"
    program = targets.ProgramTarget(
        name, facts.description, facts.schema, (said.path,), "", timeout=facts.timeout, effects=facts.effects
    )
    told = targets.target(targets.Programs((program,), "argv"))
    return Object(
        class_="tool",
        name=name,
        home=uid,
        description=facts.description,
        schema=msgspec.json.encode(facts.schema),
        capabilities=hostcalls.Capabilities(effects=facts.effects),
        timeout=facts.timeout,
        plugin=None if why else hostcalls.Plugin(f"script:{name}", "1", targets.PROCESS, told),
        origin=f"script:{said.path}",
        status=f"broken: {why}" if why else "ready",
        registered=registered,
    )
