"""The first answer of `ctx mcp serve` on standard output, before the SDK is imported: the import takes longer
than clients like to wait.

Main path: `early` reads the first line and answers it if it is a greeting. `StdioInput` (stdio.py) passes the
line to the SDK as well, and `StdioOutput` drops the SDK's answer.

Rules: the answer equals the SDK's, which a test compares. An unusual greeting is left to the SDK, and so is
any greeting while the served server of the mount does not answer.
This file must never know the SDK.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs.client import execution, results
from cortexfs.client.results import Failed
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.mcp_session import GREETING, VARIABLE
from cortexfs.version import VERSION

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # the versions with a handshake
MAX_LINE = 64 << 10
INFO = {"name": "cortexfs", "title": "CortexFS", "version": VERSION}
TOOLS = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": False}}
PROMPTS = {"prompts": {"listChanged": False}, "completions": {}}
BEYOND = ("tasks", "extensions")  # capabilities that the SDK does not serve
SAID = ("capabilities", "serverInfo", "instructions")  # what a server reports of itself

Told: TypeAlias = Mapping[str, Any]


class _Client(msgspec.Struct):
    name: str
    version: str


class _Params(msgspec.Struct):
    protocolVersion: str
    capabilities: dict[str, Any]
    clientInfo: _Client


class _Greeting(msgspec.Struct, tag="initialize", tag_field="method"):
    jsonrpc: str
    id: int | str
    params: _Params


class _Answer(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None


class Greeted(NamedTuple):
    """The first line, and the id of the answered greeting; None if the line was not answered."""

    line: bytes
    id: int | str | None = None

    def is_answer(self, text: str) -> bool:
        """Returns True if `text` is the SDK's answer to the greeting."""
        if self.id is None:
            return False
        answer = msgspec.json.decode(text, type=_Answer)
        return answer.method is None and answer.id == self.id


def of_mount(has_prompts: bool) -> Told:
    """Returns the facts that the mount reports of itself."""
    return {"capabilities": TOOLS | (PROMPTS if has_prompts else {}), "serverInfo": INFO}


def of_server(object: str) -> Told | None:
    """Returns the facts that a server of the mount reports of itself, or None to let the SDK ask. This asks
    outside of a session, which begins when a client can receive the server's messages."""
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    try:
        with execution.run(object, input=msgspec.json.encode({"method": GREETING}), env=environ) as run:
            facts = msgspec.json.decode(results.text(run), type=dict[str, Any])
    except (Failed, *UNREADABLE):
        return None
    if "serverInfo" not in facts:
        return None
    can = {key: ability for key, ability in facts.get("capabilities", {}).items() if key not in BEYOND}
    return {key: facts[key] for key in SAID if key in facts} | {"capabilities": can}


def early(look: Callable[[], Told | None]) -> Greeted:
    """Read the first line of standard input and no byte more. Answer it if it is a greeting."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < MAX_LINE and (byte := os.read(0, 1)):
        line += byte
    try:
        request = msgspec.json.decode(line, type=_Greeting)
    except UNREADABLE:
        return Greeted(bytes(line))
    version = request.params.protocolVersion
    if request.jsonrpc != "2.0" or version not in VERSIONS or (facts := look()) is None:
        return Greeted(bytes(line))
    result = {"protocolVersion": version, **facts}
    answer = msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": result}) + b"\n"
    while answer:
        answer = answer[os.write(1, answer) :]
    return Greeted(bytes(line), request.id)
