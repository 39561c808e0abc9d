"""Hooks, exports, events and results: the tables of abi.md 9."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from jsonschema_rs import validator_for

from cortexfs.core import hooks
from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson import fields, rules, settings
from tests.core.manifest_json import EVERYTHING, manifest
from tests.tables import each_of

# abi.md 9.40: the name, and "Capability required"
EXPORTS = """
    tools tools
    providers config:provider
    cliCommands cli:commands
    onInstall —
    onLoad —
    onActivate —
    onDeactivate —
    onUnload —
    onUninstall —
    onConfigChange —
    middlewarePre middleware:pre
    middlewarePost middleware:post
"""
# abi.md 9.41, and a payload of that form
EVENTS: dict[str, dict[str, Any]] = {
    "session:start": {"sessionId": "s"},
    "session:end": {"sessionId": "s"},
    "tool:pre-execute": {"toolName": "t", "args": {"a": 1}},
    "tool:post-execute": {"toolName": "t", "result": None},
    "llm:pre-call": {"provider": "p", "model": "m"},
    "llm:post-call": {"provider": "p", "model": "m", "tokensIn": 1, "tokensOut": 2},
    "agent:turn-start": {"sessionId": "s", "turnId": "t"},
    "agent:turn-end": {"sessionId": "s", "turnId": "t", "response": "r"},
    "config:change": {"key": "k", "value": [1]},
    "daemon:status": {"daemon": "d", "status": "up"},
}


def test_hooks_are_called_in_the_documented_order() -> None:
    # Of the originals: "Install", "Enable", "Disable", "Remove", "config change ... per key"
    said = {
        "install": "onInstall→onLoad→onActivate",
        "enable": "onLoad→onActivate",
        "disable": "onDeactivate→onUnload",
        "remove": "onDeactivate→onUnload→onUninstall",
        "config": "onConfigChange",
    }
    assert {what: "→".join(hooks) for what, hooks in hooks.LIFECYCLE.items()} == said


def test_exports_and_their_capabilities_are_those_of_the_reference() -> None:
    rows = [line.split() for line in EXPORTS.strip().splitlines()]
    assert {name: capability or "—" for name, capability in hooks.EXPORTS.items()} == dict(rows)
    called = {hook for hooks in hooks.LIFECYCLE.values() for hook in hooks}
    assert called == {name for name in hooks.EXPORTS if name.startswith("on")}


def test_an_event_is_its_type_and_its_payload() -> None:
    assert list(hooks.EVENTS) == list(EVENTS)
    for type_, payload in EVENTS.items():
        assert msgspec.json.decode(hooks.event(type_, **payload)) == {"type": type_, **payload}
        assert hooks.EVENTS[type_].keys() == payload.keys()
        with pytest.raises(Fault, match="EINVAL"):
            hooks.event(type_, **payload, more=1)
        with pytest.raises(Fault, match="EINVAL"):
            hooks.event(type_)
    for type_, payload in (
        ("session:begin", {}),
        ("session:start", {"sessionId": 1}),
        ("llm:post-call", EVENTS["llm:post-call"] | {"tokensIn": "1"}),
        # abi.md 9.41
        ("daemon:status", {"daemon": "d", "status": "gone"}),
    ):
        with pytest.raises(Fault, match=rf"^EINVAL: (the event )?{type_}"):
            hooks.event(type_, **payload)


def test_params_are_a_schema_for_arguments() -> None:
    # abi.md 9.15; of the originals: "C does not validate args ... Do both."
    schema = fields.input_schema(manifest(**EVERYTHING).tools[0].params)
    assert schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "A text"},
            "unit": {"type": "string", "description": "Of what", "enum": ["words", "lines"]},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    assert validator_for(schema).is_valid({"text": "a", "unit": "lines"})
    for wrong in ({}, {"text": 1}, {"text": "a", "unit": "bytes"}, {"text": "a", "txet": "b"}):
        assert not validator_for(schema).is_valid(wrong)


def test_a_result_is_checked_as_the_reference_has_it() -> None:
    # abi.md 9.43
    good = {"toolName": "count", "success": True, "output": "3", "durationMs": 0.5}
    assert fields.tool_result(good, "count") == fields.JsonToolResult("count", True, "3", 0.5)
    assert fields.tool_result(good | {"error": "why", "more": 1}, "count").error == "why"
    unnamed = {"toolName": "", "success": False, "output": "no", "durationMs": 1}  # as in the wild
    assert not fields.tool_result(unnamed, "count").success
    wrong: list[Any] = [unnamed | {"success": True}, unnamed | {"toolName": "other"}]
    wrong += [{key: value for key, value in good.items() if key != cut} for cut in good]
    wrong += [good | {"output": {"a": 1}}, good | {"success": "true"}, good | {"toolName": "other"}, None, []]
    for spoilt in wrong:
        with pytest.raises(Fault, match=r"^EPROTO: the tool count returned"):
            fields.tool_result(spoilt, "count")


@each_of(("type_", "words"), [("string", ["a", "b"]), ("number", None), ("boolean", None)])
def test_words_of_the_manifest_are_for_texts_alone(type_: Any, words: Any) -> None:
    param = fields.ToolParam("unit", type_, "Of what")
    schema = fields.input_schema([param], {"unit": ("a", "b")})
    assert schema["properties"]["unit"].get("enum") == words


def test_an_unknown_event_is_told_the_nearest_or_all() -> None:
    for name, said in (("session-start", "did you mean session:start?"), ("zz", "the events are ")):
        [problem] = rules.events(msgspec.structs.replace(manifest(**EVERYTHING), events=(name,)))
        assert said in problem.mend


def test_a_setting_keeps_its_description() -> None:
    field = {"key": "a", "type": "text", "label": "A", "description": "What A is."}
    fields_ = [field, {"key": "b", "type": "text", "label": "B"}]
    ui = {"settings": [{"section": "s", "fields": fields_}]}
    found = settings.settings_of(manifest(**EVERYTHING | {"ui": ui}))
    assert [found[key].about for key in "ab"] == ["What A is.", ""]
