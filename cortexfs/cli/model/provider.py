"""`ctx provider` and `ctx model`: the servers whose models are in the mount, their keys and lists of models;
and the user's own models, made from those.

Rules: a provider is a TOML file that people may edit; it is added whole and never rewritten. A key comes from
standard input or a prompt, goes into state/secrets, and is never printed. A running daemon follows every
change.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from cortexfs.cli import output, parser, progress, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.model import own
from cortexfs.core import names, networks, value_formats
from cortexfs.core.errors import EXIT_OK, Fault, exit_status
from cortexfs.models.ask.model import parameters
from cortexfs.models.providers import provider as files
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import ListedModel, resolved
from cortexfs.models.providers.provider import PRESETS, Preset, Provider
from cortexfs.models.providers.secrets import MAX_KEY, Secrets
from cortexfs.state import directories


class ProviderFolder:
    """The files of a command."""

    def __init__(self, options: argparse.Namespace) -> None:
        where = places_of(options)
        self.where = where
        self.providers = Providers(where.config, where.state)
        self.secrets = Secrets(where.state)
        self.root: str | None = options.root

    def reload(self, name: str) -> str:
        return reload.tell(self.root, reload.broken("provider", name, "cannot be used"))

    def key(self, name: str, provider: Provider) -> str:
        """Returns the key, as the daemon would find it, but with the variables of this process."""
        import trio  # a slow import that only asking a provider needs

        from cortexfs.models.providers.secrets import key_of

        return trio.run(key_of, name, provider.key, self.secrets)


def add(options: argparse.Namespace) -> None:
    name, provider = options.name, _provider(options)
    root = own.root_of(options.root)
    lines = _add_own(root, name, provider) if root else _add_here(options, provider)
    output.say(f"added {lines[0]}")
    at = urlsplit(provider.base_url)
    if at.scheme == "http" and not networks.is_loopback(at.hostname):
        output.say(f"{provider.base_url} is not https: others on the network can read questions and answers")
    for line in lines[1:]:
        output.say(line)


def _add_here(options: argparse.Namespace, provider: Provider) -> list[str]:
    name, place = options.name, ProviderFolder(options)
    directories.create(place.where)
    place.providers.add(name, provider)
    if key := _needed_key(name, provider, place.secrets.has(name)):
        place.secrets.set(name, key)
    sentence = _refresh(name, provider, place)
    return [f"{name}, {place.providers.path(name)}; {sentence}", place.reload(name)]


def _add_own(root: str, name: str, provider: Provider) -> list[str]:
    key = _needed_key(name, provider).decode("latin-1")
    sentence = own.ask(root, "add", name, provider=msgspec.to_builtins(provider), key=key)
    return [f"{own.path_of(name)}; {sentence}"]


def _needed_key(name: str, provider: Provider, has_key: bool = False) -> bytes:
    """Returns the key, if one is needed and a person can type it; empty if it is to come later."""
    is_asked = provider.needs_key and provider.key is None and not has_key and sys.stdin.isatty()
    return _typed_key(name) if is_asked else b""


def _provider(options: argparse.Namespace) -> Provider:
    """Returns the provider that the arguments mean: a preset, overridden by the other arguments."""
    preset = PRESETS.get(options.vendor or options.name)
    if preset is None and not options.base_url:
        hint = parser.nearest(options.name, PRESETS) or "; known by name are " + ", ".join(PRESETS)
        raise Fault("EINVAL", f"{options.name!r} needs --base-url URL{hint}")
    if options.key_env and options.key_command:
        raise Fault("EINVAL", "--key-env and --key-command exclude each other; see: ctx provider add --help")
    key = files.KeySource(env=options.key_env) if options.key_env else None
    if options.key_command:
        import shlex

        try:
            words = shlex.split(options.key_command)
        except ValueError as problem:
            raise Fault("EINVAL", f"--key-command: {str(problem).lower()}") from None
        key = files.KeySource(command=tuple(words))
    preset = preset or Preset("")
    provider = Provider(
        base_url=files.check_base_url(options.base_url or preset.base_url),
        format=files.check_format(options.format or preset.format),
        models=tuple(dict.fromkeys(options.model)),
        key=key,
        tools=options.tools or preset.tools,
    )
    return files.decode(files.encode(provider), "the arguments")  # as strict as for a file


def _refresh(name: str, provider: Provider, place: ProviderFolder) -> str:
    """Ask for the provider's models, and return a sentence with their number. No answer now is no failure."""
    if not provider.listed:
        return f"{len(provider.models) + len(provider.model)} models declared"
    try:
        found, able = _learn(name, provider, place)
    except Fault as fault:
        mend = "" if fault.code == "EACCES" else f"; ask again with: ctx provider models {name} --refresh"
        return f"its models are not listed yet: {_why(fault) if mend else fault.message}{mend}"
    return f"{len(found)} models listed" + "".join(f"; {id_} called a tool when asked to" for id_ in able)


def _learn(name: str, provider: Provider, place: ProviderFolder) -> tuple[list[ListedModel], list[str]]:
    """Ask for the models, and test tool calls of models with unknown abilities. Keep all that is learnt."""
    key = place.key(name, provider)
    found = _models(name, provider, key)
    with progress.shown(f"asking models of {name} to call a tool"):
        from cortexfs.models.exchange import tool_probe  # a slow import that only asking a provider needs

        every = place.providers.abilities.table().offers(name, provider, found)
        unsaid = [offer.known for offer in every if offer.declared.cap is None]
        able = tool_probe.able(provider, key, unsaid)
    found = tool_probe.completed(found, able)
    directories.create(place.where)  # this closes the state to others
    place.providers.keep(name, provider, found, time.time())
    return found, able


def _models(name: str, provider: Provider, key: str) -> list[ListedModel]:
    with progress.shown(f"asking {name} for its models"):
        from cortexfs.models.exchange import listing_request

        return listing_request.models(name, provider, key)


def remove(options: argparse.Namespace) -> None:
    if root := own.root_of(options.root):
        own.ask(root, "remove", options.name)
        return output.say(f"removed {own.path_of(options.name)} and its key")
    place = ProviderFolder(options)
    if "/" in options.name:
        from cortexfs.cli.model import local

        return local.remove(options.name, place.where, place.root)
    place.providers.remove(options.name)
    place.secrets.remove(options.name)
    output.say(f"removed {options.name}, its models and its key; {place.reload(options.name)}")


def secret(options: argparse.Namespace) -> None:
    name = options.name
    if root := own.root_of(options.root):
        sentence = own.ask(root, "secret", name, key=_typed_key(name).decode("latin-1"))
        return output.say(f"kept the key of {name}; {sentence}")
    place = ProviderFolder(options)
    provider = place.providers.read(name)
    if provider.key is not None:
        raise Fault("EINVAL", f"{place.providers.path(name)} says where the key is; remove its `key` first")
    directories.create(place.where)
    place.secrets.set(name, _typed_key(name))
    output.say(f"kept the key of {name}; {_refresh(name, provider, place)}")
    output.say(place.reload(name))


def _typed_key(name: str) -> bytes:
    """Returns the key, which is piped, or typed without being shown."""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.read(MAX_KEY + 2)
    import getpass

    try:
        return getpass.getpass(f"key of {name} (not shown): ").encode()
    except EOFError:
        raise Fault("EINVAL", "no key was given") from None


def _why(fault: Fault) -> str:
    """Returns the daemon's reason, without the command that led to it."""
    return fault.message.partition("; see: ctx provider test ")[0]


def test(options: argparse.Namespace) -> None:
    name, began = options.name, time.monotonic()
    if root := own.root_of(options.root):
        return _answers(options, "", own.ask(root, "test", name), began)
    place = ProviderFolder(options)
    provider = place.providers.read(name)
    key = place.key(name, provider)
    count, began = None, time.monotonic()
    try:
        count = len(_models(name, provider, key))
    except Fault as fault:
        if fault.code != "ENOENT":
            raise Fault(fault.code, _why(fault)) from None
    _answers(options, " with its key" if key else " without a key", count, began)


def _answers(options: argparse.Namespace, key_note: str, count: int | None, began: float) -> None:
    ms = round((time.monotonic() - began) * 1000)
    if options.json:
        output.emit({"provider": options.name, "models": count, "ms": ms})
    else:
        result = "it lists no models" if count is None else f"{count} models"
        output.say(f"{options.name} answers{key_note}, in {ms} ms; {result}")


def models(options: argparse.Namespace) -> int:
    """List the models of one provider, or of all. A fault of one provider does not hide the others."""
    place, root = ProviderFolder(options), own.root_of(options.root)
    known = [row["name"] for row in own.ask(root, "list")] if root else place.providers.load().providers
    rows, status = [], EXIT_OK
    for name in [options.name] if options.name else sorted(known):
        try:
            if root:
                rows += own.ask(root, "models", name, refresh=options.refresh)
            else:
                rows += _rows(name, options.refresh, place)
        except Fault as fault:
            if options.name:
                raise
            status = exit_status(fault.code)
            output.say(f"{name}: {fault.message}")
    cells = ((row["model"], row["limit"] or "unknown", " ".join(row["cap"]), row["id"]) for row in rows)
    heads = ("model", "limit", "cap", "id")
    output.print_rows(options.json, rows, heads, (tuple(map(str, row)) for row in cells))
    return status


def _rows(name: str, refresh: bool, place: ProviderFolder) -> list[dict[str, Any]]:
    provider = place.providers.read(name)
    is_asked = provider.listed and (refresh or place.providers.listing(name, provider) is None)
    try:
        if is_asked:
            _learn(name, provider, place)
    except Fault:  # the edited file counts even if the provider does not answer
        output.say(place.reload(name))
        raise
    if is_asked or refresh:
        output.say(place.reload(name))
    return place.providers.model_rows(name, provider)


def listing(options: argparse.Namespace) -> None:
    if root := own.root_of(options.root):
        rows = own.ask(root, "list")
    else:
        from cortexfs.cli.model import local

        place = ProviderFolder(options)
        found = place.providers.load()
        rows = [
            place.providers.about(name, provider, place.secrets) | {"file": str(place.providers.path(name))}
            for name, provider in found.providers.items()
        ]
        rows += local.about(place.where.config)
        rows += [{"name": name, "status": "broken", "reason": why} for name, why in found.broken.items()]
    cells = (
        (row["name"], row.get("format", "-"), row["status"], str(row.get("models", "-")),
         row.get("base_url") or row["reason"])
        for row in rows
    )  # fmt: skip
    output.print_rows(options.json, rows, ("name", "format", "key", "models", "address"), cells)


def new(options: argparse.Namespace) -> None:
    """Make a model: a table at the end of the provider's file, whose other lines stay as they are. The model
    is a real object with its own id and defaults, as the seed requires, not an alias that overrides."""
    place = ProviderFolder(options)
    names.check_object("model", names.check_new(options.name))
    known = place.providers.every_offer()
    if any(offer.name == options.name for offer in known):
        raise Fault("EEXIST", f"there is a model {options.name} already; choose another name")
    origin = resolved(known, options.origin.removeprefix("model/"))
    value_formats.parameters("".join(f"{line}\n" for line in options.set))
    declared = origin.declared
    model = msgspec.structs.replace(
        declared,
        name=options.name,
        description=options.description or declared.description,
        default=declared.default | parameters("\n".join(options.set)),
        effort=options.effort or declared.effort,
    )
    place.providers.declare(origin.provider, model)
    sentence = place.reload(origin.provider)
    output.say(f"made model/{options.name} in {place.providers.path(origin.provider)}; {sentence}")
