"""The commands by which the page sets a mount up: what each takes from a request, and in which words.

    step = STEPS[path](asked)      the words of the command, and its standard input

Rules: a value of the user's is never an option, and a secret is standard input: arguments are public.
This file must never know what the commands do.
"""

from __future__ import annotations

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


STEPS: dict[str, Callable[[PageRequest], Step]] = {
    "/api/plugin/review": _named("plugin", "review"),
    "/api/plugin/install": _named("plugin", "install", "--yes"),
    "/api/plugin/enable": _named("plugin", "enable"),
    "/api/plugin/disable": _named("plugin", "disable"),
    "/api/plugin/permission": _permission,
    "/api/plugin/setting": _setting,
    "/api/provider/secret": _secret,
}
