"""docs/client.md names all that the client has."""

from __future__ import annotations

import inspect
import re

from cortexfs.client import Conversation
from tests.places import PROJECT
from tests.tables import each_of

PAGE = (PROJECT / "docs" / "client.md").read_text()
METHODS = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE)


def public(class_: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(class_, callable) if not name.startswith("_")}


def test_the_table_of_methods() -> None:
    assert {name for name, _ in METHODS} | {"fileno", "wait"} == public(Conversation)


@each_of(("name", "parameters"), METHODS)
def test_the_parameters_of_methods(name: str, parameters: str) -> None:
    told = [word for word in parameters.split(", ") if word not in ("", "*")]
    assert list(inspect.signature(getattr(Conversation, name)).parameters)[1:] == told
