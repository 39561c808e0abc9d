"""Models of another machine, and pools of machines that export the same."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.hooking import ECHO, guard
from tests.mounted.talking import said, talk, text, types
from tests.mounted.test_esm import plugin
from tests.mounted.test_plugin_models import ask
from tests.team.machines import Machine, team
from tests.waiting import until

MODELS = ("fixture/parrot", "fixture/mirror", "fixture/waiting", "debug/echo")
COUNT = "text.word_count"


@pytest.fixture(autouse=True, scope="module")
def exported(machines: dict[str, Machine]) -> None:
    box, laptop = machines["box"], machines["laptop"]
    box.ctx.ctx("plugin", "enable", "modeller")
    for name in MODELS:
        box.team("export", f"model/{name}", "--to", "root@laptop", "--as", "daemon")
    for name in MODELS:
        laptop.sees(f"model/{name.replace('/', '+box/')}")


def test_a_model_of_another_machine_answers(laptop: Machine, box: Machine) -> None:
    here, there = (
        ask(box.ctx, "fixture/parrot", "to be or"),
        ask(laptop.ctx, "fixture+box/parrot", "to be or"),
    )
    assert there.status == 0, there
    assert there.output == here.output == "to be or"
    assert there.types == here.types
    assert there.frames[-2]["output_tokens"] == here.frames[-2]["output_tokens"]
    folder = laptop.ctx.root / "model/fixture+box/parrot.d"
    assert (folder / "cap").read_text() == (box.ctx.root / "model/fixture/parrot.d/cap").read_text()
    assert (folder / "limit").read_text() == "4096\n"
    assert (folder / "origin").read_text() == "machine:box\n"


def test_it_is_asked_what_was_given(laptop: Machine) -> None:
    tool = {"name": "fs.read", "description": "Read.", "schema": {"type": "object"}}
    picture = {"type": "image", "media_type": "image/png", "data": "aGk="}
    given = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
            {"role": "assistant", "tool_calls": [{"call": "c1", "name": "fs.read", "input": {"path": "x"}}]},
            {"role": "tool", "call": "c1", "content": "it says no", "is_error": True},
        ],
        "system": "be terse",
        "tools": [tool],
        "tool_choice": "auto",
        "temperature": 0,
    }
    answer = ask(laptop.ctx, "fixture+box/mirror", given)
    assert answer.status == 0, answer
    seen = json.loads(answer.output)
    assert [(one["role"], one["text"]) for one in seen["messages"]] == [
        ("user", "look"), ("assistant", ""), ("tool", "it says no"),
    ]  # fmt: skip
    assert seen["messages"][0]["media"] == [["image", "image/png", "aGk=", "", ""]]
    assert seen["messages"][1]["calls"] == [["c1", "fs.read", {"path": "x"}]]
    assert seen["messages"][2]["is_error"]
    assert seen["tools"] == [["fs.read", "Read.", {"type": "object"}]]
    assert (seen["system"], seen["parameters"]) == ("be terse", {"temperature": 0})
    assert seen["who"][0] == 1  # `daemon`, the user that the box serves as


def test_conversations_with_it_are_kept_here(laptop: Machine) -> None:
    # abi.md 14.9
    sock = "model/fixture+box/mirror.sock"
    until(lambda: laptop.ctx.ctx("ping", sock[:-5], check=False).returncode, lambda status: status == 0)
    assert types(said(laptop.ctx, "first", sock, session="far"))[-1] == "done"
    second = json.loads(text(said(laptop.ctx, "second", sock, session="far")))
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "user"]
    with talk(laptop.ctx, "model/fixture+box/waiting.sock") as client:
        client.send("wait", session="cancelled", id="m")
        client.until("progress")
        client.ask("cancel", id="m")
        assert client.until("done")[-1]["status"] == "cancelled"


def test_plugins_that_are_asked_see_what_is_sent_to_other_machines(
    laptop: Machine, box: Machine, tmp_path: Path
) -> None:
    # abi.md 14.10: what a plugin here denies never reaches the other machine
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    box.ctx.ctx("plugin", "install", str(plugin(tmp_path / "there", "repeating", ECHO, "let runs = 0;")))
    for name in ("echo", "runs"):
        box.team("export", f"tool/{name}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{name}+box")
    laptop.ctx.ctx("plugin", "install", str(guard(tmp_path / "here")))
    try:
        before = laptop.ctx.call("runs+box").output
        assert laptop.ctx.call("echo+box", '{"text":"bad"}').code == "EPERM"
        assert laptop.ctx.call("echo+box", "--text", "bad").code == "EPERM"
        assert laptop.ctx.call("echo+box", input=b'{"text":"bad"}').code == "EPERM"
        assert laptop.ctx.call("runs+box").output == before
        changed = laptop.ctx.call("echo+box", "--text", "odd")
        assert changed.output == "even", changed
        assert laptop.ctx.call("echo+box", '{"text":"secret"}').output == "******"
        assert laptop.ctx.call("echo+box", "--text", "so").output == "so"
        assert laptop.ctx.call("echo+box", "--text", "so", "--dry-run").code == "EINVAL"
    finally:
        laptop.ctx.ctx("plugin", "uninstall", "guard", "--purge")


@contextlib.contextmanager
def three(python: Path) -> Iterator[dict[str, Machine]]:
    with team(python, "laptop", "third", "box") as machines:
        for name in ("third", "box"):
            machines[name].team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
            machines[name].team("export", "tool/bad.flood", "--to", "root@laptop", "--as", "daemon")
            machines["laptop"].sees(f"tool/{COUNT}+{name}")
            machines["laptop"].sees(f"tool/bad.flood+{name}")
        yield machines


def total(machine_: Machine) -> int:
    return int(machine_.ctx.status["runs"].split(", ")[1].split(" ")[0])


def test_a_pool_gives_a_call_to_who_is_least_busy(python: Path) -> None:
    # abi.md 14.8
    with three(python) as machines:
        laptop, third, box = (machines[name] for name in ("laptop", "third", "box"))
        laptop.sees(f"tool/{COUNT}+any")
        assert not (box.ctx.root / f"tool/{COUNT}+box").exists()  # its own tool has the plain name
        words, work = [laptop.ctx.tool("bad.flood+box")], laptop.ctx.work
        busy = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=work, env=laptop.ctx.environ)
        with busy:
            box.ctx.at_rest(1)
            before = total(box), total(third)
            for _ in range(5):
                assert laptop.ctx.call(f"{COUNT}+any", '{"text":"a b"}').status == 0
            assert (total(box), total(third)) == (before[0], before[1] + 5)
            busy.kill()
        third.team("export", f"tool/{COUNT}", "--to", "nobody@laptop", "--as", "daemon")
        until(lambda: laptop.ctx.call(f"{COUNT}+third", '{"text":"a b"}').code, lambda code: code == "EACCES")
        assert laptop.ctx.call(f"{COUNT}+any", '{"text":"a b"}').status == 0
        os.kill(third.ctx.pid, 9)
        laptop.sees_away(f"tool/{COUNT}+third")
        assert laptop.ctx.call(f"{COUNT}+any", '{"text":"a b"}').status == 0
        box.team("export", f"tool/{COUNT}", "--stop")
        laptop.sees_away(f"tool/{COUNT}+third")
