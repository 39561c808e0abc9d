"""`ctx ask` beside `llm`, a common program for the same: one question of each, to one server.

Rules: the server answers at once, so only the two commands are measured. `llm` is a package of its own in
build/llm, run by the system's interpreter, as other packages of ours would become plugins of it. Without
that package its figures are left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tests.bench import listings, measure
from tests.mounted.ctx_mount import Ctx
from tests.shell.provider_server import Move, chat, status

PEER = Path(__file__).parents[2] / "build" / "llm"
PAIRS = 15
# Commands that ask no model, from different families.
_LISTED = ("session", "provider", "agent", "tool", "mcp", "plugin")
QUIET = ("status", "ls model", "env", "log -n 1", *(f"{family} list" for family in _LISTED))


class Figures(NamedTuple):
    """Milliseconds."""

    ours: float
    llm: float
    over: float


def figures(ctx: Ctx) -> Figures | None:
    if not (PEER / "llm").exists():
        return None
    with measure.serving("tests.bench.ask") as port, tempfile.TemporaryDirectory() as home:
        base = f"http://127.0.0.1:{port}/v1"
        words = ("--base-url", base, "--format", "openai.chat", "--model", "m")
        ctx.ctx("provider", "add", "asked", *words)
        model = f"- model_id: asked\n  model_name: m\n  api_base: {base}\n"
        (Path(home) / "extra-openai-models.yaml").write_text(model)
        theirs = {**os.environ, "PYTHONPATH": str(PEER), "LLM_USER_PATH": home, "OPENAI_API_KEY": "k"}
        ask = [listings.program(ctx), "ask", "-m", "asked/m", "hello"]
        llm = [os.path.realpath(sys.executable), "-m", "llm", "-m", "asked", "hello"]
        try:
            return Figures(
                *measure.paired(
                    lambda: measure.spawn(ask, ctx.environ), lambda: measure.spawn(llm, theirs), PAIRS, warm=2
                )
            )
        finally:
            ctx.ctx("provider", "remove", "asked")


def slowest_quiet(ctx: Ctx) -> tuple[float, str]:
    """Returns the median in ms of the slowest command that asks no model, and its name."""
    ours = listings.program(ctx)
    took = {
        words: sorted(measure.spawn([ours, *words.split()], ctx.environ) for _ in range(11))[5]
        for words in QUIET
    }
    return max((ms, words) for words, ms in took.items())


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        self._say(status(404))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(chat("hello"))

    def _say(self, moves: Sequence[Move]) -> None:
        for move in moves:
            assert isinstance(move, bytes)
            self.wfile.write(move)
        self.close_connection = True


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
