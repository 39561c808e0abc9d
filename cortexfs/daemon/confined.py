"""The scripts that `ctx mcp serve --code` runs for a client: shell.exec, with fewer rights than its user.

    shell, caller, environment = await scripts.begin(caller, patterns, environment)      for a connection
    caller = scripts.inside(object_, caller)           for an object that a script runs; EACCES if it may not

Rules: a script sees the same paths as an agent without a mount table, and may only read its working
directory. It writes only into a scratch folder of its user, and has no network. The same holds for built-in
tools, models and agents that it runs. A plugin's tool runs unconfined, as with plain `serve`: somebody added
it to do one thing, and --allow can leave it out. Another machine would confine nothing, so a script may ask
only its models. A caller under a label, or confined already, gets no more rights: its tools stay as confined
as the caller is.
This file must never know sockets or clients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

from msgspec.structs import replace

from cortexfs.agents.place import PATH
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.view import caps, home_of, view, within
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import TEAM, Identity
from cortexfs.core.names import CLASSES
from cortexfs.core.registry import Object
from cortexfs.peers.caller import Caller

SHELL = "shell.exec"
FOLDER = "scripts"  # the name of the scratch folder of a user's scripts
MAX_PATTERNS, MAX_PATTERN = 100, 200  # limits, as the identity of hosts has the patterns


class Scripts:
    def __init__(self, world: AgentPorts) -> None:
        self._world = world

    async def begin(
        self, caller: Caller, patterns: Sequence[bytes], environment: dict[bytes, bytes]
    ) -> tuple[Object, Caller, dict[bytes, bytes]]:
        """Returns the shell, and the caller and environment that it runs with. With patterns, its scripts run
        only tools that match."""
        shell = self._world.find("tool", SHELL)
        if shell is None:
            raise Fault("EHOSTDOWN", f"there is no tool {SHELL}, so no script can run")
        own = caller.identity
        if own.is_elsewhere:
            raise Fault("EACCES", "scripts do not run for callers in containers; run the script outside")
        allowed = patterns_of(patterns)
        cwd = "/" if caller.cwd is None else os.readlink(f"/proc/self/fd/{caller.cwd}")
        home = home_of(await self._world.home(own.uid))
        paths = view("", cwd, root=self._world.root, home=home, writable=False)
        is_first = not own.label and own.view is None and own.script is None
        identity = replace(
            own,
            capabilities=0,
            view=paths if own.view is None else within(paths, own.view),
            caps=tuple(dict.fromkeys((*own.caps, *self._world.caps, *caps("", home)))),
            network=False,
            script=allowed if is_first else own.script,
            scratch=own.scratch or self._world.scratch(own.uid, FOLDER),
        )
        more = {b"TMPDIR": identity.scratch, b"CTX_ROOT": self._world.root, b"CTX_OUTPUT": "text"}
        path = f"{PATH}:{self._world.root}/bin"
        variables = {b"PATH": path, **more}
        all_variables = environment | {name: os.fsencode(value) for name, value in variables.items()}
        return shell, caller._replace(identity=identity), all_variables

    def inside(self, object_: Object, caller: Caller) -> Caller:
        patterns, identity = caller.identity.script, caller.identity
        if patterns is None:
            return caller
        if object_.class_ not in CLASSES:
            raise Fault("EACCES", "scripts may not run commands, only tools")
        if object_.class_ == "agent" and patterns:
            may = ", ".join(patterns)
            raise Fault("EACCES", f"this script may only run {may}, and an agent has tools of its own")
        if not identity.label and object_.class_ != "model" and object_.plugin_kind == TEAM:
            raise Fault("EACCES", f"{object_.name} runs on another machine, which cannot confine scripts")
        if object_.class_ == "tool" and not is_named(object_.name, patterns):
            may = ", ".join(patterns)
            raise Fault("EACCES", f"this script may not run {object_.name}; it may only run {may}")
        if identity.label or object_.class_ != "tool" or object_.origin == "builtin":
            return caller
        free = replace(identity, view=None, caps=(), network=True, script=None, scratch="")
        return caller._replace(identity=free)


def patterns_of(patterns: Sequence[bytes]) -> tuple[str, ...]:
    """Returns a client's patterns of tools. Raises E2BIG if the daemon would be busy with them for long."""
    if len(patterns) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN for pattern in patterns):
        most = f"{MAX_PATTERNS} patterns of tools, of {MAX_PATTERN} bytes each"
        raise Fault("E2BIG", f"a script has at most {most}")
    return tuple(pattern.decode(errors="replace") for pattern in patterns)  # names are ASCII


def is_named(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(pattern.match(name) for pattern in _compiled(patterns))


@lru_cache(maxsize=16)  # fnmatch's own cache would keep too many patterns of clients
def _compiled(patterns: tuple[str, ...]) -> list[re.Pattern[str]]:
    return [re.compile(translate(pattern)) for pattern in patterns]


def is_allowed(identity: Identity, tool: Object) -> bool:
    """Returns True if a script with this identity may run the tool."""
    return tool.plugin_kind != TEAM and is_named(tool.name, identity.script or ())
