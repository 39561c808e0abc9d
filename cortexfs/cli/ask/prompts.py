"""The prompts of plugins, as templates of a question: -t PLUGIN/PROMPT.

Rules: the mount tells a prompt whole, so no path of a stranger's is opened here. It is text with variables,
and nothing else: a plugin does not choose what goes along, or to whom.
This file must never know what is asked.
"""

from __future__ import annotations

from string import Template

from cortexfs.cli import mounts, texts
from cortexfs.cli.ask import mcp_prompts, template
from cortexfs.cli.ask.template import INPUT, AskOptions
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import nearest
from cortexfs.core.mcp_session import ListedPrompt

SECONDS = 1.0  # that a list waits for a mount


def named(name: str, given: str | None, values: dict[str, str]) -> tuple[AskOptions, dict[str, str]]:
    """A template of the user's own, or a prompt of a plugin's or an MCP server's; the variables that it has
    left."""
    if name in template.known():
        return template.load(name), values
    if (made := mcp_prompts.load(name, given, values)) is not None:
        return made, {}
    return (load(name, given) if "/" in name else template.load(name)), values


def load(name: str, given: str | None) -> AskOptions:
    plugin, _, prompt = name.partition("/")
    if names.fault_of(plugin) or names.fault_of(prompt):
        names.check(name)
    known = texts.listed(mounts.answering(given), texts.PROMPT)
    if name not in known:
        hint = nearest(name, known) or "; see: ctx ask --templates"
        raise Fault("ENOENT", f"no plugin of this mount has a prompt {name!r}{hint}")
    return AskOptions(prompt=known[name].text)


def known(given: str | None) -> dict[str, str]:
    """Returns their descriptions by name; none where no mount answers at once."""
    return {name: one.description for name, one in listed(given).items()}


def listed(given: str | None) -> dict[str, ListedPrompt]:
    try:
        found = texts.listed(mounts.root(given), texts.PROMPT, SECONDS)
    except Fault:
        return {}
    wanted = {name: {*Template(one.text).get_identifiers()} for name, one in found.items()}
    return {
        name: ListedPrompt(name, one.description, tuple(sorted(wanted[name])), tuple({INPUT} - wanted[name]))
        for name, one in found.items()
    }
