"""Agents that users make in their homes on a mount of root's; `nobody`, another user and root use them.
The quotes without a source are from the issue that asked for agents."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core import wire
from tests.mounted.agents import call, decisions, results, run, say, script, working
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.talking import history, is_refused, talk, text
from tests.waiting import until

OTHER = 65533
HOME = f"home/{NOBODY}/agent"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        (mount.work / "README.md").write_text("hello world\n")
        yield mount


def as_user(
    ctx: Ctx, *words: str, uid: int | None = NOBODY, input: str | None = None
) -> tuple[int, str, str]:
    """Run `ctx` as a user who has no state or configuration here; returns status, output and errors."""
    place = ctx.base / f"user-{uid}"
    place.mkdir(exist_ok=True)
    os.chown(place, uid or 0, uid or 0)
    own = {"CTX_STATE": str(place / "state"), "CTX_CONFIG": str(ctx.base / "none")}
    line = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", *words]
    done = ctx.run(line, uid=uid, env=own, input=input)
    return done.returncode, done.stdout, done.stderr


def sh(ctx: Ctx, text: str, uid: int | None = NOBODY) -> tuple[int, str]:
    done = ctx.run(["sh", "-c", text], uid=uid, cwd=ctx.root)
    return done.returncode, done.stdout + done.stderr


def agents(ctx: Ctx) -> list[str]:
    """Returns the agents of `nobody`, without the folders of sessions that earlier agents left there."""
    return [name for name in sh(ctx, f"ls {HOME}")[1].split() if not name.endswith((".d", ".sock"))]


@contextlib.contextmanager
def mine(ctx: Ctx, name: str, *tools: str, model: str = "debug/script", uid: int = NOBODY) -> Iterator[str]:
    words = [word for tool in tools for word in ("--tools", tool)] or ["--tools", ""]
    status, _, said = as_user(
        ctx, "agent", "new", name, "--home", "--anyway", "--model", model, *words, uid=uid
    )
    assert status == 0, said
    try:
        yield f"home/{uid}/agent/{name}"
    finally:
        as_user(ctx, "agent", "rm", f"home/{uid}/agent/{name}", "--yes", uid=uid)


# Use by their users.


def test_new_list_use_and_rm(ctx: Ctx) -> None:
    # "`ctx agent new NAME [--model P/M] [--tools T]...` (by the daemon's owner in agent/, by others in
    # home/<uid>/agent/; it writes the policy lines that its model and tools need)"
    words = ("agent", "new", "coder", "--model", "debug/script", "--tools", "fs.read,text.*", "--json")
    status, out, said = as_user(ctx, *words)
    assert (status, f"made {HOME}/coder" in said) == (0, True), said
    made = json.loads(out)
    assert (made["name"], made["tools"]) == (f"{HOME}/coder", ["fs.read", "text.word_count"])
    assert made["policy"] == [
        "allow coder_t model:debug/script use",
        "allow coder_t tool:fs.read execute",
        "allow coder_t tool:text.word_count execute",
    ]
    assert as_user(ctx, "agent", "new", "coder")[0] == 1
    _, out, _ = as_user(ctx, "agent", "list", "--json")
    assert [one["name"] for one in json.loads(out)] == ["base", f"{HOME}/coder"]
    assert [one["name"] for one in json.loads(ctx.ctx("agent", "list", "--json").stdout)] == ["base"]
    task = script(call("fs.read", path="README.md"), say("It says hello."))
    for name in ("agent/coder", f"{HOME}/coder", "coder"):
        status, out, said = as_user(ctx, "run", name, task)
        assert status == 0, (out, said)
        frames = [json.loads(line) for line in out.splitlines()]
        assert (frames[0]["agent"], results(frames)[0]["output"]) == ("coder", "hello world\n")
    assert as_user(ctx, "policy", "explain", "agent/coder", "fs.read")[0] == 0
    status, out, _ = as_user(ctx, "policy", "explain", "agent/coder", "shell.exec")
    assert (status, "home/65534/agent/coder may not execute tool:shell.exec" in out) == (13, True)
    assert as_user(ctx, "ping", "agent/coder")[0] == 0
    log = sh(ctx, f"cat {HOME}/coder.d/log")[1].splitlines()
    assert [json.loads(line)["uid"] for line in log] == [NOBODY] * 3
    assert as_user(ctx, "agent", "rm", "coder", "--yes")[0] == 0
    assert agents(ctx) == []
    assert as_user(ctx, "agent", "rm", "coder", "--yes")[0] == 1
    assert not (ctx.state / "log" / "agent" / "home" / str(NOBODY) / "coder.jsonl").exists()


def test_by_hand(ctx: Ctx) -> None:
    assert sh(ctx, f"touch {HOME}/hand; touch {HOME}/hand; echo debug/echo > {HOME}/hand.d/model")[0] == 0
    # "edit with any editor"
    edited = "allow hand_t model:debug/echo use\n"
    assert sh(ctx, f"sed -i s,main,debug/echo, {HOME}/hand.d/policy; cat {HOME}/hand.d/policy") == (0, edited)
    kept = f"cd {HOME}/hand.d; mv policy policy~; stat -c %u policy~; echo x >policy~; mv policy~ policy"
    assert sh(ctx, kept)[1].startswith(f"{NOBODY}\nmv: "), "a backup belongs to its maker (abi.md 3.15)"
    refused = f"cd {HOME}/hand.d; rm policy~; echo {edited.strip()} >policy && echo x >policy"
    assert sh(ctx, refused)[0] != 0
    assert "hand.d/policy stays as it is: line 1: 'x' is not of" in as_user(ctx, "doctor")[1]  # abi.md 3.20
    assert sh(ctx, f"echo {edited.strip()} >{HOME}/hand.d/policy")[0] == 0
    assert "none was refused (in your home)" in as_user(ctx, "doctor")[1]
    assert sh(ctx, f"{HOME}/hand hello")[0] == 0
    status, out = sh(
        ctx, f"stat -c '%a %u %F' {HOME}/hand {HOME}/hand.d {HOME}/hand.sock {HOME}/hand.d/model"
    )
    assert (status, out.splitlines()) == (
        0,
        ["555 65534 regular file", "755 65534 directory", "600 65534 socket", "644 65534 regular file"],
    )
    assert sh(ctx, f"rm {HOME}/hand; ls {HOME}") == (0, "")


def test_a_file_that_is_copied_there_leaves_no_agent(ctx: Ctx) -> None:
    # agents.md: "a file that is copied there is refused, and leaves no agent behind"
    copy = (
        f"cp /etc/passwd {HOME}/copied 2>&1; cat /etc/passwd > {HOME}/written; mv {ctx.work}/own {HOME}/moved"
    )
    assert sh(ctx, f"echo x > {ctx.work}/own; {copy}; ls {HOME}")[1].count("Read-only file system") == 3
    assert sh(ctx, f"ls {HOME}; cat {ctx.work}/own; rm {ctx.work}/own") == (0, "x\n")
    # An agent that was set up before the write is not lost.
    kept = f"exec 3> {HOME}/kept; echo ask > {HOME}/kept.d/approval; echo x >&3; cat {HOME}/kept.d/approval"
    assert sh(ctx, f"({kept}) 2>/dev/null; rm {HOME}/kept") == (0, "ask\n")


def test_conversations_are_beside_its_controls_and_outlive_it(ctx: Ctx) -> None:
    with mine(ctx, "keeps") as path:
        with working(ctx, path, script(say("one")), NOBODY) as client:
            client.until("done", status="ok")
        assert "latest.md" in sh(ctx, f"ls {path}.d {path}.d/session/default")[1]
        assert sh(ctx, f"cat {path}.d/model")[1] == "debug/script\n"
    assert sh(ctx, f"ls {HOME} {HOME}/keeps.d")[1].split() == [
        f"{HOME}:",
        "keeps.d",
        f"{HOME}/keeps.d:",
        "session",
    ]
    with mine(ctx, "keeps") as path:
        assert "one" in text(history(ctx, "default", f"{path}.sock", NOBODY))
    assert sh(ctx, f"rm -r {HOME}/keeps.d; ls {HOME}") == (0, "")


def test_they_survive_a_restart(ctx: Ctx) -> None:
    with mine(ctx, "stays", "fs.read") as path:
        assert sh(ctx, f"echo ask > {path}.d/approval")[0] == 0
        ctx.umount()
        ctx.mount()
        assert sh(ctx, f"cat {path}.d/approval {path}.d/tools")[1] == "ask\nfs.read\n"
        assert as_user(ctx, "ping", "agent/stays")[0] == 0


def test_a_reload_takes_none_away(ctx: Ctx) -> None:
    with mine(ctx, "stays") as path:
        ctx.ctx("agent", "new", "passing")
        ctx.ctx("agent", "rm", "passing", "--yes")
        assert run(ctx, path, script(say("hi")), uid=NOBODY).output == "hi"
        assert as_user(ctx, "ping", "agent/stays")[0] == 0


def test_made_again_at_once_it_answers(ctx: Ctx) -> None:
    for _ in range(5):
        with mine(ctx, "again") as path, talk(ctx, f"{path}.sock", NOBODY) as client:
            client.ask("ping")
            client.until("pong")


def test_one_that_cannot_work_is_refused_on_its_socket(ctx: Ctx) -> None:
    # abi.md 5.6
    with mine(ctx, "bad", model="nobody/none") as path:
        assert sh(ctx, f"cat {path}.d/status")[1].startswith("broken: there is no model nobody/none")
        until(lambda: is_refused(ctx, f"{path}.sock", NOBODY))


def test_a_name_is_one_agents(ctx: Ctx) -> None:
    # Sessions with agent/NAME are kept in home/<uid>/agent/NAME.d too.
    status, _, said = as_user(ctx, "agent", "new", "base")
    assert (status, "there is agent/base" in said) == (1, True)
    assert sh(ctx, f"touch {HOME}/base")[0] == 1
    with mine(ctx, "taken"):
        done = ctx.ctx("agent", "new", "taken", check=False)
        assert (done.returncode, f"uid {NOBODY} has an agent taken" in done.stderr) == (1, True)


def test_the_owner_has_a_home_too(ctx: Ctx) -> None:
    made = ctx.ctx("agent", "new", "mine", "--home", "--model", "debug/script", "--tools", "")
    assert "made home/0/agent/mine" in made.stderr
    assert run(ctx, "home/0/agent/mine", script(say("hi"))).output == "hi"
    ctx.ctx("agent", "rm", "mine", "--yes")
    assert not (ctx.root / "home/0/agent/mine").exists()


# Rights of an agent.


def test_its_tools_are_its_user(ctx: Ctx) -> None:
    with mine(ctx, "self", "shell.exec") as path:
        asked = script(call("shell.exec", cmd="id -u; cat /etc/shadow || true"), say("x"))
        with working(ctx, path, asked, NOBODY) as client:
            frame = client.until("approval")[-1]
            client.ask("approve", run=frame["run"], call=frame["call"], decision="allow_once")
            (told,) = results(client.until("done", status="ok"))
    assert told["output"].splitlines()[0] == str(NOBODY)
    assert "root:" not in told["output"]


def test_what_no_line_allows_is_denied_and_what_one_allows_is_asked_about(ctx: Ctx) -> None:
    with mine(ctx, "plain", "fs.read") as path:
        assert sh(ctx, f"printf 'fs.read\\nfs.write\\n' > {path}.d/tools")[0] == 0
        task = script(call("fs.write", path="x.txt", content="x"), say("no"))
        answer = run(ctx, path, task, uid=NOBODY)
        assert [one["decision"] for one in decisions(answer.frames)] == ["deny"]
        assert decisions(answer.frames)[0]["rule"].startswith(f"{path}.d/policy")


def test_a_label_that_its_user_writes_passes_for_no_agent_of_agent(ctx: Ctx) -> None:
    # docs/policy.md: "with a line there, only the agents that its lines name may have the object"
    policy = ctx.root / "tool/text.word_count.d/policy"
    policy.write_text("allow base_t tool:text.word_count execute\n")
    task = script(call("text.word_count", text="a b"), say("x"))
    try:
        with mine(ctx, "fake", "text.word_count") as path:
            line = "allow base_t tool:text.word_count execute\\nallow base_t model:debug/script use\\n"
            assert sh(ctx, f"echo user_u:agent_r:base_t:s0 > {path}.d/label")[0] == 0
            assert sh(ctx, f"printf '{line}' > {path}.d/policy")[0] == 0
            (said,) = decisions(run(ctx, path, task, uid=NOBODY).frames)
            assert said["decision"] == "deny"
            assert said["reason"].endswith(
                f"but lacks: allow home/{NOBODY}/base_t tool:text.word_count execute"
            )
            assert as_user(ctx, "policy", "explain", "agent/fake", "text.word_count")[0] == 13
            policy.write_text(f"allow home/{NOBODY}/base_t tool:text.word_count execute\n")
            assert decisions(run(ctx, path, task, uid=NOBODY).frames)[0]["decision"] == "allow"
    finally:
        policy.write_text("reset\n")


def test_what_it_runs_changes_nothing_of_itself(ctx: Ctx) -> None:
    with mine(ctx, "loose", "shell.exec") as path:
        mounts = f"printf '/\\t/\\trw\\t-\\n' > {path}.d/mount"
        assert sh(ctx, mounts)[0] == 0
        control, new = ctx.root / f"{path}.d/policy", ctx.root / HOME / "new"
        asked = script(
            call("shell.exec", cmd=f"echo '# mine' >> {control}; touch {new}; rm {ctx.root / path}"), say("x")
        )
        with working(ctx, path, asked, NOBODY) as client:
            frame = client.until("approval")[-1]
            client.ask("approve", run=frame["run"], call=frame["call"], decision="allow_once")
            client.until("done")
        assert "# mine" not in sh(ctx, f"cat {control}")[1]
        assert agents(ctx) == ["loose"]


def test_helpers_and_their_chain(ctx: Ctx) -> None:
    # agents.md: "no agent gets more by asking another"
    with mine(ctx, "helper", "text.word_count") as helper, mine(ctx, "lead", "agent.run") as lead:
        task = script(call("text.word_count", text="a b"), say("counted"))
        asked = script(call("agent.run", name="helper", task=task), say("done"))

        def helped() -> str:
            with working(ctx, lead, asked, NOBODY) as client:
                frame = client.until("approval")[-1]
                client.ask("approve", run=frame["run"], call=frame["call"], decision="allow_once")
                (told,) = results(client.until("done", status="ok"))
            return str(told["output"])

        assert f"{lead} may not start agent:{helper.replace('agent/', '')}" in helped()
        line = f"allow lead_t agent:home/{NOBODY}/helper start"
        text = sh(ctx, f"cat {lead}.d/policy")[1] + line + "\n"
        assert sh(ctx, f"cat > {lead}.d/policy <<'E'\n{text}E\n")[0] == 0
        assert "counted" in helped()


def test_steps_are_the_owners_to_bound(ctx: Ctx) -> None:
    with mine(ctx, "long", "text.word_count") as path:
        assert sh(ctx, f"echo CTX_AGENT_STEPS=99999 > {path}.d/env")[0] == 0
        answer = run(
            ctx, path, script(*[call("text.word_count", text=str(n)) for n in range(70)]), uid=NOBODY
        )
        assert answer.code == "E2BIG"
        assert sh(ctx, f"echo CTX_AGENT_STEPS={'9' * 5000} > {path}.d/env")[0] == 0
        assert run(ctx, path, script(say("hi")), uid=NOBODY).output == "hi"


# Access to an agent.


def test_nobody_else_reaches_it(ctx: Ctx) -> None:
    # abi.md 1.10, 5.2
    with mine(ctx, "secret") as path:
        for text in (f"{path} x", f"ls {HOME}", f"cat {path}.d/model", f"touch {HOME}/more", f"rm {path}"):
            assert sh(ctx, text, OTHER)[0] != 0
        assert as_user(ctx, "run", path, "x", uid=OTHER)[0] != 0
        assert as_user(ctx, "send", path, "x", uid=OTHER)[0] != 0
        assert agents(ctx) == ["secret"]
        assert sh(ctx, "echo ask > agent/base.d/approval")[0] != 0
        assert "secret" not in (ctx.root / "status").read_text()


def test_it_works_for_no_other_not_for_root_either(ctx: Ctx) -> None:
    with mine(ctx, "secret") as path:
        answer = run(ctx, path, script(say("hi")))
        assert (answer.status, answer.code, answer.types) == (1, "ENOENT", ["error", "done"])
        with talk(ctx, f"{path}.sock") as client:
            with contextlib.suppress(BrokenPipeError):  # the refusal may come first
                client.send("x")
            assert client.until("error")[-1]["code"] == "EACCES"
        assert not (ctx.state / "sessions/home/0/agent/secret.d").exists()


@pytest.mark.parametrize("words", [["--help"], ["x"]])
def test_whoever_knows_its_inode_is_told_nothing(ctx: Ctx, words: list[str]) -> None:
    # The runner names an object by its inode, and anybody can try all inodes.
    with mine(ctx, "secret") as path:
        inode = (ctx.root / path).stat().st_ino
        for uid, known in ((OTHER, False), (NOBODY, True)):
            said = _greet(ctx, inode, words, uid)
            assert (b"secret" in said) is known, said
            assert (b"gone from the mount" in said) is not known


def _greet(ctx: Ctx, inode: int, words: list[str], uid: int) -> bytes:
    """Returns all that the daemon sends to a runner that calls this inode."""
    strings = b"".join(word.encode() + b"\0" for word in words)
    size = len(strings)
    hello = wire.HELLO.pack(wire.MAGIC, wire.PROTOCOL, inode, 0, 0o22, len(words), 0, size) + strings
    code = f"""
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(10)
client.connect({str(ctx.root / wire.SOCKET_NAME)!r})
client.sendall({hello!r})
while data := client.recv(1 << 16):
    sys.stdout.buffer.write(data)
"""
    done = ctx.run([str(ctx.python), "-c", code], uid=uid, text=False)
    return bytes(done.stdout + done.stderr)


def test_its_sessions_are_private(ctx: Ctx) -> None:
    with mine(ctx, "alone") as path, talk(ctx, f"{path}.sock", NOBODY) as client:
        client.send("x", scope="shared")
        assert client.until("error")[-1]["code"] == "EINVAL"
        client.play({"delta": "hi"}, scope="temp")
        client.until("done", status="ok")
    assert not (ctx.root / "shared/main/agent/alone.d").exists()


def test_two_users_of_one_name_have_two_agents(ctx: Ctx) -> None:
    with mine(ctx, "twin") as one, mine(ctx, "twin", uid=OTHER) as other:
        assert sh(ctx, f"echo 'You are one.' > {one}.d/system.md")[0] == 0
        assert "You are one" not in sh(ctx, f"cat {other}.d/system.md", OTHER)[1]
        for path, uid in ((one, NOBODY), (other, OTHER)):
            with working(ctx, path, script(say(f"of {uid}")), uid) as client:
                client.until("done", status="ok")
            assert f"of {uid}" in sh(ctx, f"cat {path}.d/session/default/latest.md", uid)[1]
            assert len(sh(ctx, f"cat {path}.d/log", uid)[1].splitlines()) == 1


def test_a_file_system_over_the_home_holds_no_daemon_up(ctx: Ctx) -> None:
    # The daemon binds the socket of an agent in a home by a path that does not lead through the home.
    with mine(ctx, "under") as path:
        assert stat.S_ISSOCK((ctx.root / f"{path}.sock").stat().st_mode)
        assert not os.path.lexists(ctx.root / ".bind" / "sock")
        home = ctx.root / f"home/{NOBODY}"
        assert ctx.run(["mount", "-t", "tmpfs", "none", str(home)]).returncode == 0
        try:
            ctx.ctx("agent", "new", "passing")
            ctx.ctx("agent", "rm", "passing", "--yes")
            assert list(home.iterdir()) == []
        finally:
            assert ctx.run(["umount", str(home)]).returncode == 0
        assert as_user(ctx, "ping", "agent/under")[0] == 0
