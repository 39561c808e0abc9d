"""Tools of another machine, called through a mount of this machine (docs/team.md)."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from typing import IO, Any

import pytest

from tests.mounted.agents import agent, call, decisions, results, say, script, working, write
from tests.mounted.ctx_mount import NOBODY
from tests.team.machines import Machine
from tests.waiting import until

TOOLS = (
    *("show.who", "show.env", "show.signals", "show.types", "bad.hang", "bad.flood", "bad.failed"),
    *("shell.exec", "text.word_count", "bad.segfault"),
)
NOBODY_S = pwd.getpwuid(NOBODY).pw_name
DAEMON = pwd.getpwnam("daemon")


@pytest.fixture(autouse=True, scope="module")
def exported(machines: dict[str, Machine]) -> Iterator[None]:
    box, laptop = machines["box"], machines["laptop"]
    for name in TOOLS:
        box.team(
            "export", f"tool/{name}", "--to", f"{NOBODY_S}@laptop", "--to", "root@laptop", "--as", "daemon"
        )
    for name in TOOLS:
        laptop.sees(f"tool/{name}+box")
    yield
    for name in TOOLS:
        box.team("export", f"tool/{name}", "--stop")
        laptop.sees_no(f"tool/{name}+box")


def test_a_tool_of_another_machine_is_an_object(laptop: Machine, box: Machine) -> None:
    # abi.md 14.3
    here, there = laptop.ctx.root / "tool/text.word_count+box", box.ctx.root / "tool/text.word_count"
    assert os.access(here, os.X_OK)
    folder, own = here.with_name(f"{here.name}.d"), there.with_name(f"{there.name}.d")
    for name in ("description", "schema", "timeout", "cap"):
        assert (folder / name).read_text() == (own / name).read_text(), name
    assert (folder / "origin").read_text() == "machine:box\n"
    # The input of such a call leaves this machine, whatever effects the tool declares.
    effects = (folder / "effects").read_text().splitlines()
    assert effects == [
        *(own / "effects").read_text().splitlines(),
        "network_request - partially_reversible on_risk not_supported",
    ]
    listed = json.loads(laptop.ctx.ctx("ls", "--json", "tool").stdout)
    assert [one["status"] for one in listed if one["object"] == "tool/text.word_count+box"] == ["ready"]


def test_a_call_streams_and_ends_as_a_local_one(laptop: Machine) -> None:
    here, there = laptop.ctx.call("show.signals"), laptop.ctx.call("show.signals+box")
    assert there.status == here.status == 0
    assert there.types == here.types
    assert [{**one, "run": "", "tool": ""} for one in there.frames] == [
        {**one, "run": "", "tool": ""} for one in here.frames
    ]
    assert there.frames[0]["tool"] == "show.signals+box"
    failed = laptop.ctx.call("bad.failed+box", "--code", "EDQUOT")
    assert (failed.status, failed.code) == (1, "EDQUOT")
    assert laptop.ctx.call("show.types+box", "--nonsense").code == "EINVAL"
    assert laptop.ctx.call("show.types+box", '{"text":"a\\u0000b","items":["x"]}').status == 0
    died = laptop.ctx.call("bad.segfault+box")
    assert (died.status, died.code) == (70, "EPROTO")


def test_standard_input_and_much_output_go_through(laptop: Machine) -> None:
    said = "word " * 200_000
    counted = laptop.ctx.call("text.word_count+box", "-", input=json.dumps({"text": said}).encode())
    local = laptop.ctx.call("text.word_count", "-", input=json.dumps({"text": said}).encode())
    assert counted.output == local.output
    assert counted.output
    much = laptop.ctx.call("shell.exec+box", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert much.status == 0
    assert len(much.output) >= 3_000_000


def test_it_runs_as_the_user_whom_the_export_names(laptop: Machine) -> None:
    # abi.md 14.4
    done = laptop.ctx.call("show.who+box", uid=NOBODY)
    who = json.loads(done.output)
    assert (who["uid"], who["gid"], who["caps"]) == (DAEMON.pw_uid, DAEMON.pw_gid, "0" * 16)
    assert who["groups"] == sorted({*os.getgrouplist("daemon", DAEMON.pw_gid)})
    env = json.loads(
        laptop.ctx.call("show.env+box", env={"LC_TIME": "C", "COLUMNS": "33", "PATH": "/nowhere"}).output
    )
    assert (env.get("LC_TIME"), env.get("COLUMNS")) == ("C", "33")  # the form of the answer travels
    assert env.get("PATH") != "/nowhere"  # places of this machine do not


def test_who_has_no_name_here_calls_nothing_there(laptop: Machine) -> None:
    known = {user.pw_uid for user in pwd.getpwall()}
    nameless = next(uid for uid in range(50_000, 60_000) if uid not in known)
    for _ in range(2):  # the second call uses the cached lookup
        done = laptop.ctx.call("show.who+box", uid=nameless)
        assert (done.code, done.output) == ("EACCES", "")
        assert f"uid {nameless} has no user name here" in done.message


@contextlib.contextmanager
def begun(laptop: Machine) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Yields a call to the box that has begun and goes on, and its output."""
    words = [laptop.ctx.tool("shell.exec+box"), "echo begun; sleep 1000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=laptop.ctx.work, env=laptop.ctx.environ)
    assert process.stdout
    with process, process.stdout as out:
        while b"begun" not in out.readline():
            pass
        yield process, out


def test_a_caller_who_leaves_cancels_it_there(laptop: Machine, box: Machine) -> None:
    # abi.md 14.5
    with begun(laptop) as (process, _):
        box.ctx.at_rest(1)
        process.send_signal(signal.SIGINT)
        until(process.poll, lambda status: status is not None)
    box.ctx.at_rest()
    laptop.ctx.at_rest()


def test_a_call_whose_link_ends_here_says_so(laptop: Machine, box: Machine) -> None:
    # abi.md 14.7
    with begun(laptop) as (_, out):
        os.kill(laptop.link(), signal.SIGKILL)
        assert b'"EHOSTDOWN","message":"the link to the team has ended' in out.read()
    box.ctx.at_rest()
    laptop.works("box")


def test_a_caller_who_is_killed_or_does_not_read_holds_nobody_up(laptop: Machine, box: Machine) -> None:
    words = [laptop.ctx.tool("bad.flood+box")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=laptop.ctx.work, env=laptop.ctx.environ)
    with process:
        box.ctx.at_rest(1)  # the pipe is full and the credit is used up
        assert laptop.ctx.call("text.word_count+box", '{"text":"a b"}').status == 0
        process.kill()
    box.ctx.at_rest()


def test_time_limits_are_those_of_the_other_machine(laptop: Machine) -> None:
    done = laptop.ctx.call("bad.hang+box")
    assert done.code == "ETIMEDOUT"


def test_who_is_not_named_may_not(laptop: Machine, box: Machine) -> None:
    # abi.md 14.4: default EACCES
    denied = laptop.ctx.call("show.who+box", uid=DAEMON.pw_uid)
    assert (denied.status, denied.code) == (13, "EACCES")
    assert "does not export tool/show.who to daemon@laptop" in denied.message
    box.team("export", "tool/show.who", "--to", "*@laptop")  # no map gives these users a user of the box
    try:
        until(
            lambda: laptop.ctx.call("show.who+box", uid=DAEMON.pw_uid).message,
            lambda said: "team.map" in said,
        )
        (box.ctx.config / "team.map").write_text("# users\ndaemon@laptop = nobody\n")
        assert json.loads(laptop.ctx.call("show.who+box", uid=DAEMON.pw_uid).output)["uid"] == NOBODY
        assert laptop.ctx.call("show.who+box").code == "EACCES"  # the map has no line for root
        (box.ctx.config / "team.map").write_text("daemon@laptop nobody\n")
        assert "team.map:1" in laptop.ctx.call("show.who+box", uid=DAEMON.pw_uid).message
        until(lambda: "team.map:1" in box.team("status").stdout)
        assert laptop.ctx.call("text.word_count+box", '{"text":"a b"}').status == 0  # it needs no map
    finally:
        (box.ctx.config / "team.map").unlink(missing_ok=True)
        box.team(
            "export", "tool/show.who", "--to", f"{NOBODY_S}@laptop", "--to", "root@laptop", "--as", "daemon"
        )


def told(laptop: Machine, path: str, task: str, session: str) -> dict[str, Any]:
    """Returns the result of the agent's only call, which the user approves, as it is another machine's."""
    with working(laptop.ctx, path, task, session=session) as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        (result,) = results(client.until("done", status="ok"))
        return result


def test_an_agent_uses_a_tool_there_under_both_policies(laptop: Machine, box: Machine) -> None:
    # abi.md 14.6
    name = "text.word_count+box"
    how = ("export", "tool/text.word_count", "--to", "root@laptop", "--as", "daemon")
    with agent(laptop.ctx, "counter", name) as path, agent(box.ctx, "guest", "text.word_count") as guest:
        ask = script(call(name, text="a b c"), say("well"))
        assert "is only for people" in told(laptop, path, ask, "people")["output"]
        box.team(*how, "--agents", "guest")
        allowed = told(laptop, path, ask, "allowed")
        assert not allowed["is_error"], allowed
        policy = (box.ctx.root / f"{guest}.d/policy").read_text()
        write(box.ctx, guest, "policy", policy.replace("allow guest_t tool:text.word_count execute\n", ""))
        denied = told(laptop, path, ask, "denied")
        assert denied["is_error"]
        assert "allow guest_t tool:text.word_count execute" in denied["output"]
        box.team(*how)
        policy = (laptop.ctx.root / f"{path}.d/policy").read_text()
        write(laptop.ctx, path, "policy", policy.replace(f"allow counter_t tool:{name} execute\n", ""))
        with working(laptop.ctx, path, ask, session="here") as client:
            frames = client.until("done", status="ok")
        assert [one["decision"] for one in decisions(frames)] == ["deny"]
