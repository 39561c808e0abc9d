"""Providers that users add on a mount of root's, with keys of their own; `nobody`, another user and root use
them. The quotes without a source are from the issue that asked for such providers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import call, say, script, working
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.playing_provider import Provider, of_the_link, played
from tests.mounted.talking import talk, text
from tests.mounted.test_exec_fuzz import greeting
from tests.mounted.test_own_agents import OTHER, as_user, sh
from tests.mounted.test_own_agents import mine as own_agent
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="several users need a root daemon")

KEY = "sk-own-Q7vTm2xKp9LzRw4NcJd8YbHf3GsUe6"
HOME = f"home/{NOBODY}/model"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture
def provider() -> Iterator[Provider]:
    with played() as provider:
        yield provider


@pytest.fixture
def mine(ctx: Ctx, provider: Provider) -> Iterator[Provider]:
    """A provider of the user `nobody`, with a key."""
    add(ctx, "mine", provider)
    status, _, said = as_user(ctx, "provider", "secret", "set", "mine", input=f"{KEY}\n")
    assert (status, "2 models listed" in said) == (0, True), said
    provider.heard.clear()
    yield provider
    as_user(ctx, "provider", "remove", "mine")


def add(ctx: Ctx, name: str, provider: Provider, *words: str, uid: int = NOBODY) -> str:
    line = ("provider", "add", name, "--base-url", provider.url, "--format", "openai.chat", *words)
    status, _, said = as_user(ctx, *line, uid=uid)
    assert status == 0, said
    return said


def ask(ctx: Ctx, path: str, *words: str, uid: int = NOBODY) -> Answer:
    return Answer(ctx.run([str(ctx.root / path), *words], text=False, uid=uid))


def managed(ctx: Ctx, given: dict[str, object], uid: int = NOBODY) -> Answer:
    """Returns the answer of `.own` to a request that no command of ours sends."""
    words = [str(ctx.root / "bin" / "cortexfs-object-runner"), str(ctx.root / ".own"), "-"]
    return Answer(ctx.run(words, text=False, uid=uid, input=json.dumps({"input": given}).encode()))


# Use by their users.


def test_add_ask_and_remove(ctx: Ctx, mine: Provider) -> None:
    # abi.md 4.54; "`ctx provider add` of a user there makes models below home/<uid>/model/, for his calls
    # alone"
    names = [f"{name}{suffix}" for name in ("m1", "vendor-m2") for suffix in ("", ".d", ".sock")]
    assert sh(ctx, f"ls {HOME}; ls {HOME}/mine") == (0, "\n".join(["mine", *names, ""]))
    assert sh(ctx, f"CTX_OUTPUT=text {HOME}/mine/m1 hello") == (0, "hello ä")
    answer = ask(ctx, f"{HOME}/mine/vendor-m2", "hello")
    assert (answer.status, answer.types) == (0, ["start", "delta", "delta", "message", "done"])
    assert [one.body["model"] for one in mine.heard] == ["m1", "vendor/m2"]
    assert {one.key for one in mine.heard} == {KEY}
    controls = sh(
        ctx, f"cd {HOME}/mine/m1.d && cat id origin driver; stat -c '%a %u' . id default ../m1.sock"
    )
    shown = "m1\nprovider:mine\nopenai.chat\n755 65534\n444 65534\n644 65534\n600 65534\n"
    assert controls == (0, shown)
    log = sh(ctx, f"cat {HOME}/mine/m1.d/log")[1].splitlines()
    assert [json.loads(line)["status"] for line in log][-1] == "ok"
    _, out, _ = as_user(ctx, "provider", "list", "--json")
    assert [(row["name"], row["status"], row["models"]) for row in json.loads(out)] == [("mine", "kept", 2)]
    _, out, _ = as_user(ctx, "provider", "models", "--json")
    assert [row["id"] for row in json.loads(out)] == ["m1", "vendor/m2"]
    _, _, answered = as_user(ctx, "provider", "test", "mine")
    assert answered.startswith("mine answers, in ")
    assert answered.endswith(" ms; 2 models\n")
    _, out, _ = as_user(ctx, "ls", "model", "--json")
    listed = {row["object"]: row["status"] for row in json.loads(out)}
    assert listed[f"{HOME}/mine/m1"] == "ready"
    assert as_user(ctx, "run", "mine/m1", "hello")[0] == 0
    assert as_user(ctx, "provider", "remove", "mine")[0] == 0
    assert sh(ctx, f"ls {HOME}") == (0, "")
    assert sh(ctx, f"{HOME}/mine/m1 hello")[0] == 127
    assert not list((ctx.state / "own" / str(NOBODY) / "secrets").iterdir())
    assert as_user(ctx, "provider", "remove", "mine")[0] == 1


def test_sessions_are_kept_where_those_of_all_models_are(ctx: Ctx, mine: Provider) -> None:
    # abi.md 3.23
    with talk(ctx, f"{HOME}/mine/m1.sock", NOBODY) as client:
        client.send("first", session="s")
        assert text(client.until("done", status="ok")) == "hello ä"
        client.send("second", session="s")
        client.until("done", status="ok")
        client.send("x", session="s", scope="shared")
        assert "have no shared sessions" in client.error()["message"]
    said = [message["content"] for message in mine.heard[-1].body["messages"]]
    assert said == ["first", "hello ä", "second"]
    assert sh(ctx, f"ls {HOME}/mine/m1.d/session")[1].split() == ["index", "s"]
    as_user(ctx, "provider", "remove", "mine")
    assert sh(ctx, f"ls {HOME}/mine; cat {HOME}/mine/m1.d/session/s/latest.md")[1].endswith("hello ä\n")
    assert sh(ctx, f"rm -r {HOME}/mine; ls {HOME}") == (0, "")


def test_a_run_that_is_killed_hangs_up(ctx: Ctx, mine: Provider) -> None:
    mine.holds.clear()
    with talk(ctx, f"{HOME}/mine/m1.sock", NOBODY) as client:
        client.send("go on", session="c")
        run = client.until("delta")[-1]["run"]
        client.ask("cancel", id=run)
        client.until("done", status="cancelled")
    assert mine.left.wait(PATIENCE)
    sh(ctx, f"rm -r {HOME}/mine/m1.d/session")


def test_failures_are_those_of_all_providers(ctx: Ctx, mine: Provider) -> None:
    # docs/models.md, "Failure"
    mine.status = 401
    answer = ask(ctx, f"{HOME}/mine/m1", "hello")
    assert (answer.status, answer.code) == (13, "EACCES")
    mine.status = 503
    assert sh(ctx, f"echo debug/echo > {HOME}/mine/m1.d/fallback")[0] == 0
    answer = ask(ctx, f"{HOME}/mine/m1", "hello")
    assert (answer.status, answer.output) == (0, "hello")
    assert "asking debug/echo instead of mine/m1" in str(answer.frames)
    sh(ctx, f"rm {HOME}/mine/m1.d/fallback")
    closed = "http://127.0.0.1:1/v1"
    line = ("provider", "add", "gone", "--base-url", closed, "--format", "openai.chat", "--model", "m")
    assert "connection refused" in as_user(ctx, *line)[2]
    answer = ask(ctx, f"{HOME}/gone/m", "hello")
    assert (answer.status, answer.code) == (69, "EHOSTDOWN")
    assert "connection refused" in answer.message
    as_user(ctx, "provider", "remove", "gone")


def test_an_agent_of_ones_own_asks_it(ctx: Ctx, mine: Provider) -> None:
    mine.words = ["done"]
    with (
        own_agent(ctx, "keyed", model="mine/m1") as path,
        working(ctx, path, "hi", NOBODY, scope="temp") as client,
    ):
        assert text(client.until("done", status="ok")) == "done"
    assert mine.uids() == {NOBODY}
    assert sh(ctx, f"ln -s mine/m1 {HOME}/best && CTX_OUTPUT=text {HOME}/best hi; rm {HOME}/best") == (
        0,
        "done",
    )


def test_it_outlives_a_reload_and_a_restart(python: Path, provider: Provider) -> None:
    with mounted(python, []) as ctx:
        add(ctx, "mine", provider)
        as_user(ctx, "provider", "secret", "set", "mine", input=KEY)
        assert sh(ctx, f"echo temperature=0.5 > {HOME}/mine/m1.d/default")[0] == 0
        ctx.ctx("provider", "models", "--refresh")
        asked_with(ctx, provider, 0.5)
        ctx.umount()
        ctx.mount()
        asked_with(ctx, provider, 0.5)
        # A new provider of the same name begins afresh.
        as_user(ctx, "provider", "remove", "mine")
        add(ctx, "mine", provider)
        assert sh(ctx, f"cat {HOME}/mine/m1.d/default") == (0, "")
        # A provider of root's takes precedence over a user's.
        ctx.ctx(
            "provider", "add", "mine", "--base-url", provider.url, "--format", "openai.chat", "--model", "m1"
        )
        answer = ask(ctx, f"{HOME}/mine/m1", "hello")
        assert (answer.status, "kept under this name" in answer.message) == (69, True), answer


def asked_with(ctx: Ctx, provider: Provider, temperature: float) -> None:
    assert ask(ctx, f"{HOME}/mine/m1", "hello").status == 0
    assert (provider.heard[-1].key, provider.heard[-1].body["temperature"]) == (KEY, temperature)


# Attacks.


def test_root_connects_to_no_address_of_a_users(ctx: Ctx, mine: Provider) -> None:
    # "Such calls are made by a host that has become the user, never by root's daemon (a user chooses the
    # address)": on the loopback, listings, calls, retries and tests of it; abi.md 4.55
    as_user(ctx, "provider", "models", "mine", "--refresh")
    as_user(ctx, "provider", "test", "mine")
    ask(ctx, f"{HOME}/mine/m1", "hello")
    with talk(ctx, f"{HOME}/mine/m1.sock", NOBODY) as client:
        client.send("hello", scope="temp")
        client.until("done")
    mine.status = 500
    ask(ctx, f"{HOME}/mine/m1", "hello")
    assert len(mine.heard) > 6
    assert mine.uids() == {NOBODY}


def test_nor_to_one_of_the_link(ctx: Ctx) -> None:
    # "a provider address of a user (loopback, link-local) seen by root's daemon"
    with of_the_link() as address, played(address) as linked:
        given = {"base_url": linked.url, "format": "openai.chat", "models": ["m1"]}
        assert managed(ctx, {"do": "add", "name": "linked", "provider": given}).status == 0
        assert ask(ctx, f"{HOME}/linked/m1", "hello").output == "hello ä"
        assert linked.uids() == {NOBODY}
        managed(ctx, {"do": "remove", "name": "linked"})


def test_callers_in_containers_have_none(ctx: Ctx, mine: Provider) -> None:
    # docs/models.md: "Callers in containers are refused"
    inside = ("unshare", "-Urn", str(ctx.root / HOME / "mine" / "m1"), "hello")
    answer = Answer(ctx.run(inside, text=False, uid=NOBODY))
    assert (answer.status, mine.heard) == (13, [])
    assert "in a container" in answer.message


def test_names_of_ones_own_are_completed(ctx: Ctx, mine: Provider) -> None:
    # docs/commands.md: those of a user on root's mount
    status, said, _ = as_user(ctx, "complete", "--", "ctx", "provider", "test", "m")
    assert (status, said.split(), mine.heard) == (0, ["mine"], [])


def test_nobody_else_uses_or_sees_it(ctx: Ctx, mine: Provider) -> None:
    # "another user's key (read, use, list)"
    for uid in (OTHER, 0):
        before = len(mine.heard)
        if uid:
            assert sh(ctx, f"ls {HOME}/mine", uid)[0]
            with pytest.raises(PermissionError), talk(ctx, f"{HOME}/mine/m1.sock", uid):
                pass
        assert ask(ctx, f"{HOME}/mine/m1", "hello", uid=uid).status if not uid else True
        assert len(mine.heard) == before
    assert json.loads(as_user(ctx, "provider", "list", "--json", uid=OTHER)[1]) == []
    assert as_user(ctx, "provider", "test", "mine", uid=OTHER)[0] == 1
    assert as_user(ctx, "provider", "secret", "set", "mine", uid=OTHER, input="sk-x")[0] == 1
    assert as_user(ctx, "provider", "remove", "mine", uid=OTHER)[0] == 1
    # To know the inode of another user's object does not help.
    inode = os.stat(ctx.root / HOME / "mine" / "m1").st_ino
    with socket.socket(socket.AF_UNIX) as client:
        os.seteuid(OTHER)
        try:
            client.connect(str(ctx.root / ".run.sock"))
        finally:
            os.seteuid(0)
        client.sendall(greeting(inode, [b"hello"], []))
        said = b""
        while data := client.recv(1 << 16):
            said += data
    assert b"another user's" in said
    assert "listed nothing" not in str(managed(ctx, {"do": "list"}, uid=0).frames)
    assert managed(ctx, {"do": "list"}, uid=0).code == "EINVAL"


def test_a_key_is_nowhere_but_in_the_store(python: Path, provider: Provider) -> None:
    # "key in logs, frames, /proc/PID/environ or cmdline of any process of another user or readable by an
    # agent of the same user"; abi.md 4.56
    with mounted(python, []) as ctx:
        ctx.umount()
        ctx.environ["CTX_TRACE"] = "wire, calls"
        ctx.mount()
        add(ctx, "mine", provider)
        as_user(ctx, "provider", "secret", "set", "mine", input=KEY)
        provider.status = 401
        seen = [str(ask(ctx, f"{HOME}/mine/m1", "hello").frames)]
        provider.status = 200
        provider.holds.clear()
        with talk(ctx, f"{HOME}/mine/m1.sock", NOBODY) as client:
            client.send("go on", session="s")
            client.until("delta")
            hosts = [pid for pid in children(ctx.pid) if uid_of(pid) == NOBODY]
            assert hosts
            for pid in hosts:  # the host that has the key runs as its user, who cannot look into it
                for name in ("environ", "mem", "maps"):
                    assert sh(ctx, f"head -c 1 /proc/{pid}/{name}")[0], (pid, name)
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    seen += [(process / name).read_text("latin-1") for name in ("environ", "cmdline")]
            provider.holds.set()
            seen.append(str(client.until("done")))
        seen.append(sh(ctx, f"grep -rs . {ctx.root}/status {ctx.root}/{HOME}; cat {ctx.root}/.own")[1])
        assert not [text for text in seen if KEY in text]
        kept = [path for path in ctx.state.rglob("*") if path.is_file() and KEY in path.read_text("latin-1")]
        store = ctx.state / "own" / str(NOBODY) / "secrets" / "mine"
        assert kept == [store]
        assert (stat.S_IMODE(store.stat().st_mode), store.stat().st_uid) == (0o600, 0)


@pytest.mark.parametrize(
    "name", ["../root", "a/b", ".hidden", "x.d", "x.sock", "", "debug", "local", "a" * 65]
)
def test_names_that_lead_elsewhere(ctx: Ctx, provider: Provider, name: str) -> None:
    # "names that leave the folder or shadow root's models"
    given = {"base_url": provider.url, "format": "openai.chat", "models": ["m"]}
    answer = managed(ctx, {"do": "add", "name": name, "provider": given})
    assert (answer.code in ("EINVAL", "EEXIST"), provider.heard) == (True, []), answer
    assert not list(ctx.state.glob("own/*/providers/*.toml"))
    for do in ("secret", "remove", "models", "test"):
        assert managed(ctx, {"do": do, "name": name, "key": "sk-1"}).code in ("EINVAL", "ENOENT")
    assert not list(ctx.state.glob("own/*/secrets/*"))


def test_models_stay_below_their_provider(ctx: Ctx, provider: Provider) -> None:
    provider.models = ["debug/echo", "../../tool/fs.read", "openai/gpt", "m\n1", "home/1/x"]
    declared = [{"id": "m", "name": "debug/script"}]
    given = {"base_url": provider.url, "format": "openai.chat", "model": declared}
    assert managed(ctx, {"do": "add", "name": "sly", "provider": given}).status == 0
    models = ["debug-echo.d", "home-1-x.d", "m.d", "openai-gpt.d", "tool-fs.read.d"]
    assert sh(ctx, f"cd {HOME}/sly; ls -d *.d")[1].split() == models
    assert "openai" not in sh(ctx, f"ls {HOME} {ctx.root}/model")[1].split()
    as_user(ctx, "provider", "remove", "sly")


def test_a_daemon_of_root_lends_nothing(ctx: Ctx, provider: Provider) -> None:
    # models/own_providers.py: "For a key it runs no command and reads no variable of its own"
    for key in ({"env": "HOME"}, {"command": ["touch", "/tmp/own-provider-was-here"]}):
        given = {"base_url": provider.url, "format": "openai.chat", "key": key}
        assert managed(ctx, {"do": "add", "name": "sly", "provider": given}).code == "EINVAL"
    for url in ("file:///etc/shadow", "http://u:p@127.0.0.1/", "unix:///run/x.sock", "gopher://127.0.0.1/"):
        given = {"base_url": url, "format": "openai.chat"}
        assert managed(ctx, {"do": "add", "name": "sly", "provider": given}).code == "EINVAL"
    assert not list(ctx.state.glob("own/*/providers/sly.toml"))


def test_a_flood_is_bounded(ctx: Ctx, provider: Provider) -> None:
    # "a flood of providers/models (bounds)"; abi.md 4.57
    provider.models = [f"m{number}" for number in range(2000)]
    given = {"base_url": provider.url, "format": "openai.chat"}
    try:
        assert managed(ctx, {"do": "add", "name": "many", "provider": given}).status == 0
        assert len(sh(ctx, f"ls -d {HOME}/many/*.d")[1].split()) == 512
        large = given | {"models": ["x" * 500 + str(number) for number in range(200)]}
        assert managed(ctx, {"do": "add", "name": "large", "provider": large}).code == "EDQUOT"
        short = given | {"listed": False, "models": ["m"]}
        codes = [managed(ctx, {"do": "add", "name": f"p{n}", "provider": short}).code for n in range(17)]
        assert codes == [None] * 15 + ["EDQUOT"] * 2
        # The folders of refused providers are gone; a folder stays only where sessions are in it.
        assert len(sh(ctx, f"ls -d {HOME}/many/*.d {HOME}/p[0-9]*/*.d 2>/dev/null")[1].split()) == 512
    finally:
        for name in ("many", *(f"p{n}" for n in range(15))):
            managed(ctx, {"do": "remove", "name": name})
    assert "many" not in sh(ctx, f"ls {HOME}")[1]


def test_what_runs_for_an_agent_has_none(ctx: Ctx, mine: Provider) -> None:
    # abi.md 1.26
    asked = json.dumps({"input": {"do": "list"}})
    line = f"cd {ctx.root}; echo '{asked}' | bin/cortexfs-object-runner .own - 2>&1"
    task = script(call("shell.exec", cmd=line), say("x"))
    with (
        own_agent(ctx, "sly", "shell.exec") as path,
        working(ctx, path, task, NOBODY, scope="temp") as client,
    ):
        frames = [client.frame()]
        while frames[-1]["type"] not in ("approval", "done"):
            frames.append(client.frame())
        if frames[-1]["type"] == "approval":
            run, call_ = frames[-1]["run"], frames[-1]["call"]
            client.ask("approve", run=run, call=call_, decision="allow_once")
            frames += client.until("done")
    said = str([frame.get("output") for frame in frames if frame["type"] == "tool_result"])
    assert "agents may not run commands" in said, frames
    assert '"base_url"' not in said


def children(pid: int) -> list[int]:
    """Returns all descendants of a process."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(one for child in found for one in children(child))]


def uid_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("Uid:\t")[2].split()[0])
