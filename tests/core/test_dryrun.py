"""core/dryrun.py: what means a dry run, and what is the tool's own."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core import dryrun
from cortexfs.core.calls import Effect
from cortexfs.core.errors import Fault


def effect(support: str) -> Effect:
    return Effect("write_file", "reversible", "never", support)


@pytest.mark.parametrize(
    ("effects", "schema", "offered"),
    [
        ((), {}, False),
        ((effect("not_supported"),), {}, False),
        ((effect("not_supported"), effect("supported")), {}, True),
        ((effect("required_before_execute"),), {"properties": {"path": {}}}, True),
        ((effect("supported"),), {"properties": {"dry_run": {}}}, False),
        ((effect("supported"),), {"properties": {"dry-run": {}}}, False),
        ((effect("supported"),), {"properties": True}, True),
    ],
)
def test_who_offers_it(effects: tuple[Effect, ...], schema: dict[str, Any], offered: bool) -> None:
    assert dryrun.is_offered(effects, schema) is offered


@pytest.mark.parametrize(
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
    # abi.md 4: "`--` ends flags"
    assert dryrun.is_among(words) is (left is not None)
    assert dryrun.without(words) == (words if left is None else left)


def test_a_model_sees_a_property_more() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
    shown = dryrun.shown(schema)
    assert list(shown["properties"]) == ["path", "dry_run"]
    assert shown["properties"]["dry_run"]["type"] == "boolean"
    assert list(schema["properties"]) == ["path"]  # type: ignore[call-overload]
    assert dryrun.shown({"type": "object"})["properties"].keys() == {"dry_run"}


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_what_is_no_boolean_runs_nothing(value: object) -> None:
    with pytest.raises(Fault, match="dry_run: expected boolean; nothing was run"):
        dryrun.parted({"dry_run": value})
