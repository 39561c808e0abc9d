"""The objects that a plugin has: each is described by the plugin's host, and its description is checked.

Rules: a description is untrusted input. A model's name has two parts; `debug` is ours. A command of `cortex`
is an object outside of the registry: its `extra` has the name of the host's tool, and the declaration.
This file must never know how a plugin is asked.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from cortexfs.core import hostcalls, names
from cortexfs.core.arguments import dryrun
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import COMMAND
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest import governance, targets
from cortexfs.core.manifestjson.fields import CommandField
from cortexfs.core.manifestjson.rules import of_commands
from cortexfs.core.registry import Object
from cortexfs.core.safe_text import one_line
from cortexfs.models.plugin_model import DRIVER

MAX_TOOLS = 10_000
MAX_DESCRIPTION = 16 << 10
MAX_SCHEMA = 256 << 10  # read by models, and turned into usage on the daemon's one thread
MAX_WHY = 1000
_WORD = re.compile(r"[A-Za-z_-]{1,64}", re.ASCII)
_descriptors = msgspec.json.Decoder(list[hostcalls.Descriptor])


def checked(payload: bytes) -> list[hostcalls.Descriptor]:
    """Returns a plugin's description from its host. Raises a Fault, or an exception of UNREADABLE."""
    descriptors = _descriptors.decode(payload)
    if len(descriptors) > MAX_TOOLS:
        raise Fault("EINVAL", f"it has {len(descriptors)} tools, over the limit of {MAX_TOOLS}")
    found = [judged(descriptor) for descriptor in descriptors]
    if found and all(each.fault for each in found):
        name, fault = found[0].name, found[0].fault
        raise Fault("EINVAL", fault if name in fault else f"{shown(name)[1:-1]}: {fault}")
    return found


def judged(descriptor: hostcalls.Descriptor) -> hostcalls.Descriptor:
    """Returns the descriptor, or for a wrong tool one with its name and its fault. A wrong model or command
    fails its plugin."""
    try:
        _check(descriptor)
    except Fault as fault:
        if descriptor.model is not None or descriptor.command is not None:
            raise
        return hostcalls.Descriptor(descriptor.name, "", {}, fault=one_line(fault.message)[:MAX_WHY])
    return replace(descriptor, timeout_secs=targets.seconds_of(descriptor.timeout_secs))


def _check(descriptor: hostcalls.Descriptor) -> None:
    if descriptor.fault:
        raise Fault("EINVAL", descriptor.fault)
    if descriptor.command is not None:
        _check_command(descriptor.name, descriptor.command)
    elif descriptor.model is None:
        names.check_object("tool", descriptor.name)
    else:
        _check_model(descriptor.name, descriptor.model)
    if descriptor.timeout_secs is not None and descriptor.timeout_secs < 0:
        raise Fault("EINVAL", f"the timeout of {descriptor.name} is under 0 s")
    for effect in descriptor.capabilities.effects:  # policy relies on lines of words
        words = (effect.kind, effect.reversibility, effect.confirmation, effect.dry_run)
        if not all(map(_WORD.fullmatch, words)):
            raise Fault("EINVAL", f"an effect of {descriptor.name} may have letters, _ and - only: {words}")
    if len(msgspec.json.encode(descriptor.input_schema)) > MAX_SCHEMA:
        raise Fault("EINVAL", f"the schema of {descriptor.name} is over {MAX_SCHEMA >> 10} KiB")
    if len(descriptor.description) > MAX_DESCRIPTION:
        raise Fault("EINVAL", f"the description of {descriptor.name} is over {MAX_DESCRIPTION} characters")


def object_of(
    plugin: hostcalls.Plugin, origin: str, registered: float, descriptor: hostcalls.Descriptor
) -> Object:
    tool = Object(
        class_="tool",
        name=descriptor.name,
        description=descriptor.description,
        schema=msgspec.json.encode(descriptor.input_schema),
        capabilities=descriptor.capabilities,
        timeout=descriptor.timeout_secs,
        dry_run_flag=dryrun.is_offered(descriptor.dry_run_flag, descriptor.input_schema),
        plugin=plugin,
        origin=origin,
        status="ready",
        registered=registered,
    )
    if descriptor.fault:
        return replace(tool, plugin=None, status=f"broken: {descriptor.fault}")
    if descriptor.command is not None:
        return _command(tool, descriptor.command)
    if descriptor.model is not None:
        return _model(tool, descriptor.model)
    effects = governance.with_rights(tool.capabilities.effects, plugin.rights)
    return replace(tool, capabilities=replace(tool.capabilities, effects=effects))


OURS = "debug"
ALWAYS = ("chat", "stream", "session")
MAX_CAP = 32
MAX_LIMIT = 1_000_000_000

_CAP = re.compile(r"[a-z][a-z_]{0,31}", re.ASCII)


def _check_model(name: str, facts: hostcalls.ModelFacts) -> None:
    names.check_object("model", name)
    if name.startswith(f"{OURS}/"):
        raise Fault("EINVAL", f"the provider {OURS} has its own models; call {name} by another name")
    if len(facts.cap) > MAX_CAP or not all(map(_CAP.fullmatch, facts.cap)):
        raise Fault("EINVAL", f"the cap of {name} must be at most {MAX_CAP} words of a to z and _")
    if facts.limit is not None and not 0 < facts.limit <= MAX_LIMIT:
        raise Fault("EINVAL", f"the limit of {name} must be 1 to {MAX_LIMIT} tokens")


def _model(tool: Object, facts: hostcalls.ModelFacts) -> Object:
    """Returns the model that a tool with these facts is."""
    extra = {
        "id": tool.name,
        "driver": DRIVER,
        "cap": "\n".join(dict.fromkeys((*ALWAYS, *facts.cap))),
        "limit": str(facts.limit or "unknown"),
        "session": "socket",
    }
    nothing = hostcalls.Capabilities()
    return replace(tool, class_="model", schema=b"{}", capabilities=nothing, dry_run_flag=False, extra=extra)


COMMAND_CLASS = "command"
CALL, DECLARED = "call", "declared"  # keys of `extra`
MAX_DECLARED = 32 << 10


def _check_command(name: str, declared: dict[str, Any]) -> None:
    field = msgspec.convert(declared, CommandField)
    for problem in of_commands((field,)):
        raise Fault("EINVAL", f"its declaration of a command is wrong: {problem.sentence('cliCommands')}")
    if name != COMMAND + field.name:
        raise Fault("EINVAL", f"its command {field.name} has another name in its declaration")
    if len(msgspec.json.encode(field)) > MAX_DECLARED:
        raise Fault("EINVAL", f"the declaration of its command {field.name} is over {MAX_DECLARED >> 10} KiB")


def _command(tool: Object, declared: dict[str, Any]) -> Object:
    """Returns the command that a tool with a declaration is."""
    declaration = msgspec.json.encode(msgspec.convert(declared, CommandField)).decode()
    name = tool.name.removeprefix(COMMAND)
    return replace(tool, class_=COMMAND_CLASS, name=name, extra={CALL: tool.name, DECLARED: declaration})
