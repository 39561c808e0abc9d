"""A library with one tool that is described wrongly; its other tools work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.plugins.catalog import Catalog
from tests.shell import declaring
from tests.shell.calling import serving
from tests.shell.forks import public_directory

FIXTURE = declaring.NATIVE / "fixture.c"


@pytest.fixture(scope="session")
def public() -> Iterator[Path]:
    with public_directory() as place:
        yield place


def made(public: Path, *flags: str) -> hostcalls.Plugin:
    name = f"lib{len(list(public.iterdir()))}.so"
    return declaring.library(declaring.build(public, FIXTURE, *flags, name=name))


def wrong(members: str) -> str:
    """Returns the flag that puts these members into the descriptor of one tool."""
    return "-DWRONG=" + json.dumps(members)


WRONG = [
    (("-DEMPTY_AT=3",), "tool 3: native ABI returned an empty descriptor for tool index 3"),
    (("-DCOUNT=1000",), "tool 29: native ABI returned an empty descriptor for tool index 29"),
    (("-DWRONG_AT=1", wrong('"input_schema":7')), "{}: its library returned an invalid descriptor"),
    (("-DWRONG_AT=1", wrong('"input_schema":{"type":"no such"}')), "{}: the tool's schema is wrong at "),
    (
        ("-DWRONG_AT=1", wrong('"input_schema":{},"timeout_secs":-1')),
        "{}: its library returned an invalid descriptor",
    ),
]


@pytest.mark.parametrize(("flags", "why"), WRONG, ids=[flags[-1] for flags, _ in WRONG])
async def test_one_wrong_tool_costs_that_tool(
    tmp_path: Path, public: Path, flags: tuple[str, ...], why: str
) -> None:
    # abi.md 11.35
    plugin = made(public, *flags)
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([plugin])
        mine = [one for one in registry if one.origin.startswith("plugin:fixture@")]
    assert "echo" in [one.name for one in mine if one.status == "ready"]
    assert catalog.broken == {}
    wrong = {one.name: one.status for one in mine if one.status != "ready"}
    assert len(wrong) == why.count("{")  # a tool without a name is not in the tree
    assert catalog.wrong["fixture"].startswith(why.format(*wrong))
    assert all(status.startswith("broken: ") for status in wrong.values())


@pytest.mark.parametrize(("told", "seconds"), [("0", None), ("18446744073709551615", 604_800)])
async def test_a_timeout_of_0_is_none_and_one_of_all_bits_the_most(
    tmp_path: Path, public: Path, told: str, seconds: int | None
) -> None:
    # abi.md 11.36
    async with serving(tmp_path) as world:
        registry = await Catalog(world.pool).registry([made(public, f'-DTIMEOUT="{told}"')])
        echo = registry.get("tool", "echo")
        assert echo is not None
        assert echo.timeout == seconds
