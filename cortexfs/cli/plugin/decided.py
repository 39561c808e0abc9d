"""`ctx plugin config` and `ctx plugin permissions`: decisions about an installed plugin with a manifest.json.

Rules: a decision is in effect for the running mount when the command has ended, or the command says why not.
A setting has the value that the user has set, else the manifest's default. A secret is never shown. It may
come from standard input, so that no list of processes shows it. The permissions in effect are declared -
denied + granted (abi.md 9.26). A decision about one word holds for the whole plugin.
"""

from __future__ import annotations

import argparse
import ipaddress
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from cortexfs.cli import mounts, output, parser, reload
from cortexfs.cli.daemons import places_of
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifestjson import capabilities, settings
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.core.manifestjson.settings import Setting
from cortexfs.core.safe_text import within
from cortexfs.plugins import json_kinds
from cortexfs.plugins.install.decisions import Chosen, Decision, DecisionStore
from cortexfs.plugins.package import directory, manifests
from cortexfs.state import directories

# The packet that starts a host has all of them.
MAX_SETTINGS = 24 << 10
INPUT = "-"
DECISIONS = ("grant", "deny", "default")


def folder_of(where: directories.Places, name: str, given: str | None = None) -> Path:
    """Returns the folder of an installed plugin. `given` is the mount that a user may have meant."""
    base = where.state / directory.FOLDER
    folder = base / names.check(name)
    if not folder.is_dir():
        hint = parser.nearest(name, [path.name for path in directory.folders(base)])
        hint = hint or mounts.of_others(given, "its owner alone decides about its plugins")
        raise Fault("ENOENT", f"no plugin {name!r} is installed in {base}{hint or '; see: ctx plugin list'}")
    return folder


def manifest_of(where: directories.Places, name: str, given: str | None = None) -> JsonManifest:
    """Returns the plugin's manifest. Raises a Fault if it is missing, or is a manifest.toml."""
    folder = folder_of(where, name, given)
    manifest = directory.read(folder)
    if not manifests.is_json(manifest):
        mend = f"edit that of its author's directory, and install it again: {folder}"
        raise Fault("EINVAL", f"{name} has a manifest.toml, and only that file has its settings; {mend}")
    return manifest.json


def _decide(options: argparse.Namespace, where: directories.Places, make: Callable[[Chosen], Chosen]) -> str:
    """Write the decision down and tell the daemon. Returns a sentence about the result."""
    DecisionStore(where.state).change(options.name, make)
    return reload.tell(options.root, reload.broken("plugin", options.name, "does not load"))


def settings_verb(options: argparse.Namespace) -> None:
    where = places_of(options)
    known = settings.settings_of(manifest_of(where, options.name, options.root))
    if options.key is not None and options.key not in known:
        hint = parser.nearest(options.key, known) or f"; see: ctx plugin config {options.name}"
        raise Fault("EINVAL", f"{options.key!r} is no setting of {options.name}{hint}")
    if options.unset or options.value is not None:
        _set(options, where, known)
    else:
        _show_settings(options, known, DecisionStore(where.state).of(options.name))


def _set(options: argparse.Namespace, where: directories.Places, known: Mapping[str, Setting]) -> None:
    key, text = options.key, options.value
    if options.unset and (key is None or text is not None):
        command = f"ctx plugin config {options.name} KEY --unset"
        raise Fault("EINVAL", f"--unset wants a key and no value: {command}")
    if text == INPUT:
        text = sys.stdin.read(MAX_SETTINGS + 1).removesuffix("\n")
    value = None if options.unset else settings.read(known, key, text)
    store = DecisionStore(where.state)
    sealed = isinstance(value, str) and known[key].is_secret and store.seal(options.name, key, value)

    def make(former: Chosen) -> Chosen:
        config = {name: each for name, each in former.config.items() if name != key}
        secrets = {name: each for name, each in former.secrets.items() if name != key}
        if sealed:
            secrets[key] = sealed
        elif not options.unset:
            config[key] = value
        if len(msgspec.json.encode((config, secrets))) > MAX_SETTINGS:
            raise Fault("EMSGSIZE", f"the settings of {options.name} would be over {MAX_SETTINGS >> 10} KiB")
        return replace(former, config=config, secrets=secrets)

    sentence = _decide(options, where, make)
    output.say(f"{'unset' if options.unset else 'set'} {key} of {options.name}; {sentence}")


def _show_settings(options: argparse.Namespace, known: Mapping[str, Setting], decisions: Chosen) -> None:
    sealed = {key: each for key, each in decisions.secrets.items() if key in known and known[key].is_secret}
    set_values = decisions.config | sealed  # a sealed value only shows that it is set
    effective = {key: set_values.get(key, each.default) for key, each in known.items()}
    values = {key: known[key].shown(value) for key, value in effective.items() if value is not None}
    if options.key is not None:
        if options.key in values:
            print(within(_text(values[options.key])))
    elif options.fields:
        output.emit([_field(each, key in set_values, values.get(key)) for key, each in known.items()])
    elif options.json:
        output.emit(values)
    else:
        rows = [
            (
                key,
                _text(values[key]) if key in values else "-",
                _source(key in set_values, key in values, each),
                each.type or "any",
                ": ".join(filter(None, (each.label, each.about))) or "-",
            )
            for key, each in known.items()
        ]
        output.table(("key", "value", "from", "type", "what it is"), rows)


def _field(setting: Setting, is_set: bool, value: Any) -> dict[str, Any]:
    """Returns a setting, with all that a form for it needs."""
    return {
        **msgspec.to_builtins(setting),
        "default": setting.shown(setting.default),
        "value": value,
        "is_set": is_set,
    }


def _source(is_set: bool, has_value: bool, setting: Setting) -> str:
    """Returns the source of the value."""
    if is_set or has_value:
        return "set" if is_set else "default"
    return "required" if setting.is_required else "-"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def permissions(options: argparse.Namespace) -> None:
    where = places_of(options)
    manifest = manifest_of(where, options.name, options.root)
    changes = dict(_decision(text) for text in options.set or ())
    private = None if options.private is None else networks(options.private)

    def make(former: Chosen) -> Chosen:
        decided = {**former.capabilities, **cast(dict[str, Decision], changes)}
        return replace(
            former,
            capabilities={name: how for name, how in decided.items() if changes.get(name) != "default"},
            private=former.private if private is None else private,
        )

    if changes or private is not None:
        output.say(f"changed the permissions of {options.name}; {_decide(options, where, make)}")
    else:
        _show_permissions(manifest, DecisionStore(where.state).of(options.name), options.json)


def _decision(text: str) -> tuple[str, str]:
    name, _, how = text.partition("=")
    capabilities.check(name)
    if how not in DECISIONS:
        mend = f"write {name}=grant, {name}=deny or {name}=default"
        raise Fault("EINVAL", f"{shown(text)} is no decision; {mend}")
    return name, how


def networks(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(word.strip())) for word in text.split(",") if word.strip())
    except ValueError as problem:
        mend = "write networks like 10.0.0.0/8, or '' for none"
        raise Fault("EINVAL", f"--private: {problem}; {mend}") from None


def _show_permissions(manifest: JsonManifest, decisions: Chosen, as_json: bool) -> None:
    found = json_kinds.granted(manifest, decisions).explained
    if as_json:
        return output.emit({"capabilities": msgspec.to_builtins(found), "private": list(decisions.private)})
    cells = [
        (permission.capability, "yes" if permission.effective else "no", permission.reason)
        for permission in found
    ]
    output.table(("capability", "effective", "why"), cells)
    if decisions.private:
        output.say(f"it may talk to {', '.join(decisions.private)}, although these are not public addresses")
