"""`ctx mcp serve`: the tools of a mount for MCP clients (docs/mcp.md).

Rules: a secret is in no argument, where every user of the machine could read it. On standard output nothing
but the protocol is said.
"""

from __future__ import annotations

import argparse
import os
import secrets
import stat
from functools import partial
from typing import TYPE_CHECKING

from cortexfs.cli import mounts, objects, parser
from cortexfs.cli.output import say
from cortexfs.core.errors import EXIT_OK, Fault

if TYPE_CHECKING:
    from cortexfs.mcp.offer import Offer

TOKEN = "CTX_MCP_TOKEN"
HOST = "127.0.0.1"
LOOPBACK = (HOST, "::1", "localhost")
MIN_TOKEN = 16  # characters; a guess every millisecond must take ages
MAX_TOKEN = 4096
EXAMPLES = (
    "ctx mcp serve                                    # what a client is to start, see docs/mcp.md",
    "ctx mcp serve --allow 'fs.*' --allow text.*      # these tools and no others",
    "ctx mcp serve --http 8808                        # on 127.0.0.1, with a token that it prints",
    "ctx mcp serve --http 8808 --token-file ~/.mcp-token",
)


def declare(into: parser.Parser) -> None:
    verbs = into.add_subparsers(metavar="VERB", required=True, dest="verb")
    summary = "serve the tools of the mount to MCP clients"
    serve = verbs.add_parser("serve", help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
    serve.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.root_option(serve)
    serve.add_argument(
        "--allow", metavar="GLOB", action="append", default=[], help="offer tools of these names only"
    )
    serve.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help=f"use streamable HTTP; HOST is {HOST} by default, PORT 0 any free port",
    )
    serve.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"the bearer token for --http (default: {TOKEN}, else a new one, which is printed)",
    )
    parser.examples(serve, *EXAMPLES)
    parser.examples(into, *EXAMPLES)


def run(options: argparse.Namespace) -> int:
    if options.token_file and not options.http:
        raise Fault("EINVAL", "--token-file is for --http; on standard input and output nobody else can ask")
    where = address(options.http) if options.http else None
    given = _given(options.token_file) if options.http else None
    if where and not given and where[0] not in LOOPBACK:
        why = f"{where[0]} is not this machine alone; give a token, in {TOKEN} or with --token-file"
        raise Fault("EINVAL", why)
    root = mounts.root(options.root)
    mounts.status_text(root)
    try:
        from cortexfs.mcp.offer import Offer
    except ModuleNotFoundError as missing:
        why = f"MCP needs the package {missing.name}, which is not installed; install cortexfs[mcp]"
        raise Fault("EHOSTDOWN", why) from None
    offer = Offer(partial(objects.paths_of, root, "tool"), options.allow)
    os.environ["CTX_ROOT"] = root
    if where:
        _over_http(offer, where, given, root)
    else:
        from cortexfs.mcp.server import over_stdio

        over_stdio(offer)
    return EXIT_OK


def _over_http(offer: Offer, where: tuple[str, int], given: str | None, root: str) -> None:
    from cortexfs.mcp import http

    host, port = where
    listening = http.bound(host, port)
    token = given or secrets.token_urlsafe(32)
    place = f"[{host}]" if ":" in host else host

    def ready() -> None:
        say(f"serving the tools of {root} at http://{place}:{listening.getsockname()[1]}{http.PATH}")
        if not given:
            say(f"Authorization: Bearer {token}")

    http.over_http(offer, listening, token, ready)


def address(text: str) -> tuple[str, int]:
    """The host and port of `[HOST:]PORT`."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise Fault("EINVAL", f"--http is [HOST:]PORT, as 8808 or 127.0.0.1:8808, and not {text!r}")
    return host.strip("[]") or HOST, int(port)


def _given(file: str | None) -> str | None:
    """The token that the user has chosen; None if he has not."""
    token = _read(os.path.expanduser(file)) if file else os.environ.pop(TOKEN, "")
    if not file and not token:
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise Fault("EINVAL", f"the token has to be {MIN_TOKEN} or more ASCII characters without spaces")
    return token


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise Fault("EPERM", f"{path} is not yours alone to read; do: chmod 600 {path}")
        return file.read(MAX_TOKEN).strip()
