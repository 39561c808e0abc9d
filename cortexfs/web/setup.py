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


def _named(*words: str) -> Callable[[PageRequest], Step]:
    return lambda asked: Step((*words, "--", asked.text("name")))


def _permission(asked: PageRequest) -> Step:
    decision = asked.text("decision")
    if decision not in DECISIONS:
        raise Fault("EINVAL", f"decision: expected one of {', '.join(DECISIONS)}")
    capability = f"--set={asked.text('capability')}={decision}"
    return Step(("plugin", "permissions", capability, "--", asked.text("name")))


def _setting(asked: PageRequest) -> Step:
    name, key = asked.text("name"), asked.text("key")
    if "value" not in asked.given:
        return Step(("plugin", "config", "--unset", "--", name, key))
    return Step(("plugin", "config", "--", name, key, "-"), asked.text("value"))


def _secret(asked: PageRequest) -> Step:
    return Step(("provider", "secret", "--", "set", asked.text("name")), asked.text("value"))


def _agent(asked: PageRequest) -> Step:
    given = {key: asked.text(key, "") for key in ("preset", "model", "tools", "approval", "description")}
    options = [f"--{key}={value}" for key, value in given.items() if value]
    system = asked.text("system", "")
    return Step(
        ("agent", "new", *options, *(["--system=-"] if system else []), "--", asked.text("name")), system
    )


def _server(asked: PageRequest) -> Step:
    """Returns the step for a server that is a command or has an address, with at most one secret."""
    name, secret, value = asked.text("name"), asked.text("secret", ""), asked.text("value", "")
    command, url = asked.text("command", ""), asked.text("url", "")
    if name.startswith("-") or bool(command) == bool(url):
        raise Fault("EINVAL", "expected a name, and either a command or an address")
    if any(sign in secret for sign in "=:") or bool(secret) != bool(value):
        raise Fault("EINVAL", "secret: expected the name of a variable or header, and its value beside it")
    kind = "--env" if command else "--header"
    options = [f"{kind}={secret}"] if secret else []
    try:
        meant = ["--", *shlex.split(command)] if command else [f"--url={url}"]
    except ValueError as problem:
        raise Fault("EINVAL", f"command: {problem}") from None
    return Step(("mcp", "add", *options, name, *meant), f"{value}\n" if secret else "")


STEPS: dict[str, Callable[[PageRequest], Step]] = {
    "/api/plugin/review": _named("plugin", "review"),
    "/api/plugin/install": _named("plugin", "install", "--yes"),
    "/api/plugin/enable": _named("plugin", "enable"),
    "/api/plugin/disable": _named("plugin", "disable"),
    "/api/plugin/permission": _permission,
    "/api/plugin/setting": _setting,
    "/api/provider/secret": _secret,
    "/api/provider/add": _named("provider", "add"),
    "/api/agent/new": _agent,
    "/api/agent/rm": _named("agent", "rm", "--yes"),
    "/api/mcp/add": _server,
    "/api/mcp/import": _named("mcp", "import"),
    "/api/mcp/remove": _named("mcp", "remove"),
}
