"""The MCP servers of a configuration, as plugins for the catalog.

    <config>/mcp/NAME.toml        one server (core/manifest/mcp_server.py)
    <state>/secrets/NAME          a secret that its file names

Rules: a wrong file becomes a sentence in `faults`, and the others work. The catalog checks the servers'
descriptions.
This file must never know the protocol.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from cortexfs.core import hostcalls, tomltext
from cortexfs.core.errors import Fault, code_of, os_faults
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.manifest import mcp_server
from cortexfs.core.manifest.mcp_login import McpLogin
from cortexfs.core.manifest.mcp_server import KIND, PREFIX, McpServer, McpTarget
from cortexfs.models.providers.secrets import FOLDER as FOLDER_OF_SECRETS
from cortexfs.models.providers.secrets import Secrets, checked
from cortexfs.state import believed, whole_files
from cortexfs.state.directories import forget_kept, keeping
from cortexfs.version import VERSION

FOLDER = "mcp"
SUFFIX = ".toml"
LOGIN = "login"  # the end of the name of a secret
MAX_FILE = 1 << 20
PATH = "/usr/local/bin:/usr/bin:/bin"
# Variables of the daemon that servers get. Where a proxy signs its certificates, uvx needs those of TLS.
_PASSED = ("LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


class ServerPlugins(NamedTuple):
    plugins: list[hostcalls.Plugin]
    faults: dict[str, str]  # by the names of the plugins


class Servers:
    """The servers' files of one configuration, and their form for hosts."""

    def __init__(self, config: Path, state: Path) -> None:
        self._folder = config / FOLDER
        self._state = state
        self._secrets = Secrets(state)

    def path(self, name: str) -> Path:
        return self._folder / f"{mcp_server.check_name(name)}{SUFFIX}"

    def load(self, environ: Mapping[str, str] = os.environ) -> ServerPlugins:
        found = ServerPlugins([], {})
        for path in self._paths():
            name = path.name.removesuffix(SUFFIX)
            try:
                server = self._read(path)
                if server.enabled:
                    found.plugins.append(self._plugin(mcp_server.check_name(name), server, environ))
            except Fault as fault:
                found.faults[PREFIX + name] = fault.message
        return found

    def names(self) -> list[str]:
        return [path.name.removesuffix(SUFFIX) for path in self._paths()]

    def read(self, name: str) -> McpServer:
        return self._read(self.path(name))

    def write(self, drafts: Mapping[str, tuple[McpServer, dict[str, str]]], *, replace: bool) -> None:
        """Write all these servers and their secrets (mcp_server.parted), or none of them."""
        existing = [name for name in drafts if self.path(name).exists()]
        if existing and not replace:
            raise Fault("EEXIST", f"there is an MCP server {existing[0]} already; --replace takes its place")
        for _, secrets in drafts.values():
            for secret, value in secrets.items():
                checked(value.encode(), secret, words=True)
        for name, (server, secrets) in drafts.items():
            for secret, value in secrets.items():
                self._secrets.set(secret, value.encode(), words=True)
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            whole_files.replace(self.path(name), [text(server).encode()], 0o600)
            self._sweep(name)

    def remove(self, name: str) -> bool:
        """Remove a server's file, the secrets that were made for it, and its downloads. Returns True if there
        were such secrets."""
        self.path(name).unlink()
        had_secrets = self._sweep(name)
        forget_kept(self._state, home_of(name))
        return had_secrets

    def _sweep(self, name: str) -> bool:
        """Remove those secrets of a server that no file names any more. Returns True if there were any."""
        removed = False
        secrets = set()
        for other in self.names():
            with contextlib.suppress(Fault):
                server = self._read(self._folder / f"{other}{SUFFIX}")
                secrets |= {*server.secret_env.values(), *server.secret_headers.values(), server.login}
        stems = tuple(mcp_server.secret_of(each, "") for each in self.names() if each.startswith(f"{name}."))
        for secret in self._secrets.names():
            own = secret.startswith(mcp_server.secret_of(name, "")) and not secret.startswith(stems)
            if own and secret not in secrets:
                self._secrets.remove(secret)
                removed = True
        return removed

    def _paths(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            raise Fault(code_of(problem.errno), f"{self._folder}: {problem.strerror}") from None
        return [self._folder / name for name in names if name.endswith(SUFFIX) and name[0] != "."]

    def _read(self, path: Path) -> McpServer:
        with os_faults(str(path)):
            data = believed.read(path, MAX_FILE)
        if len(data) > MAX_FILE:
            raise Fault("EINVAL", f"{path} is too large for the file of a server")
        return parsed(data, str(path))

    def _plugin(self, name: str, server: McpServer, environ: Mapping[str, str]) -> hostcalls.Plugin:
        base = {key: environ[key] for key in _PASSED if key in environ}
        base["PATH"] = environ.get("PATH", PATH)
        target = McpTarget(
            name,
            command=(server.command, *server.args) if server.command else (),
            cwd=server.cwd,
            environment=base | server.env | self._values(server.secret_env),
            url=server.url,
            headers=server.headers | self._values(server.secret_headers),
            bearer=self._bearer(name, server),
            tools=server.tools,
            timeout=server.timeout_secs,
            client=VERSION,
        )
        keeps = ""
        if server.command:
            with contextlib.suppress(Fault):  # where no folder can be made beside the state, it has no home
                keeps = keeping(self._state, home_of(name))
        return hostcalls.Plugin(PREFIX + name, "1", KIND, msgspec.json.encode(target).decode(), keeps=keeps)

    # -- logins

    def login(self, server: McpServer) -> McpLogin | None:
        """Returns the login that is kept for a server, or None."""
        data = self._secrets.get(server.login, words=True) if server.login else ""
        try:
            found = msgspec.json.decode(data, type=McpLogin) if data else None
        except UNREADABLE:
            found = None
        return found if found is not None and found.url == server.url else None

    def keep_login(self, name: str, login: McpLogin) -> None:
        secret = mcp_server.secret_of(name, LOGIN)
        self._secrets.set(secret, msgspec.json.encode(login), words=True)
        if (server := self.read(name)).login != secret:
            changed = msgspec.structs.replace(server, login=secret)
            whole_files.replace(self.path(name), [text(changed).encode()], 0o600)

    def forget_login(self, name: str) -> None:
        changed = msgspec.structs.replace(self.read(name), login="")
        whole_files.replace(self.path(name), [text(changed).encode()], 0o600)
        self._sweep(name)

    def _bearer(self, name: str, server: McpServer) -> str:
        if not server.login:
            return ""
        if (login := self.login(server)) is None:
            raise Fault("EACCES", f"its login is gone; log in again: {mcp_server.login_at(name)}")
        return login.access_token

    def _values(self, secrets: Mapping[str, str]) -> dict[str, str]:
        found = {key: self._secrets.get(secret, words=True) for key, secret in secrets.items()}
        for key, secret in secrets.items():
            if not found[key]:
                mend = f"put it into {FOLDER_OF_SECRETS}/{secret} of the state directory, with mode 0600"
                raise Fault("ENOENT", f"there is no secret {secret}; {mend}")
        return found


def home_of(name: str) -> str:
    """Returns a server's name for the directory of its homes beside the state. No plugin can have that
    name."""
    return f"mcp@{name}"


def parsed(data: bytes, where: str) -> McpServer:
    server = tomltext.converted(tomltext.table(data, where), McpServer, where)
    try:
        return mcp_server.checked(server)
    except Fault as fault:
        raise Fault(fault.code, f"{where}: {fault.message}") from None


def text(server: McpServer) -> str:
    """Returns the text of a server's file."""
    fields = msgspec.to_builtins(server)
    tables = {key: fields.pop(key) for key in list(fields) if isinstance(fields[key], dict)}
    lines = tomltext.lines(fields)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *tomltext.lines(table)]
    return "\n".join(lines) + "\n"
