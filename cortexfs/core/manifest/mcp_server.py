"""An MCP server as its file declares it, and as a host is told of it.

Rules: a server has a command or a URL, and not both. Plain HTTP is for this machine alone, as what is sent
has secrets in it. A value that another client would fill in (`${...}`) is no value.
This file must never know where files and secrets are, nor how a server is talked to.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import msgspec

from cortexfs.core import names, networks
from cortexfs.core.errors import Fault

KIND = "mcp-server"  # hostcalls.Plugin.kind; "mcp" is manifest.json's
PREFIX = "mcp:"  # of a server's plugin; no installed plugin can be called so
STARTING = "it is still being started"  # the beginning of why a server has no tools yet
ERRORS = ".errors"  # in the home of a server: what it has printed since it was started last
DISABLE = "ctx plugin disable"
MAX_NAME = 32  # of the server: its tools' names have 64 characters, this among them
MAX_SECONDS = 604_800  # a week, as for limits in config.toml
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


class McpServer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """<config>/mcp/NAME.toml."""

    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str = ""  # where it runs; its user's home without it
    env: dict[str, str] = msgspec.field(default_factory=dict)
    secret_env: dict[str, str] = msgspec.field(default_factory=dict)  # variable: name of a secret
    url: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    secret_headers: dict[str, str] = msgspec.field(default_factory=dict)
    login: str = ""  # the name of the secret that `ctx mcp login` keeps
    tools: tuple[str, ...] = ()  # patterns of their names on the server; all without them, none after "!"
    timeout_secs: int | None = None
    enabled: bool = True


class McpTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts for a host: `hostcalls.Plugin.target`, as JSON."""

    name: str
    command: tuple[str, ...] = ()
    cwd: str = ""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    url: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    bearer: str = ""  # a token that is renewed now and then
    tools: tuple[str, ...] = ()
    timeout: int | None = None
    client: str = ""  # our own version
    home: str = ""  # of its user, beside the state, as a host fills it in


def login_at(name: str) -> str:
    """Returns the command that logs in at a server; one that is broken for want of that says so."""
    return f"ctx mcp login {name}"


def without(plugin: str) -> str:
    """Returns the command that does without a plugin, which a server's is, too."""
    name = plugin.removeprefix(PREFIX)
    return f"{DISABLE} {name}" if name == plugin else f"ctx mcp remove {name}"


def check_name(name: str) -> str:
    names.check(name)
    if len(name) > MAX_NAME:
        raise Fault("EINVAL", f"the name {name!r} of an MCP server is longer than {MAX_NAME} characters")
    return name


def checked(server: McpServer) -> McpServer:
    """The server, if it can be one; EINVAL says what is wrong."""
    if bool(server.command) == bool(server.url):
        raise Fault("EINVAL", "it needs command, for a program, or url, for a server that runs; one of them")
    if server.url:
        _check_url(server.url)
    elif server.login:
        raise Fault("EINVAL", "login is for a server with url")
    if server.timeout_secs is not None and not 0 < server.timeout_secs <= MAX_SECONDS:
        raise Fault("EINVAL", f"timeout_secs is from 1 to {MAX_SECONDS}")
    for field, grammar in (("env", _VARIABLE), ("secret_env", _VARIABLE), ("headers", _HEADER),
                           ("secret_headers", _HEADER)):  # fmt: skip
        for key, value in getattr(server, field).items():
            if not grammar.fullmatch(key):
                raise Fault("EINVAL", f"{field}: {key!r} cannot be a name there")
            _check_text(f"{field}.{key}", value, header=grammar is _HEADER)
    for word in (server.command, *server.args, server.cwd):
        _check_text("a word of its command", word)
    return server


def _check_text(what: str, text: str, *, header: bool = False) -> None:
    if "${" in text:
        raise Fault("EINVAL", f"{what} has a ${{...}}, which another client would fill in; write the value")
    if "\0" in text or (header and not text.isprintable()):
        raise Fault("EINVAL", f"{what} has characters that cannot be there")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise Fault("EINVAL", f"{url!r} is no http or https address")
    if parts.username or parts.password:
        raise Fault("EINVAL", "a password is no part of url; write headers or secret_headers")
    if parts.scheme == "http" and not networks.is_loopback(host):
        raise Fault("EINVAL", f"{host} is not this machine: its url has to begin with https://")


_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


def takes(patterns: Collection[str], tool: str) -> bool:
    """Returns True if a tool of that name on the server is one here."""
    wanted = [one for one in patterns if not one.startswith("!")]
    unwanted = [one[1:] for one in patterns if one.startswith("!")]
    is_wanted = not wanted or any(fnmatchcase(tool, one) for one in wanted)
    return is_wanted and not any(fnmatchcase(tool, one) for one in unwanted)


def is_secret(key: str) -> bool:
    """Returns True if a name is that of something which nobody else should read."""
    return bool(_SECRET.search(key))


def check_shown(key: str) -> None:
    """Raises EINVAL where the value of a variable or header is not to be an argument."""
    if is_secret(key):
        why = f"{key} looks like a secret, and every user of this machine can read arguments"
        raise Fault("EINVAL", f"{why}; write {key} alone, and its value is read from standard input")


def secret_of(name: str, key: str) -> str:
    """Returns the name of a server's secret."""
    return f"mcp.{name}.{key}"


def parted(name: str, server: McpServer, typed: Collection[str] = ()) -> tuple[McpServer, dict[str, str]]:
    """The server without its secrets, which it names instead, and those. `typed` are variables and headers
    that are secrets whatever they are called."""
    kept: dict[str, dict[str, str]] = {"env": {}, "headers": {}}
    named = {"env": dict(server.secret_env), "headers": dict(server.secret_headers)}
    secrets = {}
    for field in kept:
        for key, value in getattr(server, field).items():
            if value and (is_secret(key) or key in typed):
                named[field][key] = names.check(secret_of(check_name(name), key))
                secrets[named[field][key]] = value
            else:
                kept[field][key] = value
    changed = {"secret_env": named["env"], "secret_headers": named["headers"]}
    return msgspec.structs.replace(server, **kept, **changed), secrets
