"""`ctx plugin import-mcp`: the MCP servers of another client's file, as servers of this mount.

Rules: all of a file is taken over, or nothing. What looks like a secret goes to the secrets, and is never
printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cortexfs.cli import reload
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.manifest import mcp_server
from cortexfs.plugins.mcp_servers import MAX_FILE, PREFIX, Servers
from cortexfs.state import directories
from cortexfs.state.directories import Places


def import_mcp(options: argparse.Namespace, where: Places) -> int:
    found = mcp_server.imported(_read(Path(options.file)))
    directories.create(where)  # which closes the state to others
    servers = Servers(where.config, where.state)
    servers.write(
        {name: mcp_server.parted(name, one) for name, one in found.items()}, replace=options.replace
    )
    for name in found:
        print(f"{name}: {servers.path(name)}")
    print(told(options.root, list(found)))
    return EXIT_OK


def told(root: str | None, names: list[str]) -> str:
    """Have the daemon take servers over; what came of it."""
    return reload.told(root, lambda facts: _outcome(facts, names))


def _read(path: Path) -> object:
    with open(path, "rb") as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise Fault("EMSGSIZE", f"{path} is over {MAX_FILE >> 20} MiB")
    try:
        value: object = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a character can be in no file of ours
    except (ValueError, RecursionError) as error:
        raise Fault("EINVAL", f"{path} is no JSON: {error}") from None
    return value


def _outcome(facts: dict[str, list[str]], names: list[str]) -> str | None:
    rows = dict(line.partition(": ")[::2] for line in facts.get("broken plugin", []))
    broken = [f"{name}: {rows[PREFIX + name]}" for name in names if PREFIX + name in rows]
    return "; ".join(broken) or None
