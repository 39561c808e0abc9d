"""`ctx plugin`: plugins as they are made, checked, installed, enabled, and what came of them.

Rules: enabling writes plugins.json beside config.toml, never config.toml itself. A verb is a function of
one of the plugin_* modules, and the table below names them all; only the one that is asked for is imported.
"""

from __future__ import annotations

import argparse
import importlib
import os

from cortexfs.cli import daemons, mounts, parser
from cortexfs.cli.daemons import RunningDaemon
from cortexfs.core.errors import Fault
from cortexfs.state import directories

# By verb: module and function, and what it does.
VERBS = {
    "list": ("plugin.list.listing", "list installed and enabled plugins"),
    "install": (
        "plugin.install.install.install",
        "install a plugin from a directory, a package or an address, and enable it",
    ),
    "uninstall": ("plugin.install.install.uninstall", "disable a plugin, and remove its files with --purge"),
    "enable": ("plugin.install.install.enable", "load a plugin, now and from now on"),
    "disable": ("plugin.install.install.disable", "take a plugin's objects out of the mount"),
    "permissions": ("plugin.permissions.permissions", "say or change what a plugin may do"),
    "config": ("plugin.config.settings_verb", "say or change the settings of a plugin"),
    "import-mcp": ("mcp.import_file.import_mcp", "take over the MCP servers of another client's file"),
    "new": ("plugin.new.new", "make a plugin that works, to begin with"),
    "review": (
        "plugin.install.review.review",
        "say what a plugin asks for, and what holds it to what it claims",
    ),
    "test": ("plugin.install.review.test", "check a plugin, open its library, and call its tools with --run"),
    "keygen": ("plugin.sign.keygen", "make a key to sign plugins with"),
    "sign": ("plugin.sign.sign", "sign a plugin's directory"),
    "pack": ("plugin.sign.pack", "make a package of a plugin's directory"),
    "trust": ("plugin.trust.trust", "list the publishers that are trusted, or trust one no longer"),
}
WITHOUT_MOUNT = ("new", "review", "test", "keygen", "sign", "pack")
WITH_MOUNT = tuple(verb for verb in VERBS if verb not in WITHOUT_MOUNT)


def declare(into: parser.CommandParser) -> None:
    verbs = into.add_subparsers(metavar="VERB", required=True, dest="verb")
    for verb, (_, summary) in VERBS.items():
        one = verbs.add_parser(verb, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        if verb in WITH_MOUNT:
            parser.root_option(one)
            parser.places_options(one)
        ARGUMENTS[verb](one)
    parser.examples(into, "ctx plugin install ./my-notes", "ctx plugin list", "ctx plugin new my-notes")


def _list(one: argparse.ArgumentParser) -> None:
    parser.json_option(one)
    parser.examples(one, "ctx plugin list", "ctx plugin list --json")


def _install(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "source", metavar="SOURCE", help="a directory, FILE.cpx, https://..., owner/repo[@version]"
    )
    one.add_argument("--yes", action="store_true", help="trust its publisher without being asked")
    _replace(one, ", and let it take the place of another publisher's or a newer one")
    _private(one)
    parser.examples(
        one, "ctx plugin install ./my-notes", "ctx plugin install notes-v1.0.0-linux-amd64.cpx --yes"
    )


def _private(one: argparse.ArgumentParser) -> None:
    told = "networks without public addresses that its modules may be fetched from, too"
    one.add_argument("--private", metavar="NETWORKS", default="", help=told)


def _replace(one: argparse.ArgumentParser, more: str = "") -> None:
    text = "let its tools take the names of others'" + more
    one.add_argument("--replace", action="store_true", help=text)


def _uninstall(one: argparse.ArgumentParser) -> None:
    _named(one)
    one.add_argument("--purge", action="store_true", help="remove its files, too")
    parser.examples(one, "ctx plugin uninstall notes --purge")


def _named(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", metavar="PLUGIN", help="its name in: ctx plugin list")


def _enable(one: argparse.ArgumentParser) -> None:
    _named(one)
    _replace(one)
    parser.examples(one, "ctx plugin enable notes", "ctx plugin enable notes --replace")


def _disable(one: argparse.ArgumentParser) -> None:
    _named(one)
    parser.examples(one, "ctx plugin disable notes")


def _permissions(one: argparse.ArgumentParser) -> None:
    _named(one)
    one.add_argument(
        "--set", action="append", metavar="CAP=grant|deny|default", help="decide about a capability"
    )
    one.add_argument(
        "--private",
        metavar="NETWORKS",
        help="networks without public addresses that it may talk to, '' for none",
    )
    parser.json_option(one)
    parser.examples(one, "ctx plugin permissions notes", "ctx plugin permissions notes --set shell:run=deny")


def _config(one: argparse.ArgumentParser) -> None:
    _named(one)
    one.add_argument("key", metavar="KEY", nargs="?", help="one setting (default: all)")
    one.add_argument("value", metavar="VALUE", nargs="?", help="what it is to be; - reads standard input")
    one.add_argument("--unset", action="store_true", help="go back to its default")
    parser.json_option(one)
    parser.examples(
        one,
        "ctx plugin config notes",
        "ctx plugin config notes folder ~/notes",
        "ctx plugin config notes token - < token",
    )


def _import_mcp(one: argparse.ArgumentParser) -> None:
    one.add_argument("file", metavar="FILE", help='the JSON with "mcpServers", as other clients have it')
    one.add_argument("--replace", action="store_true", help="take the place of servers of the same names")
    parser.examples(one, "ctx plugin import-mcp ~/.config/Claude/claude_desktop_config.json")


def _new(one: argparse.ArgumentParser) -> None:
    one.add_argument("name", metavar="NAME", help="what the plugin is to be called")
    one.add_argument("directory", metavar="DIR", nargs="?", help="where (default: cortex-plugin-NAME)")
    one.add_argument(
        "--template", choices=("process", "native", "python"), default="process", help="what its tools are"
    )
    parser.examples(one, "ctx plugin new notes", "ctx plugin new notes --template native ./notes")


def _folder(one: argparse.ArgumentParser) -> None:
    one.add_argument("directory", metavar="DIR", help="a directory with a manifest.toml or manifest.json")


def _review(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "directory", metavar="DIR", help="a directory with a manifest.toml or manifest.json, or a package"
    )
    _private(one)
    parser.examples(one, "ctx plugin review ./notes", "ctx plugin review notes-v1.0.0-linux-amd64.cpx")


def _test(one: argparse.ArgumentParser) -> None:
    _folder(one)
    one.add_argument("--run", action="store_true", help="call each tool with an example of its input")
    _private(one)
    parser.examples(one, "ctx plugin test ./notes", "ctx plugin test ./notes --run")


def _keygen(one: argparse.ArgumentParser) -> None:
    one.add_argument("file", metavar="FILE", help="where the secret key goes; it is not to exist")
    parser.examples(one, "ctx plugin keygen ~/.ssh/plugins.key")


def _sign(one: argparse.ArgumentParser) -> None:
    _folder(one)
    one.add_argument("--key", metavar="FILE", required=True, help="what ctx plugin keygen made")
    one.add_argument("--publisher", metavar="ID", default="", help="who signs (default: the manifest says)")
    parser.examples(one, "ctx plugin sign ./notes --key ~/.ssh/plugins.key --publisher example.dev")


def _pack(one: argparse.ArgumentParser) -> None:
    _folder(one)
    one.add_argument("out", metavar="OUT", nargs="?", help="the package (default: named after the directory)")
    parser.examples(one, "ctx plugin pack ./notes", "ctx plugin pack ./notes notes.cpx")


def _trust(one: argparse.ArgumentParser) -> None:
    one.add_argument("action", choices=("list", "remove"), nargs="?", default="list", help="list or remove")
    one.add_argument("publisher", metavar="ID", nargs="?", help="the publisher that is no longer trusted")
    one.add_argument("fingerprint", metavar="FINGERPRINT", nargs="?", default="", help="of one of its keys")
    parser.json_option(one)
    parser.examples(one, "ctx plugin trust list", "ctx plugin trust remove example.dev")


ARGUMENTS = {
    "list": _list,
    "install": _install,
    "uninstall": _uninstall,
    "enable": _enable,
    "disable": _disable,
    "permissions": _permissions,
    "config": _config,
    "import-mcp": _import_mcp,
    "new": _new,
    "review": _review,
    "test": _test,
    "keygen": _keygen,
    "sign": _sign,
    "pack": _pack,
    "trust": _trust,
}


def _ours(given: str | None) -> RunningDaemon | None:
    """Returns the daemon that is meant, if it is ours: it would not see another state."""
    if {"CTX_STATE", "CTX_CONFIG"} & os.environ.keys():
        return None
    try:
        mount = mounts.mounted_at(mounts.root(given))
    except Fault:
        return None
    return daemons.of(mount) if mount and mount.owner == os.getuid() else None


def places_of(options: argparse.Namespace) -> directories.Places:
    """The directories that a command with `parser.places_options` works on."""
    state, directory = options.state, options.config
    if daemon := _ours(options.root):
        daemon.process.close()
        state, directory = state or daemon.state, directory or daemon.config
    return directories.places(os.environ, os.getuid(), state=state, config=directory)


def run(options: argparse.Namespace) -> int:
    has_places = options.verb in WITH_MOUNT
    where = places_of(options) if has_places else directories.places(os.environ, os.getuid())
    module, _, function = VERBS[options.verb][0].rpartition(".")
    status: int = getattr(importlib.import_module(f"cortexfs.cli.{module}"), function)(options, where)
    return status
