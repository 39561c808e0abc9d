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
_KEYS = {"command", "args", "cwd", "env", "headers", "timeout", "disabled", "enabled", "type", "transport",
          *_ADDRESSES, *_INCLUDED, *_EXCLUDED, *_TRUSTING}  # fmt: skip
_MILLISECONDS = 1000  # a timeout of this number or more is in milliseconds
_MAX_TIMEOUT = MAX_SECONDS * 1000
# A string or comment without an end takes all the rest, so that its end is searched only once.
_TEXT = r'"(?:\\.?|[^"\\])*+(?:"|\Z)'
_WORDS = re.compile(rf"{_TEXT}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING = re.compile(rf"({_TEXT})|,(?=\s*[}}\]])", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([^{}]+)\}")
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

    def ask(self, input_: WantedInput) -> str: ...


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
    result = Import(None).of(value)
    return result.servers


class Import:
    """The servers of one file. Without `fill`, no value is filled in, and the first fault is raised."""

    def __init__(self, fill: Fill | None) -> None:
        self._fill = fill
        self._inputs: dict[str, WantedInput] = {}
        self._known: dict[str, str] = {}
        self._result = Imported({}, {}, [])

    def of(self, value: Any) -> Imported:
        table = value if isinstance(value, dict) else {}
        if isinstance(table.get("mcp"), dict):  # the settings of VS Code
            table = table["mcp"]
        found = next((table[name] for name in _CONTAINERS if isinstance(table.get(name), dict)), None)
        if not found:
            raise Fault("EINVAL", 'it has no servers; write {"mcpServers": {"NAME": {...}}}')
        if len(found) > MAX_SERVERS:
            raise Fault("EINVAL", f"its {len(found)} servers are over the limit of {MAX_SERVERS}; divide it")
        for entry in table.get("inputs") or ():
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                self._inputs[entry["id"]] = _input(entry)
        if len({_own_name(name) for name in found}) < len(found):
            raise Fault("EINVAL", "two of its servers would have the same name here; rename one")
        for name, entry in found.items():
            self._take(name, entry)
        if not self._result.servers:
            raise Fault("EINVAL", "; ".join(self._result.notes))
        return self._result

    def _take(self, name: str, entry: Any) -> None:
        own = _own_name(name)
        self._result.typed[own] = set()
        try:
            if not isinstance(entry, dict):
                raise Fault("EINVAL", "a server must be an object with command or url")
            self._result.servers[own] = self._server(own, entry)
        except (Fault, msgspec.ValidationError) as error:
            why = error.message if isinstance(error, Fault) else str(error)
            if self._fill is None:
                raise Fault("EINVAL", f"{name}: {why}") from None
            self._note(own, f"it is left out: {why}")

    def _server(self, name: str, entry: dict[str, Any]) -> McpServer:
        if "sse" in (entry.get("type"), entry.get("transport")):
            raise Fault("EINVAL", "the old transport sse is not supported; use its streamable HTTP address")
        fields: dict[str, Any] = {key: entry[key] for key in ("cwd", "args") if entry.get(key) is not None}
        command = entry.get("command")
        if isinstance(command, dict):  # the form of Zed
            entry = {**entry, "command": command.get("path"), "env": command.get("env")}
            fields["args"] = command.get("args") or []
        fields["command"] = entry.get("command") or ""
        fields["url"] = next((entry[key] for key in _ADDRESSES if entry.get(key)), "")
        fields["enabled"] = not entry.get("disabled", False) and entry.get("enabled", True)
        fields["tools"] = [str(tool).partition("(")[0] for tool in _tool_names(entry, _INCLUDED)]
        fields["tools"] += [f"!{tool}" for tool in _tool_names(entry, _EXCLUDED)]
        if entry.get("timeout") is not None:
            fields["timeout_secs"] = _seconds(entry["timeout"])
        for field in ("env", "headers"):
            fields[field] = entry.get(field) or {}
        if self._fill is not None:
            fields = self._filled(name, fields)
        server = checked(msgspec.convert(fields, McpServer))
        self._note_rest(name, entry)
        return server

    # -- values that are filled in

    def _filled(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        for field in ("command", "cwd", "url"):
            fields[field] = self._text(name, field, fields.get(field, ""))
        if isinstance(fields["cwd"], str) and fields["cwd"] and not fields["cwd"].startswith("/"):
            assert self._fill is not None
            fields["cwd"] = f"{self._fill.place('workspaceFolder')}/{fields['cwd']}"
        args = fields.get("args")
        fields["args"] = [self._text(name, "args", word) for word in args] if isinstance(args, list) else args
        fields = {key: value for key, value in fields.items() if value is not None}
        for field in ("env", "headers"):
            if isinstance(fields[field], dict):
                fields[field] = {key: self._secret(name, key, value) for key, value in fields[field].items()}
        return fields

    def _secret(self, name: str, key: str, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)  # some clients take numbers
        text, is_secret = self._words(value)
        if is_secret:
            self._result.typed[name].add(key)
        return text

    def _text(self, name: str, field: str, value: Any) -> Any:
        text, is_secret = self._words(value)
        if is_secret:
            self._note(name, f"{field} contains a value that was filled in, and every user can read it")
        return text

    def _words(self, value: Any) -> tuple[Any, bool]:
        """Returns the value with all parts filled in, and True if any part came from outside."""
        if not isinstance(value, str):
            return value, False
        references = [found[1] for found in _REFERENCE.finditer(value)]
        text = _REFERENCE.sub(lambda found: self._value(found[1]), value)
        return text, any(_place_of(reference) is None for reference in references)

    def _value(self, reference: str) -> str:
        if reference not in self._known:
            self._known[reference] = self._lookup(reference)
        return self._known[reference]

    def _lookup(self, reference: str) -> str:
        assert self._fill is not None
        if (place := _place_of(reference)) is not None:
            if (folder := self._fill.place(place)) is None:
                raise Fault("EINVAL", f"${{{reference}}} is unknown here; write its value")
            return folder
        kind, colon, rest = reference.partition(":")
        if colon and kind == "input":
            return self._fill.ask(self._inputs.get(rest, WantedInput(rest, rest)))
        name, default = (rest, None) if colon and kind == "env" else _with_default(reference)
        if not _NAME.fullmatch(name):
            raise Fault("EINVAL", f"${{{reference}}} is unknown here; write its value")
        if (found := self._fill.variable(name)) is not None:
            return found
        return default if default is not None else self._fill.ask(WantedInput(name, f"the variable {name}"))

    # -- parts that are left out

    def _note_rest(self, name: str, entry: Mapping[str, Any]) -> None:
        for key in _TRUSTING:
            if value := entry.get(key):
                tools = f" ({', '.join(map(str, value))})" if isinstance(value, list) else ""
                self._note(name, f"{key}{tools} is ignored, as policy decides here; see: ctx policy")
        for key in entry:
            if key not in _KEYS and not key.startswith(("_", "//")):
                self._note(name, f"{key} is left out")

    def _note(self, name: str, text: str) -> None:
        if (note := f"{name}: {text}") not in self._result.notes:
            self._result.notes.append(note)


def _own_name(name: str) -> str:
    return names.clean(name)[:MAX_NAME]


def _input(entry: Mapping[str, Any]) -> WantedInput:
    default = entry.get("default")
    about = str(entry.get("description") or entry["id"])
    if isinstance(options := entry.get("options"), list):
        about += f" ({', '.join(map(str, options))})"
    return WantedInput(entry["id"], about, default if isinstance(default, str) else None)


def _place_of(name: str) -> str | None:
    """Returns the name if it is that of a folder or a separator, which are no secrets, else None."""
    return name if name in ("workspaceFolder", "userHome", "workspaceFolderBasename", "pathSeparator",
                                "/") else None  # fmt: skip


def _with_default(reference: str) -> tuple[str, str | None]:
    name, found, default = reference.partition(":-")
    return name, default if found else None


def _tool_names(entry: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [str(tool) for key in keys if isinstance(entry.get(key), list) for tool in entry[key]]


def _seconds(timeout: object) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < _MAX_TIMEOUT:
        raise Fault("EINVAL", "timeout must be a number of seconds, or of milliseconds from 1000 on")
    seconds = timeout / 1000 if timeout >= _MILLISECONDS else timeout
    return max(1, min(round(seconds), MAX_SECONDS))
