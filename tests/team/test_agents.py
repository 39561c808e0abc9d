"""Agents of another machine: calls, conversations on their sockets, and use by agents here (docs/team.md)."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from cortexfs.team import subjects
from cortexfs.team.messages import CallBegin
from cortexfs.team.nats_wire import Delivery
from tests.mounted.agents import agent, call, results, run, say, script, shell, working, write
from tests.mounted.ctx_mount import NOBODY
from tests.mounted.screen import screen
from tests.mounted.talking import history, talk, text
from tests.mounted.test_chat import chat, environ, leave
from tests.team.machines import Machine, member_of, prover
from tests.team.test_attacks import hostile, incarnation
from tests.waiting import awaited, until

FAR = "agent/coder+box"
THEIR_HOME = "home/1"  # the home of `daemon`, the user that the box serves as


@pytest.fixture(autouse=True, scope="module")
def exported(machines: dict[str, Machine]) -> Iterator[None]:
    box, laptop = machines["box"], machines["laptop"]
    with agent(box.ctx, "coder") as path:
        box.team("export", path, "--to", "root@laptop", "--as", "daemon")
        laptop.sees(FAR)
        os.chmod(box.ctx.work, 0o777)
        (box.ctx.work / "README.md").write_text("of the box\n")
        (laptop.ctx.work / "README.md").write_text("of the laptop\n")
        yield
        box.team("export", path, "--stop")
        laptop.sees_no(FAR)


def test_an_agent_of_another_machine_is_an_object(laptop: Machine, box: Machine) -> None:
    # abi.md 14.23
    folder = laptop.ctx.root / f"{FAR}.d"
    assert sorted(path.name for path in folder.iterdir()) == ["cap", "log", "origin", "status"]
    assert (folder / "origin").read_text() == "machine:box\n"
    assert (folder / "cap").read_text() == (box.ctx.root / "model/debug/script.d/cap").read_text()
    for name in ("cap", "policy", "tools"):
        with pytest.raises(OSError, match="Read-only"):
            (folder / name).write_text("fs.read\n")
    here = {one.name for one in (box.ctx.root / "agent/coder.d").iterdir()}
    assert not here & {"cap", "origin"}
    listed = json.loads(laptop.ctx.ctx("ls", "--json", "agent").stdout)
    assert {"coder+box", "coder+any"} <= {one["object"].removeprefix("agent/") for one in listed}
    ctx = laptop.ctx
    assert "coder+box" not in ctx.ctx("policy", "lint", check=False).stdout
    asked = ctx.ctx("policy", "explain", FAR, "tool/fs.read", check=False)
    assert (asked.returncode, "is on its own machine; run this there" in asked.stderr) == (2, True), asked


def test_a_single_call_says_what_a_local_one_says(laptop: Machine, box: Machine) -> None:
    # abi.md 14.23
    task = script(call("fs.read", path="/etc/hostname"), say("a" * 20_000), say("well"))
    here, there = run(box.ctx, "agent/coder", task), run(laptop.ctx, FAR, task)
    assert there.status == here.status == 0
    assert there.types == here.types
    assert there.output == here.output
    assert [one.get("output") for one in results(there.frames)] == [
        one.get("output") for one in results(here.frames)
    ]
    assert there.frames[0]["agent"] == "coder+box"
    assert {one["run"] for one in there.frames} == {there.frames[0]["run"]}
    asked = run(laptop.ctx, FAR, script(call("fs.write", path="/tmp/no", content="x"), say("well")))
    assert results(asked.frames)[0]["is_error"]  # a single call has no way to ask for approval
    failed = run(laptop.ctx, FAR, "no script")
    assert (failed.status, failed.code) == (2, "EINVAL")
    denied = run(laptop.ctx, FAR, task, uid=NOBODY)
    assert (denied.status, denied.code) == (13, "EACCES")
    assert "does not export agent/coder to nobody@laptop" in denied.message


def test_it_is_asked_in_a_conversation_and_works_there(laptop: Machine, box: Machine) -> None:
    # abi.md 14.24: approvals come here, and the session is kept there
    task = script(
        call("fs.read", path="README.md"), call("fs.write", path="made", content="by coder"), say("done")
    )
    with working(laptop.ctx, FAR, task, session="far", cwd=str(box.ctx.work), id="m") as client:
        asked = client.until("approval")
        assert asked[-1]["name"] == "fs.write"
        (read,) = results(asked)
        assert read["output"] == "of the box\n"
        client.ask("approve", run=asked[-1]["run"], call=asked[-1]["call"], decision="allow_once")
        frames = asked + client.until("done", status="ok")
    made = box.ctx.work / "made"
    assert (made.read_text(), made.stat().st_uid) == ("by coder", 1)
    assert not (laptop.ctx.work / "made").exists()
    kept = box.ctx.root / f"{THEIR_HOME}/agent/coder.d/session/far"
    assert (kept / "state").read_text() == "done\n"
    assert not [*laptop.ctx.root.glob("home/*/agent/*/session/far")]
    assert history(laptop.ctx, "far", f"{FAR}.sock")[-len(frames) :] == frames  # missed frames are sent again


def test_its_run_ends_with_whoever_hears_of_it(laptop: Machine, box: Machine) -> None:
    # abi.md 14.24
    task = script(call("fs.write", path="never", content="x"), say("well"))
    with working(laptop.ctx, FAR, task, session="left", cwd=str(box.ctx.work)) as client:
        client.until("approval")
    state = box.ctx.root / f"{THEIR_HOME}/agent/coder.d/session/left/state"
    until(state.read_text, lambda said: said == "done\n")  # the call is denied, as no client can answer
    assert not (box.ctx.work / "never").exists()
    with working(laptop.ctx, FAR, script({"sleep": 1000}), session="cancelled", id="m") as client:
        client.until("start")
        client.ask("cancel", id="m")
        assert client.until("done")[-1]["status"] == "cancelled"
    with working(laptop.ctx, FAR, script(say("to the end")), session="half") as client:
        assert text(client.all()) == "to the end"  # a client that has closed its side still gets the rest
    process = subprocess.Popen(
        [laptop.ctx.root / FAR, script({"sleep": 1000})], stdout=subprocess.PIPE, env=laptop.ctx.environ
    )
    with process:
        box.ctx.at_rest(1)
        process.send_signal(signal.SIGKILL)
    box.ctx.at_rest()
    laptop.ctx.at_rest()


def test_a_client_that_does_not_read_holds_nobody_up(laptop: Machine) -> None:
    with talk(laptop.ctx, f"{FAR}.sock") as slow:
        for number in range(12):
            slow.send(script(say("x" * 60_000)), session="slow", id=str(number))
        assert run(laptop.ctx, FAR, script(say("meanwhile"))).output == "meanwhile"
        frames = [frame for _ in range(12) for frame in slow.until("done", status="ok")]
        assert len(text(frames)) == 720_000
        assert slow.is_alive()


TALKER = f"""
import contextlib, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1] + "/{FAR}.sock")
with contextlib.suppress(BrokenPipeError):  # it is refused before it says anything
    s.sendall(b'{{"op":"ping","id":"p"}}\\n')
print(s.makefile().readline())
"""


def test_what_objects_run_may_not_talk_to_it(laptop: Machine) -> None:
    # abi.md 14.24: how deep a call is nested would be forgotten
    (laptop.ctx.work / "talker.py").write_text(TALKER)
    words = f"{sys.executable} talker.py {laptop.ctx.root}"
    alone = subprocess.run(words.split(), cwd=laptop.ctx.work, capture_output=True, text=True, check=True)
    assert json.loads(alone.stdout)["type"] == "pong"
    nested = json.loads(laptop.ctx.call("shell.exec", words).output)
    assert (nested["code"], "may not use the sockets of other machines" in nested["message"]) == (
        "EACCES",
        True,
    )
    with agent(laptop.ctx, "boss", "shell.exec") as boss:
        assert "Permission denied" in shell(laptop.ctx, boss, words)  # an agent has no sockets at all


async def test_a_machine_talks_to_agents_alone_and_for_people(laptop: Machine, box: Machine) -> None:
    box.team("export", "tool/fs.read", "--to", "root@laptop", "--as", "daemon", "--agents", "coder")
    laptop.sees("tool/fs.read+box")
    member = member_of(laptop)
    async with hostile(member) as client:
        word = await incarnation(client)
        for class_, name, label in (("tool", "fs.read", ""), ("agent", "coder", "agent/mine")):
            answers, run_ = list[Delivery](), secrets.token_hex(16)
            client.subscribe(subjects.run("laptop", "box", run_), answers.append)
            begin = msgspec.msgpack.encode(CallBegin(run_, "root", label, 0, [], {}, word, True))
            subject = subjects.call("box", "laptop", class_, name)
            client.publish(subject, prover(laptop, box)(subject, begin))
            await awaited(partial(list, answers))
            assert b"EACCES" in answers[0].data
    box.team("export", "tool/fs.read", "--stop")


def test_an_agent_starts_an_agent_there_under_both_policies(laptop: Machine, box: Machine) -> None:
    # abi.md 14.6, 14.23
    how = ("export", "agent/coder", "--to", "root@laptop", "--as", "daemon")
    with agent(laptop.ctx, "boss", "agent.run") as boss, agent(box.ctx, "guest", "fs.read") as guest:
        assert "allow boss_t agent:coder+box start" in _started(laptop, boss)
        _allow(laptop, boss, "allow boss_t agent:coder+box start")
        assert "is only for people" in _started(laptop, boss)
        box.team(*how, "--agents", "guest")
        assert "allow guest_t agent:coder start" in _started(laptop, boss)
        _allow(box, guest, "allow guest_t agent:coder start")
        assert "mode = balanced" in _started(laptop, boss)  # the call needs approval, and nobody can give it
        (box.ctx.config / "policy.toml").write_text('mode = "open"\n')
        assert "from there" in _started(laptop, boss)
        (box.ctx.config / "policy.toml").unlink()
        box.team(*how)


def _started(laptop: Machine, boss: str) -> str:
    """Have an agent start the other one, with its user's approval; returns the result of that call."""
    task = script(call("agent.run", name="coder+box", task=script(say("from there"))), say("x"))
    with working(laptop.ctx, boss, task, scope="temp") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        (told,) = results(client.until("done", status="ok"))
    return str(told["output"])


def _allow(machine: Machine, path: str, line: str) -> None:
    policy = (machine.ctx.root / f"{path}.d/policy").read_text()
    write(machine.ctx, path, "policy", f"{policy}{line}\n")


def test_any_machine_that_has_it_runs_it(laptop: Machine) -> None:
    # abi.md 14.8
    laptop.sees("agent/coder+any")
    assert run(laptop.ctx, "agent/coder+any", script(say("well"))).output == "well"


def test_people_talk_to_it_by_the_commands(laptop: Machine, box: Machine) -> None:
    ctx = laptop.ctx
    words = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "chat", FAR, "--session", "typed"]
    done = ctx.run(words, input=script(say("hello")))
    assert done.stdout == "hello\n", done
    said = box.ctx.root / f"{THEIR_HOME}/agent/coder.d/session/typed"
    assert (said / "cwd").read_text() == "/\n"  # a folder of this machine does not exist there
    assert ctx.ctx("ask", "-m", FAR, script(say("an answer"))).stdout == "an answer\n"
    (ctx.work / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    refused = ctx.ctx("ask", "-m", FAR, "-a", str(ctx.work / "picture.png"), "look", check=False)
    assert "this model takes no pictures" in refused.stderr


def test_a_chat_shows_what_was_said_and_tells_which_machine_has_it(laptop: Machine, box: Machine) -> None:
    # abi.md 14.24
    with working(laptop.ctx, FAR, script(say("said before")), session="past") as client:
        client.until("done", status="ok")
    kept = f"the sessions of {FAR} are kept on box"
    with screen(environ(laptop.ctx), laptop.ctx.work) as shown:
        chat(shown, FAR, "--session", "another")
        shown.type("/resume past")
        shown.wait("\nsaid before")
        shown.type("/sessions")
        shown.wait(f"\n{kept}\n")
        shown.type("/save said.md")
        shown.wait(f"\n{kept}; save it there")
        leave(shown)
    for words in (("list", FAR), ("show", FAR, "past"), ("rm", FAR, "past", "--yes")):
        told = laptop.ctx.ctx("session", *words, check=False)
        assert (told.returncode, f"{kept}; there: ctx session list agent/coder\n" in told.stderr) == (2, True)
    told = laptop.ctx.ctx("session", "list", "agent/coder+any", check=False)
    assert "the sessions of agent/coder+any are kept on its machine; there: " in told.stderr


def test_a_machine_that_goes_away_ends_a_conversation(laptop: Machine, box: Machine) -> None:
    # abi.md 14.24
    with working(laptop.ctx, FAR, script({"sleep": 1000}), session="lost") as client:
        client.until("start")
        os.kill(box.link(), signal.SIGKILL)
        assert client.rest()[-1]["code"] == "EHOSTDOWN"
    laptop.sees(FAR)
    until(lambda: run(laptop.ctx, FAR, script(say("again"))).output, "again".__eq__)
