"""The `.d/` table has all that abi.md 3 lists, and values enter it through `judge` alone."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import TEAM, Capabilities, Effect, Plugin
from cortexfs.core.registry import Object
from cortexfs.core.tree import controls
from cortexfs.core.tree.controls import CONTROLS, MAX_VALUE, find, judge, line_ended
from tests.tables import each_of

# abi.md 3.2, 3.3, 3.4, 3.8; policy is among a model's writable files and therefore a file of models too.
FILES = {
    "tool": "name description schema cap effects timeout policy status log origin",
    "model": "id driver cap effort default fallback limit session policy status log origin",
    "agent": "owner uid gid groups label iso parent life root cwd env path mount model window system.md"
    " tools skills approval policy status pid log meta.json",
}
WRITABLE = {
    "tool": "policy",
    "model": "default effort driver fallback policy",
    "agent": "groups label cwd env path mount model window system.md tools skills approval policy",
}
OF_SOME = {"tool": ["script"], "agent": ["cap", "origin"]}  # of a user's own tool; of another machine's agent


def render(object_: Object, name: str) -> str:
    control = find(object_.class_, name)
    assert control is not None
    return line_ended(control.render(object_)).decode()


@each_of("class_", list(FILES))
def test_the_table_is_the_abis(class_: str) -> None:
    assert [control.name for control in CONTROLS[class_]] == FILES[class_].split() + OF_SOME.get(class_, [])


def test_an_agent_of_another_machine_has_what_is_to_be_seen_here() -> None:
    # abi.md 14.23
    here = Object(class_="agent", name="x", description="")
    there = msgspec.structs.replace(here, plugin=Plugin("machine:box", "", TEAM, "box agent x"))
    names = [control.name for control in CONTROLS["agent"]]
    assert [name for name in names if controls.has(there, name)] == ["status", "log", "cap", "origin"]
    assert [name for name in names if not controls.has(here, name)] == ["cap", "origin"]


@each_of("class_", list(WRITABLE))
def test_what_may_be_written_is_what_the_abi_says(class_: str) -> None:
    writable = {control.name for control in CONTROLS[class_] if control.check} - {*OF_SOME.get(class_, [])}
    assert writable == set(WRITABLE[class_].split())


@each_of("class_", list(FILES))
def test_values_are_text_that_ends_in_a_newline(class_: str) -> None:
    # abi.md 3.1
    name = "p/m" if class_ == "model" else "x"
    object_ = Object(class_=class_, name=name, description="two\nlines", timeout=1.5)
    for control in CONTROLS[class_]:
        if control.name != controls.LOG:
            value = line_ended(control.render(object_))
            assert not value or value.endswith(b"\n")


@each_of("class_", list(FILES))
def test_defaults_that_are_not_empty_pass_their_own_check(class_: str) -> None:
    name = "p/m" if class_ == "model" else "x"
    object_ = Object(class_=class_, name=name, description="")
    for control in CONTROLS[class_]:
        if control.check and (value := line_ended(control.render(object_))):
            assert judge(control, value) == value


def test_a_tools_effects_are_one_line_each() -> None:
    # abi.md 3.6
    effects = (
        Effect("fs_write", "reversible", "always", "supported", "my files/100%"),
        Effect("network", "irreversible", "never", "unsupported"),
        Effect("deploy", "irreversible", "never", "unsupported", "-"),
        Effect("deploy", "irreversible", "never", "unsupported", "a\u2028b"),
    )
    object_ = Object(class_="tool", name="x", description="", capabilities=Capabilities(effects=effects))
    assert render(object_, "effects") == (
        "fs_write my%20files/100%25 reversible always supported\nnetwork - irreversible never unsupported\n"
        "deploy %2D irreversible never unsupported\ndeploy a%E2%80%A8b irreversible never unsupported\n"
    )


@each_of(("timeout", "text"), [(30.0, "30\n"), (1800, "1800\n"), (0.5, "0.5\n"), (1e7, "10000000\n")])
def test_a_timeout_is_decimal_seconds(timeout: float, text: str) -> None:
    # abi.md 3.5
    assert render(Object(class_="tool", name="x", description="", timeout=timeout), "timeout") == text


def test_a_models_id_is_the_native_one() -> None:
    # abi.md 2.6
    object_ = Object(class_="model", name="p/m", description="", extra={"id": "vendor/m:free"})
    assert render(object_, "id") == "vendor/m:free\n"


@each_of("text", [b"low", b"low\n"])
def test_a_missing_last_newline_is_added(text: bytes) -> None:
    effort = find("model", "effort")
    assert effort is not None
    assert judge(effort, text) == b"low\n"


@each_of(
    ("name", "data", "code"),
    [
        ("limit", b"4096\n", "EROFS"),
        ("effort", b"\xff\n", "EINVAL"),
        ("default", b"a=b\0c\n", "EINVAL"),
        ("default", b"a=" + b"x" * MAX_VALUE, "EFBIG"),
        ("effort", b"", "EINVAL"),
    ],
)
def test_what_is_no_value_is_refused_before_it_is_parsed(name: str, data: bytes, code: str) -> None:
    control = find("model", name)
    assert control is not None
    with pytest.raises(Fault) as raised:
        judge(control, data)
    assert raised.value.code == code


def test_an_unknown_control_is_none() -> None:
    assert find("tool", "efort") is None
