"""Plugins of the kind mcp of manifest.json in a running mount."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.mounted.ctx_mount import Ctx
from tests.shell.host.mcp.test_rpc_plugins import MANIFEST, Server, server, url

__all__ = ["server"]  # a fixture


def test_a_server_becomes_a_tool(fresh: Ctx, tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "my-plugin"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"entryPoint": url(server)}))
    done = fresh.ctx("plugin", "install", str(folder))
    assert "is in effect" in done.stderr
    # abi.md 9.28
    said = fresh.call("mcp_my-plugin", json.dumps({"method": "greet", "params": {"name": "Ann"}}))
    assert json.loads(said.output)["params"] == {"name": "Ann"}, said
    assert fresh.call("mcp_my-plugin", "other").code == "EINVAL"  # the manifest names the methods
    server.answer = lambda asked: {"jsonrpc": "2.0", "id": 7, "result": {}}
    wrong = fresh.call("mcp_my-plugin", "greet")
    assert (wrong.status, wrong.code) == (70, "EPROTO")
    fresh.ctx("plugin", "permissions", "my-plugin", "--set", "network:fetch=deny")
    assert fresh.call("mcp_my-plugin", "greet").code == "EACCES"


def test_the_server_of_the_manual(fresh: Ctx, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text().split("### JSON-RPC by HTTP")[1]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    manifest = page.split("```json\n")[1].split("```")[0].replace("8808", port)
    code = page.split("```python\n")[1].split("```")[0].replace("8808", port)
    (tmp_path / "greeter").mkdir()
    (tmp_path / "greeter" / "manifest.json").write_text(manifest)
    fresh.ctx("plugin", "install", str(tmp_path / "greeter"))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        try:
            asked = json.dumps({"method": "greet", "params": {"name": "Ann"}})
            while (said := fresh.call("mcp_greeter", asked)).code == "EHOSTDOWN":  # the server still starts
                assert process.poll() is None
            assert said.output == '"Hello, Ann."'
        finally:
            process.kill()
