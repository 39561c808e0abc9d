"""Agents for tests. Their model is debug/script, so a task states the answers of the model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.mounted.talking import Frame, Talk, talk

ALL = ("fs.*", "shell.exec", "text.word_count", "agent.run")


def script(*parts: list[dict[str, Any]] | dict[str, Any]) -> str:
    """Returns a task that states the answers of the model, in order."""
    steps: list[dict[str, Any]] = []
    for part in parts:
        steps += [*(part if isinstance(part, list) else [part]), {"turn": True}]
    return json.dumps(steps[:-1])


def call(name: str, id_: str = "", /, **input: object) -> dict[str, Any]:
    return {"tool_call": {"name": name, "input": input, **({"call": id_} if id_ else {})}}


def say(text: str) -> dict[str, Any]:
    return {"delta": text}


@contextlib.contextmanager
def agent(
    ctx: Ctx, name: str, *tools: str, approval: str = "auto", model: str = "debug/script"
) -> Iterator[str]:
    """Create an agent for a while, and yield its path on the mount."""
    words = [word for tool in tools or ALL for word in ("--tools", tool)]
    ctx.quickly("agent", "new", name, "--model", model, "--approval", approval, *words)
    try:
        yield f"agent/{name}"
    finally:
        ctx.quickly("agent", "rm", name, "--yes")


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    """A mount for the tests of one file, with a README.md to read."""
    with mounted(python, []) as mount:
        (mount.work / "README.md").write_text("hello world\n")
        yield mount


@pytest.fixture(scope="module")
def coder(ctx: Ctx) -> Iterator[str]:
    with agent(ctx, "coder") as path:
        yield path


def write(ctx: Ctx, path: str, control: str, text: str) -> None:
    ctx.put(f"{path}.d/{control}", text)


def run(ctx: Ctx, path: str, task: str, **options: Any) -> Answer:
    return Answer(ctx.run([str(ctx.root / path), task], text=False, **options))


@contextlib.contextmanager
def working(ctx: Ctx, path: str, task: str, uid: int | None = None, **fields: object) -> Iterator[Talk]:
    """A connection on which a task was sent to the agent."""
    with talk(ctx, f"{path}.sock", uid) as client:
        client.send(task, **({"cwd": str(ctx.work)} | fields))
        yield client


def shell(ctx: Ctx, path: str, command: str, uid: int | None = None) -> str:
    """Returns the output of an agent's shell command, which its user has allowed."""
    task = script(call("shell.exec", cmd=command), say("x"))
    with working(ctx, path, task, uid=uid, scope="temp") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        told = results(client.until("done", status="ok"))[-1]  # after the results of tools that the shell ran
    return str(told["output"])


def results(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame["type"] == "tool_result"]


def decisions(frames: list[Frame]) -> list[dict[str, Any]]:
    """Returns the decisions of the policy, call by call."""
    return [
        json.loads(frame["content"])
        for frame in frames
        if frame["type"] == "observer" and frame["source"] == "policy"
    ]
