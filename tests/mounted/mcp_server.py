"""An MCP server for tests, written by hand, so that it can misbehave. Its argument says how.

It speaks the protocol with a handshake: lines of JSON on standard input and output.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from typing import Any

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
ASKED: list[Any] = []
GOING: list[Any] = []  # calls to answer once the last page of the new list is requested


def send(**message: Any) -> None:
    """Send a message whole, even if a signal comes meanwhile."""
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    sys.stdout.write(line)
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": TEXT} | more


os.umask(UMASK := os.umask(0))
TOOLS = [
    tool("echo", annotations={"readOnlyHint": True, "openWorldHint": False}),
    tool("add", annotations={"readOnlyHint": False, "destructiveHint": False}),
    tool("shell"),
    tool("picture"),
    tool("whoami"),
    tool("soft"),
    tool("ask"),
    tool("sleep"),
    tool("die"),
    tool("grow"),
    tool("vanish"),
    tool("wrong"),
    tool("flood"),
    tool("endless"),
    tool("garbage"),
    tool("odd name/with .. things"),
    tool("odd name/with -- things"),
    tool("bad-schema", inputSchema={"type": "object", "properties": {"a": {"type": 7}}}),
    tool("huge", inputSchema={"type": "object", "description": "x" * 200_000}),
    tool("x" * 200),
]


def grow(*_: object) -> None:
    """Add a tool to the list. Called for SIGUSR1 too."""
    TOOLS.append(tool("grown"))
    send(method="notifications/tools/list_changed")


def call(request: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the answer of a tool; None if the tool does something else."""
    name, number = request["params"]["name"], request["id"]
    said = request["params"].get("arguments", {}).get("text", "")
    token = request["params"].get("_meta", {}).get("progressToken")
    match name:
        case "echo":
            if token is not None:
                params = {"progressToken": token, "progress": 1, "total": 2, "message": "half way"}
                send(method="notifications/progress", params=params)
            return text(said)
        case "picture":
            parts: list[dict[str, Any]] = [
                {"type": "text", "text": "made"},
                {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "inside"}},
                {
                    "type": "resource",
                    "resource": {
                        "uri": "a:c",
                        "mimeType": "application/zip",
                        "blob": base64.b64encode(b"zip").decode(),
                    },
                },
                {
                    "type": "resource_link",
                    "uri": "https://example.com/a.png",
                    "name": "a",
                    "mimeType": "image/png",
                },
            ]
            return {"content": parts}
        case "whoami":
            return text(
                json.dumps(
                    {
                        "uid": os.getuid(),
                        "pid": os.getpid(),
                        "umask": oct(UMASK),
                        "cwd": os.getcwd(),
                        "environ": dict(os.environ),
                    }
                )
            )
        case "soft":
            return text("it did not work") | {"isError": True}
        case "ask":
            schema = {"type": "object", "properties": {"a": {"type": "string"}}}
            send(id="q", method="elicitation/create", params={"message": "well?", "requestedSchema": schema})
            ASKED.append(number)
        case "sleep":
            if token is not None:
                send(method="notifications/progress", params={"progressToken": token, "progress": 1})
        case "die":
            os.kill(os.getpid(), 9)
        case "grow":
            grow()
            return text("grown")
        case "grown":
            return text("is there")
        case "vanish":
            TOOLS[:] = [one for one in TOOLS if one["name"] != "vanish"]
            send(method="notifications/tools/list_changed")
            GOING.append(number)
        case "wrong":
            send(id=99_999, result=text("not yours"))
        case "flood":
            while True:
                send(method="notifications/message", params={"level": "info", "data": "flood"})
        case "endless":
            while True:
                sys.stdout.write("x" * 65536)
        case "garbage":
            while True:
                sys.stdout.write("this is no JSON\n")
    return None


def answer(request: dict[str, Any]) -> None:
    number, method = request.get("id"), request.get("method")
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "test", "version": "1"}
        version = "2025-06-18"
        result: dict[str, Any] | None = {
            "protocolVersion": version, "capabilities": capabilities, "serverInfo": info
        }  # fmt: skip
    elif method == "tools/list":
        start = int(request.get("params", {}).get("cursor", 0))
        result = {"tools": TOOLS[start : start + 5]}
        if start + 5 < len(TOOLS):
            result["nextCursor"] = str(start + 5)
        elif GOING:
            send(id=GOING.pop(), result=text("gone"))
    elif method == "tools/call":
        result = call(request)
    elif method is None and number == "q":
        number, result = ASKED.pop(), text(json.dumps(request.get("error")))
    elif number is not None:
        send(id=number, error={"code": -32601, "message": f"no {method} here"})
        return
    else:
        return
    if result is not None:
        send(id=number, result=result)


def main() -> None:
    signal.signal(signal.SIGUSR1, grow)
    if sys.argv[1:] == ["silent"]:
        time.sleep(3600)
    if sys.argv[1:] == ["exits"]:
        print("no key", file=sys.stderr)
        sys.exit(3)
    if sys.argv[1:] == ["misfit"]:
        TOOLS[:] = [tool("misfit", inputSchema={"type": "objct"})]
    for line in sys.stdin:
        answer(json.loads(line))


main()
