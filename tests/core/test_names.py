"""Names and aliases (abi.md 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core import names
from cortexfs.core.errors import Fault
from tests.tables import each_of


@each_of("name", ["a", "0", "gpt-4o", "fs.read", "A_b+c-d.e", "x" * 64, "d", "sock", "x.D"])
def test_good_names(name: str) -> None:
    assert names.check(name) == name


@each_of(
    ("name", "rule"),
    [
        # abi.md 2.1; the seed forbids: / NUL empty . .. control characters, newline, suffix .sock, suffix .d
        ("", "is empty"),
        ("a/b", "may hold only"),
        ("a\0b", "may hold only"),
        (".", "may hold only"),
        ("..", "may hold only"),
        ("a\x01", "may hold only"),
        ("a\n", "may hold only"),
        ("x.sock", "ends in .sock or .d"),
        ("x.d", "ends in .sock or .d"),
        ("x" * 65, "longer than 64"),
        (".hidden", "begins with a letter or digit"),
        ("-v", "begins with a letter or digit"),
        ("é", "may hold only"),
        ("٣", "may hold only"),  # a digit, but not of ASCII
        ("a b", "may hold only"),
    ],
)
def test_bad_names_say_the_rule(name: str, rule: str) -> None:
    with pytest.raises(Fault, match=rule) as caught:
        names.check(name)
    assert caught.value.code == "EINVAL"


@each_of(
    ("class_", "name", "good"),
    [
        ("tool", "fs.read", True),
        ("tool", "fs/read", False),  # abi.md 2.2
        ("agent", "coder", True),
        ("model", "openai/gpt-4o", True),  # abi.md 2.3
        ("model", "gpt-4o", False),
        ("model", "a/b/c", False),
        ("model", "a/b.d", False),
    ],
)
def test_names_of_objects(class_: str, name: str, good: bool) -> None:
    if good:
        assert names.check_object(class_, name) == name
    else:
        with pytest.raises(Fault):
            names.check_object(class_, name)


def test_a_new_name_has_no_plus() -> None:
    # abi.md 14.14
    assert names.check_new("coder") == "coder"
    with pytest.raises(Fault, match=r"EINVAL: the name 'coder\+box' has a \+, which is reserved"):
        names.check_new("coder+box")
    with pytest.raises(Fault, match="EINVAL"):
        names.check_new("openai+box/gpt")
    assert names.clean("gpt+box") == "gpt-box"  # a foreign id


def test_foreign_ids_become_names() -> None:
    # abi.md 2.6
    assert names.clean("claude:3 opus@2024") == "claude-3-opus-2024"
    assert names.clean("c4ai+command-r+") == "c4ai-command-r-"
    assert names.clean(".sock") == "sock"
    assert names.clean("weights.d") == "weights"


@given(st.text())
def test_cleaning_gives_a_name_whatever_comes(text: str) -> None:
    assert names.fault_of(names.clean(text)) is None
