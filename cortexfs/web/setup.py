"""The commands by which the page sets a mount up: the arguments and input that each gets from a request.

    step = STEPS[path](asked)      the words of the command, and its standard input

Rules: a user's value never becomes an option. A secret goes to standard input, as arguments are public.
This file must never know what the commands do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.web.http import PageRequest

DECISIONS = ("grant", "deny", "default")


class Step(NamedTuple):
    words: tuple[str, ...]
    input: str = ""


def _by_name(*words: str) -> Callable[[PageRequest], Step]:
    return lambda request: Step((*words, "--", request.text("name")))


def _permission(request: PageRequest) -> Step:
    decision = request.text("decision")
    if decision not in DECISIONS:
        raise Fault("EINVAL", f"decision: expected one of {', '.join(DECISIONS)}")
    capability = f"--set={request.text('capability')}={decision}"
    return Step(("plugin", "permissions", capability, "--", request.text("name")))


def _setting(request: PageRequest) -> Step:
    name, key = request.text("name"), request.text("key")
    if "value" not in request.fields:
        return Step(("plugin", "config", "--unset", "--", name, key))
    return Step(("plugin", "config", "--", name, key, "-"), request.text("value"))


def _secret(request: PageRequest) -> Step:
    return Step(("provider", "secret", "--", "set", request.text("name")), request.text("value"))


def _agent(request: PageRequest) -> Step:
    fields = {key: request.text(key, "") for key in ("preset", "model", "tools", "approval", "description")}
    options = [f"--{key}={value}" for key, value in fields.items() if value]
    system = request.text("system", "")
    return Step(
        ("agent", "new", *options, *(["--system=-"] if system else []), "--", request.text("name")), system
    )


def _server(request: PageRequest) -> Step:
    """Returns the step for a server that is a command or has an address, with at most one secret."""
    name, secret, value = request.text("name"), request.text("secret", ""), request.text("value", "")
    command, url = request.text("command", ""), request.text("url", "")
    if name.startswith("-") or bool(command) == bool(url):
        raise Fault("EINVAL", "expected a name, and either a command or an address")
    if any(sign in secret for sign in "=:") or bool(secret) != bool(value):
        raise Fault("EINVAL", "secret: expected the name of a variable or header, and its value beside it")
    kind = "--env" if command else "--header"
    options = [f"{kind}={secret}"] if secret else []
    try:
        source = ["--", *shlex.split(command)] if command else [f"--url={url}"]
    except ValueError as problem:
        raise Fault("EINVAL", f"command: {problem}") from None
    return Step(("mcp", "add", *options, name, *source), f"{value}\n" if secret else "")


STEPS: dict[str, Callable[[PageRequest], Step]] = {
    "/api/plugin/review": _by_name("plugin", "review"),
    "/api/plugin/install": _by_name("plugin", "install", "--yes"),
    "/api/plugin/enable": _by_name("plugin", "enable"),
    "/api/plugin/disable": _by_name("plugin", "disable"),
    "/api/plugin/permission": _permission,
    "/api/plugin/setting": _setting,
    "/api/provider/secret": _secret,
    "/api/provider/add": _by_name("provider", "add"),
    "/api/agent/new": _agent,
    "/api/agent/rm": _by_name("agent", "rm", "--yes"),
    "/api/mcp/add": _server,
    "/api/mcp/import": _by_name("mcp", "import"),
    "/api/mcp/remove": _by_name("mcp", "remove"),
}
