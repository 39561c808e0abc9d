"""The variables that are passed on, and the host that serves a call."""

from __future__ import annotations

from typing import Any

from cortexfs.core import hostcalls
from cortexfs.core.hostcalls import Identity, Plugin, Sandbox, is_enclosed, of_call
from cortexfs.core.wire import is_passed_on
from tests.tables import each_of

SOMEBODY = Identity(1000, 1000, ())


def plugin(**fields: Any) -> Plugin:
    return Plugin(**({"name": "p", "version": "1", "kind": "process", "target": ""} | fields))


@each_of(
    ("name", "passes"),
    [(b"PATH", True), (b"LC_ALL", True), (b"LC_X", True), (b"AWS_SECRET", False), (b"XLC_ALL", False)],
)
def test_which_variables_pass_on(name: bytes, passes: bool) -> None:
    assert is_passed_on(name) == passes


def test_a_library_with_other_variables_is_another_host() -> None:
    said = {b"LANG": b"C", b"HOME": b"/"}
    assert of_call(SOMEBODY, {}) == SOMEBODY
    hashed = of_call(SOMEBODY, said)
    assert hashed.variables
    assert hashed == of_call(SOMEBODY, dict(reversed(said.items())))
    assert hashed != of_call(SOMEBODY, {b"LANG": b"C"})


def test_which_hosts_have_mounts_of_their_own() -> None:
    view = (("/srv", "r"),)
    viewed = hostcalls.Identity(1000, 1000, (), view=view)
    assert is_enclosed(plugin(), viewed)
    assert is_enclosed(plugin(sandbox=Sandbox(view=view)), SOMEBODY)
    assert not is_enclosed(plugin(), SOMEBODY)
    assert not is_enclosed(plugin(sandbox=Sandbox()), SOMEBODY)


def test_whoever_is_elsewhere_needs_a_way_there() -> None:
    assert not SOMEBODY.is_elsewhere
    assert Identity(0, 0, (), namespaces=(1, 2)).is_elsewhere
    assert Identity(0, 0, (), root=(7, 8)).is_elsewhere
