"""The ten events of plugins in a running mount. The rules are in abi.md 9, the quotes from issue 6."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.agents import agent, call, run, say, script, shell
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.hooking import heard, hears, listener
from tests.mounted.talking import ECHO, talk
from tests.mounted.test_esm import plugin
from tests.waiting import until

ALL = [
    "session:start",
    "session:end",
    "tool:pre-execute",
    "tool:post-execute",
    "llm:pre-call",
    "llm:post-call",
    "agent:turn-start",
    "agent:turn-end",
]


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


@pytest.fixture
def ear(mount: Ctx, tmp_path: Path) -> Iterator[str]:
    """The name of a plugin that listens to all events of runs."""
    mount.ctx("plugin", "install", str(listener(tmp_path, "ear", *ALL)))
    yield "ear"
    mount.ctx("plugin", "uninstall", "ear", "--purge")


def test_calls_of_tools(mount: Ctx, ear: str) -> None:
    # "tool:pre-execute | { toolName, args } | Before any tool", "tool:post-execute | { toolName, result }"
    # "the ten events delivered once", "each seeing its own caller's events only"
    assert mount.call("text.word_count", "--text", "to be", uid=NOBODY).status == 0
    before, after = hears(mount, ear, 2, NOBODY)
    assert before == {"type": "tool:pre-execute", "toolName": "text.word_count", "args": {"text": "to be"}}
    assert (after["type"], after["toolName"]) == ("tool:post-execute", "text.word_count")
    result = after["result"]
    assert (result["toolName"], result["success"], "error" in result) == ("text.word_count", True, False)
    assert isinstance(result["durationMs"], int)
    assert mount.call("fs.read", "--path", "/no/such", uid=NOBODY).code == "ENOENT"
    *_, failed = hears(mount, ear, 4, NOBODY)
    assert (failed["result"]["success"], failed["result"]["output"]) == (False, "")
    assert "/no/such" in failed["result"]["error"]
    assert heard(mount, ear) == []


def test_large_ones_are_cut(mount: Ctx, ear: str) -> None:
    # Of the originals: "truncated = output.length>8000, outputLength"
    text = "x" * 100_000
    (mount.work / "large").write_text(text)
    assert mount.call("fs.read", "--path", "large").status == 0
    result = hears(mount, ear, 2)[1]["result"]
    assert (result["truncated"], result["outputLength"], len(result["output"])) == (True, 100_000, 8000)
    assert mount.call("text.word_count", input=json.dumps({"text": text}).encode()).status == 0
    assert hears(mount, ear, 4)[2]["args"] == {}


def told(ctx: Ctx, *words: str, uid: int | None = None) -> list[dict[str, Any]]:
    runner, file = ctx.root / "bin/cortexfs-object-runner", ctx.root / ".events"
    done = ctx.run([str(runner), str(file), *words], uid=uid)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_person_reads_events_and_nothing_else_does(mount: Ctx, ear: str) -> None:
    # abi.md 1.27
    (begun,) = told(mount)
    (other,) = told(mount, uid=NOBODY)
    number = str(begun["number"])
    assert mount.call("text.word_count", "--text", "to be").status == 0
    before, after = until(lambda: told(mount, number), lambda found: len(found) == 2)
    assert before["plugin"] == after["plugin"] == ear
    assert before["event"]["args"] == {"text": "to be"}
    assert before["number"] < after["number"]
    assert told(mount, str(after["number"])) == []
    assert told(mount, str(other["number"]), uid=NOBODY) == []
    assert [one.get("code") for one in told(mount, "x") if one["type"] == "error"] == ["EINVAL"]
    cmd = "CTX_OUTPUT=text $CTX_ROOT/bin/cortexfs-object-runner $CTX_ROOT/.events 0; echo $?"
    script_ = [str(mount.root / "bin/cortexfs-object-runner"), str(mount.root / ".confined")]
    refused = Answer(mount.run(script_, input=json.dumps({"cmd": cmd}).encode(), text=False))
    assert "13" in refused.output
    assert "to be" not in refused.output
    with agent(mount, "curious", "shell.exec") as path:
        output = shell(mount, path, cmd)
    assert "a person's own processes" in output
    assert "to be" not in output


def test_answers_of_models(mount: Ctx, ear: str) -> None:
    # "llm:pre-call | { provider, model } | Before LLM API call", "llm:post-call | ... tokensIn, tokensOut"
    answer = mount.run(
        [
            str(mount.root / "model/debug/script"),
            '[{"usage":{"input_tokens":3,"output_tokens":4}},{"delta":"hi"}]',
        ]
    )
    assert answer.returncode == 0, answer
    before, after = hears(mount, ear, 2)
    assert before == {"type": "llm:pre-call", "provider": "debug", "model": "script"}
    assert after == before | {"type": "llm:post-call", "tokensIn": 3, "tokensOut": 4}


def test_turns_of_agents(mount: Ctx, ear: str) -> None:
    # "agent:turn-start | { sessionId, turnId }", "agent:turn-end | { sessionId, turnId, response }"
    # an agent's calls are confined, and so is the process that gets their events: the agent is another caller
    with agent(mount, "talker", "text.word_count") as path:
        with talk(mount, f"{path}.sock", NOBODY) as client:
            client.send(script([call("text.word_count", text="a b")], say("two words")), session="counting")
            done = client.until("done")
        turn = {"sessionId": "counting", "turnId": done[-1]["run"]}
        start, began, ended = hears(mount, ear, 3, NOBODY)
        assert start == {"type": "session:start", "sessionId": "counting"}
        assert began == {"type": "agent:turn-start", **turn}
        assert ended == {"type": "agent:turn-end", **turn, "response": "two words"}
        once = run(mount, path, script(say("hello")))
        (began, ended) = hears(mount, ear, 2)
        assert (began["sessionId"], began["turnId"]) == ("", once.frames[0]["run"])
        assert ended["response"] == "hello"


def test_sessions(mount: Ctx, ear: str) -> None:
    # "session:start | { sessionId: string } | New chat session", "session:end | Session ended"
    def sessions() -> list[dict[str, str]]:
        return [one for one in heard(mount, ear) if one["type"].startswith("session")]

    short = {"type": "session:start", "sessionId": "short"}
    with talk(mount, ECHO) as client:
        for _ in range(2):
            client.send("hello", session="short")
            client.until("done")
        client.send("hello", session="passing", scope="temp")
        client.until("done")
    start, begun, ended = until(sessions, lambda found: len(found) >= 3)
    assert start == short
    assert (begun["type"], ended["type"]) == ("session:start", "session:end")
    assert begun["sessionId"] == ended["sessionId"] == "passing"
    mount.ctx("session", "rm", "model/debug/echo", "short", "--yes")
    assert until(sessions, lambda found: len(found) >= 4)[3:] == [short | {"type": "session:end"}]


def test_settings(mount: Ctx, tmp_path: Path) -> None:
    # "config:change | { key: string, value: unknown } | Config key changed"
    folder = listener(tmp_path, "tuned", "config:change", config={"settings": {"theme": "light"}})
    mount.ctx("plugin", "install", str(folder))
    assert heard(mount, "tuned") == []
    mount.ctx("plugin", "config", "tuned", "theme", "dark")
    changed = {"type": "config:change", "key": "theme", "value": "dark"}
    assert hears(mount, "tuned", 1) == [changed]
    assert heard(mount, "tuned", NOBODY) == []  # this user's plugin has never had another value
    mount.ctx("plugin", "uninstall", "tuned", "--purge")


def test_the_daemon(mount: Ctx, tmp_path: Path) -> None:
    # "daemon:status | { daemon: string, status: 'up' | 'down' } | Daemon started/stopped"
    more = """
    export const onActivate = async ({ state }) => {
      globalEventBus.on("daemon:status", async ({ daemon, status }) => {
        if (status === "down") await state.set("ended", daemon);
      });
      heard.push({ ended: await state.get("ended") });
    };
    """
    mount.ctx("plugin", "install", str(listener(tmp_path, "watch", "daemon:status", more=more)))
    up = {"type": "daemon:status", "daemon": "cortexfs", "status": "up"}
    assert hears(mount, "watch", 2) == [{"ended": None}, up]
    assert hears(mount, "watch", 2, NOBODY) == [{"ended": None}, up]
    mount.umount()
    mount.mount()
    assert hears(mount, "watch", 2) == [{"ended": "cortexfs"}, up]
    mount.ctx("plugin", "uninstall", "watch", "--purge")


def test_once_whatever_processes_there_are(mount: Ctx, tmp_path: Path) -> None:
    # "the ten events delivered once": a plugin with a right to files has a process for each directory
    more = """
    export const onActivate = ({ state }) => void globalEventBus.on("session:start", async () => {
      await state.set("count", Number(await state.get("count")) + 1);
    });
    """
    bodies = {"counted": "return Number(await ctx.state.get('count'))"}
    may = ["tools", "events:listener", "fs:read"]
    importing = 'import { globalEventBus } from "cortex/plugins";' + more
    folder = plugin(tmp_path, "counter", bodies, importing, capabilities=may, events=["session:start"])
    mount.ctx("plugin", "install", str(folder))
    places = [mount.work / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
        assert mount.call("counted", cwd=place).output == "0"
    for number in (1, 2):
        with talk(mount, ECHO) as client:
            client.send("hello", session=f"counted-{number}")
            client.until("done")
        until(lambda: int(mount.call("counted", cwd=places[0]).output), number.__le__)
    assert mount.call("counted", cwd=places[1]).output == "2"
    mount.ctx("plugin", "uninstall", "counter", "--purge")


def test_only_what_is_declared(mount: Ctx, tmp_path: Path) -> None:
    # "Requires events:listener capability. Must also list subscribed types in manifest events field."
    one = listener(
        tmp_path,
        "narrow",
        "tool:pre-execute",
        more='globalEventBus.on("tool:post-execute", (e) => heard.push(e));',
    )
    mount.ctx("plugin", "install", str(one))
    mount.call("text.word_count", "--text", "x")
    mount.call("text.word_count", "--text", "y")
    assert [each["type"] for each in hears(mount, "narrow", 2)] == ["tool:pre-execute"] * 2
    assert mount.status["hooks of narrow"] == "tool:pre-execute"
    assert "event tool:pre-execute" in mount.ctx("plugin", "review", str(one)).stdout
    mount.ctx("plugin", "permissions", "narrow", "--set", "events:listener=deny")
    assert "hooks of narrow" not in mount.status
    mount.call("text.word_count", "--text", "z")
    assert heard(mount, "narrow") == []
    mount.ctx("plugin", "uninstall", "narrow", "--purge")
