"""The prompts of plugins, as templates of a question: -t PLUGIN/PROMPT.

Rules: the mount sends the whole text of a prompt, so no path that a plugin chose is opened here. A prompt is
text with variables, and nothing else: a plugin does not choose attachments, or the model.
This file must never know the question.
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

SECONDS = 1.0  # the time that a list waits for a mount


def named(name: str, given: str | None, values: dict[str, str]) -> tuple[AskOptions, dict[str, str]]:
    """Returns a template of the user, or a prompt of a plugin or an MCP server, and the variables that are
    still to be filled in."""
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
    """Returns the descriptions of prompts by name; none if no mount answers at once."""
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
