"""`ctx provider`: the servers whose models are in the mount, their keys, and what they list.

Rules: a provider is a TOML file that people may edit; it is added whole and never rewritten. A key comes
from standard input or a prompt, goes into state/secrets, and is printed by nothing. A running daemon
follows every change.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from cortexfs.cli import output, parser, reload
from cortexfs.cli.model import local
from cortexfs.core import networks
from cortexfs.core.errors import EXIT_OK, Fault, exit_status
from cortexfs.models.exchange import listing_request
from cortexfs.models.providers import provider as files
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import ListedModel, ProviderModel, cap, offers
from cortexfs.models.providers.provider import FORMATS, PRESETS, Preset, Provider
from cortexfs.models.providers.secrets import MAX_KEY, Secrets
from cortexfs.state import directories

VERBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "list": ("list the providers", ("ctx provider list", "ctx provider list --json")),
    "add": (
        "add a provider: a well-known one by its name alone",
        (
            "ctx provider add openai && ctx provider secret set openai",
            "ctx provider add ollama",
            "ctx provider add work --base-url https://llm.example.org/v1 --format openai.chat --model m1",
        ),
    ),
    "add-local": ("install a small model that runs on this machine", ("ctx provider add-local",)),
    "add-gguf": (
        "add a GGUF file as a model that runs on this machine",
        ("ctx provider add-gguf ~/models/qwen3-1.7b.gguf --name qwen/qwen3-1.7b",),
    ),
    "remove": (
        "remove a provider, its key and its models, or a GGUF file that was added",
        ("ctx provider remove groq", "ctx provider remove qwen/qwen3-1.7b"),
    ),
    "secret": ("keep the key of a provider", ("pass show openai | ctx provider secret set openai",)),
    "test": ("see whether a provider can be reached and takes its key", ("ctx provider test openai",)),
    "models": (
        "list the models of a provider, or of all",
        ("ctx provider models openrouter", "ctx provider models --refresh", "ctx provider models --json"),
    ),
}


class ProviderFolder:
    """The files that a command works with."""

    def __init__(self, options: argparse.Namespace) -> None:
        where = directories.places(os.environ, os.getuid(), state=options.state, config=options.config)
        self.where = where
        self.providers = Providers(where.config, where.state)
        self.secrets = Secrets(where.state)
        self.root: str | None = options.root

    def keep(self, name: str, provider: Provider, found: list[ListedModel]) -> None:
        directories.create(self.where)  # which closes the state to others
        self.providers.keep(name, provider, found, time.time())

    def told(self, name: str) -> str:
        return reload.told(self.root, reload.broken("provider", name, "cannot be used"))

    def key(self, name: str, provider: Provider) -> str:
        """The key, as the daemon would find it; a variable is looked for here."""
        import trio  # only those who ask a provider pay for it

        from cortexfs.models.providers.secrets import key_of

        return trio.run(key_of, name, provider.key, self.secrets)


def declare(into: parser.CommandParser) -> None:
    verbs = into.add_subparsers(metavar="VERB", required=True, dest="verb")
    for verb, (summary, examples) in VERBS.items():
        one = verbs.add_parser(verb, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.root_option(one)
        parser.places_options(one)
        parser.examples(one, *examples)
        _ARGUMENTS[verb](one)
    parser.examples(into, *(examples[0] for _, examples in VERBS.values()))


def _name(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", metavar="PROVIDER", help="its name in: ctx provider list")


def _add_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", metavar="NAME", help=f"one of {', '.join(PRESETS)}, or a name of your own")
    one.add_argument("--base-url", metavar="URL", help="where it is, without /chat/completions")
    one.add_argument("--format", metavar="FORMAT", help=f"what it speaks: {', '.join(FORMATS)}")
    one.add_argument("--model", metavar="ID", action="append", default=[], help="a model that it has")
    one.add_argument("--tools", action="store_true", help="its models take tools, though it does not say so")
    source = one.add_mutually_exclusive_group()
    source.add_argument("--key-env", metavar="VARIABLE", help="the daemon's variable that has the key")
    source.add_argument("--key-command", metavar="COMMAND", help="the command that prints the key")


def _secret_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("what", metavar="set", choices=("set",), help="keep a key, from standard input")
    _name(one)


def _models_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", metavar="PROVIDER", nargs="?", default="", help="without it, all of them")
    one.add_argument("--refresh", action="store_true", help="ask the provider, and keep what it says")
    parser.json_option(one)


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "list": parser.json_option,
    "add": _add_arguments,
    "add-local": lambda one: None,
    "add-gguf": local.declare_gguf,
    "remove": _name,
    "secret": _secret_arguments,
    "test": _name,
    "models": _models_arguments,
}


def run(options: argparse.Namespace) -> int:
    verbs = {
        "list": _list, "add": _add, "remove": _remove, "secret": _secret, "test": _test, "models": _models,
        "add-local": _add_local, "add-gguf": _add_gguf,
    }  # fmt: skip
    return verbs[options.verb](options, ProviderFolder(options))


def _add(options: argparse.Namespace, place: ProviderFolder) -> int:
    provider = _described(options)
    directories.create(place.where)
    place.providers.add(options.name, provider)
    heard = _refreshed(options.name, provider, place)
    output.say(f"added {options.name}, {place.providers.path(options.name)}; {heard}")
    at = urlsplit(provider.base_url)
    if at.scheme == "http" and not networks.is_loopback(at.hostname):
        output.say(f"{provider.base_url} is not https: what is asked there can be read on the way")
    output.say(place.told(options.name))
    return EXIT_OK


def _described(options: argparse.Namespace) -> Provider:
    """The provider that the arguments mean: a preset, with what they say otherwise."""
    preset = PRESETS.get(options.name)
    if preset is None and not options.base_url:
        hint = parser.nearest(options.name, PRESETS) or "; known by name are " + ", ".join(PRESETS)
        raise Fault("EINVAL", f"{options.name!r} needs --base-url URL{hint}")
    preset = preset or Preset("")
    made = Provider(
        base_url=files.check_base_url(options.base_url or preset.base_url),
        format=files.check_format(options.format or preset.format),
        models=tuple(dict.fromkeys(options.model)),
        key=_key(options),
        tools=options.tools or preset.tools,
    )
    return files.decode(files.encode(made), "the arguments")  # as strict as with a file


def _key(options: argparse.Namespace) -> files.KeySource | None:
    if options.key_env:
        return files.KeySource(env=options.key_env)
    if options.key_command:
        import shlex

        return files.KeySource(command=tuple(shlex.split(options.key_command)))
    return None


def _refreshed(name: str, provider: Provider, place: ProviderFolder) -> str:
    """Ask for its models, and say how many there are; that it does not answer now is no failure."""
    if not provider.listed:
        return f"{len(provider.models) + len(provider.model)} models declared"
    try:
        found = listing_request.models(name, provider, place.key(name, provider))
        place.keep(name, provider, found)
    except Fault as fault:
        mend = "" if fault.code == "EACCES" else f"; ask again with: ctx provider models {name} --refresh"
        return f"its models are not listed yet: {_why(fault) if mend else fault.message}{mend}"
    return f"{len(found)} models listed"


def _add_local(options: argparse.Namespace, place: ProviderFolder) -> int:
    return local.add_local(place.root)


def _add_gguf(options: argparse.Namespace, place: ProviderFolder) -> int:
    return local.add_gguf(options, place.where)


def _remove(options: argparse.Namespace, place: ProviderFolder) -> int:
    if "/" in options.name:
        return local.remove(options.name, place.where, place.root)
    place.providers.remove(options.name)
    place.secrets.remove(options.name)
    output.say(f"removed {options.name}, its models and its key; {place.told(options.name)}")
    return EXIT_OK


def _secret(options: argparse.Namespace, place: ProviderFolder) -> int:
    name = options.name
    provider = place.providers.read(name)
    if provider.key is not None:
        raise Fault("EINVAL", f"{place.providers.path(name)} says where the key is; remove its `key` first")
    directories.create(place.where)
    place.secrets.set(name, _typed(name))
    heard = _refreshed(name, provider, place)
    output.say(f"kept the key of {name}; {heard}")
    output.say(place.told(name))
    return EXIT_OK


def _typed(name: str) -> bytes:
    """The key: what is piped, or what is typed without being shown."""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.read(MAX_KEY + 2)
    import getpass

    try:
        return getpass.getpass(f"key of {name} (not shown): ").encode()
    except EOFError:
        raise Fault("EINVAL", "no key was given") from None


def _why(fault: Fault) -> str:
    """Returns the daemon's words about it, without the command that they answer."""
    return fault.message.partition("; see: ctx provider test ")[0]


def _test(options: argparse.Namespace, place: ProviderFolder) -> int:
    name, provider = options.name, place.providers.read(options.name)
    key = place.key(name, provider)
    began = time.monotonic()
    try:
        said = f"{len(listing_request.models(name, provider, key))} models"
    except Fault as fault:
        if fault.code != "ENOENT":
            raise Fault(fault.code, _why(fault)) from None
        said = "it lists no models"
    taken = "with its key" if key else "without a key"
    output.say(f"{name} answers {taken}, in {(time.monotonic() - began) * 1000:.0f} ms; {said}")
    return EXIT_OK


def _models(options: argparse.Namespace, place: ProviderFolder) -> int:
    """Those of one provider, or of all: what is wrong with one does not keep the others back."""
    names = [options.name] if options.name else sorted(place.providers.load().providers)
    rows, status = [], EXIT_OK
    for name in names:
        try:
            rows += _listed(name, options.refresh, place)
        except Fault as fault:
            if options.name:
                raise
            status = exit_status(fault.code)
            output.say(f"{name}: {fault.message}")
    if options.json:
        output.emit(rows)
    else:
        cells = [(row["model"], row["limit"] or "unknown", " ".join(row["cap"]), row["id"]) for row in rows]
        output.table(("model", "limit", "cap", "id"), [tuple(map(str, row)) for row in cells])
    return status


def _listed(name: str, refresh: bool, place: ProviderFolder) -> list[dict[str, Any]]:
    provider = place.providers.read(name)
    known = place.providers.listing(name, provider)
    if provider.listed and (refresh or known is None):
        place.keep(name, provider, listing_request.models(name, provider, place.key(name, provider)))
        output.say(place.told(name))
        known = place.providers.listing(name, provider)
    return [_row(offer, provider) for offer in offers(name, provider, known.models if known else ())]


def _row(offer: ProviderModel, provider: Provider) -> dict[str, Any]:
    limit = offer.declared.limit or (offer.listed and offer.listed.limit)
    return {
        "model": offer.name,
        "id": offer.declared.id,
        "limit": limit,
        "cap": list(cap(offer, provider)),
    }


def _list(options: argparse.Namespace, place: ProviderFolder) -> int:
    found = place.providers.load()
    rows = [_about(name, provider, place) for name, provider in found.providers.items()]
    rows += local.about(place.where.config)
    rows += [{"name": name, "status": "broken", "reason": why} for name, why in found.broken.items()]
    if options.json:
        output.emit(rows)
        return EXIT_OK
    cells = [
        (row["name"], row.get("format", "-"), row["status"], str(row.get("models", "-")),
         row.get("base_url") or row["reason"])
        for row in rows
    ]  # fmt: skip
    output.table(("name", "format", "key", "models", "address"), cells)
    return EXIT_OK


def _about(name: str, provider: Provider, place: ProviderFolder) -> dict[str, Any]:
    listing = place.providers.listing(name, provider)
    return {
        "name": name,
        "format": provider.format,
        "base_url": provider.base_url,
        "status": _has_key(name, provider, place),
        "models": len(offers(name, provider, listing.models if listing else ())),
        "file": str(place.providers.path(name)),
    }


def _has_key(name: str, provider: Provider, place: ProviderFolder) -> str:
    if provider.key:
        return "env" if provider.key.env else "command"
    return "kept" if place.secrets.has(name) else "missing" if provider.needs_key else "none"
