"""The kind mcp of manifest.json in a running mount."""

from __future__ import annotations

import json
from pathlib import Path

from tests.mounted.ctx_mount import Ctx
from tests.shell.test_rpc_plugins import MANIFEST, Server, server, url

__all__ = ["server"]  # a fixture


def test_a_server_becomes_a_tool(fresh: Ctx, tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "my-plugin"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"entryPoint": url(server)}))
    done = fresh.ctx("plugin", "install", str(folder))
    assert "follows" in done.stderr
    # seed 004: "CortexPrism creates a synthetic tool named mcp_<name> that proxies calls"
    said = fresh.call("mcp_my-plugin", json.dumps({"method": "greet", "params": {"name": "Ann"}}))
    assert json.loads(said.output)["params"] == {"name": "Ann"}, said
    assert fresh.call("mcp_my-plugin", "other").code == "EINVAL"  # the manifest names the methods
    server.answer = lambda asked: {"jsonrpc": "2.0", "id": 7, "result": {}}
    wrong = fresh.call("mcp_my-plugin", "greet")
    assert (wrong.status, wrong.code) == (70, "EPROTO")
    fresh.ctx("plugin", "permissions", "my-plugin", "--set", "network:fetch=deny")
    assert fresh.call("mcp_my-plugin", "greet").code == "EACCES"
