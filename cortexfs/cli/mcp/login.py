"""`ctx mcp login` and `logout`: at MCP servers that require a login (OAuth).

Rules: a token is never shown, and is kept as a secret of the server. A browser is opened if a person sits at
a terminal, and the address is printed in any case.
"""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser

from cortexfs.cli import output, reload
from cortexfs.cli.mcp.mcp import check_extra
from cortexfs.cli.mcp.servers import known, typed
from cortexfs.core.errors import EXIT_OK, Fault

SECRET = "the client's secret"


def login(options: argparse.Namespace) -> int:
    check_extra()
    import anyio

    from cortexfs.mcp.login import LoginWish, logged_in

    servers = known(options)
    server = servers.read(options.name)
    if not server.url:
        raise Fault("EINVAL", f"{options.name} is a program; only servers with a URL need ctx mcp login")
    secret = typed([SECRET])[SECRET] if options.client_secret else ""
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
            webbrowser.open(address)

    found = anyio.run(logged_in, server.url, wish, browse)
    if found is None:
        output.say(f"{options.name} needs no login")
        return EXIT_OK
    servers.keep_login(options.name, found)
    output.say(f"logged in at {options.name}; {reload.told(options.root)}")
    return EXIT_OK


def logout(options: argparse.Namespace) -> int:
    servers = known(options)
    if not servers.read(options.name).login:
        raise Fault("ENOENT", f"there is no login at {options.name}")
    servers.forget_login(options.name)
    output.say(f"removed the login at {options.name}; {reload.told(options.root)}")
    return EXIT_OK
