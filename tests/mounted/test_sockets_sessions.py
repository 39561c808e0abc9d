"""Sessions from their clients' point of view: retries, order, scopes and resume (abi.md 5).
Each test has sessions of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.mounted.talking import SCRIPT, Talk, history, ids, one_run, said, talk, text, types

HANG = {"hang": True}


def hanging(client: Talk, **fields: object) -> str:
    """Begin a run that goes on until it is cancelled; returns its id."""
    client.play({"delta": "begun"}, HANG, **fields)
    return str(client.until("delta")[0]["run"])


# Retries of a message.


def test_a_retry_replays_a_finished_run(ctx: Ctx) -> None:
    # abi.md 5.14
    first = said(ctx, "hello you", session="retry", id="m")
    assert said(ctx, "hello you", session="retry", id="m") == first
    assert history(ctx, "retry") == first


def test_a_retry_whose_directory_is_gone(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 5.14
    (cwd := tmp_path / "gone").mkdir()
    first = said(ctx, "hello", session="retry-gone", id="m", cwd=str(cwd))
    cwd.rmdir()
    assert said(ctx, "hello", session="retry-gone", id="m", cwd=str(cwd)) == first


def test_a_retry_follows_a_live_run(ctx: Ctx) -> None:
    # abi.md 5.14
    with talk(ctx, SCRIPT) as one, talk(ctx, SCRIPT) as two:
        steps = ({"delta": "a"}, {"approval": {"name": "t", "call": "c"}}, {"delta": "b"})
        one.play(*steps, session="live", id="m")
        begun = one.until("approval")
        two.play(*steps, session="live", id="m")
        assert two.until("approval") == begun
        two.ask("approve", run=begun[0]["run"], call="c", decision="deny")
        rest = one.until("done")
        assert two.until("done") == rest
        one_run(begun + rest)


def test_a_retry_with_another_input(ctx: Ctx) -> None:
    # abi.md 5.14
    first = said(ctx, "hello", session="other", id="m")
    with talk(ctx) as client:
        client.send("goodbye", session="other", id="m")
        error = client.error()
        assert (error["code"], error["request"]) == ("EINVAL", "m")
        assert client.is_alive()
    assert history(ctx, "other") == first


def test_an_id_is_of_one_session(ctx: Ctx) -> None:
    # abi.md 5.14: an id is one of its session
    runs = {one_run(said(ctx, "hello", session=session, id="m")) for session in ("ids1", "ids2")}
    assert len(runs) == 2
    assert one_run(said(ctx, "hello", session="ids1", scope="shared", id="m")) not in runs


def test_messages_without_an_id_are_all_new(ctx: Ctx) -> None:
    # abi.md 5.7
    assert len({one_run(said(ctx, "hello", session="noid")) for _ in range(3)}) == 3


def test_a_retry_on_the_connection_that_had_the_run(ctx: Ctx) -> None:
    # abi.md 5.16
    with talk(ctx) as client:
        client.send("hello", session="again", id="m")
        run = one_run(client.until("done"))
        client.send("hello", session="again", id="m")
        answer = client.all()
    assert types(answer) == ["start", "done"]
    assert not ids(answer)
    assert {frame["run"] for frame in answer} == {run}


def test_each_event_once_whatever_was_asked_for(ctx: Ctx) -> None:
    # abi.md 5.16
    said(ctx, "before", session="once")
    with talk(ctx) as client:
        client.ask("resume", session="once", after="2")
        client.ask("resume", session="once")
        client.send("now", session="once", id="m")
        client.ask("resume", session="once", after="3")
        client.send("now", session="once", id="m")
        frames = [frame for frame in client.all() if "id" in frame]
    assert sorted(ids(frames)) == ids(history(ctx, "once"))


# Order.


def test_a_session_answers_in_order(ctx: Ctx) -> None:
    # abi.md 5.15
    with talk(ctx, SCRIPT) as client:
        for number in range(10):
            client.play({"sleep": 0.001}, {"delta": str(number)}, session="queue")
        frames = client.all()
    assert ids(frames) == list(range(1, len(frames) + 1))
    ends = [place for place, frame in enumerate(frames, 1) if frame["type"] == "done"]
    runs = [frames[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [text(run) for run in runs] == [str(number) for number in range(10)]
    for run in runs:
        one_run(run)


def test_sessions_run_side_by_side(ctx: Ctx) -> None:
    # abi.md 5.15
    with talk(ctx, SCRIPT) as client:
        run = hanging(client, session="side1")
        client.play({"delta": "quick"}, session="side2")
        assert text(client.until("done")) == "quick"
        client.ask("cancel", id=run)
        client.until("done", run=run)


def test_the_deltas_of_a_run_are_in_order(ctx: Ctx) -> None:
    # abi.md 5.35
    words = " ".join(map(str, range(5000)))
    frames = said(ctx, words, session="deltas")
    one_run(frames)
    assert text(frames) == words


# Scopes.


def test_private_sessions_are_keyed_by_uid(ctx: Ctx) -> None:
    # abi.md 5.17
    said(ctx, "mine", session="private")
    assert history(ctx, "private", uid=NOBODY) == []
    with talk(ctx, uid=NOBODY) as client:
        client.send("his", session="private", scope="private")
        his = client.until("done")
    assert history(ctx, "private", uid=NOBODY) == his
    assert text(history(ctx, "private")) == "mine"


def test_runs_of_others_private_sessions_are_not_there(ctx: Ctx) -> None:
    # docs/protocol.md: "no such run of yours or a shared session"
    with talk(ctx, SCRIPT) as mine, talk(ctx, SCRIPT, uid=NOBODY) as his:
        run = hanging(mine, session="secret", id="m")
        for id_ in (run, "m"):
            his.ask("cancel", id=id_)
            assert his.error()["code"] == "ENOENT"
        his.ask("approve", run=run, call="c", decision="deny")
        assert his.error()["code"] == "ENOENT"
        mine.ask("cancel", id=run)
        assert mine.until("done")[-1]["status"] == "cancelled"


def test_shared_sessions_are_everybodys(ctx: Ctx) -> None:
    # abi.md 5.17
    with talk(ctx, SCRIPT) as one, talk(ctx, SCRIPT, uid=NOBODY) as two:
        two.ask("resume", session="common", scope="shared")
        run = hanging(one, session="common", scope="shared")
        assert two.until("delta")[0]["run"] == run
        two.ask("cancel", id=run)
        done = two.until("done")[-1]
        assert done["status"] == "cancelled"
        assert one.until("done")[-1] == done
    assert history(ctx, "common", SCRIPT) == []  # a private one has the same name
    files = ctx.state / "sessions/shared/main/model/debug/script.d/session/common"
    assert (files / "events.jsonl").exists()


def test_temp_sessions_end_with_their_connection(ctx: Ctx) -> None:
    # abi.md 5.17, 5.24
    with talk(ctx, SCRIPT) as client, talk(ctx, SCRIPT) as other:
        client.play({"delta": "a"}, session="gone", scope="temp")
        client.until("done")
        run = hanging(client, session="gone", scope="temp")
        other.ask("resume", session="gone", scope="temp")
        other.ask("cancel", id=run)
        assert other.error()["code"] == "ENOENT"
        assert other.all() == []
    ctx.at_rest()
    with talk(ctx, SCRIPT) as client:
        client.ask("resume", session="gone", scope="temp")
        assert client.all() == []
    assert not [path for path in ctx.state.joinpath("sessions").rglob("*") if path.name in ("gone", "temp")]


def test_runs_go_on_without_their_clients(ctx: Ctx) -> None:
    # abi.md 5.24
    for scope in ("private", "shared"):
        with talk(ctx, SCRIPT) as client:
            steps = ({"approval": {"name": "t", "call": "c"}}, {"delta": "after"})
            client.play(*steps, session="alone", scope=scope, id="m")
            run = client.until("approval")[0]["run"]
        with talk(ctx, SCRIPT) as client:
            client.ask("resume", session="alone", scope=scope)
            frames = client.until("done")
        assert one_run(frames) == run
        assert text(frames) == "denyafter"  # issue: "nobody connected, EOF or timeout: deny"


# Resume.


@pytest.mark.parametrize("after", [0, 1, 4, 9, 10])
def test_resume_after_an_event(ctx: Ctx, after: int) -> None:
    # abi.md 5.18
    whole = said(ctx, "a b c d e", session=f"after{after}")
    assert ids(whole) == list(range(1, 11))
    fields: dict[str, Any] = {"after": str(after)} if after else {}
    assert history(ctx, f"after{after}", **fields) == whole[after:]


def test_resume_goes_on_live_without_gap_or_duplicate(ctx: Ctx) -> None:
    # abi.md 5.18
    with talk(ctx, SCRIPT) as sender:
        sender.play({"burst": 50_000, "size": 40}, session="live-resume")
        whole = [sender.frame() for _ in range(5)]
        followers = []
        try:
            for number in range(5):
                followers.append(Talk(ctx.root / SCRIPT))
                after = {"after": str(number)} if number else {}
                followers[-1].ask("resume", session="live-resume", **after)
            whole += sender.until("done")
            one_run(whole)
            for number, follower in enumerate(followers):
                assert follower.until("done") == whole[number:]
            sender.send("[]", session="live-resume", id="next")
            more = sender.until("done")
            for follower in followers:
                assert follower.until("done") == more
        finally:
            for follower in followers:
                follower.close()


def test_an_unknown_session_is_empty_and_followed(ctx: Ctx) -> None:
    # abi.md 5.19
    with talk(ctx) as follower:
        follower.ask("resume", session="unknown-yet")
        assert follower.is_alive()
        whole = said(ctx, "now", session="unknown-yet")
        assert follower.until("done") == whole
    assert not (ctx.state / "sessions/home/0/model/debug/echo.d/session/never").exists()


@pytest.mark.parametrize("after", ["999999", "-1", "x", "", "01", "1.0", " 1", "१", "9" * 30])
def test_an_unknown_after(ctx: Ctx, after: str) -> None:
    # abi.md 5.19
    said(ctx, "x", session="bad-after", id="m")
    with talk(ctx) as client:
        client.ask("resume", session="bad-after", after=after, id="r")
        error = client.error()
        assert (error["code"], error["request"]) == ("EINVAL", "r")
        assert client.is_alive()


def test_looking_for_a_session_leaves_no_trace(ctx: Ctx) -> None:
    # abi.md 5.19
    assert history(ctx, "never-there") == []
    assert not list(ctx.state.joinpath("sessions").rglob("never-there"))


def test_event_ids_increase_and_run_ids_are_unique(ctx: Ctx) -> None:
    # abi.md 5.20
    runs = {one_run(said(ctx, "x y", session="increasing")) for _ in range(5)}
    whole = history(ctx, "increasing")
    assert ids(whole) == sorted(set(ids(whole)))
    assert {frame["run"] for frame in whole} == runs
    assert len(runs) == 5
