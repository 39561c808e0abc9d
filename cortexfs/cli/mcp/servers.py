"""`ctx mcp list`, `add`, `remove`, `login` and `logout`: the MCP servers whose tools are in a mount.

Rules: no argument contains a secret, as every user of the machine could read it. A secret is typed, or comes
from standard input, and nothing prints it. The token of a login is one too. A running daemon follows every
change.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from cortexfs.cli import mounts, output, parser, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.mcp.mcp import check_extra
from cortexfs.cli.mcp.starts import Starts, last_lines
from cortexfs.cli.plugin.live import LivePlugins, live_of, status_of
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.manifest import mcp_server
from cortexfs.core.manifest.mcp_server import PREFIX, STARTING, McpServer
from cortexfs.core.mcp_session import OBJECT
from cortexfs.core.names import check_new
from cortexfs.core.safe_text import counted
from cortexfs.models.providers.secrets import MAX_KEY
from cortexfs.plugins.mcp_servers import Servers
from cortexfs.state import directories

CLIENT_SECRET = "the client's secret"
HEADS = ("name", "transport", "enabled", "status", "server", "tools")


def listing(options: argparse.Namespace) -> None:
    where = places_of(options)
    servers, live = Servers(where.config, where.state), live_of(options)
    rows = [
        _row(name, servers, live) | {"printed": last_lines(where.state, name)} for name in servers.names()
    ]
    output.print_rows(options.json, rows, HEADS, (_cells(row) for row in rows))


def _row(name: str, servers: Servers, live: LivePlugins | None) -> dict[str, Any]:
    server, reason = McpServer(), None
    try:
        server = servers.read(mcp_server.check_name(name))
    except Fault as fault:
        reason = fault.message
    if live and server.enabled:
        reason = live.broken.get(PREFIX + name, reason)
    itself = f"{name}.{OBJECT}"
    tools = [tool for tool in live.tools.get(PREFIX + name, []) if tool != itself] if live else []
    return {
        "name": name,
        "transport": "http" if server.url else "stdio" if server.command else "-",
        "enabled": server.enabled,
        "status": "starting"
        if (reason or "").startswith(STARTING)
        else status_of(bool(reason), server.enabled, bool(tools), live is not None),
        "server": server.url or _command(server) or "-",
        "tools": tools,
        "secrets": sorted({*server.secret_env, *server.secret_headers}),
        "reason": reason,
    }


def _command(server: McpServer) -> str:
    import shlex

    return shlex.join((server.command, *server.args)) if server.command else ""


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    reason = row["reason"] or ""
    if reason.startswith(STARTING) and row["printed"]:
        reason += f": {row['printed'][-1]}"
    return row | {
        "enabled": "yes" if row["enabled"] else "no",
        "tools": reason or " ".join(row["tools"]) or "-",
    }


def add(options: argparse.Namespace) -> int:
    where, name = places_of(options), mcp_server.check_name(check_new(options.name))
    server, secret_names = _server(options)
    servers = Servers(where.config, where.state)
    directories.create(where)  # this closes the state to others
    starts = Starts(where.state, [name])
    servers.write({name: mcp_server.parted(name, server, secret_names)}, replace=options.replace)
    sentence, status = tell(options.root, [name], starts)
    output.say(f"added {name}, {servers.path(name)}; {sentence}")
    return status


def tell(root: str | None, names: Iterable[str], starts: Starts) -> tuple[str, int]:
    """Have the daemon take servers over. Returns a sentence about the result, and the exit status. The output
    of the servers is shown meanwhile. A server that only requires a login is no failure."""
    failed: list[str] = []

    def outcome(facts: dict[str, list[str]]) -> str | None:
        rows = mounts.by_name(facts, "broken plugin")
        broken = {name: rows[PREFIX + name] for name in names if PREFIX + name in rows}
        failed.extend(name for name, why in broken.items() if mcp_server.login_at(name) not in why)
        return "; ".join(map(": ".join, broken.items())) or None

    return reload.tell(root, outcome, starts.go_on), EXIT_FAILED if failed else EXIT_OK


def _server(options: argparse.Namespace) -> tuple[McpServer, set[str]]:
    """Returns the server that the arguments mean, and the names of its typed variables and headers."""
    command, *words = options.command or ("",)
    if words and not command:
        raise Fault("EINVAL", "the COMMAND behind -- is empty; is the program installed that it should name?")
    server = McpServer(command=command, args=tuple(words), url=options.url or "", tools=tuple(options.tool))
    if not command and not server.url:
        raise Fault("EINVAL", "name the server: --url URL, or at the end -- COMMAND [ARGS]")
    if (options.env and server.url) or (options.header and command):
        raise Fault("EINVAL", "--env is for a program that is started here, --header for --url")
    mcp_server.checked(server)  # before anything is asked
    groups = {"env": pairs(options.env, "="), "headers": pairs(options.header, ":")}
    alone = [key for group in groups.values() for key, value in group.items() if value is None]
    values = typed_values(alone)
    fields = {
        field: {key: values[key] if value is None else value for key, value in group.items()}
        for field, group in groups.items()
    }
    return mcp_server.checked(msgspec.structs.replace(server, **fields)), set(alone)


def pairs(arguments: list[str], sign: str) -> dict[str, str | None]:
    """Returns the values by their keys; None for a key alone, whose value is a secret."""
    values = {}
    for each in arguments:
        key, found, value = each.partition(sign)
        if found:
            mcp_server.check_shown(key)
        values[key.strip()] = value.strip() if found else None
    return values


def typed_values(keys: list[str]) -> dict[str, str]:
    """Returns values that are piped, one a line, or typed without being shown."""
    if not keys:
        return {}
    if sys.stdin.isatty():
        import getpass

        return {key: getpass.getpass(f"{key} (not shown): ") for key in keys}
    lines = sys.stdin.read(len(keys) * (MAX_KEY + 2)).splitlines()
    if len(lines) != len(keys):
        raise Fault("EINVAL", f"standard input needs {counted(len(keys), 'line')}: {', '.join(keys)}")
    return dict(zip(keys, lines, strict=True))


def known(options: argparse.Namespace) -> Servers:
    """Returns the servers. Raises ENOENT if the named one is not among them."""
    where = places_of(options)
    servers = Servers(where.config, where.state)
    name, mend = options.name, "see: ctx mcp list"
    parser.check_known(name, servers.names(), f"there is no MCP server {name!r}", mend)
    return servers


def remove(options: argparse.Namespace) -> None:
    secrets = " and its secrets" if known(options).remove(options.name) else ""
    output.say(f"removed {options.name}{secrets}; {reload.tell(options.root)}")


def login(options: argparse.Namespace) -> None:
    """Log in (OAuth). A browser is opened if a person sits at a terminal. The address is always printed."""
    check_extra()
    import anyio

    from cortexfs.mcp.login import LoginWish, logged_in

    servers = known(options)
    server = servers.read(options.name)
    if not server.url:
        raise Fault("EINVAL", f"{options.name} is a program; only servers with a URL need ctx mcp login")
    secret = typed_values([CLIENT_SECRET])[CLIENT_SECRET] if options.client_secret else ""
    wish = LoginWish(
        tuple(scope for each in options.scope for scope in each.split()),
        options.client_id or "",
        secret,
        f"client_secret_{options.client_auth}",
        options.client_metadata or "",
        options.port,
    )

    def browse(address: str) -> None:
        output.say(f"log in there: {address}")
        if not options.no_browser and (sys.stderr.isatty() or os.environ.get("BROWSER")):
            import webbrowser  # a slow import that only this needs

            webbrowser.open(address)

    found = anyio.run(logged_in, server.url, wish, browse)
    if found is None:
        return output.say(f"{options.name} needs no login")
    servers.keep_login(options.name, found)
    output.say(f"logged in at {options.name}; {reload.tell(options.root)}")


def logout(options: argparse.Namespace) -> None:
    servers = known(options)
    if not servers.read(options.name).login:
        raise Fault("ENOENT", f"there is no login at {options.name}")
    servers.forget_login(options.name)
    output.say(f"removed the login at {options.name}; {reload.tell(options.root)}")
