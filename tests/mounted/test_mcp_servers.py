"""MCP servers as tools of the mount (docs/mcp.md): official servers, and a hostile server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted, wait_gone
from tests.mounted.mcp_clients import npm_packages
from tests.mounted.mcp_places import HOSTILE, catches, command, declare, describing, quiet, servers, tool_is
from tests.mounted.test_user_daemon import as_user, home
from tests.waiting import until

__all__ = ["home", "npm_packages"]  # fixtures


@pytest.fixture(scope="module")
def served(python: Path) -> Iterator[Ctx]:
    """A mount with the hostile server mcp_server.py, and an official server."""
    with mounted(python) as ctx:
        shutil.copy(HOSTILE, ctx.work)
        (ctx.config / "mcp").mkdir()
        text = command("/usr/bin/python3", str(ctx.work / "mcp_server.py"))
        (ctx.config / "mcp" / "test.toml").write_text(text + '[env]\nPLAIN = "seen"\n')
        text = command(str(quiet(ctx, python)), "-I", "-m", "mcp_server_time")
        (ctx.config / "mcp" / "time.toml").write_text(text)
        os.kill(ctx.pid, signal.SIGHUP)
        tool_is(ctx, "test.echo")
        tool_is(ctx, "time.get_current_time")
        yield ctx
        assert (
            ctx.call("test.echo", "--text", "x").status == 0
        )  # starts the server, if no test of this lane has
        left = servers(ctx)
        assert left
    assert all(wait_gone(pid) for pid in left)


def test_an_official_server_over_stdio(served: Ctx) -> None:
    # issue: "At least one official MCP server over stdio"
    said = served.call("time.get_current_time", "--timezone", "Europe/Berlin")
    assert said.status == 0, said
    assert json.loads(said.output)["timezone"] == "Europe/Berlin"
    wrong = served.call("time.get_current_time", "--timezone", "Nowhere/Land")
    assert (wrong.status, wrong.code) == (1, "EIO")
    assert "Nowhere/Land" in wrong.message
    # the daemon checks the schema of the server
    assert served.call("time.get_current_time").code == "EINVAL"


def test_tools_are_listed_page_by_page_with_names_of_the_tree(served: Ctx) -> None:
    names = {name for name in os.listdir(served.root / "tool") if name.startswith("test.")}
    names = {name.removeprefix("test.") for name in names if not name.endswith(".d")}
    assert {"echo", "garbage", "odd-name-with-..-things", "odd-name-with----things"} <= names
    assert "huge" not in names  # its schema is too long; the other tools are there all the same
    wrong = served.call("test.bad-schema")  # abi.md 11.35
    assert (wrong.code, "broken: the tool's schema is wrong at " in wrong.message) == ("EHOSTDOWN", True)
    assert {name for name in names if name.startswith("xxx")} == {"x" * 59}


def test_hints_are_effects(served: Ctx) -> None:
    # issue: "annotations as effects"
    def effects(name: str) -> list[str]:
        return (served.root / "tool" / f"{name}.d" / "effects").read_text().split()

    assert effects("test.echo")[0] == "read_file"
    assert effects("test.echo")[2] == "reversible"
    assert (effects("test.add")[0], effects("test.add")[2]) == ("run_process", "partially_reversible")
    # by the protocol, a tool without hints may be destructive
    assert (effects("test.shell")[0], effects("test.shell")[2]) == ("run_process", "irreversible")
    origin = (served.root / "tool" / "test.echo.d" / "origin").read_text()
    assert origin == "plugin:mcp:test@1\n"


def test_progress_media_and_soft_errors(served: Ctx) -> None:
    said = served.call("test.echo", "--text", "hello")
    assert (said.status, said.output) == (0, "hello")
    assert [frame["message"] for frame in said.frames if frame["type"] == "progress"] == ["half way (1/2)"]
    made = served.call("test.picture")
    assert made.output == "made\ninside"
    # abi.md 8.47
    assert made.types == ["start", "delta", "media", "delta", "media", "media", "done"]
    media = [frame["attachment"] for frame in made.frames if frame["type"] == "media"]
    assert [one["mime_type"] for one in media] == ["image/png", "application/zip", "image/png"]
    assert Path(media[0]["url"]).read_bytes().startswith(b"\x89PNG")
    assert Path(media[1]["url"]).read_bytes() == b"zip"
    assert Path(media[0]["url"]).parent.stat().st_mode & 0o777 == 0o700
    assert media[2]["url"] == "https://example.com/a.png"
    for each in media[:2]:
        Path(each["url"]).unlink()
    soft = served.call("test.soft")
    assert (soft.status, soft.code, soft.message) == (1, "EIO", "it did not work")


def test_a_server_is_its_caller(served: Ctx) -> None:
    # issue: "A stdio server runs in a host as the caller", and sees the environment of its file alone
    mine = json.loads(served.call("test.whoami", env={"STRAY": "1"}).output)
    assert mine["uid"] == os.getuid()
    assert mine["environ"]["PLAIN"] == "seen"
    assert not {"STRAY", "CTX_STATE"} & mine["environ"].keys()
    if os.getuid() == 0:
        theirs = json.loads(served.call("test.whoami", uid=NOBODY).output)
        assert theirs["uid"] == NOBODY
        # abi.md 8.33: nobody has no home of his own in which he could write
        own = served.state.with_name(f"{served.state.name}-kept") / "mcp@test" / str(NOBODY)
        assert theirs["environ"]["HOME"] == str(own)
        assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (NOBODY, 0o700)


def test_a_server_has_its_callers_umask(served: Ctx) -> None:
    # abi.md 8.46
    def seen(umask: str) -> str:
        words = ["sh", "-c", f'umask {umask}; exec "$0"', served.tool("test.whoami")]
        frames = [json.loads(line) for line in served.run(words).stdout.splitlines()]
        return str(json.loads("".join(one["text"] for one in frames if one["type"] == "delta"))["umask"])

    assert [seen(umask) for umask in ("027", "002", "027")] == ["0o27", "0o2", "0o27"]


def test_questions_to_users_are_refused(served: Ctx) -> None:
    # issue: "elicitation refused clearly"
    refused = json.loads(served.call("test.ask").output)
    why = "this run of the tool cannot ask a person; to answer its questions, use "
    why += "ctx chat and ctx ask with an agent, or ctx mcp call test, on a terminal"
    assert refused == {"code": -32600, "message": why}


@pytest.fixture(scope="module")
def everything(npm_packages: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The official server with all features, over streamable HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = npm_packages / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    process = subprocess.Popen(
        ["node", str(program), "streamableHttp"],
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        while "listening" not in process.stderr.readline():
            assert process.poll() is None
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.communicate()


def test_an_official_server_over_http(served: Ctx, everything: tuple[str, subprocess.Popen[str]]) -> None:
    # issue: "At least one official MCP server ... over streamable HTTP"
    url, process = everything
    declare(served, "all", f"url = {json.dumps(url)}\n")
    tool_is(served, "all.echo")
    assert served.call("all.echo", "--message", "hello").output == "Echo: hello"
    long = served.call("all.trigger-long-running-operation", "duration=1", "steps=2")
    assert [frame["message"] for frame in long.frames if frame["type"] == "progress"] == ["1/2", "2/2"]
    media = [
        frame["attachment"] for frame in served.call("all.get-tiny-image").frames if frame["type"] == "media"
    ]
    assert Path(media[0]["url"]).read_bytes().startswith(b"\x89PNG")
    for each in media[:2]:
        Path(each["url"]).unlink()
    process.kill()
    process.wait()
    gone = served.call("all.echo", "--message", "hello")
    assert (gone.status, gone.code) == (69, "EHOSTDOWN"), gone


HOSTILITIES = [
    ("die", "was killed by SIGKILL"),
    ("wrong", "answered the request 99999, which was never sent"),
    ("flood", "sends too many messages outside of answers"),
    ("endless", "wrote a line of over 32 MiB"),
    ("garbage", "sends lines that are not messages, such as: this is no JSON"),
]


@pytest.mark.parametrize(("name", "why"), HOSTILITIES)
def test_hostile_servers(served: Ctx, name: str, why: str) -> None:
    # issue: "slow, flooding, never answering, answering the wrong id": "error frame, 70"
    said = served.call(f"test.{name}")
    assert (said.status, said.code) == (70, "EPROTO"), said
    assert said.message == f"the MCP server test {why}"
    again = served.call("test.echo", "--text", "again")  # the server is started again
    assert (again.status, again.output) == (0, "again"), again


def test_one_that_never_answers_is_cancelled(served: Ctx) -> None:
    with subprocess.Popen(
        [served.tool("test.sleep")], env=served.environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert '"start"' in process.stdout.readline()
        assert '"progress"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = [json.loads(line) for line in process.stdout]
    assert rest[-1]["status"] == "cancelled"
    assert process.returncode == 130
    assert served.call("test.echo", "--text", "on").output == "on"


def test_one_that_never_answers_has_its_time(served: Ctx) -> None:
    # docs/mcp.md: ETIMEDOUT, "it does not answer in time"
    text = command("/usr/bin/python3", str(served.work / "mcp_server.py")) + "timeout_secs = 5\n"
    declare(served, "short", text)
    tool_is(served, "short.sleep")

    def works() -> None:  # the start of the server counts, too
        until(lambda: served.call("short.echo", "--text", "on"), lambda said: said.output == "on")

    works()
    said = served.call("short.sleep")
    assert (said.status, said.code) == (1, "ETIMEDOUT"), said
    works()
    (served.config / "mcp" / "short.toml").unlink()
    os.kill(served.pid, signal.SIGHUP)
    tool_is(served, "short.sleep", there=False)


def test_new_tools_appear_while_a_call_runs(served: Ctx) -> None:
    # issue: "list_changed applied live", "changing its tool list while a call runs"
    assert served.call("test.grow").output == "grown"
    with subprocess.Popen([served.tool("test.sleep")], env=served.environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b'"start"' in process.stdout.readline()
        assert b'"progress"' in process.stdout.readline()
        until(lambda: describing(served))
        for pid in servers(served):
            until(partial(catches, pid, signal.SIGUSR1))
            os.kill(pid, signal.SIGUSR1)
        tool_is(served, "test.grown")
        # The tool stays, as its server does.
        before = describing(served)
        reloads = int(served.status["reloads"])
        os.kill(served.pid, signal.SIGHUP)
        until(lambda: int(served.status["reloads"]) > reloads)
        assert set(before) <= set(describing(served))
        assert os.path.exists(served.tool("test.grown"))
        process.send_signal(signal.SIGINT)
        assert b'"cancelled"' in process.stdout.read()


def test_the_server_of_the_manual(served: Ctx) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text().split("### MCP servers")[1]
    (served.work / "greet.py").write_text(page.split("```python\n")[1].split("```")[0])
    text = page.split("```\ncommand")[1].split("```")[0]
    text = "command" + text.replace("python3", str(quiet(served, served.python))).replace(
        "/opt", str(served.work)
    )
    declare(served, "greet", text)
    tool_is(served, "greet.hello")
    assert served.call("greet.hello", "--name", "Ann").output == "Hello, Ann."


def test_one_that_died_while_nobody_called_is_there_again(served: Ctx) -> None:
    # issue: "restart with backoff"
    killed = servers(served)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert all(wait_gone(pid) for pid in killed)
    while (said := served.call("test.echo", "--text", "again")).code == "EPROTO":
        assert "was killed by SIGKILL" in said.message  # the server's end had not been noticed
    assert said.output == "again", said
    until(lambda: set(servers(served)) - set(killed))


def test_a_server_that_cannot_start_is_said_and_the_others_work(fresh: Ctx) -> None:
    declare(fresh, "exits", command("/usr/bin/python3", str(HOSTILE), "exits"))
    declare(fresh, "missing", command("/no/such/program"))
    declare(fresh, "wrong", "commnd = 1\n")
    declare(fresh, "open", 'url = "http://example.com/mcp"\n')
    text = until((fresh.root / "status").read_text, lambda text: text.count("broken plugin: mcp:") >= 4)
    broken = dict(line.split(": ", 2)[1:] for line in text.splitlines() if line.startswith("broken plugin"))
    assert "exited with status 3" in broken["mcp:exits"] or "cannot" in broken["mcp:exits"]
    assert "it cannot be started: /no/such/program" in broken["mcp:missing"]
    assert "unknown key commnd; did you mean command?" in broken["mcp:wrong"]
    assert "must begin with https://" in broken["mcp:open"]
    assert fresh.call("text.word_count", "still here").output == "2 words"


def test_import_of_another_clients_file(fresh: Ctx, tmp_path: Path) -> None:
    # issue: "by importing the `mcpServers` JSON that other clients use"
    shutil.copy(HOSTILE, fresh.work)
    server = {
        "command": "/usr/bin/python3",
        "args": [str(fresh.work / "mcp_server.py")],
        "env": {"PLAIN": "1", "API_KEY": "very-secret"},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"mcpServers": {"My Server": server}}))
    done = fresh.ctx("plugin", "import-mcp", str(file))
    assert "very-secret" not in done.stdout + done.stderr
    tool_is(fresh, "My-Server.echo")
    told = (fresh.config / "mcp" / "My-Server.toml").read_text()
    assert "very-secret" not in told
    secret = fresh.state / "secrets" / "mcp.My-Server.API_KEY"
    assert secret.stat().st_mode & 0o777 == 0o600
    environ = json.loads(fresh.call("My-Server.whoami").output)["environ"]
    assert (environ["PLAIN"], environ["API_KEY"]) == ("1", "very-secret")
    (row,) = json.loads(fresh.ctx("mcp", "list", "--json").stdout)
    assert (row["name"], row["status"], row["secrets"]) == ("My-Server", "loaded", ["API_KEY"])
    assert "My-Server.echo" in row["tools"]
    again = fresh.ctx("plugin", "import-mcp", str(file), check=False)
    assert "there is an MCP server My-Server already; --replace takes its place" in again.stderr
    assert "removed My-Server and its secrets" in fresh.ctx("mcp", "remove", "My-Server").stderr
    tool_is(fresh, "My-Server.echo", there=False)
    assert not secret.exists()


def test_servers_are_added_by_a_command(fresh: Ctx) -> None:
    # `add` reports the reason when the mount cannot use the server
    shutil.copy(HOSTILE, fresh.work)
    words = ("--", "/usr/bin/python3", str(fresh.work / "mcp_server.py"))
    fresh.ctx("mcp", "add", "one", "--tool", "echo", *words)
    tool_is(fresh, "one.echo")
    assert fresh.call("one.echo", "--text", "hello").output == "hello"
    done = fresh.ctx("mcp", "add", "two", "--", "/no/such/program", check=False)
    why = "two: the MCP server two: it cannot be started: /no/such/program"
    assert why in done.stderr or "is still reading the change" in done.stderr, done.stderr
    rows = until(
        lambda: json.loads(fresh.ctx("mcp", "list", "--json").stdout),
        lambda seen: seen[1]["status"] == "broken",
    )
    assert [(row["name"], row["status"], row["tools"]) for row in rows] == [
        ("one", "loaded", ["one.echo"]),
        ("two", "broken", []),
    ]
    assert "it cannot be started" in rows[1]["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_users_own_daemon(home: Path, python: Path) -> None:
    # in a user's daemon one process of a server both describes and runs its tools
    server = {"command": "/usr/bin/python3", "args": [str(home / "mcp_server.py")]}
    shutil.copy(HOSTILE, home)
    (home / "config.json").write_text(json.dumps({"mcpServers": {"test": server}}))
    done = as_user(
        home,
        python,
        """
        user: $CTX mount ctx
        user: CTX_ROOT=$HOME/ctx $CTX plugin import-mcp config.json
        user: ctx/tool/test.echo --text hello
        user: ctx/tool/test.grow
        user: for n in $(seq 200); do test -e ctx/tool/test.grown && break; sleep 0.1; done
        user: ls ctx/tool/test.grown
        user: pgrep -c -f $HOME/mcp_server.py
        user: $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    assert [part.split("\n")[0] for part in parts[1:]] == ["0"] * 8, done.stdout
    assert parts[2].endswith("hello")
    assert parts[6].split("\n")[1] == "1", done.stdout


BAD_FILES = [
    ("[]", "it has no servers"),
    ("{", "is no JSON"),
    ('{"mcpServers": {"a": {"command": "\\ud800"}}}', "is no JSON"),
    ('{"mcpServers": {"a": {"command": "x", "env": {"A": "${input:a}"}}}}', "another client would fill in"),
    ('{"mcpServers": {"a": {"type": "sse", "url": "https://x"}}}', "the old transport sse is not supported"),
    ('{"servers": {"a": {}}}', "it needs either command"),
]


@pytest.mark.parametrize(("text", "why"), BAD_FILES)
def test_a_file_that_cannot_be_taken_over_changes_nothing(
    served: Ctx, tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    done = served.ctx("plugin", "import-mcp", str(file), check=False)
    assert done.returncode == 2
    assert why in done.stderr
    assert not (served.config / "mcp" / "a.toml").exists()
