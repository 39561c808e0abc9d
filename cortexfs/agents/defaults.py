"""The start of a new agent: its prompt, its tools, its label and the policy lines that these need.

Rules: agent/base may read and nothing else. Each tool has a policy line with its name. The model has one with
the name that the agent uses: the daemon's owner chooses, now and later, the model that `main` leads to.
This file must never know where records are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from cortexfs.core.policy.rules import Rule

BASE = "base"
BASE_DESCRIPTION = "Answers about the files in your working directory; it can read them, and change nothing."
MODEL = "main"
BASE_TOOLS = ("fs.read", "fs.list", "fs.stat", "fs.glob", "fs.search", "text.word_count")
SHELL = "shell.exec"
STEPS = 64  # the original's limit, which scripts know as CTX_AGENT_STEPS

_PROMPTS = Path(__file__).parent / "prompts"


class AgentPreset(NamedTuple):
    """An agent for one kind of work. Its view fits its tools: the working directory is read-only if none of
    them changes files. Calls that change something are asked about."""

    tools: tuple[str, ...]  # tools that its model is offered, unless others are named
    system: str
    shell: tuple[str, ...] = ()  # tools that it may run in its shell, which is always offered
    env: str = ""


def _prompt(preset: str) -> str:
    return (_PROMPTS / f"{preset}.md").read_text()


PRESETS = {
    "read": AgentPreset(BASE_TOOLS, _prompt("read")),
    "code": AgentPreset(
        (SHELL,), _prompt("code"), (*BASE_TOOLS, "fs.write", "fs.replace"), "CTX_OUTPUT=text\n"
    ),
    "chat": AgentPreset((), _prompt("chat")),
}

# The controls of every agent until they are written; a record may have other values.
CONTROLS = {
    "iso": "shared",
    "life": "owned",
    "root": "/",
    "cwd": "/",
    "env": f"CTX_AGENT_STEPS={STEPS}",
    "window": "auto",
    "approval": "auto",
}

_ROOM = 56  # characters for the name, of the 64 of a label's part
_OUTSIDE = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)


def type_of(name: str, types: Collection[str] = ()) -> str:
    """Returns the type for an agent's label, by which policy lines name it. No other agent has this type."""
    stem = _OUTSIDE.sub("_", name)[:_ROOM]
    found, number = f"{stem}_t", 1
    while found in types:
        number += 1
        found = f"{stem}_{number}_t"
    return found


def label(type_: str) -> str:
    return f"user_u:agent_r:{type_}:s0"


def policy(type_: str, model: str, tools: Iterable[str]) -> str:
    """Returns the policy lines that an agent needs to use this model and these tools."""
    rules = [Rule(type_, "model", model, "use")]
    rules += [Rule(type_, "tool", tool, "execute") for tool in tools]
    return lines(rule.text for rule in rules)


def lines(items: Iterable[str]) -> str:
    return "".join(f"{item}\n" for item in items)


def controls(
    name: str, model: str, tools: Collection[str], types: Collection[str] = (), shell: Collection[str] = ()
) -> dict[str, str]:
    """Returns the controls that an agent with this model and these tools starts with. It may also run the
    tools of `shell`, but its model is not offered them."""
    type_ = type_of(name, types)
    return {
        "label": label(type_),
        "model": f"{model}\n",
        "system.md": PRESETS["read"].system,
        "tools": lines(tools),
        "policy": policy(type_, model, dict.fromkeys((*tools, *shell))),
    }
