"""All that the package needs is among its dependencies; an extra may be absent, with its feature."""

from __future__ import annotations

import subprocess
import sys

ABSENT = ("anyio", "cryptography", "httpx2", "mcp", "mcp_types", "pydantic", "wasmtime", "xllamacpp")
PROGRAM = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # to import one of them fails
from cortexfs.cli.parser import COMMANDS
for name in ["host.forkserver", "host.serve", "host.starter", "daemon.daemon", "client", "sdk"]:
    importlib.import_module(f"cortexfs.{{name}}")
for module, _ in COMMANDS.values():
    importlib.import_module(f"cortexfs.cli.{{module}}")
print(len(COMMANDS))
"""


def test_daemon_hosts_and_commands_begin_without_the_extras() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
