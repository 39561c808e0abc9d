"""`ctx mcp import` and `ctx plugin import-mcp`: the MCP servers of another client's file.

Rules: `import-mcp` takes a file as it is, whole or not at all, and asks nothing, for scripts. `import` asks
for the values that a file leaves open, and names the parts it leaves out. A value that was filled in is a
secret, and nothing prints it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from cortexfs.cli import output
from cortexfs.cli.daemons import places_of
from cortexfs.cli.mcp.servers import tell
from cortexfs.cli.mcp.starts import Starts
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import mcp_import, mcp_server
from cortexfs.core.manifest.mcp_import import Import, WantedInput
from cortexfs.core.manifest.mcp_server import McpServer
from cortexfs.core.safe_text import within
from cortexfs.models.providers.secrets import MAX_KEY
from cortexfs.plugins.mcp_servers import MAX_FILE, Servers
from cortexfs.state import directories


def import_mcp(options: argparse.Namespace) -> int:
    found = mcp_import.all_of(_read(Path(options.file)))
    servers = _write(options, found, {})
    for name in found:
        print(f"{name}: {servers.path(name)}")
    sentence, status = _tell(options, found)
    print(sentence)
    return status


def import_servers(options: argparse.Namespace) -> int:
    found = Import(_Typing()).of(_read(Path(options.file)))
    for note in found.notes:
        output.say(note)
    servers = _write(options, found.servers, found.typed)
    sentence, status = _tell(options, found.servers)
    for name in found.servers:
        output.say(f"added {name}, {servers.path(name)}")
    output.say(sentence)
    return status


def _write(
    options: argparse.Namespace, found: Mapping[str, McpServer], typed: Mapping[str, set[str]]
) -> Servers:
    where = places_of(options)
    directories.create(where)  # this closes the state to others
    servers = Servers(where.config, where.state)
    drafts = {name: mcp_server.parted(name, server, typed.get(name, ())) for name, server in found.items()}
    servers.write(drafts, replace=options.replace)
    return servers


def _tell(options: argparse.Namespace, names: Iterable[str]) -> tuple[str, int]:
    return tell(options.root, names, Starts(places_of(options).state, names))


def _read(path: Path) -> object:
    with open(path, "rb") as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise Fault("EMSGSIZE", f"{path} is over {MAX_FILE >> 20} MiB")
    try:
        value: object = mcp_import.read(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Fault("EINVAL", f"{path} is no JSON: {error}") from None
    return value


class _Typing:
    """Fills in the values that a file leaves open. The person types each on a line, which is not shown."""

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def place(self, name: str) -> str | None:
        here = os.getcwd()
        places = {
            "workspaceFolder": here,
            "workspaceFolderBasename": os.path.basename(here),
            "userHome": os.path.expanduser("~"),
        }
        return places.get(name, "/")

    def ask(self, field: WantedInput) -> str:
        hint = " (not shown)" if field.default is None else " (not shown; empty for its default)"
        question = f"{within(field.about)}{hint}: "
        if sys.stdin.isatty():
            import getpass

            value = getpass.getpass(question)
        else:
            line = sys.stdin.readline(MAX_KEY + 1)
            if not line and field.default is None:
                why = f"{within(field.about)} is needed; type it on a terminal, or pipe it in as a line"
                raise Fault("EINVAL", why)
            value = line.rstrip("\n")
        if not value and field.default is None:
            raise Fault("EINVAL", f"{within(field.about)} is empty; run this again and type it")
        return value or field.default or ""
