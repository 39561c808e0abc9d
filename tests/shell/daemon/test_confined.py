"""Scripts of clients, without a mount: the objects that they may run, and those that they are told of."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import NATIVE, TEAM, Identity, Plugin
from cortexfs.core.registry import Object, Registry
from cortexfs.daemon import confined
from cortexfs.daemon.allowed import AllowedTools
from cortexfs.daemon.confined import Scripts
from cortexfs.peers.caller import Caller
from tests.shell.agent_runs import MODEL, TOOL

OWN = Identity(1000, 1000, (), script=())
THERE = Plugin("machine:box", "", TEAM, "box tool shell.exec")
SHELL = replace(TOOL, name="shell.exec+box", origin="machine:box", plugin=THERE)
HERE = replace(TOOL, plugin=Plugin("builtin", "", NATIVE, "x"))


def inside(object_: Object, identity: Identity = OWN) -> Any:
    scripts: Any = Scripts.__new__(Scripts)
    return scripts.inside(object_, Caller(0, identity, None))


@pytest.mark.parametrize("object_", [SHELL, replace(SHELL, class_="agent", name="coder+box")])
def test_what_would_run_unconfined_on_another_machine_is_refused(object_: Object) -> None:
    # abi.md 7.10: "Of another machine it may ask models alone"
    with pytest.raises(Fault) as refused:
        inside(object_)
    assert refused.value.code == "EACCES"
    assert "another machine" in refused.value.message


def test_a_model_of_another_machine_and_what_an_agents_policy_decides_about_are_not() -> None:
    for object_, identity in ((replace(MODEL, plugin=THERE), OWN), (SHELL, replace(OWN, label="agent/a"))):
        assert inside(object_, identity).identity == identity


def test_no_more_patterns_are_kept_than_scripts_run() -> None:
    for number in range(200):
        assert confined.is_named("a.b", (f"x{number}.*", "a.?"))
        assert not confined.is_named("a.b", (f"x{number}.*", "[!a].b"))
    assert confined._compiled.cache_info().currsize <= 16


async def test_it_is_told_of_what_it_may_run() -> None:
    registry = Registry({one.key: one for one in (HERE, SHELL)})
    world: Any = None
    told = AllowedTools(world, lambda: registry).answer
    names = [line.split("\t")[0] for line in (await told(OWN)).decode().splitlines()]
    assert len(names) == 1
    assert SHELL.name not in names[0]
    assert await told(replace(OWN, script=("text.*",))) == b""
    assert len((await told(replace(OWN, script=None))).splitlines()) == 2


async def test_who_runs_scripts_for_a_client_finds_what_these_may_run() -> None:
    # mcp-serve.md: find and describe name no tool of another machine, which a script cannot run
    registry = Registry({one.key: one for one in (HERE, SHELL)})
    world: Any = None
    told = AllowedTools(world, lambda: registry).answer
    client = replace(OWN, script=None)
    (found,) = (await told(client, [b"*"])).decode().splitlines()
    assert SHELL.name not in found
    assert await told(client, [b"text.*"]) == b""
    for many in ([b"a"] * (confined.MAX_PATTERNS + 1), [b"a" * (confined.MAX_PATTERN + 1)]):
        with pytest.raises(Fault, match="E2BIG"):  # users could have the daemon compile megabytes
            await told(client, many)
