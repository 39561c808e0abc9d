"""The part of a session that an agent's model gets, and the files that show this part. Quotes without a
source are from the issue that asked for agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import history, talk, text


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture(scope="module")
def talker(ctx: Ctx) -> Iterator[str]:
    """An agent without tools, with a small window, and with a model that repeats its input."""
    with agent(ctx, "talker", "", model="debug/echo") as path:
        write(ctx, path, "window", "600\n")
        write(ctx, path, "system.md", "Be brief.\n")
        yield path


def folder(ctx: Ctx, path: str, session: str) -> Path:
    return ctx.root / "home/0" / f"{path}.d" / "session" / session


def test_a_window_that_fills_is_summed_up(ctx: Ctx, talker: str) -> None:
    # "a window built per call (system, pinned facts, summary, recent turns) with the summary made by the
    # model when the window fills, its provenance kept in `context/`"; "raw history never rewritten"
    said = [f"{number} {'word ' * 80}" for number in range(8)]
    with talk(ctx, f"{talker}.sock") as client:
        for message in said:
            client.send(message, session="long")
            client.until("done", status="ok")
    context = folder(ctx, talker, "long") / "context"
    first, summary = (context / "summary.md").read_text().split("\n", 1)
    assert first.startswith("<!-- events 2-")
    assert "word" in summary
    pack = json.loads((context / "pack.json").read_text())
    assert (pack["session"], pack["agent"], pack["budget_tokens"]) == ("long", "talker", 600)
    kinds = [item["kind"] for item in pack["items"]]
    assert kinds[0] == "system"
    assert "summary" in kinds
    assert sum(item["tokens"] for item in pack["items"]) <= 600
    lines = (folder(ctx, talker, "long") / "messages.jsonl").read_text().splitlines()
    messages = [json.loads(line) for line in lines]
    asked = ["".join(part["text"] for part in each["content"]) for each in messages if each["role"] == "user"]
    assert asked == said


SPOILT = {"gone": None, "empty": "", "torn": "<!-- events 2-", "strange": "no summary\n"}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_derived_is_made_anew(ctx: Ctx, talker: str, how: str) -> None:
    # "everything rebuildable": files of context/ may be lost or damaged, as the log is enough
    with talk(ctx, f"{talker}.sock") as client:
        for number in range(6):
            client.send(f"{number} {'word ' * 80}", session=how)
            client.until("done", status="ok")
    inside = ctx.state / "sessions/home/0" / f"{talker}.d" / "session" / how / "context"
    for name in ("summary.md", "pack.json"):
        (inside / name).unlink()
        if (spoilt := SPOILT[how]) is not None:
            (inside / name).write_text(spoilt)
    with talk(ctx, f"{talker}.sock") as client:
        client.send(f"6 {'word ' * 80}", session=how)
        assert text(client.until("done", status="ok"))
    shown = folder(ctx, talker, how) / "context"
    assert "word" in (shown / "summary.md").read_text()
    assert "summary" in [item["kind"] for item in json.loads((shown / "pack.json").read_text())["items"]]


def test_a_message_that_no_window_holds(ctx: Ctx, talker: str) -> None:
    with talk(ctx, f"{talker}.sock") as client:
        client.send("word " * 2000, session="huge")
        frames = client.until("done", status="error")
        assert frames[-1]["code"] == "EMSGSIZE"
        client.send("small", session="huge")
        assert text(client.until("done", status="ok")).endswith("small")


def test_pins(ctx: Ctx, talker: str) -> None:
    with talk(ctx, f"{talker}.sock") as client:
        client.send("/pin The build is run by make.", session="pins")
        frames = client.until("done", status="ok")
        kept = folder(ctx, talker, "pins") / "context/pinned/1.md"
        assert str(kept) in frames[-2]["content"][0]["text"]
        client.send("hello", session="pins")
        client.until("done", status="ok")
    assert kept.read_text() == "The build is run by make.\n"
    pack = json.loads((folder(ctx, talker, "pins") / "context/pack.json").read_text())
    assert "context/pinned/1.md" in [item["source"] for item in pack["items"]]
    kept.unlink()
    with talk(ctx, f"{talker}.sock") as client:
        client.send("hello", session="pins")
        client.until("done", status="ok")
    pack = json.loads((folder(ctx, talker, "pins") / "context/pack.json").read_text())
    assert "pinned" not in [item["kind"] for item in pack["items"]]


def test_a_long_output_is_spilled_where_the_agent_can_read_it(ctx: Ctx) -> None:
    # "spilled to a readable file when long"
    (ctx.work / "long.txt").write_text("".join(f"line {number}\n" for number in range(20_000)))
    with agent(ctx, "reader", "fs.read") as path:
        spilled = folder(ctx, path, "spill") / "context/output/big.txt"
        task = script(
            call("fs.read", "big", path="long.txt", limit=20_000),
            call("fs.read", "again", path=str(spilled), offset=10_000, limit=2),
            say("read"),
        )
        with working(ctx, path, task, session="spill") as client:
            long, again = results(client.until("done", status="ok"))
        assert "bytes left out" in long["output"]
        assert spilled.read_text() == (ctx.work / "long.txt").read_text()
        assert again["output"] == "line 9999\nline 10000\n"
        assert history(ctx, "spill", f"{path}.sock")
        ctx.run(["rm", "-r", str(folder(ctx, path, "spill"))], check=True)
        assert not folder(ctx, path, "spill").exists()
