"""A command of `cortex`: its plugin's description is checked, and becomes an object outside of the registry.

Rules: a plugin's description is untrusted input. In an object of this class, `extra` has the name of the
host's tool, and the declaration.
This file must never know how a plugin is asked.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.hooks import COMMAND
from cortexfs.core.manifestjson.fields import CommandField
from cortexfs.core.manifestjson.rules import of_commands
from cortexfs.core.registry import Object

CLASS = "command"
CALL, DECLARED = "call", "declared"  # keys of `extra`
MAX_DECLARED = 32 << 10


def check(name: str, declared: dict[str, Any]) -> None:
    said = msgspec.convert(declared, CommandField)
    for problem in of_commands((said,)):
        raise Fault("EINVAL", f"its declaration of a command is wrong: {problem.told('cliCommands')}")
    if name != COMMAND + said.name:
        raise Fault("EINVAL", f"its command {said.name} has another name in its declaration")
    if len(msgspec.json.encode(said)) > MAX_DECLARED:
        raise Fault("EINVAL", f"the declaration of its command {said.name} is over {MAX_DECLARED >> 10} KiB")


def command(tool: Object, declared: dict[str, Any]) -> Object:
    """Returns the command that a tool with a declaration is."""
    said = msgspec.json.encode(msgspec.convert(declared, CommandField)).decode()
    name = tool.name.removeprefix(COMMAND)
    return replace(tool, class_=CLASS, name=name, extra={CALL: tool.name, DECLARED: said})
