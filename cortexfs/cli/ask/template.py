"""The options of a question, and the templates that keep them: TOML files in the user's configuration.

    system = "You translate into $language and say nothing else."
    prompt = "$input"
    defaults = {language = "French"}

    options = template.load("translate").under(overrides)   the command line overrides the template
    options.filled({"language": "Danish"}, "good day")

Rules: a template is a file of the folder `templates`. Only its user and root may have write access, because
it chooses what is sent, and to whom. A name that could leave the folder is invalid. A variable without a
value is a fault. A dollar that begins no variable stays as it is.
This file must never know mounts or models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from cortexfs.core import names, tomltext
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.jsontext import nearest
from cortexfs.core.mcp_session import ListedPrompt
from cortexfs.state import believed, directories, whole_files

FOLDER, END = "templates", ".toml"
MAX_FILE = 1 << 20
INPUT = "input"


class AskOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of a template, and the same options of a command line."""

    system: str = ""
    prompt: str = ""
    model: str = ""
    options: dict[str, Any] = {}
    schema: str = ""
    attachments: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    extract: bool = False
    defaults: dict[str, str] = {}
    before: tuple[dict[str, str], ...] = ()  # earlier messages, for a prompt with several

    @property
    def variables(self) -> set[str]:
        return {*Template(self.system).get_identifiers(), *Template(self.prompt).get_identifiers()}

    def listed(self, name: str, about: str) -> ListedPrompt:
        """Returns the row of a list of prompts. A text that the prompt does not place is optional."""
        variables = self.variables
        required = sorted(variables - self.defaults.keys())
        optional = sorted((variables & self.defaults.keys()) | ({INPUT} - variables))
        return ListedPrompt(name, about, tuple(required), tuple(optional))

    def under(self, overrides: AskOptions) -> AskOptions:
        """Returns these options, overridden by `overrides`. Attachments and tools are added up."""
        fields = {name: value for name, value in asdict(overrides).items() if value}
        for name in ("attachments", "tools"):
            fields[name] = (*getattr(self, name), *getattr(overrides, name))
        for name in ("options", "defaults"):
            fields[name] = getattr(self, name) | getattr(overrides, name)
        return replace(self, **fields)

    def filled(self, arguments: Mapping[str, str], text: str) -> AskOptions:
        """Returns these options with variables replaced. The text goes last, unless the prompt places it."""
        variables = self.variables - {INPUT}
        values = {**self.defaults, **arguments}
        if unknown := sorted(arguments.keys() - variables):
            raise Fault(
                "EINVAL", f"-p {unknown[0]}: there is no ${unknown[0]}{nearest(unknown[0], variables)}"
            )
        if missing := sorted(variables - values.keys()):
            raise Fault("EINVAL", f"${missing[0]} has no value; say -p {missing[0]}=VALUE")
        if INPUT in self.variables and not text:
            raise Fault("EINVAL", "the template needs a text for $input; say it, or pipe it in")
        values[INPUT] = text
        system, template = Template(self.system).safe_substitute(values), Template(self.prompt)
        prompt = template.safe_substitute(values)
        question = (
            prompt if INPUT in template.get_identifiers() else "\n\n".join(filter(None, (prompt, text)))
        )
        return replace(self, system=system, prompt=question)


def load(name: str) -> AskOptions:
    path = _path(name)
    data = believed.content_of(path, MAX_FILE, "template")
    if data is None:
        raise Fault(
            "ENOENT", f"there is no template {name!r}{nearest(name, known())}; see: ctx ask --templates"
        )
    return tomltext.converted(tomltext.table(data, str(path)), AskOptions, str(path))


def save(name: str, options: AskOptions) -> Path:
    path = _path(name)
    with os_faults(f"{path} cannot be written"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        believed.folder(path.parent)
        text = "".join(f"{line}\n" for line in tomltext.lines(msgspec.to_builtins(options)))
        whole_files.replace(path, [text.encode()], 0o600)
    return path


def known() -> list[str]:
    """Returns the names of the templates."""
    try:
        found = os.listdir(_folder())
    except (OSError, Fault):
        return []
    stems = (each.removesuffix(END) for each in found if each.endswith(END))
    return sorted(name for name in stems if not names.fault_of(name))


def _folder() -> Path:
    return directories.places(os.environ, os.getuid()).config / FOLDER


def _path(name: str) -> Path:
    return _folder() / f"{names.check(name)}{END}"
