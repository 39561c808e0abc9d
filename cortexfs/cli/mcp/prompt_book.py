"""The templates of `ctx ask`, and the agents of a mount, for clients of `ctx mcp serve`.

Rules: a template is what `ctx ask -t` makes of it: one of the user's own, a plugin's or an MCP server's. Its
text is an argument, too. An agent is its system prompt and a task.
This file must never know the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from cortexfs.cli import objects
from cortexfs.cli.ask import attach, mcp_prompts, prompts, template
from cortexfs.cli.ask.template import INPUT, AskOptions
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import nearest
from cortexfs.core.mcp_session import ListedPrompt
from cortexfs.core.safe_text import one_line

TASK = "task"
AGENT = "agent/"
MAX_SYSTEM = 1 << 20
MAX_LISTED = 1000


class TemplateBook:
    def __init__(self, root: str) -> None:
        self._root = root

    def listed(self) -> Sequence[ListedPrompt]:
        own = {name: asked for name in template.known() if (asked := _own(name)) is not None}
        found = [_of_template(name, asked) for name, asked in own.items()]
        theirs = mcp_prompts.listed(self._root) | prompts.listed(self._root)
        found += [one for name, one in theirs.items() if name not in own]
        for path in self._agents():
            name = objects.short(self._root, path)
            about = f"a task in the words of {name}"
            found.append(ListedPrompt(name, about, (TASK,)))
        return found[:MAX_LISTED]

    def _agents(self) -> list[str]:
        """Those whose words are here."""
        paths = objects.paths_of(self._root, "agent")
        return [path for path in paths if not objects.is_elsewhere(path)]

    def made(self, name: str, values: Mapping[str, str]) -> Sequence[tuple[str, str | bytes]]:
        known = {one.name: one for one in self.listed()}
        if name not in known:
            raise Fault("ENOENT", f"there is no prompt {name!r}{nearest(name, known)}")
        given = {key: value for key, value in values.items() if key != INPUT}
        said = values.get(INPUT, "")
        if name.startswith(AGENT) and name not in template.known():
            return self._of_agent(name, values)
        if name in template.known():
            asked = template.load(name).filled(given, said)
        elif (made := mcp_prompts.load(name, self._root, given)) is not None:
            asked = made.filled({}, said)
        else:
            asked = prompts.load(name, self._root).filled(given, said)
        text = "\n\n".join(filter(None, (asked.system, asked.prompt)))
        before = [(one["role"], one["content"]) for one in asked.before]
        files = [("user", attach.read(source)[1]) for source in asked.attachments]
        return [*before, *files, *([("user", text)] if text else [])]

    def completed(self, name: str, argument: Mapping[str, str], values: Mapping[str, str]) -> Sequence[str]:
        known = {one.name: one for one in self.listed()}
        wanted = argument["name"]
        if name not in known or wanted not in (*known[name].required, *known[name].optional):
            raise Fault("EINVAL", f"there is no prompt {name!r} with an argument {wanted!r}")
        if name in template.known():
            default = template.load(name).defaults.get(wanted, "")
            return [default] if default and default.startswith(argument["value"]) else []
        if name not in mcp_prompts.listed(self._root):
            return []
        return mcp_prompts.completed(name, self._root, argument, values)

    def _of_agent(self, name: str, values: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        if set(values) != {TASK}:
            raise Fault("EINVAL", f"{name} takes one argument, {TASK}")
        names.check(agent := name.removeprefix(AGENT))
        paths = [path for path in self._agents() if Path(path).name == agent]
        with open(f"{paths[-1]}.d/system.md", encoding="utf-8", errors="replace") as file:
            system = file.read(MAX_SYSTEM).strip()
        return [("user", "\n\n".join(filter(None, (system, values[TASK]))))]


def _own(name: str) -> AskOptions | None:
    try:
        return template.load(name)
    except Fault:
        return None


def _of_template(name: str, asked: AskOptions) -> ListedPrompt:
    texts = Template(asked.system), Template(asked.prompt)
    wanted = {each for text in texts for each in text.get_identifiers()}
    required = sorted(wanted - asked.defaults.keys())
    optional = sorted(({*wanted} & asked.defaults.keys()) | ({INPUT} - wanted))
    return ListedPrompt(name, one_line(asked.prompt or asked.system)[:200], tuple(required), tuple(optional))
