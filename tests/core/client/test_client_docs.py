"""docs/client.md names what the client has, in both halves."""

from __future__ import annotations

import inspect
import re

import pytest

from cortexfs import client
from cortexfs.client import Conversation
from cortexfs.client import trio as client_trio
from tests.places import PROJECT

PAGE = (PROJECT / "docs" / "client.md").read_text()
METHODS = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE)


def public(class_: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(class_, callable) if not name.startswith("_")}


def test_the_table_of_methods() -> None:
    assert {name for name, _ in METHODS} | {"fileno", "wait"} == public(Conversation)
    # client.md: "The names are the same. ... There is no `waiting`."
    assert public(Conversation) - public(client_trio.Conversation) == {"waiting"}


@pytest.mark.parametrize(("name", "parameters"), METHODS)
def test_the_parameters_of_methods(name: str, parameters: str) -> None:
    told = [word for word in parameters.split(", ") if word not in ("", "*")]
    for half in (Conversation, client_trio.Conversation):
        if method := getattr(half, name, None):
            assert list(inspect.signature(method).parameters)[1:] == told


@pytest.mark.parametrize("name", ["send", "resume", "run", "text"])
def test_both_halves_take_the_same(name: str) -> None:
    blocking, asynchronous = (inspect.signature(getattr(half, name)) for half in (client, client_trio))
    assert list(blocking.parameters) == list(asynchronous.parameters)
