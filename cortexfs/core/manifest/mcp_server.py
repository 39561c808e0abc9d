"""An MCP server as its file declares it, and as it is passed to a host.

Rules: a server has a command or a URL, and not both. Plain HTTP is only for servers on this machine, as
requests contain secrets. A value that another client would fill in (`${...}`) is refused.
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

KIND = "mcp-server"  # hostcalls.Plugin.kind; "mcp" is a kind of manifest.json
PREFIX = "mcp:"  # begins the name of a server's plugin; no installed plugin can have such a name
STARTING = "it is still being started"  # begins the reason why a server has no tools yet
ERRORS = ".errors"  # a file in the home of a server: its output since its last start
DISABLE = "ctx plugin disable"
MAX_NAME = 32  # characters of a server's name, which begins the names of its tools, of at most 64 characters
MAX_SECONDS = 604_800  # a week, as for limits in config.toml
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


class McpServer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of <config>/mcp/NAME.toml."""

    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str = ""  # its working directory; empty: its user's home
    env: dict[str, str] = msgspec.field(default_factory=dict)
    secret_env: dict[str, str] = msgspec.field(default_factory=dict)  # variable: name of a secret
    url: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    secret_headers: dict[str, str] = msgspec.field(default_factory=dict)
    login: str = ""  # the name of the secret that `ctx mcp login` keeps
    tools: tuple[str, ...] = ()  # patterns of their names on the server; () for all; "!" before one excludes
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
    bearer: str = ""  # a token, which is renewed from time to time
    tools: tuple[str, ...] = ()
    timeout: int | None = None
    client: str = ""  # our own version
    home: str = ""  # its user's folder for it, beside the state; the host fills it in


def login_at(name: str) -> str:
    """Returns the command that logs in at a server. The status of a server without its login names it."""
    return f"ctx mcp login {name}"


def without(plugin: str) -> str:
    """Returns the command that disables a plugin, or removes an MCP server."""
    name = plugin.removeprefix(PREFIX)
    return f"{DISABLE} {name}" if name == plugin else f"ctx mcp remove {name}"


def check_name(name: str) -> str:
    names.check(name)
    if len(name) > MAX_NAME:
        raise Fault("EINVAL", f"the name {name!r} of an MCP server is longer than {MAX_NAME} characters")
    return name


def checked(server: McpServer) -> McpServer:
    """Returns the server. Raises EINVAL for a wrong value."""
    if bool(server.command) == bool(server.url):
        raise Fault("EINVAL", "it needs either command, for a program, or url, for a running server")
    if server.url:
        _check_url(server.url)
    elif server.login:
        raise Fault("EINVAL", "login needs a server with url")
    if server.timeout_secs is not None and not 0 < server.timeout_secs <= MAX_SECONDS:
        raise Fault("EINVAL", f"timeout_secs must be from 1 to {MAX_SECONDS}")
    for field, grammar in (("env", _VARIABLE), ("secret_env", _VARIABLE), ("headers", _HEADER),
                           ("secret_headers", _HEADER)):  # fmt: skip
        for key, value in getattr(server, field).items():
            if not grammar.fullmatch(key):
                raise Fault("EINVAL", f"{field}: {key!r} is not a valid name")
            _check_text(f"{field}.{key}", value, header=grammar is _HEADER)
    for word in (server.command, *server.args, server.cwd):
        _check_text("a word of its command", word)
    return server


def _check_text(title: str, text: str, *, header: bool = False) -> None:
    if "${" in text:
        raise Fault("EINVAL", f"{title} has a ${{...}}, which another client would fill in; write the value")
    if "\0" in text or (header and not text.isprintable()):
        raise Fault("EINVAL", f"{title} has characters that are not allowed")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise Fault("EINVAL", f"{url!r} is not an http or https address")
    if parts.username or parts.password:
        raise Fault("EINVAL", "url must not contain a user or password; write headers or secret_headers")
    if parts.scheme == "http" and not networks.is_loopback(host):
        raise Fault("EINVAL", f"{host} is not this machine: its url must begin with https://")


_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


def takes(patterns: Collection[str], tool: str) -> bool:
    """Returns True if the patterns admit a tool with that name on the server."""
    positive = [pattern for pattern in patterns if not pattern.startswith("!")]
    negative = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    is_admitted = not positive or any(fnmatchcase(tool, pattern) for pattern in positive)
    return is_admitted and not any(fnmatchcase(tool, pattern) for pattern in negative)


def is_secret(key: str) -> bool:
    """Returns True if the name of a variable or header looks like that of a secret."""
    return bool(_SECRET.search(key))


def check_shown(key: str) -> None:
    """Raises EINVAL if the value of a variable or header must not be in an argument."""
    if is_secret(key):
        why = f"{key} looks like a secret, and every user of this machine can read arguments"
        raise Fault("EINVAL", f"{why}; write {key} alone, and its value is read from standard input")


def secret_of(name: str, key: str) -> str:
    """Returns the name of a server's secret."""
    return f"mcp.{name}.{key}"


def parted(
    name: str, server: McpServer, secret_keys: Collection[str] = ()
) -> tuple[McpServer, dict[str, str]]:
    """Returns the server with names in place of its secrets, and the secrets by name. `secret_keys` are
    variables and headers that are secrets, whatever their names."""
    values: dict[str, dict[str, str]] = {"env": {}, "headers": {}}
    secret_names = {"env": dict(server.secret_env), "headers": dict(server.secret_headers)}
    secrets = {}
    for field in values:
        for key, value in getattr(server, field).items():
            if value and (is_secret(key) or key in secret_keys):
                secret_names[field][key] = names.check(secret_of(check_name(name), key))
                secrets[secret_names[field][key]] = value
            else:
                values[field][key] = value
    changes = {"secret_env": secret_names["env"], "secret_headers": secret_names["headers"]}
    return msgspec.structs.replace(server, **values, **changes), secrets
