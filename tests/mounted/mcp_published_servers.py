"""The MCP servers on npm and PyPI by the protocol's own project, added to a mount."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import PUBLISHED, from_npm

NPM = "@modelcontextprotocol/server-"
VERSION = "2026.8.31"
OF_NPM = {
    "everything": "everything",
    "files": "filesystem",
    "memory": "memory",
    "thinking": "sequential-thinking",
}
OF_PYPI = ("git", "time", "fetch")


def npm_packages() -> Path:
    return from_npm("published", *(f"{NPM}{name}@{VERSION}" for name in OF_NPM.values()))


def add(ctx: Ctx) -> None:
    """Add the servers to the mount. `repo` in its work folder becomes a repository with a change."""
    packages = npm_packages()
    git = ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.com"]
    repository = ctx.work / "repo"
    subprocess.run(["git", "init", "-q", "-b", "main", repository], check=True)
    (repository / "file").write_text("one\n")
    (ctx.work / "sound.wav").write_bytes(b"RIFF$\0\0\0WAVE")
    subprocess.run([*git, "-C", repository, "add", "."], check=True)
    subprocess.run([*git, "-C", repository, "commit", "-qm", "first"], check=True)
    (repository / "file").write_text("one\ntwo\n")
    for key, value in (("user.name", "ann"), ("user.email", "ann@example.com")):
        subprocess.run(["git", "-C", repository, "config", key, value], check=True)
    for name, of in OF_NPM.items():
        words = [str(ctx.work)] if of == "filesystem" else []
        kept = [f"--env=MEMORY_FILE_PATH={ctx.work}/memory.json"] if of == "memory" else []
        program = str(packages / f"node_modules/{NPM}{of}/dist/index.js")
        ctx.ctx("mcp", "add", name, *kept, "--", "node", program, *words)
    for name in OF_PYPI:
        words = ["--allow-private-ips"] if name == "fetch" else []
        ctx.ctx("mcp", "add", name, "--", str(PUBLISHED / f"bin/mcp-server-{name}"), *words)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def page(ctx: Ctx) -> Iterator[str]:
    """Serve a page, and yield the address of its server."""
    (ctx.work / "page.html").write_text("<html><body><h1>Hello, stranger</h1></body></html>")
    handler = partial(QuietHandler, directory=str(ctx.work))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
