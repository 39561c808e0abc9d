"""A command of `cortex` as its plugin describes it: checked, and as an object. No registry holds these.

Rules: what a plugin says is a stranger's word. Of an object of this class, `extra` has how its host calls it,
and what was declared.
This file must never know how it was asked.
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
        raise Fault("EINVAL", f"it declares an odd command: {problem.told('cliCommands')}")
    if name != COMMAND + said.name:
        raise Fault("EINVAL", f"its command {said.name} goes by another name")
    if len(msgspec.json.encode(said)) > MAX_DECLARED:
        raise Fault("EINVAL", f"the declaration of its command {said.name} is over {MAX_DECLARED >> 10} KiB")


def command(tool: Object, declared: dict[str, Any]) -> Object:
    """The command, of what would be a tool without its declaration."""
    said = msgspec.json.encode(msgspec.convert(declared, CommandField)).decode()
    name = tool.name.removeprefix(COMMAND)
    return replace(tool, class_=CLASS, name=name, extra={CALL: tool.name, DECLARED: said})
