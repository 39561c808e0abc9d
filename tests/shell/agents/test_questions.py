"""Questions of tools: the client that is asked, and the decline when it does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
import trio.testing

from cortexfs.core.frames import Delta, Question
from cortexfs.models.ask.driver import Turn
from tests.shell.agents.test_approvals import OTHER, read_again, text, told
from tests.shell.conversing import SCRIPT, Client, conversing

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


async def asking(turn: Turn) -> None:
    asked = Question(call="c", question="c.q1", name="who.asks", message="Who?", schema=FORM)
    verdict = await turn.question(asked)
    await turn.say(Delta(text=json.dumps(verdict.input)))


def world_of(path: Path) -> Any:
    return conversing(path, drivers=lambda key: asking)


async def asked(client: Client, **fields: object) -> str:
    await client.send("x", session="s", **fields)
    return str((await client.until("question"))[-1]["run"])


async def test_the_sender_answers_once(tmp_path: Path) -> None:
    # abi.md 5.39
    async with world_of(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            run = await asked(client)
            said: dict[str, Any] = {"run": run, "question": "c.q1"}
            await client.ask("approve", run=run, call="c.q1", decision="allow_once")
            assert (await client.until("error"))[-1]["code"] == "ENOENT"  # an approval is no answer
            await client.ask("answer", **(said | {"question": "c.q2"}))
            assert (await client.until("error"))[-1]["code"] == "ENOENT"
            await client.ask("answer", content={"name": "x" * (256 << 10)}, **said)
            assert (await client.until("error"))[-1]["code"] == "EMSGSIZE"
            await client.ask("answer", content={"name": "ann"}, **said)
            frames = await client.until("done")
            assert text(frames) == '{"name": "ann"}'
            reason = f"uid {world.uid} answered"
            wanted = {"question": "c.q1", "name": "who.asks", "answered": True, "reason": reason}
            assert told(frames) == wanted  # without the content
            await client.ask("answer", **said)
            assert (await client.until("error"))[-1]["code"] == "EALREADY"


async def test_without_content_it_is_declined(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.ask("answer", run=await asked(client), question="c.q1")
            frames = await client.until("done")
        assert (text(frames), told(frames)["answered"]) == ("null", False)


async def test_nobody_answers_for_another_user(tmp_path: Path) -> None:
    # issue: "The answer goes only to the session's own sender (never ... another user)"
    async with world_of(tmp_path) as world:
        with world.connected(SCRIPT, uid=OTHER) as his, world.connected(SCRIPT) as mine:
            await his.ask("resume", session="s", scope="shared")
            run = await asked(mine, scope="shared")
            await his.until("question")
            await his.ask("answer", run=run, question="c.q1", content={"name": "mallory"})
            assert (await his.until("error"))[-1]["code"] == "EPERM"
            mine.leave()
            frames = await his.until("done")
            assert (text(frames), told(frames)["answered"]) == ("null", False)


async def test_it_is_declined_where_nobody_is(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        with world.connected(SCRIPT) as client:
            await client.send("x", session="s")
            frames = await client.all()  # a client that has closed its input cannot answer
        assert text(frames) == "null"
        with world.connected(SCRIPT) as client:
            await asked(client, id="again")
            client.leave()
            await trio.testing.wait_all_tasks_blocked()
        assert [said for said in await read_again(world) if said["type"] == "done"]
