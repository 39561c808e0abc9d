"""What a run makes of its agent's mount table: what its model is offered, and what comes of it."""

from __future__ import annotations

import json

import trio

from cortexfs.core.frames import Delta, Observer, ToolCall, ToolResult
from cortexfs.models.driver import Turn as Question
from tests.shell.agent_runs import Played, run

TABLE = "/srv\t/srv\tro\t-\n"
WHY = "no line of its mount table shows /ctx/tool/fs.read (agent/coder.d/mount (no line))"


class Model:
    """Calls fs.read once, whatever it is offered."""

    def __init__(self) -> None:
        self.offered: list[list[str]] = []

    async def __call__(self, question: Question) -> None:
        assert isinstance(question.input, dict)
        self.offered.append([tool["name"] for tool in question.input.get("tools", [])])
        if len(self.offered) == 1:
            await question.say(ToolCall(call="c1", name="fs.read", input={}))
        else:
            await question.say(Delta(text="done"))


async def output() -> str:
    return "read"


def played(model: Model, table: str) -> tuple[Played, list[object]]:
    world = Played(model, output, mount=table)
    return world, list(trio.run(run, world).frames)


def test_what_the_mount_table_hides_is_neither_offered_nor_run() -> None:
    # the issue: "an object outside an agent's mount lines is neither offered to its model nor run ..., and
    # the layer says which line decided"
    model = Model()
    world, said = played(model, TABLE)
    assert model.offered == [[], []]
    assert world.ran == 0
    notes = {one.source: one.content for one in said if isinstance(one, Observer)}
    assert f"fs.read: {WHY}" in notes["mount view"]
    decided = json.loads(notes["policy"])
    assert (decided["decision"], decided["rule"]) == ("deny", "agent/coder.d/mount (no line)")
    (result,) = (one for one in said if isinstance(one, ToolResult))
    assert result.is_error
    assert "no line of its mount table shows /ctx/tool/fs.read" in result.output


def test_what_a_line_shows_is_offered_and_run() -> None:
    for table in ("", f"{TABLE}/ctx/tool\t/ctx/tool\tro\t-\n", "/\t/\tro\t-\n"):
        model = Model()
        world, said = played(model, table)
        assert model.offered == [["fs.read"], ["fs.read"]]
        assert world.ran == 1
        assert "mount view" not in {one.source for one in said if isinstance(one, Observer)}
