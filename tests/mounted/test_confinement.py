"""An agent's shell on a real mount reaches only tools of the mount by the runner."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator

import pytest

from cortexfs.host.confine import socket_gate
from cortexfs.linux import seccomp
from tests.mounted import agents
from tests.mounted.agents import shell
from tests.mounted.ctx_mount import NOBODY, Ctx

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need a root daemon"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]
USERS = pytest.mark.parametrize("uid", [None, NOBODY])

ctx, coder = agents.ctx, agents.coder


@pytest.fixture
def other(ctx: Ctx) -> Iterator[socket.socket]:
    """A socket of another process, outside of the agent's view."""
    place = ctx.base / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0o777)
        listener.listen()
        listener.setblocking(False)
        yield listener
    place.unlink()


@USERS
def test_a_tool_of_the_mount_answers(ctx: Ctx, coder: str, uid: int | None) -> None:
    # abi.md 4.38
    (ctx.base / "secret.txt").write_text("secret")
    words = f"{ctx.root}/tool/fs.read README.md; {ctx.root}/tool/fs.read {ctx.base}/secret.txt"
    said = shell(ctx, coder, words, uid)
    assert "hello world" in said
    assert '"code":"EACCES"' in said
    assert "secret\\n" not in said


@USERS
def test_no_other_socket_answers(ctx: Ctx, coder: str, uid: int | None, other: socket.socket) -> None:
    source = f"import socket; socket.socket(1).connect({other.getsockname()!r})"
    assert "PermissionError" in shell(ctx, coder, f"python3 -c {shlex.quote(source)}", uid)
    with pytest.raises(BlockingIOError):
        other.accept()


# Gives the runner a descriptor of the mount, and has it run an object beside a link to another socket.
DECEIVED = """
import os, sys
runner, root, target = sys.argv[1:]
os.makedirs("false/tool", exist_ok=True)
open("false/tool/object", "w").close()
os.symlink(target, "false/tool/.run.sock")
given = os.open(root, os.O_PATH)
os.dup2(given, 9)
os.execv(runner, ["runner", "false/tool/object"])
"""


@USERS
def test_the_runner_takes_nobody_elsewhere(
    ctx: Ctx, coder: str, uid: int | None, other: socket.socket
) -> None:
    runner = next(
        (path for path in socket_gate.RUNNERS if path.exists() and socket_gate.is_static(path)), None
    )
    if runner is None:
        pytest.skip("no runner that is linked statically is installed")
    words = shlex.join(["python3", "-c", DECEIVED, str(runner), str(ctx.root), other.getsockname()])
    said = shell(ctx, coder, f"{words}; rm -r false", uid)
    assert '"code":"EACCES"' in said
    with pytest.raises(BlockingIOError):
        other.accept()
