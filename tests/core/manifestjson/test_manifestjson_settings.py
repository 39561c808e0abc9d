"""A plugin's settings: types, defaults, and the sentence for a value that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson import settings
from tests.core.manifest_json import EVERYTHING, found, manifest

KNOWN = settings.settings_of(manifest(**EVERYTHING))
# a setting of EVERYTHING, values that fit, other values with the sentence that refuses them
VALUES: dict[str, tuple[list[Any], list[tuple[Any, str]]]] = {
    "title": (["", "a"], [(1, "title: expected a string, got 1"), (None, "title: ")]),
    # abi.md 9.20
    "limit": ([0, -1, 2.5], [("9", 'limit: expected a number, got "9"'), (True, "limit: ")]),
    # abi.md 9.20
    "strict": ([True, False], [("no", 'strict: expected true or false, got "no"'), (0, "strict: ")]),
    # abi.md 9.19
    "unit": (["lines"], [("line", 'unit: "line" is not one of words, lines; did you'), (1, "unit: ")]),
    # abi.md 9.21: not even a sentence shows one
    "token": (["s3cret"], [(42, "token: expected a string, which is never shown, got another type")]),
    # config.settings without a field: "Record<string, unknown>"
    "retries": ([3, "a", None, [1], {}], []),
}  # fmt: skip
# a setting, the text that a person typed, the value that is kept
TYPED = [
    ("title", "5", "5"), ("limit", "5", 5), ("limit", "-2.5", -2.5), ("strict", "yes", True),
    ("strict", "OFF", False), ("unit", "lines", "lines"),
    ("token", "true", "true"), ("retries", "[1]", [1]), ("retries", "a b", "a b"),
]  # fmt: skip


def test_the_types_are_those_of_the_reference() -> None:
    # abi.md 9.19
    assert list(settings.TYPES) == ["text", "number", "boolean", "select", "secret"]
    for type_ in settings.TYPES:
        options = [{"label": "", "value": ""}]
        field = {"key": "k", "label": "", "type": type_, "defaultValue": None, "options": options}
        sections = [{"section": "", "fields": [field]}]
        assert found(ui={"settings": sections}, capabilities=["config:schema"]) == []


def test_a_value_fits_its_type_or_is_refused_with_a_sentence() -> None:
    assert list(KNOWN) == ["unit", "limit", "strict", "title", "token", "retries"]
    for key, (fit, wrong) in VALUES.items():
        for value in fit:
            assert settings.check(KNOWN, key, value) == value
        for value, said in wrong:
            with pytest.raises(Fault) as raised:
                settings.check(KNOWN, key, value)
            assert raised.value.code == "EINVAL"
            assert raised.value.message.startswith(said)
    # real plugins keep keys of their own
    assert settings.check(KNOWN, "anything", {"a": 1}) == {"a": 1}


def test_what_a_person_types_is_kept_as_the_type_has_it() -> None:
    for key, text, value in TYPED:
        kept = settings.read(KNOWN, key, text)
        assert (kept, type(kept)) == (value, type(value))
    for key, text, said in (
        ("limit", "many", 'limit: expected a number, got "many"'),
        ("strict", "maybe", 'strict: expected true or false, got "maybe"'),
        ("limti", "1", r'"limti" is no setting of this plugin; did you mean limit\?'),
    ):
        with pytest.raises(Fault, match=f"^EINVAL: {said}$"):
            settings.read(KNOWN, key, text)


def test_what_is_set_counts_before_the_defaults() -> None:
    # abi.md 9.23; of the originals: "lower priority than user's"
    # config.settings gives limit 20, its field 10
    defaults = {"unit": "words", "limit": 20, "strict": False, "title": "", "retries": 3}
    assert settings.values(KNOWN, {}) == defaults
    assert settings.values(KNOWN, {"limit": 1, "own": None}) == defaults | {"limit": 1, "own": None}


def test_a_default_that_does_not_fit_is_a_warning_and_no_default() -> None:
    fields = [
        {"key": "a", "label": "", "type": "number", "defaultValue": "ten"},
        {"key": "b", "label": "", "type": "boolean", "defaultValue": False},
    ]
    changes: dict[str, Any] = {
        "capabilities": ["config:schema"],
        "ui": {"settings": [{"section": "S", "fields": fields}]},
        "config": {"settings": {"b": "no"}},
    }
    wrong = [
        ("wrong_default", "ui.settings[0].fields[0].defaultValue"),
        ("wrong_default", "config.settings.b"),
    ]
    assert found(**changes) == wrong
    assert settings.values(settings.settings_of(manifest(**changes)), {}) == {"b": False}


def test_settings_are_declared_soundly() -> None:
    field = {"key": "a", "label": "", "type": "text", "defaultValue": ""}

    def section(*fields: dict[str, Any]) -> dict[str, Any]:
        both = [{"section": "A", "fields": fields[:1]}, {"section": "B", "fields": fields[1:]}]
        return {"capabilities": ["config:schema"], "ui": {"settings": both}}

    assert found(**section(field, field | {"key": "b"})) == []
    # a key is "read via ctx.config.get(key)", so it is one setting in all sections
    assert found(**section(field, field)) == [("duplicate_name", "ui.settings[1].fields[0].key")]
    assert found(**section(field | {"key": ""})) == [("invalid_name", "ui.settings[0].fields[0].key")]
    select = section(field | {"type": "select"})
    assert found(**select) == [("missing_field", "ui.settings[0].fields[0].options")]


def test_a_secret_is_shown_to_nobody() -> None:
    # abi.md 9.21
    token = KNOWN["token"]
    assert token.is_secret
    assert (token.shown("s3cret"), token.shown(None), token.shown("")) == (settings.MASK, None, "")
    assert KNOWN["title"].shown("a") == "a"
