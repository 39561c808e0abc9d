"""The rules for a manifest.json's values, beyond their JSON types.

Rules: one function per rule, each a generator of problems. RULES has all of them, in the order of
reported problems.
This file must never know where a manifest comes from.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import EVENTS
from cortexfs.core.jsontext import nearest, shown
from cortexfs.core.manifest import semver
from cortexfs.core.manifestjson import capabilities, entry, widgets
from cortexfs.core.manifestjson.fields import CommandField, JsonManifest
from cortexfs.core.manifestjson.problems import Problem, below
from cortexfs.core.manifestjson.settings import problems as setting_problems

MAX_DEPENDENCIES = 200  # a limit, as the ranges of a hostile file would take seconds to read
HOST = "cortex"  # the name of this host in dependencies; no plugin can have it

_KEBAB = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FLAG = re.compile(r"-[A-Za-z0-9]")
_LINE_END = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
HASH = re.compile(r"sha256:[0-9a-fA-F]{64}")
# The form of an SPDX expression. Identifiers are not checked, as each release of SPDX has other ones.
_SPDX = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*")
_URL = re.compile(r"(?:git\+)?(?:https?|ssh|git)://\S+")
_KEBAB_MEND = "write it like my-plugin: lower-case letters and digits, with single hyphens between words"


def identity(manifest: JsonManifest) -> Iterator[Problem]:
    if manifest.name == HOST:
        yield Problem("invalid_name", "name", f"{HOST} is the name of the host itself", "choose another name")
    elif not is_plugin_name(manifest.name):
        mend = (
            "remove @author/ from the name; the key author has it"
            if manifest.name.startswith("@")
            else _KEBAB_MEND
        )
        yield Problem("invalid_name", "name", f"{shown(manifest.name)} is not kebab-case", mend)
    try:
        semver.parse(manifest.version)
    except Fault as fault:
        yield Problem("invalid_version", "version", fault.message, "write MAJOR.MINOR.PATCH")
    if not manifest.description.strip() or _LINE_END.search(manifest.description):
        yield Problem(
            "invalid_description", "description", "is not one line of text", "say in one line what it does"
        )


def is_plugin_name(name: str) -> bool:
    return bool(_KEBAB.fullmatch(name)) and len(name) <= names.MAX_COMPONENT


def code(manifest: JsonManifest) -> Iterator[Problem]:
    if manifest.runtime != entry.PAIRS[manifest.kind]:
        fault = f"{manifest.runtime} does not run plugins of kind {manifest.kind}"
        yield Problem("kind_runtime_mismatch", "runtime", fault, f"write {entry.PAIRS[manifest.kind]}")
    if problem := entry.problem(manifest.kind, manifest.entry_point):
        yield problem


def declared(manifest: JsonManifest) -> Iterator[Problem]:
    for index, name in enumerate(manifest.capabilities):
        path = f"capabilities[{index}]"
        if name not in capabilities.CAPABILITIES:
            fault = f"{shown(name)} is no capability"
            yield Problem("unknown_capability", path, fault, f"remove it{capabilities.mend(name)}")
        elif name in manifest.capabilities[:index]:
            yield Problem("duplicate_capability", path, f"{name} is declared twice", "remove one of them")
        elif capabilities.CAPABILITIES[name].reserved:
            yield Problem(
                "reserved_capability", path, f"{name} is reserved and grants nothing yet", "remove it"
            )
    for path, contributed, capability, category in _contributions(manifest):
        if contributed and capability not in manifest.capabilities:
            fault = f"needs the capability {capability}"
            yield Problem(category, path, fault, f'add "{capability}" to capabilities')


def _contributions(manifest: JsonManifest) -> Iterator[tuple[str, object, str, str]]:
    """Yields the key of each contribution, its value, its capability, and the problem if that is missing."""
    yield "events", manifest.events, "events:listener", "events_without_capability"
    yield "tools", manifest.tools, "tools", "missing_capability"
    yield "cliCommands", manifest.cli_commands, "cli:commands", "missing_capability"
    yield "ui.panels", manifest.ui.panels, "ui:panel", "missing_capability"
    yield "ui.widgets", manifest.ui.widgets, "ui:widget", "missing_capability"
    yield "config.providers", manifest.config.providers, "config:provider", "missing_capability"
    yield "ui.settings", manifest.ui.settings, "config:schema", "settings_without_capability"


def events(manifest: JsonManifest) -> Iterator[Problem]:
    for index, name in enumerate(manifest.events):
        if name not in EVENTS:
            mend = f"remove it{nearest(name, EVENTS) or '; the events are ' + ', '.join(EVENTS)}"
            yield Problem("unknown_event", f"events[{index}]", f"{shown(name)} is no event", mend)
    yield from _unique("events", manifest.events)


def dependencies(manifest: JsonManifest) -> Iterator[Problem]:
    for path, ranges in (
        ("dependencies", manifest.dependencies),
        ("peerDependencies", manifest.peer_dependencies),
    ):
        if len(ranges) > MAX_DEPENDENCIES:
            fault = f"names more than {MAX_DEPENDENCIES} plugins"
            yield Problem("invalid_dependency", path, fault, "name those that are needed")
        for name, range_ in islice(ranges.items(), MAX_DEPENDENCIES):
            if reason := _dependency_fault(manifest, name, range_):
                mend = 'write it like "other-plugin": "^1.0.0"'
                yield Problem("invalid_dependency", below(path, name), reason, mend)


def _dependency_fault(manifest: JsonManifest, name: str, range_: str) -> str | None:
    if name == manifest.name:
        return "is this plugin itself"
    if not is_plugin_name(name):
        return "is no name of a plugin"
    try:
        semver.parse_range(range_)
    except Fault as fault:
        return fault.message
    return None


def supply(manifest: JsonManifest) -> Iterator[Problem]:
    if manifest.hash is not None and not HASH.fullmatch(manifest.hash):
        mend = "write sha256: and the 64 hexadecimal digits of the SHA-256"
        yield Problem("invalid_hash", "hash", f"{shown(manifest.hash)} is not such a hash", mend)
    if manifest.signature is not None and not _is_base64(manifest.signature):
        yield Problem(
            "invalid_signature", "signature", "is not base64", "write the signature in base64, on one line"
        )
    if manifest.license is not None and not _SPDX.fullmatch(manifest.license):
        fault = f"{shown(manifest.license)} is no SPDX identifier"
        yield Problem("not_spdx", "license", fault, "write one like MIT or Apache-2.0")
    for path, url in (("homepage", manifest.homepage), ("repository", manifest.repository)):
        if url is not None and not _URL.fullmatch(url):
            yield Problem("not_a_url", path, f"{shown(url)} is no URL", "write one that begins with https://")


def _is_base64(text: str) -> bool:
    try:
        return bool(binascii.a2b_base64(text, strict_mode=True))
    except (binascii.Error, ValueError):
        return False


def tools(manifest: JsonManifest) -> Iterator[Problem]:
    for index, tool in enumerate(manifest.tools):
        path = f"tools[{index}]"
        yield from _component(f"{path}.name", tool.name)
        yield from _unique(f"{path}.params", [param.name for param in tool.params], "name")
        for at, param in enumerate(tool.params):
            is_text = param.type in ("string", "enum")
            if param.type == "enum" and not param.words:
                mend = 'list its values as "options": ["a", "b"], or make it a string'
                yield Problem("missing_field", f"{path}.params[{at}].options", "is missing", mend)
            elif param.enum is not None and (not is_text or not param.enum):
                fault = f"restricts a {param.type}" if param.enum else "allows no value"
                mend = 'list the allowed values of a param of type "string", or remove enum'
                yield Problem("invalid_value", f"{path}.params[{at}].enum", fault, mend)
    yield from _unique("tools", [tool.name for tool in manifest.tools], "name")


def commands(manifest: JsonManifest) -> Iterator[Problem]:
    yield from of_commands(manifest.cli_commands)


def of_commands(fields: Sequence[CommandField]) -> Iterator[Problem]:
    """Yields the problems of these commands. A module may declare commands too."""
    for index, command in enumerate(fields):
        path = f"cliCommands[{index}]"
        yield from _component(f"{path}.name", command.name)
        for at, option in enumerate(command.options):
            if not _OPTION.fullmatch(option.name):
                fault = f"{shown(option.name)} cannot follow --"
                yield Problem(
                    "invalid_name", f"{path}.options[{at}].name", fault, "write letters, digits, - and _"
                )
            if not _FLAG.fullmatch(option.flag):
                fault = f"{shown(option.flag)} is not a short flag"
                yield Problem(
                    "invalid_value", f"{path}.options[{at}].flag", fault, "write one letter, like -v"
                )
        # The handler receives arguments and options in one object.
        keys = [arg.name for arg in command.args] + [option.name for option in command.options]
        yield from _unique(f"{path}.options", keys, "name", len(command.args))
        yield from _unique(f"{path}.options", [option.flag for option in command.options], "flag")
    yield from _unique("cliCommands", [command.name for command in fields], "name")


def ui(manifest: JsonManifest) -> Iterator[Problem]:
    for index, panel in enumerate(manifest.ui.panels):
        path = f"ui.panels[{index}]"
        yield from _component(f"{path}.id", panel.id)  # part of a URL
        if not entry.inside(panel.html_path):
            fault = f"{shown(panel.html_path)} is no file of the package"
            yield Problem("invalid_path", f"{path}.htmlPath", fault, "write a path relative to the manifest")
    for index, widget in enumerate(manifest.ui.widgets):
        yield from _component(f"ui.widgets[{index}].id", widget.id)
    yield from _unique("ui.panels", [panel.id for panel in manifest.ui.panels], "id")
    yield from _unique("ui.widgets", [widget.id for widget in manifest.ui.widgets], "id")
    yield from widgets.problems(manifest)
    yield from setting_problems(manifest)


def providers(manifest: JsonManifest) -> Iterator[Problem]:
    for index, provider in enumerate(manifest.config.providers):
        yield from _component(f"config.providers[{index}].kind", provider.kind)
    yield from _unique("config.providers", [provider.kind for provider in manifest.config.providers], "kind")


def _component(path: str, name: str) -> Iterator[Problem]:
    if fault := names.fault_of(name):
        yield Problem("invalid_name", path, f"the name {shown(name)} {fault}", "choose another name")


def _unique(path: str, names: Iterable[str], key: str = "", skip: int = 0) -> Iterator[Problem]:
    """Yields a problem for each repeated name. The first `skip` names are in another list before this one."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            place = f"{path}[{max(index - skip, 0)}]{'.' + key if key else ''}"
            fault = f"{shown(name)} is used twice"
            yield Problem("duplicate_name", place, fault, "rename or remove one of them")
        seen.add(name)


RULES = (identity, code, declared, events, dependencies, supply, tools, commands, ui, providers)
