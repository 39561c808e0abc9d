"""`ctx mcp`: a mount's tools for MCP clients, and the MCP servers whose tools are in a mount (docs/mcp.md).

Rules: no argument contains a secret, as every user of the machine could read it. Standard output has nothing
but the protocol.
"""

from __future__ import annotations

import argparse
import os
import stat
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cortexfs.cli import mounts, objects
from cortexfs.cli.output import say
from cortexfs.cli.parser import JSON, MOUNTED, ROOT, Command, arg, flag
from cortexfs.core.errors import Fault

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from cortexfs.mcp.greeting import Greeted

TOKEN = "CTX_MCP_TOKEN"
HOST = "127.0.0.1"
LOOPBACK = (HOST, "::1", "localhost")
MIN_TOKEN = 16  # characters; a guess every millisecond must take ages
MAX_TOKEN = 4096


def has_extra() -> bool:
    return find_spec("mcp") is not None


def check_extra() -> None:
    """Raises EHOSTDOWN if the extra is not installed."""
    if not has_extra():
        raise Fault(
            "EHOSTDOWN", "MCP needs the extra mcp, which is not installed: pip install 'cortexfs[mcp]'"
        )


def serve(options: argparse.Namespace) -> None:
    if options.token_file and not options.http:
        raise Fault("EINVAL", "--token-file is for --http; standard input and output need no token")
    if options.code and options.server:
        raise Fault("EINVAL", "--server serves a server as it is, and --code three tools for all; choose one")
    where = address(options.http) if options.http else None
    token = _token(options.token_file) if options.http else None
    if where and not token and where[0] not in LOOPBACK:
        why = f"other machines can reach {where[0]}; give a token, in {TOKEN} or with --token-file"
        raise Fault("EINVAL", why)
    root = mounts.answering(options.root)
    greeting = _greeting(root, options)
    check_extra()
    os.environ["CTX_ROOT"] = root
    import anyio

    anyio.run(_serving, root, options, where, token, greeting)


def _greeting(root: str, options: argparse.Namespace) -> Greeted:
    from cortexfs.core.mcp_session import OBJECT
    from cortexfs.mcp import greeting

    object = f"{root}/tool/{options.server}.{OBJECT}"
    if options.http or not has_extra() or (options.server and not os.path.exists(object)):
        return greeting.Greeted(b"")
    if options.server:
        return greeting.early(partial(greeting.of_server, object))
    return greeting.early(partial(greeting.of_mount, not options.allow))


async def _serving(
    root: str,
    options: argparse.Namespace,
    where: tuple[str, int] | None,
    token: str | None,
    greeting: Greeted,
) -> None:
    from cortexfs.mcp.code import CodeTools
    from cortexfs.mcp.offer import McpOffer
    from cortexfs.mcp.server import Serving, over_stdio

    if options.server:
        from cortexfs.mcp.reexport import reexported

        paths = partial(_of_server, root, options.server)
        server: Server[Any] = reexported(root, options.server, McpOffer(paths, options.allow))
    else:
        from cortexfs.mcp.shelf import McpShelf

        offer = McpOffer(partial(objects.paths_of, root, "tool"), options.allow)
        code = CodeTools(root, options.allow) if options.code else None
        serving = Serving(offer, McpShelf(root, offer), code)
        if not options.allow:
            from cortexfs.cli.mcp.prompt_book import TemplateBook

            TemplateBook(root).add_to(serving.server)
        await serving.renew()
        for pattern in offer.unmet:
            say(f"--allow {pattern} matches no tool of the mount now; see: ctx ls tool")
        server = serving.server
    await (_over_http(server, where, token, root) if where else over_stdio(server, greeting))


def _of_server(root: str, name: str) -> list[str]:
    return [path for path in objects.paths_of(root, "tool") if os.path.basename(path).startswith(f"{name}.")]


async def _over_http(server: Server[Any], where: tuple[str, int], user_token: str | None, root: str) -> None:
    import secrets  # imports OpenSSL too

    from cortexfs.mcp import http

    host, port = where
    listening = http.bound(host, port)
    token = user_token or secrets.token_urlsafe(32)
    place = f"[{host}]" if ":" in host else host

    def ready() -> None:
        say(f"serving the tools of {root} at http://{place}:{listening.getsockname()[1]}{http.PATH}")
        if not user_token:
            say(f"Authorization: Bearer {token}")

    await http.over_http(server, listening, token, ready)


def address(text: str) -> tuple[str, int]:
    """Returns the host and port of `[HOST:]PORT`."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise Fault("EINVAL", f"--http is [HOST:]PORT, as 8808 or 127.0.0.1:8808, and not {text!r}")
    return host.strip("[]") or HOST, int(port)


def _token(file: str | None) -> str | None:
    """Returns the token that the user has chosen, or None without one."""
    if file:
        with open(os.path.expanduser(file), encoding="ascii", errors="replace") as stream:
            if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
                raise Fault("EPERM", f"other users can open {stream.name}; do: chmod 600 {stream.name}")
            token = stream.read(MAX_TOKEN).strip()
    elif not (token := os.environ.pop(TOKEN, "")):
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise Fault("EINVAL", f"the token has to be {MIN_TOKEN} or more ASCII characters without spaces")
    return token


_ALONE = "for it; with KEY alone, the value is a secret and is read from standard input"
_HTTP = f"use streamable HTTP; HOST is {HOST} by default, PORT 0 any free port"
_TOKEN_FILE = f"the bearer token for --http (default: {TOKEN}, else a new one, which is printed)"
_ANY = (
    ROOT,
    JSON,
    arg("--header", "KEY:VALUE", f"of a URL: a header {_ALONE}", action="append", default=[]),
)
VERBS = {
    "serve": Command(
        serve,
        (
            ROOT,
            arg("--allow", "GLOB", "offer tools of these names only", action="append", default=[]),
            arg("--server", "SERVER", "serve this added MCP server alone, as it is"),
            flag(
                "--code", "offer three tools for all: to find tools, describe them, and run scripts with them"
            ),
            arg("--http", "[HOST:]PORT", _HTTP),
            arg("--token-file", "FILE", _TOKEN_FILE),
        ),
        (
            "ctx mcp serve                                    # what a client starts, see docs/mcp-serve.md",
            "ctx mcp serve --allow 'fs.*' --allow text.*      # these tools and no others",
            "ctx mcp serve --code                             # find, describe and run, for all tools",
            "ctx mcp serve --http 8808                        # on 127.0.0.1, with a token that it prints",
            "ctx mcp serve --http 8808 --token-file ~/.mcp-token",
        ),
        "serve the tools of the mount, or one of its MCP servers, to MCP clients",
    ),
    "list": Command(
        "mcp.servers.listing",
        (*MOUNTED, JSON),
        ("ctx mcp list", "ctx mcp list --json"),
        "list the MCP servers whose tools are in the mount",
    ),
    "add": Command(
        "mcp.servers.add",
        (
            *MOUNTED,
            arg("name", "NEW", "the server's new name; its tools are NEW.TOOL"),
            arg("--url", "URL", "the address of a server that already runs"),
            arg("--env", "KEY=VALUE", f"a variable {_ALONE}", action="append", default=[]),
            arg("--header", "KEY:VALUE", f"a header {_ALONE}", action="append", default=[]),
            arg("--tool", "GLOB", "take tools of these names only", action="append", default=[]),
            flag("--replace", "replace the server of that name"),
        ),
        (
            "ctx mcp add time -- uvx mcp-server-time",
            "ctx mcp add github --env GITHUB_TOKEN -- npx -y some-server    # the token is typed",
            "ctx mcp add docs --url https://mcp.example.com/mcp --header Authorization",
        ),
        "make the tools of an MCP server tools of the mount",
        usage="%(prog)s [options] NAME (--url URL | -- COMMAND [ARGS])",
        takes_command=True,
    ),
    "import": Command(
        "mcp.importing.import_servers",
        (
            *MOUNTED,
            arg("file", "FILE", "the file of Claude, Cursor, VS Code or another client"),
            flag("--replace", "replace servers of the same names"),
        ),
        (
            "ctx mcp import ~/.config/Claude/claude_desktop_config.json",
            "ctx mcp import .vscode/mcp.json    # asks for its inputs, and keeps them as secrets",
        ),
        "take over the MCP servers of another client",
    ),
    "call": Command(
        "mcp.call.call",
        (
            *_ANY,
            flag("--yes", "answer the server's questions with their defaults"),
            arg("server", "SERVER", "its name in: ctx mcp list, its URL, or its command line as one word"),
            arg("tool", "TOOL", "the tool, by the server's name for it"),
            arg("words", "ARGS", "the tool's arguments, as for ctx run", nargs=argparse.REMAINDER),
        ),
        (
            "ctx mcp call time get_current_time --timezone Asia/Tokyo",
            "ctx mcp call 'uvx mcp-server-time' get_current_time timezone=Asia/Tokyo",
            "ctx mcp call https://mcp.example.com/mcp search --query cortex",
        ),
        "call a tool of an MCP server, added or not",
    ),
    "inspect": Command(
        "mcp.call.inspect",
        (
            *_ANY,
            arg("server", "SERVER", "its name in: ctx mcp list, or its URL", nargs="?"),
        ),
        (
            "ctx mcp inspect -- npx -y @modelcontextprotocol/server-everything",
            "ctx mcp inspect time --json",
        ),
        "show what an MCP server offers, added or not",
        usage="%(prog)s [options] (SERVER | URL | -- COMMAND [ARGS])",
        takes_command=True,
    ),
    "login": Command(
        "mcp.servers.login",
        (
            *MOUNTED,
            arg("name", "SERVER", "its name in: ctx mcp list"),
            arg("--scope", "SCOPE", "request this right, too", action="append", default=[]),
            arg("--client-id", "ID", "the id of a client that was registered by hand"),
            flag("--client-secret", "type the client's secret, or pipe it in"),
            arg("--client-auth", None, "how to send the secret", choices=("basic", "post"), default="basic"),
            arg("--client-metadata", "URL", "the address of a document that describes this client"),
            arg("--port", "PORT", "the port for the browser's return (default: any)", type=int, default=0),
            flag("--no-browser", "print the address, and open nothing"),
        ),
        ("ctx mcp login docs", "ctx mcp login docs --scope 'files:read files:write'"),
        "log in at an MCP server that wants it (OAuth)",
    ),
    "logout": Command(
        "mcp.servers.logout",
        (*MOUNTED, arg("name", "SERVER", "its name in: ctx mcp list")),
        ("ctx mcp logout docs",),
        "forget the login at an MCP server",
    ),
    "remove": Command(
        "mcp.servers.remove",
        (*MOUNTED, arg("name", "SERVER", "its name in: ctx mcp list")),
        ("ctx mcp remove time",),
        "remove an MCP server and its secrets",
    ),
}
COMMANDS = {"mcp": Command(verbs=VERBS)}
