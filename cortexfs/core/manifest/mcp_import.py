"""MCP servers in the files of other clients: Claude Desktop and Code, Cursor, VS Code and others.

Main path: `read` takes the text of a file. `Import.of` returns the servers that can be used here, and a note
for each part that is left out. `Fill` is asked once for each value that a file wants filled in (`${...}`).

Rules: no note contains a value. A value that was filled in from outside is a secret, whatever its name.
Approvals in a file are ignored, as policy decides here.
This file must never know where values come from, or where servers are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import MAX_NAME, MAX_SECONDS, McpServer, checked

_CONTAINERS = ("mcpServers", "servers", "context_servers")
MAX_SERVERS = 128  # in one file, as each server becomes a file of ours, and a running program
_ADDRESSES = ("url", "serverUrl", "httpUrl")
_INCLUDED, _EXCLUDED = ("includeTools", "enabledTools"), ("excludeTools", "disabledTools")
_TRUSTING = ("autoApprove", "alwaysAllow", "autoapprove", "trust")
_TAKEN = {"command", "args", "cwd", "env", "headers", "timeout", "disabled", "enabled", "type", "transport",
          *_ADDRESSES, *_INCLUDED, *_EXCLUDED, *_TRUSTING}  # fmt: skip
_MILLISECONDS = 1000  # a timeout of this number or more is in milliseconds
_MOST = MAX_SECONDS * 1000
# A string or comment without an end takes all the rest, so that its end is searched only once.
_TEXT = r'"(?:\\.?|[^"\\])*+(?:"|\Z)'
_WORDS = re.compile(rf"{_TEXT}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING = re.compile(rf"({_TEXT})|,(?=\s*[}}\]])", re.DOTALL)
_WANTED = re.compile(r"\$\{([^{}]+)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class WantedInput(NamedTuple):
    """A value that a file wants its user to fill in."""

    name: str
    about: str
    default: str | None = None


class Fill(Protocol):
    def variable(self, name: str) -> str | None:
        """Returns the value of an environment variable."""

    def place(self, name: str) -> str | None:
        """Returns the folder for `workspaceFolder` or `userHome`."""

    def ask(self, wanted: WantedInput) -> str: ...


class Imported(NamedTuple):
    servers: dict[str, McpServer]
    typed: dict[str, set[str]]  # by server: variables and headers that are secrets, whatever their names
    notes: list[str]


def read(text: str) -> Any:
    """Returns the value of JSON that may have comments and trailing commas. Raises ValueError."""
    plain = _WORDS.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    value = json.loads(_TRAILING.sub(lambda found: found[1] or "", plain))
    json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates, which no file of ours can hold
    return value


def all_of(value: Any) -> dict[str, McpServer]:
    """Returns every server of a file. Raises a Fault for a part that cannot be taken over."""
    made = Import(None).of(value)
    return made.servers


class Import:
    """The servers of one file. Without `fill`, no value is filled in, and the first fault is raised."""

    def __init__(self, fill: Fill | None) -> None:
        self._fill = fill
        self._inputs: dict[str, WantedInput] = {}
        self._known: dict[str, str] = {}
        self._made = Imported({}, {}, [])

    def of(self, value: Any) -> Imported:
        table = value if isinstance(value, dict) else {}
        if isinstance(table.get("mcp"), dict):  # the settings of VS Code
            table = table["mcp"]
        found = next((table[name] for name in _CONTAINERS if isinstance(table.get(name), dict)), None)
        if not found:
            raise Fault("EINVAL", 'it has no servers; write {"mcpServers": {"NAME": {...}}}')
        if len(found) > MAX_SERVERS:
            raise Fault("EINVAL", f"its {len(found)} servers are over the limit of {MAX_SERVERS}; divide it")
        for one in table.get("inputs") or ():
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                self._inputs[one["id"]] = _input(one)
        if len({_own_name(name) for name in found}) < len(found):
            raise Fault("EINVAL", "two of its servers would have the same name here; rename one")
        for name, one in found.items():
            self._take(name, one)
        if not self._made.servers:
            raise Fault("EINVAL", "; ".join(self._made.notes))
        return self._made

    def _take(self, name: str, one: Any) -> None:
        own = _own_name(name)
        self._made.typed[own] = set()
        try:
            if not isinstance(one, dict):
                raise Fault("EINVAL", "a server must be an object with command or url")
            self._made.servers[own] = self._server(own, one)
        except (Fault, msgspec.ValidationError) as error:
            why = error.message if isinstance(error, Fault) else str(error)
            if self._fill is None:
                raise Fault("EINVAL", f"{name}: {why}") from None
            self._note(own, f"it is left out: {why}")

    def _server(self, name: str, one: dict[str, Any]) -> McpServer:
        if "sse" in (one.get("type"), one.get("transport")):
            raise Fault("EINVAL", "the old transport sse is not supported; use its streamable HTTP address")
        given: dict[str, Any] = {key: one[key] for key in ("cwd", "args") if one.get(key) is not None}
        command = one.get("command")
        if isinstance(command, dict):  # the form of Zed
            one = {**one, "command": command.get("path"), "env": command.get("env")}
            given["args"] = command.get("args") or []
        given["command"] = one.get("command") or ""
        given["url"] = next((one[key] for key in _ADDRESSES if one.get(key)), "")
        given["enabled"] = not one.get("disabled", False) and one.get("enabled", True)
        given["tools"] = [str(tool).partition("(")[0] for tool in _listed(one, _INCLUDED)]
        given["tools"] += [f"!{tool}" for tool in _listed(one, _EXCLUDED)]
        if one.get("timeout") is not None:
            given["timeout_secs"] = _seconds(one["timeout"])
        for field in ("env", "headers"):
            given[field] = one.get(field) or {}
        if self._fill is not None:
            given = self._filled(name, given)
        made = checked(msgspec.convert(given, McpServer))
        self._say_what_is_left_out(name, one)
        return made

    # -- values that are filled in

    def _filled(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        for field in ("command", "cwd", "url"):
            given[field] = self._text(name, field, given.get(field, ""))
        if isinstance(given["cwd"], str) and given["cwd"] and not given["cwd"].startswith("/"):
            assert self._fill is not None
            given["cwd"] = f"{self._fill.place('workspaceFolder')}/{given['cwd']}"
        args = given.get("args")
        given["args"] = [self._text(name, "args", word) for word in args] if isinstance(args, list) else args
        given = {key: one for key, one in given.items() if one is not None}
        for field in ("env", "headers"):
            if isinstance(given[field], dict):
                given[field] = {key: self._secret(name, key, one) for key, one in given[field].items()}
        return given

    def _secret(self, name: str, key: str, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)  # some clients take numbers
        filled, is_secret = self._words(value)
        if is_secret:
            self._made.typed[name].add(key)
        return filled

    def _text(self, name: str, field: str, value: Any) -> Any:
        filled, is_secret = self._words(value)
        if is_secret:
            self._note(name, f"{field} contains a value that was filled in, and every user can read it")
        return filled

    def _words(self, value: Any) -> tuple[Any, bool]:
        """Returns the value with all parts filled in, and True if any part came from outside."""
        if not isinstance(value, str):
            return value, False
        wanted = [found[1] for found in _WANTED.finditer(value)]
        filled = _WANTED.sub(lambda found: self._one(found[1]), value)
        return filled, any(_place_of(one) is None for one in wanted)

    def _one(self, wanted: str) -> str:
        if wanted not in self._known:
            self._known[wanted] = self._found(wanted)
        return self._known[wanted]

    def _found(self, wanted: str) -> str:
        assert self._fill is not None
        if (place := _place_of(wanted)) is not None:
            if (folder := self._fill.place(place)) is None:
                raise Fault("EINVAL", f"${{{wanted}}} is unknown here; write its value")
            return folder
        kind, colon, rest = wanted.partition(":")
        if colon and kind == "input":
            return self._fill.ask(self._inputs.get(rest, WantedInput(rest, rest)))
        name, default = (rest, None) if colon and kind == "env" else _with_default(wanted)
        if not _NAME.fullmatch(name):
            raise Fault("EINVAL", f"${{{wanted}}} is unknown here; write its value")
        if (found := self._fill.variable(name)) is not None:
            return found
        return default if default is not None else self._fill.ask(WantedInput(name, f"the variable {name}"))

    # -- parts that are left out

    def _say_what_is_left_out(self, name: str, one: Mapping[str, Any]) -> None:
        for key in _TRUSTING:
            if said := one.get(key):
                tools = f" ({', '.join(map(str, said))})" if isinstance(said, list) else ""
                self._note(name, f"{key}{tools} is ignored, as policy decides here; see: ctx policy")
        for key in one:
            if key not in _TAKEN and not key.startswith(("_", "//")):
                self._note(name, f"{key} is left out")

    def _note(self, name: str, what: str) -> None:
        if (note := f"{name}: {what}") not in self._made.notes:
            self._made.notes.append(note)


def _own_name(name: str) -> str:
    return names.clean(name)[:MAX_NAME]


def _input(one: Mapping[str, Any]) -> WantedInput:
    default = one.get("default")
    about = str(one.get("description") or one["id"])
    if isinstance(options := one.get("options"), list):
        about += f" ({', '.join(map(str, options))})"
    return WantedInput(one["id"], about, default if isinstance(default, str) else None)


def _place_of(wanted: str) -> str | None:
    """Returns the name if it is that of a folder or a separator, which are no secrets, else None."""
    return wanted if wanted in ("workspaceFolder", "userHome", "workspaceFolderBasename", "pathSeparator",
                                "/") else None  # fmt: skip


def _with_default(wanted: str) -> tuple[str, str | None]:
    name, found, default = wanted.partition(":-")
    return name, default if found else None


def _listed(one: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [str(tool) for key in keys if isinstance(one.get(key), list) for tool in one[key]]


def _seconds(timeout: object) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < _MOST:
        raise Fault("EINVAL", "timeout must be a number of seconds, or of milliseconds from 1000 on")
    seconds = timeout / 1000 if timeout >= _MILLISECONDS else timeout
    return max(1, min(round(seconds), MAX_SECONDS))
