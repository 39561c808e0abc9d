"""core/arguments/dryrun.py: the flags that mean a dry run, and the flags that are a tool's own."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cortexfs.agents.calls import AgentDryRuns, MeantCall
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.toolbox import Toolbox
from cortexfs.core.arguments import dryrun
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Capabilities, Effect, Plugin
from cortexfs.core.registry import Object
from cortexfs.core.tree.controls import CONTROLS
from tests.tables import each_of


@each_of(
    ("flag", "schema", "offered"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"properties": {"path": {}}}, True),
        (True, {"properties": {"dry_run": {}}}, False),
        (True, {"properties": {"dry-run": {}}}, False),
        (True, {"properties": True}, True),
    ],
)
def test_who_offers_it(flag: bool, schema: dict[str, Any], offered: bool) -> None:
    # abi.md 4.46
    assert dryrun.is_offered(flag, schema) is offered


@each_of(
    ("words", "left"),
    [
        ([], None),
        ([b"a", b"--", b"--dry-run"], None),
        ([b"--dry-run=1"], None),
        ([b"a", b"--dry-run", b"--", b"--dry-run"], [b"a", b"--", b"--dry-run"]),
        ([b"--dry-run", b"{}", b"--dry-run"], [b"{}"]),
    ],
)
def test_the_word_stands_before_what_are_plain_words(words: list[bytes], left: list[bytes] | None) -> None:
    # abi.md 4.10
    assert dryrun.is_among(words) is (left is not None)
    assert dryrun.without(words) == (words if left is None else left)


def test_a_model_sees_a_property_more() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
    shown = dryrun.shown(schema)
    assert list(shown["properties"]) == ["path", "dry_run"]
    assert shown["properties"]["dry_run"]["type"] == "boolean"
    assert list(schema["properties"]) == ["path"]  # type: ignore[call-overload]
    assert dryrun.shown({"type": "object"})["properties"].keys() == {"dry_run"}


@each_of(
    ("said", "input_", "dry"),
    [
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1, "dry_run": True}, {"a": 1}, True),
        ({"dry_run": False}, {}, False),
        ([1], [1], False),
    ],
)
def test_a_model_says_so_with_it(said: Any, input_: Any, dry: bool) -> None:
    assert dryrun.parted(said) == (input_, dry)


@each_of("value", ["true", 1, None, []])
def test_what_is_no_boolean_runs_nothing(value: object) -> None:
    with pytest.raises(Fault, match="dry_run: expected boolean; nothing was run"):
        dryrun.parted({"dry_run": value})


class OneTool:
    """The part of a world that a toolbox uses, with a single tool."""

    def __init__(self, tool: Object) -> None:
        self._tool = tool

    def find(self, class_: str, name: str, uid: int | None = None) -> Object | None:
        return self._tool if (class_, name) == self._tool.key else None


def tool(properties: dict[str, Any], flag: bool) -> Object:
    effects = (Effect("write_file", "reversible", "never", "supported"),)
    schema = msgspec.json.encode({"type": "object", "properties": properties})
    capabilities = Capabilities(effects=effects)
    return Object(
        class_="tool",
        name="t",
        description="",
        schema=schema,
        capabilities=capabilities,
        dry_run_flag=flag,
    )


@each_of("flag", [True, False])
def test_a_model_sees_it_of_tools_that_have_opted_in(flag: bool) -> None:
    # abi.md 4.46
    (shown,) = Toolbox(cast(AgentPorts, OneTool(tool({"path": {}}, flag))), ["t"]).offers()
    assert ("dry_run" in shown.schema["properties"]) is flag


def test_what_a_model_says_to_one_that_has_not_is_wrong() -> None:
    # abi.md 4.48
    labelled = tool({"path": {}}, False)
    wanted = AgentDryRuns().meant_call(labelled, {"path": "x", "dry_run": True}, 0.0)
    assert (wanted.dry, wanted.wrong) == (False, dryrun.lacking("t", "dry_run"))
    wanted = AgentDryRuns().meant_call(labelled, {"path": "x", "dry_run": "yes"}, 0.0)
    assert "nothing was run" in wanted.wrong
    assert AgentDryRuns().meant_call(labelled, {"path": "x", "dry_run": False}, 0.0) == MeantCall(
        {"path": "x"}
    )
    own = tool({"dry_run": {}}, False)
    assert AgentDryRuns().meant_call(own, {"dry_run": True}, 0.0) == MeantCall({"dry_run": True})


def test_what_opts_in_is_shown() -> None:
    # docs/ctx.md: "`dry_run_flag` of a tool that takes --dry-run, `dry_run_trusted` of a trusted publisher's"
    (cap,) = [control for control in CONTROLS["tool"] if control.name == "cap"]
    plugin = Plugin("p", "1", "python", "m:a", trusted=True)
    assert cap.render(replace(tool({}, False), plugin=plugin)) == ""
    assert cap.render(tool({}, True)) == "dry_run_flag"
    assert cap.render(replace(tool({}, True), plugin=plugin)) == "dry_run_flag\ndry_run_trusted"
