"""Tools of each boundary that declare `dry_run = "supported"`, but implement no dry run and write a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cortexfs.core.policy.risk import Mode
from tests.mounted import placed as places
from tests.mounted import plugins
from tests.mounted.agents import agent, call, results, run, say, script, working
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import Frame
from tests.mounted.test_esm import plugin as esm_plugin

KINDS = ("process", "warm", "native", "python", "esm")
MODES: tuple[Mode, ...] = get_args(Mode)
WRITTEN = "effects"
LABELS = "supported", "required_before_execute"
LACKING = "has no dry run, even if its effects declare one. Nothing was run"

EFFECT = (
    '[[native.tools.effects]]\nkind = "{kind}"\nreversibility = "reversible"\n'
    'confirmation = "on_risk"\ndry_run = "{label}"\n'
)
MORE = 'inherit_env = ["PATH", "CORTEXFS_CWD"]\n'
PROCESS = """#!/bin/sh
echo effect >> "$CORTEXFS_CWD/effects"
echo '"did"'
"""
# Its environment has the directory of the first caller only, so it reads each call's directory from the call.
WARM = """#!/usr/bin/python3 -SE
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        with open(asked["cwd"] + "/effects", "a") as file:
            file.write("effect" + chr(10))
        print(json.dumps({"id": asked["id"], "output": "did"}), flush=True)
"""
EXECUTE = r"""
static CortexBuffer execute(void *self, CortexBuffer name, CortexBuffer input, CortexBuffer invocation)
{
    FILE *file = fopen("effects", "a");
    (void)self, (void)name, (void)input, (void)invocation;
    if (!file || fputs("effect\n", file) < 0 || fclose(file))
        return cortex_result("no file", 1);
    return cortex_result("did", 0);
}
"""
PYTHON = """
from cortexfs.sdk import ToolEffect, tool

@tool(name="NAME", effects=[ToolEffect("write_file", confirmation="on_risk", dry_run="LABEL")])
def run() -> str:
    "For tests."
    with open("effects", "a") as file:
        file.write("effect" + chr(10))
    return "did"

plugin = [run]
"""
ESM = 'Deno.writeTextFileSync("effects", "effect\\n", {append: true}); return "did"'


def program(where: Path, name: str, label: str, text: str, top: str = "") -> Path:
    folder = plugins.program(where, name, text, text=top)
    effects = "".join(EFFECT.format(kind=kind, label=label) for kind in ("write_file", "run_process"))
    with open(folder / "manifest.toml", "a") as manifest:
        manifest.write(MORE + effects)
    return folder


def native(where: Path, name: str, label: str) -> Path:
    effect = (
        r",\"effects\":[{\"kind\":\"write_file\",\"reversibility\":\"reversible\",\"confirmation\":\"on_risk\","
        rf"\"dry_run\":\"{label}\",\"dry_run_flag\":true}}]"  # a library does not opt in here
    )
    source = plugins.SOURCE.replace(r"\"background_safe\":true", r"\"background_safe\":true" + effect)
    return plugins.library(where, name, source.replace("EXECUTE", EXECUTE).replace("DROP", plugins.DROP))


def python(where: Path, name: str, label: str) -> Path:
    folder = plugins.python(where, name)
    (folder / "lib" / f"{name}_plugin.py").write_text(PYTHON.replace("NAME", name).replace("LABEL", label))
    return folder


def esm(where: Path, name: str, label: str) -> Path:
    told: dict[str, Any] = {"name": name, "description": "d", "params": [], "dry_run": label}
    return esm_plugin(where, "labelled", {name: ESM}, capabilities=["tools", "fs:write"], tools=[told])


def made(where: Path, kind: str, label: str) -> Path:
    """Write a plugin with one tool. Both are named after the kind and label."""
    name = f"{kind}_{label}"
    if kind == "process":
        return program(where, name, label, PROCESS)
    if kind == "warm":
        return program(where, name, label, WARM, '[native]\nprotocol = "jsonl"\n')
    return {"native": native, "python": python, "esm": esm}[kind](where, name, label)


def names(label: str) -> list[str]:
    return [f"{kind}_{label}" for kind in KINDS if kind != "esm" or label == "supported"]


EVERY = [name for label in LABELS for name in names(label)]


def install(ctx: Ctx) -> None:
    where = ctx.base / "plugins"
    for name in EVERY:
        kind, _, label = name.partition("_")
        ctx.ctx("plugin", "install", str(made(where, kind, label)))


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python) as mount:
        install(mount)
        yield mount


@pytest.fixture(scope="module")
def own(ctx: Ctx, python: Path) -> Iterator[Ctx]:
    with places.own_mount(python) as mount:
        install(mount)
        yield mount


placed = places.placed
# Each mode as root on root's mount, and the usual mode in the other settings.
MODED = [(mode, places.ROOTS[0]) for mode in MODES] + [
    ("balanced", places.ROOTS[1]),
    ("balanced", places.OWN),
]


@pytest.fixture
def moded(mode: str, placed: Ctx) -> Ctx:
    (placed.config / "policy.toml").write_text(f'mode = "{mode}"\n')
    assert effects(placed) == 0
    return placed


in_modes = pytest.mark.parametrize(("mode", "placed"), MODED, indirect=["placed"])


def effects(ctx: Ctx) -> int:
    """Returns how often a tool has acted since the last look."""
    path = ctx.work / WRITTEN
    count = path.read_text().count("effect") if path.exists() else 0
    path.unlink(missing_ok=True)
    return count


def approvals(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame["type"] == "approval"]


@pytest.mark.parametrize("name", EVERY)
def test_a_person_is_told_that_there_is_none(placed: Ctx, name: str) -> None:
    # abi.md 4.48
    for words in (["--dry-run"], ["--dry-run", "{}"], ["{}", "--dry-run"]):
        refused = placed.call(name, *words)
        assert (refused.code, refused.status) == ("EINVAL", 2), refused
        assert f"{name} {LACKING}" in refused.message
    assert effects(placed) == 0
    assert "\n  --dry-run" not in placed.run([placed.tool(name), "--help"]).stdout
    # A person's own call counts as confirmed, and required_before_execute makes its effect once.
    assert placed.call(name).output == "did"
    assert effects(placed) == 1


@in_modes
def test_a_model_is_told_that_there_is_none(moded: Ctx) -> None:
    # abi.md 4.46
    every = [part for name in EVERY for part in ([call(name, dry_run=True)], [call(name, dry_run="true")])]
    with (
        agent(moded, "labelled", *EVERY) as path,
        working(moded, path, script(*every, say("done"))) as client,
    ):
        frames = client.until("done")
    assert approvals(frames) == []
    said = results(frames)
    assert [frame["is_error"] for frame in said] == [True] * 2 * len(EVERY)
    for name, frame in zip(EVERY, said[::2], strict=True):
        assert "EINVAL" in frame["output"]
        assert f"{name} {LACKING}" in frame["output"]
    assert effects(moded) == 0


@in_modes
def test_a_program_of_an_agent_gets_nothing_by_the_word(moded: Ctx) -> None:
    # abi.md 4.48, of calls in calls: whatever the mode allows, what says --dry-run does nothing.
    shell = "; ".join(f"{moded.tool(name)} --dry-run; echo status $?" for name in EVERY)
    with agent(moded, "shelling", *EVERY, "shell.exec", approval="ask") as path:
        task = script([call("shell.exec", "s", cmd=shell)], say("done"))
        with working(moded, path, task) as client:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call="s", decision="allow_once")
            ((said, _),) = [(frame["output"], frame["is_error"]) for frame in results(client.until("done"))]
    assert said.count("status 2\n") + said.count("status 13\n") == len(EVERY), said
    assert effects(moded) == 0


@in_modes
def test_what_requires_one_and_has_none_asks_each_time(moded: Ctx) -> None:
    # abi.md 4.48
    requiring = names("required_before_execute")
    made = [(name, f"{name}{number}") for name in requiring for number in range(2)]
    task = script(*([call(name, id_)] for name, id_ in made), say("done"))
    with agent(moded, "requiring", *requiring) as path:
        with working(moded, path, task) as client:
            for _, id_ in made:
                asked = client.until("approval")[-1]
                assert asked["call"] == id_
                assert "so you are asked each time" in asked["reason"]
                assert effects(moded) == 0
                client.ask("approve", run=asked["run"], call=id_, decision="allow_session")
                assert client.until("tool_result")[-1]["output"] == "did"
                assert effects(moded) == 1
            client.until("done")
        nobody = run(moded, path, script([call(requiring[0])], say("done")))
        assert [frame["is_error"] for frame in results(nobody.frames)] == [True]
    assert effects(moded) == 0
