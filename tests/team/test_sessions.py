"""Sessions of a team: begun on one machine, read live on another, taken over, and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY
from tests.mounted.talking import ECHO, SCRIPT, talk, types
from tests.team.machines import Machine, team
from tests.team.sessions import MAP, events, listed, log_of, same, send, take, whole
from tests.waiting import until


@pytest.fixture(scope="module")
def machines(python: Path) -> Iterator[dict[str, Machine]]:
    with team(python, "laptop", "third", "box") as found:
        for name in ("laptop", "box"):
            (found[name].ctx.config / "team.map").write_text(MAP)
        yield found


def test_a_session_is_read_live_on_another_machine(laptop: Machine, box: Machine) -> None:
    # abi.md 14.15
    send(laptop, "plan+laptop", "good morning")
    assert whole(laptop, "plan+laptop").startswith(b'{"type":"owner","id":"1","machine":"laptop"')
    same("plan+laptop", laptop, box)
    with talk(laptop.ctx, SCRIPT) as here, talk(box.ctx, SCRIPT) as there:
        here.play({"delta": "half "}, {"sleep": 3600}, session="live+laptop", id="one")
        here.until("delta", text="half ")
        until(lambda: whole(box, "live+laptop", SCRIPT), lambda seen: b'"text":"half "' in seen)
        there.ask("resume", session="live+laptop")
        there.until("delta", text="half ")
        row = listed(box, SCRIPT)["live+laptop"]
        assert (row["machine"], row["state"]) == ("laptop", "active")
        here.ask("cancel", id="one")
        assert there.until("done")[-1]["status"] == "cancelled"
    assert "laptop" in box.ctx.ctx("session", "list", SCRIPT[:-5]).stdout


def test_it_takes_messages_where_it_is_alone(laptop: Machine, box: Machine) -> None:
    # abi.md 14.16
    with talk(laptop.ctx, SCRIPT) as here, talk(box.ctx, SCRIPT) as there:
        here.play({"delta": "x"}, {"sleep": 3600}, session="alone+laptop", id="two")
        here.until("delta")
        until(lambda: whole(box, "alone+laptop", SCRIPT), lambda seen: b'"text":"x"' in seen)
        there.send("hello", session="alone+laptop")
        refused = there.error()
        assert refused["code"] == "EACCES"
        assert refused["message"] == (
            "laptop has the session; to move it here: ctx session take model/debug/script alone+laptop"
        )
        there.ask("resume", session="alone+laptop")
        there.until("delta")
        there.ask("cancel", id="two")
        assert there.error()["code"] == "EACCES"
        there.send("hello", session="new+laptop")
        assert there.error()["code"] == "ENOENT"
        here.ask("cancel", id="two")
        here.until("done")


def test_it_is_taken_by_force_from_a_machine_that_is_there(laptop: Machine, box: Machine) -> None:
    # abi.md 14.17
    with talk(laptop.ctx, SCRIPT) as here:
        here.play({"delta": "begun"}, {"sleep": 3600}, session="moves+laptop", id="three")
        here.until("delta")
        until(lambda: whole(box, "moves+laptop", SCRIPT), lambda seen: b'"text":"begun"' in seen)
        refused = take(box, "moves+laptop", SCRIPT, check=False)
        assert "which is connected; take it with --force" in refused
        take(box, "moves+laptop", SCRIPT, "--force")
        end = here.until("done")[-1]
        assert (end["status"], end["code"]) == ("error", "EHOSTDOWN")
    with talk(box.ctx, SCRIPT) as there:
        there.play({"delta": "gone on"}, session="moves+laptop", id="four")
        assert there.until("done")[-1]["status"] == "ok"
    found = same("moves+laptop", laptop, box, path=SCRIPT)
    frames = [json.loads(line) for line in found.splitlines()]
    owners = [(one["machine"], one["epoch"]) for one in frames if one["type"] == "owner"]
    assert owners == [("laptop", 1), ("box", 2)]
    ends = [(one["status"], one.get("code")) for one in frames if one["type"] == "done"]
    assert ends == [("error", "EIO"), ("ok", None)]
    with talk(laptop.ctx, SCRIPT) as here:
        here.send("hello", session="moves+laptop")
        assert here.error()["code"] == "EACCES"
    take(laptop, "moves+laptop", SCRIPT, "--force")
    with talk(laptop.ctx, SCRIPT) as here:
        here.play({"delta": "back"}, session="moves+laptop")
        assert here.until("done")[-1]["status"] == "ok"
    same("moves+laptop", laptop, box, path=SCRIPT)


def test_it_is_shown_to_whom_both_machines_say(machines: dict[str, Machine]) -> None:
    # abi.md 14.18
    laptop, box, third = (machines[name] for name in ("laptop", "box", "third"))
    with talk(laptop.ctx, ECHO, NOBODY) as his:
        his.send("mine", session="his+laptop")
        assert his.until("done")[-1]["status"] == "ok"
    there = log_of(box, "his+laptop", uid=NOBODY)
    here = log_of(laptop, "his+laptop", uid=NOBODY)
    until(lambda: there.exists() and there.read_bytes() == here.read_bytes())
    assert there.stat().st_uid == NOBODY
    with talk(box.ctx, ECHO) as other:
        other.ask("take", session="his+laptop", force=True, id="t")
        assert other.error()["code"] == "ENOENT"  # root has no session of that name
    send(third, "own+third", "nobody maps me")
    assert not log_of(third, "his+laptop", uid=NOBODY).exists()  # third has no map
    assert not log_of(box, "own+third").exists()


def test_a_removed_session_is_gone_everywhere(laptop: Machine, box: Machine) -> None:
    # abi.md 14.19
    send(laptop, "goes+laptop", "soon")
    same("goes+laptop", laptop, box)
    laptop.ctx.ctx("session", "rm", ECHO[:-5], "goes+laptop", "--yes")
    until(lambda: log_of(box, "goes+laptop").exists(), lambda seen: not seen)
    send(laptop, "goes+laptop", "again")
    assert b"soon" not in same("goes+laptop", laptop, box)


def test_a_copy_that_was_removed_comes_back_with_the_next_event(laptop: Machine, box: Machine) -> None:
    # abi.md 14.19
    send(laptop, "copy+laptop", "first")
    same("copy+laptop", laptop, box)
    box.ctx.ctx("session", "rm", ECHO[:-5], "copy+laptop", "--yes")
    send(laptop, "copy+laptop", "second")
    assert b"first" in same("copy+laptop", laptop, box)


def test_a_long_session_comes_whole(laptop: Machine, box: Machine) -> None:
    with talk(laptop.ctx, SCRIPT) as here:
        here.play({"burst": 3000, "size": 1000}, session="long+laptop")
        assert here.until("done")[-1]["status"] == "ok"
    found = same("long+laptop", laptop, box, path=SCRIPT)
    assert types(events(found)).count("delta") == 3000


def test_what_cannot_be_taken_is_said(laptop: Machine, box: Machine) -> None:
    assert "only a session of the team" in take(box, "plain", check=False)
    assert "no session none+laptop that is yours here" in take(box, "none+laptop", check=False)
    assert "NAME+MACHINE" in take(box, "plain", check=False)
