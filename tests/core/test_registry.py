"""The registry: it checks names, keeps objects in the order of names, and computes exact diffs."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object, Registry, diff
from cortexfs.core.starter_command import needed
from tests.tables import each_of


def thing(class_: str, name: str, **changes: object) -> Object:
    return msgspec.structs.replace(Object(class_=class_, name=name, description=""), **changes)


def registry(*objects: Object) -> Registry:
    return Registry({object_.key: object_ for object_ in objects})


def test_names_come_sorted_whatever_the_order_of_registration() -> None:
    found = registry(thing("tool", "b"), thing("model", "p/m"), thing("tool", "a"))
    assert found.names("tool") == ("a", "b")
    assert found.names("agent") == ()
    assert [object_.name for object_ in found] == ["p/m", "a", "b"]


def test_providers_are_what_models_are_filed_under() -> None:
    found = registry(thing("model", "p/b"), thing("model", "q/a"), thing("model", "p/a"))
    assert [found.within(folder) for folder in ("", "p", "q")] == [("p", "q"), ("a", "b"), ("a",)]


@each_of(
    ("class_", "name"),
    [("tool", "x.sock"), ("tool", "x.d"), ("tool", "a/b"), ("model", "m"), ("model", "p/m/x"), ("agent", "")],
)
def test_an_invalid_name_never_reaches_the_tree(class_: str, name: str) -> None:
    # abi.md 2.4
    with pytest.raises(Fault) as raised:
        registry(thing(class_, name))
    assert raised.value.code == "EINVAL"


def test_a_key_that_is_not_the_objects_is_refused() -> None:
    with pytest.raises(Fault):
        Registry({("tool", "a"): thing("tool", "b")})


def test_diff_says_what_came_what_went_and_what_is_different() -> None:
    old = registry(thing("tool", "same"), thing("tool", "gone"), thing("tool", "other"))
    new = registry(thing("tool", "same"), thing("tool", "new"), thing("tool", "other", status="broken: x"))
    assert diff(old, new) == ((("tool", "new"),), (("tool", "gone"),), (("tool", "other"),))
    assert diff(old, old) == ((), (), ())


def test_an_object_of_a_home_serves_its_user_alone() -> None:
    # abi.md 1.10
    own = Object(class_="agent", name="a", description="", home=1000, registered=0.0)
    shared = Object(class_="agent", name="a", description="", registered=0.0)
    assert [own.serves(uid) for uid in (1000, 0)] == [True, False]
    assert [shared.serves(uid) for uid in (1000, 0)] == [True, True]


def test_a_starter_has_the_variables_that_it_needs_and_no_others() -> None:
    given = {"PATH": "/bin", "XDG_STATE_HOME": "/s", "LC_ALL": "C", "API_KEY": "k", "MY_XDG_": "x"}
    assert sorted(needed(given)) == ["LC_ALL", "PATH", "XDG_STATE_HOME"]
