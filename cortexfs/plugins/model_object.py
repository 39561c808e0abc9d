"""A model of a plugin: its description is checked, and becomes an object of the registry.

Rules: a plugin's description is untrusted input. A model's name has two parts; `debug` is ours.
This file must never know how a plugin is asked.
"""

from __future__ import annotations

import re

from cortexfs.core import hostcalls, names
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.models.plugin_model import DRIVER

OURS = "debug"
ALWAYS = ("chat", "stream", "session")
MAX_CAP = 32
MAX_LIMIT = 1_000_000_000

_WORD = re.compile(r"[a-z][a-z_]{0,31}", re.ASCII)


def check(name: str, facts: hostcalls.ModelFacts) -> None:
    names.check_object("model", name)
    if name.startswith(f"{OURS}/"):
        raise Fault("EINVAL", f"the provider {OURS} has its own models; call {name} by another name")
    if len(facts.cap) > MAX_CAP or not all(map(_WORD.fullmatch, facts.cap)):
        raise Fault("EINVAL", f"the cap of {name} must be at most {MAX_CAP} words of a to z and _")
    if facts.limit is not None and not 0 < facts.limit <= MAX_LIMIT:
        raise Fault("EINVAL", f"the limit of {name} must be 1 to {MAX_LIMIT} tokens")


def model(tool: Object, facts: hostcalls.ModelFacts) -> Object:
    """Returns the model that a tool with these facts is."""
    extra = {
        "id": tool.name,
        "driver": DRIVER,
        "cap": "\n".join(dict.fromkeys((*ALWAYS, *facts.cap))),
        "limit": str(facts.limit or "unknown"),
        "session": "socket",
    }
    return Object(
        class_="model",
        name=tool.name,
        description=tool.description,
        timeout=tool.timeout,
        plugin=tool.plugin,
        origin=tool.origin,
        registered=tool.registered,
        extra=extra,
    )
