"""Approvals: the clients that are asked, and the denial when none of them answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from cortexfs.core.frames import Approval, Delta
from cortexfs.models.ask.driver import Turn
from tests.shell.conversing import SCRIPT, Client, Frame, World, conversing

ASKS = json.dumps([{"approval": {"name": "shell.exec", "call": "c", "input": {"command": "ls"}}}])
OTHER = 4242


def told(frames: list[Frame]) -> dict[str, Any]:
    """Returns the decision that these frames contain."""
    (said,) = (json.loads(frame["content"]) for frame in frames if frame["type"] == "observer")
    assert isinstance(said, dict)
    return said


def text(frames: list[Frame]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


async def asked(client: Client, **fields: object) -> str:
    await client.send(ASKS, session="s", **fields)
    return str((await client.until("approval"))[-1]["run"])


async def read_again(world: World) -> list[Frame]:
    await world.deserted()  # a connected reader could be asked, too
    with world.connected(SCRIPT) as later:
        await later.ask("resume", session="s")
        return await later.until("done")


async def test_a_person_decides_with_another_input(tmp_path: Path) -> None:
    # issue: "[e]dit"; protocol.md: "used in the place of what the model gave"
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            run = await asked(client)
            edited = {"command": "ls -l"}
            await client.ask("approve", run=run, call="c", decision="allow_once", input=edited)
            frames = await client.until("done")
        assert text(frames) == 'allow_once {"command":"ls -l"}'
        assert told(frames) == {
            "call": "c",
            "name": "shell.exec",
            "decision": "allow_once",
            "reason": f"uid {world.uid} allowed it once, with another input",
            "input": edited,
        }
        assert told(await read_again(world)) == told(frames)  # issue: "Every decision ... in events.jsonl"


async def test_it_is_denied_when_whoever_could_decide_leaves(tmp_path: Path) -> None:
    # issue: "nobody connected, EOF or timeout: deny"
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client, world.connected(SCRIPT) as second:
            await second.ask("resume", session="s")
            await asked(client)
            await second.until("approval")
            client.leave()
            await trio.testing.wait_all_tasks_blocked()
            assert await second.is_alive()  # the remaining client can still decide
            assert len(world.runs.active) == 1
        frames = await read_again(world)
        assert text(frames) == "deny"
        assert told(frames)["reason"] == "every client that could answer has left"
        assert frames[-1]["status"] == "ok"  # the run goes on with the denial


async def test_who_says_no_more_cannot_decide(tmp_path: Path) -> None:
    # issue: "EOF ...: deny", before and after the question
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.send(ASKS, session="s")
            frames = await client.all()
            assert text(frames) == "deny"
        with world.connected(SCRIPT) as client:
            await asked(client, id="again")
            assert text(await client.all()) == "deny"


async def test_others_who_listen_are_nobody_who_could_decide(tmp_path: Path) -> None:
    # protocol.md: "only who sent a message decides for it"
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT, uid=OTHER) as his, world.connected(SCRIPT) as idle:
            await his.ask("resume", session="s", scope="shared")
            await idle.send("[]", session="s", scope="shared")  # this client is not told of other runs
            await idle.until("done")
            await his.until("done")
            with world.connected(SCRIPT) as mine:
                await asked(mine, scope="shared")
                await his.until("approval")
            frames = await his.until("done")
            assert told(frames)["decision"] == "deny"


async def test_nobody_is_asked_where_nobody_is(tmp_path: Path) -> None:
    # issue: "nobody connected ...: deny"
    is_alone = trio.Event()

    async def driver(turn: Turn) -> None:
        await is_alone.wait()
        await turn.ask(Approval(call="c", name="t", input={}, effects=[], reason=""))

    async with conversing(tmp_path, drivers=lambda key: driver) as world:
        with world.connected(SCRIPT) as client:
            await client.send("x", session="s")
            await client.until("start")
        await world.deserted()
        is_alone.set()
        assert told(await read_again(world))["reason"] == "no connected client can answer"


async def test_a_question_that_nobody_answers_is_denied_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # config.md: "Seconds that an agent waits for an approval; then it is denied"
    async with conversing(tmp_path) as world:
        monkeypatch.setattr(world.conversations, "_approval_secs", 0.01)
        with world.connected(SCRIPT) as client:
            run = await asked(client)
            frames = await client.until("done")
            assert told(frames)["reason"] == "no answer came within 0.01 s"
            assert text(frames) == "deny"
            await client.ask("approve", run=run, call="c", decision="allow_once")
            assert (await client.error())["code"] == "EALREADY"


async def test_a_late_decision_is_refused_while_the_run_goes_on(tmp_path: Path) -> None:
    # protocol.md: "decides a call ..., once"
    steps = json.dumps([*json.loads(ASKS), {"hang": True}])
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.send(steps, session="s")
            run = (await client.until("approval"))[-1]["run"]
        with world.connected(SCRIPT) as client:
            await client.ask("resume", session="s")
            await client.until("delta")
            await client.ask("approve", run=run, call="c", decision="allow_once")
            assert (await client.error())["code"] == "EALREADY"
            await client.ask("cancel", id=run)
            await client.until("done")


async def test_a_call_is_asked_about_once(tmp_path: Path) -> None:
    # one decision must not stand for two calls
    async with conversing(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.send(json.dumps(json.loads(ASKS) * 2), session="s")
            run = (await client.until("approval"))[-1]["run"]
            await client.ask("approve", run=run, call="c", decision="allow_once")
            assert (await client.until("done"))[-1]["code"] == "EPROTO"


async def test_what_a_driver_remembers_is_one_users_in_one_session(tmp_path: Path) -> None:
    # issue: "[a]lways for this session", and in shared ones not for others
    async def counting(turn: Turn) -> None:
        count = turn.session_memory["count"] = int(str(turn.session_memory.get("count", 0))) + 1
        await turn.say(Delta(text=str(count)))

    async with conversing(tmp_path, drivers=lambda key: counting) as world:
        with world.connected() as mine, world.connected(uid=OTHER) as his:
            said = []
            for client, session in ((mine, "s"), (mine, "s"), (mine, "t"), (his, "s"), (mine, "s")):
                await client.send("x", session=session, scope="shared")
                said.append(text(await client.until("done")))
        assert said == ["1", "2", "1", "1", "3"]


async def test_questions_side_by_side(tmp_path: Path) -> None:
    # issue: "parallel tool calls run side by side"
    async def driver(turn: Turn) -> None:
        async def one(call: str) -> None:
            verdict = await turn.ask(Approval(call=call, name="t", input={}, effects=[], reason=""))
            decisions[call] = verdict.decision

        async with trio.open_nursery() as nursery:
            for call in "ab":
                nursery.start_soon(one, call)

    decisions: dict[str, str] = {}
    async with conversing(tmp_path, drivers=lambda key: driver) as world:
        with world.connected() as client:
            await client.send("x")
            await client.until("approval")
            run = (await client.until("approval"))[-1]["run"]
            await client.ask("approve", run=run, call="b", decision="allow_once")
            await client.ask("approve", run=run, call="a", decision="deny")
            await client.until("done")
        assert decisions == {"a": "deny", "b": "allow_once"}
