"""The parser of policy v0: lines `allow LABEL CLASS:NAME PERMISSION`.

Rules: a request that no line allows is denied, so there is no deny, no order and no priority. A line names
one object, so there are no globs and no variables. A line may also name a model by an alias in model/. It
then allows any model to which the alias leads, to an agent that asks by the alias. A refusal names the line
and its remedy. A rule knows its file and line, because every decision names its rule.
This file must never know who asks, or the other layers of a decision (core/policy/decision.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from cortexfs.core import value_formats
from cortexfs.core.errors import Fault
from cortexfs.core.value_formats import refuse

# The permissions that a line may grant, by class.
PERMISSIONS = {
    "tool": ("execute", "sample", "roots"),  # the last two are for SERVER.mcp, the object of an MCP server
    "model": ("use",),
    "shared": ("read", "write"),
    "session": ("read", "write", "resume"),
    "mount": ("read", "write"),
    "agent": ("create", "start", "stop", "read", "write"),
    "network": ("connect",),
}
# The permission that running an object of a class needs.
TO_RUN = {"tool": "execute", "model": "use", "agent": "start"}
# Permissions of an MCP server to ask its client: for a model's answer, and for the folders that it may use.
SAMPLE, ROOTS = "sample", "roots"
FORM = "allow LABEL CLASS:NAME PERMISSION"

# An agent in a home. Its user chooses its label, so other policies name it by its place too.
_OWN = re.compile(r"\Ahome/(?:0|[1-9][0-9]{0,9})/", re.ASCII)
_GLOB = re.compile(r"[*?\[\]]")
_VARIABLE = re.compile(r"[$%{}]")


class Rule(NamedTuple):
    label: str  # the type of an agent's label: coder_t of user_u:agent_r:coder_t:s0, or home/1000/coder_t
    class_: str
    name: str
    permission: str
    file: str = ""
    line: int = 0

    @property
    def text(self) -> str:
        return f"allow {self.label} {self.class_}:{self.name} {self.permission}"

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


def parse(text: str, file: str = "") -> tuple[Rule, ...]:
    """Returns the rules of a policy file. Raises EINVAL for the first line that is no rule."""
    return tuple(_rule(number, line, file) for number, line in value_formats.rules(text))


def type_of(label: str) -> str:
    """Returns an agent's name in policy lines: the third part of its label, or nothing for no valid label."""
    try:
        value_formats.label(label)
    except Fault:
        return ""
    return label.strip().split(":")[2]


def policy_name(label: str, home: int | None) -> str:
    """Returns the name of an agent in objects' policies. `home` is the uid of the home that it is in."""
    return label if home is None or not label else f"home/{home}/{label}"


def find(rules: Iterable[Rule], label: str, class_: str, name: str, permission: str) -> Rule | None:
    parts = (label, class_, name, permission)
    return next((rule for rule in rules if rule[:4] == parts), None)


def by_name(rules: Iterable[Rule], class_: str) -> dict[str, tuple[Rule, ...]]:
    """Returns the rules about objects of a class, by the object's name."""
    found: dict[str, tuple[Rule, ...]] = {}
    for rule in rules:
        if rule.class_ == class_:
            found[rule.name] = (*found.get(rule.name, ()), rule)
    return found


def _rule(number: int, line: str, file: str) -> Rule:
    words = line.split()
    if words[0] == "deny":
        raise refuse(number, "policy has no deny; remove the line, as everything without a line is denied")
    if len(words) != 4 or words[0] != "allow":
        raise refuse(number, f"{line!r} is not of the form: {FORM}")
    _verb, label, target, permission = words
    _check_plain(number, (label, target))
    class_, _colon, name = target.partition(":")
    if not value_formats.LABEL.fullmatch(_OWN.sub("", label, count=1)):
        raise refuse(number, f"{label!r} is not a label; write its type, such as coder_t")
    if class_ not in PERMISSIONS:
        raise refuse(number, f"{class_!r} is not one of {', '.join(PERMISSIONS)}")
    if permission not in PERMISSIONS[class_]:
        raise refuse(number, f"{class_} has {' '.join(PERMISSIONS[class_])}, not {permission!r}")
    if class_ == "network" and name != "default":
        raise refuse(number, "the only network is network:default")
    if class_ == "agent" and (own := _OWN.match(name)):
        value_formats.check_object_name(number, class_, name[own.end() :])
    else:
        value_formats.check_object_name(
            number, "alias" if class_ == "model" and "/" not in name else class_, name
        )
    return Rule(label, class_, name, permission, file, number)


def _check_plain(number: int, words: Iterable[str]) -> None:
    for word in words:
        if _GLOB.search(word):
            raise refuse(number, f"{word!r} has a glob, which is not supported; write a line for each object")
        if _VARIABLE.search(word):
            raise refuse(number, f"{word!r} has a variable, which is not supported; write the name")
