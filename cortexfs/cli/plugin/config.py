"""`ctx plugin config`: the settings of a plugin with a manifest.json.

Rules: what somebody has set counts, else the manifest's default. A secret is shown to nobody, and may be
given on standard input, where no list of processes shows it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from cortexfs.cli import output, parser
from cortexfs.cli.plugin.decided import decide, manifest_of
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.manifestjson import settings
from cortexfs.core.manifestjson.settings import Setting
from cortexfs.plugins.install.decisions import Chosen, DecisionStore
from cortexfs.state import directories

HEADS = ("key", "value", "from", "type", "what it is")
# A host is told of all of them in the packet that starts it.
MAX_SETTINGS = 24 << 10
INPUT = "-"


def settings_verb(options: argparse.Namespace, where: directories.Places) -> int:
    known = settings.settings_of(manifest_of(where, options.name))
    if options.key is not None and options.key not in known:
        hint = parser.nearest(options.key, known) or f"; see: ctx plugin config {options.name}"
        raise Fault("EINVAL", f"{options.key!r} is no setting of {options.name}{hint}")
    if options.unset or options.value is not None:
        _set(options, where, known)
    else:
        _show(options, known, DecisionStore(where.state).of(options.name))
    return EXIT_OK


def _set(options: argparse.Namespace, where: directories.Places, known: Mapping[str, Setting]) -> None:
    key = options.key
    if options.unset and (key is None or options.value is not None):
        raise Fault(
            "EINVAL", f"--unset wants a key and no value: ctx plugin config {options.name} KEY --unset"
        )
    value = None if options.unset else settings.read(known, key, _given(options.value))
    store = DecisionStore(where.state)
    sealed = isinstance(value, str) and known[key].is_secret and store.seal(options.name, key, value)

    def make(chosen: Chosen) -> Chosen:
        config = {name: one for name, one in chosen.config.items() if name != key}
        secrets = {name: one for name, one in chosen.secrets.items() if name != key}
        if sealed:
            secrets[key] = sealed
        elif not options.unset:
            config[key] = value
        if len(msgspec.json.encode((config, secrets))) > MAX_SETTINGS:
            raise Fault("EMSGSIZE", f"the settings of {options.name} would be over {MAX_SETTINGS >> 10} KiB")
        return replace(chosen, config=config, secrets=secrets)

    said = decide(options, where, make)
    output.say(f"{'unset' if options.unset else 'set'} {key} of {options.name}; {said}")


def _given(text: str) -> str:
    return sys.stdin.read(MAX_SETTINGS + 1).removesuffix("\n") if text == INPUT else text


def _show(options: argparse.Namespace, known: Mapping[str, Setting], said: Chosen) -> None:
    sealed = {key: one for key, one in said.secrets.items() if key in known and known[key].is_secret}
    chosen = said.config | sealed  # of which only is shown that they are there
    values = {
        key: one.shown(value) for key, one in known.items() if (value := _value(one, chosen)) is not None
    }
    if options.key is not None:
        if options.key in values:
            print(output.printable(_text(values[options.key])))
    elif options.json:
        output.emit(values)
    else:
        rows = [
            (
                key,
                _text(values[key]) if key in values else "-",
                "set" if key in chosen else "default" if key in values else "-",
                one.type or "any",
                ": ".join(filter(None, (one.label, one.about))) or "-",
            )
            for key, one in known.items()
        ]
        output.table(HEADS, rows)


def _value(one: Setting, chosen: Mapping[str, Any]) -> Any:
    return chosen.get(one.key, one.default)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
