"""The text of `.commands` in the root, and the choice of a command: commands that plugins add to `cortex`.

It is one hidden file, with a JSON object a line. `cortex NAME` finds a command there, makes one JSON object
of its arguments, and has the runner call it. The file also has commands of plugins that are installed and
not served, so that their users learn the reason.

Rules: commands are for people; agents have tools instead. The last hooks of a plugin are called for its
owner alone.
This file must never know how a command line is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec
import trio

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import UNINSTALL, UNINSTALL_SECONDS
from cortexfs.core.manifestjson import FILE
from cortexfs.core.registry import Object
from cortexfs.core.safe_text import one_line
from cortexfs.plugins.described import CALL, COMMAND_CLASS, DECLARED
from cortexfs.plugins.package import directory, manifests
from cortexfs.state import stamps

DISABLED = "disabled"

_Declared: TypeAlias = tuple[str, tuple[str, ...]]  # the kind of a plugin, and the names of its commands


class _Line(msgspec.Struct, frozen=True):
    """The line of a command that is not served."""

    name: str
    plugin: str
    status: str


class Commands:
    def __init__(
        self,
        state: Path,
        serving: Callable[[str], hostcalls.Plugin | None],
        find: Callable[[str], hostcalls.Plugin],
    ) -> None:
        self._base = state / directory.FOLDER
        self._serving = serving
        self._find = find  # returns an installed plugin, served or not; it blocks
        self._commands: Mapping[str, Object] = {}
        self._missing: dict[str, _Line] = {}
        self._read: dict[Path, tuple[str, _Declared]] = {}
        self._text = b""

    def text(self) -> bytes:
        return self._text

    def apply(self, commands: Mapping[str, Object], plugins: Mapping[str, str]) -> None:
        """Show these commands from now on. `plugins` has the fault of each enabled plugin, or "".

        This reads the manifests of the other plugins, so it blocks.
        """
        owners = {command.plugin.name for command in commands.values() if command.plugin}
        missing = {
            name: _Line(name, plugin, _status(plugin, kind, plugins))
            for plugin, (kind, names) in self._idle(owners).items()
            for name in names
            if name not in commands
        }
        lines = [
            *(_line(commands[name]) for name in sorted(commands)),
            *map(msgspec.json.encode, missing.values()),
        ]
        self._commands, self._missing = commands, missing
        self._text = b"".join(line + b"\n" for line in lines)

    def _idle(self, active: Collection[str]) -> dict[str, _Declared]:
        read = {}
        for folder in directory.folders(self._base):
            if folder.name not in active and (stamp := stamps.of_files([folder / FILE])):
                known = self._read.get(folder)
                read[folder] = known if known and known[0] == stamp else (stamp, _declared(folder))
        self._read = read
        return {folder.name: declared for folder, (_, declared) in read.items()}

    async def chosen(self, words: list[bytes], uid: int) -> tuple[Object, list[bytes]]:
        """Returns the command that the words name, and its arguments."""
        name, *rest = [os.fsdecode(word) for word in words] or [""]
        if name == UNINSTALL and rest:
            return await self._last(rest[0], uid), [b"{}"]
        if (found := self._commands.get(name)) is None:
            line = self._missing.get(name)
            if line:
                raise Fault("EHOSTDOWN", f"its plugin {line.plugin} is {line.status}")
            raise Fault("ENOENT", f"there is no command {name!r} of a plugin (any more)")
        if len(rest) != 1 or not rest[0].startswith("{"):
            raise Fault("EINVAL", f"it takes one JSON object; run it with: cortex {name}")
        return found, words[1:]

    async def _last(self, name: str, uid: int) -> Object:
        """Returns an object that runs a plugin's last hooks."""
        if uid not in (0, os.getuid()):
            raise Fault("EPERM", f"only the owner of this mount uninstalls {name}")
        plugin = self._serving(name)
        if plugin is None:
            plugin = await trio.to_thread.run_sync(self._find, name)
        if plugin.kind != hostcalls.ESM:
            raise Fault("EINVAL", f"{name} is not a JavaScript plugin, so it has no hooks")
        return Object(
            class_=COMMAND_CLASS,
            name=name,
            description="",
            timeout=UNINSTALL_SECONDS,
            plugin=plugin,
            extra={CALL: UNINSTALL},
        )


def _status(plugin: str, kind: str, plugins: Mapping[str, str]) -> str:
    if plugin not in plugins:
        return DISABLED
    denied = f"it may add no commands, see: ctx plugin permissions {plugin}"
    unable = f"plugins of kind {kind} cannot add commands"
    return f"broken: {one_line(plugins[plugin]) or (denied if kind == hostcalls.ESM else unable)}"


def _line(command: Object) -> bytes:
    assert command.plugin is not None
    declaration = msgspec.json.decode(command.extra[DECLARED])
    return msgspec.json.encode(declaration | {"plugin": command.plugin.name, "status": command.status})


def _declared(folder: Path) -> _Declared:
    try:
        manifest = directory.read(folder)
    except Fault:  # its commands are unknown; `ctx plugin list` has the reason
        return ("", ())
    if not manifests.is_json(manifest):
        return ("", ())
    return (manifest.json.kind, tuple(command.name for command in manifest.json.cli_commands))
