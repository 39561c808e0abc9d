"""`ctx mcp serve --code`: three tools for any number of tools, and scripts that stay confined.
The quotes are from issue 16."""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import TextContent

from tests.mounted import agents, plugins
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.mcp_clients import over_stdio

USERS = pytest.mark.parametrize("uid", [None, NOBODY])


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        (mount.work / "README.md").write_text("hello world\n")
        mount.work.chmod(0o777)
        mount.ctx("plugin", "install", str(plugins.program(mount.base, "greet")), "--yes")
        yield mount


def text(result: Any) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


def script(ctx: Ctx, cmd: str, *patterns: str | bytes, uid: int | None = None, **env: str) -> Answer:
    """Returns the answer of `run` to a script."""
    words = [str(ctx.root / "bin/cortexfs-object-runner"), str(ctx.root / ".confined"), *patterns]
    return Answer(ctx.run(words, input=json.dumps({"cmd": cmd}).encode(), text=False, uid=uid, env=env))


def test_any_client_sees_three_tools(ctx: Ctx) -> None:
    # abi.md 7.9: "any MCP client sees three tools, find, describe and run, however many the mount has"
    async def use(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["find", "describe", "run"]
        found = text(await client.call_tool("find", {"words": "count words"}))
        assert found.startswith("text.word_count: Count the words of a text")
        told = text(await client.call_tool("describe", {"names": ["text.word_count", "nosuch"]}))
        misspelt = await client.call_tool("describe", {"names": ["text.word_cuont"]})
        assert text(misspelt) == "There is no tool 'text.word_cuont'; did you mean text.word_count?"
        assert "Count the words of a text" in told
        assert "usage: text.word_count TEXT" in told
        assert "There is no tool 'nosuch'" in told
        cmd = "cat README.md | $CTX_ROOT/tool/text.word_count -; ctx find greet | tail -1 | cut -c1-10"
        done = await client.call_tool(
            "run", {"script": "$CTX_ROOT/tool/fs.read README.md; $CTX_ROOT/tool/greet"}
        )
        assert (text(done), done.is_error) == ("hello world\nhello 0", False), cmd
        failed = await client.call_tool("run", {"script": "echo so; exit 3"})
        assert (text(failed), failed.is_error) == ("so\nEIO: exit status 3", True)
        late = await client.call_tool("run", {"script": "sleep 60", "timeout_secs": 0.1})
        assert "ETIMEDOUT" in text(late)
        wrong = await client.call_tool("run", {"command": "ls"})
        assert wrong.is_error
        assert "EINVAL: run takes" in text(wrong)

    over_stdio(ctx, use, "--code")


def test_allow_holds_for_scripts_too(ctx: Ctx) -> None:
    async def use(client: Client) -> None:
        assert "fs.read" not in text(await client.call_tool("find", {"words": "read file"}))
        assert "There is no tool" in text(await client.call_tool("describe", {"names": ["fs.read"]}))
        tools = "for tool in fs.read greet; do $CTX_ROOT/tool/$tool README.md 2>/dev/null; echo $?; done"
        assert text(await client.call_tool("run", {"script": tools})) == "13\n13\n"
        again = 'echo \'{"cmd":"$CTX_ROOT/tool/fs.read README.md"}\' | $CTX_ROOT/bin/cortexfs-object-runner'
        said = text(await client.call_tool("run", {"script": f"{again} $CTX_ROOT/.confined 2>&1"}))
        assert "it may only run text.*" in said
        counted = "$CTX_ROOT/tool/text.word_count 'a b'"
        assert text(await client.call_tool("run", {"script": counted})) == "2 words"

    over_stdio(ctx, use, "--code", "--allow", "text.*")


SEES = """
import os, socket, sys, ctypes
root, base, other, port, pid = sys.argv[1:]
def tried(what, do):
    try:
        do()
    except BaseException as error:
        print(what, "refused", type(error).__name__)
    else:
        print(what, "WORKED")
tried("file", lambda: open(f"{base}/secret").read())
tried("listing", lambda: os.listdir(base))
tried("write", lambda: open(f"{base}/made", "w"))
tried("work", lambda: open("made", "w"))
tried("mode", lambda: os.chmod("README.md", 0o777))
tried("control", lambda: open(f"{root}/agent/base.d/policy", "w"))
tried("state", lambda: os.listdir(f"{base}/state"))
tried("network", lambda: socket.create_connection(("127.0.0.1", int(port)), 2))
tried("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", int(port))))
def unix(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
tried("socket", lambda: unix(other))
tried("environ", lambda: open(f"/proc/{pid}/environ").read())
tried("memory", lambda: open(f"/proc/{pid}/mem", "rb"))
libc = ctypes.CDLL(None, use_errno=True)
def ptrace():
    if libc.ptrace(16, int(pid), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
tried("ptrace", ptrace)
tried("kill", lambda: os.kill(int(pid), 0))
def talk():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(f"{root}/agent/base.sock")
        one.sendall(b'{"op":"ping"}\\n')
        if b"pong" not in one.recv(1000):
            raise PermissionError
tried("conversation", talk)
def remount():
    if libc.unshare(0x10020000) < 0 or libc.mount(b"none", b"/", None, 4096 | 32, None) < 0:
        raise OSError(ctypes.get_errno(), "mount")
tried("mounts", remount)
"""


@USERS
def test_a_script_leaves_its_confinement_by_no_call(ctx: Ctx, uid: int | None, tmp_path: Path) -> None:
    # "files outside the view, network, other users' sockets, ptrace, env"; abi.md 7.10
    secret = ctx.base / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    where = f"{tmp_path}/other.sock"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as other:
        other.bind(where)
        other.listen()
        Path(where).chmod(0o777)
        (ctx.work / "sees.py").write_text(SEES)
        words = [ctx.root, ctx.base, where, server.getsockname()[1], threading.get_native_id()]
        line = " ".join(map(str, words))
        answer = script(ctx, f"{ctx.python} -I sees.py {line} 2>&1", uid=uid)
    assert answer.status == 0, answer
    said = answer.output.splitlines()
    assert len(said) == 16, said
    assert [one for one in said if "WORKED" in one] == []


@USERS
def test_nor_by_a_built_in_tool_or_another_shell(ctx: Ctx, uid: int | None) -> None:
    secret = ctx.base / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    tool, runner = f"{ctx.root}/tool", f"{ctx.root}/bin/cortexfs-object-runner"
    for attempt in (
        f"{tool}/fs.read {secret}",
        f"{tool}/shell.exec 'cat {secret}'",
        f"{tool}/fs.write {ctx.base}/made secret",
        f"{tool}/fs.write made secret",
        f"env -i {tool}/shell.exec 'cat {secret}'",
        f"setsid {tool}/shell.exec '{tool}/fs.read {secret}'",
        f'echo \'{{"cmd":"cat {secret}"}}\' | {runner} {ctx.root}/.confined',
        f"cat /proc/self/root{secret}; cat /proc/1/root{secret}",
        f"{ctx.root}/bin/ctx agent new mine --home",
        f"{ctx.root}/agent/base hello >/dev/null; cat {secret}",
    ):
        answer = script(ctx, f"{attempt}; true", uid=uid)
        assert "secret" not in answer.output.replace("/secret", ""), (attempt, answer)
    assert not (ctx.root / f"home/{uid or 0}/agent/mine").exists()
    assert script(ctx, "echo on", b"\xff*", uid=uid).output == "on\n"
    assert script(ctx, "echo on", b"x" * 300, uid=uid).code == "E2BIG"
    assert script(ctx, "echo on", *[b"text.*"] * 101, uid=uid).code == "E2BIG"
    in_session = f"CTX_MCP_SESSION=x {tool}/greet 2>&1; true"
    assert "no session with an MCP server" in script(ctx, in_session, uid=uid).output
    assert not (ctx.work / "made").exists()
    assert not (ctx.base / "made").exists()


@USERS
def test_it_has_what_it_needs(ctx: Ctx, uid: int | None) -> None:
    # a script has the tree, the working directory, its user's scratch folder, and little of the environment
    cmd = "cat README.md; echo kept >$TMPDIR/f; cat $TMPDIR/f; $CTX_ROOT/tool/greet; echo; env"
    answer = script(ctx, cmd, uid=uid, API_KEY="key", LANG="C.UTF-8")
    assert answer.output.startswith(f"hello world\nkept\nhello {uid or 0}\n"), answer
    assert "API_KEY" not in answer.output
    assert script(ctx, "sleep 1000 & echo $!", uid=uid).status == 0


def test_a_plugins_tool_is_its_users_own(ctx: Ctx) -> None:
    # docs/mcp-serve.md: as with plain serve, the rights of a plugin were decided when it was added
    lister = plugins.program(ctx.base, "lister", "#!/bin/sh\nls / >/dev/null && echo '\"listed\"'\n")
    ctx.ctx("plugin", "install", str(lister), "--yes")
    assert script(ctx, "ls / 2>/dev/null; $CTX_ROOT/tool/lister").output == "listed"
    # but an agent that the script has started runs its tools as confined as the agent is
    (ctx.config / "policy.toml").write_text('mode = "open"\n')
    with agents.agent(ctx, "started", "shell.exec", "lister") as path:
        task = agents.script(agents.call("shell.exec", cmd="$CTX_ROOT/tool/lister"), agents.say("well"))
        told = script(ctx, f"CTX_OUTPUT=jsonl $CTX_ROOT/{path} {shlex.quote(task)}").output
        assert '"well"' in told
        assert "listed" not in told
        assert script(ctx, f"$CTX_ROOT/{path} hello 2>&1", "text.*").output.startswith("started: EACCES")
    (ctx.config / "policy.toml").unlink()
    assert script(ctx, "$CTX_ROOT/tool/lister", "text.*").status != 0
