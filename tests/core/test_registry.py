"""The registry: names are checked at its gate, its order is the names' order, and diffs are exact."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object, Registry, diff


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
    assert found.providers == {"p": ("a", "b"), "q": ("a",)}


@pytest.mark.parametrize(
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
