"""Agents with tools of MCP servers: errors about closed files name the line that opens them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.agents import agent, call, run, say, script
from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.mounted.mcp_places import HOSTILE, command, declare, tool_is

OPEN = 'mode = "open"\n'  # no person is there to be asked


@pytest.fixture(scope="module")
def served(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        (ctx.config / "policy.toml").write_text(OPEN)
        yield ctx


def text_of(answer: Answer) -> str:
    """Returns the result of a call, as the agent's model gets it."""
    (told,) = (frame["output"] for frame in answer.frames if frame["type"] == "tool_result")
    return str(told)


def asked(ctx: Ctx, path: str, tool: str, **input: object) -> str:
    return text_of(run(ctx, path, script(call(tool, **input), say("x"))))


@pytest.fixture(scope="module")
def server(served: Ctx) -> str:
    """Declare a server in the working directory, which an agent's tools may open."""
    shutil.copy(HOSTILE, served.work)
    declare(served, "test", command("/usr/bin/python3", str(served.work / "mcp_server.py")))
    tool_is(served, "test.echo")
    return "test"


def test_an_agent_has_what_the_tools_of_a_server_need(served: Ctx, server: str) -> None:
    # issue 16: "`ctx agent new --tools 'everything.*'` makes what these tools need"
    with agent(served, "user", "test.*", "fs.read") as path:
        tools = served.text(f"{path}.d/tools").split()
        assert {"test.echo", "test.whoami", "fs.read"} <= {*tools}
        assert "test.mcp" not in tools  # the tool for the server itself is for people
        assert "allow user_t network:default connect\n" in served.text(f"{path}.d/policy")
        assert asked(served, path, "test.echo", text="hello") == "hello"
    with agent(served, "shell", "test.echo", "shell.exec") as path:  # its shell would have the network too
        assert "network" not in served.text(f"{path}.d/policy")
    made = served.ctx("agent", "new", "shell2", "--model", "debug/script", "--tools", "test.echo,shell.exec")
    assert "by the same line of its policy: allow shell2_t network:default connect" in made.stderr
    served.ctx("agent", "rm", "--yes", "shell2")
    none = served.ctx("agent", "new", "x", "--model", "debug/script", "--tools", "tset.*", check=False)
    assert none.returncode == 2


def seen(ctx: Ctx, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(ctx, path, "test.whoami"))
    return found


def test_the_server_of_an_agent_has_a_home_for_that_agent_alone(served: Ctx, server: str) -> None:
    # abi.md 8.48: its user would run what it leaves in a home that both have
    users = json.loads(served.call("test.whoami").output)["environ"]["XDG_CACHE_HOME"]
    with agent(served, "one", "test.whoami") as one, agent(served, "two", "test.whoami") as two:
        homes = [seen(served, path)["environ"] for path in (one, two)]
    caches = {users, *(environ["XDG_CACHE_HOME"] for environ in homes)}
    assert len(caches) == 3
    for environ in homes:
        assert environ["HOME"] == os.path.dirname(environ["XDG_CACHE_HOME"])  # the user's home is closed
        assert environ["TMPDIR"] == f"{environ['HOME']}/tmp"  # /tmp is closed too
        assert os.stat(environ["HOME"]).st_mode & 0o777 == 0o700


def test_files_of_answers_have_a_place(served: Ctx, server: str) -> None:
    # issue 16: "its temporary files"
    with agent(served, "painter", "test.picture") as path:
        said = run(served, path, script(call("test.picture"), say("x")))
    assert text_of(said) == "made\ninside"
    media = [frame["attachment"]["url"] for frame in said.frames if frame["type"] == "media"]
    assert Path(media[0]).read_bytes().startswith(b"\x89PNG")


def test_a_program_that_is_not_shown(served: Ctx) -> None:
    # abi.md 8.48
    folder = served.base / "elsewhere"
    folder.mkdir()
    program = folder / "server"
    program.write_text(f"#!/bin/sh\nexec /usr/bin/python3 {HOSTILE}\n")
    program.chmod(0o755)
    declare(served, "far", f'command = "server"\n[env]\nPATH = "{folder}:/usr/bin:/bin"\n')
    tool_is(served, "far.echo")
    line = f"{program}\t{program}\tro\t-"
    with agent(served, "lost", "far.echo") as path:
        for _ in range(3):  # a failed start does not cause the next start to be refused
            told = asked(served, path, "far.echo", text="x")
            assert f"the MCP server far: it cannot be started: {program}: Permission denied" in told
            assert told.endswith(f"with this line besides the others: {line}")
        rows = json.loads(served.ctx("policy", "explain", path, "far.echo", "--json").stdout)["steps"]
        (row,) = (row for row in rows if row["layer"] == "program")
        assert (row["result"], line in row["why"]) == ("closed", True)
        explain = (str(served.python), "-I", "-m", "cortexfs.cli.main", "policy", "explain", path, "far.echo")
        told = served.run(explain, cwd=folder).stdout
        assert f"{program} is shown, but only where the agent works in {folder}" in told


def test_a_server_without_a_network(served: Ctx, server: str) -> None:
    script_ = f'test -n "$UV_OFFLINE" && exit 7; exec /usr/bin/python3 {served.work}/mcp_server.py'
    declare(served, "net", command("/bin/sh", "-c", script_))
    tool_is(served, "net.echo")
    with agent(served, "alone", "net.echo", "shell.exec") as path:
        told = asked(served, path, "net.echo", text="x")
        assert "the MCP server net does not start: it exited with status 7" in told
        assert told.endswith(f"To allow it, add to {path}.d/policy: allow alone_t network:default connect")
        layers = json.loads(served.ctx("policy", "explain", path, "net.echo", "--json").stdout)["steps"]
        assert [(row["layer"], row["result"]) for row in layers][-5:-2] == [
            ("MCP server", "pass"),
            ("program", "pass"),
            ("network", "closed"),
        ]
        policy = served.text(f"{path}.d/policy")
        served.put(f"{path}.d/policy", f"{policy}allow alone_t network:default connect\n")
        assert asked(served, path, "net.echo", text="x") == "x"
