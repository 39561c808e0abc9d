"""Working directories of runs, cancels, approvals, and the files that runs leave (abi.md 5).
Each test has sessions of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.mounted.talking import ECHO, SCRIPT, Talk, history, ids, one_run, said, talk, text, types
from tests.mounted.test_faults import descendants
from tests.waiting import until

HANG = {"hang": True}


def hanging(client: Talk, **fields: object) -> str:
    """Begin a run that goes on until it is cancelled; returns its id."""
    client.play({"delta": "begun"}, HANG, **fields)
    return str(client.until("delta")[0]["run"])


# The working directory.


def test_cwd_becomes_the_sessions(ctx: Ctx) -> None:
    # abi.md 5.22
    frames = said(ctx, "x", session="cwd", cwd=str(ctx.work))
    assert frames[0]["cwd"] == str(ctx.work)
    path = ctx.state / "sessions/home/0/model/debug/echo.d/session/cwd/cwd"
    until(path.exists)  # written from the log, soon after the log
    until(path.read_text, f"{ctx.work}\n".__eq__)


def test_cwd_has_defaults(ctx: Ctx) -> None:
    # abi.md 5.22; a model has no .d/cwd
    path = ctx.root / f"home/{os.getuid()}/model/debug/echo.d/session/default-cwd/cwd"
    said(ctx, "x", session="default-cwd")
    assert path.read_text() == "/\n"
    said(ctx, "x", session="default-cwd", cwd="/tmp")
    said(ctx, "x", session="default-cwd")
    assert path.read_text() == "/tmp\n"


@pytest.mark.parametrize(("cwd", "code"), [("work", "EINVAL"), ("", "EINVAL"), ("/not/there", "ENOENT")])
def test_a_cwd_that_is_none(ctx: Ctx, cwd: str, code: str) -> None:
    # abi.md 5.22
    with talk(ctx) as client:
        client.send("x", session="no-cwd", cwd=cwd, id="m")
        error = client.error()
        assert (error["code"], error["request"]) == (code, "m")
        assert client.is_alive()
    assert history(ctx, "no-cwd") == []


def test_a_cwd_that_is_a_file(ctx: Ctx, tmp_path: Path) -> None:
    with talk(ctx) as client:
        client.send("x", cwd=(cwd := str(ctx.config / "config.toml")))
        error = client.error()
        assert (error["code"], error["message"]) == ("ENOTDIR", f"cwd: {cwd}: Not a directory")


def test_cwd_is_checked_as_the_caller(ctx: Ctx) -> None:
    # abi.md 5.22
    closed = ctx.base / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    with talk(ctx, uid=NOBODY) as client:
        client.send("x", session="closed", cwd=str(closed))
        assert client.error()["code"] == "EACCES"
        client.send("x", session="closed", cwd=str(ctx.work))
        one_run(client.until("done"))
    assert types(said(ctx, "x", session="closed", cwd=str(closed)))[-1] == "done"


def test_a_refused_cwd_does_not_cost_a_host(ctx: Ctx) -> None:
    # design.md: "a call costs about what `cat` costs": hosts stay warm
    with talk(ctx) as client:
        client.send("x", session="warm", cwd="/")
        client.until("done")
        before = descendants(ctx.pid)
        client.send("x", session="warm", cwd="/not/there")
        assert client.error()["code"] == "ENOENT"
        client.send("x", session="warm", cwd="/")
        client.until("done")
    assert before <= descendants(ctx.pid)


# Cancel and approve.


def test_cancel(ctx: Ctx) -> None:
    # abi.md 5.26
    with talk(ctx, SCRIPT) as client, talk(ctx, SCRIPT) as other:
        run = hanging(client, session="cancel")
        other.ask("cancel", id=run)
        done = other.until("done")[-1]
        assert client.until("done")[-1] == done
    assert (done["status"], done["run"]) == ("cancelled", run)
    kept = history(ctx, "cancel", SCRIPT)
    assert text(kept) == "begun"
    assert kept[-2]["content"] == [{"type": "text", "text": "begun"}]  # the next message's model is told it
    assert kept[-1] == done


def test_cancel_one_that_waits(ctx: Ctx) -> None:
    # abi.md 5.26
    with talk(ctx, SCRIPT) as client, talk(ctx, SCRIPT) as other:
        run = hanging(client, session="cancel-waits")
        client.play({"delta": "never"}, session="cancel-waits", id="w")
        assert client.is_alive()  # so the daemon has received the message
        other.ask("cancel", id="w")
        done = other.until("done")[-1]
        assert client.until("done")[-1] == done
        assert done["status"] == "cancelled"
        assert done["run"] != run
        other.ask("cancel", id=run)
        client.until("done", run=run)
    whole = history(ctx, "cancel-waits", SCRIPT)
    assert text(whole) == "begun"
    assert ids(whole) == sorted(set(ids(whole)))


def test_cancel_in_a_flood(ctx: Ctx) -> None:
    # abi.md 5.26: also while a run says more than anybody reads
    with talk(ctx, SCRIPT) as client, talk(ctx, SCRIPT) as other:
        client.play({"burst": 1_000_000, "size": 64}, session="cancel-flood")
        run = client.until("delta")[-1]["run"]
        other.ask("cancel", id=run)
        assert other.until("done")[-1]["status"] == "cancelled"  # so the run had not sent all of its deltas


def test_cancel_what_is_unknown_or_over(ctx: Ctx) -> None:
    # abi.md 5.27
    run = one_run(said(ctx, "x", session="over", id="over-id"))
    with talk(ctx) as client:
        for id_, code in (("nonsense", "ENOENT"), (run, "EALREADY"), ("over-id", "EALREADY")):
            client.ask("cancel", id=id_)
            error = client.error()
            assert (error["code"], error["request"]) == (code, id_)
        assert client.is_alive()


def test_a_cancel_that_comes_too_late_ends_nobody_elses_run(ctx: Ctx) -> None:
    # abi.md 5.27; clients choose the ids of sends, so two may be alike
    with talk(ctx, SCRIPT) as client, talk(ctx, SCRIPT) as other:
        run = hanging(other, session="late-other", id="same")
        client.play({"delta": "x"}, session="late-own", id="same")
        client.until("done")
        client.ask("cancel", id="same")
        assert client.error()["code"] == "EALREADY"
        other.ask("cancel", id=run)
        assert other.until("done")[-1]["run"] == run


def test_a_cancelled_run_is_replayed_as_such(ctx: Ctx) -> None:
    with talk(ctx, SCRIPT) as client:
        run = hanging(client, session="cancelled", id="m")
        client.ask("cancel", id=run)
        client.until("done")
    with talk(ctx, SCRIPT) as client:
        client.play({"delta": "begun"}, HANG, session="cancelled", id="m")
        frames = client.until("done")
    assert one_run(frames) == run
    assert frames[-1]["status"] == "cancelled"


@pytest.mark.parametrize("decision", ["allow_once", "allow_session", "deny"])
def test_approve(ctx: Ctx, decision: str) -> None:
    # abi.md 5.7
    asked: dict[str, Any] = {"name": "shell.exec", "call": "c1", "input": {"command": "ls"}, "reason": "why"}
    with talk(ctx, SCRIPT) as client, talk(ctx, SCRIPT) as other:
        client.play({"approval": asked}, session=f"approve-{decision}")
        approval = client.until("approval")[-1]
        assert {key: approval[key] for key in asked} == asked
        for run, call, code in (("none", "c1", "ENOENT"), (approval["run"], "none", "ENOENT")):
            other.ask("approve", run=run, call=call, decision=decision, id="a")
            error = other.error()
            assert (error["code"], error["request"]) == (code, "a")
        other.ask("approve", run=approval["run"], call="c1", decision=decision)
        other.ask("approve", run=approval["run"], call="c1", decision=decision)
        assert other.error()["code"] == "EALREADY"  # "decides a call ..., once"
        assert text(client.until("done")) == decision


# Files.


def test_the_log_is_what_clients_are_told(ctx: Ctx) -> None:
    # abi.md 5.28
    with talk(ctx) as client:
        client.send("one two three", session="logged", id="m")
        lines = [client.line()]
        while b'"done"' not in lines[-1]:
            lines.append(client.line())
    path = ctx.state / "sessions/home/0/model/debug/echo.d/session/logged/events.jsonl"
    assert path.read_bytes().splitlines() == lines
    assert json.loads(lines[0])["type"] == "start"
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_runs_are_in_the_objects_log(ctx: Ctx) -> None:
    # abi.md 3.18
    run = one_run(said(ctx, "a secret word", session="object-log"))
    path = ctx.root / ECHO.replace(".sock", ".d/log")
    (line,) = until(lambda: [line for line in path.read_text().splitlines() if run in line])
    entry = json.loads(line)
    assert (entry["source"], entry["status"], entry["uid"]) == ("socket", "ok", 0)
    assert entry["input_tokens"] == 3
    assert "secret" not in line
